// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_backward in f32 FMA, for every dtype, width and stride; and the zeros of every
// backward.
#include "cuda/loop/zero.cuh"
#include "ops/kl_experimental/indexer_backward.cuh"

namespace fovea {
namespace cuda {

void clear_unreached(Context& ctx, const KlIndexer& a) {
  const Kl& t = a.teacher;
  if (!ragged(attend_of(t, t.first, t.first))) return;
  const KlSide& x = a.student;
  const View<3>& w = a.dweight;
  const int64_t key_b = t.sequences.key_start ? 1 : t.sequences.count;
  if (x.dq) zero(ctx, kIndexerBackward, x.dq, x.dtype, {t.b, t.s, a.heads, x.width});
  if (x.dk) zero(ctx, kIndexerBackward, x.dk, x.dtype, {key_b, t.t, 1, x.width});
  if (w)
    zero(ctx, kIndexerBackward, {w.data, {w.stride[0], w.stride[1], w.stride[2], 1}}, FOVEA_F32,
         {t.b, t.s, a.heads, 1});
}

namespace {

std::string offer(const Context&, const KlIndexer& a, Plan& plan) {
  return plan_indexer_backward(a, plan, [](Context& ctx, const IndexerBackward& call, bool rows) {
    const Sequences& q = call.a.teacher.sequences;
    with_fma(ctx, call.a, rows ? q.query_max : q.key_max,
             [&]<class Pairs> { run_indexer_backward<Pairs>(ctx, call, rows); });
  });
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlIndexer> kl_indexer_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
