// SPDX-License-Identifier: Apache-2.0
// y = x rotated.  A thread owns one unit of one head row: V column pairs, or V columns that only
// move.  V elements are 16 bytes where layout and alignment allow, else one.  No shared memory.
#include "core/dtype.h"
#include "core/locate.h"
#include "core/rotate.h"
#include "cuda/launch.h"
#include "ops/rope/kernels.h"

namespace fovea {
namespace {

constexpr int kThreads = 256;

template <class T, int V>
__global__ void __launch_bounds__(kThreads) rope_forward_kernel(RopeForward a) {
  const int64_t units = row_units(a.rope, a.d, V);
  const int64_t work = token_slots(a.sequences) * a.h * units;
  for (int64_t w = blockIdx.x * int64_t{kThreads} + threadIdx.x; w < work;
       w += int64_t{gridDim.x} * kThreads) {
    const int64_t unit = w % units, head = w / units % a.h;
    const Token token = token_at(a.sequences, w / units / a.h);
    if (token.number < 0) continue;
    const Sequence& q = token.sequence;
    const int64_t row = q.row_begin + token.index;
    const int64_t position =
        a.position
            ? a.position.as<int32_t>()[q.batch * a.position.stride[0] + row * a.position.stride[1]]
            : token.index;
    const T* x = a.x.as<T>() + q.batch * a.x.stride[0] + row * a.x.stride[1] + head * a.x.stride[2];
    T* y = a.y.as<T>() + q.batch * a.y.stride[0] + row * a.y.stride[1] + head * a.y.stride[2];
    // V > 1 has unit column strides.
    const int64_t step_x = V > 1 ? 1 : a.x.stride[3], step_y = V > 1 ? 1 : a.y.stride[3];
    using Move = Chunk<T, V>;
    rotate_unit<V>(
        a.rope, turn_at(a.rope, position, a.sign), unit,
        [&](int64_t c, float(&value)[V]) {
          const Move in = *reinterpret_cast<const Move*>(x + c * step_x);
          for (int i = 0; i < V; ++i) value[i] = to_float(in.x[i]);
        },
        [&](int64_t c, const float(&value)[V]) {
          Move out;
          for (int i = 0; i < V; ++i) out.x[i] = from_float<T>(value[i]);
          *reinterpret_cast<Move*>(y + c * step_y) = out;
        },
        [&](int64_t c) {
          *reinterpret_cast<Move*>(y + c * step_y) = *reinterpret_cast<const Move*>(x + c * step_x);
        });
  }
}

std::string refuses(const Context&, const RopeForward&) {
  return "";
}

void prepare(const Context&, const RopeForward& a, Plan& plan) {
  plan.kernel += std::string(".") + dtype_name(a.dtype);
  plan.launch = [a](Context& ctx, void*) {
    with_fp(a.dtype, [&](auto element) {
      using T = decltype(element);
      constexpr int kWide = 16 / sizeof(T);
      const bool wide = divides(a.rope, a.d, kWide) && chunked(a.x, sizeof(T), kWide) &&
                        chunked(a.y, sizeof(T), kWide);
      const int64_t units = row_units(a.rope, a.d, wide ? kWide : 1);
      const int64_t blocks =
          cuda::ceil_div(token_slots(a.sequences) * a.h * units, int64_t{kThreads});
      if (wide)
        cuda::launch<rope_forward_kernel<T, kWide>>(ctx, "rope_forward", blocks, kThreads, 0, a);
      else
        cuda::launch<rope_forward_kernel<T, 1>>(ctx, "rope_forward", blocks, kThreads, 0, a);
    });
  };
}

}  // namespace

const Kernel<RopeForward> rope_forward_cuda = {"rope_forward.cuda", refuses, prepare};

}  // namespace fovea
