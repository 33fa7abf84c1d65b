// SPDX-License-Identifier: Apache-2.0
// dq of wide heads on Hopper, by the rows' owner, who needs nothing of the keys' (three products):
//   p = exp(q k' - lse),  ds = p (dout v' - delta),  dq += ds k
// A block owns 128 rows of a sequence and head and walks its key tiles from last to first.
// Warpgroup 0 copies; the two others own 64 rows each and never meet: the softmax of one is under
// the products of the other.
// Shared memory: Q, dO (128 x D, E), StagesK x K (BN x D), StagesV x V (BN x E), barriers.
// Barriers: q and dout full; k, v full (bytes) and empty (one arrival a computing warp) of each
// stage.  K rows past the last are zeroed where the tensor goes on: a NaN there times a ds of 0
// would count.
#pragma once
#include <new>

#include "cuda/block/schedule.cuh"
#include "cuda/loop/backward_walk_sm90.cuh"
#include "cuda/loop/pair_policy.cuh"

namespace fovea::cuda {

template <int Dtype_, int D_, int E_, int BN_, int StagesK_, int StagesV_>
struct BackwardRowsShape {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, BM = 128, BN = BN_;
  static constexpr int StagesK = StagesK_, StagesV = StagesV_;
  static constexpr int threads = 384, copying = 24, computing = 240, box = 64;
  using TileQ = Swizzled<BM, D>;
  using TileO = Swizzled<BM, E>;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  static constexpr int dout = TileQ::bytes, k = dout + TileO::bytes, v = k + StagesK * TileK::bytes,
                       barriers = v + StagesV * TileV::bytes;
  static constexpr int shared_bytes = barriers + (2 + 2 * StagesK + 2 * StagesV) * 8;
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_bwd_rows_sm90(const __grid_constant__ AttendBackward b,
                         const __grid_constant__ BackwardMaps maps,
                         const __grid_constant__ BackwardWork work,
                         const __grid_constant__ WorkOrder order) {
  constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BM = Shape::BM, BN = Shape::BN;
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using RingK = sm90::Ring<Shape::StagesK>;
  using RingV = sm90::Ring<Shape::StagesV>;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(16) unsigned char s_sequence[sizeof(Sequence)];
  const Attend& a = b.forward;
  const uint32_t base = shared_address(shared), q_full = base + Shape::barriers, raw = q_full + 8;
  const auto k_full = [&](const RingK& at) { return raw + 8 + at.stage * 16; };
  const auto k_empty = [&](const RingK& at) { return raw + 16 + at.stage * 16; };
  const auto v_full = [&](const RingV& at) {
    return raw + 8 + Shape::StagesK * 16 + at.stage * 16;
  };
  const auto v_empty = [&](const RingV& at) {
    return raw + 16 + Shape::StagesK * 16 + at.stage * 16;
  };
  const int lane = threadIdx.x % 32, warp = sm90::uniform(threadIdx.x / 32),
            group = sm90::uniform(threadIdx.x / 128) - 1;  // -1 copies

  const WorkPlace mine(order, static_cast<int>(blockIdx.x));
  const int heads = static_cast<int>(a.h), sequence = mine.head / heads;
  if (threadIdx.x == 0) {
    new (s_sequence) Sequence{a.sequences[sequence]};
    sm90::barrier_init(q_full, 1), sm90::barrier_init(raw, 1);
    for (RingK s; s.phase == 0; s.next())
      sm90::barrier_init(k_full(s), 1), sm90::barrier_init(k_empty(s), 8);
    for (RingV s; s.phase == 0; s.next())
      sm90::barrier_init(v_full(s), 1), sm90::barrier_init(v_empty(s), 8);
    sm90::barrier_init_done();
  }
  __syncthreads();
  const Sequence& seq = *reinterpret_cast<const Sequence*>(s_sequence);
  const int keys = static_cast<int>(seq.keys), rows = static_cast<int>(seq.rows);
  const int head = mine.head % heads, row_begin = mine.row_tile * BM,
            row_end = min(row_begin + BM, rows);
  if (row_begin >= rows) return;
  const KeyTiles tiles = key_tiles(a.mask, seq, head, head + 1, row_begin, row_end, BN);
  const int first = sm90::uniform(static_cast<int>(tiles.first)),
            last = sm90::uniform(static_cast<int>(tiles.last));

  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::copying>();
    if (warp != 0 || first == last) return;
    const int key_head = head / static_cast<int>(a.h / a.g),
              key_batch = static_cast<int>(seq.key_batch);
    const int key_begin = static_cast<int>(seq.key_begin);
    if (lane == 0) {
      sm90::barrier_expect(q_full, TileQ::bytes + TileO::bytes);
      const int row = static_cast<int>(seq.row_begin) + row_begin,
                batch = static_cast<int>(seq.batch);
#pragma unroll 1
      for (int half = 0; half < BM; half += Shape::box) {
#pragma unroll 1
        for (int panel = 0; panel < TileQ::panels; ++panel)
          sm90::copy_box(base + panel * TileQ::panel_bytes + half * kPanelRowBytes, maps.q, q_full,
                         panel * 64, row + half, head, batch);
#pragma unroll 1
        for (int panel = 0; panel < TileO::panels; ++panel)
          sm90::copy_box(base + Shape::dout + panel * TileO::panel_bytes + half * kPanelRowBytes,
                         maps.dout, q_full, panel * 64, row + half, head, batch);
      }
    }
    // Past this the tensor has keys that are not the sequence's.
    const int key_end = seq.key_begin + keys < a.t ? keys : INT32_MAX;
    uint32_t raw_phase = 0;
    RingK k_at;
    RingV v_at;
#pragma unroll 1
    for (int n = last - 1; n >= first; --n) {
      sm90::barrier_wait(k_empty(k_at), k_at.phase ^ 1);
      copy_present<TileK, BN>(base + Shape::k + k_at.stage * TileK::bytes, maps.k, k_full(k_at),
                              raw, raw_phase, key_begin + n * BN, key_head, key_batch,
                              FirstRows{key_end - n * BN}, 0);
      sm90::barrier_wait(v_empty(v_at), v_at.phase ^ 1);
      if (lane == 0)
        sm90::copy_tile<TileV>(base + Shape::v + v_at.stage * TileV::bytes, maps.v, v_full(v_at),
                               key_begin + n * BN, key_head, key_batch);
      k_at.next(), v_at.next();
    }
    return;
  }

