// SPDX-License-Identifier: Apache-2.0
// x_gla with value gates, as a call with key gates.  The state with its axes swapped, H', goes by
//   k' = v, v' = k, gate_key' = gate_value        H'_t = diag(G_t) H'_(t-1) + k'_t' v'_t
// With the same scale, each direction of one call has parts of both directions of the other:
//   o  = scale q H     = dq' of the gradient with dout' = q; it reads no q'
//   dq = scale dout H' = o' of the forward with q' = dout
//   dk = dv', dv = dk', dgate_value = dgate_key', of the gradient with q' = dout, dout' = q
#pragma once
#include <utility>

#include "core/recur_gradients.h"
#include "core/workspace.h"

namespace fovea {

// What excludes that: nullptr, or the field's name.  Heads of q are those of o.
inline const char* not_swapped(const Recur& a) {
  if (a.gate_head) return "gate_head with gate_value";
  if (a.gate_key) return "gate_key with gate_value";
  if (a.select) return "select with gate_value";
  if (a.bonus) return "bonus with gate_value";
  if (a.skip) return "skip with gate_value";
  if (a.read_before) return "read_before with gate_value";
  if (a.map_q) return "map_q";
  if (a.map_k) return "map_k";
  return nullptr;
}

inline View<4> turned(View<4> x) {
  std::swap(x.stride[2], x.stride[3]);
  return x;
}
inline Floats<4> turned(const Floats<4>& x) {
  return {turned(x.view), x.dtype};
}

// The call with key gates, of what moves the state.
inline Recur swapped(const Recur& a, const Floats<4>& q, const Floats<4>& o) {
  Recur to = a;
  to.k = a.v, to.g = a.x, to.d = a.e;
  to.v = a.k, to.x = a.g, to.e = a.d;
  to.gate_key = a.gate_value, to.gate_value = {};
  to.state_in = turned(a.state_in), to.state_out = turned(a.state_out);
  to.q = q, to.o = o, to.h = a.heads_out;
  return to;
}
// The gradient with key gates that has all but dq.
inline RecurBackward swapped(const RecurBackward& b) {
  RecurBackward to = b;
  to.forward = swapped(b.forward, b.forward.o, b.forward.q);
  to.dstate_out = turned(b.dstate_out), to.dstate_in = turned(b.dstate_in);
  const auto of = [&](RecurGradient what) -> Floats<4>& { return to.to[static_cast<int>(what)]; };
  of(RecurGradient::q) = {};
  std::swap(of(RecurGradient::k), of(RecurGradient::v));
  std::swap(of(RecurGradient::gate_key), of(RecurGradient::gate_value));
  return to;
}
// Whether it has an output.
inline bool asks_more_than_q(const RecurBackward& b) {
  bool more = static_cast<bool>(b.dstate_in);
  each_gradient(b, [&](RecurGradient what) { more |= what != RecurGradient::q; });
  return more;
}

// Room for two that run one after the other.
inline Layout either(const Layout& x, const Layout& y) {
  return !x.fits() || (y.fits() && x.bytes() > y.bytes()) ? x : y;
}

}  // namespace fovea
