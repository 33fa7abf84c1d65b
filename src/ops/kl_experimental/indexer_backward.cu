// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_backward by way of dscores (dscores.cuh), in f32 FMA for every dtype, width and
// stride, and on mma.sync: db = dkl (R - P), a tile of rows and keys a block, of all heads
// (indexer_tile.cuh).
#include "ops/kl_experimental/indexer_tile.cuh"

namespace fovea {
namespace cuda {

void clear_unreached(Context& ctx, const KlIndexer& a) {
  const Kl& t = a.teacher;
  if (!ragged(t)) return;
  zero_gradients(ctx, kIndexerBackward, t, a.student, a.heads, t.t);
  const View<3>& w = a.dweight;
  if (w)
    zero(ctx, kIndexerBackward, {w.data, {w.stride[0], w.stride[1], w.stride[2], 1}}, FOVEA_F32,
         {t.b, t.s, a.heads, 1});
}

namespace {

template <class Pairs>
__global__ void __launch_bounds__(Pairs::threads, 2)
    indexer_dscores_kernel(const __grid_constant__ IndexerCall call,
                           const __grid_constant__ Dscores dscores, int64_t work) {
  constexpr int R = Pairs::R, C = Pairs::C, kPieces = Dscores::rows / Pairs::own;
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ IndexerPlaces<Pairs> s;
  Pairs pairs(s_dynamic, call.width());
  const int64_t key_tiles = dscores.pitch / kStageTile;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    // Late rows first.
    const int64_t piece = w / key_tiles, j0 = w % key_tiles * kStageTile;
    const int64_t item = dscores.first + dscores.count - 1 - piece / kPieces;
    const int64_t r = item / dscores.row_tiles;
    const int64_t i0 = item % dscores.row_tiles * Dscores::rows + piece % kPieces * Pairs::own;
    if (!open_rows(call, s, r, i0)) continue;
    // The products read whole tiles of 64 rows.
    if (!call.seen(s.seq, 0, i0 / kStageTile * kStageTile, j0)) continue;
    s.put_keys(call, j0);
    __syncthreads();
    uint32_t counts = seen_pairs<Pairs>(call.kl().mask, s.seq, 0, i0, j0);
    each_pair<Pairs>([&](int r, int c) {
      if (s.gain[Pairs::own_of(r)] == 0) counts &= ~(1u << (C * r + c));
    });
    float p[R][C], b[R][C];
    mean_and_logits(call, s, pairs, counts, true, p, b);
    float* const db = static_cast<float*>(dscores.db) + dscores.place(r, 0, i0) + j0;
    each_pair<Pairs>([&](int r, int c) {
      const int m = Pairs::own_of(r);
      const bool in = counts >> (C * r + c) & 1;
      db[m * dscores.pitch + Pairs::other_of(c)] =
          in ? counted(s.gain[m] * (expf(b[r][c] - s.lse_student[m]) - p[r][c])) : 0;
    });
  }
}

template <bool Mma>
Text offer(const Context& ctx, const KlIndexer& a, Plan& plan) {
  if constexpr (Mma)
    if (Text why = indexer_mma_refuses(ctx, a); !why.empty()) return why;
  return plan_dscores(
      IndexerCall(a), plan, Mma, [](Context& ctx, const IndexerCall& call, const Dscores& dscores) {
        with_rows(ctx, Mma, call.a, [&]<class Pairs> {
          const int64_t work =
              dscores.count * (Dscores::rows / Pairs::own) * (dscores.pitch / kStageTile);
          launch<indexer_dscores_kernel<Pairs>>(ctx, kIndexerBackward, work, Pairs::threads,
                                                Pairs::shared_bytes(call.width()), call, dscores,
                                                work);
        });
      });
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlIndexer> kl_indexer_backward_sm80 = {"sm80", cuda::offer<true>};
extern const Kernel<KlIndexer> kl_indexer_backward_simt = {"simt", cuda::offer<false>};

}  // namespace fovea
