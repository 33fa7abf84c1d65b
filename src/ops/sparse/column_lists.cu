// SPDX-License-Identifier: Apache-2.0
// Makes the lists of column_lists.cuh.  A block owns the union of a row tile.  It goes over the
// keys that a window leaves, kCounted at a time:
//   count[0]  how often entries of either list row have a piece that begins at a key
//   named     the keys that they name, a bit each
//   count[1]  how often columns name a key that no entry of theirs names
// Counts of two list rows share a word.  They are sums of integers: the same in any order.
#include "ops/sparse/column_lists.cuh"

#include <algorithm>

#include "cuda/block/reduce.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256, kCounted = 4096, kEach = kCounted / kThreads;

struct Preparation {
  SparseList list;
  Sequences sequences;
  Window window;
  ColumnLists to;
  int32_t *tile, *column;
  ColumnSpan* span;
  int64_t blocks;
};

struct CountShared {
  alignas(16) uint32_t count[2][kCounted];
  uint32_t named[kColumnLists][kCounted / 32];
  int sums[kThreads / 32];
  int whole[2];
};

// A row tile: its list rows, and what its rows may see.
struct Union {
  ListRow row[kColumnLists];
  int lists;                  // rows that are there
  int low, high;              // keys that some row may see
  int whole_low, whole_high;  // those that every row sees
  int everyone;               // bits that stand for all rows of the tile
};

// Counts of a word, a half for each list row.
__device__ int most_of(uint32_t count) {
  return static_cast<int>(max(count & 0xffff, count >> 16));
}
// The list rows that have it more than n times.
__device__ int rows_of(uint32_t count, int n) {
  return static_cast<int>(static_cast<int>(count & 0xffff) > n) |
         static_cast<int>(static_cast<int>(count >> 16) > n) << 1;
}

// Sets bits [begin, end).
__device__ void mark(uint32_t* words, int begin, int end) {
  for (int word = begin / 32; word * 32 < end; ++word) {
    const int from = max(begin - word * 32, 0), to = min(end - word * 32, 32);
    atomicOr(words + word, (to == 32 ? ~0u : (1u << to) - 1) & ~0u << from);
  }
}

// What entries name of the keys [from, from + kCounted).
__device__ void count_entries(const Preparation& p, const Union& of, int from, CountShared& s) {
  const SparseList& list = p.list;
  const int64_t end = from + kCounted, width = p.to.width;
  for (int n = 0; n < of.lists; ++n) {
    const ListRow& row = of.row[n];
    const int64_t places = list.count(row);
    for (int64_t m = threadIdx.x; m < places; m += kThreads) {
      const int64_t e = *list.index.at<int32_t>(row.batch, row.head, row.row, m);
      if (e < 0) continue;
      const int64_t begin = e * list.entry_keys, behind = begin + list.block_keys;
      if (begin >= end || behind <= from || begin >= of.high) continue;
      if (list.column)
        mark(s.named[n], static_cast<int>(max(begin - from, int64_t{0})),
             static_cast<int>(min(behind, end) - from));
      const int64_t last = min(min(behind, end), static_cast<int64_t>(of.high));
      int64_t piece = begin;
      if (piece < from) piece += (from - begin + width - 1) / width * width;
      for (; piece < last; piece += width) atomicAdd(s.count[0] + (piece - from), 1u << 16 * n);
    }
  }
}

// Columns of the same keys, once s.named is whole.
__device__ void count_columns(const Preparation& p, const Union& of, int from, CountShared& s) {
  const SparseList& list = p.list;
  const int end = min(from + kCounted, of.high), first = min(p.to.first_keys, end);
  for (int n = 0; n < of.lists; ++n) {
    const ListRow& row = of.row[n];
    const int64_t columns = list.count_columns(row);
    for (int64_t m = threadIdx.x; m < columns; m += kThreads) {
      const int j = *list.column.at<int32_t>(row.batch, row.head, row.row, m);
      if (j < max(from, first) || j >= end) continue;
      const int at = j - from;
      if (!(s.named[n][at / 32] >> at % 32 & 1)) atomicAdd(s.count[1] + at, 1u << 16 * n);
    }
  }
  // No column stands below `first`.
  for (int j = from + static_cast<int>(threadIdx.x); j < first; j += kThreads)
    s.count[1][j - from] = of.lists > 1 ? 0x10001 : 1;
}

