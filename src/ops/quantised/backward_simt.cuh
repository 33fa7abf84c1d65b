// SPDX-License-Identifier: Apache-2.0
// SageBwd's gradient in f32 FMA: every dtype, width and stride, no atomics.  Of 64 rows and 64
// keys:
//   x = scale q_scale k_scale q^ k^',  p = 2^(x log2(e) - lse2),  ds = p (dout v' - delta)
//   dq += ds^ k_scale k^,  dk += scale ds^' q_scale q^,  dv += p^' dout^
// ^ of p and ds: codes of i8 and the tile's scale.  Codes are integers in f32, of which products
// are exact; a tile's product joins the sums by one multiply-add. A block owns 64 rows of a head
// (dq) or 64 keys of a key head (dk, or dv).  Its loop takes the other side's tiles in ascending
// order, keys' by heads of their group, so sums have one order. Products, shared memory and their
// barriers: block/stage.cuh. Source: SageBwd (2505.11594), algorithm 3.
#pragma once
#include "cuda/block/reduce.cuh"
#include "cuda/block/softmax.cuh"
#include "cuda/launch.h"
#include "ops/quantised/backward.cuh"

namespace fovea::cuda {

// A tile's rows and keys, in shared memory.
struct QuantTile {
  Sequence seq;
  int64_t q[kTileTokens], dout[kTileTokens];  // element offsets; -1: no such row
  int64_t k[kTileTokens], v[kTileTokens];     // the same of keys
  float2 stats[kTileTokens];                  // of rows
  float q_scale;
  TileScale dout_scale;
  uint32_t most[kStageThreads / 32];
};

// Four codes of the row at element `row`; a row < 0 is all zero.
__device__ __forceinline__ float4 load_codes(const View<4>& x, int64_t row, int column, int width) {
  float out[4] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (row >= 0 && column + i < width)
      out[i] = static_cast<float>(static_cast<const int8_t*>(x.data)[row + column + i]);
  return {out[0], out[1], out[2], out[3]};
}

// The largest magnitude over the block, or NaN if one is.
__device__ __forceinline__ float block_most(const float (&x)[4][4], uint32_t (&s_most)[8]) {
  float most = 0;
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) most = max_or_nan(most, fabsf(x[r][c]));
  const uint32_t bits = __reduce_max_sync(~0u, __float_as_uint(most));  // NaN is above infinity
  if (threadIdx.x % 32 == 0) s_most[threadIdx.x / 32] = bits;
  __syncthreads();
  uint32_t all = 0;
#pragma unroll
  for (uint32_t of : s_most) all = max(all, of);
  return __uint_as_float(all);
}

// The sums that a block owns.
template <Owner owner, int Chunks>
class QuantSums {
  static constexpr bool Rows = owner == Owner::dq;

 public:
  using Sums = float[Chunks][4][4];  // a separate object: registers

  __device__ QuantSums(const QuantSimt& call, QuantTile& s, const FmaTiles<4>& tiles, int64_t r,
                       int64_t g)
      : call_(call), a_(call.x.forward()), s_(s), tiles_(tiles), r_(r), g_(g) {}

  __device__ void stage_rows(int64_t head, int64_t first) {
    const int64_t i = first + threadIdx.x;
    if (threadIdx.x >= kTileTokens) return;
    const bool there = i < s_.seq.rows;
    s_.q[threadIdx.x] = there ? row_offset(s_.seq, i, head, a_.q.stride) : -1;
    s_.dout[threadIdx.x] = there ? row_offset(s_.seq, i, head, call_.x.b.call.dout.stride) : -1;
    const QuantRows& rows = call_.x.rows[call_.x.tile(s_.seq, r_, head, first / kTileTokens)];
    s_.stats[threadIdx.x] = rows.row(threadIdx.x);
    if (threadIdx.x == 0) s_.q_scale = rows.q_scale, s_.dout_scale = rows.dout;
  }
  __device__ void stage_keys(int64_t first) {
    const int64_t j = first + threadIdx.x;
    if (threadIdx.x >= kTileTokens) return;
    const KeyPlace place = key_place(a_.sequences, s_.seq, j);
    const bool there = j < s_.seq.keys;
    s_.k[threadIdx.x] = there ? place.offset(g_, a_.k.stride) : -1;
    s_.v[threadIdx.x] = there ? place.offset(g_, a_.v.stride) : -1;
  }

