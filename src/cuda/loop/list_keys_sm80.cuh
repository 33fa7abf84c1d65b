// SPDX-License-Identifier: Apache-2.0
// The keys' side of shared lists on mma.sync (shared_list_sm80.cuh): sum of dx' q, dx a number of
// each (row, entry, head).  A block owns 128 keys and a part of the runs that name them
// (list_transpose.cuh); 16 heads of a run are one step of the product.  Eight producer warps copy a
// run each, eight consumer warps have 32 keys and 64 columns of the sums.  dx of a key that a run
// does not name is 0: an infinity or NaN in q makes NaN of all keys of the tile.
// Shared memory: three stages of eight runs, q 16 x 128 and dx 128 keys x 16 heads of each.
// Barriers: one when a stage has landed, which ends the use of the one before.
#pragma once
#include "cuda/loop/shared_list_sm80.cuh"

namespace fovea::cuda {

// dx of rows [first, first + rows) of every sequence: (sequence, row, tile of heads, entry, head),
// heads 0 1 8 9 2 3 10 11 ..: what a lane has of a fragment lies together.
struct ListDscores {
  uint16_t* dx;
  int64_t first, rows, head_tiles;

  FOVEA_HD int64_t place(int64_t sequence, int64_t i, int64_t head_tile) const {
    return (sequence * rows + i - first) * head_tiles + head_tile;
  }
};

constexpr int kKeysTileBits = 7, kKeysTile = 1 << kKeysTileBits;
constexpr int kRuns = 8, kStages = 3, kKeysThreads = 2 * 32 * kRuns;

struct KeysStage {
  using Q = Swizzled<kRuns * kListHeads, kListWidth>;
  static constexpr int key_bytes = kListHeads * 2, run_bytes = kKeysTile * key_bytes;
  static constexpr int bytes = Q::bytes + kRuns * run_bytes;
};

struct ListKeySums {
  ListTranspose order;
  ListRuns runs;
  ListDscores dscores;
  float* sums;  // (sequence, tile, part) of 128 x 128
  int64_t parts;
};

// First run of those before `count` that is not below `from`, by a warp.
__device__ __forceinline__ int64_t first_run(const ListRuns& runs, int64_t count, uint64_t from) {
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
  static constexpr int each = kKeysTile / 32;
  const uint64_t* from;  // its first entry
  int count;             // 0: no run
  int64_t head_tile;
  uint64_t entry[each];  // of this lane; ~0: none
  int64_t row, place;
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
  sums += (group * 32 + lane % 4 * 2) * kListWidth + column + lane / 4;
  float dk[4][4][4] = {};  // rows are columns of q
  const auto each_sum = [&](const auto& f) {
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c)
          f(sums[(n * 8 + c % 2) * kListWidth + m * 16 + c / 2 * 8], dk[m][n][c]);
  };
  if (more) each_sum([](float sum, float& x) { x = sum; });
  const uint32_t s_lane = shared_address(shared) +
                          KeysStage::Q::at(inner_row(lane), column / kChunk + inner_chunk(lane));
  const uint32_t s_dscores = shared_address(shared) + KeysStage::Q::bytes +
                             (group * 32 + lane / 4) * KeysStage::key_bytes + lane % 4 * 8;
  int stage = 0;
#pragma unroll 1
  for (int64_t step = 0; step < steps; ++step) {
    meet();
    const uint32_t s_q = s_lane + stage * KeysStage::bytes;
    const uint32_t s_dx = s_dscores + stage * KeysStage::bytes;
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
                                 KeysStage::Q::pair(s_q, m) + run * kListHeads * kPanelRowBytes);
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

// The steps of a block: eight runs of a tile of heads each.  A part takes every so many, wherever
// the rows at hand begin, so that the order of its sums is that of the rows.
struct ListSteps {
  int64_t base, begin, end;  // runs of the tile, and of the rows at hand
  int64_t first, count;

