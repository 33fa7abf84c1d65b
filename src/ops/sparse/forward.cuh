// SPDX-License-Identifier: Apache-2.0
// The forward launchers and their instances (forward.inc), which are compiled apart.
#pragma once
#include "cuda/block/schedule.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/tile_lists.cuh"
#include "cuda/loop/tile_unions.cuh"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

// A Hopper kernel's arguments beside the call.
struct SparseWork90 {
  TileLists lists;
  TileUnions unions;  // instead of lists, where they have rows
  AttendGrid grid;
  TileOrder order;
  DynamicSchedule schedule;
  AttendMaps maps;
  CUtensorMap o;  // with o_given, boxes of 64 rows
  bool o_given;
  bool blocks;       // a key tile is blocks that lie apart
  Partials parts;    // of splits, which blocks alone have
  int32_t* arrived;  // MergingEpilogue's
  float drop;        // without lists: SkippingAttend's
  int64_t* skipped;
};

struct GatheredWork90;

struct SparseInstance90 {
  int32_t dtype, d, e;
  int32_t rows, keys;  // of a row tile, of a key tile
  bool blocks;         // key tiles may be blocks that lie apart
  void (*launch)(Context&, const Attend&, const SparseWork90&);
  void (*gather)(Context&, const Attend&,
                 const GatheredWork90&);  // nullptr: rows follow each other
};

// A kernel of gathered keys' arguments beside the call.
struct SparseWork80 {
  Partials parts;
  int32_t splits;
  int32_t* arrived;  // MergingEpilogue's
};

struct ListGrid;

struct SparseInstance80 {
  int32_t dtype, d, e;
  int32_t blocks;  // that a multiprocessor should hold
  void (*launch)(Context&, const SparseAttend&, const ListGrid&, const SparseWork80&);
};

// Rows of forward.inc.
struct SparseConfig80 {
  int dtype, d, e;
};
struct SparseConfig90 {
  int dtype, d, e;
  int groups;  // consumer warpgroups, each of 64 rows
  int keys;    // of a tile
  int stages;  // of K and V tiles
};

// Explicitly instantiated, one file for each dtype and width.
template <SparseConfig90 C>
SparseInstance90 sparse_sm90_instance();
template <SparseConfig90 C>
SparseInstance90 sparse_skip_sm90_instance();
template <SparseConfig80 C>
SparseInstance80 sparse_sm80_instance();
template <SparseConfig80 C>
SparseInstance80 sparse_sm89_instance();

// In f32 FMA: tiles of 16 R rows, o of at most 64 Chunks columns.
template <int R, int Chunks>
void sparse_simt(Context& ctx, const SparseAttend& call, const ListGrid& grid,
                 const Partials& parts);

}  // namespace fovea::cuda
