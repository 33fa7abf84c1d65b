// SPDX-License-Identifier: Apache-2.0
// A block's tile of pairs, 64 own rows against 64 others, on mma.sync (sm_80 and up).  Operands are
// 16-bit with contiguous rows.  Four warps have 16 own rows each.
// Element (r, c) of a thread is own row 16 warp + lane / 4 + 8 r, other 8 (c / 2) + 2 (lane % 4) +
// c % 2: the fragment of tile/mma_sm80.cuh.  P stays in registers, rounded to the dtype.
// Shared memory: P where a term may be non-finite (64 x 64), then A and B in swizzled panels of 64
// columns. Barriers: one before tiles are overwritten, one when the copies have landed.
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/block/stage.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

// Strict: add() skips a P of +0, so a NaN there cannot leak; else it is multiplied.
template <int Dtype, bool Strict = true>
class PairsMma {
 public:
  static constexpr int threads = 128, R = 2, C = 16, own = 64, others = 64, chunk = 64;
  using Panel = Swizzled<64, 64>;
  // For operands of at most `width` columns.
  static int64_t shared_bytes(int64_t width) {
    return Panel::bytes * (1 + 2 * ((width + chunk - 1) / chunk));
  }

  __device__ PairsMma(void* shared, int64_t width)
      : p_(static_cast<unsigned char*>(shared)),
        a_(shared_address(shared) + Panel::bytes),
        b_(a_ + Panel::bytes * static_cast<uint32_t>((width + chunk - 1) / chunk)) {}

  __device__ static int own_of(int r) {
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * r;
  }
  __device__ static int other_of(int c) { return c / 2 * 8 + threadIdx.x % 4 * 2 + c % 2; }
  __device__ static float sum(float x) { return quad_sum(x); }
  __device__ static float max(float x) { return quad_max(x); }
  __device__ static bool leads() { return threadIdx.x % 4 == 0; }
  __device__ static int column_of(int c) { return other_of(c); }

  template <class PlaceA, class PlaceB>
  __device__ __forceinline__ void multiply(float (&acc)[R][C], const Operand& a,
                                           const PlaceA& place_a, const Operand& b,
                                           const PlaceB& place_b) {
    const int panels = (a.width + chunk - 1) / chunk;
    __syncthreads();  // the last tiles are done with
    for (int n = 0; n < panels; ++n) {
      copy(a_ + n * Panel::bytes, a, place_a, n * chunk);
      copy(b_ + n * Panel::bytes, b, place_b, n * chunk);
    }
    landed();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t at_a = a_ + Panel::at(warp * 16 + outer_row(lane), outer_chunk(lane));
    const uint32_t at_b = b_ + Panel::at(inner_row(lane), inner_chunk(lane));
    float sums[1][8][4] = {};
    for (int n = 0; n < panels; ++n)
      product_rows<Dtype, 1, 8, 64, Panel, Panel>(sums, at_a + n * Panel::bytes,
                                                  at_b + n * Panel::bytes);
#pragma unroll
    for (int r = 0; r < R; ++r)
#pragma unroll
      for (int c = 0; c < C; ++c) acc[r][c] += sums[0][c / 2][2 * r + c % 2];
  }

  __device__ __forceinline__ void put(const float (&p)[R][C]) {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = 4 * k + i / 2 * 2;
        operand_[0][k][i] = pack<Dtype>(p[i % 2][c], p[i % 2][c + 1]);
      }
  }
  template <int Chunks, class Place>
  __device__ __forceinline__ void add(float (&acc)[Chunks][R][C], const Operand& x,
                                      const Place& place, int64_t, int first = 0) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < Chunks; ++n) {
      if (first + n * chunk >= x.width) break;
      __syncthreads();
      copy(b_, x, place, first + n * chunk);
      landed();
      if constexpr (Strict) {
        if (__syncthreads_or(non_finite_panel())) {
          add_selected(acc[n]);
          continue;
        }
      }
      float sums[1][8][4];
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < C; ++c) sums[0][c / 2][2 * r + c % 2] = acc[n][r][c];
      product_columns<Dtype, 1, 8, 64, Panel>(sums, operand_,
                                              b_ + Panel::at(outer_row(lane), outer_chunk(lane)));
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < C; ++c) acc[n][r][c] = sums[0][c / 2][2 * r + c % 2];
    }
  }

 private:
  template <class Place>
  __device__ __forceinline__ static void copy(uint32_t to, const Operand& x, const Place& place,
                                              int first) {
    const uint16_t* base = static_cast<const uint16_t*>(x.data);
    copy_rows<64, 64, threads>(to, x.width - first, base, [&](int row) -> const uint16_t* {
      const int64_t at = place(row);
      return at < 0 ? nullptr : base + at + first;
    });
  }
  __device__ static void landed() {
    copy_commit();
    copy_wait<0>();
    __syncthreads();
  }
  __device__ uint16_t* element(int row, int column) const {
    return reinterpret_cast<uint16_t*>(p_ + Panel::at(row, column / kChunk)) + column % kChunk;
  }
  __device__ const uint32_t* panel() const {
    return reinterpret_cast<const uint32_t*>(p_ + (b_ - shared_address(p_)));
  }
  // This thread's part of B has an infinity or NaN.
  __device__ __forceinline__ bool non_finite_panel() const {
    constexpr uint32_t kExponent = Dtype == FOVEA_F16 ? 0x7c00u : 0x7f80u;
    bool non_finite = false;
#pragma unroll 4
    for (int i = threadIdx.x; i < Panel::bytes / 4; i += threads) {
      const uint32_t two = panel()[i];
      non_finite |= (two & kExponent) == kExponent || (two >> 16 & kExponent) == kExponent;
    }
    return non_finite;
  }
  // acc += P X where P is not +0, X in the first panel of B.
  __device__ __forceinline__ void add_selected(float (&acc)[R][C]) const {
#pragma unroll
    for (int k = 0; k < 4; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint32_t*>(element(own_of(i % 2), other_of(4 * k + i / 2 * 2))) =
            operand_[0][k][i];
    __syncthreads();
    const auto value = [](uint16_t bits) {
      if constexpr (Dtype == FOVEA_F16)
        return to_float(reinterpret_cast<const f16&>(bits));
      else
        return to_float(reinterpret_cast<const bf16&>(bits));
    };
    const unsigned char* from = reinterpret_cast<const unsigned char*>(panel());
#pragma unroll 1
    for (int n = 0; n < others; ++n)
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const uint16_t bits = *element(own_of(r), n);
        if (bits == 0) continue;
        const float p = value(bits);
#pragma unroll
        for (int c = 0; c < C; ++c) {
          const int column = column_of(c);
          acc[r][c] += p * value(reinterpret_cast<const uint16_t*>(
                               from + Panel::at(n, column / kChunk))[column % kChunk]);
        }
      }
    __syncthreads();
  }

  unsigned char* p_;
  uint32_t a_, b_;
  uint32_t operand_[1][4][4];
};

}  // namespace fovea::cuda
