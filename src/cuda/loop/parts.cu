// SPDX-License-Identifier: Apache-2.0
// The states before the parts of a sequence: H_i = M_(i-1) H_(i-1) + A_(i-1) in f32, A_i what part
// i adds from zeros.  A block owns some value columns of a head of a sequence and goes through its
// parts.  A thread has 4 x 4 elements of H.  Shared memory: those columns of H; 32 columns of M,
// transposed.
#include "cuda/loop/parts.h"

#include <algorithm>

#include "cuda/block/reduce.cuh"
#include "cuda/launch.h"
#include "cuda/loop/chain.h"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kStep = 32;  // columns of M at once

template <int D>
__global__ void __launch_bounds__(kThreads)
    join_parts_kernel(const __grid_constant__ Recur a, const __grid_constant__ ChainParts parts) {
  constexpr int kColumns = kThreads * 16 / D, kPad = 4;
  __shared__ __align__(16) float before[D][kColumns], carry[kStep][D + kPad];
  const int64_t tiles = a.e / kColumns, tile = blockIdx.x % tiles;
  const int64_t head = blockIdx.x / tiles % a.heads, sequence = blockIdx.x / tiles / a.heads;
  const int64_t chunks = (a.run[sequence].count + kChainTokens - 1) / kChainTokens;
  const int row = static_cast<int>(threadIdx.x) / (kColumns / 4) * 4;
  const int column = static_cast<int>(threadIdx.x) % (kColumns / 4) * 4;
  const auto element = [&](int64_t part, int i, int j) {
    return parts.state.view.template as<float>() + parts.state.offset(sequence * parts.count + part,
                                                                      head, row + i,
                                                                      tile * kColumns + column + j);
  };
  float h[4][4];
  const auto load = [&](int64_t part) {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) h[i][j] = *element(part, i, j);
  };
  if (chunks > parts.chunks) load(1);
  for (int64_t part = 2; part < parts.count && part * parts.chunks < chunks; ++part) {
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) before[row + i][column + j] = h[i][j];
    load(part);
    int some = 0;
    for (int first = 0; first < D; first += kStep) {
      __syncthreads();
      for (int at = threadIdx.x; at < D * kStep; at += kThreads) {
        const float x = parts.carry.view.template as<float>()[parts.carry.offset(
            sequence * parts.count + part - 1, head, at / kStep, first + at % kStep)];
        carry[at % kStep][at / kStep] = x, some |= x != 0;
      }
      __syncthreads();
#pragma unroll 8
      for (int k = 0; k < kStep; ++k) {
        const float4 m = *reinterpret_cast<const float4*>(&carry[k][row]);
        const float4 x = *reinterpret_cast<const float4*>(&before[first + k][column]);
        const float of[4] = {m.x, m.y, m.z, m.w}, by[4] = {x.x, x.y, x.z, x.w};
        for (int i = 0; i < 4; ++i)
          for (int j = 0; j < 4; ++j) h[i][j] = fmaf(of[i], by[j], h[i][j]);
      }
    }
    // A reset leaves nothing of the state before it, be it inf or NaN.
    if (!__syncthreads_or(some)) load(part);
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j) *element(part, i, j) = h[i][j];
  }
}

// The same where M is a decay of each key channel.  A thread owns elements of H.
__global__ void __launch_bounds__(kThreads)
    join_decayed_kernel(const __grid_constant__ Recur a, const __grid_constant__ ChainParts parts) {
  const int64_t size = a.d * a.e, tiles = (size + kThreads - 1) / kThreads;
  const int64_t at = blockIdx.x % tiles * kThreads + threadIdx.x;
  const int64_t head = blockIdx.x / tiles % a.heads, sequence = blockIdx.x / tiles / a.heads;
  if (at >= size) return;
  const int64_t chunks = (a.run[sequence].count + kChainTokens - 1) / kChainTokens;
  const int64_t row = at / a.e, column = at - row * a.e, first = sequence * parts.count;
  if (chunks <= parts.chunks) return;
  float h = parts.state(first + 1, head, row, column);
  for (int64_t part = 2; part < parts.count && part * parts.chunks < chunks; ++part) {
    const float decay = *parts.decay.at(first + part - 1, head, row);
    h = decayed(decay, h) + parts.state(first + part, head, row, column);
    parts.state.store(h, first + part, head, row, column);
  }
}

