// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_backward on mma.sync, where 16 heads share a row's list and its keys, each side by
// itself; dx is the slope of an entry's logit, rounded to the dtype:
//   rows  a block owns a row of 16 heads (gather_sm80.cuh): dq = scale sum dx k over the list; each
//         warp keeps the sums of its keys, joined in order at the end; dx goes to memory, of so
//         many rows at a time as its room holds
//   keys  a block owns 128 keys and a part of the runs that name them: the sum of dx' q
//         (gather_keys_sm80.cuh)
//   join  dk = scale times the parts' sums, added in order
#include <algorithm>

#include "core/dtype.h"
#include "ops/kl/gather_keys_sm80.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kl_gather_backward";

// Transposes 8 x 8 elements, of which lane 4 i + j holds (i, 2 j) and (i, 2 j + 1).
__device__ __forceinline__ uint32_t transposed(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

template <int Dtype>
__global__ void __launch_bounds__(kGatherThreads, 3)
    gather_rows_kernel(const __grid_constant__ GatherSimt call, int own,
                       const __grid_constant__ GatherSlopes slopes) {
  constexpr int kColumns = kGatherWidth / 8;  // tiles of eight
  extern __shared__ __align__(1024) unsigned char s_dynamic[];
  __shared__ int s_named[2][kGatherKeys];
  const KlGather& a = call.a;
  const KlSide& side = own ? a.kl.second : a.kl.first;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t head_tile = blockIdx.x % slopes.head_tiles, h0 = head_tile * kGatherHeads;
  const int64_t i = slopes.first + blockIdx.x / slopes.head_tiles % slopes.rows;
  const int64_t r = blockIdx.x / slopes.head_tiles / slopes.rows;
  const Sequence q = a.kl.sequences[r];
  if (i >= q.rows) return;
  const int64_t place = slopes.place(r, i, head_tile);
  GatherTiles tiles(s_dynamic, s_named);
  tiles.begin(call, q, h0, i);
  RowSlope slope[2];
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (const int64_t h = h0 + GatherFragment::row_of(half); h < a.kl.h)
      slope[half] = RowSlope(a, q, h, i);
  float dq[1][kColumns][4] = {};
  for (int64_t n0 = 0; n0 < a.n; n0 += kGatherKeys) {
    tiles.advance(call, q, i, n0);
    if (n0 == 0 && slopes.dx) {
      constexpr uint32_t kOdd = Dtype == FOVEA_F16 ? 0x7c00u : 0x7f80u;
      bool odd = false;
#pragma unroll
      for (int panel = 0; panel < 2; ++panel) {
        const uint4 x = *reinterpret_cast<const uint4*>(
            s_dynamic + own * GatherTiles::Q::bytes +
            GatherTiles::Q::at(threadIdx.x / 8, panel * kPanelChunks + threadIdx.x % 8));
        for (uint32_t two : {x.x, x.y, x.z, x.w})
          odd = odd || (two & kOdd) == kOdd || (two >> 16 & kOdd) == kOdd;
      }
      const uint32_t all = __ballot_sync(~0u, odd);
      uint32_t heads = 0;
#pragma unroll
      for (int m = 0; m < 4; ++m) heads |= (all >> 8 * m & 0xff ? 1u : 0u) << m;
      if (lane == 0) reinterpret_cast<uint8_t*>(slopes.odd + place)[warp] = heads;
    }
    float x[1][2][4], y[1][2][4];
    tiles.product<Dtype>(x, 0, n0), tiles.product<Dtype>(y, 1, n0);
#pragma unroll
    for (int c = 0; c < GatherFragment::C; ++c) {
      const bool named = tiles.names(n0)[warp * 16 + GatherFragment::column_of(c)] >= 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& to = x[0][c / 2][2 * half + c % 2];
        const float dx = slope[half](own, to * call.side[0].scale,
                                     y[0][c / 2][2 * half + c % 2] * call.side[1].scale);
        to = named && slope[half].gain != 0 ? dx : 0;
      }
    }
    uint32_t dx[1][1][4];
    pack_operand<Dtype>(dx, x);
    if (slopes.dx)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t n = n0 + warp * 16 + lane / 4 + 8 * half;
        const uint2 heads = {transposed(dx[0][0][2 * half]), transposed(dx[0][0][2 * half + 1])};
        if (n < a.n)
          *reinterpret_cast<uint2*>(slopes.dx + (place * a.n + n) * kGatherHeads + lane % 4 * 4) =
              heads;
      }
    if (side.dq)
      product_columns<Dtype, 1, kColumns, 16, GatherTiles::K>(
          dq, dx,
          tiles.stage(n0) + own * GatherTiles::K::bytes +
              GatherTiles::K::at(warp * 16 + outer_row(lane), outer_chunk(lane)));
    __syncthreads();
  }
  if (!side.dq) return;
  copy_wait<0>();  // of no entries at all
  __syncthreads();
  float4* const s_sums = reinterpret_cast<float4*>(s_dynamic);
