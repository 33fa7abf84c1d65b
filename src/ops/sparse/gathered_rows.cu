// SPDX-License-Identifier: Apache-2.0
// Chunks of the rows that name a block of keys, and the merge of their parts (gathered_rows.cuh):
//   L = max_c lse_c (and the sink logit),  w_c = exp(lse_c - L)
//   o = sum_c w_c o_c / (sum_c w_c + exp(sink - L)),  lse = L + ln(sum_c w_c + exp(sink - L))
// A warp owns a list's chunks, then a row and head.  c ascends, so bits are the same each run.
#include "ops/sparse/gathered_rows.cuh"

#include <algorithm>
#include <type_traits>

#include "core/locate.h"
#include "cuda/block/softmax.cuh"
#include "cuda/loop/combine_row.cuh"
#include "cuda/loop/source.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
// What parts may take, and the query heads of a phase, which small calls reach too.
constexpr int64_t kPartBytes = int64_t{1} << 30, kPhaseHeads = 64;

__device__ RowChunk chunk_of(const Attend& a, const SparseList& list, const GatheredRows& rows,
                             int t, int first, int count) {
  const int r = t / rows.blocks / rows.x, block = t % rows.blocks;
  const Sequence seq = a.sequences[r];
  const int top = static_cast<int>(rows.order.row_of(rows.entries[first])),
            bottom = static_cast<int>(rows.order.row_of(rows.entries[first + count - 1]));
  const int keys = static_cast<int>(seq.keys), block_keys = static_cast<int>(list.block_keys),
            shift = keys - static_cast<int>(seq.rows);
  const PlainWindow window(a.mask.window, static_cast<int>(seq.rows), keys);
  const PlainWindow::Span seen = window.keys_of(top, bottom + 1);
  RowChunk chunk{t, first, count};
  chunk.low = max(block * block_keys, seen.low / kGatheredKeys * kGatheredKeys);
  chunk.high = min((block + 1) * block_keys, seen.high);
  // No row sees a key: a tile is walked, all of it hidden.
  if (chunk.low >= chunk.high) chunk.low = block * block_keys, chunk.high = chunk.low + 1;
  chunk.whole_low = window.left ? max(bottom + shift - window.left + 1, 0) : 0;
  chunk.whole_high = window.right ? min(max(top + shift + window.right, 0), keys) : keys;
  return chunk;
}

// Entries ascend by list, then row.
__global__ void __launch_bounds__(kThreads)
    row_chunks_kernel(const __grid_constant__ Attend a, const __grid_constant__ SparseList list,
                      const __grid_constant__ GatheredRows rows, RowChunk* chunk, int32_t* base) {
  const int lane = threadIdx.x % 32;
  for (int t = blockIdx.x * kWarps + threadIdx.x / 32; t < rows.lists; t += gridDim.x * kWarps) {
    const int mine = lane < 2 ? static_cast<int>(rows.order.start_of(rows.entries, t + lane)) : 0;
    const int begin = __shfl_sync(~0u, mine, 0), end = __shfl_sync(~0u, mine, 1);
    const int from = begin / kGatheredRows + t, to = end / kGatheredRows + t + 1;
    if (lane == 0) base[t] = from;
    if (lane == 0 && t + 1 == rows.lists) base[rows.lists] = to;
    for (int c = from + lane; c < to; c += 32) {
      const int first = begin + (c - from) * kGatheredRows, count = min(kGatheredRows, end - first);
      chunk[c] = count > 0 ? chunk_of(a, list, rows, t, first, count) : RowChunk{};
    }
  }
}

// Four columns of a part, which a lane has.
template <bool Half>
struct PartColumns {
  std::conditional_t<Half, uint2, float4> x{};

  __device__ void load(const void* o, int64_t at) {
    constexpr int kBytes = Half ? 2 : 4;
    x = __ldcs(reinterpret_cast<const decltype(x)*>(static_cast<const char*>(o) + at * kBytes));
  }
  __device__ float4 operator()() const {
    if constexpr (Half) {
      const float2 u = pair_of<FOVEA_F16>(x.x), v = pair_of<FOVEA_F16>(x.y);
      return {u.x, u.y, v.x, v.y};
    } else {
      return x;
    }
  }
};

