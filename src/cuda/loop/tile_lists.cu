// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <bit>

#include "cuda/block/reduce.cuh"
#include "cuda/loop/tile_unions.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 128, kCounted = 4096, kCached = 512;

struct Preparation {
  SparseList list;
  Sequences sequences;
  Window window;
  TileLists to;
  int32_t* tile;
  TileSpan* span;
  int64_t heads, blocks;
};

struct ListShared {
  uint32_t count[kCounted];
  int sums[kThreads / 32];
  int32_t list[kCached];  // its first places
};

// Counts of a union: a byte for each of its rows.
__device__ int most_of(uint32_t count, int rows) {
  if (rows == 1) return static_cast<int>(count);
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < kUnionRows; ++i) most = max(most, count >> 8 * i & 255);
  return static_cast<int>(most);
}
// The rows that have the tile more than n times.
__device__ int rows_of(uint32_t count, int n) {
  int rows = 0;
#pragma unroll
  for (int i = 0; i < kUnionRows; ++i)
    rows |= static_cast<int>(static_cast<int>(count >> 8 * i & 255) > n) << i;
  return rows;
}

// How often `rows` lists name each of `tiles` tiles from `from` on.
__device__ void count_tiles(const Preparation& p, const ListRow& first, int rows, int64_t from,
                            int tiles, ListShared& s) {
  const int64_t each = p.list.block_keys / p.to.width,
                always = (p.list.first_keys + p.to.width - 1) / p.to.width;
  const uint32_t once = rows == 1 ? 1 : 0x01010101u >> 8 * (kUnionRows - rows);
  for (int i = threadIdx.x; i < tiles; i += kThreads) s.count[i] = from + i < always ? once : 0;
  __syncthreads();
  ListRow row = first;
  for (int i = 0; i < rows; ++i, ++row.row)
    for (int64_t m = threadIdx.x, places = p.list.count(row); m < places; m += kThreads) {
      const int64_t e = *p.list.index.at<int32_t>(row.batch, row.head, row.row, m);
      if (e < 0) continue;
      for (int64_t n = e * each; n < (e + 1) * each; ++n)
        if (n >= from && n < from + tiles && n >= always)
          atomicAdd(s.count + (n - from), 1u << 8 * i);  // integers: the same sum in any order
    }
  __syncthreads();
}

// The list of a list row, or the union of some: how many places it has.
__device__ int write_list(const Preparation& p, const Sequence& q, const ListRow& row, int rows,
                          int32_t* to, ListShared& s) {
  const int64_t all = (q.keys + p.to.width - 1) / p.to.width;
  int64_t written = 0;
  for (int64_t from = 0; from < all; from += kCounted) {
    const int tiles = static_cast<int>(from + kCounted < all ? kCounted : all - from);
    count_tiles(p, row, rows, from, tiles, s);
    const int each = (tiles + kThreads - 1) / kThreads;
    const int begin = min(static_cast<int>(threadIdx.x) * each, tiles),
              end = min(begin + each, tiles);
    int mine = 0, total;
    for (int i = begin; i < end; ++i) mine += most_of(s.count[i], rows);
    int64_t at = written + block_sum_before<kThreads>(mine, s.sums, total);
    for (int i = begin; i < end; ++i)
      for (int n = 0, most = most_of(s.count[i], rows); n < most; ++n, ++at) {
        const int seen = p.to.rows == 1 ? 0 : rows == 1 ? 1 : rows_of(s.count[i], n);
        to[at] = static_cast<int32_t>(from) + i | seen << kPlaceTileBits;
        if (at < kCached) s.list[at] = to[at];
      }
    written += total;
    __syncthreads();
  }
  return static_cast<int>(written);
}

// The first of `count` ascending tiles that is not below `tile`.
__device__ int lower_bound(const int32_t* tiles, int count, int tile) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (tile_in(tiles[middle]) < tile)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

__device__ TileSpan span_of(int width, const PlainWindow& window, const int32_t* tiles, int count,
                            int first, int end) {
  const int shift = window.keys - window.rows;
  const PlainWindow::Span some = window.keys_of(first, end);
  if (some.high <= some.low) return {};
  const auto from = [&](int tile) { return lower_bound(tiles, count, tile); };
  TileSpan span{from(some.low / width), from((some.high + width - 1) / width), 0, 0};
  if (span.end <= span.begin) return {};
  // What the last row sees first, and the first row last.
  const int low = window.left ? max(end - 1 + shift - window.left + 1, 0) : 0;
  const int high =
      window.right ? min(max(first + shift + window.right, 0), window.keys) : window.keys;
  span.whole_begin = max(from((low + width - 1) / width), span.begin);
  span.whole_end = min(from(high / width), span.end);
  if (span.whole_end <= span.whole_begin) span.whole_begin = span.whole_end = span.begin;
  return span;
}

