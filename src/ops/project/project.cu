// SPDX-License-Identifier: Apache-2.0
// x_project: every dtype, width and stride, in f32 FMA.
//   C = A B, z times, from strided matrices; steps.h has the formulas that it serves
// A block owns a part of the sums of a tile of 64 x 64 elements of C, 256 threads as 16 x 16 with
// 4 x 4 elements each.  A step has 32 terms.  Lanes read along the terms, or along the other side
// where that is contiguous.
// Shared memory: A and B as 32 x 68 floats, the offsets of 64 rows, 64 columns and 2 x 32 terms.
// Barriers: one before a step's tiles are read, one before they are overwritten.  Offsets of the
// next step's terms are written between the two, in the other buffer.
// project_finish: a warp owns a row.
#include "core/dtype.h"
#include "cuda/block/reduce.cuh"
#include "ops/project/project.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int kThreads = 256, kTile = 64, kTerms = 32, kPitch = 68;

struct Warp {
  int lane;
  static constexpr int lanes = 32;
  __device__ float sum(float x) const { return lanes_sum<32>(x); }
  __device__ void wait() const { __syncwarp(); }
};

struct Offsets {
  int64_t row[kTile], column[kTile], a[2][kTerms], b[2][kTerms];
};

// The thread's elements of a tile of terms by `own` rows or columns; lanes along the terms, or not.
__device__ __forceinline__ void load_tile(const ProjectMatrix& x, const int64_t* term,
                                          const int64_t* own, int terms, int count, bool along,
                                          float (*to)[kPitch]) {
#pragma unroll
  for (int i = 0; i < kTerms * kTile / kThreads; ++i) {
    const int e = threadIdx.x + i * kThreads;
    const int k = along ? e % kTerms : e / kTile, j = along ? e / kTerms : e % kTile;
    float value = 0;
    if (k < terms && j < count)
      value = x.data ? project_act(x.act, load_fp(x.data, x.dtype, term[k] + own[j])) : 1.f;
    to[k][j] = value;
  }
}

__global__ void __launch_bounds__(kThreads)
    product_kernel(const __grid_constant__ ProjectProduct p, float* sums, int64_t work) {
  __shared__ float4 s_storage[2][kTerms * kPitch / 4];
  __shared__ Offsets s_at;
  auto* s_a = reinterpret_cast<float(*)[kPitch]>(s_storage[0]);
  auto* s_b = reinterpret_cast<float(*)[kPitch]>(s_storage[1]);
  const int tid = threadIdx.x, ty = tid / 16, tx = tid % 16;
  const int64_t down = (p.m + kTile - 1) / kTile, across = (p.n + kTile - 1) / kTile;
  const bool along_a = p.a.row.stride[3] != 1, along_b = p.b.column.stride[3] != 1;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t n0 = w % across * kTile, m0 = w / across % down * kTile;
    const int64_t z = w / across / down % p.z, part = w / across / down / p.z;
    const int rows = static_cast<int>(min(int64_t{kTile}, p.m - m0));
    const int columns = static_cast<int>(min(int64_t{kTile}, p.n - n0));
    const int64_t end = min(p.k, (part + 1) * p.each());
    const auto place_terms = [&](int64_t k, int buffer) {
      const int64_t at = k + tid % kTerms;
      if (tid >= 2 * kTerms || at >= end) return;
      if (tid < kTerms)
        s_at.a[buffer][tid] = p.a.column.at(z, at);
      else
        s_at.b[buffer][tid - kTerms] = p.b.row.at(z, at);
    };
    int64_t k = part * p.each();
    int buffer = 0;
    __syncthreads();
    place_terms(k, buffer);
    if (tid >= 128 && tid - 128 < rows) s_at.row[tid - 128] = p.a.row.at(z, m0 + tid - 128);
    if (tid >= 192 && tid - 192 < columns)
      s_at.column[tid - 192] = p.b.column.at(z, n0 + tid - 192);
    __syncthreads();
    float acc[4][4] = {};
    for (; k < end; k += kTerms, buffer ^= 1) {
      const int terms = static_cast<int>(min(int64_t{kTerms}, end - k));
      load_tile(p.a, s_at.a[buffer], s_at.row, terms, rows, along_a, s_a);
      load_tile(p.b, s_at.b[buffer], s_at.column, terms, columns, along_b, s_b);
      place_terms(k + kTerms, buffer ^ 1);
      __syncthreads();
#pragma unroll 4
      for (int i = 0; i < terms; ++i) {
        const float4 a = *reinterpret_cast<const float4*>(&s_a[i][4 * ty]);
        const float4 b = *reinterpret_cast<const float4*>(&s_b[i][4 * tx]);
        const float left[4] = {a.x, a.y, a.z, a.w}, right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int c = 0; c < 4; ++c) acc[r][c] = fmaf(left[r], right[c], acc[r][c]);
      }
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int64_t m = m0 + 4 * ty + r;
      if (m >= p.m) break;
      const int64_t at = p.c.row.at(z, m);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int64_t n = n0 + 4 * tx + c;
        if (n >= p.n) break;
        if (p.parts > 1)
          sums[((part * p.z + z) * p.m + m) * p.n + n] = acc[r][c];
        else
          project_store(p, z, n, at + p.c.column.at(z, n), acc[r][c]);
      }
    }
  }
}

