// SPDX-License-Identifier: Apache-2.0
// The kernels plan() chooses from: forward_host.cpp, forward_sm90.cu, columns_sm90.cu,
// wide_sm90.cu, forward_sm80.cu, forward_simt.cu and the backward's.
#pragma once
#include "core/plan.h"
#include "core/sparse.h"

namespace fovea {

extern const Kernel<SparseAttend> x_sparse_forward_host;
extern const Kernel<SparseBackward> x_sparse_backward_host;

// CUDA builds only.  sm90: lists of whole tiles on Hopper; columns_sm90: blocks at any key and
// single keys there; wide_sm90: single keys of heads wider than 256; sm80: keys gathered one by
// one, on mma.sync; simt: anything valid.
extern const Kernel<SparseAttend> x_sparse_forward_sm90, x_sparse_columns_sm90, x_sparse_wide_sm90;
extern const Kernel<SparseAttend> x_sparse_forward_sm80;
extern const Kernel<SparseAttend> x_sparse_forward_simt;
extern const Kernel<SparseBackward> x_sparse_backward_sm90, x_sparse_backward_simt;

}  // namespace fovea
