// SPDX-License-Identifier: Apache-2.0
// x_delta_backward on CUDA, by cuda/loop/recur.h.
#include "cuda/loop/recur.h"
#include "ops/delta/delta.h"

namespace fovea {
namespace {

template <Recurrence Form>
constexpr cuda::RecurKernels kKernels = {cuda::recur_forward<Form>, cuda::recur_backward<Form>};

}  // namespace

extern const Kernel<RecurBackward> delta_backward_simt = {
    "simt", [](const Context& ctx, const RecurBackward& call, Plan& plan) {
      cuda::plan_recur_backward(ctx, "x_delta_backward", call,
                                call.forward.form == Recurrence::low_rank
                                    ? kKernels<Recurrence::low_rank>
                                    : kKernels<Recurrence::corrected>,
                                plan);
      return Text();
    }};

}  // namespace fovea
