// SPDX-License-Identifier: Apache-2.0
// What kernels share that keep the state of every chunk (backward_keys_sm90.cuh,
// backward_shared_sm90.cuh): which chain a block walks, and tiles that their producer completes.
#pragma once
#include "cuda/loop/chain_sm90.cuh"

namespace fovea::cuda {

// Chunk `c` of a sequence: where its tokens lie, and which of its rows count.
struct ChunkRows {
  int row;         // of the first token
  int from, left;  // rows [from, left)

  __device__ bool whole() const { return from == 0 && left == kChainTokens; }
};

// A block's chain: states of the first `chains` blocks go from the first chunk on, those of the
// others from the last one on.
struct StateWalk {
  RunTokens run;
  int tile, head, chunks;  // tile: of 64 value columns
  bool reversed;

  __device__ StateWalk(const Recur& a, int64_t chains, int64_t tiles) {
    uint32_t block = sm90::unhoisted(blockIdx.x);
    const auto half = static_cast<uint32_t>(chains), each = static_cast<uint32_t>(tiles);
    const auto heads = static_cast<uint32_t>(a.heads);
    reversed = block >= half, block = reversed ? block - half : block;
    tile = static_cast<int>(block % each), block /= each;
    head = static_cast<int>(block % heads);
    run = a.run[block / heads];
    chunks = static_cast<int>((run.count + kChainTokens - 1) / kChainTokens);
  }
  // The i-th chunk of the walk.
  __device__ int chunk(int i) const { return reversed ? chunks - 1 - i : i; }
  // Backwards, rows before the first output do not count: they have no dO.
  __device__ ChunkRows rows(int c) const {
    const int64_t first = int64_t{c} * kChainTokens;
    const int left = static_cast<int>(min(int64_t{kChainTokens}, run.count - first));
    return {static_cast<int>(run.begin + first),
            reversed ? static_cast<int>(clamp_i64(run.from - first, 0, left)) : 0, left};
  }
};

// Rows [first, end) of a tile, by a warp.
template <class Tile>
__device__ inline void zero_tile_rows(uint32_t tile, int first, int end) {
  constexpr int kChunks = Tile::panels * kPanelChunks;
  for (int i = first * kChunks + static_cast<int>(threadIdx.x % 32); i < end * kChunks; i += 32)
    sm90::store_zeros(tile + Tile::at(i / kChunks, i % kChunks));
}
// Those that do not count.
template <class Tile>
__device__ inline void zero_other_rows(uint32_t tile, int from, int left) {
  zero_tile_rows<Tile>(tile, 0, from), zero_tile_rows<Tile>(tile, left, kChainTokens);
}

// A warp fills a stage by load(barrier), TMA.  Unless it is `whole`, the warp itself waits, at the
// barrier `tail` and its phase, and zeroes rows by zero() before it tells.
template <class Pipe, class Load, class Zero>
__device__ __forceinline__ void fill_stage(const Pipe& pipe, const typename Pipe::State& stage,
                                           bool whole, uint32_t tail, uint32_t& phase, Load load,
                                           Zero zero) {
  pipe.acquire(stage);
  if (whole) {
    load(pipe.full(stage));
    return;
  }
  load(tail);
  sm90::barrier_wait(tail, phase);
  phase ^= 1;
  zero();
  sm90::fence_shared();
  __syncwarp();
  if (threadIdx.x % 32 == 0) pipe.arrive(stage);
}

}  // namespace fovea::cuda
