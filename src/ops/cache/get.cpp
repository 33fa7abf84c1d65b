// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/plan.h"
#include "fovea/cache.h"
#include "ops/cache/kernels.h"

namespace fovea {
namespace {

constexpr char kOp[] = "cache_get";

CacheGet resolve(const fovea_cache_get_params& p) {
  if (p.key_max < 0) refuse("%s: key_max is %lld, wanted >= 0", kOp, lld(p.key_max));
  CacheGet a{};
  a.k = view_of<4>(p.k), a.k_out = view_of<4>(p.k_out), a.scale = view_of<1>(p.k_scale);
  a.k_dtype = p.k.dtype, a.out_dtype = p.k_out.dtype;
  a.g = p.k.shape[2], a.d = p.k.shape[3];

  // Token i of a sequence is row i of its part of k_out and key i of its part of the cache.
  Sequences& q = a.sequences;
  q.query_start = int_vector(p.key_start), q.query_len = int_vector(p.key_len);
  q.cache_row = int_vector(p.cache_row);
  q.count = p.key_start.data ? p.key_start.shape[0] - 1 : p.k_out.shape[0];
  q.s = q.query_max = p.k_out.shape[1];
  place_keys(q, kOp, "k", p.k, p.page_table, p.key_max);
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_cache_get_params& params) {
  return choose(kOp, ctx, resolve(params), cache_get_host, FOVEA_CUDA_KERNELS(cache_get_cuda));
}

}  // namespace fovea
