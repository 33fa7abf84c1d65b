// SPDX-License-Identifier: Apache-2.0
// Between the forward launcher and its tuned instances (forward.inc), which are compiled apart.
#pragma once
#include "cuda/block/schedule.cuh"
#include "cuda/loop/row_tile.cuh"
#include "ops/quant/kernels.h"

namespace fovea::cuda {

struct QuantWork {
  AttendGrid grid;
  TileOrder order;
  DynamicSchedule schedule;
};

struct CodeMaps;  // loop/feed_sm90.cuh

// What an instance's tiles are.
struct ByteTiles90 {
  int32_t width, rows, keys;  // rows of a block, keys of a box
  int32_t q_panel, v_panel;   // columns of a box of q and k, of v_t or v
};
struct QuantInstance90 : ByteTiles90 {
  void (*launch)(Context&, const QuantAttend&, const QuantWork&, const CodeMaps&);
};

// A row of forward.inc.
struct QuantConfig90 {
  int dtype, d;
  int groups;  // consumer warpgroups, each of 64 rows
  int keys;    // of a tile
  int stages;
  int run;  // tiles summed in the tensor core
};

// Explicitly instantiated, one file for each width.  delta: i8 with delta, paged: over pages of
// multiples of 64 tokens, runs: of 16.
template <QuantConfig90 C>
QuantInstance90 quant_sm90_instance();
template <QuantConfig90 C>
QuantInstance90 quant_delta_sm90_instance();
template <QuantConfig90 C>
QuantInstance90 quant_paged_sm90_instance();
template <QuantConfig90 C>
QuantInstance90 quant_runs_sm90_instance();

// Writes the codes of q and k, of i4, as i8: rows of all columns side by side.
void quant_unpack(Context& ctx, const QuantAttend& a, int8_t* q, int8_t* k);

// A row of forward_integer.inc, for Hopper: a tile is a run of 64 keys.
struct IntegerConfig90 {
  int dtype, d;
  int groups;  // consumer warpgroups, each of 64 rows
  int stages;
};

template <IntegerConfig90 C>
QuantInstance90 quant_integer_sm90_instance();

// A row of forward_half.inc; dtype: of v.
struct HalfConfig90 {
  int dtype, d;
  int groups;  // consumer warpgroups, each of 64 rows
  int keys;    // of a tile
  int stages;
};

template <HalfConfig90 C>
QuantInstance90 quant_half_sm90_instance();

// A row of forward_integer.inc, for mma.sync.
struct QuantConfig80 {
  int dtype, d;
  int blocks;  // a multiprocessor should hold
};

struct QuantInstance80 {
  int32_t width, rows;  // of a block
  int32_t shared_bytes;
  void (*launch)(Context&, const QuantAttend&);
};

// Explicitly instantiated, one file for each width.
template <QuantConfig80 C>
QuantInstance80 quant_sm80_instance();

// In f32 FMA: o of at most 64 Chunks columns.
template <int Chunks>
void quant_simt(Context& ctx, const QuantAttend& a);

}  // namespace fovea::cuda
