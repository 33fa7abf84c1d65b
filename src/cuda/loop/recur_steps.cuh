// SPDX-License-Identifier: Apache-2.0
// A recurrence over at most 16 tokens: decode, the check of a draft, and its commit.
//   H~ = decay . H_(t-1),  H_t = H~ + k^' u,  o_t = scale q^ H_t;  u as core/recur.h has it
// Blocks stay, and take items in turn: a sequence's state head, and a slice of its value columns.
// An item is in a thread's registers while its next one is on its way to shared memory.
//
//   what                            where                       who writes   who reads
//   a lane's tile of the next item  shared memory, 16 pieces    cp.async     the same thread
//   rows of an item's tokens        shared memory               a warp each  all warps
//   a lane's tile of this item      registers, as recur.cuh     its thread   its thread
//
//   barrier of all threads   who waits for it    what it guards
//   before rows are made     those that make     the last item's rows, and where this item is
//   after                    all                 this item's rows
//
// A thread copies what it reads itself, so pieces need no barrier.
//
// Bits: every sum is that of recur_forward_simt, which serves the other cuts of a sequence.
//   z, o     each lane along d adds its 16 rows in turn, then lanes add in the order 4, 2, 1
//   H_t      one product, one fused multiply-add, token after token
//   columns  no sum crosses them, so slices change nothing
// A chunk's form (scores, an inverse) sums over tokens first: other bits at other cuts, not taken.
#pragma once
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/loop/recur.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/layout.cuh"

namespace fovea::cuda {

constexpr int kStepColumns = 128;  // of a block, at most
constexpr int kStepThreads = 256;

// Floats of a token in shared memory: values, scalars, rows of D.  Kinds of rows that a form lacks
// take no place.
template <Recurrence Form, bool Keys, int D>
struct StepRows {
  static constexpr int scalars = kStepColumns;  // beta, whether some decay is 0, a head's decay
  static constexpr int key = scalars + 4, decay = key + D;
  static constexpr int correction = decay + (Keys ? D : 0);
  static constexpr int low_b = correction + (Form != Recurrence::additive ? D : 0);
  static constexpr int queries = low_b + (Form == Recurrence::low_rank ? D : 0);

  static FOVEA_HD int size(const RecurCall& call) {
    return queries + static_cast<int>(call.outputs) * D;
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
      : call(call), a(call.a), item(item) {
    const auto thread = static_cast<int>(step_thread());
    lane = thread % 32, warp = thread / 32;
  }

  // factor map(x) / |x|, as StageRows has it.
  __device__ __forceinline__ void mapped(const RawFour& raw, int32_t dtype, int32_t map,
                                         float (&to)[4], float& scale) const {
    raw.to(dtype, to);
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      squares = fmaf(to[i], to[i], squares);
      to[i] = feature_of(map, to[i]).value;
    }
    scale = a.l2_norm ? 1 / sqrtf(lanes_sum<32>(squares) + a.eps) : 1.f;
  }
  // to = x factor scale: one product without a norm.
  __device__ __forceinline__ void give(float* to, const float (&x)[4], float factor,
                                       float scale) const {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      y[i] = x[i] * factor;
      if (a.l2_norm) y[i] *= scale;
    }
    put(to, y);
  }
  __device__ __forceinline__ void put(float* to, const float (&x)[4]) const {
    const int c = 4 * lane;
    if (c < D) *reinterpret_cast<float4*>(to + c) = make_float4(x[0], x[1], x[2], x[3]);
  }

