// SPDX-License-Identifier: Apache-2.0
// Every exported operation, expanded from ops.inc: copy the params, check the contract, plan, and
// for the op itself get the workspace and launch.
#include "core/contract.h"
#include "core/float_state.h"
#include "core/params.h"
#include "core/plan.h"
#include "ops/attention/backward.h"
#include "ops/attention/forward.h"
#include "ops/cache/append.h"
#include "ops/cache/copy.h"
#include "ops/cache/get.h"
#include "ops/conv_attention/backward.h"
#include "ops/conv_attention/forward.h"
#include "ops/conv_attention/multi_token.h"
#include "ops/kl/backward.h"
#include "ops/kl/forward.h"
#include "ops/kl/gather.h"
#include "ops/kl/indexer.h"
#include "ops/kl/jensen_shannon.h"
#include "ops/kl/pool.h"
#include "ops/merge/backward.h"
#include "ops/merge/forward.h"
#include "ops/norm/group_norm.h"
#include "ops/quant/forward.h"
#include "ops/quant/quantize.h"
#include "ops/rope/forward.h"
#include "ops/rope/table_get.h"
#include "ops/trace/forward.h"

namespace fovea {
namespace {

template <class P>
Plan decide(Context& ctx, const P* params, const Contract& contract, size_t first_size) {
  const P copy = copy_params(contract.op, params, first_size);
  check_contract(contract, &copy);
  return plan(ctx, copy);
}

template <class P>
fovea_status run(Context* ctx, const P* params, const Contract& contract,
                 size_t first_size) noexcept {
  return guarded_on(ctx, contract.op, [&] {
    const FloatState state;
    Plan decision = decide(*ctx, params, contract, first_size);
    void* base = workspace(*ctx, contract.op, decision.workspace.bytes());
    decision.launch(*ctx, base);
    ctx->last_kernel = std::move(decision.kernel);
  });
}

template <class P>
fovea_status query(Context* ctx, const P* params, size_t* bytes, const Contract& contract,
                   size_t first_size) noexcept {
  return guarded_on(ctx, contract.op, [&] {
    if (!bytes) fail(FOVEA_INVALID_ARGUMENT, "%s_workspace: bytes is NULL", contract.op);
    *bytes = 0;
    const FloatState state;
    *bytes = decide(*ctx, params, contract, first_size).workspace.bytes();
  });
}

}  // namespace
}  // namespace fovea

#define FOVEA_OP(family, verb, first_size)                                                  \
  static_assert(sizeof(fovea_##family##_##verb##_params) >= first_size);                    \
  extern "C" fovea_status fovea_##family##_##verb(                                          \
      fovea_context* ctx, const fovea_##family##_##verb##_params* params) {                 \
    return fovea::run(ctx, params, fovea::contract_##family##_##verb, first_size);          \
  }                                                                                         \
  extern "C" fovea_status fovea_##family##_##verb##_workspace(                              \
      fovea_context* ctx, const fovea_##family##_##verb##_params* params, size_t* bytes) {  \
    return fovea::query(ctx, params, bytes, fovea::contract_##family##_##verb, first_size); \
  }
#include "ops.inc"
#undef FOVEA_OP