// The merge of a row and head so far, in units of log2.
struct MergedRow {
  float top = kNegativeInfinity, sum = 0;
  float4 o{};

  // The row's top becomes `next`; returns what exponents are taken from.
  __device__ float raise(float next) {
    const float base = next == kNegativeInfinity ? 0.f : next;
    const float fade = top == kNegativeInfinity ? 0.f : exp2f(top - base);
    sum *= fade, o.x *= fade, o.y *= fade, o.z *= fade, o.w *= fade, top = next;
    return base;
  }
};

// Places [n, n + 32), one a lane: `named` says that the lane's has a part.
template <bool Half>
__device__ void merge_some(const GatheredRows& rows, int64_t first, int n, bool named, int64_t e,
                           MergedRow& row) {
  constexpr int kAtOnce = 8;
  const int lane = threadIdx.x % 32, column = lane * 4;
  const uint32_t there = column < e ? ~0u : 0u, some = __ballot_sync(~0u, named) & there;
  const int count = min(32, rows.keep - n);
  PartColumns<Half> part[kAtOnce];
  const auto load = [&](int c0) {
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
      part[c] = {};
      if (some >> (c0 + c) & 1) part[c].load(rows.o, (first + c0 + c) * e + column);
    }
  };
  float2 stats{kNegativeInfinity, 0.f};
  if (named) stats = __ldcs(rows.stats + first + lane);
  load(0);
  const float base = row.raise(fmaxf(row.top, lanes_max<32>(stats.x)));
  const float weight = stats.x == kNegativeInfinity ? 0.f : exp2f(stats.x - base);
  row.sum += lanes_sum<32>(weight);
  // A part whose row sees none of its keys is not read: 0 times NaN.
  const uint32_t live = __ballot_sync(~0u, stats.x != kNegativeInfinity);
  for (int c0 = 0;;) {
#pragma unroll
    for (int c = 0; c < kAtOnce; ++c) {
      const float w = __shfl_sync(~0u, weight * stats.y, c0 + c);
      if (!(live >> (c0 + c) & 1)) continue;
      const float4 o = part[c]();
      row.o.x = fmaf(w, o.x, row.o.x), row.o.y = fmaf(w, o.y, row.o.y);
      row.o.z = fmaf(w, o.z, row.o.z), row.o.w = fmaf(w, o.w, row.o.w);
    }
    c0 += kAtOnce;
    if (c0 >= count) return;
    load(c0);
  }
}

template <bool Half>
__global__ void __launch_bounds__(kThreads, Half ? 3 : 2)
    merge_places_kernel(const __grid_constant__ Attend a, const __grid_constant__ BlockLists lists,
                        const __grid_constant__ GatheredRows rows,
                        const __grid_constant__ GatherPhase phase, int64_t work) {
  const int lane = threadIdx.x % 32;
  for (int64_t w = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; w < work;
       w += int64_t{gridDim.x} * kWarps) {
    const int64_t of = quotient(w, rows.rows), i = w - of * rows.rows;
    const int unit = phase.unit + static_cast<int>(of) / phase.heads,
              head = phase.head + static_cast<int>(of) % phase.heads;
    const int r = unit / rows.x, x = unit - r * rows.x, h = x * rows.group + head;
    const Sequence seq = a.sequences[r];
    if (i >= seq.rows) continue;
    const int64_t first = rows.first_part(phase, unit, head) + i * rows.keep;
    MergedRow row;
    for (int n = 0; n < rows.keep; n += 32) {
      const bool named = n + lane < rows.keep && lists.key(seq, r, x, i, n + lane) >= 0;
      merge_some<Half>(rows, first + n, n, named, a.e, row);
    }
    if (a.score.sink_logit) {
      const float sink = sink_logit(a.score, h) * kLog2E;
      const float base = row.raise(fmaxf(row.top, sink));
      row.sum += sink == kNegativeInfinity ? 0.f : exp2f(sink - base);
    }
    const float inverse = row.sum == 0.f ? 0.f : 1.f / row.sum;
    const float out[4] = {row.o.x * inverse, row.o.y * inverse, row.o.z * inverse,
                          row.o.w * inverse};
    if (lane * 4 < a.e)
      store_four(a.o.data, a.o_dtype, row_offset(seq, i, h, a.o.stride) + lane * 4, out);
    if (a.lse && lane == 0)
      a.lse.as()[lse_offset(seq, i, h, a.lse.stride)] =
          row.sum == 0.f ? kNegativeInfinity : (row.top + log2f(row.sum)) * kLn2;
  }
}

