// SPDX-License-Identifier: Apache-2.0
// recur_steps_simt for drafts of many heads on Hopper: blocks stay, and TMA brings the next head's
// state while the tokens of this one are computed.  Rows, walk and so bits are recur_steps.cuh's.
//
// A block has 128 value columns of a head at a time, a warp 32 of them.  D is 128.
//
// Shared memory: rows of the tokens, sums q^ H, the next head's tokens as they lie, its state.
// Tokens are copied by cp.async, and read by the lanes that asked for them.  Four rows of a state
// lie together, as in memory, and some bytes before the next four: lanes meet in no bank.
//
// | barrier | who arrives | who waits | guards |
// | --- | --- | --- | --- |
// | first of the block | all | all | rows are made; the state is in registers, its place is free |
// | second | all | all | rows, sums and places are read |
// | `full` | TMA | all | the next state |
#pragma once
#include "cuda/loop/recur_steps.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/mma_sm90.cuh"

namespace fovea::cuda {

constexpr int kDraftColumns = 128, kDraftD = 128;
constexpr int kDraftBlocks = 2;  // of a multiprocessor

// A warp's tokens of an item, as they lie, in shared memory.
template <Recurrence Form, bool Keys>
struct DraftTokens {
  using Maker = StepMaker<Form, Keys, kDraftD>;
  const Maker& maker;
  uint32_t at;

  // Bytes of a row: four elements a lane.
  static FOVEA_HD int row(int32_t dtype) { return 32 * (dtype == FOVEA_F32 ? 16 : 8); }
  static FOVEA_HD int bytes(const RecurCall& call) {
    const Recur& a = call.a;
    const int rows = 3 + (Form == Recurrence::low_rank || a.erase) + (Form == Recurrence::low_rank);
    return rows * row(a.q.dtype) + (Keys && a.gate_key ? row(a.gate_key.dtype) : 0);
  }

  // Every lane has the scalars of the token of its number.
  struct Scalars {
    RawOne beta, select, own;
  };
  __device__ __forceinline__ void ask(Scalars& scalars, float (&bonus)[4]) const {
    const Recur& a = maker.a;
    const StepItem& item = maker.item;
    const int64_t batch = item.batch, head = item.head;
    if (maker.lane < item.count) {
      const int64_t token = item.begin + maker.lane;
      if (!kAdditive<Form> && a.beta) scalars.beta.load(a.beta, a.beta.offset(batch, token, head));
      if (kAdditive<Form> && a.select)
        scalars.select.load(a.select, a.select.offset(batch, token, head));
      if (a.gate_head) scalars.own.load(a.gate_head, a.gate_head.offset(batch, token, head));
    }
    maker.ask_bonus(bonus);
    uint32_t to = at;
#pragma unroll 1
    for (int token = maker.warp; token < item.count; token += maker.warps)
      each(token, to, [](RawFour RawToken::*, const Floats<4>& x, int64_t offset, uint32_t own) {
        const char* from = x.view.template as<char>();
        if (x.dtype == FOVEA_F32)
          copy_async(own, from + 4 * offset, true);
        else
          copy_async_8(own, from + 2 * offset);
      });
    copy_commit();
  }
  // Rows of the tokens.
  __device__ __forceinline__ void make(const Scalars& scalars, const float (&bonus)[4], int size,
                                       float* rows) const {
    copy_wait<0>();
    uint32_t from = at;
#pragma unroll 1
    for (int token = maker.warp; token < maker.item.count; token += maker.warps) {
      RawToken raw;
      each(token, from, [&](RawFour RawToken::*to, const Floats<4>& x, int64_t, uint32_t own) {
        uint4& word = (raw.*to).word;
        if (x.dtype == FOVEA_F32)
          asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                       : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                       : "r"(own)
                       : "memory");
        else
          asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                       : "=r"(word.x), "=r"(word.y)
                       : "r"(own)
                       : "memory");
      });
      raw.beta.word = __shfl_sync(~0u, scalars.beta.word, token);
      raw.select.word = __shfl_sync(~0u, scalars.select.word, token);
      raw.own.word = __shfl_sync(~0u, scalars.own.word, token);
      maker.make(token, Maker::kAll, raw, bonus, size, rows);
    }
  }

 private:
  // visit(row, tensor, offset of the lane's elements, their place) for all that are used, from
  // `place` on.
  template <class Visit>
  __device__ __forceinline__ void each(int token, uint32_t& place, Visit visit) const {
    const Recur& a = maker.a;
    const StepItem& item = maker.item;
    const int64_t at = item.begin + token;
    const auto row_of = [&](RawFour RawToken::*field, const Floats<4>& x, int64_t offset,
                            bool valid) {
      const int bytes = row(x.dtype);
      if (valid) visit(field, x, offset, place + maker.lane * (bytes / 32));
      place += bytes;
    };
    row_of(&RawToken::key, a.k, maker.row_at(a.k, at, item.key_head), true);
    row_of(&RawToken::query, a.q, maker.row_at(a.q, at, item.query_head), maker.outputs(token));
    row_of(&RawToken::value, a.v, maker.value_at(at), true);
    if (!kAdditive<Form> && maker.corrects())
      row_of(&RawToken::correction, maker.corrects(), maker.row_at(maker.corrects(), at, item.head),
             true);
    if constexpr (Form == Recurrence::low_rank)
      row_of(&RawToken::low_b, a.low_b, maker.row_at(a.low_b, at, item.head), true);
    if (maker.with_keys())
      row_of(&RawToken::decay, a.gate_key, maker.row_at(a.gate_key, at, item.head), true);
  }
};

