// SPDX-License-Identifier: Apache-2.0
// Tests of the oracles themselves: published numbers, the gradient against central differences of
// the forward, the element types against their definitions.
#include <gtest/gtest.h>

#include "cases/all.h"
#include "oracle/attention_backward.h"
#include "oracle/conv_attention_backward.h"
#include "oracle/merge.h"
#include "oracle/rope.h"
#include "properties/derivatives.h"

namespace {

using oracle::Mode;
using Values = std::vector<double>;

// Tensors of a hand-made call; f32 storage that lives as long as this.
struct Tensors {
  std::vector<std::vector<float>> memory;
  fovea_tensor operator()(const std::vector<int64_t>& shape, const Values& values) {
    memory.emplace_back(values.begin(), values.end());
    if (values.empty()) memory.back().resize(1);
    return fovea_contiguous(memory.back().data(), FOVEA_F32, static_cast<int32_t>(shape.size()),
                            shape.data());
  }
};

void expect_near(const Values& got, const Values& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], tolerance) << "element " << i;
}

// Printed to 6 decimals; s is 3, t is 4, so row i is at position i + 1.
struct Golden {
  const char* name;
  int causal, window_left;
  float softcap, alibi, sink_logit;
  Values o, lse, dq, dk, dv, dsink_logit;
};
const Golden kGolden[] = {
    {"full",
     0,
     0,
     0,
     0,
     0,
     {-.418942, .928049, 1.284184, 1.130710, -.965519, .831319},
     {2.032669, 2.420778, 1.783819},
     {},
     {},
     {},
     {}},
    {"causal",
     1,
     0,
     0,
     0,
     0,
     {1.660477, 1.009285, 1.604448, 1.192215, -.965519, .831319},
     {1.107940, 2.327728, 1.783819},
     {-.312797, 0, -.163554, -.196332, -1.132423, .582335},
     {.059516, .085909, .437801, -1.368556, .170034, .615296, -.667351, .667351},
     {.837757, .569107, .413072, .483945, .058165, .255940, .691007, .691007},
     {}},
    {"window",
     1,
     2,
     0,
     0,
     0,
     {1.660477, 1.009285, 2.009285, .651192, -1.844723, .771735},
     {1.107940, 1.815047, 1.495032},
     {},
     {},
     {},
     {}},
    {"everything",
     1,
     0,
     2,
     .5f,
     .3f,
     {1.183348, .392605, 1.117561, 1.258489, -1.113159, .534209},
     {1.265802, 1.889316, 1.680575},
     {-.038690, .323575, -.449279, .006248, -.516630, .214157},
     {.066490, .018847, .418327, -.678887, .105830, .916755, -.257990, .257990},
     {.378871, .229508, .316761, .344620, .042773, .340890, .629483, .629483},
     {-.561721}}};

TEST(oracle, golden_attention) {
  for (const Golden& g : kGolden) {
    SCOPED_TRACE(g.name);
    Tensors make;
    fovea_attention_backward_params p = {};
    p.q = make({1, 3, 1, 2}, {1, 0, 0, 2, 1, -1});
    p.k = make({1, 4, 1, 2}, {1, 1, 0, 1, -1, .5, 2, 0});
    p.v = make({1, 4, 1, 2}, {1, 2, 3, -1, 0, 4, -2, .5});
    p.dout = make({1, 3, 1, 2}, {1, 0, 0, 1, 1, 1});
    p.o = make({1, 3, 1, 2}, Values(6)), p.lse = make({1, 1, 3}, Values(3));
    if (g.alibi > 0) p.alibi = make({1, 1}, {g.alibi});
    if (g.sink_logit > 0) p.sink_logit = make({1}, {g.sink_logit});
    p.causal = g.causal, p.window_left = g.window_left, p.softcap = g.softcap;
    const oracle::Attention a = oracle::load_attention(p);
    const oracle::ForwardResult f = oracle::forward(a, p.o, p.lse, Mode::exact);
    expect_near(f.o.value, g.o, 6e-7);
    expect_near(f.lse.value, g.lse, 6e-7);
    if (g.dq.empty()) continue;
    oracle::Incoming in{oracle::load(p.o), oracle::load(p.lse), oracle::load(p.dout), {}};
    in.o.value = f.o.value, in.lse.value = f.lse.value;
    const auto sums = oracle::gradients<double>(a, in, Mode::exact);
    expect_near(sums.dq, g.dq, 6e-7);
    expect_near(sums.dk, g.dk, 6e-7);
    expect_near(sums.dv, g.dv, 6e-7);
    if (!g.dsink_logit.empty()) expect_near(sums.dsink_logit, g.dsink_logit, 6e-7);
  }
}

