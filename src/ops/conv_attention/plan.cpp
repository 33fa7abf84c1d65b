// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "core/fields.h"
#include "fovea/conv_attention.h"
#include "fovea/experimental/multi_token.h"
#include "ops/conv_attention/mixed.h"

namespace fovea {
namespace {

constexpr char kForward[] = "conv_attention_forward";
constexpr char kBackward[] = "conv_attention_backward";
constexpr char kMixedForward[] = "x_multi_token_forward";
constexpr char kMixedBackward[] = "x_multi_token_backward";

void check_taps(const char* op, int axis, const char* name, int64_t got, int64_t most) {
  if (got < 1 || got > most)
    refuse("%s: weight.shape[%d] (%s) is %lld, wanted 1 .. %lld", op, axis, name, lld(got),
           lld(most));
}

// rows_out = s - history, or s - r * history packed; `name` is that of `out`.
template <class P>
void read_history(ConvAttend& c, const char* op, const P& p, const fovea_tensor& out,
                  const char* name) {
  check_not_negative(op, "history", p.history);
  c.history = p.history, c.rows_out = out.shape[1];
  const int64_t sequences = p.query_start.data ? c.attend.sequences.count : 1;
  int64_t skipped, wanted;
  if (__builtin_mul_overflow(sequences, p.history, &skipped) ||
      __builtin_sub_overflow(c.attend.s, skipped, &wanted) || wanted < 0)
    refuse("%s: history is %lld in %lld sequences, wanted at most the %lld rows of q", op,
           lld(p.history), lld(sequences), lld(c.attend.s));
  if (c.rows_out != wanted)
    refuse(
        "%s: %s.shape[1] (rows_out) is %lld, wanted %lld: the %lld rows of q.shape[1] less "
        "%lld of history",
        op, name, lld(c.rows_out), lld(wanted), lld(c.attend.s), lld(skipped));
}

// What every call of the family has; `out` has the extents and dtype of o.  `table` and `cache_row`
// are empty in a backward.
template <class P>
ConvAttend read_conv(const char* op, const P& p, const fovea_tensor& out, const char* name,
                     const fovea_tensor& table, const fovea_tensor& cache_row) {
  ConvAttend c{};
  Attend& a = c.attend;
  struct Operands {
    const fovea_tensor &q, &k, &v, &o, &lse;
  };
  read_operands(a, op, Operands{p.q, p.k, p.v, out, p.lse}, p.v, "v");
  read_sequences(a, op, p);
  Sequences& q = a.sequences;
  q.cache_row = int_vector(cache_row);
  if (p.key_start.data && (q.cache_row || table.data))
    refuse("%s: key_start is given with %s, wanted one of them", op,
           table.data ? "page_table" : "cache_row");
  place_keys(q, op, "k", p.k, table, p.key_max);
  a.columns = q.capacity;
  a.score.scale = read_scale(op, "scale", p.scale, a.d, "1 / sqrt(d)");
  check_flag(op, "causal", p.causal);
  c.causal = p.causal != 0;
  a.mask.window.right = p.causal;
  c.weight = view_of<3>(p.weight), c.weight_dtype = p.weight.dtype;
  c.kernel_rows = p.weight.shape[1], c.kernel_columns = p.weight.shape[2];
  check_taps(op, 1, "kernel_rows", c.kernel_rows, kKernelRowsMost);
  check_taps(op, 2, "kernel_columns", c.kernel_columns, kKernelColumnsMost);
  read_history(c, op, p, out, name);
  return c;
}

// What every backward of the family has; `out` as above.
template <class P>
ConvAttendBackward read_conv_backward(const char* op, const P& p, const fovea_tensor& out,
                                      const char* name) {
  ConvAttendBackward b{};
  b.forward = read_conv(op, p, out, name, {}, {});
  b.dout = view_of<4>(p.dout);
  b.dq = gradient_of<4>(p.dq), b.dk = gradient_of<4>(p.dk), b.dv = gradient_of<4>(p.dv);
  b.dweight = gradient_of<3>(p.dweight);
  return b;
}

// The heads of a group.
template <class P>
int64_t read_group(const char* op, const P& p) {
  const bool before = p.mix_before.data;
  if (!before && !p.mix_after.data) return 1;
  const int64_t group = (before ? p.mix_before : p.mix_after).shape[1], h = p.q.shape[2];
  if (group < 1 || group > kGroupHeadsMost || h % group)
    refuse("%s: %s.shape[1] (group_heads) is %lld, wanted 1 .. %lld, a divisor of q's %lld heads",
           op, before ? "mix_before" : "mix_after", lld(group), lld(kGroupHeadsMost), lld(h));
  return group;
}

// How heads of a group are mixed.
template <class M, class P>
void read_mixing(M& m, const char* op, const P& p) {
  m.group = read_group(op, p);
  m.before = view_of<2>(p.mix_before), m.after = view_of<2>(p.mix_after);
}

}  // namespace

Plan plan(const Context& ctx, const fovea_conv_attention_forward_params& p) {
  ConvAttend c = read_conv(kForward, p, p.o, "o", p.page_table, p.cache_row);
  check_not_negative(kForward, "splits", p.splits);
  c.attend.splits = p.splits;
  return choose(kForward, ctx, c, conv_attention_forward_host,
                FOVEA_CUDA_KERNELS(conv_attention_forward_sm90, conv_attention_forward_simt));
}

Plan plan(const Context& ctx, const fovea_conv_attention_backward_params& p) {
  ConvAttendBackward b = read_conv_backward(kBackward, p, p.o, "o");
  if (!b.forward.attend.s && !b.dweight) b.forward.attend.h = 0;  // nothing is each head's own
  check_flag(kBackward, "nondeterministic", p.nondeterministic);
  return choose(kBackward, ctx, b, conv_attention_backward_host,
                FOVEA_CUDA_KERNELS(conv_attention_backward_sm90, conv_attention_backward_simt));
}

Plan plan(const Context& ctx, const fovea_x_multi_token_forward_params& p) {
  MixedAttend m{};
  m.conv = read_conv(kMixedForward, p, p.o, "o", p.page_table, p.cache_row);
  read_mixing(m, kMixedForward, p);
  return choose(kMixedForward, ctx, m, multi_token_forward_host,
                FOVEA_CUDA_KERNELS(multi_token_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_multi_token_backward_params& p) {
  MixedAttendBackward m{};
  m.conv = read_conv_backward(kMixedBackward, p, p.dout, "dout");
  m.conv.forward.attend.o = {};
  check_needs(kMixedBackward, p.dmix_before, "dmix_before", p.mix_before, "mix_before");
  check_needs(kMixedBackward, p.dmix_after, "dmix_after", p.mix_after, "mix_after");
  read_mixing(m, kMixedBackward, p);
  m.dbefore = gradient_of<2>(p.dmix_before), m.dafter = gradient_of<2>(p.dmix_after);
  Attend& a = m.conv.forward.attend;
  if (!a.s && !m.conv.dweight && !m.dbefore && !m.dafter) a.h = 0;  // nothing is each head's own
  return choose(kMixedBackward, ctx, m, multi_token_backward_host,
                FOVEA_CUDA_KERNELS(multi_token_backward_simt));
}

}  // namespace fovea
