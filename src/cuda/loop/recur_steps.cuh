// SPDX-License-Identifier: Apache-2.0
// A recurrence over at most 16 tokens: decode, the check of a draft, and its commit.
//   H~ = decay . H_(t-1),  H_t = H~ + k^' u,  o_t = scale q^ H_t;  u as core/recur.h has it
// A block owns up to 128 value columns of a sequence's state head, each of its warps 32: all D rows
// of them, 64 or 128, in registers.  A warp asks for its state before it does anything else.
//
//   lane     ld + 4 le: 4 along d, 8 along e
//   rows     D / 4 m + 16 half + 4 ld + i, m < 4, i < 4, in halves of 16 where D = 128
//   columns  4 le + j of the warp's: 8 lanes have 128 bytes of a row
//
// Rows of the tokens (k^, decays, what corrects, q^, values) lie in shared memory. Warps make a
// token each, or a part of one.  One barrier stands between those that make and those that read.
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
    return queries + static_cast<int>(call.outputs) * D * (call.a.bonus ? 2 : 1);
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
    if (dtype == FOVEA_F32) {
      x[0] = float_of(word.x), x[1] = float_of(word.y), x[2] = float_of(word.z);
      x[3] = float_of(word.w);
      return;
    }
    const uint32_t two[2] = {word.x, word.y};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto bits = static_cast<uint16_t>(two[i / 2] >> (i % 2 * 16));
      x[i] = dtype == FOVEA_F16 ? to_float(F16{bits}) : to_float(Bf16{bits});
    }
  }
};

// Where an item is; what a thread holds beside a tile is few, so extents fit 32 bits.
struct StepItem {
  uint32_t sequence, head, slice;
  int32_t batch, begin, count, from, state, out;

  __device__ __forceinline__ StepItem(const RecurCall& call, uint32_t item, uint32_t slices) {
    const uint32_t rest = item / slices;
    slice = item - rest * slices;
    sequence = rest / static_cast<uint32_t>(call.a.heads);
    head = rest - sequence * static_cast<uint32_t>(call.a.heads);
    const RunTokens q = call.a.run[sequence];
    batch = static_cast<int32_t>(q.batch), begin = static_cast<int32_t>(q.begin);
    count = static_cast<int32_t>(q.count), from = static_cast<int32_t>(q.from);
    state = static_cast<int32_t>(q.state);
    out = static_cast<int32_t>(call.a.run.out_row(sequence));
  }
};

// Makes rows: a warp has a token, or a part of it where warps outnumber tokens.
template <Recurrence Form, bool Keys, int D>
struct StepMaker {
  using Rows = StepRows<Form, Keys, D>;
  enum Part : int { kKeys = 1, kQueriesValues = 2, kDecays = 4 };
  const RecurCall& call;
  const Recur& a;
  const StepItem& item;
  int lane, warp;

  __device__ __forceinline__ StepMaker(const RecurCall& call, const StepItem& item)
      : call(call),
        a(call.a),
        item(item),
        lane(static_cast<int>(threadIdx.x % 32)),
        warp(static_cast<int>(threadIdx.x / 32)) {}

