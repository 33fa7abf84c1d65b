// SPDX-License-Identifier: Apache-2.0
// A recurrence over at most 16 tokens: decode, the check of a draft, and its commit.
//   H~ = decay . H_(t-1),  H_t = H~ + k^' u,  o_t = scale q^ H_t;  u as core/recur.h has it
// A block owns up to 128 value columns of a sequence's state head, each of its warps 32: all D rows
// of them, 64 or 128, in registers.  A warp asks for its state first.
//
//   lane     ld + 4 le: 4 along d, 8 along e
//   rows     D / 4 m + 16 half + 4 ld + i, m < 4, i < 4, in halves of 16 where D = 128
//   columns  4 le + j of the warp's: 8 lanes have 128 bytes of a row
//
// Shared memory: rows of the tokens (k^, decays, what corrects, q^, values), then sums q^ H.  Warps
// make a token's rows each, or a part of them.  One barrier stands between those that make rows and
// those that read them.  Sums are of a warp's own columns.
//
// A token is one pass over the registers: decay, update and q^ H of four rows in turn.  What
// corrects needs a sum of all rows first, so a pass before.  A token's q^ H is summed over lanes
// beside the products of the next one, and becomes an output at the end.
//
// Bits: every sum is that of recur_forward_simt, which serves the other cuts of a sequence.
//   z, o     16 rows in turn, then half + half is its lanes' order 4, then lanes 2, 1
//   H_t      one product, one fused multiply-add, token after token
//   columns  no sum crosses them, so slices change nothing
// A chunk's form (scores, an inverse) sums over tokens first: other bits at other cuts, not taken.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/recur.cuh"

namespace fovea::cuda {

constexpr int kStepWarps = 4;  // of a block, at most
constexpr int kStepColumns = 32 * kStepWarps;
// Clocks between the starts of the first wave's blocks: they would all load, and then all compute.
constexpr uint32_t kStepApart = 19;

// Floats of a token in shared memory: values, scalars, rows of D.  Kinds of rows that a form lacks
// take no place.
// Keys: whether rows have decays of their own, as low_rank always does.
template <Recurrence Form, bool Keys, int D>
struct StepRows {
  static constexpr int scalars = kStepColumns;  // beta, whether some decay is 0, a head's decay
  static constexpr int key = scalars + 4, decay = key + D;
  static constexpr int correction = decay + (Keys ? D : 0);
  static constexpr int low_b = correction + (Form != Recurrence::additive ? D : 0);
  static constexpr int queries = low_b + (Form == Recurrence::low_rank ? D : 0);

  // q^ of the outputs, then bonus . q^ of them.
  static FOVEA_HD int size(const RecurCall& call) {
    return queries + static_cast<int>(call.outputs) * D * (kAdditive<Form> && call.a.bonus ? 2 : 1);
  }
};
enum StepScalar : int { kStepBeta = 0, kStepZero, kStepDecay };

// Four elements as they lie: converted only once all loads are under way.
struct RawFour {
  // Not left open: what is loaded and used under one condition would be live around the kernel.
  uint4 word = {0, 0, 0, 0};

  __device__ __forceinline__ void load(const Floats<4>& x, int64_t offset, bool valid) {
    if (!valid) return;
    if (x.dtype == FOVEA_F32) {
      word = *reinterpret_cast<const uint4*>(x.view.template as<float>() + offset);
    } else {
      const uint2 two = *reinterpret_cast<const uint2*>(x.view.template as<uint16_t>() + offset);
      word.x = two.x, word.y = two.y;
    }
  }
  __device__ __forceinline__ void to(int32_t dtype, float (&x)[4]) const {
    if (dtype == FOVEA_F32)
      of_f32(x);
    else if (dtype == FOVEA_BF16)
      of_16<Bf16>(x);
    else
      of_16<F16>(x);
  }
  __device__ __forceinline__ void of_f32(float (&x)[4]) const {
    x[0] = float_of(word.x), x[1] = float_of(word.y), x[2] = float_of(word.z);
    x[3] = float_of(word.w);
  }
  template <class T>
  __device__ __forceinline__ void of_16(float (&x)[4]) const {
    const uint32_t two[2] = {word.x, word.y};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x[i] = to_float(T{static_cast<uint16_t>(two[i / 2] >> (i % 2 * 16))});
  }
};

// One element as it lies.
struct RawOne {
  uint32_t word = 0;

  template <int N>
  __device__ __forceinline__ void load(const Floats<N>& x, int64_t offset) {
    if (x.dtype == FOVEA_F32)
      word = x.view.template as<uint32_t>()[offset];
    else
      word = x.view.template as<uint16_t>()[offset];
  }
  __device__ __forceinline__ float to(int32_t dtype) const {
    const auto bits = static_cast<uint16_t>(word);
    return dtype == FOVEA_F32   ? float_of(word)
           : dtype == FOVEA_F16 ? to_float(F16{bits})
                                : to_float(Bf16{bits});
  }
};

// Where an item is; what a thread holds beside a tile is few, so extents fit 32 bits.
struct StepItem {
  uint32_t sequence, head, slice, key_head, value_head, query_head;
  int32_t batch, begin, count, from, state, out;

