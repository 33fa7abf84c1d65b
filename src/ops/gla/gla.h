// SPDX-License-Identifier: Apache-2.0
// x_gla: the kernels plan() chooses from.  A call is a Recur of the additive form.
#pragma once
#include "core/plan.h"
#include "core/recur_gradients.h"

namespace fovea {

extern const Kernel<Recur> gla_forward_host;
extern const Kernel<RecurBackward> gla_backward_host;

// CUDA builds only.
extern const Kernel<Recur> gla_forward_sm90;
extern const Kernel<Recur> gla_forward_value_sm90;
extern const Kernel<Recur> gla_drafts_sm90;
extern const Kernel<Recur> gla_forward_simt;
extern const Kernel<RecurBackward> gla_backward_sm90;
extern const Kernel<RecurBackward> gla_backward_keys_sm90;
extern const Kernel<RecurBackward> gla_backward_value_sm90;
extern const Kernel<RecurBackward> gla_backward_simt;

// What the tensors of a gradient with key gates are in the caller's call.
struct GlaKeyRoles {
  const char *op, *q, *k, *v, *dout;
  bool outputs;  // dq is an output of the call: rows before the first are not written
};
// Plans Hopper's gradient of a call that it takes; dq alone does not read q.
Text plan_gla_keys(const RecurBackward& b, const GlaKeyRoles& roles, Plan& plan);

}  // namespace fovea
