// SPDX-License-Identifier: Apache-2.0
// The gradient of kl by the scores of one distribution on Hopper, wide heads, four products:
//   x = k q',  y = v dout',  ds' = dscore(x, y),  dk += ds' q,  dq += ds k
// A block owns 128 keys of a sequence and key head and walks the row tiles of the group's heads.
// Warpgroup 0 copies (warp 0) and drains dq (warps 1, 2).  Warpgroups 1 and 2 own 64 keys each:
// scores stand keys by rows, so ds' leaves the registers as the operand of dk.  There is no dv, so
// v stays in registers, which spares shared memory a quarter of what the products of scores read.
// Warpgroup 3 makes dq of the ds that they put into shared memory: they never wait for the L2.
// Keys of either side that hold an infinity or NaN are cleared where they lie, before any product:
// rows that see one have a NaN in lse, rows of gain 0 are zeros.
// Shared memory and barriers: BackwardLayout90 and BackwardShared90, where warpgroups 1 and 2 are
// the consumers and dq has one buffer, and beside these:
//
//   | barrier  | who arrives                 | who waits       | what it guards            |
//   | ds full  | a lane of each warp of 1, 2 | warpgroup 3     | a tile of ds              |
//   | ds empty | a lane of each warp of 3    | warpgroups 1, 2 | the same, to overwrite    |
//   | named 1  | warpgroups 1 and 2          | the same        | K and V with cleared rows |
// dq is summed in the workspace block of keys by block of keys, each waiting until the one before
// it has added to the tile; blocks start in that order, so none waits for a later one.
#pragma once
#include <new>

#include "cuda/loop/backward_dq_sm90.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

template <class Shape>
struct KlBackwardLayout90;

template <int Dtype_, int D_, int E_, int BM_, int StagesQ_, DscorePolicy Dscores_>
struct KlBackwardShape90 {
  using Dscores = Dscores_;
  static constexpr int Dtype = Dtype_, D = D_, E = E_, BM = BM_, BN = 128;
  static constexpr int StagesQ = StagesQ_, StagesS = 2;
  static constexpr int owners = BN / 64, threads = 128 * (owners + 2);
  static constexpr int producer_regs = 24, owning = 192, summing = 104;  // registers a thread
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  using TileQ = Swizzled<BM, D>;
  using TileO = Swizzled<BM, E>;
  using TileS = Swizzled<BN, BM>;
  static_assert(BM == kChunkRows);
  static constexpr int chunks = TileK::panels;  // of dq
  static constexpr int dq_buffers = 1, dq_bytes = chunks * kChunkFloats * 4,
                       row_stats_bytes = Dscores::stats * BM * 4;
  static constexpr int shared_bytes = KlBackwardLayout90<KlBackwardShape90>().bytes;
};

template <class Shape>
struct KlBackwardLayout90 : BackwardLayout90<Shape> {
  int ds_pipe = this->pipeline(2);
};

template <class Shape>
struct KlBackwardShared90 : BackwardShared90<Shape> {
  using DsPipe = sm90::Pipeline<2>;
  __device__ explicit KlBackwardShared90(unsigned char* memory) : BackwardShared90<Shape>(memory) {}
  __device__ DsPipe ds_pipe() const {
    constexpr KlBackwardLayout90<Shape> layout = KlBackwardLayout90<Shape>();
    return {this->base + layout.ds_pipe};
  }
};

// Warpgroup 3: dq = ds k of each tile, in f32 to the drain warps' buffer.
template <class Shape>
__device__ __forceinline__ void sum_dq(int tiles, const KlBackwardShared90<Shape>& shared) {
  constexpr int D = Shape::D;
  float dq[D / 8][4];
  const uint64_t k_columns = sm90::descriptor(shared.base, Shape::TileK::panel_bytes);
  typename KlBackwardShared90<Shape>::DoutState at;
#pragma unroll 1
  for (; tiles > 0; --tiles, at.next()) {
    shared.ds_pipe().wait(at);
    sm90::fence();
    sm90::product_transposed<Shape::Dtype, Shape::BN>(dq, sm90::descriptor(shared.ds(at)),
                                                      sm90::unhoisted(k_columns));
    sm90::commit();
    sm90::wait<0>();
    sm90::pin(dq);
    __syncwarp();
    shared.ds_pipe().release(at);
    sm90::barrier_wait(shared.dq_empty(0), at.stage ^ 1);
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
      *reinterpret_cast<float4*>(shared.memory + shared.layout.dq +
                                 (j * 128 + threadIdx.x % 128) * 16) =
          make_float4(dq[j][0], dq[j][1], dq[j][2], dq[j][3]);
    sm90::fence_shared();
    __syncwarp();
    sm90::barrier_arrive_warp(shared.dq_full(0, at.stage));
  }
}

