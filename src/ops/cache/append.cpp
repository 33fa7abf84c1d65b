// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/fields.h"
#include "core/plan.h"
#include "fovea/cache.h"
#include "ops/cache/kernels.h"

namespace fovea {
namespace {

constexpr char kOp[] = "cache_append";

// What refusals call the fields of a part.
struct Names {
  const char *scale, *scale_out;
};

void resolve_scales(AppendPart& part, const fovea_tensor& cache, const fovea_tensor& scale,
                    const fovea_tensor& scale_out, const Names& name) {
  const bool plain =
      cache.dtype == FOVEA_F32 || cache.dtype == FOVEA_F16 || cache.dtype == FOVEA_BF16;
  if (scale.data && scale_out.data)
    refuse("%s: %s is given with %s, wanted one of them", kOp, name.scale_out, name.scale);
  if ((scale.data || scale_out.data) && plain)
    refuse("%s: %s is given for a cache of f32, f16 or bf16, wanted e4m3, e5m2 or i8", kOp,
           scale.data ? name.scale : name.scale_out);
  part.scale = view_of<1>(scale);
  if (!scale_out.data) return;
  part.scale_out = view_of<4>(scale_out), part.groups = scale_out.shape[3];
  if (part.groups < 1 || part.width % part.groups)
    refuse("%s: %s.shape[3] (groups) is %lld, wanted a divisor of the %lld columns", kOp,
           name.scale_out, lld(part.groups), lld(part.width));
}

AppendPart part_of(const fovea_tensor& fresh, const fovea_tensor& cache, const fovea_tensor& scale,
                   const fovea_tensor& scale_out, const Names& name) {
  AppendPart part{};
  if (!fresh.data) return part;
  part.fresh = view_of<4>(fresh), part.cache = view_of<4>(cache);
  part.fresh_dtype = fresh.dtype, part.cache_dtype = cache.dtype;
  part.heads = fresh.shape[2], part.width = fresh.shape[3];
  resolve_scales(part, cache, scale, scale_out, name);
  return part;
}

// Rotation and norm, which are for keys alone.
void resolve_keys(const fovea_cache_append_params& p, AppendPart& k) {
  check_needs(kOp, p.cos, "cos", p.k_new, "k_new");
  check_needs(kOp, p.position, "position", p.cos, "cos");
  check_needs(kOp, p.norm_weight, "norm_weight", p.k_new, "k_new");
  k.rope = read_optional_rope(kOp, p, k.width);
  check_number(kOp, "norm_eps", p.norm_eps, "1e-6");
  if (p.norm_weight.data) {
    k.norm_weight = view_of<1>(p.norm_weight), k.norm_dtype = p.norm_weight.dtype;
    k.norm_width = p.norm_weight.shape[0];
    k.norm_eps = p.norm_eps > 0 ? p.norm_eps : 1e-6f;
    if (k.norm_width < 1 || k.norm_width > k.width)
      refuse("%s: norm_weight.shape[0] (width) is %lld, wanted 1 .. d = %lld", kOp,
             lld(k.norm_width), lld(k.width));
  } else if (p.norm_eps > 0) {
    refuse("%s: norm_eps is set without norm_weight", kOp);
  }
}

Append resolve(const fovea_cache_append_params& p) {
  check_together(kOp, p.k_new, "k_new", p.k, "k");
  check_together(kOp, p.v_new, "v_new", p.v, "v");
  if (!p.k_new.data && !p.v_new.data) refuse("%s: neither k_new nor v_new is given", kOp);
  check_needs(kOp, p.k_scale, "k_scale", p.k, "k");
  check_needs(kOp, p.v_scale, "v_scale", p.v, "v");
  check_needs(kOp, p.k_scale_out, "k_scale_out", p.k, "k");
  check_needs(kOp, p.v_scale_out, "v_scale_out", p.v, "v");
  check_flag(kOp, "scale_power_of_two", p.scale_power_of_two);
  if (p.scale_power_of_two && !p.k_scale_out.data && !p.v_scale_out.data)
    refuse("%s: scale_power_of_two is 1 without k_scale_out or v_scale_out, wanted one of them",
           kOp);
  check_not_negative(kOp, "query_max", p.query_max);
  check_not_negative(kOp, "key_max", p.key_max);
  if (p.key_start.data && p.page_table.data)
    refuse("%s: key_start is given with page_table, wanted one of them", kOp);
  if (p.key_start.data && p.cache_row.data)
    refuse("%s: key_start is given with cache_row, wanted one of them", kOp);

  Append a{};
  a.k = part_of(p.k_new, p.k, p.k_scale, p.k_scale_out, {"k_scale", "k_scale_out"});
  a.v = part_of(p.v_new, p.v, p.v_scale, p.v_scale_out, {"v_scale", "v_scale_out"});
  a.k.power_of_two = a.v.power_of_two = p.scale_power_of_two != 0;
  resolve_keys(p, a.k);
  a.key_len = int_vector(p.key_len);
  a.key_len_out = view_of<1>(p.key_len_out);
  a.position = view_of<2>(p.position);

  const fovea_tensor& fresh = p.k_new.data ? p.k_new : p.v_new;
  const fovea_tensor& cache = p.k_new.data ? p.k : p.v;
  Sequences& q = a.sequences;
  q.query_start = int_vector(p.query_start), q.key_start = int_vector(p.key_start);
  q.query_len = int_vector(p.query_len), q.cache_row = int_vector(p.cache_row);
  q.count = p.query_start.data ? p.query_start.shape[0] - 1
            : p.key_start.data ? p.key_start.shape[0] - 1
                               : fresh.shape[0];
  q.s = fresh.shape[1];
  q.query_max = p.query_max && p.query_max < q.s ? p.query_max : q.s;
  place_keys(q, kOp, p.k_new.data ? "k" : "v", cache, p.page_table, p.key_max);
  a.query_max = q.query_max;
  q.query_max = std::min(q.query_max, q.key_max);
  const int64_t slots = far_product(q.count, q.query_max);
  a.by_row = p.query_start.data && q.s < slots;
  a.slots = a.by_row ? q.s : slots;
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_cache_append_params& params) {
  return choose(kOp, ctx, resolve(params), cache_append_host,
                FOVEA_CUDA_KERNELS(cache_append_cuda));
}

}  // namespace fovea
