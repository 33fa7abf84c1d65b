// SPDX-License-Identifier: Apache-2.0
// x_kl_gather on mma.sync, where 16 heads share a row's list and its keys; dx is the gradient of
// an entry's logit, rounded to the dtype:
//   forward  a block owns a row of 16 heads (cuda/loop/shared_list_sm80.cuh); each warp keeps sums
//            of its own keys, joined in order at the end
//   rows     so too, each side by itself: dq = scale sum dx k over the list; dx goes to memory, of
//            so many rows at a time as its room holds
//   keys     a block owns 128 keys and a part of the runs that name them: the sum of dx' q
//            (cuda/loop/list_keys_sm80.cuh)
//   join     dk = scale times the parts' sums, added in order (parts.cuh)
#include <algorithm>

#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/loop/epilogue.cuh"
#include "cuda/loop/list_keys_sm80.cuh"
#include "ops/kl/stage_dual_softmax.cuh"
#include "ops/kl_experimental/gather_tile.cuh"
#include "ops/kl_experimental/parts.cuh"

namespace fovea {
namespace cuda {
namespace {

ListSides sides_of(const KlGather& a) {
  ListSides x{};
  x.lists = lists_of(a);
  for (int own : {0, 1}) {
    const KlSide& side = own ? a.kl.second : a.kl.first;
    x.side[own].q = operand_of(side.q, side.dtype, side.width);
    x.side[own].k = operand_of(side.k, side.dtype, side.width);
    std::copy_n(side.q.stride, 3, x.side[own].q_stride);
    std::copy_n(side.k.stride, 3, x.side[own].k_stride);
  }
  return x;
}

template <int Dtype>
__global__ void __launch_bounds__(kListThreads, 3)
    gather_heads_kernel(const __grid_constant__ KlGather a, const __grid_constant__ ListSides call,
                        int64_t head_tiles, int64_t work) {
  extern __shared__ __align__(1024) unsigned char s_dynamic[];
  __shared__ float s_sums[kListWarps][kListHeads][5];  // m, l of both sides; c
  __shared__ int s_named[2][kListKeys];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t rows = a.kl.sequences.query_max;
  const float scale[2] = {a.kl.first.scale, a.kl.second.scale};
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t h0 = w % head_tiles * kListHeads, i = w / head_tiles % rows;
    const Sequence q = a.kl.sequences[w / head_tiles / rows];
    if (i >= q.rows) continue;
    __syncthreads();  // the last row is done with
    SharedListTiles tiles(s_dynamic, s_named);
    tiles.begin(call, q, h0, i);
    StageDualSoftmax<ListFragment> state;
    for (int64_t n0 = 0; n0 < a.n; n0 += kListKeys) {
      tiles.advance(call, q, i, n0);
      float score[2][ListFragment::R][ListFragment::C];
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        float sums[1][2][4];
        tiles.product<Dtype>(sums, side, n0);
#pragma unroll
        for (int c = 0; c < ListFragment::C; ++c) {
          const bool named = tiles.names(n0, c);
#pragma unroll
          for (int r = 0; r < ListFragment::R; ++r)
            score[side][r][c] =
                named ? only_numbers(sums[0][c / 2][2 * r + c % 2] * scale[side]) : -INFINITY;
        }
      }
      state.add(score[0], score[1]);
      __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < ListFragment::R; ++r) {
      const float mine[5] = {state.m[0][r], state.m[1][r], ListFragment::sum(state.l[0][r]),
                             ListFragment::sum(state.l[1][r]), ListFragment::sum(state.c[r])};
#pragma unroll
      for (int k = 0; k < 5; ++k)
        if (lane % 4 == 0) s_sums[warp][ListFragment::row_of(r)][k] = mine[k];
    }
    __syncthreads();
    if (threadIdx.x >= kListHeads || h0 + threadIdx.x >= a.kl.h) continue;
    ListSums all;
    for (int of = 0; of < kListWarps; ++of) {
      const float(&x)[5] = s_sums[of][threadIdx.x];
      ListSums part;
      part.m[0] = x[0], part.m[1] = x[1], part.l[0] = x[2], part.l[1] = x[3], part.c = x[4];
      all.join(part);
    }
    put_list(a, q, h0 + threadIdx.x, i, all);
  }
}

// Transposes 8 x 8 elements, of which lane 4 i + j holds (i, 2 j) and (i, 2 j + 1).
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// dq of the block's heads: the warps' sums, added in order, and stored.
template <int Dtype, int Columns>
__device__ __forceinline__ void store_heads(const float (&dq)[1][Columns][4], float4* s_sums,
                                            const KlSide& side, const Sequence& q, int64_t i,
                                            int64_t h0, int64_t heads,
                                            const RowDscore (&dscore)[2]) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  copy_wait<0>();  // of no entries at all
  __syncthreads();
#pragma unroll
  for (int j = 0; j < Columns; ++j)
    s_sums[(warp * Columns + j) * 32 + lane] = {dq[0][j][0], dq[0][j][1], dq[0][j][2], dq[0][j][3]};
  __syncthreads();
  constexpr int kOwn = Columns / kListWarps;
  float sum[kOwn][4] = {};
  for (int of = 0; of < kListWarps; ++of)
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const float4 more = s_sums[(of * Columns + warp * kOwn + j) * 32 + lane];
      sum[j][0] += more.x, sum[j][1] += more.y, sum[j][2] += more.z, sum[j][3] += more.w;
    }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t h = h0 + ListFragment::row_of(half);
    const int64_t* stride = side.dq.stride;
    uint16_t* line = side.dq.as<uint16_t>() + q.batch * stride[0] + (q.row_begin + i) * stride[1] +
                     h * stride[2];
    if (dscore[half].gain == 0)
