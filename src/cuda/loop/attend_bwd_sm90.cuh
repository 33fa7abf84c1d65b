// SPDX-License-Identifier: Apache-2.0
// The gradient of attention on Hopper, five products, one owner for dk and dv:
//   p' = exp(k q' - lse),  ds' = p' (v dout' - delta),  dv += p' dout,  dk += ds' q,  dq += ds k
// A block owns 128 keys of a sequence and key head.  Its mainloop takes the row tiles of the
// group's heads.
//
//   | warps           | role                                                    |
//   | 0               | producer                                                |
//   | 1, 2            | drain: add dq of odd and of even tiles to the workspace |
//   | warpgroups 1, 2 | consumers of 64 keys each                               |
//
// Scores are transposed (keys by rows): p' and ds' are register operands of dv and dk.  ds alone
// goes through shared memory, where each consumer reads it for its half of dq = ds k.
// dq is summed in the workspace, key block after key block, by a semaphore for each row tile.
// Blocks start in that order, so none waits for a later one.
// Shared memory, mbarriers: BackwardShared90.
//
//   | named barrier    | who arrives         | who waits   | what it guards                     |
//   | 1                | consumers           | consumers   | keys that were cleared; ds, where  |
//   |                  |                     |             | dq follows in the same step        |
//   | 2, wide heads    | the second consumer | the first   | its turn for dP, from step 2 on    |
//   | 3, wide heads    | the first consumer  | the second  | its turn for dP                    |
//   | 2, of 64 columns | the first consumer  | the second  | its first step, half a step late   |
//
// dq of a tile is formed in the step after, so that consumers may be half a step apart: one's
// products run beside the other's ds.  A wait for dq's order stops both; turns part them again.
// ds has three tiles.  A consumer writes one once the tile before is full.  By then both have read
// what lay there.
// Source: FlashAttention-3 (2407.08608).
#pragma once
#include <new>

#include "cuda/loop/backward_dq_sm90.cuh"
#include "cuda/loop/pair_policy.cuh"

namespace fovea::cuda {

struct GradientConfig90 {
  int dtype, d, e;
  int rows;  // of a tile
  int stages_q, stages_dout;
};

template <GradientConfig90 C, DscorePolicy Dscores_>
struct BackwardShape90 {
  using Dscores = Dscores_;
  static constexpr int Dtype = C.dtype, D = C.d, E = C.e, BM = C.rows, BN = 128;
  static constexpr int StagesQ = C.stages_q, StagesO = C.stages_dout;
  static constexpr int groups = BN / 64, threads = 128 * (groups + 1);
  static constexpr int producer_regs = 24, consumer_regs = 240;  // registers a thread
  // Where a tile's exponents run.  Ahead: under ds k and ds' q of the tile before.  Else under its
  // own v dout': exponents of narrow heads take longer, and dv can be delayed.
  static constexpr bool ahead = D > 64 || !Dscores::weights;
  static constexpr bool late = Dscores::weights;  // dq, by a step
  static constexpr int StagesS = late ? 3 : 2;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  using TileQ = Swizzled<BM, D>;
  using TileO = Swizzled<BM, E>;
  using TileS = Swizzled<BN, BM>;
  static constexpr int dq_buffers = groups, dq_bytes = kChunkFloats * 4;
  static constexpr int chunks = BM / kChunkRows * TileK::panels;  // of dq
  static_assert(chunks == groups, "a chunk for each warpgroup");
  static_assert(StagesO == 2, "a tile's stage of dout says whether it is even");
  static constexpr int row_stats_bytes = Dscores::stats * BM * 4;
  static constexpr int shared_bytes = BackwardLayout90<BackwardShape90>().bytes;
  static_assert(shared_bytes <= 227 * 1024);
};

// A consumer warpgroup: 64 of the block's keys.
template <class Shape, RowSource Rows>
class BackwardConsumer90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BM = Shape::BM,
                       BN = Shape::BN, Groups = Shape::groups;
  static constexpr bool Weights = Shape::Dscores::weights;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  using TileS = typename Shape::TileS;
  using Shared = BackwardShared90<Shape>;
  using QState = typename Shared::QState;
  using DoutState = typename Shared::DoutState;
  using DsState = typename Shared::DsState;
  static constexpr bool Ahead = Shape::ahead, Late = Shape::late, Turns = Late && Ahead;
  static constexpr int Panels = TileK::panels;

