// SPDX-License-Identifier: Apache-2.0
// dq of wide heads on Hopper, by row blocks (three products; dk and dv: attend_bwd_dkdv_sm90.cuh):
//   p = exp(q k' - lse),  ds = p (dout v' - delta),  dq += ds k
// A block owns 128 rows of a sequence and head.  Its mainloop takes key tiles from last to first.
// Warpgroup 0 is the producer.  The two consumers own 64 rows each and never synchronise, so the
// softmax of one runs under the products of the other.
// K rows past the last are zeroed where the tensor goes on: NaN times a ds of 0 would be NaN.
// Shared memory: BackwardDqLayout.
//
//   | barrier | who arrives         | who waits | what it guards                  |
//   | q full  | TMA                 | consumers | Q and dout                      |
//   | raw     | TMA                 | producer  | a tile of K whose end it zeroes |
//   | k full  | TMA                 | consumers | a tile of K                     |
//   | k empty | a lane of each warp | producer  | the same, to overwrite          |
//   | v full  | TMA                 | consumers | a tile of V                     |
//   | v empty | a lane of each warp | producer  | the same, to overwrite          |
#pragma once
#include <new>

#include "cuda/block/schedule.cuh"
#include "cuda/loop/backward_block_sm90.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/pipeline_sm90.cuh"

namespace fovea::cuda {

template <class Shape>
struct BackwardDqLayout;

template <int Dtype_, int D_, int E_, int BN_, int StagesK_, int StagesV_>
struct BackwardDqShape {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, BM = 128, BN = BN_;
  static constexpr int StagesK = StagesK_, StagesV = StagesV_;
  static constexpr int threads = 384, producer_regs = 24, consumer_regs = 240, box = 64;
  using TileQ = Swizzled<BM, D>;
  using TileO = Swizzled<BM, E>;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  static constexpr int shared_bytes = BackwardDqLayout<BackwardDqShape>().bytes;
};

template <class Shape>
struct BackwardDqLayout : sm90::SharedLayout {
  int q = tiles(Shape::TileQ::bytes), dout = tiles(Shape::TileO::bytes),
      k = tiles(Shape::TileK::bytes, Shape::StagesK),
      v = tiles(Shape::TileV::bytes, Shape::StagesV), q_full = barriers(), raw = barriers(),
      k_pipe = pipeline(Shape::StagesK), v_pipe = pipeline(Shape::StagesV);
};

template <class Shape>
struct BackwardDqShared {
  static constexpr BackwardDqLayout<Shape> layout = BackwardDqLayout<Shape>();
  using KPipe = sm90::Pipeline<Shape::StagesK>;
  using VPipe = sm90::Pipeline<Shape::StagesV>;
  using KState = typename KPipe::State;
  using VState = typename VPipe::State;
  uint32_t base;

  __device__ uint32_t k(const KState& at) const {
    return base + layout.k + at.stage * Shape::TileK::bytes;
  }
  __device__ uint32_t v(const VState& at) const {
    return base + layout.v + at.stage * Shape::TileV::bytes;
  }
  __device__ uint32_t q_full() const { return base + layout.q_full; }
  __device__ uint32_t raw() const { return base + layout.raw; }
  __device__ KPipe k_pipe() const { return {base + layout.k_pipe}; }
  __device__ VPipe v_pipe() const { return {base + layout.v_pipe}; }

