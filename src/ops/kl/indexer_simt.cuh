// SPDX-License-Identifier: Apache-2.0
// A tile of rows against a tile of keys in f32 FMA, all heads: the mean of the teacher's heads
// p = 1/h sum_m e^(a_m - lse_m) and the student's logits b = sum_n w_n max(z_n, 0).
#pragma once
#include "ops/kl/stage_sides.cuh"

namespace fovea::cuda {

struct IndexerSimt {
  KlIndexer a;  // where the teacher's lse lie, too
  StageSide teacher, student;
  int64_t tiles, work;
  explicit IndexerSimt(const KlIndexer& request)
      : a(request),
        teacher(stage_side(a.teacher.first, a.teacher.h)),
        student(stage_side(a.student, a.heads)) {}
};

// Of the rows of a tile, beside their places: elements of head 0 in the teacher's lse, weight and
// dweight.
template <int Rows, int Keys>
struct IndexerPlaces : StagePlaces<Rows, Keys> {
  int64_t lse[Rows], weight[Rows], dweight[Rows];

  __device__ void put_rows(const IndexerSimt& call, int64_t i0) {
    StagePlaces<Rows, Keys>::put_rows(call.teacher, call.student, i0);
    const KlIndexer& a = call.a;
    const Sequence& seq = this->seq;
    for (int m = threadIdx.x; m < Rows; m += kStageThreads) {
      const int64_t i = i0 + m;
      lse[m] = row_place(seq, 0, i, a.teacher.first.lse.stride);
      const auto at = [&](const int64_t* stride) {
        return seq.batch * stride[0] + (seq.row_begin + i) * stride[1];
      };
      weight[m] = at(a.weight.stride), dweight[m] = at(a.dweight.stride);
    }
  }
  __device__ void put_keys(const IndexerSimt& call, int64_t j0) {
    const Sequence& seq = this->seq;
    StagePlaces<Rows, Keys>::put_keys(call.teacher, 0, seq, j0, seq.keys);
    StagePlaces<Rows, Keys>::put_keys(call.student, 1, seq, j0, seq.keys);
  }
};

// Row of pair (r, c) in its tile.
template <bool OwnRows>
__device__ __forceinline__ int row_of(int r, int c) {
  return OwnRows ? threadIdx.x / 16 + 16 * r : threadIdx.x % 16 + 16 * c;
}

// f(r, c, m) for the pairs that are seen; m is the row in its tile.
template <bool OwnRows, int R, class F>
__device__ __forceinline__ void each_seen(uint32_t seen, const F& f) {
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      if (seen >> (4 * r + c) & 1) f(r, c, row_of<OwnRows>(r, c));
}

// p of the seen pairs, 0 of the others.
template <bool OwnRows, int R, class Places>
__device__ __forceinline__ void mean_of_heads(const IndexerSimt& call, const Places& s,
                                              const StageTiles<R>& tiles, uint32_t seen,
                                              float (&p)[R][4]) {
  const View<3>& lse = call.a.teacher.first.lse;
  const int64_t heads = call.a.teacher.h;
  const float share = 1.f / static_cast<float>(heads);
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) p[r][c] = 0;
  for (int64_t h = 0; h < heads; ++h) {
    float x[R][4] = {};
    multiply_side<OwnRows>(x, tiles, s, call.teacher, 0, h, h / call.teacher.group);
    each_seen<OwnRows, R>(seen, [&](int r, int c, int m) {
      const float at = lse.as()[s.lse[m] + h * lse.stride[1]];
      p[r][c] = fmaf(share, expf(fmaf(x[r][c], call.teacher.scale, -at)), p[r][c]);
    });
  }
}

// max(z, 0) that keeps NaN.
__device__ __forceinline__ float rectified(float z) {
  return z <= 0 ? 0 : z;
}

template <bool OwnRows, int R, class Places>
__device__ __forceinline__ void student_product(const IndexerSimt& call, const Places& s,
                                                const StageTiles<R>& tiles, int64_t n,
                                                float (&z)[R][4]) {
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) z[r][c] = 0;
  multiply_side<OwnRows>(z, tiles, s, call.student, 1, n, 0);
}

// b of the seen pairs, -inf of the others.
template <bool OwnRows, int R, class Places>
__device__ __forceinline__ void student_logits(const IndexerSimt& call, const Places& s,
                                               const StageTiles<R>& tiles, uint32_t seen,
                                               float (&b)[R][4]) {
  const View<3>& weight = call.a.weight;
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) b[r][c] = seen >> (4 * r + c) & 1 ? 0 : -INFINITY;
  for (int64_t n = 0; n < call.a.heads; ++n) {
    float z[R][4];
    student_product<OwnRows>(call, s, tiles, n, z);
    each_seen<OwnRows, R>(seen, [&](int r, int c, int m) {
      const float w = weight.as()[s.weight[m] + n * weight.stride[2]];
      b[r][c] = fmaf(w, rectified(z[r][c]), b[r][c]);
    });
  }
  each_seen<OwnRows, R>(seen, [&](int r, int c, int) { b[r][c] = only_numbers(b[r][c]); });
}

}  // namespace fovea::cuda
