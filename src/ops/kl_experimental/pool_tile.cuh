// SPDX-License-Identifier: Apache-2.0
// A tile of rows against 64 blocks of keys: the teacher's pooled logits and the
// student's.  The pooled distribution renormalised is the softmax of A_u = ln sum or max over a
// block's keys of e^a, so that a block stands where kl has a key.
//   Rows are own, blocks the others (stage_sides.cuh).  The teacher's keys pass in tiles of 64;
//   what a row has of a block so far lies in shared memory (cuda/loop/block_sums.cuh).
#pragma once
#include "core/reasons.h"
#include "cuda/loop/block_sums.cuh"
#include "ops/kl_experimental/dscores.cuh"
#include "ops/kl_experimental/pool.h"

namespace fovea::cuda {

inline constexpr char kPoolBackward[] = "x_kl_pool_backward";

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
// Some of them are keys of the tiles.
__device__ __forceinline__ bool pool_seen(const KlPool& a, const Sequence& q, const KeyTiles& tiles,
                                          int64_t u0) {
  return tiles.count() > 0 && may_see(tiles, kStageTile, u0 * a.block_keys, pool_end(a, q, u0));
}

// The type of db for a way of multiplying.
template <class Pairs>
struct PoolDscore {
  using T = float;
};
template <int Dtype>
struct PoolDscore<PairsMma<Dtype>> {
  using T = std::conditional_t<Dtype == FOVEA_F16, f16, bf16>;
};

struct PoolCall {
  static constexpr const char* op = kPoolBackward;
  static constexpr bool rectifies = false;
  template <class Pairs>
  using T = typename PoolDscore<Pairs>::T;  // of db
  KlPool a;
  StageSide teacher, student;
  explicit PoolCall(const KlPool& request)
      : a(request),
        teacher(stage_side(a.kl.first, a.kl.h)),
        student(stage_side(a.kl.second, a.kl.h)) {}
  FOVEA_HD const Kl& kl() const { return a.kl; }
  FOVEA_HD const KlSide& own() const { return a.kl.second; }
  FOVEA_HD Sequence units(const Sequence& q, int64_t r) const { return pool_sequence(a, q, r); }
  int64_t keys() const { return pool_units(a, a.kl.sequences.key_max); }
  bool by_rows() const { return static_cast<bool>(own().dq); }
  void clear(Context& ctx) const {
    if (ragged(kl()) || a.u > keys()) zero_gradients(ctx, op, kl(), own(), kl().h, a.u);
  }
  __device__ bool seen(const Sequence& q, int64_t h, int64_t i0, int64_t u0) const {
    return pool_seen(a, q, seen_tiles(a.kl.mask, q, h, i0), u0);
  }
};

template <class Pairs>
struct PoolShared {
  StagePlaces<Pairs::own, kStageTile> at;
  Sequence units;
  BlockSums<Pairs> sums;
};

// x and y of the rows from i0 and the blocks from u0 of head h; -inf where a row sees no key of a
// block.  s.at holds the rows and `seen` the tiles of keys that they may see.
template <class Pairs>
__device__ __forceinline__ void pool_scores(const PoolCall& call, PoolShared<Pairs>& s,
                                            Pairs& pairs, int64_t h, int64_t i0, int64_t u0,
                                            const KeyTiles& range, float (&x)[Pairs::R][Pairs::C],
                                            float (&y)[Pairs::R][Pairs::C]) {
  const KlPool& a = call.a;
  const Sequence& seq = s.at.seq;
  each_pair<Pairs>([&](int r, int c) { s.sums.clear(r, c); });
  __syncwarp();
  const int64_t end = pool_end(a, seq, u0);
  // The teacher's tiles of keys, and the student's blocks as one more.
  for (int64_t j0 = u0 * a.block_keys;; j0 += kStageTile) {
    const bool last = j0 >= end;
    const int64_t j1 = j0 + kStageTile < end ? j0 + kStageTile : end;
    if (!last && !may_see(range, kStageTile, j0, j1)) continue;
    const StageSide& side = last ? call.student : call.teacher;
    __syncthreads();  // the last tile's keys are done with
    if (last)
      s.at.put_keys(side, 1, s.units, u0, s.units.keys);
    else
      s.at.put_keys(side, 0, seq, j0, j1);
    __syncthreads();
    each_pair<Pairs>([&](int r, int c) { y[r][c] = 0; });
    multiply_side(y, pairs, s.at, side, last, h, h / side.group);
    each_pair<Pairs>([&](int r, int c) { y[r][c] = only_numbers(y[r][c] * side.scale); });
    if (last) break;
    const uint32_t seen = seen_pairs<Pairs>(a.kl.mask, seq, h, i0, j0);
    each_pair<Pairs>([&](int r, int c) {
      const bool in = seen >> (Pairs::C * r + c) & 1 && j0 + Pairs::other_of(c) < j1;
      if (!in) y[r][c] = -INFINITY;
    });
    s.sums.add(pairs, y, a.block_keys, u0, j0, j1);
    __syncwarp();
  }
  each_pair<Pairs>([&](int r, int c) {
    x[r][c] = s.sums.value(r, c, a.max);
    if (x[r][c] == -INFINITY) y[r][c] = -INFINITY;
  });
}

// On Hopper (pool_sm90.cu): "" and the maps, or why not; db of the launch's items.
struct PoolMaps90;
Text pool_sm90_refuses(const Context& ctx, const PoolCall& call, PoolMaps90& maps);
void pool_sweep_sm90(Context& ctx, const KlPool& a, const PoolMaps90& maps, const Dscores& dscores);

// The kernels on tensor cores pool whole tiles.
inline Text pool_mma_refuses(const Context& ctx, const KlPool& a) {
  if (a.block_keys % kStageTile) return reason("block_keys", a.block_keys, "a multiple of 64");
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
