// SPDX-License-Identifier: Apache-2.0
// x_kl_gather_backward on mma.sync, where 16 heads share a row's list and its keys, each side by
// itself; dx is the slope of an entry's logit, rounded to the dtype:
//   rows  a block owns a row of 16 heads (gather_sm80.cuh): dq = scale sum dx k over the list; each
//         warp keeps the sums of its keys, joined in order at the end; dx goes to memory, of so
//         many rows at a time as its room holds
//   keys  a block owns 128 keys and a part of the runs that name them (gather_order.cuh): the sum
//         of dx' q, 16 heads of a run in one step of the product; eight warps copy a run each,
//         eight others have 32 keys and 64 columns of the sums
//   join  dk = scale times the parts' sums, added in order
// Where dx is 0, q may be anything: a row of q with an infinity or NaN is zeros to `keys`, for its
// own dx are NaN.
// Shared memory of keys: three stages of eight runs, q 16 x 128 and dx 128 keys x 16 heads of each.
// Barriers: one when a stage has landed, which ends the use of the one before.
#include <algorithm>

#include "core/dtype.h"
#include "cuda/loop/sink.cuh"
#include "cuda/loop/zero.cuh"
#include "ops/kl/gather_order.cuh"
#include "ops/kl/gather_sm80.cuh"
#include "ops/kl/heads.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kl_gather_backward";

// dx of rows [first, first + rows) of every sequence: (sequence, row, tile of heads, entry, head),
// heads 0 1 8 9 2 3 10 11 ..: what a lane has of a fragment lies together.
struct GatherSlopes {
  uint16_t* dx;
  uint32_t* odd;  // (sequence, row, tile of heads): bit 8 w + r for an infinity or NaN in q of head
                  // 4 w + r
  int64_t first, rows, head_tiles;

  FOVEA_HD int64_t place(int64_t sequence, int64_t i, int64_t head_tile) const {
    return (sequence * rows + i - first) * head_tiles + head_tile;
  }
};

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

constexpr int kTileBits = 7, kTileKeys = 1 << kTileBits;
constexpr int kRuns = 8, kStages = 3, kKeysThreads = 2 * 32 * kRuns;

struct KeysStage {
  using Q = Swizzled<kRuns * kGatherHeads, kGatherWidth>;
  static constexpr int key_bytes = kGatherHeads * 2, run_bytes = kTileKeys * key_bytes;
  static constexpr int bytes = Q::bytes + kRuns * run_bytes;
};

struct GatherKeys {
  GatherOrder order;
  GatherRuns runs;
  GatherSlopes slopes;
  float* sums;  // (sequence, tile, part) of 128 x 128
  int64_t parts;
};

// First run of those before `count` that is not below `from`, by a warp.
__device__ __forceinline__ int64_t first_run(const GatherRuns& runs, int64_t count, uint64_t from) {
  int64_t low = 0, high = count;
  while (low < high) {
    const int64_t step = (high - low + 31) / 32, at = low + threadIdx.x % 32 * step;
    const bool below = at < high && runs.entries[runs.first[at]] < from;
    const int n = __popc(__ballot_sync(~0u, below));
    if (low + n * step < high) high = low + n * step;
    if (n) low += (n - 1) * step + 1;
  }
  return low;
}

// A run on its way to shared memory: what is looked up of it step by step.
struct RunAhead {
  static constexpr int each = kTileKeys / 32;
  const uint64_t* from;  // its first entry
  int count;             // 0: no run
  int64_t head_tile;
  uint64_t entry[each];  // of this lane; ~0: none
  int64_t row, place;
  uint32_t odd;
};

// All warps of `keys`, at the same step.
__device__ __forceinline__ void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kKeysThreads) : "memory");
}

