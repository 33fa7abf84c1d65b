// SPDX-License-Identifier: Apache-2.0
// A tile of rows against 64 blocks of keys: the teacher's pooled logits and the
// student's.  The pooled distribution renormalised is the softmax of A_u = ln sum or max over a
// block's keys of e^a, so that a block stands where kl has a key.
//   Rows are own, blocks the others (stage_sides.cuh).  The teacher's keys pass in tiles of 64;
//   what a row has of a block so far lies in shared memory (cuda/loop/block_sums.cuh).
#pragma once
#include "cuda/loop/block_sums.cuh"
#include "ops/kl/stage_sides.cuh"
#include "ops/kl_experimental/pool.h"

namespace fovea::cuda {

inline constexpr char kPoolBackward[] = "x_kl_pool_backward";

struct PoolCall {
  KlPool a;
  StageSide teacher, student;
  int64_t work = 0;
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

// Key tiles of 64 that the 64 rows from i0 of head h may see.
FOVEA_HD KeyTiles pool_tiles(const KlPool& a, const Sequence& q, int64_t h, int64_t i0) {
  const int64_t i1 = i0 + kStageTile < q.rows ? i0 + kStageTile : q.rows;
  return key_tiles(a.kl.mask, q, h, h + 1, i0, i1, kStageTile);
}
// Some of them are keys of the 64 blocks from u0 on.
__device__ __forceinline__ bool pool_seen(const KlPool& a, const Sequence& q, const KeyTiles& tiles,
                                          int64_t u0) {
  return tiles.count() > 0 && may_see(tiles, kStageTile, u0 * a.block_keys, pool_end(a, q, u0));
}

// A sequence and its blocks, to shared memory.
__device__ inline void find_sequence(const KlPool& a, int64_t sequence, Sequence& seq,
                                     Sequence& units) {
  __syncthreads();
  if (threadIdx.x == 0) {
    seq = a.kl.sequences[sequence];
    units = pool_sequence(a, seq, sequence);
  }
  __syncthreads();
}

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
    multiply_side<true>(y, pairs, s.at, side, last, h, h / side.group);
    each_pair<Pairs>([&](int r, int c) { y[r][c] = only_numbers(y[r][c] * side.scale); });
    if (last) break;
    const uint32_t seen = seen_pairs<true, Pairs>(a.kl.mask, seq, h, i0, j0);
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

// The gradient of the blocks' logits, db, on its way from the rows to the sums.  An item is
// (sequence, 128 rows, head), heads first; a launch takes `count` of them.
struct PoolDscores {
  static constexpr int rows = 128;
  void* db;  // (item, row, block): f32, or the dtype on tensor cores
  int64_t pitch, row_tiles, heads;
  int64_t first, count;

  explicit PoolDscores(const KlPool& a)
      : db(nullptr),
        pitch(ceil_div(pool_units(a, a.kl.sequences.key_max), kStageTile) * kStageTile),
        row_tiles(ceil_div(a.kl.sequences.query_max, rows)),
        heads(a.kl.h),
        first(0),
        count(0) {}
  int64_t items(const KlPool& a) const { return a.kl.sequences.count * row_tiles * heads; }
  FOVEA_HD int64_t item(int64_t sequence, int64_t h, int64_t i) const {
    return (sequence * row_tiles + i / rows) * heads + h;
  }
  FOVEA_HD bool holds(int64_t item) const { return item >= first && item < first + count; }
  // Element of row i and block 0.
  FOVEA_HD int64_t place(int64_t sequence, int64_t h, int64_t i) const {
    return ((item(sequence, h, i) - first) * rows + i % rows) * pitch;
  }
};

// Bytes of db that a call's workspace holds at a time, but for one item.
constexpr int64_t kDscoresBytesMost = int64_t{1} << 25;

// The type of db for a way of multiplying.
template <class Pairs>
struct PoolDscore {
  using T = float;
};
template <int Dtype>
struct PoolDscore<PairsMma<Dtype>> {
  using T = std::conditional_t<Dtype == FOVEA_F16, f16, bf16>;
};

// Parts of the row tiles that blocks add up for dk, and where their sums lie: f32, 64 blocks of
// keys of `columns` each.
struct PoolParts {
  float* sums;
  int64_t tiles, count, columns, unit_tiles;
  bool more;  // to what lies there

  explicit PoolParts(const KlPool& a)
      : sums(nullptr),
        columns(ceil_div(a.kl.second.width, kStageTile) * kStageTile),
        unit_tiles(ceil_div(pool_units(a, a.kl.sequences.key_max), kStageTile)),
        more(false) {
    const int64_t key_heads = a.kl.second.key_heads, group = key_heads ? a.kl.h / key_heads : 0;
    tiles = a.kl.sequences.count * key_heads * unit_tiles;
    const int64_t most = clamp_i64(kFloatsMost / (kStageTile * columns), 1, kBlocksMost);
    count = clamp_i64(ceil_div(a.kl.sequences.query_max, kStageTile) * group / kPartTiles, 1,
                      clamp_i64(tiles ? most / tiles : 1, 1, most));
  }
  int64_t floats() const { return count * tiles * kStageTile * columns; }
  // Two row tiles a part, for as many blocks as fill the device some times over, in 32 MiB.
  static constexpr int64_t kPartTiles = 2, kBlocksMost = 1024, kFloatsMost = int64_t{1} << 23;
};

// On Hopper (pool_sm90.cu): "" or why not; db of the launch's items.
std::string pool_sm90_refuses(const Context& ctx, const KlPool& a);
void pool_sweep_sm90(Context& ctx, const KlPool& a, const PoolDscores& dscores);

// dq and dk of db: what pool_products.cu makes of the launch's items, then dk of the parts' sums.
void pool_products(Context& ctx, const PoolCall& call, const PoolDscores& dscores,
                   const PoolParts& parts, bool mma);
void pool_join(Context& ctx, const PoolCall& call, const PoolParts& parts);

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

// f<Pairs>() of a kernel in f32 FMA, or on tensor cores.
template <class F>
void with_pairs(bool mma, int32_t dtype, const F& f) {
  if (mma)
    with_mma(dtype, f);
  else
    f.template operator()<PairsFma<4>>();
}

}  // namespace fovea::cuda
