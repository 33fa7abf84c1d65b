// SPDX-License-Identifier: Apache-2.0
// The row tile of a tiled sweep: packed rows of one sequence and head, in ints.
#pragma once
#include "cuda/loop/source.cuh"

namespace fovea::cuda {

constexpr int kTileKeys = 64;

// How the flat grid is cut: (sequence, head, row tile, split), the last fastest.
struct AttendGrid {
  int64_t row_tiles, heads;
  int32_t splits, group;  // group: heads packed into the rows, 1 or h / g
  bool reversed;          // later row tiles first: under a causal mask they are the longest
};

// The most that a length or window of a tiled sweep may be: sums of two fit in an int.
constexpr int64_t kIndexMax = (1 << 30) - 1;

// Tiles [begin, end) of part `split` among a row tile's `tiles`.
struct TilePart {
  int begin, end;
  __device__ TilePart(int tiles, int splits, int split)
      : begin(share(tiles, splits, split)), end(share(tiles, splits, split + 1)) {}

 private:
  // floor(tiles split / splits), in 32 bits where they do: 64-bit division takes ten times longer.
  __device__ static int share(int tiles, int splits, int split) {
    if (splits == 1) return tiles * split;
    if (split == 0 || split == splits) return split ? tiles : 0;
    const uint64_t product = static_cast<uint64_t>(tiles) * split;
    const uint32_t low = static_cast<uint32_t>(product);
    return static_cast<int>(product == low ? low / static_cast<uint32_t>(splits)
                                           : product / splits);
  }
};

// It lies in shared memory, since only boundary tiles need most of it.
struct RowTile {
  PackGqaRows rows;
  int begin, count;  // first packed row of the block; all packed rows of the sequence and head
  int size;          // rows of the block that exist
  int keys, shift;   // Lk, Lk - Lq

  __device__ RowTile(const Attend& a, const AttendGrid& grid, int64_t r, int64_t head, int begin,
                     int most)
      : RowTile(a.sequences[r], grid, r, head, begin, most) {}
  __device__ RowTile(const Sequence& seq, const AttendGrid& grid, int64_t r, int64_t head,
                     int begin, int most)
      : rows{seq, r, head, grid.group}, begin(begin) {
    count = static_cast<int>(rows.count());
    size = count - begin < most ? count - begin : most;
    keys = static_cast<int>(rows.seq.keys);
    shift = keys - static_cast<int>(rows.seq.rows);
  }
  __device__ int group() const { return static_cast<int>(rows.group); }
  __device__ int query(int m) const { return group() == 1 ? m : m < group() ? 0 : m / group(); }
  __device__ int64_t head(int m) const {
    return group() == 1 ? rows.g : rows.g * group() + m % group();
  }
  // Element offset of packed row m in a (b, s, h) tensor, or in one whose axes are named.
  __device__ int64_t offset(int m, const int64_t* stride, int head_axis = 2,
                            int row_axis = 1) const {
    return rows.seq.batch * stride[0] + (rows.seq.row_begin + query(m)) * stride[row_axis] +
           head(m) * stride[head_axis];
  }
  __device__ int64_t token(const Attend& a, int m) const {
    return rows.seq.batch * a.s + rows.seq.row_begin + query(m);
  }
  __device__ int64_t key_head(const Attend& a) const {
    if (group() > 1) return rows.g;
    return static_cast<int>(rows.g) / (static_cast<int>(a.h) / static_cast<int>(a.g));
  }
  // Of packed row m, where no tensor gives it.
  __device__ int64_t position(int m) const { return query(m) + rows.seq.context - rows.seq.rows; }
  __device__ int first_query() const { return query(begin); }
  __device__ int end_query() const { return query(begin + size - 1) + 1; }
};

// Calls f(i, half, m) for the lane's fragment rows, m the packed row.
template <int M, class F>
__device__ __forceinline__ void each_row(int first, F f) {
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      f(i, half, first + i * 16 + half * 8 + threadIdx.x % 32 / 4);
}

}  // namespace fovea::cuda
