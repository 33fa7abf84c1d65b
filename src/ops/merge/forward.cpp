// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "fovea/merge.h"
#include "ops/merge/resolve.h"

namespace fovea {
namespace {

constexpr char kOp[] = "merge_forward";

// The output may be part 0 itself, element on element.
void check_in_place(const char* field, const fovea_tensor& part, const fovea_tensor& out,
                    bool row) {
  if (!out.data || out.data != part.data) return;
  if (row) refuse("%s: %s is its part with row given, wanted memory of its own", kOp, field);
  bool same = out.dtype == part.dtype;
  for (int i = 0; i < out.ndim; ++i)
    same = same && (out.shape[i] < 2 || out.stride[i] == part.stride[i + 1]);
  if (!same) refuse("%s: %s starts at its part 0 with another layout, wanted the same", kOp, field);
}

Merge resolve(const fovea_merge_forward_params& p) {
  const Merge a = resolve_merge(kOp, p);
  check_in_place("o", p.o_part, p.o, p.row.data);
  check_in_place("lse", p.lse_part, p.lse, p.row.data);
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_merge_forward_params& params) {
  return choose(kOp, ctx, resolve(params), merge_forward_host,
                FOVEA_CUDA_KERNELS(merge_forward_cuda));
}

}  // namespace fovea
