#pragma once
#include <cuda.h>
#include "cuda/tile/mma_sm80.cuh"
namespace fovea::cuda::sm90 {
inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }
template <class T> T unhoisted(T x) { return x; }
template <int R> void setmaxnreg_inc() {} 
template <int R> void setmaxnreg_dec() {}
inline void named_barrier_sync(int b, int n) { if (emu::named[b].size != n && emu::named[b].count) std::abort(); emu::named[b].size = n; emu::meet(emu::named[b], emu::named[b].count, nullptr, "named", [](void**) {}); }
struct Bar { int n, pending; int64_t tx; uint32_t phase; };
extern std::map<uint32_t, Bar> bars;
inline Bar& bar(uint32_t at) { auto i = bars.find(at); if (i == bars.end()) { std::printf("no barrier at %u\n", at); std::abort(); } return i->second; }
inline void bar_done(Bar& b) { ++emu::progress; if (b.pending < 0) { std::puts("too many arrivals"); std::abort(); } if (b.pending == 0 && b.tx == 0) b.phase ^= 1, b.pending = b.n; }
inline void barrier_init(uint32_t at, int n) { bars[at] = {n, n, 0, 0}; }
inline void barrier_init_done() {}
inline void barrier_expect(uint32_t at, uint32_t bytes) { Bar& b = bar(at); b.tx += bytes; --b.pending; bar_done(b); }
inline void barrier_arrive(uint32_t at) { Bar& b = bar(at); --b.pending; bar_done(b); }
inline void barrier_wait(uint32_t at, uint32_t parity) { while (bar(at).phase == parity) emu::yield(); }
inline void cluster_arrive() {} inline void cluster_wait() {} inline void fence_shared() {} inline void fence() {} inline void commit() {}
template <int P> void wait() {}
template <int P> void tma_store_wait_read() {} template <int P> void tma_store_wait() {} inline void tma_store_commit() {}
template <int N, int M> void pin(float (&)[N][M]) {}
inline void store_zeros(uint32_t at) { std::memset(smem(at, 16), 0, 16); }
template <int N> struct PipelineState { int stage = 0; uint32_t phase = 0; void next() { if (++stage == N) stage = 0, phase ^= 1; } };
inline void tma_load(uint32_t to, const void* from, uint32_t bytes, uint32_t b) {
  if (to % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16 || to + bytes > 232448) { std::puts("bad bulk copy"); std::abort(); }
  std::memcpy(smem(to, 16), from, bytes); bar(b).tx -= bytes; bar_done(bar(b)); }
inline void tma_store(void* to, uint32_t from, uint32_t bytes) { if (from % 16 || reinterpret_cast<uintptr_t>(to) % 16 || bytes % 16) std::abort(); std::memcpy(to, smem(from, 16), bytes); }
inline void tma_load_box(uint32_t to, const CUtensorMap& m, uint32_t b, int column, int row, int head, int batch) {
  if (to % 1024) { std::puts("box not aligned"); std::abort(); }
  if (head >= m.extent[2] || batch >= m.extent[0]) { std::puts("head or batch outside"); std::abort(); }
  for (int r = 0; r < m.rows; ++r) for (int c = 0; c < 64; ++c) {
    uint16_t x = 0;
    if (row + r < m.extent[1] && column + c < m.extent[3]) x = m.data[batch * m.stride[0] + (row + r) * m.stride[1] + head * m.stride[2] + (column + c) * m.stride[3]];
    std::memcpy(shared + to + r * 128 + ((c / 8) ^ (r % 8)) * 16 + c % 8 * 2, &x, 2); }
  bar(b).tx -= m.rows * 128; bar_done(bar(b)); }
template <class Tile> void tma_load_panels(uint32_t to, const CUtensorMap& map, uint32_t barrier, int row, int head, int batch) {
  for (int p = 0; p < Tile::panels; ++p) tma_load_box(to + p * Tile::panel_bytes, map, barrier, p * 64, row, head, batch); }
template <class Tile> void tma_load_tile(uint32_t to, const CUtensorMap& map, uint32_t barrier, int row, int head, int batch) {
  barrier_expect(barrier, Tile::bytes); tma_load_panels<Tile>(to, map, barrier, row, head, batch); }
