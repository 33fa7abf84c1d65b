// SPDX-License-Identifier: Apache-2.0
// The first pass of x_quant_backward.  A block owns 64 rows of a head, a warp one of them at a
// time:
//   constant = scale <q, k_mean>,  delta = <dout, o>
//   the largest magnitude of the 64 rows of dout, and for tensor cores their codes transposed
#include "cuda/block/reduce.cuh"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/backward_rows.cuh"
#include "ops/quantised/backward.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRun = 16;  // rows whose codes a thread stores together

// Row i of a head, `at` in the tile: its statistics, and its largest magnitude in dout.
__device__ __forceinline__ uint32_t take_row(const QuantGradient& x, const Sequence& q,
                                             int64_t head, int64_t i, const float* mean,
                                             QuantRows& tile, int at) {
  const QuantBackward& b = x.b;
  const Attend& a = x.forward();
  const View<4>& dy = b.call.dout;
  const int lane = threadIdx.x % 32;
  const int64_t dout = row_offset(q, i, head, dy.stride), o = row_offset(q, i, head, a.o.stride);
  float delta = 0, constant = 0, most = 0;
  for (int64_t c = lane; c < a.e; c += 32) {
    const float y = load_float(dy.data, a.o_dtype, dout + c * dy.stride[3]);
    delta = fmaf(y, load_float(a.o.data, a.o_dtype, o + c * a.o.stride[3]), delta);
    most = max_or_nan(most, fabsf(y));
  }
  if (mean) {
    const int64_t plain = row_offset(q, i, head, b.q_plain.stride);
    for (int64_t c = lane; c < a.d; c += 32)
      constant = fmaf(load_float(b.q_plain.data, a.dtype, plain + c * b.q_plain.stride[3]),
                      mean[c * b.k_mean.stride[3]], constant);
  }
  delta = lanes_sum<32>(delta), constant = lanes_sum<32>(constant);
  if (lane == 0) {
    const float lse = a.lse.as()[lse_offset(q, i, head, a.lse.stride)];
    // An empty row: 2^(x - inf) is 0 for every score.
    const bool empty = lse == kNegativeInfinity;
    tile.lse[at] = empty ? -kNegativeInfinity : (lse - a.score.scale * constant) * kLog2E;
    tile.delta[at] = empty ? 0.f : delta;
  }
  return __reduce_max_sync(~0u, __float_as_uint(most));  // NaN is above infinity
}

// Codes of `rows` rows from `first` on, transposed; of others 0.
__device__ __forceinline__ void put_codes(const QuantGradient& x, const Sequence& q, int64_t head,
                                          int64_t first, int rows, const TileScale& scale,
                                          int8_t* to) {
  const View<4>& dout = x.b.call.dout;
  const int e = static_cast<int>(x.forward().e);
  for (int n = threadIdx.x; n < e * (kTileTokens / kRun); n += kThreads) {
    const int column = n % e, run = n / e;
    uint32_t words[kRun / 4];
#pragma unroll
    for (int word = 0; word < kRun / 4; ++word) {
      words[word] = 0;
#pragma unroll
      for (int byte = 0; byte < 4; ++byte) {
        const int row = run * kRun + byte / 2 * 8 + word * 2 + byte % 2;
        if (row >= rows) continue;
        const float y =
            load_float(dout.data, x.forward().o_dtype,
                       row_offset(q, first + row, head, dout.stride) + column * dout.stride[3]);
        words[word] |= (static_cast<uint32_t>(static_cast<int>(scale.code(y))) & 0xff)
                       << (8 * byte);
      }
    }
    *reinterpret_cast<uint4*>(to + column * kTileTokens + run * kRun) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

__global__ void __launch_bounds__(kThreads)
    quant_rows_kernel(const __grid_constant__ QuantGradient x, int64_t tiles, int64_t work) {
  __shared__ uint32_t s_most;
  const Attend& a = x.forward();
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t m = w % tiles, head = w / tiles % a.h, r = w / tiles / a.h;
    const Sequence q = a.sequences[r];
    const int64_t first = m * kTileTokens, left = q.rows - first;
    if (left <= 0) continue;
    const int rows = static_cast<int>(left < kTileTokens ? left : kTileTokens);
    const float* mean = x.b.q_plain ? x.b.mean_of(q, r, head / (a.h / a.g)) : nullptr;
    __syncthreads();  // the last tile's maximum is read
    if (threadIdx.x == 0) s_most = 0;
    __syncthreads();
    const int64_t tile = x.tile(q, r, head, m);
    QuantRows& to = x.rows[tile];
    for (int i = threadIdx.x / 32; i < rows; i += kThreads / 32) {
      const uint32_t most = take_row(x, q, head, first + i, mean, to, i);
      if (threadIdx.x % 32 == 0) atomicMax(&s_most, most);
    }
    if (threadIdx.x >= rows && threadIdx.x < kTileTokens)
      to.lse[threadIdx.x] = -kNegativeInfinity, to.delta[threadIdx.x] = 0.f;
    __syncthreads();
    const TileScale scale(__uint_as_float(s_most));
    if (threadIdx.x == 0) {
      to.q_scale = x.b.q_scales(q, r, head)[m * x.b.q_scale.stride[2]], to.dout = scale;
      if (x.dq_order) x.dq_order[tile].added = 0;
    }
    if (x.dout_codes)
      put_codes(x, q, head, first, rows, scale, x.dout_codes + tile * a.e * kTileTokens);
  }
}

}  // namespace

QuantGradientSlots::QuantGradientSlots(Layout& layout, const QuantBackward& b, bool codes,
                                       int panels)
    : tiles(b.call.forward, kTileTokens, panels) {
  const Attend& a = b.call.forward;
  rows = layout.add<QuantRows>(a.h, tiles.total);
  dout_codes = layout.add<int8_t>(codes ? a.h : 0, tiles.total, a.e * kTileTokens);
}

QuantGradient QuantGradientSlots::at(void* base, const QuantBackward& b, DqOrder* dq_order) const {
  return {b, tiles, rows.at(base), dout_codes.at(base), dq_order};
}

void quant_backward_rows(Context& ctx, const QuantGradient& x) {
  const Attend& a = x.forward();
  clear_gradients(ctx, kQuantBackward, x.b.call);
  const int64_t tiles = ceil_div(a.sequences.query_max, kTileTokens);
  const int64_t work = a.sequences.count * a.h * tiles;
  launch<quant_rows_kernel>(ctx, kQuantBackward, work, kThreads, 0, x, tiles, work);
}

}  // namespace fovea::cuda
