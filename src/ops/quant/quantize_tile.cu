// SPDX-License-Identifier: Apache-2.0
// quant_quantize where memory is the limit: aligned rows of 64, 128 or 256 columns, codes of a
// byte, groups of tokens or of channels.
//   a = max |y|,  scale = a / most,  code = y most / a,  y = x or its rotation, less a mean
// A block of 32 L threads, L = d / 8, owns one head of a unit of 128 tokens.  Thread (g, l) has
// columns 8 l .. of the four tokens whose codes stand at places 4 g .. of code_t: a word a column.
// The rotation is three butterflies in a thread and the others across its L lanes.
// Passes over x, each read once: sums of columns, magnitudes of columns or of halves, codes; fold
// (quantize_fold.cu) between them.  Means of blocks of 128 are the codes' pass's own.
//   sums     a tree of tokens: in a thread, across the lanes of a warp that share columns, then a
//            row of d floats for each warp
//   scales   magnitudes of tokens across L lanes, of parts by the greatest in shared memory
// A block takes item after item and copies numbers of 16 bits an item ahead: 64 bytes a thread.
// Shared memory: these, and d rows of 32 words, word w of row c at w ^ 2 (c / 8 % 16): codes to
// turn.  So at most two of a warp's writes, and none of its reads, share a bank.  The sums lie
// there before.
#include "core/chunk.h"
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/tile/copy.cuh"
#include "ops/quant/quantize.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "quant_quantize";
constexpr int kTokens = 4, kColumns = 8;  // of a thread
constexpr int kGroups = 32;               // of L lanes, in a block

// Four codes as a word; factor(c) of each.
template <bool Integer, class Factor>
__device__ inline uint32_t four_codes(const float* y, Factor factor) {
  uint32_t word = 0;
#pragma unroll
  for (int c = 0; c < 4; c += 2) {
    const float x[2] = {product_of(y[c], factor(c)), product_of(y[c + 1], factor(c + 1))};
    uint32_t two = 0;
    if constexpr (Integer) {
      // 1.5 * 2^23 leaves the nearest integer in the low bits: a byte of them, as no factor takes
      // a code past 127.
      two = __byte_perm(bits_of(__fadd_rn(x[0], 12582912.0f)),
                        bits_of(__fadd_rn(x[1], 12582912.0f)), 0x0040) &
            0xffff;
    } else {
#if __CUDA_ARCH__ >= 890
      uint16_t pair;
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(x[1]), "f"(x[0]));
      two = pair;
#else
      two = from_float<E4m3>(x[0]).bits | uint32_t{from_float<E4m3>(x[1]).bits} << 8;
#endif
    }
    word |= two << 8 * c;
  }
  return word;
}

template <int Lanes>
__device__ inline void rotate_tile(float (&y)[kColumns], int lane, uint32_t signs, float root) {
#pragma unroll
  for (int c = 0; c < kColumns; ++c) y[c] = signs >> c & 1 ? -y[c] : y[c];
#pragma unroll
  for (int step = 1; step < kColumns; step *= 2)
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (!(c & step)) {
        const float low = y[c], high = y[c + step];
        y[c] = low + high, y[c + step] = low - high;
      }
#pragma unroll
  for (int step = 1; step < Lanes; step *= 2)
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float other = __shfl_xor_sync(~0u, y[c], step);
      y[c] = lane & step ? other - y[c] : y[c] + other;
    }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) y[c] *= root;
}

// What a block of threads works on, and the numbers of a thread.
struct TileAt {
  CodeUnit unit;
  int64_t slot, head;
  int lane, group;
  bool permutes;
  __device__ int token(int i) const {
    const int place = group * kTokens + i;
    return permutes ? static_cast<int>(unpermuted(place)) : place;
  }
};
using Tile = float[kTokens][kColumns];

// Numbers of 16 bits are copied into shared memory an item ahead: each thread its own, 16 bytes a
// token, which no other reads.
template <class X>
constexpr bool kAhead = sizeof(X) == 2;
template <class X, int Lanes>
constexpr int kAheadBytes = kAhead<X> ? kTokens* kGroups* Lanes * 16 : 0;

template <int Lanes>
__device__ inline TileAt tile_at(const Quantize& a, int64_t item, bool permutes) {
  TileAt at;
  at.lane = threadIdx.x % Lanes, at.group = threadIdx.x / Lanes;
  at.slot = quotient(item, a.h), at.head = item - at.slot * a.h;
  at.unit = unit_at(a, at.slot);
  at.permutes = permutes;
  return at;
}

