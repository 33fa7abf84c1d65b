// SPDX-License-Identifier: Apache-2.0
#include "core/dtype.h"
#include "core/plan.h"
#include "fovea/cache.h"
#include "ops/cache/kernels.h"

namespace fovea {
namespace {

constexpr char kOp[] = "cache_copy";

CacheCopy resolve(const fovea_cache_copy_params& p) {
  CacheCopy a{};
  a.source = view_of<4>(p.source), a.target = view_of<4>(p.target), a.pair = view_of<2>(p.pair);
  a.pairs = p.pair.shape[0];
  a.source_pages = p.source.shape[0], a.target_pages = p.target.shape[0];
  for (int i = 0; i < 3; ++i) a.shape[i] = p.source.shape[i + 1];
  a.bytes = static_cast<int32_t>(dtype_bytes(p.source.dtype));
  // Joins g and d, then page and the two, where both pools store them as one run.
  for (int axis = 1; axis >= 0; --axis) {
    const int64_t run = a.shape[2];
    if (a.shape[axis] == 1) continue;
    if (a.source.stride[3] != 1 || a.target.stride[3] != 1 || a.source.stride[axis + 1] != run ||
        a.target.stride[axis + 1] != run)
      break;
    a.shape[2] = run * a.shape[axis];
    a.shape[axis] = 1;
  }
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_cache_copy_params& params) {
  return choose(kOp, ctx, resolve(params), cache_copy_host, FOVEA_CUDA_KERNELS(cache_copy_cuda));
}

}  // namespace fovea
