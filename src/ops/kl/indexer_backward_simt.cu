// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_backward in f32 FMA, by two sweeps that compute both distributions anew
// (indexer_simt.cuh):
//   db = dkl (R - P),  z_n = <q_n, k>,  dz_n = db w_n where z_n > 0
//   rows  a block owns 64 rows (16 where there are few): dw_n = sum_j db max(z_n, 0), dq_n = dz_n
//   k;
//         db of a key tile stays in registers while the heads pass, so the sums of dq, too many for
//         them, lie in the workspace: each float4 is one thread's alone
//   keys  a block owns 64 keys (or 16): dk = dz_n' q_n over the row tiles, head after head
// Shared memory and barriers: block/stage.cuh.
#include "core/dtype.h"
#include "cuda/block/reduce.cuh"
#include "cuda/loop/attend_bwd_simt.cuh"
#include "cuda/loop/zero.cuh"
#include "ops/kl/indexer_simt.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kl_indexer_backward";

struct IndexerBackward : IndexerSimt {
  float* sums = nullptr;  // (b, s, x, columns)
  int64_t columns;        // of dq, up to a multiple of 64
  explicit IndexerBackward(const KlIndexer& request)
      : IndexerSimt(request), columns(ceil_div(a.student.width, kStageTile) * kStageTile) {}
};

template <int Rows, int Keys>
struct Shared : IndexerPlaces<Rows, Keys> {
  float gain[Rows], lse_student[Rows];

  __device__ void put_rows(const IndexerSimt& call, int64_t i0) {
    IndexerPlaces<Rows, Keys>::put_rows(call, i0);
    const Sequence& seq = this->seq;
    for (int m = threadIdx.x; m < Rows; m += kStageThreads) {
      const auto value = [&](const View<2>& x) {
        return x.as()[seq.batch * x.stride[0] + (seq.row_begin + i0 + m) * x.stride[1]];
      };
      gain[m] = this->row[m] < 0 ? 0 : value(call.a.dkl);
      lse_student[m] = gain[m] != 0 ? value(call.a.lse) : 0;
    }
  }
};

// db of a tile: 0 where a row does not see a key or has no gradient.
template <bool OwnRows, int R, class S>
__device__ __forceinline__ void slopes(const IndexerSimt& call, const S& s,
                                       const StageTiles<R>& tiles, uint32_t seen,
                                       float (&db)[R][4]) {
  uint32_t counts = 0;
  each_seen<OwnRows, R>(
      seen, [&](int r, int c, int m) { counts |= (s.gain[m] != 0 ? 1u : 0u) << (4 * r + c); });
  float p[R][4];
  student_logits<OwnRows>(call, s, tiles, counts, db);
  mean_of_heads<OwnRows>(call, s, tiles, counts, p);
#pragma unroll
  for (int r = 0; r < R; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int m = row_of<OwnRows>(r, c);
      const bool in = counts >> (4 * r + c) & 1;
      db[r][c] = in ? s.gain[m] * (expf(db[r][c] - s.lse_student[m]) - p[r][c]) : 0;
    }
}

// dz of head n from db and z; and db max(z, 0), summed over a thread's keys of each row.
template <bool OwnRows, int R, class S>
__device__ __forceinline__ void head_slopes(const IndexerSimt& call, const S& s, int64_t n,
                                            const float (&db)[R][4], float (&z)[R][4],
                                            float (&dweight)[R]) {
  const View<3>& weight = call.a.weight;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    dweight[r] = 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float d = db[r][c], on = rectified(z[r][c]);
      z[r][c] = 0;
      if (d == 0) continue;
      const float w = weight.as()[s.weight[row_of<OwnRows>(r, c)] + n * weight.stride[2]];
      dweight[r] = fmaf(d, on, dweight[r]);
      z[r][c] = d * (on == 0 ? 0 : w);
    }
  }
}

// The sums of dq of this thread: rows ty + 16 r, columns 64 chunk + 4 tx.
template <int R, class F>
__device__ __forceinline__ void each_sum(const IndexerBackward& call, const Sequence& seq,
                                         int64_t i0, int64_t n, int64_t chunk, const F& f) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int64_t i = i0 + row_of<true>(r, 0);
    if (i >= seq.rows) continue;
    const int64_t row = seq.batch * call.a.teacher.s + seq.row_begin + i;
    f(r, i,
      reinterpret_cast<float4*>(call.sums + (row * call.a.heads + n) * call.columns +
                                chunk * kStageTile + 4 * (threadIdx.x % 16)));
  }
}