  StepItem() = default;
  __device__ __forceinline__ StepItem(const RecurCall& call, uint32_t item, uint32_t slices) {
    const uint32_t rest = over(item, slices);
    slice = item - rest * slices;
    sequence = rest / static_cast<uint32_t>(call.a.heads);
    head = rest - sequence * static_cast<uint32_t>(call.a.heads);
    key_head = over(head, call.key_share), value_head = over(head, call.value_share);
    query_head = over(head * call.outputs, call.query_share);
    const RunTokens q = call.a.run[sequence];
    batch = static_cast<int32_t>(q.batch), begin = static_cast<int32_t>(q.begin);
    count = static_cast<int32_t>(q.count), from = static_cast<int32_t>(q.from);
    state = static_cast<int32_t>(q.state);
    out = static_cast<int32_t>(call.a.run.out_row(sequence));
  }
  // Most often by 1.
  static __device__ __forceinline__ uint32_t over(uint32_t x, uint32_t by) {
    return by == 1 ? x : x / by;
  }
};

// What a token's rows are made of, as it lies.
struct RawToken {
  RawFour key, correction, low_b, decay, query, value;
  RawOne beta, select, own;
};
// Those of q's dtype in f32.
struct FloatToken {
  float key[4], correction[4], low_b[4], query[4], value[4];

  // One branch for all of them.
  template <Recurrence Form>
  __device__ __forceinline__ void of(const RawToken& raw, int32_t dtype) {
    if (dtype == FOVEA_F32)
      each<Form>(raw, [](const RawFour& from, float(&to)[4]) { from.of_f32(to); });
    else if (dtype == FOVEA_BF16)
      each<Form>(raw, [](const RawFour& from, float(&to)[4]) { from.of_16<Bf16>(to); });
    else
      each<Form>(raw, [](const RawFour& from, float(&to)[4]) { from.of_16<F16>(to); });
  }
  template <Recurrence Form, class Convert>
  __device__ __forceinline__ void each(const RawToken& raw, Convert convert) {
    convert(raw.key, key), convert(raw.query, query), convert(raw.value, value);
    if constexpr (Form != Recurrence::additive) convert(raw.correction, correction);
    if constexpr (Form == Recurrence::low_rank) convert(raw.low_b, low_b);
  }
};

// Makes rows: a warp has a token, or a part of it where warps outnumber tokens.  It asks for two of
// them at a time.
template <Recurrence Form, bool Keys, int D>
struct StepMaker {
  using Rows = StepRows<Form, Keys, D>;
  enum Part : int { kKeys = 1, kQueriesValues = 2, kDecays = 4, kAll = 7 };
  const RecurCall& call;
  const Recur& a;
  const StepItem& item;
  int lane, warp, warps;  // warp of those that make rows

  __device__ __forceinline__ StepMaker(const RecurCall& call, const StepItem& item, int warp,
                                       int warps)
      : call(call),
        a(call.a),
        item(item),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp(warp),
        warps(warps) {}

  __device__ __forceinline__ bool unit() const { return !kAdditive<Form> && a.l2_norm; }
  __device__ __forceinline__ bool with_keys() const {
    return Keys && (Form == Recurrence::corrected || a.gate_key);
  }
  __device__ __forceinline__ const Floats<4>& corrects() const {
    return Form == Recurrence::low_rank ? a.low_a : a.erase;
  }
  // A share of the work: a token, and which of its rows.
  struct Share {
    int token, parts;
  };
  __device__ __forceinline__ int split() const {
    const int tokens = item.count;
    return warps >= 3 * tokens ? 3 : warps >= 2 * tokens ? 2 : 1;
  }
  __device__ __forceinline__ Share share(int i) const {
    const int by = split();
    if (i >= item.count * by) return {0, 0};
    if (by == 1) return {i, kAll};
    const int token = i >= by, part = i - token * by;  // at most two tokens are split
    return {token, by == 3 ? 1 << part : part ? kQueriesValues | kDecays : static_cast<int>(kKeys)};
  }
  __device__ __forceinline__ bool outputs(int token) const { return a.o && token >= item.from; }

