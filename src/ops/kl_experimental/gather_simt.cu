// SPDX-License-Identifier: Apache-2.0
// x_kl_gather in f32 FMA: every dtype, width and stride.  Eight lanes take a pair of a row and a
// key, so a warp takes four.  They keep sums of their own, which are joined in one order.
//   forward  a warp owns a row of a head, over its list
//   rows     so too, dq = scale sum dx k over the list
//   keys     a block owns a key of one key head, dk = scale sum dx q over the rows that name it,
//            head after head; the lists by key are those of list_transpose.cuh
// A gradient's sums have 128 columns; wider rows are that many works, each with the products of its
// own.  Lane l of the eight has columns 4 l .. 4 l + 3 of every 32.  The row (or key) that pairs
// share lies in shared memory as f32, the other side is read where it is.
#include "core/dtype.h"
#include "ops/kl_experimental/gather_tile.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int kPairLanes = 8, kWarpPairs = 32 / kPairLanes;
constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kLaneColumns = 4 * kPairLanes, kChunks = 4;

struct GatherCall {
  KlGather a;
  KeyLists lists;
  StageSide side[2];
  int64_t pitch;  // columns of a row in shared memory, of either side
  int64_t work = 0;
  int own = 0;         // the side whose gradient is wanted
  int64_t passes = 1;  // over its columns

  explicit GatherCall(const KlGather& request)
      : a(request),
        lists(lists_of(a)),
        side{stage_side(a.kl.first, a.kl.h), stage_side(a.kl.second, a.kl.h)},
        pitch(ceil_div(a.kl.first.width > a.kl.second.width ? a.kl.first.width : a.kl.second.width,
                       kLaneColumns) *
              kLaneColumns) {}
};

// Row i of the sequence, or its key j.
__device__ __forceinline__ int64_t q_place(const StageSide& side, const Sequence& q, int64_t h,
                                           int64_t i) {
  return q.batch * side.q_stride[0] + (q.row_begin + i) * side.q_stride[1] + h * side.q_stride[2];
}
__device__ __forceinline__ int64_t k_place(const StageSide& side, const Sequence& q, int64_t h,
                                           int64_t j) {
  return q.key_batch * side.k_stride[0] + (q.key_begin + j) * side.k_stride[1] +
         h / side.group * side.k_stride[2];
}

// A row to shared memory, zeros up to `pitch`; threads `first`, `first` + `step`, ...
__device__ __forceinline__ void put_row(float* to, const Operand& x, int64_t at, int64_t pitch,
                                        int first, int step) {
  for (int column = 4 * first; column < pitch; column += 4 * step)
    *reinterpret_cast<float4*>(to + column) = load_four(x, at, column);
}

// <row of x at `at`, s>; at < 0: 0.
__device__ __forceinline__ float pair_product(const Operand& x, int64_t at, const float* s) {
  float sum = 0;
#pragma unroll 4
  for (int column = 4 * (threadIdx.x % kPairLanes); column < x.width; column += kLaneColumns) {
    const float4 a = load_four(x, at, column), b = *reinterpret_cast<const float4*>(s + column);
    sum = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
  }
  return lanes_sum<kPairLanes>(sum);
}

// A pair's products, and which row (key) of either side is in them; `place` < 0 and 0: none.
struct PairScores {
  float score[2];
  int64_t place[2];

  // place(side) of the rows that are read where they are; keys where `keys`.  `s` are the shared.
  template <class Place>
  __device__ __forceinline__ PairScores(const GatherCall& call, bool keys, bool there,
                                        const float* s, const Place& place_of) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const StageSide& of = call.side[side];
      place[side] = there ? place_of(of) : -1;
      score[side] =
          of.scale * pair_product(keys ? of.k : of.q, place[side], side ? s + call.pitch : s);
    }
  }
};

// A lane's part of a gradient's sums.
struct ColumnSums {
  float4 sum[kChunks] = {};
  int first;  // column of the lane

  __device__ explicit ColumnSums(int pass)
      : first(pass * kChunks * kLaneColumns + 4 * static_cast<int>(threadIdx.x % kPairLanes)) {}
  __device__ __forceinline__ void add(float factor, const Operand& x, int64_t at) {
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      const float4 v = load_four(x, at, first + n * kLaneColumns);
      sum[n].x = fmaf(factor, v.x, sum[n].x), sum[n].y = fmaf(factor, v.y, sum[n].y);
      sum[n].z = fmaf(factor, v.z, sum[n].z), sum[n].w = fmaf(factor, v.w, sum[n].w);
    }
  }
  // Of the warp's four pairs; every lane gets its columns'.
  __device__ __forceinline__ void join_pairs() {
#pragma unroll
    for (float4& x : sum)
#pragma unroll
      for (int step = kPairLanes; step < 32; step *= 2) {
        x.x += __shfl_xor_sync(~0u, x.x, step), x.y += __shfl_xor_sync(~0u, x.y, step);
        x.z += __shfl_xor_sync(~0u, x.z, step), x.w += __shfl_xor_sync(~0u, x.w, step);
      }
  }
  // Times scale, to the row of `out` at element `at`.
  __device__ __forceinline__ void store(const View<4>& out, int32_t dtype, int64_t at, int width,
                                        float scale) const {
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
      const float four[4] = {sum[n].x, sum[n].y, sum[n].z, sum[n].w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (const int column = first + n * kLaneColumns + i; column < width)
          store_float(out.data, dtype, at + column * out.stride[3], scale * four[i]);
    }
  }
};

