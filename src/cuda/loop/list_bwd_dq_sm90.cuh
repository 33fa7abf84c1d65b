// SPDX-License-Identifier: Apache-2.0
// dq of the gradient over lists on Hopper, by rows:
//   p = exp(q k' - lse),  ds = p (dout v' - delta),  dq += ds k
// A consumer owns 64 lines, whose q and dout are register operands: the next item's are copied
// meanwhile.  Rows and packed lines take the key tiles of the span of their row tile
// (tile_lists.cuh), ascending.  A union's tile is hidden from the rows that do not have it by an
// lse of +inf.
//   Gathered lines are of lists of one row whose heads are too few for a tile.  A ring takes a
//   chunk
// of the rows that name a block of keys, and the key tiles of that block.  The sums are a part of
// dq for each place of a list, in f32; dq is their ordered sum.
// K rows past the last are zeroed where the tensor goes on: NaN times a ds of 0 would be NaN.
// Shared memory, barriers: list_bwd_sm90.cuh.
#pragma once
#include "cuda/loop/list_bwd_sm90.cuh"
#include "cuda/loop/tile_lists.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

// Chunks of gathered rows: kListPad / G of those that name a block of keys.
struct ListChunks90 {
  const int32_t* row;   // list rows, at padded()
  const int32_t* slot;  // their places: row of the tensor times `keep` and place; -1: repeats a row
  const int32_t* list;  // of a chunk: the block of keys, over all list heads; -1: none
  float* sums;          // (slot, h, d)
  int32_t heads, blocks, block_keys;
};

struct ListRows90 {
  ListItems90 items;
  ListStats stats;
  TileLists lists;
  int32_t rows;  // of a row tile
  ListChunks90 chunks;
};

template <class Shape>
class ListRowsProducer90 : ListProducer90<Shape> {
  using Base = ListProducer90<Shape>;
  using Base::a, Base::maps, Base::shared, Base::lane, Base::own_at, Base::at, Base::raw_phase;
  using typename Base::Shared, typename Base::Tile;

 public:
  __device__ ListRowsProducer90(const AttendBackward& b, const BackwardMaps& maps,
                                const ListRows90& work, const Shared& shared)
      : Base(b, maps, work.items, work.stats, shared), work(work) {}

  __device__ __forceinline__ void run() {
    this->each_item([&](int owner, int tile) {
      if constexpr (Shape::Gathered) {
        const int list = work.chunks.list[tile];
        if (list < 0) return;
        const int over = list / work.chunks.blocks, r = over / work.chunks.heads;
        const ListItem90& item =
            this->place(r, (over - r * work.chunks.heads) * work.items.owners + owner,
                        tile * (kListPad / work.items.group));
        gather_own(item);
        walk_block(item, list - over * work.chunks.blocks);
      } else {
        const ListItem90& item = this->place(owner, tile * work.rows);
        if (item.begin >= item.seq.rows) return;
        load_own(item);
        walk(item, tile);
      }
      own_at.next();
    });
  }

 private:
  __device__ __forceinline__ void load_own(const ListItem90& item) const {
    if (lane != 0) return;
    const uint32_t full = shared.own_pipe().full(own_at);
    const int row = static_cast<int>(item.seq.row_begin) + item.begin,
              batch = static_cast<int>(item.seq.batch);
    if constexpr (Shape::Packed) {
      const uint32_t q = shared.own(shared.ring, false), dout = shared.own(shared.ring, true);
      sm90::barrier_expect(full, 2 * Tile::panels * work.rows * work.items.group * kPanelRowBytes);
#pragma unroll 1
      for (int panel = 0; panel < Tile::panels; ++panel) {  // axes: column, head, row, batch
        sm90::tma_load_box(q + panel * Tile::panel_bytes, maps.q, full, panel * 64,
                           item.owner * work.items.group, row, batch);
        sm90::tma_load_box(dout + panel * Tile::panel_bytes, maps.dout, full, panel * 64,
                           item.owner * work.items.group, row, batch);
      }
    } else {
      sm90::barrier_expect(full, 2 * Shape::sharing * Tile::bytes);
#pragma unroll 1
      for (int i = 0; i < Shape::sharing; ++i) {
        const int consumer = Shape::sharing > 1 ? i : shared.ring;
        sm90::tma_load_panels<Tile>(shared.own(consumer, false), maps.q, full, row + i * kListLines,
                                    item.owner, batch);
        sm90::tma_load_panels<Tile>(shared.own(consumer, true), maps.dout, full,
                                    row + i * kListLines, item.owner, batch);
      }
    }
  }

