// SPDX-License-Identifier: Apache-2.0
// The gradient of attention on Hopper, five products, one owner for dk and dv:
//   p' = exp(k q' - lse),  ds' = p' (v dout' - delta),  dv += p' dout,  dk += ds' q,  dq += ds k
// A block owns 128 keys of a sequence and key head and walks the row tiles of the group's heads.
// Warpgroup 0 copies (warp 0) and drains dq (warps 1, 2); the two others own 64 keys each: scores
// stand keys by rows, so p' and ds' leave the registers as operands of dv and dk, and ds alone goes
// through shared memory, from where each group takes its half of dq = ds k.
// Shared memory: K, V (128 x D, E), StagesQ x Q and StagesO x dO (BM x D, E), two ds (128 x BM), dq
// in f32, StagesQ x (lse, delta) of BM rows, the block's sequence and place, barriers.
// Barriers: k and v full; q, dout full (bytes) and empty (one arrival a computing warp) of each
// stage; dq full, for even and odd tiles, and empty, of each half; named barrier 1: ds is written.
// dq is summed in the workspace block of keys by block of keys, each waiting until the one before
// it has added to the tile; blocks start in that order, so none waits for a later one.
// FlashAttention-3 (2407.08608).
#pragma once
#include <new>

#include "cuda/loop/backward_turn_sm90.cuh"
#include "cuda/loop/pair_policy.cuh"

