// SPDX-License-Identifier: Apache-2.0
// Converts codes of wide keys in shared memory (attend_wide_codes_sm90.cuh), where loaders have
// copied them (feed_wide_codes_sm90.cuh): code * scale, rounded to q's dtype, takes their place.
//   Where K is (v, k) the tail is of q's dtype, and only handed on.
//   A warp has 16 keys of a tile.  A lane has 16 columns of each panel of two keys:
//
//   | bits of the lane | 0, 1             | 2 to 4                    |
//   | choose           | 16 columns of 64 | a key of eight, of 8 more |
#pragma once
#include "cuda/loop/wide_codes_sm90.cuh"
#include "cuda/tile/codes_sm80.cuh"

namespace fovea::cuda {

template <class Shape, class Source, class Mask>
struct WideConverter90 {
  using Shared = WideShared90<Shape, Source, Mask>;
  using Panel = typename Shape::Panel;
  static constexpr int kRows = 16, kTail = Shape::key_units;
  const Attend& a;
  const Shared& shared;
  const int warp, lane;

  __device__ __forceinline__ void run() const {
    uint32_t number = 0;  // of the tile
    typename Shared::TileState slot;
    for (;;) {
      shared.tile_pipe().wait(slot);
      const auto& work = shared.work(slot);
      if (__all_sync(~0u, work.tile.size == 0)) return;
#pragma unroll 1
      for (int left = max(work.count, 1); left; --left, ++number)
#pragma unroll 1
        for (int part = 0; part < Shape::parts; ++part) hand_on(number, part);
      __syncwarp();
      shared.tile_pipe().release(slot);
      slot.next();
    }
  }

 private:
  __device__ __forceinline__ void hand_on(uint32_t number, int part) const {
    sm90::barrier_wait(shared.keys_copied(number, part), number / 2 % 2);
    if (a.v_dtype == FOVEA_I8)
      convert_part<IntegerCodes>(number, part);
    else
      convert_part<E4m3Codes>(number, part);
    sm90::fence_shared();
    __syncwarp();
    if (lane == 0) sm90::barrier_arrive(shared.key_full(number, part));
  }
  template <class Codes>
  __device__ __forceinline__ void convert_part(uint32_t number, int part) const {
    const uint32_t from = shared.keys(number, part);
    if (part < kTail) {
#pragma unroll 1
      for (int pair = 0; pair < 2; ++pair) convert<Codes, 2>(from + pair * 2 * Panel::bytes);
    } else if (!a.q_value) {
      convert<Codes, 1>(from);
    }
  }
  // The warp's rows of neighbouring panels that share a scale.
  template <class Codes, int Panels>
  __device__ __forceinline__ void convert(uint32_t panel) const {
    const int row = warp * kRows + lane / 4;
    const uint32_t from = panel + CodePanel::at(row, lane % 4);
    uint4 code[2][Panels];
    float scale[2] = {1, 1};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < Panels; ++j)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(code[i][j].x), "=r"(code[i][j].y), "=r"(code[i][j].z),
                       "=r"(code[i][j].w)
                     : "r"(from + i * 8 * kPanelRowBytes + j * Panel::bytes)
                     : "memory");
      if (a.v_scale)
        asm volatile("ld.shared.f32 %0, [%1];"
                     : "=f"(scale[i])
                     : "r"(panel + CodePanel::scale_at(row) + i * 8 * kPanelRowBytes)
                     : "memory");
    }
    __syncwarp();
    const uint32_t to = panel + Panel::at(row, lane % 4 * 2);
#pragma unroll
    for (int j = 0; j < Panels; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t at = to + i * 8 * kPanelRowBytes + j * Panel::bytes;
        store<Codes>(at, code[i][j].x, code[i][j].y, scale[i]);
        store<Codes>(at ^ 16, code[i][j].z, code[i][j].w, scale[i]);
      }
  }
  // Eight codes as a chunk.
  template <class Codes>
  __device__ __forceinline__ static void store(uint32_t to, uint32_t first, uint32_t second,
                                               float scale) {
    uint32_t x[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const CodePairs pairs = Codes(0).near(half ? second : first);
      x[2 * half] = scaled(pairs.low, scale), x[2 * half + 1] = scaled(pairs.high, scale);
    }
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(x[0]), "r"(x[1]),
                 "r"(x[2]), "r"(x[3])
                 : "memory");
  }
  __device__ __forceinline__ static uint32_t scaled(uint32_t pair, float scale) {
    const float2 x = pair_of<FOVEA_F16>(pair);
    return pack<Shape::Dtype>(x.x * scale, x.y * scale);
  }
};

}  // namespace fovea::cuda
