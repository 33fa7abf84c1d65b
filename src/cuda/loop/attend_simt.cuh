// SPDX-License-Identifier: Apache-2.0
// The portable flash loop in f32 FMA: every dtype, width and stride.
//   for key tiles:  x = logits;  m' = max(m, x);  p = exp(x - m');  l, o scaled by exp(m - m')
//                   l += sum p;  o += p v        at the end the epilogue gets m, l and o of a row
// A block owns 16 R rows (R = 1 for decode) of one sequence and loops over key tiles of 64.
// Thread (ty, tx) owns rows ty + 16 r.  A row's 16 tx lanes hold m, and partial sums of l until
// the end.  Products, shared memory and barriers: block/stage.cuh.
//
//   | policy    | what it decides                   | here and in the operations             |
//   | KeySource | which key tiles, where a key lies | WindowKeys; key blocks; strip and halo |
//   | Score     | the logits of a tile              | dot, scaled codes, convolution, two q  |
//   | Epilogue  | what becomes of a finished row    | WholeEpilogue: o and lse, or partials; |
//   |           |                                   | columns(): what o's columns add        |
//
// A source places keys one by one, so contiguous keys and pages are the same to the loop.
// Source: FlashAttention-2 (2307.08691).
#pragma once
#include <concepts>

#include "cuda/block/stage.cuh"
#include "cuda/block/stage_softmax.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/pairs.cuh"

namespace fovea::cuda {

constexpr int kDecodeRows = 16;  // up to here a tile of 16 rows does
constexpr int kStageRows = 64;

// Work items (sequence, head, row tile, split), the last fastest.  A head is a query head, or a key
// head whose group of query heads is packed into the rows (pack GQA).
struct PackedGrid {
  int64_t splits, row_tiles, heads, group, work;
  bool few;  // rows: tiles of kDecodeRows

  PackedGrid(const Attend& a, int64_t heads, int64_t most_few = kDecodeRows)
      : splits(1), heads(heads) {
    group = heads ? a.h / heads : 0;
    const int64_t rows = a.sequences.query_max * group;
    few = rows <= most_few;
    row_tiles = ceil_div(rows, few ? kDecodeRows : kStageRows);
    work = a.sequences.count * heads * row_tiles;
  }
  void split(int64_t n) { splits = n, work *= n; }
};

// The rows and keys of a block, in shared memory.
template <int R>
struct PackedTile {
  PackGqaRows piece;
  RowInfo rows[16 * R];
  int64_t q[16 * R];  // element offsets; -1: no such row
  KeyInfo keys[kStageTile];
};

// Work item w: packed rows [m0, m1) of its sequence and head.
struct PackedItem {
  int64_t r, head, split, m0, m1;
  __device__ PackedItem(const PackedGrid& grid, int64_t w, int rows) : split(w % grid.splits) {
    // Late rows first: under a causal mask they are the longest.
    m0 = (grid.row_tiles - 1 - w / grid.splits % grid.row_tiles) * rows, m1 = m0 + rows;
    const int64_t rest = w / grid.splits / grid.row_tiles;
    r = rest / grid.heads, head = rest % grid.heads;
  }
};

// Packed rows from m0 on into shared memory; more(m) for what an operation adds to row m of a tile.
template <int R, class More>
__device__ __forceinline__ void stage_rows(const Attend& a, int64_t m0, PackedTile<R>& s,
                                           const More& more) {
  for (int m = threadIdx.x; m < 16 * R; m += kStageThreads) {
    s.rows[m] = row_info(a, s.piece, m0 + m);
    s.q[m] = s.rows[m].i < 0 ? -1 : s.piece.offset(m0 + m, a.q.stride);
    more(m);
  }
}

// Those of an item; false: it has none.
template <int R, class More>
__device__ __forceinline__ bool stage_item(const Attend& a, int64_t group, PackedItem& item,
                                           PackedTile<R>& s, const More& more) {
  __syncthreads();  // the last item is done with
  if (threadIdx.x == 0) s.piece = {a.sequences[item.r], item.r, item.head, group};
  __syncthreads();
  if (item.m0 >= s.piece.count()) return false;
  stage_rows(a, item.m0, s, more);
  __syncthreads();  // an item without keys reads the rows at once
  if (s.piece.count() < item.m1) item.m1 = s.piece.count();
  return true;
}

// Tiles [begin, end) of 64 keys.  place() puts the keys from j0 on into shared memory; true: the
// thread's is missing.  count() of them are below the sequence's length.
template <class K>
concept KeySource = requires(const K keys, int64_t j0) {
  { keys.begin } -> std::convertible_to<int64_t>;
  { keys.end } -> std::convertible_to<int64_t>;
  { keys[j0] } -> std::same_as<int64_t>;  // j0 of a tile
  { keys.place(j0) } -> std::same_as<bool>;
  { keys.count(j0) } -> std::same_as<int>;
};

// Tiles that some row of an item may see, or a split of them.  place(n, j) puts key j into column
// n; true: there is none.
template <class Place>
struct WindowKeys {
  const PackGqaRows& rows;
  KeyTiles range;
  int64_t begin, end;
  bool descending;
  Place put;

