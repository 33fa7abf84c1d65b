// SPDX-License-Identifier: Apache-2.0
// quant_forward of SageBwd on mma.sync (sm_80 and up): q, k, v and p are i8.
//   x = scale q_scale k_scale q^ k^' log2(e),  m' = max(m, x),  a = 2^(max of a row's x - m')
//   p = 2^(x - m'),  l = 2^(m - m') l + sum p,  O = 2^(m - m') O + a / 127 v_scale p^ v^
//   p^ = round(127 p / a): of the 64 keys of a tile, whose scales k_scale and v_scale are too
// A block owns 128 rows of one head, a warp 32 of them, which have one q_scale.
// Mainloop: tiles of 64 keys, from last to first.  P takes the registers of S.
// Shared memory: Q, then two stages of K and of V with keys contiguous (mma_codes_sm80.cuh).
// One barrier a tile: its copies have come, and the stage filled next is free.
// Source: SageBwd (2505.11594), algorithm 2; loop of attend_sm80.cuh.
#pragma once
#include <new>

#include "cuda/launch.h"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/tile_policy.cuh"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/mma_codes_sm80.cuh"
#include "ops/quant/forward.cuh"

namespace fovea::cuda {

template <QuantConfig80 C>
struct IntegerShape {
  static constexpr int D = C.d, Blocks = C.blocks, Warps = 4, threads = 32 * Warps;
  static constexpr int M = 2, N = kTileKeys / 8, BM = Warps * M * 16;
  using TileQ = Swizzled<BM, D / 2>;  // pairs of codes
  using TileK = Swizzled<kTileKeys, D / 2>;
  using TileV = TokenColumns<D>;
  static constexpr int stage_bytes = TileK::bytes + TileV::bytes;
  static constexpr int shared_bytes = TileQ::bytes + 2 * stage_bytes;
};

// The softmax of the rows that a lane shares with its quad, in units of log2, and their codes.
template <int M>
struct IntegerSoftmax {
  static constexpr int N = kTileKeys / 8;
  float top[M][2], l[M][2];

  __device__ IntegerSoftmax() {
#pragma unroll
    for (int i = 0; i < M; ++i) top[i][0] = top[i][1] = kNegativeInfinity, l[i][0] = l[i][1] = 0.f;
  }
  // Products, whose scores are `factor` times as large, become p / a; alpha: what o is scaled by.
  // True: some row of the warp's is to be.
  __device__ __forceinline__ bool step(float (&x)[M][N][4], float factor, float (&alpha)[M][2],
                                       float (&a)[M][2]) {
    bool moved = false;
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = kNegativeInfinity;
#pragma unroll
        for (int j = 0; j < N; ++j)
          most = fmaxf(most, fmaxf(x[i][j][2 * half], x[i][j][2 * half + 1]));
        most = quad_max(most);
        if (most != kNegativeInfinity) most = __fmul_rn(most, factor);
        const float now = fmaxf(top[i][half], most);
        const bool none = most == kNegativeInfinity;
        moved |= now > top[i][half];
        alpha[i][half] = now == kNegativeInfinity ? 1.f : exp2_fast(top[i][half] - now);
        a[i][half] = none ? 0.f : exp2_fast(most - now);
        const float base = none ? 0.f : most;
        float sum = 0.f;
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int c = 2 * half; c < 2 * half + 2; ++c) {
            x[i][j][c] = exp2_fast(fmaf(x[i][j][c], factor, -base));
            sum += x[i][j][c];
          }
        // Hidden keys of a scale that is NaN are no numbers either.
        l[i][half] = fmaf(l[i][half], alpha[i][half], none ? 0.f : a[i][half] * sum);
        top[i][half] = now;
      }
    return __any_sync(~0u, moved);
  }
};

// Scales of blocks of 64 tokens or more, by tiles of 64.
struct TileScales {
  const float* first;
  int64_t stride;
  int tiles;  // of a block; 0: all

