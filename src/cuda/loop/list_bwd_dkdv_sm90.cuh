// SPDX-License-Identifier: Apache-2.0
// dk and dv of the gradient over lists on Hopper, by keys:
//   p' = exp(k q' - lse),  dv += p' dout,  ds' = p' (v dout' - delta),  dk += ds' q
// A consumer owns 64 keys of a sequence and key head.  It takes the row tiles whose lists name
// them: all heads of the group one after another, list rows ascending, each as often as it names
// the keys.  Scores are transposed, so p' and ds' are register operands.
// Gathered row tiles: 64 / G rows, which TMA copies one by one.  Where a list ends in the middle,
// its first row stands there again with p = 0.
// Shared memory, barriers: list_bwd_sm90.cuh.
#pragma once
#include "cuda/loop/backward_dq_sm90.cuh"
#include "cuda/loop/list_bwd_sm90.cuh"

namespace fovea::cuda {

struct ListKeys90 {
  ListItems90 items;
  ListStats stats;
  const int32_t* row;    // list rows, of each list head and block of keys ascending
  const int32_t* start;  // of each block's; gathered: they lie at padded()
  // Gathered, G < 4: of each list row's heads, as `row`; for each key head of a list head.
  const float *lse, *delta;
  int64_t floats;         // of a key head
  int32_t sharing;        // key heads of a list head
  int32_t heads, blocks;  // of a sequence: list heads; of a list head: blocks of keys
  int32_t group;          // query heads of a list head
  int32_t row_tiles;      // of a list row; packed: 1
  int32_t block_keys;
};

template <class Shape>
class ListKeysProducer90 : ListProducer90<Shape> {
  using Base = ListProducer90<Shape>;
  using Base::a, Base::maps, Base::shared, Base::lane, Base::own_at, Base::at, Base::raw_phase;
  using typename Base::Shared, typename Base::Tile;
  static constexpr int kKeys = kListLines * Shape::sharing;

 public:
  __device__ ListKeysProducer90(const AttendBackward& b, const BackwardMaps& maps,
                                const ListKeys90& work, const Shared& shared)
      : Base(b, maps, work.items, work.stats, shared), work(work) {}

  __device__ __forceinline__ void run() {
    this->each_item([&](int owner, int tile) {
      ListItem90& item = this->place(owner, tile * kKeys);
      if (item.begin >= item.seq.keys) return;
      if (lane == 0) {
        const int keys = static_cast<int>(item.seq.keys);
        const PlainWindow::Span seen =
            PlainWindow(a.mask.window, static_cast<int>(item.seq.rows), keys)
                .rows_of(item.begin, min(item.begin + kKeys, keys));
        item.low = seen.low / kListLines;
        item.high = (seen.high + kListLines - 1) / kListLines;
      }
      __syncwarp();
      load_own(item);
      if constexpr (Shape::Gathered)
        gather(item);
      else
        walk(item);
      own_at.next();
    });
  }

 private:
  // The list that names the keys of the item for query head h.
  __device__ int64_t list_of(const ListItem90& item, int h) const {
    return int64_t{item.r * work.heads + h / work.group} * work.blocks +
           item.begin / work.block_keys;
  }
  __device__ __forceinline__ void load_own(const ListItem90& item) const {
    if (lane != 0) return;
    const uint32_t full = shared.own_pipe().full(own_at);
    sm90::barrier_expect(full, 2 * Shape::sharing * Tile::bytes);
    const int row = static_cast<int>(item.seq.key_begin) + item.begin,
              batch = static_cast<int>(item.seq.key_batch);
#pragma unroll 1
    for (int i = 0; i < Shape::sharing; ++i) {
      const int consumer = Shape::sharing > 1 ? i : shared.ring;
      sm90::tma_load_panels<Tile>(shared.own(consumer, false), maps.k, full, row + i * kListLines,
                                  item.owner, batch);
      sm90::tma_load_panels<Tile>(shared.own(consumer, true), maps.v, full, row + i * kListLines,
                                  item.owner, batch);
    }
  }

