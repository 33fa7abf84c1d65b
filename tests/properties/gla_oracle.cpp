// SPDX-License-Identifier: Apache-2.0
// x_gla: the oracle's gradient is the derivative, its chunks are its recurrence, and numbers of
// four tokens worked out elsewhere hold of it and of the library.
#include <gtest/gtest.h>

#include "harness/bound.h"
#include "oracle/gla.h"
#include "properties/derivatives.h"

namespace {

using Forward = fovea_x_gla_forward_params;
using Backward = fovea_x_gla_backward_params;
using oracle::Mode;

// What both directions read.
template <class To, class From>
void copy_inputs(To& to, const From& from) {
  to.q = from.q, to.k = from.k, to.v = from.v, to.gate_head = from.gate_head;
  to.gate_key = from.gate_key, to.gate_value = from.gate_value, to.gate_rate = from.gate_rate;
  to.gate_bias = from.gate_bias, to.select = from.select, to.bonus = from.bonus;
  to.skip = from.skip, to.state_in = from.state_in, to.z_in = from.z_in, to.scale = from.scale;
  to.eps = from.eps, to.gate_bound = from.gate_bound, to.gate_tau = from.gate_tau;
  to.gate_map = from.gate_map, to.map_q = from.map_q, to.map_k = from.map_k;
  to.full = from.full, to.read_before = from.read_before, to.normalise = from.normalise;
  to.bonus_sigmoid = from.bonus_sigmoid, to.output_from = from.output_from;
}

struct Sizes {
  int64_t b = 1, s = 5, t = 5, h = 2, g = 1, x = 2, d = 3, e = 2;
  int64_t heads() const { return std::max(g, x); }
};

Forward inputs(properties::Some& some, const Sizes& n) {
  Forward p = {};
  p.struct_size = sizeof p;
  p.q = some({n.b, n.s, n.h, n.d}), p.k = some({n.b, n.t, n.g, n.d});
  p.v = some({n.b, n.t, n.x, n.e}), p.o = some({n.b, n.s, std::max(n.h, n.heads()), n.e});
  p.state_in = some({n.b, n.heads(), n.d, n.e}), p.state_out = some({n.b, n.heads(), n.d, n.e});
  return p;
}

void expect_derivatives(const Forward& p, properties::Some& some, double tolerance = 1e-8) {
  const auto like = [&](const fovea_tensor& x) {
    return x.data ? some(std::vector<int64_t>(x.shape, x.shape + x.ndim)) : fovea_tensor{};
  };
  Backward q = {};
  copy_inputs(q, p);
  q.dout = p.o, q.dstate_out = p.state_out, q.dz_out = p.z_out;
  q.dq = like(p.q), q.dk = like(p.k), q.dv = like(p.v), q.dgate_head = like(p.gate_head);
  q.dgate_key = like(p.gate_key), q.dgate_value = like(p.gate_value);
  q.dgate_rate = like(p.gate_rate), q.dgate_bias = like(p.gate_bias), q.dselect = like(p.select);
  q.dbonus = like(p.bonus), q.dskip = like(p.skip), q.dstate_in = like(p.state_in);
  q.dz_in = like(p.z_in);
  const oracle::Dense dout = oracle::load(p.o), dstate = oracle::load(p.state_out);
  const oracle::Dense dz = oracle::load(p.z_out);
  oracle::Gla<double, Forward> forward(p);
  const auto exact = oracle::Gla<double, Backward>(q).backward(Mode::exact);
  const auto loss = [&] {
    const auto out = forward.forward(Mode::exact);
    return properties::weighed(dout, out.o) + properties::weighed(dstate, out.state_out) +
           properties::weighed(dz, out.z_out);
  };
  const auto expect = [&](const char* name, oracle::Tracked& x, const oracle::Out& gradient) {
    if (x) properties::expect_derivative(name, x.x, gradient.value, loss, tolerance);
  };
  expect("q", forward.q, exact.dq);
  expect("k", forward.k, exact.dk);
  expect("v", forward.v, exact.dv);
  expect("gate_head", forward.gate_head, exact.dgate_head);
  expect("gate_key", forward.gate_key, exact.dgate_key);
  expect("gate_value", forward.gate_value, exact.dgate_value);
  expect("gate_rate", forward.gate_rate, exact.dgate_rate);
  expect("gate_bias", forward.gate_bias, exact.dgate_bias);
  expect("select", forward.select, exact.dselect);
  expect("bonus", forward.bonus, exact.dbonus);
  expect("skip", forward.skip, exact.dskip);
  expect("state_in", forward.state_in, exact.dstate_in);
  expect("z_in", forward.z_in, exact.dz_in);
}

TEST(oracle, gla_gradient_is_the_derivative) {
  properties::Some some(23);
  for (const int32_t map : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(map);
    const Sizes n{.b = 2, .s = 4, .t = 4, .h = 4, .g = 1, .x = 2};
    Forward p = inputs(some, n);
    p.gate_map = map, p.gate_bound = map == 2 ? 1.5f : map == 1 ? 0.9f : 0.f, p.gate_tau = 2;
    p.gate_head = some({n.b, n.s, n.heads()});
    p.bonus = some({n.heads(), n.d}), p.skip = some({n.heads(), n.e});
    if (map != 3) p.gate_key = some({n.b, n.s, n.heads(), n.d});
    if (map == 1 || map == 2) p.gate_rate = some({n.heads()});
    if (map != 0) p.gate_bias = some({n.heads(), n.d});
    p.select = some({n.b, n.t, n.heads()});
    p.map_q = map % 4, p.map_k = (map + 1) % 4, p.bonus_sigmoid = map % 2, p.read_before = map > 2;
    expect_derivatives(p, some);
  }
  const Sizes n;
  Forward p = inputs(some, n);
  p.gate_map = 3, p.gate_value = some({n.b, n.s, n.heads(), n.e});
  p.gate_head = some({n.b, n.s, n.heads()}), p.scale = 0.7f;
  expect_derivatives(p, some);
  p.gate_key = some({n.b, n.s, n.heads(), n.d}), p.read_before = 1;
  expect_derivatives(p, some);
}

TEST(oracle, gla_gradient_of_the_normaliser_is_the_derivative) {
  properties::Some some(29);
  for (const bool full : {false, true}) {
    const Sizes n{.s = 4, .t = full ? 6 : 4, .h = 1, .g = 2};
    Forward p = inputs(some, n);
    p.z_in = some({n.b, n.heads(), n.d}), p.z_out = some({n.b, n.heads(), n.d});
    for (int i = 0; i < n.heads() * n.d; ++i) {
      float& z = static_cast<float*>(p.z_in.data)[i];
      z = std::abs(z);
    }
    p.map_q = p.map_k = 2, p.normalise = 1, p.eps = 0.5f, p.full = full;
    p.skip = full ? fovea_tensor{} : some({n.heads(), n.e});
    if (!full) p.gate_map = 3, p.gate_head = some({n.b, n.s, n.heads()});
    expect_derivatives(p, some);
    p.normalise = 0, p.z_in = p.z_out = {}, p.map_q = 0;
    expect_derivatives(p, some);
  }
}

// In chunks of 64 rows, with decays that reset, rest and vanish.
TEST(oracle, gla_chunks_are_the_recurrence) {
  for (const bool key : {false, true})
    for (const bool before : {false, true}) {
      properties::Some some(31);
      const Sizes n{.s = 150, .t = 150, .h = 4, .g = 2, .x = 1, .d = 5, .e = 4};
      Forward p = inputs(some, n);
      fovea_tensor& gates = key ? p.gate_key : p.gate_head;
      gates = key ? some({n.b, n.s, n.heads(), n.d}) : some({n.b, n.s, n.heads()});
      static constexpr float list[] = {0, -1e-4f, -HUGE_VALF, -20, -88, -1e4f};
      for (int64_t i = 0; i < oracle::count_of(gates); ++i) {
        float& x = static_cast<float*>(gates.data)[i];
        x = i % 11 < 6 && i % 5 == 0 ? list[i % 11] : -std::abs(x) / 8;
      }
      p.read_before = before, p.scale = 1;
      Backward q = {};
      copy_inputs(q, p);
      q.dout = p.o, q.dstate_out = p.state_out, q.dq = p.q, q.dk = p.k, q.dv = p.v;
      q.dgate_head = p.gate_head, q.dgate_key = p.gate_key, q.dstate_in = p.state_in;
      const auto compare = [](const char* name, const oracle::Out& a, const oracle::Out& b) {
        SCOPED_TRACE(name);
        for (size_t i = 0; i < a.value.size(); ++i)
          ASSERT_NEAR(a.value[i], b.value[i], 2e-6 * a.largest) << i;
      };
      const oracle::Gla<double, Forward> forward(p);
      const auto a = forward.forward(Mode::exact), b = forward.forward(Mode::rounded);
      compare("o", a.o, b.o), compare("state_out", a.state_out, b.state_out);
      const oracle::Gla<double, Backward> backward(q);
      const auto c = backward.backward(Mode::exact), d = backward.backward(Mode::rounded);
      compare("dq", c.dq, d.dq), compare("dk", c.dk, d.dk), compare("dv", c.dv, d.dv);
      compare("dgate_head", c.dgate_head, d.dgate_head);
      compare("dgate_key", c.dgate_key, d.dgate_key);
      compare("dstate_in", c.dstate_in, d.dstate_in);
    }
}

// ---- four tokens of one head, to six decimals

using Numbers = std::vector<double>;

const Numbers kQ = {1, 0, 0, 2, 1, -1, .5, .5}, kK = {1, 1, 0, 1, -1, .5, 2, 0};
const Numbers kV = {1, 2, 3, -1, 0, 4, -2, .5}, kDout = {1, 0, 0, 1, 1, 1, -1, .5};
const Numbers kState = {.1, .2, -.3, .4}, kHead = {-.1, -.2, -.3, -.4};
const Numbers kChannel = {-.5, -1, -.2, -.1, -HUGE_VAL, -.3, -1, -.7};
const Numbers kBeta = {.5, 1, .8, .3}, kBonus = {.5, 2};

// f32 tensors in memory of a context.
class Tensors {
 public:
  explicit Tensors(fovea_backend backend) : ctx(backend) {}
  fovea_tensor operator()(const Numbers& x, const std::vector<int64_t>& shape) {
    std::vector<uint8_t> bytes(4 * x.size());
    for (size_t i = 0; i < x.size(); ++i) oracle::encode(FOVEA_F32, x[i], bytes.data() + 4 * i);
    memory_.push_back(std::make_unique<harness::Memory>(ctx, bytes.size()));
    memory_.back()->write(bytes);
    return fovea_contiguous(memory_.back()->data, FOVEA_F32, static_cast<int32_t>(shape.size()),
                            shape.data());
  }
  Numbers read(const fovea_tensor& x) const {
    Numbers out;
    for (const auto& m : memory_) {
      if (m->data != x.data) continue;
      const std::vector<uint8_t> bytes = m->read();
      for (size_t i = 0; i < bytes.size(); i += 4)
        out.push_back(oracle::decode(FOVEA_F32, bytes.data() + i));
    }
    return out;
  }
  harness::Context ctx;