  // A row of a token, from the lane's four elements on.
  __device__ __forceinline__ int64_t row_at(const Floats<4>& x, int64_t at, uint32_t head,
                                            int64_t column = 0) const {
    return x.offset(int64_t{item.batch}, at, int64_t{head}, 0) + column + 4 * lane;
  }
  __device__ __forceinline__ int64_t value_at(int64_t at) const {
    return row_at(a.v, at, item.value_head, item.slice * (32 * call.warps));
  }
  __device__ __forceinline__ void ask_bonus(float (&bonus)[4]) const {
    if (kAdditive<Form> && a.bonus && 4 * lane < D) {
#pragma unroll
      for (int j = 0; j < 4; ++j) bonus[j] = *a.bonus.at(int64_t{item.head}, 4 * lane + j);
    }
  }
  // Loads of the warp's shares i and, where there is one, i + warps: nothing waits for them here.
  __device__ __forceinline__ void ask(int i, RawToken (&raw)[2], float (&bonus)[4]) const {
    const auto [token, parts] = share(i);
    const bool there = 4 * lane < D, other = parts == kAll && token + warps < item.count;
    const int64_t at = item.begin + token, step = warps, batch = item.batch;
    const int64_t head = item.head;
    const auto four = [&](RawFour RawToken::*to, const Floats<4>& x, int64_t offset, bool valid,
                          bool first = true, bool second = true) {
      (raw[0].*to).load(x, offset, valid && first);
      if (other) (raw[1].*to).load(x, offset + step * x.view.stride[1], valid && second);
    };
    const auto one = [&](RawOne RawToken::*to, const Floats<3>& x) {
      const int64_t offset = x.offset(batch, at, head);
      (raw[0].*to).load(x, offset);
      if (other) (raw[1].*to).load(x, offset + step * x.view.stride[1]);
    };
    if (parts & kKeys) {
      four(&RawToken::key, a.k, row_at(a.k, at, item.key_head), there);
      if (!kAdditive<Form> && corrects())
        four(&RawToken::correction, corrects(), row_at(corrects(), at, item.head), there);
      if (!kAdditive<Form> && a.beta) one(&RawToken::beta, a.beta);
      if (kAdditive<Form> && a.select) one(&RawToken::select, a.select);
    }
    if (parts & kQueriesValues) {
      if (a.o)
        four(&RawToken::query, a.q, row_at(a.q, at, item.query_head), there, outputs(token),
             outputs(token + warps));
      ask_bonus(bonus);
      four(&RawToken::value, a.v, value_at(at), 4 * lane < 32 * call.warps);
    }
    if (parts & kDecays) {
      if (with_keys()) four(&RawToken::decay, a.gate_key, row_at(a.gate_key, at, item.head), there);
      if (a.gate_head) one(&RawToken::own, a.gate_head);
      if constexpr (Form == Recurrence::low_rank)
        four(&RawToken::low_b, a.low_b, row_at(a.low_b, at, item.head), there);
    }
  }
  // map(x), and 1 / |x|, as StageRows has them.
  __device__ __forceinline__ void mapped(int32_t map, float (&x)[4]) const {
    if (kAdditive<Form> && map != FOVEA_X_FEATURE_MAP_NONE) {
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = feature_of(map, x[i]).value;
    }
  }
  __device__ __forceinline__ float norm_of(const float (&x)[4]) const {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) squares = fmaf(x[i], x[i], squares);
    return 1 / sqrtf(lanes_sum<32>(squares) + a.eps);
  }
  // to = x factor scale: one product without a norm.
  __device__ __forceinline__ void give(float* to, const float (&x)[4], float factor,
                                       float scale) const {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[i] = x[i] * factor;
      if (unit()) y[i] *= scale;
    }
    put(to, y);
  }
  __device__ __forceinline__ void put(float* to, const float (&x)[4]) const {
    if (4 * lane < D) put_four(to + 4 * lane, x);
  }
  static __device__ __forceinline__ void put_four(float* to, const float (&x)[4]) {
    *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
  }

  __device__ __forceinline__ void keys(const RawToken& raw, FloatToken& x, float norm,
                                       float* rows) const {
    float beta = 1, select = 1;
    if (!kAdditive<Form> && a.beta) beta = beta_of(a.beta_map, raw.beta.to(a.beta.dtype)).value;
    if (kAdditive<Form> && a.select) select = raw.select.to(a.select.dtype);
    mapped(a.map_k, x.key);
    give(rows + Rows::key, x.key, select, norm);
    if constexpr (!kAdditive<Form>) {
      if (corrects())
        put(rows + Rows::correction, x.correction);
      else
        give(rows + Rows::correction, x.key, beta, norm);
      if (lane == 0) rows[Rows::scalars + kStepBeta] = beta;
    }
  }
  __device__ __forceinline__ void queries_values(RawToken& raw, FloatToken& x, float norm,
                                                 const float (&bonus)[4], int token,
                                                 float* rows) const {
    const int c = 4 * lane;
    const bool there = c < D;
    if (c < 32 * call.warps) put_four(rows + c, x.value);
    if (!outputs(token)) return;
#pragma unroll 1
    for (uint32_t n = 0;;) {
      mapped(a.map_q, x.query);
      float* to = rows + Rows::queries + static_cast<int>(n) * D;
      give(to, x.query, 1, norm);
      if (kAdditive<Form> && a.bonus && there) {
        float y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) y[i] = to[c + i] * bonus[i];
        put(to + call.outputs * D, y);
      }
      if (++n == call.outputs) return;
      const uint32_t head = (item.head * call.outputs + n) / call.query_share;
      raw.query.load(a.q, row_at(a.q, item.begin + token, head), there);
      raw.query.to(a.q.dtype, x.query);
      if (unit()) norm = norm_of(x.query);
    }
  }
  __device__ __forceinline__ void decays(const RawToken& raw, float* rows) const {
    const int c = 4 * lane;
    const int64_t head = item.head;
    const bool there = c < D;
    float* scalars = rows + Rows::scalars;
    bool zero = false;
    float own = 0;
    const float rate = a.rate_of(head);
    if (a.gate_head)
      own = a.gate(raw.own.to(a.gate_head.dtype) +
                       (a.bias && !with_keys() ? *a.bias.at(head, 0) : 0.f),
                   rate)
                .value;
    if constexpr (Keys) {
      float x[4] = {own, own, own, own};
      if (with_keys()) raw.decay.to(a.gate_key.dtype, x);
      if (with_keys()) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (a.bias && there) x[i] += *a.bias.at(head, c + i);
        // One branch for four.
        if (a.gate.map == FOVEA_X_GATE_MAP_LOG) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            x[i] = own + GateMap{FOVEA_X_GATE_MAP_LOG, a.gate.bound, 1}(x[i], 0).value;
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) x[i] = own + a.gate(x[i], rate).value;
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = exp_of(x[i]), zero |= there && x[i] == 0;
      put(rows + Rows::decay, x);
    } else {
      const float one = a.gate_head ? exp_of(own) : 1.f;
      zero = one == 0;
      if (lane == 0) scalars[kStepDecay] = one;
    }
    zero = __any_sync(~0u, zero);
    if (lane == 0) scalars[kStepZero] = zero ? 1.f : 0.f;
  }
  // Rows of a token, or those in `parts`.
  __device__ __forceinline__ void make(int token, int parts, RawToken& raw, const float (&bonus)[4],
                                       int size, float* all) const {
    float* rows = all + token * size;
    FloatToken x;
    x.of<Form>(raw, a.q.dtype);
    float of_key = 1, of_query = 1;
    if (unit()) of_key = norm_of(x.key), of_query = norm_of(x.query);
    if (parts & kKeys) keys(raw, x, of_key, rows);
    if (parts & kQueriesValues) queries_values(raw, x, of_query, bonus, token, rows);
    if (parts & kDecays) {
      decays(raw, rows);
      if constexpr (Form == Recurrence::low_rank) put(rows + Rows::low_b, x.low_b);
    }
  }
  // All shares, of which the warp's first two are on their way.
  __device__ __forceinline__ void all(RawToken (&raw)[2], float (&bonus)[4], int size,
                                      float* rows) const {
    const int shares = item.count * split();
    // A loop, or code that maps and rounds would stand twice.
#pragma unroll 1
    for (int i = warp, round = 0; i < shares; i += warps, ++round) {
      if (round && round % 2 == 0) {
        raw[0] = raw[1] = RawToken{};  // or a load would wait for the one before of its registers
        ask(i, raw, bonus);
      }
      const auto [token, parts] = share(i);
      make(token, parts, raw[0], bonus, size, rows);
      raw[0] = raw[1];
    }
  }
};

