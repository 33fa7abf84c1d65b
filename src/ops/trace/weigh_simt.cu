// SPDX-License-Identifier: Apache-2.0
// Mass and value of each slot in f32 FMA, from the rows' sums:
//   w_t = sum_m e^(x_mt - top_m) share_m,  mass = sum_t w_t,  value = sum_t w_t v_t
// A block takes an item and loops over its list, 64 keys at a time.  It sums the columns over all
// passes of 16 R rows, then the slots.  A slot of 128 keys is two tiles, whose mass and value are
// carried over.  Every sum has one order.
// Thread rows, products, shared memory and barriers: block/stage.cuh.
#include "ops/trace/columns.cuh"

namespace fovea::cuda {
namespace {

constexpr int kRowsMost = 128, kWarps = kStageThreads / 32;
constexpr int kColumnsMost = 3;  // of the value a thread has: 576 of 256

struct WeighSimt {
  TraceCall call;
  Operand q, k, v;
};

struct WeighShared {
  ListColumns columns;
  ListRows<kRowsMost> rows;
  TraceRow row[kRowsMost];
  float part[kWarps][kStageTile], weight[kStageTile];
};

// s.weight of a tile.
template <int R>
__device__ __forceinline__ void weigh_columns(const WeighSimt& x, const TraceItem& item,
                                              WeighShared& s, const FmaTiles<R>& tiles) {
  const float scale = x.call.a.attend.score.scale;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  float sum[4] = {};
  for (int from = 0; from < item.rows; from += 16 * R) {
    float acc[R][4] = {};
    list_products(acc, tiles, x.q, x.k, s.rows, from, s.columns);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const int m = from + ty + 16 * r;
      const TraceRow row = s.row[m];
#pragma unroll
      for (int c = 0; c < 4; ++c)
        if (s.columns.key[tx + 16 * c] < s.rows.seen[m])
          sum[c] += expf(acc[r][c] * scale - row.top) * row.share;
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    sum[c] += __shfl_xor_sync(~0u, sum[c], 16);
    if (threadIdx.x % 32 < 16) s.part[threadIdx.x / 32][tx + 16 * c] = sum[c];
  }
  __syncthreads();
  if (threadIdx.x < kStageTile) {
    float total = 0;
    for (int warp = 0; warp < kWarps; ++warp) total += s.part[warp][threadIdx.x];
    s.weight[threadIdx.x] = total;
  }
  __syncthreads();
}

template <int R>
__global__ void __launch_bounds__(kStageThreads)
    weigh_simt_kernel(const __grid_constant__ WeighSimt x) {
  extern __shared__ float4 s_dynamic[];
  __shared__ WeighShared s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Trace& a = x.call.a;
  const int step = static_cast<int>(a.block_keys < kStageTile ? a.block_keys : kStageTile);
  for (int64_t w = blockIdx.x; w < x.call.items; w += gridDim.x) {
    const TraceItem item(a, w);
    const int32_t* list = x.call.slots.selected + item.number * a.keep;
    __syncthreads();  // the last item is done with
    s.rows.fill(a, item, 0, kRowsMost);
    for (int m = threadIdx.x; m < item.rows; m += kStageThreads)
      s.row[m] = x.call.slots.row[item.number / a.n * a.attend.s + item.first + m];
    const int64_t end = a.seen(item.seq, item.first + item.rows - 1);
    float mass = 0, value[kColumnsMost] = {};
    for (int64_t tile = 0; tile < list_tiles(a, a.keep); ++tile) {
      __syncthreads();
      s.columns.fill(a, item, tile, a.keep, end, [&](int64_t slot) { return list[slot]; });
      __syncthreads();
      weigh_columns<R>(x, item, s, tiles);
      for (int begin = 0; begin < kStageTile; begin += step) {
        const int64_t at = tile * kStageTile + begin, slot = at / a.block_keys;
        if (slot >= a.keep) break;
        const bool done = (at + step) % a.block_keys == 0;
        if (threadIdx.x == 0) {
          for (int j = begin; j < begin + step; ++j) mass += s.weight[j];
          if (done) {
            if (a.edge_mass) a.edge_mass.as()[item.slot(a.edge_mass, slot)] = mass;
            if (x.call.slots.mass) x.call.slots.mass[item.number * a.keep + slot] = mass;
            mass = 0;
          }
        }
        if (!a.edge_value) continue;
        const int64_t to = item.slot(a.edge_value, slot);
#pragma unroll
        for (int i = 0; i < kColumnsMost; ++i) {
          const int64_t c = threadIdx.x + i * kStageThreads;
          if (c >= a.attend.e) break;
          for (int j = begin; j < begin + step; ++j) {
            const float weight = s.weight[j];
            if (weight == 0 || s.columns.v[j] < 0) continue;
            value[i] +=
                weight * load_float(x.v.data, x.v.dtype, s.columns.v[j] + c * x.v.column_stride);
          }
          if (!done) continue;
          a.edge_value.as()[to + c * a.edge_value.stride[4]] = value[i];
          value[i] = 0;
        }
      }
    }
  }
}

}  // namespace

void weigh_simt(Context& ctx, const TraceCall& call) {
  const Attend& a = call.a.attend;
  const WeighSimt x{call, operand_of(a.q, a.dtype, a.d), operand_of(a.k, a.dtype, a.d),
                    operand_of(a.v, a.dtype, a.e)};
  with_passes(call.a, [&]<int R> {
    launch<weigh_simt_kernel<R>>(ctx, kTraceOp, call.items, kStageThreads, FmaTiles<R>::bytes(), x);
  });
}

}  // namespace fovea::cuda
