// SPDX-License-Identifier: Apache-2.0
// Launches: one-dimensional grids that never overflow, opt-in to large shared memory, errors as
// status.  A kernel's loop is `for (w = blockIdx.x; w < work; w += gridDim.x)`.
#pragma once
#include <climits>
#include <cstdint>

#include "cuda/device.h"

namespace fovea::cuda {

inline unsigned grid_of(int64_t work) {
  return static_cast<unsigned>(work < INT_MAX ? work : INT_MAX);
}

inline int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

template <auto kernel>
void allow_shared(const Context& ctx, const char* op) {
  static uint64_t done = 0;
  allow_shared(reinterpret_cast<const void*>(kernel), done, ctx, op);
}

// As launch(), with programmatic dependent launch (PDL): blocks may start once all blocks of the
// kernel before have called pdl_trigger() or ended.  What it wrote is visible after pdl_wait().
// Before Hopper both do nothing, and kernels follow one another.
template <auto kernel, class... Args>
void launch_pdl(Context& ctx, const char* op, int64_t work, int threads, int64_t shared_bytes,
                const Args&... args) {
  if (work <= 0) return;
  if (shared_bytes > 32 * 1024) allow_shared<kernel>(ctx, op);
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid_of(work), config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes), config.stream = stream(ctx);
  config.attrs = &early, config.numAttrs = device_info(ctx).arch >= 90 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, args...), op);
}

// Enqueues `work` blocks in clusters of `cluster`, which divides it.
template <auto kernel, class... Args>
void launch_clusters(Context& ctx, const char* op, int64_t work, int cluster, int threads,
                     int64_t shared_bytes, const Args&... args) {
  if (work <= 0) return;
  if (shared_bytes > 32 * 1024) allow_shared<kernel>(ctx, op);
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeClusterDimension;
  together.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(work), config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes), config.stream = stream(ctx);
  config.attrs = &together, config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, args...), op);
}

// Enqueues `work` blocks; none for no work.
template <auto kernel, class... Args>
void launch(Context& ctx, const char* op, int64_t work, int threads, int64_t shared_bytes,
            const Args&... args) {
  if (work <= 0) return;
  // Static shared memory counts toward the 48 KB that need no opt-in.
  if (shared_bytes > 32 * 1024) allow_shared<kernel>(ctx, op);
  kernel<<<grid_of(work), threads, static_cast<size_t>(shared_bytes), stream(ctx)>>>(args...);
  check(cudaGetLastError(), op);
}

}  // namespace fovea::cuda
