// SPDX-License-Identifier: Apache-2.0
// x_kl_indexer_forward, in f32 FMA for every dtype, width and stride, and on mma.sync.  A block
// owns 64 rows (16 where there are few) and walks their tiles of 64 keys, in two kernels:
//   lse  of one head of the teacher
//   kl   of all heads (indexer_tile.cuh): Y = max b, l = sum e^(b - Y), W = sum P,
//        c = sum P (ln P - (b - Y)),  kl = c + W ln l,  lse = Y + ln l
// Shared memory and barriers: block/pairs_fma.cuh, block/pairs_mma.cuh.
#include "core/dtype.h"
#include "ops/kl_experimental/indexer_tile.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kl_indexer_forward";

template <class Pairs>
using Places = IndexerPlaces<Pairs::own, Pairs::others>;

// visit(seen) for the key tiles of the rows from i0 on, places staged.
template <class Pairs, class Visit>
__device__ __forceinline__ void each_tile(const IndexerCall& call, Places<Pairs>& s, int64_t i0,
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
    visit(seen_pairs<true, Pairs>(mask, seq, 0, i0, j0));
  }
}

// The largest score of a thread's rows and its own share of the sums below.
template <class Pairs>
struct StageSums {
  static constexpr int R = Pairs::R, C = Pairs::C;
  float m[R], l[R];
  __device__ StageSums() {
#pragma unroll
    for (int r = 0; r < R; ++r) m[r] = -INFINITY, l[r] = 0;
  }
  // -inf: unseen.  How far the maxima rose, 0 at first.
  __device__ __forceinline__ void add(const float (&x)[R][C], float (&rise)[R]) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float top = m[r];
#pragma unroll
      for (int c = 0; c < C; ++c) top = fmaxf(top, x[r][c]);
      top = Pairs::max(top);
      const float base = top == -INFINITY ? 0 : top;
      rise[r] = m[r] == -INFINITY ? 0 : base - m[r];
      l[r] *= expf(m[r] - base);
#pragma unroll
      for (int c = 0; c < C; ++c) l[r] += expf(x[r][c] - base);
      m[r] = top;
    }
  }
};

template <class Pairs>
__global__ void __launch_bounds__(Pairs::threads, 2)
    indexer_lse_kernel(const __grid_constant__ IndexerCall call) {
  constexpr int R = Pairs::R, C = Pairs::C;
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ Places<Pairs> s;
  Pairs pairs(s_dynamic, indexer_width(call.a));
  const Kl& a = call.a.teacher;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    // Late rows first: under a causal mask they are the longest.
    const int64_t i0 = (call.tiles - 1 - w % call.tiles) * Pairs::own, h = w / call.tiles % a.h;
    __syncthreads();
    if (threadIdx.x == 0) s.seq = a.sequences[w / call.tiles / a.h];
    __syncthreads();
    if (i0 >= s.seq.rows) continue;
    s.put_rows(call, i0);
    StageSums<Pairs> sums;
    each_tile<Pairs>(call, s, i0, [&](uint32_t seen) {
      float x[R][C] = {}, rise[R];
      multiply_side<true>(x, pairs, s, call.teacher, 0, h, h / call.teacher.group);
#pragma unroll
      for (int r = 0; r < R; ++r)
#pragma unroll
        for (int c = 0; c < C; ++c)
          x[r][c] =
              seen >> (C * r + c) & 1 ? only_numbers(x[r][c] * call.teacher.scale) : -INFINITY;
      sums.add(x, rise);
    });
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float sum = Pairs::sum(sums.l[r]);
      const int64_t i = i0 + Pairs::own_of(r);
      if (!Pairs::leads() || i >= s.seq.rows) continue;
      a.first.lse.as()[row_place(s.seq, h, i, a.first.lse.stride)] =
          sum == 0 ? -INFINITY : sums.m[r] + logf(sum);
    }
  }
}

