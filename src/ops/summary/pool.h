// SPDX-License-Identifier: Apache-2.0
// A call of x_pool, resolved, and its formulas for one column, once for host and device.  A stripe
// of a block's tokens makes a state; states of stripes are joined in their order.
#pragma once
#include <cmath>

#include "core/convert.h"
#include "core/locate.h"
#include "core/plan.h"
#include "fovea/experimental/summary.h"

namespace fovea {

struct PoolCall {
  View<4> x, y, gate, previous;  // y: dy in the backward
  View<3> similar, dissimilar, rank_score, key_begin;
  View<2> bias;
  View<1> similar_least;
  IntVector old_len;
  Sequences sequences;
  int32_t dtype, y_dtype, gate_dtype;
  int64_t b, u, g, h, d, f;
  int64_t block, step, ranked, blocks_most;
  int32_t want;
  bool complete, overlap, packed;

  FOVEA_HD bool wants(int32_t part) const { return (want & part) != 0; }
  FOVEA_HD int64_t x_head(int64_t head) const { return head / (h / g); }
};

// Block c of a sequence: tokens [begin, end), those before `own` by their first f columns.
struct PoolBlock {
  int64_t batch, slot;  // in y
  int64_t begin, end, own;
  bool there;
};

FOVEA_HD int64_t pool_first(const PoolCall& a, const Sequence& q, int64_t r) {
  return a.packed ? q.key_begin / a.step + r : 0;
}

// Blocks that a sequence has, where they are of one size.
FOVEA_HD int64_t pool_blocks(const PoolCall& a, const Sequence& q, int64_t r) {
  int64_t blocks = (q.keys + a.step - 1) / a.step;
  if (a.complete) blocks = q.keys < a.block ? 0 : (q.keys - a.block) / a.step + 1;
  const int64_t room = a.u - pool_first(a, q, r);
  return clamp_i64(blocks, 0, room > 0 ? room : 0);
}

FOVEA_HD PoolBlock pool_block(const PoolCall& a, const Sequence& q, int64_t r, int64_t head,
                              int64_t c) {
  PoolBlock at{a.packed ? 0 : r, c, 0, 0, 0, true};
  if (a.key_begin) {
    const int32_t* begin = a.key_begin.at<int32_t>(at.batch, head, c);
    at.begin = clamp_i64(*begin, 0, q.keys);
    at.end = clamp_i64(begin[a.key_begin.stride[2]], at.begin, q.keys);
  } else {
    at.slot += pool_first(a, q, r);
    at.there = c < pool_blocks(a, q, r);
    at.begin = c * a.step;
    at.end = at.begin + a.block < q.keys ? at.begin + a.block : q.keys;
  }
  at.own = at.begin;
  if (a.overlap) at.begin = at.begin < a.block ? 0 : at.begin - a.block;
  if (at.there && a.old_len && at.end <= a.old_len[r]) at.there = false;
  return at;
}

// Blocks of a sequence, of one size, that are to be made: with old_len those of new tokens.
FOVEA_HD Interval pool_left(const PoolCall& a, const Sequence& q, int64_t r) {
  const int64_t blocks = pool_blocks(a, q, r), old = a.old_len ? a.old_len[r] : 0;
  if (!a.old_len || old < a.block) return {0, old < q.keys ? blocks : 0};
  const int64_t first = (old - a.block) / a.step + 1;
  return {first, old < q.keys && first < blocks ? blocks : first};
}

// The blocks [first, last) that read column `c` of token i; of one head.
struct PoolReaders {
  int64_t first, last;
};
FOVEA_HD PoolReaders pool_readers(const PoolCall& a, const Sequence& q, int64_t r, int64_t head,
                                  int64_t i, int64_t c) {
  PoolReaders at{0, 0};
  if (a.key_begin) {
    // The last block that begins at i or before it.
    int64_t low = 0, high = a.u;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (*a.key_begin.at<int32_t>(a.packed ? 0 : r, head, middle) <= i)
        low = middle + 1;
      else
        high = middle;
    }
    if (low == 0) return at;
    const PoolBlock block = pool_block(a, q, r, head, low - 1);
    at.first = low - 1, at.last = block.begin <= i && i < block.end ? low : low - 1;
    return at;
  }
  const int64_t blocks = pool_blocks(a, q, r);
  if (a.overlap) {
    at.first = i / a.block + (c < a.f ? 1 : 0);
    at.last = at.first + 1;
  } else {
    at.first = i < a.block ? 0 : (i - a.block) / a.step + 1;
    at.last = i / a.step + 1;
  }
  if (at.last > blocks) at.last = blocks;
  if (at.last < at.first) at.last = at.first;
  return at;
}

