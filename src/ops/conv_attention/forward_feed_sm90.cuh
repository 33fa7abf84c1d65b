// SPDX-License-Identifier: Apache-2.0
// What feeds the forward sweep of Hopper: the works a block takes, where their tiles lie in shared
// memory, and the warp that copies them there, running ahead into the next work.
#pragma once
#include <new>

#include "cuda/loop/row_tile.cuh"
#include "cuda/tile/convolve_sm80.cuh"
#include "cuda/tile/mma_sm90.cuh"
#include "ops/conv_attention/forward.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_, int Pairs_, int Ahead_, ConvKind Kind_, int Groups_,
          int Stages_, int Blocks_>
struct ConvShape90 {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, Pairs = Pairs_, Ahead = Ahead_,
                       Groups = Groups_, Stages = Stages_, Blocks = Blocks_, BN = 64;
  static constexpr ConvKind Kind = Kind_;
  static constexpr bool packed = Kind != ConvKind::whole, paged = Kind == ConvKind::paged;
  static constexpr int BM = 64 * Groups, threads = 128 * (Groups + 1);
  static constexpr int budgets[3][2] = {{40, 216}, {24, 240}, {32, 160}};
  static constexpr int copying = budgets[Groups - 1][0], computing = budgets[Groups - 1][1];
  using TileQ = Swizzled<BM, D>;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  static constexpr int q_bytes = TileQ::bytes;
  static constexpr int stage_bytes = TileK::bytes > TileV::bytes ? TileK::bytes : TileV::bytes;
  static constexpr int block_bytes = 64 * 16;               // 8 columns of S
  static constexpr int score_bytes = BN / 8 * block_bytes;  // of a tile and warpgroup
  static constexpr int scores_bytes = 3 * Groups * score_bytes;
  static constexpr int slack_bytes = 1024;  // works and barriers
  static constexpr int most_bytes = Blocks == 1 ? 227 * 1024 : 113 * 1024;
  static constexpr int Slots =
      Stages * stage_bytes + 2 * q_bytes + scores_bytes + slack_bytes <= most_bytes ? 2 : 1;
  static constexpr int scores = Slots * q_bytes + Stages * stage_bytes;
  static constexpr int tile_bytes = scores + scores_bytes;
  static constexpr int shared_bytes = tile_bytes + slack_bytes;
  static_assert(shared_bytes <= most_bytes);
};

// What the copying warp tells the others of a work.
struct ConvSlot {
  Sequence seq;
  ConvAttend::Rows out;
  int first, end;  // rows of the sequence: the block's first own, past the last own
  int rows, keys, shift;
  int head, heads;  // the first query head, how many have a slot
  int g, split;
  int count, last;  // key tiles with outputs, the first of them
  bool warm, cool;  // the tiles behind `last` and before the last of the part have scores that it
                    // reads
  bool any;

  __device__ ConvSlot(const ConvAttend& c, const ConvWork90& work, const WorkPlace& place,
                      bool packed, bool paged, int own, int slots, int width) {
    const Attend& a = c.attend;
    const int r = place.head / work.heads, at = place.head % work.heads,
              group = static_cast<int>(a.h / a.g);
    seq = a.sequences[r], out = c.rows_of(seq, r);
    rows = static_cast<int>(seq.rows), keys = static_cast<int>(seq.keys), shift = keys - rows;
    const int history = static_cast<int>(c.history), step = packed ? own : own * slots;
    first = history + place.row_tile * step;
    end = min(first + step, history + static_cast<int>(out.count));
    any = first < end;
    head = packed ? at / work.packs * group + at % work.packs * slots : at;
    heads = packed ? min(slots, group - at % work.packs * slots) : 1;
    g = packed ? at / work.packs : at / group;
    split = place.split;
    const int to = c.causal ? max(min(end + shift, keys), 0) : keys;
    const int before = paged ? 0 : static_cast<int>(c.left());
    const int tiles = to > 0 ? (to + before + width - 1) / width : 0;
    const TilePart part(tiles, work.order.splits, split);
    count = part.end - part.begin, last = part.end - 1;
    warm = count > 0 && part.end < tiles, cool = paged && count > 0 && part.begin > 0;
  }
};

