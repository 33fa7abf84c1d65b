// SPDX-License-Identifier: Apache-2.0
// What the kernels of x_select_block on tensor cores share: where a list row stands, in 32 bits,
// and the scores of a chunk of list rows between them.
#pragma once
#include "cuda/block/stage.cuh"
#include "cuda/launch.h"
#include "ops/select/block.h"

namespace fovea::cuda {

// Keys and rows of a sequence whose positions fit 32 bits with room to spare.
constexpr int64_t kSelectMost = int64_t{1} << 30;

// List rows [n0, n0 + rows) of batches [b0, b0 + batches).
struct SelectChunk {
  int64_t b0, batches, n0, rows;
};

struct SelectProduct {
  SelectBlock a;
  Operand row, column[2];  // column[1]: of box, column_low
  float* score;            // (batches, rows, lines, pitch): list heads, or query heads
  float2* stat;            // (splits, batches, rows, h): what rows are normalised by
  int64_t lines, row_bytes;
  int pitch, splits, tiles;     // tiles: of 64 columns, of a split
  int depth;                    // columns of a summary, in steps of 16
  int sides, row_parts, parts;  // 16-bit parts of a row and of a column
  bool statistics, reduced;     // reduced: lines are list heads
};

// A list row as ListRow has it.  Entries are key blocks; columns are those of the u axis.
struct RowSpan {
  int64_t key_b, first_column;
  int sequence, columns, blocks;
  int seen;         // columns [0, seen) are eligible by position
  int seen_blocks;  // key blocks that positions let the row see
  int own_begin, own_end;
};

__device__ __forceinline__ int whole_parts(int x, int64_t y) {
  return static_cast<int>(static_cast<uint32_t>(x) / static_cast<uint32_t>(y));
}
__device__ __forceinline__ int parts_up(int x, int64_t y) {
  return static_cast<int>((static_cast<uint32_t>(x) + static_cast<uint32_t>(y) - 1) /
                          static_cast<uint32_t>(y));
}

// Four scores, of which `seen` are there: others may not be written.
__device__ __forceinline__ float4 load_seen(const float* score, int seen) {
  float4 v = {0, 0, 0, 0};
  if (seen >= 4) return *reinterpret_cast<const float4*>(score);
  if (seen > 0) v.x = score[0];
  if (seen > 1) v.y = score[1];
  if (seen > 2) v.z = score[2];
  return v;
}

// False: there is no such row.
__device__ __forceinline__ bool find_row(const SelectBlock& a, int64_t batch, int64_t row,
                                         RowSpan& at) {
  int64_t sequence = batch;
  if (a.sequences.query_start) {
    int64_t low = 0, high = a.sequences.count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (a.first_row(middle) <= row)
        low = middle + 1;
      else
        high = middle;
    }
    if (low < 1) return false;
    sequence = low - 1;
  }
  const Sequence seq = a.sequences[sequence];
  const int before = static_cast<int>(row - a.first_row(sequence));
  const int rows = static_cast<int>(seq.rows), keys = static_cast<int>(seq.keys);
  if (before >= parts_up(rows, a.block_rows)) return false;
  at.sequence = static_cast<int>(sequence), at.key_b = seq.key_b;
  at.first_column = a.first_column(sequence);
  const int64_t room = a.u - at.first_column > 0 ? a.u - at.first_column : 0;
  const int span = static_cast<int>(a.span < INT32_MAX ? a.span : INT32_MAX);
  const int all = parts_up(keys, a.block_keys);
  int columns = a.remap_step ? keys >= span ? whole_parts(keys - span, a.step) + 1 : 0 : all;
  if (columns > room) columns = static_cast<int>(room);
  at.columns = columns;
  at.blocks = a.remap_step ? static_cast<int>(all < a.y ? all : a.y) : columns;
  const int begin = before * static_cast<int>(a.block_rows), shift = keys - rows;
  const int left = rows - begin;
  const int count = left < a.block_rows ? left : static_cast<int>(a.block_rows);
  const int first_at = begin + shift, last_at = first_at + count - 1;
  at.own_begin = at.own_end = 0;
  int past = 0;  // key blocks that begin at or before last_at
  if (last_at >= 0) {
    past = whole_parts(last_at, a.block_keys) + 1;
    at.own_begin = first_at > 0 ? whole_parts(first_at, a.block_keys) : 0;
    at.own_end = past < at.blocks ? past : at.blocks;
  }
  at.seen = columns, at.seen_blocks = at.blocks;
  if (!a.causal) return true;
  int seen = last_at < 0 ? 0 : whole_parts(last_at, a.step) + 1;
  if (a.complete && keys - 1 > first_at) {
    const int whole = first_at + 1 >= span ? whole_parts(first_at + 1 - span, a.step) + 1 : 0;
    if (whole < seen) seen = whole;
  }
  if (seen < columns) at.seen = seen;
  if (!a.remap_step)
    at.seen_blocks = at.seen;
  else if (past < at.blocks)
    at.seen_blocks = past;
  return true;
}

// Which instance runs, and in what chunks.
struct ProductPlan {
  SelectProduct x;
  Slot<float> score;
  Slot<float2> stat;
  int64_t batches, rows, shared_bytes;
  int64_t heads;  // query heads of a column head
  int dtype, fragments;
  bool ring, held;

  int64_t tile_rows() const { return fragments == 1 ? 16 : 64; }
  int64_t row_tiles(int64_t list_rows) const { return ceil_div(list_rows * heads, tile_rows()); }
};

// "" or what no list takes whose row is found in 32 bits.
Text block_lists_refuse(const SelectBlock& a);

// "" or what no kernel on tensor cores takes.
Text block_refuses_sm80(const Context& ctx, const SelectBlock& a);

// Products of the chunk in f16.
void run_products_f16(Context& ctx, const ProductPlan& plan, const SelectProduct& x,
                      const SelectChunk& chunk);

// Key blocks that a list goes over.  Of key_max keys there are no more; all scores that are asked
// for are written, of others too.
inline int64_t list_blocks(const SelectBlock& a) {
  const int64_t there = ceil_div(a.sequences.key_max, a.block_keys);
  return a.score_out || a.y < there ? a.y : there;
}

// Lists of the chunk from its scores; of more key blocks than a warp has.
void run_lists(Context& ctx, const SelectProduct& x, const SelectChunk& chunk);
void run_wide_lists(Context& ctx, const SelectProduct& x, const SelectChunk& chunk);

// Lists of one head's scores that are neither scaled, masked nor normalised yet.
bool raw_lists(const SelectBlock& a);
void run_raw_lists(Context& ctx, const SelectProduct& x, const SelectChunk& chunk);

// Lists that a count alone cuts, with forced blocks within it and nothing else asked for.
bool counted_lists(const SelectProduct& x);
void run_counted_lists(Context& ctx, const SelectProduct& x, const SelectChunk& chunk);

// Key blocks that a list row may have in run_lists().
constexpr int64_t kListBlocksMost = 32768;

}  // namespace fovea::cuda
