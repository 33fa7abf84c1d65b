// SPDX-License-Identifier: Apache-2.0
// The shape of the sweep over wide heads (attend_wide_sm90.cuh), and its shared memory.
//   A unit is 256 columns of 64 keys.  The parts of a tile of K are its units and its tail, what is
//   left of the width.  v_in_k: V is the first columns of K, so K's units are the halves of V too.
//
//   | width, V   | parts of K       | stages of K | units of V in the ring |
//   | 576, in K  | 2 units, a tail  | 2           | none                   |
//   | 512, in K  | 2 units          | 2           | none                   |
//   | 576, apart | 2 units, a tail  | 1; 2 tails  | 2                      |
//   | 512, apart | 2 units          | 1           | 2                      |
//   | 256, apart | 1 unit           | 2           | 3                      |
//
//   With q_value the query is (q_value, q), K is (v, k), and V is in K: v has the units, k the
//   tail. Codes: the same, where v is e4m3 and a third consumer of the loaders' kind converts it.
#pragma once
#include "cuda/loop/shared_sm90.cuh"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

struct WideMaps {
  CUtensorMap k, v;
  PageCuts pages;
  int32_t gather;  // rows of keys are copied one by one, by cp.async
};

template <int Dtype_, int D_, bool VInK_>
struct WideShape90 {
  static constexpr int Dtype = Dtype_, D = D_, E = 512, BM = 64, BN = 64;
  static constexpr bool v_in_k = VInK_, codes = false;
  static constexpr int Groups = 2, threads = 128 * (Groups + 1);
  static constexpr bool cuts_groups = true;  // a row tile holds any 64 packed rows
  static constexpr int producer_warps = 1;   // Producer90: of keys by TMA
  static constexpr int prefetch = 2;
  static constexpr int producer_regs = 88, consumer_regs = 208;
  // Warps that read a slot beside the consumers: loaders; arrivals that fill Q.
  static constexpr int readers = 3, q_arrivals = 2;
  // Those that copies of a part of a key tile make, if another warp tells consumers; those that
  // tell them.
  static constexpr int copy_arrivals = 0, full_arrivals = 1;
  static constexpr int absent_words = BN / 32;
  // The other's O += P V ends before S begins: where V is in K, the next tile waits for its place.
  static constexpr bool values_first = v_in_k;

  using TileQ = Swizzled<BM, D>;
  using TileK = Swizzled<BN, D>;
  using Unit = Swizzled<BN, 256>;
  using Panel = Swizzled<BN, 64>;
  static constexpr int key_units = D / 256, tails = D % 256 / 64, parts = key_units + tails;
  static constexpr int key_stages = v_in_k || key_units == 1 ? 2 : 1;
  static constexpr int stored_units = key_stages * key_units;
  static constexpr int value_units = v_in_k ? 0 : key_units == 1 ? 3 : 2;
  static constexpr bool joins = v_in_k && tails;  // K may be (v, k)
  static_assert(D % 64 == 0 && tails <= 1 && (!v_in_k || key_units == 2));
  static constexpr int q_bytes = TileQ::bytes;
  static constexpr int shared_bytes = 227 * 1024;
};

template <class Shape, class Source, class Mask>
struct WideLayout90 : sm90::SharedLayout {
  static constexpr int value_units = Shape::value_units ? Shape::value_units : 1;
  int q = tiles(Shape::q_bytes), keys = tiles(Shape::Unit::bytes, Shape::stored_units),
      values = tiles(Shape::Unit::bytes, Shape::value_units),
      tails = tiles(Shape::Panel::bytes, 2 * Shape::tails), weights = tiles(Shape::Panel::bytes),
      slots = of<TileSlot<Source, Mask>>(2), pages = of<int>(2 * 32),
      absent = of<uint32_t>(2 * Shape::absent_words), rows = of<float2>(Shape::BM),
      sums = of<float>(2 * 2 * Shape::BM), tile_pipe = pipeline(2), q_pipe = pipeline(1),
      key_full = barriers(2 * Shape::parts), key_empty = barriers(2 * Shape::parts),
      value_pipe = pipeline(value_units), prefetch = barriers(), confirmed = barriers(2),
      copied = barriers(Shape::copy_arrivals ? 2 * Shape::parts + value_units : 0);
};

// The block's shared memory.  Beside the barriers of Shared90 for work items:
//
//   | barrier     | who arrives                    | who waits     | what it guards         |
//   | q full      | both row loaders               | consumers     | Q                      |
//   | q empty     | a lane of each consumer warp   | row loaders   | the same, to overwrite |
//   | copied      | copies of lists' rows          | relay         | a part of K, half of V |
//   | key full    | TMA, loader that copied, relay | tile's owner  | a part of K            |
//   |             | codes: each converter warp     |               |                        |
//   | key empty   | a lane of each warp of         | its loader    | the same, to overwrite |
//   |             | the warpgroup that reads last  |               |                        |
//   | value full  | as key full                    | one warpgroup | its half of V          |
//   | value empty | a lane of each of its warps    | its loader    | the same, to overwrite |
//
//   Tiles are numbered through all work items of the block.  Odd and even ones have a key full of
//   their own: who waits for a barrier's phase must have seen the one before, and a tile's owner
//   sees every second tile.
template <class Shape, class Source, class Mask>
struct WideShared90 {
  using Layout = WideLayout90<Shape, Source, Mask>;
  static constexpr Layout layout = Layout();
  static_assert(layout.bytes <= Shape::shared_bytes);
  using TilePipe = sm90::Pipeline<2>;
  using QPipe = sm90::Pipeline<1>;
  using ValuePipe = sm90::Pipeline<Layout::value_units>;
  using TileState = typename TilePipe::State;
  using QState = typename QPipe::State;
  using KeyState = typename ValuePipe::State;
  using Slot = TileSlot<Source, Mask>;