// The computing warps' part of `keys`: `sums` of so many steps, from what lies there or from 0.
template <int Dtype>
__device__ __forceinline__ void sum_runs(float* sums, bool more, const unsigned char* shared,
                                         const uint32_t (*groups)[kRuns], int64_t steps) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / 2;
  const int column = warp % 2 * 64;
  sums += (group * 32 + lane % 4 * 2) * kGatherWidth + column + lane / 4;
  float dk[4][4][4] = {};  // rows are columns of q
  const auto each_sum = [&](const auto& f) {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          f(sums[(n * 8 + c % 2) * kGatherWidth + m * 16 + c / 2 * 8], dk[m][n][c]);
  };
  if (more) each_sum([](float sum, float& x) { x = sum; });
  const uint32_t s_lane = shared_address(shared) +
                          KeysStage::Q::at(inner_row(lane), column / kChunk + inner_chunk(lane));
  const uint32_t s_slopes = shared_address(shared) + KeysStage::Q::bytes +
                            (group * 32 + lane / 4) * KeysStage::key_bytes + lane % 4 * 8;
  int stage = 0;
#pragma unroll 1
  for (int64_t step = 0; step < steps; ++step) {
    meet();
    const uint32_t s_q = s_lane + stage * KeysStage::bytes;
    const uint32_t s_dx = s_slopes + stage * KeysStage::bytes;
    // Four bits a run: its eights of the warp's keys.
    uint32_t some = __reduce_or_sync(
        ~0u, lane < kRuns ? (groups[stage][lane % kRuns] >> 4 * group & 15u) << 4 * lane : 0u);
    while (some) {
      const uint32_t run = (__ffs(some) - 1) / 4u, eights = some >> 4 * run & 15u;
      some &= ~(15u << 4 * run);
      uint32_t x[4][4], dx[4][2];
#pragma unroll
      for (int n = 0; n < 4; ++n)
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                     : "=r"(dx[n][0]), "=r"(dx[n][1])
                     : "r"(s_dx + run * KeysStage::run_bytes + n * 8 * KeysStage::key_bytes)
                     : "memory");
#pragma unroll
      for (int m = 0; m < 4; ++m)
        load_matrices_transposed(x[m],
                                 KeysStage::Q::pair(s_q, m) + run * kGatherHeads * kPanelRowBytes);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (!(eights >> n & 1)) continue;
#pragma unroll
        for (int m = 0; m < 4; ++m) mma<Dtype>(dk[m][n], x[m], dx[n][0], dx[n][1]);
      }
    }
    stage = stage + 1 < kStages ? stage + 1 : 0;
  }
  each_sum([](float& sum, float x) { sum = x; });
}