// What a warp of the sweeps over rows owns: heads first, theirs may be one list.
struct OwnRow {
  int pass;
  int64_t h, i;
  Sequence q;
  __device__ OwnRow(const GatherCall& call, int64_t w) {
    const Kl& kl = call.a.kl;
    pass = static_cast<int>(w % call.passes), w /= call.passes;
    h = w % kl.h, i = w / kl.h % kl.sequences.query_max;
    q = kl.sequences[w / kl.h / kl.sequences.query_max];
  }
  // Its q of both sides, to shared memory; visit(whether this lane has a pair, the pair) over its
  // list.
  template <class Visit>
  __device__ __forceinline__ void each(const GatherCall& call, float* s, const Visit& visit) const {
    const int lane = threadIdx.x % 32;
    s += threadIdx.x / 32 * 2 * call.pitch;
    __syncwarp();
    for (int side = 0; side < 2; ++side)
      put_row(s + side * call.pitch, call.side[side].q, q_place(call.side[side], q, h, i),
              call.pitch, lane, 32);
    __syncwarp();
    for (int64_t n0 = 0; n0 < call.a.n; n0 += kWarpPairs) {
      const int64_t j = call.lists.key(q, h, i, n0 + lane / kPairLanes);
      visit(j >= 0, PairScores(call, true, j >= 0, s,
                               [&](const StageSide& of) { return k_place(of, q, h, j); }));
    }
  }
};

__global__ void __launch_bounds__(kThreads)
    gather_forward_kernel(const __grid_constant__ GatherCall call) {
  extern __shared__ float4 s_dynamic[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t w = int64_t{blockIdx.x} * kWarps + warp; w < call.work;
       w += int64_t{gridDim.x} * kWarps) {
    const OwnRow own(call, w);
    if (own.i >= own.q.rows) continue;
    ListSums sums;
    own.each(call, reinterpret_cast<float*>(s_dynamic), [&](bool there, const PairScores& pair) {
      if (!there) return;
      const float score[2] = {only_numbers(pair.score[0]), only_numbers(pair.score[1])};
      ListSums one;
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        one.m[side] = fmaxf(score[side], sums.m[side]);
        one.l[side] = expf(score[side] - one.m[side]);
      }
      one.c = one.l[0] * ((score[0] - one.m[0]) - (score[1] - one.m[1]));
      sums.join(one);
    });
    for (int step = kPairLanes; step < 32; step *= 2) sums.join(sums.other(step));
    if (lane == 0) put_list(call.a, own.q, own.h, own.i, sums);
  }
}