bool half_parts(const Attend& a) {
  return a.dtype == FOVEA_BF16 && a.o_dtype == FOVEA_BF16;
}
// Query heads whose parts fit.
int64_t most_heads(const SparseAttend& call) {
  const Attend& a = call.attend;
  const double of_place = static_cast<double>(a.e * (half_parts(a) ? 2 : 4) + 8),
               of_head = static_cast<double>(a.sequences.query_max) *
                         static_cast<double>(call.list.keep) * of_place;
  const double most = static_cast<double>(kPartBytes) / std::max(of_head, 1.0);
  return most < kPhaseHeads ? static_cast<int64_t>(most) : kPhaseHeads;
}
BlockLists lists_of(const SparseAttend& call) {
  return {call.list, call.attend.sequences, call.list.keep};
}

}  // namespace

bool GatheredSlots::fits(const SparseAttend& call) {
  const ListTranspose order(lists_of(call), 0);
  // Entries, and the work items of a phase, are counted in ints.
  return !*order.refuses() && order.entries < int64_t{1} << 30 &&
         static_cast<int64_t>(order.none) < int64_t{1} << 24 && most_heads(call) > 0;
}

GatheredSlots::GatheredSlots(Layout& layout, const char* op, const SparseAttend& call)
    : lists(lists_of(call)),
      shape{ListTranspose(lists, 0)},
      entries(layout, op, lists, 0, true),
      most(static_cast<int32_t>(most_heads(call))) {
  const Attend& a = call.attend;
  shape.order = entries.order;
  shape.blocks = static_cast<int32_t>(shape.order.tiles);
  shape.lists = static_cast<int32_t>(shape.order.none);
  shape.x = static_cast<int32_t>(call.list.x), shape.group = static_cast<int32_t>(call.list.group);
  shape.rows = static_cast<int32_t>(a.sequences.query_max);
  shape.keep = static_cast<int32_t>(call.list.keep), shape.half = half_parts(a);
  const int64_t units = a.sequences.count * call.list.x;
  chunk = layout.add<RowChunk>(chunks(units)), base = layout.add<int32_t>(shape.lists + 1);
  int64_t heads = 0;
  each_phase([&](const GatherPhase& phase) {
    heads = std::max<int64_t>(heads, int64_t{phase.units} * phase.heads);
  });
  const int64_t parts = heads * shape.rows * shape.keep;
  o = layout.add<unsigned char>(parts, a.e * (shape.half ? 2 : 4));
  stats = layout.add<float2>(parts);
}

GatheredRows GatheredSlots::make(Context& ctx, const char* op, const SparseAttend& call,
                                 void* at) const {
  GatheredRows rows = shape;
  rows.entries = entries.sort(ctx, op, at).entries;
  rows.chunk = chunk.at(at), rows.base = base.at(at);
  rows.o = o.at(at), rows.stats = stats.at(at);
  launch<row_chunks_kernel>(ctx, op, ceil_div(rows.lists, kWarps), kThreads, 0, call.attend,
                            call.list, rows, chunk.at(at), base.at(at));
  return rows;
}

void merge_places(Context& ctx, const char* op, const SparseAttend& call, const GatheredRows& rows,
                  const GatherPhase& phase) {
  const int64_t work = int64_t{phase.units} * phase.heads * rows.rows;
  const int64_t blocks = ceil_div(work, kWarps);
  const auto run = [&]<bool Half> {
    launch<merge_places_kernel<Half>>(ctx, op, blocks, kThreads, 0, call.attend, lists_of(call),
                                      rows, phase, work);
  };
  rows.half ? run.template operator()<true>() : run.template operator()<false>();
}

}  // namespace fovea::cuda
