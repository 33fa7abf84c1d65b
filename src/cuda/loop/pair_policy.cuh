// SPDX-License-Identifier: Apache-2.0
// Pair policy of the tiled gradient: from the product of a (row, key) pair to its weight
// p = exp(score - lse) and the derivative d score / d (scale product), either side being the
// fragment's.
//   PlainPairs  scale, window and lengths are all (Attend::plain())
//   RichPairs   everything else; head-wide addresses and windows are found once a tile
#pragma once
#include <concepts>

#include "cuda/block/softmax.cuh"
#include "cuda/loop/mask.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/score.cuh"

namespace fovea::cuda {

// full: rows [i0, i1) see all keys [j0, j1) and nothing but the product is in their scores.
// weigh: the product becomes p, 0 where the row does not see the key; returns the derivative.
template <class P>
concept PairPolicy = requires(P pairs, float& x, float lse, int i, int64_t h, bool full) {
  pairs.set_head(h);
  { pairs.full(i, i, i, i) } -> std::same_as<bool>;
  { pairs.weigh(x, lse, i, i, full) } -> std::same_as<float>;
};

// Calls f(i, half, row) for the rows of a lane, `row` counted from its first.
template <int M, class F>
__device__ __forceinline__ void each_own(F f) {
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) f(i, half, i * 16 + half * 8);
}

struct PlainPairs {
  float factor;
  int left, right, keys, shift;  // a side without a limit has one that nobody reaches

  __device__ PlainPairs(const Attend& a, const Sequence& q, int64_t, int64_t)
      : factor(a.score.scale * kLog2E),
        left(limit(a.mask.window.left)),
        right(limit(a.mask.window.right)),
        keys(static_cast<int>(q.keys)),
        shift(keys - static_cast<int>(q.rows)) {}
  __device__ static int limit(int64_t x) {
    return x > 0 && x < kIndexMax ? static_cast<int>(x) : static_cast<int>(kIndexMax);
  }
  __device__ void set_head(int64_t) {}
  __device__ bool full(int i0, int i1, int j0, int j1) const {
    return j1 <= keys && j1 - 1 < i0 + shift + right && j0 > i1 - 1 + shift - left;
  }
  // Of keys [j0, j1): the tiles of `rows` rows of which full() holds.
  struct FullTiles {
    int begin, end;
    __device__ bool operator()(int m) const { return m >= begin && m < end; }
  };
  __device__ FullTiles full_tiles(int rows, int j0, int j1) const {
    if (j1 > keys) return {0, 0};
    return {(max(j1 - shift - right, 0) + rows - 1) / rows, max(j0 - shift + left, 0) / rows};
  }
  __device__ bool sees(int i, int j) const {
    const int away = j - i - shift;
    return j < keys && away < right && away > -left;
  }
  __device__ float weigh(float& x, float lse, int i, int j, bool full) const {
    x = exp2_fast(fmaf(x, factor, -lse));
    if (!full && !sees(i, j)) x = 0.f;
    return 1.f;
  }
};

// Which rows of a tile count: the first `count` of them.
struct FirstRows {
  int count;
  __device__ bool all(int rows) const { return count >= rows; }
  __device__ bool operator()(int i) const { return i < count; }
};

// Those of which counts(i) holds; a warp asks together.
template <int Rows>
struct ChosenRows {
  uint32_t words[Rows / 32];
  template <class Counts>
  __device__ explicit ChosenRows(Counts counts) {
#pragma unroll
    for (int word = 0; word < Rows / 32; ++word)
      words[word] = __ballot_sync(~0u, counts(word * 32 + static_cast<int>(threadIdx.x % 32)));
  }
  __device__ bool all(int) const {
    uint32_t every = ~0u;
#pragma unroll
    for (uint32_t word : words) every &= word;
    return every == ~0u;
  }
  __device__ bool operator()(int i) const {
    uint32_t word = words[0];
#pragma unroll
    for (int k = 1; k < Rows / 32; ++k) word = i / 32 == k ? words[k] : word;
    return word >> (i % 32) & 1;
  }
};

// What the Hopper gradient makes of a tile's products x = q k' and y = dout v', with `stats` values
// of each row: weigh turns x into what dscore needs of it (and, with `weights`, into the operand of
// dv), dscore is the derivative by x.  Unseen pairs are 0 whatever their products are, NaN
// included.
template <class P>
concept DscorePolicy = requires(const P dscores, float x, int i,
                                const float (&rest)[P::stats - 1]) {
  { P::weights } -> std::convertible_to<bool>;
  { P::clears_keys } -> std::convertible_to<bool>;  // that hold an infinity or NaN
  P::template rows<64>(i, &x);                      // those of a tile that count
  { dscores.pairs.full(i, i, i, i) } -> std::same_as<bool>;
  { dscores.weigh(x, x, i, i, true) } -> std::same_as<float>;
  { dscores.dscore(x, x, rest, true) } -> std::same_as<float>;
};

// p = exp(x - lse), ds = p (y - delta).
struct AttentionDscores {
  struct Args {};
  static constexpr int stats = 2;  // lse, delta
  static constexpr bool weights = true;
  static constexpr bool clears_keys = false;
  PlainPairs pairs;

