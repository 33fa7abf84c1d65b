#pragma once
#include "emu.h"
#include "core/convert.h"
#include "cuda/tile/layout.cuh"
namespace fovea::cuda {
inline float bf(uint16_t x) { return float_of(uint32_t{x} << 16); }
inline uint16_t to_bf(float x) { uint32_t b = bits_of(x); if (x != x) return 0x7fff; return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16); }
template <int Dtype> uint32_t pack(float low, float high) { return to_bf(low) | uint32_t{to_bf(high)} << 16; }
extern unsigned char shared[];
inline unsigned char* smem(uint32_t at, int align) { if (at % align || at >= 232448) { std::printf("bad shared address %u\n", at); std::abort(); } return shared + at; }
inline void emu_ld(uint32_t (&r)[4], uint32_t address, bool trans) {
  struct A { uint32_t* r; uint32_t at; } a{r, address};
  emu::meet(emu::warp(), emu::lane(), &a, trans ? "ldmt" : "ldm", [&](void** v) {
    for (int m = 0; m < 4; ++m) { uint16_t M[8][8];
      for (int i = 0; i < 8; ++i) std::memcpy(M[i], smem(((A*)v[8 * m + i])->at, 16), 16);
      for (int l = 0; l < 32; ++l) { const int g = l / 4, t = l % 4 * 2;
        ((A*)v[l])->r[m] = trans ? M[t][g] | uint32_t{M[t + 1][g]} << 16 : M[g][t] | uint32_t{M[g][t + 1]} << 16; } } });
}
inline void load_matrices(uint32_t (&r)[4], uint32_t address) { emu_ld(r, address, false); }
inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) { emu_ld(r, address, true); }
template <int Dtype> void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct A { float* d; const uint32_t* a; uint32_t b[2]; } x{d, a, {b0, b1}};
  emu::meet(emu::warp(), emu::lane(), &x, "mma", [](void** v) {
    float P[16][16], Q[16][8];
    for (int l = 0; l < 32; ++l) { const int g = l / 4, t = l % 4 * 2; A& y = *(A*)v[l];
      for (int i = 0; i < 4; ++i) for (int h = 0; h < 2; ++h) P[g + i % 2 * 8][t + h + i / 2 * 8] = bf((uint16_t)(y.a[i] >> 16 * h));
      for (int i = 0; i < 2; ++i) for (int h = 0; h < 2; ++h) Q[t + h + 8 * i][g] = bf((uint16_t)(y.b[i] >> 16 * h)); }
    for (int l = 0; l < 32; ++l) { const int g = l / 4, t = l % 4 * 2; A& y = *(A*)v[l];
      for (int c = 0; c < 4; ++c) { float s = 0; for (int k = 0; k < 16; ++k) s += P[g + c / 2 * 8][k] * Q[k][t + c % 2]; y.d[c] += s; } } });
}
inline int outer_row(int lane) { return lane % 16; }
inline int outer_chunk(int lane) { return lane / 16; }
inline int inner_row(int lane) { return lane % 8 + lane / 16 * 8; }
inline int inner_chunk(int lane) { return lane / 8 % 2; }
// A tile of sums as the a operand of the next product.
template <int Dtype, int M, int N>
__device__ inline void pack_operand(uint32_t (&a)[M][N / 2][4], const float (&sums)[M][N][4]) {
#pragma unroll
  for (int i = 0; i < M; ++i)
#pragma unroll
    for (int k = 0; k < N / 2; ++k) {
      a[i][k][0] = pack<Dtype>(sums[i][2 * k][0], sums[i][2 * k][1]);
      a[i][k][1] = pack<Dtype>(sums[i][2 * k][2], sums[i][2 * k][3]);
      a[i][k][2] = pack<Dtype>(sums[i][2 * k + 1][0], sums[i][2 * k + 1][1]);
      a[i][k][3] = pack<Dtype>(sums[i][2 * k + 1][2], sums[i][2 * k + 1][3]);
    }
}

// Transposes a 4 x 4 of words inside each quad: lane t ends with word t of lanes 0..3.  A lane's
// two columns of each of four 8-column tiles become eight neighbouring columns of one tile.
__device__ inline void quad_transpose(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? w[i] : w[i + 1], 1);
    (odd ? w[i] : w[i + 1]) = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? w[i] : w[i + 2], 2);
    (high ? w[i] : w[i + 2]) = got;
  }
}

}  // namespace fovea::cuda
