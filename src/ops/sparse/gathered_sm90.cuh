// SPDX-License-Identifier: Apache-2.0
// Gathered rows times the block of keys that their lists name, on Hopper:
//   o_c = softmax(scores(q k_c')) v_c for one place c of each row's list (gathered_rows.cuh).
// A block is persistent.  A work item is a chunk of 128 rows and a query head: neighbours share a
// block of keys, so K and V come from L2.
//   Warp 3 is the scheduler, an item ahead.  Warp 0 copies K and V by TMA.  Warps 1 and 2 gather 64
// rows of Q each by cp.async.  Two consumer warpgroups own 64 rows each, Q in registers.
//   Mainloop: the steps of all items of a block are one stream.  S = Q K' of a step and O += P V of
// the one before are in flight together, across items too: an item's parts are stored under the
// first step of the next one.
//   Order of the ring: K0 K1 V0 K2 V1 ..., the last V of an item after the first K of the next.
//   V rows past the sequence's last key are zeroed where the tensor goes on: 0 times NaN is NaN.
//
//   | barrier   | who arrives              | who waits    | what it guards                     |
//   | ready     | scheduler                | warps 0 to 2 | an item, to be copied              |
//   | q full    | a lane of each gather    | consumers    | the item, its rows, Q              |
//   | q empty   | a lane of each consumer  | scheduler    | the same, to overwrite             |
//   | key full  | TMA                      | consumers    | a tile of K or V                   |
//   | key empty | a lane of each consumer  | warp 0       | the same, to overwrite             |
//   | named 1+n | warpgroup n              | itself       | zeroed rows of V                   |
#pragma once
#include "cuda/loop/attend_sm90.cuh"
#include "cuda/tile/copy.cuh"
#include "ops/sparse/gathered_rows.cuh"

namespace fovea::cuda {

template <int Dtype, int D, int E, int Stages>
struct GatheredShape90 : AttendShape90<Dtype, D, E, 2, kGatheredKeys, Stages> {
  static_assert(D % 64 == 0 && D <= 128 && E <= 128);
  static constexpr int Slots = 2, gather_warps = 2, lines = 64;  // lines: of a gather warp
};

// Where a tile of keys lies in the tensor.
struct KeyRowBox {
  int row, head, batch;
};

// Keys count within the sequence.  steps = 0: there are no more items.
struct GatheredItem {
  int64_t query, part;  // element offset of row 0 in q, first part of row 0
  int32_t steps, key;   // key: the first of the first tile
  int32_t keys, shift;  // of the sequence: keys, keys - rows
  int32_t whole_low, whole_high;
  int32_t first, count;  // entries
  KeyRowBox box;         // of the first tile
};

template <class Shape>
struct GatheredLayout90 : sm90::SharedLayout {
  int q = tiles(Shape::q_bytes, Shape::Slots), keys = tiles(Shape::stage_bytes, Shape::Stages),
      items = of<GatheredItem>(Shape::Slots), rows = of<int32_t>(Shape::Slots * Shape::BM),
      places = of<int32_t>(Shape::Slots * Shape::BM), ready = barriers(Shape::Slots),
      q_pipe = pipeline(Shape::Slots), key_pipe = pipeline(Shape::Stages);
};

template <class Shape>
struct GatheredShared90 {
  static constexpr GatheredLayout90<Shape> layout = GatheredLayout90<Shape>();
  static_assert(layout.bytes <= 227 * 1024);
  using QPipe = sm90::Pipeline<Shape::Slots>;
  using KeyPipe = sm90::Pipeline<Shape::Stages>;
  using QState = typename QPipe::State;
  using KeyState = typename KeyPipe::State;
  unsigned char* base;
  uint32_t at;

