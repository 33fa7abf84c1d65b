// SPDX-License-Identifier: Apache-2.0
// The kernel of last resort: takes every valid conv_attention_forward.
#include "ops/conv_attention/forward_simt.cuh"

#include "core/dtype.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "conv_attention_forward";

void enqueue(Context& ctx, const ConvSimt& call) {
  const auto run = [&]<int Chunks> {
    launch<conv_simt_kernel<Chunks>>(ctx, kOp, call.work, kStageThreads, conv_simt_bytes(), call);
  };
  const int64_t chunks = ceil_div(call.c.attend.e, kStageTile);
  if (chunks <= 1)
    run.template operator()<1>();
  else if (chunks <= 2)
    run.template operator()<2>();
  else if (chunks <= 4)
    run.template operator()<4>();
  else
    run.template operator()<9>();
}

std::string offer(const Context& ctx, const ConvAttend& c, Plan& plan) {
  const Attend& a = c.attend;
  const Strips strips(c);
  const int64_t key_tiles = ceil_div(a.sequences.key_max, kStageTile);
  const int64_t blocks = a.sequences.count * a.g * strips.packs * strips.most;
  const int64_t head_bytes = a.sequences.key_max * (a.d + a.e) * dtype_bytes(a.dtype);
  int64_t splits =
      a.splits ? a.splits : auto_splits(blocks, key_tiles, head_bytes, c.causal, device_info(ctx));
  splits = clamp_i64(splits, 1, key_tiles > 1 ? key_tiles : 1);
  plan.kernel += std::string(".") + dtype_name(a.dtype) + (splits > 1 ? ".split" : "");
  PartialSlots slots;
  if (splits > 1) slots = PartialSlots(plan.workspace, a, splits, c.out());
  plan.launch = [=](Context& ctx, void* base) {
    if (!blocks) return;
    ConvSimt call{c,
                  operand_of(a.q, a.dtype, a.d),
                  operand_of(a.k, a.dtype, a.d),
                  operand_of(a.v, a.dtype, a.e),
                  {},
                  strips,
                  splits,
                  blocks * splits};
    if (splits > 1) call.parts = slots.at(base, a, splits, c.out());
    enqueue(ctx, call);
    if (splits > 1) combine(ctx, kOp, a, call.parts);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<ConvAttend> conv_attention_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