template <class Pairs>
__global__ void __launch_bounds__(Pairs::threads, 2)
    indexer_kl_kernel(const __grid_constant__ IndexerCall call) {
  constexpr int R = Pairs::R, C = Pairs::C;
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ Places<Pairs> s;
  Pairs pairs(s_dynamic, indexer_width(call.a));
  const KlIndexer& a = call.a;
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int64_t i0 = (call.tiles - 1 - w % call.tiles) * Pairs::own;
    __syncthreads();
    if (threadIdx.x == 0) s.seq = a.teacher.sequences[w / call.tiles];
    __syncthreads();
    if (i0 >= s.seq.rows) continue;
    s.put_rows(call, i0);
    StageSums<Pairs> sums;
    float cross[R] = {}, weight[R] = {};
    each_tile<Pairs>(call, s, i0, [&](uint32_t seen) {
      float p[R][C], b[R][C], rise[R];
      student_logits<true>(call, s, pairs, seen, b);
      sums.add(b, rise);
      if (!a.kl) return;
      mean_of_heads<true>(call, s, pairs, seen, p);
#pragma unroll
      for (int r = 0; r < R; ++r) cross[r] = fmaf(weight[r], rise[r], cross[r]);
      each_seen<true, Pairs>(seen, [&](int r, int c, int) {
        weight[r] += p[r][c];
        if (p[r][c] != 0) cross[r] = fmaf(p[r][c], logf(p[r][c]) - (b[r][c] - sums.m[r]), cross[r]);
      });
    });
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const float sum = Pairs::sum(sums.l[r]), log = logf(sum);
      const float kl = fmaf(Pairs::sum(weight[r]), log, Pairs::sum(cross[r]));
      const int64_t i = i0 + Pairs::own_of(r);
      if (!Pairs::leads() || i >= s.seq.rows) continue;
      const auto put = [&](const View<2>& to, float value) {
        if (to) to.as()[s.seq.batch * to.stride[0] + (s.seq.row_begin + i) * to.stride[1]] = value;
      };
      put(a.kl, sum == 0 ? 0 : kl), put(a.lse, sum == 0 ? -INFINITY : sums.m[r] + log);
    }
  }
}

template <class Pairs>
void run(Context& ctx, IndexerCall call) {
  const Kl& a = call.a.teacher;
  call.tiles = ceil_div(a.sequences.query_max, Pairs::own);
  const int64_t rows = a.sequences.count * call.tiles;
  const int64_t bytes = Pairs::shared_bytes(indexer_width(call.a));
  call.work = rows * a.h;
  if (a.first.lse)
    launch<indexer_lse_kernel<Pairs>>(ctx, kOp, call.work, Pairs::threads, bytes, call);
  call.work = rows;
  if (call.a.kl || call.a.lse)
    launch<indexer_kl_kernel<Pairs>>(ctx, kOp, call.work, Pairs::threads, bytes, call);
}

// `run` takes the call with the teacher's lse where they will lie.
template <class F>
void prepare_by(const KlIndexer& a, Plan& plan, const F& run) {
  plan.kernel += std::string(".") + dtype_name(a.teacher.first.dtype);
  const RowSlot lse(plan.workspace, a.teacher, a.teacher.first.lse, static_cast<bool>(a.kl));
  plan.launch = [=](Context& ctx, void* base) {
    KlIndexer now = a;
    if (a.kl) now.teacher.first.lse = lse.at(base);
    run(ctx, IndexerCall(now));
  };
}

std::string offer(const Context&, const KlIndexer& a, Plan& plan) {
  prepare_by(a, plan, [](Context& ctx, const IndexerCall& call) {
    const Sequences& q = call.a.teacher.sequences;
    if (few_rows(ctx, q.query_max, q.count * ceil_div(q.query_max, 64)))
      run<PairsFma<1>>(ctx, call);
    else
      run<PairsFma<4>>(ctx, call);
  });
  return "";
}

std::string offer_mma(const Context& ctx, const KlIndexer& a, Plan& plan) {
  if (std::string why = indexer_mma_refuses(ctx, a); !why.empty()) return why;
  prepare_by(a, plan, [](Context& ctx, const IndexerCall& call) {
    with_mma(call.a.student.dtype, [&]<class Pairs> { run<Pairs>(ctx, call); });
  });
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlIndexer> kl_indexer_forward_sm80 = {"sm80", cuda::offer_mma};
extern const Kernel<KlIndexer> kl_indexer_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