 public:
  // A separate object: an object stays in memory until the loops over its arrays are unrolled.
  struct Fragments {
    float dk[D / 8][4], dv[E / 8][4], x[1][BM / 8][4], dp[1][BM / 8][4], dq[8][4];
  };

  __device__ __forceinline__ BackwardConsumer90(const AttendBackward& b, const BackwardWork& work,
                                                const typename Shape::Dscores::Args& args,
                                                const Rows& rows, const Shared& shared, int group,
                                                Fragments& f)
      : b(b),
        work(work),
        rows(rows),
        shared(shared),
        group(group),
        lane(threadIdx.x % 32),
        warp(sm90::uniform(threadIdx.x / 32)),
        key_begin(shared.block().n * BN),
        own(key_begin + group * 64 + warp % 4 * 16 + lane / 4),
        dscores(b.forward, shared.sequence(), args),
        k_rows(sm90::descriptor(shared.base + group * 64 * kPanelRowBytes)),
        v_rows(sm90::descriptor(shared.base + Shared::layout.v + group * 64 * kPanelRowBytes)),
        k_columns(sm90::descriptor(shared.base + group % Panels * TileK::panel_bytes)),
        ds_lane(TileS::at(group * 64 + warp % 4 * 16 + outer_row(lane), outer_chunk(lane))),
        tile(rows.first()),
        dk(f.dk),
        dv(f.dv),
        x(f.x),
        dp(f.dp),
        dq(f.dq) {}

  __device__ __forceinline__ void run() {
    const bool any = !rows.ends(tile);
    if (Shape::Dscores::clears_keys && any) clear_keys();
#pragma unroll
    for (int c = 0; c < 4; ++c) {
#pragma unroll
      for (int j = 0; j < D / 8; ++j) dk[j][c] = 0.f;
#pragma unroll
      for (int j = 0; j < E / 8; ++j) dv[j][c] = 0.f;
    }
    if (any) {
      sm90::barrier_wait(shared.kv_full(), 0);
      shared.q_pipe().wait(q_at);
      issue_scores(q_at);
      sm90::wait<0>();
      sm90::pin(x[0]);
      if constexpr (Ahead) weigh(q_at, tile.m);
      if constexpr (Late) {
        if (!Turns && group == 1) sm90::named_barrier_sync(2, 128 * Groups);
        step<true>();
#pragma unroll 1
        while (!rows.ends(tile)) step<false>();
        last_dq();
      } else {
#pragma unroll 1
        do step<false>();
        while (!rows.ends(tile));
      }
    }
    const Sequence& seq = shared.sequence();
    if constexpr (Weights) store_dv<Dtype>(b, work, seq, shared.block().g, own, dv);
    store_dk<Dtype>(b, work, seq, shared.block().g, own, dk);
  }

 private:
  __device__ __forceinline__ void clear_keys() const {
    sm90::barrier_wait(shared.kv_full(), 0);
    clear_non_finite_rows<Dtype, TileK>(shared.memory, group * 64 + warp % 4 * 16);
    clear_non_finite_rows<Dtype, TileV>(shared.memory + Shared::layout.v,
                                        group * 64 + warp % 4 * 16);
    sm90::named_barrier_sync(1, 128 * Groups);
  }