template <class X, int Lanes>
__device__ inline void copy_tile(const Quantize& a, int64_t item, bool permutes, uint4* s_ahead) {
  const TileAt at = tile_at<Lanes>(a, item, permutes);
  const X* x = a.x.as<X>() + at.lane * kColumns;
  if (at.unit.sequence >= 0) x += token_at(a.x, at.unit, at.head, 0);
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const bool there = at.token(i) < at.unit.tokens;
    const uint4* to = s_ahead + i * kGroups * Lanes + threadIdx.x;
    copy_async(static_cast<uint32_t>(__cvta_generic_to_shared(to)),
               x + (there ? at.token(i) * a.x.stride[1] : 0), there);
  }
  copy_commit();
}

template <class X, int Lanes>
__device__ inline void load_tile(const Quantize& a, const TileAt& at, const uint4* s_ahead,
                                 Tile& y) {
  using In = Chunk<X, kColumns>;
  const X* x = a.x.as<X>() + token_at(a.x, at.unit, at.head, 0) + at.lane * kColumns;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    In in{};
    if constexpr (kAhead<X>)
      in = *reinterpret_cast<const In*>(s_ahead + i * kGroups * Lanes + threadIdx.x);
    else if (at.token(i) < at.unit.tokens)
      in = *reinterpret_cast<const In*>(x + at.token(i) * a.x.stride[1]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) y[i][c] = to_float(in.x[c]);
  }
}

template <int Lanes>
__device__ inline void rotate_rows(const Quantize& a, int lane, Tile& y) {
  if (!a.run) return;
  uint32_t signs = 0;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) signs |= flips(a.seed, lane * kColumns + c) << c;
  const float root = root_of(a.run);
#pragma unroll
  for (int i = 0; i < kTokens; ++i) rotate_tile<Lanes>(y[i], lane, signs, root);
}

// Sums or magnitudes of a unit's columns: put(c, that of column c), in thread c.  Sums want tokens
// in their order.
template <int Lanes, bool Sums, class Put>
__device__ inline void join_columns(const Tile& y, const TileAt& at, float* s_rows, Put put) {
  const auto join = [](float u, float v) { return Sums ? u + v : greatest(u, v); };
  float x[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    if (Sums)
      x[c] = (y[0][c] + y[1][c]) + (y[2][c] + y[3][c]);
    else
      x[c] = greatest(greatest(fabsf(y[0][c]), fabsf(y[1][c])),
                      greatest(fabsf(y[2][c]), fabsf(y[3][c])));
  }
#pragma unroll
  for (int step = Lanes; step < 32; step *= 2)
#pragma unroll
    for (int c = 0; c < kColumns; ++c) x[c] = join(x[c], __shfl_xor_sync(~0u, x[c], step));
  constexpr int kWarps = Lanes, kWidth = Lanes * kColumns;
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 < Lanes)
#pragma unroll
    for (int c = 0; c < kColumns; c += 4)
      *reinterpret_cast<float4*>(s_rows + warp * kWidth + at.lane * kColumns + c) =
          make_float4(x[c], x[c + 1], x[c + 2], x[c + 3]);
  __syncthreads();
  if (threadIdx.x < kWidth) {
    float z[kWarps];
#pragma unroll
    for (int w = 0; w < kWarps; ++w) z[w] = s_rows[w * kWidth + threadIdx.x];
#pragma unroll
    for (int step = 1; step < kWarps; step *= 2)
#pragma unroll
      for (int w = 0; w < kWarps; w += 2 * step) z[w] = join(z[w], z[w + step]);
    put(static_cast<int>(threadIdx.x), z[0]);
  }
}

// Takes the means off; those of a block of 128 are made first.  Absent tokens stay 0.
template <int Lanes>
__device__ inline void centre_tile(const Quantize& a, const TileAt& at, Tile& y, float* s_rows) {
  if (a.smooth == FOVEA_SMOOTH_NONE) return;
  float mean[kColumns];
  if (a.smooth == FOVEA_SMOOTH_BLOCK) {
    const bool kept = at.unit.column < a.padded;
    float* to = mean_row(a, at.unit, at.head);
    join_columns<Lanes, true>(y, at, s_rows, [&](int c, float sum) {
      const float of = mean_of(a, sum, at.unit.tokens);
      s_rows[c] = of;  // column c of warp 0, which this thread alone has read
      if (kept) to[c * a.mean.stride[3]] = of;
    });
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kColumns; ++c) mean[c] = s_rows[at.lane * kColumns + c];
    __syncthreads();
  } else {
    const float* row = mean_row(a, at.unit, at.head);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) mean[c] = row[(at.lane * kColumns + c) * a.mean.stride[3]];
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i)
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (at.token(i) < at.unit.tokens) y[i][c] -= mean[c];
}

