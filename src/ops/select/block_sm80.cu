// SPDX-License-Identifier: Apache-2.0
// x_select_block from summaries, scope row, on tensor cores: the plan, and products of bf16.
#include "core/dtype.h"
#include "core/reasons.h"
#include "ops/select/block_products_sm80.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr int64_t kChunkBytes = int64_t{32} << 20;

// Whether rows are measured before they are normalised.
bool measured(const SelectBlock& a) {
  return a.normalise && !a.row_lse;
}

void run_pass(Context& ctx, const ProductPlan& plan, const SelectProduct& x,
              const SelectChunk& chunk) {
  if (plan.ring && plan.dtype == FOVEA_F16) return run_products_f16(ctx, plan, x, chunk);
  if (plan.ring) return run_ring<FOVEA_BF16>(ctx, plan, x, chunk);
  if (plan.fragments == 1) return run_products<FOVEA_BF16, 1, 0, false>(ctx, plan, x, chunk);
  run_products<FOVEA_BF16, 2, 0, false>(ctx, plan, x, chunk);
}

void run(Context& ctx, const ProductPlan& plan, const SelectBlock& a, void* base) {
  if (!a.b || !a.n || !a.x) return;
  SelectProduct x = plan.x;
  x.a = a, x.score = plan.score.at(base), x.stat = plan.stat.at(base);
  x.row.data = a.row.data;
  x.column[0].data = a.column.data, x.column[1].data = a.column_low.data;
  for (int64_t b0 = 0; b0 < a.b; b0 += plan.batches)
    for (int64_t n0 = 0; n0 < a.n; n0 += plan.rows) {
      const SelectChunk chunk{b0, a.b - b0 < plan.batches ? a.b - b0 : plan.batches, n0,
                              a.n - n0 < plan.rows ? a.n - n0 : plan.rows};
      if (a.u && measured(a)) {
        x.statistics = true;
        run_pass(ctx, plan, x, chunk);
        x.statistics = false;
      }
      if (a.u) run_pass(ctx, plan, x, chunk);
      run_lists(ctx, x, chunk);
    }
}

int parts_of_dtype(int32_t dtype, int mma_dtype) {
  return dtype == mma_dtype ? 1 : dtype == FOVEA_F32 ? 3 : 2;
}

}  // namespace

Text block_lists_refuse(const SelectBlock& a) {
  if (a.y > kListBlocksMost)
    return reason("y", a.y, "key blocks up to " + Text::number(kListBlocksMost));
  if (a.sequences.capacity > kSelectMost)
    return reason("key_max", a.sequences.capacity, "up to " + Text::number(kSelectMost));
  if (a.sequences.s > kSelectMost)
    return reason("query_max", a.sequences.s, "up to " + Text::number(kSelectMost));
  return "";
}

Text block_refuses_sm80(const Context& ctx, const SelectBlock& a) {
  if (device_info(ctx).arch < 80) return reason_capability(device_info(ctx).arch, "8.0");
  if (!a.row) return "row is absent, wanted summaries";
  if (!a.b || !a.n || !a.x || !a.h) return "there are no list rows";
  if (a.wide()) return reason("scope", a.scope, "0 (row)");
  if (a.normalise == FOVEA_X_SELECT_NORMALISE_WEIGHTED) return reason_given("column_weight");
  if (a.reduce_raw && a.normalise) return reason("reduce_raw", 1, "0 with normalise");
  // Sums of tensor cores are cut off, not rounded: more than f32's own error.
  if (a.row_dtype == FOVEA_F32 && a.column_dtype == FOVEA_F32)
    return "row and column are f32, wanted 16 bits in one of them";
  return block_lists_refuse(a);
}

