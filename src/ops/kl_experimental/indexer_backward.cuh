// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_backward, in f32 FMA and on mma.sync, by two sweeps that compute both distributions
// anew (indexer_tile.cuh):
//   db = dkl (R - P),  z_n = <q_n, k>,  dz_n = db w_n where z_n > 0
//   rows  a block owns 64 rows (16 where there are few): dw_n = sum_j db max(z_n, 0), dq_n = dz_n
//   k;
//         db of a key tile stays in registers while the heads pass, so the sums of dq, too many for
//         them, lie in the workspace: each is one thread's alone
//   keys  a block owns 64 keys (or 16) and 128 columns: dk = dz_n' q_n over the row tiles, head
//         after head
// Shared memory and barriers: block/pairs_fma.cuh, block/pairs_mma.cuh.
#pragma once
#include "core/dtype.h"
#include "ops/kl/stage_sums.cuh"
#include "ops/kl_experimental/indexer.cuh"
#include "ops/kl_experimental/indexer_tile.cuh"

namespace fovea::cuda {

constexpr int kIndexerChunks = 2;  // of columns of dk that a block owns

struct IndexerBackward : IndexerCall {
  float* sums = nullptr;  // (b, s, x, columns)
  int64_t columns;        // of dq, up to a multiple of 64
  int64_t passes;         // over the keys, each for some columns of dk
  explicit IndexerBackward(const KlIndexer& request)
      : IndexerCall(request),
        columns(ceil_div(a.student.width, kStageTile) * kStageTile),
        passes(ceil_div(columns, kIndexerChunks * kStageTile)) {}
};

// A dscore of 0 of a pair that counts is -0: times a NaN it is NaN, where +0 takes nothing.
__device__ __forceinline__ float counted(float x) {
  return x == 0 ? -0.f : x;
}

// db of a tile: +0 where a row does not see a key or has no gradient.
template <bool OwnRows, class Pairs, class Places>
__device__ __forceinline__ void dscores(const IndexerCall& call, const Places& s, Pairs& pairs,
                                        uint32_t seen, float (&db)[Pairs::R][Pairs::C]) {
  uint32_t counts = 0;
  each_pair<Pairs>([&](int r, int c) {
    const bool gains = s.gain[row_of<OwnRows, Pairs>(r, c)] != 0;
    counts |= seen & (gains ? 1u : 0u) << (Pairs::C * r + c);
  });
  float p[Pairs::R][Pairs::C];
  mean_and_logits<OwnRows>(call, s, pairs, counts, true, p, db);
  each_pair<Pairs>([&](int r, int c) {
    const int m = row_of<OwnRows, Pairs>(r, c);
    const bool in = counts >> (Pairs::C * r + c) & 1;
    db[r][c] = in ? counted(s.gain[m] * (expf(db[r][c] - s.lse_student[m]) - p[r][c])) : 0;
  });
}

// z becomes dz of head n, from db; and db max(z, 0), summed over a thread's keys of each row.
template <bool OwnRows, class Pairs, class Places>
__device__ __forceinline__ void head_dscores(const IndexerCall& call, const Places& s, Pairs& pairs,
                                             int64_t n, const float (&db)[Pairs::R][Pairs::C],
                                             float (&z)[Pairs::R][Pairs::C],
                                             float (&dweight)[Pairs::R]) {
  const View<3>& weight = call.a.weight;
#pragma unroll
  for (float& x : dweight) x = 0;
  each_pair<Pairs>([&](int r, int c) { z[r][c] = 0; });
  multiply_side<OwnRows>(z, pairs, s, call.side[1], 1, n, 0);
  each_pair<Pairs>([&](int r, int c) {
    const float d = db[r][c], on = rectified(z[r][c]);
    z[r][c] = 0;
    if (__float_as_uint(d) == 0) return;
    dweight[r] = fmaf(d, on, dweight[r]);
    const float w = weight.as()[s.weight[row_of<OwnRows, Pairs>(r, c)] + n * weight.stride[2]];
    z[r][c] = counted(d * (on == 0 ? 0 : w));
  });
}

// f(r, c, row, column, sum) for the sums of dq of this thread: its rows, the columns of a chunk.
template <class Pairs, class F>
__device__ __forceinline__ void each_sum(const IndexerBackward& call, const Sequence& seq,
                                         int64_t i0, int64_t n, int chunk, const F& f) {
#pragma unroll
  for (int r = 0; r < Pairs::R; ++r) {
    const int64_t i = i0 + Pairs::own_of(r), row = seq.row_begin + i;
    if (i >= seq.rows) continue;
    float* const sums =
        call.sums + ((seq.batch * call.a.teacher.s + row) * call.a.heads + n) * call.columns;
#pragma unroll
    for (int c = 0; c < Pairs::C; ++c) {
      const int column = chunk * Pairs::chunk + Pairs::column_of(c);
      f(r, c, row, column, sums[column]);
    }
  }
}

// What a thread adds to dweight of head n, from `sum` of its rows; `first`: in place of what lies
// there.
template <class Pairs, class Places>
__device__ __forceinline__ void add_weights(const IndexerBackward& call, const Places& s, int64_t n,
                                            const float (&sum)[Pairs::R], bool first) {
  const View<3>& to = call.a.dweight;
  if (!to) return;
#pragma unroll
  for (int r = 0; r < Pairs::R; ++r) {
    const float all = Pairs::sum(sum[r]);
    const int m = Pairs::own_of(r);
    if (!Pairs::leads() || s.row[m] < 0) continue;
    float& at = to.as()[s.dweight[m] + n * to.stride[2]];
    at = first ? all : at + all;
  }
}

template <class Pairs>
__global__ void __launch_bounds__(Pairs::threads, 2)
    indexer_rows_kernel(const __grid_constant__ IndexerBackward call) {
  constexpr int R = Pairs::R, C = Pairs::C;
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ IndexerPlaces<Pairs::own, Pairs::others> s;
  Pairs pairs(s_dynamic, call.width());
  const KlIndexer& a = call.a;
  const View<4>& dq = a.student.dq;
  const int chunks = dq ? static_cast<int>(call.columns / Pairs::chunk) : 0;
  for (int64_t w = blockIdx.x; w < call.items; w += gridDim.x) {
    const int64_t i0 = (call.tiles - 1 - w % call.tiles) * Pairs::own;
    if (!open_rows(call, s, w / call.tiles, i0)) continue;
    const Sequence& seq = s.seq;
    for (int64_t n = 0; n < a.heads; ++n) {
      const float none[R] = {};
      add_weights<Pairs>(call, s, n, none, true);
      for (int chunk = 0; chunk < chunks; ++chunk)
        each_sum<Pairs>(call, seq, i0, n, chunk,
                        [](int, int, int64_t, int, float& sum) { sum = 0; });
    }
    each_key_tile<Pairs>(call, s, i0, [&](int64_t j0, uint32_t seen) {
      float db[R][C];
      dscores<true>(call, s, pairs, seen, db);
      for (int64_t n = 0; n < a.heads; ++n) {
        float z[R][C], dweight[R];
        head_dscores<true>(call, s, pairs, n, db, z, dweight);
        add_weights<Pairs>(call, s, n, dweight, false);
        if (dq) pairs.put(z);
        for (int chunk = 0; chunk < chunks; ++chunk) {
          float acc[1][R][C] = {};
          const auto key = [&](int row) { return s.k[1][row]; };
          pairs.add(acc, call.side[1].k, key, seq.keys - j0, chunk * Pairs::chunk);
          each_sum<Pairs>(call, seq, i0, n, chunk,
                          [&](int r, int c, int64_t, int, float& sum) { sum += acc[0][r][c]; });
        }
      }
    });
    for (int64_t n = 0; n < a.heads; ++n)
      for (int chunk = 0; chunk < chunks; ++chunk)
        each_sum<Pairs>(
            call, seq, i0, n, chunk, [&](int, int, int64_t row, int column, float& sum) {
              const int64_t at = seq.batch * dq.stride[0] + row * dq.stride[1] + n * dq.stride[2];
              if (column < a.student.width)
                store_float(dq.data, a.student.dtype, at + column * dq.stride[3], sum);
            });
  }
}

template <class Pairs>
__global__ void __launch_bounds__(Pairs::threads, 2)
    indexer_keys_kernel(const __grid_constant__ IndexerBackward call) {
  constexpr int R = Pairs::R, C = Pairs::C;
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ IndexerPlaces<Pairs::others, Pairs::own> s;
  Pairs pairs(s_dynamic, call.width());
  const KlIndexer& a = call.a;
  const StageSide& side = call.side[1];
  for (int64_t w = blockIdx.x; w < call.items; w += gridDim.x) {
    const int first = static_cast<int>(w % call.passes) * kIndexerChunks * Pairs::chunk;
    const int64_t tile = w / call.passes, j0 = tile % call.tiles * Pairs::own;
    __syncthreads();
    if (threadIdx.x == 0) s.seq = a.teacher.sequences[tile / call.tiles];
    __syncthreads();
    const Sequence& seq = s.seq;
    if (j0 >= seq.keys) continue;
    s.put_keys(call, j0);
    const int64_t j1 = j0 + Pairs::own < seq.keys ? j0 + Pairs::own : seq.keys;
    const Range rows = row_range(a.teacher.mask, seq, 0, 1, j0, j1);
    float acc[kIndexerChunks][R][C] = {};
    for (int64_t i0 = rows.begin / Pairs::others * Pairs::others; i0 < rows.end;
         i0 += Pairs::others) {
      __syncthreads();  // the last tile's rows are done with
      s.put_rows(call, i0);
      __syncthreads();
      float db[R][C];
      dscores<false>(call, s, pairs, seen_pairs<false, Pairs>(a.teacher.mask, seq, 0, i0, j0), db);
      for (int64_t n = 0; n < a.heads; ++n) {
        float z[R][C], dweight[R];
        head_dscores<false>(call, s, pairs, n, db, z, dweight);
        pairs.put(z);
        const auto row = [&](int m) {
          return s.q[1][m] < 0 ? s.q[1][m] : s.q[1][m] + n * side.q_stride[2];
        };
        pairs.add(acc, side.q, row, seq.rows - i0, first);
      }
    }
    const View<4>& to = a.student.dk;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int64_t j = j0 + Pairs::own_of(r);
      if (j < seq.keys)
        store_sums<Pairs>(to, a.student.dtype,
                          seq.key_batch * to.stride[0] + (seq.key_begin + j) * to.stride[1], first,
                          side.k.width, 1.f, acc, r);
    }
  }
}

