// SPDX-License-Identifier: Apache-2.0
// The shape of the sweep over wide heads (attend_wide_sm90.cuh), and its shared memory.
//   A unit is 256 columns of 64 keys.  What is left of a key's width is its tail.  Both are rings.
//   v_in_k: V is the first columns of K, so the units of K are the halves of V too.
//
//   | width, V    | units of a tile | tail  | units in the ring |
//   | 576, in K   | 2               | 1     | 4                 |
//   | 512, in K   | 2               | none  | 4                 |
//   | 576, apart  | 2 of K, 2 of V  | 1     | 4                 |
//   | 512, apart  | 2 of K, 2 of V  | none  | 4                 |
//   | 256, apart  | 1 of K, 2 of V  | none  | 5                 |
#pragma once
#include "cuda/loop/shared_sm90.cuh"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

// How keys come.  tail: where K's columns past its units begin, as columns of the map of K.
struct WideMaps {
  CUtensorMap k, v;
  PageCuts pages;
  int32_t gather;  // rows of keys are copied one by one, by cp.async
};

template <int Dtype_, int D_, bool VInK_>
struct WideShape90 {
  static constexpr int Dtype = Dtype_, D = D_, E = 512, BM = 64, BN = 64;
  static constexpr bool v_in_k = VInK_;
  static constexpr int Groups = 2, threads = 128 * (Groups + 1);
  static constexpr bool cuts_groups = true;  // a row tile holds any 64 packed rows
  static constexpr int producer_warps = 1;   // Producer90: of keys by TMA
  static constexpr int prefetch = 2;
  static constexpr int producer_regs = 72, consumer_regs = 216;

  using TileQ = Swizzled<BM, D>;
  using TileK = Swizzled<BN, D>;
  using Unit = Swizzled<BN, 256>;
  using Panel = Swizzled<BN, 64>;
  static constexpr int key_units = D / 256, value_units = v_in_k ? 0 : 2;
  static constexpr int tile_units = key_units + value_units;
  static constexpr int Units = key_units == 1 ? 5 : 4;
  static constexpr bool has_tail = D % 256 != 0;
  static constexpr int Tails = has_tail ? 2 : 1;
  static_assert(D % 256 == 0 || D % 256 == 64);
  static_assert(!v_in_k || key_units == 2);
  static constexpr int q_bytes = TileQ::bytes;
  static constexpr int shared_bytes = 227 * 1024;
};

// The place in a ring of units: of a tile's first, or of one behind it.
template <int N>
struct UnitState : sm90::PipelineState<N> {
  __device__ UnitState plus(int units) const {
    UnitState at = *this;
    at.stage += units;
    if (at.stage >= N) at.stage -= N, at.phase ^= 1;
    return at;
  }
};

template <class Shape, class Source, class Mask>
struct WideLayout90 : sm90::SharedLayout {
  int q = tiles(Shape::q_bytes), units = tiles(Shape::Unit::bytes, Shape::Units),
      tails = tiles(Shape::has_tail ? Shape::Panel::bytes : 0, Shape::Tails),
      weights = tiles(Shape::Panel::bytes), slots = of<TileSlot<Source, Mask>>(2),
      pages = of<int>(2 * 32), absent = of<uint32_t>(2 * Shape::Units), words = of<int>(2),
      rows = of<float2>(Shape::BM), sums = of<float>(2 * 2 * Shape::BM), tile_pipe = pipeline<2>(),
      q_pipe = pipeline<1>(), unit_pipe = pipeline<Shape::Units>(),
      tail_pipe = pipeline<Shape::Tails>(), prefetch = barriers(), confirmed = barriers(2);
};

// The block's shared memory.  Beside the barriers of Shared90 for work items:
//
//   | barrier    | who arrives                     | who waits     | what it guards            |
//   | q full     | both row loaders                | consumers     | Q                         |
//   | q empty    | a lane of each consumer warp    | row loaders   | the same, to overwrite    |
//   | unit full  | TMA, or the loader that copied  | consumers     | 256 columns of 64 keys    |
//   | unit empty | a lane of each warp of one      | its loader    | the same, to overwrite    |
//   |            | warpgroup: the last to read it  |               |                           |
//   | tail full, tail empty: as of a unit | | | |
template <class Shape, class Source, class Mask>
struct WideShared90 {
  using Layout = WideLayout90<Shape, Source, Mask>;
  static constexpr Layout layout = Layout();
  static_assert(layout.bytes <= Shape::shared_bytes);
  using TilePipe = sm90::Pipeline<2>;
  using QPipe = sm90::Pipeline<1>;
  using UnitPipe = sm90::Pipeline<Shape::Units>;
  using TailPipe = sm90::Pipeline<Shape::Tails>;
  using TileState = typename TilePipe::State;
  using QState = typename QPipe::State;
  using KeyState = UnitState<Shape::Units>;
  using TailState = typename TailPipe::State;
  using Slot = TileSlot<Source, Mask>;
  unsigned char* base;
  uint32_t at;

  __device__ explicit WideShared90(unsigned char* base) : base(base), at(shared_address(base)) {}
  __device__ uint32_t q() const { return at + layout.q; }
  __device__ uint32_t unit(KeyState i) const {
    return at + layout.units + i.stage * Shape::Unit::bytes;
  }
  __device__ uint32_t tail(TailState i) const {
    return at + layout.tails + i.stage * Shape::Panel::bytes;
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
  // Bit j % 32 of word j / 32: key j of the tile whose first unit is i has no page.
  __device__ uint32_t* absent(KeyState i) const {
    return reinterpret_cast<uint32_t*>(base + layout.absent) + i.stage * 2;
  }
  // For the epilogue of a warpgroup.
  __device__ int* word(int group) const {
    return reinterpret_cast<int*>(base + layout.words) + group;
  }

  __device__ TilePipe tile_pipe() const { return {at + layout.tile_pipe}; }
  __device__ QPipe q_pipe() const { return {at + layout.q_pipe}; }
  __device__ UnitPipe unit_pipe() const { return {at + layout.unit_pipe}; }
  __device__ TailPipe tail_pipe() const { return {at + layout.tail_pipe}; }
  __device__ uint32_t tile_confirmed(TileState i) const {
    return at + layout.confirmed + i.stage * 8;
  }
  __device__ uint32_t prefetch_next() const { return at + layout.prefetch; }

  // Three loaders read a slot, beside the consumers.
  __device__ void init() const {
    constexpr int kLoaders = 3, kRowLoaders = 2, kWarps = 4;
    tile_pipe().init(1, kWarps * Shape::Groups + kLoaders);
    for (TileState i; i.phase == 0; i.next()) sm90::barrier_init(tile_confirmed(i), 1);
    q_pipe().init(kRowLoaders, kWarps * Shape::Groups);
    unit_pipe().init(1, kWarps), tail_pipe().init(1, kWarps);
    sm90::barrier_init(prefetch_next(), 1);
    sm90::barrier_init_done();
  }
};

}  // namespace fovea::cuda
