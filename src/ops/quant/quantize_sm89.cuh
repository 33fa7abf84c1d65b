// SPDX-License-Identifier: Apache-2.0
// quant_quantize where memory is the limit: aligned rows of 64, 128 or 256 columns, every group but
// those of columns of code_t; codes of half a byte from numbers of 16 bits, and not transposed.
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
#pragma once
#include "core/chunk.h"
#include "core/dtype.h"
#include "cuda/launch.h"
#include "cuda/tile/convert.cuh"
#include "cuda/tile/copy.cuh"
#include "ops/quant/quantize.cuh"

namespace fovea::cuda {
namespace {

constexpr int kTokens = 4, kColumns = kTileColumns;  // of a thread
constexpr int kGroups = 32;                          // of L lanes, in a block

// A number's nearest integer in the low bits: 1.5 * 2^23 leaves it there.  Enough of them, as no
// factor takes a code past the largest.
__device__ inline uint32_t integer_bits(float x) {
  return bits_of(__fadd_rn(x, 12582912.0f));
}

// Four codes of a byte as a word; factor(c) of each.
template <CodeKind Kind, class Factor>
__device__ inline uint32_t four_codes(const float* y, Factor factor) {
  uint32_t two[2];  // the low halves
#pragma unroll
  for (int c = 0; c < 4; c += 2) {
    const float x[2] = {product_of(y[c], factor(c)), product_of(y[c + 1], factor(c + 1))};
    if constexpr (Kind == CodeKind::i8) {
      two[c / 2] = __byte_perm(integer_bits(x[0]), integer_bits(x[1]), 0x0040);
    } else {
#if __CUDA_ARCH__ >= 890
      uint16_t pair;
      asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(x[1]), "f"(x[0]));
      two[c / 2] = pair;
#else
      two[c / 2] = fovea::from_float<E4m3>(x[0]).bits | uint32_t{fovea::from_float<E4m3>(x[1]).bits}
                                                            << 8;
#endif
    }
  }
  return __byte_perm(two[0], two[1], 0x5410);
}

// A thread's codes of one token: two words, one where a byte holds two codes.
template <CodeKind Kind, class Factor>
__device__ inline void codes_of(const float (&y)[kColumns], Factor factor, uint32_t (&code)[2]) {
  code[0] = code[1] = 0;
  if constexpr (Kind == CodeKind::e4m3 || Kind == CodeKind::i8) {
    code[0] = four_codes<Kind>(y, factor);
    code[1] = four_codes<Kind>(y + 4, [&](int c) { return factor(4 + c); });
  } else {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float x = product_of(y[c], factor(c));
      const uint32_t bits = Kind == CodeKind::i4 ? integer_bits(x) & 15 : e2m1_of(x);
      code[0] |= bits << 4 * c;
    }
  }
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

// Where a block of threads is in its walk over items, in 32 bits: an item is a head of a slot, and
// without `start` a slot a unit of a row.
struct Walk {
  uint32_t slot, head, batch, index;
};

__device__ inline Walk walk_from(const Quantize& a, uint32_t item) {
  Walk at;
  const auto heads = static_cast<uint32_t>(a.h), units = static_cast<uint32_t>(a.units);
  at.slot = item / heads, at.head = item - at.slot * heads;
  at.batch = at.slot / units, at.index = at.slot - at.batch * units;
  return at;
}

// `step` items on, `by` being the walk of an item of that number.
__device__ inline void advance(const Quantize& a, const Walk& by, Walk& at) {
  const auto heads = static_cast<uint32_t>(a.h), units = static_cast<uint32_t>(a.units);
  at.head += by.head;
  const uint32_t carry = at.head >= heads;
  at.head -= carry ? heads : 0;
  at.slot += by.slot + carry, at.index += by.index + carry, at.batch += by.batch;
  if (at.index >= units) at.index -= units, ++at.batch;
}

// What a block of threads works on, and the tokens of a thread.
struct TileAt {
  int64_t batch, first;  // of x; the token that the unit begins with
  int64_t column;        // of code_t
  uint32_t slot, head, sequence, index;
  int tokens;  // -1: nobody's unit
  int lane, group, base, step;