// Warpgroups 1 and 2: 64 of the block's keys each.
template <class Shape, RowSource Rows>
class KlBackwardOwner90 {
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BM = Shape::BM;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  using TileS = typename Shape::TileS;
  using Dscores = typename Shape::Dscores;
  using Shared = KlBackwardShared90<Shape>;
  using QState = typename Shared::QState;
  using DoutState =
      typename Shared::DoutState;  // of dout and ds; its stage is whether a tile is odd

 public:
  // An object apart: until its loops are unrolled the compiler keeps all that lies beside in
  // memory.
  struct Fragments {
    float dk[D / 8][4], x[1][BM / 8][4], y[1][BM / 8][4];
    uint32_t v[E / 16][4], ds[1][BM / 16][4];
  };

  __device__ __forceinline__ KlBackwardOwner90(const AttendBackward& b, const BackwardWork& work,
                                               const typename Dscores::Args& args, const Rows& rows,
                                               const Shared& shared, int group, Fragments& f)
      : b(b),
        work(work),
        args(args),
        rows(rows),
        shared(shared),
        group(group),
        lane(threadIdx.x % 32),
        warp(sm90::uniform(threadIdx.x / 32)),
        key_begin(shared.block().n * Shape::BN),
        k_rows(sm90::descriptor(shared.base + group * 64 * kPanelRowBytes)),
        full(dscores_now().pairs.full_tiles(BM, key_begin, key_begin + Shape::BN)),
        tile(rows.first()),
        dk(f.dk),
        x(f.x),
        y(f.y),
        v(f.v),
        ds(f.ds) {
    full.begin = sm90::uniform(full.begin), full.end = sm90::uniform(full.end);
  }

  __device__ __forceinline__ void run() {
#pragma unroll
    for (int j = 0; j < D / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) dk[j][c] = 0.f;
    if (!rows.ends(tile)) {
      take_keys();
      shared.q_pipe().wait(q_at);
      own_scores(q_at);
      other_scores();
      sm90::wait<1>();
      sm90::pin(x[0]);
      weigh(q_at, tile.m);
#pragma unroll 1
      for (;;) {
        const QState next = step();
        if (rows.ends(tile)) break;
        at.next();
        q_at = next;
        other_scores();  // into the registers that ds had
      }
    }
    store_dk<Dtype>(b, work, shared.sequence(), shared.block().g, own(), dk);
  }

 private:
  // Dscores and what a lane addresses are found anew in each tile: held, they would be more
  // registers than there are.
  __device__ __forceinline__ int own() const {  // first key of the lane
    return key_begin + group * 64 + warp % 4 * 16 + sm90::unhoisted(lane) / 4;
  }
  template <class Tile>
  __device__ __forceinline__ uint32_t fragment(uint32_t tile) const {
    const int at = sm90::unhoisted(lane);
    return tile + Tile::at(group * 64 + warp % 4 * 16 + outer_row(at), outer_chunk(at));
  }
  __device__ __forceinline__ Dscores dscores_now() const {
    return Dscores(b.forward, *sm90::unhoisted(&shared.sequence()), args);
  }
  // dq is; else no ds leaves.
  __device__ __forceinline__ bool wanted() const {
    return sm90::unhoisted(work.dq) != nullptr;
  }
  // The first statistic of the lane's rows 2 t, 2 t + 1 of each 8; the next lies BM / 2 on.
  __device__ __forceinline__ const float2* stats(const QState& at) const {
    return reinterpret_cast<const float2*>(shared.memory + shared.row_stats(at)) +
           sm90::unhoisted(lane % 4);
  }