// Where things lie in the block's shared memory, as addresses.
template <class Shape>
struct ConvShared90 {
  using QRing = sm90::Ring<Shape::Slots>;
  using Ring = sm90::Ring<Shape::Stages>;
  using WorkRing = sm90::Ring<2>;
  static constexpr int kWorks = Shape::tile_bytes,
                       kAbsent = kWorks + 2 * static_cast<int>(sizeof(ConvSlot)),
                       kBarriers = kAbsent + Shape::Stages * 8;
  static_assert(sizeof(ConvSlot) % 8 == 0);
  static_assert(kBarriers + 8 * (2 + 2 * Shape::Slots + 2 * Shape::Stages) <= Shape::shared_bytes);
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
  // Bit j % 32 of word j / 32: key j of the stage's tile has no page.
  __device__ uint32_t* absent(Ring i) const {
    return reinterpret_cast<uint32_t*>(base + kAbsent) + i.stage * 2;
  }
  __device__ uint32_t scores(int group, int buffer) const {
    return at + Shape::scores + (group * 3 + buffer) * Shape::score_bytes;
  }
  __device__ uint32_t free(WorkRing i) const { return at + kBarriers + i.stage * 8; }
  __device__ uint32_t q_full(QRing i) const { return at + kBarriers + 16 + i.stage * 16; }
  __device__ uint32_t q_empty(QRing i) const { return q_full(i) + 8; }
  __device__ uint32_t full(Ring i) const {
    return at + kBarriers + 16 + Shape::Slots * 16 + i.stage * 16;
  }
  __device__ uint32_t empty(Ring i) const { return full(i) + 8; }

  __device__ void init() const {
    constexpr int kWarps = 4 * Shape::Groups;
    for (WorkRing i; i.phase == 0; i.next()) sm90::barrier_init(free(i), kWarps);
    for (QRing i; i.phase == 0; i.next())
      sm90::barrier_init(q_full(i), 1), sm90::barrier_init(q_empty(i), kWarps);
    for (Ring i; i.phase == 0; i.next())
      sm90::barrier_init(full(i), 1), sm90::barrier_init(empty(i), kWarps);
    sm90::barrier_init_done();
  }
};

// Keys [key, key + 64) by their pages, of which a tile holds a whole number or one holds a whole
// number of tiles; a lane copies a page, or a tile's part of one.  An absent page reads as zeros.
template <class Tile>
__device__ __forceinline__ void copy_pages(const Attend& a, const ConvSlot& work,
                                           const CUtensorMap& map, int key, uint32_t* absent,
                                           uint32_t to, uint32_t full) {
  constexpr int kKeys = Tile::panel_bytes / kPanelRowBytes;
  const int lane = threadIdx.x % 32, page = static_cast<int>(a.sequences.page);
  const int rows = min(page, kKeys), mine = key + lane * rows,
            nowhere = static_cast<int>(a.sequences.pool);
  const View<2>& table = a.sequences.page_table;
  int id = -1;
  if (lane * rows < kKeys && mine < work.keys)
    id = table.as<int32_t>()[work.seq.key_batch * table.stride[0] + mine / page * table.stride[1]];
  if (id < 0 || id >= nowhere) id = nowhere;
  if (absent)
#pragma unroll
    for (int word = 0; word < kKeys / 32; ++word) {
      const int of = __shfl_sync(~0u, id, (word * 32 + lane) / rows);
      const uint32_t bits = __ballot_sync(~0u, of == nowhere);
      if (lane == 0) absent[word] = bits;
    }
  if (lane == 0) sm90::barrier_expect(full, Tile::bytes);
  __syncwarp();
  if (lane * rows >= kKeys) return;
#pragma unroll
  for (int panel = 0; panel < Tile::panels; ++panel)
    sm90::copy_box(to + panel * Tile::panel_bytes + lane * rows * kPanelRowBytes, map, full,
                   panel * 64, page > kKeys ? key % page : 0, work.g, id);
}

