// SPDX-License-Identifier: Apache-2.0
// The launchers of stages with one item a block, and their tuned instances (select.inc, weigh.inc),
// which are compiled apart.
#pragma once
#include "ops/trace/stages.cuh"

namespace fovea::cuda {

struct ItemMaps {
  CUtensorMap q, k;
};

struct ItemWork90 {
  TraceCall call;
  ItemMaps maps;
  int row_tiles;  // of 64 rows, in a row block
  int shift;      // block_keys: 1 << shift
};

struct ItemInstance90 {
  int32_t dtype, d, keep, block_rows;  // all but dtype: at most
  void (*launch)(Context&, const ItemWork90&);
};

// A row of select.inc, of weigh.inc.
struct SelectConfig90 {
  int dtype, d;
  int branches;  // at most
  int stages;    // of 64 keys
  int blocks;    // a multiprocessor should hold
  bool held;     // registers hold q: row blocks of 64 at most
};
struct WeighConfig90 {
  int dtype, d;
  int stages, blocks;  // as above
  bool held;
};

// Explicitly instantiated, one file for each dtype and width.
template <SelectConfig90 C>
ItemInstance90 select_sm90_instance();
template <WeighConfig90 C>
ItemInstance90 weigh_sm90_instance();

}  // namespace fovea::cuda
