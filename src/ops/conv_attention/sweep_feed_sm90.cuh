// SPDX-License-Identifier: Apache-2.0
// What conv_attention's forward sweep (forward_sm90.cuh) has in shared memory, and the warp that
// plans work items and copies them there.
#pragma once
#include <new>

#include "cuda/loop/attend_sm90.cuh"
#include "cuda/tile/convolve_sm80.cuh"
#include "cuda/tile/order.cuh"
#include "ops/conv_attention/forward.cuh"

namespace fovea::cuda {

template <ConvConfig90 C>
struct ConvShape90 {
  static constexpr int Dtype = C.dtype, D = C.d, E = C.e, Pairs = C.pairs, Ahead = C.ahead,
                       Groups = C.groups, Stages = C.stages, Blocks = C.blocks, BN = 64;
  static constexpr bool packed = C.kind == ConvKind::packed;
  static constexpr int BM = 64 * Groups, threads = 128 * (Groups + 1);
  static constexpr int budgets[3][2] = {{40, 216}, {24, 240}, {32, 160}};
  static constexpr int producer_regs = budgets[Groups - 1][0],
                       consumer_regs = budgets[Groups - 1][1];
  // S and A do not both fit beside O.
  static constexpr bool late = Groups == 3 && D + E > 128;
  using TileQ = Swizzled<BM, D>;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  static_assert(8 * (Ahead - 1) <= kHaloKeys);
  static constexpr int q_bytes = TileQ::bytes;
  static constexpr int stage_bytes = TileK::bytes > TileV::bytes ? TileK::bytes : TileV::bytes;
  static constexpr int block_bytes = BM * 16;               // 8 columns of S
  static constexpr int score_bytes = BN / 8 * block_bytes;  // of a tile
  static constexpr int scores_bytes = 3 * score_bytes;
  static constexpr int slack_bytes = 1024;  // work items and barriers
  static constexpr int most_bytes = Blocks == 1 ? 227 * 1024 : 113 * 1024;
  static constexpr int Slots =
      Stages * stage_bytes + 2 * q_bytes + scores_bytes + slack_bytes <= most_bytes ? 2 : 1;
  static constexpr int shared_bytes =
      Slots * q_bytes + Stages * stage_bytes + scores_bytes + slack_bytes;
  static_assert(shared_bytes <= most_bytes);
};

// Where a work item is: the order's, or of a part of row tiles of one height (TileParts).
struct ConvPlace : TileCoord {
  int first, own;  // its first row of those with outputs; rows of a tile of its height
  bool low = false;

  __device__ ConvPlace(const ConvWork90& work, int which, int own, int most)
      : TileCoord(work.order, which), own(own) {
    int above = 0;  // rows of the parts before
    if (const TileParts& of = work.tiles; most == 3 && of.begin[2]) {
      const int part = (which >= of.begin[1]) + (which >= of.begin[2]) + (which >= of.begin[3]);
      which -= of.begin[part];
      row_tile = quotient(which, of.heads[part]);
      head = of.head[part] + which - row_tile * of.heads[part];
      above = of.row[part];
      low = part >= 2;
      if (low) this->own -= 64;
    }
    first = above + row_tile * this->own;
  }
  // A division takes a while.
  __device__ static int quotient(int x, int n) {
    if (n == 1) return x;
    return x < n ? 0 : static_cast<int>(static_cast<uint32_t>(x) / static_cast<uint32_t>(n));
  }
};

// What the producer warp tells the others of a work item.
struct ConvSlot {
  Sequence seq;
  ConvAttend::Rows out;
  int first, end;  // rows of the sequence: the block's first own, past the last own
  int rows, keys;
  int head, heads;       // the first query head, how many have a slot
  int g, split, number;  // number: of the work item, whatever the split
  int count, last;       // key tiles with outputs, the first of them
  int groups;            // warpgroups that have rows
  bool warm;             // the tile behind `last` has scores that its outputs read
  bool any;

