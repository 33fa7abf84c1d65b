// SPDX-License-Identifier: Apache-2.0
// Score and Mask policies of the tiled sweeps: score.cuh and mask.cuh over a warp's fragments.
// x[i][j][c] is of row 16 i + 8 (c / 2) + lane / 4 and key 8 j + 2 (lane % 4) + c % 2.
//
//   | policy                 | of a call with                                    |
//   | PlainScore, WindowMask | scale, window and lengths alone (Attend::plain()) |
//   | CappedScore            | these and a softcap                               |
//   | ScaledScore            | these, and a softcap or none                      |
//   | KeyScore               | these and a bias of keys alone (key_bias())       |
//   | SpanMask               | sink keys, windows of heads, keys along an axis   |
//   | RichScore, RichMask    | anything; its tests are uniform over a block      |
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
concept TileMask = requires(const M mask, const typename M::Call& a, const RowTile& tile,
                            float (&x)[1][8][4], int at) {
  { M::sinks } -> std::convertible_to<bool>;
  { M::tiles(a, tile, at) } -> std::same_as<KeyTiles>;  // that any row sees, `at` keys each
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

// Scale and softcap.
struct CappedScore {
  static constexpr float factor = kLog2E;
  float inner, cap;
  __device__ CappedScore(const Attend& a, const RowTile&)
      : inner(a.score.scale / a.score.softcap), cap(a.score.softcap) {}
  template <int M, int N>
  __device__ void apply(float (&x)[M][N][4], int, int) const {
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) x[i][j][c] = cap * tanh_fast(x[i][j][c] * inner);
  }
};

// Scale, and a softcap where one is given.
struct ScaledScore {
  static constexpr float factor = kLog2E;
  float scale;
  CappedScore capped;
  __device__ ScaledScore(const Attend& a, const RowTile& tile)
      : scale(a.score.scale), capped(a, tile) {}
  template <int M, int N>
  __device__ void apply(float (&x)[M][N][4], int key, int row) const {
    if (capped.cap > 0) return capped.apply(x, key, row);
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c) x[i][j][c] *= scale;
  }
};

// Scale and a bias in f32 that is the same for all rows of a head, keys side by side.
struct KeyScore {
  static constexpr float factor = kLog2E;
  float scale;
  int keys;
  bool pairs;         // two keys are one piece of 8 bytes
  const float* bias;  // of the lane's first key

  __device__ KeyScore(const Attend& a, const RowTile& tile)
      : scale(a.score.scale),
        keys(tile.keys),
        bias(a.score.bias.as<float>() + tile.offset(tile.begin, a.score.bias.stride, 1, 2) +
             tile.rows.seq.key_first) {
    pairs = reinterpret_cast<uintptr_t>(bias) % 8 == 0;
    bias += threadIdx.x % 4 * 2;
  }
  // The bias of a tile's keys; no key past the last is read.
  template <int N>
  __device__ __forceinline__ void load(float2 (&to)[N], int key) const {
    const float* at = bias + key;
    if (pairs && key + 8 * N <= keys) {
#pragma unroll
      for (int j = 0; j < N; ++j) to[j] = *reinterpret_cast<const float2*>(at + 8 * j);
      return;
    }
    const int left = keys - key - static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      to[j].x = 8 * j < left ? at[8 * j] : 0.f;
      to[j].y = 8 * j + 1 < left ? at[8 * j + 1] : 0.f;
    }
  }
  template <int M, int N>
  __device__ __forceinline__ void add(float (&x)[M][N][4], const float2 (&loaded)[N]) const {
#pragma unroll
    for (int i = 0; i < M; ++i)
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          x[i][j][c] = fmaf(x[i][j][c], scale, c % 2 ? loaded[j].y : loaded[j].x);
  }
  template <int M, int N>
  __device__ void apply(float (&x)[M][N][4], int key, int) const {
    float2 loaded[N];
    load(loaded, key), add(x, loaded);
  }
};

struct RichScore {
  static constexpr float factor = kLog2E;
  const Attend& a;
  const RowTile& tile;
  __device__ RichScore(const Attend& a, const RowTile& tile) : a(a), tile(tile) {}