// A warp's slice of the state.  Before: outputs are of the state that the token before left, as
// with read_before.
template <Recurrence Form, bool Keys, int Halves, bool Before>
class StepWalk {
 public:
  static constexpr int D = 64 * Halves;
  using Rows = StepRows<Form, Keys, D>;
  using Tile = float[Halves][R][CW];
  static constexpr int kSlot = 4 * kStepColumns;  // bytes of a token's sums

  __device__ __forceinline__ StepWalk(const RecurCall& call, const StepItem& item,
                                      uint32_t thread = threadIdx.x)
      : a_(call.a),
        call_(call),
        item_(item),
        thread_(thread),
        ld_(static_cast<int>(thread % 4)),
        local_(static_cast<int>(thread / 4 * CW)) {}

  static __device__ __forceinline__ void nothing(Tile& h) {
#pragma unroll
    for (int n = 0; n < Halves * R; ++n)
#pragma unroll
      for (int j = 0; j < CW; ++j) h[n / R][n % R][j] = 0;
  }
  __device__ __forceinline__ void load(Tile& h) const {
    if (item_.state < 0) return nothing(h);
    each_state_four(a_.state_in, item_.state, call_.in,
                    [&](const auto* from, int half, int r) { ask_four(from, h[half][r]); });
  }
  // The state as it is used.  Apart from its loads, or all that follows them would wait for them.
  __device__ __forceinline__ void settle(Tile& h) const {
    if (a_.state_in.dtype != FOVEA_F32) {
      keep_branch();
#pragma unroll
      for (int n = 0; n < Halves * R; ++n) {
        float(&four)[CW] = h[n / R][n % R];
        const uint32_t low = __float_as_uint(four[0]), high = __float_as_uint(four[1]);
        four[0] = float_of(low << 16), four[1] = float_of(low & 0xffff0000u);
        four[2] = float_of(high << 16), four[3] = float_of(high & 0xffff0000u);
      }
    }
    if (call_.in == StateOrder::rows) turn(h);
  }
  // `rows`, `sums`: addresses in shared memory; `size`: bytes of a token's rows.
  // A turn has little beside its step: sums of lanes are kept in `sums`, and become outputs at the
  // end, or at once where a token has several.
  __device__ __forceinline__ void steps(uint32_t rows, int size, uint32_t sums, Tile& h) const {
    const bool several = call_.outputs > 1;
    const int count = item_.count;
    const int from = a_.o ? item_.from : count, lane = static_cast<int>(threadIdx.x % 32);
    const bool zeros = __any_sync(
        ~0u, lane < count && one(rows + lane * size + 4 * (Rows::scalars + kStepZero)) != 0);
    // Turns after which a snapshot, other outputs, or the end is due.
    const int every = a_.snapshot ? static_cast<int>(min(a_.run.every, int64_t{INT_MAX})) : INT_MAX;
    int next = every - 1, kept = 0, due = several ? -1 : min(count, next);
    uint32_t own_rows = 16 * ld_;
    asm volatile("" : "+r"(own_rows));  // or places within a row would be joined to it one by one
    const uint32_t own_sums = sums + 4 * (local_ + ld_);
    uint32_t row = rows, slot = own_sums;
    float y[CW] = {};  // the lane's part of q^ H of the last token
#pragma unroll 1
    for (int t = 0;; ++t) {
      if (t < count) {
        if (Before && several) others(row, sums, h);
        // Steps in turn while nothing else is due.
        for (const int stop = min(due, count - 1);; ++t) {
          float sum;
          step(row, row + own_rows, zeros, h, y, sum);
          put(slot, sum);
          row += size;
          if (!several) slot += kSlot;
          if (t >= stop) break;
        }
      }
      if (t < due) continue;

      const bool last = t == count;
      if (several ? t >= from && !last : last && from < count) {
        put(slot, sum_of_own(y));
        if (!Before && several) others(row - size, sums, h);
        if (several)
          finish(row - size, size, sums, t, static_cast<int>(call_.outputs));
        else
          finish(rows + from * size, size, sums + (from + 1) * kSlot, from, count - from);
      }
      int64_t to = last && a_.state_out ? item_.out : -1;
      if (t == next && !last) {
        next += every;
        if (kept < a_.run.kept) {
          const int row = *a_.run.snapshot_row.template at<int32_t>(item_.sequence, kept++);
          to = row < a_.run.snapshots ? row : -1;
        }
      }
      if (to >= 0)
        store(last ? a_.state_out : a_.snapshot, to, last ? call_.out : call_.snapshot, h);
      if (last) return;
      if (!several) due = min(count, next);
    }
  }

