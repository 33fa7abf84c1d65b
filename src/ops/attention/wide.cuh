// SPDX-License-Identifier: Apache-2.0
// Instances of attention_forward for wide heads (wide.inc), which are compiled apart.
#pragma once
#include "cuda/loop/wide_codes_sm90.cuh"
#include "ops/attention/forward.cuh"

namespace fovea::cuda {

struct WideWork90 {
  AttendGrid grid;
  TileOrder order;
  DynamicSchedule schedule;
  WideMaps maps;
  CodeColumns columns;  // of codes
  Partials parts;
};

// A row of wide.inc.
struct WideConfig90 {
  int dtype, d;
  bool v_in_k, span, codes;
};

struct WideInstance90 {
  WideConfig90 config;
  void (*launch)(Context&, const Attend&, const WideWork90&);
};

// Explicitly instantiated, one file for each dtype and width.
template <WideConfig90 C>
WideInstance90 wide_sm90_instance();

}  // namespace fovea::cuda