  // Row tiles of the heads of a group, one head after another.
  struct Walk {
    int head, at, end;   // entries of the head: the next, the end
    int mine;            // of entries 32 n to 32 n + 31, the next among them: the lane's list row
    int tile, tile_end;  // of the entry before
  };
  // The next is walk.tile of walk.head; false: there is none.
  __device__ __forceinline__ bool next(const ListItem90& item, Walk& walk) const {
    while (++walk.tile >= walk.tile_end) {
      bool fresh = walk.at % 32 == 0;
      while (walk.at == walk.end) {
        if (++walk.head == (item.owner + 1) * work.items.group) return false;
        const int32_t* start = work.start + list_of(item, walk.head);
        walk.at = start[0], walk.end = start[1], fresh = true;
      }
      if (fresh) {
        const int from = walk.at / 32 * 32 + lane;
        walk.mine = from < walk.end ? work.row[from] : 0;
      }
      const int first = __shfl_sync(~0u, walk.mine, walk.at++ % 32) * work.row_tiles;
      walk.tile = max(first, item.low) - 1;
      walk.tile_end = min(first + work.row_tiles, item.high);
    }
    return true;
  }
  // A tile is copied once it is known whether another follows.
  __device__ __forceinline__ void walk(const ListItem90& item) {
    Walk walk{item.owner * work.items.group - 1, 0, 0, 0, 0, 0};
    bool more = next(item, walk);
    if (!more) return this->push_none();
#pragma unroll 1
    do {
      const int head = walk.head, tile = walk.tile;
      more = next(item, walk);
      push(item, head, tile, more ? 0 : ListStep90::last);
    } while (more);
  }
  // Row tile m of head h.
  __device__ __forceinline__ void push(const ListItem90& item, int h, int m, int flags) {
    const Sequence& seq = item.seq;
    const int begin = m * kListLines, row = static_cast<int>(seq.row_begin) + begin,
              batch = static_cast<int>(seq.batch);
    // Behind them the tensor's rows are not the sequence's.
    const FirstRows present{seq.row_begin + seq.rows < a.s ? static_cast<int>(seq.rows) - begin
                                                           : kListLines};
    const int64_t stats = item.stats + h * work.stats.by_head + begin;
    const uint32_t full = shared.first_pipe().full(at);
    shared.first_pipe().acquire(at);
    if (lane == 0) shared.step(at).begin = begin, shared.step(at).flags = flags;
    copy_present<Tile, kListLines>(shared.first(at), maps.q, full, shared.raw(), raw_phase, row, h,
                                   batch, present, 2 * kListLines * 4);
    if (lane == 0) {
      const uint32_t to = shared.base + shared.stats(at);
      sm90::tma_load(to, work.stats.lse + stats, kListLines * 4, full);
      sm90::tma_load(to + kListLines * 4, work.stats.delta + stats, kListLines * 4, full);
    }
    shared.second_pipe().acquire(at);
    copy_present<Tile, kListLines>(shared.second(at), maps.dout, shared.second_pipe().full(at),
                                   shared.raw(), raw_phase, row, h, batch, present, 0);
    at.next();
  }

  // Row tiles of some rows of a group.
  __device__ __forceinline__ void gather(const ListItem90& item) {
    const int heads = work.items.group, each = kListLines / heads, head = item.owner * heads;
    const int64_t list = list_of(item, head);
    const int32_t* start = work.start + list;
    int left = start[1] - start[0], from = static_cast<int>(padded(start[0], list));
    if (left <= 0) return this->push_none();
#pragma unroll 1
    for (; left > 0; left -= each, from += each)
      push_gathered(item, from, min(left, each), left > each ? 0 : ListStep90::last);
  }
  // The rows from `from` on, `count` of which count.
  __device__ __forceinline__ void push_gathered(const ListItem90& item, int from, int count,
                                                int flags) {
    const int heads = work.items.group, each = kListLines / heads, head = item.owner * heads;
    const PlainPairs pairs(a, item.seq, 0, 0);
    bool full = count == each;
#pragma unroll 1
    for (int i = lane; i < each; i += 32) {
      const int row = work.row[from + i];
      full = full && pairs.full(row, row + 1, item.begin, item.begin + kKeys);
    }
    if (__all_sync(~0u, full)) flags |= ListStep90::full;
    shared.first_pipe().acquire(at);
    ListStep90& step = shared.step(at);
#pragma unroll 1
    for (int i = lane; i < each; i += 32) step.row[i] = work.row[from + i];
    if (heads >= 4 && count < each) hide(count);
    __syncwarp();
    const uint32_t ready = shared.first_pipe().full(at);
    if (lane == 0) {
      step.flags = flags;
      sm90::barrier_expect(ready, Tile::bytes + 2 * (heads < 4 ? kListLines : count * heads) * 4);
    }
    __syncwarp();
    this->gather_rows(shared.first(at), maps.q, ready, work.row + from, item, head);
    copy_stats(item, from, count, head, ready);
    shared.second_pipe().acquire(at);
    if (lane == 0) sm90::barrier_expect(shared.second_pipe().full(at), Tile::bytes);
    __syncwarp();
    this->gather_rows(shared.second(at), maps.dout, shared.second_pipe().full(at), work.row + from,
                      item, head);
    at.next();
  }
  // Lines of list rows from `count` on: p is 0.
  __device__ __forceinline__ void hide(int count) const {
    float* lse = reinterpret_cast<float*>(shared.memory + shared.stats(at));
#pragma unroll 1
    for (int i = count * work.items.group + lane; i < kListLines; i += 32)
      lse[i] = -kNegativeInfinity, lse[i + kListLines] = 0.f;
    sm90::fence_shared();  // TMA writes there next
  }
  // TMA copies no less than four floats: the statistics of fewer heads lie in the order of the
  // list.
  __device__ __forceinline__ void copy_stats(const ListItem90& item, int from, int count, int head,
                                             uint32_t ready) const {
    const int heads = work.items.group;
    const uint32_t to = shared.base + shared.stats(at);
    if (heads < 4) {
      if (lane != 0) return;
      const int64_t of = item.owner % work.sharing * work.floats + int64_t{from} * heads;
      sm90::tma_load(to, work.lse + of, kListLines * 4, ready);
      sm90::tma_load(to + kListLines * 4, work.delta + of, kListLines * 4, ready);
      return;
    }
#pragma unroll 1
    for (int i = lane; i < count; i += 32) {
      const int64_t of = item.stats + work.row[from + i] * work.stats.by_row + head;
      const uint32_t line = to + i * heads * 4;
      sm90::tma_load(line, work.stats.lse + of, heads * 4, ready);
      sm90::tma_load(line + kListLines * 4, work.stats.delta + of, heads * 4, ready);
    }
  }

