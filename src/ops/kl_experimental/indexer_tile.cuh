// SPDX-License-Identifier: Apache-2.0
// A tile of rows against a tile of keys, all heads of both sides, either side own
// (stage_sides.cuh):
//   p = 1/h sum_m e^(a_m - lse_m) of the teacher,  b = sum_n w_n max(z_n, 0) of the student
// A block walks the key tiles of the rows that it owns, or the row tiles of its keys.
#pragma once
#include "ops/kl/stage_sides.cuh"
#include "ops/kl_experimental/indexer.h"

namespace fovea::cuda {

struct IndexerCall {
  KlIndexer a;        // where the teacher's lse lie, too
  StageSide side[2];  // teacher, student
  int64_t tiles, items;
  explicit IndexerCall(const KlIndexer& request)
      : a(request),
        side{stage_side(a.teacher.first, a.teacher.h), stage_side(a.student, a.heads)} {}
  FOVEA_HD int64_t width() const {
    return side[0].q.width > side[1].q.width ? side[0].q.width : side[1].q.width;
  }
};

// In shared memory, of the rows of a tile beside their places: elements of head 0 in the teacher's
// lse, weight and dweight; in a backward their gradient and the student's lse.
template <int Rows, int Keys>
struct IndexerPlaces : StagePlaces<Rows, Keys> {
  int64_t lse[Rows], weight[Rows], dweight[Rows];
  float gain[Rows], lse_student[Rows];

  __device__ void put_rows(const IndexerCall& call, int64_t i0) {
    StagePlaces<Rows, Keys>::put_rows(call.side[0], call.side[1], i0);
    const KlIndexer& a = call.a;
    const Sequence& seq = this->seq;
    for (int m = threadIdx.x; m < Rows; m += blockDim.x) {
      const auto at = [&](const int64_t* stride) {
        return seq.batch * stride[0] + (seq.row_begin + i0 + m) * stride[1];
      };
      lse[m] = row_place(seq, 0, i0 + m, a.teacher.first.lse.stride);
      weight[m] = at(a.weight.stride), dweight[m] = at(a.dweight.stride);
      if (!a.dkl) continue;
      gain[m] = this->row[m] < 0 ? 0 : a.dkl.as()[at(a.dkl.stride)];
      lse_student[m] = gain[m] != 0 ? a.lse.as()[at(a.lse.stride)] : 0;
    }
  }
  __device__ void put_keys(const IndexerCall& call, int64_t j0) {
    for (int i = 0; i < 2; ++i)
      StagePlaces<Rows, Keys>::put_keys(call.side[i], i, this->seq, j0, this->seq.keys);
  }
};

// Opens a tile of own rows of a sequence; false: it has none of them.
template <class Places>
__device__ __forceinline__ bool open_rows(const IndexerCall& call, Places& s, int64_t sequence,
                                          int64_t i0) {
  __syncthreads();
  if (threadIdx.x == 0) s.seq = call.a.teacher.sequences[sequence];
  __syncthreads();
  if (i0 >= s.seq.rows) return false;
  s.put_rows(call, i0);
  __syncthreads();
  return true;
}

// visit(first key, seen) for the key tiles of own rows from i0 on, their places staged.
template <class Pairs, class Places, class Visit>
__device__ __forceinline__ void each_key_tile(const IndexerCall& call, Places& s, int64_t i0,
                                              const Visit& visit) {
  const Mask& mask = call.a.teacher.mask;
  const Sequence& seq = s.seq;
  const int64_t i1 = i0 + Pairs::own < seq.rows ? i0 + Pairs::own : seq.rows;
  const KeyTiles range = key_tiles(mask, seq, 0, 1, i0, i1, kStageTile);
  for (int64_t n = 0; n < range.count(); ++n) {
    const int64_t j0 = range[n] * kStageTile;
    __syncthreads();  // the last tile's keys are done with
    s.put_keys(call, j0);
    __syncthreads();
    visit(j0, seen_pairs<true, Pairs>(mask, seq, 0, i0, j0));
  }
}

// Row of pair (r, c) in its tile.
template <bool OwnRows, class Pairs>
__device__ __forceinline__ int row_of(int r, int c) {
  return OwnRows ? Pairs::own_of(r) : Pairs::other_of(c);
}

// max(z, 0) that keeps NaN.
__device__ __forceinline__ float rectified(float z) {
  return z <= 0 ? 0 : z;
}

// p and b of the seen pairs, 0 of the others; without `teacher` b alone.
template <bool OwnRows, class Pairs, class Places>
__device__ __forceinline__ void mean_and_logits(const IndexerCall& call, const Places& s,
                                                Pairs& pairs, uint32_t seen, bool teacher,
                                                float (&p)[Pairs::R][Pairs::C],
                                                float (&b)[Pairs::R][Pairs::C]) {
  const KlIndexer& a = call.a;
  const View<3>&lse = a.teacher.first.lse, &weight = a.weight;
  const int64_t heads = a.teacher.h;
  const float share = 1.f / static_cast<float>(heads);
  each_pair<Pairs>([&](int r, int c) { p[r][c] = b[r][c] = 0; });
  // Heads of the teacher, then of the student: one product serves both sides.
  for (int64_t n = teacher ? 0 : heads; n < heads + a.heads; ++n) {
    const int which = n >= heads;
    const int64_t head = which ? n - heads : n;
    const StageSide& side = call.side[which];
    float x[Pairs::R][Pairs::C] = {};
    multiply_side<OwnRows>(x, pairs, s, side, which, head, head / side.group);
    const auto each_seen = [&](const auto& f) {
      each_pair<Pairs>([&](int r, int c) {
        if (seen >> (Pairs::C * r + c) & 1) f(r, c, row_of<OwnRows, Pairs>(r, c));
      });
    };
    if (which)
      each_seen([&](int r, int c, int m) {
        const float w = weight.as()[s.weight[m] + head * weight.stride[2]];
        b[r][c] = fmaf(w, rectified(x[r][c]), b[r][c]);
      });
    else
      each_seen([&](int r, int c, int m) {
        const float at = lse.as()[s.lse[m] + head * lse.stride[1]];
        p[r][c] = fmaf(share, expf(fmaf(x[r][c], side.scale, -at)), p[r][c]);
      });
  }
}

// run<Pairs>() in f32 FMA, by how many own rows or keys, `extent` of a sequence, there are.
template <class Run>
void with_fma(Context& ctx, const KlIndexer& a, int64_t extent, const Run& run) {
  if (few_rows(ctx, extent, a.teacher.sequences.count * ceil_div(extent, 64)))
    run.template operator()<PairsFma<1>>();
  else
    run.template operator()<PairsFma<4>>();
}

inline std::string indexer_mma_refuses(const Context& ctx, const KlIndexer& a) {
  return mma_refuses(ctx, a.teacher.first, a.student, 256);
}

}  // namespace fovea::cuda