// Magnitudes of parts, to s_part.
template <int Lanes>
__device__ inline void tile_maxima(const Quantize& a, const TileAt& at, const Tile& y,
                                   uint32_t* s_part) {
  if (threadIdx.x < kCodeRun) s_part[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    float top = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) top = greatest(top, fabsf(y[i][c]));
    uint32_t bits = bits_of(top);
#pragma unroll
    for (int step = 1; step < Lanes; step *= 2) bits = max(bits, __shfl_xor_sync(~0u, bits, step));
    if (at.lane == 0 && bits) atomicMax(&s_part[part_of(a, at.token(i))], bits);
  }
  __syncthreads();
}

// Codes to both their places.
template <int Lanes>
__device__ inline void store_tile(const Quantize& a, const TileAt& at,
                                  const uint32_t (&code)[kTokens][2], uint32_t* s_code) {
  if (a.code) {
    uint8_t* to = a.code.as<uint8_t>() + token_at(a.code, at.unit, at.head, 0) + at.lane * kColumns;
#pragma unroll
    for (int i = 0; i < kTokens; ++i)
      if (at.token(i) < at.unit.tokens)
        *reinterpret_cast<uint2*>(to + at.token(i) * a.code.stride[1]) =
            make_uint2(code[i][0], code[i][1]);
  }
  if (!a.code_t || at.unit.column >= a.padded) return;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    // Byte c of four tokens as one word.
    const auto byte = [&](int i) { return code[i][c / 4] >> c % 4 * 8 & 0xff; };
    s_code[(at.lane * kColumns + c) * 32 + (at.group ^ at.lane % 16 * 2)] =
        byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
  }
  __syncthreads();
  uint8_t* to = a.code_t.as<uint8_t>() + column_at(a.code_t, at.unit, at.head);
  for (int n = threadIdx.x; n < Lanes * kColumns * 16; n += kGroups * Lanes) {
    const int row = n / 16, pair = n % 16;
    *reinterpret_cast<uint2*>(to + row * a.code_t.stride[2] + pair * 8) =
        *reinterpret_cast<const uint2*>(s_code + row * 32 + (pair ^ row / 8 % 16) * 2);
  }
}

template <int Lanes, bool Integer>
__device__ inline void code_tile(const Quantize& a, const TileAt& at, const Tile& y,
                                 const Partials& partials, uint32_t* s_part,
                                 uint32_t (&code)[kTokens][2]) {
  if (a.channel()) {
    const float* channel = partials.factors + (at.unit.sequence * a.h + at.head) * a.d;
    float factor[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) factor[c] = channel[at.lane * kColumns + c];
#pragma unroll
    for (int i = 0; i < kTokens; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        // Under a factor of 0 codes are 0, though y be NaN.
        float x[4];
#pragma unroll
        for (int c = 0; c < 4; ++c) x[c] = factor[4 * half + c] == 0 ? 0 : y[i][4 * half + c];
        code[i][half] = four_codes<Integer>(x, [&](int c) { return factor[4 * half + c]; });
      }
    return;
  }
  if (a.wide())
    wide_maxima(a, at.unit, at.slot, at.head, partials, s_part);
  else
    tile_maxima<Lanes>(a, at, y, s_part);
  scale_parts(a, at.unit, at.head, s_part);
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const float factor = float_of(s_part[part_of(a, at.token(i))]);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      code[i][half] =
          factor == 0 ? 0 : four_codes<Integer>(y[i] + 4 * half, [&](int) { return factor; });
  }
}