TEST(oracle, golden_merge) {
  Tensors make;
  fovea_merge_forward_params p = {};
  p.o_part = make({3, 1, 1, 1, 2}, {1, 2, 3, -1, 9, 9});
  p.lse_part = make({3, 1, 1, 1}, {.5, 1.5, -HUGE_VAL});
  p.o = make({1, 1, 1, 2}, Values(2)), p.lse = make({1, 1, 1}, Values(1));
  const oracle::MergeResult r = oracle::merge_forward<double>(p, Mode::exact);
  expect_near(r.o.value, {2.462117, -.193176}, 6e-7);
  expect_near(r.lse.value, {1.813262}, 6e-7);
}

TEST(oracle, golden_rope) {
  for (bool interleaved : {false, true}) {
    Tensors make;
    Values cos, sin;
    for (double f : {1.0, 0.01}) cos.push_back(std::cos(7 * f)), sin.push_back(std::sin(7 * f));
    fovea_rope_forward_params p = {};
    p.x = make({1, 1, 1, 4}, {1, 2, 3, 4}), p.y = p.x;
    p.cos = make({1, 2}, cos), p.sin = make({1, 2}, sin);
    p.rope_interleaved = interleaved;
    const Values want = interleaved ? Values{-.560071, 2.164791, 2.712882, 4.200033}
                                    : Values{-1.217058, 1.715331, 2.918693, 4.130090};
    expect_near(oracle::rope_forward<double>(p, Mode::exact).value, want, 1e-6);
  }
}

// loss = <dout, o> + <dlse, lse>, as a function of one input.
double loss(const oracle::Attention& a, const fovea_attention_backward_params& p,
            const oracle::Incoming& in) {
  const oracle::ForwardResult f = oracle::forward(a, p.o, p.lse, Mode::exact);
  double sum = 0;
  for (size_t i = 0; i < f.o.value.size(); ++i) sum += f.o.value[i] * in.dout.value[i];
  for (size_t i = 0; i < f.lse.value.size(); ++i)
    sum += std::isinf(f.lse.value[i]) ? 0 : f.lse.value[i] * in.dlse.value[i];
  return sum;
}

TEST(oracle, gradient_is_the_derivative) {
  Tensors make;
  uint64_t n = 0;
  auto random = [&](const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (int64_t x : shape) count *= x;
    Values values(count);
    for (double& x : values) x = std::sin(static_cast<double>(++n) * 12.9898) * 1.5;
    return make(shape, values);
  };
  fovea_attention_backward_params p = {};
  p.q = random({2, 5, 4, 3}), p.k = random({2, 6, 2, 3}), p.v = random({2, 6, 2, 4});
  p.o = random({2, 5, 4, 4}), p.lse = random({2, 4, 5}), p.dout = random({2, 5, 4, 4}),
  p.dlse = random({2, 4, 5});
  p.bias = random({2, 4, 5, 6}), p.alibi = random({2, 4}), p.sink_logit = random({4});
  p.softcap = 1.5f, p.causal = 1, p.window_left = 4, p.sink_keys = 1;
  oracle::Attention a = oracle::load_attention(p);
  oracle::Incoming in{oracle::load(p.o), oracle::load(p.lse), oracle::load(p.dout),
                      oracle::load(p.dlse)};
  const oracle::ForwardResult f = oracle::forward(a, p.o, p.lse, Mode::exact);
  in.o.value = f.o.value, in.lse.value = f.lse.value;
  const auto sums = oracle::gradients<double>(a, in, Mode::exact);
  const auto now = [&] { return loss(a, p, in); };
  properties::expect_derivative("q", a.q, sums.dq, now);
  properties::expect_derivative("k", a.k, sums.dk, now);
  properties::expect_derivative("v", a.v, sums.dv, now);
  properties::expect_derivative("bias", a.bias, sums.dbias, now);
  properties::expect_derivative("alibi", a.alibi, sums.dalibi, now);
  properties::expect_derivative("sink_logit", a.sink_logit, sums.dsink_logit, now);
}

