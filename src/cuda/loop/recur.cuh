// SPDX-License-Identifier: Apache-2.0
// A recurrence in a block: a sequence's state head, and a slice of its value columns.
//
// A warp has a tile of the state in registers, all d rows of a few columns:
//   lane     ld + lanes le: `lanes` = 4, 8, 16 or 32 along d, the others along e
//   rows     4 lanes m + 4 ld + i, m < 4, i < 4: up to 16 lanes
//   columns  4 le + j of the tile's 128 / lanes
// Sums over d are shuffles among lanes of one le, sums over e among lanes of one ld.
//
// What all columns share lies in shared memory, a few tokens at a time, as rows of 16 lanes floats:
// k^, decays, what corrects, and q^ of the outputs.  Warps make a row each, then meet.
#pragma once
#include "core/recur_gradients.h"
#include "cuda/block/reduce.cuh"
#include "cuda/loop/recur.h"

namespace fovea::cuda {

// How the elements of a state that a lane has lie in memory.
enum class StateOrder : int32_t { any, columns, rows };

struct RecurCall {
  Recur a;
  StateOrder in, out, snapshot;
  int32_t lanes;    // along d
  int32_t warps;    // of a block
  int32_t tokens;   // of a stage
  int32_t queries;  // rows of q^ that a stage has of a token
};

RecurCall recur_call(const Recur& a);

// A block's share of the gradients.
struct RecurBackwardCall {
  RecurCall call;
  RecurBackward b;  // its `forward` is call.a but for what is not given
  int64_t plane;    // of terms that sum over columns
  int64_t step, pieces;
  float* states;  // (blocks, pieces + step, state)
};

constexpr int R = 16, CW = 4;  // rows and columns of a lane

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

// Rows of a token in shared memory.
enum StageRow : int { kKey = 0, kDecay, kCorrection, kLowB, kQueries };

inline int64_t stage_bytes(const RecurCall& call) {
  return int64_t{call.tokens} * (kQueries + call.queries) * rows_of(call) *
         static_cast<int64_t>(sizeof(float));
}

class Stage {
 public:
  __device__ Stage(const RecurCall& call, const RunTokens& q, int64_t head, float* shared)
      : call_(call), a_(call.a), q_(q), head_(head), size_(rows_of(call)), shared_(shared) {}

  // Rows [low, high) of the tokens from `at` on of their axis, `count` of them; every thread calls
  // it.
  __device__ void fill(int64_t at, int count, int low, int high) {
    const int rows = high - low;
    each_warp(count * rows, [&](int i) {
      const int token = i / rows, which = low + i - token * rows;
      make(at + token, which, 0, row(token, which));
    });
  }
  __device__ __forceinline__ int end() const { return kQueries + call_.queries; }
  // q^ of the outputs from `first` on, of one token.
  __device__ void fill_queries(int token, int64_t at, int64_t first) {
    const int count =
        static_cast<int>(min(static_cast<int64_t>(call_.queries), a_.outputs() - first));
    each_warp(count, [&](int i) { make(at, kQueries + i, first, row(token, kQueries + i)); });
  }
  __device__ __forceinline__ float* row(int token, int which) const {
    return shared_ + (token * (kQueries + call_.queries) + which) * size_;
  }

 private:
  template <class Make>
  __device__ __forceinline__ void each_warp(int count, Make make_row) {
    __syncthreads();
    for (int i = threadIdx.x / 32; i < count; i += blockDim.x / 32) make_row(i);
    __syncthreads();
  }
  // One row, by a warp.
  __device__ __noinline__ void make(int64_t at, int which, int64_t output, float* to) const {
    const int lane = threadIdx.x % 32;
    if (which == kKey) {
      key(at, 1, to);
    } else if (which == kDecay) {
      if (!a_.row_gates() && !a_.gate_value) return;
      const float own = a_.gate_head ? a_.head_gate(q_.batch, at, head_).value : 0.f;
      for (int c = lane; c < size_; c += 32)
        to[c] =
            exp_of(c < a_.d && a_.gate_key ? own + a_.key_gate(q_.batch, at, head_, c).value : own);
    } else if (which == kCorrection) {
      if (a_.form == Recurrence::additive) return;
      const Floats<4>& from = a_.form == Recurrence::low_rank ? a_.low_a : a_.erase;
      if (!from) return key(at, a_.beta_at(q_.batch, at, head_).value, to);
      plain(from, at, to);
    } else if (which == kLowB) {
      if (a_.low_b) plain(a_.low_b, at, to);
    } else if (output + which - kQueries < a_.outputs()) {
      mapped(a_.q, at, a_.query_head(head_ * a_.outputs() + output + which - kQueries), a_.map_q, 1,
             to);
    }
  }
  __device__ __forceinline__ void key(int64_t at, float factor, float* to) const {
    mapped(a_.k, at, a_.key_head(head_), a_.map_k, factor * a_.select_of(q_.batch, at, head_), to);
  }
  __device__ __forceinline__ void plain(const Floats<4>& x, int64_t at, float* to) const {
    for (int c = threadIdx.x % 32; c < size_; c += 32)
      to[c] = c < a_.d ? x(q_.batch, at, head_, c) : 0.f;
  }
  __device__ __noinline__ void mapped(const Floats<4>& x, int64_t at, int64_t from, int32_t map,
                                      float factor, float* to) const {
    const int lane = threadIdx.x % 32;
    float squares = 0;
    for (int c = lane; c < size_; c += 32) {
      const float value = c < a_.d ? x(q_.batch, at, from, c) : 0.f;
      squares = fmaf(value, value, squares);
      to[c] = c < a_.d ? feature_of(map, value).value * factor : 0.f;
    }
    if (!a_.l2_norm) return;
    const float size = 1 / sqrtf(lanes_sum<32>(squares) + a_.eps);
    for (int c = lane; c < size_; c += 32) to[c] *= size;
  }