// Writes what is counted behind `written` places, and returns how many there are then.
// before, within: the thread's places below the keys that every row sees, and not past these.
__device__ int write(const uint32_t* count, const Union& of, int from, int width, int written,
                     int32_t* to, CountShared& s, int& before, int& within) {
  uint32_t counts[kEach];
  const int first = static_cast<int>(threadIdx.x) * kEach;
#pragma unroll
  for (int i = 0; i < kEach; i += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(count + first + i);
    counts[i] = four.x, counts[i + 1] = four.y, counts[i + 2] = four.z, counts[i + 3] = four.w;
  }
  int mine = 0, total;
#pragma unroll
  for (int i = 0; i < kEach; ++i) mine += most_of(counts[i]);
  int at = written + block_sum_before<kThreads>(mine, s.sums, total);
  if (!mine) return written + total;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int key = from + first + i, most = most_of(counts[i]);
    if (key < of.whole_low) before += most;
    if (key + width <= of.whole_high) within += most;
    for (int n = 0; n < most; ++n) {
      const int rows = rows_of(counts[i], n);
      to[at++] = key | (of.lists == 1 ? of.everyone : rows) << kPlaceTileBits;
    }
  }
  return written + total;
}

__device__ Union union_at(const Preparation& p, const Sequence& q, int64_t r, int64_t head,
                          int64_t block) {
  Union of{};
  const int rows = static_cast<int>(q.rows), keys = static_cast<int>(q.keys);
  const int first = static_cast<int>(block * p.list.block_rows);
  const int end = min(first + static_cast<int>(p.list.block_rows) * p.to.rows, rows);
  for (int n = 0; n < p.to.rows; ++n) {
    const bool there = first + n * p.list.block_rows < end && p.to.has(q, r, block + n);
    if (there) of.row[of.lists++] = p.list.at(q, r, p.to.packed, head, block + n);
  }
  // Rows behind a lone list row may lack a list.
  of.everyone = end - first <= p.list.block_rows ? (1 << kColumnLists) - 1 : 1;
  const PlainWindow window(p.window, rows, keys);
  const PlainWindow::Span some = window.keys_of(first, end);
  of.low = some.low, of.high = min(some.high, keys);
  const int shift = keys - rows, last = p.to.last_keys;
  of.whole_low = max(window.left ? end - 1 + shift - window.left + 1 : 0, p.to.first_keys);
  of.whole_high = window.right ? min(first + shift + window.right, keys) : keys;
  if (last) of.whole_high = min(of.whole_high, first + shift - last + 1);
  return of;
}

// The band: keys that some row of the tile sees as one of its last.
__device__ int write_band(const Preparation& p, const Sequence& q, int64_t block, int written,
                          int32_t* to) {
  if (!p.to.last_keys) return written;
  const int rows = static_cast<int>(q.rows), keys = static_cast<int>(q.keys), shift = keys - rows;
  const int first = static_cast<int>(block * p.list.block_rows);
  const int end = min(first + static_cast<int>(p.list.block_rows) * p.to.rows, rows);
  const int from = max(max(first + shift - p.to.last_keys + 1, p.to.first_keys), 0);
  const int behind = min(end + shift, keys);
  for (int j = from + static_cast<int>(threadIdx.x); j < behind; j += kThreads)
    to[written + j - from] = j | kColumnBand << kPlaceTileBits;
  return written + max(behind - from, 0);
}

