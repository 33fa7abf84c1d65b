// SPDX-License-Identifier: Apache-2.0
// quant_quantize where memory is the limit: aligned rows of 64, 128 or 256 columns, read once.
//   a = max |y|,  scale = a / 448,  code = e4m3(y 448 / a),  y = x or its rotation
// A block of 32 L threads, L = d / 8, owns one head of a unit of 128 tokens.  Thread (g, l) has
// columns 8 l .. of the four tokens whose codes stand at places 4 g .. of code_t: a word a column.
// The rotation is three butterflies in a thread and the others across its L lanes.
// Shared memory: d rows of 32 words, word w of row c at w ^ 2 (c / 8 % 16).  So at most two of a
// warp's writes, and none of its reads, share a bank.  One scale a sequence: a first pass leaves
// maxima.
#include "core/chunk.h"
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "ops/quant/quantize.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "quant_quantize";
constexpr int kTokens = 4, kColumns = 8;  // of a thread
constexpr int kGroups = 32;               // of L lanes, in a block

// Four codes as a word.
__device__ inline uint32_t four_codes(const float* y, float factor) {
  uint32_t word = 0;
#if __CUDA_ARCH__ >= 890
  for (int c = 0; c < 4; c += 2) {
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;"
        : "=h"(two)
        : "f"(y[c + 1] * factor), "f"(y[c] * factor));
    word |= static_cast<uint32_t>(two) << 8 * c;
  }
#else
  for (int c = 0; c < 4; ++c)
    word |= static_cast<uint32_t>(from_float<E4m3>(y[c] * factor).bits) << 8 * c;
#endif
  return word;
}

template <int Lanes>
__device__ inline void rotate(float (&y)[kColumns], int lane, uint32_t signs, float root) {
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

template <class X, int Lanes, Pass Which>
__global__ void __launch_bounds__(kGroups* Lanes, 2048 / (kGroups * Lanes) / 2)
    quantize_tile_kernel(const __grid_constant__ Quantize a, float* most) {
  using In = Chunk<X, kColumns>;
  __shared__ uint32_t s_code[Lanes * kColumns * 32];
  __shared__ uint32_t s_top[2];
  const int lane = threadIdx.x % Lanes, group = threadIdx.x / Lanes;
  const int64_t slot = quotient(blockIdx.x, a.h), head = blockIdx.x - slot * a.h;
  const CodeUnit unit = unit_at(a, slot);
  if (unit.sequence < 0) return;
  const auto token_of = [&](int i) {
    const int place = group * 4 + i;
    return a.permutes ? static_cast<int>(unpermuted(place)) : place;
  };

  float y[kTokens][kColumns];
  const X* x = a.x.as<X>() + token_at(a.x, unit, head, 0) + lane * kColumns;
#pragma unroll
  for (int i = 0; i < kTokens; ++i) {
    In in{};
    if (token_of(i) < unit.tokens)
      in = *reinterpret_cast<const In*>(x + token_of(i) * a.x.stride[1]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) y[i][c] = to_float(in.x[c]);
  }
  if (a.run) {
    uint32_t signs = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) signs |= flips(a.seed, lane * kColumns + c) << c;
    const float root = root_of(a.run);
#pragma unroll
    for (int i = 0; i < kTokens; ++i) rotate<Lanes>(y[i], lane, signs, root);
  }

  // Tokens 0 .. 63 are those of the first half of the warps.
  float top = 0;
  if (Which == Pass::codes) {
    top = sequence_greatest(a, unit, slot, head, most, s_top);
  } else {
#pragma unroll
    for (int i = 0; i < kTokens; ++i)
#pragma unroll
      for (int c = 0; c < kColumns; ++c) top = greatest(top, fabsf(y[i][c]));
    const bool halves = Which == Pass::all && a.block == 64;
    top = block_greatest(top, s_top, halves ? 2 : 1);
    if (Which == Pass::maxima) {
      if (threadIdx.x == 0) most[blockIdx.x] = top;
      return;
    }
  }
  const CodeScale scale(top);
  const int half = a.block == 64 && group >= kGroups / 2;
  if (lane == 0 && group == half * (kGroups / 2))
    put_scale(a, unit, head, CodePart(a, unit, half), scale.scale);

  uint32_t code[kTokens][2];
#pragma unroll
  for (int i = 0; i < kTokens; ++i)
#pragma unroll
    for (int part = 0; part < 2; ++part)
      code[i][part] = scale.factor == 0 ? 0 : four_codes(y[i] + 4 * part, scale.factor);
  if (a.code) {
    uint8_t* to = a.code.as<uint8_t>() + token_at(a.code, unit, head, 0) + lane * kColumns;
#pragma unroll
    for (int i = 0; i < kTokens; ++i)
      if (token_of(i) < unit.tokens)
        *reinterpret_cast<uint2*>(to + token_of(i) * a.code.stride[1]) =
            make_uint2(code[i][0], code[i][1]);
  }
  if (!a.code_t || unit.column >= a.padded) return;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    // Byte c of four tokens as one word.
    const auto byte = [&](int i) { return code[i][c / 4] >> c % 4 * 8 & 0xff; };
    s_code[(lane * kColumns + c) * 32 + (group ^ lane % 16 * 2)] =
        byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24;
  }
  __syncthreads();
  uint8_t* to = a.code_t.as<uint8_t>() + column_at(a.code_t, unit, head);
  for (int at = threadIdx.x; at < Lanes * kColumns * 16; at += kGroups * Lanes) {
    const int row = at / 16, pair = at % 16;
    *reinterpret_cast<uint2*>(to + row * a.code_t.stride[2] + pair * 8) =
        *reinterpret_cast<const uint2*>(s_code + row * 32 + (pair ^ row / 8 % 16) * 2);
  }
}

template <class X, int Lanes>
void run(Context& ctx, const Quantize& a, float* most) {
  const auto pass = [&]<Pass Which>() {
    launch<quantize_tile_kernel<X, Lanes, Which>>(ctx, kOp, unit_count(a) * a.h, kGroups * Lanes, 0,
                                                  a, most);
  };
  if (a.block) return pass.template operator()<Pass::all>();
  pass.template operator()<Pass::maxima>();
  pass.template operator()<Pass::codes>();
}

Text offer(const Context&, const Quantize& a, Plan& plan) {
  if (a.d != 64 && a.d != 128 && a.d != 256) return reason("d", a.d, "64, 128 or 256");
  const size_t bytes = static_cast<size_t>(dtype_bytes(a.x_dtype));
  if (!chunked(a.x, bytes, kColumns)) return reason_rows("x");
  if (a.code && !chunked(a.code, 1, kColumns)) return reason_rows("code");
  if (a.code_t && !chunked(a.code_t, 1, kColumns)) return reason_rows("code_t");
  if (unit_count(a) * a.h > INT32_MAX) return "more than 2^31 units of work";
  const Slot<float> most = plan.workspace.add<float>(a.block ? 0 : unit_count(a) * a.h);
  plan.kernel += Text(".") + dtype_name(a.x_dtype) + ".d" + Text::number(a.d);
  plan.launch = [a, most](Context& ctx, void* base) {
    with_fp(a.x_dtype, [&](auto x) {
      using X = decltype(x);
      const auto kernel = a.d == 64 ? run<X, 8> : a.d == 128 ? run<X, 16> : run<X, 32>;
      kernel(ctx, a, most.at(base));
    });
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Quantize> quant_quantize_tile = {"tile", cuda::offer};

}  // namespace fovea
