// SPDX-License-Identifier: Apache-2.0
// The kernel of last resort: takes every valid conv_attention_forward.
#include "core/dtype.h"
#include "ops/conv_attention/strip_simt.cuh"

namespace fovea {
namespace cuda {
namespace {

Text offer(const Context& ctx, const ConvAttend& c, Plan& plan) {
  const Attend& a = c.attend;
  const Strips strips(c);
  const int64_t key_tiles = ceil_div(a.sequences.key_max, kStageTile);
  const int64_t blocks = a.sequences.count * a.g * strips.packs * strips.most;
  const int64_t head_bytes = a.sequences.key_max * (a.d + a.e) * dtype_bytes(a.dtype);
  int64_t splits =
      a.splits ? a.splits : auto_splits(blocks, key_tiles, head_bytes, c.causal, device_info(ctx));
  splits = clamp_i64(splits, 1, key_tiles > 1 ? key_tiles : 1);
  plan.kernel += Text(".") + dtype_name(a.dtype) + (splits > 1 ? ".split" : "");
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
    with_chunks(a.e, [&]<int Chunks> { conv_simt<Chunks>(ctx, call); });
    if (splits > 1) combine(ctx, "conv_attention_forward", a, call.parts);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<ConvAttend> conv_attention_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