  __device__ void init() const {
    sm90::barrier_init(q_full(), 1), sm90::barrier_init(raw(), 1);
    k_pipe().init(1, 8), v_pipe().init(1, 8);
    sm90::barrier_init_done();
  }
};

// What a block does: rows [begin, end) of a head, over key tiles [first, last).
struct RowsOfHead {
  int sequence, head, begin, end, first, last;
};

// The producer warp.
template <class Shape>
__device__ __forceinline__ void produce_keys_of_rows(const Attend& a, const BackwardMaps& maps,
                                                     const Sequence& seq, const RowsOfHead& at,
                                                     const BackwardDqShared<Shape>& shared) {
  constexpr int BN = Shape::BN;
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  const int lane = threadIdx.x % 32;
  const int key_head = at.head / static_cast<int>(a.h / a.g),
            key_batch = static_cast<int>(seq.key_batch),
            key_begin = static_cast<int>(seq.key_begin), keys = static_cast<int>(seq.keys);
  const uint32_t q_full = shared.q_full();
  if (lane == 0) {
    sm90::barrier_expect(q_full, TileQ::bytes + TileO::bytes);
    const int row = static_cast<int>(seq.row_begin) + at.begin, batch = static_cast<int>(seq.batch);
#pragma unroll 1
    for (int half = 0; half < Shape::BM; half += Shape::box) {
#pragma unroll 1
      for (int panel = 0; panel < TileQ::panels; ++panel)
        sm90::tma_load_box(shared.base + panel * TileQ::panel_bytes + half * kPanelRowBytes, maps.q,
                           q_full, panel * 64, row + half, at.head, batch);
#pragma unroll 1
      for (int panel = 0; panel < TileO::panels; ++panel)
        sm90::tma_load_box(
            shared.base + shared.layout.dout + panel * TileO::panel_bytes + half * kPanelRowBytes,
            maps.dout, q_full, panel * 64, row + half, at.head, batch);
    }
  }
  // From here on the tensor's keys are not the sequence's.
  const int key_end = seq.key_begin + keys < a.t ? keys : INT32_MAX;
  uint32_t raw_phase = 0;
  typename BackwardDqShared<Shape>::KState k_at;
  typename BackwardDqShared<Shape>::VState v_at;
#pragma unroll 1
  for (int n = at.last - 1; n >= at.first; --n) {
    shared.k_pipe().acquire(k_at);
    copy_present<typename Shape::TileK, BN>(shared.k(k_at), maps.k, shared.k_pipe().full(k_at),
                                            shared.raw(), raw_phase, key_begin + n * BN, key_head,
                                            key_batch, FirstRows{key_end - n * BN}, 0);
    shared.v_pipe().acquire(v_at);
    if (lane == 0)
      sm90::tma_load_tile<typename Shape::TileV>(shared.v(v_at), maps.v, shared.v_pipe().full(v_at),
                                                 key_begin + n * BN, key_head, key_batch);
    k_at.next(), v_at.next();
  }
}

// A consumer warpgroup: 64 of the block's rows.
template <class Shape>
class DqConsumer90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BM = Shape::BM,
                       BN = Shape::BN;
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using Shared = BackwardDqShared<Shape>;

 public:
  // A separate object: an object stays in memory until the loops over its arrays are unrolled.
  struct Fragments {
    float dq[D / 8][4], x[1][BN / 8][4], dp[1][BN / 8][4], lse[2], delta[2];
    uint32_t ds[1][BN / 16][4];
  };

