// SPDX-License-Identifier: Apache-2.0
// attention_forward on the portable flash loop (loop/attend_simt.cuh): every dtype, width, stride
// and feature.  x = score(q k' + q_value v').  Keys stored unrotated are rotated as they are read,
// codes are scaled.
#pragma once
#include "core/rotate.h"
#include "cuda/loop/attend_simt.cuh"
#include "cuda/loop/codes.cuh"
#include "ops/attention/forward.cuh"

namespace fovea::cuda {

struct ForwardSimt {
  Attend a;
  Operand q;
  KeyOperand k, v;
  Operand q_value;
  Partials parts;  // unused where splits == 1
  PackedGrid grid;
};

template <int R>
struct ForwardShared : PackedTile<R> {
  int64_t q_value[16 * R];        // element offsets; -1: no such row
  int64_t scales[2][kStageTile];  // of the keys' scales of k, of v
};

// Four columns of a key that is stored unrotated.
inline __device__ __noinline__ float4 load_turned(const ForwardSimt& call, const KeyInfo& key,
                                                  int64_t scale, int column) {
  float4 out = load_keys(call.k, key.k, scale, column);
  const Rope& rope = call.a.rope;
  if (key.k < 0 || column + 4 <= rope.begin || column >= rope.begin + 2 * rope.half) return out;
  const Turn turn = turn_at(rope, key.p, 1.f);
  float* lanes = &out.x;
  for (int i = 0; i < 4; ++i) {
    const int64_t x = column + i - rope.begin;
    if (x < 0 || x >= 2 * rope.half) continue;
    const int64_t pair = rope.interleaved ? x / 2 : x % rope.half;
    const bool second = rope.interleaved ? x % 2 : x >= rope.half;
    const int64_t other = column + i + (rope.interleaved ? 1 : rope.half) * (second ? -1 : 1);
    const float partner = load_key(call.k, key.k, scale, static_cast<int>(other));
    const float c = turn.cos[pair * turn.cos_stride], s = turn.sin[pair * turn.sin_stride];
    lanes[i] = turn.outside ? quiet_nan()
               : second     ? partner * s + lanes[i] * c
                            : lanes[i] * c - partner * s;
  }
  return out;
}

// Score: the dot products of a row and its keys.
template <int R>
struct DotScore : TileScores<R> {
  const ForwardSimt& call;
  const ForwardShared<R>& s;
  const PackedItem& item;
  int width = call.v.width;

  __device__ bool products(float (&x)[R][4], int64_t) const {
    const auto load_q = [&](int row, int column) { return load_four(call.q, s.q[row], column); };
    if (call.a.rope.cos)
      multiply_nt(x, this->tiles, call.q.width, load_q, [&](int row, int column) {
        return load_turned(call, s.keys[row], s.scales[0][row], column);
      });
    else if (call.k.codes)
      multiply_nt(x, this->tiles, call.q.width, load_q, [&](int row, int column) {
        return load_codes(call.k, s.keys[row].k, s.scales[0][row], column);
      });
    else
      multiply_nt(x, this->tiles, call.q.width, load_q,
                  [&](int row, int column) { return load_four(call.k, s.keys[row].k, column); });
    if (call.a.q_value)
      multiply_nt(
          x, this->tiles, width,
          [&](int row, int column) { return load_four(call.q_value, s.q_value[row], column); },
          [&](int row, int column) { return values(row, column); });
    return true;
  }
  __device__ PairLogits<R> logits(int64_t j0, bool missing) const {
    return {call.a, s, item, j0, missing};
  }
  __device__ float4 values(int row, int column) const {
    return load_keys(call.v, s.keys[row].v, s.scales[1][row], column);
  }
};

template <int R, int Chunks>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    forward_simt_kernel(const __grid_constant__ ForwardSimt call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ ForwardShared<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = call.a;
  for (int64_t w = blockIdx.x; w < call.grid.work; w += gridDim.x) {
    PackedItem item(call.grid, w, 16 * R);
    const PackGqaRows& rows = s.piece;
    if (!stage_item(a, call.grid.group, item, s, [&](int m) {
          s.q_value[m] = s.rows[m].i < 0 ? -1 : rows.offset(item.m0 + m, a.q_value.stride);
        }))
      continue;
    const WindowKeys keys(a, rows, item, call.grid.splits, [&](int n, int64_t j) {
      s.keys[n] = key_info(a, rows.seq, rows.g, j);
      if (s.keys[n].k >= 0 && (a.k_scale || a.v_scale)) {
        const KeyPlace at = key_place(a.sequences, rows.seq, j);
        s.scales[0][n] = at.offset(rows.g, a.k_scale.stride);
        s.scales[1][n] = at.offset(rows.g, a.v_scale.stride);
      }
      return s.keys[n].k < 0;
    });
    attend_simt<Chunks>(tiles, keys, DotScore<R>{{tiles}, call, s, item},
                        PackedEpilogue<R>{{a, call.parts, call.grid.splits, item.split}, s});
  }
}

template <int R, int Chunks>
void forward_simt(Context& ctx, const Attend& a, const PackedGrid& grid, const Partials& parts) {
  const ForwardSimt call{a,
                         operand_of(a.q, a.dtype, a.d),
                         key_operand(a, a.k, a.k_dtype, a.d, a.k_scale),
                         key_operand(a, a.v, a.v_dtype, a.e, a.v_scale),
                         operand_of(a.q_value, a.dtype, a.e),
                         parts,
                         grid};
  launch<forward_simt_kernel<R, Chunks>>(ctx, "attention_forward", grid.work, kStageThreads,
                                         FmaTiles<R>::bytes(), call);
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, columns)                                                            \
  template void fovea::cuda::forward_simt<1, columns / 64>(fovea::Context&, const fovea::Attend&, \
                                                           const fovea::cuda::PackedGrid&,        \
                                                           const fovea::cuda::Partials&);         \
  template void fovea::cuda::forward_simt<4, columns / 64>(fovea::Context&, const fovea::Attend&, \
                                                           const fovea::cuda::PackedGrid&,        \
                                                           const fovea::cuda::Partials&);
