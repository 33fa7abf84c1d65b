// SPDX-License-Identifier: Apache-2.0
// Between the launchers of x_quant_backward and its kernels (backward.inc), which are compiled
// apart; and the first pass, over rows.
#pragma once
#include "core/text.h"
#include "core/workspace.h"
#include "cuda/loop/gradient_tile.cuh"
#include "cuda/loop/source.cuh"
#include "ops/quantised/kernels.h"

namespace fovea::cuda {

inline constexpr char kQuantBackward[] = "x_quant_backward";

// A call, and what the first pass makes of its rows.
struct QuantGradient {
  QuantBackward b;
  float2* stats;          // (b, h, s): (lse - constant) log2(e), and delta = <dout, o>
  TileScale* dout_scale;  // (b, h, blocks): of each 64 rows of dout
  int8_t* dout_codes;  // (b, h, blocks, e, 64): their codes, rows in v_perm16's order; or nullptr
  int64_t blocks;      // of a head

  FOVEA_HD const Attend& forward() const { return b.call.forward; }
  FOVEA_HD float2* row(const Sequence& q, int64_t head, int64_t i) const {
    return stats + row_stats_offset(forward(), q, head, i);
  }
  // The number of block m of a sequence's rows.
  FOVEA_HD int64_t block(const Sequence& q, int64_t r, int64_t head, int64_t m) const {
    const Attend& a = forward();
    return (q.batch * a.h + head) * blocks +
           first_entry(a.sequences.query_start, a.s, r, kTileTokens) + m;
  }
};

struct QuantGradientSlots {
  Slot<float2> stats;
  Slot<TileScale> dout_scale;
  Slot<int8_t> dout_codes;
  int64_t blocks;
  QuantGradientSlots(Layout& layout, const QuantBackward& b, bool codes);
  QuantGradient at(void* base, const QuantBackward& b) const;
};

// Zeros for rows and keys that no tile visits, then stats and dout's blocks.
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

}  // namespace fovea::cuda