#pragma unroll
  for (int j = 0; j < kColumns; ++j)
    s_sums[(warp * kColumns + j) * 32 + lane] = {dq[0][j][0], dq[0][j][1], dq[0][j][2],
                                                 dq[0][j][3]};
  __syncthreads();
  constexpr int kOwn = kColumns / kGatherWarps;
  float sum[kOwn][4] = {};
#pragma unroll
  for (int of = 0; of < kGatherWarps; ++of)
#pragma unroll
    for (int j = 0; j < kOwn; ++j) {
      const float4 more = s_sums[(of * kColumns + warp * kOwn + j) * 32 + lane];
      sum[j][0] += more.x, sum[j][1] += more.y, sum[j][2] += more.z, sum[j][3] += more.w;
    }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t h = h0 + GatherFragment::row_of(half);
    const int64_t* stride = side.dq.stride;
    uint16_t* line = side.dq.as<uint16_t>() + q.batch * stride[0] + (q.row_begin + i) * stride[1] +
                     h * stride[2];
    if (slope[half].gain == 0)
#pragma unroll
      for (int j = 0; j < kOwn; ++j) sum[j][2 * half] = sum[j][2 * half + 1] = 0;
    store_row<Dtype>(h < a.kl.h ? line + warp * kOwn * 8 : nullptr,
                     static_cast<int>(side.width) - warp * kOwn * 8, sum, half, side.scale);
  }
}

constexpr int kJoinThreads = 256;

// A thread adds up an element of dk.
__global__ void __launch_bounds__(kJoinThreads)
    gather_join_kernel(const __grid_constant__ GatherSimt call, int own,
                       const __grid_constant__ GatherKeys keys) {
  const KlSide& side = own ? call.a.kl.second : call.a.kl.first;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kJoinThreads;
  for (int64_t w = static_cast<int64_t>(blockIdx.x) * kJoinThreads + threadIdx.x; w < call.work;
       w += stride) {
    const int64_t column = w % kGatherWidth, row = w / kGatherWidth, tile = row / kKeysTile;
    const Sequence q = call.a.kl.sequences[tile / keys.order.tiles];
    const int64_t j = row % (keys.order.tiles * kKeysTile);
    if (j >= q.keys || column >= side.width) continue;
    float sum = 0;
    for (int64_t part = 0; part < keys.parts; ++part)
      sum += keys.sums[((tile * keys.parts + part) * kKeysTile + row % kKeysTile) * kGatherWidth +
                       column];
    const int64_t* to = side.dk.stride;
    store_float(side.dk.data, side.dtype,
                q.key_batch * to[0] + (q.key_begin + j) * to[1] + column * to[3], side.scale * sum);
  }
}

// Elements of dx that a row of all sequences has.
int64_t row_slopes(const KlGather& a) {
  return a.kl.sequences.count * ceil_div(a.kl.h, kGatherHeads) * kGatherHeads * a.n;
}
constexpr int64_t kSlopesMost = 2 * kPairsMost;  // of two bytes