 private:
  std::vector<std::unique_ptr<harness::Memory>> memory_;
};

struct Row {
  const char* name;
  void (*set)(Tensors&, Forward&);
  Numbers o, state;
};

const Row kRows[] = {
    {"no gate",
     [](Tensors&, Forward&) {},
     {1.1, 2.2, 7.4, 2.8, -2.6, -5.2, .4, 1.3},
     {-2.9, -.8, 3.7, 3.4}},
    {"gate_head, select",
     [](Tensors& make, Forward& p) {
       p.gate_head = make(kHead, {1, 4, 1}), p.select = make(kBeta, {1, 4, 1});
     },
     {.590484, 1.180967, 6.37424, .230116, -2.00293, -4.168944, .311375, -.117615},
     {-.959927, -1.364879, 1.582677, 1.129648}},
    {"gate_key",
     [](Tensors& make, Forward& p) {
       p.gate_key = make(kChannel, {1, 4, 1, 2});
     },
     {1.060653, 2.121306, 7.609952, 1.885647, -2.818796, -6.698461, -1.300114, .434249},
     {-4, -.471518, 1.399772, 1.340016}},
    {"gate_key, read_before, bonus",
     [](Tensors& make, Forward& p) {
       p.gate_key = make(kChannel, {1, 4, 1, 2}), p.bonus = make(kBonus, {1, 2});
       p.read_before = 1;
     },
     {.6, 1.2, 13.779272, .294304, -2.936587, -5.206045, .409398, -.40077},
     {-4, -.471518, 1.399772, 1.340016}},
    {"gate_value",
     [](Tensors& make, Forward& p) {
       p.gate_value = make(kChannel, {1, 4, 1, 2});
     },
     {1.060653, 2.073576, 7.33951, 1.885647, 0, -5.308501, -2, .521954},
     {-4, -.296108, 0, 1.340016}},
    {"normalise",
     [](Tensors& make, Forward& p) {
       p.normalise = 1, p.map_q = p.map_k = FOVEA_X_FEATURE_MAP_RELU, p.eps = 1e-6f;
       p.state_in = {}, p.z_out = make({0, 0}, {1, 1, 2});
     },
     {.999999, 1.999998, 2, .5, .999999, 1.999998, .181818, 1.090909},
     {-3, 3, 4, 3}}};

Forward four_tokens(Tensors& make) {
  Forward p = {};
  p.struct_size = sizeof p;
  p.q = make(kQ, {1, 4, 1, 2}), p.k = make(kK, {1, 4, 1, 2}), p.v = make(kV, {1, 4, 1, 2});
  p.state_in = make(kState, {1, 1, 2, 2}), p.o = make(Numbers(8), {1, 4, 1, 2});
  p.state_out = make(Numbers(4), {1, 1, 2, 2}), p.scale = 1;
  return p;
}

// Of six decimals half of the last, and in f32 a few roundings of the largest, 14, too.
constexpr double kDecimals = 6e-7, kSingle = 6e-6;

void expect_near(const char* name, const Numbers& got, const Numbers& want, double tolerance) {
  SCOPED_TRACE(name);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], tolerance) << i;
}

