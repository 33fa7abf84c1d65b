// SPDX-License-Identifier: Apache-2.0
#include "ops/summary/cache_step.h"

#include <climits>

#include "core/fields.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_cache_step";

void check_ring(const fovea_x_cache_step_params& p, const CacheStep& a) {
  if (p.score.data || p.mass.data)
    refuse("%s: %s is given with rule = ring, wanted it absent", kOp,
           p.score.data ? "score" : "mass");
  if (p.heavy) refuse("%s: heavy is %lld with rule = ring, wanted 0", kOp, lld(p.heavy));
  if (p.capacity.data) {
    if (p.recent) refuse("%s: recent is %lld with capacity, wanted 0", kOp, lld(p.recent));
    if (p.sink_keys >= a.t)
      refuse("%s: sink_keys is %lld, wanted less than k.shape[1] (t) = %lld", kOp, lld(p.sink_keys),
             lld(a.t));
    return;
  }
  if (p.recent < 1) refuse("%s: recent is %lld, wanted >= 1", kOp, lld(p.recent));
  if (p.sink_keys > a.t || p.recent > a.t - p.sink_keys)
    refuse("%s: sink_keys is %lld and recent %lld, wanted at most k.shape[1] (t) = %lld together",
           kOp, lld(p.sink_keys), lld(p.recent), lld(a.t));
}

void check_heavy(const fovea_x_cache_step_params& p, const CacheStep& a) {
  if (!p.score.data && a.b && a.t && a.g)
    refuse("%s: score.data is NULL, wanted it: rule is heavy", kOp);
  if (p.capacity.data) refuse("%s: capacity is given with rule = heavy, wanted it absent", kOp);
  if (p.sink_keys)
    refuse("%s: sink_keys is %lld with rule = heavy, wanted 0", kOp, lld(p.sink_keys));
  if (p.heavy > a.t || p.recent > a.t - p.heavy || a.s > a.t - p.heavy - p.recent)
    refuse(
        "%s: heavy is %lld, recent %lld and k_new.shape[1] (s) %lld, wanted at most "
        "k.shape[1] (t) = %lld together",
        kOp, lld(p.heavy), lld(p.recent), lld(a.s), lld(a.t));
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_cache_step_params& p) {
  CacheStep a{};
  a.k = view_of<4>(p.k), a.v = view_of<4>(p.v);
  a.k_new = view_of<4>(p.k_new), a.v_new = view_of<4>(p.v_new);
  a.position = view_of<3>(p.position), a.score = view_of<3>(p.score), a.mass = view_of<3>(p.mass);
  a.count = view_of<2>(p.count), a.query_len = int_vector(p.query_len);
  a.old_len = int_vector(p.old_len), a.capacity = int_vector(p.capacity);
  a.dtype = p.k.dtype;
  a.b = p.k.shape[0], a.t = p.k.shape[1], a.g = p.k.shape[2], a.d = p.k.shape[3];
  a.e = p.v.shape[3], a.s = p.k_new.data ? p.k_new.shape[1] : 0;
  if (a.t > INT_MAX) refuse("%s: k.shape[1] (t) is %lld, wanted below 2^31", kOp, lld(a.t));
  check_together(kOp, p.k_new, "k_new", p.v_new, "v_new");
  check_not_negative(kOp, "sink_keys", p.sink_keys), check_not_negative(kOp, "recent", p.recent);
  check_not_negative(kOp, "heavy", p.heavy);
  if (p.rule != FOVEA_X_CACHE_RULE_RING && p.rule != FOVEA_X_CACHE_RULE_HEAVY)
    refuse("%s: rule is %d, wanted a fovea_x_cache_rule", kOp, p.rule);
  a.ring = p.rule == FOVEA_X_CACHE_RULE_RING;
  a.ring ? check_ring(p, a) : check_heavy(p, a);
  a.sink = p.sink_keys, a.recent = p.recent, a.heavy = p.heavy;
  if (!a.t) a.b = 0;  // there is no slot
  return choose(kOp, ctx, a, cache_step_host, FOVEA_CUDA_KERNELS(cache_step_simt));
}

}  // namespace fovea
