// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/plan.h"
#include "fovea/experimental/multi_token.h"
#include "ops/norm/kernels.h"

namespace fovea {
namespace {

constexpr char kForward[] = "x_group_norm_forward";
constexpr char kBackward[] = "x_group_norm_backward";

template <class P>
GroupNorm shared(const char* op, const P& p, const fovea_tensor& y) {
  GroupNorm n{};
  n.x = view_of<4>(p.x), n.y = view_of<4>(y), n.gain = view_of<2>(p.gain);
  n.query_len = int_vector(p.query_len);
  n.dtype = p.x.dtype, n.y_dtype = y.dtype, n.gain_dtype = p.gain.dtype;
  n.b = p.x.shape[0], n.s = p.x.shape[1], n.h = p.x.shape[2], n.e = p.x.shape[3];
  if (n.e < 1) refuse("%s: x.shape[3] (e) is 0, wanted >= 1", op);
  check_number(op, "factor", p.factor, "1");
  check_number(op, "eps", p.eps, "1e-5");
  n.factor = p.factor > 0 ? p.factor : 1.0f, n.eps = p.eps > 0 ? p.eps : 1e-5f;
  return n;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_group_norm_forward_params& p) {
  return choose(kForward, ctx, shared(kForward, p, p.y), group_norm_forward_host,
                FOVEA_CUDA_KERNELS(group_norm_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_group_norm_backward_params& p) {
  GroupNormBackward request{};
  request.forward = shared(kBackward, p, p.dy);
  request.dx = gradient_of<4>(p.dx), request.dgain = gradient_of<2>(p.dgain);
  return choose(kBackward, ctx, request, group_norm_backward_host,
                FOVEA_CUDA_KERNELS(group_norm_backward_simt));
}

}  // namespace fovea
