// SPDX-License-Identifier: Apache-2.0
#include "core/program.h"
#include "ops/kv/kernels.h"
#include "ops/kv/resolve.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_kv_decode";
using Params = fovea_x_kv_decode_params;

KvDecode resolve(const Params& p) {
  KvDecode x{};
  x.params = p, x.cache = kv::read_cache(kOp, p, p.q, p.o);
  const kv::Cache& c = x.cache;
  Attend& a = x.attend;
  a.q = view_of<4>(p.q), a.o = view_of<4>(p.o), a.lse = view_of<3>(p.lse);
  a.dtype = a.k_dtype = a.v_dtype = p.q.dtype, a.o_dtype = p.o.dtype;
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = c.d, a.e = c.e, a.g = c.g;
  if (a.h && (!a.g || a.h % a.g))
    refuse("%s: k_code.shape[2] (g) is %lld, wanted a divisor of q's %lld heads", kOp, lld(a.g),
           lld(a.h));
  if (a.d < 1 || a.e < 1)
    refuse("%s: q.shape[3] (d) is %lld and o.shape[3] (e) %lld, wanted >= 1", kOp, lld(a.d),
           lld(a.e));
  if (a.d > kWidthMax || a.e > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: widths d = %lld and e = %lld, wanted at most %lld", kOp, lld(a.d),
         lld(a.e), lld(kWidthMax));
  check_not_negative(kOp, "query_max", p.query_max);
  check_not_negative(kOp, "key_max", p.key_max);
  check_not_negative(kOp, "splits", p.splits);
  Sequences& q = a.sequences;
  q.query_start = int_vector(p.query_start), q.query_len = int_vector(p.query_len);
  q.cache_row = int_vector(p.cache_row);
  q.s = a.s, q.count = p.query_start.data ? p.query_start.shape[0] - 1 : a.b;
  q.query_max = bounded(p.query_max, a.s);
  if (!q.count || !a.h) q.query_max = 0;
  q.caches = c.rows, q.capacity = c.capacity(), q.key_max = bounded(p.key_max, q.capacity);
  a.t = a.columns = q.capacity;
  a.mask.window = read_window(kOp, p);
  read_sinks(a.mask.window, kOp, p);
  a.score.scale = read_scale(kOp, "scale", p.scale, a.d, "1 / sqrt(d)");
  a.score.sink_logit = view_of<1>(p.sink_logit);
  a.splits = p.splits, a.rope = read_optional_rope(kOp, p, a.d);
  return x;
}

// ---- keys and values in the workspace, for attention_forward

struct Formed {
  fovea_tensor k, v, table, length;
};

[[gnu::noinline]] Formed form(Program& program, const KvDecode& x) {
  const kv::Cache& c = x.cache;
  const Sequences& q = x.attend.sequences;
  const int64_t tokens = far_product(ceil_of(q.key_max, c.group), c.group);
  const auto dtype = static_cast<fovea_dtype>(c.dtype);
  const fovea_tensor k = program.array(dtype, {q.count, tokens, c.g, c.d});
  const fovea_tensor v = program.array(dtype, {q.count, tokens, c.g, c.e});
  Formed to{k, v, program.array(FOVEA_I32, {q.count, tokens / c.group}),
            program.array(FOVEA_I32, {q.count})};
  KvExpand part{};
  part.cache = c, part.cache_row = q.cache_row, part.count = q.count, part.tokens = tokens;
  part.k = view_of<4>(k), part.v = view_of<4>(v);
  part.table = view_of<2>(to.table), part.length = view_of<1>(to.length);
  program.run(choose("x_kv_expand", program.context(), part, kv_expand_host,
                     FOVEA_CUDA_KERNELS(kv_expand_simt)));
  const int64_t pages = far_product(q.count, tokens / c.group), row = c.g * c.d, line = c.g * c.e;
  to.k = reshaped(k, {pages, c.group, c.g, c.d}, {c.group * row, row, c.d, 1});
  to.v = reshaped(v, {pages, c.group, c.g, c.e}, {c.group * line, line, c.e, 1});
  return to;
}

[[gnu::noinline]] void attend(Program& program, const Params& p, const Formed& keys) {
  fovea_attention_forward_params to{};
  to.q = p.q, to.k = keys.k, to.v = keys.v, to.o = p.o, to.lse = p.lse;
  to.query_start = p.query_start, to.query_len = p.query_len;
  to.page_table = keys.table, to.key_len = keys.length, to.sink_logit = p.sink_logit;
  to.query_max = p.query_max, to.key_max = p.key_max;
  to.window_left = p.window_left, to.window_right = p.window_right, to.sink_keys = p.sink_keys;
  to.scale = p.scale, to.causal = p.causal, to.splits = p.splits;
  to.cos = p.cos, to.sin = p.sin, to.rope_begin = p.rope_begin;
  to.rope_interleaved = p.rope_interleaved;
  program.run(to);
}

void body(Program& program, const KvDecode& x) {
  const Attend& a = x.attend;
  if (!a.h || !a.b || !a.s || !a.sequences.count) return;
  attend(program, x.params, form(program, x));
}

const Kernel<KvDecode> kv_decode_any = {"", [](const Context& ctx, const KvDecode& x, Plan& plan) {
                                          plan = compose(kOp, ctx, x, body);
                                          return Text();
                                        }};

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  const KvDecode x = resolve(p);
  const kv::Cache& c = x.cache;
  const bool formed = !c.by_groups() || c.group > kKvHostGroup || x.attend.rope.cos;
  return choose(kOp, ctx, x, formed ? kv_decode_any : kv_decode_host,
                FOVEA_CUDA_KERNELS(kv_decode_sm80, kv_decode_levels_sm80, kv_decode_any));
}

}  // namespace fovea
