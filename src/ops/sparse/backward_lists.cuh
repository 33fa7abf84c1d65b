// SPDX-License-Identifier: Apache-2.0
// The Hopper launchers of x_sparse_backward and their instances (backward.inc), compiled apart.
#pragma once
#include "core/attend.h"
#include "cuda/launch.h"
#include "cuda/loop/list_bwd_dkdv_sm90.cuh"
#include "cuda/loop/list_bwd_dq_sm90.cuh"

namespace fovea::cuda {

// How a call's tiles are cut; see list_bwd_sm90.cuh.
struct ListCut90 {
  int32_t key_rings, row_rings;
  ListLines keys, rows;  // of a row tile, for dk and dv, for dq
};

struct SparseBackward90 {
  int32_t dtype, d;
  void (*keys)(Context&, const ListCut90&, const AttendBackward&, const BackwardMaps&,
               const ListKeys90&);
  void (*rows)(Context&, const ListCut90&, const AttendBackward&, const BackwardMaps&,
               const ListRows90&);
};

struct SparseBackwardConfig90 {
  int dtype, d, e;
  int shared_stages, own_stages;  // of a ring that both consumers share, of one of their own
};

template <SparseBackwardConfig90 C>
SparseBackward90 sparse_backward_sm90_instance();

}  // namespace fovea::cuda
