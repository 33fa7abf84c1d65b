// SPDX-License-Identifier: Apache-2.0
// Between the forward launcher and its tuned instances (forward.inc), which are compiled apart.
#pragma once
#include "cuda/block/schedule.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/tensor_map.h"
#include "ops/conv_attention/kernels.h"

namespace fovea::cuda {

// whole: a warpgroup has 64 rows of a head.  packed: a warp has 16 rows of a head of its own, so
// that the few rows of a group's heads read their keys once.
enum class ConvKind { whole, packed };
inline const char* name_of(ConvKind kind) {
  return kind == ConvKind::whole ? "whole" : "packed";
}

// Keys of the tile behind a split's last one that are read: outputs of the last reach there.
constexpr int kHaloKeys = 16;

// Row tiles of two heights, in four parts.  Tiles of parts 2 and 3 are low: they have rows for one
// warpgroup less than a block has.  Without work items in parts 0 and 1 the row tiles are those of
// the order.  Of each part:
//   begin  its first work item
//   heads  how many heads it has, from `head` on
//   row    the first row of its tiles
struct TileParts {
  int32_t begin[4], heads[4], head[4], row[4];
};

// What a Hopper kernel needs beside the call.
struct ConvWork90 {
  int32_t heads;  // work items of a sequence that have the same rows: heads, or packs of heads
  int32_t packs;  // of a key head; packed only
  int32_t group;  // query heads of a key head
  TileOrder order;
  TileParts tiles;
  DynamicSchedule schedule;
  AttendMaps maps;
  CUtensorMap halo;  // k in boxes of kHaloKeys
  Partials parts;    // read when the order has splits
  int32_t* arrived;  // splits done of each head, 0 before and after; nullptr: merged elsewhere
};

// A row of forward.inc.
struct ConvConfig90 {
  int dtype, d, e;
  ConvKind kind;
  int pairs;   // of tap rows
  int ahead;   // blocks of 8 keys that a window touches
  int groups;  // consumer warpgroups, each of 64 rows
  int stages;  // of K and V tiles
  int blocks;  // of a multiprocessor
};

struct ConvInstance90 : ConvConfig90 {
  int keys;  // of a tile
  void (*launch)(Context&, const ConvAttend&, const ConvWork90&);
  // Taps at most.
  int rows() const { return 2 * pairs; }
  int columns() const { return 8 * ahead - 7; }
  // Rows of a slot (whole: of a warpgroup, packed: of a warp) and slots of a block.
  int64_t slot() const { return kind == ConvKind::whole ? 64 : 16; }
  int64_t slots() const { return groups * 64 / slot(); }
};

// Explicitly instantiated, one file for each dtype and width.
template <ConvConfig90 C>
ConvInstance90 conv_sm90_instance();

}  // namespace fovea::cuda
