// SPDX-License-Identifier: Apache-2.0
// The gradient over lists in f32 FMA, compiled apart (backward.inc).
#pragma once
#include "cuda/loop/backward_rows.cuh"
#include "cuda/loop/list_tile.cuh"
#include "cuda/loop/list_transpose.cuh"

namespace fovea::cuda {

// attention's formula, over the pairs that lists name.
struct ListBackward : BackwardSimt {
  SparseAttend s;
};

// How the kernels of keys find the rows that name them: entries by key block (list_transpose.cuh).
struct ListsByKey {
  BlockLists lists;
  ListTranspose order;
  const uint64_t* entries;
};

// Sums of at most 64 Chunks columns.
template <Owner owner, int Chunks>
void list_gradient(Context& ctx, const ListBackward& b, const ListsByKey& lists);

}  // namespace fovea::cuda