  __device__ __forceinline__ DqConsumer90(const AttendBackward& b, const BackwardWork& work,
                                          const Sequence& seq, const RowsOfHead& of,
                                          const Shared& shared, int group, Fragments& f)
      : b(b),
        seq(seq),
        of(of),
        shared(shared),
        lane(threadIdx.x % 32),
        own(of.begin + group * 64 + sm90::uniform(threadIdx.x / 32) % 4 * 16 + lane / 4),
        pairs(b.forward, seq, of.sequence, of.head),
        q_rows(sm90::descriptor(shared.base + group * 64 * kPanelRowBytes)),
        dout_rows(
            sm90::descriptor(shared.base + Shared::layout.dout + group * 64 * kPanelRowBytes)),
        dq(f.dq),
        x(f.x),
        dp(f.dp),
        lse(f.lse),
        delta(f.delta),
        ds(f.ds) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = own + 8 * half, per = work.tiles.rows;
      const int64_t tile =
          of.head * work.tiles.total + work.tiles.first(seq, of.sequence) + i / per;
      lse[half] = i < seq.rows ? work.lse(tile)[i % per] : -kNegativeInfinity;
      delta[half] = i < seq.rows ? work.delta(tile)[i % per] : 0.f;
    }
  }

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) dq[j][c] = 0.f;
    if (of.first < of.last) {
      sm90::barrier_wait(shared.q_full(), 0);
      issue_scores();
      issue_dp();
      make_ds(of.last - 1);
#pragma unroll 1
      for (int n = of.last - 2; n >= of.first; --n) {
        issue_dq();
        const auto used = k_at;
        k_at.next();
        issue_scores();
        sm90::wait<1>();
        sm90::pin(dq);
        shared.k_pipe().release(used);
        issue_dp();
        make_ds(n);
      }
      issue_dq();
      sm90::wait<0>();
      sm90::pin(dq);
    }
    const int64_t at = row_offset(seq, own, of.head, b.dq.stride);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store_as<Dtype>(b.dq.data, b.dq.dtype, at + 8 * half * b.dq.stride[1],
                      own + 8 * half < seq.rows, static_cast<int>(b.forward.d), dq, half,
                      b.forward.score.scale);
  }

 private:
  __device__ __forceinline__ void issue_scores() {
    shared.k_pipe().wait(k_at);
    sm90::fence();
    sm90::product_rows<Dtype, D, TileQ, TileK>(x[0], sm90::unhoisted(q_rows),
                                               sm90::descriptor(shared.k(k_at)));
    sm90::commit();
  }
  __device__ __forceinline__ void issue_dp() {
    shared.v_pipe().wait(v_at);
    sm90::fence();
    sm90::product_rows<Dtype, E, TileO, TileV>(dp[0], sm90::unhoisted(dout_rows),
                                               sm90::unhoisted(sm90::descriptor(shared.v(v_at))));
    sm90::commit();
  }
  __device__ __forceinline__ void weigh(int n, bool full) {
#pragma unroll
    for (int j = 0; j < BN / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        pairs.weigh(x[0][j][c], lse[c / 2], own + c / 2 * 8, n * BN + j * 8 + lane % 4 * 2 + c % 2,
                    full);
  }
  // Waits for x and then dp, and packs ds.
  __device__ __forceinline__ void make_ds(int n) {
    const bool full = pairs.full(of.begin, of.begin + BM, n * BN, n * BN + BN);
    sm90::wait<1>();
    sm90::pin(x[0]);
    if (full)
      weigh(n, true);
    else
      weigh(n, false);
    sm90::wait<0>();
    sm90::pin(dp[0]);
    shared.v_pipe().release(v_at);
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
  }
  __device__ __forceinline__ void issue_dq() {
    sm90::fence();
    sm90::product_columns<Dtype>(dq, ds[0], sm90::descriptor(shared.k(k_at), TileK::panel_bytes),
                                 true);
    sm90::commit();
  }

  const AttendBackward& b;
  const Sequence& seq;
  const RowsOfHead& of;
  const Shared& shared;
  const int lane, own;  // first row of the lane
  const PlainPairs pairs;
  const uint64_t q_rows, dout_rows;
  typename Shared::KState k_at;
  typename Shared::VState v_at;
  float (&dq)[D / 8][4], (&x)[1][BN / 8][4], (&dp)[1][BN / 8][4], (&lse)[2], (&delta)[2];
  uint32_t (&ds)[1][BN / 16][4];
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_bwd_dq_sm90(const __grid_constant__ AttendBackward b,
                       const __grid_constant__ BackwardMaps maps,
                       const __grid_constant__ BackwardWork work,
                       const __grid_constant__ TileOrder order) {
  constexpr int BM = Shape::BM, BN = Shape::BN;
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ __align__(16) unsigned char s_sequence[sizeof(Sequence)];
  const Attend& a = b.forward;
  const BackwardDqShared<Shape> shared{shared_address(memory)};
  const int warp = sm90::uniform(threadIdx.x / 32), group = sm90::uniform(threadIdx.x / 128) - 1;
  const TileCoord mine(order, static_cast<int>(blockIdx.x));
  const int heads = static_cast<int>(a.h);
  RowsOfHead of{mine.head / heads, mine.head % heads, mine.row_tile * BM};
  if (threadIdx.x == 0) {
    new (s_sequence) Sequence{a.sequences[of.sequence]};
    shared.init();
  }
  __syncthreads();
  const Sequence& seq = *reinterpret_cast<const Sequence*>(s_sequence);
  const int rows = static_cast<int>(seq.rows);
  of.end = min(of.begin + BM, rows);
  if (of.begin >= rows) return;
  const KeyTiles tiles = key_tiles(a.mask, seq, of.head, of.head + 1, of.begin, of.end, BN);
  of.first = sm90::uniform(static_cast<int>(tiles.first));
  of.last = sm90::uniform(static_cast<int>(tiles.last));
  if (group < 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (warp == 0 && of.first < of.last) produce_keys_of_rows<Shape>(a, maps, seq, of, shared);
  } else {
    sm90::setmaxnreg_inc<Shape::consumer_regs>();
    typename DqConsumer90<Shape>::Fragments fragments;
    DqConsumer90<Shape>(b, work, seq, of, shared, group, fragments).run();
  }
}

}  // namespace fovea::cuda
