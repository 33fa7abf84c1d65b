// SPDX-License-Identifier: Apache-2.0
// dk and dv of wide heads on Hopper (registers hold the sums of 64 keys only):
//   p' = exp(k q' - lse),  dv += p' dout,  ds' = p' (v dout' - delta),  dk += ds' q
// A block owns 64 keys of a sequence and key head.  Its mainloop takes the row tiles of the group's
// heads.  Warpgroup 0 is the producer.  Consumer 1 makes p' and sums dv, consumer 2 sums dk.
// A pipeline passes p' from 1 to 2, in f32 and fragment order.  One has products in flight while
// the other is between two.
// Shared memory: BackwardDkDvLayout.
//
//   | barrier    | who arrives                 | who waits   | what it guards                    |
//   | k full     | TMA                         | warpgroup 1 | K                                 |
//   | v full     | TMA                         | warpgroup 2 | V                                 |
//   | raw        | TMA                         | producer    | a tile whose last rows it zeroes  |
//   | q full     | TMA                         | 1 and 2     | a tile of Q, its rows' statistics |
//   | q empty    | a lane of each warp of 1, 2 | producer    | the same, to overwrite            |
//   | dout full  | TMA                         | 1 and 2     | a tile of dout                    |
//   | dout empty | a lane of each warp of 1, 2 | producer    | the same, to overwrite            |
//   | p full     | a lane of each warp of 1    | warpgroup 2 | p' of a tile                      |
//   | p empty    | a lane of each warp of 2    | warpgroup 1 | the same, to overwrite            |
//
// Rows past the last are zeroed where the tensor goes on: NaN times a p of 0 would be NaN.
#pragma once
#include <new>

#include "cuda/loop/backward_dq_sm90.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/tile/mma_sm80.cuh"
#include "cuda/tile/pipeline_sm90.cuh"

namespace fovea::cuda {

template <class Shape>
struct BackwardDkDvLayout;

template <int Dtype_, int D_, int E_>
struct BackwardDkDvShape {
  static constexpr int Dtype = Dtype_, D = D_, E = E_, BM = 64, BN = 64, Stages = 2;
  static constexpr int threads = 384, producer_regs = 24, consumer_regs = 240;
  using TileK = Swizzled<BN, D>;
  using TileV = Swizzled<BN, E>;
  using TileQ = Swizzled<BM, D>;
  using TileO = Swizzled<BM, E>;
  static constexpr int p_bytes = BN * BM * 4, row_stats_bytes = 2 * BM * 4;
  static constexpr int shared_bytes = BackwardDkDvLayout<BackwardDkDvShape>().bytes;
};

template <class Shape>
struct BackwardDkDvLayout : sm90::SharedLayout {
  int k = tiles(Shape::TileK::bytes), v = tiles(Shape::TileV::bytes),
      q = tiles(Shape::TileQ::bytes, Shape::Stages),
      dout = tiles(Shape::TileO::bytes, Shape::Stages), p = add(2 * Shape::p_bytes, 16),
      row_stats = add(Shape::Stages * Shape::row_stats_bytes, 16), k_full = barriers(),
      v_full = barriers(), raw = barriers(), q_pipe = pipeline(Shape::Stages),
      dout_pipe = pipeline(Shape::Stages), p_pipe = pipeline(2);
};

template <class Shape>
struct BackwardDkDvShared {
  static constexpr BackwardDkDvLayout<Shape> layout = BackwardDkDvLayout<Shape>();
  static_assert(Shape::Stages == 2, "one ring state for the tiles and p");
  using Pipe = sm90::Pipeline<2>;
  using PipelineState = Pipe::State;
  unsigned char* memory;
  uint32_t base;

  __device__ explicit BackwardDkDvShared(unsigned char* memory)
      : memory(memory), base(shared_address(memory)) {}
  __device__ uint32_t q(const PipelineState& at) const {
    return base + layout.q + at.stage * Shape::TileQ::bytes;
  }
  __device__ uint32_t dout(const PipelineState& at) const {
    return base + layout.dout + at.stage * Shape::TileO::bytes;
  }
  __device__ float4* p(const PipelineState& at) const {
    return reinterpret_cast<float4*>(memory + layout.p + at.stage * Shape::p_bytes) +
           threadIdx.x % 128;
  }
  __device__ uint32_t row_stats(const PipelineState& at) const {
    return layout.row_stats + at.stage * Shape::row_stats_bytes;
  }
  __device__ uint32_t k_full() const { return base + layout.k_full; }
  __device__ uint32_t v_full() const { return base + layout.v_full; }
  __device__ uint32_t raw() const { return base + layout.raw; }
  __device__ Pipe q_pipe() const { return {base + layout.q_pipe}; }
  __device__ Pipe dout_pipe() const { return {base + layout.dout_pipe}; }
  __device__ Pipe p_pipe() const { return {base + layout.p_pipe}; }