__global__ void __launch_bounds__(kThreads)
    column_lists_kernel(const __grid_constant__ Preparation p, int64_t work) {
  __shared__ CountShared s;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t block = w % p.blocks * p.to.rows, head = w / p.blocks % p.list.x,
                  r = w / p.blocks / p.list.x;
    const Sequence q = p.sequences[r];
    if (block * p.list.block_rows >= q.rows || !p.to.has(q, r, block)) continue;
    const Union of = union_at(p, q, r, head, block);
    const int64_t at = p.to.first(q, r, head) + block;
    int32_t *pieces = p.tile + at * p.to.most, *columns = p.column + at * p.to.most_columns;
    int piece_count = 0, column_count = 0, before = 0, within = 0, unused = 0;
    // A piece may begin before the keys that it shows.
    const int low = max(of.low - p.to.width + 1, 0) / 4 * 4;
    if (threadIdx.x < 2) s.whole[threadIdx.x] = 0;
    for (int from = low; from < of.high; from += kCounted) {
      for (int i = threadIdx.x; i < 2 * kCounted / 4; i += kThreads)
        reinterpret_cast<uint4*>(s.count)[i] = uint4{};
      for (int i = threadIdx.x; i < kColumnLists * kCounted / 32; i += kThreads)
        (&s.named[0][0])[i] = 0;
      __syncthreads();
      count_entries(p, of, from, s);
      __syncthreads();
      count_columns(p, of, from, s);
      __syncthreads();
      piece_count = write(s.count[0], of, from, p.to.width, piece_count, pieces, s, before, within);
      column_count = write(s.count[1], of, from, 1, column_count, columns, s, unused, unused);
    }
    column_count = write_band(p, q, block, column_count, columns);
    __syncthreads();
    atomicAdd(s.whole, before), atomicAdd(s.whole + 1, within);
    __syncthreads();
    if (threadIdx.x == 0)
      p.span[at] = {piece_count, s.whole[0], max(s.whole[0], s.whole[1]), column_count};
    __syncthreads();
  }
}

}  // namespace

ColumnListSlots::ColumnListSlots(Layout& layout, const SparseAttend& call, int64_t width,
                                 int64_t heads, int64_t rows) {
  const SparseList& list = call.list;
  const Sequences& q = call.attend.sequences;
  const int64_t first = std::min(list.first_keys, q.key_max);
  blocks = ceil_div(q.query_max, list.block_rows * rows);
  shape.x = list.x, shape.n = list.n;
  shape.most = list.index ? list.keep * (list.block_keys / width) : 0;
  shape.most_columns = (list.column ? list.columns : 0) + first +
                       (list.last_keys ? list.last_keys + rows * list.block_rows : 0);
  shape.group = static_cast<int32_t>(list.group);
  shape.block_rows = static_cast<int32_t>(list.block_rows), shape.row_tiles = 1;
  shape.step = static_cast<int32_t>(list.block_rows * rows * heads);
  shape.width = static_cast<int32_t>(width), shape.rows = static_cast<int32_t>(rows);
  shape.packed = call.packed();
  shape.first_keys = static_cast<int32_t>(first);
  shape.last_keys = static_cast<int32_t>(list.last_keys);
  tile = layout.add<int32_t>(call.attend.b, list.x, list.n, shape.most);
  column = layout.add<int32_t>(call.attend.b, list.x, list.n, shape.most_columns);
  span = layout.add<ColumnSpan>(call.attend.b, list.x, list.n);
}

ColumnLists ColumnListSlots::make(Context& ctx, const char* op, const SparseAttend& call,
                                  void* base) const {
  ColumnLists lists = shape;
  lists.tile = tile.at(base), lists.column = column.at(base), lists.spans = span.at(base);
  const Attend& a = call.attend;
  const int64_t work = a.sequences.count * call.list.x * blocks;
  launch<column_lists_kernel>(ctx, op, work, kThreads, 0,
                              Preparation{call.list, a.sequences, a.mask.window, lists,
                                          tile.at(base), column.at(base), span.at(base), blocks},
                              work);
  return lists;
}

}  // namespace fovea::cuda