#pragma unroll
      for (int j = 0; j < kOwn; ++j) sum[j][2 * half] = sum[j][2 * half + 1] = 0;
    store_row<Dtype>(h < heads ? line + warp * kOwn * 8 : nullptr,
                     static_cast<int>(side.width) - warp * kOwn * 8, sum, half, side.scale);
  }
}

template <int Dtype>
__global__ void __launch_bounds__(kListThreads, 3)
    gather_rows_kernel(const __grid_constant__ KlGather a, const __grid_constant__ ListSides call,
                       int own, const __grid_constant__ ListDscores dscores) {
  constexpr int kColumns = kListWidth / 8;  // tiles of eight
  using K = SharedListTiles::K;
  extern __shared__ __align__(1024) unsigned char s_dynamic[];
  __shared__ int s_named[2][kListKeys];
  const KlSide& side = own ? a.kl.second : a.kl.first;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t head_tile = blockIdx.x % dscores.head_tiles, h0 = head_tile * kListHeads;
  const int64_t i = dscores.first + blockIdx.x / dscores.head_tiles % dscores.rows;
  const int64_t r = blockIdx.x / dscores.head_tiles / dscores.rows;
  const Sequence q = a.kl.sequences[r];
  if (i >= q.rows) return;
  const int64_t place = dscores.place(r, i, head_tile);
  SharedListTiles tiles(s_dynamic, s_named);
  tiles.begin(call, q, h0, i);
  RowDscore dscore[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (const int64_t h = h0 + ListFragment::row_of(half); h < a.kl.h)
      dscore[half] = RowDscore(a, q, h, i);
  float dq[1][kColumns][4] = {};
  for (int64_t n0 = 0; n0 < a.n; n0 += kListKeys) {
    tiles.advance(call, q, i, n0);
    float x[1][2][4], y[1][2][4];
    tiles.product<Dtype>(x, 0, n0), tiles.product<Dtype>(y, 1, n0);
#pragma unroll
    for (int c = 0; c < ListFragment::C; ++c) {
      const bool named = tiles.names(n0, c);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& to = x[0][c / 2][2 * half + c % 2];
        const float dx = dscore[half](own, to * a.kl.first.scale,
                                      y[0][c / 2][2 * half + c % 2] * a.kl.second.scale);
        to = named && dscore[half].gain != 0 ? dx : 0;
      }
    }
    uint32_t dx[1][1][4];
    pack_operand<Dtype>(dx, x);
    if (dscores.dx)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t n = n0 + warp * 16 + lane / 4 + 8 * half;
        const uint2 heads = {transposed(dx[0][0][2 * half]), transposed(dx[0][0][2 * half + 1])};
        if (n < a.n)
          *reinterpret_cast<uint2*>(dscores.dx + (place * a.n + n) * kListHeads + lane % 4 * 4) =
              heads;
      }
    if (side.dq)
      product_columns<Dtype, 1, kColumns, 16, K>(
          dq, dx,
          tiles.stage(n0) + own * K::bytes + K::at(warp * 16 + outer_row(lane), outer_chunk(lane)));
    __syncthreads();
  }
  if (side.dq)
    store_heads<Dtype>(dq, reinterpret_cast<float4*>(s_dynamic), side, q, i, h0, a.kl.h, dscore);
}

// f<Dtype>() of the call.
template <class F>
void with_16_bits(const KlGather& a, const F& f) {
  if (a.kl.first.dtype == FOVEA_BF16)
    f.template operator()<FOVEA_BF16>();
  else
    f.template operator()<FOVEA_F16>();
}

// Elements of dx that a row of all sequences has, and most of them at a time: 64 MiB.
int64_t row_dscores(const KlGather& a) {
  return a.kl.sequences.count * ceil_div(a.kl.h, kListHeads) * kListHeads * a.n;
}
constexpr int64_t kDscoresMost = int64_t{1} << 25;