  __device__ __forceinline__ bool unit() const { return !kAdditive<Form> && a.l2_norm; }
  // factor map(x) / |x|, as StageRows has it.
  __device__ __forceinline__ void mapped(const RawFour& raw, int32_t dtype, int32_t map,
                                         float (&to)[4], float& scale) const {
    raw.to(dtype, to);
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      squares = fmaf(to[i], to[i], squares);
      if (kAdditive<Form>) to[i] = feature_of(map, to[i]).value;
    }
    scale = unit() ? 1 / sqrtf(lanes_sum<32>(squares) + a.eps) : 1.f;
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
    const int c = 4 * lane;
    if (c < D) *reinterpret_cast<float4*>(to + c) = make_float4(x[0], x[1], x[2], x[3]);
  }

  __device__ __forceinline__ void make(int64_t at, int parts, bool outputs, float* rows) const {
    const int c = 4 * lane, columns = 32 * call.warps;
    const bool there = c < D;
    const int64_t batch = item.batch, head = item.head;
    const uint32_t head32 = item.head;
    const uint32_t key_head = head32 / call.key_share;
    float* scalars = rows + Rows::scalars;
    const Floats<4>& corrects = Form == Recurrence::low_rank ? a.low_a : a.erase;

    const bool with_keys = Keys && (Form != Recurrence::low_rank || a.gate_key);
    RawFour key, correction, low_b, decay, query, value;
    float beta = 1, select = 1, own = 0;
    const uint32_t first_output = head32 * call.outputs;
    if (parts & kKeys) {
      key.load(a.k, a.k.offset(batch, at, key_head, c), there);
      if (!kAdditive<Form> && corrects)
        correction.load(corrects, corrects.offset(batch, at, head, c), there);
      if (!kAdditive<Form> && a.beta) beta = a.beta(batch, at, head);
      if (kAdditive<Form> && a.select) select = a.select(batch, at, head);
    }
    if (parts & kQueriesValues) {
      if (outputs)
        query.load(a.q, a.q.offset(batch, at, first_output / call.query_share, c), there);
      value.load(a.v, a.v.offset(batch, at, head32 / call.value_share, item.slice * columns + c),
                 c < columns);
    }
    if (parts & kDecays) {
      if (with_keys) decay.load(a.gate_key, a.gate_key.offset(batch, at, head, c), there);
      if (a.gate_head) own = a.gate_head(batch, at, head);
      if constexpr (Form == Recurrence::low_rank)
        low_b.load(a.low_b, a.low_b.offset(batch, at, head, c), there);
    }

    if (parts & kKeys) {
      float x[4], scale;
      if (!kAdditive<Form> && a.beta) beta = beta_of(a.beta_map, beta).value;
      mapped(key, a.k.dtype, a.map_k, x, scale);
      give(rows + Rows::key, x, 1 * select, scale);
      if constexpr (!kAdditive<Form>) {
        float* to = rows + Rows::correction;
        if (corrects)
          correction.to(corrects.dtype, x), put(to, x);
        else
          give(to, x, beta * select, scale);
      }
      if (!kAdditive<Form> && lane == 0) scalars[kStepBeta] = beta;
    }
    if (parts & kQueriesValues) {
      float x[4], scale;
      for (uint32_t n = 0; outputs && n < call.outputs; ++n) {
        if (n)
          query.load(a.q, a.q.offset(batch, at, (first_output + n) / call.query_share, c), there);
        mapped(query, a.q.dtype, a.map_q, x, scale);
        float* to = rows + Rows::queries + static_cast<int>(n) * D;
        give(to, x, 1, scale);
        if (kAdditive<Form> && a.bonus && there) {
#pragma unroll
          for (int i = 0; i < 4; ++i) x[i] = to[c + i] * *a.bonus.at(head, c + i);
          put(to + call.outputs * D, x);
        }
      }
      value.to(a.v.dtype, x);
      if (c < columns) *reinterpret_cast<float4*>(rows + c) = make_float4(x[0], x[1], x[2], x[3]);
    }
    if (parts & kDecays) {
      bool zero = false;
      const float rate = a.rate_of(head);
      if (a.gate_head)
        own = a.gate(own + (a.bias && !with_keys ? *a.bias.at(head, 0) : 0.f), rate).value;
      if constexpr (Keys) {
        float x[4] = {own, own, own, own};
        if (with_keys) decay.to(a.gate_key.dtype, x);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float bias = a.bias && there ? *a.bias.at(head, c + i) : 0.f;
          x[i] = exp_of(with_keys ? own + a.gate(x[i] + bias, rate).value : own);
          zero |= there && x[i] == 0;
        }
        put(rows + Rows::decay, x);
      } else if (a.gate_head) {
        const float one = exp_of(own);
        zero = one == 0;
        if (lane == 0) scalars[kStepDecay] = one;
      }
      zero = __any_sync(~0u, zero);
      if (lane == 0) scalars[kStepZero] = zero ? 1.f : 0.f;
      if constexpr (Form == Recurrence::low_rank) {
        float x[4];
        low_b.to(a.low_b.dtype, x), put(rows + Rows::low_b, x);
      }
    }
  }
  // All tokens of the item.
  __device__ __forceinline__ void all(int tokens, int size, float* rows) const {
    const int warps = call.warps;
    const int split = warps >= 3 * tokens ? 3 : warps >= 2 * tokens ? 2 : 1;
#pragma unroll 1
    for (int i = warp; i < tokens * split; i += warps) {
      const int token = i / split, part = i - token * split;
      const int parts = split == 3   ? 1 << part
                        : split == 1 ? 7
                        : part       ? kQueriesValues | kDecays
                                     : static_cast<int>(kKeys);
      make(item.begin + token, parts, a.o && token >= item.from, rows + token * size);
    }
  }
};

