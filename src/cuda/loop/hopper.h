// SPDX-License-Identifier: Apache-2.0
// The checks of every launcher of Hopper kernels.
#pragma once
#include <initializer_list>

#include "core/attend.h"
#include "core/context.h"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

// "" where the device is a Hopper GPU and every row and key of a sequence has an index there, or
// why not.
Text hopper_refuses(const Context& ctx, const Sequences& sequences);
// As above, for operands of `dtype`.
Text hopper_refuses(const Context& ctx, int32_t dtype, const Sequences& sequences);
// As above, for a call whose heads and widths the sweeps take.
Text hopper_refuses(const Context& ctx, const Attend& a);

// v is the first columns of k.
bool v_in_k(const Attend& a);

// "" where a SpanMask holds what rows see, or why not.
Text spans_refuse(const Attend& a);

struct Copied {
  const char* name;  // of the tensor, in the header
  MapOf of;
  CUtensorMap& map;
};
// Makes the map of each: "" or why one cannot be made.
Text map_each(std::initializer_list<Copied> copied);
// The same for a forward sweep with tiles of `keys` keys.  Paged: rows of k are rows of a page.
Text map_sweep(const MapOf& q, const MapOf& k, const MapOf& v, int keys, AttendMaps& maps);

}  // namespace fovea::cuda
