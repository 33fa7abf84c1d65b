// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/resolve.h"

#include <cmath>

#include "core/status.h"

namespace fovea {
namespace {

// Wide enough for every published model; wider rows would not fit a block's shared memory.
constexpr int64_t kWidthMax = 576;

constexpr char kForward[] = "attention_forward";
constexpr char kBackward[] = "attention_backward";

void check_not_negative(const char* op, const char* field, int64_t value) {
  if (value < 0)
    fail(FOVEA_INVALID_ARGUMENT, "%s: %s is %lld, wanted >= 0", op, field,
         static_cast<long long>(value));
}

void check_flag(const char* op, const char* field, int32_t value) {
  if (value != 0 && value != 1)
    fail(FOVEA_INVALID_ARGUMENT, "%s: %s is %d, wanted 0 or 1", op, field, value);
}

template <class P>
Window window_of(const char* op, const P& p) {
  check_not_negative(op, "window_left", p.window_left);
  check_not_negative(op, "window_right", p.window_right);
  check_not_negative(op, "sink_keys", p.sink_keys);
  check_not_negative(op, "local_chunk", p.local_chunk);
  check_flag(op, "causal", p.causal);
  if (p.causal && p.window_right > 1)
    fail(FOVEA_INVALID_ARGUMENT, "%s: window_right is %lld with causal = 1, wanted 0 or 1", op,
         static_cast<long long>(p.window_right));
  if (p.head_window.data && (p.window_left || p.window_right || p.sink_keys || p.causal))
    fail(FOVEA_INVALID_ARGUMENT,
         "%s: head_window is given, wanted window_left, window_right, sink_keys and causal all 0: "
         "it has them for each head",
         op);
  if (p.sink_keys && !p.window_left)
    fail(FOVEA_INVALID_ARGUMENT,
         "%s: sink_keys is %lld without window_left: there is no left window to see through", op,
         static_cast<long long>(p.sink_keys));
  return {p.window_left, p.causal ? 1 : p.window_right, p.sink_keys, p.local_chunk};
}

// What forward and backward share.  `table` is nullptr in the backward.
template <class P>
Attend shared(const char* op, const P& p, const fovea_tensor* table,
              const fovea_tensor* cache_row) {
  Attend a{};
  a.q = view_of<4>(p.q), a.k = view_of<4>(p.k), a.v = view_of<4>(p.v);
  a.o = view_of<4>(p.o), a.lse = view_of<3>(p.lse);
  a.dtype = p.q.dtype, a.o_dtype = p.o.dtype;
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.t = p.k.shape[1], a.g = p.k.shape[2], a.e = p.v.shape[3];
  if (a.h && (!a.g || a.h % a.g))
    fail(FOVEA_INVALID_ARGUMENT, "%s: k.shape[2] (g) is %lld, wanted a divisor of q's %lld heads",
         op, static_cast<long long>(a.g), static_cast<long long>(a.h));
  if (a.d < 1 || a.e < 1)
    fail(FOVEA_INVALID_ARGUMENT, "%s: q.shape[3] (d) is %lld and v.shape[3] (e) %lld, wanted >= 1",
         op, static_cast<long long>(a.d), static_cast<long long>(a.e));
  if (a.d > kWidthMax || a.e > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: widths d = %lld and e = %lld, wanted at most %lld", op,
         static_cast<long long>(a.d), static_cast<long long>(a.e),
         static_cast<long long>(kWidthMax));
  check_not_negative(op, "query_max", p.query_max);
  check_not_negative(op, "key_max", p.key_max);

  Sequences& q = a.sequences;
  q.query_start = int_vector(p.query_start), q.key_start = int_vector(p.key_start);
  q.query_len = int_vector(p.query_len), q.key_len = int_vector(p.key_len);
  q.key_first = int_vector(p.key_first);
  q.s = a.s;
  q.count = p.query_start.data ? p.query_start.shape[0] - 1
            : p.key_start.data ? p.key_start.shape[0] - 1
                               : a.b;
  if (cache_row) q.cache_row = int_vector(*cache_row);
  if (q.cache_row && q.key_start)
    fail(FOVEA_INVALID_ARGUMENT, "%s: key_start is given with cache_row, wanted one of them", op);
  if (table && table->data && p.key_start.data)
    fail(FOVEA_INVALID_ARGUMENT, "%s: key_start is given with page_table, wanted one of them", op);
  place_keys(q, op, "k", p.k, table ? *table : fovea_tensor{}, p.key_max);
  q.query_max = p.query_max && p.query_max < a.s ? p.query_max : a.s;
  a.columns = (p.key_start.data || q.page) && p.key_max ? p.key_max : q.capacity;

  a.mask.window = window_of(op, p);
  a.mask.head_window = view_of<2>(p.head_window);
  a.mask.query_position = view_of<3>(p.query_position);
  a.mask.key_position = view_of<3>(p.key_position);
  a.mask.bits = view_of<4>(p.mask);
  a.score.bias = view_of<4>(p.bias), a.score.bias_dtype = p.bias.dtype;
  a.score.alibi = view_of<2>(p.alibi), a.score.sink_logit = view_of<1>(p.sink_logit);
  if (!(p.scale >= 0) || std::isinf(p.scale))
    fail(FOVEA_INVALID_ARGUMENT, "%s: scale is %g, wanted > 0, or 0 for 1 / sqrt(d)", op, p.scale);
  if (!(p.softcap >= 0) || std::isinf(p.softcap))
    fail(FOVEA_INVALID_ARGUMENT, "%s: softcap is %g, wanted > 0, or 0 for none", op, p.softcap);
  a.score.scale =
      p.scale > 0 ? p.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(a.d)));
  a.score.softcap = p.softcap;
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
  a.dq = view_of<4>(p.dq), a.dk = view_of<4>(p.dk), a.dv = view_of<4>(p.dv);
  a.dbias = view_of<4>(p.dbias), a.dalibi = view_of<2>(p.dalibi),
  a.dsink_logit = view_of<1>(p.dsink_logit);
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