  __device__ void init() const {
    sm90::barrier_init(k_full(), 1), sm90::barrier_init(v_full(), 1), sm90::barrier_init(raw(), 1);
    q_pipe().init(1, 8), dout_pipe().init(1, 8), p_pipe().init(4, 4);
    sm90::barrier_init_done();
  }
};

// The producer warp.
template <class Shape, RowSource Rows>
__device__ __forceinline__ void produce_rows_of_keys(const Attend& a, const BackwardMaps& maps,
                                                     const BackwardWork& work, const Sequence& seq,
                                                     const BackwardBlock& block, const Rows& rows,
                                                     const BackwardDkDvShared<Shape>& shared) {
  constexpr int BM = Shape::BM;
  const int lane = threadIdx.x % 32;
  const int key_row = static_cast<int>(seq.key_begin) + block.n * Shape::BN,
            key_batch = static_cast<int>(seq.key_batch), key_head = block.g / work.shares;
  const int first_tile = static_cast<int>(work.tiles.first(seq, block.r));
  const int row_begin = static_cast<int>(seq.row_begin), batch = static_cast<int>(seq.batch),
            count = static_cast<int>(seq.rows);
  // From here on the tensor's rows are not the sequence's.
  const int row_end = seq.row_begin + count < a.s ? row_begin + count : INT32_MAX;
  if (lane == 0) {
    sm90::tma_load_tile<typename Shape::TileK>(shared.base, maps.k, shared.k_full(), key_row,
                                               key_head, key_batch);
    sm90::tma_load_tile<typename Shape::TileV>(shared.base + shared.layout.v, maps.v,
                                               shared.v_full(), key_row, key_head, key_batch);
  }
  uint32_t raw_phase = 0;
  typename BackwardDkDvShared<Shape>::PipelineState to;
  rows.each([&](int h, int m) {
    const int row = row_begin + m * BM;
    const FirstRows present{row_end - row};
    shared.q_pipe().acquire(to);
    copy_present<typename Shape::TileQ, BM>(shared.q(to), maps.q, shared.q_pipe().full(to),
                                            shared.raw(), raw_phase, row, h, batch, present,
                                            Shape::row_stats_bytes);
    if (lane == 0)
      sm90::tma_load(shared.base + shared.row_stats(to),
                     work.lse(h * work.tiles.total + first_tile + m), Shape::row_stats_bytes,
                     shared.q_pipe().full(to));
    shared.dout_pipe().acquire(to);
    copy_present<typename Shape::TileO, BM>(shared.dout(to), maps.dout, shared.dout_pipe().full(to),
                                            shared.raw(), raw_phase, row, h, batch, present, 0);
    to.next();
  });
}

// What the two consumers share: the block's keys and the row tile.
template <class Shape, RowSource Rows>
class DkDvConsumer90 {
 protected:
  static constexpr int Dtype = Shape::Dtype, D = Shape::D, E = Shape::E, BM = Shape::BM,
                       BN = Shape::BN;
  using TileK = typename Shape::TileK;
  using TileV = typename Shape::TileV;
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  using Shared = BackwardDkDvShared<Shape>;
  using PipelineState = typename Shared::PipelineState;

 public:
  __device__ __forceinline__ DkDvConsumer90(const Attend& a, const Sequence& seq,
                                            const BackwardBlock& block, const Rows& rows,
                                            const Shared& shared)
      : seq(seq),
        rows(rows),
        shared(shared),
        lane(threadIdx.x % 32),
        g(block.g),
        key_begin(block.n * BN),
        own(key_begin + sm90::uniform(threadIdx.x / 32) % 4 * 16 + lane / 4),
        dscores(a, seq, {}),
        tile(rows.first()) {}

