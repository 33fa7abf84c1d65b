// SPDX-License-Identifier: Apache-2.0
// The choice among the sm_80 instances of x_sparse_forward, which gather keys one by one.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/loop/list_tile.cuh"
#include "cuda/loop/mma_refuses.h"
#include "ops/sparse/forward.cuh"
#include "ops/sparse/kernels.h"

namespace fovea {
namespace {

using namespace cuda;

constexpr char kOp[] = "x_sparse_forward";

// Every row of forward.inc in this build, narrow widths first: of 16-bit keys, of codes.
const std::vector<SparseInstance80>& instances(bool codes) {
  static const std::vector<SparseInstance80> rows[] = {{
#define FOVEA_INSTANCE(...) sparse_sm80_instance<SparseConfig80 __VA_ARGS__>(),
#include "instances/sparse_forward_sm80.inc"
#undef FOVEA_INSTANCE
                                                       },
                                                       {
#define FOVEA_INSTANCE(...) sparse_sm89_instance<SparseConfig80 __VA_ARGS__>(),
#include "instances/sparse_forward_sm89.inc"
#undef FOVEA_INSTANCE
                                                       }};
  return rows[codes];
}

const SparseInstance80* find(const Attend& a) {
  for (const SparseInstance80& row : instances(a.codes()))
    if (row.dtype == a.dtype && a.d <= row.d && a.e <= row.e) return &row;
  return nullptr;
}

Text refuses(const SparseAttend& call) {
  if (const char* field = call.other_list()) return reason_given(field);
  if (!call.list.index) return "index is absent, wanted one";
  const int64_t most = kIndexMax / ceil_div(call.list.block_keys, kTileKeys);
  if (call.list.keep > most)
    return reason("index.shape[3] (keep)", call.list.keep, "at most " + Text::number(most));
  Attend a = call.attend;
  a.sequences.context_len = {};
  if (const char* field = a.not_plain()) return reason_given(field);
  return mma_refuses(call.attend);
}

Text offer(const Context& ctx, const SparseAttend& call, Plan& plan) {
  if (Text why = refuses(call); !why.empty()) return why;
  const Attend& a = call.attend;
  const SparseInstance80* instance = find(a);
  if (!instance) return no_instance(a.dtype, "d", a.d, "e", a.e);
  ListGrid grid(call);
  const int64_t most = std::max<int64_t>(1, ceil_div(call.keys_bound(), kTileKeys));
  const int64_t slots = instance->blocks * device_info(ctx).multiprocessors;
  grid.split(clamp_i64(a.splits ? a.splits : splits_of(grid.tiles, most, slots), 1, most));
  if (grid.work > INT_MAX) return "more than 2^31 blocks of work";
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(instance->d) +
                 (a.codes() ? ".codes" : "") + (grid.splits > 1 ? ".split" : "");
  PartialSlots slot;
  if (grid.splits > 1) slot = PartialSlots(plan.workspace, a, grid.splits);
  plan.launch = [=](Context& ctx, void* base) {
    SparseWork80 work{{}, static_cast<int32_t>(grid.splits), nullptr};
    if (grid.splits > 1) {
      work.parts = slot.at(base, a, grid.splits);
      if (grid.work / grid.splits <= kCounters) work.arrived = counters(ctx);
    }
    instance->launch(ctx, call, grid, work);
    if (grid.splits > 1 && !work.arrived) combine(ctx, kOp, a, work.parts);
  };
  return "";
}

}  // namespace

extern const Kernel<SparseAttend> x_sparse_forward_sm80 = {"sm80", offer};

}  // namespace fovea
