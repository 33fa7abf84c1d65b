// SPDX-License-Identifier: Apache-2.0
// The forward launchers and their instances (forward.inc), which are compiled apart.
#pragma once
#include "core/sparse.h"
#include "cuda/loop/combine.cuh"

namespace fovea::cuda {

// mass as it is summed, (r, x, keys): in units of 2^-40, whose sum has no order; and a mark where a
// p was no number.
struct MassSums {
  unsigned long long* sum;
  int32_t* odd;
  int64_t keys;  // pitch
};

struct ListGrid;

// In f32 FMA: tiles of 16 R rows, o of at most 64 Chunks columns.
template <int R, int Chunks>
void sparse_simt(Context& ctx, const SparseAttend& call, const ListGrid& grid,
                 const Partials& parts);

}  // namespace fovea::cuda
