// SPDX-License-Identifier: Apache-2.0
// Between the backward launcher and its tuned instances (backward.inc), which are compiled apart.
#pragma once
#include "core/attend.h"
#include "core/context.h"
#include "cuda/loop/backward_tiles.cuh"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

// Which sums a block keeps: dk and dv, one of them where both do not fit in registers, or dq.
enum class Own { keys, keys_dk, keys_dv, rows };
enum class BackwardKind { plain, rich };

struct BackwardInstance {
  int32_t dtype, d, e;
  Own owner;
  BackwardKind kind;
  int32_t own;  // rows or keys of a block
  int32_t shared_bytes;
  void (*launch)(Context&, const AttendBackward&, const float* delta);
};

// Explicitly instantiated, one file for each dtype and width.
template <int Dtype, int D, int E, Own Owner, BackwardKind Kind, int M, int N, int Warps,
          int Blocks>
BackwardInstance backward_sm80_instance();

// How the Hopper kernels share the sums: all in one, or dk and dv in one and dq in another.
enum class Sums90 { fused, split };

struct BackwardInstance90 {
  int32_t dtype, d, e;
  Sums90 sums;
  int32_t rows, keys, panels;  // of a tile; `panels` of 64 columns of d
  void (*launch)(Context&, const AttendBackward&, const BackwardMaps&, const BackwardWork&,
                 const BackwardGrid90&);
};

template <int Dtype, int D, int E, Sums90 Sums, int Tile, int Stages1, int Stages2>
BackwardInstance90 backward_sm90_instance();

}  // namespace fovea::cuda
