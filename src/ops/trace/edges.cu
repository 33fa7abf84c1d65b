// SPDX-License-Identifier: Apache-2.0
// The list of edges.  An exclusive prefix sum of counts says where an item's records begin, so the
// bytes are the same each run.  A warp takes an item.  Its lanes write neighbouring words: the list
// may lie in host memory.
#include <cub/device/device_scan.cuh>

#include "ops/trace/stages.cuh"

namespace fovea::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// Counts of all items and a 0 after them: the scan's last sum is the total.
__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ TraceCall call) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  const int lane = threadIdx.x % 32, keep = static_cast<int>(call.a.keep);
  for (int64_t item = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; item <= call.items;
       item += step) {
    int count = 0;
    for (int b = 0; item < call.items && b < keep; b += 32) {
      const bool there = b + lane < keep && call.slots.selected[item * keep + b + lane] >= 0;
      count += __popc(__ballot_sync(~0u, there));
    }
    if (lane == 0) call.slots.first[item] = count;
  }
}

struct Record {
  int32_t key_block;
  float weight;
};

// `count` neighbouring records from row `row` on; lane i holds record i.
__device__ __forceinline__ void write_records(const Trace& a, int64_t item, int64_t row, int count,
                                              const Record& own, bool woven) {
  const int lane = threadIdx.x % 32, words = woven ? 5 : 4;
  for (int at = lane; at < (count * words + 31) / 32 * 32; at += 32) {
    const int record = at / words, word = at % words;
    const int32_t key_block = __shfl_sync(~0u, own.key_block, record % 32);
    const float weight = __shfl_sync(~0u, own.weight, record % 32);
    if (record >= count) continue;
    const int32_t value = word == 0   ? a.layer
                          : word == 1 ? static_cast<int32_t>(item / a.n)
                          : word == 2 ? static_cast<int32_t>(item % a.n)
                          : word == 3 ? key_block
                                      : __float_as_int(weight);
    if (a.edge)
      a.edge.as<int32_t>()[(row + record) * a.edge.stride[0] + word * a.edge.stride[1]] = value;
  }
  if (!woven && a.edge_weight && lane < count)
    a.edge_weight.as()[(row + lane) * a.edge_weight.stride[0]] = own.weight;
}

// woven: `edge` and `edge_weight` are records of five words.
__global__ void __launch_bounds__(kThreads)
    records_kernel(const __grid_constant__ TraceCall call, bool woven) {
  const Trace& a = call.a;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps, offset = a.edge_begin();
  const int lane = threadIdx.x % 32, keep = static_cast<int>(a.keep);
  for (int64_t item = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32; item < call.items;
       item += step) {
    int64_t row = offset + call.slots.first[item];
    for (int b = 0; b < keep && row < a.cap; b += 32) {
      const int64_t slot = item * keep + b + lane;
      const int32_t own = b + lane < keep ? call.slots.selected[slot] : -1;
      const uint32_t there = __ballot_sync(~0u, own >= 0);
      // Lane i takes the i-th slot that is not empty.
      const uint32_t from = __fns(there, 0, lane + 1), taken = from < 32 ? from : 0;
      Record record{__shfl_sync(~0u, own, static_cast<int>(taken)), 0};
      if (a.edge_weight && from < 32) {
        const int64_t at = item * keep + b + from;
        record.weight = a.edge_kind == FOVEA_EDGE_KIND_MASS ? call.slots.mass[at]
                        : a.edge_kind == FOVEA_EDGE_KIND_SCORE
                            ? call.slots.score[at] * a.score_scale
                            : call.slots.score[at] * a.attend.score.scale;
      }
      const int64_t left = a.cap - row;
      const int count = __popc(there);
      write_records(a, item, row, static_cast<int>(left < count ? left : count), record, woven);
      row += count;
    }
  }
}

// After the records: edge_count may be edge_offset.
__global__ void end_kernel(const __grid_constant__ TraceCall call) {
  *call.a.edge_count.as<int64_t>() = call.a.edge_begin() + call.slots.first[call.items];
}

cudaError_t scan(void* scratch, size_t& bytes, int64_t* x, int64_t count, cudaStream_t stream) {
  return cub::DeviceScan::ExclusiveSum(scratch, bytes, x, x, count, stream);
}

bool is_woven(const Trace& a) {
  return a.edge && a.edge_weight && a.edge.stride[0] == 5 && a.edge.stride[1] == 1 &&
         a.edge_weight.stride[0] == 5 && a.edge_weight.as<int32_t>() == a.edge.as<int32_t>() + 4;
}

}  // namespace

size_t edges_scan_bytes(int64_t items) {
  size_t bytes = 0;
  check(scan(nullptr, bytes, nullptr, items + 1, nullptr), kTraceOp);
  return bytes;
}

void edges(Context& ctx, const TraceCall& call) {
  const int64_t blocks = ceil_div(call.items + 1, kWarps);
  launch<count_kernel>(ctx, kTraceOp, blocks, kThreads, 0, call);
  size_t bytes = call.slots.scan_bytes;
  check(scan(call.slots.scan, bytes, call.slots.first, call.items + 1, stream(ctx)), kTraceOp);
  if (call.a.cap)
    launch<records_kernel>(ctx, kTraceOp, blocks, kThreads, 0, call, is_woven(call.a));
  launch<end_kernel>(ctx, kTraceOp, 1, 1, 0, call);
}

}  // namespace fovea::cuda
