// SPDX-License-Identifier: Apache-2.0
// A tile of 64 rows and 64 keys of a gradient in f32 FMA: its pairs' weights and dscores by an
// operation's formula.  The kernels are in attend_bwd_simt.cuh.
#pragma once
#include <concepts>

#include "cuda/block/stage.cuh"
#include "cuda/launch.h"
#include "cuda/loop/attend_simt.cuh"

namespace fovea::cuda {

// The gradient of a seen pair: p for dv, dx for dq and dk, ds before the softcap's derivative.
struct PairGradient {
  float p = 0, ds = 0, dx = 0;
};

// A call: AttendBackward `call`, its operands as matrices, a row's values (fill), and the gradient
// of a pair.  Query heads come in parts() parts, each with one head of k and one of v.  A head of k
// has whole parts.
template <class C>
concept GradientCall = requires(const C c, RowInfo& row, const PackGqaRows& rows, int64_t m,
                                float x) {
  { c.call.forward } -> std::convertible_to<Attend>;
  { c.q } -> std::convertible_to<Operand>;
  { c.row_alibi } -> std::convertible_to<float*>;       // (b, h, s), or nullptr
  { C::infinite_counts } -> std::convertible_to<bool>;  // a score of -inf, else it is as unseen
  c.fill(row, rows, m);
  { c.value_head(m) } -> std::convertible_to<int64_t>;
  { c.gradient(row, x, x, x) } -> std::same_as<PairGradient>;
};

FOVEA_HD int64_t row_stats_offset(const Attend& a, const Sequence& seq, int64_t h, int64_t i) {
  return (seq.batch * a.h + h) * a.s + seq.row_begin + i;
}

struct GradientTile : PackedTile<4> {
  int64_t dout[kStageTile];  // element offsets; -1: no such row
};

// Rows m0 .. m0 + 63 of the piece; one that is not there has p = 0 for every key.
template <GradientCall Call>
__device__ __forceinline__ auto row_values(const Call& b, GradientTile& s, int64_t m0) {
  return [&b, &s, m0](int m) {
    RowInfo& row = s.rows[m];
    row.lse = INFINITY, s.dout[m] = -1;
    if (row.i < 0) return;
    b.fill(row, s.piece, m0 + m);
    s.dout[m] = s.piece.offset(m0 + m, b.call.dout.stride);
  };
}

// Key j of a part's head as column n; true: there is none.
template <GradientCall Call>
__device__ __forceinline__ bool put_key(const Call& b, GradientTile& s, int64_t part, int n,
                                        int64_t j) {
  const Attend& a = b.call.forward;
  const int64_t head = b.key_head(part);
  KeyInfo key = key_info(a, s.piece.seq, head, j);
  if (key.k >= 0) key.v += (b.value_head(part) - head) * a.v.stride[2];
  s.keys[n] = key;
  return key.k < 0;
}

// A thread's pairs: (r, c) is own ty + 16 r, other tx + 16 c.  dx is ds times the softcap's
// derivative.  Rows: rows own.  Gradient: ds and dx are made too.
struct PairTiles {
  float p[4][4], ds[4][4], dx[4][4];
};

// The score of a pair of a tile; a tile that knows more of its pairs has an overload.
template <GradientCall Call>
__device__ __forceinline__ float tile_score(const Call& b, const GradientTile& s, int row, int key,
                                            float x) {
  return pair_score(b.call.forward, s.piece.seq, s.rows[row], s.keys[key], x);
}

template <bool Rows, bool Gradient, GradientCall Call, class Tile>
__device__ __forceinline__ void pair_tiles(const Call& b, const Tile& s, const FmaTiles<4>& tiles,
                                           bool plain, PairTiles& t) {
  const Attend& a = b.call.forward;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  const auto load_q = [&](int row, int column) { return load_four(b.q, s.q[row], column); };
  const auto load_k = [&](int row, int column) { return load_four(b.k, s.keys[row].k, column); };
  const auto load_v = [&](int row, int column) { return load_four(b.v, s.keys[row].v, column); };
  const auto load_dout = [&](int row, int column) {
    return load_four(b.dout, s.dout[row], column);
  };
  float x[4][4] = {}, dp[4][4] = {};
  if constexpr (Rows)
    multiply_nt(x, tiles, b.q.width, load_q, load_k);
  else
    multiply_nt(x, tiles, b.q.width, load_k, load_q);
  if constexpr (Gradient) {
    if constexpr (Rows)
      multiply_nt(dp, tiles, b.v.width, load_dout, load_v);
    else
      multiply_nt(dp, tiles, b.v.width, load_v, load_dout);
  }
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int row = Rows ? ty + 16 * r : tx + 16 * c, key = Rows ? tx + 16 * c : ty + 16 * r;
      const float value = capped(a.score, x[r][c]);
      // An unseen pair is 0 whatever its product is, NaN included.
      float score = value;
      bool seen = true;
      if constexpr (Call::infinite_counts) {
        seen = plain || tile_score(b, s, row, key, 0.f) != -INFINITY;
      } else {
        if (!plain) score = tile_score(b, s, row, key, value);
        seen = score != -INFINITY;
      }
      const PairGradient pair =
          seen ? b.gradient(s.rows[row], value, score, dp[r][c]) : PairGradient{};
      t.p[r][c] = pair.p;
      t.ds[r][c] = Gradient ? pair.ds : 0, t.dx[r][c] = Gradient ? pair.dx : 0;
    }
}

// Which gradient a kernel sums: of its own rows (dq) or of its own keys.
enum class Owner { dq, dk, dv };

// In a file for each owner and width: sums of at most 64 Chunks columns.
template <Owner owner, int Chunks, GradientCall Call>
void launch_gradient(Context& ctx, const char* op, const Call& b);

template <Owner owner, GradientCall Call>
void gradient_simt(Context& ctx, const char* op, const Call& b) {
  const Attend& a = b.call.forward;
  const int64_t width = owner == Owner::dv ? a.e : owner == Owner::dk || b.call.dq ? a.d : 1;
  with_chunks(width, [&]<int Chunks> { launch_gradient<owner, Chunks>(ctx, op, b); });
}

}  // namespace fovea::cuda