// Element of x at token i, as far as its page is there.
struct PoolElement {
  float value;
  bool there;
};
FOVEA_HD PoolElement pool_x(const PoolCall& a, const Sequence& q, int64_t head, int64_t i,
                            int64_t c) {
  const int64_t at = a.sequences.key_offset(q, i, a.x.stride);
  if (at < 0) return {0, false};
  return {load_fp(a.x.data, a.dtype, at + a.x_head(head) * a.x.stride[2] + c * a.x.stride[3]),
          true};
}
// Column of x and gate that gives column c of y.
FOVEA_HD int64_t pool_column(const PoolCall& a, const PoolBlock& at, int64_t i, int64_t c) {
  return a.overlap && i >= at.own ? c + a.f : c;
}
FOVEA_HD float pool_gate(const PoolCall& a, const Sequence& q, const PoolBlock& at, int64_t head,
                         int64_t i, int64_t c) {
  float gate = load_fp(a.gate.data, a.gate_dtype,
                       q.key_batch * a.gate.stride[0] + (q.key_begin + i) * a.gate.stride[1] +
                           head * a.gate.stride[2] + c * a.gate.stride[3]);
  if (a.bias) gate += *a.bias.at(a.overlap ? i % a.block : i - at.begin, c);
  return gate;
}

// Whether x goes before `best` among the largest; NaN before all.
FOVEA_HD bool pool_above(float x, float best) {
  return x > best || (x != x && best == best);
}

// max, min and sum of a stripe, and where the first of the largest and of the smallest is.
struct PoolState {
  float high, low, sum;
  int64_t at_high, at_low, count;
};
FOVEA_HD PoolState pool_empty() {
  return {-INFINITY, INFINITY, 0, INT64_MAX, INT64_MAX, 0};
}
FOVEA_HD void pool_add(PoolState& s, float x, int64_t i) {
  if (pool_above(x, s.high) || s.count == 0) s.high = x, s.at_high = i;
  if (pool_above(-x, -s.low) || s.count == 0) s.low = x, s.at_low = i;
  s.sum += x, ++s.count;
}
FOVEA_HD void pool_join(PoolState& s, const PoolState& more) {
  if (!more.count) return;
  const bool first = s.count == 0;
  // Of equals, the first token's: no order of stripes decides.
  if (first || pool_above(more.high, s.high) ||
      (!pool_above(s.high, more.high) && more.at_high < s.at_high))
    s.high = more.high, s.at_high = more.at_high;
  if (first || pool_above(-more.low, -s.low) ||
      (!pool_above(-s.low, -more.low) && more.at_low < s.at_low))
    s.low = more.low, s.at_low = more.at_low;
  s.sum += more.sum, s.count += more.count;
}

// A softmax average of a stripe: weights are exp(gate - top).
struct PoolGated {
  float top, sum, value;
};
FOVEA_HD void pool_join(PoolGated& s, const PoolGated& more) {
  if (more.top == -INFINITY && more.sum == 0) return;
  const float top = s.top > more.top ? s.top : more.top;
  const float own = s.sum == 0 ? 0 : expf(s.top - top), other = expf(more.top - top);
  s.sum = s.sum * own + more.sum * other, s.value = s.value * own + more.value * other;
  s.top = top;
}
FOVEA_HD void pool_add(PoolGated& s, float gate, float x) {
  if (gate == -INFINITY) return;
  pool_join(s, {gate, 1, x});
}

// Tokens begin, begin + stride, .. of the block.  take(i): whether the token is one of those.
template <class Take>
FOVEA_HD PoolState pool_stripe(const PoolCall& a, const Sequence& q, Interval tokens,
                               int64_t stride, int64_t head, int64_t c, Take take) {
  PoolState s = pool_empty();
  for (int64_t i = tokens.begin; i < tokens.end; i += stride) {
    if (!take(i)) continue;
    const PoolElement x = pool_x(a, q, head, i, c);
    if (x.there) pool_add(s, x.value, i);
  }
  return s;
}
FOVEA_HD PoolGated pool_gated(const PoolCall& a, const Sequence& q, const PoolBlock& at,
                              int64_t begin, int64_t stride, int64_t head, int64_t c) {
  PoolGated s{-INFINITY, 0, 0};
  for (int64_t i = begin; i < at.end; i += stride) {
    const int64_t column = pool_column(a, at, i, c);
    pool_add(s, pool_gate(a, q, at, head, i, column), pool_x(a, q, head, i, column).value);
  }
  return s;
}

