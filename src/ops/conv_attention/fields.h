// SPDX-License-Identifier: Apache-2.0
// Fields that the calls of the family share, read and checked.
#pragma once
#include "core/fields.h"
#include "ops/conv_attention/kernels.h"

namespace fovea {

inline void check_taps(const char* op, int axis, const char* name, int64_t got, int64_t most) {
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

}  // namespace fovea