  template <int M, int N>
  __device__ void apply(float (&x)[M][N][4], int key, int row) const {
    const float scale = a.score.scale;
    if (a.score.softcap > 0) {
      CappedScore(a, tile).apply(x, key, row);
    } else {
#pragma unroll
      for (int i = 0; i < M; ++i)
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) x[i][j][c] *= scale;
    }
    if (a.score.alibi) distance(x, key, row);
    if (a.score.bias) bias(x, key, row);
  }

 private:
  // x -= slope |p_i - p_j|; default positions need no table of keys.
  template <int M, int N>
  __device__ void distance(float (&x)[M][N][4], int key, int row) const {
    const bool given = !default_positions(a.mask) || !a.mask.axis.by_index();
    const int lane_key = key + threadIdx.x % 4 * 2;
    each_row<M>(row, [&](int i, int half, int m) {
      if (m >= tile.count) return;
      const int64_t h = tile.head(m);
      const float slope = alibi_slope(a.score, tile.rows.r, h);
      const int64_t p_i = a.mask.query_at(tile.rows.seq, h, tile.query(m));
      const float from = static_cast<float>(p_i - lane_key);
      if (!given) {
#pragma unroll
        for (int j = 0; j < N; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            x[i][j][2 * half + c] -= slope * fabsf(from - static_cast<float>(j * 8 + c));
        return;
      }
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = lane_key + j * 8 + c;
          if (column >= tile.keys) continue;
          const int64_t p_j = a.mask.key_at(tile.rows.seq, tile.key_head(a), column);
          x[i][j][2 * half + c] -= slope * fabsf(static_cast<float>(p_i - p_j));
        }
    });
  }
  template <int M, int N>
  __device__ void bias(float (&x)[M][N][4], int key, int row) const {
    const View<4>& b = a.score.bias;
    const Sequence& q = tile.rows.seq;
    const int bytes = a.score.bias_dtype == FOVEA_F32 ? 4 : 2;
    const int lane_key = key + threadIdx.x % 4 * 2;
    each_row<M>(row, [&](int i, int half, int m) {
      if (m >= tile.count) return;
      const char* at =
          static_cast<const char*>(b.data) +
          (tile.offset(m, b.stride, 1, 2) + (q.key_first + lane_key) * b.stride[3]) * bytes;
      const bool pairs = b.stride[3] == 1 && reinterpret_cast<uintptr_t>(at) % (2 * bytes) == 0;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int column = lane_key + j * 8;
        float2 add = {0.f, 0.f};
        if (pairs && column + 1 < tile.keys)
          add = load_pair(at + j * 8 * bytes, a.score.bias_dtype);
        else {
          if (column < tile.keys) add.x = load_float(at, a.score.bias_dtype, j * 8 * b.stride[3]);
          if (column + 1 < tile.keys)
            add.y = load_float(at, a.score.bias_dtype, (j * 8 + 1) * b.stride[3]);
        }
        x[i][j][2 * half] += add.x, x[i][j][2 * half + 1] += add.y;
      }
    });
  }
  __device__ static float2 load_pair(const char* at, int32_t dtype) {
    if (dtype == FOVEA_F32) return *reinterpret_cast<const float2*>(at);
    if (dtype == FOVEA_F16) return __half22float2(*reinterpret_cast<const __half2*>(at));
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(at));
  }
};

// Mask: scores of keys a row does not see become -inf

// Tiles [begin, end) of `width` keys that every row of the block sees whole, but for sink keys.
struct FullTiles {
  int begin, end;

  __device__ FullTiles(const Attend& a, const RowTile& tile, int width)
      : begin(0), end(tile.keys / width) {
    if (!default_positions(a.mask) || a.mask.bits) end = 0;
    const int64_t first = tile.position(tile.begin),
                  last = tile.position(tile.begin + tile.size - 1);
    const int64_t heads = a.mask.head_window ? tile.rows.head_end() : tile.rows.head_begin() + 1;
    for (int64_t h = tile.rows.head_begin(); h < heads; ++h) {
      const SeenKeys<int64_t> every = a.mask.of_head(h).seen(last, first, tile.keys, a.mask.axis);
      begin =
          max(begin, static_cast<int>((clamp_i64(every.low, 0, kIndexMax) + width - 1) / width));
      end = min(end, static_cast<int>(clamp_i64(every.high, 0, kIndexMax) / width));
    }
  }
  __device__ bool full(int n) const { return n >= begin && n < end; }
};

// Key numbers as columns of a tile that begins at `origin`.
__device__ inline SeenKeys<int> columns_of(const SeenKeys<int64_t>& seen, int origin) {
  const auto column = [&](int64_t at) {
    return static_cast<int>(clamp_i64(at, 0, kIndexMax)) - origin;
  };
  return {column(seen.floor), column(seen.low), column(seen.high), column(seen.sink)};
}

// The keys of a row are one interval.  In ints: sums are below 2 kIndexMax.
struct WindowMask {
  using Call = Attend;
  static constexpr bool sinks = false;
  const RowTile& tile;
  int left, right, begin, end;  // begin, end: the tiles that every row sees whole