  __device__ ListSteps(const int64_t* bounds, const ListKeySums& keys, int64_t part)
      : base(bounds[0]), begin(bounds[1]), end(bounds[2]) {
    const int64_t head_tiles = keys.dscores.head_tiles;
    first = (begin - base) / kRuns * head_tiles;
    const int64_t last = (end - base + kRuns - 1) / kRuns * head_tiles;
    first += (part + keys.parts - first % keys.parts) % keys.parts;
    count = begin < end && first < last ? (last - first - 1) / keys.parts + 1 : 0;
  }
};

// A producer warp.  What it does for a run comes in four steps of the loop, so that each look-up
// has time to land: find() where it lies, read() its entries, look() at its row, copy() it.
struct RunProducer {
  const ListSides& call;
  const ListSide& side;
  const ListKeySums& keys;
  const ListSteps& steps;
  int64_t sequence, count;  // count: of all runs
  int64_t group, next_head_tile;
  const uint16_t *q_base, *q_lane;  // eight lanes copy a row of q, four rows at a time
  uint32_t s_lane, s_dscores;

  __device__ __forceinline__ RunProducer(const ListSides& call, int own, const ListKeySums& keys,
                                         const ListSteps& steps, int64_t sequence,
                                         const Sequence& q, int64_t count, uint32_t s_stage)
      : call(call),
        side(call.side[own]),
        keys(keys),
        steps(steps),
        sequence(sequence),
        count(count),
        group(steps.first / keys.dscores.head_tiles),
        next_head_tile(steps.first % keys.dscores.head_tiles),
        q_base(static_cast<const uint16_t*>(side.q.data)),
        q_lane(q_base + list_row(side, q, head(), 0) + chunk() * kChunk),
        s_lane(s_stage + KeysStage::Q::at(run() * kListHeads + head(), chunk())),
        s_dscores(s_stage + KeysStage::Q::bytes + run() * KeysStage::run_bytes) {}

  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int run() { return static_cast<int>(threadIdx.x) / 32 - kRuns; }
  __device__ static int head() { return lane() / kPanelChunks; }
  __device__ static int chunk() { return lane() % kPanelChunks; }

