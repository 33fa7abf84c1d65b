// SPDX-License-Identifier: Apache-2.0
// x_select_block of given scores by any rule, with forced key blocks (block_list_sm80.cuh).
#include "core/reasons.h"
#include "ops/select/block_sm80.cuh"

namespace fovea {
namespace cuda {
namespace {

// "" or what of the call the lists of a chunk do not do.
Text refuses(const Context& ctx, const SelectBlock& a) {
  if (device_info(ctx).arch < 80) return reason_capability(device_info(ctx).arch, "8.0");
  if (!a.score) return a.row ? reason_given("row") : Text("score is absent, wanted given scores");
  if (a.score.stride[3] != 1) return reason("score.stride[3]", a.score.stride[3], "1");
  if (a.normalise) return reason("normalise", a.normalise, "none");
  if (a.group() > 1) return reason("h", a.h, "one of each list head");
  if (a.wide()) return reason("scope", a.scope, "row");
  if (a.remap_step) return reason("remap_step", a.remap_step, "0");
  if (a.block_mask) return reason_given("block_mask");
  if (a.column_forced) return reason_given("column_forced");
  return block_lists_refuse(a);
}

Text offer(const Context& ctx, const SelectBlock& a, Plan& plan) {
  if (!a.b || !a.n || !a.x) return "there are no list rows";
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  SelectProduct x{};
  x.a = a, x.lines = a.x;
  plan.kernel += ".given";
  plan.launch = [=](Context& run, void*) { run_lists(run, x, {0, a.b, 0, a.n}); };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<SelectBlock> x_select_block_given_sm80 = {"sm80", cuda::offer};

}  // namespace fovea