  __device__ WindowMask(const Attend& a, const RowTile& tile, int width)
      : tile(tile), left(most(a.mask.window.left)), right(most(a.mask.window.right)) {
    const int first = tile.first_query() + tile.shift, last = tile.end_query() - 1 + tile.shift;
    begin = left > 0 ? (max(last + 1 - left, 0) + width - 1) / width : 0;
    end = (right > 0 ? min(max(first + right, 0), tile.keys) : tile.keys) / width;
  }
  __device__ bool full(int n) const { return n >= begin && n < end; }
  // The last tile of `width` keys that packed row m sees.
  __device__ int last_tile(int m, int width) const {
    const int to = tile.query(m) + tile.shift + right;
    return right > 0 ? max(to - 1, 0) / width : tile.keys / width;
  }
  // As key_tiles().
  __device__ static KeyTiles tiles(const Attend& a, const RowTile& tile, int width) {
    const int left = most(a.mask.window.left), right = most(a.mask.window.right);
    const int first = tile.first_query() + tile.shift, last = tile.end_query() - 1 + tile.shift;
    const int from = left > 0 ? max(first - left + 1, 0) / width : 0;
    const int to = right > 0 ? min(max(last + right, 0), tile.keys) : tile.keys;
    return {0, from, max((to + width - 1) / width, from)};
  }
  __device__ static int most(int64_t keys) {
    return static_cast<int>(keys < kIndexMax ? keys : kIndexMax);
  }
  // The same of keys that are no interval: key_at(column), eight columns at a time.
  template <int N, class KeyAt>
  __device__ void apply_at(float (&x)[1][N][4], int row, KeyAt key_at) const {
    int low[2], high[2];
    each_row<1>(row, [&](int, int half, int m) {
      const int p = tile.query(m) + tile.shift;
      high[half] = right > 0 ? min(p + right, tile.keys) : tile.keys;
      low[half] = left > 0 ? p - left + 1 : 0;
    });
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int key = key_at(j * 8) + threadIdx.x % 4 * 2;
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (key + c % 2 >= high[c / 2] || key + c % 2 < low[c / 2]) x[0][j][c] = kNegativeInfinity;
    }
  }
  // The same of runs of 64 keys, which begin at begins[part].  hidden: as of apply().
  template <int N, class T, class Begins>
  __device__ void apply_each(T (&x)[1][N][4], int row, const Begins& begins, T hidden) const {
    constexpr int each = kTileKeys / 8;
#pragma unroll
    for (int part = 0; part < N / each; ++part) {
      const int lane_key = begins[part] + threadIdx.x % 4 * 2;
      each_row<1>(row, [&](int, int half, int m) {
        const int p = tile.query(m) + tile.shift;
        const int high = (right > 0 ? min(p + right, tile.keys) : tile.keys) - lane_key;
        const int low = left > 0 ? p - left + 1 - lane_key : -kTileKeys;
#pragma unroll
        for (int j = 0; j < each; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            if (j * 8 + c >= high || j * 8 + c < low) x[0][part * each + j][2 * half + c] = hidden;
      });
    }
  }
  // hidden: what x of a pair becomes that is not seen.
  template <int M, int N, class T>
  __device__ void apply(T (&x)[M][N][4], int key, int row, T hidden = kNegativeInfinity) const {
    const int lane_key = key + threadIdx.x % 4 * 2;
    each_row<M>(row, [&](int i, int half, int m) {
      const int p = tile.query(m) + tile.shift;
      const int high = (right > 0 ? min(p + right, tile.keys) : tile.keys) - lane_key;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (j * 8 + c >= high) x[i][j][2 * half + c] = hidden;
      if (left <= 0) return;
      const int low = p - left + 1 - lane_key;
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          if (j * 8 + c < low) x[i][j][2 * half + c] = hidden;
    });
  }
};

// Keys of one lane's row to hide: those it does not see.
template <int N>
__device__ __forceinline__ void hide_unseen(float (&x)[N][4], int half, const SeenKeys<int>& seen) {
  // In two passes: registers are scarce, and few tiles have both ends.
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (j * 8 + c >= seen.high) x[j][2 * half + c] = kNegativeInfinity;
  if (seen.low <= 0) return;
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (const int at = j * 8 + c; at < seen.low && (at >= seen.sink || at < seen.floor))
        x[j][2 * half + c] = kNegativeInfinity;
}

