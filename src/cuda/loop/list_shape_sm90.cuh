// SPDX-License-Identifier: Apache-2.0
// Shapes of the forward sweep of Hopper over lists.
//   A lone consumer warpgroup waits for its products.  Where shared memory allows, a second block
//   of the multiprocessor fills that time.
#pragma once
#include "cuda/loop/attend_sm90.cuh"

namespace fovea::cuda {

template <class Base>
struct ListShape90 : Base {
  static constexpr bool twice = Base::Groups == 1 && 2 * (Base::shared_bytes + 1024) <= 228 * 1024;
  static constexpr int blocks = twice ? 2 : 1;
  static constexpr int producer_regs = twice ? 40 : Base::producer_regs;
  static constexpr int consumer_regs = twice ? 216 : Base::consumer_regs;
  // Measured for dense attention alone.
  static constexpr bool skip_empty_groups = false;
  static constexpr int prefetch = 0;
};

}  // namespace fovea::cuda
