// SPDX-License-Identifier: Apache-2.0
// Terms of the scores of a warpgroup's 64 rows, which these rows share: one for each key of a tile.
// A thread meets 2 of 8 neighbouring keys in each of its rows.  Each warp copies a tile's terms
// into a buffer of its own, so that no registers hold them between two tiles.
#pragma once
#include "cuda/tile/copy.cuh"

namespace fovea::cuda {

// Where the terms of a sequence's keys stand, from key 0 on.
struct KeyTerms {
  const float* first;
  int step;  // from key to key
};

template <int Keys>
struct ScoreTerms {
  static constexpr int bytes = Keys * 4;  // of a warp's buffer
  const float4* buffer;

  __device__ explicit ScoreTerms(unsigned char* buffers)
      : buffer(reinterpret_cast<const float4*>(buffers + (threadIdx.x / 32 - 4) * bytes)) {}

  // Asks for those of keys from `key` on.  Key `last` stands in for those past it.
  __device__ void load(const KeyTerms& terms, int key, int last) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    // The place of key `lane` among 32, in the order of operator[].
    const int place = lane / 16 * 16 + lane % 8 / 2 * 4 + lane / 8 % 2 * 2 + lane % 2;
    const uint32_t to = shared_address(buffer) + 4 * place;
#pragma unroll
    for (int i = 0; i < Keys; i += 32)
      copy_async_4(to + 4 * i,
                   terms.first + static_cast<int64_t>(min(key + i + lane, last)) * terms.step);
    copy_commit();
  }
  // They have come.
  __device__ void wait() const {
    copy_wait<0>();
    __syncwarp();
  }
  // They were read.
  __device__ void release() const {
    __syncwarp();
  }
  // Of columns 16 n + 2 (lane % 4) of the tile and the next, and of those 8 further on.
  __device__ float4 operator[](int n) const {
    return buffer[4 * n + threadIdx.x % 4];
  }
};

}  // namespace fovea::cuda