// What rows see where it is a window and sink keys before it.  Windows may differ by head, and keys
// may lie along an axis (Mask::axis).  Positions of keys are within kSpanMost of 0, so a bound is
// cut off at twice that, and key numbers take 32-bit divisions.
constexpr int64_t kSpanMost = int64_t{1} << 28;

struct RowSpans {
  const RowTile& tile;
  int64_t left, right, sink;
  int chunk, step, shift;
  int head_stride, column_stride;
  const int32_t* head_window;

  __device__ RowSpans(const Attend& a, const RowTile& tile)
      : tile(tile),
        left(a.mask.window.left),
        right(a.mask.window.right),
        sink(a.mask.window.sink),
        chunk(static_cast<int>(a.mask.window.chunk)),
        step(static_cast<int>(a.mask.axis.step)),
        shift(static_cast<int>(a.mask.axis.shift)),
        head_stride(static_cast<int>(a.mask.head_window.stride[0])),
        column_stride(static_cast<int>(a.mask.head_window.stride[1])),
        head_window(a.mask.head_window.as<int32_t>()) {}

  // As Window::seen of head h, between 0 and the last key.
  __device__ SeenKeys<int> seen(int h, int64_t lower, int64_t upper) const {
    int64_t left = this->left, right = this->right, sink = this->sink;
    if (head_window) {
      const int32_t* at = head_window + int64_t{h} * head_stride;
      left = at[0], right = at[column_stride], sink = at[2 * column_stride];
    }
    SeenKeys<int> at{0, 0, tile.keys, 0};
    if (right > 0) at.high = min(at.high, from(upper + right));
    if (left > 0) at.low = max(from(lower - left + 1), 0), at.sink = from(sink);
    if (chunk > 0) {
      at.floor = max(from(chunk_of(lower)), 0);
      at.low = max(at.low, at.floor), at.high = min(at.high, from(chunk_of(upper) + chunk));
    }
    return at;
  }
  template <class F>
  __device__ void each_head(F f) const {
    const int first = static_cast<int>(tile.rows.head_begin());
    const int end = head_window ? static_cast<int>(tile.rows.head_end()) : first + 1;
    for (int h = first; h < end; ++h) f(h);
  }

 private:
  static __device__ int cut(int64_t position) {
    return static_cast<int>(clamp_i64(position, -2 * kSpanMost, 2 * kSpanMost));
  }
  // The first key at a position or after it.
  __device__ int from(int64_t position) const {
    const int p = cut(position) - shift;
    return step == 1 ? p : p > 0 ? (p - 1) / step + 1 : -(-p / step);
  }
  // The first position of a chunk.  No key is in that of a row past the cut.
  __device__ int chunk_of(int64_t position) const {
    const int p = cut(position);
    return (p >= 0 ? p / chunk : -((chunk - 1 - p) / chunk)) * chunk;
  }
};

// A walk visits the tiles of the sink keys, and those of the window after.
struct SpanMask : RowSpans {
  using Call = Attend;
  static constexpr bool sinks = true;
  int begin, end;  // the tiles that every row sees whole, but for sink keys

  __device__ SpanMask(const Attend& a, const RowTile& tile, int width)
      : RowSpans(a, tile), begin(0), end(tile.keys / width) {
    const int64_t first = tile.position(tile.begin),
                  last = tile.position(tile.begin + tile.size - 1);
    each_head([&](int h) {
      const SeenKeys<int> every = seen(h, last, first);
      begin = max(begin, (every.low + width - 1) / width);
      end = min(end, max(every.high, 0) / width);
    });
  }
  __device__ bool full(int n) const { return n >= begin && n < end; }
  // As key_tiles().
  __device__ static KeyTiles tiles(const Attend& a, const RowTile& tile, int width) {
    const RowSpans spans(a, tile);
    const int64_t first = tile.position(tile.begin),
                  last = tile.position(tile.begin + tile.size - 1);
    int low = tile.keys, high = 0, sink = 0;
    spans.each_head([&](int h) {
      const SeenKeys<int> some = spans.seen(h, first, last);
      low = min(low, some.low), high = max(high, some.high);
      sink = max(sink, min(some.sink, some.high));
    });
    const int sinks = (sink + width - 1) / width;
    const int from = max(low / width, sinks);
    return {sinks, from, max((high + width - 1) / width, from)};
  }
  template <int M, int N>
  __device__ void apply(float (&x)[M][N][4], int key, int row) const {
    const int lane_key = key + threadIdx.x % 4 * 2;
    each_row<M>(row, [&](int i, int half, int m) {
      const int64_t p = tile.position(m);
      SeenKeys<int> at = seen(static_cast<int>(tile.head(m)), p, p);
      at.floor -= lane_key, at.low -= lane_key, at.high -= lane_key, at.sink -= lane_key;
      hide_unseen(x[i], half, at);
    });
  }
  // The last tile of `width` keys that packed row m or one before it may see.
  __device__ int last_tile(int m, int width) const {
    if (head_window && tile.group() > 1) return tile.keys / width;
    const int64_t p = tile.position(m);
    return max(seen(static_cast<int>(tile.head(m)), p, p).high - 1, 0) / width;
  }
};

