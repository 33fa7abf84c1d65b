// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_backward on mma.sync: what its instances, compiled apart, take.
#include "ops/kl_experimental/indexer_backward.cuh"

namespace fovea {
namespace cuda {

// Explicitly instantiated, one file for each dtype (indexer_backward_sm80.cuh).
template <int Dtype>
void kl_indexer_backward_sm80(Context& ctx, const IndexerBackward& call, bool rows);

namespace {

using Sweep = void (*)(Context&, const IndexerBackward&, bool rows);

// nullptr: not in this build.
Sweep sweep_of(int32_t dtype) {
#define FOVEA_INSTANCE(of, width) \
  if (dtype == (of)) return kl_indexer_backward_sm80<of>;
#include "instances/kl_experimental_indexer_backward_sm80.inc"
#undef FOVEA_INSTANCE
  return nullptr;
}

std::string offer(const Context& ctx, const KlIndexer& a, Plan& plan) {
  if (std::string why = indexer_mma_refuses(ctx, a); !why.empty()) return why;
  const Sweep sweep = sweep_of(a.student.dtype);
  if (!sweep) return "no instance for this dtype in this build";
  return plan_indexer_backward(a, plan, sweep);
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlIndexer> kl_indexer_backward_sm80 = {"sm80", cuda::offer};

}  // namespace fovea