__global__ void __launch_bounds__(kThreads)
    tile_lists_kernel(const __grid_constant__ Preparation p, int64_t work) {
  __shared__ ListShared s;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t block = w % p.blocks * p.to.rows, head = w / p.blocks % p.list.x,
                  r = w / p.blocks / p.list.x;
    const Sequence q = p.sequences[r];
    if (block * p.list.block_rows >= q.rows || !p.to.has(q, r, block)) continue;
    const ListRow row = p.list.at(q, r, p.to.packed, head, block);
    // Of a union the last may have fewer rows, or rows without a list.
    const int there = static_cast<int>(
        min(min(q.rows - block, p.to.n - row.row), static_cast<int64_t>(p.to.rows)));
    const int64_t at = p.to.first(q, r, head) + block;
    int32_t* tiles = p.tile + at * p.to.most;
    const int count = write_list(p, q, row, p.to.rows == 1 ? 1 : there, tiles, s);
    const int heads = static_cast<int>(p.heads), rows = static_cast<int>(q.rows);
    const PlainWindow window(p.window, rows, static_cast<int>(q.keys));
    const int32_t* sorted = count <= kCached ? s.list : tiles;
    for (int n = threadIdx.x; n < p.to.row_tiles; n += kThreads) {
      const int begin = (static_cast<int>(block) / p.to.rows * p.to.row_tiles + n) * p.to.step;
      const int end = min(begin + p.to.step, rows * heads);
      if (end > begin)
        p.span[at * p.to.row_tiles + n] =
            span_of(p.to.width, window, sorted, count, begin / heads, (end - 1) / heads + 1);
    }
  }
}

// ---- unions of many rows

constexpr int kBlockWords = 2048;  // blocks of keys at most, 32 a word

struct UnionPreparation {
  SparseList list;
  Sequences sequences;
  Window window;
  TileUnions to;
  int32_t* tile;
  TileSpan* span;
  uint8_t* times;
};

struct UnionShared {
  uint32_t named[kBlockWords];
  int sums[kThreads / 32];
};

// Counts what the rows [first, first + rows) name, into s.named and `times`.
__device__ void count_names(const UnionPreparation& p, const Sequence& q, int64_t r, int64_t head,
                            int64_t first, uint8_t* times, UnionShared& s) {
  const TileUnions& to = p.to;
  for (int i = threadIdx.x; i < kBlockWords; i += kThreads) s.named[i] = 0;
  const int64_t pieces = int64_t{to.rows} * to.blocks / 16;
  for (int64_t i = threadIdx.x; i < pieces; i += kThreads)
    reinterpret_cast<uint4*>(times)[i] = uint4{};
  __syncthreads();
  const int64_t blocks = (q.keys + p.list.block_keys - 1) / p.list.block_keys;
  for (int i = threadIdx.x; i < to.rows && first + i < q.rows; i += kThreads) {
    const ListRow row = p.list.at(q, r, false, head, first + i);
    for (int64_t m = 0, places = p.list.count(row); m < places; ++m) {
      const int64_t e = *p.list.index.at<int32_t>(row.batch, row.head, row.row, m);
      if (e < 0 || e >= blocks) continue;
      ++times[int64_t{i} * to.blocks + e];
      atomicOr(s.named + e / 32, 1u << e % 32);
    }
  }
  __syncthreads();
}

// The tiles of the named blocks, ascending: how many.
__device__ int write_union(const TileUnions& to, const Sequence& q, int32_t* tiles,
                           UnionShared& s) {
  const int all = static_cast<int>((q.keys + to.width - 1) / to.width);
  const int words = (to.blocks + 31) / 32, each = (words + kThreads - 1) / kThreads;
  const int begin = min(static_cast<int>(threadIdx.x) * each, words),
            end = min(begin + each, words);
  const auto visit = [&](auto f) {
    for (int i = begin; i < end; ++i)
      for (uint32_t left = s.named[i]; left; left &= left - 1) {
        const int first = (i * 32 + __ffs(left) - 1) << to.shift;
        for (int tile = first; tile < min(first + (1 << to.shift), all); ++tile) f(tile);
      }
  };
  int mine = 0, total;
  visit([&](int) { ++mine; });
  int at = block_sum_before<kThreads>(mine, s.sums, total);
  visit([&](int tile) { tiles[at++] = tile; });
  __syncthreads();
  return total;
}

