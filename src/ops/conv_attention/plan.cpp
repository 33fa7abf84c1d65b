// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "fovea/conv_attention.h"
#include "ops/conv_attention/fields.h"

namespace fovea {
namespace {

constexpr char kForward[] = "conv_attention_forward";
constexpr char kBackward[] = "conv_attention_backward";

ConvAttend resolve(const fovea_conv_attention_forward_params& p) {
  ConvAttend c = read_conv(kForward, p, p.o, "o", p.page_table, p.cache_row);
  check_not_negative(kForward, "splits", p.splits);
  c.attend.splits = p.splits;
  return c;
}

ConvAttendBackward resolve(const fovea_conv_attention_backward_params& p) {
  ConvAttendBackward b{};
  b.forward = read_conv(kBackward, p, p.o, "o", {}, {});
  b.dout = view_of<4>(p.dout);
  b.dq = gradient_of<4>(p.dq), b.dk = gradient_of<4>(p.dk), b.dv = gradient_of<4>(p.dv);
  b.dweight = gradient_of<3>(p.dweight);
  if (!b.forward.attend.s && !b.dweight) b.forward.attend.h = 0;  // nothing is each head's own
  check_flag(kBackward, "nondeterministic", p.nondeterministic);
  b.nondeterministic = p.nondeterministic != 0;
  return b;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_conv_attention_forward_params& params) {
  return choose(kForward, ctx, resolve(params), conv_attention_forward_host,
                FOVEA_CUDA_KERNELS(conv_attention_forward_sm90, conv_attention_forward_simt));
}

Plan plan(const Context& ctx, const fovea_conv_attention_backward_params& params) {
  return choose(kBackward, ctx, resolve(params), conv_attention_backward_host,
                FOVEA_CUDA_KERNELS(conv_attention_backward_sm90, conv_attention_backward_simt));
}

}  // namespace fovea