  sm90::setmaxnreg_inc<Shape::computing>();
  const PlainPairs pairs(a, seq, sequence, head);
  const int own = row_begin + group * 64 + warp % 4 * 16 + lane / 4;  // first row of the lane
  float lse[2], delta[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = own + 8 * half, per = work.tiles.rows;
    const int64_t tile = head * work.tiles.total + work.tiles.first(seq, sequence) + i / per;
    lse[half] = i < rows ? work.lse(tile)[i % per] : -kNegativeInfinity;
    delta[half] = i < rows ? work.delta(tile)[i % per] : 0.f;
  }
  float dq[D / 8][4], x[1][BN / 8][4], dp[1][BN / 8][4];
  uint32_t ds[1][BN / 16][4];
  const uint64_t q_rows = sm90::descriptor(base + group * 64 * kPanelRowBytes),
                 dout_rows = sm90::descriptor(base + Shape::dout + group * 64 * kPanelRowBytes);
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) sm90::barrier_arrive(barrier);
  };
  RingK k_at;
  RingV v_at;
  const auto scores = [&] {
    sm90::barrier_wait(k_full(k_at), k_at.phase);
    sm90::fence();
    sm90::product_rows<Dtype, D, TileQ, TileK>(
        x[0], sm90::unhoisted(q_rows),
        sm90::descriptor(base + Shape::k + k_at.stage * TileK::bytes));
    sm90::commit();
  };
  const auto values = [&] {
    sm90::barrier_wait(v_full(v_at), v_at.phase);
    sm90::fence();
    sm90::product_rows<Dtype, E, TileO, TileV>(
        dp[0], sm90::unhoisted(dout_rows),
        sm90::unhoisted(sm90::descriptor(base + Shape::v + v_at.stage * TileV::bytes)));
    sm90::commit();
  };
  // x, then dp, as they arrive, become ds, packed.
  const auto slope = [&](int n) {
    const bool full = pairs.full(row_begin, row_begin + BM, n * BN, n * BN + BN);
    const auto weigh = [&](bool all) {
#pragma unroll
      for (int j = 0; j < BN / 8; ++j)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          pairs.weigh(x[0][j][c], lse[c / 2], own + c / 2 * 8,
                      n * BN + j * 8 + lane % 4 * 2 + c % 2, all);
    };
    sm90::wait<1>();
    sm90::pin(x[0]);
    if (full)
      weigh(true);
    else
      weigh(false);
    sm90::wait<0>();
    sm90::pin(dp[0]);
    release(v_empty(v_at));
    v_at.next();
#pragma unroll
    for (int j = 0; j < BN / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float away = x[0][j][c] * (dp[0][j][c] - delta[c / 2]);
        // An unseen pair is 0 whatever its product is, NaN included.
        dp[0][j][c] = !full && x[0][j][c] == 0.f ? 0.f : away;
      }
    pack_operand<Dtype>(ds, dp);
  };
  const auto add = [&] {
    sm90::fence();
    sm90::product_columns<Dtype>(
        dq, ds[0],
        sm90::descriptor(base + Shape::k + k_at.stage * TileK::bytes, TileK::panel_bytes), true);
    sm90::commit();
  };
#pragma unroll
  for (int j = 0; j < D / 8; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) dq[j][c] = 0.f;
  if (first < last) {
    sm90::barrier_wait(q_full, 0);
    scores();
    values();
    slope(last - 1);
#pragma unroll 1
    for (int n = last - 2; n >= first; --n) {
      add();
      const uint32_t used = k_empty(k_at);
      k_at.next();
      scores();
      sm90::wait<1>();
      sm90::pin(dq);
      release(used);
      values();
      slope(n);
    }
    add();
    sm90::wait<0>();
    sm90::pin(dq);
  }
  uint16_t* line = static_cast<uint16_t*>(b.dq.data) + seq.batch * b.dq.stride[0] +
                   (seq.row_begin + own) * b.dq.stride[1] + head * b.dq.stride[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    store_row<Dtype>(own + 8 * half < rows ? line + 8 * half * b.dq.stride[1] : nullptr,
                     static_cast<int>(a.d), dq, half, a.score.scale);
}

}  // namespace fovea::cuda
