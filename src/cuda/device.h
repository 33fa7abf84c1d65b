// SPDX-License-Identifier: Apache-2.0
// The context of CUDA code: its stream, the device's limits, and errors as status.
// The context is only declared: core/context.h's standard headers would cost each file of kernels a
// CPU second.
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>

#include "fovea/core.h"

namespace fovea {
using Context = fovea_context;
}

namespace fovea::cuda {

struct DeviceInfo {
  char name[256];
  int index;
  int arch;  // 10 * compute capability
  int multiprocessors;
  int shared_block_bytes;  // most dynamic shared memory a block may opt in to
  int shared_sm_bytes;     // shared memory of one multiprocessor
  int l2_bytes;
  bool pools;  // has stream-ordered allocation
};

// Read once for each device.  Throws on a device error.
const DeviceInfo& device_info(int index);
const DeviceInfo& device_info(const Context& ctx);

// Lets a kernel use all dynamic shared memory of the context's device, once per device.  `done` is
// the kernel's own: a bit for each device.
void allow_shared(const void* kernel, uint64_t& done, const Context& ctx, const char* op);

// The stream of `ctx`, to be called at each launch: it also notes that a capture has seen the
// workspace, which then outlives later growth.
cudaStream_t stream(Context& ctx);

// kCounters words of the context that are 0 between kernels: a kernel that counts resets them.
constexpr int kCounters = 4096;
int32_t* counters(Context& ctx);

// Throws OUT_OF_MEMORY, INVALID_ARGUMENT (a call that a capturing stream forbids) or DEVICE_ERROR.
void check(cudaError_t error, const char* op);

}  // namespace fovea::cuda