  __device__ ConvSlot(const ConvAttend& c, const ConvWork90& work, int which, bool packed, int own,
                      int slots, int most, int width) {
    const Attend& a = c.attend;
    const ConvPlace place(work, which, own, most);
    groups = most - place.low;
    const int r = ConvPlace::quotient(place.head, work.heads), at = place.head - r * work.heads,
              group = work.group;
    seq = a.sequences[r], out = c.rows_of(seq, r);
    rows = static_cast<int>(seq.rows), keys = static_cast<int>(seq.keys);
    const int history = static_cast<int>(c.history);
    first = history + place.first;
    end = min(first + place.own, history + static_cast<int>(out.count));
    any = first < end;
    number = place.head * work.order.row_tiles + place.row_tile;
    g = ConvPlace::quotient(at, packed ? work.packs : group);
    const int pack = packed ? at - g * work.packs : 0;
    head = packed ? g * group + pack * slots : at;
    heads = packed ? min(slots, group - pack * slots) : 1;
    split = place.split;
    const int to = max(PlainWindow(a.mask.window, rows, keys).keys_of(first, end).high, 0);
    const int tiles = (to + width - 1) / width;
    const TilePart part(tiles, work.order.splits, split);
    count = part.end - part.begin, last = part.end - 1;
    warm = count > 0 && part.end * width - static_cast<int>(c.left()) < to;
  }
};

template <class Shape>
struct ConvLayout90 : sm90::SharedLayout {
  int q = tiles(Shape::q_bytes, Shape::Slots), keys = tiles(Shape::stage_bytes, Shape::Stages),
      scores = tiles(Shape::score_bytes, 3), slots = of<ConvSlot>(2), tile_pipe = pipeline(2),
      q_pipe = pipeline(Shape::Slots), key_pipe = pipeline(Shape::Stages);
};

template <class Shape>
struct ConvShared90 {
  static constexpr ConvLayout90<Shape> layout = ConvLayout90<Shape>();
  static_assert(layout.bytes <= Shape::shared_bytes);
  using TilePipe = sm90::Pipeline<2>;
  using QPipe = sm90::Pipeline<Shape::Slots>;
  using KeyPipe = sm90::Pipeline<Shape::Stages>;
  using TileState = typename TilePipe::State;
  using QState = typename QPipe::State;
  using KeyState = typename KeyPipe::State;
  unsigned char* base;
  uint32_t at;

  __device__ explicit ConvShared90(unsigned char* base) : base(base), at(shared_address(base)) {}
  __device__ uint32_t q(QState i) const { return at + layout.q + i.stage * Shape::q_bytes; }
  __device__ uint32_t keys(KeyState i) const {
    return at + layout.keys + i.stage * Shape::stage_bytes;
  }
  __device__ ConvSlot& work(TileState i) const {
    return reinterpret_cast<ConvSlot*>(base + layout.slots)[i.stage];
  }
  __device__ uint32_t scores(int buffer) const {
    return at + layout.scores + buffer * Shape::score_bytes;
  }
  __device__ TilePipe tile_pipe() const { return {at + layout.tile_pipe}; }
  __device__ QPipe q_pipe() const { return {at + layout.q_pipe}; }
  __device__ KeyPipe key_pipe() const { return {at + layout.key_pipe}; }

