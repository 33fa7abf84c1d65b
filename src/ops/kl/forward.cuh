// SPDX-License-Identifier: Apache-2.0
// Between the launcher of kl_forward and its tuned instances (forward.inc), which are compiled
// apart.
#pragma once
#include "cuda/block/schedule.cuh"
#include "cuda/loop/feed_sm90.cuh"
#include "cuda/loop/row_tile.cuh"
#include "ops/kl/sides.cuh"

namespace fovea::cuda {

struct KlWork90 {
  AttendGrid grid;
  TileOrder order;
  DynamicSchedule schedule;
  DualMaps maps;
  View<3> kl, first, second;  // where kl and both lse go, each where given
  // With share > 0 the lse are there, and the divergences from the mixture are wanted.
  float share;
  View<3> js, kl_second;
  const char* op;
};

struct KlInstance90 {
  int32_t dtype, d, e;
  int32_t rows, keys;  // of a row tile, of a key tile
  void (*launch)(Context&, const Attend& first, float second_scale, const KlWork90&);
};

// A row of forward.inc.
struct KlConfig90 {
  int dtype, d, e;
  int groups;  // consumer warpgroups, each of 64 rows
  int keys;    // of a tile
  int stages;
};

// Explicitly instantiated, one file for each dtype and width.
template <KlConfig90 C>
KlInstance90 kl_sm90_instance();

}  // namespace fovea::cuda
