// SPDX-License-Identifier: Apache-2.0
// A tile of own rows against a tile of keys, all heads of both sides (stage_sides.cuh):
//   p = 1/h sum_m e^(a_m - lse_m) of the teacher,  b = sum_n w_n max(z_n, 0) of the student
#pragma once
#include "ops/kl/stage_sides.cuh"
#include "ops/kl_experimental/dscores.cuh"
#include "ops/kl_experimental/indexer.cuh"

namespace fovea::cuda {

struct IndexerCall {
  static constexpr const char* op = kIndexerBackward;
  static constexpr bool rectifies = true;
  template <class>
  using T = float;  // of db
  KlIndexer a;      // where the teacher's lse lie, too
  StageSide teacher, student;
  explicit IndexerCall(const KlIndexer& request)
      : a(request),
        teacher(stage_side(a.teacher.first, a.teacher.h)),
        student(stage_side(a.student, a.heads)) {}
  FOVEA_HD int64_t width() const {
    return teacher.q.width > student.q.width ? teacher.q.width : student.q.width;
  }
  FOVEA_HD const Kl& kl() const { return a.teacher; }
  FOVEA_HD const KlSide& own() const { return a.student; }
  FOVEA_HD Sequence units(const Sequence& q, int64_t) const { return q; }
  int64_t keys() const { return kl().sequences.key_max; }
  bool by_rows() const { return own().dq || a.dweight; }
  void clear(Context& ctx) const { clear_unreached(ctx, a); }
  __device__ bool seen(const Sequence& q, int64_t, int64_t i0, int64_t j0) const {
    const KeyTiles tiles = seen_tiles(kl().mask, q, 0, i0);
    return tiles.count() > 0 && j0 < q.keys && may_see(tiles, kStageTile, j0, j0 + kStageTile);
  }
  // A thread's share of dw_n of own rows.
  template <class Pairs>
  __device__ void store_weights(const Sequence& q, int64_t i0, int64_t n,
                                const float (&sum)[Pairs::R]) const {
    const View<3>& to = a.dweight;
#pragma unroll
    for (int r = 0; r < Pairs::R; ++r) {
      const float all = Pairs::sum(sum[r]);
      const int64_t i = i0 + Pairs::own_of(r);
      if (to && Pairs::leads() && i < q.rows)
        to.as()[q.batch * to.stride[0] + (q.row_begin + i) * to.stride[1] + n * to.stride[2]] = all;
    }
  }
};

// In shared memory, of the rows of a tile beside their places: elements of head 0 in the teacher's
// lse and weight; in a backward their gradient and the student's lse.
template <class Pairs>
struct IndexerPlaces : StagePlaces<Pairs::own, Pairs::others> {
  int64_t lse[Pairs::own], weight[Pairs::own];
  float gain[Pairs::own], lse_student[Pairs::own];

  __device__ void put_rows(const IndexerCall& call, int64_t i0) {
    StagePlaces<Pairs::own, Pairs::others>::put_rows(call.teacher, call.student, i0);
    const KlIndexer& a = call.a;
    const Sequence& seq = this->seq;
    for (int m = threadIdx.x; m < Pairs::own; m += blockDim.x) {
      const auto at = [&](const int64_t* stride) {
        return seq.batch * stride[0] + (seq.row_begin + i0 + m) * stride[1];
      };
      lse[m] = row_place(seq, 0, i0 + m, a.teacher.first.lse.stride);
      weight[m] = at(a.weight.stride);
      if (!a.dkl) continue;
      gain[m] = this->row[m] < 0 ? 0 : a.dkl.as()[at(a.dkl.stride)];
      lse_student[m] = gain[m] != 0 ? a.lse.as()[at(a.lse.stride)] : 0;
    }
  }
  __device__ void put_keys(const IndexerCall& call, int64_t j0) {
    const Sequence& seq = this->seq;
    StagePlaces<Pairs::own, Pairs::others>::put_keys(call.teacher, 0, seq, j0, seq.keys);
    StagePlaces<Pairs::own, Pairs::others>::put_keys(call.student, 1, seq, j0, seq.keys);
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
    visit(j0, seen_pairs<Pairs>(mask, seq, 0, i0, j0));
  }
}

// p and b of the seen pairs, 0 of the others; without `teacher` b alone.
template <class Pairs, class Places>
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
    const StageSide& side = which ? call.student : call.teacher;
    float x[Pairs::R][Pairs::C] = {};
    multiply_side(x, pairs, s, side, which, head, head / side.group);
    const auto each_seen = [&](const auto& f) {
      each_pair<Pairs>([&](int r, int c) {
        if (seen >> (Pairs::C * r + c) & 1) f(r, c, Pairs::own_of(r));
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

// run<Pairs>() on tensor cores, or in f32 FMA by how many own rows of a sequence there are.
template <class Run>
void with_rows(Context& ctx, bool mma, const KlIndexer& a, const Run& run) {
  const Sequences& q = a.teacher.sequences;
  if (!mma && few_rows(ctx, q.query_max, q.count * ceil_div(q.query_max, 64)))
    run.template operator()<PairsFma<1>>();
  else
    with_pairs(mma, a.student.dtype, run);
}

inline Text indexer_mma_refuses(const Context& ctx, const KlIndexer& a) {
  return mma_refuses(ctx, a.teacher.first, a.student, 256);
}

}  // namespace fovea::cuda