  __device__ explicit TileScales(const ScaleRow& row)
      : first(static_cast<const float*>(row.first)),
        stride(row.axis.scale.stride[2]),
        tiles(static_cast<int>(row.axis.block / kTileKeys)) {}
  __device__ float operator[](int n) const {
    return first[(tiles == 1 ? n : tiles ? n / tiles : 0) * stride];
  }
};

// scale <q_m, k_mean> log2(e), by the quad of a row.
__device__ inline float row_constant(const QuantAttend& call, const RowTile& tile, int m,
                                     float q_scale) {
  float sum = 0;
  if (m < tile.count) {
    const Attend& a = call.attend;
    const float* mean = call.k_mean_of(tile.rows.seq, tile.rows.r, tile.key_head(a));
    const View<4>& q = call.q_plain ? call.q_plain : a.q;
    const int64_t from = tile.offset(m, q.stride);
#pragma unroll 1
    for (int c = threadIdx.x % 4; c < a.d; c += 4) {
      const int64_t at = from + c * q.stride[3];
      const float x = call.q_plain ? load_float(q.data, call.q_plain_dtype, at)
                                   : q_scale * static_cast<float>(q.as<int8_t>()[at]);
      sum = fmaf(x, mean[c * call.k_mean.stride[3]], sum);
    }
  }
  return call.attend.score.scale * kLog2E * quad_sum(sum);
}

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    quant_integer_sm80(const __grid_constant__ QuantAttend call,
                       const __grid_constant__ AttendGrid grid) {
  constexpr int M = Shape::M, N = Shape::N, D = Shape::D, BM = Shape::BM, T = Shape::threads;
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_tile[sizeof(RowTile)];
  const Attend& a = call.attend;
  const int lane = threadIdx.x % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * M * 16;
  if (threadIdx.x == 0) {
    int64_t row_tile = blockIdx.x % grid.row_tiles;
    const int64_t owner = blockIdx.x / grid.row_tiles;
    if (grid.reversed) row_tile = grid.row_tiles - 1 - row_tile;
    new (s_tile) RowTile(a, grid, owner / grid.heads, owner % grid.heads,
                         static_cast<int>(row_tile * BM), BM);
  }
  __syncthreads();
  const RowTile& tile = *reinterpret_cast<const RowTile*>(s_tile);
  if (tile.size <= 0) return;

  const Sequence& seq = tile.rows.seq;
  const int64_t r = tile.rows.r, g = tile.key_head(a);
  const KeyTiles tiles = WindowMask::tiles(a, tile, kTileKeys);
  const int count = static_cast<int>(tiles.count());
  const int d = static_cast<int>(a.d), e = static_cast<int>(a.e);
  const uint32_t s_q = shared_address(shared), s_kv = s_q + TileQ::bytes;
  const auto pairs = [](const View<4>& codes, int64_t at) {
    return reinterpret_cast<const uint16_t*>(static_cast<const int8_t*>(codes.data) + at);
  };
  const int64_t keys_at =
      seq.key_batch * a.k.stride[0] + seq.key_begin * a.k.stride[1] + g * a.k.stride[2];
  const int8_t* values =
      call.v_t.template at<int8_t>(seq.key_batch, g) + call.v_column(r) * call.v_t.stride[3];
  int n = count > 0 ? static_cast<int>(tiles[count - 1]) : 0;
  // Tiles are taken from the last on: cursors walk to its left.
  RowCursor<kTileKeys, D / 2, T> keys;
  ColumnCursor<D, T> columns;
  keys.start(pairs(a.k, keys_at + n * kTileKeys * a.k.stride[1]), a.k.stride[1] / 2,
             tile.keys - n * kTileKeys, d / 2);
  columns.start(values + n * kTileKeys, call.v_t.stride[2], e);
  const auto load = [&](int stage) {
    const uint32_t to = s_kv + stage * Shape::stage_bytes;
    keys.copy(to), columns.copy(to + TileK::bytes);
    keys.retreat(), columns.advance(-kTileKeys);
  };

  if (count > 0) {
    copy_rows<BM, D / 2, T>(s_q, d / 2, pairs(a.q, 0), [&](int row) {
      return row < tile.size ? pairs(a.q, tile.offset(tile.begin + row, a.q.stride)) : nullptr;
    });
    load(0);
  }
  copy_commit();

  // A warp without rows only copies.
  const bool active = warp_row < tile.size;
  const int row = tile.begin + warp_row;
  const float q_scale = active ? call.q_scales(seq, r, tile.head(row))(row, 0) : 0.f;
  const TileScales k_scales(call.k_scales(seq, r, g)), v_scales(call.v_scales(seq, r, g));
  const uint32_t q_lane = s_q + TileQ::at(warp_row + outer_row(lane), outer_chunk(lane));
  const uint32_t k_lane = s_kv + TileK::at(inner_row(lane), inner_chunk(lane));
  const uint32_t v_lane = s_kv + TileK::bytes + TileV::lane_at(lane);
  const WindowMask mask(a, tile, kTileKeys);

  IntegerSoftmax<M> state;
  float o[M][D / 8][4] = {};
  for (int it = 0; it < count; ++it, --n) {
    const int stage = it % 2;
    const float k_scale = k_scales[n], v_scale = v_scales[n];
    copy_wait<0>();
    __syncthreads();
    if (it + 1 < count) load(stage ^ 1);
    copy_commit();
    if (!active) continue;
    // Hidden keys have -inf times it, so it is not 0.
    const float product = a.score.scale * kLog2E * (q_scale * k_scale);
    const float to_log2 = product == 0.f ? 0x1p-126f : product;
    float x[M][N][4];
    {
      int32_t sums[M][N][4] = {};
      code_product<M, N, D, TileQ, TileK>(sums, q_lane, k_lane + stage * Shape::stage_bytes);
#pragma unroll
      for (int i = 0; i < M; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) x[i][j][c] = static_cast<float>(sums[i][j][c]);
    }
    if (!mask.full(n)) mask.apply(x, n * kTileKeys, row);
    float alpha[M][2], factor[M][2];
    if (state.step(x, to_log2, alpha, factor)) OnlineSoftmax<M>::rescale_o(o, alpha);
    uint32_t p[M][2][4];
#pragma unroll
    for (int i = 0; i < M; ++i) {
      code_operand(p[i], x[i], 127.f);
      // A row without a key here has no share in what the scale is.
#pragma unroll
      for (float& of : factor[i]) of = of == 0.f ? 0.f : of * (v_scale / 127.f);
    }
    add_code_product(o, p, v_lane + stage * Shape::stage_bytes, factor);
  }

  if (!active) return;
  const DirectEpilogue epilogue;
  each_row<M>(row, [&](int i, int half, int m) {
    const float sum = quad_sum(state.l[i][half]);
    float top = state.top[i][half];
    if (call.shifts()) top += row_constant(call, tile, m, q_scale);
    const auto store = [&]<int Dtype> {
      epilogue.template store<Dtype>(a, tile, m, m < tile.count, 0, top, sum, o[i], half);
    };
    a.o_dtype == FOVEA_F16 ? store.template operator()<FOVEA_F16>()
                           : store.template operator()<FOVEA_BF16>();
  });
}

template <QuantConfig80 C>
QuantInstance80 quant_sm80_instance() {
  using Shape = IntegerShape<C>;
  constexpr auto launcher = [](Context& ctx, const QuantAttend& call) {
    const Attend& a = call.attend;
    const AttendGrid grid{ceil_div(a.sequences.query_max, Shape::BM), a.h, 1, 1,
                          a.mask.window.right > 0};
    launch<quant_integer_sm80<Shape>>(ctx, "quant_forward",
                                      a.sequences.count * grid.heads * grid.row_tiles,
                                      Shape::threads, Shape::shared_bytes, call, grid);
  };
  return {Shape::D, Shape::BM, Shape::shared_bytes, launcher};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(...)                                                  \
  namespace fovea::cuda {                                                    \
  template QuantInstance80 quant_sm80_instance<QuantConfig80 __VA_ARGS__>(); \
  }
