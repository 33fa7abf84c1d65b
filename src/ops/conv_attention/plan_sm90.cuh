// SPDX-License-Identifier: Apache-2.0
// What the launchers of conv_attention's Hopper kernels share: the order of work items.
#pragma once
#include <algorithm>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/block/schedule.cuh"
#include "cuda/launch.h"
#include "cuda/loop/hopper.h"
#include "cuda/loop/row_tile.cuh"
#include "cuda/tensor_map.h"
#include "ops/conv_attention/kernels.h"

namespace fovea::cuda {

// Where no instance has the dtype, the widths and the taps.
inline Text no_taps(const ConvAttend& c) {
  const Attend& a = c.attend;
  return no_instance(a.dtype, "d", a.d, "e", a.e) +
         ", kernel_rows = " + Text::number(c.kernel_rows) +
         ", kernel_columns = " + Text::number(c.kernel_columns);
}

// `heads` work items have the same row tiles, `shared` of them the same columns of `bytes`.
// Sections are even and as large as the cache allows: one of a few heads would end in long work
// items beside idle multiprocessors.  Of causal row tiles the shorter half of all sections comes
// last.
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
