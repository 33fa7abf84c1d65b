// SPDX-License-Identifier: Apache-2.0
// What conv_attention's forward sweep (sweep_sm90.cuh) has in shared memory, and the warp that
// plans works and copies them there.
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
  static constexpr int copying = budgets[Groups - 1][0], computing = budgets[Groups - 1][1];
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
  static constexpr int slack_bytes = 1024;  // works and barriers
  static constexpr int most_bytes = Blocks == 1 ? 227 * 1024 : 113 * 1024;
  static constexpr int Slots =
      Stages * stage_bytes + 2 * q_bytes + scores_bytes + slack_bytes <= most_bytes ? 2 : 1;
  static constexpr int scores = Slots * q_bytes + Stages * stage_bytes;
  static constexpr int tile_bytes = scores + scores_bytes;
  static constexpr int shared_bytes = tile_bytes + slack_bytes;
  static_assert(shared_bytes <= most_bytes);
};

// Where a work is: the order's, or of a part of row tiles of one height (TileParts).
struct ConvPlace : WorkPlace {
  int first, own;  // its first row of those with outputs; rows of a tile of its height
  bool low = false;

  __device__ ConvPlace(const ConvWork90& work, int which, int own, int most)
      : WorkPlace(work.order, which), own(own) {
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

// What the copying warp tells the others of a work.
struct ConvSlot {
  Sequence seq;
  ConvAttend::Rows out;
  int first, end;  // rows of the sequence: the block's first own, past the last own
  int rows, keys, shift;
  int head, heads;       // the first query head, how many have a slot
  int g, split, number;  // number: of the work, whatever the split
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
    rows = static_cast<int>(seq.rows), keys = static_cast<int>(seq.keys), shift = keys - rows;
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
    const int to = c.causal ? max(min(end + shift, keys), 0) : keys;
    const int tiles = (to + width - 1) / width;
    const TilePart part(tiles, work.order.splits, split);
    count = part.end - part.begin, last = part.end - 1;
    warm = count > 0 && part.end * width - static_cast<int>(c.left()) < to;
  }
};

// Where things lie in the block's shared memory, as addresses.
template <class Shape>
struct ConvShared90 {
  using QRing = sm90::Ring<Shape::Slots>;
  using Ring = sm90::Ring<Shape::Stages>;
  using WorkRing = sm90::Ring<2>;
  static constexpr int kWorks = Shape::tile_bytes,
                       kBarriers = kWorks + 2 * static_cast<int>(sizeof(ConvSlot));
  static_assert(sizeof(ConvSlot) % 8 == 0);
  static_assert(kBarriers + 16 * (2 + Shape::Slots + Shape::Stages) <= Shape::shared_bytes);
  unsigned char* base;
  uint32_t at;

  __device__ explicit ConvShared90(unsigned char* base) : base(base), at(shared_address(base)) {}
  __device__ uint32_t q(QRing i) const { return at + i.stage * Shape::q_bytes; }
  __device__ uint32_t keys(Ring i) const {
    return at + Shape::Slots * Shape::q_bytes + i.stage * Shape::stage_bytes;
  }
  __device__ ConvSlot& work(WorkRing i) const {
    return reinterpret_cast<ConvSlot*>(base + kWorks)[i.stage];
  }
  __device__ uint32_t scores(int buffer) const {
    return at + Shape::scores + buffer * Shape::score_bytes;
  }
  __device__ uint32_t free(WorkRing i) const { return at + kBarriers + i.stage * 16; }
  __device__ uint32_t planned(WorkRing i) const { return free(i) + 8; }
  __device__ uint32_t q_full(QRing i) const { return at + kBarriers + 32 + i.stage * 16; }
  __device__ uint32_t q_empty(QRing i) const { return q_full(i) + 8; }
  __device__ uint32_t full(Ring i) const {
    return at + kBarriers + 32 + Shape::Slots * 16 + i.stage * 16;
  }
  __device__ uint32_t empty(Ring i) const { return full(i) + 8; }

