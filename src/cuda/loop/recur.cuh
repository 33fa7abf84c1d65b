// SPDX-License-Identifier: Apache-2.0
// A recurrence in a block: a sequence's state head, and a slice of its value columns.
//
// A warp has a tile of the state in registers, all d rows of a few columns:
//   lane     ld + lanes le: `lanes` = 4, 8, 16 or 32 along d, the others along e
//   rows     4 lanes m + 4 ld + i, m < 4, i < 4: up to 16 lanes
//   columns  4 le + j of the tile's 128 / lanes
// Sums over d are shuffles among lanes of one le, sums over e among lanes of one ld.
//
// What lanes share lies in shared memory, a few tokens at a time: as rows of 16 lanes floats k^,
// decays, what corrects, and q^ of the outputs; as a row of the block's columns v, then beta. Warps
// make a row each, then meet.
// The state is on its way to L2 meanwhile: in registers it would be spilled around what rows call.
#pragma once
#include "core/recur_gradients.h"
#include "cuda/block/reduce.cuh"
#include "cuda/loop/recur.h"

namespace fovea::cuda {

// How the elements of a state that a lane has lie in memory.
enum class StateOrder : int32_t { any, columns, rows };
// Tensors whose elements along d or e come four at a time, as bits.
enum Fours : uint32_t {
  kFoursQ = 1,
  kFoursK = 2,
  kFoursV = 4,
  kFoursGate = 8,
  kFoursErase = 16,
  kFoursLowA = 32,
  kFoursLowB = 64,
  kFoursO = 128
};

struct RecurCall {
  Recur a;
  StateOrder in, out, snapshot;
  int32_t lanes;    // along d
  int32_t warps;    // of a block
  int32_t tokens;   // of a stage
  int32_t queries;  // rows of q^ that a stage has of a token
  uint32_t fours;   // Fours
  bool whole;       // every lane has all its rows and columns
  // Heads of a key head, of a value head; output heads of a query head, of a state head.
  uint32_t key_share, value_share, query_share, outputs;
};

RecurCall recur_call(const Recur& a);

constexpr int kStepTokens = 16;  // of a sequence, at most
// Whether recur_steps.cuh serves a call, where its shared memory fits.
bool serves_steps(const RecurCall& call);

// A block's share of the gradients.
struct RecurBackwardCall {
  RecurCall call;
  RecurBackward b;  // its `forward` is call.a but for what is not given
  int64_t plane;    // of terms that sum over columns
  int64_t step, pieces;
  float* states;  // (blocks, pieces + step, state)
};

constexpr int R = 16, CW = 4;  // rows and columns of a lane

// Additive calls are x_gla's.  They alone have maps of features, select, gates of values, a bonus,
// skip, a normaliser, read_before and full; the others alone l2_norm.  Kernels of a form are made
// without what it cannot have.
template <Recurrence Form>
constexpr bool kAdditive = Form == Recurrence::additive;

// Rows of a tile, and columns of a block.
FOVEA_HD int32_t rows_of(const RecurCall& call) {
  return R * call.lanes;
}
FOVEA_HD int32_t columns_of(const RecurCall& call) {
  return 32 / call.lanes * CW * call.warps;
}

__device__ __forceinline__ void load4(const void* data, int32_t dtype, int64_t offset, float* to) {
  if (dtype == FOVEA_F32) {
    const float4 x = *reinterpret_cast<const float4*>(static_cast<const float*>(data) + offset);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    return;
  }
  const uint2 x = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(data) + offset);
  const uint32_t word[2] = {x.x, x.y};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    to[i] = to_float(Bf16{static_cast<uint16_t>(word[i / 2] >> (i % 2 * 16))});
}
__device__ __forceinline__ void store4(void* data, int32_t dtype, int64_t offset, const float* x) {
  if (dtype == FOVEA_F32) {
    *reinterpret_cast<float4*>(static_cast<float*>(data) + offset) =
        make_float4(x[0], x[1], x[2], x[3]);
    return;
  }
  uint32_t word[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    word[i / 2] |= static_cast<uint32_t>(from_float<Bf16>(x[i]).bits) << (i % 2 * 16);
  *reinterpret_cast<uint2*>(static_cast<uint16_t*>(data) + offset) = make_uint2(word[0], word[1]);
}

__device__ __forceinline__ void store_four(const Floats<4>& to, int64_t offset,
                                           const float (&x)[4]) {
  if (to.dtype != FOVEA_F16) return store4(to.view.data, to.dtype, offset, x);
  uint32_t word[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    word[i / 2] |= static_cast<uint32_t>(from_float<F16>(x[i]).bits) << (i % 2 * 16);
  *reinterpret_cast<uint2*>(to.view.template as<uint16_t>() + offset) =
      make_uint2(word[0], word[1]);
}
// Four elements of a tensor that has them side by side.
__device__ __forceinline__ float4 four_of(const Floats<4>& x, int64_t offset) {
  float to[4];
  if (x.dtype == FOVEA_F16) {
    const uint2 two = *reinterpret_cast<const uint2*>(x.view.template as<uint16_t>() + offset);
    const uint32_t word[2] = {two.x, two.y};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[i] = to_float(F16{static_cast<uint16_t>(word[i / 2] >> (i % 2 * 16))});
  } else {
    load4(x.view.data, x.dtype, offset, to);
  }
  return make_float4(to[0], to[1], to[2], to[3]);
}

// Rows of a token in shared memory.
enum StageRow : int { kKey = 0, kDecay, kCorrection, kLowB, kQueries };

// Floats of a token's values, beta, and whether some of its decays are 0.
FOVEA_HD int32_t value_floats(const RecurCall& call) {
  return columns_of(call) + 4;
}
inline int64_t stage_bytes(const RecurCall& call) {
  return int64_t{call.tokens} * ((kQueries + call.queries) * rows_of(call) + value_floats(call)) *
         static_cast<int64_t>(sizeof(float));
}

// What makes a row, by a warp.  No part of the block's object: of what a function that is called
// may reach, nothing stays in registers, and the state would go with it.
template <Recurrence Form>
struct StageRows {
  const RecurCall& call_;
  const Recur& a_;
  int64_t batch_, head_, column_;
  int size_;  // floats of a row

  __device__ StageRows(const RecurCall& call, int64_t batch, int64_t head, int64_t column)
      : call_(call),
        a_(call.a),
        batch_(batch),
        head_(head),
        column_(column),
        size_(rows_of(call)) {}

  // What a row is made of.
  struct Source {
    const Floats<4>* x;
    uint32_t fours;
    int64_t head;
    int32_t map;
    float factor;
    bool unit;  // divided by its norm
  };
  __device__ __forceinline__ Source key(float factor) const {
    return {&a_.k,    kFoursK, static_cast<uint32_t>(head_) / call_.key_share,
            a_.map_k, factor,  a_.l2_norm};
  }
  __device__ __forceinline__ Source query(int64_t output) const {
    const uint32_t n = static_cast<uint32_t>(head_) * call_.outputs + static_cast<uint32_t>(output);
    return {&a_.q, kFoursQ, n / call_.query_share, a_.map_q, 1, a_.l2_norm};
  }
  __device__ __forceinline__ Source plain(const Floats<4>& x, uint32_t fours) const {
    return {&x, fours, head_, 0, 1, false};
  }
  // One row.  row() is called at one place: each inlined copy would be as long as a token's step.
  __device__ __forceinline__ void make(int64_t at, int which, int64_t output, float* to,
                                       float* zeros) const {
    if (which == kDecay) return decays(at, to, zeros);
    Source from = key(1);
    if (which >= kQueries) {
      output += which - kQueries;
      if (output >= call_.outputs) return;
      from = query(output);
    } else if (which == kCorrection) {
      if (kAdditive<Form>) return;
      if (Form == Recurrence::low_rank)
        from = plain(a_.low_a, kFoursLowA);
      else if (a_.erase)
        from = plain(a_.erase, kFoursErase);
      else
        from = key(a_.beta_at(batch_, at, head_).value);
    } else if (which == kLowB) {
      if (Form != Recurrence::low_rank) return;
      from = plain(a_.low_b, kFoursLowB);
    }
    if (kAdditive<Form> && which < kQueries) from.factor *= a_.select_of(batch_, at, head_);
    row(from, at, to);
  }
  __device__ __forceinline__ void decays(int64_t at, float* to, float* zeros) const {
    if (!a_.row_gates() && !(kAdditive<Form> && a_.gate_value)) return;
    const int lane = threadIdx.x % 32;
    const float own = a_.gate_head ? a_.head_gate(batch_, at, head_).value : 0.f;
    const float rate = a_.rate_of(head_);
    bool zero = false;
    for (int c = 4 * lane; c < size_; c += 128) {
      float decay[4] = {own, own, own, own};
      if (a_.gate_key) {
        float gate[4];
        take(a_.gate_key, kFoursGate, at, head_, c, a_.d, gate);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (c + i < a_.d)
            decay[i] += a_.gate(gate[i] + (a_.bias ? *a_.bias.at(head_, c + i) : 0.f), rate).value;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) decay[i] = exp_of(decay[i]), zero |= decay[i] == 0;
      give(to + c, decay[0], decay[1], decay[2], decay[3]);
    }
    zero = __any_sync(~0u, zero);
    if (lane == 0) *zeros = zero ? 1.f : 0.f;
  }
  __device__ __forceinline__ void make_values(int64_t at, float* to) const {
    const int columns = columns_of(call_);
    if (!kAdditive<Form> && threadIdx.x % 32 == 31)
      to[columns] = a_.beta_at(batch_, at, head_).value;
    for (int c = static_cast<int>(threadIdx.x % 32) * 4; c < columns; c += 128) {
      float four[4] = {1, 1, 1, 1};
      if (a_.v)
        take(a_.v, kFoursV, at, static_cast<uint32_t>(head_) / call_.value_share, column_ + c, a_.e,
             four);
      give(to + c, four[0], four[1], four[2], four[3]);
    }
  }
  // Elements c .. c + 3 of a row of `size`, 0 past them.
  __device__ __forceinline__ void take(const Floats<4>& x, uint32_t which, int64_t at, int64_t head,
                                       int64_t c, int64_t size, float (&to)[4]) const {
    const int64_t offset = x.offset(batch_, at, head, c);
    if (call_.fours & which) {
      const float4 four = c < size ? four_of(x, offset) : make_float4(0, 0, 0, 0);
      to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[i] = c + i < size ? load_fp(x.view.data, x.dtype, offset + i * x.view.stride[3]) : 0.f;
  }
  static __device__ __forceinline__ void give(float* to, float a, float b, float c, float d) {
    *reinterpret_cast<float4*>(to) = make_float4(a, b, c, d);
  }
  __device__ __forceinline__ void row(const Source& from, int64_t at, float* to) const {
    const int lane = threadIdx.x % 32;
    float squares = 0;
    for (int c = 4 * lane; c < size_; c += 128) {
      float four[4];
      take(*from.x, from.fours, at, from.head, c, a_.d, four);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        squares = fmaf(four[i], four[i], squares);
        if (kAdditive<Form>) four[i] = feature_of(from.map, four[i]).value;
        four[i] = c + i < a_.d ? four[i] * from.factor : 0.f;
      }
      give(to + c, four[0], four[1], four[2], four[3]);
    }
    if (kAdditive<Form> || !from.unit) return;
    const float size = 1 / sqrtf(lanes_sum<32>(squares) + a_.eps);
    for (int c = 4 * lane; c < size_; c += 128)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[c + i] *= size;
  }
};

template <Recurrence Form>
static __device__ __noinline__ void make_row(const RecurCall& call, int64_t batch, int64_t head,
                                             int64_t at, int which, int64_t output, float* to,
                                             float* zeros) {
  StageRows<Form>(call, batch, head, 0).make(at, which, output, to, zeros);
}
template <Recurrence Form>
static __device__ __noinline__ void make_values(const RecurCall& call, int64_t batch, int64_t head,
                                                int64_t column, int64_t at, float* to) {
  StageRows<Form>(call, batch, head, column).make_values(at, to);
}

// Inlined: no call interrupts what makes a row.
template <Recurrence Form, bool Inlined = false>
class Stage {
 public:
  __device__ Stage(const RecurCall& call, const RunTokens& q, int64_t head, int64_t slice,
                   float* shared)
      : call_(call),
        a_(call.a),
        batch_(q.batch),
        head_(head),
        column_(slice * columns_of(call)),
        size_(rows_of(call)),
        shared_(shared),
        values_(shared + call.tokens * (kQueries + call.queries) * size_) {}

  // Rows [low, high) of the tokens from `at` on of their axis, `count` of them, and with row 0
  // their values; every thread calls it.
  __device__ void fill(int64_t at, int count, int low, int high) {
    const int rows = high - low + (low == 0);
    each_warp(count * rows, [&](int i) {
      const int token = i / rows, which = low + i - token * rows;
      float* to = which == high ? values_ + token * value_floats(call_) : row(token, which);
      if constexpr (Inlined) {
        const StageRows<Form> rows(call_, batch_, head_, column_);
        if (which == high)
          rows.make_values(at + token, to);
        else
          rows.make(at + token, which, 0, to, zeros_of(token));
      } else {
        if (which == high)
          make_values<Form>(call_, batch_, head_, column_, at + token, to);
        else
          make_row<Form>(call_, batch_, head_, at + token, which, 0, to, zeros_of(token));
      }
    });
  }
  // The values of a token from the block's first column on.
  __device__ __forceinline__ const float* values(int token) const {
    return values_ + token * value_floats(call_);
  }
  __device__ __forceinline__ float beta(int token) const {
    return values(token)[columns_of(call_)];
  }
  // Whether some decay of a token is 0: nothing is left of what it multiplies, be it inf or NaN.
  __device__ __forceinline__ bool zeros(int token) const {
    return values(token)[columns_of(call_) + 1] != 0;
  }
  __device__ __forceinline__ int end() const { return kQueries + call_.queries; }
  // q^ of the outputs from `first` on, of one token.
  __device__ void fill_queries(int token, int64_t at, int64_t first) {
    const int count =
        static_cast<int>(min(static_cast<int64_t>(call_.queries), call_.outputs - first));
    each_warp(count, [&](int i) {
      make_row<Form>(call_, batch_, head_, at, kQueries + i, first, row(token, kQueries + i),
                     zeros_of(token));
    });
  }
  __device__ __forceinline__ float* row(int token, int which) const {
    return shared_ + (token * (kQueries + call_.queries) + which) * size_;
  }

 private:
  __device__ __forceinline__ float* zeros_of(int token) const {
    return values_ + token * value_floats(call_) + columns_of(call_) + 1;
  }
  template <class Make>
  __device__ __forceinline__ void each_warp(int count, Make make_row) {
    __syncthreads();
    for (int i = threadIdx.x / 32; i < count; i += blockDim.x / 32) make_row(i);
    __syncthreads();
  }
  const RecurCall& call_;
  const Recur& a_;
  // By value: an object that holds an address within itself stays in memory.
  const int64_t batch_, head_, column_;
  const int size_;  // floats of a row
  float *const shared_, *const values_;
};

static __device__ __noinline__ float state_element(const Floats<4>& x, int64_t offset) {
  return load_fp(x.view.data, x.dtype, offset);
}
static __device__ __noinline__ void store_element(const Floats<4>& x, int64_t offset, float value) {
  store_fp(x.view.data, x.dtype, offset, value);
}

// The thread's number, made anew: what follows from it is not kept in registers around loops.
__device__ __forceinline__ uint32_t step_thread() {
  uint32_t thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  return thread;
}

// Lanes: how many are along d, where every lane has all its rows and columns, and columns have no
// gates; 0: as the call says.
template <int Lanes>
struct LaneOf {
  static constexpr bool whole = Lanes > 0;
  const Recur& a;
  const RecurCall& call;
  const int lanes, ld, le;
  const int local;  // the lane's first column in the block
  int64_t head;
  int64_t first;  // and in all

  __device__ LaneOf(const RecurCall& call, int64_t head, int64_t slice,
                    uint32_t thread = threadIdx.x)
      : a(call.a),
        call(call),
        lanes(Lanes ? Lanes : call.lanes),
        ld(thread % lanes),
        le(thread % 32 / lanes),
        local((static_cast<int>(thread) / 32 * (32 / lanes) + le) * CW),
        head(head),
        first(slice * columns() + local) {}

  // Of the block.
  __device__ __forceinline__ int columns() const {
    return Lanes ? 32 / (Lanes ? Lanes : 1) * CW * call.warps : columns_of(call);
  }

  __device__ __forceinline__ int row(int r) const { return r / 4 * 4 * lanes + 4 * ld + r % 4; }
  __device__ __forceinline__ bool has(int r) const { return Lanes || row(r) < a.d; }
  __device__ __forceinline__ bool has_column(int j) const { return Lanes || first + j < a.e; }

  // Sums of lanes along d.
  __device__ __forceinline__ float over_rows(float x) const {
#pragma unroll
    for (int step = Lanes ? Lanes / 2 : 16; step > 0; step /= 2)
      if (Lanes || step < lanes) x += __shfl_xor_sync(~0u, x, step);
    return x;
  }
  // Sums of lanes along e.
  __device__ __forceinline__ float over_columns(float x) const {
    for (int step = 16; step >= lanes; step /= 2) x += __shfl_xor_sync(~0u, x, step);
    return x;
  }

  // visit(r, x) for the lane's elements of a row in shared memory.
  template <class Visit>
  __device__ __forceinline__ void each(const float* row, Visit visit) const {
#pragma unroll
    for (int m = 0; m < R; m += 4) {
      const float4 x = *reinterpret_cast<const float4*>(row + m * lanes + 4 * ld);
      visit(m, x.x), visit(m + 1, x.y), visit(m + 2, x.z), visit(m + 3, x.w);
    }
  }
  __device__ __forceinline__ void load_column_decay(const RunTokens& q, int64_t at,
                                                    float (&to)[CW]) const {
#pragma unroll
    for (int j = 0; j < CW; ++j)
      to[j] = has_column(j) ? exp_of(a.value_gate(q.batch, at, head, first + j).value) : 1.f;
  }
  __device__ __forceinline__ void load_state(const RunTokens& q, float (&h)[R][CW]) const {
    if (!a.state_in || q.state < 0) {
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int j = 0; j < CW; ++j) h[r][j] = 0;
      return;
    }
    const Floats<4>& x = a.state_in;
    const int64_t base = x.offset(q.state, head, 0, first);
    const int64_t by_row = x.view.stride[2], by_column = x.view.stride[3];
    // Without a branch between them all loads are in flight at once.
    if ((Lanes || call.whole) && call.in != StateOrder::any) {
      if (x.dtype == FOVEA_F32)
        load_whole(x.view.template as<float>() + base, by_row, by_column, h);
      else
        load_whole(x.view.template as<Bf16>() + base, by_row, by_column, h);
      return;
    }
    if constexpr (Lanes > 0) return;
    if (call.in == StateOrder::columns) {
#pragma unroll
      for (int r = 0; r < R; ++r) {
        const bool there = has(r) && has_column(0);
        float row4[4] = {};
        if (there) load4(x.view.data, x.dtype, base + row(r) * by_row, row4);
#pragma unroll
        for (int j = 0; j < CW; ++j) h[r][j] = row4[j];
      }
    } else if (call.in == StateOrder::rows) {
#pragma unroll
      for (int j = 0; j < CW; ++j)
#pragma unroll
        for (int m = 0; m < R; m += 4) {
          float four[4] = {};
          if (has(m) && has_column(j))
            load4(x.view.data, x.dtype, base + j * by_column + row(m), four);
#pragma unroll
          for (int i = 0; i < 4; ++i) h[m + i][j] = four[i];
        }
    } else {
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int j = 0; j < CW; ++j)
          h[r][j] = has(r) && has_column(j)
                        ? state_element(x, base + row(r) * by_row + j * by_column)
                        : 0.f;
    }
  }
  static __device__ __forceinline__ float4 four_at(const float* x) {
    return __ldcs(reinterpret_cast<const float4*>(x));
  }
  static __device__ __forceinline__ float4 four_at(const Bf16* x) {
    const uint2 two = __ldcs(reinterpret_cast<const uint2*>(x));
    return make_float4(float_of(two.x << 16), float_of(two.x & 0xffff0000u), float_of(two.y << 16),
                       float_of(two.y & 0xffff0000u));
  }
  static __device__ __forceinline__ void give_at(float* to, float a, float b, float c, float d) {
    __stcs(reinterpret_cast<float4*>(to), make_float4(a, b, c, d));
  }
  static __device__ __forceinline__ void give_at(Bf16* to, float a, float b, float c, float d) {
    const auto two = [](float low, float high) {
      return from_float<Bf16>(low).bits | static_cast<uint32_t>(from_float<Bf16>(high).bits) << 16;
    };
    __stcs(reinterpret_cast<uint2*>(to), make_uint2(two(a, b), two(c, d)));
  }
  // `from`: the state of the lane's first column.
  template <class T>
  __device__ __forceinline__ void load_whole(const T* from, int64_t by_row, int64_t by_column,
                                             float (&h)[R][CW]) const {
    const bool columns = call.in == StateOrder::columns;
    from += 4 * ld * by_row;
#pragma unroll
    for (int m = 0; m < R; m += 4)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 x = four_at(
            from + (columns ? (m * lanes + i) * by_row : m * lanes * by_row + i * by_column));
        const float four[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) h[m + i][j] = four[j];
      }
    if (!columns) turn(h);
  }
  template <class T>
  __device__ __forceinline__ void store_whole(T* to, StateOrder order, int64_t by_row,
                                              int64_t by_column, const float (&h)[R][CW]) const {
    to += 4 * ld * by_row;
    if (order == StateOrder::columns) {
#pragma unroll
      for (int m = 0; m < R; m += 4)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          give_at(to + (m * lanes + i) * by_row, h[m + i][0], h[m + i][1], h[m + i][2],
                  h[m + i][3]);
    } else if (order == StateOrder::rows) {
#pragma unroll
      for (int m = 0; m < R; m += 4)
#pragma unroll
        for (int j = 0; j < CW; ++j)
          give_at(to + m * lanes * by_row + j * by_column, h[m][j], h[m + 1][j], h[m + 2][j],
                  h[m + 3][j]);
    }
  }
  // Each 4 x 4 elements, transposed.
  static __device__ __forceinline__ void turn(float (&h)[R][CW]) {
#pragma unroll
    for (int m = 0; m < R; m += 4)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < i; ++j) {
          const float x = h[m + i][j];
          h[m + i][j] = h[m + j][i], h[m + j][i] = x;
        }
  }
  // Asks for what load_state() will read.
  __device__ __forceinline__ void prefetch_state(const RunTokens& q) const {
    const Floats<4>& x = a.state_in;
    if (!x || q.state < 0 || !call.whole || call.in == StateOrder::any) return;
    const bool columns = call.in == StateOrder::columns;
    const int64_t size = x.dtype == FOVEA_F32 ? 4 : 2, by_row = x.view.stride[2];
    const char* at =
        x.view.template as<char>() + (x.offset(q.state, head, 0, first) + 4 * ld * by_row) * size;
#pragma unroll
    for (int n = 0; n < R; ++n) {
      const int64_t step = columns ? (n / 4 * 4 * lanes + n % 4) * by_row
                                   : n / 4 * x.view.stride[3] + n % 4 * 4 * lanes;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(at + step * size));
    }
  }
  __device__ __forceinline__ void store_state(const Floats<4>& x, StateOrder order, int64_t to,
                                              const float (&h)[R][CW]) const {
    if (to < 0) return;
    const int64_t base = x.offset(to, head, 0, first);
    const int64_t by_row = x.view.stride[2], by_column = x.view.stride[3];
    if (Lanes || call.whole) {
      if (x.dtype == FOVEA_F32)
        store_whole(x.view.template as<float>() + base, order, by_row, by_column, h);
      else
        store_whole(x.view.template as<Bf16>() + base, order, by_row, by_column, h);
      if (Lanes || order != StateOrder::any) return;
    }
    if (order == StateOrder::columns) {
#pragma unroll
      for (int r = 0; r < R; ++r)
        if (has(r) && has_column(0)) store4(x.view.data, x.dtype, base + row(r) * by_row, h[r]);
    } else if (order == StateOrder::rows) {
#pragma unroll
      for (int j = 0; j < CW; ++j)
#pragma unroll
        for (int m = 0; m < R; m += 4) {
          const float four[4] = {h[m][j], h[m + 1][j], h[m + 2][j], h[m + 3][j]};
          if (has(m) && has_column(j))
            store4(x.view.data, x.dtype, base + j * by_column + row(m), four);
        }
    } else {
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int j = 0; j < CW; ++j)
          if (has(r) && has_column(j))
            store_element(x, base + row(r) * by_row + j * by_column, h[r][j]);
    }
  }

  // x' H of the lane's columns, the same in all lanes of one le; x in shared memory.
  __device__ __forceinline__ void product(const float* x, const float (&h)[R][CW],
                                          float (&to)[CW]) const {
#pragma unroll
    for (int j = 0; j < CW; ++j) to[j] = 0;
    each(x, [&](int r, float value) {
#pragma unroll
      for (int j = 0; j < CW; ++j) to[j] = fmaf(value, h[r][j], to[j]);
    });
#pragma unroll
    for (int j = 0; j < CW; ++j) to[j] = over_rows(to[j]);
  }
  // h += x' y
  __device__ __forceinline__ void add(const float* x, const float (&y)[CW], float factor,
                                      float (&h)[R][CW]) const {
    each(x, [&](int r, float value) {
#pragma unroll
      for (int j = 0; j < CW; ++j) h[r][j] = fmaf(factor * value, y[j], h[r][j]);
    });
  }
  // by_column: columns have decays of their own.
  __device__ __forceinline__ void shrink(const float* decay, const float (&column)[CW],
                                         bool by_column, bool zeros, float (&h)[R][CW]) const {
    if (!a.row_gates() && !by_column) return;
    if (!zeros && !by_column) {
      each(decay, [&](int r, float value) {
#pragma unroll
        for (int j = 0; j < CW; ++j) h[r][j] *= value;
      });
      return;
    }
    each(decay, [&](int r, float value) {
#pragma unroll
      for (int j = 0; j < CW; ++j)
        h[r][j] = decayed(by_column ? value * column[j] : value, h[r][j]);
    });
  }
  // scale q^ . (bonus . k^)
  __device__ __forceinline__ float bonus(const float* query, const float* key) const {
    float sum = 0;
#pragma unroll 1
    for (int r = 0; r < R; ++r) {
      const int c = row(r);
      if (c < a.d) sum = fmaf(query[c] * *a.bonus.at(head, c), key[c], sum);
    }
    return a.scale * over_rows(sum);
  }
};
using Lane = LaneOf<0>;