 private:
  // Loads are volatile, so that none waits for the rows.  Streaming hints cost an eighth where
  // the state is written too.
  static __device__ __forceinline__ void ask_four(const float* from, float (&x)[CW]) {
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                 : "l"(from)
                 : "memory");
  }
  // Two words of two, which settle() parts.
  static __device__ __forceinline__ void ask_four(const Bf16* from, float (&x)[CW]) {
    asm volatile("ld.global.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x[0]), "=f"(x[1])
                 : "l"(from)
                 : "memory");
  }
  // A condition that is the same in all lanes stays a branch: it would be a choice an element.
  static __device__ __forceinline__ void keep_branch() {
    asm volatile("" ::: "memory");
  }
  // visit(pointer, half, r) for the lane's pieces as they lie: rows of columns, or columns of rows.
  template <class Visit>
  __device__ __forceinline__ void each_state_four(const Floats<4>& x, int64_t state,
                                                  StateOrder order, Visit visit) const {
    const int64_t by_row = x.view.stride[2];
    const int64_t step = order == StateOrder::columns ? by_row : x.view.stride[3];
    const int64_t first = x.offset(state, int64_t{item_.head}, 4 * ld_, column());
    const auto all = [&](auto* from) {
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int half = 0; half < Halves; ++half)
#pragma unroll
          for (int i = 0; i < 4; ++i)
            visit(from + (D / 4 * m + 16 * half) * by_row + i * step, half, 4 * m + i);
    };
    if (x.dtype == FOVEA_F32)
      all(x.view.template as<float>() + first);
    else
      all(x.view.template as<Bf16>() + first);
  }
  // Each 4 x 4 elements, transposed.
  static __device__ __forceinline__ void turn(Tile& h) {
    keep_branch();
#pragma unroll
    for (int half = 0; half < Halves; ++half) Lane::turn(h[half]);
  }
  __device__ __forceinline__ void store(const Floats<4>& x, int64_t state, StateOrder order,
                                        Tile& h) const {
    if (order == StateOrder::rows) turn(h);
    each_state_four(x, state, order, [&](auto* to, int half, int r) {
      store4(to, sizeof(*to) == 4 ? FOVEA_F32 : FOVEA_BF16, 0, h[half][r]);
    });
    if (order == StateOrder::rows) turn(h);
  }
  __device__ __forceinline__ int64_t column() const {
    return int64_t{item_.slice} * (32 * call_.warps) + local_;
  }
  // The column whose element of o the lane stores.
  __device__ __forceinline__ int64_t own() const {
    return column() + ld_;
  }

  // visit(bytes into a row, half, first row of h) for each four rows of the lane.
  template <class Visit>
  __device__ __forceinline__ void each_four(Visit visit) const {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int half = 0; half < Halves; ++half) visit(4 * (D / 4 * m + 16 * half), half, 4 * m);
  }
  // Rows in shared memory, which none changes any more: the compiler may load them early.
  static __device__ __forceinline__ void four(uint32_t from, float (&x)[4]) {
    asm("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
        : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
        : "r"(from));
  }
  static __device__ __forceinline__ float one(uint32_t from) {
    float x;
    asm("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from));
    return x;
  }
  static __device__ __forceinline__ void halves(const float (&sum)[Halves][CW], float (&to)[CW]) {
#pragma unroll
    for (int j = 0; j < CW; ++j) to[j] = Halves == 2 ? sum[0][j] + sum[Halves - 1][j] : sum[0][j];
  }
  // The lane's part of x' H; rows from the lane's first element on, here and below.
  __device__ __forceinline__ void part(uint32_t row, Tile& h, float (&to)[CW]) const {
    float sum[Halves][CW] = {};
    each_four([&](int c, int half, int r) {
      float x[4];
      four(row + c, x);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < CW; ++j) sum[half][j] = fmaf(x[i], h[half][r + i][j], sum[half][j]);
    });
    halves(sum, to);
  }
  static __device__ __forceinline__ void put(uint32_t to, float x) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
  }
  // H_(t-1) becomes H_t.  `sum`: of y as it was, over lanes; then y: the lane's part of q^ H_t, or
  // of q^ H_(t-1) where Before.
  // One pass, but for what corrects: it is a sum of all rows, and another pass before.
  __device__ __forceinline__ void step(uint32_t token, uint32_t rows, bool zeros, Tile& h,
                                       float (&y)[CW], float& sum) const {
    float scalars[4], u[CW], z[CW], corrects[Halves][CW] = {}, out[Halves][CW] = {};
    four(token + 4 * Rows::scalars, scalars), four(token + 4 * local_, u);
    sum = sum_of_own(y);
    // Of rows that are about to be cleared.
    if (Before && zeros) part(rows + 4 * Rows::queries, h, y);
    if (Form != Recurrence::low_rank && zeros) clear(rows, scalars, h);
    if constexpr (!kAdditive<Form>) {
      each_four([&](int c, int half, int r) {
        float decay[4], correction[4];
        four(rows + 4 * Rows::correction + c, correction);
        if constexpr (Form == Recurrence::corrected) decays(rows + c, scalars, decay);
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < CW; ++j) {
            float& x = h[half][r + i][j];
            if constexpr (Form == Recurrence::corrected) x *= decay[i];
            corrects[half][j] = fmaf(correction[i], x, corrects[half][j]);
          }
      });
      halves(corrects, z);
#pragma unroll
      for (int j = 0; j < CW; ++j) {
        z[j] = lanes_sum<4>(z[j]);
        if (Form == Recurrence::corrected) u[j] = fmaf(scalars[kStepBeta], u[j], -z[j]);
      }
    }
    if (Form == Recurrence::low_rank && zeros) clear(rows, scalars, h);
    each_four([&](int c, int half, int r) {
      float decay[4], low_b[4], key[4], q[4];
      four(rows + 4 * Rows::key + c, key), four(rows + 4 * Rows::queries + c, q);
      if constexpr (Form == Recurrence::low_rank) four(rows + 4 * Rows::low_b + c, low_b);
      if constexpr (Form != Recurrence::corrected) decays(rows + c, scalars, decay);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < CW; ++j) {
          float& x = h[half][r + i][j];
          if (Before) out[half][j] = fmaf(q[i], x, out[half][j]);
          if constexpr (Form != Recurrence::corrected) x *= decay[i];
          if constexpr (Form == Recurrence::low_rank) x = fmaf(low_b[i], z[j], x);
          x = fmaf(key[i], u[j], x);
          if (!Before) out[half][j] = fmaf(q[i], x, out[half][j]);
        }
    });
    if (!Before || !zeros) halves(out, y);
  }
  __device__ __forceinline__ void decays(uint32_t rows, const float (&scalars)[4],
                                         float (&decay)[4]) const {
    if constexpr (Keys) return four(rows + 4 * Rows::decay, decay);
    decay[0] = decay[1] = decay[2] = decay[3] = scalars[kStepDecay];
  }
  // Of rows whose decay is 0 nothing is left, be it inf or NaN.
  __device__ __forceinline__ void clear(uint32_t rows, const float (&scalars)[4], Tile& h) const {
    each_four([&](int c, int half, int r) {
      float decay[4];
      decays(rows + c, scalars, decay);
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < CW; ++j) h[half][r + i][j] = decay[i] == 0 ? 0 : h[half][r + i][j];
    });
  }
  // Sums of a token's outputs beside the first, of its state.
  __device__ __forceinline__ void others(uint32_t rows, uint32_t sums, Tile& h) const {
#pragma unroll 1
    for (int n = 1; n < static_cast<int>(call_.outputs); ++n) {
      float y[CW];
      part(rows + 4 * (Rows::queries + n * D + 4 * ld_), h, y);
      put(sums + n * kSlot + 4 * (local_ + ld_), sum_of_own(y));
    }
  }
  // Outputs from the sums q^ H of `count` tokens from the `first` on, or of as many outputs of one:
  // four at a time, four columns a lane.
  __device__ __forceinline__ void finish(uint32_t rows, int size, uint32_t sums, int first,
                                         int count) const {
    const int outputs = static_cast<int>(call_.outputs), lane = static_cast<int>(threadIdx.x % 32);
    const int c = local_ - local_ % 32 + lane % 8 * 4;
    const int64_t head = item_.head, column = int64_t{item_.slice} * (32 * call_.warps) + c;
    __syncwarp();
#pragma unroll 1
    for (int base = 0; base < count; base += 4) {
      const int i = base + lane / 8, n = outputs > 1 ? i : 0;
      const uint32_t of = rows + (i - n) * size;
      float bonus = 0;
      if (kAdditive<Form> && a_.bonus) {
        const int m = min(i, count - 1), output = outputs > 1 ? m : 0;
        const uint32_t at = rows + (m - output) * size;
        bonus =
            a_.scale * dot(at + 4 * (Rows::queries + (outputs + output) * D), at + 4 * Rows::key);
      }
      if (i >= count) continue;
      const int64_t token = item_.begin + first + i - n, output = head * outputs + n;
      float x[CW], value[CW];
#pragma unroll
      for (int j = 0; j < CW; ++j) {
        const int at = 4 * (c + j);
        x[j] = fmaf(a_.scale, take(sums + i * kSlot + at), kAdditive<Form> ? a_.added : 0.f);
        value[j] = kAdditive<Form> ? take(of + at) : 0.f;
      }
      if constexpr (kAdditive<Form>) {
        const float over = a_.den ? *a_.den.at(item_.batch, token, output) : 1.f;
#pragma unroll
        for (int j = 0; j < CW; ++j) {
          if (a_.den) x[j] /= over;
          // Never one operation with the sum.
          if (a_.bonus) x[j] += a_.bonus_of(__fmul_rn(bonus, value[j]));
          if (a_.skip) x[j] = fmaf(*a_.skip.at(head, column + j), value[j], x[j]);
        }
      }
      const int64_t at = a_.o.offset(int64_t{item_.batch}, token, output, column);
      if (call_.fours & kFoursO) {
        store_four(a_.o, at, x);
      } else {
#pragma unroll
        for (int j = 0; j < CW; ++j)
          store_fp(a_.o.view.data, a_.o.dtype, at + j * a_.o.view.stride[3], x[j]);
      }
    }
    __syncwarp();
  }
  // What the warp has put.
  static __device__ __forceinline__ float take(uint32_t from) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
    return x;
  }
  // Of two rows in shared memory, the same in four lanes along d.
  __device__ __forceinline__ float dot(uint32_t x, uint32_t y) const {
    float sum[Halves] = {};
#pragma unroll 1
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int half = 0; half < Halves; ++half) {
        const int at = 4 * (D / 4 * m + 16 * half + 4 * ld_);
        float a[4], b[4];
        four(x + at, a), four(y + at, b);
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[half] = fmaf(a[i], b[i], sum[half]);
      }
    return lanes_sum<4>(Halves == 2 ? sum[0] + sum[Halves - 1] : sum[0]);
  }
  // The sum of lanes along d, of the lane's own column alone.
  __device__ __forceinline__ float sum_of_own(const float (&x)[CW]) const {
    const bool upper = ld_ & 2, odd = ld_ & 1;
    float two[2];
#pragma unroll
    for (int i = 0; i < 2; ++i)
      two[i] = (upper ? x[i + 2] : x[i]) + __shfl_xor_sync(~0u, upper ? x[i] : x[i + 2], 2);
    return (odd ? two[1] : two[0]) + __shfl_xor_sync(~0u, odd ? two[0] : two[1], 1);
  }

  const Recur& a_;
  const RecurCall& call_;
  const StepItem& item_;
  const uint32_t thread_;
  const int ld_, local_;  // the lane along d, its first column in the block
};