namespace fovea::cuda {

struct GradientConfig90 {
  int dtype, d, e;
  int rows;  // of a tile
  int stages_q, stages_dout;
};

template <GradientConfig90 C, SlopePolicy Slopes_>
struct BackwardShape90 {
  using Slopes = Slopes_;
  static constexpr int Dtype = C.dtype, D = C.d, E = C.e, BM = C.rows, BN = 128;
  static constexpr int StagesQ = C.stages_q, StagesO = C.stages_dout;
  static constexpr int groups = BN / 64, threads = 128 * (groups + 1);
  static constexpr int copying = 24, computing = 240;  // registers a thread
  // Where the exponents of a tile run: under ds k and ds' q of the tile before, or, where they are
  // the longer part and there is dv to leave for later, under v dout' of their own.
  static constexpr bool ahead = D > 64 || !Slopes::weights;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  using TileQ = Swizzled<BM, D>;
  using TileO = Swizzled<BM, E>;
  using TileS = Swizzled<BN, BM>;
  static constexpr int chunk_bytes = kChunkFloats * 4;
  static constexpr int chunks = BM / kChunkRows * TileK::panels;  // of dq
  static_assert(chunks == groups, "a chunk for each warpgroup");
  static_assert(StagesO == 2, "a tile's stage of dout says whether it is even");
  static constexpr int side_bytes = Slopes::sides * BM * 4;
  static constexpr int v = TileK::bytes, q = v + TileV::bytes, dout = q + StagesQ * TileQ::bytes,
                       ds = dout + StagesO * TileO::bytes, dq = ds + 2 * TileS::bytes,
                       side = dq + groups * chunk_bytes, sequence = side + StagesQ * side_bytes,
                       block = sequence + (sizeof(Sequence) + 15) / 16 * 16,
                       barriers = block + (sizeof(BackwardBlock) + 15) / 16 * 16;
  static constexpr int shared_bytes = barriers + (2 + 2 * StagesQ + 2 * StagesO + 3 * groups) * 8;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_bwd_sm90(const __grid_constant__ AttendBackward b,
                    const __grid_constant__ BackwardMaps maps,
                    const __grid_constant__ BackwardWork work,
                    const __grid_constant__ BackwardGrid90 grid,
                    const __grid_constant__ typename Shape::Slopes::Args args) {
  constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BM = Shape::BM, BN = Shape::BN;
  constexpr int Groups = Shape::groups;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  using TileS = typename Shape::TileS;
  using RingQ = sm90::Ring<Shape::StagesQ>;
  using RingO = sm90::Ring<Shape::StagesO>;
  extern __shared__ __align__(1024) unsigned char shared[];
  const Attend& a = b.forward;
  const uint32_t base = shared_address(shared), kv_full = base + Shape::barriers;
  const uint32_t raw = kv_full + 8, rings = raw + 8;
  const auto q_full = [&](const RingQ& at) { return rings + at.stage * 16; };
  const auto q_empty = [&](const RingQ& at) { return rings + at.stage * 16 + 8; };
  const uint32_t ring_dout = rings + Shape::StagesQ * 16;
  const auto dout_full = [&](const RingO& at) { return ring_dout + at.stage * 16; };
  const auto dout_empty = [&](const RingO& at) { return ring_dout + at.stage * 16 + 8; };
  const uint32_t ring_dq = ring_dout + Shape::StagesO * 16;
  const auto dq_full = [&](int w, int odd) { return ring_dq + w * 24 + odd * 8; };
  const auto dq_empty = [&](int w) { return ring_dq + w * 24 + 16; };
  unsigned char* const s_sequence = shared + Shape::sequence;
  const int lane = threadIdx.x % 32, warp = sm90::uniform(threadIdx.x / 32),
            group = sm90::uniform(threadIdx.x / 128) - 1;  // -1 copies

  if (threadIdx.x < 4) sm90::prefetch_map((&maps.q)[threadIdx.x]);
  if (threadIdx.x == 0) {
    auto* const block = new (shared + Shape::block) BackwardBlock(grid);
    const auto* const own = new (s_sequence) Sequence{a.sequences[block->r]};
    block->place_tail(a.mask, own->keys, BN);
    sm90::barrier_init(kv_full, 2), sm90::barrier_init(raw, 1);
    for (RingQ s; s.phase == 0; s.next())
      sm90::barrier_init(q_full(s), 1), sm90::barrier_init(q_empty(s), 4 * Groups);
    for (RingO s; s.phase == 0; s.next())
      sm90::barrier_init(dout_full(s), 1), sm90::barrier_init(dout_empty(s), 4 * Groups);
    for (int w = 0; w < Groups; ++w) {
      sm90::barrier_init(dq_full(w, 0), 4), sm90::barrier_init(dq_full(w, 1), 4);
      sm90::barrier_init(dq_empty(w), 1);
    }
    sm90::barrier_init_done();
  }
  __syncthreads();
  const Sequence& seq = *reinterpret_cast<const Sequence*>(s_sequence);
  const auto& block = *reinterpret_cast<const BackwardBlock*>(shared + Shape::block);
  if (block.idle) return;
  const int g = block.g, n = block.n;
  const int keys = static_cast<int>(seq.keys), rows = static_cast<int>(seq.rows);
  if (block.part >= 0) return store_part<Shape>(b, work, seq, block);
  const int key_begin = n * BN, key_end = min(key_begin + BN, keys);
  if (key_begin >= keys) return;
  const RowWalk walk(a, seq, g, key_begin, key_end, BM, block.down);
  const int first_tile = static_cast<int>(work.tiles.first(seq, block.r));

  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::copying>();
    if (walk.count() == 0) return;
    if (warp == 0) {
      copy_tiles<Shape>(a, maps, work, seq, block, walk, args, base);
    } else if (warp <= 2 && lane == 0) {
      // Two warps take turns, so that one tile's additions may end while the next one's begin.
      uint32_t phase = 0;
      int mine = warp - 1;
      walk.each([&](int h, int m) {
        if (mine ^= 1; mine == 0) return;
        const int tile = h * work.tiles.total + first_tile + m;
        const SeenBlocks seen(a.mask, rows, keys, m * BM, min(m * BM + BM, rows), BN);
        // The first of the tile's blocks to start stores, the others wait for their turn to add.
        const int turn = work.ordered ? seen.before(block) : 1;
        if (work.ordered) wait_turn(work.turn + tile, turn);
        float* to = work.dq + static_cast<int64_t>(tile) * (Groups * kChunkFloats);
#pragma unroll
        for (int w = 0; w < Groups; ++w) {
          const uint32_t from = base + Shape::dq + w * Shape::chunk_bytes;
          sm90::barrier_wait(dq_full(w, warp - 1), phase);
          if (!work.dq) continue;
          if (turn == 0)
            sm90::copy_out(to + w * kChunkFloats, from, Shape::chunk_bytes);
          else
            sm90::add_out(to + w * kChunkFloats, from, Shape::chunk_bytes);
          sm90::out_commit();
        }
        sm90::out_wait_read<1>();
        sm90::barrier_arrive(dq_empty(0));
        sm90::out_wait_read<0>();
        sm90::barrier_arrive(dq_empty(1));
        sm90::out_wait<0>();
        if (work.dq) pass_turn(work.turn + tile);
        phase ^= 1;
      });
    }
    return;
  }