TEST(oracle, conv_gradient_is_the_derivative) {
  Tensors make;
  uint64_t n = 0;
  auto random = [&](const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (int64_t x : shape) count *= x;
    Values values(count);
    for (double& x : values) x = std::sin(static_cast<double>(++n) * 12.9898);
    return make(shape, values);
  };
  for (int causal : {0, 1})
    for (int64_t columns : {3, 4}) {
      fovea_conv_attention_backward_params p = {};
      p.q = random({2, 7, 4, 3}), p.k = random({2, 6, 2, 3}), p.v = random({2, 6, 2, 4});
      p.weight = random({4, 3, columns}), p.causal = causal, p.history = 2;
      p.o = random({2, 5, 4, 4}), p.lse = random({2, 4, 5}), p.dout = random({2, 5, 4, 4});
      oracle::ConvAttention a = oracle::load_conv(p);
      oracle::ConvIncoming in{oracle::load(p.o), oracle::load(p.lse), oracle::load(p.dout)};
      const auto f = oracle::conv_forward(a, p.o, p.lse, Mode::exact);
      in.o.value = f.o.value, in.lse.value = f.lse.value;
      const auto sums = oracle::conv_gradients<double>(a, in, Mode::exact);
      auto loss = [&] {
        const auto y = oracle::conv_forward(a, p.o, p.lse, Mode::exact);
        double sum = 0;
        for (size_t i = 0; i < y.o.value.size(); ++i) sum += y.o.value[i] * in.dout.value[i];
        return sum;
      };
      properties::expect_derivative("q", a.q, sums.dq, loss);
      properties::expect_derivative("k", a.k, sums.dk, loss);
      properties::expect_derivative("v", a.v, sums.dv, loss);
      properties::expect_derivative("weight", a.weight, sums.dweight, loss);
    }
}

// One tap of 1 is plain attention.
TEST(oracle, conv_of_one_tap_is_attention) {
  Tensors make;
  Values weight(2 * 3 * 4);
  weight[2 * 4 + 1] = weight[5 * 4 + 1] = 1;
  Values q(2 * 5 * 2 * 3), k(2 * 6 * 3), v(2 * 6 * 2);
  uint64_t n = 0;
  for (Values* x : {&q, &k, &v})
    for (double& y : *x) y = std::sin(static_cast<double>(++n) * 12.9898);
  fovea_conv_attention_forward_params p = {};
  fovea_attention_forward_params plain = {};
  p.q = plain.q = make({2, 5, 2, 3}, q), p.k = plain.k = make({2, 6, 1, 3}, k);
  p.v = plain.v = make({2, 6, 1, 2}, v), p.weight = make({2, 3, 4}, weight);
  p.o = plain.o = make({2, 5, 2, 2}, Values(40));
  p.lse = plain.lse = make({2, 2, 5}, Values(20));
  p.causal = plain.causal = 1;
  const auto conv = oracle::conv_forward(oracle::load_conv(p), p.o, p.lse, Mode::exact);
  const auto want = oracle::forward(oracle::load_attention(plain), plain.o, plain.lse, Mode::exact);
  expect_near(conv.o.value, want.o.value, 1e-12);
  expect_near(conv.lse.value, want.lse.value, 1e-12);
}

