// SPDX-License-Identifier: Apache-2.0
// Hopper's instructions (sm_90a), one a function: roles, mbarriers, TMA, wgmma.
//   A tile is layout.cuh's Swizzled.  Its base is a multiple of 1024 bytes.
//   A descriptor counts units of 16 bytes.  A step of 16 k adds 2 inside a panel stored [row][k],
//   and 128 in one stored [k][column], whose next panel of columns lies `panel_bytes` on.
//   Accumulators of products in flight may not be touched: fence() before the first product of a
//   batch, wait() and pin() before the first use.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked
#include <cstdint>

#include "cuda/tile/layout.cuh"
#include "fovea/core.h"

namespace fovea::cuda::sm90 {

#include "instances/wgmma_sm90.inc"

// ---- roles

__device__ inline int uniform(int x) {
  return __shfl_sync(~0u, x, 0);
}
__device__ inline bool elect_one() {
  uint32_t yes;
  asm volatile("{.reg .pred p; elect.sync _|p, ~0; selp.b32 %0, 1, 0, p;}" : "=r"(yes));
  return yes;
}
template <int Registers>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}
// Named barrier of `threads` threads; 0 is __syncthreads'.
__device__ inline void named_barrier_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void named_barrier_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// The same value, hidden from loop-invariant code motion: each step of a descriptor that left the
// loop would hold two registers across it.
template <class T>
__device__ inline T unhoisted(T x) {
  if constexpr (sizeof(T) == 8)
    asm volatile("" : "+l"(x));
  else
    asm volatile("" : "+r"(x));
  return x;
}

// ---- barriers in shared memory, by address

__device__ inline void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the last init, before the block's __syncthreads.
__device__ inline void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{.reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra done; "
      "bra again; done:}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Whether the phase has ended, without waiting for it.
__device__ inline bool barrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}
// A barrier of all threads of a cluster.  A thread that only arrives need not wait.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// To the place of `address` in the shared memory of a block of the cluster.
__device__ inline void store_cluster(uint32_t address, uint32_t block, float x) {
  asm volatile(
      "{.reg .b32 at; mapa.shared::cluster.u32 at, %0, %1; st.shared::cluster.f32 [at], %2;}" ::"r"(
          address),
      "r"(block), "f"(x)
      : "memory");
}
// Makes the thread's stores to shared memory visible to TMA and wgmma.
__device__ inline void fence_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void store_zeros(uint32_t address) {
  asm volatile("st.shared.v4.b32 [%0], {0, 0, 0, 0};" ::"r"(address) : "memory");
}

// Stage and phase of a ring of N: a producer waits for the other phase.
template <int N>
struct PipelineState {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++stage == N) stage = 0, phase ^= 1;
  }
};

// ---- TMA: `map` has axes (column, row, head, batch)

__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ inline void tma_load_box(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                    int column, int row, int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
// The map of an interleaved tile: eight rows of a panel at a time.
__device__ inline void tma_load_octets(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                       int panel, int octet, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, "
      "%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(0), "r"(panel), "r"(octet), "r"(batch)
      : "memory");
}
// The map of a tile of runs (ByteRuns): `run` is the first.
__device__ inline void tma_load_runs(uint32_t to, const CUtensorMap& map, uint32_t barrier, int run,
                                     int head, int batch) {
  tma_load_octets(to, map, barrier, run, head, batch);
}
// All panels of a tile.
template <class Tile>
__device__ inline void tma_load_panels(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                       int row, int head, int batch) {
#pragma unroll
  for (int panel = 0; panel < Tile::panels; ++panel)
    tma_load_box(to + panel * Tile::panel_bytes, map, barrier, panel * 64, row, head, batch);
}
// The same, and `barrier` counts its bytes.
template <class Tile>
__device__ inline void tma_load_tile(uint32_t to, const CUtensorMap& map, uint32_t barrier, int row,
                                     int head, int batch) {
  barrier_expect(barrier, Tile::bytes);
  tma_load_panels<Tile>(to, map, barrier, row, head, batch);
}

// Elements outside the tensor are not written.
__device__ inline void tma_store_box(const CUtensorMap& map, uint32_t from, int column, int row,
                                     int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          &map),
      "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
      : "memory");
}

// ---- TMA without a map: contiguous bytes, multiples of 16