  const RecurCall& call_;
  const Recur& a_;
  const RunTokens& q_;
  const int64_t head_;
  const int size_;  // floats of a row
  float* const shared_;
};

static __device__ __noinline__ float state_element(const Floats<4>& x, int64_t offset) {
  return load_fp(x.view.data, x.dtype, offset);
}
static __device__ __noinline__ void store_element(const Floats<4>& x, int64_t offset, float value) {
  store_fp(x.view.data, x.dtype, offset, value);
}

struct Lane {
  const Recur& a;
  const RecurCall& call;
  const int lanes, ld, le;
  int64_t head;
  int64_t first;  // the lane's first column

  __device__ Lane(const RecurCall& call, int64_t head, int64_t tile)
      : a(call.a),
        call(call),
        lanes(call.lanes),
        ld(threadIdx.x % call.lanes),
        le(threadIdx.x % 32 / call.lanes),
        head(head),
        first(tile * (32 / call.lanes * CW) + le * CW) {}

  __device__ __forceinline__ int row(int r) const { return r / 4 * 4 * lanes + 4 * ld + r % 4; }
  __device__ __forceinline__ bool has(int r) const { return row(r) < a.d; }
  __device__ __forceinline__ bool has_column(int j) const { return first + j < a.e; }

  // Sums of lanes along d.
  __device__ __forceinline__ float over_rows(float x) const {
    for (int step = lanes / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
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
  __device__ __forceinline__ void load_value(const RunTokens& q, int64_t at,
                                             float (&to)[CW]) const {
#pragma unroll
    for (int j = 0; j < CW; ++j)
      to[j] = has_column(j) ? a.value_of(q.batch, at, head, first + j) : 0.f;
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
  __device__ __forceinline__ void store_state(const Floats<4>& x, StateOrder order, int64_t to,
                                              const float (&h)[R][CW]) const {
    if (to < 0) return;
    const int64_t base = x.offset(to, head, 0, first);
    const int64_t by_row = x.view.stride[2], by_column = x.view.stride[3];
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
  __device__ __forceinline__ void shrink(const float* decay, const float (&column)[CW],
                                         float (&h)[R][CW]) const {
    if (!a.row_gates() && !a.gate_value) return;
    each(decay, [&](int r, float value) {
#pragma unroll
      for (int j = 0; j < CW; ++j)
        h[r][j] = decayed(a.gate_value ? value * column[j] : value, h[r][j]);
    });
  }
  // scale q^ . (bonus . k^)
  __device__ __noinline__ float bonus(const float* query, const float* key) const {
    float sum = 0;
    for (int m = 0; m < R; m += 4)
      for (int i = 0; i < 4; ++i) {
        const int c = m * lanes + 4 * ld + i;
        if (c < a.d) sum = fmaf(query[c] * *a.bonus.at(head, c), key[c], sum);
      }
    return a.scale * over_rows(sum);
  }
};

// What a token brings to a lane's columns.
template <Recurrence Form>
struct LaneToken {
  float value[CW], column[CW], u[CW], z[CW];
  float beta;
  const float *key, *decay, *correction, *low_b;

  __device__ __forceinline__ void load(const Lane& lane, const Stage& stage, const RunTokens& q,
                                       int token, int64_t at) {
    const Recur& a = lane.a;
    key = stage.row(token, kKey), decay = stage.row(token, kDecay);
    correction = stage.row(token, kCorrection), low_b = stage.row(token, kLowB);
    lane.load_value(q, at, value);
    if (a.gate_value) lane.load_column_decay(q, at, column);
    if constexpr (Form == Recurrence::corrected) beta = a.beta_at(q.batch, at, lane.head).value;
  }
  // H becomes H~; u and z are what the update then adds.
  __device__ __forceinline__ void correct(const Lane& lane, float (&h)[R][CW]) {
    if constexpr (Form == Recurrence::low_rank) lane.product(correction, h, z);
    lane.shrink(decay, column, h);
    if constexpr (Form == Recurrence::corrected) lane.product(correction, h, z);
#pragma unroll
    for (int j = 0; j < CW; ++j)
      u[j] = Form == Recurrence::corrected ? fmaf(beta, value[j], -z[j]) : value[j];
  }
  __device__ __forceinline__ void add(const Lane& lane, float (&h)[R][CW]) const {
    if constexpr (Form == Recurrence::low_rank) lane.add(low_b, z, 1, h);
    lane.add(key, u, 1, h);
  }
};

// visit(output, q^) for the outputs of the block's head, of one token of the stage.
template <class Visit>
__device__ __forceinline__ void each_output(const RecurCall& call, Stage& stage, int64_t head,
                                            int token, int64_t at, Visit visit) {
  const int64_t outputs = call.a.outputs();
  for (int64_t first = 0; first < outputs; first += call.queries) {
    if (outputs > call.queries) stage.fill_queries(token, at, first);
    for (int64_t n = 0; n < call.queries && first + n < outputs; ++n)
      visit(head * outputs + first + n, stage.row(token, kQueries + static_cast<int>(n)));
  }
}

}  // namespace fovea::cuda
