// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/resolve.h"

#include <cmath>

#include "core/fields.h"

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
    fail(FOVEA_INVALID_ARGUMENT, "%s: key_start is given with cache_row, wanted one of them", op);
  if (table && table->data && p.key_start.data)
    fail(FOVEA_INVALID_ARGUMENT, "%s: key_start is given with page_table, wanted one of them", op);
  place_keys(q, op, "k", p.k, table ? *table : fovea_tensor{}, p.key_max);
  a.columns = (p.key_start.data || q.page) && p.key_max ? p.key_max : q.capacity;

  check_not_negative(op, "local_chunk", p.local_chunk);
  a.mask.window = read_windows(op, p);
  a.mask.window.chunk = p.local_chunk;
  a.mask.head_window = view_of<2>(p.head_window);
  a.mask.query_position = view_of<3>(p.query_position);
  a.mask.key_position = view_of<3>(p.key_position);
  a.mask.bits = view_of<4>(p.mask);
  a.score.bias = view_of<4>(p.bias), a.score.bias_dtype = p.bias.dtype;
  a.score.alibi = view_of<2>(p.alibi);
  read_score(a, op, p);
  return a;
}

}  // namespace

Attend resolve(const fovea_attention_forward_params& p) {
  Attend a = shared(kForward, p, &p.page_table, &p.cache_row);
  if (p.q_value.data) {
    a.q_value = view_of<4>(p.q_value);
    if (p.scale == 0)
      a.score.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.d + a.e)));
  }
  if (!p.cos.data != !p.sin.data)
    fail(FOVEA_INVALID_ARGUMENT, "%s: %s is given without %s", kForward, p.cos.data ? "cos" : "sin",
         p.cos.data ? "sin" : "cos");
  check_flag(kForward, "rope_interleaved", p.rope_interleaved);
  if (p.cos.data) {
    a.rope = {view_of<2>(p.cos), view_of<2>(p.sin), p.cos.shape[0],
              p.cos.shape[1],    p.rope_begin,      p.rope_interleaved};
    if (p.rope_begin < 0 || p.rope_begin + 2 * p.cos.shape[1] > a.d)
      fail(FOVEA_INVALID_ARGUMENT,
           "%s: rope_begin is %d with 2 * %lld rotated columns, wanted them inside d = %lld",
           kForward, p.rope_begin, static_cast<long long>(p.cos.shape[1]),
           static_cast<long long>(a.d));
  } else if (p.rope_begin || p.rope_interleaved) {
    fail(FOVEA_INVALID_ARGUMENT, "%s: rope_begin or rope_interleaved is set without cos and sin",
         kForward);
  }
  check_not_negative(kForward, "splits", p.splits);
  a.splits = p.splits;
  return a;
}

AttendBackward resolve(const fovea_attention_backward_params& p) {
  AttendBackward a{};
  a.forward = shared(kBackward, p, nullptr, nullptr);
  a.dout = view_of<4>(p.dout), a.dlse = view_of<3>(p.dlse);
  a.dq = gradient_of<4>(p.dq), a.dk = gradient_of<4>(p.dk), a.dv = gradient_of<4>(p.dv);
  a.dbias = gradient_of<4>(p.dbias), a.dalibi = gradient_of<2>(p.dalibi),
  a.dsink_logit = gradient_of<1>(p.dsink_logit);
  if (!a.forward.sequences.query_max && !a.dk && !a.dv && !a.dalibi)
    a.forward.sequences.count = 0;  // nothing is each sequence's own
  if (!a.forward.s && !a.dalibi && !a.dsink_logit) a.forward.h = 0;  // nothing is each head's own
  check_flag(kBackward, "nondeterministic", p.nondeterministic);
  a.nondeterministic = p.nondeterministic != 0;
  const struct {
    const fovea_tensor &out, &in;
    const char *out_name, *in_name;
  } pairs[] = {{p.dbias, p.bias, "dbias", "bias"},
               {p.dalibi, p.alibi, "dalibi", "alibi"},
               {p.dsink_logit, p.sink_logit, "dsink_logit", "sink_logit"}};
  for (const auto& pair : pairs)
    if (pair.out.data && !pair.in.data)
      fail(FOVEA_INVALID_ARGUMENT, "%s: %s is given without %s", kBackward, pair.out_name,
           pair.in_name);
  return a;
}

}  // namespace fovea

namespace fovea {
// A sink logit changes no score: it enters a row's sum at the end, in every kernel.
bool Attend::plain() const {
  return !mask.head_window && !mask.query_position && !mask.key_position && !mask.bits &&
         !mask.window.chunk && !mask.window.sink && !score.bias && !score.alibi &&
         score.softcap == 0 && !q_value && !rope.cos;
}
}  // namespace fovea