  __device__ void init() const {
    constexpr int kWarps = 4 * Shape::Groups;
    for (WorkRing i; i.phase == 0; i.next())
      sm90::barrier_init(free(i), kWarps), sm90::barrier_init(planned(i), 1);
    for (QRing i; i.phase == 0; i.next())
      sm90::barrier_init(q_full(i), 1), sm90::barrier_init(q_empty(i), kWarps);
    for (Ring i; i.phase == 0; i.next())
      sm90::barrier_init(full(i), 1), sm90::barrier_init(empty(i), kWarps);
    sm90::barrier_init_done();
  }
};

// The warp that finds out what each work is and copies for it.
template <class Shape>
__device__ __forceinline__ void copy_conv(const ConvAttend& c, const ConvWork90& more,
                                          const ConvShared90<Shape>& shared) {
  using Shared = ConvShared90<Shape>;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  constexpr int kSlot = Shape::packed ? 16 : 64, kSlots = Shape::BM / kSlot, BN = Shape::BN;
  const int lane = threadIdx.x % 32, above = static_cast<int>(c.above());
  const int own = (Shape::packed ? kSlot : Shape::BM) - above, left = static_cast<int>(c.left());
  typename Shared::WorkRing slot;
  typename Shared::QRing q;
  typename Shared::Ring at;
  // From parameters alone, the first work is planned while the kernel before ends.
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
  const auto next = [&](TileScheduler& works) {
    works.next(false);  // blocks that hold works ahead of need would end later than others
    if (run) works.pass(run, has_rows);
  };
  for (TileScheduler works(more.schedule, false); !works.done(); next(works)) {
    sm90::barrier_wait(shared.free(slot), slot.phase ^ 1);
    __syncwarp();  // a work that no row needs was seen by all lanes
    if (lane == 0)
      new (&shared.work(slot))
          ConvSlot(c, more, *works, Shape::packed, own, kSlots, Shape::Groups, BN);
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
    if (lane == 0) sm90::barrier_arrive(shared.planned(slot));
    const auto copy = [&](auto tile, const CUtensorMap& map, int row, int rows) {
      using Tile = decltype(tile);
      sm90::barrier_wait(shared.empty(at), at.phase ^ 1);
      if (lane == 0) {
        sm90::barrier_expect(shared.full(at), Tile::panels * rows * kPanelRowBytes);
        sm90::copy_panels<Tile>(shared.keys(at), map, shared.full(at), key_row + row, work.g,
                                batch);
      }
      at.next();
    };
    const auto copy_q = [&] {
      sm90::barrier_wait(shared.q_empty(q), q.phase ^ 1);
      if (lane != 0) return;
      sm90::barrier_expect(shared.q_full(q), Shape::q_bytes);
#pragma unroll 1
      for (int n = 0; n < kSlots; ++n)
#pragma unroll
        for (int panel = 0; panel < Shape::TileQ::panels; ++panel)
          sm90::copy_box(
              shared.q(q) + panel * Shape::TileQ::panel_bytes + n * kSlot * kPanelRowBytes,
              more.maps.q, shared.q_full(q), panel * 64, Shape::packed ? row : row + n * kSlot,
              Shape::packed ? work.head + min(n, work.heads - 1) : work.head,
              static_cast<int>(work.seq.batch));
    };
    // Q is many copies: keys, which take longest to come, are asked for before.
    if (work.warm) copy(TileK(), more.halo, (last + 1) * BN - left, kHaloKeys);
    if (last >= first) copy(TileK(), more.maps.k, last * BN - left, BN);
    copy_q();
    for (int n = last; n >= first; --n) {
      if (n > first) copy(TileK(), more.maps.k, (n - 1) * BN - left, BN);
      copy(TileV(), more.maps.v, n * BN, BN);
    }
    slot.next(), q.next();
  }
  sm90::barrier_wait(shared.free(slot), slot.phase ^ 1);
  __syncwarp();
  if (lane != 0) return;
  shared.work(slot).any = false;
  sm90::barrier_arrive(shared.planned(slot));
}

}  // namespace fovea::cuda
