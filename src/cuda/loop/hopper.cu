// SPDX-License-Identifier: Apache-2.0
#include "cuda/loop/hopper.h"

#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/device.h"
#include "cuda/loop/row_tile.cuh"

namespace fovea::cuda {

Text hopper_refuses(const Context& ctx, const Sequences& sequences) {
  const int arch = device_info(ctx).arch;
  if (arch != 90) return reason_capability(arch, "9.0");
  if (sequences.key_max > kIndexMax || sequences.query_max > kIndexMax)
    return "more than 2^30 keys or rows in a sequence";
  return "";
}

Text hopper_refuses(const Context& ctx, int32_t dtype, const Sequences& sequences) {
  if (dtype != FOVEA_F16 && dtype != FOVEA_BF16) return reason_dtype(dtype);
  return hopper_refuses(ctx, sequences);
}

Text map_each(std::initializer_list<Copied> copied) {
  for (const Copied& x : copied) {
    if (const char* why = map_refuses(x.of); *why) return Text(x.name) + " has " + why;
    if (!make_map(x.of, x.map)) return kNoTensorMaps;
  }
  return "";
}

}  // namespace fovea::cuda
