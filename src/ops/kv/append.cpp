// SPDX-License-Identifier: Apache-2.0
#include "ops/kv/kernels.h"
#include "ops/kv/resolve.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_kv_append";

KvAppend resolve(const fovea_x_kv_append_params& p) {
  check_not_negative(kOp, "query_max", p.query_max);
  check_flag(kOp, "flush", p.flush);
  KvAppend a{};
  a.cache = kv::read_cache(kOp, p, p.k_new, p.v_new);
  a.k_new = view_of<4>(p.k_new), a.v_new = view_of<4>(p.v_new);
  a.flush = p.flush != 0;
  Sequences& q = a.sequences;
  q.query_start = int_vector(p.query_start), q.query_len = int_vector(p.query_len);
  q.cache_row = int_vector(p.cache_row);
  q.count = p.query_start.data ? p.query_start.shape[0] - 1 : p.k_new.shape[0];
  q.s = p.k_new.shape[1], q.query_max = bounded(p.query_max, q.s);
  q.query_max = std::min(q.query_max, a.cache.capacity());
  q.capacity = q.key_max = a.cache.capacity(), q.caches = a.cache.rows;
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_kv_append_params& params) {
  const KvAppend a = resolve(params);
  if (!a.cache.by_groups())
    return choose(kOp, ctx, a, kv_append_levels_host, FOVEA_CUDA_KERNELS(kv_append_levels_simt));
  if (a.cache.by_tiles())
    return choose(kOp, ctx, a, kv_append_tiles_host, FOVEA_CUDA_KERNELS(kv_append_tiles_simt));
  return choose(kOp, ctx, a, kv_append_host, FOVEA_CUDA_KERNELS(kv_append_simt));
}

}  // namespace fovea
