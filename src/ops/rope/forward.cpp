// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/plan.h"
#include "fovea/rope.h"
#include "ops/rope/kernels.h"

namespace fovea {
namespace {

constexpr char kOp[] = "rope_forward";

RopeForward resolve(const fovea_rope_forward_params& p) {
  RopeForward a{};
  a.x = view_of<4>(p.x), a.y = view_of<4>(p.y), a.position = view_of<2>(p.position);
  a.dtype = p.x.dtype;
  a.h = p.x.shape[2], a.d = p.x.shape[3];
  a.rope = read_rope(kOp, p, a.d);
  check_flag(kOp, "inverse", p.inverse);
  a.sign = p.inverse ? -1.0f : 1.0f;

  Sequences& q = a.sequences;
  q.query_start = int_vector(p.start);
  q.count = p.start.data ? p.start.shape[0] - 1 : p.x.shape[0];
  q.s = q.query_max = p.x.shape[1];
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_rope_forward_params& params) {
  return choose(kOp, ctx, resolve(params), rope_forward_host,
                FOVEA_CUDA_KERNELS(rope_forward_cuda));
}

}  // namespace fovea
