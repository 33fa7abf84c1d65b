#pragma once
#include <cstdint>
#include <cstring>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <algorithm>
#include <type_traits>
#include <map>
#include <array>
#include <vector>
#include "fovea/core.h"
#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
struct float2 { float x, y; }; struct float4 { float x, y, z, w; };
struct alignas(16) uint4 { uint32_t x, y, z, w; }; struct uint2 { uint32_t x, y; }; struct int2 { int x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
struct Dim { unsigned x, y = 1, z = 1; };
extern Dim blockIdx, gridDim, blockDim;
namespace emu {
struct Fiber { Dim tid; void* sp; char* stack; bool done; };
extern Fiber* now;
extern uint64_t progress;
void yield();
struct Group { int size = 0, count = 0; uint64_t gen = 0; const void* tag = nullptr; void* args[512]; };
extern Group warps[16], wgs[4], named[8], all;
// Rendezvous: the last one runs f(args).
template <class F>
void meet(Group& g, int rank, void* arg, const void* tag, F f) {
  if (g.count == 0) g.tag = tag;
  if (g.tag != tag) { std::printf("mismatched collective tid %u: %s / %s\n", now->tid.x, (const char*)tag, (const char*)g.tag); std::abort(); }
  g.args[rank] = arg; ++progress;
  if (++g.count == g.size) { f(g.args); g.count = 0; ++g.gen; return; }
  const uint64_t gen = g.gen;
  while (g.gen == gen) yield();
}
void run(unsigned grid, unsigned threads, size_t shared, void (*body)(void*), void* arg);
inline int lane() { return now->tid.x % 32; }
inline Group& warp() { return warps[now->tid.x / 32]; }
inline Group& wg() { return wgs[now->tid.x / 128]; }
}
#define threadIdx (emu::now->tid)
template <class T, class F> T emu_shfl(T x, F from, const char* tag) {
  struct A { T in, out; } a{x, x};
  emu::meet(emu::warp(), emu::lane(), &a, tag, [&](void** v) {
    for (int l = 0; l < 32; ++l) { int s = from(l); ((A*)v[l])->out = ((A*)v[s])->in; } });
  return a.out;
}
template <class T> T __shfl_xor_sync(unsigned, T x, int m) { return emu_shfl(x, [=](int l) { return l ^ m; }, "xor"); }
template <class T> T __shfl_sync(unsigned, T x, int s) { return emu_shfl(x, [=](int) { return s; }, "idx"); }
template <class T> T __shfl_up_sync(unsigned, T x, int d, int w = 32) { return emu_shfl(x, [=](int l) { return l % w >= d ? l - d : l; }, "up"); }
template <class T> T __shfl_down_sync(unsigned, T x, int d, int w = 32) { return emu_shfl(x, [=](int l) { return l % w + d < w ? l + d : l; }, "down"); }
inline int __any_sync(unsigned, int x) {
  struct A { int in, out; } a{x, 0};
  emu::meet(emu::warp(), emu::lane(), &a, "any", [](void** v) { int r = 0; for (int l = 0; l < 32; ++l) r |= ((A*)v[l])->in; for (int l = 0; l < 32; ++l) ((A*)v[l])->out = r; });
  return a.out;
}
inline void __syncwarp() { emu::meet(emu::warp(), emu::lane(), nullptr, "syncwarp", [](void**) {}); }
inline void __syncthreads() { emu::meet(emu::all, threadIdx.x, nullptr, "sync", [](void**) {}); }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> void __stcs(T* p, T x) { if (reinterpret_cast<uintptr_t>(p) % sizeof(T)) { std::puts("misaligned"); std::abort(); } *p = x; }
inline float __fdividef(float a, float b) { return a / b; }
inline int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
typedef void* cudaStream_t; typedef int cudaError_t;