  __device__ __forceinline__ void gather_own(const ListItem90& item) const {
    const uint32_t full = shared.own_pipe().full(own_at);
    if (lane == 0) sm90::barrier_expect(full, 2 * Shape::sharing * Tile::bytes);
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < Shape::sharing; ++i) {
      const int32_t* row = work.chunks.row + item.begin + i * (kListLines / work.items.group);
      const int head = item.owner * work.items.group;
      this->gather_rows(shared.own(i, false), maps.q, full, row, item, head);
      this->gather_rows(shared.own(i, true), maps.dout, full, row, item, head);
    }
  }
  // The key tiles of a block, as far as some row of the chunk sees them.
  __device__ __forceinline__ void walk_block(const ListItem90& item, int block) {
    const int32_t* row = work.chunks.row + item.begin;
    // Rows ascend, but for those that repeat the list's first.
    int first = INT32_MAX, last = 0;
#pragma unroll 1
    for (int i = lane; i < kListPad / work.items.group; i += 32)
      first = min(first, row[i]), last = max(last, row[i]);
    first = __reduce_min_sync(~0u, first), last = __reduce_max_sync(~0u, last);
    const int rows = static_cast<int>(item.seq.rows), keys = static_cast<int>(item.seq.keys);
    const PlainWindow::Span seen = PlainWindow(a.mask.window, rows, keys).keys_of(first, last + 1);
    const PlainPairs pairs(a, item.seq, 0, 0);
    const int low = max(block * work.chunks.block_keys, seen.low / kListLines * kListLines),
              high = min((block + 1) * work.chunks.block_keys, seen.high);
    if (low >= high) return this->push_none();
#pragma unroll 1
    for (int key = low; key < high; key += kListLines) {
      const bool full = pairs.full(first, last + 1, key, key + kListLines);
      push(item, key / kListLines, 0,
           (full ? ListStep90::full : 0) | (key + kListLines >= high ? ListStep90::last : 0));
    }
  }

  __device__ __forceinline__ void walk(const ListItem90& item, int tile) {
    const TileLists& lists = work.lists;
    const int block = tile / lists.row_tiles * lists.rows;
    if (!lists.has(item.seq, item.r, block)) return this->push_none();
    const int head = item.owner * (Shape::Packed ? work.items.group : 1) / lists.group;
    const int64_t row = lists.first(item.seq, item.r, head) + block;
    const TileSpan span = lists.span[row * lists.row_tiles + tile % lists.row_tiles];
    if (span.begin >= span.end) return this->push_none();
    const int32_t* places = lists.tile + row * lists.most;
    const int every = Shape::Packed && lists.rows > 1 ? (1 << lists.rows) - 1 : 0;
#pragma unroll 1
    for (int from = span.begin; from < span.end; from += 32) {
      const int mine = from + lane < span.end ? places[from + lane] : 0;
      const int count = min(32, span.end - from);
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const int place = __shfl_sync(~0u, mine, i), n = from + i;
        const int rows = every ? rows_in(place) : (1 << kUnionRows) - 1;
        const bool full = n >= span.whole_begin && n < span.whole_end && rows >= every;
        push(item, tile_in(place), rows,
             (full ? ListStep90::full : 0) | (n + 1 == span.end ? ListStep90::last : 0));
      }
    }
  }
  __device__ __forceinline__ void push(const ListItem90& item, int tile, int rows, int flags) {
    const Sequence& seq = item.seq;
    const int begin = tile * kListLines, row = static_cast<int>(seq.key_begin) + begin,
              head = Shape::Packed ? item.owner : item.owner / work.items.group,
              batch = static_cast<int>(seq.key_batch);
    // Behind them the tensor's keys are not the sequence's.
    const FirstRows present{seq.key_begin + seq.keys < a.t ? static_cast<int>(seq.keys) - begin
                                                           : kListLines};
    shared.first_pipe().acquire(at);
    if (lane == 0) {
      ListStep90& step = shared.step(at);
      step.begin = begin, step.flags = flags, step.rows = rows;
    }
    copy_present<Tile, kListLines>(shared.first(at), maps.k, shared.first_pipe().full(at),
                                   shared.raw(), raw_phase, row, head, batch, present, 0);
    shared.second_pipe().acquire(at);
    if (lane == 0)
      sm90::tma_load_tile<Tile>(shared.second(at), maps.v, shared.second_pipe().full(at), row, head,
                                batch);
    at.next();
  }

  const ListRows90& work;
};

