// SPDX-License-Identifier: Apache-2.0
// What the quantising kernels share: passes over x, what they leave for one another, and the scales
// of a unit's parts.
#pragma once
#include "ops/quant/quantize.h"

namespace fovea::cuda {

// What a pass over x leaves: sums of units, from which means are made; magnitudes; scales and
// codes.
enum class Pass { sums, maxima, codes };

// Of units, or folded over those of a sequence.
struct Partials {
  float* halves;   // (units, h, 2): magnitudes, then factors, of 64 tokens
  float* columns;  // (units, h, d): sums or magnitudes of columns
  float* factors;  // (sequences, h, d)
};

struct PartialSlots {
  Slot<float> halves, columns, factors;
  PartialSlots(const Quantize& a, Plan& plan) {
    const int64_t items = unit_count(a) * a.h;
    const bool columns_too = a.smooth == FOVEA_SMOOTH_SEQUENCE || a.channel();
    halves = plan.workspace.add<float>(a.wide() ? items : 0, 2);
    columns = plan.workspace.add<float>(columns_too ? items : 0, a.d);
    factors = plan.workspace.add<float>(a.channel() ? a.sequences * a.h : 0, a.d);
  }
  Partials at(void* base) const { return {halves.at(base), columns.at(base), factors.at(base)}; }
};

// Sums of units to means, magnitudes of units to scales and factors of channels, or magnitudes of
// halves to scales and, in their place, factors of blocks.
enum class Fold { means, scales, blocks };
void launch_fold(Context& ctx, const Quantize& a, const Partials& partials, Fold what);
// delta of means that are written; none without it.
void launch_delta(Context& ctx, const Quantize& a);

constexpr int kTileColumns = 8;  // of a thread of a tile: rows are aligned to them
// The passes of a call whose rows are aligned; rows of quantize.inc, each compiled apart.
template <int Dtype, int D>
void quantize_tile(Context& ctx, const Quantize& a, const Partials& partials);

// Of the parts' magnitudes their scales, written, and their factors, in s_part.
__device__ inline void scale_parts(const Quantize& a, const CodeUnit& unit, int64_t head,
                                   uint32_t* s_part) {
  const int parts = part_count(a), at = static_cast<int>(threadIdx.x);
  for (int part = at; part < parts; part += blockDim.x) {
    const CodeScale scale(float_of(s_part[part]), a.most);
    put_part(a, unit, head, part, scale.scale);
    s_part[part] = bits_of(scale.factor);
  }
  clear_rest(a, unit, head, at, static_cast<int>(blockDim.x));
  __syncthreads();
}

}  // namespace fovea::cuda
