// SPDX-License-Identifier: Apache-2.0
// One decision per call.  plan() validates what the contract cannot say, picks the kernel and lays
// out the workspace; `_workspace` stops there, the op itself goes on to launch.
#pragma once
#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>

#include "core/context.h"
#include "core/workspace.h"

namespace fovea {

struct Plan {
  // For fovea_context_last_kernel: "attention_forward.cuda.sm80.bf16.d128.whole".
  std::string kernel;
  Layout workspace;
  std::function<void(Context&, void* workspace)> launch;
};

// A candidate of an op.  `offer` fills the plan and answers "", or says why it cannot serve the
// request ("d=80 not in {64,128}").  Its name follows the op and the backend in Plan::kernel.
template <class Request>
struct Kernel {
  const char* name;
  std::string (*offer)(const Context&, const Request&, Plan&);
};

// The CUDA kernels of an op, best first; none in a build without them.
#if FOVEA_WITH_CUDA
#define FOVEA_CUDA_KERNELS(...) \
  { __VA_ARGS__ }
#else
#define FOVEA_CUDA_KERNELS(...) \
  {}
#endif

// The host's kernel, or the first of CUDA's to serve the request; if none, UNSUPPORTED with every
// reason.
template <class Request>
Plan choose(const char* op, const Context& ctx, const Request& request,
            const std::type_identity_t<Kernel<Request>>& host,
            std::initializer_list<std::type_identity_t<Kernel<Request>>> cuda) {
  const bool on_host = ctx.backend == FOVEA_HOST;
  std::string reasons;
  const auto offered = [&](const Kernel<Request>& kernel, Plan& plan) {
    plan.kernel = std::string(op) + (on_host ? ".host" : ".cuda");
    if (*kernel.name) plan.kernel.append(".").append(kernel.name);
    const std::string reason = kernel.offer(ctx, request, plan);
    if (reason.empty()) return true;
    reasons +=
        (reasons.empty() ? "" : "; ") + (*kernel.name ? kernel.name + (": " + reason) : reason);
    return false;
  };
  if (on_host) {
    if (Plan plan; offered(host, plan)) return plan;
  } else {
    for (const Kernel<Request>& kernel : cuda)
      if (Plan plan; offered(kernel, plan)) return plan;
  }
  fail(FOVEA_UNSUPPORTED, "%s on %s: %s", op, on_host ? "host" : "cuda",
       reasons.empty() ? "this build has no kernel for it" : reasons.c_str());
}

}  // namespace fovea
