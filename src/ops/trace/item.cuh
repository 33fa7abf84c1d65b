// SPDX-License-Identifier: Apache-2.0
// Between the launchers of the stages that take an item a block and their tuned instances
// (select.inc, weigh.inc), which are compiled apart.
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

struct SelectInstance90 {
  int32_t dtype, d, most, block_rows;  // most: branches it has room for; block_rows: at most
  void (*launch)(Context&, const ItemWork90&);
};
struct WeighInstance90 {
  int32_t dtype, d, block_rows;
  void (*launch)(Context&, const ItemWork90&);
};

// Explicitly instantiated, one file for each dtype and width.
template <int Dtype, int D, int Most, int Stages, int Blocks, bool Held>
SelectInstance90 select_sm90_instance();
template <int Dtype, int D, int Stages, int Blocks, bool Held>
WeighInstance90 weigh_sm90_instance();

}  // namespace fovea::cuda
