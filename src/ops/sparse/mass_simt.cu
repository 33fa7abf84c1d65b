// SPDX-License-Identifier: Apache-2.0
// mass of x_sparse_forward: what each key was given.
//   A block owns a tile of rows, as in the forward, and adds p = exp(score - lse) to sums in units
//   of 2^-40.  Integers add to the same sum in any order.
#include "ops/sparse/mass.cuh"

#include "ops/sparse/forward_simt.cuh"

namespace fovea::cuda {
namespace {

constexpr char kOp[] = "x_sparse_forward";
constexpr float kMassUnits = 0x1p40f;
constexpr int kThreads = 256;

// As they are summed, (r, x, keys); and a mark where a p was no number.
struct MassSums {
  unsigned long long* sum;
  int32_t* odd;
  int64_t keys;  // pitch
};

template <int R>
__global__ void __launch_bounds__(kStageThreads)
    mass_kernel(const __grid_constant__ ListSimt call, const __grid_constant__ MassSums mass) {
  extern __shared__ float4 s_dynamic[];
  __shared__ ListShared<R> s;
  const FmaTiles<R> tiles(reinterpret_cast<float*>(s_dynamic));
  const Attend& a = call.s.attend;
  for (int64_t w = blockIdx.x; w < call.grid.work; w += gridDim.x) {
    const ListItem item(call.grid, w);
    if (!stage_list_rows(call.s, call.grid, item, s, [&](int m, int64_t packed) {
          const bool there = s.rows[m].i >= 0;
          s.q_value[m] = there ? s.piece.offset(packed, a.q_value.stride) : -1;
          s.top[m] = -INFINITY;
          s.rows[m].lse = there ? a.lse.as()[s.piece.lse_offset(packed, a.lse.stride)] : INFINITY;
        }))
      continue;
    const int64_t head = item.unit * call.grid.heads;
    const ListKeys<R> keys(call.s, s, item, 1, head);
    const ListScore<R> score{{tiles}, call, s, keys};
    const int64_t at = (item.r * call.s.list.x + call.s.list.head_of(head)) * mass.keys;
    sweep_keys(keys, [&](int64_t n, bool missing) {
      float x[R][4] = {};
      if (!score.products(x, n)) return;
      const ListLogits<R> logits = score.logits(n, missing);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const KeyInfo& key = s.keys[threadIdx.x % 16 + 16 * c];
        unsigned long long sum = 0;
        bool odd = false;
#pragma unroll
        for (int r = 0; r < R; ++r) {
          const RowInfo& row = s.rows[threadIdx.x / 16 + 16 * r];
          const float y = logits(r, c, x[r][c]);
          if (row.i < 0 || y == -INFINITY) continue;
          const float p = expf(y - row.lse);
          odd |= !(p <= 2.f);
          if (p <= 2.f) sum += __float2ull_rn(p * kMassUnits);
        }
        if (key.k < 0) continue;
        if (sum) atomicAdd(mass.sum + at + key.j, sum);
        if (odd) mass.odd[at + key.j] = 1;
      }
    });
  }
}

__global__ void __launch_bounds__(kThreads)
    store_mass_kernel(const __grid_constant__ SparseAttend call,
                      const __grid_constant__ MassSums mass, int64_t work) {
  for (int64_t w = int64_t{blockIdx.x} * kThreads + threadIdx.x; w < work;
       w += int64_t{gridDim.x} * kThreads) {
    const int64_t j = w % mass.keys, x = w / mass.keys % call.list.x;
    const Sequence q = call.attend.sequences[w / mass.keys / call.list.x];
    if (j >= q.keys) continue;
    float* to = call.mass.at(q.key_b, x, q.key_begin + j);
    if (mass.odd[w])
      *to = INFINITY - INFINITY;
    else if (mass.sum[w])
      *to += static_cast<float>(static_cast<double>(mass.sum[w]) / static_cast<double>(kMassUnits));
  }
}

}  // namespace

void add_mass(Context& ctx, const SparseAttend& call, const ListGrid& grid, const MassSlots& slots,
              void* base) {
  const MassSums mass{slots.sum.at(base), slots.odd.at(base), call.attend.sequences.key_max};
  if (!mass.sum) return;
  const auto clear = [&](void* data, size_t bytes) {
    check(cudaMemsetAsync(data, 0, bytes, stream(ctx)), kOp);
  };
  clear(mass.sum, slots.sum.count * sizeof(*mass.sum));
  clear(mass.odd, slots.odd.count * sizeof(*mass.odd));
  ListSimt simt(call, grid, {});
  simt.grid.work /= grid.splits, simt.grid.splits = 1, simt.s.skipped = nullptr;
  if (grid.few)
    launch<mass_kernel<1>>(ctx, kOp, simt.grid.work, kStageThreads, FmaTiles<1>::bytes(), simt,
                           mass);
  else
    launch<mass_kernel<4>>(ctx, kOp, simt.grid.work, kStageThreads, FmaTiles<4>::bytes(), simt,
                           mass);
  const auto work = static_cast<int64_t>(slots.sum.count);
  launch<store_mass_kernel>(ctx, kOp, ceil_div(work, kThreads), kThreads, 0, call, mass, work);
}

}  // namespace fovea::cuda
