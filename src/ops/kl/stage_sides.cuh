// SPDX-License-Identifier: Apache-2.0
// Tiles of rows and keys of both distributions, placed once for all heads, and their products by
// one of the block's ways (Pairs: block/pairs_fma.cuh, block/pairs_mma.cuh).  Rows are own.
#pragma once

#include "core/dtype.h"
#include "cuda/block/pairs_fma.cuh"
#include "cuda/block/pairs_mma.cuh"
#include "cuda/loop/pairs.cuh"
#include "ops/kl/sides.cuh"

namespace fovea::cuda {

struct StageSide {
  Operand q, k;
  int64_t q_stride[3], k_stride[3];  // batch, token, head
  int64_t group;                     // query heads of a key head, 0 without heads
  float scale;
  View<3> lse;
};

inline StageSide stage_side(const KlSide& side, int64_t heads) {
  StageSide x{};
  x.q = operand_of(side.q, side.dtype, side.width);
  x.k = operand_of(side.k, side.dtype, side.width);
  for (int i = 0; i < 3; ++i) x.q_stride[i] = side.q.stride[i], x.k_stride[i] = side.k.stride[i];
  x.group = side.key_heads ? heads / side.key_heads : 0, x.scale = side.scale, x.lse = side.lse;
  return x;
}

// In shared memory.  Places are those of head 0; -1: no such row or key.
template <int Rows, int Keys>
struct StagePlaces {
  Sequence seq;
  int64_t row[Rows];  // number in the sequence
  int64_t q[2][Rows], k[2][Keys];

  __device__ void put_rows(const StageSide& first, const StageSide& second, int64_t i0) {
    for (int m = threadIdx.x; m < Rows; m += blockDim.x) {
      const int64_t i = i0 + m;
      const bool there = i < seq.rows;
      row[m] = there ? i : -1;
      const auto at = [&](const int64_t* stride) {
        return there ? seq.batch * stride[0] + (seq.row_begin + i) * stride[1] : -1;
      };
      q[0][m] = at(first.q_stride), q[1][m] = at(second.q_stride);
    }
  }
  // Of one side; keys from j0 on, below `end`.
  __device__ void put_keys(const StageSide& side, int which, const Sequence& of, int64_t j0,
                           int64_t end) {
    for (int n = threadIdx.x; n < Keys; n += blockDim.x) {
      const int64_t j = j0 + n;
      k[which][n] =
          j < end ? of.key_batch * side.k_stride[0] + (of.key_begin + j) * side.k_stride[1] : -1;
    }
  }
};

// acc += q k' of the staged rows and keys, side `which`.
template <class Pairs, class Places>
__device__ __forceinline__ void multiply_side(float (&acc)[Pairs::R][Pairs::C], Pairs& pairs,
                                              const Places& s, const StageSide& side, int which,
                                              int64_t q_head, int64_t k_head) {
  const int64_t q0 = q_head * side.q_stride[2], k0 = k_head * side.k_stride[2];
  const auto q = [&](int row) {
    const int64_t at = s.q[which][row];
    return at < 0 ? at : at + q0;
  };
  const auto k = [&](int row) {
    const int64_t at = s.k[which][row];
    return at < 0 ? at : at + k0;
  };
  pairs.multiply(acc, side.q, q, side.k, k);
}

// f(r, c) for the elements of a thread.
template <class Pairs, class F>
__device__ __forceinline__ void each_pair(const F& f) {
#pragma unroll
  for (int r = 0; r < Pairs::R; ++r)
#pragma unroll
    for (int c = 0; c < Pairs::C; ++c) f(r, c);
}

// Bit C r + c: this thread's pair (r, c) of rows from i0 and keys from j0 exists and is seen.
template <class Pairs>
__device__ __forceinline__ uint32_t seen_pairs(const Mask& mask, const Sequence& seq, int64_t h,
                                               int64_t i0, int64_t j0) {
  const int64_t i1 = i0 + Pairs::own < seq.rows ? i0 + Pairs::own : seq.rows;
  const int64_t j1 = j0 + Pairs::others < seq.keys ? j0 + Pairs::others : seq.keys;
  if (i1 - i0 == Pairs::own && j1 - j0 == Pairs::others &&
      tile_full(mask, seq, h, h + 1, i0, i1, j0, j1))
    return ~0u;
  const Window window = mask.of_head(h);
  uint32_t seen = 0;
  each_pair<Pairs>([&](int r, int c) {
    const int64_t i = i0 + Pairs::own_of(r), j = j0 + Pairs::other_of(c);
    if (i < i1 && j < j1 && window.sees(i + seq.keys - seq.rows, j))
      seen |= 1u << (Pairs::C * r + c);
  });
  return seen;
}

// Key tiles of 64 that the 64 rows from i0 of head h may see.
FOVEA_HD KeyTiles seen_tiles(const Mask& mask, const Sequence& q, int64_t h, int64_t i0) {
  const int64_t i1 = i0 + kStageTile < q.rows ? i0 + kStageTile : q.rows;
  return key_tiles(mask, q, h, h + 1, i0, i1, kStageTile);
}
// Some row of [i0, i1) may see a key of [j0, j1); `width` is that of `tiles`.
__device__ __forceinline__ bool may_see(const KeyTiles& tiles, int64_t width, int64_t j0,
                                        int64_t j1) {
  return j0 < tiles.sinks * width || (j0 < tiles.last * width && j1 > tiles.first * width);
}

// Both sides fit a kernel on tensor cores: "", or why not.
inline Text mma_refuses(const Context& ctx, const KlSide& x, const KlSide& y, int64_t width_max) {
  if (device_info(ctx).arch < 80) return reason_capability(device_info(ctx).arch, "at least 8.0");
  if (x.dtype != y.dtype) return reason_sides(x, y);
  if (x.dtype != FOVEA_F16 && x.dtype != FOVEA_BF16) return reason_dtype(x.dtype);
  if (Text why = refuse_sides(x, y, 8, width_max); !why.empty()) return why;
  for (const KlSide* side : {&x, &y}) {
    if (!chunked(side->q, 2, 8)) return reason_rows("a side's q");
    if (!chunked(side->k, 2, 8)) return reason_rows("a side's k");
  }
  return "";
}

// f<Pairs>() of a kernel in f32 FMA, or on tensor cores for the dtype.
template <bool Strict = true, class F>
void with_pairs(bool mma, int32_t dtype, const F& f) {
  if (!mma)
    f.template operator()<PairsFma<4>>();
  else if (dtype == FOVEA_BF16)
    f.template operator()<PairsMma<FOVEA_BF16, Strict>>();
  else
    f.template operator()<PairsMma<FOVEA_F16, Strict>>();
}

// How many rows a block owns: 16 where tiles of 64 would leave multiprocessors without work.
inline bool few_rows(Context& ctx, int64_t rows, int64_t works_of_64) {
  return rows <= 16 || works_of_64 < 2 * device_info(ctx).multiprocessors;
}

}  // namespace fovea::cuda
