// SPDX-License-Identifier: Apache-2.0
// Asynchronous copies of 16, 8 or 4 bytes from global to shared memory (sm_80 and up).
#pragma once
#include <cstdint>

#include "cuda/tile/layout.cuh"

namespace fovea::cuda {

// Writes zeros where !valid; `from` is not read then.
__device__ inline void copy_async(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ inline void copy_async_8(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy_async_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ inline void copy_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// The thread arrives at a barrier in shared memory once its copies so far have come (sm_90).
__device__ inline void copy_arrive(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
template <int Pending>
__device__ inline void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

// Copies a tile of Rows x Columns.  row_at(row) is the global row, nullptr for a row of zeros;
// columns from `width` on are zeros.  Eight neighbouring threads copy one panel's row.
template <int Rows, int Columns, int Threads, class RowAt>
__device__ inline void copy_rows(uint32_t to, int width, const uint16_t* fallback, RowAt row_at) {
  using Tile = Swizzled<Rows, Columns>;
  constexpr int kStep = Threads / kPanelChunks;
  static_assert(Rows % kStep == 0);
  const int lane = threadIdx.x % kPanelChunks;
#pragma unroll
  for (int i = 0; i < Rows / kStep; ++i) {
    const int row = threadIdx.x / kPanelChunks + i * kStep;
    const uint16_t* from = row_at(row);
#pragma unroll
    for (int panel = 0; panel < Tile::panels; ++panel) {
      const int chunk = panel * kPanelChunks + lane;
      const bool valid = from && chunk * kChunk < width;
      if (Columns % 64 == 0 || chunk * kChunk < Columns)
        copy_async(to + Tile::at(row, chunk), valid ? from + chunk * kChunk : fallback, valid);
    }
  }
}

}  // namespace fovea::cuda