  __device__ explicit GatheredShared90(unsigned char* base)
      : base(base), at(shared_address(base)) {}
  __device__ uint32_t q(QState i) const { return at + layout.q + i.stage * Shape::q_bytes; }
  __device__ uint32_t keys(KeyState i) const {
    return at + layout.keys + i.stage * Shape::stage_bytes;
  }
  __device__ GatheredItem& item(QState i) const {
    return reinterpret_cast<GatheredItem*>(base + layout.items)[i.stage];
  }
  // Of each line of the tile: its row in the sequence, 0 for none.
  __device__ int32_t* rows(QState i) const {
    return reinterpret_cast<int32_t*>(base + layout.rows) + i.stage * Shape::BM;
  }
  // Its part, from the item's first on; -1: there is no row.
  __device__ int32_t* places(QState i) const {
    return reinterpret_cast<int32_t*>(base + layout.places) + i.stage * Shape::BM;
  }
  __device__ uint32_t ready(QState i) const { return at + layout.ready + i.stage * 8; }
  __device__ QPipe q_pipe() const { return {at + layout.q_pipe}; }
  __device__ KeyPipe key_pipe() const { return {at + layout.key_pipe}; }
  __device__ void init() const {
    constexpr int kWarps = 4 * Shape::Groups;
    for (QState i; i.phase == 0; i.next()) sm90::barrier_init(ready(i), 1);
    q_pipe().init(Shape::gather_warps, kWarps), key_pipe().init(1, kWarps);
    sm90::barrier_init_done();
  }
};

template <class Shape>
class GatheredProducer90 {
  using Shared = GatheredShared90<Shape>;
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;

 public:
  __device__ GatheredProducer90(const Attend& a, const GatheredWork90& work, const Shared& shared)
      : a(a), work(work), shared(shared), lane(threadIdx.x % 32) {}

  __device__ __forceinline__ void run(int warp) {
    if (warp == 0)
      copy_keys();
    else if (warp <= Shape::gather_warps)
      gather_rows((warp - 1) * Shape::lines);
    else
      schedule_items();
  }

 private:
  __device__ __forceinline__ void schedule_items() const {
    const GatheredRows& rows = work.rows;
    const GatherPhase& phase = work.phase;
    const int first = rows.base[phase.unit * rows.blocks],
              end = rows.base[(phase.unit + phase.units) * rows.blocks];
    typename Shared::QState slot;
    for (TileScheduler items(work.schedule, true); !items.done(); items.next(true)) {
      const int place = *items / phase.heads, head = phase.head + *items % phase.heads;
      if (first + place >= end) {  // so are all later items
        if (lane == 0) work.schedule.leave();
        break;
      }
      const RowChunk chunk = rows.chunk[first + place];
      if (!chunk.count) continue;
      shared.q_pipe().acquire(slot);
      if (lane == 0) {
        shared.item(slot) = item_of(chunk, head);
        sm90::barrier_arrive(shared.ready(slot));
      }
      __syncwarp();
      slot.next();
    }
    shared.q_pipe().acquire(slot);
    if (lane != 0) return;
    shared.item(slot).steps = 0;
    sm90::barrier_arrive(shared.ready(slot));
  }
  __device__ __forceinline__ GatheredItem item_of(const RowChunk& chunk, int head) const {
    const GatheredRows& rows = work.rows;
    const int unit = chunk.list / rows.blocks, r = unit / rows.x;
    const int h = (unit - r * rows.x) * rows.group + head;
    const Sequence seq = a.sequences[r];
    GatheredItem item;
    item.query = seq.batch * a.q.stride[0] + seq.row_begin * a.q.stride[1] + h * a.q.stride[2];
    item.part = rows.first_part(work.phase, unit, head);
    item.steps = (chunk.high - chunk.low + Shape::BN - 1) / Shape::BN, item.key = chunk.low;
    item.keys = static_cast<int>(seq.keys), item.shift = static_cast<int>(seq.keys - seq.rows);
    item.whole_low = chunk.whole_low, item.whole_high = chunk.whole_high;
    item.first = chunk.first, item.count = chunk.count;
    item.box = {static_cast<int>(seq.key_begin) + chunk.low,
                h / (static_cast<int>(a.h) / static_cast<int>(a.g)),
                static_cast<int>(seq.key_batch)};
    return item;
  }