  // V to registers.
  __device__ __forceinline__ void take_keys() {
    sm90::barrier_wait(shared.kv_full(), 0);
    clear_non_finite_rows<Dtype, TileK>(shared.memory, group * 64 + warp % 4 * 16);
    clear_non_finite_rows<Dtype, TileV>(shared.memory + shared.layout.v,
                                        group * 64 + warp % 4 * 16);
    sm90::named_barrier_sync(1, 128 * Shape::owners);
    const uint32_t v_lane = fragment<TileV>(shared.base + shared.layout.v);
#pragma unroll
    for (int k = 0; k < E / 16; ++k) load_matrices(v[k], TileV::pair(v_lane, k));
  }
  __device__ __forceinline__ void own_scores(const QState& at) {
    sm90::fence();
    sm90::product_rows<Dtype, D, TileK, TileQ>(x[0], sm90::unhoisted(k_rows),
                                               sm90::descriptor(shared.q(at)));
    sm90::commit();
  }
  __device__ __forceinline__ void other_scores() {
    shared.dout_pipe().wait(at);
    const uint64_t rows = sm90::descriptor(shared.dout(at));
    sm90::fence();
#pragma unroll
    for (int k = 0; k < E / 16; ++k)
      sm90::Wgmma<Dtype, BM>::template rs<0>(
          y[0], v[k], rows + k / 4 * (TileO::panel_bytes / 16) + k % 4 * 2, k != 0);
    sm90::commit();
  }
  __device__ __forceinline__ void weigh(const QState& at, int m) {
    const auto all = [&](bool full) {
      weigh_tile(x[0], dscores_now(), stats(at), m * BM + lane % 4 * 2, own(), full);
    };
    full(m) ? all(true) : all(false);
  }
  __device__ __forceinline__ void make_ds(const QState& at, int m) {
    const auto all = [&](bool full) {
      dscore_tile(
          y[0], dscores_now(),
          [&](int j) { return make_float4(x[0][j][0], x[0][j][1], x[0][j][2], x[0][j][3]); },
          stats(at), full);
    };
    full(m) ? all(true) : all(false);
  }
  __device__ __forceinline__ void store_ds() {
    const uint32_t to = fragment<TileS>(shared.ds(at));
    shared.ds_pipe().acquire(at);
#pragma unroll
    for (int k = 0; k < BM / 16; ++k) sm90::store_matrices(TileS::pair(to, k), ds[0][k]);
    sm90::fence_shared();
    __syncwarp();
    sm90::barrier_arrive_warp(shared.ds_pipe().full(at));
  }

  // One row tile, and the own scores of the next, whose stage is returned.
  __device__ __forceinline__ QState step() {
    QState next = q_at;
    next.next();
    sm90::wait<0>();
    sm90::pin(y[0]);
    __syncwarp();
    shared.dout_pipe().release(at);
    make_ds(q_at, tile.m);
    rows.next(tile);
    pack_operand<Dtype>(ds, y);
    // After the last tile, the scores are of any that is at hand.
    if (!rows.ends(tile)) shared.q_pipe().wait(next);
    own_scores(next);
    if (wanted()) store_ds();
    sm90::fence();
    sm90::product_columns<Dtype>(dk, ds[0], sm90::descriptor(shared.q(q_at), TileQ::panel_bytes),
                                 true);
    sm90::commit();
    sm90::wait<1>();
    sm90::pin(x[0]);
    weigh(next, tile.m);
    sm90::wait<0>();
    sm90::pin(dk);
    __syncwarp();
    shared.q_pipe().release(q_at);
    return next;
  }

  const AttendBackward& b;
  const BackwardWork& work;
  const typename Dscores::Args& args;
  const Rows& rows;
  const Shared& shared;
  const int group, lane, warp, key_begin;
  const uint64_t k_rows;
  PlainPairs::FullTiles full;
  QState q_at;
  DoutState at;
  RowStep tile;
  float (&dk)[D / 8][4], (&x)[1][BM / 8][4], (&y)[1][BM / 8][4];
  uint32_t (&v)[E / 16][4], (&ds)[1][BM / 16][4];
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    kl_bwd_sm90(const __grid_constant__ AttendBackward b, const __grid_constant__ BackwardMaps maps,
                const __grid_constant__ BackwardWork work,
                const __grid_constant__ BackwardGrid90 grid,
                const __grid_constant__ typename Shape::Dscores::Args args) {
  extern __shared__ __align__(1024) unsigned char memory[];
  const Attend& a = b.forward;
  const KlBackwardShared90<Shape> shared(memory);
  const int warp = sm90::uniform(threadIdx.x / 32), group = sm90::uniform(threadIdx.x / 128) - 1;
  if (threadIdx.x < 4) sm90::prefetch_map((&maps.q)[threadIdx.x]);
  if (threadIdx.x == 0) {
    shared.init(a, grid, 4 * Shape::owners);
    shared.ds_pipe().init(4 * Shape::owners, 4);
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
    else if (work.dq && warp <= 2 && threadIdx.x % 32 == 0)
      drain_dq<Shape>(a, work, rows, warp - 1, shared);
  } else if (group == Shape::owners) {
    sm90::setmaxnreg_dec<Shape::summing>();
    if (work.dq) sum_dq<Shape>(rows.count(), shared);
  } else {
    sm90::setmaxnreg_inc<Shape::owning>();
    using Owner = KlBackwardOwner90<Shape, WindowRows>;
    typename Owner::Fragments fragments;
    Owner(b, work, args, rows, shared, group, fragments).run();
  }
}

}  // namespace fovea::cuda
