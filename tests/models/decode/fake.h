// A block of threads on the CPU: fibers that meet at barriers and shuffles.
#pragma once
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <cstdint>
#include <functional>
namespace fake {
struct Index { uint32_t x, y, z; };
extern Index thread, block, block_dim, grid_dim;
void launch(int64_t work, int threads, int64_t bytes, std::function<void()> kernel);
void sync_block();
uint64_t* exchange(uint64_t mine);  // values of the warp's lanes
void copy_async(uint32_t to, const void* from, bool valid);
void copy_wait();
uint32_t shared_address(const void* p);
extern int64_t launches;
}  // namespace fake
#define threadIdx ::fake::thread
#define blockIdx ::fake::block
#define blockDim ::fake::block_dim
#define gridDim ::fake::grid_dim
#undef __shared__
#define __shared__
#undef __grid_constant__
#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __noinline__
#define __noinline__
#undef __global__
#define __global__
#undef __device__
#define __device__
#undef __forceinline__
#define __forceinline__ inline
inline void __syncthreads() { fake::sync_block(); }
template <class T>
T __shfl_xor_sync(unsigned, T x, int step) {
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &x, sizeof(T));
  const uint64_t other = fake::exchange(bits)[(fake::thread.x % 32) ^ step];
  T y;
  __builtin_memcpy(&y, &other, sizeof(T));
  return y;
}
template <class T> T __shfl_up_sync(unsigned, T x, int) { return x; }
inline int __any_sync(unsigned, int x) {
  const uint64_t* all = fake::exchange(x != 0);
  bool any = false;
  for (int i = 0; i < 32; ++i) any |= all[i] != 0;
  return any;
}
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> void __stcs(T* p, T x) { *p = x; }
template <class T> T min(T a, T b) { return b < a ? b : a; }
