// SPDX-License-Identifier: Apache-2.0
// Which calls of x_select_block the Hopper kernel takes, and their launches: what each list row
// sees, then for a chunk of list rows the scores of the columns that they see
// (block_sums_sm90.cuh) and their lists (block_list_sm80.cuh).
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/loop/hopper.h"
#include "cuda/tile/order.cuh"
#include "ops/select/block_sums.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int64_t kChunkBytes = int64_t{60} << 20;
constexpr int64_t kUnitsMost = 4096;  // of a chunk: each block counts their tiles
constexpr int64_t kUnitSums = 256;    // rows x heads

// nullptr: no row of block_sums.inc in this build.
const BlockSumsInstance90* instance_of(const SelectBlock& a) {
  static const std::vector<BlockSumsInstance90> rows = {
#define FOVEA_INSTANCE(dtype, width, heads) select_block_sums_sm90_instance<dtype, width, heads>(),
#include "instances/select_block_sums_sm90.inc"
#undef FOVEA_INSTANCE
  };
  const BlockSumsInstance90* best = nullptr;
  for (const BlockSumsInstance90& row : rows)
    if (row.dtype == a.row_dtype && a.d <= row.width && a.group() == row.heads &&
        (!best || row.width < best->width))
      best = &row;
  return best;
}

// "" or what of the call the kernel does not take, but for instances and maps.
Text refuses(const Context& ctx, const SelectBlock& a) {
  if (Text why = block_refuses_sm80(ctx, a); !why.empty()) return why;
  if (Text why = hopper_refuses(ctx, a.row_dtype, a.sequences); !why.empty()) return why;
  if (!a.row_lse) return "row_lse is absent, wanted one";
  if (a.row_dtype != a.column_dtype)
    return reason_dtype("column.dtype", a.column_dtype, a.row_dtype, "row");
  if (a.box) return "measure is box, wanted dot";
  if (a.reduce != FOVEA_X_SELECT_REDUCE_SUM && a.reduce != FOVEA_X_SELECT_REDUCE_MEAN)
    return reason("reduce", a.reduce, "sum or mean");
  if (a.x < a.g) return reason("x", a.x, "list heads of one column head, at least g");
  if (a.block_mask) return reason_given("block_mask");
  if (a.column_forced) return reason_given("column_forced");
  if (a.sequences.query_start) return reason_given("query_start");
  if (a.sequences.key_start) return reason_given("key_start");
  if (!a.u) return "there are no columns";
  return "";
}

constexpr int kSeenThreads = 256;

// Once a call: the scores' producer has no time for find_row()'s divisions in each work unit.
__global__ void seen_kernel(const __grid_constant__ SelectBlock a, int32_t* seen) {
  pdl_wait();
  pdl_trigger();
  const int64_t row = int64_t{blockIdx.x} * kSeenThreads + threadIdx.x;
  if (row >= a.b * a.n) return;
  RowSpan at;
  seen[row] = find_row(a, row / a.n, row % a.n, at) ? at.seen : 0;
}

struct BlockSumsSlots90 {
  BlockSums90 call{};
  Slot<float> score;
  Slot<int32_t> seen;
  int64_t batches, rows;  // of a chunk

  explicit BlockSumsSlots90(const SelectBlock& a) {
    SelectProduct& x = call.x;
    x.a = a, x.lines = a.x, x.reduced = true, x.sides = x.row_parts = x.parts = x.splits = 1;
    x.pitch = static_cast<int>((a.u + 3) / 4 * 4);
    const int64_t each = kUnitSums / a.group(), row_bytes = 4 * a.x * x.pitch;
    const auto fit = [](int64_t most, int64_t all) {
      return std::max<int64_t>(1, std::min(most, all));
    };
    const int64_t units = std::max<int64_t>(1, kUnitsMost / a.x);
    batches = fit(std::min(kChunkBytes / (row_bytes * std::min(a.n, each)), units), a.b);
    rows = fit(std::min(kChunkBytes / (row_bytes * batches), units / batches * each), a.n);
    if (rows > each && rows < a.n) rows = rows / each * each;
  }
};

void run(Context& ctx, const BlockSumsSlots90& slots, const BlockSumsInstance90& row,
         const BlockSumsMaps90& maps, void* base) {
  BlockSums90 call = slots.call;
  const SelectBlock& a = call.x.a;
  call.x.score = slots.score.at(base), call.seen = slots.seen.at(base);
  launch_pdl<seen_kernel>(ctx, "x_select_block", ceil_div(a.b * a.n, kSeenThreads), kSeenThreads, 0,
                          a, call.seen);
  for (int64_t b0 = 0; b0 < a.b; b0 += slots.batches)
    for (int64_t n0 = 0; n0 < a.n; n0 += slots.rows) {
      call.chunk = {b0, std::min(a.b - b0, slots.batches), n0, std::min(a.n - n0, slots.rows)};
      call.groups = static_cast<int32_t>(ceil_div(call.chunk.rows * a.group(), kUnitSums));
      call.units = static_cast<int32_t>(call.groups * a.x * call.chunk.batches);
      row.run(ctx, call, maps);
      run_lists(ctx, call.x, call.chunk);
    }
}

Text offer(const Context& ctx, const SelectBlock& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  const BlockSumsInstance90* row = instance_of(a);
  if (!row) return no_instance(a.row_dtype, "d", a.d, "query heads of a list head", a.group());
  BlockSumsMaps90 maps;
  const MapOf rows{
      a.row, a.row_dtype, a.b, a.n, a.h, a.d, static_cast<int>(kUnitSums / row->heads), row->heads};
  constexpr int kTile = 128;
  const MapOf columns{a.column, a.column_dtype, a.b, a.u, a.g, a.d, kTile};
  if (Text why = map_each({{"row", rows, maps.row}, {"column", columns, maps.column}});
      !why.empty())
    return why;
  BlockSumsSlots90 slots(a);
  slots.score =
      plan.workspace.add<float>(slots.batches, slots.rows, slots.call.x.lines, slots.call.x.pitch);
  slots.seen = plan.workspace.add<int32_t>(a.b, a.n);
  plan.kernel += Text(".") + dtype_name(a.row_dtype) + ".d" + Text::number(row->width) + ".h" +
                 Text::number(row->heads);
  plan.launch = [=](Context& run_on, void* base) { run(run_on, slots, *row, maps, base); };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<SelectBlock> x_select_block_sm90 = {"sm90", cuda::offer};

}  // namespace fovea
