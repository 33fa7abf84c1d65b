// SPDX-License-Identifier: Apache-2.0
// quant_forward on the portable flash loop (loop/attend_simt.cuh): every width, stride and feature,
// on any device.
//   x = scale q_scale k_scale q k',  o = e4m3(256 p) v summed over the key tiles, last to first
//   o v_scale / (256 l),  lse = m + ln l
// FlashAttention-3 (2407.08608).
#pragma once
#include "core/convert.h"
#include "cuda/launch.h"
#include "cuda/loop/attend_simt.cuh"
#include "ops/quant/forward.cuh"

namespace fovea::cuda {

constexpr int64_t kAbsent = -1;  // in place of an offset

template <int R>
struct QuantShared : PackedTile<R> {
  float q_scale[16 * R], k_scale[kStageTile];
};

// Four codes of a row from `column` on, 0 past `width` and for an absent row.
__device__ inline float4 load_codes(const View<4>& x, int64_t row, int column, int64_t width,
                                    int64_t stride) {
  float out[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    out[i] = row == kAbsent || column + i >= width
                 ? 0.f
                 : fovea::to_float(x.as<E4m3>()[row + (column + i) * stride]);
  return {out[0], out[1], out[2], out[3]};
}

// Score: products of codes by the scales of row and key.
template <int R>
struct CodeScore : TileScores<R> {
  const QuantAttend& call;
  const QuantShared<R>& s;
  const PackedItem& item;
  const View<4>& v = call.values();
  int64_t v_stride = call.value_stride();
  int width = static_cast<int>(call.attend.e);

  __device__ bool products(float (&x)[R][4], int64_t) const {
    const View<4>&q = call.attend.q, &k = call.attend.k;
    const int d = static_cast<int>(call.attend.d);
    multiply_nt(
        x, this->tiles, d,
        [&](int row, int column) { return load_codes(q, s.q[row], column, d, q.stride[3]); },
        [&](int row, int column) { return load_codes(k, s.keys[row].k, column, d, k.stride[3]); });
    return true;
  }
  __device__ auto logits(int64_t j0, bool missing) const {
    const PairLogits<R> pairs(call.attend, s, item, j0, missing);
    return [=, this](int r, int c, float product) {
      const int m = threadIdx.x / 16 + 16 * r, n = threadIdx.x % 16 + 16 * c;
      return pairs(r, c, product * (s.q_scale[m] * s.k_scale[n]));
    };
  }
  __device__ float4 values(int row, int column) const {
    return load_codes(v, s.keys[row].v, column, width, v_stride);
  }
  __device__ static float weight(float p) {
    return fovea::to_float(fovea::from_float<E4m3>(kLift * p));
  }
};

template <int R>
struct CodeEpilogue : PackedEpilogue<R> {
  const QuantAttend& call;
  __device__ float factor(int, const StageRow& end) const {
    if (end.sum == 0 || end.factor == 0) return 0;
    const PackGqaRows& rows = this->s.piece;
    return end.factor * call.v_scale_of(rows.seq, rows.r, rows.g) / (kLift * end.sum);
  }
};

template <int R, int Chunks>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    quant_simt_kernel(const __grid_constant__ QuantAttend call,
                      const __grid_constant__ PackedGrid grid) {
  extern __shared__ float4 s_dynamic[];
  __shared__ QuantShared<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = call.attend;
  const Partials unsplit{};
  for (int64_t w = blockIdx.x; w < grid.work; w += gridDim.x) {
    PackedItem item(grid, w, 16 * R);
    const PackGqaRows& rows = s.piece;
    if (!stage_item(a, grid.group, item, s, [&](int m) {
          const RowInfo& row = s.rows[m];
          s.q_scale[m] = row.i < 0 ? 0 : call.q_scales(rows.seq, rows.r, row.h)[row.i];
        }))
      continue;
    const auto place = [&](int n, int64_t j) {
      KeyInfo key = key_info(a, rows.seq, rows.g, j);
      if (key.k >= 0) key.v = call.value_at(rows.seq, rows.r, rows.g, j);
      s.keys[n] = key;
      s.k_scale[n] = key.k < 0 ? 0 : call.k_scales(rows.seq, rows.r, rows.g)[j];
      return key.k < 0;
    };
    const WindowKeys keys(a, rows, item, 1, place, true);
    attend_simt<Chunks>(tiles, keys, CodeScore<R>{{tiles}, call, s, item},
                        CodeEpilogue<R>{{{a, unsplit, 1, 0}, s}, call});
  }
}

template <int R, int Chunks>
void quant_simt(Context& ctx, const QuantAttend& a, const PackedGrid& grid) {
  launch<quant_simt_kernel<R, Chunks>>(ctx, "quant_forward", grid.work, kStageThreads,
                                       FmaTiles<R>::bytes(), a, grid);
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, columns)                                             \
  template void fovea::cuda::quant_simt<1, columns / 64>(                          \
      fovea::Context&, const fovea::QuantAttend&, const fovea::cuda::PackedGrid&); \
  template void fovea::cuda::quant_simt<4, columns / 64>(                          \
      fovea::Context&, const fovea::QuantAttend&, const fovea::cuda::PackedGrid&);
