// SPDX-License-Identifier: Apache-2.0
// The portable kernel, for every valid x_sparse_forward, and the mass of each key.
//   mass: a block owns a tile of rows, as in the forward, and adds p = exp(score - lse) to sums in
//   units of 2^-40.  Integers add to the same sum in any order.
#include "ops/sparse/forward_simt.cuh"

#include "core/dtype.h"
#include "ops/sparse/kernels.h"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_sparse_forward";
constexpr float kMassUnits = 0x1p40f;
constexpr int kThreads = 256;

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

struct MassSlots {
  Slot<float> lse;  // where the caller wants none
  Slot<unsigned long long> sum;
  Slot<int32_t> odd;
};

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
  simt.grid.work /= grid.splits, simt.grid.splits = 1, simt.skipped = nullptr;
  if (grid.few)
    launch<mass_kernel<1>>(ctx, kOp, simt.grid.work, kStageThreads, FmaTiles<1>::bytes(), simt,
                           mass);
  else
    launch<mass_kernel<4>>(ctx, kOp, simt.grid.work, kStageThreads, FmaTiles<4>::bytes(), simt,
                           mass);
  const auto work = static_cast<int64_t>(slots.sum.count);
  launch<store_mass_kernel>(ctx, kOp, ceil_div(work, kThreads), kThreads, 0, call, mass, work);
}

Text offer(const Context& ctx, const SparseAttend& call, Plan& plan) {
  const Attend& a = call.attend;
  ListGrid grid(call);
  const int64_t key_tiles = std::max<int64_t>(1, ceil_div(call.keys_bound(), kStageTile));
  const int64_t wanted =
      a.splits ? a.splits : auto_splits(grid.tiles, key_tiles, 0, true, device_info(ctx));
  const int64_t splits = call.skip_margin > 0 ? 1 : clamp_i64(wanted, 1, key_tiles);
  grid.split(splits);

  plan.kernel +=
      Text(".") + dtype_name(a.dtype) + (a.codes() ? ".codes" : "") + (splits > 1 ? ".split" : "");
  PartialSlots slots;
  if (splits > 1) slots = PartialSlots(plan.workspace, a, splits);
  MassSlots mass;
  if (call.mass) {
    if (!a.lse) mass.lse = plan.workspace.add<float>(a.b, a.h, a.s);
    mass.sum =
        plan.workspace.add<unsigned long long>(a.sequences.count, call.list.x, a.sequences.key_max);
    mass.odd = plan.workspace.add<int32_t>(a.sequences.count, call.list.x, a.sequences.key_max);
  }
  plan.launch = [=](Context& ctx, void* base) {
    SparseAttend s = call;
    if (float* lse = mass.lse.at(base)) s.attend.lse = {lse, {a.h * a.s, a.s, 1}};
    if (s.skipped) check(cudaMemsetAsync(s.skipped, 0, sizeof(int64_t), stream(ctx)), kOp);
    if (!grid.work) return;
    Partials parts{};
    if (splits > 1) parts = slots.at(base, a, splits), parts.skip_head = s.skip_head;
    with_chunks(a.e, [&]<int Chunks> {
      grid.few ? sparse_simt<1, Chunks>(ctx, s, grid, parts)
               : sparse_simt<4, Chunks>(ctx, s, grid, parts);
    });
    if (splits > 1) combine(ctx, kOp, s.attend, parts);
    if (s.mass) add_mass(ctx, s, grid, mass, base);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<SparseAttend> x_sparse_forward_simt = {"simt", cuda::offer};

}  // namespace fovea
