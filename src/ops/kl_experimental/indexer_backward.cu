// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_backward, in f32 FMA and on mma.sync, by two sweeps that compute both distributions
// anew (indexer_tile.cuh):
//   db = dkl (R - P),  z_n = <q_n, k>,  dz_n = db w_n where z_n > 0
//   rows  a block owns 64 rows (16 where there are few): dw_n = sum_j db max(z_n, 0), dq_n = dz_n
//   k;
//         db of a key tile stays in registers while the heads pass, so the sums of dq, too many for
//         them, lie in the workspace: each is one thread's alone
//   keys  a block owns 64 keys (or 16): dk = dz_n' q_n over the row tiles, head after head
// Shared memory and barriers: block/pairs_fma.cuh, block/pairs_mma.cuh.
#include "core/dtype.h"
#include "cuda/loop/zero.cuh"
#include "ops/kl/stage_sums.cuh"
#include "ops/kl_experimental/indexer_calls.cuh"
#include "ops/kl_experimental/indexer_tile.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr const char* kOp = kIndexerBackward;

struct IndexerBackward : IndexerCall {
  float* sums = nullptr;  // (b, s, x, columns)
  int64_t columns;        // of dq, up to a multiple of 64
  int64_t passes = 1;     // of the keys, each for some columns of dk
  explicit IndexerBackward(const KlIndexer& request)
      : IndexerCall(request), columns(ceil_div(a.student.width, kStageTile) * kStageTile) {}
};

template <int Rows, int Keys>
struct Shared : IndexerPlaces<Rows, Keys> {
  float gain[Rows], lse_student[Rows];

  __device__ void put_rows(const IndexerCall& call, int64_t i0) {
    IndexerPlaces<Rows, Keys>::put_rows(call, i0);
    const Sequence& seq = this->seq;
    for (int m = threadIdx.x; m < Rows; m += blockDim.x) {
      const auto value = [&](const View<2>& x) {
        return x.as()[seq.batch * x.stride[0] + (seq.row_begin + i0 + m) * x.stride[1]];
      };
      gain[m] = this->row[m] < 0 ? 0 : value(call.a.dkl);
      lse_student[m] = gain[m] != 0 ? value(call.a.lse) : 0;
    }
  }
};

// A slope of 0 of a pair that counts is -0: times a NaN it is NaN, where +0 takes nothing.
__device__ __forceinline__ float counted(float x) {
  return x == 0 ? -0.f : x;
}

// db of a tile: +0 where a row does not see a key or has no gradient.
template <bool OwnRows, class Pairs, class S>
__device__ __forceinline__ void slopes(const IndexerCall& call, const S& s, Pairs& pairs,
                                       uint32_t seen, float (&db)[Pairs::R][Pairs::C]) {
  uint32_t counts = 0;
  each_seen<OwnRows, Pairs>(seen, [&](int r, int c, int m) {
    counts |= (s.gain[m] != 0 ? 1u : 0u) << (Pairs::C * r + c);
  });
  float p[Pairs::R][Pairs::C];
  student_logits<OwnRows>(call, s, pairs, counts, db);
  mean_of_heads<OwnRows>(call, s, pairs, counts, p);
  each_pair<Pairs>([&](int r, int c) {
    const int m = row_of<OwnRows, Pairs>(r, c);
    const bool in = counts >> (Pairs::C * r + c) & 1;
    db[r][c] = in ? counted(s.gain[m] * (expf(db[r][c] - s.lse_student[m]) - p[r][c])) : 0;
  });
}

