// SPDX-License-Identifier: Apache-2.0
// What CUDA code asks of its context: the stream, the device's limits, and errors as status.
// Every file of kernels reads this and core/context.h's standard headers cost a CPU second of each,
// so the context is only named here.
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
  bool pools;  // stream-ordered allocation works
};

// Read once for each device.  Throws when the device cannot be asked.
const DeviceInfo& device_info(int index);
const DeviceInfo& device_info(const Context& ctx);

// Lets a kernel use all dynamic shared memory of the context's device; asked once per device.
// `done` is the kernel's own and remembers that: a bit for each device.
void allow_shared(const void* kernel, uint64_t& done, const Context& ctx, const char* op);

// The stream work of `ctx` goes to.  Ask at each launch: it also notes that a capture has seen the
// workspace, which then outlives later growth.
cudaStream_t stream(Context& ctx);

// kCounters words of the context that are 0 whenever none of its kernels runs: one that counts
// there leaves 0 behind.
constexpr int kCounters = 4096;
int32_t* counters(Context& ctx);

// Throws OUT_OF_MEMORY, INVALID_ARGUMENT (a call that a capturing stream forbids) or DEVICE_ERROR.
void check(cudaError_t error, const char* op);

}  // namespace fovea::cuda
