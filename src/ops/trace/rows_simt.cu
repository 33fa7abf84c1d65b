// SPDX-License-Identifier: Apache-2.0
// Attention over the slots of each item in f32 FMA: every dtype, width, stride and block size.
//   x = scale q k',  m' = max(m, x),  p = e^(x - m'),  l = sum p,  o = sum p v / l,  lse = m + ln l
// A block owns 16 R rows of an item and walks the item's list of key blocks 64 keys at a time (for
// lse_dense the list is of all blocks, values aside).  Thread rows, products, shared memory and
// barriers: block/stage.cuh.
#include "core/dtype.h"
#include "cuda/block/stage_softmax.cuh"
#include "ops/trace/columns.cuh"

namespace fovea::cuda {
namespace {

struct RowsSimt {
  TraceCall call;
  Operand q, k, v;
  View<4> o;
  View<3> lse;
  TraceRow* row;
  int64_t passes;
};

template <int R>
struct RowsShared {
  ListColumns columns;
  ListRows<16 * R> rows;
};

template <int R, int Chunks>
__device__ __forceinline__ void store_rows(const RowsSimt& x, const TraceItem& item, int64_t first,
                                           const StageSoftmax<R>& state,
                                           const float (&o)[Chunks][R][4]) {
  const Attend& a = x.call.a.attend;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const StageRow end = state.end(r, -INFINITY);
    const int64_t i = first + ty + 16 * r;
    if (i >= item.first + item.rows) continue;
    const float share = end.sum == 0 ? 0 : 1 / end.sum;
    if (tx == 0 && x.lse) x.lse.as()[item.row(x.lse, i)] = end.lse();
    if (tx == 0 && x.row) x.row[item.number / x.call.a.n * a.s + i] = {end.top, share};
    if (!x.o) continue;
    const int64_t to = item.row(x.o, i);
#pragma unroll
    for (int chunk = 0; chunk < Chunks; ++chunk)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = chunk * kStageTile + 4 * tx + c;
        if (column < a.e)
          store_float(x.o.data, a.o_dtype, to + column * x.o.stride[3],
                      end.sum == 0 ? 0 : o[chunk][r][c] * share);
      }
  }
}

// Dense: every key block is in the list.
template <int R, int Chunks, bool Dense>
__global__ void __launch_bounds__(kStageThreads)
    rows_simt_kernel(const __grid_constant__ RowsSimt x) {
  extern __shared__ float4 s_dynamic[];
  __shared__ RowsShared<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Trace& a = x.call.a;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
  for (int64_t w = blockIdx.x; w < x.call.items * x.passes; w += gridDim.x) {
    const TraceItem item(a, w / x.passes);
    const int64_t from = w % x.passes * 16 * R;
    if (from >= item.rows) continue;
    __syncthreads();  // the last item is done with
    s.rows.fill(a, item, from, 16 * R);
    const int64_t last = item.rows < from + 16 * R ? item.rows : from + 16 * R;
    const int64_t end = a.seen(item.seq, item.first + last - 1);
    const int64_t count = Dense ? a.blocks_of(end) : a.keep;
    const int32_t* list = Dense ? nullptr : x.call.slots.selected + item.number * a.keep;
    StageSoftmax<R> state;
    float o[Chunks][R][4] = {};
    for (int64_t tile = 0; tile < list_tiles(a, count); ++tile) {
      __syncthreads();
      s.columns.fill(a, item, tile, count, end, [&](int64_t slot) -> int64_t {
        if (!Dense) return list[slot];
        return a.first_valid(item.seq, item.head, item.block, slot, slot + 1);
      });
      __syncthreads();
      float p[R][4] = {};
      multiply_nt(
          p, tiles, x.q.width,
          [&](int row, int column) { return load_four(x.q, s.rows.q[row], column); },
          [&](int row, int column) { return load_four(x.k, s.columns.k[row], column); });
      state.weigh(p, o, [&](int r, int c, float product) {
        return s.columns.key[tx + 16 * c] < s.rows.seen[ty + 16 * r]
                   ? product * a.attend.score.scale
                   : -INFINITY;
      });
      if (!x.o) continue;
      put_p(tiles, p);
      multiply_nn(o, tiles, x.v.width, kStageTile,
                  [&](int row, int column) { return load_four(x.v, s.columns.v[row], column); });
    }
    store_rows(x, item, item.first + from, state, o);
  }
}

template <int Chunks, bool Dense>
void launch_rows(Context& ctx, RowsSimt x) {
  const int rows = pass_rows(x.call.a);
  x.passes = ceil_div(x.call.a.block_rows, rows);
  const int64_t work = x.call.items * x.passes;
  if (rows == 16)
    launch<rows_simt_kernel<1, Chunks, Dense>>(ctx, kTraceOp, work, kStageThreads,
                                               FmaTiles<1>::bytes(), x);
  else
    launch<rows_simt_kernel<4, Chunks, Dense>>(ctx, kTraceOp, work, kStageThreads,
                                               FmaTiles<4>::bytes(), x);
}

RowsSimt rows_of(const TraceCall& call) {
  const Attend& a = call.a.attend;
  RowsSimt x{};
  x.call = call;
  x.q = operand_of(a.q, a.dtype, a.d), x.k = operand_of(a.k, a.dtype, a.d);
  x.v = operand_of(a.v, a.dtype, a.e);
  return x;
}

}  // namespace

void rows_simt(Context& ctx, const TraceCall& call) {
  RowsSimt x = rows_of(call);
  x.o = call.a.attend.o, x.lse = call.a.attend.lse, x.row = call.slots.row;
  const int64_t chunks = x.o ? ceil_div(call.a.attend.e, kStageTile) : 1;
  if (chunks <= 1)
    launch_rows<1, false>(ctx, x);
  else if (chunks <= 2)
    launch_rows<2, false>(ctx, x);
  else if (chunks <= 4)
    launch_rows<4, false>(ctx, x);
  else
    launch_rows<9, false>(ctx, x);
}

void dense_simt(Context& ctx, const TraceCall& call) {
  RowsSimt x = rows_of(call);
  x.lse = call.a.lse_dense;
  launch_rows<1, true>(ctx, x);
}

}  // namespace fovea::cuda
