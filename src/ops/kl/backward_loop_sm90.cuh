// SPDX-License-Identifier: Apache-2.0
// The gradient of kl by the scores of one distribution on Hopper, wide heads, four products:
//   x = k q',  y = v dout',  ds' = slope(x, y),  dk += ds' q,  dq += ds k
// A block owns 128 keys of a sequence and key head and walks the row tiles of the group's heads.
// Warpgroup 0 copies (warp 0) and drains dq (warps 1, 2).  Warpgroups 1 and 2 own 64 keys each:
// scores stand keys by rows, so ds' leaves the registers as the operand of dk.  There is no dv, so
// v stays in registers, which spares shared memory a quarter of what the products of scores read.
// Warpgroup 3 makes dq of the ds that they put into shared memory: they never wait for the L2.
// Shared memory: K, V (128 x D, E), StagesQ x Q and two dO (64 x D, E), two ds (128 x 64), dq in
// f32, StagesQ x the values of 64 rows, the block's sequence and place, barriers.  Keys of either
// that hold an infinity or NaN are cleared where they lie, before any product: rows that see one
// have a NaN in lse, rows of gain 0 are zeros.
// Barriers: k and v full; q, dout full (bytes) and empty (one arrival a warp of 1 and 2), ds full
// (the same) and empty (one a warp of 3) of each stage; dq full, for even and odd tiles, and empty.
// dq is summed in the workspace block of keys by block of keys, each waiting until the one before
// it has added to the tile; blocks start in that order, so none waits for a later one.
#pragma once
#include <new>