// A consumer warpgroup: 64 lines of an item.
template <class Shape>
class ListRowsConsumer90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, BN = kListLines;
  using Tile = typename Shape::Tile;
  using Shared = ListShared90<Shape>;

 public:
  // A separate object: an object stays in memory until the loops over its arrays are unrolled.
  struct Fragments {
    float dq[D / 8][4], x[1][BN / 8][4], dp[1][BN / 8][4], lse[2], delta[2];
    uint32_t q[D / 16][4], dout[D / 16][4], ds[1][BN / 16][4];
  };

  __device__ __forceinline__ ListRowsConsumer90(const AttendBackward& b, const ListRows90& work,
                                                const Shared& shared, int consumer, Fragments& f)
      : b(b),
        work(work),
        shared(shared),
        consumer(consumer),
        lane(threadIdx.x % 32),
        line(sm90::uniform(threadIdx.x / 32) % 4 * 16 + lane / 4),
        shift(work.items.shift),
        dq(f.dq),
        x(f.x),
        dp(f.dp),
        lse(f.lse),
        delta(f.delta),
        q(f.q),
        dout(f.dout),
        ds(f.ds) {}

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
  // Of the lane's line `half`, gathered: where its list row stands in the order.
  __device__ int place_of(const ListItem90& item, int half) const {
    return item.begin + consumer * (kListLines >> shift) + ((line + 8 * half) >> shift);
  }
  // Row and head of the lane's line `half`.
  __device__ int row_of(const ListItem90& item, int half) const {
    if constexpr (Shape::Gathered) return row[half];
    const int at = line + 8 * half;
    return item.begin +
           (Shape::Packed ? at >> shift : at + (Shape::sharing > 1 ? consumer * kListLines : 0));
  }
  __device__ int head_of(const ListItem90& item, int half) const {
    if (!Shape::Packed) return item.owner;
    return (item.owner << shift) + ((line + 8 * half) & ((1 << shift) - 1));
  }
  __device__ bool there(const ListItem90& item, int half) const {
    if constexpr (Shape::Gathered) return work.chunks.slot[place_of(item, half)] >= 0;
    const bool some = !Shape::Packed || (line + 8 * half) >> shift < work.rows;
    return some && row_of(item, half) < item.seq.rows;
  }

  __device__ __forceinline__ void begin(const ListItem90& item) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      lse[half] = -kNegativeInfinity, delta[half] = 0.f;
      if constexpr (Shape::Gathered) row[half] = work.chunks.row[place_of(item, half)];
      if (!there(item, half)) continue;
      const int64_t at = item.stats + head_of(item, half) * work.stats.by_head +
                         row_of(item, half) * work.stats.by_row;
      lse[half] = work.stats.lse[at], delta[half] = work.stats.delta[at];
    }
    const uint32_t of_lane = Tile::at(line / 16 * 16 + outer_row(lane), outer_chunk(lane));
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      load_matrices(q[k], Tile::pair(shared.own(consumer, false) + of_lane, k));
      load_matrices(dout[k], Tile::pair(shared.own(consumer, true) + of_lane, k));
    }
    __syncwarp();
    shared.own_pipe().release(own_at);
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) dq[j][c] = 0.f;
  }

  __device__ __forceinline__ void sum(const ListItem90& item) {
    begin(item);
    const PlainPairs pairs(b.forward, item.seq, 0, 0);
    shared.first_pipe().wait(at);
    int flags = shared.step(at).flags;
    if (!(flags & ListStep90::none)) {
      issue_scores();
      issue_dp();
      make_ds(item, pairs, flags & ListStep90::full);
#pragma unroll 1
      while (!(flags & ListStep90::last)) {
        issue_dq();
        const auto used = at;
        at.next();
        shared.first_pipe().wait(at);
        flags = shared.step(at).flags;
        issue_scores();
        sm90::wait<1>();
        sm90::pin(dq);
        shared.first_pipe().release(used);
        issue_dp();
        make_ds(item, pairs, flags & ListStep90::full);
      }
      issue_dq();
      sm90::wait<0>();
      sm90::pin(dq);
    } else {
      shared.second_pipe().wait(at);
      __syncwarp();
      shared.second_pipe().release(at);
    }
    shared.first_pipe().release(at);
    at.next();
    store(item);
  }
  __device__ __forceinline__ void store(const ListItem90& item) const {
    const View<4>& out = b.dq;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (Shape::Gathered) {
        const int64_t slot = work.chunks.slot[place_of(item, half)];
        if (slot >= 0)
          store_wide(work.chunks.sums + (slot * b.forward.h + head_of(item, half)) * b.forward.d,
                     static_cast<int>(b.forward.d), dq, half, b.forward.score.scale);
        continue;
      }
      uint16_t* to = static_cast<uint16_t*>(out.data) + item.seq.batch * out.stride[0] +
                     (item.seq.row_begin + row_of(item, half)) * out.stride[1] +
                     head_of(item, half) * out.stride[2];
      store_row<Dtype>(there(item, half) ? to : nullptr, static_cast<int>(b.forward.d), dq, half,
                       b.forward.score.scale);
    }
  }

  __device__ __forceinline__ void issue_scores() {
    sm90::fence();
    sm90::product_rows<Dtype, Tile>(x[0], q, sm90::descriptor(shared.first(at)));
    sm90::commit();
  }
  __device__ __forceinline__ void issue_dp() {
    shared.second_pipe().wait(at);
    sm90::fence();
    sm90::product_rows<Dtype, Tile>(dp[0], dout, sm90::descriptor(shared.second(at)));
    sm90::commit();
  }
  template <bool All>
  __device__ __forceinline__ void weigh(const ListItem90& item, const PlainPairs& pairs) {
    const ListStep90& step = shared.step(at);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int i = 0, j = 0;
      float of = lse[half];
      if constexpr (!All) {
        i = row_of(item, half), j = step.begin + lane % 4 * 2;
        if (Shape::Packed && !Shape::Gathered && !(step.rows >> ((line + 8 * half) >> shift) & 1))
          of = -kNegativeInfinity;
      }
#pragma unroll
      for (int n = 0; n < BN / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& y = x[0][n][2 * half + c];
          y = list_weight<All>(pairs, y, of, i, j + n * 8 + c);
        }
    }
  }
  template <bool All>
  __device__ __forceinline__ void weigh_dp() {
#pragma unroll
    for (int n = 0; n < BN / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        dp[0][n][c] = list_dscore<All>(x[0][n][c], dp[0][n][c], delta[c / 2]);
  }
  // Waits for the scores and then dp, and packs ds.
  __device__ __forceinline__ void make_ds(const ListItem90& item, const PlainPairs& pairs,
                                          bool full) {
    sm90::wait<1>();
    sm90::pin(x[0]);
    full ? weigh<true>(item, pairs) : weigh<false>(item, pairs);
    sm90::wait<0>();
    sm90::pin(dp[0]);
    shared.second_pipe().release(at);
    full ? weigh_dp<true>() : weigh_dp<false>();
    pack_operand<Dtype>(ds, dp);
  }
  __device__ __forceinline__ void issue_dq() {
    sm90::fence();
    sm90::product_columns<Dtype>(dq, ds[0], sm90::descriptor(shared.first(at), Tile::panel_bytes),
                                 true);
    sm90::commit();
  }

  const AttendBackward& b;
  const ListRows90& work;
  const Shared& shared;
  const int consumer, lane, line;  // line: the lane's first
  const int shift;                 // a row of a packed tile has 1 << shift lines
  int row[2];                      // gathered: of the lane's lines
  typename Shared::OwnState own_at;
  typename Shared::State at;
  float (&dq)[D / 8][4], (&x)[1][BN / 8][4], (&dp)[1][BN / 8][4], (&lse)[2], (&delta)[2];
  uint32_t (&q)[D / 16][4], (&dout)[D / 16][4], (&ds)[1][BN / 16][4];
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    list_bwd_dq_sm90(const __grid_constant__ AttendBackward b,
                     const __grid_constant__ BackwardMaps maps,
                     const __grid_constant__ ListRows90 work) {
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
    ListRowsProducer90<Shape>(b, maps, work, shared).run();
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    const ListShared90<Shape> shared(memory, Shape::Rings > 1 ? group : 0);
    typename ListRowsConsumer90<Shape>::Fragments fragments;
    ListRowsConsumer90<Shape>(b, work, shared, group, fragments).run();
  }
}

}  // namespace fovea::cuda
