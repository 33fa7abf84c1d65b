// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_backward in f32 FMA, each side by itself: an entry's gradient needs no other entry.
//   rows  a warp owns a row of a head, dq = scale sum dx k over its list's entries
//   keys  a block owns a key of one key head, dk = scale sum dx q over the rows that name it, head
//         after head; the lists by key are those of gather_order.cuh
// Eight lanes take a pair (gather_simt.cuh) and keep sums of their own, joined in one order.
#include "core/dtype.h"
#include "core/fields.h"
#include "cuda/loop/attend_bwd_simt.cuh"
#include "ops/kl_experimental/gather_order.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kl_gather_backward";
constexpr int kColumns = 4 * kPairLanes;  // of a chunk

template <int Chunks>
__device__ __forceinline__ void add_columns(float4 (&sum)[Chunks], float factor,
                                            const float4 (&x)[Chunks]) {
#pragma unroll
  for (int i = 0; i < Chunks; ++i) {
    sum[i].x = fmaf(factor, x[i].x, sum[i].x), sum[i].y = fmaf(factor, x[i].y, sum[i].y);
    sum[i].z = fmaf(factor, x[i].z, sum[i].z), sum[i].w = fmaf(factor, x[i].w, sum[i].w);
  }
}

// The sums of the warp's four pairs; every lane gets its columns'.
template <int Chunks>
__device__ __forceinline__ void join_pairs(float4 (&sum)[Chunks]) {
#pragma unroll
  for (int i = 0; i < Chunks; ++i)
#pragma unroll
    for (int step = kPairLanes; step < 32; step *= 2) {
      sum[i].x += __shfl_xor_sync(~0u, sum[i].x, step),
          sum[i].y += __shfl_xor_sync(~0u, sum[i].y, step);
      sum[i].z += __shfl_xor_sync(~0u, sum[i].z, step),
          sum[i].w += __shfl_xor_sync(~0u, sum[i].w, step);
    }
}

__device__ __forceinline__ void store_four(const View<4>& out, int32_t dtype, int64_t at, int width,
                                           int column, float scale, const float4& x) {
  const float four[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (column + i < width)
      store_float(out.data, dtype, at + (column + i) * out.stride[3], scale * four[i]);
}

template <int Chunks>
__global__ void __launch_bounds__(kGatherThreads)
    gather_rows_kernel(const __grid_constant__ GatherSimt call, int own) {
  extern __shared__ float4 s_dynamic[];
  const KlGather& a = call.a;
  const KlSide& side = own ? a.kl.second : a.kl.first;
  const StageSide &mine = call.side[own], &other = call.side[1 - own];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const s_mine = reinterpret_cast<float*>(s_dynamic) + warp * 2 * call.pitch;
  float* const s_other = s_mine + call.pitch;
  const int64_t rows = a.kl.sequences.query_max;
  for (int64_t w = int64_t{blockIdx.x} * kGatherWarps + warp; w < call.work;
       w += int64_t{gridDim.x} * kGatherWarps) {
    const int64_t h = w % a.kl.h, i = w / a.kl.h % rows;
    const Sequence q = a.kl.sequences[w / a.kl.h / rows];
    if (i >= q.rows) continue;
    const RowSlope slope(a, q, h, i);
    float4 sum[Chunks] = {};
    if (slope.gain != 0) {
      __syncwarp();
      put_row(s_mine, mine.q, q_place(mine, q, h, i), call.pitch, lane, 32);
      put_row(s_other, other.q, q_place(other, q, h, i), call.pitch, lane, 32);
      __syncwarp();
      for (int64_t n0 = 0; n0 < a.n; n0 += kWarpPairs) {
        const int64_t j = list_entry(a, q, h, i, n0 + lane / kPairLanes);
        float4 key[Chunks];
        const float x =
            mine.scale * pair_product(mine.k, j < 0 ? -1 : k_place(mine, q, h, j), s_mine, key);
        const float y =
            other.scale * pair_product(other.k, j < 0 ? -1 : k_place(other, q, h, j), s_other);
        if (j >= 0) add_columns(sum, own ? slope(1, y, x) : slope(0, x, y), key);
      }
      join_pairs(sum);
    }
    if (lane >= kPairLanes) continue;
    const int64_t* stride = side.dq.stride;
    const int64_t at = q.batch * stride[0] + (q.row_begin + i) * stride[1] + h * stride[2];
#pragma unroll
    for (int n = 0; n < Chunks; ++n)
      store_four(side.dq, side.dtype, at, mine.q.width, 4 * lane + n * kColumns, mine.scale,
                 sum[n]);
  }
}

// First of the sorted entries that is not below `from`.
__device__ __forceinline__ int64_t first_entry(const uint64_t* entries, int64_t count,
                                               uint64_t from) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (entries[middle] < from)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

template <int Chunks>
__global__ void __launch_bounds__(kGatherThreads)
    gather_keys_kernel(const __grid_constant__ GatherSimt call, int own,
                       const __grid_constant__ GatherOrder order, const uint64_t* entries) {
  extern __shared__ float4 s_dynamic[];
  __shared__ int64_t s_range[2];
  const KlGather& a = call.a;
  const KlSide& side = own ? a.kl.second : a.kl.first;
  const StageSide &mine = call.side[own], &other = call.side[1 - own];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const s_mine = reinterpret_cast<float*>(s_dynamic);
  float* const s_other = s_mine + call.pitch;
  float* const s_sum = s_other + call.pitch;  // a row of each warp but the first
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int64_t key_head = w % side.key_heads, j = w / side.key_heads % order.tiles;
    const int64_t r = w / side.key_heads / order.tiles;
    const Sequence q = a.kl.sequences[r];
    if (j >= q.keys) continue;
    float4 sum[Chunks] = {};
    for (int64_t h = key_head * mine.group; h < (key_head + 1) * mine.group; ++h) {
      __syncthreads();  // the last head's rows and range are done with
      put_row(s_mine, mine.k, k_place(mine, q, h, j), call.pitch, threadIdx.x, kGatherThreads);
      put_row(s_other, other.k, k_place(other, q, h, j), call.pitch, threadIdx.x, kGatherThreads);
      if (threadIdx.x < 2)
        s_range[threadIdx.x] =
            first_entry(entries, order.entries, order.from(order.tile(r, h, j) + threadIdx.x, 0));
      __syncthreads();
      for (int64_t n0 = s_range[0] + warp * kWarpPairs; n0 < s_range[1];
           n0 += kGatherWarps * kWarpPairs) {
        const int64_t n = n0 + lane / kPairLanes;
        const bool there = n < s_range[1];
        const int64_t i = there ? order.row_of(entries[n]) : 0;
        const RowSlope slope(a, q, h, i);
        const bool counts = there && slope.gain != 0;
        float4 row[Chunks];
        const float x =
            mine.scale * pair_product(mine.q, counts ? q_place(mine, q, h, i) : -1, s_mine, row);
        const float y =
            other.scale * pair_product(other.q, counts ? q_place(other, q, h, i) : -1, s_other);
        if (counts) add_columns(sum, own ? slope(1, y, x) : slope(0, x, y), row);
      }
    }
    join_pairs(sum);
    __syncthreads();
    const auto slot = [&](int of, int n) {
      return reinterpret_cast<float4*>(s_sum + (of - 1) * call.pitch + 4 * lane + n * kColumns);
    };
    if (warp && lane < kPairLanes)
#pragma unroll
      for (int n = 0; n < Chunks; ++n)
        if (n * kColumns < call.pitch) *slot(warp, n) = sum[n];
    __syncthreads();
    if (threadIdx.x >= kPairLanes) continue;
    const int64_t* stride = side.dk.stride;
    const int64_t at =
        q.key_batch * stride[0] + (q.key_begin + j) * stride[1] + key_head * stride[2];
#pragma unroll
    for (int n = 0; n < Chunks; ++n) {
      if (n * kColumns >= call.pitch) break;
      for (int of = 1; of < kGatherWarps; ++of) {
        const float4 more = *slot(of, n);
        sum[n].x += more.x, sum[n].y += more.y, sum[n].z += more.z, sum[n].w += more.w;
      }
      store_four(side.dk, side.dtype, at, mine.k.width, 4 * lane + n * kColumns, mine.scale,
                 sum[n]);
    }
  }
}