struct RichMask : FullTiles {
  using Call = Attend;
  static constexpr bool sinks = true;
  const Attend& a;
  const RowTile& tile;

  __device__ RichMask(const Attend& a, const RowTile& tile, int width)
      : FullTiles(a, tile, width), a(a), tile(tile) {}
  __device__ static KeyTiles tiles(const Attend& a, const RowTile& tile, int width) {
    return key_tiles(a.mask, tile.rows.seq, tile.rows.head_begin(), tile.rows.head_end(),
                     tile.first_query(), tile.end_query(), width);
  }
  template <int M, int N>
  __device__ void apply(float (&x)[M][N][4], int key, int row) const {
    if (a.mask.key_position)
      positions(x, key, row);
    else
      windows(x, key, row);
    if (a.mask.bits) bits(x, key, row);
  }

 private:
  // Without positions of keys a row sees intervals of them.
  template <int M, int N>
  __device__ void windows(float (&x)[M][N][4], int key, int row) const {
    const int lane_key = key + threadIdx.x % 4 * 2;
    each_row<M>(row, [&](int i, int half, int m) {
      if (m >= tile.count) return;
      const int64_t h = tile.head(m), p = a.mask.query_at(tile.rows.seq, h, tile.query(m));
      hide_unseen(x[i], half,
                  columns_of(a.mask.of_head(h).seen(p, p, tile.keys, a.mask.axis), lane_key));
    });
  }
  template <int M, int N>
  __device__ void positions(float (&x)[M][N][4], int key, int row) const {
    const Sequence& q = tile.rows.seq;
    each_row<M>(row, [&](int i, int half, int m) {
      if (m >= tile.count) return;
      const int64_t h = tile.head(m), p_i = a.mask.query_at(q, h, tile.query(m));
      const SeenKeys<int64_t> seen = a.mask.of_head(h).seen(p_i, p_i, INT64_MAX);
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = key + j * 8 + threadIdx.x % 4 * 2 + c;
          const int64_t p_j = column < tile.keys ? a.mask.key_at(q, tile.key_head(a), column) : -1;
          if (p_j < 0 || !seen(p_j)) x[i][j][2 * half + c] = kNegativeInfinity;
        }
    });
  }
  // Bits past the last key are not read: the tile's tail is hidden already.
  template <int M, int N>
  __device__ void bits(float (&x)[M][N][4], int key, int row) const {
    const Sequence& q = tile.rows.seq;
    each_row<M>(row, [&](int i, int half, int m) {
      if (m >= tile.count) return;
      const uint8_t* bytes = a.mask.bits.as<uint8_t>() + tile.offset(m, a.mask.bits.stride, 1, 2);
#pragma unroll
      for (int j = 0; j < N; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int column = key + j * 8 + threadIdx.x % 4 * 2 + c;
          const int64_t bit = q.key_first + column;
          if (column < tile.keys && !(bytes[bit / 8 * a.mask.bits.stride[3]] >> (bit % 8) & 1))
            x[i][j][2 * half + c] = kNegativeInfinity;
        }
    });
  }
};

// Byte j / 4, bit j % 4: key j of the tile is not there.
template <int M, int N>
__device__ inline void hide_absent(float (&x)[M][N][4], const uint32_t (&absent)[N / 2]) {
  const int shift = threadIdx.x % 4 / 2 * 8 + threadIdx.x % 2 * 2;
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (absent[j / 2] >> shift >> (j % 2 * 16 + c) & 1)
#pragma unroll
        for (int i = 0; i < M; ++i) x[i][j][c] = x[i][j][2 + c] = kNegativeInfinity;
}
// Bit j % 32 of word j / 32: key j of the tile has no page.
template <int M, int N>
__device__ inline void hide_absent(float (&x)[M][N][4], const uint32_t (&absent)[N / 4]) {
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < 2; ++c)
      if (absent[j / 4] >> (threadIdx.x % 4 * 2) >> (j % 4 * 8 + c) & 1)
#pragma unroll
        for (int i = 0; i < M; ++i) x[i][j][c] = x[i][j][2 + c] = kNegativeInfinity;
}

}  // namespace fovea::cuda
