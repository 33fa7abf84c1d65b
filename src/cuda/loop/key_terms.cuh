// SPDX-License-Identifier: Apache-2.0
// dk and dv where several blocks share a key block: each block takes some of the group's query
// heads and stores f32 terms, which are summed in the order of the blocks.
#pragma once
#include "core/attend.h"
#include "core/context.h"
#include "cuda/device.h"

namespace fovea::cuda {

// How many blocks should share a key block: a divisor of the group's heads.  `rows` and `keys` of a
// tile; fused: the block adds to dq, in order.
int64_t key_shares(const Attend& a, int64_t rows, int64_t keys, bool fused,
                   const DeviceInfo& device);

// out (caches, t, heads, width) = the sums of terms (caches, t, a.g, width) over a.g / heads
// neighbours, in the dtype of out.  width: a multiple of 4.  Rows that belong to no sequence stay
// as they are.
void sum_key_terms(Context& ctx, const char* op, const Attend& a, const GradientView& out,
                   const float* terms, int64_t heads, int64_t width);

}  // namespace fovea::cuda