// A thread owns an element of C and adds its parts in order.
__global__ void __launch_bounds__(kThreads)
    add_kernel(const __grid_constant__ ProjectProduct p, const float* sums, int64_t work) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < work;
       i += gridDim.x * int64_t{kThreads}) {
    double sum = 0;
    for (int64_t part = 0; part < p.parts; ++part)
      sum += static_cast<double>(sums[part * work + i]);
    const int64_t n = i % p.n, m = i / p.n % p.m, z = i / p.n / p.m;
    project_store(p, z, n, p.c.row.at(z, m) + p.c.column.at(z, n), static_cast<float>(sum));
  }
}

template <bool Backward>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const __grid_constant__ Project a, float* z, float* t, int64_t first,
                  int64_t work) {
  const Warp warp{static_cast<int>(threadIdx.x % 32)};
  constexpr int kWarps = kThreads / 32;
  for (int64_t w = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; w < work;
       w += gridDim.x * int64_t{kWarps}) {
    const ProjectRow row = project_row(a, first, w);
    if (Backward)
      project_finish_backward(a, row, z + w * a.f(), t ? t + w * a.f() : nullptr, warp);
    else
      project_finish(a, row, z + w * a.f(), warp);
  }
}

}  // namespace

void project_add_parts(Context& ctx, const char* op, const ProjectProduct& p, const float* parts) {
  const int64_t elements = p.z * p.m * p.n;
  if (p.parts > 1)
    launch<add_kernel>(ctx, op, ceil_div(elements, kThreads), kThreads, 0, p, parts, elements);
}

void project_product(Context& ctx, const char* op, const ProjectProduct& p, float* parts) {
  const int64_t work = p.z * ceil_div(p.m, kTile) * ceil_div(p.n, kTile) * p.parts;
  launch<product_kernel>(ctx, op, work, kThreads, 0, p, parts, work);
  project_add_parts(ctx, op, p, parts);
}

void project_finish_rows(Context& ctx, const char* op, const Project& a, bool backward,
                         const ProjectRooms& rooms, int64_t first, int64_t count) {
  const int64_t work = count * a.h, blocks = ceil_div(work, kThreads / 32);
  if (backward)
    launch<finish_kernel<true>>(ctx, op, blocks, kThreads, 0, a, rooms.z, rooms.t, first, work);
  else
    launch<finish_kernel<false>>(ctx, op, blocks, kThreads, 0, a, rooms.z, rooms.t, first, work);
}

}  // namespace cuda

namespace {

template <bool Backward>
Text offer(const Context&, const Project& a, Plan& plan) {
  cuda::project_offer<cuda::project_product>(a, Backward, plan);
  return "";
}

}  // namespace

extern const Kernel<Project> project_forward_simt = {"simt", offer<false>};
extern const Kernel<Project> project_backward_simt = {"simt", offer<true>};

}  // namespace fovea
