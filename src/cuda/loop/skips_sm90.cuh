// SPDX-License-Identifier: Apache-2.0
// Key tiles that a group of 64 rows skips, in the sweep of Hopper (attend_sm90.cuh):
//   A tile of 64 keys is skipped where x_ij < top_i - margin for every row i of the group and every
//   key j that it sees.  top_i is the largest x of the row in the tiles kept so far.
//   Skipped, a tile has neither exponents nor a product P V, and raises no top.
//   A group is a consumer warpgroup, and a key tile of the sweep has two such tiles, its halves.
//   Tiles are met in ascending order.
//
// One vote of the warpgroup decides both halves.  The top that the second half is compared with
// depends on the first half's fate, so each lane answers for both fates.
//
//   | step    | what happens                                                                      |
//   | cast    | a warp ORs its lanes' answers into its word in shared memory                      |
//   | barrier | named barrier 1 + n of warpgroup n                                                |
//   | count   | each thread ORs the words of the four warps                                       |
//
// The words are those of the stage of K, so votes in a row have other words: their K lie one to
// three stages apart.  A warp that overwrites a word has come through the vote after it.  Behind a
// work item without a vote it has come through a Q that all warps had given back.
// BLASST (2512.12087).
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/loop/source_sm90.cuh"

namespace fovea::cuda {

// Plain attention with a margin.
struct SkippingAttend {
  Attend attend;
  float drop;        // the margin in units of x, before scale; infinity: nothing is skipped
  int64_t* skipped;  // counts what is skipped, nullptr: nobody asks
};
FOVEA_HD const Attend& attend_in(const SkippingAttend& call) {
  return call.attend;
}

// Steps are the tiles that the mask leaves, from the first to the last.
struct AscendingTiles {
  using Call = SkippingAttend;
  static constexpr bool reads_device = false, ascends = true;
  float drop;
  int64_t* skipped;

  template <class Mask>
  __device__ static KeyTiles tiles(const SkippingAttend& call, const RowTile& tile, int width) {
    return Mask::tiles(call.attend, tile, width);
  }
  template <class Mask>
  __device__ void start(const SkippingAttend& call, const RowTile&, int, Mask&) {
    drop = call.drop, skipped = call.skipped;
  }
  __device__ int key_tile(int n) const { return n; }
  // Integers: their order changes nothing.
  __device__ void add_skipped(int tiles) const {
    if (skipped && tiles)
      atomicAdd(reinterpret_cast<unsigned long long*>(skipped),
                static_cast<unsigned long long>(tiles));
  }
};
using Skippable = KeySourceOf<AscendingTiles, RowBoxes>;
using SkippablePages = KeySourceOf<AscendingTiles, PageBoxes>;
static_assert(KeySource<Skippable> && KeySource<SkippablePages>);

__device__ inline float quad_max_or_nan(float x) {
  x = max_or_nan(x, __shfl_xor_sync(~0u, x, 1));
  return max_or_nan(x, __shfl_xor_sync(~0u, x, 2));
}

// A vote of warpgroup n, whose named barrier is 1 + n.
struct GroupVote {
  uint32_t* words;  // of the four warps, 16-byte aligned
  int barrier;

  __device__ __forceinline__ void cast(uint32_t answers) const {
    answers = __reduce_or_sync(~0u, answers);
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32 % 4] = answers;
  }
  __device__ __forceinline__ uint32_t count() const {
    sm90::named_barrier_sync(barrier, 128);
    const uint4 all = *reinterpret_cast<const uint4*>(words);
    return all.x | all.y | all.z | all.w;
  }
};

// Of a work item and a group.
struct GroupSkips {
  // Answers: some row keeps a half, or sees a key of it.
  enum : uint32_t {
    kKeepsFirst = 1,
    kKeepsSecond = 2,       // where the first half was kept
    kKeepsSecondAlone = 4,  // where it was not
    kSeesFirst = 8,
    kSeesSecond = 16
  };
  const float drop;
  const int rows;       // of the row tile from the lane's first on; others do not vote
  bool keeps[2] = {};   // the halves of the last tile whose P V is to be made
  bool raised = false;  // a row of the warp's has a new top
  int skipped = 0;

