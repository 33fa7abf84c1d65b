// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "fovea/conv_attention.h"
#include "ops/conv_attention/fields.h"

namespace fovea {
namespace {

constexpr char kOp[] = "conv_attention_backward";

}  // namespace

Plan plan(const Context& ctx, const fovea_conv_attention_backward_params& p) {
  ConvAttendBackward b = read_conv_backward(kOp, p, p.o, "o");
  if (!b.forward.attend.s && !b.dweight) b.forward.attend.h = 0;  // nothing is each head's own
  check_flag(kOp, "nondeterministic", p.nondeterministic);
  return choose(kOp, ctx, b, conv_attention_backward_host,
                FOVEA_CUDA_KERNELS(conv_attention_backward_sm90, conv_attention_backward_simt));
}

}  // namespace fovea