// What a column's state gives y.
FOVEA_HD void pool_store(const PoolCall& a, const Sequence& q, int64_t r, const PoolBlock& at,
                         int64_t head, int64_t c, const PoolState& s) {
  const int64_t row = at.batch * a.y.stride[0] + at.slot * a.y.stride[1] + head * a.y.stride[2];
  int64_t part = 0;
  const auto put = [&](float value) {
    store_fp(a.y.data, a.y_dtype, row + (part++ * a.d + c) * a.y.stride[3], s.count ? value : 0.f);
  };
  const float mean = s.sum / static_cast<float>(s.count);
  if (a.wants(FOVEA_X_SUMMARY_RUNNING)) {
    const int64_t old = a.old_len ? clamp_i64(a.old_len[r], 0, q.keys) : 0;
    float before = 0;
    if (old)
      before = load_fp(a.previous.data, a.y_dtype,
                       at.batch * a.previous.stride[0] + at.slot * a.previous.stride[1] +
                           head * a.previous.stride[2] + c * a.previous.stride[3]);
    const float all = static_cast<float>(old + s.count);
    return store_fp(a.y.data, a.y_dtype, row + c * a.y.stride[3],
                    all == 0 ? 0.f : before * (static_cast<float>(old) / all) + s.sum / all);
  }
  if (a.wants(FOVEA_X_SUMMARY_RANKED)) return put(mean);
  if (a.wants(FOVEA_X_SUMMARY_MAX)) put(s.high);
  if (a.wants(FOVEA_X_SUMMARY_MIN)) put(s.low);
  if (a.wants(FOVEA_X_SUMMARY_MEAN)) put(mean);
  if (a.wants(FOVEA_X_SUMMARY_SUM)) put(s.sum);
}
FOVEA_HD void pool_store(const PoolCall& a, const PoolBlock& at, int64_t head, int64_t c,
                         const PoolGated& s) {
  store_fp(
      a.y.data, a.y_dtype,
      at.batch * a.y.stride[0] + at.slot * a.y.stride[1] + head * a.y.stride[2] + c * a.y.stride[3],
      s.sum == 0 ? 0.f : s.value / s.sum);
}
FOVEA_HD void pool_store_similar(const PoolCall& a, const PoolBlock& at, int64_t head,
                                 float similar) {
  if (a.similar) *a.similar.at(at.batch, head, at.slot) = similar;
  if (a.dissimilar)
    *a.dissimilar.at<uint8_t>(at.batch, head, at.slot) =
        similar > *a.similar_least.at(head) ? uint8_t{0} : uint8_t{3};
}

// Tokens that count: all of a block, of running those that are new.
FOVEA_HD Interval pool_tokens(const PoolCall& a, const PoolBlock& at, int64_t r) {
  if (!a.wants(FOVEA_X_SUMMARY_RUNNING) || !a.old_len) return {at.begin, at.end};
  return {clamp_i64(a.old_len[r], at.begin, at.end), at.end};
}

// Whether token i goes before token k in the order of scores: higher, then first.
FOVEA_HD bool pool_before(float x, int64_t i, float y, int64_t k) {
  if (x != x) x = -INFINITY;
  if (y != y) y = -INFINITY;
  return x > y || (x == y && i < k);
}
FOVEA_HD float pool_rank_score(const PoolCall& a, const PoolBlock& at, const Sequence& q,
                               int64_t head, int64_t i) {
  return *a.rank_score.at(at.batch, head, (a.packed ? q.key_begin : 0) + i);
}
FOVEA_HD bool pool_there(const PoolCall& a, const Sequence& q, int64_t i) {
  return a.sequences.key_offset(q, i, a.x.stride) >= 0;
}
// Whether token i is one of the `ranked` first of its block.
FOVEA_HD bool pool_chosen(const PoolCall& a, const Sequence& q, const PoolBlock& at, int64_t head,
                          int64_t i) {
  const float own = pool_rank_score(a, at, q, head, i);
  int64_t before = 0;
  for (int64_t k = at.begin; k < at.end && before < a.ranked; ++k)
    before +=
        k != i && pool_there(a, q, k) && pool_before(pool_rank_score(a, at, q, head, k), k, own, i);
  return before < a.ranked;
}

