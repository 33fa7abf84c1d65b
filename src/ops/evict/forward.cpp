// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/fields.h"
#include "core/program.h"
#include "ops/evict/evict.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_evict_forward";
using Params = fovea_x_evict_forward_params;

struct Evict {
  int64_t b, s, g, t, keep, window, half;
};

Evict read_evict(const Params& p) {
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
  Evict a{};
  a.b = p.k.shape[0], a.s = p.q.shape[1], a.g = p.k.shape[2], a.t = p.k.shape[1];
  a.keep = p.k_kept.shape[1];
  if (p.window < 0 || p.window > a.keep)
    refuse("%s: window is %lld, wanted 1 .. %lld (keep), or 0 for s", kOp, lld(p.window),
           lld(a.keep));
  if (p.width < 0 || (p.width && p.width % 2 == 0))
    refuse("%s: width is %lld, wanted an odd number, or 0 for 63", kOp, lld(p.width));
  a.window = p.window ? p.window : std::min(a.s, a.keep);
  a.half = std::min((p.width ? p.width : 63) / 2, a.t);
  return a;
}

// (b, g, t): what the rows attend to, over the query heads of a key head.
[[gnu::noinline]] fovea_tensor sum_rows(Program& program, const Params& p, const Evict& a) {
  fovea_x_probe_forward_params part{};
  part.q = p.q, part.k = p.k, part.query_len = p.query_len, part.key_len = p.key_len;
  part.scale = p.scale, part.causal = 1;
  part.column_sum = program.array(FOVEA_F32, {a.b, a.g, a.t});
  program.run(part);
  return part.column_sum;
}

[[gnu::noinline]] fovea_tensor score(Program& program, const Params& p, const Evict& a,
                                     const fovea_tensor& sum) {
  const fovea_tensor to = program.array(FOVEA_F32, {a.b, a.g, a.t});
  const EvictScore part{view_of<3>(sum), view_of<3>(to), int_vector(p.key_len), a.b, a.g, a.t,
                        a.window,        a.half};
  program.run(choose("x_evict_score", program.context(), part, evict_score_host,
                     FOVEA_CUDA_KERNELS(evict_score_simt)));
  return to;
}

// (b, g, 1, keep): the keys that stay.
[[gnu::noinline]] fovea_tensor choose_keys(Program& program, const Params& p, const Evict& a,
                                           const fovea_tensor& by) {
  fovea_x_select_block_params part{};
  part.score = reshaped(by, {a.b, a.g, 1, a.t}, {by.stride[0], by.stride[1], 0, 1});
  const fovea_tensor index = program.output(p.index, FOVEA_I32, {a.b, a.g, a.keep});
  part.index = reshaped(index, {a.b, a.g, 1, a.keep},
                        {index.stride[0], index.stride[1], 0, index.stride[2]});
  if (p.index_count.data)
    part.index_count = reshaped(p.index_count, {a.b, a.g, 1},
                                {p.index_count.stride[0], p.index_count.stride[1], 0});
  part.key_len = p.key_len, part.query_max = 1, part.key_max = a.t, part.block_keys = 1;
  part.count = a.keep, part.force_last = a.window, part.forced_count = 1;
  program.run(part);
  return part.index;
}

[[gnu::noinline]] void keep_rows(Program& program, const Params& p, const Evict& a,
                                 const fovea_tensor& index) {
  EvictRows part{};
  part.k = view_of<4>(p.k), part.v = view_of<4>(p.v);
  part.k_kept = view_of<4>(p.k_kept), part.v_kept = view_of<4>(p.v_kept);
  part.index = view_of<4>(index), part.b = a.b, part.t = a.t, part.g = a.g;
  part.d = p.k.shape[3], part.e = p.v.shape[3], part.keep = a.keep;
  part.wide = p.k.dtype == FOVEA_F32;
  program.run(choose("x_evict_rows", program.context(), part, evict_rows_host,
                     FOVEA_CUDA_KERNELS(evict_rows_simt)));
}

void body(Program& program, const Params& p) {
  const Evict a = read_evict(p);
  const fovea_tensor sum = sum_rows(program, p, a);
  keep_rows(program, p, a, choose_keys(program, p, a, score(program, p, a, sum)));
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
