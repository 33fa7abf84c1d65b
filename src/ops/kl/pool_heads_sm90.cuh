// SPDX-License-Identifier: Apache-2.0
// The teacher's probabilities of blocks of 64 or 128 keys, of one head (heads_sm90.cuh), from
// the lse of the pooled distribution:
//   P_u = sum or max over the block's seen keys of e^(a - lse);  -1: the row sees none
#pragma once
#include "cuda/block/softmax.cuh"
#include "cuda/loop/heads_sm90.cuh"
#include "ops/kl/pool_heads.cuh"

namespace fovea::cuda {

struct PoolPolicy90 {
  static constexpr int N = kHeadsTile / 8;
  using Args = PoolWeights90;
  const HeadsWork& work;
  const HeadsTile& at;
  const Args& args;
  int row;
  float lse[2] = {};  // log2 units

  // One head is a work.
  __device__ static int first(const HeadsWork&, const Args&, const HeadsTile& at) {
    return at.head;
  }
  __device__ static int last(const HeadsWork&, const HeadsTile& at) { return at.head + 1; }
  __device__ PoolPolicy90(const HeadsWork& work, const Args& args, const HeadsTile& at, int row)
      : work(work), at(at), args(args), row(row) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = row + 8 * half;
      const int64_t* stride = args.lse.stride;
      if (i < at.seq.rows)
        lse[half] = args.lse.as()[at.seq.batch * stride[0] + at.head * stride[1] +
                                  (at.seq.row_begin + i) * stride[2]] *
                    kLog2E;
    }
  }
  __device__ void begin() {}
  __device__ void load(const HeadsStep&) {}
  __device__ void take(const HeadsStep&, const float (&)[N][4]) {}
  __device__ void end(const PlainPairs& pairs, int key, bool full, const float (&x)[N][4]) const {
    float* const to =
        args.weights +
        ((int64_t{at.number} * work.heads[0] + at.head) * kHeadsTile + row - at.i0) * args.pitch;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum[2], most[2];  // of each 64 keys; sum < 0: none seen
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        float seen = 0.f;
        sum[u] = 0.f, most[u] = 0.f;
#pragma unroll
        for (int j = 8 * u; j < 8 * u + 8; ++j)
#pragma unroll
          for (int c = 2 * half; c < 2 * half + 2; ++c) {
            const bool in =
                full || pairs.sees(row + 8 * half, key + j * 8 + threadIdx.x % 4 * 2 + c % 2);
            const float p = in ? exp2_fast(fmaf(x[j][c], pairs.factor, -lse[half])) : 0.f;
            sum[u] += p, most[u] = fmaxf(most[u], p);
            if (in) seen = 1.f;
          }
        sum[u] = quad_sum(sum[u]);
        if (args.max) most[u] = quad_max(most[u]);
        // A NaN is in the sum alone.
        if (args.max && sum[u] == sum[u]) sum[u] = most[u];
        if (quad_max(seen) == 0.f) sum[u] = -1.f;
      }
      if (threadIdx.x % 4 != 0) continue;
      float* const line = to + half * 8 * args.pitch;
      if (args.block_keys == 64) {
        *reinterpret_cast<float2*>(line + key / 64) = make_float2(sum[0], sum[1]);
      } else {
        const float a = fmaxf(sum[0], 0.f), b = fmaxf(sum[1], 0.f);
        const float all = args.max ? fmaxf(a, b) : a + b;
        const bool odd = sum[0] != sum[0] || sum[1] != sum[1];
        line[key / 128] = odd ? sum[0] + sum[1] : sum[0] < 0.f && sum[1] < 0.f ? -1.f : all;
      }
    }
  }
  __device__ void finish() const {}
};

template <int Dtype, int D>
PoolHeads90 kl_pool_heads_sm90_instance() {
  using Shape = HeadsShape90<Dtype, D>;
  constexpr auto pool = [](Context& ctx, const HeadsWork& work, const HeadsMaps& maps,
                           const PoolWeights90& args) {
    launch<heads_sm90<Shape, PoolPolicy90>>(ctx, "x_kl_pool_backward", work.works(), Shape::threads,
                                            Shape::shared_bytes, work, maps, args);
  };
  return {Dtype, D, pool};
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, d) \
  template fovea::cuda::PoolHeads90 fovea::cuda::kl_pool_heads_sm90_instance<dtype, d>();
