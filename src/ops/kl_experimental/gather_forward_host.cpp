// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_forward on the CPU: entry n of every row's list stands in line n of a tile of logits,
// rows in lanes, so that the steps of kl_forward serve.
#include "ops/kl/coupled_host.h"
#include "ops/kl_experimental/gather_tile_host.h"

namespace fovea {
namespace {

using namespace kl_host;

constexpr double kSingleFlopsPerNanosecond = 4;  // of single products

std::string offer(const Context& ctx, const KlGather& a, Plan& plan) {
  const double cost = static_cast<double>(a.n) *
                      static_cast<double>(2 * (a.kl.first.width + a.kl.second.width) + 32);
  plan_coupled<GatherTile>(ctx, a, cost / kSingleFlopsPerNanosecond, plan);
  return "";
}

}  // namespace

extern const Kernel<KlGather> kl_gather_forward_host = {"", offer};

}  // namespace fovea