  // Of places 4 g .. of code_t.
  __device__ int token(int i) const { return base + (i & 1) + (i >> 1) * step; }
  __device__ int64_t row(const View<4>& x) const {
    return batch * x.stride[0] + first * x.stride[1] + head * x.stride[2];
  }
  __device__ CodeUnit unit(const Quantize& a) const { return unit_at(a, slot); }
};

template <int Lanes>
__device__ inline TileAt tile_at(const Quantize& a, const Walk& walk, bool permutes) {
  TileAt at;
  at.lane = threadIdx.x % Lanes, at.group = threadIdx.x / Lanes;
  at.base = permutes ? (at.group & ~3) * 4 + (at.group & 3) * 2 : at.group * 4;
  at.step = permutes ? 8 : 2;
  at.slot = walk.slot, at.head = walk.head;
  if (a.start) {
    const CodeUnit unit = unit_at(a, walk.slot);
    at.batch = 0, at.first = unit.token, at.column = unit.column;
    at.sequence = static_cast<uint32_t>(unit.sequence),
    at.index = static_cast<uint32_t>(unit.index);
    at.tokens = unit.sequence < 0 ? -1 : static_cast<int>(unit.tokens);
    return at;
  }
  at.batch = at.sequence = walk.batch, at.index = walk.index;
  at.first = at.column = int64_t{walk.index} * kCodeRun;
  at.tokens = static_cast<int>(a.s - at.first < kCodeRun ? a.s - at.first : kCodeRun);
  return at;
}

using Tile = float[kTokens][kColumns];

// The part of a token, of parts_of(a): (block << parts) + what of i % 8 the group tells apart.
struct Parts {
  int block, parts;  // powers of two
  __device__ int operator()(int i) const {
    return (i >> block << parts) + ((i & 7) >> (3 - parts));
  }
  // Of a warp's tokens, which are of one run of 16 each.
  __device__ bool shared() const { return parts == 0 && block >= 4; }
  // Of tokens 2 n and 2 n + 1.
  __device__ bool pairs() const { return block > 0 && parts < 3; }
  __device__ int count() const { return 1 << (7 - block + parts); }
  __device__ int first(int part) const {
    return (part >> parts << block) + ((part & ((1 << parts) - 1)) << (3 - parts));
  }
};
__device__ inline Parts parts_of(const Quantize& a) {
  const int kind = a.group.kind, block = static_cast<int>(a.group.block);
  if (kind == FOVEA_SCALE_GROUP_TOKEN) return {0, 0};
  if (a.wide()) return {6, 0};
  return {31 - __clz(block), kind == FOVEA_SCALE_GROUP_THREAD_Q   ? 3
                             : kind == FOVEA_SCALE_GROUP_THREAD_K ? 2
                                                                  : 0};
}

// Numbers of 16 bits are copied into shared memory an item ahead: each thread its own, 16 bytes a
// token, which no other reads.
template <class X>
constexpr bool kAhead = sizeof(X) == 2;
template <class X, int Lanes>
constexpr int kAheadBytes = kAhead<X> ? kTokens* kGroups* Lanes * 16 : 0;

template <class X, int Lanes>
__device__ inline void copy_tile(const Quantize& a, const TileAt& at, uint4* s_ahead) {
  const X* x = a.x.as<X>() + at.row(a.x) + (at.lane * kColumns + at.base * a.x.stride[1]);
  const int64_t pair = at.step * a.x.stride[1];
  auto to = static_cast<uint32_t>(__cvta_generic_to_shared(s_ahead + threadIdx.x));
  if (at.tokens == kCodeRun) {
#pragma unroll
    for (int i = 0; i < kTokens; ++i)
      copy_async(to + i * kGroups * Lanes * 16,
                 x + (i & 1 ? a.x.stride[1] : 0) + (i & 2 ? pair : 0), true);
    return copy_commit();
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    const bool there = at.token(i) < at.tokens;
    const X* from = x + (i & 1 ? a.x.stride[1] : 0) + (i & 2 ? pair : 0);
    copy_async(to + i * kGroups * Lanes * 16, there ? from : a.x.as<X>(), there);
  }
  copy_commit();
}

template <class X, int Lanes>
__device__ inline void load_tile(const Quantize& a, const TileAt& at, const uint4* s_ahead,
                                 Tile& y) {
  if constexpr (kAhead<X>) {
    constexpr int dtype = std::is_same_v<X, Bf16> ? FOVEA_BF16 : FOVEA_F16;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      const uint4 in = s_ahead[i * kGroups * Lanes + threadIdx.x];
      const uint32_t pairs[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
      for (int c = 0; c < kColumns; c += 2) {
        const float2 two = pair_of<dtype>(pairs[c / 2]);
        y[i][c] = two.x, y[i][c + 1] = two.y;
      }
    }
    return;
  }
  using In = Chunk<X, kColumns>;
  const X* x = a.x.as<X>() + at.row(a.x) + at.lane * kColumns;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    In in{};
    if (at.token(i) < at.tokens) in = *reinterpret_cast<const In*>(x + at.token(i) * a.x.stride[1]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) y[i][c] = fovea::to_float(in.x[c]);
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

// Whether the rows of two items fit where codes are turned.
template <int Lanes>
constexpr bool kTwoRows = Lanes < 32;

// Sums or magnitudes of a unit's columns: put(c, that of column c), in thread c.  Sums want tokens
// in their order.  One barrier: s_rows is another memory from one call to the next.
template <int Lanes, bool Sums, class Put>
__device__ inline void join_columns(const Tile& y, const TileAt& at, float* s_rows, Put put) {
  const auto join = [](float u, float v) { return Sums ? u + v : greatest(u, v); };
  if (!kTwoRows<Lanes>) __syncthreads();
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

// Of a thread's columns, from a multiple of 16 bytes on.
__device__ inline void eight_of(const float* from, float (&x)[kColumns]) {
#pragma unroll
  for (int c = 0; c < kColumns; c += 4) {
    const float4 four = *reinterpret_cast<const float4*>(from + c);
    x[c] = four.x, x[c + 1] = four.y, x[c + 2] = four.z, x[c + 3] = four.w;
  }
}

// Takes the means off; those of a block of 128 are made first.  Absent tokens stay 0.
template <int Lanes>
__device__ inline void centre_tile(const Quantize& a, const TileAt& at, Tile& y, float* s_rows) {
  if (a.smooth == FOVEA_SMOOTH_NONE) return;
  const bool block = a.smooth == FOVEA_SMOOTH_BLOCK;
  const int64_t entry = block ? at.column / kCodeRun : a.start ? at.sequence : 0;
  float mean[kColumns], *row = a.mean.at(at.batch, int64_t{at.head}, entry);
  if (block) {
    const bool kept = at.column < a.padded;
    if (a.code_t) __syncthreads();  // codes of the item before lie there
    join_columns<Lanes, true>(y, at, s_rows, [&](int c, float sum) {
      const float of = mean_of(a, sum, at.tokens);
      s_rows[c] = of;  // column c of warp 0, which this thread alone has read
      if (kept) row[c * a.mean.stride[3]] = of;
    });
    __syncthreads();
    eight_of(s_rows + at.lane * kColumns, mean);
  } else if (a.mean.stride[3] == 1 && reinterpret_cast<uintptr_t>(row) % 16 == 0) {
    eight_of(row + at.lane * kColumns, mean);
  } else {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) mean[c] = row[(at.lane * kColumns + c) * a.mean.stride[3]];
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i)
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      if (at.token(i) < at.tokens) y[i][c] -= mean[c];
}

// Magnitudes of parts, as bits, to s_part, which is 0; the barrier is the caller's.
template <int Lanes>
__device__ inline void tile_maxima(const Parts& parts, const TileAt& at, const Tile& y,
                                   uint32_t* s_part) {
  uint32_t bits[kTokens];
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    float top = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) top = greatest(top, fabsf(y[i][c]));
    bits[i] = bits_of(top);
  }
  if (parts.shared()) {
    const uint32_t top = __reduce_max_sync(~0u, max(max(bits[0], bits[1]), max(bits[2], bits[3])));
    if (threadIdx.x % 32 == 0) atomicMax(&s_part[parts(at.token(0))], top);
    return;
  }
  // Lanes 4 n + i have token i: each step hands the half of the tokens over that is the other's.
  const bool odd = at.lane & 1, high = at.lane & 2;
  uint32_t two[2];
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint32_t other = __shfl_xor_sync(~0u, odd ? bits[2 * n] : bits[2 * n + 1], 1);
    two[n] = max(odd ? bits[2 * n + 1] : bits[2 * n], other);
  }
  uint32_t top = max(high ? two[1] : two[0], __shfl_xor_sync(~0u, high ? two[0] : two[1], 2));