__device__ inline void tma_load(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ inline void tma_store(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
// To L2: the same bytes, and a box as tma_load_box loads it.
__device__ inline void tma_prefetch(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ inline void tma_prefetch_box(const CUtensorMap& map, int column, int row, int head,
                                        int batch) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(&map),
               "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}
// The line of an address.
__device__ inline void prefetch_line(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from) : "memory");
}
// to[i] += from[i] in f32.
__device__ inline void tma_reduce_add(float* to, uint32_t from, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
__device__ inline void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// All but the last `Pending` of the thread's stores have read their source (wait_read), or ended.
template <int Pending>
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}
template <int Pending>
__device__ inline void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}
// Orders TMA's accesses to global memory with the thread's own.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async;" ::: "memory");
}

// ---- products

__device__ inline void fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int Pending>
__device__ inline void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Nothing that reads d moves above this.
template <int N, int M>
__device__ inline void pin(float (&d)[N][M]) {
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < M; ++c) asm volatile("" : "+f"(d[j][c])::"memory");
}
template <int N, int M>
__device__ inline void pin(int32_t (&d)[N][M]) {
#pragma unroll
  for (int j = 0; j < N; ++j)
#pragma unroll
    for (int c = 0; c < M; ++c) asm volatile("" : "+r"(d[j][c])::"memory");
}

__device__ inline uint64_t descriptor(uint32_t address, uint32_t panel_bytes = 16,
                                      uint32_t octet_bytes = 1024) {
  return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
         static_cast<uint64_t>(panel_bytes >> 4) << 16 |
         static_cast<uint64_t>(octet_bytes >> 4) << 32 | uint64_t{1} << 62;
}

// d = A B' over Depth: `a` the descriptor of 64 rows of TileA, `b` of TileB, both [row][k].
template <int Dtype, int Depth, class TileA, class TileB, int N>
__device__ inline void product_rows(float (&d)[N][4], uint64_t a, uint64_t b) {
#pragma unroll
  for (int k = 0; k < Depth / 16; ++k)
    Wgmma<Dtype, N * 8>::template ss<0>(d, a + k / 4 * (TileA::panel_bytes / 16) + k % 4 * 2,
                                        b + k / 4 * (TileB::panel_bytes / 16) + k % 4 * 2, k != 0);
}

// The same, A packed in registers.
template <int Dtype, class TileB, int N, int Steps>
__device__ inline void product_rows(float (&d)[N][4], const uint32_t (&a)[Steps][4], uint64_t b) {
#pragma unroll
  for (int k = 0; k < Steps; ++k)
    Wgmma<Dtype, N * 8>::template rs<0>(d, a[k], b + k / 4 * (TileB::panel_bytes / 16) + k % 4 * 2,
                                        k != 0);
}

// d = accumulate d + A B, A packed sums, B a tile [k][column].
template <int Dtype, int N, int Steps>
__device__ inline void product_columns(float (&d)[N][4], const uint32_t (&a)[Steps][4], uint64_t b,
                                       bool accumulate, int octet_bytes = 1024) {
#pragma unroll
  for (int k = 0; k < Steps; ++k)
    Wgmma<Dtype, N * 8>::template rs<1>(d, a[k], b + k * (octet_bytes / 8), accumulate || k);
}

// d += A B over the steps [First, First + Count) of 16 k alone.
template <int Dtype, int First, int Count, int N, int Steps>
__device__ inline void add_columns(float (&d)[N][4], const uint32_t (&a)[Steps][4], uint64_t b,
                                   int octet_bytes) {
#pragma unroll
  for (int k = First; k < First + Count; ++k)
    Wgmma<Dtype, N * 8>::template rs<1>(d, a[k], b + k * (octet_bytes / 8), true);
}

// d = A B over Depth: A a tile [k][64 rows], B a tile [k][column].
template <int Dtype, int Depth, int N>
__device__ inline void product_transposed(float (&d)[N][4], uint64_t a, uint64_t b,
                                          bool accumulate = false) {
#pragma unroll
  for (int k = 0; k < Depth / 16; ++k)
    Wgmma<Dtype, N * 8>::template ss<1, 1>(d, a + k * 128, b + k * 128, accumulate || k);
}

// d = accumulate d + A B over 64: A a panel [row][k] of 64 rows, B a tile [k][column].
template <int Dtype, int N>
__device__ inline void product_panel(float (&d)[N][4], uint64_t a, uint64_t b, bool accumulate) {
#pragma unroll
  for (int k = 0; k < 4; ++k)
    Wgmma<Dtype, N * 8>::template ss<1>(d, a + k * 2, b + k * 128, accumulate || k);
}

// Four 8 x 8 matrices, one packed operand a[4] of a warp, to the rows `address` of its lanes.
__device__ inline void store_matrices(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// The same to the rows of the transposed matrices.
__device__ inline void store_matrices_transposed(uint32_t address, const uint32_t (&r)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
      : "memory");
}

