// SPDX-License-Identifier: Apache-2.0
// Reductions in a fixed order: the same bits each run.
#pragma once

namespace fovea::cuda {

// Over each aligned group of `Lanes` lanes; every lane gets the result.
template <int Lanes>
__device__ __forceinline__ float lanes_max(float x) {
#pragma unroll
  for (int step = Lanes / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

template <int Lanes, class T>
__device__ __forceinline__ T lanes_sum(T x) {
#pragma unroll
  for (int step = Lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

// Over a block of Threads; thread 0 gets the result.  s holds Threads / 32 values.
template <int Threads, class T>
__device__ __forceinline__ T block_sum(T x, T* s) {
  x = lanes_sum<32>(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = x;
  __syncthreads();
  T sum = 0;
  if (threadIdx.x == 0)
    for (int i = 0; i < Threads / 32; ++i) sum += s[i];
  return sum;
}

// The sum of the threads' numbers before this one's; `total`: of all.  Every thread gets both.
template <int Threads>
__device__ __forceinline__ int block_sum_before(int mine, int (&s)[Threads / 32], int& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = mine;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += other;
  }
  __syncthreads();
  if (lane == 31) s[warp] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
#pragma unroll
  for (int i = 0; i < Threads / 32; ++i) {
    if (i < warp) before += s[i];
    total += s[i];
  }
  return before + sum - mine;
}

}  // namespace fovea::cuda