#pragma unroll
  for (int step = 4; step < Lanes; step *= 2) top = max(top, __shfl_xor_sync(~0u, top, step));
  if (at.lane < kTokens) atomicMax(&s_part[parts(at.token(at.lane))], top);
}

// Scales of a unit's parts, by threads of their number.
__device__ inline void put_scales(const Quantize& a, const Parts& parts, const TileAt& at,
                                  const uint32_t* s_part) {
  const int part = static_cast<int>(threadIdx.x), count = parts.count();
  if (part < count && (part >> parts.parts << parts.block) < at.tokens) {
    const CodeScale scale(float_of(s_part[part]), a.most);
    const int64_t first = a.group.first(a.start, a.s, at.sequence);
    *a.scale.at(at.batch, int64_t{at.head}, first + int64_t{at.index} * count + part) =
        parts.first(part) < at.tokens ? scale.scale : 0;
  }
  if (at.index == 0 && (a.start || a.s == 0))
    clear_rest(a, at.unit(a), at.head, part, static_cast<int>(blockDim.x));
}

// Byte c of four words as word c.
__device__ inline void turn_bytes(uint32_t x, uint32_t y, uint32_t z, uint32_t w,
                                  uint32_t (&to)[4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint32_t pick = half ? 0x7362 : 0x5140;
    const uint32_t first = __byte_perm(x, y, pick), second = __byte_perm(z, w, pick);
    to[2 * half] = __byte_perm(first, second, 0x5410);
    to[2 * half + 1] = __byte_perm(first, second, 0x7632);
  }
}

