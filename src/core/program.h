// SPDX-License-Identifier: Apache-2.0
// An operation that is made of others: its parts run in order on one workspace.
//   The body runs twice.  As the call is planned, arrays get their places and each part is planned.
//   In launch the same calls are made on the real addresses.
//   Arrays begin at multiples of 256 bytes in both, so a part is given the same kernel.
// Workspace: the arrays side by side, then as much as the largest of the parts needs.
#pragma once
#include <algorithm>

#include "core/contract.h"
#include "core/plans.h"

namespace fovea {

#define FOVEA_OP(family, verb, first_size)                                      \
  inline const Contract& contract_of(const fovea_##family##_##verb##_params&) { \
    return contract_##family##_##verb;                                          \
  }
#include "ops.inc"
#undef FOVEA_OP

class Program {
 public:
  Program(const char* op, const Context& ctx) : op_(op), ctx_(ctx) {}
  Program(const char* op, Context& ctx, void* base, size_t scratch)
      : op_(op), ctx_(ctx), running_(&ctx), base_(base), scratch_(scratch) {}

  // An array of the workspace: a part writes it and later ones read it.
  fovea_tensor array(fovea_dtype dtype, std::initializer_list<int64_t> shape);

  // The next part.  A refusal names the program first, then the part.
  template <class P>
  void run(P params) {
    params.struct_size = sizeof params;
    const Contract& contract = contract_of(params);
    try {
      check_contract(contract, &params);
      Plan part = plan(ctx_, params);
      if (!writes(contract, &params)) return;
      if (running_)
        part.launch(*running_, static_cast<unsigned char*>(base_) + scratch_);
      else
        add(part);
    } catch (const Error& e) {
      fail(e.status, "%s: %s", op_, e.text);
    }
  }

  // What planning found: the workspace, and the parts' kernels in order.
  Layout workspace() const;
  size_t scratch() const { return arrays_.bytes(); }
  const Text& kernels() const { return kernels_; }

 private:
  void add(const Plan& part);

  const char* op_;
  const Context& ctx_;
  Context* running_ = nullptr;
  // Planned arrays have addresses too, which nobody follows.
  void* base_ = reinterpret_cast<void*>(uintptr_t{1} << 44);
  size_t scratch_ = 0;
  Layout arrays_, largest_;
  Text kernels_;
};

// body(program): makes arrays and runs the parts, by what it was given alone.
template <class Body>
Plan compose(const char* op, const Context& ctx, Body body) {
  Program planned(op, ctx);
  body(planned);
  Plan plan;
  plan.kernel = Text(op) + (ctx.backend == FOVEA_HOST ? ".host" : ".cuda");
  (plan.kernel += ".") += planned.kernels().c_str();
  plan.workspace = planned.workspace();
  plan.launch = [op, body, scratch = planned.scratch()](Context& on, void* base) {
    Program running(op, on, base, scratch);
    body(running);
  };
  return plan;
}

}  // namespace fovea