template <int Dtype>
__global__ void __launch_bounds__(kKeysThreads, 1)
    gather_keys_kernel(const __grid_constant__ GatherSimt call, int own,
                       const __grid_constant__ GatherKeys keys) {
  extern __shared__ __align__(1024) unsigned char s_dynamic[];
  __shared__ int64_t s_bounds[3];
  __shared__ uint32_t s_groups[kStages][kRuns];  // bit g: the run has a key of 8 g .. 8 g + 7
  const KlGather& a = call.a;
  const GatherOrder& order = keys.order;
  const GatherSlopes& slopes = keys.slopes;
  const StageSide& side = call.side[own];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t part = blockIdx.x % keys.parts, tile = blockIdx.x / keys.parts % order.tiles;
  const int64_t r = blockIdx.x / keys.parts / order.tiles;
  const Sequence q = a.kl.sequences[r];
  if (tile * kTileKeys >= q.keys) return;
  const int64_t count = keys.runs.count ? *keys.runs.count : 0;
  if (warp < 3) {
    const int64_t rows[3] = {0, slopes.first,
                             min(slopes.first + slopes.rows, a.kl.sequences.query_max)};
    const int64_t at =
        first_run(keys.runs, count, order.from(order.tile(r, 0, tile * kTileKeys), rows[warp]));
    if (lane == 0) s_bounds[warp] = at;
  }
  __syncthreads();
  // Eight runs of a tile of heads are a step; a part takes every so many, wherever the rows at hand
  // begin, so that the order of its sums is that of the rows.
  const int64_t base = s_bounds[0], begin = s_bounds[1], end = s_bounds[2];
  const int64_t first = (begin - base) / kRuns * slopes.head_tiles;
  const int64_t last = (end - base + kRuns - 1) / kRuns * slopes.head_tiles;
  const int64_t skip = (part + keys.parts - first % keys.parts) % keys.parts;
  const int64_t steps =
      begin < end && first + skip < last ? (last - first - skip - 1) / keys.parts + 1 : 0;

  const uint32_t s_stage = shared_address(s_dynamic);
  if (warp < kRuns) {
    sum_runs<Dtype>(keys.sums + blockIdx.x * int64_t{kTileKeys} * kGatherWidth, slopes.first != 0,
                    s_dynamic, s_groups, steps);
    return;
  }
  const int own_run = warp - kRuns;
  int64_t group = (first + skip) / slopes.head_tiles,
          next_head_tile = (first + skip) % slopes.head_tiles;
  const int64_t more_groups = keys.parts / slopes.head_tiles,
                more_head_tiles = keys.parts % slopes.head_tiles;
  // Where the run of the next step lies, then its entries, then its row.
  const auto find = [&](RunAhead& x, bool there) {
    const int64_t run = base + group * kRuns + own_run;
    x.count = 0, x.head_tile = next_head_tile;
    group += more_groups, next_head_tile += more_head_tiles;
    if (next_head_tile >= slopes.head_tiles) next_head_tile -= slopes.head_tiles, ++group;
    if (!there || run < begin || run >= end) return;
    const int64_t from = keys.runs.first[run];
    const int64_t to = run + 1 < count ? keys.runs.first[run + 1] : order.entries;
    x.from = keys.runs.entries + from, x.count = static_cast<int>(to - from);
  };
  const auto read = [&](RunAhead& x) {
#pragma unroll
    for (int n = 0; n < RunAhead::each; ++n)
      x.entry[n] = n * 32 + lane < x.count ? x.from[n * 32 + lane] : ~uint64_t{0};
  };
  const auto look = [&](RunAhead& x) {
    if (!x.count) return;
    x.row = order.row_of(__shfl_sync(~0u, x.entry[0], 0));
    x.place = slopes.place(r, x.row, x.head_tile);
    x.odd = slopes.odd[x.place];
  };
  // To a stage.  Eight lanes copy a row of q, four rows at a time.
  const int head = lane / kPanelChunks, chunk = lane % kPanelChunks;
  const uint16_t* const q_base = static_cast<const uint16_t*>(side.q.data);
  const uint16_t* const q_lane = q_base + q_place(side, q, head, 0) + chunk * kChunk;
  const int64_t q_step = 4 * side.q_stride[2], dx_row = a.n * kGatherHeads;
  const uint32_t s_lane = s_stage + KeysStage::Q::at(own_run * kGatherHeads + head, chunk);
  const uint32_t s_slopes = s_stage + KeysStage::Q::bytes + own_run * KeysStage::run_bytes;
  const auto copy = [&](const RunAhead& x, int to) {
    uint32_t groups = 0;
    if (x.count) {
      const uint32_t s_dx = s_slopes + to * KeysStage::bytes, s_q = s_lane + to * KeysStage::bytes;
#pragma unroll
      for (int n = 0; n < KeysStage::run_bytes / 512; ++n)
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(s_dx + (n * 32 + lane) * 16),
                     "r"(0)
                     : "memory");
      const int64_t h0 = x.head_tile * kGatherHeads;
      const int heads = static_cast<int>(min(a.kl.h - h0, int64_t{kGatherHeads})) - head;
      const uint16_t* from = q_lane + x.row * side.q_stride[1] + h0 * side.q_stride[2];
#pragma unroll
      for (int n = 0; n < kGatherHeads / 4; ++n, from += q_step) {
        const bool there = 4 * n < heads && !(x.odd >> (8 * n + head) & 1);
#pragma unroll
        for (int panel = 0; panel < 2; ++panel) {
          const bool valid = there && panel * 64 + chunk * kChunk < side.q.width;
          copy_async(
              (s_q ^ n % 2 * 64) + n * 4 * kPanelRowBytes + panel * KeysStage::Q::panel_bytes,
              valid ? from + panel * 64 : q_base, valid);
        }
      }
      __syncwarp();  // zeros are there
      const uint16_t* dx = slopes.dx + x.place * dx_row;
#pragma unroll
      for (int n = 0; n < RunAhead::each; ++n) {
        if (n * 32 + lane >= x.count) break;
        const int key = order.key_of(x.entry[n]);
        const uint16_t* of = dx + order.place_of(x.entry[n]) * kGatherHeads;
        copy_async(s_dx + key * KeysStage::key_bytes, of, true);
        copy_async(s_dx + key * KeysStage::key_bytes + 16, of + kChunk, true);
        groups |= 1u << key / 8;
      }
      __syncwarp();
    }
    groups = __reduce_or_sync(~0u, groups);
    if (lane == 0) s_groups[to][own_run] = groups;
  };
  // While the sums take step k the copies of k + 2 begin, and what is known of the steps after
  // grows by one look-up each.
  RunAhead found{}, known{}, ready{};
  int ahead = 0;