TEST(gla, numbers_of_four_tokens) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    {
      Tensors make(FOVEA_HOST);
      Forward p = four_tokens(make);
      row.set(make, p);
      const auto exact = oracle::Gla<double, Forward>(p).forward(Mode::exact);
      expect_near("oracle o", exact.o.value, row.o, kDecimals);
      expect_near("oracle state_out", exact.state_out.value, row.state, kDecimals);
    }
    for (fovea_backend backend : harness::backends()) {
      SCOPED_TRACE(harness::name_of(backend));
      Tensors make(backend);
      Forward p = four_tokens(make);
      row.set(make, p);
      harness::must(fovea_x_gla_forward(make.ctx, &p), "x_gla_forward");
      expect_near("o", make.read(p.o), row.o, kSingle);
      expect_near("state_out", make.read(p.state_out), row.state, kSingle);
    }
  }
}

Backward four_gradients(Tensors& make) {
  Backward p = {};
  copy_inputs(p, four_tokens(make));
  p.struct_size = sizeof p;
  p.gate_key = make(kChannel, {1, 4, 1, 2}), p.dout = make(kDout, {1, 4, 1, 2});
  p.dstate_out = make(kState, {1, 1, 2, 2}), p.dstate_in = make(Numbers(4), {1, 1, 2, 2});
  for (fovea_tensor* x : {&p.dq, &p.dk, &p.dv, &p.dgate_key}) *x = make(Numbers(8), {1, 4, 1, 2});
  return p;
}