Text refuses(const Context& ctx, const KlGather& a) {
  if (const Text why = mma_refuses(ctx, a.kl.first, a.kl.second, kListWidth); !why.empty())
    return why;
  if (a.kl.h < 4) return reason("h", a.kl.h, "at least 4");
  if (a.index.stride[1] != 0)
    return reason("index.stride[1]", a.index.stride[1], "0: one list for all heads");
  for (const KlSide* side : {&a.kl.first, &a.kl.second})
    if (side->key_heads != 1) return reason("g or x", side->key_heads, "1");
  return "";
}
Text backward_refuses(const Context& ctx, const KlGather& a) {
  if (const Text why = refuses(ctx, a); !why.empty()) return why;
  if (kStages * KeysStage::bytes + 1024 > device_info(ctx).shared_block_bytes)
    return reason_shared(kStages * KeysStage::bytes + 1024, device_info(ctx).shared_block_bytes);
  for (const KlSide* side : {&a.kl.first, &a.kl.second})
    if (side->dq && !chunked(side->dq, 2, 8)) return reason_rows("a side's dq");
  if (row_dscores(a) > kDscoresMost)
    return "more than 2^25 entries of a row of all sequences and heads";
  return ListTranspose(lists_of(a), kKeysTileBits).refuses();
}

struct BackwardSlots {
  ListTransposeSlots<KeyLists> order;
  ListDscores dscores;
  DkParts parts;
  Slot<uint16_t> dx;
  Slot<float> sums;

  BackwardSlots(Layout& layout, const DeviceInfo& device, const KlGather& a)
      : order(layout, kGatherBackward, lists_of(a), kKeysTileBits, a.kl.first.dk || a.kl.second.dk),
        dscores{} {
    const Sequences& q = a.kl.sequences;
    const bool dk = a.kl.first.dk || a.kl.second.dk;
    dscores.head_tiles = ceil_div(a.kl.h, kListHeads);
    dscores.rows = clamp_i64(kDscoresMost / std::max<int64_t>(row_dscores(a), 1), 1,
                             std::max<int64_t>(q.query_max, 1));
    const int64_t tiles = q.count * order.order.tiles;
    // Two blocks for a multiprocessor, eight steps for a block.
    const int64_t count =
        std::max<int64_t>(std::min(2 * device.multiprocessors / std::max<int64_t>(tiles, 1),
                                   dscores.head_tiles * q.query_max / (8 * kRuns)),
                          1);
    parts = {nullptr, count, order.order.tiles, kListWidth, kKeysTile};
    dx = layout.add<uint16_t>(dk ? dscores.rows * row_dscores(a) : 0);
    sums = layout.add<float>(dk ? parts.floats(q, 1) : 0);
  }
};

template <int Dtype>
void enqueue(Context& ctx, const KlGather& a, const BackwardSlots& slots, void* base) {
  const ListSides call = sides_of(a);
  const Sequences& q = a.kl.sequences;
  DkParts parts = slots.parts;
  parts.sums = slots.sums.at(base);
  ListKeySums keys{slots.order.order, slots.order.sort(ctx, kGatherBackward, base), slots.dscores,
                   parts.sums, parts.count};
  for (int own : {0, 1}) {
    const KlSide& side = own ? a.kl.second : a.kl.first;
    if (!side.dq && !side.dk) continue;
    ListDscores& now = keys.dscores;
    now = slots.dscores;
    if (side.dk) now.dx = slots.dx.at(base);
    do {  // once without rows: the sums are of nothing then
      launch<gather_rows_kernel<Dtype>>(ctx, kGatherBackward, q.count * now.rows * now.head_tiles,
                                        kListThreads, SharedListTiles::bytes, a, call, own, now);
      if (side.dk)
        launch<list_keys_kernel<Dtype>>(ctx, kGatherBackward, q.count * parts.tiles * parts.count,
                                        kKeysThreads, kStages * KeysStage::bytes, call, own, keys);
      now.first += now.rows;
    } while (now.first < q.query_max);
    if (side.dk) join_parts(ctx, kGatherBackward, side, q, parts, OwnKeys());
  }
}

Text offer_forward(const Context& ctx, const KlGather& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  plan.kernel += Text(".") + dtype_name(a.kl.first.dtype);
  plan.launch = [=](Context& ctx, void*) {
    const int64_t head_tiles = ceil_div(a.kl.h, kListHeads);
    const int64_t work = a.kl.sequences.count * head_tiles * a.kl.sequences.query_max;
    with_16_bits(a, [&]<int Dtype> {
      launch<gather_heads_kernel<Dtype>>(ctx, kGatherForward, work, kListThreads,
                                         SharedListTiles::bytes, a, sides_of(a), head_tiles, work);
    });
  };
  return "";
}

Text offer_backward(const Context& ctx, const KlGather& a, Plan& plan) {
  if (Text why = backward_refuses(ctx, a); !why.empty()) return why;
  plan.kernel += Text(".") + dtype_name(a.kl.first.dtype);
  const BackwardSlots slots(plan.workspace, device_info(ctx), a);
  plan.launch = [=](Context& ctx, void* base) {
    clear_gradients(ctx, a);
    with_16_bits(a, [&]<int Dtype> { enqueue<Dtype>(ctx, a, slots, base); });
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlGather> kl_gather_forward_sm80 = {"sm80", cuda::offer_forward};
extern const Kernel<KlGather> kl_gather_backward_sm80 = {"sm80", cuda::offer_backward};

}  // namespace fovea