  __device__ WindowKeys(const Attend& a, const PackGqaRows& rows, const PackedItem& item,
                        int64_t splits, Place put, bool descending = false)
      : rows(rows),
        range(key_tiles(a.mask, rows.seq, rows.head_begin(), rows.head_end(), rows.row(item.m0),
                        rows.row(item.m1 - 1) + 1, kStageTile)),
        descending(descending),
        put(put) {
    const SplitRange part = split_range(range.count(), splits, item.split);
    begin = part.begin, end = part.end;
  }
  __device__ int64_t operator[](int64_t n) const {
    return range[descending ? begin + end - 1 - n : n] * kStageTile;
  }
  __device__ bool place(int64_t j0) const {
    return threadIdx.x < kStageTile && put(threadIdx.x, j0 + threadIdx.x);
  }
  __device__ int count(int64_t j0) const {
    return static_cast<int>(clamp_i64(rows.seq.keys - j0, 0, kStageTile));
  }
};

// take(j0, missing) for each tile of a source, its keys in shared memory.
template <KeySource Keys, class Take>
__device__ __forceinline__ void sweep_keys(const Keys& keys, const Take& take) {
  for (int64_t n = keys.begin; n < keys.end; ++n) {
    const int64_t j0 = keys[n];
    __syncthreads();  // the last tile's keys are done with
    take(j0, static_cast<bool>(__syncthreads_or(keys.place(j0))));
  }
}

// The base of a Score, which hides what it does differently.
template <int R>
struct TileScores {
  const FmaTiles<R>& tiles;

  // A Score adds products(x, j0) of rows and keys, false: the tile has no weights;
  // logits(j0, missing), a function of (r, c, product); and values(row, column), four columns of v
  // out of `width`.
  __device__ static float weight(float p) { return p; }  // as the operand of p v
  __device__ static bool weighs() { return true; }       // whether o is made
  __device__ void put(const float (&p)[R][4]) const { put_p(tiles, p); }
};

// The logit of a pair: scale, softcap, bias; -inf where unseen.
template <int R>
struct PairLogits {
  const Attend& a;
  const PackedTile<R>& s;
  bool plain;

  __device__ PairLogits(const Attend& a, const PackedTile<R>& s, const PackedItem& item, int64_t j0,
                        bool missing)
      : a(a), s(s), plain(plain_pairs(a, s.piece, item.m0, item.m1, j0, missing)) {}
  __device__ float operator()(int r, int c, float product) const {
    const float x = capped(a.score, product);
    return plain ? x : score(r, c, x);
  }
  __device__ bool sees(int r, int c) const { return plain || score(r, c, 0.f) != -INFINITY; }

 private:
  __device__ float score(int r, int c, float x) const {
    return pair_score(a, s.piece.seq, s.rows[threadIdx.x / 16 + 16 * r],
                      s.keys[threadIdx.x % 16 + 16 * c], x);
  }
};

// The destination of a finished row; nullptr: none.
struct RowPlace {
  void* o;
  int32_t dtype;
  int64_t at, step;  // in elements: its first column, from one to the next
  float* lse;
};

// Rows of o and lse, or of a split's partial.
struct WholeEpilogue {
  const Attend& a;
  const Partials& parts;
  int64_t splits, split;

  // `token`: batch * rows of o + row of o; `i`: row of o's axis.
  __device__ RowPlace place(int64_t batch, int64_t token, int64_t i, int64_t h) const {
    if (splits > 1)
      return {parts.o, FOVEA_F32, parts.row(split, token, h) * parts.e, 1,
              parts.lse_row(split, token, h)};
    const int64_t *o = a.o.stride, *lse = a.lse.stride;
    return {a.o.data, a.o_dtype, batch * o[0] + i * o[1] + h * o[2], o[3],
            a.lse ? a.lse.as() + batch * lse[0] + h * lse[1] + i * lse[2] : nullptr};
  }
  // The factor of a row's sums.
  __device__ static float factor(int, const StageRow& end) {
    return end.sum == 0 ? 0 : end.factor / end.sum;
  }
};

// Packed rows.
template <int R>
struct PackedEpilogue : WholeEpilogue {
  const PackedTile<R>& s;

  __device__ bool there(int m) const { return s.rows[m].i >= 0; }
  // The sink logit enters once, in the merge of splits.
  __device__ float sink(int m) const {
    return splits == 1 && a.score.sink_logit && there(m) ? sink_logit(a.score, s.rows[m].h)
                                                         : -INFINITY;
  }
  __device__ RowPlace place(int m) const {
    const Sequence& q = s.piece.seq;
    const int64_t i = q.row_begin + s.rows[m].i;
    return WholeEpilogue::place(q.batch, q.batch * a.s + i, i, s.rows[m].h);
  }
};

// The loop of one item.
template <int Chunks, int R, KeySource Keys, class Score, class Epilogue>
__device__ __forceinline__ void attend_simt(const FmaTiles<R>& tiles, const Keys& keys,
                                            const Score& score, const Epilogue& epilogue) {
  StageSoftmax<R> state;
  float o[Chunks][R][4] = {};
  sweep_keys(keys, [&](int64_t j0, bool missing) {
    float x[R][4] = {};
    if (!score.products(x, j0)) return;
    state.weigh(x, o, score.logits(j0, missing));
    if (!score.weighs()) return;
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int c = 0; c < 4; ++c) x[r][c] = score.weight(x[r][c]);
    score.put(x);
    multiply_nn(o, tiles, score.width, keys.count(j0),
                [&](int row, int column) { return score.values(row, column); });
  });
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int m = threadIdx.x / 16 + 16 * r;
    const StageRow end = state.end(r, epilogue.sink(m));
    if (!epilogue.there(m)) continue;
    const RowPlace to = epilogue.place(m);
    if (threadIdx.x % 16 == 0 && to.lse) *to.lse = end.lse();
    const float factor = epilogue.factor(m, end);
    if constexpr (requires { epilogue.columns(o, r, m, end); }) epilogue.columns(o, r, m, end);
    if (to.o) store_columns(to.o, to.dtype, to.at, to.step, score.width, factor, o, r);
  }
}

}  // namespace fovea::cuda