 protected:
  __device__ __forceinline__ bool full(int m) const {
    return dscores.pairs.full(m * BM, m * BM + BM, key_begin, key_begin + BN);
  }
  // lse, or delta from BM / 2 on, of the lane's rows 2 t, 2 t + 1 of each 8.
  __device__ __forceinline__ const float2* stats() const {
    return reinterpret_cast<const float2*>(shared.memory + shared.row_stats(at)) + lane % 4;
  }
  __device__ __forceinline__ void advance() {
    at.next();
    rows.next(tile);
  }

  const Sequence& seq;
  const Rows& rows;
  const Shared& shared;
  const int lane, g, key_begin, own;  // first key of the block, of the lane
  const AttentionDscores dscores;
  PipelineState at;
  RowStep tile;
};

// Warpgroup 1: p' and dv.
template <class Shape, RowSource Rows>
class DvConsumer90 : DkDvConsumer90<Shape, Rows> {
  using Base = DkDvConsumer90<Shape, Rows>;
  using Base::Dtype, Base::BM, Base::at, Base::tile, Base::shared;

 public:
  struct Fragments {
    float dv[Shape::E / 8][4], x[1][BM / 8][4];
    uint32_t p[1][BM / 16][4];
  };
  using Base::Base;

  __device__ __forceinline__ void run(const AttendBackward& b, const BackwardWork& work,
                                      Fragments& f) {
#pragma unroll
    for (int j = 0; j < Shape::E / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) f.dv[j][c] = 0.f;
    if (int left = this->rows.count(); left > 0) {
      sm90::barrier_wait(shared.k_full(), 0);
      issue_scores(f);
      sm90::wait<0>();
      sm90::pin(f.x[0]);
#pragma unroll 1
      for (; left > 1; --left) {
        weigh(f);
        issue_dv(f);
        const auto now = at;
        this->advance();
        issue_scores(f);
        sm90::wait<1>();
        sm90::pin(f.dv);
        shared.dout_pipe().release(now);
        sm90::wait<0>();
        sm90::pin(f.x[0]);
      }
      weigh(f);
      issue_dv(f);
      sm90::wait<0>();
      sm90::pin(f.dv);
    }
    store_dv<Dtype>(b, work, this->seq, this->g, this->own, f.dv);
  }

 private:
  __device__ __forceinline__ void issue_scores(Fragments& f) {
    shared.q_pipe().wait(at);
    sm90::fence();
    sm90::product_rows<Dtype, Shape::D, typename Base::TileK, typename Base::TileQ>(
        f.x[0], sm90::unhoisted(sm90::descriptor(shared.base)), sm90::descriptor(shared.q(at)));
    sm90::commit();
  }
  // x becomes p', which goes to the pipeline and is packed.
  __device__ __forceinline__ void weigh(Fragments& f) {
    weigh_tile(f.x[0], this->dscores, this->stats(), tile.m * BM + this->lane % 4 * 2, this->own,
               this->full(tile.m));
    shared.p_pipe().acquire(at);
    float4* to = shared.p(at);
#pragma unroll
    for (int j = 0; j < BM / 8; ++j)
      to[j * 128] = make_float4(f.x[0][j][0], f.x[0][j][1], f.x[0][j][2], f.x[0][j][3]);
    __syncwarp();
    sm90::barrier_arrive_warp(shared.p_pipe().full(at));
    shared.q_pipe().release(at);
    pack_operand<Dtype>(f.p, f.x);
  }
  __device__ __forceinline__ void issue_dv(Fragments& f) {
    shared.dout_pipe().wait(at);
    sm90::fence();
    sm90::product_columns<Dtype>(f.dv, f.p[0],
                                 sm90::descriptor(shared.dout(at), Base::TileO::panel_bytes), true);
    sm90::commit();
  }
};

// Warpgroup 2: v dout', ds' and dk.
template <class Shape, RowSource Rows>
class DkConsumer90 : DkDvConsumer90<Shape, Rows> {
  using Base = DkDvConsumer90<Shape, Rows>;
  using Base::Dtype, Base::BM, Base::at, Base::tile, Base::shared;

 public:
  struct Fragments {
    float dk[Shape::D / 8][4], dp[1][BM / 8][4];
    uint32_t ds[1][BM / 16][4];
  };
  using Base::Base;