// The copying warp.
template <class Shape>
__device__ __forceinline__ void copy_conv(const ConvAttend& c, const ConvWork90& more,
                                          const ConvShared90<Shape>& shared) {
  using Shared = ConvShared90<Shape>;
  constexpr int kSlot = Shape::packed ? 16 : 64, kSlots = Shape::BM / kSlot;
  const int lane = threadIdx.x % 32, above = static_cast<int>(c.above());
  const int own = kSlot - above, left = static_cast<int>(c.left());
  typename Shared::WorkRing slot;
  typename Shared::QRing q;
  typename Shared::Ring at;
  for (Works works(more.schedule); !works.done(); works.next()) {
    sm90::barrier_wait(shared.free(slot), slot.phase ^ 1);
    if (lane == 0)
      new (&shared.work(slot)) ConvSlot(c, more, WorkPlace(more.order, *works), Shape::packed,
                                        Shape::paged, own, kSlots, Shape::BN);
    __syncwarp();
    const ConvSlot& work = shared.work(slot);
    if (!work.any) continue;
    sm90::barrier_wait(shared.q_empty(q), q.phase ^ 1);
    if (lane == 0) {
      sm90::barrier_expect(shared.q_full(q), Shape::q_bytes);
      const int row = static_cast<int>(work.seq.row_begin) + work.first - above;
#pragma unroll 1
      for (int n = 0; n < kSlots; ++n)
#pragma unroll
        for (int panel = 0; panel < Shape::TileQ::panels; ++panel)
          sm90::copy_box(
              shared.q(q) + panel * Shape::TileQ::panel_bytes + n * kSlot * kPanelRowBytes,
              more.maps.q, shared.q_full(q), panel * 64, Shape::packed ? row : row + n * own,
              Shape::packed ? work.head + min(n, work.heads - 1) : work.head,
              static_cast<int>(work.seq.batch));
    }
    const int key_row = static_cast<int>(work.seq.key_begin),
              batch = max(static_cast<int>(work.seq.key_batch), 0);
    const auto copy = [&](auto tile, const CUtensorMap& map, int n, int before, bool tell) {
      sm90::barrier_wait(shared.empty(at), at.phase ^ 1);
      if constexpr (Shape::paged) {
        copy_pages<decltype(tile)>(c.attend, work, map, n * Shape::BN,
                                   tell ? shared.absent(at) : nullptr, shared.keys(at),
                                   shared.full(at));
      } else if (lane == 0) {
        sm90::copy_tile<decltype(tile)>(shared.keys(at), map, shared.full(at),
                                        key_row + n * Shape::BN - before, work.g, batch);
      }
      at.next();
    };
    const auto copy_k = [&](int n) { copy(typename Shape::TileK(), more.maps.k, n, left, true); };
    const auto copy_v = [&](int n) { copy(typename Shape::TileV(), more.maps.v, n, 0, false); };
    if (work.warm) copy_k(work.last + 1);
    for (int n = work.last, rest = work.count; rest > 0; --n, --rest) {
      if (!Shape::paged || rest == work.count) copy_k(n);
      if constexpr (Shape::paged) {
        if (rest > 1 || work.cool) copy_k(n - 1);
        copy_v(n);
      } else {
        if (rest < work.count) copy_v(n + 1);
        if (rest == 1) copy_v(n);
      }
    }
    slot.next(), q.next();
  }
  sm90::barrier_wait(shared.free(slot), slot.phase ^ 1);
  sm90::barrier_wait(shared.q_empty(q), q.phase ^ 1);
  if (lane != 0) return;
  shared.work(slot).any = false;
  sm90::barrier_arrive(shared.q_full(q));
}

}  // namespace fovea::cuda