inline void tma_prefetch(const void* from, uint32_t bytes) { volatile char c = ((const char*)from)[0] + ((const char*)from)[bytes - 1]; if (reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16) std::abort(); }
inline void prefetch_line(const void* from) { volatile char c = *(const char*)from; }
inline void tma_prefetch_box(const CUtensorMap& m, int column, int row, int head, int batch) { if (head >= m.extent[2] || batch >= m.extent[0]) { std::puts("prefetch outside"); std::abort(); } }
inline float fetch(uint64_t d, int i, int k, bool mn) {
  uint32_t at = (uint32_t)(d & 0x3fff) << 4, panel = (uint32_t)(d >> 16 & 0x3fff) << 4, octet = (uint32_t)(d >> 32 & 0x3fff) << 4;
  at += mn ? i / 64 * panel + k / 8 * octet + k % 8 * 128 + i % 64 * 2 : i / 8 * octet + i % 8 * 128 + k * 2;
  at ^= (at >> 7 & 7) << 4;
  return bf(*reinterpret_cast<uint16_t*>(smem(at, 2))); }
template <int Dtype, int N> struct Wgmma {
  template <int TB, int TA = 0> static void ss(float (&d)[N / 8][4], uint64_t a, uint64_t b, int acc) { go<TB, TA>(d, nullptr, a, b, acc); }
  template <int TB> static void rs(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, int acc) { go<TB, 0>(d, a, 0, b, acc); }
  template <int TB, int TA> static void go(float (&d)[N / 8][4], const uint32_t* ar, uint64_t a, uint64_t b, int acc) {
    struct A { float (*d)[4]; const uint32_t* a; uint64_t da, db; int acc; } x{d, ar, a, b, acc};
    emu::meet(emu::wg(), threadIdx.x % 128, &x, "wgmma", [](void** v) {
      static float P[64][16], Q[16][N]; A& f = *(A*)v[0];
      for (int l = 0; l < 128; ++l) { A& y = *(A*)v[l]; if (y.da != f.da || y.db != f.db || y.acc != f.acc) { std::puts("wgmma operands differ"); std::abort(); } }
      for (int l = 0; l < 128 && f.a; ++l) { const int g = l % 32 / 4 + l / 32 * 16, t = l % 4 * 2; A& y = *(A*)v[l];
        for (int i = 0; i < 4; ++i) for (int h = 0; h < 2; ++h) P[g + i % 2 * 8][t + h + i / 2 * 8] = bf((uint16_t)(y.a[i] >> 16 * h)); }
      if (!f.a) for (int i = 0; i < 64; ++i) for (int k = 0; k < 16; ++k) P[i][k] = fetch(f.da, i, k, TA);
      for (int k = 0; k < 16; ++k) for (int j = 0; j < N; ++j) Q[k][j] = fetch(f.db, j, k, TB);
      for (int l = 0; l < 128; ++l) { const int g = l % 32 / 4 + l / 32 * 16, t = l % 4 * 2; A& y = *(A*)v[l];
        for (int j = 0; j < N / 8; ++j) for (int c = 0; c < 4; ++c) { float s = 0; for (int k = 0; k < 16; ++k) s += P[g + c / 2 * 8][k] * Q[k][8 * j + t + c % 2];
          y.d[j][c] = f.acc ? y.d[j][c] + s : s; } } }); }
};
inline void emu_st(uint32_t address, const uint32_t (&r)[4], bool trans) {
  struct A { uint32_t at; const uint32_t* r; } a{address, r};
  emu::meet(emu::warp(), emu::lane(), &a, "stm", [&](void** v) {
    for (int m = 0; m < 4; ++m) { uint16_t M[8][8];
      for (int l = 0; l < 32; ++l) for (int h = 0; h < 2; ++h) { const int g = l / 4, t = l % 4 * 2 + h; (trans ? M[t][g] : M[g][t]) = (uint16_t)(((A*)v[l])->r[m] >> 16 * h); }
      for (int i = 0; i < 8; ++i) std::memcpy(smem(((A*)v[8 * m + i])->at, 16), M[i], 16); } }); }
inline void store_matrices(uint32_t at, const uint32_t (&r)[4]) { emu_st(at, r, false); }
inline void store_matrices_transposed(uint32_t at, const uint32_t (&r)[4]) { emu_st(at, r, true); }
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

}