template <Recurrence Form, bool Keys, int Halves, bool Before>
__device__ __forceinline__ void step_block(const RecurCall& call, uint32_t slices, uint32_t wave,
                                           float* rows) {
  using Walk = StepWalk<Form, Keys, Halves, Before>;
  const StepItem item(call, blockIdx.x, slices);
  const int size = StepRows<Form, Keys, Walk::D>::size(call);
  const Walk walk(call, item);
  const StepMaker<Form, Keys, Walk::D> maker(call, item, static_cast<int>(threadIdx.x / 32),
                                             call.warps);
  typename Walk::Tile h;
  RawToken raw[2];
  float bonus[4] = {};
  if (blockIdx.x < wave) {
    const auto begin = static_cast<uint32_t>(clock());
    while (static_cast<uint32_t>(clock()) - begin < kStepApart * blockIdx.x) {
    }
  }
  walk.load(h);
  maker.ask(maker.warp, raw, bonus);
  maker.all(raw, bonus, size, rows);
  walk.settle(h);
  __syncthreads();
  // Opaque after the barrier: loads of rows are bound to it by their address.
  uint32_t from = static_cast<uint32_t>(__cvta_generic_to_shared(rows));
  asm volatile("" : "+r"(from)::"memory");
  // As of a shuffle the thread's number stays in a register: it would be read again each turn.
  Walk(call, item, __shfl_sync(~0u, threadIdx.x, threadIdx.x % 32))
      .steps(from, 4 * size, from + static_cast<uint32_t>(4 * call.a.run.token_max) * size, h);
}

