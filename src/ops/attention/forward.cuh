// SPDX-License-Identifier: Apache-2.0
// Between the forward launcher and its tuned instances (forward.inc), which are compiled apart.
#pragma once
#include "cuda/loop/row_tile.cuh"
#include "cuda/tensor_map.h"
#include "ops/attention/combine.cuh"

namespace fovea::cuda {

enum class ForwardKind { whole, paged, split, rich };
inline const char* name_of(ForwardKind kind) {
  static constexpr const char* names[] = {"whole", "paged", "split", "rich"};
  return names[static_cast<int>(kind)];
}

// What a kernel needs beside the call; `parts` is read when the grid has splits.
struct ForwardWork {
  AttendGrid grid;
  int64_t blocks;
  Partials parts;
};

struct ForwardInstance {
  int32_t dtype, d, e;
  ForwardKind kind;
  int32_t rows;    // of a block
  int32_t blocks;  // a multiprocessor should hold
  int32_t shared_bytes;
  void (*launch)(Context&, const Attend&, const ForwardWork&);
};

struct ForwardInstance90 {
  int32_t dtype, d, e;
  int32_t rows, keys;  // of a block, of a tile
  int32_t shared_bytes;
  void (*launch)(Context&, const Attend&, const AttendGrid&, const AttendMaps&, int64_t section);
};

// Explicitly instantiated, one file for each dtype and width.
template <int Dtype, int D, int E, int Groups, int BN, int Stages>
ForwardInstance90 forward_sm90_instance();
template <int Dtype, int D, int E, ForwardKind Kind, int BM, int Warps, int Stages, int Blocks>
ForwardInstance forward_sm80_instance();

}  // namespace fovea::cuda
