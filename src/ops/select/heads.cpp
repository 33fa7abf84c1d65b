// SPDX-License-Identifier: Apache-2.0
#include "ops/select/heads.h"

#include "core/fields.h"

namespace fovea {

Plan plan(const Context& ctx, const fovea_x_select_heads_params& p) {
  constexpr char op[] = "x_select_heads";
  SelectHeads a{};
  a.q = view_of<4>(p.q), a.k = view_of<4>(p.k);
  a.q_dtype = p.q.dtype, a.k_dtype = p.k.dtype;
  a.query_len = int_vector(p.query_len), a.clusters_of = int_vector(p.clusters_of);
  a.head_map = view_of<2>(p.head_map), a.label = view_of<2>(p.label);
  a.count = view_of<1>(p.count);
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.g = p.k.shape[2];
  if (a.h && (!a.g || a.h % a.g))
    refuse("%s: k.shape[2] (g) is %lld, wanted a divisor of q's %lld heads", op, lld(a.g),
           lld(a.h));
  if (a.h > kClusterHeadsMost)
    fail(FOVEA_UNSUPPORTED, "%s: q.shape[2] (h) is %lld, wanted at most %lld", op, lld(a.h),
         lld(kClusterHeadsMost));
  if (a.d < 1) refuse("%s: q.shape[3] (d) is 0, wanted >= 1", op);
  if (a.d > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: q.shape[3] (d) is %lld, wanted at most %lld", op, lld(a.d),
         lld(kWidthMax));
  check_not_negative(op, "clusters", p.clusters);
  if (p.clusters_of.data ? p.clusters != 0 : p.clusters < 1)
    refuse("%s: clusters is %lld %s clusters_of, wanted %s", op, lld(p.clusters),
           p.clusters_of.data ? "with" : "without", p.clusters_of.data ? "0" : ">= 1");
  check_flag(op, "causal", p.causal);
  a.clusters = p.clusters, a.causal = p.causal;
  a.scale = read_scale(op, "scale", p.scale, a.d, "1 / sqrt(d)");
  return choose(op, ctx, a, x_select_heads_host, FOVEA_CUDA_KERNELS(x_select_heads_simt));
}

}  // namespace fovea