  // The tile of rows from i0 on of a head, and of keys from j0 on.
  __device__ __forceinline__ void take(Sums& sums, int64_t head, int64_t i0, int64_t j0) {
    __syncthreads();  // the last tile's rows, keys and maximum are done with
    if (Rows)
      stage_keys(j0);
    else
      stage_rows(head, i0);
    __syncthreads();
    const QuantBackward& b = call_.x.b;
    const int64_t n = j0 / kTileTokens;
    const float q_scale = s_.q_scale;
    const float k_scale = b.k_scales(s_.seq, r_, g_)[n * b.k_scale.stride[2]];
    float x[4][4] = {}, dp[4][4] = {};
    products(x, dp);
    weigh(x, dp, i0, j0, a_.score.scale * (q_scale * k_scale) * kLog2E);
    const TileScale scale(block_most(x, s_.most));
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[r][c] = scale.code(x[r][c]);
    put_p(tiles_, x);
    if constexpr (owner == Owner::dv) {
      const TileScale dout = s_.dout_scale;
      add(sums, scale.scale * dout.scale, s_.seq.rows - i0, [&](int row, int column) {
        const float4 y = load_four(call_.dout, s_.dout[row], column);
        return make_float4(dout.code(y.x), dout.code(y.y), dout.code(y.z), dout.code(y.w));
      });
    } else if constexpr (owner == Owner::dk) {
      add(sums, a_.score.scale * (scale.scale * q_scale), s_.seq.rows - i0, load_q());
    } else {
      add(sums, scale.scale * k_scale, s_.seq.keys - j0, load_k());
    }
  }

  // Of rows or keys from `first` on.
  __device__ __forceinline__ void store(const Sums& sums, const View<4>& to, int64_t head,
                                        int64_t first, float factor) const {
    __syncthreads();  // an item without tiles reads what it staged
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int own = threadIdx.x / 16 + 16 * r;
      const int64_t i = first + own;
      if (i >= (Rows ? s_.seq.rows : s_.seq.keys)) continue;
      const int64_t at = Rows ? row_offset(s_.seq, i, head, to.stride)
                              : key_place(a_.sequences, s_.seq, i).offset(g_, to.stride);
      store_columns(to.data, a_.dtype, at, to.stride[3], width(), factor, sums, r);
    }
  }

 private:
  __device__ int width() const {
    return static_cast<int>(owner == Owner::dv ? a_.e : a_.d);
  }
  __device__ auto load_q() const {
    return [this](int row, int column) {
      return load_codes(a_.q, s_.q[row], column, static_cast<int>(a_.d));
    };
  }
  __device__ auto load_k() const {
    return [this](int row, int column) {
      return load_codes(a_.k, s_.k[row], column, static_cast<int>(a_.d));
    };
  }
  // Products of codes, and of dout and v where ds is wanted; own rows are the first index.
  __device__ __forceinline__ void products(float (&x)[4][4], float (&dp)[4][4]) const {
    const int d = static_cast<int>(a_.d);
    if constexpr (Rows)
      multiply_nt(x, tiles_, d, load_q(), load_k());
    else
      multiply_nt(x, tiles_, d, load_k(), load_q());
    if constexpr (owner == Owner::dv) return;
    const auto load_v = [&](int row, int column) { return load_four(call_.v, s_.v[row], column); };
    const auto load_dout = [&](int row, int column) {
      return load_four(call_.dout, s_.dout[row], column);
    };
    if constexpr (Rows)
      multiply_nt(dp, tiles_, call_.v.width, load_dout, load_v);
    else
      multiply_nt(dp, tiles_, call_.v.width, load_v, load_dout);
  }
  // x becomes p (dv) or ds; 0 where the row does not see the key, whatever its product is.
  __device__ __forceinline__ void weigh(float (&x)[4][4], const float (&dp)[4][4], int64_t i0,
                                        int64_t j0, float factor) const {
    const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    const Sequence& q = s_.seq;
#pragma unroll
    for (int r = 0; r < 4; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int row = Rows ? ty + 16 * r : tx + 16 * c, key = Rows ? tx + 16 * c : ty + 16 * r;
        const int64_t i = i0 + row, j = j0 + key;
        const bool seen =
            i < q.rows && j < q.keys && a_.mask.window.sees(i + q.context - q.rows, j);
        const float2 stats = seen ? s_.stats[row] : make_float2(-kNegativeInfinity, 0.f);
        const float p = seen ? exp2f(fmaf(x[r][c], factor, -stats.x)) : 0.f;
        x[r][c] = owner == Owner::dv || p == 0 ? p : p * (dp[r][c] - stats.y);
      }
  }
  // sums += factor P X, `terms` rows of X.
  template <class Load>
  __device__ __forceinline__ void add(Sums& sums, float factor, int64_t terms,
                                      const Load& load) const {
    const int count = static_cast<int>(terms < kTileTokens ? terms : kTileTokens);
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk) {
      const int first = chunk * kStageTile;
      if (first >= width()) break;
      float part[1][4][4] = {};
      multiply_nn(part, tiles_, width() - first < kStageTile ? width() - first : kStageTile, count,
                  [&](int row, int column) { return load(row, first + column); });
#pragma unroll
      for (int r = 0; r < 4; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          sums[chunk][r][c] = fmaf(factor, part[0][r][c], sums[chunk][r][c]);
    }
  }

  const QuantSimt& call_;
  const Attend& a_;
  QuantTile& s_;
  const FmaTiles<4>& tiles_;
  const int64_t r_, g_;
};