__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(const __grid_constant__ GatherCall call) {
  extern __shared__ float4 s_dynamic[];
  const KlGather& a = call.a;
  const KlSide& side = call.own ? a.kl.second : a.kl.first;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int64_t w = int64_t{blockIdx.x} * kWarps + warp; w < call.work;
       w += int64_t{gridDim.x} * kWarps) {
    const OwnRow own(call, w);
    if (own.i >= own.q.rows) continue;
    const RowDscore dscore(a, own.q, own.h, own.i);
    ColumnSums sums(own.pass);
    if (dscore.gain != 0) {
      own.each(call, reinterpret_cast<float*>(s_dynamic), [&](bool there, const PairScores& pair) {
        if (there)
          sums.add(dscore(call.own, pair.score[0], pair.score[1]), call.side[call.own].k,
                   call.own ? pair.place[1] : pair.place[0]);
      });
      sums.join_pairs();
    }
    if (lane >= kPairLanes) continue;
    const int64_t* stride = side.dq.stride;
    sums.store(side.dq, side.dtype,
               own.q.batch * stride[0] + (own.q.row_begin + own.i) * stride[1] + own.h * stride[2],
               static_cast<int>(side.width), side.scale);
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

__global__ void __launch_bounds__(kThreads)
    gather_keys_kernel(const __grid_constant__ GatherCall call,
                       const __grid_constant__ ListTranspose order, const uint64_t* entries) {
  extern __shared__ float4 s_dynamic[];
  __shared__ int64_t s_range[2];
  __shared__ float4 s_sums[kWarps][kChunks][kPairLanes];
  const KlGather& a = call.a;
  const KlSide& side = call.own ? a.kl.second : a.kl.first;
  const int64_t group = call.side[call.own].group;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float* const s_keys = reinterpret_cast<float*>(s_dynamic);
  for (int64_t w = blockIdx.x; w < call.work; w += gridDim.x) {
    const int64_t at_key = w / call.passes;
    const int64_t key_head = at_key % side.key_heads, j = at_key / side.key_heads % order.tiles;
    const int64_t r = at_key / side.key_heads / order.tiles;
    const Sequence q = a.kl.sequences[r];
    if (j >= q.keys) continue;
    ColumnSums sums(static_cast<int>(w % call.passes));
    for (int64_t h = key_head * group; h < (key_head + 1) * group; ++h) {
      __syncthreads();  // the last head's rows and range are done with
      for (int of = 0; of < 2; ++of)
        put_row(s_keys + of * call.pitch, call.side[of].k, k_place(call.side[of], q, h, j),
                call.pitch, threadIdx.x, kThreads);
      if (threadIdx.x < 2)
        s_range[threadIdx.x] =
            first_entry(entries, order.entries, order.from(order.tile(r, h, j) + threadIdx.x, 0));
      __syncthreads();
      for (int64_t n0 = s_range[0] + warp * kWarpPairs; n0 < s_range[1];
           n0 += kWarps * kWarpPairs) {
        const int64_t n = n0 + lane / kPairLanes;
        const bool there = n < s_range[1];
        const int64_t i = there ? order.row_of(entries[n]) : 0;
        const RowDscore dscore(a, q, h, i);
        const bool counts = there && dscore.gain != 0;
        const PairScores pair(call, false, counts, s_keys,
                              [&](const StageSide& of) { return q_place(of, q, h, i); });
        if (counts)
          sums.add(dscore(call.own, pair.score[0], pair.score[1]), call.side[call.own].q,
                   call.own ? pair.place[1] : pair.place[0]);
      }
    }
    sums.join_pairs();
    __syncthreads();
    if (lane < kPairLanes)
#pragma unroll
      for (int n = 0; n < kChunks; ++n) s_sums[warp][n][lane] = sums.sum[n];
    __syncthreads();
    if (threadIdx.x >= kPairLanes) continue;
#pragma unroll
    for (int n = 0; n < kChunks; ++n)
      for (int of = 1; of < kWarps; ++of) {
        const float4 more = s_sums[of][n][lane];
        sums.sum[n].x += more.x, sums.sum[n].y += more.y;
        sums.sum[n].z += more.z, sums.sum[n].w += more.w;
      }
    const int64_t* stride = side.dk.stride;
    sums.store(side.dk, side.dtype,
               q.key_batch * stride[0] + (q.key_begin + j) * stride[1] + key_head * stride[2],
               static_cast<int>(side.width), side.scale);
  }
}

Text offer_forward(const Context&, const KlGather& a, Plan& plan) {
  plan.kernel += Text(".") + dtype_name(a.kl.first.dtype);
  plan.launch = [=](Context& ctx, void*) {
    GatherCall call(a);
    call.work = a.kl.sequences.count * a.kl.h * a.kl.sequences.query_max;
    launch<gather_forward_kernel>(ctx, kGatherForward, ceil_div(call.work, kWarps), kThreads,
                                  kWarps * 2 * call.pitch * sizeof(float), call);
  };
  return "";
}

Text offer_backward(const Context&, const KlGather& a, Plan& plan) {
  if (const char* why = ListTranspose(lists_of(a), 0).refuses(); *why) return why;
  plan.kernel += Text(".") + dtype_name(a.kl.first.dtype);
  const ListTransposeSlots<KeyLists> slots(plan.workspace, kGatherBackward, lists_of(a), 0,
                                           a.kl.first.dk || a.kl.second.dk);
  plan.launch = [=](Context& ctx, void* base) {
    clear_gradients(ctx, a);
    const uint64_t* entries = slots.sort(ctx, kGatherBackward, base).entries;
    GatherCall call(a);
    const Sequences& q = a.kl.sequences;
    for (int own : {0, 1}) {
      const KlSide& side = own ? a.kl.second : a.kl.first;
      call.own = own, call.passes = ceil_div(side.width, kChunks * kLaneColumns);
      call.work = q.count * a.kl.h * q.query_max * call.passes;
      if (side.dq)
        launch<gather_rows_kernel>(ctx, kGatherBackward, ceil_div(call.work, kWarps), kThreads,
                                   kWarps * 2 * call.pitch * sizeof(float), call);
      call.work = q.count * slots.order.tiles * side.key_heads * call.passes;
      if (side.dk)
        launch<gather_keys_kernel>(ctx, kGatherBackward, call.work, kThreads,
                                   2 * call.pitch * sizeof(float), call, slots.order, entries);
    }
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlGather> kl_gather_forward_simt = {"simt", cuda::offer_forward};
extern const Kernel<KlGather> kl_gather_backward_simt = {"simt", cuda::offer_backward};

}  // namespace fovea