// Shared memory, in bytes: rows of the tokens come first.
struct DraftPlaces {
  uint32_t token_rows;     // rows of a token
  uint32_t sums;           // begin
  uint32_t tokens, token;  // begin, of a warp's tokens as they lie
  uint32_t state, four;    // begins, of four rows of the state
  uint32_t bytes;

  template <Recurrence Form, bool Keys>
  static DraftPlaces of(const RecurCall& call) {
    const auto count = static_cast<uint32_t>(call.a.run.token_max);
    DraftPlaces to;
    to.token_rows = 4 * StepRows<Form, Keys, kDraftD>::size(call);
    to.sums = count * to.token_rows;
    to.tokens = to.sums + 4 * kStepColumns * (std::max(count, call.outputs) + 1);
    to.token = (count + kStepWarps - 1) / kStepWarps * DraftTokens<Form, Keys>::bytes(call);
    to.state = to.tokens + kStepWarps * to.token;
    // Eight lanes have 32 bytes of four columns' rows each, or 64 of two.
    to.four = 4 * kDraftRow + (call.in == StateOrder::columns ? 32 : 64);
    to.bytes = to.state + 32 * to.four;
    return to;
  }
  static constexpr int kDraftRow = 512;  // bytes of a row of the state
};

// A state, by TMA.  A row: columns of an element of d, or elements of d of a column.
struct DraftState {
  const Floats<4>& x;
  StateOrder order;
  uint32_t at, four;

  static constexpr uint32_t kBytes = kDraftD * kDraftColumns * 4, kRow = DraftPlaces::kDraftRow;

  // By one lane of each warp.
  __device__ __forceinline__ void ask(const StepItem& item, int warp, uint32_t full) const {
    const bool columns = order == StateOrder::columns;
    const int64_t pitch = 4 * (columns ? x.view.stride[2] : x.view.stride[3]);
    const char* from =
        x.view.template as<char>() + 4 * x.offset(int64_t{item.state}, int64_t{item.head}, 0,
                                                  int64_t{item.slice} * kDraftColumns);
    from += 32 * warp * pitch;
    uint32_t to = at + 8 * warp * four;
#pragma unroll 1
    for (int n = 0; n < 8; ++n, to += four, from += 4 * pitch) {
      if (pitch == kRow) {
        sm90::tma_load(to, from, 4 * kRow, full);
      } else {
#pragma unroll 1
        for (int i = 0; i < 4; ++i) sm90::tma_load(to + i * kRow, from + i * pitch, kRow, full);
      }
    }
  }
  // visit(place, half, r) for the lane's pieces, as StepWalk::load has them.
  template <class Visit>
  __device__ __forceinline__ void each(int warp, int lane, Visit visit) const {
    const int ld = lane % 4, le = lane / 4;
    if (order == StateOrder::columns)
      each_of<8>(at + ld * four + 128 * warp + 16 * le, four, visit);
    else
      each_of<0>(at + (8 * warp + le) * four + 16 * ld, 0, visit);
  }

 private:
  // Fours: fours of rows between values of m; 0: all rows are the lane's.
  template <int Fours, class Visit>
  static __device__ __forceinline__ void each_of(uint32_t first, uint32_t four, Visit visit) {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t at =
            Fours ? first + (Fours * m + 4 * half) * four : first + 128 * m + 64 * half;
#pragma unroll
        for (int i = 0; i < 4; ++i) visit(at + i * kRow, half, 4 * m + i);
      }
  }
};

template <Recurrence Form, bool Keys, bool Before>
struct DraftBlock {
  using Walk = StepWalk<Form, Keys, 2, Before>;
  using Maker = StepMaker<Form, Keys, kDraftD>;
  using Tokens = DraftTokens<Form, Keys>;
  const RecurCall& call;
  const DraftPlaces& places;
  float* rows;
  uint32_t shared, full;
  int warp, lane;

