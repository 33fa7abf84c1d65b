// SPDX-License-Identifier: Apache-2.0
// One decision per call.  plan() validates what the contract cannot say, picks the kernel and lays
// out the workspace; `_workspace` stops there, the op itself goes on to launch.
#pragma once
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "core/context.h"
#include "core/workspace.h"

namespace fovea {

// What runs a planned call: a function object, which may hold other launches.  Not std::function:
// <functional> would cost every CUDA file half a second to compile.
class Launch {
 public:
  Launch() = default;
  template <class F>
  requires(!std::is_same_v<F, Launch>) Launch(F f) : held_(new Of<F>(std::move(f))) {}
  Launch(Launch&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
  Launch& operator=(Launch&& other) noexcept {
    std::swap(held_, other.held_);
    return *this;
  }
  ~Launch() { delete held_; }

  void operator()(Context& ctx, void* workspace) const { held_->run(ctx, workspace); }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual void run(Context& ctx, void* workspace) = 0;
  };
  template <class F>
  struct Of final : Held {
    explicit Of(F&& given) : f(std::move(given)) {}
    void run(Context& ctx, void* workspace) override { f(ctx, workspace); }
    F f;
  };
  Held* held_ = nullptr;
};

struct Plan {
  // For fovea_context_last_kernel: "attention_forward.cuda.sm80.bf16.d128.whole".
  Text kernel;
  // For fovea_context_last_reasons, of the kernels tried before this one; choose() writes it.
  TextOf<kErrorBytes> reasons;
  Layout workspace;
  Launch launch;
};

// A candidate of an op.  `offer` fills the plan and answers "", or says why it cannot serve the
// request: field, got, wanted ("d is 80, wanted 64 or 128"), since users read it in
// fovea_context_last_reasons.  Its name follows the op and the backend in Plan::kernel.
template <class Request>
struct Kernel {
  const char* name;
  Text (*offer)(const Context&, const Request&, Plan&);
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
  TextOf<kErrorBytes> reasons;
  const auto offered = [&](const Kernel<Request>& kernel, Plan& plan) {
    plan.kernel = Text(op) + (on_host ? ".host" : ".cuda");
    if (*kernel.name) plan.kernel += Text(".") + kernel.name;
    const Text reason = kernel.offer(ctx, request, plan);
    if (reason.empty()) {
      plan.reasons = reasons;
      return true;
    }
    if (!reasons.empty()) reasons += "; ";
    if (*kernel.name) (reasons += kernel.name) += ": ";
    reasons += reason.c_str();
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
