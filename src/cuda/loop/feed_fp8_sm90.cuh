// SPDX-License-Identifier: Apache-2.0
// What the 8-bit sweep (attend_fp8_sm90.cuh) has in shared memory, and the two threads that plan
// work items and copy for them.
#pragma once
#include <concepts>
#include <new>

#include "cuda/block/schedule.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/tile_policy.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/mma_sm90.cuh"

namespace fovea::cuda {

template <int D_, int E_, int Groups_, int BN_, int Stages_, int Run_>
struct ByteShape90 {
  static constexpr int D = D_, E = E_, Groups = Groups_, BN = BN_, Stages = Stages_, Run = Run_;
  static constexpr int BM = 64 * Groups;
  static constexpr int threads = 128 * (Groups + 1);
  // Registers a thread, of those the block starts with: the copying warpgroup gives what the others
  // take.
  static constexpr int copying = Groups == 3 ? 56 : 40, computing = Groups == 3 ? 152 : 232;
  using TileQ = sm90::Bytes<BM, D, D % 128 ? 64 : 128>;
  using TileK = sm90::Bytes<BN, D, D % 128 ? 64 : 128>;
  using TileV = sm90::Bytes<E, BN, BN % 128 ? 64 : 128>;
  static constexpr int tile_bytes = TileQ::bytes + Stages * (TileK::bytes + TileV::bytes);
  static constexpr int sum_bytes = BM * E * 4;
  static constexpr int near = 2;  // key tiles left to copy when the next item is asked for
  static constexpr int barriers = 7 + 4 * Stages;
  static constexpr int item_offset = tile_bytes + sum_bytes + barriers * 8;
};

// What codes stand for, and where values lie.  `blocks`: scales of keys change within a sequence.
template <class C>
concept CodeScales = requires(const C codes, const Sequence& q, int64_t at) {
  { C::blocks } -> std::convertible_to<bool>;
  { codes.attend() } -> std::same_as<const Attend&>;
  { codes.row(q, at, at, at) } -> std::same_as<float>;
  { codes.key(q, at, at, at) } -> std::same_as<float>;
  { codes.value(q, at, at) } -> std::same_as<float>;
  { codes.column(at) } -> std::same_as<int64_t>;
  { codes.columns() } -> std::same_as<int64_t>;
};

// What a block works on: the tile, the key tiles [first, last) it walks, where copies are from, and
// what codes stand for.
template <class Shape>
struct WorkItem {
  RowTile tile;
  WindowMask mask;
  int first, last;
  int batch, row, head;                      // of q
  int key_batch, key_row, key_head, column;  // of k; column of v'
  int clear;                       // keys of the last tile before values to be zeroed; or BN
  float row_scale[Shape::Groups];  // times the score's scale, in units of log2
  float key_scale, value_scale;
};

template <class Shape, CodeScales Codes>
__device__ inline void make_item(WorkItem<Shape>& item, const Codes& codes, const AttendGrid& grid,
                                 const WorkPlace& place) {
  constexpr int BM = Shape::BM, BN = Shape::BN;
  const Attend& a = codes.attend();
  const int heads = static_cast<int>(grid.heads);
  const RowTile& tile = *new (&item.tile) RowTile(a, grid, place.head / heads, place.head % heads,
                                                  place.row_tile * BM, BM);
  item.first = item.last = 0;
  if (tile.size <= 0) return;
  new (&item.mask) WindowMask(a, tile, BN);
  const Sequence& seq = tile.rows.seq;
  const KeyTiles tiles = WindowMask::tiles(a, tile, BN);
  item.first = static_cast<int>(tiles.first), item.last = static_cast<int>(tiles.last);
  if (item.first == item.last) return;
  item.batch = static_cast<int>(seq.batch), item.head = static_cast<int>(tile.rows.g);
  item.row = static_cast<int>(seq.row_begin) + tile.first_query();
  item.key_batch = static_cast<int>(seq.key_batch), item.key_row = static_cast<int>(seq.key_begin);
  item.key_head = item.head / (heads / static_cast<int>(a.g));
  item.column = static_cast<int>(codes.column(tile.rows.r));
  const int tail = tile.keys - (item.last - 1) * BN;
  // What lies past the tensor reads as zero.
  item.clear = tail < BN && item.column + tile.keys < codes.columns() ? tail : BN;
  const float scale = a.score.scale * kLog2E;
#pragma unroll 1
  for (int group = 0; group < Shape::Groups; ++group)
    item.row_scale[group] = scale * codes.row(seq, tile.rows.r, item.head,
                                              min(tile.begin + group * 64, tile.count - 1));
  item.key_scale = codes.key(seq, tile.rows.r, item.key_head, 0);
  item.value_scale = codes.value(seq, tile.rows.r, item.key_head);
}

// Where things lie in the block's shared memory.
template <class Shape>
struct ByteShared90 {
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using Ring = sm90::Ring<Shape::Stages>;
  using Pair = sm90::Ring<2>;
  using Item = WorkItem<Shape>;
  static constexpr int bytes = Shape::item_offset + 2 * static_cast<int>(sizeof(Item));
  unsigned char* base;
  uint32_t at;