  __device__ __forceinline__ void make(int64_t at, int parts, bool outputs, float* rows) const {
    const int c = 4 * lane, columns = 32 * 4 * R / D * call.warps;
    const bool there = c < D;
    const int64_t batch = item.batch, head = item.head;
    const uint32_t head32 = item.head;
    const uint32_t key_head = head32 / call.key_share;
    float* scalars = rows + Rows::scalars;
    const Floats<4>& corrects = Form == Recurrence::low_rank ? a.low_a : a.erase;

    RawFour key, correction, low_b, decay, query, value;
    float beta = 1, select = 1, own = 0;
    const uint32_t first_output = head32 * call.outputs;
    if (parts & kKeys) {
      key.load(a.k, a.k.offset(batch, at, key_head, c), there);
      if (Form != Recurrence::additive && corrects)
        correction.load(corrects, corrects.offset(batch, at, head, c), there);
      if (a.beta) beta = a.beta(batch, at, head);
      if (a.select) select = a.select(batch, at, head);
    }
    if (parts & kQueriesValues) {
      if (outputs)
        query.load(a.q, a.q.offset(batch, at, first_output / call.query_share, c), there);
      value.load(a.v, a.v.offset(batch, at, head32 / call.value_share, item.slice * columns + c),
                 c < columns);
    }
    if (parts & kDecays) {
      if constexpr (Keys) decay.load(a.gate_key, a.gate_key.offset(batch, at, head, c), there);
      if (!Keys && a.gate_head) own = a.gate_head(batch, at, head);
      if constexpr (Form == Recurrence::low_rank)
        low_b.load(a.low_b, a.low_b.offset(batch, at, head, c), there);
    }

    if (parts & kKeys) {
      float x[4], scale;
      if (a.beta) beta = beta_of(a.beta_map, beta).value;
      mapped(key, a.k.dtype, a.map_k, x, scale);
      give(rows + Rows::key, x, 1 * select, scale);
      if constexpr (Form != Recurrence::additive) {
        float* to = rows + Rows::correction;
        if (corrects)
          correction.to(corrects.dtype, x), put(to, x);
        else
          give(to, x, beta * select, scale);
      }
      if (lane == 0) scalars[kStepBeta] = beta;
    }
    if (parts & kQueriesValues) {
      float x[4], scale;
      for (uint32_t n = 0; outputs && n < call.outputs; ++n) {
        if (n)
          query.load(a.q, a.q.offset(batch, at, (first_output + n) / call.query_share, c), there);
        mapped(query, a.q.dtype, a.map_q, x, scale);
        give(rows + Rows::queries + static_cast<int>(n) * D, x, 1, scale);
      }
      value.to(a.v.dtype, x);
      if (c < columns) *reinterpret_cast<float4*>(rows + c) = make_float4(x[0], x[1], x[2], x[3]);
    }
    if (parts & kDecays) {
      bool zero = false;
      if constexpr (Keys) {
        float x[4];
        const float rate = a.rate_of(head);
        decay.to(a.gate_key.dtype, x);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float bias = a.bias && there ? *a.bias.at(head, c + i) : 0.f;
          x[i] = exp_of(0.f + a.gate(x[i] + bias, rate).value);
          zero |= there && x[i] == 0;
        }
        put(rows + Rows::decay, x);
      } else if (a.gate_head) {
        const float shift = a.bias ? *a.bias.at(head, 0) : 0.f;
        const float one = exp_of(a.gate(own + shift, a.rate_of(head)).value);
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
  // Asks for what all() will read, in L2: four lanes a row, each 128 bytes of it.
  __device__ __forceinline__ void prefetch() const {
    const int64_t head = item.head;
    const int kind = lane / 4, at = 64 * (lane % 4);  // in elements of 16 bits
    const Floats<4>* x = nullptr;
    int64_t row = head, first = 0, size = D;
    if (kind == 0) x = &a.k, row = item.head / call.key_share;
    if (kind == 1 && a.o) x = &a.q, row = item.head * call.outputs / call.query_share;
    if (kind == 2) {
      size = 32 * 4 * R / D * call.warps, first = item.slice * size;
      x = &a.v, row = item.head / call.value_share;
    }
    if (kind == 3) x = &a.gate_key;
    if (kind == 4) x = Form == Recurrence::low_rank ? &a.low_a : &a.erase;
    if (kind == 5) x = &a.low_b;
    if (!x || !*x) return;
    const int wide = x->dtype == FOVEA_F32 ? 2 : 1;
    if (at >= size * wide) return;
    const int64_t from = x->offset(item.batch, item.begin, row, first);
    const char* to = x->view.template as<char>() + (from * wide + at) * 2;
    const int64_t step = x->view.stride[1] * wide * 2;
#pragma unroll 1
    for (int i = warp; i < item.count; i += call.warps)
      asm volatile("prefetch.global.L2 [%0];" ::"l"(to + i * step));
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

template <int Lanes>
__device__ __forceinline__ int column_of_sum(int ld) {
  return ld / (Lanes / 4);
}
// The sum of lanes along d, of one of the lane's columns alone: that at column_of_sum().
template <int Lanes>
__device__ __forceinline__ float sum_of_one(int ld, const float (&x)[CW]) {
  const bool upper = ld & (Lanes / 2), odd = ld & (Lanes / 4);
  float two[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    two[i] = (upper ? x[i + 2] : x[i]) + __shfl_xor_sync(~0u, upper ? x[i] : x[i + 2], Lanes / 2);
  float one = (odd ? two[1] : two[0]) + __shfl_xor_sync(~0u, odd ? two[0] : two[1], Lanes / 4);
#pragma unroll
  for (int step = Lanes / 8; step > 0; step /= 2) one += __shfl_xor_sync(~0u, one, step);
  return one;
}

template <Recurrence Form, bool Keys, int Lanes>
class StepWalk {
 public:
  static constexpr int D = R * Lanes;
  using Rows = StepRows<Form, Keys, D>;

  __device__ __forceinline__ StepWalk(const RecurCall& call, const StepItem& item)
      : a_(call.a), call_(call), lane_(call, item.head, item.slice, step_thread()), item_(item) {}

  // Asks for the lane's pieces of the state.
  __device__ __forceinline__ void request(const float* shared) const {
    const uint32_t pieces = shared_address(shared) + 16 * step_thread();
    const Floats<4>& x = a_.state_in;
    const bool there = item_.state >= 0;
    const int64_t by_row = x.view.stride[2];
    const float* from = x.view.template as<float>() +
                        x.offset(there ? item_.state : 0, lane_.head, 0, lane_.first) +
                        4 * lane_.ld * by_row;
#pragma unroll
    for (int m = 0; m < R; m += 4)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        copy_async(pieces + (m + i) * blockDim.x * 16, from + (m * Lanes + i) * by_row, there);
  }
  __device__ __forceinline__ void take(const float* shared, float (&h)[R][CW]) const {
    const float4* pieces = reinterpret_cast<const float4*>(shared) + step_thread();
#pragma unroll
    for (int n = 0; n < R; ++n) {
      const float4 x = pieces[n * blockDim.x];
      h[n][0] = x.x, h[n][1] = x.y, h[n][2] = x.z, h[n][3] = x.w;
    }
  }
  __device__ __forceinline__ void store(const float (&h)[R][CW]) const {
    if (a_.state_out) store(a_.state_out, item_.out, h);
  }
  __device__ __forceinline__ void steps(const float* rows, int size, float (&h)[R][CW]) const {
    // Where the lane's element of a token's o is.
    int64_t at = a_.o ? a_.o.offset(item_.batch, item_.begin, lane_.head * call_.outputs,
                                    lane_.first + column_of_sum<Lanes>(lane_.ld))
                      : 0;
    int silent = a_.o ? item_.from : INT_MAX;
    int kept = 0, until = a_.snapshot ? static_cast<int>(a_.run.every) : INT_MAX;
#pragma unroll 1
    for (int left = item_.count; left > 0; --left, rows += size, at += a_.o.view.stride[1]) {
      step(rows, --silent < 0, at, h);
      if (--until) continue;
      until = static_cast<int>(a_.run.every);
      if (kept < a_.run.kept) {
        const int row = *a_.run.snapshot_row.template at<int32_t>(item_.sequence, kept++);
        const StepWalk walk(call_, item_);
        walk.store(a_.snapshot, row < a_.run.snapshots ? row : -1, h);
      }
    }
  }

 private:
  __device__ __forceinline__ void store(const Floats<4>& x, int row,
                                        const float (&h)[R][CW]) const {
    if (row >= 0)
      lane_.store_whole(x.view.template as<float>() + x.offset(row, lane_.head, 0, lane_.first),
                        StateOrder::columns, x.view.stride[2], x.view.stride[3], h);
  }
  // A token; `outputs`: its element of o is stored, at `at`.
  __device__ __forceinline__ void step(const float* rows, bool outputs, int64_t at,
                                       float (&h)[R][CW]) const {
    const float4 four = *reinterpret_cast<const float4*>(rows + lane_.local);
    const float4 scalars = *reinterpret_cast<const float4*>(rows + Rows::scalars);
    const float value[CW] = {four.x, four.y, four.z, four.w};
    float u[CW], z[CW];
    if constexpr (Form == Recurrence::low_rank) lane_.product(rows + Rows::correction, h, z);
    shrink(rows, scalars.z, scalars.y != 0, h);
    if constexpr (Form == Recurrence::corrected) lane_.product(rows + Rows::correction, h, z);
#pragma unroll
    for (int j = 0; j < CW; ++j)
      u[j] = Form == Recurrence::corrected ? fmaf(scalars.x, value[j], -z[j]) : value[j];
    if constexpr (Form == Recurrence::low_rank) lane_.add(rows + Rows::low_b, z, 1, h);
    lane_.add(rows + Rows::key, u, 1, h);
    if (!outputs) return;
#pragma unroll 1
    for (int n = 0; n < static_cast<int>(call_.outputs); ++n, at += a_.o.view.stride[2])
      output(rows + Rows::queries + n * D, at, value, h);
  }

  __device__ __forceinline__ void shrink(const float* rows, float decay, bool zero,
                                         float (&h)[R][CW]) const {
    if constexpr (Keys) {
      lane_.each(rows + Rows::decay, [&](int r, float x) {
#pragma unroll
        for (int j = 0; j < CW; ++j) h[r][j] *= x;
      });
      if (zero)
        lane_.each(rows + Rows::decay, [&](int r, float x) {
#pragma unroll
          for (int j = 0; j < CW; ++j) h[r][j] = x == 0 ? 0 : h[r][j];
        });
    } else if (a_.gate_head) {
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int j = 0; j < CW; ++j) h[r][j] *= decay;
      if (zero)
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
          for (int j = 0; j < CW; ++j) h[r][j] = 0;
    }
  }
  __device__ __forceinline__ void output(const float* query, int64_t at, const float (&value)[CW],
                                         const float (&h)[R][CW]) const {
    float y[CW] = {};
    lane_.each(query, [&](int r, float x) {
#pragma unroll
      for (int j = 0; j < CW; ++j) y[j] = fmaf(x, h[r][j], y[j]);
    });
    const int j = column_of_sum<Lanes>(lane_.ld);
    float one = fmaf(a_.scale, sum_of_one<Lanes>(lane_.ld, y), a_.added);
    if (a_.skip)
      one = fmaf(*a_.skip.at(lane_.head, lane_.first + j),
                 j & 2 ? (j & 1 ? value[3] : value[2]) : (j & 1 ? value[1] : value[0]), one);
    if (lane_.ld % (Lanes / 4) == 0) store_fp(a_.o.view.data, a_.o.dtype, at, one);
  }

  const Recur& a_;
  const RecurCall& call_;
  const LaneOf<Lanes> lane_;
  const StepItem& item_;
};

// Pieces of a block's next item, where it and this one are, then the rows of this one's tokens.
constexpr int kStepItemBytes = 2 * 64;
template <Recurrence Form, bool Keys, int Lanes>
int64_t step_bytes(const RecurCall& call) {
  const int64_t size = StepRows<Form, Keys, R * Lanes>::size(call);
  return int64_t{R * CW} * 4 * 32 * call.warps + kStepItemBytes + 4 * call.a.run.token_max * size;
}

template <Recurrence Form, bool Keys, int Lanes>
__global__ void __launch_bounds__(kStepThreads, 2)
    recur_steps_simt(const __grid_constant__ RecurCall call, uint32_t slices, uint32_t work) {
  extern __shared__ __align__(16) float s_steps[];
  using Walk = StepWalk<Form, Keys, Lanes>;
  static_assert(2 * sizeof(StepItem) <= kStepItemBytes);
  StepItem* items = reinterpret_cast<StepItem*>(s_steps + R * CW * blockDim.x);
  float* rows = reinterpret_cast<float*>(items) + kStepItemBytes / 4;
  const int size = StepRows<Form, Keys, Walk::D>::size(call);
  // The first turn only asks for an item.
  bool there = false;
  for (uint32_t next = blockIdx.x, turn = 0;; next += gridDim.x, turn ^= 1) {
    float h[R][CW];
    const StepItem& item = items[turn];
    if (there) {
      __syncthreads();
      StepMaker<Form, Keys, Walk::D>(call, item).all(item.count, size, rows);
      __syncthreads();
      copy_wait<0>();
      Walk(call, item).take(s_steps, h);
    }
    const bool more = next < work;
    if (more) {
      const StepItem asked(call, next, slices);
      if (there) StepMaker<Form, Keys, Walk::D>(call, asked).prefetch();
      Walk(call, asked).request(s_steps);
      copy_commit();
      if (threadIdx.x == 0) items[turn ^ 1] = asked;
    }
    if (there) {
      Walk(call, item).steps(rows, size, h);
      Walk(call, item).store(h);
    }
    if (!more) break;
    there = true;
  }
}

template <Recurrence Form, bool Keys, int Lanes>
bool launch_steps(Context& ctx, const char* op, RecurCall call) {
  const Recur& a = call.a;
  const DeviceInfo& device = device_info(ctx);
  const int64_t heads = a.run.count * a.heads;
  const auto items = [&] { return heads * (a.e / columns_of(call)); };
  while (columns_of(call) > kStepColumns) call.warps /= 2;
  // Few heads: slices, while each has a multiprocessor of its own, and warps to make its rows.
  while (call.warps % 2 == 0 && call.warps > std::max<int64_t>(2, a.run.token_max / 2) &&
         2 * items() <= device.multiprocessors)
    call.warps /= 2;
  const int64_t bytes = step_bytes<Form, Keys, Lanes>(call), work = items();
  if (bytes > device.shared_block_bytes || work > INT_MAX / 2) return false;
  const int64_t blocks =
      std::max<int64_t>(1, std::min<int64_t>(2 * kStepThreads / (32 * call.warps),
                                             device.shared_sm_bytes / (bytes + 1024)));
  launch<recur_steps_simt<Form, Keys, Lanes>>(
      ctx, op, std::min(work, blocks * device.multiprocessors), 32 * call.warps, bytes, call,
      static_cast<uint32_t>(a.e / columns_of(call)), static_cast<uint32_t>(work));
  return true;
}

// Whether it served the call.
template <Recurrence Form>
bool recur_steps(Context& ctx, const char* op, const RecurCall& call) {
  if (!serves_steps(call)) return false;
  if (call.a.gate_key)
    return call.lanes == 8 ? launch_steps<Form, true, 8>(ctx, op, call)
                           : launch_steps<Form, true, 4>(ctx, op, call);
  if constexpr (Form == Recurrence::low_rank)
    return false;
  else
    return call.lanes == 8 ? launch_steps<Form, false, 8>(ctx, op, call)
                           : launch_steps<Form, false, 4>(ctx, op, call);
}

}  // namespace fovea::cuda