__global__ void __launch_bounds__(kThreads)
    tile_unions_kernel(const __grid_constant__ UnionPreparation p, int64_t work) {
  __shared__ UnionShared s;
  const TileUnions& to = p.to;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t first = w % to.row_tiles * to.rows, head = w / to.row_tiles % to.x,
                  r = w / to.row_tiles / to.x;
    const Sequence q = p.sequences[r];
    if (first >= q.rows) continue;
    int32_t* tiles = p.tile + w * to.tiles;
    count_names(p, q, r, head, first, p.times + w * to.rows * to.blocks, s);
    const int count = write_union(to, q, tiles, s);
    if (threadIdx.x == 0) {
      const int rows = static_cast<int>(q.rows), begin = static_cast<int>(first);
      const PlainWindow window(p.window, rows, static_cast<int>(q.keys));
      p.span[w] = span_of(to.width, window, tiles, count, begin, min(begin + to.rows, rows));
    }
    __syncthreads();
  }
}

}  // namespace

TileUnionSlots::TileUnionSlots(Layout& layout, const SparseAttend& call, int rows, int width) {
  const SparseList& list = call.list;
  const Sequences& q = call.attend.sequences;
  shape.x = list.x, shape.row_tiles = ceil_div(q.query_max, rows);
  shape.tiles = ceil_div(q.key_max, width);
  shape.blocks = static_cast<int32_t>(ceil_div(ceil_div(q.key_max, list.block_keys), 16) * 16);
  shape.group = static_cast<int32_t>(list.group);
  shape.rows = rows, shape.width = width;
  shape.shift = std::countr_zero(static_cast<uint64_t>(list.block_keys / width));
  tile = layout.add<int32_t>(q.count, list.x, shape.row_tiles, shape.tiles);
  span = layout.add<TileSpan>(q.count, list.x, shape.row_tiles);
  times = layout.add<uint8_t>(q.count, list.x, shape.row_tiles, int64_t{rows} * shape.blocks);
}

TileUnions TileUnionSlots::make(Context& ctx, const char* op, const SparseAttend& call,
                                void* base) const {
  TileUnions unions = shape;
  unions.tile = tile.at(base), unions.span = span.at(base), unions.times = times.at(base);
  const Attend& a = call.attend;
  const int64_t work = a.sequences.count * call.list.x * shape.row_tiles;
  launch<tile_unions_kernel>(ctx, op, work, kThreads, 0,
                             UnionPreparation{call.list, a.sequences, a.mask.window, unions,
                                              tile.at(base), span.at(base), times.at(base)},
                             work);
  return unions;
}

TileListSlots::TileListSlots(Layout& layout, const SparseAttend& call, int64_t width,
                             int64_t heads_, int64_t step, int64_t rows)
    : heads(heads_) {
  const SparseList& list = call.list;
  const Sequences& q = call.attend.sequences;
  const int64_t always = ceil_div(std::min(list.first_keys, q.key_max), width);
  blocks = ceil_div(q.query_max, list.block_rows * rows);
  shape.x = list.x, shape.n = list.n;
  shape.most = list.keep * (list.block_keys / width) + always;
  shape.group = static_cast<int32_t>(list.group);
  shape.block_rows = static_cast<int32_t>(list.block_rows);
  shape.row_tiles = static_cast<int32_t>(list.block_rows * rows * heads / step);
  shape.rows = static_cast<int32_t>(rows);
  shape.step = static_cast<int32_t>(step), shape.width = static_cast<int32_t>(width);
  shape.packed = call.packed();
  tile = layout.add<int32_t>(call.attend.b, list.x, list.n, shape.most);
  span = layout.add<TileSpan>(call.attend.b, list.x, list.n, int64_t{shape.row_tiles});
}

TileLists TileListSlots::make(Context& ctx, const char* op, const SparseAttend& call,
                              void* base) const {
  TileLists lists = shape;
  lists.tile = tile.at(base), lists.span = span.at(base);
  const Attend& a = call.attend;
  const int64_t work = a.sequences.count * call.list.x * blocks;
  launch<tile_lists_kernel>(ctx, op, work, kThreads, 0,
                            Preparation{call.list, a.sequences, a.mask.window, lists, tile.at(base),
                                        span.at(base), heads, blocks},
                            work);
  return lists;
}

}  // namespace fovea::cuda
