// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "ops/project/project.h"

namespace fovea {
namespace {

// What the two directions share; `y`: dy in the backward.  `heads` has h heads.
template <class P>
Project shared(const char* op, const P& p, const fovea_tensor& y, const char* heads, int64_t h) {
  Project a{};
  a.x = view_of<4>(p.x), a.y = view_of<4>(y);
  a.dtype = p.x.dtype, a.y_dtype = y.dtype, a.norm_dtype = p.norm_weight.dtype;
  a.b = p.x.shape[0], a.s = p.x.shape[1], a.g = p.x.shape[2], a.h = h;
  a.maps = p.weight.shape[0], a.width[0] = p.x.shape[3];

  check_needs(op, p.bias2, "bias2", p.weight2, "weight2");
  check_needs(op, p.weight3, "weight3", p.weight2, "weight2");
  check_needs(op, p.bias3, "bias3", p.weight3, "weight3");
  const fovea_tensor* weight[] = {&p.weight, &p.weight2, &p.weight3};
  const fovea_tensor* bias[] = {&p.bias, &p.bias2, &p.bias3};
  for (int l = 0; l < kProjectLayers && (l == 0 || weight[l]->data); ++l) {
    a.layer[l].weight = view_of<3>(*weight[l]), a.layer[l].bias = view_of<2>(*bias[l]);
    a.layer[l].bias_dtype = bias[l]->dtype, a.width[l + 1] = weight[l]->shape[2], ++a.layers;
  }
  static constexpr const char* names[] = {"weight", "weight2", "weight3"};
  const auto check_columns = [&](const char* field, int64_t got) {
    if (got != a.f())
      refuse("%s: %s (f) is %lld, wanted %lld: the columns of %s", op, field, lld(got), lld(a.f()),
             names[a.layers - 1]);
  };
  if (p.norm_weight.data) check_columns("norm_weight.shape[0]", p.norm_weight.shape[0]);

  const int64_t products = a.products(), less = a.g < a.h ? a.g : a.h;
  if (products && (!less || products % less))
    refuse("%s: x.shape[2] (g) is %lld and %s.shape[2] (h) %lld, wanted one to divide the other",
           op, lld(a.g), heads, lld(a.h));
  if (products && (!a.maps || products % a.maps))
    refuse("%s: weight.shape[0] (maps) is %lld, wanted a divisor of %lld: the larger of g and h",
           op, lld(a.maps), lld(products));

  if (p.act < 0 || p.act > FOVEA_X_PROJECT_ACT_GELU || (p.act && a.layers == 1))
    refuse("%s: act is %d, wanted %s", op, p.act,
           a.layers == 1 ? "0: there is no weight2" : "a fovea_x_project_act");
  a.act = p.act;
  check_number(op, "norm_eps", p.norm_eps, "1e-6");
  if (p.norm_eps > 0 && !p.norm_weight.data)
    refuse("%s: norm_eps is %g without norm_weight, wanted 0", op, static_cast<double>(p.norm_eps));
  a.eps = p.norm_eps > 0 ? p.norm_eps : 1e-6f, a.norm_weight = view_of<1>(p.norm_weight);
  check_needs(op, p.position, "position", p.cos, "cos");
  a.rope = read_optional_rope(op, p, a.f()), a.position = view_of<2>(p.position);
  return a;
}

void check_rows(const char* op, const Project& a, const char* field, const fovea_tensor& y) {
  if (y.shape[3] != a.f())
    refuse("%s: %s.shape[3] (f) is %lld, wanted %lld: the columns of the last weight", op, field,
           lld(y.shape[3]), lld(a.f()));
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_project_forward_params& p) {
  constexpr char op[] = "x_project_forward";
  const fovea_tensor& out = p.y.data ? p.y : p.code;
  Project a = shared(op, p, p.y, p.y.data ? "y" : "code", out.data ? out.shape[2] : p.x.shape[2]);
  if (p.y.data) check_rows(op, a, "y", p.y);
  if (p.bits < 0 || p.bits > 31 || (p.bits && !p.code.data))
    refuse("%s: bits is %d, wanted %s", op, p.bits,
           p.code.data ? "1 .. 31, or 0 for signs" : "0: there is no code");
  if (p.code.data) {
    a.words = p.code.shape[3], a.bits = p.bits;
    const int64_t words = p.bits ? a.f() / p.bits : a.f() / 32 + (a.f() % 32 != 0);
    if (a.words != words || (p.bits && a.f() % p.bits))
      refuse("%s: code.shape[3] (words) is %lld, wanted %s = %lld: f is %lld", op, lld(a.words),
             p.bits ? "f / bits" : "ceil(f / 32)", lld(words), lld(a.f()));
  }
  a.y = gradient_of<4>(p.y), a.code = gradient_of<4>(p.code);
  return choose(
      op, ctx, a, project_forward_host,
      FOVEA_CUDA_KERNELS(project_forward_sm90, project_forward_sm80, project_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_project_backward_params& p) {
  constexpr char op[] = "x_project_backward";
  Project a = shared(op, p, p.dy, "dy", p.dy.shape[2]);
  check_rows(op, a, "dy", p.dy);
  check_needs(op, p.dweight2, "dweight2", p.weight2, "weight2");
  check_needs(op, p.dweight3, "dweight3", p.weight3, "weight3");
  check_needs(op, p.dbias, "dbias", p.bias, "bias");
  check_needs(op, p.dbias2, "dbias2", p.bias2, "bias2");
  check_needs(op, p.dbias3, "dbias3", p.bias3, "bias3");
  check_needs(op, p.dnorm_weight, "dnorm_weight", p.norm_weight, "norm_weight");
  const fovea_tensor* dweight[] = {&p.dweight, &p.dweight2, &p.dweight3};
  const fovea_tensor* dbias[] = {&p.dbias, &p.dbias2, &p.dbias3};
  for (int l = 0; l < kProjectLayers; ++l)
    a.layer[l].dweight = gradient_of<3>(*dweight[l]), a.layer[l].dbias = gradient_of<2>(*dbias[l]);
  a.dx = gradient_of<4>(p.dx), a.dnorm_weight = gradient_of<1>(p.dnorm_weight);
  return choose(
      op, ctx, a, project_backward_host,
      FOVEA_CUDA_KERNELS(project_backward_sm90, project_backward_sm80, project_backward_simt));
}

}  // namespace fovea