  // An item's consumers end after all of its tiles are copied, so it is not read too late here.
  __device__ __forceinline__ void copy_keys() {
    for (typename Shared::QState slot;; slot.next()) {
      sm90::barrier_wait(shared.ready(slot), slot.phase);
      const int steps = shared.item(slot).steps;
      if (steps == 0) return push_value();
      KeyRowBox box = shared.item(slot).box;
#pragma unroll 1
      for (int n = 0; n < steps; ++n, box.row += Shape::BN) {
        push<TileK>(work.maps.k, box);
        push_value();
        value = box;
      }
    }
  }
  template <class Tile>
  __device__ __forceinline__ void push(const CUtensorMap& map, const KeyRowBox& box) {
    shared.key_pipe().acquire(at);
    if (lane == 0)
      sm90::tma_load_tile<Tile>(shared.keys(at), map, shared.key_pipe().full(at), box.row, box.head,
                                box.batch);
    __syncwarp();
    at.next();
  }
  // The V tile of the last step whose K was copied.
  __device__ __forceinline__ void push_value() {
    if (value.batch >= 0) push<TileV>(work.maps.v, value);
    value.batch = -1;
  }

  // Lines [from, from + 64) of each item's tile.  Lines without a row, and columns past d, are 0.
  __device__ __forceinline__ void gather_rows(int from) const {
    constexpr int kLanes = Shape::D / kChunk, kEach = 32 / kLanes;  // lanes of a line
    const auto* const q = static_cast<const uint16_t*>(a.q.data);
    const int chunk = lane % kLanes;
    const bool column = chunk * kChunk < a.d;
    for (typename Shared::QState slot;; slot.next()) {
      sm90::barrier_wait(shared.ready(slot), slot.phase);
      const GatheredItem& item = shared.item(slot);
      if (item.steps == 0) {
        if (lane == 0) shared.q_pipe().arrive(slot);
        return;
      }
      const uint16_t* const head = q + item.query + chunk * kChunk;
#pragma unroll 1
      for (int line = from; line < from + Shape::lines; line += 32) {
        const int row = find_row(slot, item, line + lane);
#pragma unroll 8
        for (int i = 0; i < 32; i += kEach) {
          const int m = i + lane / kLanes, named = __shfl_sync(~0u, row, m);
          const bool valid = named >= 0 && column;
          copy_async(shared.q(slot) + TileQ::at(line + m, chunk),
                     valid ? head + named * a.q.stride[1] : q, valid);
        }
      }
      copy_commit();
      copy_wait<0>();
      __syncwarp();
      if (lane == 0) shared.q_pipe().arrive(slot);
    }
  }
  // The row of a line, -1 for none, which consumers read too.
  __device__ __forceinline__ int find_row(typename Shared::QState slot, const GatheredItem& item,
                                          int line) const {
    const ListTranspose& order = work.rows.order;
    const bool there = line < item.count;
    const uint64_t entry = there ? work.rows.entries[item.first + line] : 0;
    const int row = there ? static_cast<int>(order.row_of(entry)) : -1;
    shared.rows(slot)[line] = max(row, 0);
    shared.places(slot)[line] =
        there ? row * work.rows.keep + static_cast<int>(order.place_of(entry)) : -1;
    return row;
  }

  const Attend& a;
  const GatheredWork90& work;
  const Shared& shared;
  const int lane;
  typename Shared::KeyState at;
  KeyRowBox value{0, 0, -1};  // batch < 0: none
};

// A consumer warpgroup: 64 lines of an item.
template <class Shape>
class GatheredConsumer90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BN = Shape::BN;
  using Shared = GatheredShared90<Shape>;
  using QState = typename Shared::QState;
  using KeyState = typename Shared::KeyState;
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;

