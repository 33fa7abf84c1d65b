// SPDX-License-Identifier: Apache-2.0
// y = x rotated.  `lanes` threads own one token, about four units each.  A unit is V column pairs
// of a head row, or V columns that are only copied.  V elements are 16 bytes where layout and
// alignment allow, else one.  No shared memory.
#include "core/dtype.h"
#include "core/locate.h"
#include "core/rotate.h"
#include "cuda/launch.h"
#include "ops/rope/kernels.h"

namespace fovea {
namespace {

constexpr int kThreads = 256;

template <class T, int V>
__device__ void rotate_token(const RopeForward& a, const Token& token, int64_t lane, int lanes) {
  const Sequence& q = token.sequence;
  const int64_t row = q.row_begin + token.index;
  const int64_t position =
      a.position
          ? a.position.as<int32_t>()[q.batch * a.position.stride[0] + row * a.position.stride[1]]
          : token.index;
  const Turn turn = turn_at(a.rope, position, a.sign);
  const T* token_x = a.x.as<T>() + q.batch * a.x.stride[0] + row * a.x.stride[1];
  T* token_y = a.y.as<T>() + q.batch * a.y.stride[0] + row * a.y.stride[1];
  // V > 1 has unit column strides.
  const int64_t step_x = V > 1 ? 1 : a.x.stride[3], step_y = V > 1 ? 1 : a.y.stride[3];
  const int64_t units = row_units(a.rope, a.d, V);
  for (int64_t w = lane; w < a.h * units; w += lanes) {
    const int64_t head = quotient(w, units);
    const T* x = token_x + head * a.x.stride[2];
    T* y = token_y + head * a.y.stride[2];
    using Move = Chunk<T, V>;
    rotate_unit<V>(
        a.rope, turn, w - head * units,
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

template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    rope_forward_kernel(const __grid_constant__ RopeForward a, int lanes) {
  const int64_t slots = token_slots(a.sequences), tokens = kThreads / lanes;
  for (int64_t slot = blockIdx.x * tokens + threadIdx.x / lanes; slot < slots;
       slot += gridDim.x * tokens) {
    const Token token = token_at(a.sequences, slot);
    if (token.number >= 0) rotate_token<T, V>(a, token, threadIdx.x % lanes, lanes);
  }
}

Text offer(const Context&, const RopeForward& a, Plan& plan) {
  plan.kernel += Text(".") + dtype_name(a.dtype);
  plan.launch = [a](Context& ctx, void*) {
    with_fp(a.dtype, [&](auto element) {
      using T = decltype(element);
      constexpr int kV = kWide<T, T>;
      const bool wide =
          divides(a.rope, a.d, kV) && chunked(a.x, sizeof(T), kV) && chunked(a.y, sizeof(T), kV);
      const int64_t work = a.h * row_units(a.rope, a.d, wide ? kV : 1);
      if (!work) return;
      const int lanes = lanes_of((work + 3) / 4, kThreads);
      const int64_t blocks = cuda::ceil_div(token_slots(a.sequences), int64_t{kThreads / lanes});
      if (wide)
        cuda::launch<rope_forward_kernel<T, kV>>(ctx, "rope_forward", blocks, kThreads, 0, a,
                                                 lanes);
      else
        cuda::launch<rope_forward_kernel<T, 1>>(ctx, "rope_forward", blocks, kThreads, 0, a, lanes);
    });
  };
  return "";
}

}  // namespace

extern const Kernel<RopeForward> rope_forward_cuda = {"", offer};

}  // namespace fovea
