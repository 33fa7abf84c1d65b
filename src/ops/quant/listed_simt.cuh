// SPDX-License-Identifier: Apache-2.0
// quant_forward over lists on the portable flash loop (loop/attend_simt.cuh): codes of
// code_tile.cuh, keys by lists (loop/list_tile.cuh), every format, group, width and stride.
//   x = scale (q_scale k_scale q k' + delta) + row constant, of the keys that a row's list names
//   o = rounded(p) v summed over the list's tiles of 64 keys in order;  o v_scale / (lift l)
// A block owns a tile of 16 R packed rows of one block of rows, and 128 columns of o: wider ones
// take long to compile.  A tile of 64 keys begins at a
// multiple of 64, so runs of rounded weights are those of the sequence.
// SpargeAttention (2502.18137).
#pragma once
#include "cuda/launch.h"
#include "cuda/loop/list_tile.cuh"
#include "ops/quant/code_tile.cuh"
#include "ops/quant/listed.cuh"

namespace fovea::cuda {

struct QuantListSimt {
  QuantAttend codes;
  SparseAttend lists;
  ListGrid grid;
  int64_t slices;  // of o's columns
};

template <int R>
using CodeListTile = ListTile<R, QuantShared<R>>;

// Columns of a step have the scales of their keys.
template <int R>
struct CodeListKeys : ListKeys<R, QuantShared<R>> {
  const QuantAttend& codes;

  __device__ bool place(int64_t n) const {
    const bool absent = ListKeys<R, QuantShared<R>>::place(n);
    if (threadIdx.x < kStageTile)
      stage_code_key(codes, this->s, this->s.steps.key_head, static_cast<int>(threadIdx.x));
    return absent;
  }
};

template <int R>
struct CodeListScore : CodeProducts<R> {
  const SparseAttend& lists;
  const CodeListTile<R>& tile;
  const CodeListKeys<R>& keys;

  // False: nobody's keys, or a step that is skipped.
  __device__ bool products(float (&x)[R][4], int64_t n) const {
    if (!keys.any()) return false;
    CodeProducts<R>::products(x, n);
    if (lists.skip_margin == 0) return true;
    const ListLogits<R, QuantShared<R>> score{lists, tile, false};
    return step_counts<R>(lists, keys, n, this->own.first ? nullptr : lists.skipped,
                          [&](int r, int c) { return score(r, c, this->scaled(r, c, x[r][c])); });
  }
  __device__ auto logits(int64_t n, bool missing) const {
    const ListLogits<R, QuantShared<R>> score{lists, tile, keys.plain(n, missing)};
    return
        [=, this](int r, int c, float product) { return score(r, c, this->scaled(r, c, product)); };
  }
};

constexpr int kListChunks = 2, kListColumns = kListChunks * kStageTile;

template <int R>
__global__ void __launch_bounds__(kStageThreads, 2)
    quant_list_simt_kernel(const __grid_constant__ QuantListSimt call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ CodeListTile<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = call.lists.attend;
  const Partials unsplit{};
  for (int64_t w = blockIdx.x; w < call.grid.work * call.slices; w += gridDim.x) {
    const ListItem item(call.grid, w / call.slices);
    if (!stage_list_rows(call.lists, call.grid, item, s, [&](int m, int64_t) {
          stage_code_row<R>(call.codes, s, m);
          s.top[m] = -INFINITY;
        }))
      continue;
    const CodeListKeys<R> keys{{call.lists, s, item, call.grid.splits, item.unit * call.grid.heads},
                               call.codes};
    const int64_t g = s.steps.key_head;
    const int first = static_cast<int>(w % call.slices) * kListColumns;
    const CodeColumns own{first, min(static_cast<int>(a.e) - first, kListColumns)};
    attend_simt<kListChunks>(
        tiles, keys, CodeListScore<R>{{{tiles}, call.codes, s, g, own}, call.lists, s, keys},
        CodeEpilogue<R>{{{a, unsplit, 1, 0}, s}, call.codes, g, own});
  }
}

template <int R>
void quant_list_simt(Context& ctx, const QuantListed& call, const ListGrid& grid) {
  const int64_t slices = ceil_div(call.codes.attend.e, kListColumns);
  launch<quant_list_simt_kernel<R>>(ctx, "quant_forward", grid.work * slices, kStageThreads,
                                    FmaTiles<R>::bytes(),
                                    QuantListSimt{call.codes, call.lists(), grid, slices});
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, rows)                      \
  template void fovea::cuda::quant_list_simt<rows / 16>( \
      fovea::Context&, const fovea::QuantListed&, const fovea::cuda::ListGrid&);
