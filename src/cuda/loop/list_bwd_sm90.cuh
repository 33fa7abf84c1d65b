// SPDX-License-Identifier: Apache-2.0
// What the two Hopper passes of the gradient over lists share.  Neither sums across blocks:
//   list_bwd_dq_sm90.cuh    rows own dq and take the key tiles of their list
//   list_bwd_dkdv_sm90.cuh  keys own dk and dv and take the rows whose lists name them
// Seven products for five, but no order among blocks, no semaphore and no f32 sums in memory.
//
// A block is persistent.  Its two consumer warpgroups own 64 lines each: keys or rows.
//
//   | rings | consumers                           | producer warps        |
//   | 1     | share a list, and so a ring         | 1                     |
//   | 2     | have lists and work items their own | 2, one for each       |
//
// A tile has 64 lines.  Shared memory, of each ring: ListLayout90.
//
//   | barrier      | who arrives         | who waits | what it guards                        |
//   | own full     | TMA                 | consumers | the item, its own tiles               |
//   | own empty    | a lane of each warp | producer  | its own tiles, to overwrite           |
//   | first full   | TMA                 | consumers | a tile of K or Q, its step            |
//   | first empty  | a lane of each warp | producer  | the same, to overwrite                |
//   | second full  | TMA                 | consumers | a tile of V or dout                   |
//   | second empty | a lane of each warp | producer  | the same, to overwrite                |
//   | raw          | TMA                 | producer  | a tile whose last lines it zeroes     |
#pragma once
#include "cuda/loop/backward_block_sm90.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/list_stats.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/tile/pipeline_sm90.cuh"

namespace fovea::cuda {

// What the lines of a row tile are:
//   rows      rows of a head that follow one another
//   packed    the same of all heads of a group, line = row G + head
//   gathered  rows of some lists of one row, with all heads of a group
enum class ListLines { rows, packed, gathered };

template <int Dtype_, int D_, int Rings_, ListLines Lines, int Stages_>
struct ListBwdShape90 {
  static constexpr int Dtype = Dtype_, D = D_, Rings = Rings_, Stages = Stages_;
  static constexpr bool Packed = Lines != ListLines::rows, Gathered = Lines == ListLines::gathered;
  static constexpr int sharing = 2 / Rings;  // consumers of a ring
  static constexpr int threads = 384, producer_regs = 24, consumer_regs = 240;
  // More would wait for ever: a block starts with 168 a thread.
  static_assert(producer_regs + 2 * consumer_regs <= 3 * 168);
  using Tile = Swizzled<kListLines, D>;
};

// Work items (sequence, owner, tile): owners are key heads or query heads.
struct ListItems90 {
  int32_t* taken;  // how many; 0 before the launch
  int32_t count, owners, tiles;
  int32_t group, shift;  // query heads of a key head; packed: 1 << shift
  bool reversed;         // later tiles are longer: they come first
};

// A work item.  Consumers may read it until they give back the own tiles of the next one.
struct ListItem90 {
  Sequence seq;
  int64_t stats;      // of its row 0 and head 0
  int32_t r, owner;   // r < 0: there are no more
  int32_t begin;      // its first key or row
  int32_t low, high;  // dk and dv: row tiles that see some of the keys
};

// A tile of a ring.
struct ListStep90 {
  static constexpr int full = 1, last = 2, none = 4;  // none: the item has no tile
  int32_t begin;                                      // its first key or row
  int32_t flags;
  int32_t rows;             // dq, packed: a bit for each row that sees the tile
  int32_t row[kListLines];  // dk and dv, gathered: of each group of lines
};

template <class Shape>
struct ListLayout90 : sm90::SharedLayout {
  static constexpr int tiles_of_ring = Shape::Rings * Shape::Stages;
  int own = tiles(Shape::Tile::bytes, 4), first = tiles(Shape::Tile::bytes, tiles_of_ring),
      second = tiles(Shape::Tile::bytes, tiles_of_ring),
      stats = add(tiles_of_ring * 2 * kListLines * 4, 16), step = of<ListStep90>(tiles_of_ring),
      item = of<ListItem90>(2 * Shape::Rings), own_pipe = add(Shape::Rings * 16, 8),
      first_pipe = add(tiles_of_ring * 16, 8), second_pipe = add(tiles_of_ring * 16, 8),
      raw = barriers(Shape::Rings);
};

// A ring's part of it.
template <class Shape>
struct ListShared90 {
  static constexpr ListLayout90<Shape> layout = ListLayout90<Shape>();
  using Tile = typename Shape::Tile;
  using OwnPipe = sm90::Pipeline<1>;
  using Pipe = sm90::Pipeline<Shape::Stages>;
  using OwnState = typename OwnPipe::State;
  using State = typename Pipe::State;
  unsigned char* memory;
  uint32_t base;
  int ring;

