// SPDX-License-Identifier: Apache-2.0
#include "ops/summary/pool.h"

#include "core/fields.h"

namespace fovea {
namespace {

constexpr char kForward[] = "x_pool_forward";
constexpr char kBackward[] = "x_pool_backward";
constexpr int32_t kSideBySide =
    FOVEA_X_SUMMARY_MAX | FOVEA_X_SUMMARY_MIN | FOVEA_X_SUMMARY_MEAN | FOVEA_X_SUMMARY_SUM;
constexpr int64_t kBlockMost = int64_t{1} << 30;

int32_t read_want(const char* op, int32_t want, bool forward) {
  if (want == 0) return FOVEA_X_SUMMARY_MEAN;
  if (want > 0 && (want & kSideBySide) == want) return want;
  if (want == FOVEA_X_SUMMARY_GATED) return want;
  if (forward && (want == FOVEA_X_SUMMARY_RANKED || want == FOVEA_X_SUMMARY_RUNNING)) return want;
  refuse(
      "%s: want is %d, wanted a sum of max, min, mean and sum of fovea_x_summary, or %sgated alone",
      op, want, forward ? "ranked, running or " : "");
}

void read_block(PoolCall& a, const char* op, int64_t block, int64_t step) {
  if (block < 0 || block > kBlockMost)
    refuse("%s: block is %lld, wanted 1 .. 2^30, or 0 for 64", op, lld(block));
  a.block = block ? block : 64;
  if (step < 0 || step > a.block)
    refuse("%s: step is %lld, wanted 1 .. %lld, or 0 for block", op, lld(step), lld(a.block));
  a.step = step ? step : a.block;
}

// What forward and backward have in common; `y` is y or dy.
template <class P>
PoolCall shared(const char* op, const P& p, const fovea_tensor& y, const char* y_name,
                bool forward) {
  PoolCall a{};
  a.x = view_of<4>(p.x), a.y = view_of<4>(y), a.gate = view_of<4>(p.gate);
  a.bias = view_of<2>(p.bias), a.key_begin = view_of<3>(p.key_begin);
  a.dtype = p.x.dtype, a.y_dtype = y.dtype, a.gate_dtype = p.gate.dtype;
  a.b = y.shape[0], a.u = y.shape[1], a.h = y.shape[2], a.f = y.shape[3];
  a.g = p.x.shape[2], a.d = p.x.shape[3];
  if (a.h && (!a.g || a.h % a.g))
    refuse("%s: x.shape[2] (g) is %lld, wanted a divisor of %s's %lld heads", op, lld(a.g), y_name,
           lld(a.h));
  a.want = read_want(op, p.want, forward);
  check_flag(op, "complete", p.complete), check_flag(op, "overlap", p.overlap);
  check_not_negative(op, "key_max", p.key_max);
  a.complete = p.complete, a.overlap = p.overlap, a.packed = p.key_start.data;
  const bool gated = a.wants(FOVEA_X_SUMMARY_GATED);
  if (gated && !p.gate.data) refuse("%s: gate.data is NULL, wanted it: want is gated", op);
  if (!gated && (p.gate.data || p.bias.data || p.overlap))
    refuse("%s: %s is given, wanted it with want = gated alone", op,
           p.gate.data   ? "gate"
           : p.bias.data ? "bias"
                         : "overlap");
  if (a.key_begin) {
    for (const char* word :
         {p.block ? "block" : "", p.step ? "step" : "", p.complete ? "complete" : "",
          p.overlap ? "overlap" : "", p.bias.data ? "bias" : ""})
      if (*word) refuse("%s: %s is given with key_begin, wanted one of them", op, word);
    if (a.packed) refuse("%s: key_begin is given with key_start, wanted one of them", op);
  }
  read_block(a, op, p.block, p.step);
  if (a.overlap && a.step != a.block)
    refuse("%s: step is %lld with overlap, wanted block = %lld", op, lld(a.step), lld(a.block));
  if (p.bias.data && p.bias.shape[0] != a.block)
    refuse("%s: bias.shape[0] (places) is %lld, wanted %lld: block", op, lld(p.bias.shape[0]),
           lld(a.block));
  int64_t parts = 0;
  for (int32_t bit = 1; bit <= FOVEA_X_SUMMARY_GATED; bit *= 2) parts += a.wants(bit);
  if (a.overlap && a.d % 2)
    refuse("%s: x.shape[3] (d) is %lld with overlap, wanted an even number", op, lld(a.d));
  int64_t width = a.overlap ? a.d / 2 : 0;
  if (!a.overlap && __builtin_mul_overflow(a.d, parts, &width)) width = -1;
  if (a.overlap && a.f != width)
    refuse("%s: %s.shape[3] (f) is %lld, wanted %lld with overlap: half of x's %lld columns", op,
           y_name, lld(a.f), lld(width), lld(a.d));
  if (a.f != width)
    refuse("%s: %s.shape[3] (f) is %lld, wanted %lld: %lld part%s of x's %lld columns", op, y_name,
           lld(a.f), lld(width), lld(parts), parts == 1 ? "" : "s", lld(a.d));
  a.sequences.key_start = int_vector(p.key_start), a.sequences.key_len = int_vector(p.key_len);
  a.sequences.count = a.packed ? p.key_start.shape[0] - 1 : a.b;
  return a;
}

// After the sequences are placed.
void count_blocks(PoolCall& a) {
  const int64_t keys = a.sequences.key_max;
  const int64_t most = keys / a.step + (keys % a.step != 0);
  a.blocks_most = a.key_begin || most > a.u ? a.u : most;
  if (!a.b || !a.h || !a.f) a.blocks_most = 0;
}

void read_running(PoolCall& a, const fovea_x_pool_forward_params& p) {
  const char* op = kForward;
  const bool running = a.wants(FOVEA_X_SUMMARY_RUNNING);
  if (!running) {
    if (p.previous.data) refuse("%s: previous is given, wanted it with want = running alone", op);
    return;
  }
  check_together(op, p.previous, "previous", p.old_len, "old_len");
  for (const char* word : {p.key_begin.data ? "key_begin" : "", p.block ? "block" : "",
                           p.step ? "step" : "", p.complete ? "complete" : "",
                           p.similar.data ? "similar" : "", p.dissimilar.data ? "dissimilar" : ""})
    if (*word) refuse("%s: %s is given with want = running, wanted it absent", op, word);
  a.previous = view_of<4>(p.previous);
  a.block = a.step = int64_t{1} << 61;  // the whole sequence
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_pool_forward_params& p) {
  const char* op = kForward;
  PoolCall a = shared(op, p, p.y, "y", true);
  a.rank_score = view_of<3>(p.rank_score), a.old_len = int_vector(p.old_len);
  a.similar = view_of<3>(p.similar), a.dissimilar = view_of<3>(p.dissimilar);
  a.similar_least = view_of<1>(p.similar_least);
  const bool ranked = a.wants(FOVEA_X_SUMMARY_RANKED), gated = a.wants(FOVEA_X_SUMMARY_GATED);
  if (ranked && !p.rank_score.data)
    refuse("%s: rank_score.data is NULL, wanted it: want is ranked", op);
  if (!ranked && (p.rank_score.data || p.ranked))
    refuse("%s: %s is given, wanted it with want = ranked alone", op,
           p.rank_score.data ? "rank_score" : "ranked");
  if (ranked && p.ranked < 1) refuse("%s: ranked is %lld, wanted >= 1", op, lld(p.ranked));
  a.ranked = p.ranked;
  check_together(op, p.dissimilar, "dissimilar", p.similar_least, "similar_least");
  if (gated && (p.similar.data || p.dissimilar.data))
    refuse("%s: %s is given with want = gated, wanted it absent", op,
           p.similar.data ? "similar" : "dissimilar");
  check_needs(op, p.cache_row, "cache_row", p.page_table, "page_table");
  if (p.page_table.data && (p.key_start.data || p.gate.data))
    refuse("%s: page_table is given with %s, wanted one of them", op,
           p.key_start.data ? "key_start" : "gate");
  read_running(a, p);
  a.sequences.cache_row = int_vector(p.cache_row);
  place_keys(a.sequences, op, "x", p.x, p.page_table, p.key_max);
  count_blocks(a);
  return choose(op, ctx, a, pool_forward_host,
                FOVEA_CUDA_KERNELS(pool_forward_rows, pool_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_pool_backward_params& p) {
  const char* op = kBackward;
  PoolBackward b{};
  b.call = shared(op, p, p.dy, "dy", false);
  check_needs(op, p.dgate, "dgate", p.gate, "gate");
  check_needs(op, p.dbias, "dbias", p.bias, "bias");
  PoolCall& a = b.call;
  place_keys(a.sequences, op, "x", p.x, fovea_tensor{}, p.key_max);
  // Tokens as rows: what token_at walks.
  Sequences& q = a.sequences;
  q.query_start = q.key_start, q.query_len = q.key_len;
  q.s = p.x.shape[1], q.query_max = q.key_max;
  count_blocks(a);
  b.dx = gradient_of<4>(p.dx), b.dgate = gradient_of<4>(p.dgate);
  b.dbias = gradient_of<2>(p.dbias), b.dgate_dtype = p.dgate.dtype;
  if (!b.dx && !b.dgate && !b.dbias) a.blocks_most = 0;
  return choose(op, ctx, b, pool_backward_host, FOVEA_CUDA_KERNELS(pool_backward_simt));
}

}  // namespace fovea