// Every code of the small types decodes and encodes to itself, and what lies between two numbers
// goes to the nearer, ties to the even code.
TEST(oracle, element_types) {
  for (int dtype : {FOVEA_F16, FOVEA_BF16, FOVEA_E4M3, FOVEA_E5M2}) {
    const uint32_t codes = oracle::bytes_of(dtype) == 2 ? 0x8000 : 0x80;
    for (uint32_t code = 0; code + 1 < codes; ++code) {
      const uint64_t bits = code, next = code + 1;
      uint64_t back = 0;
      const double x = oracle::decode(dtype, &bits), y = oracle::decode(dtype, &next);
      if (std::isnan(x) || std::isnan(y)) continue;
      oracle::encode(dtype, x, &back);
      const bool saturated = std::isinf(x) && oracle::is_fp8(dtype);
      ASSERT_EQ(back, saturated ? code - 1 : code) << "dtype " << dtype;
      if (std::isinf(y)) continue;
      ASSERT_LT(x, y);
      EXPECT_EQ(oracle::round_to(dtype, (x + y) / 2), code % 2 ? y : x)
          << "dtype " << dtype << " code " << code;
      EXPECT_EQ(oracle::round_to(dtype, -(x * 0.51 + y * 0.49)), -x)
          << "dtype " << dtype << " code " << code;
    }
  }
  EXPECT_EQ(oracle::round_to(FOVEA_E4M3, 1e6), 448);
  EXPECT_EQ(oracle::round_to(FOVEA_E5M2, -1e6), -57344);
  EXPECT_EQ(oracle::round_to(FOVEA_F16, 65519.99), 65504);
  EXPECT_TRUE(std::isinf(oracle::round_to(FOVEA_F16, 65520)));
  EXPECT_EQ(oracle::round_to(FOVEA_I8, 2.5), 2);
  EXPECT_EQ(oracle::round_to(FOVEA_I8, -300), -128);
}

// Another draw of roundings has other errors of the same size, and none for what a type holds.
TEST(oracle, draws_of_roundings) {
  const harness::Random random(3);
  constexpr uint64_t kNumbers = 20000;
  for (int dtype : {FOVEA_F16, FOVEA_BF16}) {
    double nearest = 0, drawn = 0, product = 0;
    for (uint64_t i = 0; i < kNumbers; ++i) {
      const double x = random.normal(i), y = oracle::nearest(dtype, x);
      const oracle::RoundingDraw draw(1 + i % 7);
      const double z = oracle::round_to(dtype, x);
      const double half = oracle::step_of(oracle::format_of(dtype), x) / 2;
      ASSERT_LE(std::abs(z - x), half * (1 + 1e-9)) << x;
      EXPECT_EQ(oracle::round_to(dtype, y), y);
      uint16_t stored = 0;
      oracle::encode(dtype, x, &stored);
      EXPECT_EQ(oracle::decode(dtype, &stored), y);
      nearest += (y - x) * (y - x), drawn += (z - x) * (z - x), product += (y - x) * (z - x);
    }
    EXPECT_NEAR(drawn / nearest, 1, 0.03);
    EXPECT_NEAR(product / nearest, 0, 0.03);
    EXPECT_EQ(oracle::round_to(dtype, 0.3), oracle::nearest(dtype, 0.3));
  }
}

// A draw changes what a call is judged by, and neither what it reads nor what it gives.
TEST(oracle, draws_leave_calls_alone) {
  int64_t others = 0;
  for (const harness::Case& c : cases::all()) {
    if (!c.tiny) continue;
    const harness::Call call = c.build(1), drawn = call.drawn(1);
    ASSERT_EQ(call.fields.size(), drawn.fields.size());
    for (size_t i = 0; i < call.storages.size(); ++i)
      EXPECT_EQ(call.storages[i].image, drawn.storages[i].image) << c.op << "/" << c.name;
    for (size_t i = 0; i < call.fields.size(); ++i) {
      const harness::Field &x = call.fields[i], &y = drawn.fields[i];
      EXPECT_EQ(x.exact.written, y.exact.written) << c.op << "/" << c.name << " " << x.name;
      const size_t bytes = x.exact.value.size() * sizeof(double);
      EXPECT_TRUE(!bytes || !std::memcmp(x.exact.value.data(), y.exact.value.data(), bytes))
          << c.op << "/" << c.name << " " << x.name;
      for (size_t n = 0; n < x.rounded.value.size(); ++n)
        others += std::abs(x.rounded.value[n] - y.rounded.value[n]) > 0;
    }
  }
  EXPECT_GT(others, 0);
}

}  // namespace
