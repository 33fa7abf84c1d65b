// SPDX-License-Identifier: Apache-2.0
// dq of the Hopper gradient: the dq semaphore, the producer and drain warps, and the epilogues.
#pragma once
#include "cuda/loop/backward_shared_sm90.cuh"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

// Waits until `order` key blocks have added to the tile.  Their sums are then visible to TMA.
__device__ inline void dq_order_wait(const DqOrder* at, int order) {
  int32_t now;
  do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
  while (now < order);
  sm90::fence_proxy_async();
}
// After the block's own TMA has ended: lets the next block add.
__device__ inline void dq_order_pass(DqOrder* at) {
  sm90::fence_proxy_async();
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(at) : "memory");
}

// The producer warp: K and V once, then Q with its row statistics, and dout, of each row tile.
template <class Shape, RowSource Rows>
__device__ __forceinline__ void produce_row_tiles(const Attend& a, const BackwardMaps& maps,
                                                  const BackwardWork& work, const Rows& row_tiles,
                                                  const typename Shape::Dscores::Args& args,
                                                  const BackwardShared90<Shape>& shared) {
  using Shared = BackwardShared90<Shape>;
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  constexpr int BM = Shape::BM, BN = Shape::BN;
  const Sequence& seq = shared.sequence();
  const BackwardBlock& block = shared.block();
  const bool leads = threadIdx.x % 32 == 0;
  const int first_tile = static_cast<int>(work.tiles.first(seq, block.r)),
            keys = static_cast<int>(seq.keys);
  const int key_begin = block.n * BN, key_row = static_cast<int>(seq.key_begin) + key_begin,
            key_batch = static_cast<int>(seq.key_batch);
  const uint32_t raw = shared.raw(), kv_full = shared.kv_full();
  uint32_t raw_phase = 0;
  const FirstRows present{seq.key_begin + keys < a.t ? min(keys - key_begin, BN) : BN};
  copy_present<typename Shape::TileK, BN>(shared.base, maps.k, kv_full, raw, raw_phase, key_row,
                                          Shape::Dscores::key_head(block.g, args), key_batch,
                                          present, 0);
  if (leads)
    sm90::tma_load_tile<typename Shape::TileV>(shared.base + Shared::layout.v, maps.v, kv_full,
                                               key_row, Shape::Dscores::value_head(block.g, args),
                                               key_batch);
  typename Shared::QState q_at;
  uint32_t step = 0;
  row_tiles.each([&](int h, int m) {
    const int row = static_cast<int>(seq.row_begin) + m * BM, batch = static_cast<int>(seq.batch);
    const float* stats = work.lse(h * work.tiles.total + first_tile + m);
    const auto count = Shape::Dscores::template rows<BM>(
        seq.row_begin + seq.rows < a.s ? static_cast<int>(seq.rows) - m * BM : BM, stats);
    shared.q_pipe().acquire(q_at);
    copy_present<TileQ, BM>(shared.q(q_at), maps.q, shared.q_pipe().full(q_at), raw, raw_phase, row,
                            h, batch, count, Shape::row_stats_bytes);
    if (leads)
      sm90::tma_load(shared.base + shared.row_stats(q_at), stats, Shape::row_stats_bytes,
                     shared.q_pipe().full(q_at));
    q_at.next();
    const typename Shared::DoutState dout_at{static_cast<int>(step % 2), step / 2 % 2};
    ++step;
    shared.dout_pipe().acquire(dout_at);
    copy_present<TileO, BM>(shared.dout(dout_at), maps.dout, shared.dout_pipe().full(dout_at), raw,
                            raw_phase, row, h, batch, count, 0);
  });
}

// A lane of drain warp `odd`, 0 or 1: adds the buffers of odd or of even tiles to dq by TMA.  With
// two warps a tile's addition ends while the next one's begins.
template <class Shape, RowSource Rows>
__device__ __forceinline__ void drain_dq(const Attend& a, const BackwardWork& work,
                                         const Rows& row_tiles, int odd,
                                         const BackwardShared90<Shape>& shared) {
  constexpr int BM = Shape::BM, floats = Shape::dq_bytes / 4, buffers = Shape::dq_buffers;
  // Consumers are half a step apart: the first one's buffer is free before the other's is full.
  constexpr bool kApart = Shape::StagesS > 2;
  const Sequence& seq = shared.sequence();
  const BackwardBlock& block = shared.block();
  const int rows = static_cast<int>(seq.rows), keys = static_cast<int>(seq.keys),
            first_tile = static_cast<int>(work.tiles.first(seq, block.r));
  uint32_t phase = 0;
  int mine = odd;
  row_tiles.each([&](int h, int m) {
    if (mine ^= 1; mine == 0) return;
    const int tile = h * work.tiles.total + first_tile + m;
    const WindowBlocks seen(a.mask, rows, keys, m * BM, min(m * BM + BM, rows), Shape::BN);
    // The tile's first block in dq order stores, the others add.
    const int order = work.ordered ? seen.before(block) : 1;
    if (work.ordered) dq_order_wait(work.dq_order + tile, order);
    float* to = work.dq + static_cast<int64_t>(tile) * (buffers * floats);
#pragma unroll
    for (int i = 0; i < buffers; ++i) {
      const uint32_t from = shared.base + shared.layout.dq + i * Shape::dq_bytes;
      sm90::barrier_wait(shared.dq_full(i, odd), phase);
      if (work.dq) {
        if (order == 0)
          sm90::tma_store(to + i * floats, from, Shape::dq_bytes);
        else
          sm90::tma_reduce_add(to + i * floats, from, Shape::dq_bytes);
        sm90::tma_store_commit();
      }
      if (kApart || buffers == 1) {
        sm90::tma_store_wait_read<0>();
        sm90::barrier_arrive(shared.dq_empty(i));
      }
    }
    if constexpr (!kApart && buffers == 2) {
      sm90::tma_store_wait_read<1>();
      sm90::barrier_arrive(shared.dq_empty(0));
      sm90::tma_store_wait_read<0>();
      sm90::barrier_arrive(shared.dq_empty(1));
    }
    sm90::tma_store_wait<0>();
    if (work.dq) dq_order_pass(work.dq_order + tile);
    phase ^= 1;
  });
}