namespace {

void choose_instance(const SelectBlock& a, ProductPlan& plan) {
  SelectProduct& x = plan.x;
  const bool narrow = a.column_dtype != FOVEA_F32 && a.d % 8 == 0 && chunked(a.column, 2, 8) &&
                      (!a.box || chunked(a.column_low, 2, 8));
  plan.ring = narrow && (a.column_dtype == FOVEA_BF16 || a.row_dtype == FOVEA_F16);
  plan.dtype = plan.ring ? a.column_dtype : static_cast<int>(FOVEA_BF16);
  x.sides = a.box ? 2 : 1;
  x.row_parts = parts_of_dtype(a.row_dtype, plan.dtype);
  x.parts = parts_of_dtype(a.column_dtype, plan.dtype);
  x.depth = static_cast<int>((a.d + 15) / 16 * 16);
  plan.heads = a.h / a.g, plan.fragments = a.n * plan.heads <= 16 ? 1 : 2;
  plan.held = plan.ring && plan.fragments == 2 && x.sides == 1 && x.row_parts == 1 &&
              (x.depth == 64 || x.depth == 128);
  x.row = operand_of(a.row, a.row_dtype, a.d);
  x.column[0] = operand_of(a.column, a.column_dtype, a.d);
  if (a.box) x.column[1] = operand_of(a.column_low, a.column_dtype, a.d);
  // Heads of a list head that lie in one warp's rows are summed there.
  const int64_t group = a.group(), warp_rows = plan.fragments == 1 ? 16 : 32;
  x.reduced = group > 1 && warp_rows % group == 0 && plan.heads % group == 0;
  x.lines = x.reduced ? a.x : a.h;
  x.pitch = static_cast<int>((a.u + 3) / 4 * 4);
  const int64_t slots = plan.ring ? kStages : x.parts;
  const int64_t sums = x.reduced ? 4 * warp_rows * (plan.fragments == 1 ? 20 : 36) * 4 : 0;
  plan.shared_bytes =
      (x.sides * x.row_parts * plan.tile_rows() + slots * kTileColumns) * (x.depth + 8) * 2 + sums;
}

// Chunks that stay in L2, and splits of the columns that fill the device.
void choose_chunks(const Context& ctx, const SelectBlock& a, ProductPlan& plan) {
  SelectProduct& x = plan.x;
  const auto fit = [](int64_t bytes, int64_t most) {
    const int64_t times = kChunkBytes / (bytes > 0 ? bytes : 1);
    return times < 1 ? 1 : times < most ? times : most;
  };
  // A split that writes statistics has two tiles at least, or these would outgrow the scores.
  const int64_t all = ceil_div(a.u, kTileColumns), least = measured(a) ? 2 : 1;
  const int64_t row_bytes =
      4 * x.lines * x.pitch + (measured(a) ? 8 * a.h * ceil_div(all, least) : 0);
  plan.batches = fit(row_bytes, a.b), plan.rows = fit(row_bytes * plan.batches, a.n);
  const int64_t work = plan.batches * a.g * plan.row_tiles(plan.rows) * all;
  const int64_t resident = int64_t{3} * device_info(ctx).multiprocessors;
  int64_t each = ceil_div(work, (work >= 16 * resident ? 4 : 1) * resident);
  if (each > all) each = all;
  if (each < least) each = least;
  x.tiles = static_cast<int>(each), x.splits = static_cast<int>(ceil_div(all, each));
  if (x.splits < 1) x.splits = 1;
}

}  // namespace
}  // namespace cuda

extern const Kernel<SelectBlock> x_select_block_sm80 = {
    "sm80", [](const Context& ctx, const SelectBlock& a, Plan& plan) {
      const Text why = cuda::block_refuses_sm80(ctx, a);
      if (!why.empty()) return why;
      cuda::ProductPlan p{};
      cuda::choose_instance(a, p);
      const int64_t most = cuda::device_info(ctx).shared_block_bytes - 16 * 1024;
      if (p.shared_bytes > most) return reason_shared(p.shared_bytes, most);
      cuda::choose_chunks(ctx, a, p);
      p.score = plan.workspace.add<float>(p.batches, p.rows, p.x.lines, p.x.pitch);
      if (cuda::measured(a))
        p.stat = plan.workspace.add<float2>(p.x.splits, p.batches, p.rows, a.h);
      plan.kernel += Text(".") + dtype_name(p.dtype) +
                     (p.held ? Text(".d") + Text::number(p.x.depth) : Text()) +
                     (p.ring ? ".ring" : ".parts") + (p.fragments == 1 ? ".m16" : ".m64");
      plan.launch = [p, a](Context& run, void* base) { cuda::run(run, p, a, base); };
      return Text();
    }};

}  // namespace fovea