// A warp's slice of the state.
template <Recurrence Form, bool Keys, int Halves>
class StepWalk {
 public:
  static constexpr int D = 64 * Halves;
  using Rows = StepRows<Form, Keys, D>;
  using Tile = float[Halves][R][CW];

  __device__ __forceinline__ StepWalk(const RecurCall& call, const StepItem& item)
      : a_(call.a),
        call_(call),
        item_(item),
        ld_(static_cast<int>(threadIdx.x % 4)),
        local_(static_cast<int>(threadIdx.x / 4 * CW)) {}

  __device__ __forceinline__ void load(Tile& h) const {
    const Floats<4>& x = a_.state_in;
    if (item_.state < 0) {
#pragma unroll
      for (int n = 0; n < Halves * R; ++n)
        h[n / R][n % R][0] = h[n / R][n % R][1] = h[n / R][n % R][2] = h[n / R][n % R][3] = 0;
      return;
    }
    const auto ask = [](const auto* from, float(&four)[CW]) { ask_four(from, four); };
    each_state_four(x, item_.state, call_.in, h, ask);
    if (call_.in == StateOrder::rows) turn(h);
  }
  __device__ __forceinline__ void steps(const float* rows, int size, Tile& h) const {
    // Where the lane's element of a token's o is.
    int64_t at =
        a_.o ? a_.o.offset(item_.batch, item_.begin, int64_t{item_.head} * call_.outputs, own())
             : 0;
    const int from = a_.o ? item_.from : INT_MAX;
    int kept = 0, until = a_.snapshot ? static_cast<int>(a_.run.every) : INT_MAX;
    // A token's outputs come before its step, or after it and so in the next turn.  Outputs and
    // stores have one place each, or the kernel had them twice.
    const int behind = kAdditive<Form> && a_.read_before ? 0 : 1;
    at -= behind * a_.o.view.stride[1];
#pragma unroll 1
    for (int t = 0;; ++t, rows += size, at += a_.o.view.stride[1]) {
      const int out = t - behind;
      if (out >= from && out < item_.count) outputs(rows - behind * size, item_.begin + out, at, h);
      const bool last = t == item_.count;
      int64_t to = last && a_.state_out ? item_.out : -1;
      if (!last) {
        step(rows, h);
        if (--until == 0) {
          until = static_cast<int>(a_.run.every);
          if (kept < a_.run.kept) {
            const int row = *a_.run.snapshot_row.template at<int32_t>(item_.sequence, kept++);
            to = row < a_.run.snapshots ? row : -1;
          }
        }
      }
      if (to >= 0)
        store(last ? a_.state_out : a_.snapshot, to, last ? call_.out : call_.snapshot, h);
      if (last) return;
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
  static __device__ __forceinline__ void ask_four(const Bf16* from, float (&x)[CW]) {
    uint32_t two[2];
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
                 : "=r"(two[0]), "=r"(two[1])
                 : "l"(from)
                 : "memory");
#pragma unroll
    for (int j = 0; j < CW; ++j)
      x[j] = float_of(j % 2 ? two[j / 2] & 0xffff0000u : two[j / 2] << 16);
  }
  // visit(pointer, four) for the lane's pieces as they lie: rows of columns, or columns of rows.
  template <class Visit>
  __device__ __forceinline__ void each_state_four(const Floats<4>& x, int64_t state,
                                                  StateOrder order, Tile& h, Visit visit) const {
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
            visit(from + (D / 4 * m + 16 * half) * by_row + i * step, h[half][4 * m + i]);
    };
    if (x.dtype == FOVEA_F32)
      all(x.view.template as<float>() + first);
    else
      all(x.view.template as<Bf16>() + first);
  }
  // Each 4 x 4 elements, transposed.
  static __device__ __forceinline__ void turn(Tile& h) {
#pragma unroll
    for (int half = 0; half < Halves; ++half) Lane::turn(h[half]);
  }
  __device__ __forceinline__ void store(const Floats<4>& x, int64_t state, StateOrder order,
                                        Tile& h) const {
    if (order == StateOrder::rows) turn(h);
    each_state_four(x, state, order, h, [](auto* to, const float(&four)[CW]) {
      store4(to, sizeof(*to) == 4 ? FOVEA_F32 : FOVEA_BF16, 0, four);
    });
    if (order == StateOrder::rows) turn(h);
  }
  // visit(row past the lane's first one, its piece of the row)
  template <class Visit>
  static __device__ __forceinline__ void each_piece(Tile& h, Visit visit) {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int half = 0; half < Halves; ++half)
#pragma unroll
        for (int i = 0; i < 4; ++i) visit(D / 4 * m + 16 * half + i, h[half][4 * m + i]);
  }
  // visit(x, its piece) for the lane's elements of a row in shared memory.
  template <class Visit>
  __device__ __forceinline__ void each(const float* row, Tile& h, Visit visit) const {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int half = 0; half < Halves; ++half) {
        const float4 x = *reinterpret_cast<const float4*>(row + D / 4 * m + 16 * half + 4 * ld_);
        visit(x.x, half, h[half][4 * m]), visit(x.y, half, h[half][4 * m + 1]);
        visit(x.z, half, h[half][4 * m + 2]), visit(x.w, half, h[half][4 * m + 3]);
      }
  }
  __device__ __forceinline__ int64_t column() const {
    return int64_t{item_.slice} * (32 * call_.warps) + local_;
  }
  // The column whose element of o the lane stores.
  __device__ __forceinline__ int64_t own() const {
    return column() + ld_;
  }

  // The lane's part of x' H: its halves are added.
  __device__ __forceinline__ void part(const float* row, Tile& h, float (&to)[CW]) const {
    float sum[Halves][CW] = {};
    each(row, h, [&](float x, int half, const float(&piece)[CW]) {
#pragma unroll
      for (int j = 0; j < CW; ++j) sum[half][j] = fmaf(x, piece[j], sum[half][j]);
    });
#pragma unroll
    for (int j = 0; j < CW; ++j) to[j] = Halves == 2 ? sum[0][j] + sum[Halves - 1][j] : sum[0][j];
  }
  __device__ __forceinline__ void product(const float* row, Tile& h, float (&to)[CW]) const {
    part(row, h, to);
#pragma unroll
    for (int j = 0; j < CW; ++j) to[j] = lanes_sum<4>(to[j]);
  }
  // H += x' y
  __device__ __forceinline__ void add(const float* row, const float (&y)[CW], Tile& h) const {
    each(row, h, [&](float x, int, float(&piece)[CW]) {
#pragma unroll
      for (int j = 0; j < CW; ++j) piece[j] = fmaf(x, y[j], piece[j]);
    });
  }
  // H_(t-1) becomes H_t.
  __device__ __forceinline__ void step(const float* rows, Tile& h) const {
    const float4 four = *reinterpret_cast<const float4*>(rows + local_);
    const float4 scalars = *reinterpret_cast<const float4*>(rows + Rows::scalars);
    const float value[CW] = {four.x, four.y, four.z, four.w};
    float u[CW], z[CW];
    if constexpr (Form == Recurrence::low_rank) product(rows + Rows::correction, h, z);
    shrink(rows, scalars.z, scalars.y != 0, h);
    if constexpr (Form == Recurrence::corrected) product(rows + Rows::correction, h, z);
#pragma unroll
    for (int j = 0; j < CW; ++j)
      u[j] = Form == Recurrence::corrected ? fmaf(scalars.x, value[j], -z[j]) : value[j];
    if constexpr (Form == Recurrence::low_rank) add(rows + Rows::low_b, z, h);
    add(rows + Rows::key, u, h);
  }
  // Where no decay is 0 they multiply without a select.
  __device__ __forceinline__ void shrink(const float* rows, float decay, bool zero, Tile& h) const {
    if constexpr (Keys) {
      each(rows + Rows::decay, h, [&](float x, int, float(&piece)[CW]) {
#pragma unroll
        for (int j = 0; j < CW; ++j) piece[j] *= x;
      });
      if (zero)
        each(rows + Rows::decay, h, [&](float x, int, float(&piece)[CW]) {
#pragma unroll
          for (int j = 0; j < CW; ++j) piece[j] = x == 0 ? 0 : piece[j];
        });
    } else if (a_.gate_head) {
      each_piece(h, [&](int, float(&piece)[CW]) {
#pragma unroll
        for (int j = 0; j < CW; ++j) piece[j] *= decay;
      });
      if (zero)
        each_piece(h,
                   [&](int, float(&piece)[CW]) { piece[0] = piece[1] = piece[2] = piece[3] = 0; });
    }
  }
  // The lane's element of a token's outputs.
  __device__ __forceinline__ void outputs(const float* rows, int64_t token, int64_t at,
                                          Tile& h) const {
    const int count = static_cast<int>(call_.outputs);
    const float value = rows[local_ + ld_];
#pragma unroll 1
    for (int n = 0; n < count; ++n, at += a_.o.view.stride[2]) {
      const float* query = rows + Rows::queries + n * D;
      float y[CW];
      part(query, h, y);
      float one = fmaf(a_.scale, sum_of_own(y), a_.added);
      if constexpr (kAdditive<Form>)
        if (a_.den) one /= *a_.den.at(item_.batch, token, int64_t{item_.head} * count + n);
      if constexpr (kAdditive<Form>)
        if (a_.bonus) {
          const float own = a_.scale * dot(query + count * D, rows + Rows::key);
          one += a_.bonus_of(__fmul_rn(own, value));  // never one operation with the sum
        }
      if (kAdditive<Form> && a_.skip)
        one = fmaf(*a_.skip.at(int64_t{item_.head}, own()), value, one);
      store_fp(a_.o.view.data, a_.o.dtype, at, one);
    }
  }
  // Of two rows in shared memory, the same in all lanes.
  __device__ __forceinline__ float dot(const float* x, const float* y) const {
    float sum[Halves] = {};
#pragma unroll 1
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int half = 0; half < Halves; ++half) {
        const int at = D / 4 * m + 16 * half + 4 * ld_;
#pragma unroll
        for (int i = 0; i < 4; ++i) sum[half] = fmaf(x[at + i], y[at + i], sum[half]);
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
  const int ld_, local_;  // the lane along d, its first column in the block
};

