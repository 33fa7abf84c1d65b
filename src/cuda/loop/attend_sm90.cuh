// SPDX-License-Identifier: Apache-2.0
// The sweep over keys on Hopper: o = softmax(scores(q k') + ...) v, for BM rows.
//   A block owns BM = 64 x Groups rows of one sequence and head; warpgroup 0 only copies, each of
//   the Groups others owns 64 rows, a warp 16 of them, so its softmax never leaves the warp.  It
//   walks BN-key tiles from last to first.  Of a step: S = Q K' of this tile and O += P V of the
//   last are both in flight; S alone is waited for, masked and exponentiated while O runs.
//   Shared memory: Q (BM x D), Stages x K (BN x D), Stages x V (BN x E), barriers, the RowTile.
//   Barriers: q full; k, v full (bytes) and empty (one arrival a consuming warp) for each stage.
//   V rows past the last key are zeroed where the tensor goes on: no weight would undo a NaN there.
// Policies: Score and Mask (tile_policy.cuh), Sink (sink.cuh), as in attend_sm80.cuh.
// FlashAttention-3 (2407.08608).
#pragma once
#include <new>

#include "cuda/block/softmax.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/sink.cuh"
#include "cuda/loop/tile_policy.cuh"
#include "cuda/tensor_map.h"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/mma_sm90.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_, int Groups_, int BN_, int Stages_>
struct AttendShape90 {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, Groups = Groups_, BN = BN_, Stages = Stages_;
  static constexpr int BM = 64 * Groups;
  static constexpr int threads = 128 * (Groups + 1);
  // Registers a thread, of 64 K: the copying warpgroup gives what the others take.
  static constexpr int copying = Groups == 3 ? 32 : 24, computing = Groups == 3 ? 160 : 240;
  using TileQ = Swizzled<BM, D>;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  static constexpr int tile_bytes = TileQ::bytes + Stages * (TileK::bytes + TileV::bytes);
  static constexpr int barriers = 1 + 4 * Stages;
  static constexpr int shared_bytes = tile_bytes + barriers * 8 + 16 + sizeof(RowTile);
};

// Which (sequence, head, row tile) a block owns: within a section of heads whose keys the cache
// holds, longest row tiles first and heads fastest.
struct BlockWork {
  int64_t sequence, head, row_tile;
  __device__ BlockWork(const AttendGrid& grid, int64_t heads, int64_t section) {
    const int64_t per = grid.row_tiles * section, part = blockIdx.x / per, at = blockIdx.x % per;
    const int64_t most = heads - part * section, width = most < section ? most : section;
    const int64_t index = part * section + at % width;
    row_tile = at / width;
    if (grid.reversed) row_tile = grid.row_tiles - 1 - row_tile;
    sequence = index / grid.heads, head = index % grid.heads;
  }
};