// Codes to both their places.
template <int Lanes, CodeKind Kind>
__device__ inline void store_tile(const Quantize& a, const TileAt& at,
                                  const uint32_t (&code)[kTokens][2], uint32_t* s_code) {
  constexpr bool kPairs = Kind == CodeKind::i4 || Kind == CodeKind::e2m1;
  if (a.code) {
    uint8_t* to = a.code.as<uint8_t>() + at.row(a.code) + at.base * a.code.stride[1] +
                  at.lane * (kPairs ? kColumns / 2 : kColumns);
    const int64_t pair = at.step * a.code.stride[1];
#pragma unroll
    for (int i = 0; i < kTokens; ++i)
      if (at.token(i) < at.tokens) {
        uint8_t* row = to + (i & 1 ? a.code.stride[1] : 0) + (i & 2 ? pair : 0);
        if constexpr (kPairs)
          *reinterpret_cast<uint32_t*>(row) = code[i][0];
        else
          *reinterpret_cast<uint2*>(row) = make_uint2(code[i][0], code[i][1]);
      }
  }
  if (kPairs || !a.code_t || at.column >= a.padded) return;
  // What lies there has been read at the barrier of parts, but means.
  if (a.channel() || a.wide() || a.smooth == FOVEA_SMOOTH_BLOCK) __syncthreads();
#pragma unroll
  for (int word = 0; word < 2; ++word) {
    uint32_t columns[4];
    turn_bytes(code[0][word], code[1][word], code[2][word], code[3][word], columns);
#pragma unroll
    for (int c = 0; c < 4; ++c)
      s_code[(at.lane * kColumns + word * 4 + c) * 32 + (at.group ^ at.lane % 16 * 2)] = columns[c];
  }
  __syncthreads();
  uint8_t* to = a.code_t.at<uint8_t>(at.batch, int64_t{at.head}) + at.column;
  for (int n = threadIdx.x; n < Lanes * kColumns * 16; n += kGroups * Lanes) {
    const int row = n / 16, pair = n % 16;
    *reinterpret_cast<uint2*>(to + row * a.code_t.stride[2] + pair * 8) =
        *reinterpret_cast<const uint2*>(s_code + row * 32 + (pair ^ row / 8 % 16) * 2);
  }
}

// Of e2m1: a scale for 16 or 32 columns, which 2 or 4 lanes hold.
template <int Lanes>
__device__ inline void code_runs(const Quantize& a, const TileAt& at, const Tile& y,
                                 uint32_t (&code)[kTokens][2]) {
  const int64_t micro = a.micro();
  const int lanes = static_cast<int>(micro) / kColumns, runs = Lanes / lanes;
  uint8_t* scales = a.scale.at<uint8_t>(at.batch, int64_t{at.head}, at.first * runs);
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    float top = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) top = greatest(top, fabsf(y[i][c]));
    uint32_t bits = bits_of(top);
    bits = max(bits, __shfl_xor_sync(~0u, bits, 1));
    if (lanes == 4) bits = max(bits, __shfl_xor_sync(~0u, bits, 2));
    const MicroScale scale(float_of(bits), micro);
    if (at.token(i) < at.tokens && (at.lane & (lanes - 1)) == 0)
      scales[(at.token(i) * runs + at.lane / lanes) * a.scale.stride[2]] = scale.byte;
    codes_of<CodeKind::e2m1>(
        y[i], [&](int) { return scale.factor; }, code[i]);
    if (scale.factor == 0) code[i][0] = 0;
  }
}