// f<Chunks>() for rows of `width` columns.
template <class F>
void with_columns(int64_t width, const F& f) {
  if (width <= 64)
    f.template operator()<2>();
  else if (width <= 128)
    f.template operator()<4>();
  else if (width <= 256)
    f.template operator()<8>();
  else
    f.template operator()<18>();
}
static_assert(18 * kColumns >= kWidthMax);

void rows(Context& ctx, GatherSimt call, int own) {
  const Kl& a = call.a.kl;
  call.work = a.sequences.count * a.h * a.sequences.query_max;
  with_columns(call.side[own].q.width, [&]<int Chunks> {
    launch<gather_rows_kernel<Chunks>>(ctx, kOp, ceil_div(call.work, kGatherWarps), kGatherThreads,
                                       kGatherWarps * 2 * call.pitch * sizeof(float), call, own);
  });
}

void keys(Context& ctx, GatherSimt call, int own, const GatherOrder& order,
          const uint64_t* entries) {
  const Kl& a = call.a.kl;
  call.work = a.sequences.count * order.tiles * (own ? a.second : a.first).key_heads;
  with_columns(call.side[own].q.width, [&]<int Chunks> {
    launch<gather_keys_kernel<Chunks>>(ctx, kOp, call.work, kGatherThreads,
                                       (kGatherWarps + 1) * call.pitch * sizeof(float), call, own,
                                       order, entries);
  });
}

std::string refuses(const Context&, const KlGather& a) {
  return GatherOrder(a, 0).bits > 64 ? "more than 2^64 entries of pairs of rows and keys" : "";
}

std::string offer(const Context& ctx, const KlGather& a, Plan& plan) {
  if (std::string why = refuses(ctx, a); !why.empty()) return why;
  plan.kernel += std::string(".") + dtype_name(a.kl.first.dtype);
  const GatherOrderSlots slots(plan.workspace, a, 0, a.kl.first.dk || a.kl.second.dk);
  plan.launch = [=](Context& ctx, void* base) {
    clear_gradients(ctx, kOp, a);
    const Kl& kl = a.kl;
    const GatherSimt call(a);
    const uint64_t* entries = slots.sort(ctx, kOp, call, base).entries;
    for (int own : {0, 1}) {
      const KlSide& side = own ? kl.second : kl.first;
      if (side.dq) rows(ctx, call, own);
      if (side.dk) keys(ctx, call, own, slots.order, entries);
    }
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlGather> kl_gather_backward_simt = {"simt", cuda::offer};

}  // namespace fovea
