// SPDX-License-Identifier: Apache-2.0
// x_sparse_forward on the portable flash loop (loop/attend_simt.cuh), keys by lists
// (loop/list_tile.cuh): every dtype, width, stride and list.  x = score(q k' + q_value v'). A block
// owns a tile of 16 R packed rows of one block of rows, and a split of its steps.
#pragma once
#include "cuda/loop/codes.cuh"
#include "cuda/loop/list_tile.cuh"
#include "ops/sparse/forward.cuh"

namespace fovea::cuda {

struct ListSimt {
  SparseAttend s;
  Operand q;
  KeyOperand k, v;
  Operand q_value;
  Partials parts;  // unused where splits == 1
  ListGrid grid;

  ListSimt(const SparseAttend& call, const ListGrid& grid, const Partials& parts)
      : s(call),
        q(operand_of(call.attend.q, call.attend.dtype, call.attend.d)),
        k(key_operand(call.attend, call.attend.k, call.attend.k_dtype, call.attend.d,
                      call.attend.k_scale)),
        v(key_operand(call.attend, call.attend.v, call.attend.v_dtype, call.attend.e,
                      call.attend.v_scale)),
        q_value(operand_of(call.attend.q_value, call.attend.dtype, call.attend.e)),
        parts(parts),
        grid(grid) {}
};

template <int R>
struct ListShared : ListTile<R> {
  int64_t q_value[16 * R];  // element offsets; -1: no such row
};

// Score: the dot products of a row and its keys.  With skip_margin also whether a step counts.
template <int R>
struct ListScore : TileScores<R> {
  const ListSimt& call;
  const ListShared<R>& s;
  const ListKeys<R>& keys;
  int width = call.v.width;

  __device__ bool products(float (&x)[R][4], int64_t n) const {
    if (!keys.any()) return false;
    multiply_nt(
        x, this->tiles, call.q.width,
        [&](int row, int column) { return load_four(call.q, s.q[row], column); },
        [&](int row, int column) {
          return load_keys(call.k, s.keys[row].k, s.scales[0][row], column);
        });
    if (call.s.attend.q_value)
      multiply_nt(
          x, this->tiles, width,
          [&](int row, int column) { return load_four(call.q_value, s.q_value[row], column); },
          [&](int row, int column) { return values(row, column); });
    if (call.s.skip_margin == 0) return true;
    const ListLogits<R> score{call.s, s, false};
    return step_counts<R>(call.s, keys, n, call.s.skipped,
                          [&](int r, int c) { return score(r, c, x[r][c]); });
  }
  __device__ ListLogits<R> logits(int64_t n, bool missing) const {
    return {call.s, s, keys.plain(n, missing)};
  }
  __device__ float4 values(int row, int column) const {
    return load_keys(call.v, s.keys[row].v, s.scales[1][row], column);
  }
};

template <int R, int Chunks>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    sparse_simt_kernel(const __grid_constant__ ListSimt call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ ListShared<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = call.s.attend;
  for (int64_t w = blockIdx.x; w < call.grid.work; w += gridDim.x) {
    const ListItem item(call.grid, w);
    if (!stage_list_rows(call.s, call.grid, item, s, [&](int m, int64_t packed) {
          s.q_value[m] = s.rows[m].i < 0 ? -1 : s.piece.offset(packed, a.q_value.stride);
          s.top[m] = -INFINITY;
        }))
      continue;
    const ListKeys<R> keys(call.s, s, item, call.grid.splits, item.unit * call.grid.heads);
    attend_simt<Chunks>(tiles, keys, ListScore<R>{{tiles}, call, s, keys},
                        PackedEpilogue<R>{{a, call.parts, call.grid.splits, item.split}, s});
  }
}

template <int R, int Chunks>
void sparse_simt(Context& ctx, const SparseAttend& call, const ListGrid& grid,
                 const Partials& parts) {
  launch<sparse_simt_kernel<R, Chunks>>(ctx, "x_sparse_forward", grid.work, kStageThreads,
                                        FmaTiles<R>::bytes(), ListSimt(call, grid, parts));
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, columns)                                           \
  template void fovea::cuda::sparse_simt<1, columns / 64>(                       \
      fovea::Context&, const fovea::SparseAttend&, const fovea::cuda::ListGrid&, \
      const fovea::cuda::Partials&);                                             \
  template void fovea::cuda::sparse_simt<4, columns / 64>(                       \
      fovea::Context&, const fovea::SparseAttend&, const fovea::cuda::ListGrid&, \
      const fovea::cuda::Partials&);