template <int Lanes, CodeKind Kind>
__device__ inline void code_tile(const Quantize& a, const TileAt& at, const Tile& y,
                                 const Partials& partials, uint32_t* s_part,
                                 uint32_t (&code)[kTokens][2]) {
  if constexpr (Kind == CodeKind::e2m1) return code_runs<Lanes>(a, at, y, code);
  if (a.channel()) {
    const float* channel = partials.factors + (at.sequence * a.h + at.head) * a.d;
    float factor[kColumns];
    eight_of(channel + at.lane * kColumns, factor);
    // Under a factor of 0 codes are 0, though y be NaN.
    constexpr int bits = Kind == CodeKind::i4 ? 4 : 8;
    uint32_t kept[2] = {};
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
      kept[c * bits / 32] |= factor[c] == 0 ? 0 : (1u << bits) - 1 << c * bits % 32;
#pragma unroll
    for (int i = 0; i < kTokens; ++i) {
      codes_of<Kind>(
          y[i], [&](int c) { return factor[c]; }, code[i]);
      code[i][0] &= kept[0], code[i][1] &= kept[1];
    }
    return;
  }
  const Parts parts = parts_of(a);
  float factor[kTokens];
  if (a.wide()) {
    const float* halves = partials.halves + 2 * (at.slot * a.h + at.head);
    factor[0] = halves[at.token(0) >> 6];
  } else {
    tile_maxima<Lanes>(parts, at, y, s_part);
    __syncthreads();
    put_scales(a, parts, at, s_part);
    factor[0] = CodeScale(float_of(s_part[parts(at.token(0))]), a.most).factor;
  }
#pragma unroll
  for (int i = 1; i < kTokens; ++i) {
    // The same for all threads, so that divisions are spared.
    const bool same = parts.shared() || (i % 2 && parts.pairs());
    factor[i] =
        same ? factor[i - 1] : CodeScale(float_of(s_part[parts(at.token(i))]), a.most).factor;
  }
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    codes_of<Kind>(
        y[i], [&](int) { return factor[i]; }, code[i]);
    if (factor[i] == 0) code[i][0] = code[i][1] = 0;
  }
}

// Of a unit's columns, or of its halves, to the workspace.
template <int Lanes>
__device__ inline void keep_maxima(const Quantize& a, const TileAt& at, const Tile& y,
                                   const Partials& partials, float* s_rows, uint32_t* s_part) {
  const int64_t item = at.slot * a.h + at.head;
  if (a.channel() && a.smooth == FOVEA_SMOOTH_BLOCK) __syncthreads();  // means lie there
  if (a.channel())
    return join_columns<Lanes, false>(
        y, at, s_rows, [&](int c, float top) { partials.columns[item * a.d + c] = top; });
  tile_maxima<Lanes>(parts_of(a), at, y, s_part);
  __syncthreads();
  if (threadIdx.x < 2) partials.halves[2 * item + threadIdx.x] = float_of(s_part[threadIdx.x]);
}

