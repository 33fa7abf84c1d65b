// SPDX-License-Identifier: Apache-2.0
#include "fovea/experimental/multi_token.h"
#include "core/plan.h"
#include "ops/conv_attention/fields.h"
#include "ops/conv_attention/mixed.h"

namespace fovea {
namespace {

constexpr char kForward[] = "x_multi_token_forward";
constexpr char kBackward[] = "x_multi_token_backward";

// The heads of a group.
template <class P>
int64_t read_group(const char* op, const P& p) {
  const bool before = p.mix_before.data;
  if (!before && !p.mix_after.data) return 1;
  const int64_t group = (before ? p.mix_before : p.mix_after).shape[1], h = p.q.shape[2];
  if (group < 1 || group > kGroupHeadsMost || h % group)
    refuse("%s: %s.shape[1] (group_heads) is %lld, wanted 1 .. %lld, a divisor of q's %lld heads",
           op, before ? "mix_before" : "mix_after", lld(group), lld(kGroupHeadsMost), lld(h));
  return group;
}

void needs(const fovea_tensor& gradient, const char* name, const fovea_tensor& of) {
  if (gradient.data && !of.data)
    refuse("%s: d%s is given without %s, wanted both", kBackward, name, name);
}

// How heads of a group are mixed.
template <class M, class P>
void read_mixing(M& m, const char* op, const P& p) {
  m.group = read_group(op, p);
  m.before = view_of<2>(p.mix_before), m.after = view_of<2>(p.mix_after);
}

}  // namespace

Plan plan(const Context& ctx, const fovea_x_multi_token_forward_params& p) {
  MixedAttend m{};
  m.conv = read_conv(kForward, p, p.o, "o", p.page_table, p.cache_row);
  read_mixing(m, kForward, p);
  return choose(kForward, ctx, m, multi_token_forward_host,
                FOVEA_CUDA_KERNELS(multi_token_forward_simt));
}

Plan plan(const Context& ctx, const fovea_x_multi_token_backward_params& p) {
  MixedAttendBackward m{};
  m.conv = read_conv_backward(kBackward, p, p.dout, "dout");
  m.conv.forward.attend.o = {};
  needs(p.dmix_before, "mix_before", p.mix_before);
  needs(p.dmix_after, "mix_after", p.mix_after);
  read_mixing(m, kBackward, p);
  m.dbefore = gradient_of<2>(p.dmix_before), m.dafter = gradient_of<2>(p.dmix_after);
  Attend& a = m.conv.forward.attend;
  if (!a.s && !m.conv.dweight && !m.dbefore && !m.dafter) a.h = 0;  // nothing is each head's own
  return choose(kBackward, ctx, m, multi_token_backward_host,
                FOVEA_CUDA_KERNELS(multi_token_backward_simt));
}

}  // namespace fovea