  __device__ __forceinline__ DraftState state() const {
    return {call.a.state_in, call.in, shared + places.state, places.four};
  }
  __device__ __forceinline__ Tokens tokens(const Maker& maker) const {
    return {maker, shared + places.tokens + warp * places.token};
  }
  __device__ __forceinline__ void ask(const StepItem& item, typename Tokens::Scalars& scalars,
                                      float (&bonus)[4]) const {
    const Maker maker(call, item, warp, kStepWarps);
    tokens(maker).ask(scalars, bonus);
    const bool there = item.state >= 0;
    if (threadIdx.x == 0) {
      if (there)
        sm90::barrier_expect(full, DraftState::kBytes);
      else
        sm90::barrier_arrive(full);
    }
    if (there && lane == 0) state().ask(item, warp, full);
  }
  __device__ __forceinline__ void fetch(const StepItem& item, const Walk& walk,
                                        typename Walk::Tile& h) const {
    if (item.state < 0) return Walk::nothing(h);
    state().each(warp, lane, [&](uint32_t from, int half, int r) {
      float(&x)[CW] = h[half][r];
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
                   : "r"(from)
                   : "memory");
    });
    walk.settle(h);
  }
  __device__ __forceinline__ void run(uint32_t slices, uint32_t work, StepItem (&items)[2]) const {
    typename Tokens::Scalars scalars;
    float bonus[4] = {};
    uint32_t at = blockIdx.x;
    const auto next = [&](int slot) {
      const StepItem item(call, at, slices);
      if (threadIdx.x == 0) items[slot] = item;
      ask(item, scalars, bonus);
    };
    next(0);
    __syncthreads();
#pragma unroll 1
    for (int slot = 0;; slot ^= 1) {
      const StepItem& item = items[slot];
      const Maker maker(call, item, warp, kStepWarps);
      tokens(maker).make(scalars, bonus, static_cast<int>(places.token_rows / 4), rows);
      // Items alternate between slots as phases of the barrier do.
      sm90::barrier_wait(full, slot);
      typename Walk::Tile h;
      fetch(item, Walk(call, item), h);
      __syncthreads();
      at += gridDim.x;
      if (at < work) next(slot ^ 1);
      // Opaque after the barrier: loads of rows are bound to it by their address.
      uint32_t from = shared;
      asm volatile("" : "+r"(from)::"memory");
      // As of a shuffle the thread's number stays in a register: it would be read again each turn.
      Walk(call, item, __shfl_sync(~0u, threadIdx.x, threadIdx.x % 32))
          .steps(from, static_cast<int>(places.token_rows), from + places.sums, h);
      if (at >= work) return;
      __syncthreads();
    }
  }
};

template <Recurrence Form, bool Keys, bool Before>
__global__ void __launch_bounds__(32 * kStepWarps, kDraftBlocks)
    recur_drafts_sm90(const __grid_constant__ RecurCall call, uint32_t slices, uint32_t work,
                      const __grid_constant__ DraftPlaces places) {
  extern __shared__ __align__(16) float s_steps[];
  __shared__ StepItem s_items[2];
  __shared__ uint64_t s_full;
  const auto full = static_cast<uint32_t>(__cvta_generic_to_shared(&s_full));
  if (threadIdx.x == 0) sm90::barrier_init(full, 1), sm90::barrier_init_done();
  __syncthreads();
  DraftBlock<Form, Keys, Before>{call,
                                 places,
                                 s_steps,
                                 static_cast<uint32_t>(__cvta_generic_to_shared(s_steps)),
                                 full,
                                 static_cast<int>(threadIdx.x / 32),
                                 static_cast<int>(threadIdx.x % 32)}
      .run(slices, work, s_items);
}

// Shared memory of a block beside DraftPlaces; 1 KB is the driver's.
constexpr int64_t kDraftOwn = 2 * sizeof(StepItem) + sizeof(uint64_t) + 1024;

template <Recurrence Form, bool Keys, bool Before>
void launch_drafts(Context& ctx, const char* op, RecurCall call) {
  const Recur& a = call.a;
  const int64_t slices = a.e / kDraftColumns, work = a.run.count * a.heads * slices;
  const int64_t blocks = int64_t{kDraftBlocks} * device_info(ctx).multiprocessors;
  const DraftPlaces places = DraftPlaces::of<Form, Keys>(call);
  call.warps = kStepWarps;
  launch<recur_drafts_sm90<Form, Keys, Before>>(ctx, op, std::min(blocks, work), 32 * kStepWarps,
                                                places.bytes, call, static_cast<uint32_t>(slices),
                                                static_cast<uint32_t>(work), places);
}

template <Recurrence Form>
void recur_drafts(Context& ctx, const char* op, const RecurCall& call, int64_t) {
  if constexpr (kAdditive<Form>)
    if (call.a.read_before) return launch_drafts<Form, true, true>(ctx, op, call);
  if (Form == Recurrence::low_rank || call.a.gate_key)
    return launch_drafts<Form, true, false>(ctx, op, call);
  if constexpr (Form != Recurrence::low_rank) launch_drafts<Form, false, false>(ctx, op, call);
}

}  // namespace fovea::cuda
