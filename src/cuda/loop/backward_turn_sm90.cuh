// SPDX-License-Identifier: Apache-2.0
// The order in which key blocks add to a tile of dq in the workspace, and what follows the last.
#pragma once
#include "cuda/loop/backward_walk_sm90.cuh"
#include "cuda/loop/pair_policy.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/sink.cuh"
#include "cuda/tile/mma_sm80.cuh"

namespace fovea::cuda {

// The key blocks [low, high) of `width` keys that see rows [begin, end).
struct SeenBlocks {
  int low, high;
  __device__ SeenBlocks(const Mask& mask, int rows, int keys, int begin, int end, int width) {
    const int left = static_cast<int>(clamp_i64(mask.window.left, 0, kIndexMax)),
              right = static_cast<int>(clamp_i64(mask.window.right, 0, kIndexMax));
    const int to = right ? min(end - 1 + keys - rows + right, keys) : keys;
    low = left ? max(begin + keys - rows - left + 1, 0) / width : 0;
    high = to > 0 ? (to - 1) / width + 1 : low;
  }
  // How many of them add to the tile before block n does.
  __device__ int before(const BackwardBlock& block) const {
    const int n = block.n;
    if (block.down || n == block.tail) return (block.down ? n : high - 1) - low;
    return high - 1 - n - (block.tail >= 0);
  }
};

// Until `turn` blocks have added; what they wrote is then seen by TMA too.
__device__ inline void wait_turn(const Turn* at, int turn) {
  int32_t now;
  do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
  while (now < turn);
  sm90::fence_engine();
}
// After TMA has ended.
__device__ inline void pass_turn(Turn* at) {
  sm90::fence_engine();
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(at) : "memory");
}

// The copying warp: k and v of the block's keys, then of each row tile of the walk q with its
// rows' values, and dout.  From Shape::barriers on lie k and v's, the warp's own, and of each stage
// of q, then of the two of dout, full and empty.
template <class Shape>
__device__ __forceinline__ void copy_tiles(const Attend& a, const BackwardMaps& maps,
                                           const BackwardWork& work, const Sequence& seq,
                                           const BackwardBlock& block, const RowWalk& walk,
                                           const typename Shape::Slopes::Args& args,
                                           uint32_t base) {
  using TileQ = typename Shape::TileQ;
  using TileO = typename Shape::TileO;
  constexpr int BM = Shape::BM, BN = Shape::BN;
  const uint32_t kv_full = base + Shape::barriers, raw = kv_full + 8, ring_q = raw + 8,
                 ring_dout = ring_q + Shape::StagesQ * 16;
  const bool leads = threadIdx.x % 32 == 0;
  const int first_tile = static_cast<int>(work.tiles.first(seq, block.r)),
            keys = static_cast<int>(seq.keys);
  const int key_begin = block.n * BN, key_row = static_cast<int>(seq.key_begin) + key_begin,
            key_batch = static_cast<int>(seq.key_batch);
  uint32_t raw_phase = 0;
  const FirstRows present{seq.key_begin + keys < a.t ? min(keys - key_begin, BN) : BN};
  copy_present<typename Shape::TileK, BN>(base, maps.k, kv_full, raw, raw_phase, key_row,
                                          Shape::Slopes::key_head(block.g, args), key_batch,
                                          present, 0);
  if (leads)
    sm90::copy_tile<typename Shape::TileV>(base + Shape::v, maps.v, kv_full, key_row,
                                           Shape::Slopes::value_head(block.g, args), key_batch);
  sm90::Ring<Shape::StagesQ> q_at;
  uint32_t step = 0;
  walk.each([&](int h, int m) {
    const int row = static_cast<int>(seq.row_begin) + m * BM, batch = static_cast<int>(seq.batch);
    const float* side = work.lse(h * work.tiles.total + first_tile + m);
    const auto count = Shape::Slopes::template rows<BM>(
        seq.row_begin + seq.rows < a.s ? static_cast<int>(seq.rows) - m * BM : BM, side);
    const uint32_t q_full = ring_q + q_at.stage * 16;
    sm90::barrier_wait(q_full + 8, q_at.phase ^ 1);
    copy_present<TileQ, BM>(base + Shape::q + q_at.stage * TileQ::bytes, maps.q, q_full, raw,
                            raw_phase, row, h, batch, count, Shape::side_bytes);
    if (leads)
      sm90::copy_in(base + Shape::side + q_at.stage * Shape::side_bytes, side, Shape::side_bytes,
                    q_full);
    q_at.next();
    const sm90::Ring<2> dout_at{static_cast<int>(step % 2), step / 2 % 2};
    ++step;
    const uint32_t dout_full = ring_dout + dout_at.stage * 16;
    sm90::barrier_wait(dout_full + 8, dout_at.phase ^ 1);
    copy_present<TileO, BM>(base + Shape::dout + dout_at.stage * TileO::bytes, maps.dout, dout_full,
                            raw, raw_phase, row, h, batch, count, 0);
  });
}

// Fragment rows `own` and `own` + 8 of dk or dv, which are keys of head g.
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
// dk, or what is added up to it later.
template <int Dtype, int N>
__device__ __forceinline__ void store_dk(const AttendBackward& b, const BackwardWork& work,
                                         const Sequence& seq, int g, int own,
                                         const float (&sum)[N][4]) {
  const Attend& a = b.forward;
  if (!work.dk) return store_keys<Dtype>(b.dk, seq, g, own, a.d, sum, a.score.scale);
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (const int64_t key = own + 8 * half; key < seq.keys)
      store_wide(work.dk + ((seq.key_batch * a.t + seq.key_begin + key) * a.g + g) * a.d,
                 static_cast<int>(a.d), sum, half, a.score.scale);
}

// dq of a part of the head's row tiles, each when all have added to it: a warp takes 32 rows x 64
// columns at a time, in the order of the walk.
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
    const SeenBlocks seen(a.mask, rows, keys, m * BM, min(m * BM + BM, rows), Shape::BN);
    float sum[2][8][4] = {};
    if (seen.low < seen.high) {
      if (lane == 0) wait_turn(work.turn + first_tile + m, seen.high - seen.low);
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
    uint16_t* line = static_cast<uint16_t*>(b.dq.data) + seq.batch * b.dq.stride[0] +
                     (seq.row_begin + row) * b.dq.stride[1] + h * b.dq.stride[2] + column;
#pragma unroll
    for (int eighth = 0; eighth < 4; ++eighth)
      store_row<Shape::Dtype>(
          row + 8 * eighth < rows ? line + 8 * eighth * b.dq.stride[1] : nullptr,
          static_cast<int>(a.d) - column, sum[eighth / 2], eighth % 2, a.score.scale);
  }
}

}  // namespace fovea::cuda
