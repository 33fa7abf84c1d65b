// SPDX-License-Identifier: Apache-2.0
// x_select_block where the largest given scores of each row are all there is to do: top_k of scope
// row, nothing forced, masked or normalised (pick_short.cuh, cuda/loop/pick_rows.cuh).
#include "core/reasons.h"
#include "ops/select/block.h"
#include "ops/select/pick_short.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_select_block";

struct BlockLists {
  struct Row {
    const float* score;
    int64_t wanted, batch, list, at;
    int n;
  };
  SelectBlock a;
  int64_t keep;

  __device__ bool open(int64_t w, Row& row) const {
    ListRow at;
    row.list = w % a.x;
    const int64_t line = w / a.x;
    if (!a.list_row(line / a.n, line % a.n, at)) return false;
    row.batch = at.seq.batch, row.at = at.row;
    row.score = a.score.at(row.batch, row.list, row.at);
    row.wanted = a.wanted(at, row.list, at.blocks);
    int64_t n = at.columns;
    if (a.causal) {
      const int64_t seen = at.last_at < 0 ? 0 : at.last_at / a.step + 1;
      n = seen < n ? seen : n;
    }
    row.n = static_cast<int>(n);
    return true;
  }
  using Raw = float;
  __device__ __forceinline__ Raw load(const Row& row, int i) const {
    return row.score[i * a.score.stride[3]];
  }
  __device__ __forceinline__ uint32_t key(const Row&, int, Raw raw) const {
    return pick_key(a.scored_as(raw));
  }
  __device__ void put(const Row& row, int64_t place, int i) const {
    *a.index.at<int32_t>(row.batch, row.list, row.at, place) = i;
    if (a.kept_score)
      *a.kept_score.at(row.batch, row.list, row.at, place) = a.scored_as(load(row, i));
  }
  __device__ void pad(const Row& row, int64_t place) const {
    *a.index.at<int32_t>(row.batch, row.list, row.at, place) = -1;
    if (a.kept_score) *a.kept_score.at(row.batch, row.list, row.at, place) = -INFINITY;
  }
  __device__ void count(const Row& row, int64_t wanted) const {
    if (a.index_count)
      *a.index_count.at<int32_t>(row.batch, row.list, row.at) = static_cast<int32_t>(wanted);
  }
};

// "" or what of the call there is more to do for.
Text refuses(const SelectBlock& a) {
  if (!a.x) return "there are no list heads";
  if (!a.score) return a.row ? reason_given("row") : Text("score is absent, wanted given scores");
  if (a.normalise) return reason("normalise", a.normalise, "none");
  if (a.reduce && a.group() > 1) return reason("reduce", a.reduce, "none");
  if (a.rule_none || a.rule != PickRule::count) return "rule is another one, wanted top_k";
  if (a.wide()) return reason("scope", a.scope, "row");
  if (a.remap_step) return reason("remap_step", a.remap_step, "0");
  if (a.complete) return reason("complete", 1, "0");
  if (a.block_mask) return reason_given("block_mask");
  if (a.forced) return reason_given("forced");
  if (a.row_forced) return reason_given("row_forced");
  if (a.column_forced) return reason_given("column_forced");
  if (a.score_out) return reason_given("score_out");
  if (a.kept_mass) return reason_given("kept_mass");
  if (a.force_own) return reason("force_own", 1, "0");
  const std::pair<const char*, int64_t> numbers[] = {
      {"force_first", a.force_first}, {"force_previous", a.force_previous},
      {"force_last", a.force_last},   {"min_keep", a.min_keep},
      {"max_keep", a.max_keep},       {"min_extra", a.min_extra}};
  for (const auto& [name, value] : numbers)
    if (value) return reason(name, value, "0");
  return "";
}

Text offer(const Context& ctx, const SelectBlock& a, Plan& plan) {
  if (Text why = refuses(a); !why.empty()) return why;
  const DeviceInfo& device = device_info(ctx);
  const int64_t rows = a.b * a.n * a.x;
  if (const PickShape shape(device, rows, a.u); !shape.fits(device))
    return reason_shared(shape.shared_bytes, device.shared_block_bytes);
  plan.kernel += ".given";
  plan.launch = [=](Context& run, void*) {
    const BlockLists lists{a, a.keep};
    a.u <= kShortMost ? pick_short(run, kOp, lists, a.b * a.n * a.x, a.u)
                      : pick_rows(run, kOp, lists, a.b * a.n * a.x, a.u);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<SelectBlock> x_select_block_rows = {"rows", cuda::offer};

}  // namespace fovea