// ---- the backward

// Of each (batch, slot, head, column of y): where max and min are, or the softmax of gated.
struct PoolMark {
  int32_t high, low;  // places in the block
};
struct PoolNorm {
  float top, sum, y;
};
FOVEA_HD PoolMark pool_mark(const PoolBlock& at, const PoolState& s) {
  return {static_cast<int32_t>(s.at_high - at.begin), static_cast<int32_t>(s.at_low - at.begin)};
}

struct PoolBackward {
  PoolCall call;
  View<4> dx, dgate;
  View<2> dbias;
  int32_t dgate_dtype;
  // Parts that the blocks of all sequences are cut into for dbias, by shapes alone.
  static constexpr int64_t kPartsMost = 64;
  FOVEA_HD int64_t windows() const { return call.sequences.count * call.blocks_most; }
  FOVEA_HD int64_t parts() const { return clamp_i64(windows() / 16, 1, kPartsMost); }
  FOVEA_HD bool gated() const { return call.wants(FOVEA_X_SUMMARY_GATED); }
  FOVEA_HD bool marks() const {
    return call.wants(FOVEA_X_SUMMARY_MAX) || call.wants(FOVEA_X_SUMMARY_MIN);
  }
};

FOVEA_HD int64_t pool_mark_at(const PoolCall& a, const PoolBlock& at, int64_t head, int64_t c) {
  return ((at.batch * a.u + at.slot) * a.h + head) * (a.overlap ? a.f : a.d) + c;
}
FOVEA_HD float pool_dy(const PoolCall& a, const PoolBlock& at, int64_t head, int64_t c) {
  return load_fp(a.y.data, a.y_dtype,
                 at.batch * a.y.stride[0] + at.slot * a.y.stride[1] + head * a.y.stride[2] +
                     c * a.y.stride[3]);
}
FOVEA_HD PoolNorm pool_norm(const PoolGated& s) {
  return {s.top, s.sum, s.sum == 0 ? 0.f : s.value / s.sum};
}
FOVEA_HD float pool_weight(const PoolNorm& norm, float gate) {
  return gate == -INFINITY ? 0.f : expf(gate - norm.top) / norm.sum;
}

// What block `at` gives column c of token i in dx.
FOVEA_HD float pool_dx(const PoolCall& a, const PoolMark* mark, const PoolNorm* norm,
                       const Sequence& q, const PoolBlock& at, int64_t head, int64_t i, int64_t c) {
  if (norm) {
    const int64_t to = a.overlap && c >= a.f ? c - a.f : c;
    const float w =
        pool_weight(norm[pool_mark_at(a, at, head, to)], pool_gate(a, q, at, head, i, c));
    return w * pool_dy(a, at, head, to);
  }
  int64_t part = 0;
  float sum = 0;
  const auto next = [&] { return pool_dy(a, at, head, part++ * a.d + c); };
  const PoolMark own = mark ? mark[pool_mark_at(a, at, head, c)] : PoolMark{};
  if (a.wants(FOVEA_X_SUMMARY_MAX)) {
    const float dy = next();
    if (at.begin + own.high == i) sum += dy;
  }
  if (a.wants(FOVEA_X_SUMMARY_MIN)) {
    const float dy = next();
    if (at.begin + own.low == i) sum += dy;
  }
  if (a.wants(FOVEA_X_SUMMARY_MEAN)) sum += next() / static_cast<float>(at.end - at.begin);
  if (a.wants(FOVEA_X_SUMMARY_SUM)) sum += next();
  return sum;
}

// What block `at` gives column c of token i in dgate.
FOVEA_HD float pool_dgate(const PoolCall& a, const PoolNorm* norm, const Sequence& q,
                          const PoolBlock& at, int64_t head, int64_t i, int64_t c) {
  const int64_t to = a.overlap && c >= a.f ? c - a.f : c;
  const PoolNorm own = norm[pool_mark_at(a, at, head, to)];
  return pool_weight(own, pool_gate(a, q, at, head, i, c)) * pool_dy(a, at, head, to) *
         (pool_x(a, q, head, i, c).value - own.y);
}

