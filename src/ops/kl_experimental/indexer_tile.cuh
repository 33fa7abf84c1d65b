// SPDX-License-Identifier: Apache-2.0
// A tile of rows against a tile of keys, all heads, either side own (stage_sides.cuh): the mean of
// the teacher's heads p = 1/h sum_m e^(a_m - lse_m) and the student's logits b = sum_n w_n max(z_n,
// 0).
#pragma once
#include "ops/kl/stage_sides.cuh"
#include "ops/kl_experimental/indexer.h"

namespace fovea::cuda {

struct IndexerCall {
  KlIndexer a;  // where the teacher's lse lie, too
  StageSide teacher, student;
  int64_t tiles, work;
  explicit IndexerCall(const KlIndexer& request)
      : a(request),
        teacher(stage_side(a.teacher.first, a.teacher.h)),
        student(stage_side(a.student, a.heads)) {}
};

// Of the rows of a tile, beside their places: elements of head 0 in the teacher's lse, weight and
// dweight.
template <int Rows, int Keys>
struct IndexerPlaces : StagePlaces<Rows, Keys> {
  int64_t lse[Rows], weight[Rows], dweight[Rows];

  __device__ void put_rows(const IndexerCall& call, int64_t i0) {
    StagePlaces<Rows, Keys>::put_rows(call.teacher, call.student, i0);
    const KlIndexer& a = call.a;
    const Sequence& seq = this->seq;
    for (int m = threadIdx.x; m < Rows; m += blockDim.x) {
      const int64_t i = i0 + m;
      lse[m] = row_place(seq, 0, i, a.teacher.first.lse.stride);
      const auto at = [&](const int64_t* stride) {
        return seq.batch * stride[0] + (seq.row_begin + i) * stride[1];
      };
      weight[m] = at(a.weight.stride), dweight[m] = at(a.dweight.stride);
    }
  }
  __device__ void put_keys(const IndexerCall& call, int64_t j0) {
    const Sequence& seq = this->seq;
    StagePlaces<Rows, Keys>::put_keys(call.teacher, 0, seq, j0, seq.keys);
    StagePlaces<Rows, Keys>::put_keys(call.student, 1, seq, j0, seq.keys);
  }
};

// Row of pair (r, c) in its tile.
template <bool OwnRows, class Pairs>
__device__ __forceinline__ int row_of(int r, int c) {
  return OwnRows ? Pairs::own_of(r) : Pairs::other_of(c);
}

// f(r, c, m) for the pairs that are seen; m is the row in its tile.
template <bool OwnRows, class Pairs, class F>
__device__ __forceinline__ void each_seen(uint32_t seen, const F& f) {
  each_pair<Pairs>([&](int r, int c) {
    if (seen >> (Pairs::C * r + c) & 1) f(r, c, row_of<OwnRows, Pairs>(r, c));
  });
}

// p of the seen pairs, 0 of the others.
template <bool OwnRows, class Pairs, class Places>
__device__ __forceinline__ void mean_of_heads(const IndexerCall& call, const Places& s,
                                              Pairs& pairs, uint32_t seen,
                                              float (&p)[Pairs::R][Pairs::C]) {
  const View<3>& lse = call.a.teacher.first.lse;
  const int64_t heads = call.a.teacher.h;
  const float share = 1.f / static_cast<float>(heads);
  each_pair<Pairs>([&](int r, int c) { p[r][c] = 0; });
  for (int64_t h = 0; h < heads; ++h) {
    float x[Pairs::R][Pairs::C] = {};
    multiply_side<OwnRows>(x, pairs, s, call.teacher, 0, h, h / call.teacher.group);
    each_seen<OwnRows, Pairs>(seen, [&](int r, int c, int m) {
      const float at = lse.as()[s.lse[m] + h * lse.stride[1]];
      p[r][c] = fmaf(share, expf(fmaf(x[r][c], call.teacher.scale, -at)), p[r][c]);
    });
  }
}

// max(z, 0) that keeps NaN.
__device__ __forceinline__ float rectified(float z) {
  return z <= 0 ? 0 : z;
}

template <bool OwnRows, class Pairs, class Places>
__device__ __forceinline__ void student_product(const IndexerCall& call, const Places& s,
                                                Pairs& pairs, int64_t n,
                                                float (&z)[Pairs::R][Pairs::C]) {
  each_pair<Pairs>([&](int r, int c) { z[r][c] = 0; });
  multiply_side<OwnRows>(z, pairs, s, call.student, 1, n, 0);
}

// b of the seen pairs, -inf of the others.
template <bool OwnRows, class Pairs, class Places>
__device__ __forceinline__ void student_logits(const IndexerCall& call, const Places& s,
                                               Pairs& pairs, uint32_t seen,
                                               float (&b)[Pairs::R][Pairs::C]) {
  const View<3>& weight = call.a.weight;
  each_pair<Pairs>([&](int r, int c) { b[r][c] = seen >> (Pairs::C * r + c) & 1 ? 0 : -INFINITY; });
  for (int64_t n = 0; n < call.a.heads; ++n) {
    float z[Pairs::R][Pairs::C];
    student_product<OwnRows>(call, s, pairs, n, z);
    each_seen<OwnRows, Pairs>(seen, [&](int r, int c, int m) {
      const float w = weight.as()[s.weight[m] + n * weight.stride[2]];
      b[r][c] = fmaf(w, rectified(z[r][c]), b[r][c]);
    });
  }
  each_seen<OwnRows, Pairs>(seen, [&](int r, int c, int) { b[r][c] = only_numbers(b[r][c]); });
}

FOVEA_HD int64_t indexer_width(const KlIndexer& a) {
  return a.teacher.first.width > a.student.width ? a.teacher.first.width : a.student.width;
}
inline std::string indexer_mma_refuses(const Context& ctx, const KlIndexer& a) {
  return mma_refuses(ctx, a.teacher.first, a.student, 256);
}

}  // namespace fovea::cuda