// dz of head n from db and z; and db max(z, 0), summed over a thread's keys of each row.
template <bool OwnRows, class Pairs, class S>
__device__ __forceinline__ void head_slopes(const IndexerCall& call, const S& s, int64_t n,
                                            const float (&db)[Pairs::R][Pairs::C],
                                            float (&z)[Pairs::R][Pairs::C],
                                            float (&dweight)[Pairs::R]) {
  const View<3>& weight = call.a.weight;
#pragma unroll
  for (float& x : dweight) x = 0;
  each_pair<Pairs>([&](int r, int c) {
    const float d = db[r][c], on = rectified(z[r][c]);
    z[r][c] = 0;
    if (__float_as_uint(d) == 0) return;
    const float w = weight.as()[s.weight[row_of<OwnRows, Pairs>(r, c)] + n * weight.stride[2]];
    dweight[r] = fmaf(d, on, dweight[r]);
    z[r][c] = counted(d * (on == 0 ? 0 : w));
  });
}

// f(r, row, column, sum) for the sums of dq of this thread: its rows, the columns of a chunk.
template <class Pairs, class F>
__device__ __forceinline__ void each_sum(const IndexerBackward& call, const Sequence& seq,
                                         int64_t i0, int64_t n, int chunk, const F& f) {
#pragma unroll
  for (int r = 0; r < Pairs::R; ++r) {
    const int64_t i = i0 + Pairs::own_of(r);
    if (i >= seq.rows) continue;
    const int64_t row = seq.batch * call.a.teacher.s + seq.row_begin + i;
    float* const sums = call.sums + (row * call.a.heads + n) * call.columns;
#pragma unroll
    for (int c = 0; c < Pairs::C; ++c) {
      const int column = chunk * Pairs::chunk + Pairs::column_of(c);
      f(r, c, i, column, sums[column]);
    }
  }
}

template <class Pairs, class S>
__device__ __forceinline__ void clear_rows(const IndexerBackward& call, const S& s, int64_t i0) {
  const KlIndexer& a = call.a;
  for (int64_t n = 0; n < a.heads; ++n) {
    if (a.dweight && Pairs::leads())
#pragma unroll
      for (int r = 0; r < Pairs::R; ++r)
        if (s.row[Pairs::own_of(r)] >= 0)
          a.dweight.as()[s.dweight[Pairs::own_of(r)] + n * a.dweight.stride[2]] = 0;
    for (int chunk = 0; a.student.dq && chunk < call.columns / Pairs::chunk; ++chunk)
      each_sum<Pairs>(call, s.seq, i0, n, chunk,
                      [](int, int, int64_t, int, float& sum) { sum = 0; });
  }
}

template <class Pairs>
__device__ __forceinline__ void store_rows(const IndexerBackward& call, const Sequence& seq,
                                           int64_t i0) {
  const View<4>& to = call.a.student.dq;
  for (int64_t n = 0; to && n < call.a.heads; ++n)
    for (int chunk = 0; chunk < call.columns / Pairs::chunk; ++chunk)
      each_sum<Pairs>(call, seq, i0, n, chunk, [&](int, int, int64_t i, int column, float& sum) {
        if (column < call.student.q.width)
          store_float(to.data, call.student.q.dtype,
                      seq.batch * to.stride[0] + (seq.row_begin + i) * to.stride[1] +
                          n * to.stride[2] + column * to.stride[3],
                      sum);
      });
}