// Row `row` of x as a token of its sequence; r < 0: of none.
struct PoolToken {
  Sequence q;
  int64_t r, i;
};
FOVEA_HD PoolToken pool_token(const PoolCall& a, int64_t batch, int64_t row) {
  if (a.packed) {
    const Token token = token_at(a.sequences, row);
    return {token.sequence, token.number, token.index};
  }
  PoolToken at{a.sequences[batch], batch, row};
  if (row >= at.q.keys) at.r = -1;
  return at;
}

// Column c of row `row` of dx, of key head `head`; of dgate, of head `head`.
FOVEA_HD void pool_store_dx(const PoolBackward& b, const PoolMark* mark, const PoolNorm* norm,
                            const PoolToken& token, int64_t batch, int64_t row, int64_t head,
                            int64_t c) {
  const PoolCall& a = b.call;
  const int64_t group = a.h / a.g;
  float sum = 0;
  for (int64_t h = head * group; token.r >= 0 && h < (head + 1) * group; ++h) {
    const PoolReaders readers = pool_readers(a, token.q, token.r, h, token.i, c);
    for (int64_t n = readers.first; n < readers.last; ++n)
      sum += pool_dx(a, mark, norm, token.q, pool_block(a, token.q, token.r, h, n), h, token.i, c);
  }
  store_fp(
      b.dx.data, a.dtype,
      batch * b.dx.stride[0] + row * b.dx.stride[1] + head * b.dx.stride[2] + c * b.dx.stride[3],
      sum);
}
FOVEA_HD void pool_store_dgate(const PoolBackward& b, const PoolNorm* norm, const PoolToken& token,
                               int64_t batch, int64_t row, int64_t head, int64_t c) {
  const PoolCall& a = b.call;
  float sum = 0;
  if (token.r >= 0) {
    const PoolReaders readers = pool_readers(a, token.q, token.r, head, token.i, c);
    for (int64_t n = readers.first; n < readers.last; ++n)
      sum +=
          pool_dgate(a, norm, token.q, pool_block(a, token.q, token.r, head, n), head, token.i, c);
  }
  store_fp(b.dgate.data, b.dgate_dtype,
           batch * b.dgate.stride[0] + row * b.dgate.stride[1] + head * b.dgate.stride[2] +
               c * b.dgate.stride[3],
           sum);
}

// The gradient of bias[place, c], of blocks number [first, last) of all sequences.
FOVEA_HD double pool_dbias(const PoolCall& a, const PoolNorm* norm, int64_t first, int64_t last,
                           int64_t place, int64_t c) {
  double sum = 0;
  for (int64_t w = first; w < last; ++w) {
    const int64_t r = w / a.blocks_most, block = w % a.blocks_most;
    const Sequence q = a.sequences[r];
    const PoolBlock at = pool_block(a, q, r, 0, block);
    if (!at.there) continue;
    const bool before = a.overlap && c < a.f;
    if (before && block == 0) continue;
    const int64_t i = (before ? at.begin : at.own) + place;
    if (i >= (before ? at.own : at.end)) continue;
    for (int64_t head = 0; head < a.h; ++head)
      sum += static_cast<double>(pool_dgate(a, norm, q, at, head, i, c));
  }
  return sum;
}

// The backward's workspace: marks, norms, parts of dbias.
inline void pool_lay_out(const PoolBackward& b, Layout& workspace, Slot<PoolMark>& mark,
                         Slot<PoolNorm>& norm, Slot<double>& parts) {
  const PoolCall& a = b.call;
  const int64_t there = a.blocks_most ? 1 : 0;
  mark = workspace.add<PoolMark>(b.marks() ? there : 0, a.b, a.u, a.h, a.d);
  norm = workspace.add<PoolNorm>(b.gated() ? there : 0, a.b, a.u, a.h, a.f);
  parts = workspace.add<double>(b.dbias ? b.parts() : 0, a.block, a.d);
}

extern const Kernel<PoolCall> pool_forward_host;
extern const Kernel<PoolBackward> pool_backward_host;

// CUDA builds only.
extern const Kernel<PoolCall> pool_forward_rows, pool_forward_simt;
extern const Kernel<PoolBackward> pool_backward_simt;
namespace cuda {
// Fills similar and dissimilar.
void pool_similar(Context& ctx, const PoolCall& a);
}  // namespace cuda

}  // namespace fovea