// A block owns a part and a head.  Its gates lie apart, so that many threads ask for them at once.
__global__ void __launch_bounds__(kThreads)
    part_decays_kernel(const __grid_constant__ Recur a, const __grid_constant__ ChainParts parts) {
  __shared__ float s_sums[kThreads / 32], s_decay;
  const int64_t head = blockIdx.x % a.heads, row = blockIdx.x / a.heads;
  const int64_t part = row % parts.count;
  const RunTokens run = a.run[row / parts.count];
  const int64_t tokens = int64_t{parts.chunks} * kChainTokens;
  const int64_t end = min((part + 1) * tokens, run.count);
  float sum = 0;
  if (a.gate_head) {
#pragma unroll 8
    for (int64_t t = part * tokens + threadIdx.x; t < end; t += kThreads)
      sum += a.head_gate(run.batch, run.begin + t, head).value;
  }
  sum = block_sum<kThreads>(sum, s_sums);
  if (threadIdx.x == 0) s_decay = exp_of(sum);
  __syncthreads();
  for (int64_t c = threadIdx.x; c < a.d; c += kThreads) *parts.decay.at(row, head, c) = s_decay;
}

// Of a chunk on one multiprocessor, in us on an H100: a walk for the state alone, one with outputs,
// one whose outputs several blocks share.  And of joining a part.
constexpr double kWalk = 0.95, kWalkOutputs = 1.45, kWalkShared = 1.05, kJoin = 6;
constexpr int64_t kPartsMost = 16, kChunksLeast = 64;

}  // namespace

int64_t parts_of(const Recur& a, int64_t multiprocessors, int64_t chains, int64_t carried) {
  const int64_t chunks = ceil_div(a.run.token_max, kChainTokens);
  if (a.splits) return std::min<int64_t>(a.splits, std::max<int64_t>(chunks, 1));
  if (chunks < kChunksLeast || 2 * chains > multiprocessors) return 1;
  const auto waves = [&](int64_t blocks) {
    return static_cast<double>(ceil_div(blocks, multiprocessors));
  };
  const auto outputs = [&](int64_t parts) {
    if (!a.o) return waves(chains * parts) * kWalk;
    const bool shared = 2 * chains * parts <= multiprocessors;
    return waves(chains * parts) * (shared ? kWalkShared : kWalkOutputs);
  };
  int64_t best = 1;
  // Parts add two walks and rounding: they must gain a fifth.
  double least = 0.8 * static_cast<double>(chunks) * outputs(1);
  for (int64_t parts = 2; parts <= kPartsMost; ++parts) {
    const double walks =
        waves(chains * (parts - 1) + carried * (parts - 2)) * kWalk + outputs(parts);
    const double took =
        static_cast<double>(ceil_div(chunks, parts)) * walks + kJoin * static_cast<double>(parts);
    if (took < least) least = took, best = parts;
  }
  return best;
}

void join_parts(Context& ctx, const char* op, const Recur& a, const ChainParts& parts) {
  const auto run = [&]<int D> {
    launch<join_parts_kernel<D>>(ctx, op, a.run.count * a.heads * (a.e / (kThreads * 16 / D)),
                                 kThreads, 0, a, parts);
  };
  if (a.d == 64)
    run.template operator()<64>();
  else
    run.template operator()<128>();
}

void join_decayed_parts(Context& ctx, const char* op, const Recur& a, const ChainParts& parts) {
  launch<join_decayed_kernel>(ctx, op, a.run.count * a.heads * ceil_div(a.d * a.e, kThreads),
                              kThreads, 0, a, parts);
}
void decays_of_parts(Context& ctx, const char* op, const Recur& a, const ChainParts& parts) {
  launch<part_decays_kernel>(ctx, op, a.run.count * parts.count * a.heads, kThreads, 0, a, parts);
}

}  // namespace fovea::cuda