template <class Shape, TileScore Score, TileMask Mask, class Sink>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_sm90(const __grid_constant__ Attend a, const __grid_constant__ AttendGrid grid,
                const __grid_constant__ AttendMaps maps, int64_t section,
                const __grid_constant__ Sink sink) {
  constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BN = Shape::BN, BM = Shape::BM;
  constexpr int Stages = Shape::Stages, Groups = Shape::Groups;
  using TileQ = typename Shape::TileQ;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using Ring = sm90::Ring<Stages>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const uint32_t s_q = shared_address(shared), s_k = s_q + TileQ::bytes,
                 s_v = s_k + Stages * TileK::bytes, q_full = s_q + Shape::tile_bytes;
  const auto k_full = [&](const Ring& at) { return q_full + 8 + at.stage * 32; };
  const auto k_empty = [&](const Ring& at) { return q_full + 16 + at.stage * 32; };
  const auto v_full = [&](const Ring& at) { return q_full + 24 + at.stage * 32; };
  const auto v_empty = [&](const Ring& at) { return q_full + 32 + at.stage * 32; };
  const int lane = threadIdx.x % 32, warp = sm90::uniform(threadIdx.x / 32),
            group = sm90::uniform(threadIdx.x / 128) - 1;  // -1 copies

  RowTile& tile = *reinterpret_cast<RowTile*>(shared + Shape::tile_bytes +
                                              (Shape::barriers * 8 + 15) / 16 * 16);
  if (threadIdx.x == 0) {
    const BlockWork work(grid, grid.heads * a.sequences.count, section);
    new (&tile)
        RowTile(a, grid, work.sequence, work.head, static_cast<int>(work.row_tile * BM), BM);
    sm90::barrier_init(q_full, 1);
    for (Ring at; at.phase == 0; at.next()) {
      sm90::barrier_init(k_full(at), 1), sm90::barrier_init(v_full(at), 1);
      sm90::barrier_init(k_empty(at), 4 * Groups), sm90::barrier_init(v_empty(at), 4 * Groups);
    }
    sm90::barrier_init_done();
  }
  __syncthreads();
  if (tile.size <= 0) return;
  const Sequence& seq = tile.rows.seq;
  const KeyTiles tiles = key_tiles(a.mask, seq, tile.rows.head_begin(), tile.rows.head_end(),
                                   tile.first_query(), tile.end_query(), BN);
  const int first = sm90::uniform(static_cast<int>(tiles.first)),
            last = sm90::uniform(static_cast<int>(tiles.last));

  if (group < 0) {
    sm90::give_registers<Shape::copying>();
    if (warp != 0 || !sm90::elect_one() || first == last) return;
    const int key_head = static_cast<int>(tile.key_head(a)),
              key_batch = static_cast<int>(seq.key_batch),
              key_begin = static_cast<int>(seq.key_begin);
    sm90::copy_tile<TileQ>(s_q, maps.q, q_full,
                           static_cast<int>(seq.row_begin) + tile.first_query(),
                           static_cast<int>(tile.rows.g), static_cast<int>(seq.batch));
    Ring at;
    for (int n = last - 1; n >= first; --n, at.next()) {
      sm90::barrier_wait(k_empty(at), at.phase ^ 1);
      sm90::copy_tile<TileK>(s_k + at.stage * TileK::bytes, maps.k, k_full(at), key_begin + n * BN,
                             key_head, key_batch);
      sm90::barrier_wait(v_empty(at), at.phase ^ 1);
      sm90::copy_tile<TileV>(s_v + at.stage * TileV::bytes, maps.v, v_full(at), key_begin + n * BN,
                             key_head, key_batch);
    }
    return;
  }

  sm90::take_registers<Shape::computing>();
  const int row = tile.begin + group * 64 + warp % 4 * 16;
  const Score score(a, tile);
  const Mask mask(a, tile, BN);
  OnlineSoftmax<1> state;
  float x[1][BN / 8][4], o[1][E / 8][4], alpha[1][2];
  uint32_t p[1][BN / 16][4];
  Ring k_at, v_at;
  const uint64_t q_rows = sm90::descriptor(s_q + group * 64 * kPanelRowBytes);
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };
  const auto scores = [&] {
    sm90::barrier_wait(k_full(k_at), k_at.phase);
    sm90::fence();
    sm90::product_rows<Dtype, D, TileQ, TileK>(x[0], q_rows,
                                               sm90::descriptor(s_k + k_at.stage * TileK::bytes));
    sm90::commit();
  };
  const auto values = [&](bool accumulate) {
    sm90::barrier_wait(v_full(v_at), v_at.phase);
    sm90::product_columns<Dtype>(
        o[0], p[0], sm90::descriptor(s_v + v_at.stage * TileV::bytes, TileV::panel_bytes),
        accumulate);
    sm90::commit();
  };
  const auto weigh = [&](int n) {
    score.apply(x, n * BN, row);
    if (!mask.full(n)) mask.apply(x, n * BN, row);
    state.weigh(x, alpha, score.factor);
  };

#pragma unroll
  for (int j = 0; j < E / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) o[0][j][c] = 0.f;
  if (first < last) {
    const int tail = tile.keys - (last - 1) * BN;
    if (tail < BN && seq.key_begin + tile.keys < a.t) {
      sm90::barrier_wait(v_full(v_at), 0);
      for (int i = tail * 8 + threadIdx.x - 128; i < BN * 8; i += Groups * 128)
#pragma unroll
        for (int panel = 0; panel < TileV::panels; ++panel)
          *reinterpret_cast<uint4*>(shared + (s_v - s_q) + panel * TileV::panel_bytes + i * 16) =
              make_uint4(0, 0, 0, 0);
      sm90::fence_shared();
      sm90::meet(1, Groups * 128);
    }
    sm90::barrier_wait(q_full, 0);
    scores();
    sm90::wait<0>();
    sm90::pin(x[0]);
    release(k_empty(k_at));
    k_at.next();
    weigh(last - 1);
    pack_operand<Dtype>(p, x);
#pragma unroll 1
    for (int n = last - 2; n >= first; --n) {
      scores();
      values(n != last - 2);
      sm90::wait<1>();
      sm90::pin(x[0]);
      release(k_empty(k_at));
      k_at.next();
      weigh(n);
      sm90::wait<0>();
      sm90::pin(o[0]);
      release(v_empty(v_at));
      v_at.next();
      pack_operand<Dtype>(p, x);
      state.shrink(o, alpha);
    }
    sm90::fence();
    values(last - 1 != first);
    sm90::wait<0>();
    sm90::pin(o[0]);
  }

  each_row<1>(row, [&](int i, int half, int m) {
    const float sum = state.total(i, half);
    const float top =
        state.m[i][half] == kNegativeInfinity ? kNegativeInfinity : state.m[i][half] * score.factor;
    sink.template store<Dtype>(a, tile, m, m < tile.count, 0, top, sum, o[i], half);
  });
}

}  // namespace fovea::cuda
