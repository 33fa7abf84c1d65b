// SPDX-License-Identifier: Apache-2.0
// The keys of a list as steps of 64, for attend_rows() (loop/attend_rows_sm80.cuh).
//   Steps are those of ListSteps: what is always seen, then the list's entries, cut into splits.
//   A thread looks up its entry one step before the key's place.
#pragma once
#include "cuda/loop/attend_rows_sm80.cuh"
#include "cuda/loop/list_tile.cuh"

namespace fovea::cuda {

// What the threads of a block share.
struct ListItem80 {
  SparseList::Tile tile;
  ListSteps steps;
  alignas(RowTile) unsigned char rows[sizeof(RowTile)];
};

// A key, and the place of its list that names it; -1: it is always seen.
struct ListNote {
  int32_t key, place;
};

class ListKeys80 {
 public:
  using Note = ListNote;
  int count;  // steps

  __device__ ListKeys80(const SparseAttend& call, const ListItem80& item, const RowTile& tile,
                        int splits, int split)
      : call(call),
        tile(tile),
        steps(item.steps),
        list_row(item.tile.list),
        block_keys(static_cast<int>(call.list.block_keys)),
        places(static_cast<int>(item.steps.places)),
        entry_tiles((block_keys + kTileKeys - 1) / kTileKeys),
        entries(static_cast<int>(call.list.count(list_row))),
        before(static_cast<int>(item.steps.first + item.steps.lasts)) {
    const TilePart part(before + static_cast<int>(steps.entries), splits, split);
    begin = part.begin, count = part.end - part.begin;
    const int row = threadIdx.x % kTileKeys;
    column = places > 1 ? row % block_keys : row;
    first_place = places > 1 ? row / block_keys : 0;
    if (first_place >= places) first_place = 1 << 30;  // past every list
    const SparseList& list = call.list;
    index = list.index.at<int32_t>(list_row.batch, list_row.head, max(list_row.row, int64_t{0}));
    const Score& score = call.attend.score;
    scale = list.index_bias ? score.scale : 1.f;
    weight = list.index_bias ? kLog2E : score.scale * kLog2E;
  }

  __device__ __forceinline__ void look(int step) {
    const int n = begin + step - before;
    if (n < 0) return;
    const int m = places > 1 ? n * places + first_place : entry_tiles == 1 ? n : n / entry_tiles;
    place = m;
    entry = m >= 0 && m < entries ? index[m * call.list.index.stride[3]] : -1;
  }
  __device__ __forceinline__ int find(int step, int row, Note& note) const {
    const SparseList& list = call.list;
    const int64_t n = begin + step;
    int64_t j = -1;
    note = {-1, -1};
    if (n < steps.first) {
      j = n * kTileKeys + row;
      if (j >= list.first_keys) j = -1;
    } else if (n < before) {
      j = steps.last.begin + (n - steps.first) * kTileKeys + row;
      if (j >= steps.last.end) j = -1;
    } else {
      const int part = entry_tiles > 1 ? static_cast<int>(n - before) % entry_tiles : 0;
      const int at = part * kTileKeys + column;
      if (entry >= 0 && at < block_keys) j = entry * list.entry_keys + at;
      if (j < list.first_keys) j = -1;
      note.place = place;
    }
    if (j >= tile.keys || !steps.some(j)) j = -1;
    note.key = static_cast<int>(j);
    return static_cast<int>(j);
  }

  __device__ static int run(int) { return -1; }

  __device__ void rows(int row) {
    const SparseList& list = call.list;
    each_row<1>(tile.begin + row, [&](int, int half, int m) {
      low[half] = high[half] = 0, position[half] = 0, bias[half] = nullptr;
      if (m >= tile.begin + tile.size) return;
      const int64_t p = tile.position(m);
      const SeenKeys<int64_t> seen = call.attend.mask.window.seen(p, p, tile.keys);
      low[half] = static_cast<int>(clamp_i64(seen.low, 0, kIndexMax));
      high[half] = static_cast<int>(clamp_i64(seen.high, 0, kIndexMax));
      position[half] = p;
      if (list.index_bias && list_row.row >= 0)
        bias[half] = list.index_bias.at(list_row.batch, tile.head(m), list_row.row);
    });
  }
  template <int N>
  __device__ __forceinline__ void score(float (&x)[1][N][4], int, int, const Note* notes) const {
    const SparseList& list = call.list;
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const Note note = notes[j * 8 + c % 2];
        float& y = x[0][j][c];
        const int half = c / 2;
        bool seen = note.key >= low[half] && note.key < high[half];
        if (list.last_keys && note.key >= list.first_keys) {
          const int64_t behind = position[half] - note.key;
          seen &= (behind >= 0 && behind < list.last_keys) == (note.place < 0);
        }
        y *= scale;
        if (bias[half] && note.place >= 0 && seen) {
          const float more = bias[half][note.place * list.index_bias.stride[3]];
          seen = more != kNegativeInfinity, y += more;
        }
        if (!seen) y = kNegativeInfinity;
      }
  }
  __device__ float factor() const {
    return weight;
  }

 private:
  const SparseAttend& call;
  const RowTile& tile;
  const ListSteps& steps;
  const ListRow& list_row;
  const int block_keys, places, entry_tiles, entries, before;
  int begin, column, first_place;
  const int32_t* index;
  float scale, weight;
  int entry = -1, place = -1;
  int low[2], high[2];
  int64_t position[2];
  const float* bias[2];
};

template <class Shape, class Epilogue>
__global__ void __launch_bounds__(Shape::threads, Shape::Blocks)
    attend_list_sm80(const __grid_constant__ SparseAttend call,
                     const __grid_constant__ ListGrid grid,
                     const __grid_constant__ Epilogue epilogue) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ ListItem80 s;
  const Attend& a = call.attend;
  const ListItem item(grid, blockIdx.x);
  const int64_t head = item.unit * grid.heads;
  if (threadIdx.x == 0) {
    const Sequence seq = a.sequences[item.r];
    s.tile =
        call.tile_at(seq, item.r, call.list.head_of(head), grid.heads, grid.lanes(), item.slot);
    const AttendGrid packed{0, 0, 1, static_cast<int32_t>(grid.heads), false};
    const int64_t begin = s.tile.list.begin * grid.heads + s.tile.begin;
    const RowTile& rows =
        *new (s.rows) RowTile(seq, packed, item.r, item.unit, static_cast<int>(begin),
                              static_cast<int>(s.tile.end - s.tile.begin));
    if (s.tile.begin < s.tile.end)
      find_steps(call, rows.rows, s.tile, head,
                 static_cast<int>((call.list.block_keys + kTileKeys - 1) / kTileKeys), s.steps);
  }
  __syncthreads();
  if (s.tile.begin >= s.tile.end) return;
  const RowTile& rows = *reinterpret_cast<const RowTile*>(s.rows);
  ListKeys80 keys(call, s, rows, static_cast<int>(grid.splits), static_cast<int>(item.split));
  attend_rows<Shape>(a, rows, keys, epilogue, blockIdx.x / grid.splits,
                     static_cast<int>(item.split), shared);
}

}  // namespace fovea::cuda
