// SPDX-License-Identifier: Apache-2.0
// Programmatic dependent launch (PDL), with launch_pdl(); before Hopper both do nothing.
#pragma once
#if FOVEA_PTX_ONCE
#error "an instance compiled for sm_80 alone would not wait on Hopper: instances.cmake"
#endif

namespace fovea::cuda {

// Everything that the kernel before wrote is visible from here on.
__device__ inline void pdl_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start blocks as resources allow.
__device__ inline void pdl_trigger() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace fovea::cuda
