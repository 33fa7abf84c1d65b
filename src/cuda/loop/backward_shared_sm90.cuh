// SPDX-License-Identifier: Apache-2.0
// What the warps of a Hopper gradient loop that sums dq in the workspace hand each other in shared
// memory: attend_bwd_sm90.cuh, and kl's backward_loop_sm90.cuh, which adds a ring of its own.
#pragma once
#include "cuda/loop/backward_block_sm90.cuh"
#include "cuda/loop/backward_tiles.cuh"
#include "cuda/tile/pipeline_sm90.cuh"

namespace fovea::cuda {

// dq_buffers of dq_bytes each: parts of a tile of dq that are drained apart.  StagesS tiles of ds:
// of more than two, consumers form dq of a tile in the step after.
template <class Shape>
struct BackwardLayout90 : sm90::SharedLayout {
  int k = tiles(Shape::TileK::bytes), v = tiles(Shape::TileV::bytes),
      q = tiles(Shape::TileQ::bytes, Shape::StagesQ), dout = tiles(Shape::TileO::bytes, 2),
      ds = tiles(Shape::TileS::bytes, Shape::StagesS),
      dq = add(Shape::dq_buffers * Shape::dq_bytes, 16),
      row_stats = add(Shape::StagesQ * Shape::row_stats_bytes, 16),
      sequence = add(sizeof(Sequence), 16), block = add(sizeof(BackwardBlock), 16), kv = barriers(),
      raw = barriers(), q_pipe = pipeline(Shape::StagesQ), dout_pipe = pipeline(2),
      dq_barriers = barriers(3 * Shape::dq_buffers),
      ds_full = barriers(Shape::StagesS > 2 ? Shape::StagesS : 0);
};

//   | barrier       | who arrives         | who waits     | what it guards                    |
//   | kv full       | TMA, twice          | consumers     | K and V                           |
//   | raw           | TMA                 | producer      | a tile whose last rows it zeroes  |
//   | q full        | TMA                 | consumers     | a tile of Q, its rows' statistics |
//   | q empty       | a lane of each warp | producer      | the same, to overwrite            |
//   | dout full     | TMA                 | consumers     | a tile of dout                    |
//   | dout empty    | a lane of each warp | producer      | the same, to overwrite            |
//   | dq full, even | a lane of each warp | drain warp 1  | a buffer of dq, of even tiles     |
//   | dq full, odd  | a lane of each warp | drain warp 2  | the same, of odd tiles            |
//   | dq empty      | either drain warp   | who writes dq | the same, to overwrite            |
//   | ds full       | a lane of each warp | consumers     | ds of all keys, of three tiles    |
template <class Shape>
struct BackwardShared90 {
  static constexpr BackwardLayout90<Shape> layout = BackwardLayout90<Shape>();
  using QPipe = sm90::Pipeline<Shape::StagesQ>;
  using DoutPipe = sm90::Pipeline<2>;
  using QState = typename QPipe::State;
  using DoutState = typename DoutPipe::State;
  using DsState = sm90::PipelineState<Shape::StagesS>;
  unsigned char* memory;
  uint32_t base;

  __device__ explicit BackwardShared90(unsigned char* memory)
      : memory(memory), base(shared_address(memory)) {}
  __device__ uint32_t q(const QState& at) const {
    return base + layout.q + at.stage * Shape::TileQ::bytes;
  }
  __device__ uint32_t dout(const DoutState& at) const {
    return base + layout.dout + at.stage * Shape::TileO::bytes;
  }
  __device__ uint32_t ds(const DsState& at) const {
    return base + layout.ds + at.stage * Shape::TileS::bytes;
  }
  __device__ uint32_t ds_full(const DsState& at) const {
    return base + layout.ds_full + at.stage * 8;
  }
  // The statistics of a stage's rows: BM floats of each.
  __device__ uint32_t row_stats(const QState& at) const {
    return layout.row_stats + at.stage * Shape::row_stats_bytes;
  }
  __device__ Sequence& sequence() const {
    return *reinterpret_cast<Sequence*>(memory + layout.sequence);
  }
  __device__ BackwardBlock& block() const {
    return *reinterpret_cast<BackwardBlock*>(memory + layout.block);
  }
  __device__ uint32_t kv_full() const { return base + layout.kv; }
  __device__ uint32_t raw() const { return base + layout.raw; }
  __device__ QPipe q_pipe() const { return {base + layout.q_pipe}; }
  __device__ DoutPipe dout_pipe() const { return {base + layout.dout_pipe}; }
  __device__ uint32_t dq_full(int buffer, int odd) const {
    return base + layout.dq_barriers + buffer * 24 + odd * 8;
  }
  __device__ uint32_t dq_empty(int buffer) const { return dq_full(buffer, 2); }

  // By one thread: what the block does, and the barriers of `consumers` warps.
  __device__ void init(const Attend& a, const BackwardGrid90& grid, int consumers) const {
    BackwardBlock* const own_block = new (&block()) BackwardBlock(grid);
    const Sequence* const own = new (&sequence()) Sequence{a.sequences[own_block->r]};
    own_block->place_tail(a.mask, own->keys, Shape::BN);
    sm90::barrier_init(kv_full(), 2), sm90::barrier_init(raw(), 1);
    q_pipe().init(1, consumers), dout_pipe().init(1, consumers);
    for (int i = 0; i < Shape::dq_buffers; ++i) {
      sm90::barrier_init(dq_full(i, 0), 4), sm90::barrier_init(dq_full(i, 1), 4);
      sm90::barrier_init(dq_empty(i), 1);
    }
    if constexpr (Shape::StagesS > 2)
      for (DsState at; at.phase == 0; at.next()) sm90::barrier_init(ds_full(at), consumers);
  }
};

}  // namespace fovea::cuda
