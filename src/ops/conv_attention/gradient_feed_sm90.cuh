// SPDX-License-Identifier: Apache-2.0
// What feeds the gradient sweep of Hopper and takes its sums: where tiles lie in shared memory, the
// warp that copies them there, and the rows that no product may meet.
#pragma once
#include <new>

#include "cuda/loop/sink.cuh"
#include "cuda/tile/convolve_sm80.cuh"
#include "cuda/tile/mma_sm90.cuh"
#include "ops/conv_attention/backward_work.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_, ConvLines Lines_, int Pairs_, int Ahead_, int Stages_>
struct ConvGradient90 {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, Pairs = Pairs_, Ahead = Ahead_,
                       Stages = Stages_, Groups = 2, BN = 64;
  static constexpr bool keys = Lines_ == ConvLines::keys;  // the lines are keys
  static constexpr int BM = 64 * Groups, threads = 128 * (Groups + 1);
  static constexpr int copying = 32, computing = 240;
  using Bands = TapBands<Pairs, Ahead>;
  using LineD = Swizzled<BM, D>;
  using LineE = Swizzled<BM, E>;
  using TileD = Swizzled<BN, D>;
  using TileE = Swizzled<BN, E>;
  static constexpr int stage_bytes = TileD::bytes > TileE::bytes ? TileD::bytes : TileE::bytes;
  static constexpr int block_bytes = 64 * 16, score_bytes = BN / 8 * block_bytes;
  static constexpr int line_e = LineD::bytes, ring = line_e + LineE::bytes,
                       scores = ring + Stages * stage_bytes,
                       bands = scores + Groups * 4 * score_bytes,
                       works = bands + Groups * 2 * Bands::table_bytes,
                       barriers = works + (static_cast<int>(sizeof(ConvGradientSlot)) + 7) / 8 * 8,
                       shared_bytes = barriers + 8 * (4 + 2 * Stages);
  static_assert(shared_bytes <= 227 * 1024);
};

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
  sm90::meet(1 + group, 128);
}

