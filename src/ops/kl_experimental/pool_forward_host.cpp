// SPDX-License-Identifier: Apache-2.0
// x_kl_pool_forward on the CPU: over its tiles of blocks a row tile takes the steps of kl_forward
// with x the teacher's pooled logits and y the student's.
#include "ops/kl/coupled_host.h"
#include "ops/kl_experimental/pool_tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

std::string offer(const Context& ctx, const KlPool& a, Plan& plan) {
  const double cost = static_cast<double>(a.kl.sequences.key_max + 16) *
                      static_cast<double>(2 * a.kl.first.width + 32);
  plan_coupled<PoolTile>(ctx, a, cost / kFlopsPerNanosecond, plan);
  return "";
}

}  // namespace

extern const Kernel<KlPool> kl_pool_forward_host = {"", offer};

}  // namespace fovea
