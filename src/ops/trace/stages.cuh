// SPDX-License-Identifier: Apache-2.0
// A trace on CUDA is four stages over slots in the workspace, `keep` of each item.
// An item is (batch, head, row block), row block fastest.
//
//   | stage  | makes                                                                          |
//   | select | an item's slots from its branches, and the outputs made of scores alone        |
//   | rows   | o, lse and each row's sum over the slots; lse_dense: every key block is a slot |
//   | weigh  | mass and value of each slot, from the sums of the rows                         |
//   | edges  | records of the slots that are not empty, by a prefix scan over the items       |
//
// The portable kernel of a stage runs where no tuned one fits.
#pragma once
#include "core/workspace.h"
#include "cuda/launch.h"
#include "cuda/tensor_map.h"
#include "ops/trace/kernels.h"

namespace fovea::cuda {

constexpr char kTraceOp[] = "trace_forward";

// A row's weights are e^(x - top) share.
struct TraceRow {
  float top, share;
};

// What a stage passes to later ones; nullptr where none reads it.
struct TraceSlots {
  int32_t* selected;  // (items, keep), in branch order
  int32_t* list;      // (items, keep), ascending
  int32_t* count;     // (items): entries of the list
  float* score;       // (items, keep): the products themselves, +0 for a zero
  float* mass;        // (items, keep)
  TraceRow* row;      // (b, h, s)
  int64_t* first;     // (items + 1): records before an item
  void* scan;
  size_t scan_bytes;
};

struct TraceCall {
  Trace a;
  TraceSlots slots;
  int64_t items;
};

struct TraceItem {
  Sequence seq;
  int64_t number, block, head, key_head, first, rows, keep, reach;

  __device__ TraceItem(const Trace& a, int64_t number)
      : seq(a.attend.sequences[number / a.n / a.attend.h]),
        number(number),
        block(number % a.n),
        head(number / a.n % a.attend.h),
        key_head(head / (a.attend.h / a.attend.g)),
        first(block * a.block_rows),
        rows(a.rows_of(block)),
        keep(a.keep_of(block)),
        reach(a.reach(seq, block)) {}

  template <int N>
  __device__ int64_t slot(const View<N>& x, int64_t slot) const {
    return seq.batch * x.stride[0] + head * x.stride[1] + block * x.stride[2] + slot * x.stride[3];
  }
  // Element offset of row i of the sequence in a (b, s, h, ...) and a (b, h, s) tensor.
  __device__ int64_t row(const View<4>& x, int64_t i) const {
    return seq.batch * x.stride[0] + i * x.stride[1] + head * x.stride[2];
  }
  __device__ int64_t row(const View<3>& x, int64_t i) const {
    return seq.batch * x.stride[0] + head * x.stride[1] + i * x.stride[2];
  }
};

// Scores as ints in the same order; NaN counts as -inf, -0 as +0.
__device__ __forceinline__ int ordered(float x) {
  const int bits = __float_as_int(fmaxf(x, -INFINITY) + 0.f);
  return bits >= 0 ? bits : bits ^ 0x7fffffff;
}
__device__ __forceinline__ float unordered(int x) {
  return __int_as_float(x >= 0 ? x : x ^ 0x7fffffff);
}

void select_simt(Context& ctx, const TraceCall& call);
void rows_simt(Context& ctx, const TraceCall& call);
void dense_simt(Context& ctx, const TraceCall& call);
void weigh_simt(Context& ctx, const TraceCall& call);
size_t edges_scan_bytes(int64_t items);
void edges(Context& ctx, const TraceCall& call);

}  // namespace fovea::cuda
