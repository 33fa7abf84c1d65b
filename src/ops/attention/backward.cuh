// SPDX-License-Identifier: Apache-2.0
// The backward launcher and its tuned instances (backward.inc), which are compiled apart.
#pragma once
#include "core/attend.h"
#include "core/context.h"
#include "core/text.h"
#include "cuda/loop/backward_tiles.cuh"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

// The sums of a block: dk and dv, one of them where registers hold no more, or dq.
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

// A row of backward.inc.
struct BackwardConfig80 {
  int dtype, d, e;
  Own owner;
  BackwardKind kind;
  int m, n, warps;  // a block owns 16 m warps rows or keys; its inner loop has tiles of 8 n
  int blocks;       // a multiprocessor should hold
};

// Explicitly instantiated, one file for each dtype and width.
template <BackwardConfig80 C>
BackwardInstance backward_sm80_instance();

// Why no mma.sync kernel serves a call: dtypes, widths that are no multiples of 8 up to `widest`,
// rows, and extents.
Text backward_mma_refuses(const AttendBackward& call, int64_t widest);

// The Hopper kernels: one for all sums, or one for dk and dv and one for dq.
enum class Sums90 { fused, split };

struct BackwardInstance90 {
  int32_t dtype, d, e;
  Sums90 sums;
  int32_t rows, keys, panels;  // of a tile; `panels` of 64 columns of d
  void (*launch)(Context&, const AttendBackward&, const BackwardMaps&, const BackwardWork&,
                 const BackwardGrid90&);
};

struct BackwardConfig90 {
  int dtype, d, e;
  Sums90 sums;
  int tile;              // fused: rows of a tile; split: keys of a tile of dq's pass
  int stages1, stages2;  // fused: of q, of dout; split: of k, of v in dq's pass
};

template <BackwardConfig90 C>
BackwardInstance90 backward_sm90_instance();

}  // namespace fovea::cuda
