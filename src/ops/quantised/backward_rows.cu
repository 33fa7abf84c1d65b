// SPDX-License-Identifier: Apache-2.0
// The first pass of x_quant_backward.  A block owns 64 rows of a head, a warp one of them at a
// time:
//   constant = scale <q, k_mean>,  delta = <dout, o>
//   the largest magnitude of the 64 rows of dout, and for tensor cores their codes transposed
#include "core/chunk.h"
#include "cuda/block/reduce.cuh"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/backward_rows.cuh"
#include "cuda/tile/convert.cuh"
#include "ops/quantised/backward.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRun = 16;  // rows whose codes a thread stores together

// By one lane: the statistics of row i, `at` in the tile.
__device__ __forceinline__ void put_row(const QuantGradient& x, const Sequence& q, int64_t head,
                                        int64_t i, float delta, float constant, QuantRows& tile,
                                        int at) {
  const Attend& a = x.forward();
  const float lse = a.lse.as()[lse_offset(q, i, head, a.lse.stride)];
  // An empty row: 2^(x - inf) is 0 for every score.
  const bool empty = lse == kNegativeInfinity;
  tile.lse[at] = empty ? -kNegativeInfinity : (lse - a.score.scale * constant) * kLog2E;
  tile.delta[at] = empty ? 0.f : delta;
}

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
  if (lane == 0) put_row(x, q, head, i, delta, constant, tile, at);
  return __reduce_max_sync(~0u, __float_as_uint(most));  // NaN is above infinity
}

// The same of rows of 16-bit numbers that are read by fours (reads_fours), where a lane has four
// columns.  A warp loads kAtOnce rows before it needs one; dout stays in shared memory.
constexpr int kAtOnce = 4, kWarps = kThreads / 32;
struct WideRows {
  uint2 dout[kTileTokens][33];  // a pad
  __device__ const uint16_t* row(int i) const { return reinterpret_cast<const uint16_t*>(dout[i]); }
};
template <int Dtype>
__device__ __forceinline__ float4 floats(uint2 x) {
  const float2 low = pair_of<Dtype>(x.x), high = pair_of<Dtype>(x.y);
  return make_float4(low.x, low.y, high.x, high.y);
}
__device__ __forceinline__ float dot(float4 x, float4 y) {
  return fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, x.w * y.w)));
}
template <int Dtype>
__device__ __forceinline__ uint32_t take_rows(const QuantGradient& x, const Sequence& q,
                                              int64_t head, int64_t first, int rows,
                                              const float* mean, QuantRows& tile, WideRows& wide) {
  const QuantBackward& b = x.b;
  const Attend& a = x.forward();
  const int lane = threadIdx.x % 32, column = 4 * lane;
  const bool in_e = column < a.e, in_d = mean && column < a.d;
  float4 means{};
  if (in_d) {
    const int64_t step = b.k_mean.stride[3];
    const float* from = mean + column * step;
    means = make_float4(from[0], from[step], from[2 * step], from[3 * step]);
  }
  float most = 0;
#pragma unroll 1
  for (int at = threadIdx.x / 32; at < rows; at += kWarps * kAtOnce) {
    uint2 dout[kAtOnce], o[kAtOnce], plain[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const bool there = at + k * kWarps < rows;
      const int64_t i = first + at + k * kWarps;
      const auto load = [&](const View<4>& of, bool wanted) {
        return there && wanted
                   ? __ldg(reinterpret_cast<const uint2*>(
                         of.as<uint16_t>() + row_offset(q, i, head, of.stride) + column))
                   : uint2{};
      };
      dout[k] = load(b.call.dout, in_e), o[k] = load(a.o, in_e), plain[k] = load(b.q_plain, in_d);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int row = at + k * kWarps;
      if (row >= rows) break;
      wide.dout[row][lane] = dout[k];
      const float4 y = floats<Dtype>(dout[k]);
      most = max_or_nan(max_or_nan(most, max_or_nan(fabsf(y.x), fabsf(y.y))),
                        max_or_nan(fabsf(y.z), fabsf(y.w)));
      const float delta = lanes_sum<32>(dot(y, floats<Dtype>(o[k])));
      const float constant = mean ? lanes_sum<32>(dot(floats<Dtype>(plain[k]), means)) : 0.f;
      if (lane == 0) put_row(x, q, head, first + row, delta, constant, tile, row);
    }
  }
  return __reduce_max_sync(~0u, __float_as_uint(most));
}

