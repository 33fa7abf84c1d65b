// SPDX-License-Identifier: Apache-2.0
// Between the launcher of pooling's gradient and its Hopper sweep of the teacher's heads
// (pool_heads_sm90.cuh), which is compiled apart.
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/heads.cuh"

namespace fovea::cuda {

struct PoolWeights90 {
  View<3> lse;
  float* weights;  // (row tile of the launch, head, row, block of keys)
  int64_t pitch;
  int32_t block_keys;  // 64 or 128
  bool max;
};

struct PoolHeads90 {
  int32_t dtype, width;
  void (*pool)(Context&, const HeadsWork&, const HeadsMaps&, const PoolWeights90&);
};

// That of pool_heads.inc in this build which holds the width; nullptr: none.
const PoolHeads90* heads_instance(int32_t dtype, int64_t width);

// Explicitly instantiated, one file for each dtype and width.
template <int Dtype, int D>
PoolHeads90 kl_pool_heads_sm90_instance();

}  // namespace fovea::cuda