  const ListKeys90& work;
};

// A consumer warpgroup: 64 keys of an item.
template <class Shape>
class ListKeysConsumer90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, BM = kListLines;
  using Tile = typename Shape::Tile;
  using Shared = ListShared90<Shape>;
  using State = typename Shared::State;

 public:
  // A separate object: an object stays in memory until the loops over its arrays are unrolled.
  struct Fragments {
    float dk[D / 8][4], dv[D / 8][4], x[1][BM / 8][4], dp[1][BM / 8][4];
  };

  __device__ __forceinline__ ListKeysConsumer90(const AttendBackward& b, int shift,
                                                const Shared& shared, int consumer, Fragments& f)
      : b(b),
        shared(shared),
        consumer(consumer),
        lane(threadIdx.x % 32),
        warp(sm90::uniform(threadIdx.x / 32) % 4),
        shift(shift),
        dk(f.dk),
        dv(f.dv),
        x(f.x),
        dp(f.dp) {}

  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (;;) {
      shared.own_pipe().wait(own_at);
      const ListItem90& item = shared.item(own_at);
      if (item.r < 0) return;
      sum(item);
      own_at.next();
    }
  }

 private:
  __device__ __forceinline__ void sum(const ListItem90& item) {
    const PlainPairs pairs(b.forward, item.seq, 0, 0);
    const int begin = item.begin + (Shape::sharing > 1 ? consumer * kListLines : 0);
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) dk[j][c] = dv[j][c] = 0.f;
    shared.first_pipe().wait(at);
    if (shared.step(at).flags & ListStep90::none) {
      shared.second_pipe().wait(at);
      __syncwarp();
      shared.first_pipe().release(at), shared.second_pipe().release(at);
      shared.own_pipe().release(own_at);
      at.next();
    } else {
      issue_scores(at);
      sm90::wait<0>();
      sm90::pin(x[0]);
      bool last;
#pragma unroll 1
      do {
        last = shared.step(at).flags & ListStep90::last;
        take(pairs, begin, !last);
      } while (!last);
    }
    const Attend& a = b.forward;
    const int own = begin + warp * 16 + lane / 4;
    store_keys<Dtype>(b.dk, item.seq, item.owner, own, a.d, dk, a.score.scale);
    store_keys<Dtype>(b.dv, item.seq, item.owner, own, a.e, dv, 1.f);
  }

  __device__ __forceinline__ void issue_scores(const State& of) {
    sm90::fence();
    sm90::product_rows<Dtype, D, Tile, Tile>(
        x[0], sm90::unhoisted(sm90::descriptor(shared.own(consumer, false))),
        sm90::descriptor(shared.first(of)));
    sm90::commit();
  }
  __device__ __forceinline__ void issue_dp() {
    sm90::fence();
    sm90::product_rows<Dtype, D, Tile, Tile>(
        dp[0], sm90::unhoisted(sm90::descriptor(shared.own(consumer, true))),
        sm90::descriptor(shared.second(at)));
    sm90::commit();
  }

  // The lane's rows 2 t, 2 t + 1 of each 8; delta: BM / 2 on.
  __device__ __forceinline__ const float2* stats() const {
    return reinterpret_cast<const float2*>(shared.memory + shared.stats(at)) + lane % 4;
  }
  template <bool All>
  __device__ __forceinline__ void weigh(const PlainPairs& pairs, const ListStep90& step, int own) {
    const float2* lse = stats();
#pragma unroll
    for (int n = 0; n < BM / 8; ++n) {
      const float2 of = lse[4 * n];
      int i[2] = {};
      if constexpr (!All) {  // braces: nvcc takes a pragma for the statement
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int line = n * 8 + lane % 4 * 2 + c;
          i[c] = Shape::Gathered ? step.row[line >> shift] : step.begin + line;
        }
      }
#pragma unroll
      for (int c = 0; c < 4; ++c)
        x[0][n][c] =
            list_weight<All>(pairs, x[0][n][c], c & 1 ? of.y : of.x, i[c & 1], own + c / 2 * 8);
    }
  }
  template <bool All>
  __device__ __forceinline__ void make_ds() {
    const float2* delta = stats() + BM / 2;
#pragma unroll
    for (int n = 0; n < BM / 8; ++n) {
      const float2 of = delta[4 * n];
#pragma unroll
      for (int c = 0; c < 4; ++c)
        dp[0][n][c] = list_dscore<All>(x[0][n][c], dp[0][n][c], c & 1 ? of.y : of.x);
    }
  }

  // A tile whose scores are there, and the scores of the next.  After the last tile these are of
  // whatever the stage and the own tiles hold, and are not read.
  __device__ __forceinline__ void take(const PlainPairs& pairs, int begin, bool more) {
    const ListStep90& step = shared.step(at);
    const bool full = Shape::Gathered ? step.flags & ListStep90::full
                                      : pairs.full(step.begin, step.begin + BM, begin, begin + BM);
    const int own = begin + warp * 16 + lane / 4;
    uint32_t p[1][BM / 16][4], ds[1][BM / 16][4];
    State next = at;
    next.next();
    shared.second_pipe().wait(at);
    issue_dp();
    full ? weigh<true>(pairs, step, own) : weigh<false>(pairs, step, own);
    sm90::wait<0>();
    sm90::pin(dp[0]);
    if (!more) shared.own_pipe().release(own_at);
    full ? make_ds<true>() : make_ds<false>();
    pack_operand<Dtype>(p, x);
    pack_operand<Dtype>(ds, dp);
    sm90::fence();
    sm90::product_columns<Dtype>(dv, p[0], sm90::descriptor(shared.second(at), Tile::panel_bytes),
                                 true);
    sm90::commit();
    sm90::product_columns<Dtype>(dk, ds[0], sm90::descriptor(shared.first(at), Tile::panel_bytes),
                                 true);
    sm90::commit();
    if (more) shared.first_pipe().wait(next);
    issue_scores(next);
    sm90::wait<2>();
    sm90::pin(dv);
    shared.second_pipe().release(at);
    sm90::wait<1>();
    sm90::pin(dk);
    shared.first_pipe().release(at);
    sm90::wait<0>();
    sm90::pin(x[0]);
    at = next;
  }

  const AttendBackward& b;
  const Shared& shared;
  const int consumer, lane, warp, shift;  // a row of a gathered tile has 1 << shift lines
  typename Shared::OwnState own_at;
  State at;
  float (&dk)[D / 8][4], (&dv)[D / 8][4];
  float (&x)[1][BM / 8][4], (&dp)[1][BM / 8][4];  // scores, then p; dp, then ds
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    list_bwd_dkdv_sm90(const __grid_constant__ AttendBackward b,
                       const __grid_constant__ BackwardMaps maps,
                       const __grid_constant__ ListKeys90 work) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const int warp = sm90::uniform(threadIdx.x / 32), group = sm90::uniform(threadIdx.x / 128) - 1;
  if (threadIdx.x == 0) {
    for (int ring = 0; ring < Shape::Rings; ++ring) ListShared90<Shape>(memory, ring).init();
    sm90::barrier_init_done();
  }
  __syncthreads();
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (warp >= Shape::Rings) return;
    const ListShared90<Shape> shared(memory, warp);
    ListKeysProducer90<Shape>(b, maps, work, shared).run();
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    const ListShared90<Shape> shared(memory, Shape::Rings > 1 ? group : 0);
    typename ListKeysConsumer90<Shape>::Fragments fragments;
    ListKeysConsumer90<Shape>(b, work.items.shift, shared, group, fragments).run();
  }
}

}  // namespace fovea::cuda
