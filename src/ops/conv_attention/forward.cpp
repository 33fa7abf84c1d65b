// SPDX-License-Identifier: Apache-2.0
#include "core/plan.h"
#include "fovea/conv_attention.h"
#include "ops/conv_attention/fields.h"

namespace fovea {
namespace {

constexpr char kOp[] = "conv_attention_forward";

}  // namespace

Plan plan(const Context& ctx, const fovea_conv_attention_forward_params& p) {
  ConvAttend c = read_conv(kOp, p, p.o, "o", p.page_table, p.cache_row);
  check_not_negative(kOp, "splits", p.splits);
  c.attend.splits = p.splits;
  return choose(kOp, ctx, c, conv_attention_forward_host,
                FOVEA_CUDA_KERNELS(conv_attention_forward_sm90, conv_attention_forward_simt));
}

}  // namespace fovea