template <class Pairs>
__global__ void __launch_bounds__(Pairs::threads, 2)
    indexer_rows_kernel(const __grid_constant__ IndexerBackward call) {
  constexpr int R = Pairs::R, C = Pairs::C;
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ Shared<Pairs::own, Pairs::others> s;
  Pairs pairs(s_dynamic, indexer_width(call.a));
  const KlIndexer& a = call.a;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int64_t i0 = (call.tiles - 1 - w % call.tiles) * Pairs::own;
    __syncthreads();
    if (threadIdx.x == 0) s.seq = a.teacher.sequences[w / call.tiles];
    __syncthreads();
    const Sequence& seq = s.seq;
    if (i0 >= seq.rows) continue;
    s.put_rows(call, i0);
    __syncthreads();
    clear_rows<Pairs>(call, s, i0);
    const int64_t i1 = i0 + Pairs::own < seq.rows ? i0 + Pairs::own : seq.rows;
    const KeyTiles range = key_tiles(a.teacher.mask, seq, 0, 1, i0, i1, kStageTile);
    for (int64_t t = 0; t < range.count(); ++t) {
      const int64_t j0 = range[t] * kStageTile;
      __syncthreads();  // the last tile's keys are done with
      s.put_keys(call, j0);
      __syncthreads();
      float db[R][C];
      slopes<true>(call, s, pairs, seen_pairs<true, Pairs>(a.teacher.mask, seq, 0, i0, j0), db);
      for (int64_t n = 0; n < a.heads; ++n) {
        float z[R][C], dweight[R];
        student_product<true>(call, s, pairs, n, z);
        head_slopes<true, Pairs>(call, s, n, db, z, dweight);
        if (a.dweight)
#pragma unroll
          for (int r = 0; r < R; ++r) {
            const float sum = Pairs::sum(dweight[r]);
            const int m = Pairs::own_of(r);
            if (Pairs::leads() && s.row[m] >= 0)
              a.dweight.as()[s.dweight[m] + n * a.dweight.stride[2]] += sum;
          }
        if (!a.student.dq) continue;
        pairs.put(z);
        for (int chunk = 0; chunk < call.columns / Pairs::chunk; ++chunk) {
          float acc[1][R][C] = {};
          pairs.add(
              acc, call.student.k, [&](int row) { return s.k[1][row]; }, seq.keys - j0,
              chunk * Pairs::chunk);
          each_sum<Pairs>(call, seq, i0, n, chunk,
                          [&](int r, int c, int64_t, int, float& sum) { sum += acc[0][r][c]; });
        }
      }
    }
    store_rows<Pairs>(call, seq, i0);
  }
}

template <class Pairs, int Chunks>
__global__ void __launch_bounds__(Pairs::threads, Chunks <= 2 ? 2 : 1)
    indexer_keys_kernel(const __grid_constant__ IndexerBackward call) {
  constexpr int R = Pairs::R, C = Pairs::C;
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ Shared<Pairs::others, Pairs::own> s;
  Pairs pairs(s_dynamic, indexer_width(call.a));
  const KlIndexer& a = call.a;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int first = static_cast<int>(w % call.passes) * Chunks * Pairs::chunk;
    const int64_t tile = w / call.passes, j0 = tile % call.tiles * Pairs::own;
    __syncthreads();
    if (threadIdx.x == 0) s.seq = a.teacher.sequences[tile / call.tiles];
    __syncthreads();
    const Sequence& seq = s.seq;
    if (j0 >= seq.keys) continue;
    s.put_keys(call, j0);
    const int64_t j1 = j0 + Pairs::own < seq.keys ? j0 + Pairs::own : seq.keys;
    const Range rows = row_range(a.teacher.mask, seq, 0, 1, j0, j1);
    float acc[Chunks][R][C] = {};
    for (int64_t i0 = rows.begin / Pairs::others * Pairs::others; i0 < rows.end;
         i0 += Pairs::others) {
      __syncthreads();  // the last tile's rows are done with
      s.put_rows(call, i0);
      __syncthreads();
      float db[R][C];
      slopes<false>(call, s, pairs, seen_pairs<false, Pairs>(a.teacher.mask, seq, 0, i0, j0), db);
      for (int64_t n = 0; n < a.heads; ++n) {
        float z[R][C], dweight[R];
        student_product<false>(call, s, pairs, n, z);
        head_slopes<false, Pairs>(call, s, n, db, z, dweight);
        pairs.put(z);
        const int64_t head = n * call.student.q_stride[2];
        pairs.add(
            acc, call.student.q,
            [&](int row) {
              const int64_t at = s.q[1][row];
              return at < 0 ? at : at + head;
            },
            seq.rows - i0, first);
      }
    }
    const View<4>& to = a.student.dk;
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int64_t j = j0 + Pairs::own_of(r);
      if (j < seq.keys)
        store_sums<Pairs>(to, a.student.dtype,
                          seq.key_batch * to.stride[0] + (seq.key_begin + j) * to.stride[1], first,
                          call.student.k.width, 1.f, acc, r);
    }
  }
}