// What a token brings to a lane's columns.
template <Recurrence Form>
struct LaneToken {
  float value[CW], column[CW], u[CW], z[CW];
  float beta;
  bool zeros;
  const float *key, *decay, *correction, *low_b;

  template <class AnyLane, class AnyStage>
  __device__ __forceinline__ void load(const AnyLane& lane, const AnyStage& stage,
                                       const RunTokens& q, int token, int64_t at) {
    const Recur& a = lane.a;
    key = stage.row(token, kKey), decay = stage.row(token, kDecay);
    correction = stage.row(token, kCorrection), low_b = stage.row(token, kLowB);
    const float4 four = *reinterpret_cast<const float4*>(stage.values(token) + lane.local);
    value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
    if (by_column(lane)) lane.load_column_decay(q, at, column);
    zeros = stage.zeros(token);
    if constexpr (Form == Recurrence::corrected) beta = stage.beta(token);
  }
  template <class AnyLane>
  static __device__ __forceinline__ bool by_column(const AnyLane& lane) {
    return kAdditive<Form> && !AnyLane::whole && lane.a.gate_value;
  }
  // H becomes H~; u and z are what the update then adds.
  template <class AnyLane>
  __device__ __forceinline__ void correct(const AnyLane& lane, float (&h)[R][CW]) {
    if constexpr (Form == Recurrence::low_rank) lane.product(correction, h, z);
    lane.shrink(decay, column, by_column(lane), zeros, h);
    if constexpr (Form == Recurrence::corrected) lane.product(correction, h, z);
#pragma unroll
    for (int j = 0; j < CW; ++j)
      u[j] = Form == Recurrence::corrected ? fmaf(beta, value[j], -z[j]) : value[j];
  }
  template <class AnyLane>
  __device__ __forceinline__ void add(const AnyLane& lane, float (&h)[R][CW]) const {
    if constexpr (Form == Recurrence::low_rank) lane.add(low_b, z, 1, h);
    lane.add(key, u, 1, h);
  }
};

// visit(output, q^) for the outputs of the block's head, of one token of the stage.
template <class AnyStage, class Visit>
__device__ __forceinline__ void each_output(const RecurCall& call, AnyStage& stage, int64_t head,
                                            int token, int64_t at, Visit visit) {
  const int64_t outputs = call.outputs;
  for (int64_t first = 0; first < outputs; first += call.queries) {
    if (outputs > call.queries) stage.fill_queries(token, at, first);
    for (int64_t n = 0; n < call.queries && first + n < outputs; ++n)
      visit(head * outputs + first + n, stage.row(token, kQueries + static_cast<int>(n)));
  }
}

}  // namespace fovea::cuda
