// SPDX-License-Identifier: Apache-2.0
// What conv_attention's gradient sweep (backward_sm90.cuh) has in shared memory, and the warp that
// copies it there.
#pragma once
#include <new>

#include "cuda/tile/convolve_sm80.cuh"
#include "cuda/tile/copy.cuh"
#include "cuda/tile/pipeline_sm90.cuh"
#include "ops/conv_attention/backward_work.cuh"

namespace fovea::cuda {

template <class Shape>
struct ConvGradientLayout90;

template <ConvGradientConfig90 C>
struct ConvGradient90 {
  static constexpr int Dtype = C.dtype, D = C.d, E = C.e, Pairs = C.pairs, Ahead = C.ahead,
                       Stages = C.stages, Groups = 2, BN = 64;
  static constexpr bool keys = C.lines == ConvLines::keys;  // the lines are keys
  static constexpr int BM = 64 * Groups, threads = 128 * (Groups + 1);
  // S and dout v' do not fit beside the sums.
  static constexpr bool crowded = !keys && D + 8 * Pairs * Ahead > 256;
  // Registers a thread, of the 168 that a block starts with.  The consumers take what the producer
  // warpgroup gives: setmaxnreg of more would wait for ever.
  static constexpr int producer_regs = crowded ? 24 : 40, consumer_regs = crowded ? 240 : 232;
  static_assert(producer_regs + Groups * consumer_regs <= 168 * (Groups + 1));
  // The next S and the last sums run under a step's convolutions.
  static constexpr bool roomy = !crowded && D + (keys ? E : 8 * Pairs * Ahead) <= 200;
  // dout v' runs under the weights, so that the last sums can under the next A.
  static constexpr bool late = keys && !roomy;
  using Bands = TapBands<Pairs, Ahead>;
  using LineD = Swizzled<BM, D>;
  using LineE = Swizzled<BM, E>;
  using TileD = Swizzled<BN, D>;
  using TileE = Swizzled<BN, E>;
  static constexpr int stage_bytes = TileD::bytes > TileE::bytes ? TileD::bytes : TileE::bytes;
  static constexpr int block_bytes = BM * 16, score_bytes = BN / 8 * block_bytes;
  static constexpr int shared_bytes = ConvGradientLayout90<ConvGradient90>().bytes;
};

template <class Shape>
struct ConvGradientLayout90 : sm90::SharedLayout {
  int line_d = tiles(Shape::LineD::bytes), line_e = tiles(Shape::LineE::bytes),
      ring = tiles(Shape::stage_bytes, Shape::Stages), scores = tiles(Shape::score_bytes, 4),
      bands = add(2 * Shape::Bands::table_bytes, 16),
      row_stats = of<float2>(Shape::keys ? Shape::Groups * 2 * Shape::BN : 0),
      slot = of<ConvGradientSlot>(), next_slot = of<ConvGradientSlot>(), line_pipe = pipeline(1),
      tile_pipe = pipeline(Shape::Stages);
};

template <class Shape>
struct ConvGradientShared90 {
  static constexpr ConvGradientLayout90<Shape> layout = ConvGradientLayout90<Shape>();
  static_assert(layout.bytes <= 227 * 1024);
  using LinePipe = sm90::Pipeline<1>;
  using TilePipe = sm90::Pipeline<Shape::Stages>;
  uint32_t base;
  __device__ LinePipe line_pipe() const { return {base + layout.line_pipe}; }
  __device__ TilePipe tile_pipe() const { return {base + layout.tile_pipe}; }
  __device__ void init() const {
    line_pipe().init(1, 4 * Shape::Groups), tile_pipe().init(1, 4 * Shape::Groups);
    sm90::barrier_init_done();
  }
};

// Asynchronous: see copy_commit() and copy_wait().
__device__ __forceinline__ void copy_pair(uint32_t to, const float2* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

// Zeroes the rows of a stage that no product may meet: all but [low, high).
template <class Tile, class Shape>
__device__ __forceinline__ void keep_rows(unsigned char* tile, int low, int high, int group) {
  for (int i = threadIdx.x % 128; i < Shape::BN * kPanelChunks; i += 128) {
    const int row = i / kPanelChunks;
    if (row >= low && row < high) continue;
#pragma unroll
    for (int panel = 0; panel < Tile::panels; ++panel)
      *reinterpret_cast<uint4*>(tile + panel * Tile::panel_bytes + i * 16) = make_uint4(0, 0, 0, 0);
  }
  sm90::fence_shared();
  sm90::named_barrier_sync(1 + group, 128);
}

// The producer warp.
template <class Shape>
__device__ __forceinline__ void copy_gradient(const ConvAttendBackward& b,
                                              const ConvGradientWork& more, unsigned char* shared) {
  const ConvAttend& c = b.forward;
  using Shared = ConvGradientShared90<Shape>;
  constexpr ConvGradientLayout90<Shape> layout = Shared::layout;
  const uint32_t base = shared_address(shared);
  const auto line_pipe = Shared{base}.line_pipe();
  const auto tile_pipe = Shared{base}.tile_pipe();
  ConvGradientSlot& work = *reinterpret_cast<ConvGradientSlot*>(shared + layout.next_slot);
  const auto leads = [] { return sm90::unhoisted(threadIdx.x % 32) == 0; };  // registers are few
  const ConvReach& reach = work.reach;  // this, and all of the work item, is read again each time
  const auto batch = [&](bool key) {
    return static_cast<int>(key ? work.seq.key_batch : work.seq.batch);
  };
  const auto row = [&](bool key) {
    return static_cast<int>(key ? work.seq.key_begin : work.seq.row_begin);
  };
  const auto out = [&] { return static_cast<int>(work.out.begin - c.history); };
  typename Shared::TilePipe::State at;
  sm90::Pipeline<1>::State line_at;
  // A work item requested early would wait here while others have none.
  for (TileScheduler scheduler(more.schedule, false); !scheduler.done(); scheduler.next(false)) {
    line_pipe.acquire(line_at);
    __syncwarp();  // the work item before was read by all lanes
    if (leads())
      new (&work) ConvGradientSlot(c, more, TileCoord(more.order, *scheduler),
                                   ConvReach(c, Shape::keys), Shape::keys, Shape::BM, Shape::BN);
    __syncwarp();
    if (!work.any) continue;
    const uint32_t line_full = line_pipe.full(line_at);
    line_at.next();
    if (leads()) {
      sm90::barrier_expect(line_full, Shape::LineD::bytes + Shape::LineE::bytes);
#pragma unroll 1
      for (int n = 0; n < Shape::Groups; ++n) {
        const int line = work.line + n * 64;
        const uint32_t to = base + n * 64 * kPanelRowBytes;
        const int head = Shape::keys ? work.g : work.head;
        sm90::tma_load_panels<typename Shape::LineD>(to, Shape::keys ? more.maps.k : more.maps.q,
                                                     line_full, line + row(Shape::keys), head,
                                                     batch(Shape::keys));
        sm90::tma_load_panels<typename Shape::LineE>(
            to + layout.line_e, Shape::keys ? more.maps.v : more.maps.dout, line_full,
            line - reach.below + (Shape::keys ? row(true) : out()), head, batch(Shape::keys));
      }
    }
    const auto copy = [&](auto tile, const CUtensorMap& map, int at_row, int head) {
      tile_pipe.acquire(at);
      if (leads())
        sm90::tma_load_tile<decltype(tile)>(base + layout.ring + at.stage * Shape::stage_bytes, map,
                                            tile_pipe.full(at), at_row, Shape::keys ? head : work.g,
                                            batch(!Shape::keys));
      at.next();
    };
    const auto copy_d = [&](int head, int column) {
      copy(typename Shape::TileD(), Shape::keys ? more.maps.q : more.maps.k,
           column + row(!Shape::keys), head);
    };
#pragma unroll 1
    for (int head = work.head; head < work.head + work.heads; ++head) {
      if (work.warm) copy_d(head, (work.last + 1) * Shape::BN - reach.low);
#pragma unroll 1
      for (int t = work.last; t >= work.lowest; --t) {
        copy_d(head, t * Shape::BN - reach.low);
        copy(typename Shape::TileE(), Shape::keys ? more.maps.dout : more.maps.v,
             t * Shape::BN + (Shape::keys ? out() : row(true)), head);
        copy_d(head, t * Shape::BN + reach.high);
      }
      if (work.extra) copy_d(head, reach.high - Shape::BN);
    }
  }
  line_pipe.acquire(line_at);
  __syncwarp();
  if (!leads()) return;
  work.any = false;
  line_pipe.arrive(line_at);
}

}  // namespace fovea::cuda