  __device__ explicit ByteShared90(unsigned char* base) : base(base), at(shared_address(base)) {}
  __device__ uint32_t q() const { return at; }
  __device__ uint32_t k(const Ring& i) const { return at + TileQ::bytes + i.stage * TileK::bytes; }
  __device__ int v_offset(const Ring& i) const {
    return TileQ::bytes + Shape::Stages * TileK::bytes + i.stage * TileV::bytes;
  }
  __device__ uint32_t v(const Ring& i) const { return at + v_offset(i); }
  __device__ float4* sums() const { return reinterpret_cast<float4*>(base + Shape::tile_bytes); }
  __device__ Item& item(const Pair& i) const {
    return reinterpret_cast<Item*>(base + Shape::item_offset)[i.stage];
  }

  __device__ uint32_t q_full() const { return at + Shape::tile_bytes + Shape::sum_bytes; }
  __device__ uint32_t q_empty() const { return q_full() + 8; }
  __device__ uint32_t item_full(const Pair& i) const { return q_full() + 16 + i.stage * 16; }
  __device__ uint32_t item_empty(const Pair& i) const { return q_full() + 24 + i.stage * 16; }
  __device__ uint32_t k_full(const Ring& i) const { return q_full() + 48 + i.stage * 32; }
  __device__ uint32_t k_empty(const Ring& i) const { return q_full() + 56 + i.stage * 32; }
  __device__ uint32_t v_full(const Ring& i) const { return q_full() + 64 + i.stage * 32; }
  __device__ uint32_t v_empty(const Ring& i) const { return q_full() + 72 + i.stage * 32; }
  __device__ uint32_t near() const { return q_full() + 48 + Shape::Stages * 32; }

  __device__ void init() const {
    constexpr int kWarps = 4 * Shape::Groups;
    sm90::barrier_init(q_full(), 1), sm90::barrier_init(q_empty(), kWarps);
    sm90::barrier_init(near(), 1);
    for (Pair i; i.phase == 0; i.next())
      sm90::barrier_init(item_full(i), 1), sm90::barrier_init(item_empty(i), kWarps + 1);
    for (Ring i; i.phase == 0; i.next()) {
      sm90::barrier_init(k_full(i), 1), sm90::barrier_init(v_full(i), 1);
      sm90::barrier_init(k_empty(i), kWarps), sm90::barrier_init(v_empty(i), kWarps);
    }
    sm90::barrier_init_done();
  }
};

// The thread that finds out what each work item is, one ahead of the copies.
template <class Shape, CodeScales Codes>
__device__ __forceinline__ void plan_items(const ByteShared90<Shape>& shared, const Codes& codes,
                                           const AttendGrid& grid, const WorkOrder& order,
                                           const Schedule& schedule) {
  typename ByteShared90<Shape>::Pair at;
  for (int w = blockIdx.x; w < schedule.works; w = schedule.take()) {
    sm90::barrier_wait(shared.item_empty(at), at.phase ^ 1);
    WorkItem<Shape>& item = shared.item(at);
    make_item(item, codes, grid, WorkPlace(order, w));
    if (item.tile.size <= 0) continue;
    sm90::barrier_arrive(shared.item_full(at));
    sm90::barrier_wait(shared.near(), at.stage);
    at.next();
  }
  schedule.leave();
  sm90::barrier_wait(shared.item_empty(at), at.phase ^ 1);
  shared.item(at).tile.size = 0;
  sm90::barrier_arrive(shared.item_full(at));
}

// The thread that copies.
template <class Shape>
__device__ __forceinline__ void copy_items(const ByteShared90<Shape>& shared,
                                           const AttendMaps& maps) {
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  constexpr int BN = Shape::BN;
  typename ByteShared90<Shape>::Pair item_at;
  typename ByteShared90<Shape>::Ring k_at, v_at;
  uint32_t q_phase = 0;
  for (;; item_at.next()) {
    const WorkItem<Shape>& item = shared.item(item_at);
    sm90::barrier_wait(shared.item_full(item_at), item_at.phase);
    if (item.tile.size <= 0) return;
    if (item.first < item.last) {
      sm90::barrier_wait(shared.q_empty(), q_phase ^ 1);
      q_phase ^= 1;
      sm90::copy_bytes<TileQ>(shared.q(), maps.q, shared.q_full(), 0, item.row, item.head,
                              item.batch);
    }
    // V follows K by a tile, as the products do: its stage is free only after the exponentials.
    const auto values = [&](int n) {
      sm90::barrier_wait(shared.v_empty(v_at), v_at.phase ^ 1);
      sm90::copy_bytes<TileV>(shared.v(v_at), maps.v, shared.v_full(v_at), item.column + n * BN, 0,
                              item.key_head, item.key_batch);
      v_at.next();
    };
    const int asks = min(item.first + Shape::near, item.last) - 1;
    if (item.first == item.last) sm90::barrier_arrive(shared.near());
    for (int n = item.last - 1; n >= item.first; --n) {
      if (n == asks) sm90::barrier_arrive(shared.near());
      sm90::barrier_wait(shared.k_empty(k_at), k_at.phase ^ 1);
      sm90::copy_bytes<TileK>(shared.k(k_at), maps.k, shared.k_full(k_at), 0, item.key_row + n * BN,
                              item.key_head, item.key_batch);
      k_at.next();
      if (n < item.last - 1) values(n + 1);
    }
    if (item.first < item.last) values(item.first);
    sm90::barrier_arrive(shared.item_empty(item_at));
  }
}

}  // namespace fovea::cuda