  __device__ __forceinline__ void find(RunAhead& x, bool there) {
    const int64_t at = steps.base + group * kRuns + run(), head_tiles = keys.dscores.head_tiles;
    x.count = 0, x.head_tile = next_head_tile;
    group += keys.parts / head_tiles, next_head_tile += keys.parts % head_tiles;
    if (next_head_tile >= head_tiles) next_head_tile -= head_tiles, ++group;
    if (!there || at < steps.begin || at >= steps.end) return;
    const int64_t from = keys.runs.first[at];
    const int64_t to = at + 1 < count ? keys.runs.first[at + 1] : keys.order.entries;
    x.from = keys.runs.entries + from, x.count = static_cast<int>(to - from);
  }
  __device__ __forceinline__ void read(RunAhead& x) const {
#pragma unroll
    for (int n = 0; n < RunAhead::each; ++n)
      x.entry[n] = n * 32 + lane() < x.count ? x.from[n * 32 + lane()] : ~uint64_t{0};
  }
  __device__ __forceinline__ void look(RunAhead& x) const {
    if (!x.count) return;
    x.row = keys.order.row_of(__shfl_sync(~0u, x.entry[0], 0));
    x.place = keys.dscores.place(sequence, x.row, x.head_tile);
  }
  // To stage `to`.
  __device__ __forceinline__ void copy(const RunAhead& x, int to, uint32_t (*s_groups)[kRuns]) {
    uint32_t groups = 0;
    if (x.count) {
      const uint32_t s_dx = s_dscores + to * KeysStage::bytes, s_q = s_lane + to * KeysStage::bytes;
#pragma unroll
      for (int n = 0; n < KeysStage::run_bytes / 512; ++n)
        asm volatile(
            "st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(s_dx + (n * 32 + lane()) * 16), "r"(0)
            : "memory");
      const int64_t h0 = x.head_tile * kListHeads, q_step = 4 * side.q_stride[2];
      const int heads = static_cast<int>(min(call.lists.h - h0, int64_t{kListHeads})) - head();
      const uint16_t* from = q_lane + x.row * side.q_stride[1] + h0 * side.q_stride[2];
#pragma unroll
      for (int n = 0; n < kListHeads / 4; ++n, from += q_step) {
        const bool there = 4 * n < heads;
#pragma unroll
        for (int panel = 0; panel < 2; ++panel) {
          const bool valid = there && panel * 64 + chunk() * kChunk < side.q.width;
          copy_async(
              (s_q ^ n % 2 * 64) + n * 4 * kPanelRowBytes + panel * KeysStage::Q::panel_bytes,
              valid ? from + panel * 64 : q_base, valid);
        }
      }
      __syncwarp();  // zeros are there
      const uint16_t* dx = keys.dscores.dx + x.place * call.lists.n * kListHeads;
#pragma unroll
      for (int n = 0; n < RunAhead::each; ++n) {
        if (n * 32 + lane() >= x.count) break;
        const int key = keys.order.key_of(x.entry[n]);
        const uint16_t* of = dx + keys.order.place_of(x.entry[n]) * kListHeads;
        copy_async(s_dx + key * KeysStage::key_bytes, of, true);
        copy_async(s_dx + key * KeysStage::key_bytes + 16, of + kChunk, true);
        groups |= 1u << key / 8;
      }
      __syncwarp();
    }
    groups = __reduce_or_sync(~0u, groups);
    if (lane() == 0) s_groups[to][run()] = groups;
  }
};

template <int Dtype>
__global__ void __launch_bounds__(kKeysThreads, 1)
    list_keys_kernel(const __grid_constant__ ListSides call, int own,
                     const __grid_constant__ ListKeySums keys) {
  extern __shared__ __align__(1024) unsigned char s_dynamic[];
  __shared__ int64_t s_bounds[3];
  __shared__ uint32_t s_groups[kStages][kRuns];  // bit g: the run has a key of 8 g .. 8 g + 7
  const ListTranspose& order = keys.order;
  const int warp = threadIdx.x / 32;
  const int64_t part = blockIdx.x % keys.parts, tile = blockIdx.x / keys.parts % order.tiles;
  const int64_t r = blockIdx.x / keys.parts / order.tiles;
  const Sequence q = call.lists.sequences[r];
  if (tile * kKeysTile >= q.keys) return;
  const int64_t count = keys.runs.count ? *keys.runs.count : 0;
  if (warp < 3) {
    const ListDscores& dscores = keys.dscores;
    const int64_t rows[3] = {0, dscores.first,
                             min(dscores.first + dscores.rows, call.lists.sequences.query_max)};
    const int64_t at =
        first_run(keys.runs, count, order.from(order.tile(r, 0, tile * kKeysTile), rows[warp]));
    if (threadIdx.x % 32 == 0) s_bounds[warp] = at;
  }
  __syncthreads();
  const ListSteps steps(s_bounds, keys, part);
  if (warp < kRuns) {
    sum_runs<Dtype>(keys.sums + blockIdx.x * int64_t{kKeysTile} * kListWidth,
                    keys.dscores.first != 0, s_dynamic, s_groups, steps.count);
    return;
  }
  RunProducer producer(call, own, keys, steps, r, q, count, shared_address(s_dynamic));
  // While the sums take step k the copies of k + 2 begin, and what is known of the steps after
  // grows by one look-up each.
  RunAhead found{}, known{}, ready{};
  int ahead = 0;
#pragma unroll 1
  for (int64_t step = -5; step < steps.count; ++step) {
    if (step >= 0) {
      copy_wait<kStages - 2>();
      meet();
    }
    if (step >= -2) {
      producer.copy(ready, ahead, s_groups);
      copy_commit();
      ahead = ahead + 1 < kStages ? ahead + 1 : 0;
    }
    ready = known, producer.look(ready);
    known = found, producer.read(known);
    producer.find(found, step + 5 < steps.count);
  }
}

}  // namespace fovea::cuda
