// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/plan.h"
#include "fovea/trace.h"
#include "ops/trace/kernels.h"

namespace fovea {
namespace {

constexpr char kOp[] = "trace_forward";

int64_t block_of(const char* field, int32_t size) {
  if (size != 0 && size != 16 && size != 32 && size != 64 && size != 128)
    refuse("%s: %s is %d, wanted 16, 32, 64 or 128, or 0 for 64", kOp, field, size);
  return size ? size : 64;
}

void check_extent(const char* field, int axis, const char* name, const fovea_tensor& x,
                  int64_t wanted, const char* why) {
  if (x.data && x.shape[axis] != wanted)
    refuse("%s: %s.shape[%d] (%s) is %lld, wanted %lld: %s", kOp, field, axis, name,
           lld(x.shape[axis]), lld(wanted), why);
}

void read_keys(Trace& a, const fovea_trace_forward_params& p) {
  Sequences& q = a.attend.sequences;
  if (p.page_table.data && p.k.shape[1] != a.block_keys)
    refuse("%s: k.shape[1] (page) is %lld, wanted %lld: block_keys", kOp, lld(p.k.shape[1]),
           lld(a.block_keys));
  const int64_t blocks = p.page_table.data ? p.page_table.shape[1] : a.blocks_of(p.k.shape[1]);
  if (p.k.shape[1] > INT64_MAX - a.block_keys || blocks > INT32_MAX || a.n > INT32_MAX)
    refuse("%s: q.shape[1] (s) and the keys make %lld and %lld blocks, wanted at most 2^31 - 1",
           kOp, lld(a.n), lld(blocks));
  q.key_len = int_vector(p.key_len), q.cache_row = int_vector(p.cache_row);
  q.s = q.query_max = a.attend.s, q.count = a.attend.b;
  place_keys(q, kOp, "k", p.k, p.page_table, 0);
  if (p.block_mask.data && p.block_mask.shape[3] != (blocks + 7) / 8)
    refuse(
        "%s: block_mask.shape[3] (block_bytes) is %lld, wanted %lld: a bit for each of %lld key "
        "blocks; pad with the stride",
        kOp, lld(p.block_mask.shape[3]), lld((blocks + 7) / 8), lld(blocks));
  if (!p.v.data && (p.o.data || p.edge_value.data) && blocks && p.k.shape[0] && p.k.shape[2])
    refuse("%s: v.data is NULL with %s, wanted the values it is made of", kOp,
           p.o.data ? "o" : "edge_value");
}

void check_blocks(const Trace& a, const fovea_trace_forward_params& p) {
  check_extent("keep_row", 0, "n", p.keep_row, a.n, "blocks of q's rows");
  check_extent("block_mask", 2, "n", p.block_mask, a.n, "blocks of q's rows");
  const struct {
    const char* name;
    const fovea_tensor& x;
  } each[] = {{"selected", p.selected}, {"score", p.score},         {"edge_score", p.edge_score},
              {"edge_max", p.edge_max}, {"edge_mass", p.edge_mass}, {"edge_value", p.edge_value}};
  for (const auto& out : each) {
    check_extent(out.name, 2, "n", out.x, a.n, "blocks of q's rows");
    check_extent(out.name, 3, "keep", out.x, a.keep, "keep");
  }
}

void read_edges(Trace& a, const fovea_trace_forward_params& p) {
  if (!p.edge_count.data && (p.edge.data || p.edge_weight.data))
    refuse("%s: edge_count.data is NULL with %s: what does not fit would be lost unseen", kOp,
           p.edge.data ? "edge" : "edge_weight");
  if (!p.edge_count.data && p.edge_offset.data)
    refuse("%s: edge_offset is given without edge_count", kOp);
  if (p.edge_kind < FOVEA_EDGE_KIND_SCORE || p.edge_kind > FOVEA_EDGE_KIND_MASS)
    refuse("%s: edge_kind is %d, wanted a fovea_edge_kind", kOp, p.edge_kind);
  check_not_negative(kOp, "layer", p.layer);
  int64_t heads;
  if (p.edge.data && (__builtin_mul_overflow(a.attend.b, a.attend.h, &heads) || heads > INT32_MAX))
    refuse("%s: q has %lld * %lld heads, wanted at most 2^31 - 1 with edge", kOp, lld(a.attend.b),
           lld(a.attend.h));
  a.cap = p.edge.data ? p.edge.shape[0] : p.edge_weight.data ? p.edge_weight.shape[0] : 0;
}

// e is that of v, else of o, else of edge_value: without keys v need not be given.  Those given
// agree by the contract.
void read_widths(Attend& a, const fovea_trace_forward_params& p) {
  const bool has_o = p.o.data, has_v = p.v.data;
  read_operands(a, kOp, p, has_v ? p.v : has_o ? p.o : p.k, has_v ? "v" : has_o ? "o" : "k");
  if (has_v || has_o || !p.edge_value.data) return;
  a.e = p.edge_value.shape[4];
  if (a.e < 1) refuse("%s: edge_value.shape[4] (e) is %lld, wanted >= 1", kOp, lld(a.e));
  if (a.e > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: edge_value.shape[4] (e) is %lld, wanted at most %lld", kOp,
         lld(a.e), lld(kWidthMax));
}

Trace resolve(const fovea_trace_forward_params& p) {
  Trace a{};
  read_widths(a.attend, p);
  a.block_rows = block_of("block_rows", p.block_rows);
  a.block_keys = block_of("block_keys", p.block_keys);
  if (p.keep < 1 || p.keep > kKeepMost)
    refuse("%s: keep is %lld, wanted 1 .. %lld", kOp, lld(p.keep), lld(kKeepMost));
  a.keep = p.keep;
  a.n = a.attend.s / a.block_rows + (a.attend.s % a.block_rows != 0);
  read_keys(a, p);
  check_blocks(a, p);
  read_edges(a, p);
  check_number(kOp, "scale", p.scale, "1 / sqrt(d)");
  check_flag(kOp, "exact", p.exact);
  check_flag(kOp, "causal", p.causal);
  a.attend.mask.window.right = p.causal;
  a.attend.score.scale =
      p.scale > 0 ? p.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.attend.d)));
  a.score_scale = p.scale > 0 ? p.scale : 1;
  a.keep_row = int_vector(p.keep_row), a.block_mask = view_of<4>(p.block_mask);
  a.selected = view_of<4>(p.selected), a.score = view_of<4>(p.score);
  a.edge_score = view_of<4>(p.edge_score), a.edge_max = view_of<4>(p.edge_max);
  a.edge_mass = view_of<4>(p.edge_mass), a.edge_value = view_of<5>(p.edge_value);
  a.lse_dense = view_of<3>(p.lse_dense), a.edge = view_of<2>(p.edge);
  a.edge_weight = view_of<1>(p.edge_weight), a.edge_count = view_of<1>(p.edge_count);
  a.edge_offset = view_of<1>(p.edge_offset);
  a.layer = p.layer, a.edge_kind = p.edge_kind, a.exact = p.exact != 0;
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_trace_forward_params& params) {
  return choose(kOp, ctx, resolve(params), trace_forward_host,
                FOVEA_CUDA_KERNELS(trace_forward_sm90, trace_forward_simt));
}

}  // namespace fovea