// The sweep over rows, or over keys.
template <class Pairs>
void run_indexer_backward(Context& ctx, IndexerBackward call, bool rows) {
  const Sequences& q = call.a.teacher.sequences;
  const int64_t bytes = Pairs::shared_bytes(call.width());
  call.tiles = ceil_div(rows ? q.query_max : q.key_max, Pairs::own);
  call.items = q.count * call.tiles;
  if (rows)
    return launch<indexer_rows_kernel<Pairs>>(ctx, kIndexerBackward, call.items, Pairs::threads,
                                              bytes, call);
  call.items *= call.passes;
  launch<indexer_keys_kernel<Pairs>>(ctx, kIndexerBackward, call.items, Pairs::threads, bytes,
                                     call);
}

// sweep(ctx, call, whether over rows) for what the call wants, with the sums where they will lie.
template <class Sweep>
std::string plan_indexer_backward(const KlIndexer& a, Plan& plan, const Sweep& sweep) {
  plan.kernel += std::string(".") + dtype_name(a.teacher.first.dtype);
  const IndexerBackward call(a);
  const auto sums = plan.workspace.add<float>(
      a.student.dq ? a.teacher.b * a.teacher.s * a.heads * call.columns : 0);
  plan.launch = [=](Context& ctx, void* base) {
    clear_unreached(ctx, a);
    IndexerBackward now = call;
    now.sums = sums.at(base);
    if (a.student.dq || a.dweight) sweep(ctx, now, true);
    if (a.student.dk) sweep(ctx, now, false);
  };
  return "";
}

}  // namespace fovea::cuda
