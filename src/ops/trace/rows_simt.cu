// SPDX-License-Identifier: Apache-2.0
// The stages of a trace that are attention over lists of key blocks, in f32 FMA.
#include "cuda/block/stage.cuh"
#include "ops/trace/rows.cuh"

namespace fovea::cuda {

void rows_simt(Context& ctx, const TraceCall& call) {
  const Attend& a = call.a.attend;
  with_chunks(a.o ? a.e : 1, [&]<int Chunks> { rows_simt<Chunks, false>(ctx, call); });
}

void dense_simt(Context& ctx, const TraceCall& call) {
  rows_simt<1, true>(ctx, call);
}

}  // namespace fovea::cuda
