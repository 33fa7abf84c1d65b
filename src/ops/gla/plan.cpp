// SPDX-License-Identifier: Apache-2.0
#include "core/recur_fields.h"
#include "ops/gla/gla.h"

namespace fovea {
namespace {

// A field that has no meaning without `mode`.
void check_mode(const char* op, const fovea_tensor& x, const char* field, const char* mode) {
  if (x.data) refuse("%s: %s is given without %s = 1", op, field, mode);
}

// What `full` and `normalise` exclude.
template <class P>
void check_exclusions(const char* op, const P& p, const Recur& a) {
  const auto without = [&](const fovea_tensor& x, const char* field, const char* mode) {
    if (x.data) refuse("%s: %s is given with %s, wanted one of them", op, field, mode);
  };
  if (p.normalise) {
    without(p.gate_value, "gate_value", "normalise"), without(p.bonus, "bonus", "normalise");
    if (p.read_before) refuse("%s: read_before is 1 with normalise, wanted one of them", op);
    check_together(op, p.state_in, "state_in", p.z_in, "z_in");
  } else {
    check_mode(op, p.z_in, "z_in", "normalise");
  }
  if (!p.full) {
    if (a.t != a.s)
      refuse("%s: k.shape[1] (t) is %lld, wanted %lld as q: full = 1 alone has other keys", op,
             lld(a.t), lld(a.s));
    check_mode(op, p.key_start, "key_start", "full");
    check_mode(op, p.key_len, "key_len", "full");
    return;
  }
  without(p.gate_head, "gate_head", "full"), without(p.gate_key, "gate_key", "full");
  without(p.gate_value, "gate_value", "full"), without(p.bonus, "bonus", "full");
  without(p.skip, "skip", "full");
  if (p.read_before) refuse("%s: read_before is 1 with full, wanted one of them", op);
  check_together(op, p.start, "start", p.key_start, "key_start");
}

// What the two directions share; `o`: dout in the backward.
template <class P>
Recur shared(const char* op, const P& p, const fovea_tensor& o, const char* o_name) {
  Recur a = read_recur(op, p, o, o_name);
  a.form = Recurrence::additive;
  check_heads(op, p.gate_value, "gate_value", 2, a), check_heads(op, p.select, "select", 2, a);
  check_heads(op, p.bonus, "bonus", 0, a), check_heads(op, p.skip, "skip", 0, a),
      check_heads(op, p.z_in, "z_in", 1, a);
  a.gate_value = floats_of<4>(p.gate_value), a.select = floats_of<3>(p.select);
  a.bonus = view_of<2>(p.bonus), a.skip = view_of<2>(p.skip), a.z_in = view_of<3>(p.z_in);
  a.key_start = int_vector(p.key_start), a.key_len = int_vector(p.key_len);
  check_gates(op, p, p.gate_head.data || p.gate_key.data || p.gate_value.data);
  check_enum(op, "map_q", p.map_q, 4, "fovea_x_feature_map");
  check_enum(op, "map_k", p.map_k, 4, "fovea_x_feature_map");
  check_flag(op, "full", p.full), check_flag(op, "read_before", p.read_before);
  check_flag(op, "normalise", p.normalise), check_flag(op, "bonus_sigmoid", p.bonus_sigmoid);
  if (p.bonus_sigmoid && !p.bonus.data) refuse("%s: bonus_sigmoid is 1 without bonus", op);
  if (p.eps > 0 && !p.normalise) refuse("%s: eps is %g without normalise", op, p.eps);
  check_exclusions(op, p, a);
  a.map_q = p.map_q, a.map_k = p.map_k;
  a.full = p.full, a.read_before = p.read_before, a.normalise = p.normalise;
  a.bonus_sigmoid = p.bonus_sigmoid;
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_gla_forward_params& p) {
  constexpr char op[] = "x_gla_forward";
  Recur a = shared(op, p, p.o, "o");
  read_states_out(op, p, a);
  if (p.full && p.snapshot.data) refuse("%s: snapshot is given with full, wanted one of them", op);
  check_needs(op, p.z_snapshot, "z_snapshot", p.snapshot_row, "snapshot_row");
  if (p.normalise) {
    check_together(op, p.state_out, "state_out", p.z_out, "z_out");
    check_together(op, p.snapshot, "snapshot", p.z_snapshot, "z_snapshot");
  } else {
    check_mode(op, p.z_out, "z_out", "normalise");
    check_mode(op, p.z_snapshot, "z_snapshot", "normalise");
  }
  a.z_out = gradient_of<3>(p.z_out), a.z_snapshot = gradient_of<3>(p.z_snapshot);
  return choose(op, ctx, a, gla_forward_host,
                FOVEA_CUDA_KERNELS(gla_forward_sm90, gla_forward_value_sm90, gla_drafts_sm90,
                                   gla_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_gla_backward_params& p) {
  constexpr char op[] = "x_gla_backward";
  const Recur a = shared(op, p, p.dout, "dout");
  RecurBackward b = read_gradients(op, p, a);
  check_needs(op, p.dz_out, "dz_out", p.dstate_out, "dstate_out");
  if (!p.normalise) {
    check_mode(op, p.dz_out, "dz_out", "normalise");
    check_mode(op, p.dz_in, "dz_in", "normalise");
  }
  check_heads(op, p.dz_in, "dz_in", 1, a);
  b.dz_out = view_of<3>(p.dz_out), b.dz_in = gradient_of<3>(p.dz_in);
  b.normalise = p.normalise;
  return choose(op, ctx, b, gla_backward_host,
                FOVEA_CUDA_KERNELS(gla_backward_sm90, gla_backward_keys_sm90,
                                   gla_backward_value_sm90, gla_backward_simt));
}

}  // namespace fovea