TEST(gla, gradients_of_four_tokens) {
  const Numbers dq = {1.060653, .889636, 1.736779, .942823, -4, 5.517256, 3.764241, -.729765};
  const Numbers dk = {1, 1.774825, 0, -4.603669, 4.662183, -2.708878, 1.025, 1.925};
  const Numbers dv = {.063383, 1.355721, -1.035122, 1.498303, -1.551482, -1.504156, -.8, .9};
  const Numbers dg = {.060653, .302865, 0, 2.07769, 0, -4.411625, -.662183, -.248808};
  const Numbers dh = {.606531, 0, -.344562, .498742};
  {
    Tensors make(FOVEA_HOST);
    const Backward p = four_gradients(make);
    const auto x = oracle::Gla<double, Backward>(p).backward(Mode::exact);
    expect_near("oracle dq", x.dq.value, dq, kDecimals);
    expect_near("oracle dk", x.dk.value, dk, kDecimals);
    expect_near("oracle dv", x.dv.value, dv, kDecimals);
    expect_near("oracle dgate_key", x.dgate_key.value, dg, kDecimals);
    expect_near("oracle dstate_in", x.dstate_in.value, dh, kDecimals);
  }
  for (fovea_backend backend : harness::backends()) {
    SCOPED_TRACE(harness::name_of(backend));
    Tensors make(backend);
    const Backward p = four_gradients(make);
    harness::must(fovea_x_gla_backward(make.ctx, &p), "x_gla_backward");
    expect_near("dq", make.read(p.dq), dq, kSingle),
        expect_near("dk", make.read(p.dk), dk, kSingle);
    expect_near("dv", make.read(p.dv), dv, kSingle);
    expect_near("dgate_key", make.read(p.dgate_key), dg, kSingle);
    expect_near("dstate_in", make.read(p.dstate_in), dh, kSingle);
  }
}

}  // namespace