#include "cuda/loop/backward_turn_sm90.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_, int BM_, int StagesQ_, SlopePolicy Slopes_>
struct KlBackwardShape90 {
  using Slopes = Slopes_;
  static constexpr int Dtype = Dtype_, D = D_, E = E_, BM = BM_, BN = 128;
  static constexpr int StagesQ = StagesQ_;
  static constexpr int owners = BN / 64, threads = 128 * (owners + 2);
  static constexpr int copying = 24, owning = 192, summing = 104;  // registers a thread
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  using TileQ = Swizzled<BM, D>;
  using TileO = Swizzled<BM, E>;
  using TileS = Swizzled<BN, BM>;
  static_assert(BM == kChunkRows);
  static constexpr int chunks = TileK::panels;  // of dq
  static constexpr int dq_bytes = chunks * kChunkFloats * 4, side_bytes = Slopes::sides * BM * 4;
  static constexpr int v = TileK::bytes, q = v + TileV::bytes, dout = q + StagesQ * TileQ::bytes,
                       ds = dout + 2 * TileO::bytes, dq = ds + 2 * TileS::bytes,
                       side = dq + dq_bytes, sequence = side + StagesQ * side_bytes,
                       block = sequence + (sizeof(Sequence) + 15) / 16 * 16,
                       barriers = block + (sizeof(BackwardBlock) + 15) / 16 * 16;
  static constexpr int shared_bytes = barriers + (2 + 2 * StagesQ + 4 + 4 + 3) * 8;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    kl_bwd_sm90(const __grid_constant__ AttendBackward b, const __grid_constant__ BackwardMaps maps,
                const __grid_constant__ BackwardWork work,
                const __grid_constant__ BackwardGrid90 grid,
                const __grid_constant__ typename Shape::Slopes::Args args) {
  constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BM = Shape::BM, BN = Shape::BN;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  using TileS = typename Shape::TileS;
  using RingQ = sm90::Ring<Shape::StagesQ>;
  using Ring = sm90::Ring<2>;  // of dout and ds; its stage is whether a tile is odd
  extern __shared__ __align__(1024) unsigned char shared[];
  const Attend& a = b.forward;
  const uint32_t base = shared_address(shared), kv_full = base + Shape::barriers;
  const uint32_t raw = kv_full + 8, ring_q = raw + 8, ring_dout = ring_q + Shape::StagesQ * 16;
  const uint32_t ring_ds = ring_dout + 32, ring_dq = ring_ds + 32, dq_empty = ring_dq + 16;
  const auto q_full = [&](const RingQ& at) { return ring_q + at.stage * 16; };
  const auto q_empty = [&](const RingQ& at) { return ring_q + at.stage * 16 + 8; };
  const auto dout_full = [&](const Ring& at) { return ring_dout + at.stage * 16; };
  const auto dout_empty = [&](const Ring& at) { return ring_dout + at.stage * 16 + 8; };
  const auto ds_full = [&](const Ring& at) { return ring_ds + at.stage * 16; };
  const auto ds_empty = [&](const Ring& at) { return ring_ds + at.stage * 16 + 8; };
  const auto dq_full = [&](int odd) { return ring_dq + odd * 8; };
  unsigned char* const s_sequence = shared + Shape::sequence;
  const int lane = threadIdx.x % 32, warp = sm90::uniform(threadIdx.x / 32),
            group = sm90::uniform(threadIdx.x / 128) - 1;  // -1 copies, `owners` sums dq

  if (threadIdx.x < 4) sm90::prefetch_map((&maps.q)[threadIdx.x]);
  if (threadIdx.x == 0) {
    auto* const block = new (shared + Shape::block) BackwardBlock(grid);
    const auto* const own = new (s_sequence) Sequence{a.sequences[block->r]};
    block->place_tail(a.mask, own->keys, BN);
    sm90::barrier_init(kv_full, 2), sm90::barrier_init(raw, 1);
    for (RingQ s; s.phase == 0; s.next())
      sm90::barrier_init(q_full(s), 1), sm90::barrier_init(q_empty(s), 4 * Shape::owners);
    for (Ring s; s.phase == 0; s.next()) {
      sm90::barrier_init(dout_full(s), 1), sm90::barrier_init(dout_empty(s), 4 * Shape::owners);
      sm90::barrier_init(ds_full(s), 4 * Shape::owners), sm90::barrier_init(ds_empty(s), 4);
      sm90::barrier_init(dq_full(s.stage), 4);
    }
    sm90::barrier_init(dq_empty, 1);
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
  const auto release = [&](uint32_t barrier) {  // what the warp's lanes read or wrote
    __syncwarp();
    if (lane == 0) sm90::barrier_arrive(barrier);
  };

  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::copying>();
    if (walk.count() == 0) return;
    const int first_tile = static_cast<int>(work.tiles.first(seq, block.r));
    if (warp == 0) {
      copy_tiles<Shape>(a, maps, work, seq, block, walk, args, base);
    } else if (work.dq && warp <= 2 && lane == 0) {
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
        float* to = work.dq + static_cast<int64_t>(tile) * (Shape::dq_bytes / 4);
        sm90::barrier_wait(dq_full(warp - 1), phase);
        if (turn == 0)
          sm90::copy_out(to, base + Shape::dq, Shape::dq_bytes);
        else
          sm90::add_out(to, base + Shape::dq, Shape::dq_bytes);
        sm90::out_commit();
        sm90::out_wait_read<0>();
        sm90::barrier_arrive(dq_empty);
        sm90::out_wait<0>();
        pass_turn(work.turn + tile);
        phase ^= 1;
      });
    }
    return;
  }

  if (group == Shape::owners) {
    sm90::setmaxnreg_dec<Shape::summing>();
    if (!work.dq) return;
    float dq[D / 8][4];
    const uint64_t k_columns = sm90::descriptor(base, TileK::panel_bytes);
    Ring at;
#pragma unroll 1
    for (int left = walk.count(); left > 0; --left, at.next()) {
      sm90::barrier_wait(ds_full(at), at.phase);
      sm90::fence();
      sm90::product_turned<Dtype, BN>(dq,
                                      sm90::descriptor(base + Shape::ds + at.stage * TileS::bytes),
                                      sm90::unhoisted(k_columns));
      sm90::commit();
      sm90::wait<0>();
      sm90::pin(dq);
      release(ds_empty(at));
      sm90::barrier_wait(dq_empty, at.stage ^ 1);
#pragma unroll
      for (int j = 0; j < D / 8; ++j)
        *reinterpret_cast<float4*>(shared + Shape::dq + (j * 128 + threadIdx.x % 128) * 16) =
            make_float4(dq[j][0], dq[j][1], dq[j][2], dq[j][3]);
      sm90::fence_shared();
      release(dq_full(at.stage));
    }
    return;
  }

  sm90::setmaxnreg_inc<Shape::owning>();
  // Slopes and what a lane addresses are found anew in each tile: held, they would be more
  // registers than there are.
  const auto own = [&] {  // first key of the lane
    return key_begin + group * 64 + warp % 4 * 16 + sm90::unhoisted(lane) / 4;
  };
  const auto fragment = [&]<class Tile>(uint32_t tile) {
    const int at = sm90::unhoisted(lane);
    return tile + Tile::at(group * 64 + warp % 4 * 16 + outer_row(at), outer_chunk(at));
  };
  const auto slopes_now = [&] { return typename Shape::Slopes(a, *sm90::unhoisted(&seq), args); };
  auto full = slopes_now().pairs.full_tiles(BM, key_begin, key_begin + BN);
  full.begin = sm90::uniform(full.begin), full.end = sm90::uniform(full.end);
  // dq is; else no ds leaves.
  const auto wanted = [&] { return sm90::unhoisted(work.dq) != nullptr; };
  float dk[D / 8][4], x[1][BM / 8][4], y[1][BM / 8][4];
  uint32_t v[E / 16][4], ds[1][BM / 16][4];
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) dk[j][c] = 0.f;
  const uint64_t k_rows = sm90::descriptor(base + group * 64 * kPanelRowBytes);
  RingQ q_at;
  Ring at;
  int left = walk.count(), m = walk.first;
  const auto tile_q = [&](const RingQ& at) { return base + Shape::q + at.stage * TileQ::bytes; };
  // The first value of the lane's rows 2 t, 2 t + 1 of each 8; the next lies BM / 2 on.
  const auto side = [&](const RingQ& at) {
    return reinterpret_cast<const float2*>(shared + Shape::side + at.stage * Shape::side_bytes) +
           sm90::unhoisted(lane % 4);
  };
  const auto own_scores = [&](const RingQ& at) {
    sm90::fence();
    sm90::product_rows<Dtype, D, TileK, TileQ>(x[0], sm90::unhoisted(k_rows),
                                               sm90::descriptor(tile_q(at)));
    sm90::commit();
  };
  const auto other_scores = [&](const Ring& at) {
    sm90::barrier_wait(dout_full(at), at.phase);
    const uint64_t rows = sm90::descriptor(base + Shape::dout + at.stage * TileO::bytes);
    sm90::fence();
#pragma unroll
    for (int k = 0; k < E / 16; ++k)
      sm90::Wgmma<Dtype, BM>::template rs<0>(
          y[0], v[k], rows + k / 4 * (TileO::panel_bytes / 16) + k % 4 * 2, k != 0);
    sm90::commit();
  };
  const auto weigh = [&](const RingQ& at, int m) {
    const auto all = [&](bool full) {
      weigh_tile(x[0], slopes_now(), side(at), m * BM + lane % 4 * 2, own(), full);
    };
    full(m) ? all(true) : all(false);
  };
  const auto slope = [&](const RingQ& at, int m) {
    const auto all = [&](bool full) {
      slope_tile(
          y[0], slopes_now(),
          [&](int j) { return make_float4(x[0][j][0], x[0][j][1], x[0][j][2], x[0][j][3]); },
          side(at), full);
    };
    full(m) ? all(true) : all(false);
  };
  if (left > 0) {
    sm90::barrier_wait(kv_full, 0);
    clear_odd_rows<Dtype, TileK>(shared, group * 64 + warp % 4 * 16);
    clear_odd_rows<Dtype, TileV>(shared + Shape::v, group * 64 + warp % 4 * 16);
    sm90::named_barrier_sync(1, 128 * Shape::owners);
    const uint32_t v_lane = fragment.template operator()<TileV>(base + Shape::v);
#pragma unroll
    for (int k = 0; k < E / 16; ++k) load_matrices(v[k], TileV::pair(v_lane, k));
    sm90::barrier_wait(q_full(q_at), 0);
    own_scores(q_at);
    other_scores(at);
    sm90::wait<1>();
    sm90::pin(x[0]);
    weigh(q_at, m);
#pragma unroll 1
    for (;;) {
      RingQ next_q = q_at;
      next_q.next();
      sm90::wait<0>();
      sm90::pin(y[0]);
      release(dout_empty(at));
      slope(q_at, m);
      pack_operand<Dtype>(ds, y);
      // After the last tile, the scores are of any that is at hand.
      if (left > 1) sm90::barrier_wait(q_full(next_q), next_q.phase);
      own_scores(next_q);
      if (wanted()) {
        const uint32_t to =
            fragment.template operator()<TileS>(base + Shape::ds + at.stage * TileS::bytes);
        sm90::barrier_wait(ds_empty(at), at.phase ^ 1);
#pragma unroll
        for (int k = 0; k < BM / 16; ++k) sm90::store_matrices(TileS::pair(to, k), ds[0][k]);
        sm90::fence_shared();
        release(ds_full(at));
      }
      sm90::fence();
      sm90::product_columns<Dtype>(dk, ds[0], sm90::descriptor(tile_q(q_at), TileQ::panel_bytes),
                                   true);
      sm90::commit();
      if ((m += walk.step) == walk.end) m = walk.first;
      sm90::wait<1>();
      sm90::pin(x[0]);
      weigh(next_q, m);
      sm90::wait<0>();
      sm90::pin(dk);
      release(q_empty(q_at));
      if (--left == 0) break;
      at.next();
      q_at = next_q;
      other_scores(at);  // into the registers that ds had
    }
  }

  store_dk<Dtype>(b, work, seq, g, own(), dk);
}

}  // namespace fovea::cuda
