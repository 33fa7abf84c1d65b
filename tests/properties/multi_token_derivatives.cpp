// SPDX-License-Identifier: Apache-2.0
// The oracles of experimental/multi_token.h: each gradient against central differences of its
// forward.
#include <gtest/gtest.h>

#include "oracle/group_norm.h"
#include "oracle/multi_token_backward.h"
#include "properties/derivatives.h"

namespace {

using oracle::Mode;
using properties::expect_derivative, properties::Some, properties::Values, properties::weighed;

TEST(oracle, multi_token_gradient_is_the_derivative) {
  for (int variant = 0; variant < 4; ++variant) {
    SCOPED_TRACE(variant);
    Some some(31 + variant);
    fovea_x_multi_token_backward_params p = {};
    p.q = some({2, 5, 4, 3}), p.k = some({2, 6, 2, 3}), p.v = some({2, 6, 2, 2});
    p.weight = some({4, 2, 3}), p.history = variant == 3;
    p.dout = some({2, 5 - p.history, 4, 2}), p.lse = some({2, 4, 5 - p.history});
    if (variant != 1) p.mix_before = some({4, 2});
    if (variant != 2) p.mix_after = some({4, 2});
    p.causal = variant % 2, p.scale = 0.6f;
    oracle::MultiToken m = oracle::load_multi_token(p);
    const auto forward = [&] {
      return oracle::multi_token_forward<double>(m, p.dout, p.lse, Mode::exact);
    };
    const oracle::Dense dout = oracle::load(p.dout);
    oracle::Dense lse = oracle::load(p.lse);
    lse.value = forward().lse.value;
    oracle::MultiTokenGradients<double> g(m);
    for (int64_t r = 0; r < 2; ++r)
      for (int64_t base = 0; base < 4; base += m.group)
        oracle::MultiTokenGroup<double>(m, lse, dout, sequence(m.conv.at, r), base, g).run();
    const auto loss = [&] { return weighed(dout, forward().o); };
    expect_derivative("q", m.conv.q, g.conv.dq, loss);
    expect_derivative("k", m.conv.k, g.conv.dk, loss);
    expect_derivative("v", m.conv.v, g.conv.dv, loss);
    expect_derivative("weight", m.conv.weight, g.conv.dweight, loss);
    if (m.before) expect_derivative("mix_before", m.before, g.dbefore, loss);
    if (m.after) expect_derivative("mix_after", m.after, g.dafter, loss);
  }
}

TEST(oracle, group_norm_gradient_is_the_derivative) {
  Some some(41);
  fovea_x_group_norm_backward_params p = {};
  p.x = some({2, 3, 2, 5}), p.gain = some({2, 5}), p.dy = some({2, 3, 2, 5});
  p.factor = 0.4f, p.eps = 0.01f;
  oracle::GroupNorm n = oracle::load_group_norm(p);
  const oracle::Dense dy = oracle::load(p.dy);
  const auto g = oracle::group_norm_gradients<double>(n, dy);
  const auto loss = [&] {
    return weighed(dy, oracle::group_norm_forward<double>(n, p.dy, Mode::exact));
  };
  expect_derivative("x", n.x, g.dx, loss);
  expect_derivative("gain", n.gain, g.dgain, loss);
}

}  // namespace
