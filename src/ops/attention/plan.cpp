// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/fields.h"
#include "core/plan.h"
#include "fovea/attention.h"
#include "ops/attention/kernels.h"

namespace fovea {
namespace {

constexpr char kForward[] = "attention_forward";
constexpr char kBackward[] = "attention_backward";

// What forward and backward share.  `table` is nullptr in the backward.
template <class P>
Attend shared(const char* op, const P& p, const fovea_tensor* table,
              const fovea_tensor* cache_row) {
  Attend a{};
  read_operands(a, op, p, p.v, "v");
  read_sequences(a, op, p);
  Sequences& q = a.sequences;
  q.key_first = int_vector(p.key_first);
  if (cache_row) q.cache_row = int_vector(*cache_row);
  if (q.cache_row && q.key_start)
    refuse("%s: key_start is given with cache_row, wanted one of them", op);
  if (table && table->data && p.key_start.data)
    refuse("%s: key_start is given with page_table, wanted one of them", op);
  place_keys(q, op, "k", p.k, table ? *table : fovea_tensor{}, p.key_max);
  a.columns = (p.key_start.data || q.page) && p.key_max ? p.key_max : q.capacity;

  check_not_negative(op, "local_chunk", p.local_chunk);
  a.mask.window = read_windows(op, p);
  a.mask.window.chunk = std::min(p.local_chunk, kUnlimited);
  a.mask.head_window = view_of<2>(p.head_window);
  a.mask.query_position = view_of<3>(p.query_position);
  a.mask.key_position = view_of<3>(p.key_position);
  a.mask.bits = view_of<4>(p.mask);
  a.score.bias = view_of<4>(p.bias), a.score.bias_dtype = p.bias.dtype;
  a.score.alibi = view_of<2>(p.alibi);
  read_score(a, op, p);
  return a;
}

Attend resolve(const fovea_attention_forward_params& p) {
  Attend a = shared(kForward, p, &p.page_table, &p.cache_row);
  read_axis(a, kForward, p);
  read_codes(a, kForward, p, p.v);
  if (p.q_value.data) {
    a.q_value = view_of<4>(p.q_value);
    if (p.scale == 0)
      a.score.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.d + a.e)));
  }
  a.rope = read_optional_rope(kForward, p, a.d);
  check_not_negative(kForward, "splits", p.splits);
  a.splits = p.splits;
  return a;
}

AttendBackward resolve(const fovea_attention_backward_params& p) {
  AttendBackward a{};
  a.forward = shared(kBackward, p, nullptr, nullptr);
  a.dout = view_of<4>(p.dout), a.dlse = view_of<3>(p.dlse);
  a.dq = gradient_view(p.dq), a.dk = gradient_view(p.dk), a.dv = gradient_view(p.dv);
  a.dbias = gradient_of<4>(p.dbias), a.dalibi = gradient_of<2>(p.dalibi),
  a.dsink_logit = gradient_of<1>(p.dsink_logit);
  if (!a.forward.sequences.query_max && !a.dk && !a.dv && !a.dalibi)
    a.forward.sequences.count = 0;  // nothing is each sequence's own
  if (!a.forward.s && !a.dalibi && !a.dsink_logit) a.forward.h = 0;  // nothing is each head's own
  check_flag(kBackward, "nondeterministic", p.nondeterministic);
  a.nondeterministic = p.nondeterministic != 0;
  check_needs(kBackward, p.dbias, "dbias", p.bias, "bias");
  check_needs(kBackward, p.dalibi, "dalibi", p.alibi, "alibi");
  check_needs(kBackward, p.dsink_logit, "dsink_logit", p.sink_logit, "sink_logit");
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_attention_forward_params& params) {
  return choose(kForward, ctx, resolve(params), attention_forward_host,
                FOVEA_CUDA_KERNELS(attention_forward_sm90, attention_forward_wide_sm90,
                                   attention_forward_sm80, attention_forward_simt));
}

Plan plan(const Context& ctx, const fovea_attention_backward_params& params) {
  return choose(kBackward, ctx, resolve(params), attention_backward_host,
                FOVEA_CUDA_KERNELS(attention_backward_sm90, attention_backward_sm80,
                                   attention_backward_wide_sm80, attention_backward_simt));
}

}  // namespace fovea
