// SPDX-License-Identifier: Apache-2.0
#include "ops/summary/combine.h"

#include "core/fields.h"

namespace fovea {
namespace {

template <class P>
Combine shared(const char* op, const P& p, const fovea_tensor& y) {
  Combine a{};
  const fovea_tensor* x[] = {&p.x, &p.x2, &p.x3, &p.x4, &p.coarse};
  const fovea_tensor* gate[] = {&p.gate, &p.gate2, &p.gate3, &p.gate4, &p.gate_coarse};
  const float coefficient[] = {p.coefficient, p.coefficient2, p.coefficient3, p.coefficient4,
                               p.coefficient_coarse};
  const int32_t act[] = {p.gate_act, p.gate2_act, p.gate3_act, p.gate4_act, p.gate_coarse_act};
  static constexpr const char* names[] = {"x", "x2", "x3", "x4", "coarse"};
  static constexpr const char* tails[] = {"", "2", "3", "4", "_coarse"};
  for (int n = 0; n < kCombineTerms; ++n) {
    CombineTerm& t = a.term[n];
    if (n && gate[n]->data && !x[n]->data)
      refuse("%s: gate%s is given without %s, wanted both", op, tails[n], names[n]);
    if (!std::isfinite(coefficient[n]))
      refuse("%s: coefficient%s is %g, wanted a number", op, tails[n],
             static_cast<double>(coefficient[n]));
    if (act[n] < 0 || act[n] > FOVEA_X_GATE_SIGMOID_COMPLEMENT || (act[n] && !gate[n]->data))
      refuse("%s: gate%s_act is %d, wanted %s", op, tails[n], act[n],
             gate[n]->data ? "a fovea_x_gate" : "0: there is no gate");
    t.x = view_of<4>(*x[n]), t.gate = view_of<4>(*gate[n]), t.gate_dtype = gate[n]->dtype;
    t.coefficient = coefficient[n] != 0 ? coefficient[n] : 1, t.act = act[n];
  }
  a.y = view_of<4>(y), a.dtype = p.x.dtype, a.y_dtype = y.dtype;
  a.b = y.shape[0], a.s = y.shape[1], a.h = y.shape[2], a.e = y.shape[3];
  check_needs(op, p.row_begin, "row_begin", p.coarse, "coarse");
  check_not_negative(op, "block_rows", p.block_rows);
  if (p.block_rows && (p.row_begin.data || !p.coarse.data))
    refuse("%s: block_rows is %lld %s, wanted 0", op, lld(p.block_rows),
           p.row_begin.data ? "with row_begin" : "without coarse");
  a.block_rows = p.block_rows ? p.block_rows : 64;
  if (a.block_rows > (int64_t{1} << 40)) a.block_rows = int64_t{1} << 40;
  a.row_begin = view_of<2>(p.row_begin), a.u = p.coarse.data ? p.coarse.shape[1] : 0;
  a.query_len = int_vector(p.query_len);
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_combine_forward_params& p) {
  constexpr char op[] = "x_combine_forward";
  return choose(op, ctx, shared(op, p, p.y), combine_forward_host,
                FOVEA_CUDA_KERNELS(combine_forward_rows, combine_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_combine_backward_params& p) {
  constexpr char op[] = "x_combine_backward";
  Combine a = shared(op, p, p.dy);
  const fovea_tensor* dx[] = {&p.dx, &p.dx2, &p.dx3, &p.dx4, &p.dcoarse};
  const fovea_tensor* dgate[] = {&p.dgate, &p.dgate2, &p.dgate3, &p.dgate4, &p.dgate_coarse};
  static constexpr const char* names[] = {"x", "x2", "x3", "x4", "coarse"};
  static constexpr const char* tails[] = {"", "2", "3", "4", "_coarse"};
  for (int n = 0; n < kCombineTerms; ++n) {
    CombineTerm& t = a.term[n];
    if (n && dx[n]->data && !t.x)
      refuse("%s: d%s is given without %s, wanted both", op, names[n], names[n]);
    if (dgate[n]->data && !t.gate)
      refuse("%s: dgate%s is given without gate%s, wanted both", op, tails[n], tails[n]);
    t.dx = gradient_of<4>(*dx[n]), t.dgate = gradient_of<4>(*dgate[n]);
    t.dgate_dtype = dgate[n]->dtype;
  }
  return choose(op, ctx, a, combine_backward_host, FOVEA_CUDA_KERNELS(combine_backward_simt));
}

Plan plan(const Context& ctx, const fovea_x_compare_forward_params& p) {
  constexpr char op[] = "x_compare_forward";
  Compare a{};
  a.reference = view_of<4>(p.reference), a.candidate = view_of<5>(p.candidate);
  a.distance = gradient_of<3>(p.distance), a.best = gradient_of<2>(p.best);
  a.query_len = int_vector(p.query_len), a.dtype = p.reference.dtype;
  a.b = p.reference.shape[0], a.s = p.reference.shape[1], a.h = p.reference.shape[2];
  a.e = p.reference.shape[3], a.n = p.candidate.shape[0];
  if (p.measure != FOVEA_X_COMPARE_MSE && p.measure != FOVEA_X_COMPARE_JSD)
    refuse("%s: measure is %d, wanted a fovea_x_compare_measure", op, p.measure);
  a.jsd = p.measure == FOVEA_X_COMPARE_JSD;
  if (!a.e) a.s = 0;  // rows without columns are not looked at
  if (!a.s && !a.distance) a.n = std::min<int64_t>(a.n, 1);  // all are equal
  return choose(op, ctx, a, compare_forward_host, FOVEA_CUDA_KERNELS(compare_forward_simt));
}

}  // namespace fovea
