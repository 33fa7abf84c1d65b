// SPDX-License-Identifier: Apache-2.0
#include "ops/norm/gate.h"

#include "core/fields.h"
#include "fovea/experimental/multi_token.h"

namespace fovea {
namespace {

NormRows rows_of(const fovea_tensor& x) {
  return {gradient_of<4>(x), x.dtype};
}
NormColumns columns_of(const fovea_tensor& x) {
  return {view_of<2>(x), x.dtype};
}

// What both operations and both directions share; `y`: dy in the backward.
template <class P>
NormGate rows_and_numbers(const char* op, const P& p, const fovea_tensor& y) {
  NormGate n{};
  n.x = {view_of<4>(p.x), p.x.dtype}, n.y = {view_of<4>(y), y.dtype};
  n.query_len = int_vector(p.query_len);
  n.b = p.x.shape[0], n.s = p.x.shape[1], n.h = p.x.shape[2], n.e = n.group = p.x.shape[3];
  if (n.e < 1) refuse("%s: x.shape[3] (e) is 0, wanted >= 1", op);
  check_number(op, "factor", p.factor, "1");
  check_number(op, "eps", p.eps, "1e-5");
  n.factor = p.factor > 0 ? p.factor : 1.0f, n.eps = p.eps > 0 ? p.eps : 1e-5f;
  return n;
}

template <class P>
NormGate shared(const char* op, const P& p, const fovea_tensor& y) {
  NormGate n = rows_and_numbers(op, p, y);
  n.gate = rows_of(p.gate), n.before = rows_of(p.add_before);
  n.weight = columns_of(p.weight), n.bias = columns_of(p.bias);
  if (p.group < 0 || (p.group && n.e % p.group))
    refuse("%s: group is %lld, wanted a divisor of e = %lld, or 0", op, lld(p.group), lld(n.e));
  if (p.group) n.group = p.group;
  if (p.norm < 0 || p.norm > FOVEA_X_NORM_GATE_NORM_NONE)
    refuse("%s: norm is %d, wanted a fovea_x_norm_gate_norm", op, p.norm);
  if (p.act < 0 || p.act > FOVEA_X_NORM_GATE_ACT_NONE)
    refuse("%s: act is %d, wanted a fovea_x_norm_gate_act", op, p.act);
  check_flag(op, "gate_first", p.gate_first);
  if (!p.gate.data && (p.act || p.gate_first))
    refuse("%s: %s is %d without gate, wanted 0", op, p.act ? "act" : "gate_first",
           p.act ? p.act : p.gate_first);
  n.norm = p.norm, n.act = p.act, n.gate_first = p.gate_first != 0;
  return n;
}

template <class P>
NormGate multi_token(const char* op, const P& p, const fovea_tensor& y) {
  NormGate n = rows_and_numbers(op, p, y);
  n.weight = columns_of(p.gain);
  return n;
}

Plan choose_forward(const char* op, const Context& ctx, const NormGate& n) {
  return choose(op, ctx, n, norm_gate_forward_host, FOVEA_CUDA_KERNELS(norm_gate_forward_simt));
}
Plan choose_backward(const char* op, const Context& ctx, const NormGateBackward& n) {
  return choose(op, ctx, n, norm_gate_backward_host, FOVEA_CUDA_KERNELS(norm_gate_backward_simt));
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_norm_gate_forward_params& p) {
  constexpr char op[] = "x_norm_gate_forward";
  NormGate n = shared(op, p, p.y);
  n.after = rows_of(p.add_after);
  return choose_forward(op, ctx, n);
}

Plan plan(const Context& ctx, const fovea_x_norm_gate_backward_params& p) {
  constexpr char op[] = "x_norm_gate_backward";
  NormGateBackward request{};
  request.forward = shared(op, p, p.dy);
  check_needs(op, p.dgate, "dgate", p.gate, "gate");
  request.dx = rows_of(p.dx), request.dgate = rows_of(p.dgate);
  request.dweight = gradient_of<2>(p.dweight), request.dbias = gradient_of<2>(p.dbias);
  return choose_backward(op, ctx, request);
}

Plan plan(const Context& ctx, const fovea_x_group_norm_forward_params& p) {
  constexpr char op[] = "x_group_norm_forward";
  return choose_forward(op, ctx, multi_token(op, p, p.y));
}

Plan plan(const Context& ctx, const fovea_x_group_norm_backward_params& p) {
  constexpr char op[] = "x_group_norm_backward";
  NormGateBackward request{};
  request.forward = multi_token(op, p, p.dy);
  request.dx = rows_of(p.dx), request.dweight = gradient_of<2>(p.dgain);
  return choose_backward(op, ctx, request);
}

}  // namespace fovea
