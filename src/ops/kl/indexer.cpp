// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/indexer.h"

#include "ops/kl/resolve.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_x_kl_indexer_forward_params& params) {
  const KlIndexer request = resolve(params);
  const char* op = "x_kl_indexer_forward";
  if (ctx.backend == FOVEA_HOST) return choose(op, ctx, request, {kl_indexer_forward_host});
  return choose<KlIndexer>(op, ctx, request, {});
}

Plan plan(const Context& ctx, const fovea_x_kl_indexer_backward_params& params) {
  const KlIndexer request = resolve(params);
  const char* op = "x_kl_indexer_backward";
  if (ctx.backend == FOVEA_HOST) return choose(op, ctx, request, {kl_indexer_backward_host});
  return choose<KlIndexer>(op, ctx, request, {});
}

}  // namespace fovea