std::string refuses(const Context& ctx, const KlGather& a) {
  if (const std::string why = gather_heads_refuse(ctx, a); !why.empty()) return why;
  if (kStages * KeysStage::bytes + 1024 > device_info(ctx).shared_block_bytes)
    return "less shared memory than 193 KB";
  for (const KlSide* side : {&a.kl.first, &a.kl.second})
    if (side->dq && !chunked(side->dq, 2, 8))
      return "rows of dq that are not contiguous chunks of 16 bytes";
  if (row_slopes(a) > kSlopesMost)
    return "more than 2^25 entries of a row of all sequences and heads";
  if (GatherOrder(a, kKeysTileBits).bits > 64)
    return "more than 2^64 entries of pairs of rows and keys";
  return "";
}

struct GatherBackwardSlots {
  GatherOrderSlots order;
  GatherSlopes slopes;
  int64_t parts;
  Slot<uint16_t> dx;
  Slot<uint32_t> odd;
  Slot<float> sums;

  GatherBackwardSlots(Layout& layout, const DeviceInfo& device, const KlGather& a)
      : order(layout, a, kKeysTileBits, a.kl.first.dk || a.kl.second.dk), slopes{} {
    const Sequences& q = a.kl.sequences;
    const bool dk = a.kl.first.dk || a.kl.second.dk;
    slopes.head_tiles = ceil_div(a.kl.h, kGatherHeads);
    slopes.rows = clamp_i64(kSlopesMost / std::max<int64_t>(row_slopes(a), 1), 1,
                            std::max<int64_t>(q.query_max, 1));
    const int64_t tiles = q.count * order.order.tiles;
    // Two blocks for a multiprocessor, eight steps for a block.
    parts = std::max<int64_t>(std::min(2 * device.multiprocessors / std::max<int64_t>(tiles, 1),
                                       slopes.head_tiles * q.query_max / (8 * kRuns)),
                              1);
    dx = layout.add<uint16_t>(dk ? slopes.rows * row_slopes(a) : 0);
    odd = layout.add<uint32_t>(dk ? q.count * slopes.rows * slopes.head_tiles : 0);
    sums = layout.add<float>(dk ? tiles * parts * kKeysTile * kGatherWidth : 0);
  }
};

template <int Dtype>
void enqueue(Context& ctx, GatherSimt call, const GatherBackwardSlots& slots, void* base) {
  const Kl& a = call.a.kl;
  GatherKeys keys{slots.order.order, slots.order.sort(ctx, kOp, call, base), slots.slopes,
                  slots.sums.at(base), slots.parts};
  for (int own : {0, 1}) {
    const KlSide& side = own ? a.second : a.first;
    if (!side.dq && !side.dk) continue;
    GatherSlopes& now = keys.slopes;
    now = slots.slopes;
    if (side.dk) now.dx = slots.dx.at(base), now.odd = slots.odd.at(base);
    const int64_t tiles = a.sequences.count * keys.order.tiles;
    do {  // once without rows: the sums are of nothing then
      launch<gather_rows_kernel<Dtype>>(ctx, kOp, a.sequences.count * now.rows * now.head_tiles,
                                        kGatherThreads, GatherTiles::bytes, call, own, now);
      if (side.dk)
        launch<gather_keys_kernel<Dtype>>(ctx, kOp, tiles * keys.parts, kKeysThreads,
                                          kStages * KeysStage::bytes, call, own, keys);
      now.first += now.rows;
    } while (now.first < a.sequences.query_max);
    if (!side.dk) continue;
    call.work = tiles * kKeysTile * kGatherWidth;
    launch<gather_join_kernel>(ctx, kOp, ceil_div(call.work, kJoinThreads), kJoinThreads, 0, call,
                               own, keys);
  }
}

std::string offer(const Context& ctx, const KlGather& a, Plan& plan) {
  if (std::string why = refuses(ctx, a); !why.empty()) return why;
  plan.kernel += std::string(".") + dtype_name(a.kl.first.dtype);
  const GatherBackwardSlots slots(plan.workspace, device_info(ctx), a);
  plan.launch = [=](Context& ctx, void* base) {
    clear_gradients(ctx, kOp, a);
    const auto run = a.kl.first.dtype == FOVEA_BF16 ? enqueue<FOVEA_BF16> : enqueue<FOVEA_F16>;
    run(ctx, GatherSimt(a), slots, base);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlGather> kl_gather_backward_sm80 = {"sm80", cuda::offer};

}  // namespace fovea
