// SPDX-License-Identifier: Apache-2.0
// The forward launchers and their instances (forward.inc), which are compiled apart.
#pragma once
#include "core/text.h"
#include "cuda/block/schedule.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/tile_lists.cuh"
#include "cuda/loop/tile_unions.cuh"
#include "cuda/tensor_map.h"
#include "ops/sparse/column_lists.cuh"

namespace fovea::cuda {

// What every Hopper kernel asks beside the call and its lists.
struct SweepWork90 {
  AttendGrid grid;
  TileOrder order;
  DynamicSchedule schedule;
  AttendMaps maps;
  CUtensorMap o;  // with o_given, boxes of 64 rows
  bool o_given;
};

// A choice of row tiles: the packed rows of `heads` heads that one has, of a tile of `rows` rows.
struct SparseRows90 {
  int64_t heads, rows, step;
  int64_t lists = 1;  // list rows of a union
};
// q, k, v as boxes of a row tile and of a key tile of `keys` keys, o of a warpgroup's rows.
Text map_operands(const Attend& a, const SparseRows90& rows, int64_t box, int keys,
                  SweepWork90& work);
// False: there are too many work items.
bool order_of(const DeviceInfo& device, const Attend& a, const SparseRows90& rows, int64_t splits,
              SweepWork90& work);

// A Hopper kernel's arguments over tiles of lists.
struct SparseWork90 : SweepWork90 {
  TileLists lists;
  TileUnions unions;  // instead of lists, where they have rows
  bool blocks;        // a key tile is blocks that lie apart
  Partials parts;     // of splits, which blocks alone have
  int32_t* arrived;   // MergingEpilogue's
  float drop;         // without lists: SkippingAttend's
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
  void (*few)(Context&, const SparseAttend&, const SparseWork90&);  // rows that read their lists
};

// The same over blocks at any key and single keys.
struct ColumnWork90 : SweepWork90 {
  ColumnLists lists;
};

struct ColumnInstance90 {
  int32_t dtype, d, e;
  int32_t rows, keys;  // of a row tile, of a key tile
  void (*launch)(Context&, const Attend&, const ColumnWork90&);
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
template <SparseConfig90 C>
ColumnInstance90 columns_sm90_instance();
template <SparseConfig80 C>
SparseInstance80 sparse_sm80_instance();
template <SparseConfig80 C>
SparseInstance80 sparse_sm89_instance();

// In f32 FMA: tiles of 16 R rows, o of at most 64 Chunks columns.
template <int R, int Chunks>
void sparse_simt(Context& ctx, const SparseAttend& call, const ListGrid& grid,
                 const Partials& parts);

}  // namespace fovea::cuda