// ---- products of bytes

// A tile of codes in panels of Panel columns, 64 or 128: rows of a panel are swizzled over as many
// bytes.
template <int Rows, int Columns, int Panel_>
struct Bytes {
  static_assert((Panel_ == 64 || Panel_ == 128) && Columns % Panel_ == 0);
  static constexpr int Panel = Panel_, panels = Columns / Panel, panel_bytes = Rows * Panel;
  static constexpr int bytes = panels * panel_bytes;
  static constexpr int steps = Panel / 32;  // of 32 k, in a panel

  // Byte of column `column`, a multiple of 16, of a row.
  __device__ static uint32_t at(int row, int column) {
    const int chunk = column % Panel / 16;
    return column / Panel * panel_bytes + row * Panel +
           (Panel == 128 ? chunk ^ row % 8 : chunk ^ row / 2 % 4) * 16;
  }
  __device__ static uint64_t descriptor(uint32_t address) {
    constexpr uint64_t swizzle = Panel == 128 ? 1 : 2;
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | uint64_t{1} << 16 |
           static_cast<uint64_t>(8 * Panel >> 4) << 32 | swizzle << 62;
  }
  // Step k of 32, as a distance between descriptors.
  __device__ static constexpr int step(int k) {
    return k / steps * (panel_bytes / 16) + k % steps * 2;
  }
};

// A tile of codes in panels of 16 columns, not swizzled: a panel's rows of 16 bytes follow one
// another.  A copy may so end after any run of 16 columns.
template <int Rows, int Columns>
struct ByteRuns {
  static_assert(Columns % 32 == 0);
  static constexpr int Panel = 16, panels = Columns / Panel, panel_bytes = Rows * Panel;
  static constexpr int bytes = panels * panel_bytes;

  __device__ static uint32_t at(int row, int column) {
    return column / Panel * panel_bytes + row * Panel;
  }
  // A step of 32 k has two panels; eight rows of one are 128 bytes.
  __device__ static uint64_t descriptor(uint32_t address) {
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) |
           static_cast<uint64_t>(panel_bytes >> 4) << 16 | uint64_t{128 >> 4} << 32;
  }
  __device__ static constexpr int step(int k) { return k * 2 * (panel_bytes / 16); }
};

template <class Tile>
__device__ inline void tma_load_bytes(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                      int column, int row, int head, int batch) {
  barrier_expect(barrier, Tile::bytes);
#pragma unroll
  for (int panel = 0; panel < Tile::panels; ++panel)
    tma_load_box(to + panel * Tile::panel_bytes, map, barrier, column + panel * Tile::Panel, row,
                 head, batch);
}

// d = A B' over Depth, both tiles [row][k].
template <int Dtype, int Depth, class TileA, class TileB, class Sum, int N>
__device__ inline void byte_product(Sum (&d)[N][4], uint64_t a, uint64_t b) {
#pragma unroll
  for (int k = 0; k < Depth / 32; ++k)
    Wgmma<Dtype, N * 8>::ss(d, a + TileA::step(k), b + TileB::step(k), k != 0);
}

// d = accumulate d + A B', A four codes a word.
template <int Dtype, class TileB, class Sum, int N, int Steps>
__device__ inline void byte_product(Sum (&d)[N][4], const uint32_t (&a)[Steps][4], uint64_t b,
                                    bool accumulate) {
#pragma unroll
  for (int k = 0; k < Steps; ++k)
    Wgmma<Dtype, N * 8>::rs(d, a[k], b + TileB::step(k), accumulate || k);
}

// Sums as the e4m3 operand of the next product.  The operand has four neighbouring k in a lane, the
// sums have keys 8 j + 2 t, + 1.  So B's k are stored permuted (v_perm16).
template <int N>
__device__ inline void pack_codes(uint32_t (&a)[N / 4][4], const float (&x)[N][4]) {
  const auto pack = [](float first, float second, float third, float fourth) {
    uint16_t low, high;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(second), "f"(first));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(fourth), "f"(third));
    return static_cast<uint32_t>(low) | static_cast<uint32_t>(high) << 16;
  };
#pragma unroll
  for (int k = 0; k < N / 4; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&from)[4] = x[4 * k + i / 2 * 2];
      const float(&next)[4] = x[4 * k + i / 2 * 2 + 1];
      a[k][i] = pack(from[i % 2 * 2], from[i % 2 * 2 + 1], next[i % 2 * 2], next[i % 2 * 2 + 1]);
    }
}

}  // namespace fovea::cuda::sm90