  sm90::setmaxnreg_inc<Shape::computing>();
  if constexpr (Shape::Slopes::clears_keys)
    if (walk.count() > 0) {
      sm90::barrier_wait(kv_full, 0);
      clear_odd_rows<Dtype, TileK>(shared, group * 64 + warp % 4 * 16);
      clear_odd_rows<Dtype, TileV>(shared + Shape::v, group * 64 + warp % 4 * 16);
      sm90::named_barrier_sync(1, 128 * Groups);
    }
  const int own = key_begin + group * 64 + warp % 4 * 16 + lane / 4;  // first key of the lane
  const typename Shape::Slopes slopes(a, seq, args);
  float dk[D / 8][4], dv[E / 8][4], x[1][BM / 8][4], dp[1][BM / 8][4], dq[8][4];
  uint32_t p[1][BM / 16][4], ds[1][BM / 16][4];
  constexpr bool Weights = Shape::Slopes::weights;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
#pragma unroll
    for (int j = 0; j < D / 8; ++j) dk[j][c] = 0.f;
#pragma unroll
    for (int j = 0; j < E / 8; ++j) dv[j][c] = 0.f;
  }
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };
  const uint64_t k_rows = sm90::descriptor(base + group * 64 * kPanelRowBytes);
  const uint64_t v_rows = sm90::descriptor(base + Shape::v + group * 64 * kPanelRowBytes);
  // This warpgroup's chunk of dq: 64 rows of ds by 64 columns of k.
  constexpr int Panels = TileK::panels;
  const uint64_t k_columns = sm90::descriptor(base + group % Panels * TileK::panel_bytes);
  const uint32_t ds_lane =
      TileS::at(group * 64 + warp % 4 * 16 + outer_row(lane), outer_chunk(lane));
  RingQ q_at;
  RingO dout_at;
  int left = walk.count(), m = walk.first;
  const auto tile_q = [&](const RingQ& at) { return base + Shape::q + at.stage * TileQ::bytes; };
  // The first value of the lane's rows 2 t, 2 t + 1 of each 8; the next lies BM / 2 on.
  const auto side = [&](const RingQ& at) {
    return reinterpret_cast<const float2*>(shared + Shape::side + at.stage * Shape::side_bytes) +
           lane % 4;
  };
  const auto full = [&](int m) {
    return slopes.pairs.full(m * BM, m * BM + BM, key_begin, key_begin + BN);
  };
  const auto scores = [&](const RingQ& at) {
    sm90::fence();
    sm90::product_rows<Dtype, D, TileK, TileQ>(x[0], sm90::unhoisted(k_rows),
                                               sm90::descriptor(tile_q(at)));
    sm90::commit();
  };
  const auto weigh = [&](const RingQ& at, int m) {
    weigh_tile(x[0], slopes, side(at), m * BM + lane % 4 * 2, own, full(m));
  };
  const auto slope = [&](const RingQ& at, int m) {
    slope_tile(
        dp[0], slopes,
        [&](int j) { return make_float4(x[0][j][0], x[0][j][1], x[0][j][2], x[0][j][3]); },
        side(at), full(m));
  };
  if (left > 0) {
    sm90::barrier_wait(kv_full, 0);
    sm90::barrier_wait(q_full(q_at), 0);
    scores(q_at);
    sm90::wait<0>();
    sm90::pin(x[0]);
    if constexpr (Shape::ahead) weigh(q_at, m);
#pragma unroll 1
    do {
      const uint32_t s_dout = base + Shape::dout + dout_at.stage * TileO::bytes,
                     s_ds = base + Shape::ds + dout_at.stage * TileS::bytes;
      // After the last tile, the scores are of any that is at hand.
      RingQ next = q_at;
      next.next();
      const int row_tile = m;
      if ((m += walk.step) == walk.end) m = walk.first;
      const auto next_scores = [&] {
        if (left > 1) sm90::barrier_wait(q_full(next), next.phase);
        scores(next);
      };
      sm90::barrier_wait(dout_full(dout_at), dout_at.phase);
      sm90::fence();
      sm90::product_rows<Dtype, E, TileV, TileO>(dp[0], sm90::unhoisted(v_rows),
                                                 sm90::descriptor(s_dout));
      sm90::commit();
      if constexpr (!Shape::ahead) weigh(q_at, row_tile);
      sm90::wait<0>();
      sm90::pin(dp[0]);
      if constexpr (!Weights) release(dout_empty(dout_at));
      slope(q_at, row_tile);
      pack_operand<Dtype>(ds, dp);
      if constexpr (Weights) pack_operand<Dtype>(p, x);
#pragma unroll
      for (int k = 0; k < BM / 16; ++k)
        sm90::store_matrices(TileS::pair(s_ds + ds_lane, k), ds[0][k]);
      sm90::fence_shared();
      if constexpr (Weights) {
        sm90::fence();
        sm90::product_columns<Dtype>(dv, p[0], sm90::descriptor(s_dout, TileO::panel_bytes), true);
        sm90::commit();
      }
      if constexpr (Shape::ahead) {
        next_scores();
        if constexpr (Weights) {
          sm90::wait<1>();
          sm90::pin(dv);
          release(dout_empty(dout_at));
        }
      }
      sm90::named_barrier_sync(1, 128 * Groups);
      sm90::fence();
      sm90::product_turned<Dtype, BN>(dq,
                                      sm90::descriptor(s_ds + group / Panels * TileS::panel_bytes),
                                      sm90::unhoisted(k_columns));
      sm90::commit();
      if constexpr (Weights && !Shape::ahead) {
        sm90::wait<1>();
        sm90::pin(dv);
        release(dout_empty(dout_at));
      }
      sm90::product_columns<Dtype>(dk, ds[0], sm90::descriptor(tile_q(q_at), TileQ::panel_bytes),
                                   true);
      sm90::commit();
      if constexpr (Shape::ahead) {
        sm90::wait<2>();
        sm90::pin(x[0]);
        weigh(next, m);
      }
      sm90::wait<1>();
      sm90::pin(dq);
      sm90::barrier_wait(dq_empty(group), dout_at.stage ^ 1);
#pragma unroll
      for (int j = 0; j < 8; ++j)
        *reinterpret_cast<float4*>(shared + Shape::dq + group * Shape::chunk_bytes +
                                   (j * 128 + threadIdx.x % 128) * 16) =
            make_float4(dq[j][0], dq[j][1], dq[j][2], dq[j][3]);
      sm90::fence_shared();
      __syncwarp();
      release(dq_full(group, dout_at.stage));
      if constexpr (!Shape::ahead) {
        next_scores();
        sm90::wait<1>();
      } else {
        sm90::wait<0>();
      }
      sm90::pin(dk);
      release(q_empty(q_at));
      if constexpr (!Shape::ahead) {
        sm90::wait<0>();
        sm90::pin(x[0]);
      }
      q_at = next;
      dout_at.next();
    } while (--left > 0);
  }

  if constexpr (Weights) store_keys<Dtype>(b.dv, seq, g, own, a.e, dv, 1.f);
  store_dk<Dtype>(b, work, seq, g, own, dk);
}

}  // namespace fovea::cuda
