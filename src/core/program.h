// SPDX-License-Identifier: Apache-2.0
// An operation that is made of others: its parts run in order on one workspace.
//   The body runs twice.  As the call is planned, arrays get their places and each part is planned.
//   In launch every part is planned again, on the real addresses, before the first one is launched.
//   Arrays begin at multiples of 256 bytes in both, so a part is given the same kernel.
//   A body of several parts makes the params of each in a function of its own, noinline: their
//   frames are large, and a call has 32 KiB of stack.
// Workspace: the arrays side by side, then as much as the largest of the parts needs.
#pragma once
#include <algorithm>
#include <array>
#include <bit>
#include <type_traits>
#include <vector>

#include "core/contract.h"
#include "core/dtype.h"
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
  Program(const char* op, const Context& ctx, void* base, size_t scratch)
      : op_(op), ctx_(ctx), running_(true), base_(base), scratch_(scratch) {}

  // An array of the workspace: a part writes it and later ones read it.
  fovea_tensor array(fovea_dtype dtype, std::initializer_list<int64_t> shape);

  // The same for a part that reads no element of it: it has no place.
  static fovea_tensor unread(fovea_dtype dtype, std::initializer_list<int64_t> shape);

  // The caller's output, or an array where it gives none.
  fovea_tensor output(const fovea_tensor& given, fovea_dtype dtype,
                      std::initializer_list<int64_t> shape) {
    return given.data ? given : array(dtype, shape);
  }

  // The next part.  A refusal names the program first, then the part.
  template <class P>
  void run(P&& params) {
    using Part = std::remove_reference_t<P>;
    params.struct_size = sizeof params;
    part(contract_of(params), &params, [](const Context& ctx, const void* given) {
      return plan(ctx, *static_cast<const Part*>(given));
    });
  }

  // A part that is no operation, planned on this context.
  void run(Plan&& part);
  const Context& context() const { return ctx_; }
  const char* op() const { return op_; }

  // A required tensor; without elements it may be NULL, which a part would take for absent.
  static fovea_tensor given(fovea_tensor x) {
    alignas(kWorkspaceAlign) static unsigned char nothing[kWorkspaceAlign];
    if (!x.data) x.data = nothing;
    return x;
  }

  // What planning found: the workspace, and a name with the parts' kernels in order.
  Layout workspace() const;
  size_t scratch() const { return arrays_.bytes(); }
  Text name() const;

  // The parts on the real addresses, in order.
  void launch(Context& ctx) const;

 private:
  void part(const Contract& contract, const void* params,
            Plan (*plan)(const Context&, const void*));

  const char* op_;
  const Context& ctx_;
  bool running_ = false;
  // Planned arrays have addresses too, which nobody follows.
  void* base_ = std::bit_cast<void*>(uintptr_t{3} << 45);
  size_t scratch_ = 0;
  Layout arrays_, largest_;
  std::vector<Launch> launches_;
  Text kernels_;
};

// The rows of x (b, s, ...) that a call of query_max computes at most.
inline fovea_tensor first_rows(fovea_tensor x, int64_t query_max) {
  if (query_max) x.shape[1] = std::min(x.shape[1], query_max);
  return x;
}

// x from entry `first` of an axis on.  Addresses are numbers: planned ones are nobody's.
inline fovea_tensor from(fovea_tensor x, int axis, int64_t first) {
  const auto bytes = static_cast<uint64_t>(x.stride[axis]) * static_cast<uint64_t>(first) *
                     dtype_bytes(static_cast<fovea_dtype>(x.dtype));
  x.data = std::bit_cast<void*>(std::bit_cast<uintptr_t>(x.data) + bytes);
  x.shape[axis] -= first;
  return x;
}

// Entry n of the first axis.
inline fovea_tensor entry(const fovea_tensor& x, int64_t n) {
  fovea_tensor y = from(x, 0, n);
  --y.ndim;
  std::copy(x.shape + 1, x.shape + FOVEA_MAX_DIMS, y.shape);
  std::copy(x.stride + 1, x.stride + FOVEA_MAX_DIMS, y.stride);
  return y;
}

// x of other extents and strides.
inline fovea_tensor reshaped(fovea_tensor x, std::initializer_list<int64_t> shape,
                             std::initializer_list<int64_t> stride) {
  x.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), x.shape);
  std::copy(stride.begin(), stride.end(), x.stride);
  return x;
}

// x (b, h, s) as (b, s, h, 1).
inline fovea_tensor by_row(const fovea_tensor& x) {
  return reshaped(x, {x.shape[0], x.shape[2], x.shape[1], 1},
                  {x.stride[0], x.stride[2], x.stride[1], 1});
}

// x over the extents of `like`, by strides of x; 0 repeats.
inline fovea_tensor spread(const fovea_tensor& x, const fovea_tensor& like,
                           const std::array<int64_t, 4>& stride) {
  fovea_tensor y = like;
  y.data = x.data, y.dtype = x.dtype;
  std::copy(stride.begin(), stride.end(), y.stride);
  return y;
}

// body(program, params): makes arrays and runs the parts, by what it was given alone.
template <class P>
using ProgramBody = void (*)(Program&, const P&);

// The two halves of compose, apart since the copies of params need stack that planning needs too.
template <class P>
[[gnu::noinline]] size_t plan_program(Plan& plan, const char* op, const Context& ctx,
                                      const P& params, ProgramBody<P> body) {
  Program planned(op, ctx);
  body(planned, params);
  plan.kernel = planned.name();
  plan.workspace = planned.workspace();
  return planned.scratch();
}
template <class P>
[[gnu::noinline]] Launch launch_program(const char* op, const P& params, ProgramBody<P> body,
                                        size_t scratch) {
  return [op, params, body, scratch](Context& on, void* base) {
    Program running(op, on, base, scratch);
    body(running, params);
    running.launch(on);
  };
}

template <class P>
Plan compose(const char* op, const Context& ctx, const P& params,
             std::type_identity_t<ProgramBody<P>> body) {
  Plan plan;
  const size_t scratch = plan_program<P>(plan, op, ctx, params, body);
  plan.launch = launch_program<P>(op, params, body, scratch);
  return plan;
}

// The same of a function object that has the params.
template <class Body>
Plan compose(const char* op, const Context& ctx, const Body& body) {
  return compose<Body>(op, ctx, body, [](Program& program, const Body& f) { f(program); });
}

}  // namespace fovea
