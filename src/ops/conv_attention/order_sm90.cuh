// SPDX-License-Identifier: Apache-2.0
// The order in which the Hopper sweeps of conv_attention take their work items.
#pragma once
#include <algorithm>

#include "core/attend.h"
#include "cuda/block/schedule.cuh"
#include "cuda/device.h"

namespace fovea::cuda {

// `heads` work items have the same row tiles, `shared` of them the same columns of `bytes`.
// Sections are even and as large as the cache allows: a section of a few heads would end in long
// work items that nothing is left to fill.  Of causal row tiles the shorter half of all sections
// comes last.
inline TileOrder conv_order(const DeviceInfo& device, int64_t row_tiles, int64_t heads,
                            int64_t splits, int64_t shared, int64_t bytes, bool causal,
                            bool reversed) {
  const int64_t most = clamp_i64(device.l2_bytes / (bytes + 1), 1, 64) * shared;
  const int64_t sections = std::max<int64_t>(ceil_div(heads, most), 1);
  return {static_cast<int32_t>(row_tiles),
          static_cast<int32_t>(heads),
          static_cast<int32_t>(splits),
          static_cast<int32_t>(std::max<int64_t>(ceil_div(heads, sections), 1)),
          static_cast<int32_t>(causal ? row_tiles / 2 : 0),
          reversed};
}

}  // namespace fovea::cuda
