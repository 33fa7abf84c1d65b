// SPDX-License-Identifier: Apache-2.0
// Between the launchers of x_quant_backward and its kernels (backward.inc), which are compiled
// apart; and the first pass, over rows.
#pragma once
#include "core/text.h"
#include "core/workspace.h"
#include "cuda/loop/backward_tiles.cuh"
#include "cuda/loop/gradient_tile.cuh"
#include "cuda/loop/source.cuh"
#include "cuda/tensor_map.h"
#include "ops/quantised/kernels.h"

namespace fovea::cuda {

inline constexpr char kQuantBackward[] = "x_quant_backward";

// What the kernels read of a tile of rows beside its operands.
struct QuantRows {
  float lse[kTileTokens];    // (lse - constant) log2(e); +inf of a row that is absent or empty
  float delta[kTileTokens];  // <dout, o>; 0 of those
  float q_scale;
  TileScale dout;  // of the tile's rows of dout
  float unused;
  FOVEA_HD float2 row(int i) const { return {lse[i], delta[i]}; }
};
static_assert(sizeof(QuantRows) % 16 == 0, "TMA copies it");

// A call, and what the first pass makes of its rows.
struct QuantGradient {
  QuantBackward b;
  RowTiles tiles;
  QuantRows* rows;     // of each tile
  int8_t* dout_codes;  // (tile, e, 64): codes of dout, rows in v_perm16's order; or nullptr
  DqOrder* dq_order;   // of each tile, or nullptr: the first pass clears them

  FOVEA_HD const Attend& forward() const { return b.call.forward; }
  // The number of a sequence's first tile, as tiles.first(): here the division is a shift.
  FOVEA_HD int64_t first_tile(const Sequence& q, int64_t r) const {
    return tiles.each ? r * tiles.each : q.row_begin / kTileTokens + r;
  }
  // The number of tile m of a sequence's rows.
  FOVEA_HD int64_t tile(const Sequence& q, int64_t r, int64_t head, int64_t m) const {
    return head * tiles.total + first_tile(q, r) + m;
  }
};

struct QuantGradientSlots {
  RowTiles tiles;
  Slot<QuantRows> rows;
  Slot<int8_t> dout_codes;
  // panels: of 64 columns of dq, where it is summed in the workspace.
  QuantGradientSlots(Layout& layout, const QuantBackward& b, bool codes, int panels = 0);
  QuantGradient at(void* base, const QuantBackward& b, DqOrder* dq_order = nullptr) const;
};

// Zeros for rows and keys that no tile visits, then what tiles of rows have.
void quant_backward_rows(Context& ctx, const QuantGradient& x);

// In f32 FMA: the operands whose elements are no codes are read as matrices.
struct QuantSimt {
  QuantGradient x;
  Operand v, dout;
};

// In a file for each owner and width: sums of at most 64 Chunks columns.
template <Owner owner, int Chunks>
void quant_backward_simt(Context& ctx, const QuantSimt& call);

// A row of backward.inc for mma.sync.
struct QuantGradient80 {
  int dtype, d, e;
  Owner owner;  // dq: rows own; dk: keys own dk and dv
  int blocks;   // a multiprocessor should hold
};

struct QuantGradientInstance {
  int32_t dtype, d, e;
  Owner owner;
  int32_t shared_bytes;
  void (*launch)(Context&, const QuantGradient&);
};

// Explicitly instantiated, one file for each dtype and width.
template <QuantGradient80 C>
QuantGradientInstance quant_backward_sm80_instance();

// A row of backward.inc for Hopper: one kernel for every sum.
struct QuantGradient90 {
  int dtype, d, e;
};

// Of q, k and dout by row and by column: q_columns, k_columns and dout_codes.
struct QuantMaps90 {
  CUtensorMap q, q_columns, k, k_columns, v, dout, dout_columns;
};

struct QuantGradientInstance90 {
  int32_t dtype, d, e;
  int32_t keys, panels;  // keys of a block; `panels` of 64 columns of d
  void (*launch)(Context&, const QuantGradient&, const QuantMaps90&, const BackwardWork&,
                 const BackwardGrid90&);
};

template <QuantGradient90 C>
QuantGradientInstance90 quant_backward_sm90_instance();

}  // namespace fovea::cuda
