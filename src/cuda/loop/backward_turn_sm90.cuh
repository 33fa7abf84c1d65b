// SPDX-License-Identifier: Apache-2.0
// The order in which key blocks add to a tile of dq in the workspace, and what follows the last.
#pragma once
#include "cuda/loop/backward_walk_sm90.cuh"
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
};

// Until `turn` blocks have added; what they wrote is then seen by the copy engine too.
__device__ inline void wait_turn(const int32_t* at, int turn) {
  int32_t now;
  do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(at) : "memory");
  while (now < turn);
  sm90::fence_engine();
}
// After the copy engine has ended.
__device__ inline void pass_turn(int32_t* at) {
  sm90::fence_engine();
  asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(at) : "memory");
}

// dq of a part of the head's row tiles, each when all have added to it: a warp takes 16 rows x 64
// columns at a time.
template <class Shape>
__device__ __forceinline__ void store_part(const AttendBackward& b, const BackwardWork& work,
                                           const Sequence& seq, const BackwardBlock& block) {
  constexpr int Panels = Shape::TileQ::panels, BM = Shape::BM, units = Shape::chunks * 4;
  const Attend& a = b.forward;
  const int rows = static_cast<int>(seq.rows), keys = static_cast<int>(seq.keys);
  const int heads = static_cast<int>(a.h / a.g), h = block.g * heads + block.part % heads;
  const int first = block.part / heads * kPartTiles, lane = threadIdx.x % 32;
  const int first_tile = static_cast<int>(h * work.tiles.total + work.tiles.first(seq, block.r));
  for (int unit = threadIdx.x / 32; unit < kPartTiles * units; unit += Shape::threads / 32) {
    const int m = first + unit / units, chunk = unit % units / 4, quarter = unit % 4;
    if (m * BM >= rows) return;
    const SeenBlocks seen(a.mask, rows, keys, m * BM, min(m * BM + BM, rows), Shape::BN);
    float sum[8][4] = {};
    if (seen.low < seen.high) {
      if (lane == 0) wait_turn(work.turn + first_tile + m, seen.high - seen.low);
      __syncwarp();
      const float4* from =
          reinterpret_cast<const float4*>(work.dq + (first_tile + m) * work.tiles.floats() +
                                          chunk * kChunkFloats) +
          quarter * 32 + lane;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float4 x = __ldcg(from + j * 128);
        sum[j][0] = x.x, sum[j][1] = x.y, sum[j][2] = x.z, sum[j][3] = x.w;
      }
    }
    const int row = m * BM + chunk / Panels * kChunkRows + quarter * 16 + lane / 4;
    const int column = chunk % Panels * 64;
    uint16_t* line = static_cast<uint16_t*>(b.dq.data) + seq.batch * b.dq.stride[0] +
                     (seq.row_begin + row) * b.dq.stride[1] + h * b.dq.stride[2] + column;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store_row<Shape::Dtype>(row + 8 * half < rows ? line + 8 * half * b.dq.stride[1] : nullptr,
                              static_cast<int>(a.d) - column, sum, half, a.score.scale);
  }
}

}  // namespace fovea::cuda
