// SPDX-License-Identifier: Apache-2.0
// The threads that own a row of entries: a warp, or a block.  Functions are called by all of them.
//   barriers   one for each function of a block, whose parts alternate between two arrays
#pragma once
#include <cstdint>

namespace fovea::cuda {

template <int Threads>
class RowTeam {
  static constexpr int kWarps = Threads / 32;

 public:
  struct Shared {
    int64_t part[2][kWarps];
  };
  __device__ explicit RowTeam(Shared& shared)
      : s_(shared), warp_(Threads == 32 ? 0 : threadIdx.x / 32), lane_(threadIdx.x % 32) {}

  __device__ int warp() const { return warp_; }
  __device__ int lane() const { return lane_; }
  __device__ int thread() const { return warp_ * 32 + lane_; }

  __device__ int sum(int x) {
    x = __reduce_add_sync(~0u, x);
    if constexpr (kWarps == 1) return x;
    const int64_t* part = share(x);
    int all = 0;
    for (int w = 0; w < kWarps; ++w) all += static_cast<int>(part[w]);
    return all;
  }
  __device__ int64_t sum(int64_t x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    if constexpr (kWarps == 1) return x;
    const int64_t* part = share(x);
    int64_t all = 0;
    for (int w = 0; w < kWarps; ++w) all += part[w];
    return all;
  }
  // In the order of lanes and warps.
  __device__ float sum(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    if constexpr (kWarps == 1) return x;
    const int64_t* part = share(__float_as_int(x));
    float all = 0;
    for (int w = 0; w < kWarps; ++w) all += __int_as_float(static_cast<int>(part[w]));
    return all;
  }
  __device__ float largest(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    if constexpr (kWarps == 1) return x;
    const int64_t* part = share(__float_as_int(x));
    for (int w = 0; w < kWarps; ++w) x = fmaxf(x, __int_as_float(static_cast<int>(part[w])));
    return x;
  }
  __device__ uint32_t largest(uint32_t x) {
    x = __reduce_max_sync(~0u, x);
    if constexpr (kWarps == 1) return x;
    const int64_t* part = share(x);
    for (int w = 0; w < kWarps; ++w) x = max(x, static_cast<uint32_t>(part[w]));
    return x;
  }
  // The sum over the warps before this one, of a number that all lanes of a warp have.
  __device__ int before(int x) {
    int all;
    return before(x, all);
  }
  // `all`: the sum over all warps.
  __device__ int before(int x, int& all) {
    all = x;
    if constexpr (kWarps == 1) return 0;
    const int64_t* part = share(x);
    int sum = 0;
    all = 0;
    for (int w = 0; w < kWarps; ++w) {
      if (w == warp_) sum = all;
      all += static_cast<int>(part[w]);
    }
    return sum;
  }

 private:
  __device__ const int64_t* share(int64_t x) {
    int64_t* part = s_.part[phase_];
    phase_ ^= 1;
    if (lane_ == 0) part[warp_] = x;
    __syncthreads();
    return part;
  }

  Shared& s_;
  const int warp_, lane_;
  int phase_ = 0;
};

}  // namespace fovea::cuda
