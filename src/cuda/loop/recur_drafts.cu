// SPDX-License-Identifier: Apache-2.0
// Which calls the kernels of recur_drafts_sm90.cuh take.
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/recur_drafts_sm90.cuh"

namespace fovea::cuda {
namespace {

uint32_t bytes_of(const RecurCall& call) {
  const Recur& a = call.a;
  if (a.form == Recurrence::low_rank)
    return DraftPlaces::of<Recurrence::low_rank, true>(call).bytes;
  if (a.form == Recurrence::corrected)
    return a.gate_key ? DraftPlaces::of<Recurrence::corrected, true>(call).bytes
                      : DraftPlaces::of<Recurrence::corrected, false>(call).bytes;
  return a.gate_key || a.read_before ? DraftPlaces::of<Recurrence::additive, true>(call).bytes
                                     : DraftPlaces::of<Recurrence::additive, false>(call).bytes;
}

Text refuses(const Context& ctx, const Recur& a) {
  const DeviceInfo& device = device_info(ctx);
  if (device.arch != 90) return reason_capability(device.arch, "9.0");
  if (a.d != kDraftD) return reason("d", a.d, "128");
  if (a.e % kDraftColumns) return reason("e", a.e, "a multiple of 128");
  if (a.run.token_max < 2 || a.run.token_max > kStepTokens)
    return reason("tokens of a sequence", a.run.token_max, "2 to 16");
  if (a.normaliser_used()) return reason_given("normalise");
  // Where states are written, memory limits, and blocks that come and go are faster.
  if (a.state_out) return reason_given("state_out");
  if (a.snapshot) return reason_given("snapshot");
  if (!a.state_in || a.state_in.dtype != FOVEA_F32) return "state_in is not f32";
  const RecurCall call = recur_call(a);
  if (!serves_steps(call)) return "rows or gates that steps do not take";
  const int64_t blocks = int64_t{kDraftBlocks} * device.multiprocessors;
  int64_t work;
  if (__builtin_mul_overflow(a.run.count * a.heads, a.e / kDraftColumns, &work) || work > INT_MAX)
    return "more than 2^31 heads";
  if (work <= blocks) return reason("heads of all sequences", work, "more than blocks stay");
  if (kDraftBlocks * (int64_t{bytes_of(call)} + kDraftOwn) > device.shared_sm_bytes)
    return "rows of so many tokens do not fit in shared memory";
  return "";
}

}  // namespace

Text plan_drafts(const Context& ctx, const char* op, const Recur& a,
                 std::span<const DraftInstance> instances, Plan& plan) {
  RecurForward kernel = nullptr;
  for (const DraftInstance& row : instances)
    if (row.form == a.form && row.kernel) kernel = row.kernel;
  if (!kernel) return "this build has no kernels for Hopper";
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  plan.kernel += Text(".") + dtype_name(a.q.dtype) + ".d" + Text::number(a.d) + ".drafts";
  plan.launch = [=](Context& ctx, void*) { run_recur(ctx, op, a, kernel); };
  return "";
}

}  // namespace fovea::cuda