template <class Pairs>
void rows(Context& ctx, IndexerBackward call) {
  const Sequences& q = call.a.teacher.sequences;
  call.tiles = ceil_div(q.query_max, Pairs::own), call.work = q.count * call.tiles;
  launch<indexer_rows_kernel<Pairs>>(ctx, kOp, call.work, Pairs::threads,
                                     Pairs::shared_bytes(indexer_width(call.a)), call);
}

template <class Pairs>
void keys(Context& ctx, IndexerBackward call) {
  const Sequences& q = call.a.teacher.sequences;
  call.tiles = ceil_div(q.key_max, Pairs::own), call.work = q.count * call.tiles;
  with_sums<Pairs>(call.a.student.width, [&]<int Chunks>(int64_t passes) {
    call.passes = passes, call.work *= passes;
    launch<indexer_keys_kernel<Pairs, Chunks>>(ctx, kOp, call.work, Pairs::threads,
                                               Pairs::shared_bytes(indexer_width(call.a)), call);
  });
}

// rows(ctx, call) and keys(ctx, call) with the sums where they will lie.
template <class Rows, class Keys>
void prepare_by(const KlIndexer& a, Plan& plan, const Rows& rows, const Keys& keys) {
  plan.kernel += std::string(".") + dtype_name(a.teacher.first.dtype);
  const IndexerBackward call(a);
  const auto sums = plan.workspace.add<float>(
      a.student.dq ? a.teacher.b * a.teacher.s * a.heads * call.columns : 0);
  plan.launch = [=](Context& ctx, void* base) {
    clear_unreached(ctx, a);
    IndexerBackward now = call;
    now.sums = sums.at(base);
    if (a.student.dq || a.dweight) rows(ctx, now);
    if (a.student.dk) keys(ctx, now);
  };
}

bool few(Context& ctx, const Sequences& q, int64_t extent) {
  return few_rows(ctx, extent, q.count * ceil_div(extent, 64));
}

std::string offer(const Context&, const KlIndexer& a, Plan& plan) {
  prepare_by(
      a, plan,
      [](Context& ctx, const IndexerBackward& call) {
        const Sequences& q = call.a.teacher.sequences;
        few(ctx, q, q.query_max) ? rows<PairsFma<1>>(ctx, call) : rows<PairsFma<4>>(ctx, call);
      },
      [](Context& ctx, const IndexerBackward& call) {
        const Sequences& q = call.a.teacher.sequences;
        few(ctx, q, q.key_max) ? keys<PairsFma<1>>(ctx, call) : keys<PairsFma<4>>(ctx, call);
      });
  return "";
}

std::string offer_mma(const Context& ctx, const KlIndexer& a, Plan& plan) {
  if (std::string why = indexer_mma_refuses(ctx, a); !why.empty()) return why;
  prepare_by(
      a, plan,
      [](Context& ctx, const IndexerBackward& call) {
        with_mma(call.a.student.dtype, [&]<class Pairs> { rows<Pairs>(ctx, call); });
      },
      [](Context& ctx, const IndexerBackward& call) {
        with_mma(call.a.student.dtype, [&]<class Pairs> { keys<Pairs>(ctx, call); });
      });
  return "";
}

}  // namespace

void clear_unreached(Context& ctx, const KlIndexer& a) {
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

}  // namespace cuda

extern const Kernel<KlIndexer> kl_indexer_backward_sm80 = {"sm80", cuda::offer_mma};
extern const Kernel<KlIndexer> kl_indexer_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
