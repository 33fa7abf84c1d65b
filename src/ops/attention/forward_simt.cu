// SPDX-License-Identifier: Apache-2.0
// The kernel of last resort: takes every valid attention_forward.
#include "ops/attention/forward_simt.cuh"

#include "core/dtype.h"
#include "ops/attention/kernels.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "attention_forward";
constexpr int kDecodeRows = 16;  // packed rows that fit the R = 1 tile

template <int R>
void launch_width(Context& ctx, const ForwardSimt& call) {
  const auto run = [&]<int Chunks> {
    launch<forward_simt_kernel<R, Chunks>>(ctx, kOp, call.work, kStageThreads, FmaTiles<R>::bytes(),
                                           call);
  };
  const int64_t chunks = ceil_div(call.a.e, kStageTile);
  if (chunks <= 1)
    run.template operator()<1>();
  else if (chunks <= 2)
    run.template operator()<2>();
  else if (chunks <= 4)
    run.template operator()<4>();
  else
    run.template operator()<9>();
}

std::string offer(const Context& ctx, const Attend& a, Plan& plan) {
  const Sequences& q = a.sequences;
  const int64_t packed = a.g ? q.query_max * (a.h / a.g) : 0;
  const bool decode = packed <= kDecodeRows;
  const int64_t row_tiles = ceil_div(packed, decode ? kDecodeRows : 4 * 16);
  const int64_t key_tiles = ceil_div(q.key_max, kStageTile);
  const int64_t blocks = q.count * a.g * row_tiles;
  const Window& w = a.mask.window;
  const bool masked = w.left || w.right || w.chunk || a.mask.head_window || a.mask.bits;
  const int64_t head_bytes = q.key_max * (a.d + a.e) * dtype_bytes(a.dtype);
  int64_t splits =
      a.splits ? a.splits : auto_splits(blocks, key_tiles, head_bytes, masked, device_info(ctx));
  splits = clamp_i64(splits, 1, key_tiles > 1 ? key_tiles : 1);

  plan.kernel += std::string(".") + dtype_name(a.dtype) + (splits > 1 ? ".split" : "");
  PartialSlots slots;
  if (splits > 1) slots = PartialSlots(plan.workspace, a, splits);
  plan.launch = [=](Context& ctx, void* base) {
    if (!blocks) return;
    ForwardSimt call{a,
                     operand_of(a.q, a.dtype, a.d),
                     operand_of(a.k, a.dtype, a.d),
                     operand_of(a.v, a.dtype, a.e),
                     operand_of(a.q_value, a.dtype, a.e),
                     {},
                     splits,
                     row_tiles,
                     blocks * splits};
    if (splits > 1) call.parts = slots.at(base, a, splits);
    decode ? launch_width<1>(ctx, call) : launch_width<4>(ctx, call);
    if (splits > 1) combine(ctx, kOp, a, call.parts);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Attend> attention_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
