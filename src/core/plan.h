// SPDX-License-Identifier: Apache-2.0
// One decision per call.  plan() validates what the contract cannot say, picks the kernel and lays
// out the workspace; `_workspace` stops there, the op itself goes on to launch.
#pragma once
#include <functional>
#include <initializer_list>
#include <string>

#include "core/context.h"
#include "core/workspace.h"

namespace fovea {

struct Plan {
  // For fovea_context_last_kernel: "attention_forward.cuda.sm80.bf16.d128.whole".
  std::string kernel;
  Layout workspace;
  std::function<void(Context&, void* workspace)> launch;
};

// A candidate of an op: `refuses` gives the reason it cannot serve the request ("d=80 not in
// {64,128}"), or "" to take it; `prepare` fills the plan.
template <class Request>
struct Kernel {
  const char* name;
  std::string (*refuses)(const Context&, const Request&);
  void (*prepare)(const Context&, const Request&, Plan&);
};

// First acceptance wins; if none, UNSUPPORTED with every reason.
template <class Request>
Plan choose(const char* op, const Context& ctx, const Request& request,
            std::initializer_list<Kernel<Request>> kernels) {
  std::string reasons;
  for (const auto& kernel : kernels) {
    const std::string reason = kernel.refuses(ctx, request);
    if (reason.empty()) {
      Plan plan;
      plan.kernel = kernel.name;
      kernel.prepare(ctx, request, plan);
      return plan;
    }
    reasons += (reasons.empty() ? "" : "; ") + std::string(kernel.name) + ": " + reason;
  }
  fail(FOVEA_UNSUPPORTED, "%s on %s: %s", op, ctx.backend == FOVEA_HOST ? "host" : "cuda",
       reasons.empty() ? "this build has no kernel for it" : reasons.c_str());
}

}  // namespace fovea