template <int R>
__device__ __forceinline__ void clear_rows(const IndexerBackward& call,
                                           const Shared<16 * R, kStageTile>& s, int64_t i0) {
  const KlIndexer& a = call.a;
  for (int64_t n = 0; n < a.heads; ++n) {
    if (a.dweight && threadIdx.x % 16 == 0)
#pragma unroll
      for (int r = 0; r < R; ++r)
        if (s.row[row_of<true>(r, 0)] >= 0)
          a.dweight.as()[s.dweight[row_of<true>(r, 0)] + n * a.dweight.stride[2]] = 0;
    for (int64_t chunk = 0; a.student.dq && chunk < call.columns / kStageTile; ++chunk)
      each_sum<R>(call, s.seq, i0, n, chunk, [](int, int64_t, float4* sum) { *sum = {}; });
  }
}

template <int R>
__device__ __forceinline__ void store_rows(const IndexerBackward& call, const Sequence& seq,
                                           int64_t i0) {
  const View<4>& to = call.a.student.dq;
  for (int64_t n = 0; to && n < call.a.heads; ++n)
    for (int64_t chunk = 0; chunk < call.columns / kStageTile; ++chunk)
      each_sum<R>(call, seq, i0, n, chunk, [&](int, int64_t i, const float4* sum) {
        const int64_t at =
            seq.batch * to.stride[0] + (seq.row_begin + i) * to.stride[1] + n * to.stride[2];
        const float four[4] = {sum->x, sum->y, sum->z, sum->w};
        for (int c = 0; c < 4; ++c) {
          const int64_t column = chunk * kStageTile + 4 * (threadIdx.x % 16) + c;
          if (column < call.student.q.width)
            store_float(to.data, call.student.q.dtype, at + column * to.stride[3], four[c]);
        }
      });
}

template <int R>
__global__ void __launch_bounds__(kStageThreads, 2)
    indexer_rows_kernel(const __grid_constant__ IndexerBackward call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ Shared<16 * R, kStageTile> s;
  const StageTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const KlIndexer& a = call.a;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int64_t i0 = (call.tiles - 1 - w % call.tiles) * 16 * R;
    __syncthreads();
    if (threadIdx.x == 0) s.seq = a.teacher.sequences[w / call.tiles];
    __syncthreads();
    const Sequence& seq = s.seq;
    if (i0 >= seq.rows) continue;
    s.put_rows(call, i0);
    __syncthreads();
    clear_rows<R>(call, s, i0);
    const int64_t i1 = i0 + 16 * R < seq.rows ? i0 + 16 * R : seq.rows;
    const KeyTiles range = key_tiles(a.teacher.mask, seq, 0, 1, i0, i1, kStageTile);
    for (int64_t t = 0; t < range.count(); ++t) {
      const int64_t j0 = range[t] * kStageTile;
      __syncthreads();  // the last tile's keys are done with
      s.put_keys(call, j0);
      __syncthreads();
      float db[R][4];
      slopes<true>(call, s, tiles, seen_pairs<true, R>(a.teacher.mask, seq, 0, i0, j0), db);
      for (int64_t n = 0; n < a.heads; ++n) {
        float z[R][4], dweight[R];
        student_product<true>(call, s, tiles, n, z);
        head_slopes<true>(call, s, n, db, z, dweight);
        if (a.dweight)
#pragma unroll
          for (int r = 0; r < R; ++r) {
            const float sum = lanes_sum<16>(dweight[r]);
            const int m = row_of<true>(r, 0);
            if (threadIdx.x % 16 == 0 && s.row[m] >= 0)
              a.dweight.as()[s.dweight[m] + n * a.dweight.stride[2]] += sum;
          }
        if (!a.student.dq) continue;
        put_p(tiles, z);
        for (int64_t chunk = 0; chunk < call.columns / kStageTile; ++chunk) {
          float acc[1][R][4] = {};
          multiply_nn(acc, tiles, kStageTile,
                      static_cast<int>(clamp_i64(seq.keys - j0, 0, kStageTile)),
                      [&](int row, int column) {
                        return load_four(call.student.k, s.k[1][row],
                                         static_cast<int>(chunk) * kStageTile + column);
                      });
          each_sum<R>(call, seq, i0, n, chunk, [&](int r, int64_t, float4* sum) {
            const float4 old = *sum;
            *sum = {old.x + acc[0][r][0], old.y + acc[0][r][1], old.z + acc[0][r][2],
                    old.w + acc[0][r][3]};
          });
        }
      }
    }
    store_rows<R>(call, seq, i0);
  }
}