// Codes of `rows` rows from `first` on, transposed; of others 0.  dout(row, column) are numbers.
template <class Dout>
__device__ __forceinline__ void put_codes(int e, int rows, const TileScale& scale, Dout dout,
                                          int8_t* to) {
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
        const int code = static_cast<int>(scale.code(dout(row, column)));
        words[word] |= (static_cast<uint32_t>(code) & 0xff) << (8 * byte);
      }
    }
    *reinterpret_cast<uint4*>(to + column * kTileTokens + run * kRun) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

// Dtype: of rows that are read by fours; FOVEA_F32 of any.
template <int Dtype>
__global__ void __launch_bounds__(kThreads)
    quant_rows_kernel(const __grid_constant__ QuantGradient x, int64_t tiles, int64_t work) {
  constexpr bool kByFours = Dtype != FOVEA_F32;
  __shared__ uint32_t s_most;
  __shared__ std::conditional_t<kByFours, WideRows, char> s_rows;
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
    if constexpr (kByFours) {
      const uint32_t most = take_rows<Dtype>(x, q, head, first, rows, mean, to, s_rows);
      if (threadIdx.x % 32 == 0) atomicMax(&s_most, most);
    } else {
      for (int i = threadIdx.x / 32; i < rows; i += kWarps) {
        const uint32_t most = take_row(x, q, head, first + i, mean, to, i);
        if (threadIdx.x % 32 == 0) atomicMax(&s_most, most);
      }
    }
    if (threadIdx.x >= rows && threadIdx.x < kTileTokens)
      to.lse[threadIdx.x] = -kNegativeInfinity, to.delta[threadIdx.x] = 0.f;
    __syncthreads();
    const TileScale scale(__uint_as_float(s_most));
    if (threadIdx.x == 0) {
      to.q_scale = x.b.q_scales(q, r, head)[m * x.b.q_scale.stride[2]], to.dout = scale;
      if (x.dq_order) x.dq_order[tile].added = 0;
    }
    if (!x.dout_codes) continue;
    const View<4>& dout = x.b.call.dout;
    put_codes(
        static_cast<int>(a.e), rows, scale,
        [&](int row, int column) {
          if constexpr (kByFours)
            return load_float(s_rows.row(row), Dtype, column);
          else
            return load_float(
                dout.data, a.o_dtype,
                row_offset(q, first + row, head, dout.stride) + column * dout.stride[3]);
        },
        x.dout_codes + tile * a.e * kTileTokens);
  }
}

// Rows of 16 bits whose four columns are one load.
bool reads_fours(const QuantBackward& b) {
  const Attend& a = b.call.forward;
  return a.dtype != FOVEA_F32 && a.o_dtype == a.dtype && a.d % 4 == 0 && a.e % 4 == 0 &&
         a.d <= 128 && a.e <= 128 && chunked(a.o, 2, 4) && chunked(b.call.dout, 2, 4) &&
         (!b.q_plain || chunked(b.q_plain, 2, 4));
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
  const auto run = [&]<int Dtype>() {
    launch<quant_rows_kernel<Dtype>>(ctx, kQuantBackward, work, kThreads, 0, x, tiles, work);
  };
  if (!reads_fours(x.b))
    run.template operator()<FOVEA_F32>();
  else if (a.dtype == FOVEA_F16)
    run.template operator()<FOVEA_F16>();
  else
    run.template operator()<FOVEA_BF16>();
}

}  // namespace fovea::cuda
