// SPDX-License-Identifier: Apache-2.0
// The kernel of last resort: takes every valid conv_attention_backward.
#include "ops/conv_attention/backward_simt.cuh"

#include <string>

#include "core/dtype.h"
#include "ops/conv_attention/backward.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "conv_attention_backward";

// f<Chunks>() for sums of `width` columns.
template <class F>
void with_columns(int64_t width, const F& f) {
  const int64_t chunks = ceil_div(width, kStageTile);
  if (chunks <= 1)
    f.template operator()<1>();
  else if (chunks <= 2)
    f.template operator()<2>();
  else if (chunks <= 4)
    f.template operator()<4>();
  else
    f.template operator()<9>();
}

template <ConvOwner Owner>
void launch_keys(Context& ctx, const ConvBackwardSimt& call) {
  const Attend& a = call.b.forward.attend;
  const int64_t work = a.sequences.count * a.g * call.key_tiles;
  with_columns(Owner == ConvOwner::dk ? a.d : a.e, [&]<int Chunks> {
    launch<conv_keys_simt_kernel<Owner, Chunks>>(ctx, kOp, work, kStageThreads,
                                                 conv_backward_bytes(), call, work);
  });
}

void enqueue(Context& ctx, const ConvBackwardSimt& call) {
  const ConvAttendBackward& b = call.b;
  const Attend& a = b.forward.attend;
  conv_clear(ctx, b);
  if (!a.h) return;
  conv_delta(ctx, b, call.delta);
  const int64_t work = a.sequences.count * a.h * call.row_tiles;
  if (b.dq || b.dweight)
    with_columns(b.dq ? a.d : 1, [&]<int Chunks> {
      launch<conv_rows_simt_kernel<Chunks>>(ctx, kOp, work, kStageThreads, conv_backward_bytes(),
                                            call, work);
    });
  if (b.dk) launch_keys<ConvOwner::dk>(ctx, call);
  if (b.dv) launch_keys<ConvOwner::dv>(ctx, call);
  conv_add_dweight(ctx, b, {call.dweight, call.row_tiles});
}

std::string offer(const Context&, const ConvAttendBackward& b, Plan& plan) {
  const ConvAttend& c = b.forward;
  const Attend& a = c.attend;
  plan.kernel += std::string(".") + dtype_name(a.dtype);
  const ConvBackwardSimt call(b);
  const auto delta = plan.workspace.add<float>(a.b * a.h * c.rows_out);
  const auto dweight = plan.workspace.add<double>(
      b.dweight ? a.sequences.count * a.h * call.row_tiles * c.taps() : 0);
  plan.launch = [=](Context& ctx, void* base) {
    ConvBackwardSimt now = call;
    now.delta = delta.at(base), now.dweight = dweight.at(base);
    enqueue(ctx, now);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<ConvAttendBackward> conv_attention_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
