// SPDX-License-Identifier: Apache-2.0
// Operands policy of attend_rows_sm80.cuh: how q, and the keys and values of a step, become
// operands of mma.sync.
//
//   | operands     | keys and values                                                  |
//   | HalfOperands | of the dtype of q                                                |
//   | CodeOperands | codes of 8 bits, turned into f16 (tile/codes_sm80.cuh)           |
//
//   load_q  16 columns of a row of q, in the order that scores() takes
//   ready   q in the dtype of the products; the power of two that a row's products lack
//   scores  x += q k' of 16 keys
//   values  o += p v of 16 keys
//   order   columns of o in the usual order
#pragma once
#include "core/attend.h"
#include "cuda/loop/row_tile.cuh"
#include "cuda/tile/codes_sm80.cuh"
#include "cuda/tile/convert.cuh"

namespace fovea::cuda {

// Keys and values of Dtype.
template <int Dtype_, int D_, int E_, int Keys = kTileKeys>
struct HalfOperands {
  static constexpr int Dtype = Dtype_, D = D_, E = E_;  // Dtype: of q and o
  static constexpr int Math = Dtype;                    // of the products
  static constexpr bool codes = false, scaled_q = false;
  static constexpr int bytes = 2;    // of an element
  static constexpr int keys = Keys;  // of a step
  using TileK = Swizzled<Keys, D>;
  using TileV = Swizzled<Keys, E>;

  __device__ explicit HalfOperands(const Attend&) {}
  // Columns 16 c .. of the row `from`, if there is one, as half `half` of the fragment a.
  __device__ static void load_q(uint32_t (&a)[4], int half, const uint16_t* from, int c,
                                int width) {
    const int column = c * 16 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < 2; ++i)
      a[half + 2 * i] = from && column + 8 * i < width
                            ? *reinterpret_cast<const uint32_t*>(from + column + 8 * i)
                            : 0;
  }
  __device__ static void ready(uint32_t (&)[D / 16][4], float (&)[2]) {}
  __device__ __forceinline__ void scores(float (*x)[4], const uint32_t (&q)[D / 16][4],
                                         uint32_t at) const {
#pragma unroll
    for (int c = 0; c < D / 16; ++c) {
      uint32_t b[4];
      load_matrices(b, TileK::pair(at, c));
      mma<Dtype>(x[0], q[c], b[0], b[1]);
      mma<Dtype>(x[1], q[c], b[2], b[3]);
    }
  }
  __device__ __forceinline__ void values(float (&o)[E / 8][4], const uint32_t (&p)[4],
                                         uint32_t at) const {
#pragma unroll
    for (int c = 0; c < E / 16; ++c) {
      uint32_t b[4];
      load_matrices_transposed(b, TileV::pair(at, c));
      mma<Dtype>(o[2 * c], p, b[0], b[1]);
      mma<Dtype>(o[2 * c + 1], p, b[2], b[3]);
    }
  }
  __device__ static void order(float (&)[E / 8][4]) {}
};

// Codes with scales; Codes: E4m3Codes, FloatCodes or IntegerCodes.
//   f16 holds each code.  A row of q in bf16 is divided by a power of two first, so that its
//   largest element is below 2.  What f16 then loses of it is under 2^-25 of that element.
template <class Codes, int Dtype_, int D_, int E_, int Keys = kTileKeys>
struct CodeOperands {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, Math = FOVEA_F16;
  static constexpr bool codes = true, scaled_q = Dtype == FOVEA_BF16;
  static constexpr int bytes = 1;
  static constexpr int keys = Keys;
  using TileK = Swizzled<Keys, D / 2>;
  using TileV = Swizzled<Keys, E / 2>;
  Codes k, v;

  __device__ explicit CodeOperands(const Attend& a) : k(a.k_dtype), v(a.v_dtype) {}
  __device__ static void load_q(uint32_t (&a)[4], int half, const uint16_t* from, int c,
                                int width) {
    const int column = c * 16 + threadIdx.x % 4 * 4;
    uint2 x{};
    if (from && column < width) x = *reinterpret_cast<const uint2*>(from + column);
    a[half] = x.x, a[half + 2] = x.y;
  }
  __device__ static void ready(uint32_t (&q)[D / 16][4], float (&unit)[2]) {
    if constexpr (scaled_q) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = 0.f;
        each_word(q, half, [&](uint32_t& w) {
          const float2 x = pair_of<FOVEA_BF16>(w);
          most = fmaxf(most, fmaxf(fabsf(x.x), fabsf(x.y)));
        });
        const int exponent = min(max(__float_as_int(quad_max(most)) >> 23, 1), 253);
        unit[half] = __int_as_float(exponent << 23);
        const float by = __int_as_float((254 - exponent) << 23);
        each_word(q, half, [&](uint32_t& w) {
          const float2 x = pair_of<FOVEA_BF16>(w);
          w = pack<FOVEA_F16>(x.x * by, x.y * by);
        });
      }
    }
  }
  __device__ __forceinline__ void scores(float (*x)[4], const uint32_t (&q)[D / 16][4],
                                         uint32_t at) const {
#pragma unroll
    for (int c = 0; c < D / 32; ++c) {
      uint32_t w[4];  // keys 0 .. 7 and 8 .. 15, 16 columns each and the next 16
      load_matrices(w, TileK::pair(at, c));
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const CodePairs b = k.near(w[2 * j + half]);
          mma<Math>(x[j], q[2 * c + half], b.low, b.high);
        }
    }
  }
  __device__ __forceinline__ void values(float (&o)[E / 8][4], const uint32_t (&p)[4],
                                         uint32_t at) const {
#pragma unroll
    for (int c = 0; c < E / 32; ++c) {
      uint32_t w[4];  // keys 0 .. 7 and 8 .. 15 of 16 columns, the same of the next 16
      load_matrices_transposed(w, TileV::pair(at, c));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const CodePairs first = v.far(w[2 * half]), last = v.far(w[2 * half + 1]);
        mma<Math>(o[4 * c + 2 * half], p, first.low, last.low);
        mma<Math>(o[4 * c + 2 * half + 1], p, first.high, last.high);
      }
    }
  }
  __device__ static void order(float (&o)[E / 8][4]) {
#pragma unroll
    for (int c = 0; c < E / 16; ++c) order_columns(o[2 * c], o[2 * c + 1]);
  }

 private:
  // Calls f for the lane's words of the row `half`.
  template <class F>
  __device__ __forceinline__ static void each_word(uint32_t (&q)[D / 16][4], int half, F f) {
#pragma unroll
    for (int c = 0; c < D / 16; ++c) f(q[c][half]), f(q[c][half + 2]);
  }
};

}  // namespace fovea::cuda