// Stores fragment rows `own` and `own` + 8 of dk or dv: keys of head g.
template <int Dtype, int N>
__device__ __forceinline__ void store_keys(const View<4>& out, const Sequence& seq, int g, int own,
                                           int64_t width, const float (&sum)[N][4], float factor) {
  if (!out) return;
  uint16_t* line = static_cast<uint16_t*>(out.data) + seq.key_batch * out.stride[0] +
                   (seq.key_begin + own) * out.stride[1] + g * out.stride[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    store_row<Dtype>(own + 8 * half < seq.keys ? line + 8 * half * out.stride[1] : nullptr,
                     static_cast<int>(width), sum, half, factor);
}
// Stores dk or dv, or the f32 terms that are summed to it later.
template <int Dtype, int N>
__device__ __forceinline__ void store_key_sums(const Attend& a, const GradientView& out,
                                               float* terms, const Sequence& seq, int g, int own,
                                               int64_t width, const float (&sum)[N][4],
                                               float factor) {
  if (!out) return;
  if (!terms && out.dtype != FOVEA_F32)
    return store_keys<Dtype>(out, seq, g, own, width, sum, factor);
  const int64_t row = seq.key_begin + own, pitch = terms ? a.g * width : out.stride[1];
  float* line = terms ? terms + ((seq.key_batch * a.t + row) * a.g + g) * width
                      : out.as() + seq.key_batch * out.stride[0] + row * pitch + g * out.stride[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (own + 8 * half < seq.keys)
      store_wide(line + 8 * half * pitch, static_cast<int>(width), sum, half, factor);
}
template <int Dtype, int N>
__device__ __forceinline__ void store_dk(const AttendBackward& b, const BackwardWork& work,
                                         const Sequence& seq, int g, int own,
                                         const float (&sum)[N][4]) {
  const Attend& a = b.forward;
  store_key_sums<Dtype>(a, b.dk, work.dk, seq, g, own, a.d, sum, a.score.scale);
}
template <int Dtype, int N>
__device__ __forceinline__ void store_dv(const AttendBackward& b, const BackwardWork& work,
                                         const Sequence& seq, int g, int own,
                                         const float (&sum)[N][4]) {
  const Attend& a = b.forward;
  store_key_sums<Dtype>(a, b.dv, work.dv, seq, g, own, a.e, sum, 1.f);
}

// Stores a part of a head's dq: each row tile once all key blocks have added to it.  A warp takes
// 32 rows x 64 columns at a time, in the order of the row tiles.
template <class Shape>
__device__ __forceinline__ void store_part(const AttendBackward& b, const BackwardWork& work,
                                           const Sequence& seq, const BackwardBlock& block) {
  constexpr int Panels = Shape::TileQ::panels, BM = Shape::BM, units = Shape::chunks * 2;
  const Attend& a = b.forward;
  const int rows = static_cast<int>(seq.rows), keys = static_cast<int>(seq.keys);
  const int heads = static_cast<int>(a.h / a.g), h = block.g * heads + block.part % heads;
  const int first = block.part / heads * kPartTiles, lane = threadIdx.x % 32;
  const int first_tile = static_cast<int>(h * work.tiles.total + work.tiles.first(seq, block.r));
  for (int unit = threadIdx.x / 32; unit < kPartTiles * units; unit += Shape::threads / 32) {
    const int step = unit / units, m = first + (block.down ? kPartTiles - 1 - step : step);
    const int chunk = unit % units / 2, quarter = unit % 2 * 2;
    if (m * BM >= rows) continue;
    const WindowBlocks seen(a.mask, rows, keys, m * BM, min(m * BM + BM, rows), Shape::BN);
    float sum[2][8][4] = {};
    if (seen.low < seen.high) {
      if (lane == 0) dq_order_wait(work.dq_order + first_tile + m, seen.high - seen.low);
      __syncwarp();
      const float4* from =
          reinterpret_cast<const float4*>(work.dq + (first_tile + m) * work.tiles.floats() +
                                          chunk * kChunkFloats) +
          quarter * 32 + lane;
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float4 x = __ldcg(from + j * 128 + i * 32);
          sum[i][j][0] = x.x, sum[i][j][1] = x.y, sum[i][j][2] = x.z, sum[i][j][3] = x.w;
        }
    }
    const int row = m * BM + chunk / Panels * kChunkRows + quarter * 16 + lane / 4;
    const int column = chunk % Panels * 64;
    const int64_t at = row_offset(seq, row, h, b.dq.stride) + column;
#pragma unroll
    for (int eighth = 0; eighth < 4; ++eighth)
      store_as<Shape::Dtype>(b.dq.data, b.dq.dtype, at + 8 * eighth * b.dq.stride[1],
                             row + 8 * eighth < rows, static_cast<int>(a.d) - column,
                             sum[eighth / 2], eighth % 2, a.score.scale);
  }
}

}  // namespace fovea::cuda