template <class X, int Lanes, Pass Which, bool Integer>
__global__ void __launch_bounds__(kGroups* Lanes, 2048 / (kGroups * Lanes) / 2)
    quantize_tile_kernel(const __grid_constant__ Quantize a,
                         const __grid_constant__ Partials partials) {
  extern __shared__ __align__(16) uint32_t s_code[];
  __shared__ uint32_t s_part[kCodeRun];
  float* s_rows = reinterpret_cast<float*>(s_code);
  uint4* s_ahead = reinterpret_cast<uint4*>(s_code + Lanes * kColumns * 32);
  const int64_t work = unit_count(a) * a.h;
  const bool permutes = a.permutes && Which == Pass::codes;
  if constexpr (kAhead<X>) copy_tile<X, Lanes>(a, blockIdx.x, permutes, s_ahead);
  for (int64_t item = blockIdx.x; item < work; item += gridDim.x) {
    const TileAt at = tile_at<Lanes>(a, item, permutes);
    Tile y;
    if constexpr (kAhead<X>) copy_wait<0>();
    load_tile<X, Lanes>(a, at, s_ahead, y);
    if constexpr (kAhead<X>)
      if (item + gridDim.x < work) copy_tile<X, Lanes>(a, item + gridDim.x, permutes, s_ahead);
    if (at.unit.sequence < 0) continue;
    rotate_rows<Lanes>(a, at.lane, y);
    __syncthreads();
    if (Which == Pass::sums) {
      join_columns<Lanes, true>(y, at, s_rows,
                                [&](int c, float sum) { partials.columns[item * a.d + c] = sum; });
      continue;
    }
    centre_tile<Lanes>(a, at, y, s_rows);
    if (Which == Pass::maxima) {
      if (a.channel()) {
        join_columns<Lanes, false>(
            y, at, s_rows, [&](int c, float top) { partials.columns[item * a.d + c] = top; });
      } else {
        tile_maxima<Lanes>(a, at, y, s_part);
        if (threadIdx.x < 2)
          partials.halves[2 * item + threadIdx.x] = float_of(s_part[threadIdx.x]);
      }
      continue;
    }
    uint32_t code[kTokens][2];
    code_tile<Lanes, Integer>(a, at, y, partials, s_part, code);
    store_tile<Lanes>(a, at, code, s_code);
  }
}

template <class X, int Lanes, bool Integer>
void run(Context& ctx, const Quantize& a, const Partials& partials) {
  constexpr int kThreads = kGroups * Lanes, kBlocks = 2048 / kThreads / 2;
  const int64_t work = unit_count(a) * a.h;
  const int64_t resident = int64_t{device_info(ctx).multiprocessors} * kBlocks;
  const int64_t blocks = kAhead<X> && work > resident ? resident : work;
  const auto pass = [&]<Pass Which>() {
    launch<quantize_tile_kernel<X, Lanes, Which, Integer && Which == Pass::codes>>(
        ctx, kOp, blocks, kThreads, Lanes * kColumns * 128 + kAheadBytes<X, Lanes>, a, partials);
  };
  if (a.smooth == FOVEA_SMOOTH_SEQUENCE) {
    pass.template operator()<Pass::sums>();
    launch_fold(ctx, a, partials, Fold::means);
  }
  if (a.wide() || a.channel()) pass.template operator()<Pass::maxima>();
  if (a.channel()) launch_fold(ctx, a, partials, Fold::scales);
  pass.template operator()<Pass::codes>();
}

template <class X, int Lanes>
auto run_of(CodeKind kind) {
  return kind == CodeKind::i8 ? run<X, Lanes, true> : run<X, Lanes, false>;
}

Text offer(const Context&, const Quantize& a, Plan& plan) {
  if (a.d != 64 && a.d != 128 && a.d != 256) return reason("d", a.d, "64, 128 or 256");
  if (a.per_byte() != 1) return "code_format is set";
  if (a.permutes && a.smooth == FOVEA_SMOOTH_BLOCK) return "smooth is 2 with v_perm16";
  const size_t bytes = static_cast<size_t>(dtype_bytes(a.x_dtype));
  if (!chunked(a.x, bytes, kColumns)) return reason_rows("x");
  if (a.code && !chunked(a.code, 1, kColumns)) return reason_rows("code");
  if (a.code_t && !chunked(a.code_t, 1, kColumns)) return reason_rows("code_t");
  if (unit_count(a) * a.h > INT32_MAX) return "more than 2^31 units of work";
  const PartialSlots slots(a, plan);
  plan.kernel += Text(".") + dtype_name(a.x_dtype) + ".d" + Text::number(a.d);
  plan.launch = [a, slots](Context& ctx, void* base) {
    with_fp(a.x_dtype, [&](auto x) {
      using X = decltype(x);
      const auto kernel = a.d == 64    ? run_of<X, 8>(a.kind)
                          : a.d == 128 ? run_of<X, 16>(a.kind)
                                       : run_of<X, 32>(a.kind);
      kernel(ctx, a, slots.at(base));
    });
    launch_delta(ctx, a);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Quantize> quant_quantize_tile = {"tile", cuda::offer};

}  // namespace fovea