// The copying warp.
template <class Shape>
__device__ __forceinline__ void copy_gradient(const ConvAttendBackward& b,
                                              const ConvGradientWork& more, unsigned char* shared) {
  const ConvAttend& c = b.forward;
  const uint32_t base = shared_address(shared), line_full = base + Shape::barriers;
  const uint32_t line_empty = line_full + 8, work_empty = line_full + 16;
  const uint32_t full = line_full + 32;
  ConvGradientSlot& work = *reinterpret_cast<ConvGradientSlot*>(shared + Shape::works);
  const int lane = threadIdx.x % 32;
  const ConvReach reach(c, Shape::keys);
  sm90::Ring<Shape::Stages> at;
  uint32_t phase = 0;
  for (Works works(more.schedule); !works.done(); works.next()) {
    sm90::barrier_wait(work_empty, phase ^ 1);
    if (lane == 0)
      new (&work) ConvGradientSlot(c, more, WorkPlace(more.order, *works), reach, Shape::keys,
                                   Shape::Groups, Shape::BN);
    __syncwarp();
    if (!work.any) continue;
    sm90::barrier_wait(line_empty, phase ^ 1);
    phase ^= 1;
    const Sequence& seq = work.seq;
    const int batch = static_cast<int>(seq.batch), key_batch = static_cast<int>(seq.key_batch);
    const int row = static_cast<int>(seq.row_begin), key = static_cast<int>(seq.key_begin);
    const int out = static_cast<int>(work.out.begin - c.history);
    if (lane == 0) {
      sm90::barrier_expect(line_full, Shape::LineD::bytes + Shape::LineE::bytes);
#pragma unroll 1
      for (int n = 0; n < Shape::Groups; ++n) {
        const int line = work.line + n * reach.own(), to = n * 64 * kPanelRowBytes;
#pragma unroll
        for (int panel = 0; panel < Shape::LineD::panels; ++panel)
          sm90::copy_box(base + panel * Shape::LineD::panel_bytes + to,
                         Shape::keys ? more.maps.k : more.maps.q, line_full, panel * 64,
                         line + (Shape::keys ? key : row), Shape::keys ? work.g : work.head,
                         Shape::keys ? key_batch : batch);
#pragma unroll
        for (int panel = 0; panel < Shape::LineE::panels; ++panel)
          sm90::copy_box(base + Shape::line_e + panel * Shape::LineE::panel_bytes + to,
                         Shape::keys ? more.maps.v : more.maps.dout, line_full, panel * 64,
                         line + (Shape::keys ? key : out), Shape::keys ? work.g : work.head,
                         Shape::keys ? key_batch : batch);
      }
    }
    const auto copy = [&](auto tile, const CUtensorMap& map, int at_row, int head, int at_batch) {
      const uint32_t stage = full + at.stage * 16;
      sm90::barrier_wait(stage + 8, at.phase ^ 1);
      if (lane == 0)
        sm90::copy_tile<decltype(tile)>(base + Shape::ring + at.stage * Shape::stage_bytes, map,
                                        stage, at_row, head, at_batch);
      at.next();
    };
    const auto copy_d = [&](int head, int column) {
      copy(typename Shape::TileD(), Shape::keys ? more.maps.q : more.maps.k,
           column + (Shape::keys ? row : key), Shape::keys ? head : work.g,
           Shape::keys ? batch : key_batch);
    };
    for (int head = work.head; head < work.head + work.heads; ++head) {
      for (int t = work.last; t >= work.lowest; --t) {
        copy_d(head, t * Shape::BN - reach.low);
        copy(typename Shape::TileE(), Shape::keys ? more.maps.dout : more.maps.v,
             t * Shape::BN + (Shape::keys ? out : key), Shape::keys ? head : work.g,
             Shape::keys ? batch : key_batch);
        copy_d(head, t * Shape::BN + reach.high);
      }
      if (work.extra) copy_d(head, reach.high - Shape::BN);
    }
  }
  sm90::barrier_wait(work_empty, phase ^ 1);
  sm90::barrier_wait(line_empty, phase ^ 1);
  if (lane != 0) return;
  work.any = false;
  sm90::barrier_arrive(line_full);
}

// dq, or dk and dv, of the lane's lines.
template <class Shape, int N, int M>
__device__ __forceinline__ void store_gradient(const ConvAttendBackward& b,
                                               const ConvGradientWork& more,
                                               const ConvGradientSlot& work, const ConvReach& reach,
                                               int mine, int group, int warp, bool any,
                                               float (&sum)[N][4], float (&dv)[M][4]) {
  const Attend& a = b.forward.attend;
  const auto store = [&](const View<4>& out, int width, auto& x, float factor) {
    if (!out) return;
#pragma unroll
    for (int j = 0; j < static_cast<int>(sizeof x / 16); ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e)
        if (!any) x[j][e] = 0.f;
    const Sequence& seq = work.seq;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int local = warp * 16 + half * 8 + threadIdx.x % 32 / 4, line = mine + 8 * half;
      const bool own = local >= reach.halo && local < 64 - reach.halo && line >= 0 &&
                       line < (Shape::keys ? work.keys : work.rows);
      const int64_t at = Shape::keys
                             ? seq.key_batch * out.stride[0] +
                                   (seq.key_begin + line) * out.stride[1] + work.g * out.stride[2]
                             : seq.batch * out.stride[0] + (seq.row_begin + line) * out.stride[1] +
                                   work.head * out.stride[2];
      store_row<Shape::Dtype>(own ? static_cast<uint16_t*>(out.data) + at : nullptr, width, x, half,
                              factor);
    }
  };
  store(Shape::keys ? b.dk : b.dq, static_cast<int>(a.d), sum, a.score.scale);
  if constexpr (Shape::keys) store(b.dv, static_cast<int>(a.e), dv, 1.f);
}

}  // namespace fovea::cuda
