// SPDX-License-Identifier: Apache-2.0
// The fields that x_gla and x_delta share, read and checked.  `op` is named in every refusal.
#pragma once
#include "core/recur.h"
#include "core/recur_gradients.h"
#include "core/run_fields.h"

namespace fovea {

template <int N>
Floats<N> floats_of(const fovea_tensor& x) {
  return {view_of<N>(x), x.dtype};
}

inline void check_ratio(const char* op, const char* field, const char* letter, int64_t count,
                        int64_t heads, const char* of) {
  if (count < 1 ? heads != 0 : heads % count)
    refuse("%s: %s.shape[2] (%s) is %lld, wanted a divisor of the %lld heads of %s", op, field,
           letter, lld(count), lld(heads), of);
}

// Tensors with an axis of states' heads.
inline void check_heads(const char* op, const fovea_tensor& x, const char* field, int axis,
                        const Recur& a) {
  if (x.data && x.shape[axis] != a.heads)
    refuse("%s: %s.shape[%d] (heads) is %lld, wanted %lld: the more heads of k and v", op, field,
           axis, lld(x.shape[axis]), lld(a.heads));
}

// A number of [0, count).
inline void check_enum(const char* op, const char* field, int32_t value, int32_t count,
                       const char* of) {
  if (value < 0 || value >= count) refuse("%s: %s is %d, wanted a %s", op, field, value, of);
}

constexpr int64_t kRecurWidthMost = 512;  // of a key

// Extents, heads, gates, states and numbers; `o`: dout in the backward.
template <class P>
Recur read_recur(const char* op, const P& p, const fovea_tensor& o, const char* o_name) {
  Recur a{};
  a.q = floats_of<4>(p.q), a.k = floats_of<4>(p.k), a.v = floats_of<4>(p.v), a.o = floats_of<4>(o);
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.t = p.k.shape[1], a.g = p.k.shape[2], a.x = p.v.shape[2], a.e = p.v.shape[3];
  if (a.d < 1) refuse("%s: q.shape[3] (d) is 0, wanted >= 1", op);
  if (a.d > kRecurWidthMost)
    fail(FOVEA_UNSUPPORTED, "%s: q.shape[3] (d) is %lld, wanted at most %lld", op, lld(a.d),
         lld(kRecurWidthMost));
  a.heads = std::max(a.g, a.x), a.heads_out = std::max(a.h, a.heads);
  check_ratio(op, "k", "g", a.g, a.heads, "k and v"),
      check_ratio(op, "v", "x", a.x, a.heads, "k and v");
  check_ratio(op, "q", "h", a.h, a.heads_out, "o");
  if (a.heads < 1 ? a.heads_out != 0 : a.heads_out % a.heads)
    refuse(
        "%s: q.shape[2] (h) is %lld, wanted a multiple or a divisor of the %lld heads of k and v",
        op, lld(a.h), lld(a.heads));
  if (o.data && o.shape[2] != a.heads_out)
    refuse("%s: %s.shape[2] (heads_out) is %lld, wanted %lld: the most heads of q, k and v", op,
           o_name, lld(o.shape[2]), lld(a.heads_out));
  check_heads(op, p.gate_head, "gate_head", 2, a), check_heads(op, p.gate_key, "gate_key", 2, a);
  check_heads(op, p.gate_rate, "gate_rate", 0, a), check_heads(op, p.gate_bias, "gate_bias", 0, a);
  check_heads(op, p.state_in, "state_in", 1, a);
  a.gate_head = floats_of<3>(p.gate_head), a.gate_key = floats_of<4>(p.gate_key);
  a.rate = view_of<1>(p.gate_rate), a.bias = view_of<2>(p.gate_bias);
  a.state_in = floats_of<4>(p.state_in);
  a.run = read_run(op, p, a.b, a.s);
  a.scale = read_scale(op, "scale", p.scale, a.d, "d^-1/2");
  check_number(op, "eps", p.eps, "1e-6");
  a.eps = p.eps > 0 ? p.eps : 1e-6f;
  check_number(op, "gate_bound", p.gate_bound, "no bound");
  check_number(op, "gate_tau", p.gate_tau, "1");
  check_enum(op, "gate_map", p.gate_map, 5, "fovea_x_gate_map");
  a.gate = {p.gate_map, p.gate_bound, p.gate_tau > 0 ? p.gate_tau : 1};
  return a;
}

// After every gate of the call is there; `gated`: has it one?
template <class P>
void check_gates(const char* op, const P& p, bool gated) {
  if (p.gate_map == FOVEA_X_GATE_MAP_BOUNDED && gated && !(p.gate_bound > 0))
    refuse("%s: gate_bound is 0 with gate_map = 2, wanted > 0: the map's factor", op);
  if (p.gate_tau > 0 && p.gate_map != FOVEA_X_GATE_MAP_LOG_SIGMOID)
    refuse("%s: gate_tau is %g with gate_map = %d, wanted 0: it is of gate_map 3", op, p.gate_tau,
           p.gate_map);
  if (p.gate_rate.data && p.gate_map != FOVEA_X_GATE_MAP_SOFTPLUS &&
      p.gate_map != FOVEA_X_GATE_MAP_BOUNDED)
    refuse("%s: gate_rate is given with gate_map = %d, wanted 1 or 2", op, p.gate_map);
  if (!gated && (p.gate_map || p.gate_bound > 0 || p.gate_rate.data))
    refuse("%s: %s is set without a gate", op,
           p.gate_rate.data ? "gate_rate"
           : p.gate_map     ? "gate_map"
                            : "gate_bound");
  if (p.gate_bias.data && !p.gate_head.data && !p.gate_key.data)
    refuse("%s: gate_bias is given without gate_head and gate_key, wanted one of them", op);
}

// State tensors that are written; `z`: whether they have the (d) rows of a normaliser.
template <class P>
void read_states_out(const char* op, const P& p, Recur& a) {
  check_some_output(op, p.o, "o", p.state_out, p.snapshot);
  check_not_negative(op, "splits", p.splits);
  a.splits = p.splits;
  check_heads(op, p.state_out, "state_out", 1, a), check_heads(op, p.snapshot, "snapshot", 1, a);
  a.state_out = {gradient_of<4>(p.state_out), p.state_out.dtype};
  a.snapshot = {gradient_of<4>(p.snapshot), p.snapshot.dtype};
}

// Outputs of a backward that both operations have.
template <class P>
RecurBackward read_gradients(const char* op, const P& p, const Recur& a) {
  RecurBackward b{};
  b.forward = a;
  const auto to = [&](RecurGradient what, const fovea_tensor& x, std::initializer_list<int> axes) {
    Floats<4>& view = b.to[static_cast<int>(what)];
    view.dtype = x.dtype;
    if (!x.data) return;
    for (int i = 0; i < x.ndim; ++i)
      if (x.shape[i] == 0) return;
    view.view.data = x.data;
    int axis = 0;
    for (const int place : axes) view.view.stride[place] = x.stride[axis++];
  };
  to(RecurGradient::q, p.dq, {0, 1, 2, 3}), to(RecurGradient::k, p.dk, {0, 1, 2, 3});
  to(RecurGradient::v, p.dv, {0, 1, 2, 3});
  to(RecurGradient::gate_head, p.dgate_head, {0, 1, 2});
  to(RecurGradient::gate_key, p.dgate_key, {0, 1, 2, 3});
  to(RecurGradient::rate, p.dgate_rate, {2}), to(RecurGradient::bias, p.dgate_bias, {2, 3});
  check_needs(op, p.dgate_head, "dgate_head", p.gate_head, "gate_head");
  check_needs(op, p.dgate_key, "dgate_key", p.gate_key, "gate_key");
  check_needs(op, p.dgate_rate, "dgate_rate", p.gate_rate, "gate_rate");
  check_needs(op, p.dgate_bias, "dgate_bias", p.gate_bias, "gate_bias");
  if constexpr (requires { p.dselect; }) {
    to(RecurGradient::gate_value, p.dgate_value, {0, 1, 2, 3});
    to(RecurGradient::select, p.dselect, {0, 1, 2});
    to(RecurGradient::bonus, p.dbonus, {2, 3}), to(RecurGradient::skip, p.dskip, {2, 3});
    check_needs(op, p.dgate_value, "dgate_value", p.gate_value, "gate_value");
    check_needs(op, p.dselect, "dselect", p.select, "select");
    check_needs(op, p.dbonus, "dbonus", p.bonus, "bonus");
    check_needs(op, p.dskip, "dskip", p.skip, "skip");
  } else {
    to(RecurGradient::beta, p.dbeta, {0, 1, 2});
    to(RecurGradient::erase, p.derase, {0, 1, 2, 3});
    to(RecurGradient::low_a, p.dlow_a, {0, 1, 2, 3});
    to(RecurGradient::low_b, p.dlow_b, {0, 1, 2, 3});
    check_needs(op, p.dbeta, "dbeta", p.beta, "beta");
    check_needs(op, p.derase, "derase", p.erase, "erase");
    check_needs(op, p.dlow_a, "dlow_a", p.low_a, "low_a");
    check_needs(op, p.dlow_b, "dlow_b", p.low_b, "low_b");
  }
  check_heads(op, p.dstate_out, "dstate_out", 1, a),
      check_heads(op, p.dstate_in, "dstate_in", 1, a);
  b.dstate_out = view_of<4>(p.dstate_out), b.dstate_in = gradient_of<4>(p.dstate_in);
  return b;
}

}  // namespace fovea
