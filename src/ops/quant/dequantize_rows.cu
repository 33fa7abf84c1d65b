// SPDX-License-Identifier: Apache-2.0
// quant_dequantize where memory is the limit: rows of codes that are aligned and not rotated.
//   y = code * scale, + mean
// A block of 256 threads owns one head of a unit of 128 tokens, a thread eight columns of a token
// in turn.  They have one scale, or with channels one each.
#include "core/chunk.h"
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "ops/quant/dequantize.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "quant_dequantize";
constexpr int kThreads = 256, kColumns = 8;

template <class Y, CodeKind Kind>
__global__ void __launch_bounds__(kThreads)
    dequantize_rows_kernel(const __grid_constant__ Dequantize a) {
  constexpr bool kPairs = Kind == CodeKind::i4 || Kind == CodeKind::e2m1;
  constexpr int kBytes = kPairs ? kColumns / 2 : kColumns;
  const int64_t slot = quotient(blockIdx.x, a.h), head = blockIdx.x - slot * a.h;
  const CodeUnit unit = unit_at(a, slot);
  if (unit.sequence < 0 || unit.tokens == 0) return;
  const int chunks = static_cast<int>(a.d) / kColumns, tokens = static_cast<int>(unit.tokens);
  const float* mean = a.smooth ? mean_row(a, unit, head) : nullptr;
  const uint8_t* code = a.code.as<uint8_t>() + token_at(a.code, unit, head, 0);
  Y* y = a.y.as<Y>() + token_at(a.y, unit, head, 0);
  for (int n = threadIdx.x; n < tokens * chunks; n += kThreads) {
    const int i = n / chunks, c = (n - i * chunks) * kColumns;
    const auto in = *reinterpret_cast<const Chunk<uint8_t, kBytes>*>(code + i * a.code.stride[1] +
                                                                     c / (kPairs ? 2 : 1));
    const float shared = a.channel() ? 0 : scale_of(a, unit, head, i, c);
    Chunk<Y, kColumns> out;
#pragma unroll
    for (int k = 0; k < kColumns; ++k) {
      const uint32_t bits = kPairs ? in.x[k / 2] >> k % 2 * 4 & 15 : in.x[k];
      const float scale = a.channel() ? scale_of(a, unit, head, i, c + k) : shared;
      float x = product_of(code_value(Kind, bits), scale);
      if (mean) x += mean[(c + k) * a.mean.stride[3]];
      out.x[k] = from_float<Y>(x != x ? quiet_nan() : x);
    }
    *reinterpret_cast<Chunk<Y, kColumns>*>(y + i * a.y.stride[1] + c) = out;
  }
}

template <class Y, CodeKind Kind>
void run(Context& ctx, const Dequantize& a) {
  launch<dequantize_rows_kernel<Y, Kind>>(ctx, kOp, unit_count(a) * a.h, kThreads, 0, a);
}

template <class Y>
void run_kind(Context& ctx, const Dequantize& a) {
  if (a.kind == CodeKind::e4m3) return run<Y, CodeKind::e4m3>(ctx, a);
  if (a.kind == CodeKind::i8) return run<Y, CodeKind::i8>(ctx, a);
  if (a.kind == CodeKind::i4) return run<Y, CodeKind::i4>(ctx, a);
  run<Y, CodeKind::e2m1>(ctx, a);
}

Text offer(const Context&, const Dequantize& a, Plan& plan) {
  if (a.run) return "hadamard is 1";
  if (!a.code) return "code is not given";
  if (a.d % kColumns) return reason("d", a.d, "a multiple of 8");
  if (!chunked(a.code, 1, kColumns / static_cast<int>(a.per_byte()))) return reason_rows("code");
  if (!chunked(a.y, static_cast<size_t>(dtype_bytes(a.y_dtype)), kColumns)) return reason_rows("y");
  if (a.d > INT32_MAX / kCodeRun) return reason("d", a.d, "at most 2^24");
  if (unit_count(a) * a.h > INT32_MAX) return "more than 2^31 units of work";
  plan.kernel += Text(".") + dtype_name(a.y_dtype);
  plan.launch = [a](Context& ctx, void*) {
    with_fp(a.y_dtype, [&](auto y) { run_kind<decltype(y)>(ctx, a); });
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<Dequantize> quant_dequantize_rows = {"rows", cuda::offer};

}  // namespace fovea