template <Owner owner, int Chunks>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    quant_backward_simt_kernel(const __grid_constant__ QuantSimt call, int64_t tiles,
                               int64_t work) {
  extern __shared__ float4 s_dynamic[];
  __shared__ __align__(16) unsigned char s_tile[sizeof(QuantTile)];
  QuantTile& s = *reinterpret_cast<QuantTile*>(s_tile);
  const FmaTiles<4> fma(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = call.x.forward();
  const AttendBackward& to = call.x.b.call;
  const int64_t heads = owner == Owner::dq ? a.h : a.g, group = a.h / a.g;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t own = w % tiles * kTileTokens, head = w / tiles % heads, r = w / tiles / heads;
    __syncthreads();  // the last item is done with
    if (threadIdx.x == 0) s.seq = a.sequences[r];
    __syncthreads();
    const int64_t left = (owner == Owner::dq ? s.seq.rows : s.seq.keys) - own;
    if (left <= 0) continue;
    const int64_t end = own + (left < kTileTokens ? left : kTileTokens);
    float sums[Chunks][4][4] = {};
    if constexpr (owner == Owner::dq) {
      QuantSums<owner, Chunks> block(call, s, fma, r, head / group);
      block.stage_rows(head, own);
      const KeyTiles keys = key_tiles(a.mask, s.seq, head, head + 1, own, end, kTileTokens);
      for (int64_t n = 0; n < keys.count(); ++n) block.take(sums, head, own, keys[n] * kTileTokens);
      block.store(sums, to.dq, head, own, a.score.scale);
    } else {
      QuantSums<owner, Chunks> block(call, s, fma, r, head);
      block.stage_keys(own);
      for (int64_t h = head * group; h < (head + 1) * group; ++h) {
        const Range rows = row_range(a.mask, s.seq, h, h + 1, own, end);
        if (rows.begin >= rows.end) continue;
        for (int64_t m = rows.begin / kTileTokens; m * kTileTokens < rows.end; ++m)
          block.take(sums, h, m * kTileTokens, own);
      }
      block.store(sums, owner == Owner::dk ? to.dk : to.dv, head, own, 1.f);
    }
  }
}

template <Owner owner, int Chunks>
void quant_backward_simt(Context& ctx, const QuantSimt& call) {
  const Attend& a = call.x.forward();
  const bool rows = owner == Owner::dq;
  const int64_t tiles = ceil_div(rows ? a.sequences.query_max : a.sequences.key_max, kTileTokens);
  const int64_t work = a.sequences.count * (rows ? a.h : a.g) * tiles;
  launch<quant_backward_simt_kernel<owner, Chunks>>(ctx, kQuantBackward, work, kStageThreads,
                                                    FmaTiles<4>::bytes(), call, tiles, work);
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, columns, owner)                                              \
  template void fovea::cuda::quant_backward_simt<fovea::cuda::Owner::owner, columns / 64>( \
      fovea::Context&, const fovea::cuda::QuantSimt&);
