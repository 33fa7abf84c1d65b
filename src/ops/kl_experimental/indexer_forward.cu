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

constexpr const char* kOp = kIndexerForward;

// The largest score of a thread's rows and its own share of the sum below.
template <class Pairs>
struct StageSums {
  static constexpr int R = Pairs::R, C = Pairs::C;
  float m[R], l[R];
  __device__ StageSums() {
#pragma unroll
    for (int r = 0; r < R; ++r) m[r] = -INFINITY, l[r] = 0;
  }
  // x becomes that of unseen pairs, -inf, and NaN where it is infinite.  `rise`: how far the maxima
  // rose, 0 at first.
  __device__ __forceinline__ void add(uint32_t seen, float (&x)[R][C], float (&rise)[R]) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float top = m[r];
#pragma unroll
      for (int c = 0; c < C; ++c) {
        x[r][c] = seen >> (C * r + c) & 1 ? only_numbers(x[r][c]) : -INFINITY;
        top = fmaxf(top, x[r][c]);
      }
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
    indexer_lse_kernel(const __grid_constant__ IndexerCall call, int64_t tiles, int64_t work) {
  constexpr int R = Pairs::R, C = Pairs::C;
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ IndexerPlaces<Pairs> s;
  Pairs pairs(s_dynamic, call.width());
  const Kl& a = call.a.teacher;
  const StageSide& side = call.teacher;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    // Late rows first: under a causal mask they are the longest.
    const int64_t i0 = (tiles - 1 - w % tiles) * Pairs::own, h = w / tiles % a.h;
    if (!open_rows(call, s, w / tiles / a.h, i0)) continue;
    StageSums<Pairs> sums;
    each_key_tile<Pairs>(call, s, i0, [&](int64_t, uint32_t seen) {
      float x[R][C] = {}, rise[R];
      multiply_side(x, pairs, s, side, 0, h, h / side.group);
      each_pair<Pairs>([&](int r, int c) { x[r][c] *= side.scale; });
      sums.add(seen, x, rise);
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
    indexer_kl_kernel(const __grid_constant__ IndexerCall call, int64_t tiles, int64_t work) {
  constexpr int R = Pairs::R, C = Pairs::C;
  extern __shared__ __align__(128) unsigned char s_dynamic[];
  __shared__ IndexerPlaces<Pairs> s;
  Pairs pairs(s_dynamic, call.width());
  const KlIndexer& a = call.a;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t i0 = (tiles - 1 - w % tiles) * Pairs::own;
    if (!open_rows(call, s, w / tiles, i0)) continue;
    StageSums<Pairs> sums;
    float cross[R] = {}, weight[R] = {};
    each_key_tile<Pairs>(call, s, i0, [&](int64_t, uint32_t seen) {
      float p[R][C], b[R][C], rise[R];
      mean_and_logits(call, s, pairs, seen, static_cast<bool>(a.kl), p, b);
      sums.add(seen, b, rise);
#pragma unroll
      for (int r = 0; r < R; ++r) cross[r] = fmaf(weight[r], rise[r], cross[r]);
      each_pair<Pairs>([&](int r, int c) {
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
void run(Context& ctx, const IndexerCall& call) {
  const Kl& a = call.kl();
  const int64_t tiles = ceil_div(a.sequences.query_max, Pairs::own),
                rows = a.sequences.count * tiles, bytes = Pairs::shared_bytes(call.width());
  if (a.first.lse)
    launch<indexer_lse_kernel<Pairs>>(ctx, kOp, rows * a.h, Pairs::threads, bytes, call, tiles,
                                      rows * a.h);
  if (call.a.kl || call.a.lse)
    launch<indexer_kl_kernel<Pairs>>(ctx, kOp, rows, Pairs::threads, bytes, call, tiles, rows);
}

template <bool Mma>
Text offer(const Context& ctx, const KlIndexer& a, Plan& plan) {
  if constexpr (Mma)
    if (Text why = indexer_mma_refuses(ctx, a); !why.empty()) return why;
  plan.kernel += Text(".") + dtype_name(a.teacher.first.dtype);
  const RowSlot lse(plan.workspace, a.teacher, a.teacher.first.lse, static_cast<bool>(a.kl));
  plan.launch = [=](Context& ctx, void* base) {
    KlIndexer now = a;
    if (a.kl) now.teacher.first.lse = lse.at(base);
    with_rows(ctx, Mma, now, [&, call = IndexerCall(now)]<class Pairs> { run<Pairs>(ctx, call); });
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlIndexer> kl_indexer_forward_sm80 = {"sm80", cuda::offer<true>};
extern const Kernel<KlIndexer> kl_indexer_forward_simt = {"simt", cuda::offer<false>};

}  // namespace fovea
