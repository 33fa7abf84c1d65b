// SPDX-License-Identifier: Apache-2.0
// The launcher of the rows' attention and its tuned instances (rows.inc), which are compiled apart.
#pragma once
#include "cuda/block/schedule.cuh"
#include "cuda/loop/row_tile.cuh"
#include "ops/trace/stages.cuh"

namespace fovea::cuda {

enum class RowsKind { listed, dense };

struct RowsWork90 {
  BlockList list;  // of RowsKind::listed
  AttendGrid grid;
  TileOrder order;
  DynamicSchedule schedule;
  AttendMaps maps;
  TraceRow* row;
};

struct RowsInstance90 {
  int32_t dtype, d, e;
  RowsKind kind;
  int32_t rows, keys;  // of a row tile, of a key tile
  void (*launch)(Context&, const Attend&, const RowsWork90&);
};

// A row of rows.inc.
struct RowsConfig90 {
  int dtype, d, e;
  RowsKind kind;
  int groups;  // consumer warpgroups, each of 64 rows
  int keys;    // of a tile
  int stages;
};

// Explicitly instantiated, one file for each dtype and width.
template <RowsConfig90 C>
RowsInstance90 rows_sm90_instance();

// In f32 FMA: o of at most 64 Chunks columns.  Dense: lse_dense instead.
template <int Chunks, bool Dense>
void rows_simt(Context& ctx, const TraceCall& call);

}  // namespace fovea::cuda