  __device__ ListShared90(unsigned char* memory, int ring)
      : memory(memory), base(shared_address(memory)), ring(ring) {}
  // K or Q of a consumer's own lines; V or dout: `second`.
  __device__ uint32_t own(int consumer, bool second) const {
    return base + layout.own + (consumer * 2 + second) * Tile::bytes;
  }
  __device__ uint32_t first(const State& at) const {
    return base + layout.first + stage(at) * Tile::bytes;
  }
  __device__ uint32_t second(const State& at) const {
    return base + layout.second + stage(at) * Tile::bytes;
  }
  // lse of the lines of a tile of Q, then delta: an offset into `memory`.
  __device__ uint32_t stats(const State& at) const {
    return layout.stats + stage(at) * (2 * kListLines * 4);
  }
  __device__ ListStep90& step(const State& at) const {
    return reinterpret_cast<ListStep90*>(memory + layout.step)[stage(at)];
  }
  // The phase of its own tiles says which of two.
  __device__ ListItem90& item(const OwnState& at) const {
    return reinterpret_cast<ListItem90*>(memory +
                                         layout.item)[ring * 2 + static_cast<int>(at.phase)];
  }
  __device__ OwnPipe own_pipe() const { return {base + layout.own_pipe + ring * 16}; }
  __device__ Pipe first_pipe() const { return {base + layout.first_pipe + ring * Pipe::bytes}; }
  __device__ Pipe second_pipe() const { return {base + layout.second_pipe + ring * Pipe::bytes}; }
  __device__ uint32_t raw() const { return base + layout.raw + ring * 8; }
  // By one thread.
  __device__ void init() const {
    constexpr int warps = 4 * Shape::sharing;
    own_pipe().init(1, warps), first_pipe().init(1, warps), second_pipe().init(1, warps);
    sm90::barrier_init(raw(), 1);
  }

 private:
  __device__ int stage(const State& at) const { return ring * Shape::Stages + at.stage; }
};

// The producer warp of a ring.
template <class Shape>
class ListProducer90 {
 protected:
  using Tile = typename Shape::Tile;
  using Shared = ListShared90<Shape>;

  __device__ ListProducer90(const AttendBackward& b, const BackwardMaps& maps,
                            const ListItems90& items, const ListStats& stats, const Shared& shared)
      : a(b.forward),
        maps(maps),
        items(items),
        stats(stats),
        shared(shared),
        lane(threadIdx.x % 32) {}

  // f(owner of all sequences, tile) for each work item of the ring.
  template <class F>
  __device__ __forceinline__ void each_item(F f) {
    int next = take();
#pragma unroll 1
    for (;;) {
      const int now = __shfl_sync(~0u, next, 0);
      if (now >= items.count) break;
      next = take();
      const int owner = now / items.tiles, tile = now - owner * items.tiles;
      f(owner, items.reversed ? items.tiles - 1 - tile : tile);
    }
    shared.own_pipe().acquire(own_at);
    if (lane != 0) return;
    shared.item(own_at).r = -1;
    shared.own_pipe().arrive(own_at);
  }
  // Once the consumers have done with the last item.
  __device__ __forceinline__ ListItem90& place(int r, int owner, int begin) {
    shared.own_pipe().acquire(own_at);
    ListItem90& item = shared.item(own_at);
    if (lane == 0) {
      item.r = r, item.owner = owner, item.begin = begin;
      item.seq = a.sequences[item.r];
      item.stats = stats.first(a, item.seq, item.r);
    }
    __syncwarp();
    return item;
  }
  __device__ __forceinline__ ListItem90& place(int owner, int begin) {
    const int r = owner / items.owners;
    return place(r, owner - r * items.owners, begin);
  }
  // Rows from the list `row` on, with all heads from `head` on: the lines of a tile.  The barrier
  // expects their bytes already.
  __device__ __forceinline__ void gather_rows(uint32_t to, const CUtensorMap& map, uint32_t full,
                                              const int32_t* row, const ListItem90& item,
                                              int head) const {
    const int heads = items.group;
#pragma unroll 1
    for (int i = lane; i < kListLines / heads; i += 32) {
      const int at = static_cast<int>(item.seq.row_begin) + row[i];
#pragma unroll 1
      for (int panel = 0; panel < Tile::panels; ++panel) {
        const uint32_t line = to + panel * Tile::panel_bytes + i * heads * kPanelRowBytes;
        const int batch = static_cast<int>(item.seq.batch);
        if (heads > 1)  // axes: column, head, row, batch
          sm90::tma_load_box(line, map, full, panel * 64, head, at, batch);
        else
          sm90::tma_load_box(line, map, full, panel * 64, at, head, batch);
      }
    }
  }
  // An item without tiles: its sums are 0.
  __device__ __forceinline__ void push_none() {
    shared.first_pipe().acquire(at), shared.second_pipe().acquire(at);
    if (lane == 0) {
      shared.step(at).flags = ListStep90::none | ListStep90::last;
      shared.first_pipe().arrive(at), shared.second_pipe().arrive(at);
    }
    at.next();
  }

  const Attend& a;
  const BackwardMaps& maps;
  const ListItems90& items;
  const ListStats& stats;
  const Shared& shared;
  const int lane;
  typename Shared::OwnState own_at;
  typename Shared::State at;
  uint32_t raw_phase = 0;

 private:
  __device__ int take() const {
    return lane == 0 ? atomicAdd(items.taken, 1) : 0;
  }
};

// p = 2^(x factor - lse) of a product x, 0 where the row does not see the key; see PlainPairs.
template <bool All>
__device__ __forceinline__ float list_weight(const PlainPairs& pairs, float x, float lse, int i,
                                             int j) {
  pairs.weigh(x, lse, i, j, All);
  return x;
}
// ds = p (dp - delta).  Without All an unseen pair is 0 whatever its products are, NaN included.
template <bool All>
__device__ __forceinline__ float list_dscore(float p, float dp, float delta) {
  const float away = p * (dp - delta);
  return !All && p == 0.f ? 0.f : away;
}

}  // namespace fovea::cuda
