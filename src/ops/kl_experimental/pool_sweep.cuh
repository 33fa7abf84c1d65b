// SPDX-License-Identifier: Apache-2.0
// Between the launcher of pooling's gradient on Hopper (pool_sm90.cu) and its kernels
// (pool_sm90.cuh), which are compiled apart.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked

#include "ops/kl/sides.cuh"
#include "ops/kl_experimental/pool_tile.cuh"

namespace fovea::cuda {

// Teacher, student; the student's k in boxes of 64 blocks, all else in boxes of 128.
struct PoolMaps90 {
  CUtensorMap q[2], k[2];
};

struct PoolSweep90 {
  KlPool a;
  Attend teacher;  // its window, scale and lengths
  Dscores dscores;
};

struct PoolInstance90 {
  int32_t dtype, width;
  void (*run)(Context&, const PoolSweep90&, const PoolMaps90&);
};

// Explicitly instantiated, one file for each dtype and width.
template <int Dtype, int D>
PoolInstance90 kl_pool_sm90_instance();

}  // namespace fovea::cuda
