// SPDX-License-Identifier: Apache-2.0
// What quant_quantize does between its passes over x, and delta.
//   fold   sums of a sequence's units to means, as the tree goes on; magnitudes to scales.  A block
//          of eight warps has 32 columns of a head of a sequence, a warp an eighth of the units.
//   blocks magnitudes of halves of units to scales and factors of the blocks that they are of
//   delta  <mean of a block of 128 rows, k - k_mean> in f32: a tile of 32 blocks and 128 keys, four
//          by eight a thread, 32 columns at a time through shared memory.
#include "core/dtype.h"
#include "cuda/launch.h"
#include "cuda/tile/order.cuh"
#include "ops/quant/quantize.cuh"

namespace fovea::cuda {
namespace {

constexpr char kOp[] = "quant_quantize";
constexpr int kWarps = 8;

__device__ inline float join(float x, float y, bool sums) {
  return sums ? x + y : greatest(x, y);
}

// Terms first .. first + count - 1, count a power of two, absent ones 0, as a tree.
template <class Term>
__device__ float join_tree(int64_t first, int64_t count, bool sums, Term term) {
  constexpr int kRun = 8;
  float level[32];
  float sum = 0;
  for (int64_t i = 0; i < count; i += kRun) {
    float x[kRun];
#pragma unroll
    for (int n = 0; n < kRun; ++n) x[n] = n < count ? term(first + i + n) : 0;
#pragma unroll
    for (int step = 1; step < kRun; step *= 2)
#pragma unroll
      for (int n = 0; n < kRun; n += 2 * step) x[n] = join(x[n], x[n + step], sums);
    sum = x[0];
    int bit = 0;
    for (; i / kRun >> bit & 1; ++bit) sum = join(level[bit], sum, sums);
    level[bit] = sum;
  }
  return sum;
}

__global__ void __launch_bounds__(32 * kWarps)
    quantize_fold_kernel(const __grid_constant__ Quantize a,
                         const __grid_constant__ Partials partials, Fold what) {
  pdl_wait();
  pdl_trigger();
  __shared__ float s_part[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const bool sums = what == Fold::means;
  const int64_t parts = (a.d + 31) / 32, work = a.sequences * a.h * parts;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t c = w % parts * 32 + lane, item = w / parts;
    const int64_t r = item / a.h, head = item - r * a.h;
    const int64_t slot = a.start ? first_entry(a.start, a.s, r, kCodeRun) : r * a.units;
    const CodeUnit unit = unit_at(a, slot);
    const Interval units = units_of(a, unit, slot);
    const int64_t count = units.end - units.begin;
    int64_t share = 1;
    while (share * kWarps < count) share *= 2;
    const auto term = [&](int64_t i) -> float {
      if (i >= count || c >= a.d) return 0;
      return partials.columns[((units.begin + i) * a.h + head) * a.d + c];
    };
    __syncthreads();
    s_part[warp][lane] = warp * share < count ? join_tree(warp * share, share, sums, term) : 0;
    __syncthreads();
    if (warp || c >= a.d) continue;
    float x[kWarps];
#pragma unroll
    for (int n = 0; n < kWarps; ++n) x[n] = s_part[n][lane];
#pragma unroll
    for (int step = 1; step < kWarps; step *= 2)
#pragma unroll
      for (int n = 0; n < kWarps; n += 2 * step) x[n] = join(x[n], x[n + step], sums);
    if (sums) {
      mean_row(a, unit, head)[c * a.mean.stride[3]] = mean_of(a, x[0], unit.length);
      continue;
    }
    const CodeScale scale(x[0], a.most);
    *a.scale.at(unit.batch, head, (a.start ? r * a.d : 0) + c) = unit.length ? scale.scale : 0;
    partials.factors[(r * a.h + head) * a.d + c] = scale.factor;
  }
}

// Of each block of more than a unit's half the magnitude of its halves: its scale, and in place of
// each half's magnitude the block's factor.  A warp owns a block.
__global__ void __launch_bounds__(32 * kWarps)
    quantize_blocks_kernel(const __grid_constant__ Quantize a, float* halves) {
  pdl_wait();
  pdl_trigger();
  const int lane = threadIdx.x % 32;
  const int64_t work = unit_count(a) * 2 * a.h;
  for (int64_t w = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; w < work;
       w += int64_t{gridDim.x} * kWarps) {
    const int64_t half = w / a.h, head = w - half * a.h;
    const CodeUnit unit = unit_at(a, half >> 1);
    if (unit.sequence < 0) continue;
    const int part = static_cast<int>(half & 1);
    if (part == 0) clear_rest(a, unit, head, lane, 32);
    const Interval block = halves_of(a, units_of(a, unit, half >> 1), half);
    if (block.begin != half) continue;
    const auto at = [&](int64_t i) { return ((i >> 1) * a.h + head) * 2 + (i & 1); };
    float top = 0;
    for (int64_t i = block.begin + lane; i < block.end; i += 32) top = greatest(top, halves[at(i)]);
    top = float_of(__reduce_max_sync(~0u, bits_of(top)));
    const CodeScale scale(top, a.most);
    if (lane == 0) put_part(a, unit, head, part, scale.scale);
    for (int64_t i = block.begin + lane; i < block.end; i += 32) halves[at(i)] = scale.factor;
  }
}

constexpr int kBlocks = 32, kKeys = 128, kDepth = 32, kThreads = 128, kSide = 4;
constexpr int kHalf = kKeys / 2;  // a thread has four keys of each half

struct DeltaTile {
  int64_t head, g, slot, slots;  // of its blocks of rows: the first, how many
  int64_t index;                 // of the first in its sequence
  int64_t batch, key_batch, r, key, keys;
};

__device__ inline void load_four(const float* from, float* to) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

template <class X>
__device__ void delta_tile(const Quantize& a, const DeltaTile& at, float (*s_q)[kBlocks + 4],
                           float (*s_k)[kKeys + 4]) {
  const int row = threadIdx.x / 16 * kSide, column = threadIdx.x % 16 * kSide;
  const int64_t first = a.start ? at.slot : at.index;  // of means and deltas
  const float* mean = a.mean.at(at.batch, at.head, first);
  const float* k_mean =
      a.k_mean ? a.k_mean.at(at.key_batch, at.g, a.key_start ? at.r : 0) : nullptr;
  const X* k = a.k.at<X>(at.key_batch, at.key, at.g);
  float sum[kSide][2 * kSide] = {};
  for (int64_t begin = 0; begin < a.d; begin += kDepth) {
    __syncthreads();
    const int c = threadIdx.x % kDepth;  // of both tiles
    const bool there = begin + c < a.d;
    const float less = there && k_mean ? k_mean[(begin + c) * a.k_mean.stride[3]] : 0;
    for (int i = threadIdx.x / kDepth; i < kBlocks; i += kThreads / kDepth)
      s_q[c][i] =
          there && i < at.slots ? mean[i * a.mean.stride[2] + (begin + c) * a.mean.stride[3]] : 0;
#pragma unroll 8
    for (int j = threadIdx.x / kDepth; j < kKeys; j += kThreads / kDepth)
      s_k[c][j] = there && j < at.keys
                      ? to_float(k[j * a.k.stride[1] + (begin + c) * a.k.stride[3]]) - less
                      : 0;
    __syncthreads();
#pragma unroll 8
    for (int c = 0; c < kDepth; ++c) {
      float q[kSide], other[2 * kSide];
      load_four(&s_q[c][row], q);
      load_four(&s_k[c][column], other), load_four(&s_k[c][kHalf + column], other + kSide);
#pragma unroll
      for (int i = 0; i < kSide; ++i)
#pragma unroll
        for (int j = 0; j < 2 * kSide; ++j) sum[i][j] += q[i] * other[j];
    }
  }
  float* to = a.delta.at(at.batch, at.head, first, at.key);
#pragma unroll
  for (int i = 0; i < kSide; ++i)
#pragma unroll
    for (int j = 0; j < 2 * kSide; ++j) {
      const int key = column + j % kSide + j / kSide * kHalf;
      if (row + i < at.slots && key < at.keys)
        to[(row + i) * a.delta.stride[2] + key * a.delta.stride[3]] = sum[i][j];
    }
}

template <class X>
__global__ void __launch_bounds__(kThreads)
    quantize_delta_kernel(const __grid_constant__ Quantize a, int64_t key_parts) {
  __shared__ __align__(16) float s_q[kDepth][kBlocks + 4];
  __shared__ __align__(16) float s_k[kDepth][kKeys + 4];
  const int64_t slots = unit_count(a), groups = (slots + kBlocks - 1) / kBlocks;
  const int64_t work = groups * a.h * key_parts;
  for (int64_t w = blockIdx.x; w < work; w += gridDim.x) {
    const int64_t part = w % key_parts, item = w / key_parts;
    DeltaTile at{};
    at.head = item % a.h, at.g = at.head / (a.h / a.g);
    const int64_t begin = item / a.h * kBlocks,
                  end = begin + kBlocks < slots ? begin + kBlocks : slots;
    for (at.slot = begin; at.slot < end; at.slot += at.slots) {
      at.slots = 1;
      const CodeUnit unit = unit_at(a, at.slot);
      if (unit.sequence < 0) continue;
      const Interval units = units_of(a, unit, at.slot);
      const int64_t last = units.end < end ? units.end : end;
      at.slots = last - at.slot;
      if (unit.tokens == 0) continue;
      // Blocks that have tokens.
      DeltaTile tile = at;
      const int64_t blocks = (unit.length + kCodeRun - 1) / kCodeRun - unit.index;
      if (tile.slots > blocks) tile.slots = blocks;
      tile.index = unit.index, tile.r = unit.sequence, tile.batch = unit.batch;
      tile.key_batch = a.key_start ? 0 : unit.sequence;
      const Interval keys = keys_of(a, unit.sequence);
      for (int64_t j = keys.begin + part * kKeys; j < keys.end; j += key_parts * kKeys) {
        tile.key = j, tile.keys = keys.end - j < kKeys ? keys.end - j : kKeys;
        delta_tile<X>(a, tile, s_q, s_k);
      }
    }
  }
}

}  // namespace

void launch_fold(Context& ctx, const Quantize& a, const Partials& partials, Fold what) {
  if (what == Fold::blocks)
    return launch_pdl<quantize_blocks_kernel>(ctx, kOp,
                                              (unit_count(a) * 2 * a.h + kWarps - 1) / kWarps,
                                              32 * kWarps, 0, a, partials.halves);
  launch_pdl<quantize_fold_kernel>(ctx, kOp, a.sequences * a.h * ((a.d + 31) / 32), 32 * kWarps, 0,
                                   a, partials, what);
}

void launch_delta(Context& ctx, const Quantize& a) {
  if (!a.delta) return;
  const int64_t groups = (unit_count(a) + kBlocks - 1) / kBlocks * a.h;
  const int64_t tiles = (a.t + kKeys - 1) / kKeys;
  // Enough blocks for any device; the others' tiles are the same blocks'.
  const int64_t wanted = groups ? 1 + 8192 / groups : 1;
  const int64_t parts = tiles < wanted ? tiles : wanted;
  with_fp(a.x_dtype, [&](auto x) {
    launch<quantize_delta_kernel<decltype(x)>>(ctx, kOp, groups * parts, kThreads, 0, a, parts);
  });
}

}  // namespace fovea::cuda