 public:
  // A separate object: an object stays in memory until the loops over its arrays are unrolled.
  struct Fragments {
    float x[1][BN / 8][4], o[1][E / 8][4], alpha[1][2];
    uint32_t q[D / 16][4], p[1][BN / 16][4];
  };

  __device__ __forceinline__ GatheredConsumer90(const Attend& a, const GatheredRows& rows,
                                                int group, const Shared& shared, Fragments& f)
      : a(a),
        rows(rows),
        shared(shared),
        group(group),
        lane(threadIdx.x % 32),
        line(group * 64 + threadIdx.x / 32 % 4 * 16),
        factor(a.score.scale * kLog2E),
        x(f.x),
        o(f.o),
        alpha(f.alpha),
        q(f.q),
        p(f.p) {}

  __device__ __forceinline__ void run() {
    if (!begin()) return;
    const KeyState k = at;
    at.next();
    issue_scores(k);
    sm90::wait<0>();
    sm90::pin(x[0]);
    shared.key_pipe().release(k);
    weigh();
    pack_operand<Dtype>(p, x);
#pragma unroll 1
    for (;;) {
      if (left > 0) {
        step<false>();
      } else {
        stored = q_at;
        q_at.next();
        if (!begin()) break;
        step<true>();
      }
    }
    zero_tail(at);
    sm90::fence();
    issue_values(at);
    sm90::wait<0>();
    sm90::pin(o[0]);
    store(state);
  }

