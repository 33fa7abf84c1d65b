// SPDX-License-Identifier: Apache-2.0
// The selection in f32 FMA: every dtype, width, stride and block size, exact or not.
//   score(u) = max over the valid pairs of row block and key block u of sum_c q_mc k_tc
// The sum is a chain of fused multiply-adds over c = 0 .. d-1 from 0, as block/stage.cuh makes it.
// A block takes an item.  It scores representatives 64 keys at a time against 16 R rows.
// Thread rows, products, shared memory and barriers: block/stage.cuh.  Branches: branches.cuh.
#include "cuda/block/reduce.cuh"
#include "ops/trace/branches.cuh"
#include "ops/trace/columns.cuh"

namespace fovea::cuda {
namespace {

constexpr int kRowsMost = 128;

struct SelectSimt {
  TraceCall call;
  Operand q, k;
};

struct SelectShared {
  Branches<kKeepMost> tree;
  ListColumns columns;
  ListRows<kRowsMost> rows;
};

// The largest valid product of each entry of the list.
template <int R, class Tree>
__device__ __forceinline__ void score_list(const SelectSimt& x, const TraceItem& item,
                                           SelectShared& s, const FmaTiles<R>& tiles,
                                           const Tree& tree, int parity, bool final) {
  const Trace& a = x.call.a;
  const int ty = threadIdx.x / 16, tx = threadIdx.x % 16, count = s.tree.list[parity].count;
  for (int64_t tile = 0; tile < list_tiles(a, count); ++tile) {
    __syncthreads();
    s.columns.fill(a, item, tile, count, item.seq.keys,
                   [&](int64_t slot) { return s.tree.fresh[slot]; });
    __syncthreads();
    for (int from = 0; from < item.rows; from += 16 * R) {
      float acc[R][4] = {};
      list_products(acc, tiles, x.q, x.k, s.rows, from, s.columns);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int column = tx + 16 * c;
        float best = -INFINITY;
#pragma unroll
        for (int r = 0; r < R; ++r)
          if (s.columns.key[column] < s.rows.seen[from + ty + 16 * r])
            best = fmaxf(best, acc[r][c]);
        best = lanes_max<16>(best);
        const int64_t slot = (tile * kStageTile + 16 * c) / a.block_keys;
        if (tx == 0 && slot < count) tree.raise(final, static_cast<int>(slot), ordered(best));
      }
    }
  }
}

template <int R>
__global__ void __launch_bounds__(kStageThreads, 2)
    select_simt_kernel(const __grid_constant__ SelectSimt x) {
  extern __shared__ float4 s_dynamic[];
  __shared__ SelectShared s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Trace& a = x.call.a;
  for (int64_t w = blockIdx.x; w < x.call.items; w += gridDim.x) {
    const TraceItem item(a, w);
    const BranchTree<kKeepMost, kStageThreads> tree(a, item, s.tree);
    __syncthreads();  // the last item is done with
    s.rows.fill(a, item, 0, kRowsMost);
    if (threadIdx.x == 0) tree.clear(0);
    __syncthreads();
    const int rounds = a.rounds(a.blocks_of(item.seq.keys));
    tree.start(0, rounds == 0);
    __syncthreads();
    score_list<R>(x, item, s, tiles, tree, 0, rounds == 0);
    for (int round = 1; round <= rounds; ++round) {
      const int parity = round % 2;
      __syncthreads();
      tree.rank();
      if (threadIdx.x == 0) tree.clear(parity);
      __syncthreads();
      // Ranges of one block have no halves, and branches in order stay in order.
      if (round == rounds || !s.tree.list[parity ^ 1].wide) break;
      tree.split(parity, false);
      __syncthreads();
      score_list<R>(x, item, s, tiles, tree, parity, false);
    }
    __syncthreads();
    tree.store(x.call.slots);
  }
}

}  // namespace

void select_simt(Context& ctx, const TraceCall& call) {
  const Attend& a = call.a.attend;
  const SelectSimt x{call, operand_of(a.q, a.dtype, a.d), operand_of(a.k, a.dtype, a.d)};
  with_passes(call.a, [&]<int R> {
    launch<select_simt_kernel<R>>(ctx, kTraceOp, call.items, kStageThreads, FmaTiles<R>::bytes(),
                                  x);
  });
}

}  // namespace fovea::cuda