  // The first statistic of rows 2 t, 2 t + 1 of each 8, of lane t of a quad; the next: + BM / 2.
  __device__ __forceinline__ const float2* stats(const QState& at) const {
    return reinterpret_cast<const float2*>(shared.memory + shared.row_stats(at)) + lane % 4;
  }
  __device__ __forceinline__ bool full(int m) const {
    return dscores.pairs.full(m * BM, m * BM + BM, key_begin, key_begin + BN);
  }
  __device__ __forceinline__ void issue_scores(const QState& at) {
    sm90::fence();
    sm90::product_rows<Dtype, D, TileK, TileQ>(x[0], sm90::unhoisted(k_rows),
                                               sm90::descriptor(shared.q(at)));
    sm90::commit();
  }
  // After the last tile these are scores of whatever the stage holds, and are not read.
  __device__ __forceinline__ void issue_next_scores(const QState& at, bool more) {
    if (more) shared.q_pipe().wait(at);
    issue_scores(at);
  }
  __device__ __forceinline__ void weigh(const QState& at, int m) {
    weigh_tile(x[0], dscores, stats(at), m * BM + lane % 4 * 2, own, full(m));
  }
  __device__ __forceinline__ void issue_dp() {
    shared.dout_pipe().wait(dout_at);
    sm90::fence();
    sm90::product_rows<Dtype, E, TileV, TileO>(dp[0], sm90::unhoisted(v_rows),
                                               sm90::descriptor(shared.dout(dout_at)));
    sm90::commit();
  }
  // ds of row tile m, as an operand and in shared memory.
  __device__ __forceinline__ void make_ds(int m, uint32_t (&ds)[1][BM / 16][4]) {
    float(&x)[1][BM / 8][4] = this->x;  // `this` in the lambda costs registers and order
    dscore_tile(
        dp[0], dscores,
        [&](int j) { return make_float4(x[0][j][0], x[0][j][1], x[0][j][2], x[0][j][3]); },
        stats(q_at), full(m));
    pack_operand<Dtype>(ds, dp);
  }
  __device__ __forceinline__ void retire_dv() {
    sm90::pin(dv);
    shared.dout_pipe().release(dout_at);
  }
  // This warpgroup's chunk of dq of a tile: 64 rows of ds by 64 columns of k.
  __device__ __forceinline__ void issue_dq(const DsState& at) {
    sm90::fence();
    sm90::product_transposed<Dtype, BN>(
        dq, sm90::descriptor(shared.ds(at) + group / Panels * TileS::panel_bytes),
        sm90::unhoisted(k_columns));
    sm90::commit();
  }
  // odd: 1 of odd tiles.
  __device__ __forceinline__ void store_dq(int odd) {
    sm90::pin(dq);
    sm90::barrier_wait(shared.dq_empty(group), odd ^ 1);
#pragma unroll
    for (int j = 0; j < 8; ++j)
      *reinterpret_cast<float4*>(shared.memory + Shared::layout.dq + group * Shape::dq_bytes +
                                 (j * 128 + threadIdx.x % 128) * 16) =
          make_float4(dq[j][0], dq[j][1], dq[j][2], dq[j][3]);
    sm90::fence_shared();
    __syncwarp();
    sm90::barrier_arrive_warp(shared.dq_full(group, odd));
  }
  // ds of the tile before.
  __device__ __forceinline__ DsState ds_before() const {
    return ds_at.stage ? DsState{ds_at.stage - 1, ds_at.phase}
                       : DsState{Shape::StagesS - 1, ds_at.phase ^ 1};
  }
  __device__ __forceinline__ void wait_ds_before() const {
    const DsState at = ds_before();
    sm90::barrier_wait(shared.ds_full(at), at.phase);
  }

  // The other consumer's turn.
  __device__ __forceinline__ void hand_on(bool more) const {
    if (group == 0 || more) sm90::named_barrier_arrive(3 - group, 128 * Groups);
  }