template <class X, int Lanes, Pass Which, CodeKind Kind>
__global__ void __launch_bounds__(kGroups* Lanes, 2048 / (kGroups * Lanes) / 2)
    quantize_tile_kernel(const __grid_constant__ Quantize a,
                         const __grid_constant__ Partials partials) {
  extern __shared__ __align__(16) uint32_t s_code[];
  __shared__ uint32_t s_part[3][kCodeRun];
  constexpr int kCodeWords = Lanes * kColumns * 32, kRowWords = Lanes * Lanes * kColumns;
  uint4* s_ahead = reinterpret_cast<uint4*>(s_code + kCodeWords);
  const auto work = static_cast<uint32_t>(unit_count(a) * a.h);
  const bool permutes = a.permutes && Which == Pass::codes;
  const Walk by = walk_from(a, gridDim.x);
  Walk next = walk_from(a, blockIdx.x);
  if constexpr (kAhead<X>) copy_tile<X, Lanes>(a, tile_at<Lanes>(a, next, permutes), s_ahead);
  if (threadIdx.x < kCodeRun) s_part[0][threadIdx.x] = 0;
  __syncthreads();
  int third = 0, half = 0;
  for (uint32_t item = blockIdx.x; item < work; item += gridDim.x) {
    const TileAt at = tile_at<Lanes>(a, next, permutes);
    Tile y;
    if constexpr (kAhead<X>) copy_wait<0>();
    load_tile<X, Lanes>(a, at, s_ahead, y);
    advance(a, by, next);
    if constexpr (kAhead<X>)
      if (item + gridDim.x < work)
        copy_tile<X, Lanes>(a, tile_at<Lanes>(a, next, permutes), s_ahead);
    if (at.tokens < 0) continue;
    rotate_rows<Lanes>(a, at.lane, y);
    // Parts and rows of this item; the parts of the next are cleared.  Who is here has passed the
    // barrier of the item before, so all have read what the one before that left.
    uint32_t* parts = s_part[third];
    float* rows = reinterpret_cast<float*>(s_code) + (kTwoRows<Lanes> ? half : 0) * kRowWords;
    third = third == 2 ? 0 : third + 1, half ^= 1;
    if (threadIdx.x < kCodeRun) s_part[third][threadIdx.x] = 0;
    if (Which == Pass::sums) {
      join_columns<Lanes, true>(y, at, rows, [&](int c, float sum) {
        partials.columns[(at.slot * a.h + at.head) * a.d + c] = sum;
      });
      continue;
    }
    centre_tile<Lanes>(a, at, y, rows);
    if (Which == Pass::maxima) {
      keep_maxima<Lanes>(a, at, y, partials, rows, parts);
      continue;
    }
    uint32_t code[kTokens][2];
    code_tile<Lanes, Kind>(a, at, y, partials, parts, code);
    store_tile<Lanes, Kind>(a, at, code, s_code);
  }
}

template <class X, int Lanes, CodeKind Kind>
void run(Context& ctx, const Quantize& a, const Partials& partials) {
  constexpr int kThreads = kGroups * Lanes, kBlocks = 2048 / kThreads / 2;
  const int64_t work = unit_count(a) * a.h;
  const int64_t resident = int64_t{device_info(ctx).multiprocessors} * kBlocks;
  const int64_t blocks = kAhead<X> && work > resident ? resident : work;
  const auto pass = [&]<Pass Which>() {
    // Sums and magnitudes are those of any kind.
    constexpr CodeKind kKind = Which == Pass::codes ? Kind : CodeKind::e4m3;
    launch<quantize_tile_kernel<X, Lanes, Which, kKind>>(
        ctx, "quant_quantize", blocks, kThreads, Lanes * kColumns * 128 + kAheadBytes<X, Lanes>, a,
        partials);
  };
  if (a.smooth == FOVEA_SMOOTH_SEQUENCE) {
    pass.template operator()<Pass::sums>();
    launch_fold(ctx, a, partials, Fold::means);
  }
  if (a.wide() || a.channel()) pass.template operator()<Pass::maxima>();
  if (a.wide()) launch_fold(ctx, a, partials, Fold::blocks);
  if (a.channel()) launch_fold(ctx, a, partials, Fold::scales);
  pass.template operator()<Pass::codes>();
}

template <class X, int Lanes>
void run_kind(Context& ctx, const Quantize& a, const Partials& partials) {
  if constexpr (kAhead<X>) {
    if (a.kind == CodeKind::i4) return run<X, Lanes, CodeKind::i4>(ctx, a, partials);
    if (a.kind == CodeKind::e2m1) return run<X, Lanes, CodeKind::e2m1>(ctx, a, partials);
  }
  if (a.kind == CodeKind::i8) return run<X, Lanes, CodeKind::i8>(ctx, a, partials);
  run<X, Lanes, CodeKind::e4m3>(ctx, a, partials);
}

}  // namespace

template <int Dtype, int D>
void quantize_tile(Context& ctx, const Quantize& a, const Partials& partials) {
  using X = std::conditional_t<Dtype == FOVEA_F32, float,
                               std::conditional_t<Dtype == FOVEA_F16, F16, Bf16>>;
  run_kind<X, D / kColumns>(ctx, a, partials);
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d)                                                              \
  template void fovea::cuda::quantize_tile<dtype, d>(fovea::Context&, const fovea::Quantize&, \
                                                     const fovea::cuda::Partials&);
