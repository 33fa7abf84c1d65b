// SPDX-License-Identifier: Apache-2.0
// A tile of rows against 64 blocks of keys: the teacher's pooled logits and the
// student's.  The pooled distribution renormalised is the softmax of A_u = ln sum or max over a
// block's keys of e^a, so that a block stands where kl has a key.
//   Rows are own, blocks the others (stage_sides.cuh).  The teacher's keys pass in tiles of 64;
//   what a row has of a block so far, the largest logit and the sum of powers below it, lies in
//   shared memory and belongs to the warp that owns the row.
#pragma once
#include "ops/kl/stage_sides.cuh"

namespace fovea::cuda {

struct PoolCall {
  KlPool a;
  StageSide teacher, student;
  int64_t row_tiles, unit_tiles, work;
  int64_t passes;        // of a backward sweep, each for some columns of its sums
  int64_t first, tiles;  // row tiles, of all sequences, that it takes
  // P of those, by pool_heads_sm90.cuh, if that is given.
  const float* weights = nullptr;
  int64_t weight_pitch = 0;
  explicit PoolCall(const KlPool& request)
      : a(request),
        teacher(stage_side(a.kl.first, a.kl.h)),
        student(stage_side(a.kl.second, a.kl.h)) {}
};

// Number of blocks of a sequence of `keys`.
FOVEA_HD int64_t pool_units(const KlPool& a, int64_t keys) {
  return keys > 0 ? (keys - 1) / a.block_keys + 1 : 0;
}

// Sequence r with blocks in place of keys.
FOVEA_HD Sequence pool_sequence(const KlPool& a, const Sequence& q, int64_t r) {
  Sequence units = q;
  units.keys = pool_units(a, q.keys);
  units.key_begin = a.kl.sequences.key_start ? q.key_begin / a.block_keys + r : 0;
  return units;
}

// Past the last key of the 64 blocks from u0 on.
FOVEA_HD int64_t pool_end(const KlPool& a, const Sequence& q, int64_t u0) {
  const int64_t units = pool_units(a, q.keys);
  return u0 + kStageTile < units ? (u0 + kStageTile) * a.block_keys : q.keys;
}

constexpr int kPoolPitch = kStageTile + 1;

template <class Pairs>
struct PoolShared {
  StagePlaces<Pairs::own, kStageTile> at;
  Sequence units;
  float2 pooled[Pairs::own][kPoolPitch];  // largest, sum; a row off by one bank pair
};

// (m, l) and (n, k) of the same block: the larger of m and n, and both sums below it.
__device__ __forceinline__ float2 join_powers(float2 x, float2 y) {
  const float top = fmaxf(x.x, y.x), base = top == -INFINITY ? 0 : top;
  return {top, x.y * expf(x.x - base) + y.y * expf(y.x - base)};
}

// Adds the logits x of keys [j0, j1) to the blocks from u0 on.
template <class Pairs>
__device__ __forceinline__ void pool_tile(float2 (*pooled)[kPoolPitch], Pairs& pairs,
                                          const float (&x)[Pairs::R][Pairs::C], int64_t block_keys,
                                          int64_t u0, int64_t j0, int64_t j1) {
  const int64_t first = j0 / block_keys, last = (j1 - 1) / block_keys;
  if (first == last) {
#pragma unroll
    for (int r = 0; r < Pairs::R; ++r) {
      float top = -INFINITY, sum = 0;
#pragma unroll
      for (int c = 0; c < Pairs::C; ++c) top = fmaxf(top, x[r][c]);
      top = Pairs::max(top);
      const float base = top == -INFINITY ? 0 : top;
#pragma unroll
      for (int c = 0; c < Pairs::C; ++c) sum += expf(x[r][c] - base);
      sum = Pairs::sum(sum);
      float2& slot = pooled[Pairs::own_of(r)][first - u0];
      if (Pairs::leads()) slot = join_powers(slot, {top, sum});
    }
    return;
  }
  if constexpr (requires { pairs.taken(0); }) {
    pairs.put(x);
    constexpr int kRows = 2 * Pairs::R;  // of a warp
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int units = static_cast<int>(last - first) + 1;
    for (int n = lane; n < units * kRows; n += 32) {
      const int m = 2 * warp + n % 2 + n / 2 % Pairs::R * 16;
      const int64_t u = first + n / kRows;
      const int64_t begin = u * block_keys > j0 ? u * block_keys - j0 : 0;
      const int64_t end = (u + 1) * block_keys < j1 ? (u + 1) * block_keys - j0 : j1 - j0;
      const float* from = pairs.taken(m);
      float top = -INFINITY, sum = 0;
      for (int64_t j = begin; j < end; ++j) top = fmaxf(top, from[j]);
      const float base = top == -INFINITY ? 0 : top;
      for (int64_t j = begin; j < end; ++j) sum += expf(from[j] - base);
      float2& slot = pooled[m][u - u0];
      slot = join_powers(slot, {top, sum});
    }
  }
}

// The student's logits y of the staged rows and the blocks from u0 of head h.
template <class Pairs>
__device__ __forceinline__ void pool_student(const PoolCall& call, PoolShared<Pairs>& s,
                                             Pairs& pairs, int64_t h, int64_t u0,
                                             float (&y)[Pairs::R][Pairs::C]) {
  __syncthreads();
  s.at.put_keys(call.student, 1, s.units, u0, s.units.keys);
  __syncthreads();
  each_pair<Pairs>([&](int r, int c) { y[r][c] = 0; });
  multiply_side<true>(y, pairs, s.at, call.student, 1, h, h / call.student.group);
  each_pair<Pairs>([&](int r, int c) { y[r][c] = only_numbers(y[r][c] * call.student.scale); });
}

// x and y of the rows from i0 and the blocks from u0 of head h; -inf where a row sees no key of a
// block.  s.at holds the rows and `seen` the tiles of keys that they may see.
template <class Pairs>
__device__ __forceinline__ void pool_scores(const PoolCall& call, PoolShared<Pairs>& s,
                                            Pairs& pairs, int64_t h, int64_t i0, int64_t u0,
                                            const KeyTiles& range, float (&x)[Pairs::R][Pairs::C],
                                            float (&y)[Pairs::R][Pairs::C]) {
  const KlPool& a = call.a;
  const Sequence& seq = s.at.seq;
  each_pair<Pairs>([&](int r, int c) {
    s.pooled[Pairs::own_of(r)][Pairs::other_of(c)] = {-INFINITY, 0};
  });
  __syncwarp();
  const int64_t end = pool_end(a, seq, u0);
  for (int64_t j0 = u0 * a.block_keys; j0 < end; j0 += kStageTile) {
    const int64_t j1 = j0 + kStageTile < end ? j0 + kStageTile : end;
    if (!may_see(range, kStageTile, j0, j1)) continue;
    __syncthreads();  // the last tile's keys are done with
    s.at.put_keys(call.teacher, 0, seq, j0, j1);
    __syncthreads();
    float z[Pairs::R][Pairs::C] = {};
    multiply_side<true>(z, pairs, s.at, call.teacher, 0, h, h / call.teacher.group);
    const uint32_t seen = seen_pairs<true, Pairs>(a.kl.mask, seq, h, i0, j0);
    each_pair<Pairs>([&](int r, int c) {
      const bool in = seen >> (Pairs::C * r + c) & 1 && j0 + Pairs::other_of(c) < j1;
      z[r][c] = in ? only_numbers(z[r][c] * call.teacher.scale) : -INFINITY;
    });
    pool_tile(s.pooled, pairs, z, a.block_keys, u0, j0, j1);
    __syncwarp();
  }
  pool_student(call, s, pairs, h, u0, y);
  each_pair<Pairs>([&](int r, int c) {
    const float2 of = s.pooled[Pairs::own_of(r)][Pairs::other_of(c)];
    x[r][c] = a.max && of.y == of.y ? of.x : of.x + logf(of.y);
    if (x[r][c] == -INFINITY) y[r][c] = -INFINITY;
  });
}

// The kernels on tensor cores pool whole tiles.
inline std::string pool_mma_refuses(const Context& ctx, const KlPool& a) {
  if (a.block_keys % kStageTile) return "block_keys not a multiple of 64";
  return mma_refuses(ctx, a.kl.first, a.kl.second, 256);
}
FOVEA_HD int64_t pool_width(const KlPool& a) {
  return a.kl.first.width > a.kl.second.width ? a.kl.first.width : a.kl.second.width;
}

// Dynamic shared memory, never so little that launch() asks no leave for it: the pooled tile is
// static, 35 KB.
template <class Pairs>
int64_t pool_bytes(const KlPool& a) {
  const int64_t bytes = Pairs::shared_bytes(pool_width(a));
  return bytes > 33 * 1024 ? bytes : 33 * 1024;
}

}  // namespace fovea::cuda