#pragma unroll 1
  for (int64_t step = -5; step < steps; ++step) {
    if (step >= 0) {
      copy_wait<kStages - 2>();
      meet();
    }
    if (step >= -2) {
      copy(ready, ahead);
      copy_commit();
      ahead = ahead + 1 < kStages ? ahead + 1 : 0;
    }
    ready = known, look(ready);
    known = found, read(known);
    find(found, step + 5 < steps);
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
    const int64_t column = w % kGatherWidth, row = w / kGatherWidth, tile = row / kTileKeys;
    const Sequence q = call.a.kl.sequences[tile / keys.order.tiles];
    const int64_t j = row % (keys.order.tiles * kTileKeys);
    if (j >= q.keys || column >= side.width) continue;
    float sum = 0;
    for (int64_t part = 0; part < keys.parts; ++part)
      sum += keys.sums[((tile * keys.parts + part) * kTileKeys + row % kTileKeys) * kGatherWidth +
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
  if (GatherOrder(a, kTileBits).bits > 64)
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
      : order(layout, a, kTileBits, a.kl.first.dk || a.kl.second.dk), slopes{} {
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
    sums = layout.add<float>(dk ? tiles * parts * kTileKeys * kGatherWidth : 0);
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
    call.work = tiles * kTileKeys * kGatherWidth;
    launch<gather_join_kernel>(ctx, kOp, ceil_div(call.work, kJoinThreads), kJoinThreads, 0, call,
                               own, keys);
  }
}

void prepare(const Context& ctx, const KlGather& a, Plan& plan) {
  plan.kernel += std::string(".") + dtype_name(a.kl.first.dtype);
  const GatherBackwardSlots slots(plan.workspace, device_info(ctx), a);
  plan.launch = [=](Context& ctx, void* base) {
    clear_gradients(ctx, kOp, a);
    const auto run = a.kl.first.dtype == FOVEA_BF16 ? enqueue<FOVEA_BF16> : enqueue<FOVEA_F16>;
    run(ctx, GatherSimt(a), slots, base);
  };
}

}  // namespace
}  // namespace cuda

extern const Kernel<KlGather> kl_gather_backward_sm80;
const Kernel<KlGather> kl_gather_backward_sm80 = {"x_kl_gather_backward.cuda.sm80", cuda::refuses,
                                                  cuda::prepare};

}  // namespace fovea
