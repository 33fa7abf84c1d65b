// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "fovea/merge.h"
#include "ops/merge/resolve.h"

namespace fovea {
namespace {

constexpr char kOp[] = "merge_backward";

MergeBackward resolve(const fovea_merge_backward_params& p) {
  MergeBackward a{};
  a.forward = resolve_merge(kOp, p);
  a.dout = view_of<4>(p.dout), a.dlse = view_of<3>(p.dlse);
  a.do_part = view_of<5>(p.do_part), a.dlse_part = view_of<4>(p.dlse_part);
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_merge_backward_params& params) {
  return choose(kOp, ctx, resolve(params), merge_backward_host,
                FOVEA_CUDA_KERNELS(merge_backward_cuda));
}

}  // namespace fovea