  // One row tile, and the scores of the next.  First: no tile before it is left to add to dq.
  template <bool First>
  __device__ __forceinline__ void step() {
    QState next = q_at;
    next.next();
    const int m = tile.m;
    rows.next(tile);
    const bool more = !rows.ends(tile);
    if constexpr (Turns) {
      if (!First || group == 1) sm90::named_barrier_sync(2 + group, 128 * Groups);
    }
    issue_dp();
    if constexpr (!Ahead) weigh(q_at, m);
    sm90::wait<0>();
    sm90::pin(dp[0]);
    if constexpr (Turns) hand_on(more);
    if constexpr (!Weights) shared.dout_pipe().release(dout_at);
    uint32_t p[1][BM / 16][4], ds[1][BM / 16][4];
    make_ds(m, ds);
    if constexpr (Weights) pack_operand<Dtype>(p, x);
    if constexpr (Late && !First) wait_ds_before();
#pragma unroll
    for (int k = 0; k < BM / 16; ++k)
      sm90::store_matrices(TileS::pair(shared.ds(ds_at) + ds_lane, k), ds[0][k]);
    sm90::fence_shared();
    if constexpr (Late) {
      __syncwarp();
      sm90::barrier_arrive_warp(shared.ds_full(ds_at));
    }
    if constexpr (Weights) {
      sm90::fence();
      sm90::product_columns<Dtype>(
          dv, p[0], sm90::descriptor(shared.dout(dout_at), TileO::panel_bytes), true);
      sm90::commit();
    }
    if constexpr (Ahead) {
      issue_next_scores(next, more);
      if constexpr (Weights) sm90::wait<1>(), retire_dv();
    }
    if constexpr (First && !Turns) {
      if (group == 0) sm90::named_barrier_arrive(2, 128 * Groups);
    }
    if constexpr (!Late) {
      sm90::named_barrier_sync(1, 128 * Groups);
      issue_dq(ds_at);
    } else if constexpr (!First) {
      issue_dq(ds_before());
    }
    if constexpr (Weights && !Ahead) sm90::wait<1>(), retire_dv();
    sm90::product_columns<Dtype>(dk, ds[0], sm90::descriptor(shared.q(q_at), TileQ::panel_bytes),
                                 true);
    sm90::commit();
    constexpr bool kNoDq = Late && First;
    if constexpr (Ahead) {
      sm90::wait<kNoDq ? 1 : 2>();
      sm90::pin(x[0]);
      weigh(next, tile.m);
    }
    if constexpr (!kNoDq) {
      sm90::wait<1>();
      store_dq(Late ? dout_at.stage ^ 1 : dout_at.stage);
    }
    if constexpr (!Ahead) {
      issue_next_scores(next, more);
      sm90::wait<1>();
    } else {
      sm90::wait<0>();
    }
    sm90::pin(dk);
    shared.q_pipe().release(q_at);
    if constexpr (!Ahead) {
      sm90::wait<0>();
      sm90::pin(x[0]);
    }
    q_at = next;
    dout_at.next();
    ds_at.next();
  }
  __device__ __forceinline__ void last_dq() {
    wait_ds_before();
    issue_dq(ds_before());
    sm90::wait<0>();
    store_dq(dout_at.stage ^ 1);
  }

  const AttendBackward& b;
  const BackwardWork& work;
  const Rows& rows;
  const Shared& shared;
  const int group, lane, warp;
  const int key_begin, own;  // first key of the block, of the lane
  const typename Shape::Dscores dscores;
  const uint64_t k_rows, v_rows, k_columns;
  const uint32_t ds_lane;
  QState q_at;
  DoutState dout_at;  // its stage says whether a tile is odd
  DsState ds_at;
  RowStep tile;
  float (&dk)[D / 8][4], (&dv)[E / 8][4];
  float (&x)[1][BM / 8][4], (&dp)[1][BM / 8][4];  // scores, then p; dp, then ds
  float (&dq)[8][4];
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_bwd_sm90(const __grid_constant__ AttendBackward b,
                    const __grid_constant__ BackwardMaps maps,
                    const __grid_constant__ BackwardWork work,
                    const __grid_constant__ BackwardGrid90 grid,
                    const __grid_constant__ typename Shape::Dscores::Args args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Attend& a = b.forward;
  const BackwardShared90<Shape> shared(memory);
  const int warp = sm90::uniform(threadIdx.x / 32), group = sm90::uniform(threadIdx.x / 128) - 1;
  if (threadIdx.x < 4) sm90::prefetch_map((&maps.q)[threadIdx.x]);
  if (threadIdx.x == 0) {
    shared.init(a, grid, 4 * Shape::groups);
    sm90::barrier_init_done();
  }
  __syncthreads();
  const Sequence& seq = shared.sequence();
  const BackwardBlock& block = shared.block();
  if (block.idle) return;
  const int keys = static_cast<int>(seq.keys), key_begin = block.n * Shape::BN;
  if (block.part >= 0) return store_part<Shape>(b, work, seq, block);
  if (key_begin >= keys) return;
  const WindowRows rows(a, seq, block.g, key_begin, min(key_begin + Shape::BN, keys), Shape::BM,
                        block.down);
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (rows.count() == 0) return;
    if (warp == 0)
      produce_row_tiles<Shape>(a, maps, work, rows, args, shared);
    else if (warp <= 2 && threadIdx.x % 32 == 0)
      drain_dq<Shape>(a, work, rows, warp - 1, shared);
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    typename BackwardConsumer90<Shape, WindowRows>::Fragments fragments;
    BackwardConsumer90<Shape, WindowRows>(b, work, args, rows, shared, group, fragments).run();
  }
}

}  // namespace fovea::cuda
