// SPDX-License-Identifier: Apache-2.0
// A kernel and the next of its stream that launch_pdl() started (Hopper and later; else nothing).
#pragma once

namespace fovea::cuda {

// Everything the kernel before wrote can be read from here on.
__device__ inline void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start its blocks where there is room.
__device__ inline void pdl_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace fovea::cuda