template <Recurrence Form, bool Keys, int Halves>
__device__ __forceinline__ void step_block(const RecurCall& call, uint32_t slices, float* rows) {
  using Walk = StepWalk<Form, Keys, Halves>;
  const StepItem item(call, blockIdx.x, slices);
  const int size = StepRows<Form, Keys, Walk::D>::size(call);
  const Walk walk(call, item);
  typename Walk::Tile h;
  walk.load(h);
  StepMaker<Form, Keys, Walk::D>(call, item).all(item.count, size, rows);
  __syncthreads();
  walk.steps(rows, size, h);
}

// Eight warps a multiprocessor have 128 KB of states under way with D 128, twelve 96 KB with D 64.
template <Recurrence Form, bool Keys, int Halves>
__global__ void __launch_bounds__(32 * kStepWarps, Halves == 2 ? 2 : 3)
    recur_steps_simt(const __grid_constant__ RecurCall call, uint32_t slices) {
  extern __shared__ __align__(16) float s_steps[];
  step_block<Form, Keys, Halves>(call, slices, s_steps);
}

template <Recurrence Form, bool Keys, int Halves>
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
  const int64_t bytes = 4 * a.run.token_max * StepRows<Form, Keys, 64 * Halves>::size(call);
  if (bytes > device.shared_block_bytes || work > INT_MAX) return false;
  launch<recur_steps_simt<Form, Keys, Halves>>(ctx, op, work, 32 * call.warps, bytes, call,
                                               static_cast<uint32_t>(columns / call.warps));
  return true;
}

// Whether it served the call.
template <Recurrence Form>
bool recur_steps(Context& ctx, const char* op, const RecurCall& call) {
  if (!serves_steps(call)) return false;
  const bool wide = call.a.d == 128;
  if (Form == Recurrence::low_rank || call.a.gate_key)
    return wide ? launch_steps<Form, true, 2>(ctx, op, call)
                : launch_steps<Form, true, 1>(ctx, op, call);
  if constexpr (Form != Recurrence::low_rank)
    return wide ? launch_steps<Form, false, 2>(ctx, op, call)
                : launch_steps<Form, false, 1>(ctx, op, call);
  return false;
}

}  // namespace fovea::cuda
