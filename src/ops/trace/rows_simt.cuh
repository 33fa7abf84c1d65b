// SPDX-License-Identifier: Apache-2.0
// Attention over the slots of each item on the portable flash loop (loop/attend_simt.cuh): every
// dtype, width, stride and block size.  A block owns 16 R rows of an item and loops over its list
// of key blocks, 64 keys at a time.  For lse_dense the list has all blocks, and values are not
// read.
#pragma once
#include "cuda/loop/attend_simt.cuh"
#include "ops/trace/columns.cuh"
#include "ops/trace/rows.cuh"

namespace fovea::cuda {

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

// KeySource: the key blocks of a list, contiguous or paged.  Dense: all key blocks.
template <bool Dense>
struct ListKeys {
  const Trace& a;
  const TraceItem& item;
  ListColumns& columns;
  const int32_t* list;
  int64_t seen, slots;
  int64_t begin = 0, end = list_tiles(a, slots);

  __device__ int64_t operator[](int64_t n) const { return n * kStageTile; }
  __device__ static int count(int64_t) { return kStageTile; }
  __device__ bool place(int64_t at) const {
    columns.fill(a, item, at / kStageTile, slots, seen, [&](int64_t slot) -> int64_t {
      if (!Dense) return list[slot];
      return a.first_valid(item.seq, item.head, item.block, slot, slot + 1);
    });
    return false;
  }
};

template <int R>
struct ListScore : TileScores<R> {
  const RowsSimt& x;
  const RowsShared<R>& s;
  int width = x.v.width;

  __device__ bool products(float (&p)[R][4], int64_t) const {
    list_products(p, this->tiles, x.q, x.k, s.rows, 0, s.columns);
    return true;
  }
  __device__ auto logits(int64_t, bool) const {
    return [this](int r, int c, float product) {
      const int m = threadIdx.x / 16 + 16 * r, n = threadIdx.x % 16 + 16 * c;
      return s.columns.key[n] < s.rows.seen[m] ? product * x.call.a.attend.score.scale : -INFINITY;
    };
  }
  __device__ bool weighs() const { return x.o.data != nullptr; }
  __device__ float4 values(int row, int column) const {
    return load_four(x.v, s.columns.v[row], column);
  }
};

// Epilogue: o, lse and the TraceRow.
struct ListEpilogue {
  const RowsSimt& x;
  const TraceItem& item;
  int64_t first;

  __device__ bool there(int m) const { return first + m < item.first + item.rows; }
  __device__ static float sink(int) { return -INFINITY; }
  __device__ RowPlace place(int m) const {
    const int64_t i = first + m;
    return {x.o.data, x.call.a.attend.o_dtype, item.row(x.o, i), x.o.stride[3],
            x.lse ? x.lse.as() + item.row(x.lse, i) : nullptr};
  }
  __device__ float factor(int m, const StageRow& end) const {
    const float share = end.sum == 0 ? 0 : 1 / end.sum;
    const Trace& a = x.call.a;
    if (threadIdx.x % 16 == 0 && x.row)
      x.row[item.number / a.n * a.attend.s + first + m] = {end.top, share};
    return share;
  }
};

template <int R, int Chunks, bool Dense>
__global__ void __launch_bounds__(kStageThreads)
    rows_simt_kernel(const __grid_constant__ RowsSimt x) {
  extern __shared__ float4 s_dynamic[];
  __shared__ RowsShared<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Trace& a = x.call.a;
  for (int64_t w = blockIdx.x; w < x.call.items * x.passes; w += gridDim.x) {
    const TraceItem item(a, w / x.passes);
    const int64_t from = w % x.passes * 16 * R;
    if (from >= item.rows) continue;
    __syncthreads();  // the last item is done with
    s.rows.fill(a, item, from, 16 * R);
    const int64_t last = item.rows < from + 16 * R ? item.rows : from + 16 * R;
    const int64_t seen = a.seen(item.seq, item.first + last - 1);
    const int32_t* list = Dense ? nullptr : x.call.slots.selected + item.number * a.keep;
    const ListKeys<Dense> keys{a, item, s.columns, list, seen, Dense ? a.blocks_of(seen) : a.keep};
    attend_simt<Chunks>(tiles, keys, ListScore<R>{{tiles}, x, s},
                        ListEpilogue{x, item, item.first + from});
  }
}

template <int Chunks, bool Dense>
void rows_simt(Context& ctx, const TraceCall& call) {
  const Attend& a = call.a.attend;
  RowsSimt x{call,
             operand_of(a.q, a.dtype, a.d),
             operand_of(a.k, a.dtype, a.d),
             operand_of(a.v, a.dtype, a.e),
             {},
             {},
             nullptr,
             0};
  if (Dense)
    x.lse = call.a.lse_dense;
  else
    x.o = a.o, x.lse = a.lse, x.row = call.slots.row;
  with_passes(call.a, [&]<int R> {
    x.passes = ceil_div(call.a.block_rows, 16 * R);
    launch<rows_simt_kernel<R, Chunks, Dense>>(ctx, kTraceOp, call.items * x.passes, kStageThreads,
                                               FmaTiles<R>::bytes(), x);
  });
}

}  // namespace fovea::cuda

#define FOVEA_INSTANCE(dtype, columns, dense)                                \
  template void fovea::cuda::rows_simt<columns / 64, dense>(fovea::Context&, \
                                                            const fovea::cuda::TraceCall&);