 private:
  // The item at q_at; false: there is none.
  __device__ __forceinline__ bool begin() {
    shared.q_pipe().wait(q_at);
    const GatheredItem& item = shared.item(q_at);
    left = sm90::uniform(item.steps), key = sm90::uniform(item.key);
    if (left == 0) return false;
    const int left_window = WindowMask::most(a.mask.window.left),
              right_window = WindowMask::most(a.mask.window.right);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int position = shared.rows(q_at)[line + half * 8 + lane / 4] + item.shift;
      high[half] = right_window > 0 ? min(position + right_window, item.keys) : item.keys;
      low[half] = left_window > 0 ? position - left_window + 1 : 0;
    }
    const uint32_t from = shared.q(q_at) + TileQ::at(line + outer_row(lane), outer_chunk(lane));
#pragma unroll
    for (int n = 0; n < D / 16; ++n) load_matrices(q[n], TileQ::pair(from, n));
    return true;
  }

  __device__ __forceinline__ void issue_scores(KeyState k) {
    shared.key_pipe().wait(k);
    sm90::fence();
    sm90::product_rows<Dtype, TileK>(x[0], q, sm90::descriptor(shared.keys(k)));
    sm90::commit();
  }
  __device__ __forceinline__ void issue_values(KeyState v) {
    shared.key_pipe().wait(v);
    sm90::product_columns<Dtype>(o[0], p[0], sm90::descriptor(shared.keys(v), TileV::panel_bytes),
                                 more);
    sm90::commit();
    more = true;
  }
  // Scores become weights; the item's next step is `key`.
  __device__ __forceinline__ void weigh() {
    const GatheredItem& item = shared.item(q_at);
    if (key < item.whole_low || key + BN > item.whole_high) {
      const int column = key + lane % 4 * 2;
#pragma unroll
      for (int half = 0; half < 2; ++half)
        hide_unseen(x[0], half,
                    SeenKeys<int>{INT_MIN, low[half] - column, high[half] - column, INT_MIN});
    }
    tail = sm90::uniform(min(item.keys - key, BN));
    state.weigh(x, alpha, factor);
    key += BN, --left;
  }
  // Before V of the step that was weighed last.
  __device__ __forceinline__ void zero_tail(KeyState v) {
    if (tail < BN) zero_values<Shape>(tail, shared, v, group);
  }
  // S of this step, in flight with O of the one before; Next: which ends another item.
  template <bool Next>
  __device__ __forceinline__ void step() {
    const KeyState k = at;
    at.next();
    const KeyState v = at;
    at.next();
    zero_tail(v);
    issue_scores(k);
    issue_values(v);
    sm90::wait<1>();
    sm90::pin(x[0]);
    shared.key_pipe().release(k);
    const OnlineSoftmax<1> before = state;
    if constexpr (Next) state = OnlineSoftmax<1>();
    weigh();
    sm90::wait<0>();
    sm90::pin(o[0]);
    shared.key_pipe().release(v);
    if constexpr (Next) {
      store(before);
      __syncwarp();
      shared.q_pipe().release(stored);
      more = false;
    }
    pack_operand<Dtype>(p, x);
    if constexpr (!Next) state.rescale_o(o, alpha);
  }

  // The power of two that takes the row's largest o times `inverse` below 2^15.
  __device__ __forceinline__ int exponent_of(int half, float inverse) const {
    float most = 0.f;
#pragma unroll
    for (int j = 0; j < E / 8; ++j)
      most = fmaxf(most, fmaxf(fabsf(o[0][j][2 * half]), fabsf(o[0][j][2 * half + 1])));
    most = quad_max(most);
    if (most == -kNegativeInfinity) {  // the largest that is finite
      most = 0.f;
#pragma unroll
      for (int j = 0; j < E / 8; ++j)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c)
          if (const float y = fabsf(o[0][j][c]); y < -kNegativeInfinity) most = fmaxf(most, y);
      most = quad_max(most);
    }
    const int exponent = static_cast<int>(__float_as_uint(most * inverse) >> 23) - 127;
    return max(min(14 - exponent, 100), -120);
  }
  // The parts of the item at `stored`.
  __device__ __forceinline__ void store(const OnlineSoftmax<1>& of) const {
    const GatheredItem& item = shared.item(stored);
    const int width = static_cast<int>(a.e);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int place = shared.places(stored)[line + half * 8 + lane / 4];
      const float sum = of.total(0, half), top = of.top(0, half, factor);
      const float inverse = sum == 0.f ? 0.f : __fdividef(1.f, sum);
      const int64_t at = item.part + place;
      float unit = 1.f;
      if (rows.half) {
        const int exponent = exponent_of(half, inverse);
        unit = __uint_as_float(static_cast<uint32_t>(127 - exponent) << 23);
        const float scale = __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
        store_row<FOVEA_F16>(place < 0 ? nullptr : static_cast<uint16_t*>(rows.o) + at * a.e, width,
                             o[0], half, inverse * scale);
      } else if (place >= 0) {
        store_wide(static_cast<float*>(rows.o) + at * a.e, width, o[0], half, inverse);
      }
      if (place >= 0 && lane % 4 == 0)
        rows.stats[at] = make_float2(sum == 0.f ? kNegativeInfinity : top + __log2f(sum), unit);
    }
  }

  const Attend& a;
  const GatheredRows& rows;
  const Shared& shared;
  const int group, lane, line;  // line: the warp's first
  const float factor;
  QState q_at, stored;  // stored: the item that o belongs to, where q_at is another
  KeyState at;
  OnlineSoftmax<1> state;
  int left = 0, key = 0, tail = BN;  // tail: rows of V that are keys
  int low[2], high[2];               // keys that the lane's rows see
  bool more = false;                 // o has values
  float (&x)[1][BN / 8][4], (&o)[1][E / 8][4], (&alpha)[1][2];
  uint32_t (&q)[D / 16][4], (&p)[1][BN / 16][4];
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    gathered_rows_sm90(const __grid_constant__ Attend a,
                       const __grid_constant__ GatheredWork90 work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const GatheredShared90<Shape> shared(memory);
  const int warp = sm90::uniform(threadIdx.x / 32);
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (warp < 4) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    GatheredProducer90<Shape>(a, work, shared).run(warp);
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    typename GatheredConsumer90<Shape>::Fragments fragments;
    GatheredConsumer90<Shape>(a, work.rows, warp / 4 - 1, shared, fragments).run();
  }
}

}  // namespace fovea::cuda