  __device__ void init() const {
    constexpr int kWarps = 4 * Shape::Groups;
    tile_pipe().init(1, kWarps), q_pipe().init(1, kWarps), key_pipe().init(1, kWarps);
    sm90::barrier_init_done();
  }
};

// The warp that finds out what each work item is and copies for it.
template <class Shape>
__device__ __forceinline__ void copy_conv(const ConvAttend& c, const ConvWork90& more,
                                          const ConvShared90<Shape>& shared) {
  using Shared = ConvShared90<Shape>;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  constexpr int kSlot = Shape::packed ? 16 : 64, kSlots = Shape::BM / kSlot, BN = Shape::BN;
  const int lane = threadIdx.x % 32, above = static_cast<int>(c.above());
  const int own = (Shape::packed ? kSlot : Shape::BM) - above, left = static_cast<int>(c.left());
  typename Shared::TileState slot;
  typename Shared::QState q;
  typename Shared::KeyState at;
  // From parameters alone, the first work item is planned while the kernel before ends.
  const Sequences& given = c.attend.sequences;
  if (more.schedule.counters || given.query_start || given.key_start || given.query_len ||
      given.key_len || given.key_first || given.cache_row)
    pdl_wait();
  // Sequences have as many row tiles as the longest may have, most of them then without rows.
  const bool ragged = given.query_start || given.query_len;
  const int run = !ragged ? 0 : more.tiles.begin[2] ? 1 : more.order.run(more.heads);
  const auto has_rows = [&](int work) {
    const ConvPlace place(more, work, own, Shape::Groups);
    const int r = place.head / more.heads;
    return place.first < c.rows_of(given[r], r).count;
  };
  const auto next = [&](TileScheduler& scheduler) {
    scheduler.next(false);  // blocks that hold work items ahead of need would end later than others
    if (run) scheduler.pass(run, has_rows);
  };
  for (TileScheduler scheduler(more.schedule, false); !scheduler.done(); next(scheduler)) {
    shared.tile_pipe().acquire(slot);
    __syncwarp();  // a work item that no row needs was seen by all lanes
    if (lane == 0)
      new (&shared.work(slot))
          ConvSlot(c, more, *scheduler, Shape::packed, own, kSlots, Shape::Groups, BN);
    __syncwarp();
    const ConvSlot& work = shared.work(slot);
    const int row = static_cast<int>(work.seq.row_begin) + work.first - above,
              key_row = static_cast<int>(work.seq.key_begin),
              batch = max(static_cast<int>(work.seq.key_batch), 0), last = work.last,
              first = last - work.count + 1;
    // The kernel after relies on what came before this one, too: it may start only now.
    pdl_wait();
    pdl_trigger();
    if (!work.any) continue;
    if (lane == 0) shared.tile_pipe().arrive(slot);
    const auto copy = [&](auto tile, const CUtensorMap& map, int row, int rows) {
      using Tile = decltype(tile);
      shared.key_pipe().acquire(at);
      if (lane == 0) {
        shared.key_pipe().expect(at, Tile::panels * rows * kPanelRowBytes);
        sm90::tma_load_panels<Tile>(shared.keys(at), map, shared.key_pipe().full(at), key_row + row,
                                    work.g, batch);
      }
      at.next();
    };
    const auto copy_q = [&] {
      shared.q_pipe().acquire(q);
      if (lane != 0) return;
      shared.q_pipe().expect(q, Shape::q_bytes);
#pragma unroll 1
      for (int n = 0; n < kSlots; ++n)
        sm90::tma_load_panels<typename Shape::TileQ>(
            shared.q(q) + n * kSlot * kPanelRowBytes, more.maps.q, shared.q_pipe().full(q),
            Shape::packed ? row : row + n * kSlot,
            Shape::packed ? work.head + min(n, work.heads - 1) : work.head,
            static_cast<int>(work.seq.batch));
    };
    // Q is many copies: keys, which take longest to come, are requested before.
    if (work.warm) copy(TileK(), more.halo, (last + 1) * BN - left, kHaloKeys);
    if (last >= first) copy(TileK(), more.maps.k, last * BN - left, BN);
    copy_q();
    for (int n = last; n >= first; --n) {
      if (n > first) copy(TileK(), more.maps.k, (n - 1) * BN - left, BN);
      copy(TileV(), more.maps.v, n * BN, BN);
    }
    slot.next(), q.next();
  }
  shared.tile_pipe().acquire(slot);
  __syncwarp();
  if (lane != 0) return;
  shared.work(slot).any = false;
  shared.tile_pipe().arrive(slot);
}

}  // namespace fovea::cuda