  __device__ __forceinline__ void run(const AttendBackward& b, const BackwardWork& work,
                                      Fragments& f) {
#pragma unroll
    for (int j = 0; j < Shape::D / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) f.dk[j][c] = 0.f;
    if (int left = this->rows.count(); left > 0) {
      sm90::barrier_wait(shared.v_full(), 0);
      issue_dp(f);
      sm90::wait<0>();
      sm90::pin(f.dp[0]);
      shared.dout_pipe().release(at);
#pragma unroll 1
      for (; left > 1; --left) {
        make_ds(f);
        issue_dk(f);
        const auto now = at;
        this->advance();
        issue_dp(f);
        sm90::wait<1>();
        sm90::pin(f.dk);
        shared.q_pipe().release(now);
        sm90::wait<0>();
        sm90::pin(f.dp[0]);
        shared.dout_pipe().release(at);
      }
      make_ds(f);
      issue_dk(f);
      sm90::wait<0>();
      sm90::pin(f.dk);
    }
    store_dk<Dtype>(b, work, this->seq, this->g, this->own, f.dk);
  }

 private:
  __device__ __forceinline__ void issue_dp(Fragments& f) {
    shared.dout_pipe().wait(at);
    sm90::fence();
    sm90::product_rows<Dtype, Shape::E, typename Base::TileV, typename Base::TileO>(
        f.dp[0], sm90::unhoisted(sm90::descriptor(shared.base + shared.layout.v)),
        sm90::descriptor(shared.dout(at)));
    sm90::commit();
  }
  // dp becomes ds', packed.
  __device__ __forceinline__ void make_ds(Fragments& f) {
    shared.q_pipe().wait(at);
    shared.p_pipe().wait(at);
    const float4* from = shared.p(at);
    dscore_tile(
        f.dp[0], this->dscores, [&](int j) { return from[j * 128]; }, this->stats(),
        this->full(tile.m));
    __syncwarp();
    shared.p_pipe().release(at);
    pack_operand<Dtype>(f.ds, f.dp);
  }
  __device__ __forceinline__ void issue_dk(Fragments& f) {
    sm90::fence();
    sm90::product_columns<Dtype>(f.dk, f.ds[0],
                                 sm90::descriptor(shared.q(at), Base::TileQ::panel_bytes), true);
    sm90::commit();
  }
};

template <class Shape>
__global__ void __launch_bounds__(Shape::threads, 1)
    attend_bwd_dkdv_sm90(const __grid_constant__ AttendBackward b,
                         const __grid_constant__ BackwardMaps maps,
                         const __grid_constant__ BackwardWork work,
                         const __grid_constant__ BackwardGrid90 grid) {
  extern __shared__ __align__(1024) unsigned char memory[];
  __shared__ __align__(16) unsigned char s_sequence[sizeof(Sequence)];
  __shared__ __align__(16) unsigned char s_block[sizeof(BackwardBlock)];
  const Attend& a = b.forward;
  const BackwardDkDvShared<Shape> shared(memory);
  const int warp = sm90::uniform(threadIdx.x / 32), group = sm90::uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    const auto* block = new (s_block) BackwardBlock(grid);
    new (s_sequence) Sequence{a.sequences[block->r]};
    shared.init();
  }
  __syncthreads();
  const Sequence& seq = *reinterpret_cast<const Sequence*>(s_sequence);
  const auto& block = *reinterpret_cast<const BackwardBlock*>(s_block);
  if (block.idle) return;
  const int keys = static_cast<int>(seq.keys), key_begin = block.n * Shape::BN;
  if (key_begin >= keys) return;
  const WindowRows rows(a, seq, block.g, key_begin, min(key_begin + Shape::BN, keys), Shape::BM,
                        block.down);
  if (group == 0) {
    sm90::setmaxnreg_dec<Shape::producer_regs>();
    if (warp == 0 && rows.count() > 0)
      produce_rows_of_keys<Shape>(a, maps, work, seq, block, rows, shared);
    return;
  }
  sm90::setmaxnreg_inc<Shape::consumer_regs>();
  if (group == 1) {
    using Consumer = DvConsumer90<Shape, WindowRows>;
    typename Consumer::Fragments fragments;
    Consumer(a, seq, block, rows, shared).run(b, work, fragments);
  } else {
    using Consumer = DkConsumer90<Shape, WindowRows>;
    typename Consumer::Fragments fragments;
    Consumer(a, seq, block, rows, shared).run(b, work, fragments);
  }
}

}  // namespace fovea::cuda