  // Where tile `number` lies.
  struct Place {
    uint32_t number = 0;
    typename ValuePipe::State values;  // its first half

    __device__ void next() { ++number, values.next(), values.next(); }
    __device__ typename ValuePipe::State half(int group) const {
      auto at = values;
      if (group) at.next();
      return at;
    }
  };
  unsigned char* base;
  uint32_t at;

  __device__ explicit WideShared90(unsigned char* base) : base(base), at(shared_address(base)) {}
  __device__ uint32_t q() const { return at + layout.q; }
  // Part `part` of K of tile `number`: a unit, or the tail.
  __device__ uint32_t keys(uint32_t number, int part) const {
    if (part == Shape::key_units)
      return at + layout.tails + number % 2 * Shape::tails * Shape::Panel::bytes;
    return at + layout.keys +
           (number % Shape::key_stages * Shape::key_units + part) * Shape::Unit::bytes;
  }
  __device__ uint32_t key_full(uint32_t number, int part) const {
    return at + layout.key_full + (number % 2 * Shape::parts + part) * 8;
  }
  __device__ uint32_t key_empty(uint32_t number, int part) const {
    return at + layout.key_empty + (number % stages_of(part) * Shape::parts + part) * 8;
  }
  // Where a warp relays: copies have come, and are not yet fenced.
  __device__ uint32_t keys_copied(uint32_t number, int part) const {
    return at + layout.copied + (number % 2 * Shape::parts + part) * 8;
  }
  __device__ uint32_t values_copied(const typename ValuePipe::State& half) const {
    return at + layout.copied + (2 * Shape::parts + half.stage) * 8;
  }
  __device__ void wait_keys(uint32_t number, int part) const {
    sm90::barrier_wait(key_full(number, part), number / 2 % 2);
  }
  __device__ uint32_t empty_phase(uint32_t number, int part) const {
    return number / stages_of(part) % 2 ^ 1;
  }
  __device__ void release_keys(uint32_t number, int part) const {
    sm90::barrier_arrive_warp(key_empty(number, part));
  }
  // The half of V of a warpgroup.
  __device__ uint32_t values(const Place& tile, int group) const {
    if constexpr (Shape::v_in_k) return keys(tile.number, group);
    return at + layout.values + tile.half(group).stage * Shape::Unit::bytes;
  }
  __device__ void wait_values(const Place& tile, int group) const {
    if constexpr (Shape::v_in_k)
      wait_keys(tile.number, group);
    else
      value_pipe().wait(tile.half(group));
  }
  __device__ void release_values(const Place& tile, int group) const {
    if constexpr (Shape::v_in_k)
      release_keys(tile.number, group);
    else
      value_pipe().release(tile.half(group));
  }
  // P of a tile, which the warpgroup that computed it hands the other one.
  __device__ uint32_t weights() const { return at + layout.weights; }
  // Beside it, of each row: the maximum so far, and the scale of earlier sums.
  __device__ float2* rows() const { return reinterpret_cast<float2*>(base + layout.rows); }
  // A warpgroup's sums of weights of each row.
  __device__ float* sums(TileState i, int group) const {
    return reinterpret_cast<float*>(base + layout.sums) + (i.stage * 2 + group) * Shape::BM;
  }
  __device__ Slot& work(TileState i) const {
    return reinterpret_cast<Slot*>(base + layout.slots)[i.stage];
  }
  __device__ int* first_pages(TileState i) const {
    return reinterpret_cast<int*>(base + layout.pages) + i.stage * 32;
  }
  // Bit j % 32 of word j / 32: key j of the tile has no page.
  __device__ uint32_t* absent(uint32_t number) const {
    return reinterpret_cast<uint32_t*>(base + layout.absent) + number % 2 * Shape::absent_words;
  }

  __device__ TilePipe tile_pipe() const { return {at + layout.tile_pipe}; }
  __device__ QPipe q_pipe() const { return {at + layout.q_pipe}; }
  __device__ ValuePipe value_pipe() const { return {at + layout.value_pipe}; }
  __device__ uint32_t tile_confirmed(TileState i) const {
    return at + layout.confirmed + i.stage * 8;
  }
  __device__ uint32_t prefetch_next() const { return at + layout.prefetch; }

  __device__ void init() const {
    constexpr int kWarps = 4;
    tile_pipe().init(1, kWarps * Shape::Groups + Shape::readers);
    for (TileState i; i.phase == 0; i.next()) sm90::barrier_init(tile_confirmed(i), 1);
    q_pipe().init(Shape::q_arrivals, kWarps * Shape::Groups);
    for (int i = 0; i < 2 * Shape::parts; ++i) {
      sm90::barrier_init(at + layout.key_full + i * 8, Shape::full_arrivals);
      sm90::barrier_init(at + layout.key_empty + i * 8, kWarps);
    }
    value_pipe().init(1, kWarps);
    if constexpr (Shape::copy_arrivals > 0)
      for (int i = 0; i < 2 * Shape::parts + Layout::value_units; ++i)
        sm90::barrier_init(at + layout.copied + i * 8, Shape::copy_arrivals);
    sm90::barrier_init(prefetch_next(), 1);
    sm90::barrier_init_done();
  }

 private:
  __device__ static constexpr uint32_t stages_of(int part) {
    return part == Shape::key_units ? 2 : Shape::key_stages;
  }
};

}  // namespace fovea::cuda
