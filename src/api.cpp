// SPDX-License-Identifier: Apache-2.0
// Every exported operation, expanded from ops.inc: copy the params, check the contract, plan, and
// for the op itself get the workspace and launch.
#include <type_traits>

#include "core/contract.h"
#include "core/float_state.h"
#include "core/inspect.h"
#include "core/params.h"
#include "core/plans.h"

namespace fovea {

#if FOVEA_SOME_FAMILIES
// Weak: the families that FOVEA_FAMILIES names have plans of their own.
#define FOVEA_OP(family, verb, first_size)                                                      \
  __attribute__((weak)) Plan plan(const Context&, const fovea_##family##_##verb##_params&) {    \
    fail(FOVEA_UNSUPPORTED, "%s_%s: FOVEA_FAMILIES left it out of this build", #family, #verb); \
  }
#include "ops.inc"
#undef FOVEA_OP
#endif

namespace {

struct Decision {
  Plan plan;
  size_t bytes;  // of workspace
  bool writes;
};

// `values`: those of lengths and pages are looked at too.
template <class P>
Decision decide(Context& ctx, const P* params, const Contract& contract, size_t first_size,
                bool values) {
  const P copy = copy_params(contract.op, params, first_size);
  check_contract(contract, &copy);
  Decision decision{plan(ctx, copy), 0, writes(contract, &copy)};
  if (!decision.writes) return decision;
  const Layout& workspace = decision.plan.workspace;
  if (!workspace.fits())
    refuse("%s: workspace: these extents need more bytes than int64_t counts, wanted smaller ones",
           contract.op);
  decision.bytes = workspace.bytes();
  if (values) inspect(ctx, contract, &copy);
  return decision;
}

// What may fail comes before launch(): a host call that is refused has written nothing.
template <class P>
fovea_status run(Context* ctx, const P* params, const Contract& contract,
                 size_t first_size) noexcept {
  return guarded_on(ctx, contract.op, [&] {
    const FloatState state;
    Decision decision = decide(*ctx, params, contract, first_size, inspecting());
    if (decision.writes) {
      void* base = workspace(*ctx, contract.op, decision.bytes);
      decision.plan.launch(*ctx, base);
    }
    static_assert(std::is_nothrow_copy_assignable_v<Text>);
    ctx->last_kernel = decision.plan.kernel;
    ctx->asked_kernel.clear();
    ctx->last_reasons = decision.plan.reasons;
  });
}

template <class P>
fovea_status query(Context* ctx, const P* params, size_t* bytes, const Contract& contract,
                   size_t first_size) noexcept {
  return guarded_on(ctx, contract.op, [&] {
    if (!bytes) refuse("%s_workspace: bytes is NULL", contract.op);
    *bytes = 0;
    const FloatState state;
    const Decision decision = decide(*ctx, params, contract, first_size, false);
    *bytes = decision.bytes;
    ctx->asked_kernel = decision.plan.kernel;
    ctx->last_reasons = decision.plan.reasons;
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
