// SPDX-License-Identifier: Apache-2.0
#include "core/run_fields.h"
#include "fovea/experimental/linear.h"
#include "ops/conv1d/conv1d.h"

namespace fovea {
namespace {

// What the two directions share; `y`: dy in the backward.
template <class P>
Conv1d shared(const char* op, const P& p, const fovea_tensor& y) {
  Conv1d a{};
  a.x = view_of<3>(p.x), a.y = view_of<3>(y), a.state_in = view_of<3>(p.state_in);
  a.weight = view_of<2>(p.weight), a.bias = view_of<1>(p.bias);
  a.dtype = p.x.dtype, a.y_dtype = y.dtype;
  a.weight_dtype = p.weight.dtype, a.in_dtype = p.state_in.dtype;
  a.b = p.x.shape[0], a.s = p.x.shape[1], a.f = p.x.shape[2], a.taps = p.weight.shape[1];
  if (a.taps < 1) refuse("%s: weight.shape[1] (taps) is 0, wanted >= 1", op);
  a.run = read_run(op, p, a.b, a.s);
  if (p.activation != FOVEA_X_CONV1D_ACTIVATION_NONE &&
      p.activation != FOVEA_X_CONV1D_ACTIVATION_SILU)
    refuse("%s: activation is %d, wanted a fovea_x_conv1d_activation", op, p.activation);
  a.silu = p.activation == FOVEA_X_CONV1D_ACTIVATION_SILU;
  return a;
}

// The columns of a state; all that are given have as many.
void read_tail(const char* op, const char* field, const fovea_tensor& x, Conv1d& a) {
  if (!x.data) return;
  a.tail = x.shape[2];
  if (a.tail < a.taps - 1)
    refuse("%s: %s.shape[2] (tail) is %lld, wanted at least taps - 1 = %lld", op, field,
           lld(a.tail), lld(a.taps - 1));
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_conv1d_forward_params& p) {
  constexpr char op[] = "x_conv1d_forward";
  Conv1d a = shared(op, p, p.y);
  check_some_output(op, p.y, "y", p.state_out, p.snapshot);
  a.state_out = gradient_of<3>(p.state_out), a.snapshot = gradient_of<3>(p.snapshot);
  a.out_dtype = p.state_out.dtype, a.snapshot_dtype = p.snapshot.dtype;
  read_tail(op, "state_in", p.state_in, a), read_tail(op, "state_out", p.state_out, a);
  read_tail(op, "snapshot", p.snapshot, a);
  return choose(op, ctx, a, conv1d_forward_host, FOVEA_CUDA_KERNELS(conv1d_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_conv1d_backward_params& p) {
  constexpr char op[] = "x_conv1d_backward";
  Conv1dBackward a{};
  a.forward = shared(op, p, p.dy);
  a.dstate_out = view_of<3>(p.dstate_out), a.dstate_in = gradient_of<3>(p.dstate_in);
  a.dx = gradient_of<3>(p.dx);
  a.dweight = gradient_of<2>(p.dweight), a.dbias = gradient_of<1>(p.dbias);
  a.dout_dtype = p.dstate_out.dtype, a.din_dtype = p.dstate_in.dtype;
  read_tail(op, "state_in", p.state_in, a.forward);
  read_tail(op, "dstate_out", p.dstate_out, a.forward);
  read_tail(op, "dstate_in", p.dstate_in, a.forward);
  return choose(op, ctx, a, conv1d_backward_host, FOVEA_CUDA_KERNELS(conv1d_backward_simt));
}

}  // namespace fovea