  __device__ AttentionDscores(const Attend& a, const Sequence& q, const Args&)
      : pairs(a, q, 0, 0) {}
  __device__ static int key_head(int g, const Args&) { return g; }
  __device__ static int value_head(int g, const Args&) { return g; }
  template <int BM>
  __device__ static FirstRows rows(int count, const float*) {
    return {count};
  }
  __device__ float weigh(float x, float lse, int i, int j, bool full) const {
    pairs.weigh(x, lse, i, j, full);
    return x;
  }
  __device__ float dscore(float p, float y, const float (&rest)[1], bool full) const {
    const float away = p * (y - rest[0]);
    return !full && p == 0.f ? 0.f : away;
  }
};

// A tile with keys along its fragments' rows: x weighed; `row_stats` is the lane's first pair of
// rows of the first value, rows i and keys j those of the lane's first element.
template <int N, class Dscores>
__device__ __forceinline__ void weigh_tile(float (&x)[N][4], const Dscores& dscores,
                                           const float2* row_stats, int i, int j, bool full) {
  const auto each = [&](bool all) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      const float2 of = row_stats[4 * n];
#pragma unroll
      for (int c = 0; c < 4; ++c)
        x[n][c] =
            dscores.weigh(x[n][c], c & 1 ? of.y : of.x, i + n * 8 + c % 2, j + c / 2 * 8, all);
    }
  };
  full ? each(true) : each(false);
}
// y becomes ds; x(n) gives what weigh left of four elements.
template <int N, class Dscores, class X>
__device__ __forceinline__ void dscore_tile(float (&y)[N][4], const Dscores& dscores, X x,
                                            const float2* row_stats, bool full) {
  constexpr int kRest = Dscores::stats - 1;
  const auto each = [&](bool all) {
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float2 of[kRest];
#pragma unroll
      for (int k = 0; k < kRest; ++k) of[k] = row_stats[(k + 1) * (N * 4) + 4 * n];
      const float4 line = x(n);
      const float left[4] = {line.x, line.y, line.z, line.w};
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float rest[kRest];
#pragma unroll
        for (int k = 0; k < kRest; ++k) rest[k] = c & 1 ? of[k].y : of[k].x;
        y[n][c] = dscores.dscore(left[c], y[n][c], rest, all);
      }
    }
  };
  full ? each(true) : each(false);
}

struct RichPairs {
  const Attend& a;
  const Sequence& q;
  int64_t r, h = -1;
  Window window;
  float slope;
  const char *bias = nullptr, *bits = nullptr;
  const int32_t *query_position = nullptr, *key_position = nullptr;

  __device__ RichPairs(const Attend& a, const Sequence& q, int64_t r, int64_t head)
      : a(a), q(q), r(r) {
    set_head(head);
  }
  __device__ void set_head(int64_t head) {
    if (head == h) return;
    h = head;
    window = a.mask.of_head(h);
    slope = alibi_slope(a.score, r, h);
    const auto at = [&](const auto& x) {
      return q.batch * x.stride[0] + h * x.stride[1] + q.row_begin * x.stride[2];
    };
    const View<4>& b = a.score.bias;
    const int bytes = a.score.bias_dtype == FOVEA_F32 ? 4 : 2;
    if (b) bias = static_cast<const char*>(b.data) + (at(b) + q.key_first * b.stride[3]) * bytes;
    if (a.mask.bits) bits = static_cast<const char*>(a.mask.bits.data) + at(a.mask.bits);
    if (a.mask.query_position)
      query_position = a.mask.query_position.as<int32_t>() + at(a.mask.query_position);
    const View<3>& k = a.mask.key_position;
    if (k)
      key_position = k.as<int32_t>() + q.key_b * k.stride[0] + h / (a.h / a.g) * k.stride[1] +
                     q.key_begin * k.stride[2];
  }
  __device__ bool full(int i0, int i1, int j0, int j1) const {
    const int rows = static_cast<int>(q.rows);
    return j1 <= q.keys && i1 <= rows && !bias && !a.score.alibi &&
           tile_full(a.mask, q, h, h + 1, i0, i1, j0, j1);
  }
  __device__ float weigh(float& x, float lse, int i, int j, bool full) const {
    const float cap = a.score.softcap;
    float score = x * a.score.scale, bend = 1.f;
    if (cap > 0) {
      const float tanh = tanh_fast(score / cap);
      score = cap * tanh, bend = (1.f - tanh) * (1.f + tanh);
    }
    if (!full) {
      x = 0.f;
      if (i >= q.rows || j >= q.keys) return 0.f;
      const int64_t p_i = query_position ? query_position[i * a.mask.query_position.stride[2]]
                                         : i + q.context - q.rows;
      const int64_t p_j =
          key_position ? key_position[j * a.mask.key_position.stride[2]] : a.mask.axis.at(j);
      if ((key_position && p_j < 0) || !window.sees(p_i, p_j)) return 0.f;
      const int64_t column = q.key_first + j;
      if (bits &&
          !(bits[i * a.mask.bits.stride[2] + column / 8 * a.mask.bits.stride[3]] >> (column % 8) &
            1))
        return 0.f;
      score -= slope * fabsf(static_cast<float>(p_i - p_j));
      if (bias)
        score += load_float(bias, a.score.bias_dtype,
                            i * a.score.bias.stride[2] + j * a.score.bias.stride[3]);
    }
    x = exp2_fast(fmaf(score, kLog2E, -lse));
    return bend;
  }
};

}  // namespace fovea::cuda