// Eight warps a multiprocessor have 128 KB of states under way with D 128, twelve 96 KB with D 64.
template <Recurrence Form, bool Keys, int Halves, bool Before>
__global__ void __launch_bounds__(32 * kStepWarps, Halves == 2 ? 2 : 3)
    recur_steps_simt(const __grid_constant__ RecurCall call, uint32_t slices, uint32_t wave) {
  extern __shared__ __align__(16) float s_steps[];
  step_block<Form, Keys, Halves, Before>(call, slices, wave, s_steps);
}

template <Recurrence Form, bool Keys, int Halves, bool Before>
bool launch_steps(Context& ctx, const char* op, RecurCall call) {
  const Recur& a = call.a;
  const DeviceInfo& device = device_info(ctx);
  const int64_t columns = a.e / 32, warps = a.run.count * a.heads * columns;
  // One token is fastest with two warps.  A draft takes more, which make its rows, but where heads
  // are so few that multiprocessors would stay empty.
  const bool few = a.run.token_max <= 4 && warps <= 2 * device.multiprocessors;
  call.warps = a.run.token_max == 1 || few ? 2 : kStepWarps;
  while (columns % call.warps) --call.warps;
  const int64_t work = warps / call.warps;
  const int64_t wave = 8 / call.warps * device.multiprocessors;
  // Rows of tokens, then sums: of each and one more, or of a token's outputs.
  const int64_t sums = std::max<int64_t>(a.run.token_max, call.outputs) + 1;
  const int64_t rows = a.run.token_max * StepRows<Form, Keys, 64 * Halves>::size(call);
  const int64_t bytes = 4 * (rows + sums * kStepColumns);
  if (bytes > device.shared_block_bytes || work > INT_MAX) return false;
  launch<recur_steps_simt<Form, Keys, Halves, Before>>(
      ctx, op, work, 32 * call.warps, bytes, call, static_cast<uint32_t>(columns / call.warps),
      static_cast<uint32_t>(work > wave ? wave : 0));
  return true;
}

// Whether it served the call.
template <Recurrence Form>
bool recur_steps(Context& ctx, const char* op, const RecurCall& call) {
  if (!serves_steps(call)) return false;
  const bool wide = call.a.d == 128;
  if constexpr (kAdditive<Form>)
    if (call.a.read_before)
      return wide ? launch_steps<Form, true, 2, true>(ctx, op, call)
                  : launch_steps<Form, true, 1, true>(ctx, op, call);
  if (Form == Recurrence::low_rank || call.a.gate_key)
    return wide ? launch_steps<Form, true, 2, false>(ctx, op, call)
                : launch_steps<Form, true, 1, false>(ctx, op, call);
  if constexpr (Form != Recurrence::low_rank)
    return wide ? launch_steps<Form, false, 2, false>(ctx, op, call)
                : launch_steps<Form, false, 1, false>(ctx, op, call);
  return false;
}

}  // namespace fovea::cuda