  __device__ GroupSkips(const AscendingTiles& steps, int rows) : drop(steps.drop), rows(rows) {}

  // Scores of a tile become weights, those of halves that are kept; alpha as OnlineSoftmax::weigh.
  template <int N>
  __device__ __forceinline__ void weigh(OnlineSoftmax<1>& state, float (&x)[1][N][4],
                                        float (&alpha)[1][2], float factor, const GroupVote& vote) {
    float most[2][2] = {{quad_max_or_nan(most_of<0, 0>(x)), quad_max_or_nan(most_of<0, 1>(x))},
                        {most_of<1, 0>(x), most_of<1, 1>(x)}};
    vote.cast(answers(state, most, 0) | answers(state, most, 1));
#pragma unroll
    for (int half = 0; half < 2; ++half) most[1][half] = quad_max_or_nan(most[1][half]);
    const uint32_t all = vote.count();
    keeps[0] = __any_sync(~0u, all & kKeepsFirst);
    keeps[1] = __any_sync(~0u, all & (keeps[0] ? kKeepsSecond : kKeepsSecondAlone));
    skipped += (!keeps[0] && (all & kSeesFirst)) + (!keeps[1] && (all & kSeesSecond));

    float base[2];
    bool moved = false;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& m = state.m[0][half];
      float top = m;
      if (keeps[0]) top = fmaxf(top, most[0][half]);
      if (keeps[1]) top = fmaxf(top, most[1][half]);
      moved |= top > m;
      base[half] = top == kNegativeInfinity ? 0.f : __fmul_rn(top, factor);
      alpha[0][half] = exp2_fast(__fmul_rn(m, factor) - base[half]);
      m = top;
      state.l[0][half] *= alpha[0][half];
    }
    raised = __any_sync(~0u, moved);
    if (keeps[0]) add<0>(state, x, base, factor);
    if (keeps[1]) add<1>(state, x, base, factor);
  }

 private:
  // Of fragment row `half`.  most[0] is the row's, most[1] the lane's share of it.  A NaN keeps.
  __device__ __forceinline__ uint32_t answers(const OnlineSoftmax<1>& state,
                                              const float (&most)[2][2], int half) const {
    const float top = state.m[0][half], low = top - drop;
    const float low_after = fmaxf(top, most[0][half]) - drop;
    const bool exists = rows > half * 8;
    const uint32_t first = kSeesFirst | (most[0][half] < low ? 0 : kKeepsFirst);
    const uint32_t second = kSeesSecond | (most[1][half] < low_after ? 0 : kKeepsSecond) |
                            (most[1][half] < low ? 0 : kKeepsSecondAlone);
    return (exists & (most[0][half] != kNegativeInfinity) ? first : 0) |
           (exists & (most[1][half] != kNegativeInfinity) ? second : 0);
  }
  template <int Part, int Half, int N>
  __device__ __forceinline__ static float most_of(const float (&x)[1][N][4]) {
    float most = kNegativeInfinity;
#pragma unroll
    for (int j = 0; j < N / 2; ++j)
      most = max_or_nan(
          most, max_or_nan(x[0][j + Part * N / 2][2 * Half], x[0][j + Part * N / 2][2 * Half + 1]));
    return most;
  }
  template <int Part, int N>
  __device__ __forceinline__ static void add(OnlineSoftmax<1>& state, float (&x)[1][N][4],
                                             const float (&base)[2], float factor) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < N / 2; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float& y = x[0][j + Part * N / 2][2 * half + c];
          y = exp2_fast(fmaf(y, factor, -base[half]));
          sum += y;
        }
      state.l[0][half] += sum;
    }
  }
};

// Of sweeps that skip nothing.
struct NoSkips {
  __device__ NoSkips(const auto&, int) {}
};

}  // namespace fovea::cuda
