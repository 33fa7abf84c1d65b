// SPDX-License-Identifier: Apache-2.0
#include "core/recur_fields.h"
#include "ops/delta/delta.h"

namespace fovea {
namespace {

// What the two directions share; `o`: dout in the backward.
template <class P>
Recur shared(const char* op, const P& p, const fovea_tensor& o, const char* o_name) {
  Recur a = read_recur(op, p, o, o_name);
  check_heads(op, p.beta, "beta", 2, a), check_heads(op, p.erase, "erase", 2, a),
      check_heads(op, p.low_a, "low_a", 2, a), check_heads(op, p.low_b, "low_b", 2, a);
  a.beta = floats_of<3>(p.beta), a.erase = floats_of<4>(p.erase);
  a.low_a = floats_of<4>(p.low_a), a.low_b = floats_of<4>(p.low_b);
  check_gates(op, p, p.gate_head.data || p.gate_key.data);
  check_enum(op, "beta_map", p.beta_map, 3, "fovea_x_beta_map");
  if (p.beta_map && !p.beta.data) refuse("%s: beta_map is %d without beta", op, p.beta_map);
  check_flag(op, "l2_norm", p.l2_norm);
  if (p.eps > 0 && !p.l2_norm) refuse("%s: eps is %g without l2_norm", op, p.eps);
  check_together(op, p.low_a, "low_a", p.low_b, "low_b");
  for (const auto& [x, field] : {std::pair{&p.beta, "beta"}, std::pair{&p.erase, "erase"}})
    if (x->data && p.low_a.data)
      refuse("%s: %s is given with low_a, wanted one of them", op, field);
  a.form = p.low_a.data ? Recurrence::low_rank : Recurrence::corrected;
  a.beta_map = p.beta_map, a.l2_norm = p.l2_norm;
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_delta_forward_params& p) {
  constexpr char op[] = "x_delta_forward";
  Recur a = shared(op, p, p.o, "o");
  read_states_out(op, p, a);
  return choose(op, ctx, a, delta_forward_host,
                FOVEA_CUDA_KERNELS(delta_forward_sm90, delta_drafts_sm90, delta_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_delta_backward_params& p) {
  constexpr char op[] = "x_delta_backward";
  const Recur a = shared(op, p, p.dout, "dout");
  return choose(op, ctx, read_gradients(op, p, a), delta_backward_host,
                FOVEA_CUDA_KERNELS(delta_backward_sm90, delta_backward_simt));
}

}  // namespace fovea
