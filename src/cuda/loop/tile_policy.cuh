// SPDX-License-Identifier: Apache-2.0
// Score and Mask policies of the tiled sweeps: the formulas of score.cuh and mask.cuh over a warp's
// fragments, x[i][j][c] being row 16 i + 8 (c / 2) + lane / 4 and key 8 j + 2 (lane % 4) + c % 2.
//   PlainScore, WindowMask  scale, window and lengths are all (Attend::plain())
//   RichScore, RichMask     everything else, chosen by tests that are the same for a whole block
#pragma once
#include <concepts>

#include "cuda/block/softmax.cuh"
#include "cuda/loop/mask.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/score.cuh"

namespace fovea::cuda {

template <class S>
concept TileScore = requires(const S score, float (&x)[1][8][4], int at) {
  { score.factor } -> std::convertible_to<float>;
  score.apply(x, at, at);
};
template <class M>
concept TileMask = requires(const M mask, float (&x)[1][8][4], int at) {
  { M::sinks } -> std::convertible_to<bool>;
  { mask.full(at) } -> std::same_as<bool>;
  mask.apply(x, at, at);
};

// Score: products to scores whose weight is 2^(factor x)

struct PlainScore {
  float factor;
  __device__ PlainScore(const Attend& a, const RowTile&) : factor(a.score.scale * kLog2E) {}
  template <int M, int N>
  __device__ void apply(float (&)[M][N][4], int, int) const {}
};

struct RichScore {
  static constexpr float factor = kLog2E;
  const Attend& a;
  const RowTile& tile;
  __device__ RichScore(const Attend& a, const RowTile& tile) : a(a), tile(tile) {}

  // tanh(x) = 1 - 2 / (e^2x + 1): absolute error 2^-22, a tenth of what tanhf costs.
  __device__ static float tanh_fast(float x) {
    return 1.f - __fdividef(2.f, exp2_fast(x * (2.f * kLog2E)) + 1.f);
  }
  template <int M, int N>
  __device__ void apply(float (&x)[M][N][4], int key, int row) const {
    const float scale = a.score.scale, cap = a.score.softcap;
    if (cap > 0) {
      const float inner = scale / cap;
#pragma unroll
      for (int i = 0; i < M; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) x[i][j][c] = cap * tanh_fast(x[i][j][c] * inner);
    } else {
#pragma unroll
      for (int i = 0; i < M; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) x[i][j][c] *= scale;
    }
    if (!a.score.alibi && !a.score.bias) return;
    const PackedRows& rows = tile.rows;
    each_row<M>(row, [&](int i, int half, int m) {
      if (m >= tile.count) return;
      const int64_t query = tile.query(m), h = tile.head(m);
      const int64_t p_i = a.mask.query_at(rows.seq, h, query);
      const float slope = alibi_slope(a.score, rows.r, h);
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = key + j * 8 + threadIdx.x % 4 * 2 + c;
          float& score = x[i][j][2 * half + c];
          if (column < tile.keys)
            score =
                biased(a.score, rows.seq, slope, h, query, column, p_i,
                       a.score.alibi ? a.mask.key_at(rows.seq, h / (a.h / a.g), column) : 0, score);
        }
    });
  }
};

// Mask: scores of keys a row does not see become -inf

// Scale, window and lengths are all: the keys of a row are one interval.
struct WindowMask {
  static constexpr bool sinks = false;
  const RowTile& tile;
  int left, right;
  int full_begin, full_end;  // tiles that every row of the block sees whole

  __device__ WindowMask(const Attend& a, const RowTile& tile)
      : tile(tile),
        left(static_cast<int>(clamp_i64(a.mask.window.left, 0, kIndexMax))),
        right(static_cast<int>(clamp_i64(a.mask.window.right, 0, kIndexMax))) {
    const int from = left > 0 ? tile.end_query() + tile.shift - left : 0;
    const int to = right > 0 ? min(tile.first_query() + tile.shift + right, tile.keys) : tile.keys;
    full_begin = (max(from, 0) + kTileKeys - 1) / kTileKeys;
    full_end = max(to, 0) / kTileKeys;
  }
  __device__ bool full(int n) const { return n >= full_begin && n < full_end; }
  template <int M, int N>
  __device__ void apply(float (&x)[M][N][4], int key, int row) const {
    const int lane_key = key + threadIdx.x % 4 * 2;
    each_row<M>(row, [&](int i, int half, int m) {
      const int p = tile.query(m) + tile.shift;
      const int low = left > 0 ? p - left + 1 - lane_key : 0;
      const int high = (right > 0 ? min(p + right, tile.keys) : tile.keys) - lane_key;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (j * 8 + c < low || j * 8 + c >= high) x[i][j][2 * half + c] = kNegativeInfinity;
    });
  }
};

struct RichMask {
  static constexpr bool sinks = true;
  const Attend& a;
  const RowTile& tile;
  int64_t head_begin, head_end;

  __device__ RichMask(const Attend& a, const RowTile& tile)
      : a(a), tile(tile), head_begin(tile.rows.head_begin()), head_end(tile.rows.head_end()) {}
  __device__ bool full(int n) const {
    const int begin = n * kTileKeys, end = begin + kTileKeys;
    return end <= tile.keys && tile_full(a.mask, tile.rows.seq, head_begin, head_end,
                                         tile.first_query(), tile.end_query(), begin, end);
  }
  template <int M, int N>
  __device__ void apply(float (&x)[M][N][4], int key, int row) const {
    const PackedRows& rows = tile.rows;
    each_row<M>(row, [&](int i, int half, int m) {
      if (m >= tile.count) return;
      const int64_t query = tile.query(m), h = tile.head(m), g = h / (a.h / a.g);
      const int64_t p_i = a.mask.query_at(rows.seq, h, query);
      const Window window = a.mask.of_head(h);
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = key + j * 8 + threadIdx.x % 4 * 2 + c;
          if (column >= tile.keys || !sees(a.mask, rows.seq, window, h, query, column, p_i,
                                           a.mask.key_at(rows.seq, g, column)))
            x[i][j][2 * half + c] = kNegativeInfinity;
        }
    });
  }
};

// Bit j of `absent`: key j of the tile has no page.
template <int M, int N>
__device__ inline void hide_absent(float (&x)[M][N][4], uint64_t absent) {
  absent >>= threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (absent >> (j * 8 + c) & 1)
#pragma unroll
        for (int i = 0; i < M; ++i) x[i][j][c] = x[i][j][2 + c] = kNegativeInfinity;
}

}  // namespace fovea::cuda
