// SPDX-License-Identifier: Apache-2.0
// Rows of gradients that Hopper's kernels of x_gla_backward store themselves.
#pragma once
#include "core/locate.h"
#include "core/pieces.h"
#include "core/recur.h"
#include "cuda/launch.h"

namespace fovea::cuda {

// Whether a row has a gradient: of q, of k and v.
__device__ __forceinline__ bool has_row(const Recur& a, int64_t batch, int64_t at, bool of_q) {
  if (!a.in_use(batch, at)) return false;
  if (!of_q) return true;
  const RunTokens run = a.run[a.sequence_of(batch, at)];
  return at - run.begin >= run.from;
}

struct GlaRows {
  Floats<4> out;
  int64_t heads, width;
  bool of_q;
};

// Zeroes the rows of an output that its chain does not store, a warp a row.
static __global__ void __launch_bounds__(256)
    gla_unused_rows_sm90(const __grid_constant__ Recur a, GlaRows rows, int64_t work) {
  const int lane = threadIdx.x % 32;
  const int64_t element = rows.out.dtype == FOVEA_F32 ? 4 : 2;
  for (int64_t w = blockIdx.x * int64_t{256 / 32} + threadIdx.x / 32; w < work;
       w += gridDim.x * int64_t{256 / 32}) {
    const int64_t batch = quotient(w, a.s), at = w - batch * a.s;
    if (has_row(a, batch, at, rows.of_q)) continue;
    for (int64_t head = 0; head < rows.heads; ++head) {
      auto* to = static_cast<unsigned char*>(rows.out.view.data) +
                 rows.out.offset(batch, at, head) * element;
      for (int64_t i = 16 * lane; i < rows.width * element; i += 16 * 32)
        *reinterpret_cast<uint4*>(to + i) = uint4{};
    }
  }
}

static void zero_unused_rows(Context& ctx, const char* op, const Recur& a, const GlaRows& rows) {
  launch<gla_unused_rows_sm90>(ctx, op, ceil_div(a.b * a.s, 256 / 32), 256, 0, a, rows, a.b * a.s);
}

// Whether a kernel may store rows in the output as they are.
inline bool direct(const Recur& a, const Floats<4>& out, int64_t heads, int64_t rows) {
  if (!out || heads != a.heads) return false;
  if (out.dtype != FOVEA_F32 && out.dtype != a.q.dtype) return false;
  const int64_t extent[3] = {a.b, rows, heads};
  for (int i = 0; i < 3; ++i)
    if (extent[i] > 1 && out.view.stride[i] == 0) return false;
  return in_pieces(out.view, extent, out.dtype == FOVEA_F32 ? 4 : 8);
}

}  // namespace fovea::cuda