template <int R, int Chunks>
__global__ void __launch_bounds__(kStageThreads, Chunks <= 2 ? 2 : 1)
    indexer_keys_kernel(const __grid_constant__ IndexerBackward call) {
  extern __shared__ float4 s_dynamic[];
  __shared__ Shared<kStageTile, 16 * R> s;
  const StageTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const KlIndexer& a = call.a;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int64_t j0 = w % call.tiles * 16 * R;
    __syncthreads();
    if (threadIdx.x == 0) s.seq = a.teacher.sequences[w / call.tiles];
    __syncthreads();
    const Sequence& seq = s.seq;
    if (j0 >= seq.keys) continue;
    s.put_keys(call, j0);
    const int64_t j1 = j0 + 16 * R < seq.keys ? j0 + 16 * R : seq.keys;
    const Range rows = row_range(a.teacher.mask, seq, 0, 1, j0, j1);
    float acc[Chunks][R][4] = {};
    for (int64_t i0 = rows.begin / kStageTile * kStageTile; i0 < rows.end; i0 += kStageTile) {
      __syncthreads();  // the last tile's rows are done with
      s.put_rows(call, i0);
      __syncthreads();
      float db[R][4];
      slopes<false>(call, s, tiles, seen_pairs<false, R>(a.teacher.mask, seq, 0, i0, j0), db);
      for (int64_t n = 0; n < a.heads; ++n) {
        float z[R][4], dweight[R];
        student_product<false>(call, s, tiles, n, z);
        head_slopes<false>(call, s, n, db, z, dweight);
        put_p(tiles, z);
        const int64_t head = n * call.student.q_stride[2];
        multiply_nn(acc, tiles, call.student.q.width,
                    static_cast<int>(clamp_i64(seq.rows - i0, 0, kStageTile)),
                    [&](int row, int column) {
                      const int64_t at = s.q[1][row];
                      return load_four(call.student.q, at < 0 ? at : at + head, column);
                    });
      }
    }
    const View<4>& to = a.student.dk;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int64_t j = j0 + threadIdx.x / 16 + 16 * r;
      if (j < seq.keys)
        store_gradient(to, a.student.dtype,
                       seq.key_batch * to.stride[0] + (seq.key_begin + j) * to.stride[1],
                       call.student.k.width, 1.f, acc, r);
    }
  }
}

void rows(Context& ctx, IndexerBackward call) {
  const Sequences& q = call.a.teacher.sequences;
  const bool few = few_rows(ctx, q.query_max, q.count * ceil_div(q.query_max, 64));
  call.tiles = ceil_div(q.query_max, few ? 16 : 64), call.work = q.count * call.tiles;
  if (few)
    launch<indexer_rows_kernel<1>>(ctx, kOp, call.work, kStageThreads, StageTiles<1>::bytes(),
                                   call);
  else
    launch<indexer_rows_kernel<4>>(ctx, kOp, call.work, kStageThreads, StageTiles<4>::bytes(),
                                   call);
}

void keys(Context& ctx, IndexerBackward call) {
  const Sequences& q = call.a.teacher.sequences;
  const bool few = few_rows(ctx, q.key_max, q.count * ceil_div(q.key_max, 64));
  call.tiles = ceil_div(q.key_max, few ? 16 : 64), call.work = q.count * call.tiles;
  with_chunks(call.a.student.width, [&]<int Chunks> {
    if (few)
      launch<indexer_keys_kernel<1, Chunks>>(ctx, kOp, call.work, kStageThreads,
                                             StageTiles<1>::bytes(), call);
    else
      launch<indexer_keys_kernel<4, Chunks>>(ctx, kOp, call.work, kStageThreads,
                                             StageTiles<4>::bytes(), call);
  });
}

// Zeros for what no sequence reaches.
void clear(Context& ctx, const KlIndexer& a) {
  const Kl& t = a.teacher;
  if (!ragged(attend_of(t, t.first, t.first))) return;
  const KlSide& x = a.student;
  const int64_t key_b = t.sequences.key_start ? 1 : t.sequences.count;
  if (x.dq) zero(ctx, kOp, x.dq, x.dtype, {t.b, t.s, a.heads, x.width});
  if (x.dk) zero(ctx, kOp, x.dk, x.dtype, {key_b, t.t, 1, x.width});
  const View<3>& w = a.dweight;
  if (w)
    zero(ctx, kOp, {w.data, {w.stride[0], w.stride[1], w.stride[2], 1}}, FOVEA_F32,
         {t.b, t.s, a.heads, 1});
}

void prepare(const Context&, const KlIndexer& a, Plan& plan) {
  plan.kernel += std::string(".") + dtype_name(a.teacher.first.dtype);
  const IndexerBackward call(a);
  const auto sums = plan.workspace.add<float>(
      a.student.dq ? a.teacher.b * a.teacher.s * a.heads * call.columns : 0);
  plan.launch = [=](Context& ctx, void* base) {
    clear(ctx, a);
    IndexerBackward now = call;
    now.sums = sums.at(base);
    if (a.student.dq || a.dweight) rows(ctx, now);
    if (a.student.dk) keys(ctx, now);
  };
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlIndexer> kl_indexer_backward_simt;
const Kernel<KlIndexer> kl_indexer_backward_simt = {
    "x_kl_indexer_backward.cuda.simt",
    [](const Context&, const KlIndexer&) { return std::string(); }, cuda::prepare};

}  // namespace fovea
