// SPDX-License-Identifier: Apache-2.0
// quant_forward on the portable flash loop (loop/attend_simt.cuh): every width, stride and feature,
// on any device.
//   x = scale (q_scale k_scale q k' + delta) + row constant
//   o = rounded(p) v summed over the key tiles, last to first;  o v_scale / (lift l),  lse = m + ln
//   l
// Sums are in f32 whatever `accumulate` says.
// FlashAttention-3 (2407.08608), SageAttention (2410.02367, 2411.10958, 2505.11594).
#pragma once
#include "cuda/launch.h"
#include "ops/quant/code_tile.cuh"
#include "ops/quant/forward.cuh"

namespace fovea::cuda {

// The score of a tile of a window's keys.
template <int R>
struct CodeScore : CodeProducts<R> {
  const PackedItem& item;

  __device__ auto logits(int64_t j0, bool missing) const {
    const PairLogits<R> pairs(this->call.attend, this->s, item, j0, missing);
    return
        [=, this](int r, int c, float product) { return pairs(r, c, this->scaled(r, c, product)); };
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
    if (!stage_item(a, grid.group, item, s, [&](int m) { stage_code_row(call, s, m); })) continue;
    const auto place = [&](int n, int64_t j) {
      s.keys[n] = key_info(a, rows.seq, rows.g, j);
      stage_code_key(call, s, rows.g, n);
      return s.keys[n].k < 0;
    };
    const WindowKeys keys(a, rows, item, 1, place, true);
    const CodeColumns all{0, static_cast<int>(a.e)};
    attend_simt<Chunks>(tiles, keys, CodeScore<R>{{{tiles}, call, s, rows.g, all}, item},
                        CodeEpilogue<R>{{{a, unsplit, 1, 0}, s}, call, rows.g, all});
  }
}

template <int Chunks>
void quant_simt(Context& ctx, const QuantAttend& a) {
  // 64 rows of o wider than 128 columns take long to compile: these go by 16.
  constexpr bool kFew = Chunks > 2;
  const PackedGrid grid(a.attend, a.attend.g, kFew ? INT64_MAX : kDecodeRows);
  const auto run = [&]<int R>() {
    launch<quant_simt_kernel<R, Chunks>>(ctx, "quant_forward", grid.work, kStageThreads,
                                         FmaTiles<R>::bytes(), a, grid);
  };
  if constexpr (!kFew)
    if (!grid.few) return run.template operator()<4>();
  run.template operator()<1>();
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, columns) \
  template void fovea::cuda::quant_simt<columns / 64>(fovea::Context&, const fovea::QuantAttend&);
