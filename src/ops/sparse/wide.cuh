// SPDX-License-Identifier: Apache-2.0
// Instances of x_sparse_forward for single keys of wide heads (wide.inc), which are compiled apart.
#pragma once
#include "cuda/block/schedule.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/wide_codes_sm90.cuh"
#include "cuda/loop/wide_list_sm90.cuh"

namespace fovea::cuda {

struct WideListWork90 {
  AttendGrid grid;
  TileOrder order;
  DynamicSchedule schedule;
  CodeColumns columns;  // of codes
  Partials parts;
};

// A row of wide.inc.
struct WideListConfig90 {
  int dtype, d;
  bool v_in_k, joined, softcap, codes;
};

struct WideListInstance90 {
  WideListConfig90 config;
  void (*launch)(Context&, const KeyListAttend&, const WideListWork90&);
};

// Explicitly instantiated, one file for each dtype and width.
template <WideListConfig90 C>
WideListInstance90 wide_list_sm90_instance();

}  // namespace fovea::cuda
