// SPDX-License-Identifier: Apache-2.0
// How many key blocks and distances a head has, from how many keys and distances hold its share,
// and whether it is block-sparse: one text for host and device.
#pragma once
#include "core/attend.h"
#include "core/plan.h"

namespace fovea {

struct FlexBudget {
  Sequences sequences;
  View<2> distance;         // (b, h) f32: of the guess from the probe
  View<2> keys, distances;  // (b, h) i32: that hold the share
  View<2> vertical, slash;  // (b, h) i32: blocks of them
  View<2> mask;             // (b, h) u8: 255 where the head is block-sparse, else 0
  int64_t b, h, block;
  int32_t least, most;  // blocks
  int64_t dense_keys;   // a sequence of at most so many is dense
  float threshold;

  FOVEA_HD int32_t blocks(int32_t count) const {
    const auto n = static_cast<int32_t>(count / block + 1);
    return n < least ? least : n > most ? most : n;
  }
  FOVEA_HD void run(int64_t batch, int64_t head) const {
    const bool dense = sequences[batch].keys <= dense_keys;
    const bool sparse = !dense && *distance.at(batch, head) < threshold;
    const auto wanted = [&](const View<2>& count) {
      return dense ? INT32_MAX : sparse ? least : blocks(*count.at<int32_t>(batch, head));
    };
    *vertical.at<int32_t>(batch, head) = wanted(keys);
    *slash.at<int32_t>(batch, head) = wanted(distances);
    *mask.at<uint8_t>(batch, head) = sparse ? 255 : 0;
  }
};

extern const Kernel<FlexBudget> flex_budget_host;

// CUDA builds only.
extern const Kernel<FlexBudget> flex_budget_simt;

}  // namespace fovea
