// SPDX-License-Identifier: Apache-2.0
// x_delta: the numbers of its definition, of the oracle and of the library; forms that are others
// by another name; the gradient of the oracle is the derivative.  What a server may rely on bit for
// bit: cuts at multiples of 64 tokens are the whole, calls of fewer tokens are steps, packed
// sequences are separate ones, rows of a pool are as any, a draft that was verified and committed
// is plain decode, a snapshot is the state of a shorter call.  Steps are the whole within rounding.
#include "oracle/delta.h"

#include <gtest/gtest.h>

#include "harness/bound.h"
#include "properties/derivatives.h"

namespace {

using Forward = fovea_x_delta_forward_params;
using Backward = fovea_x_delta_backward_params;
using Numbers = std::vector<double>;

// ---- the numbers of the definition

constexpr double kNone = -HUGE_VAL;
const Numbers kQ = {1, 0, 0, 2, 1, -1, .5, .5}, kK = {1, 1, 0, 1, -1, .5, 2, 0};
const Numbers kV = {1, 2, 3, -1, 0, 4, -2, .5}, kDout = {1, 0, 0, 1, 1, 1, -1, .5};
const Numbers kState = {.1, .2, -.3, .4}, kBeta = {.5, 1, .8, .3};
const Numbers kHeadGate = {-.1, -.2, -.3, -.4};
const Numbers kKeyGate = {-.5, -1, -.2, -.1, kNone, -.3, -1, -.7};
const Numbers kErase = {.3, .9, .6, -.2, .1, .4, .5, .5};

// Four tokens of one head, two channels.
template <class P>
class Tokens {
 public:
  Tokens() : call_(harness::Call::make(op(), p)) {
    p->scale = 1;
    give("q", p->q, {1, 4, 1, 2}, kQ), give("k", p->k, {1, 4, 1, 2}, kK);
    give("v", p->v, {1, 4, 1, 2}, kV), give("state_in", p->state_in, {1, 1, 2, 2}, kState);
    if constexpr (requires { p->dout; }) {
      give("dout", p->dout, {1, 4, 1, 2}, kDout);
      give("dstate_out", p->dstate_out, {1, 1, 2, 2}, kState);
    }
  }
  void give(const char* name, fovea_tensor& slot, const harness::Shape& shape, const Numbers& x) {
    call_.fill_list(call_.add(name, slot, harness::Role::in, FOVEA_F32, shape), x);
  }
  void head(const char* name, fovea_tensor& slot, const Numbers& x) {
    give(name, slot, {1, 4, 1}, x);
  }
  void rows(const char* name, fovea_tensor& slot, const Numbers& x) {
    give(name, slot, {1, 4, 1, 2}, x);
  }
  // Keys of length 1: those of the table above, divided by their norms.
  void unit_keys() {
    Numbers x = kK;
    for (size_t i = 0; i < x.size(); i += 2) {
      const double size = std::hypot(kK[i], kK[i + 1]);
      x[i] /= size, x[i + 1] /= size;
    }
    call_.fill_list(call_.field("k"), x);
  }
  // An output: what it must be, of the oracle and on each backend.
  void wants(const char* name, fovea_tensor& slot, const harness::Shape& shape, const Numbers& x) {
    const size_t at = call_.add(name, slot, harness::Role::out, FOVEA_F32, shape);
    oracle::Out out(call_.fields[at].tensor, 0);
    for (size_t i = 0; i < x.size(); ++i) out.set(static_cast<int64_t>(i), x[i]);
    call_.expect(at, out, out);
    wanted_.push_back({name, x});
  }
  template <class Outs>
  void check(const Outs& outs) {
    size_t n = 0;
    for (const oracle::Out* out : outs) near("the oracle", n, out->value), ++n;
    for (const fovea_backend backend : harness::backends()) {
      harness::Context ctx(backend);
      harness::Bound bound(ctx, call_);
      bound.upload(call_, false);
      ASSERT_EQ(bound.run(call_), FOVEA_OK) << fovea_last_error();
      const harness::Bytes after = bound.download();
      for (n = 0; n < wanted_.size(); ++n) {
        const auto& field = call_.fields[call_.field(wanted_[n].first)];
        Numbers got;
        call_.each(call_.field(field.name), [&](const int64_t*, int64_t byte) {
          got.push_back(oracle::decode(FOVEA_F32, after[field.storage].data() + byte));
        });
        near(harness::name_of(backend), n, got);
      }
    }
  }

  P* p;

 private:
  static harness::Op op() {
    if constexpr (requires { p->dout; })
      return FOVEA_TEST_OP(x_delta_backward);
    else
      return FOVEA_TEST_OP(x_delta_forward);
  }
  void near(const char* whose, size_t n, const Numbers& got) {
    const auto& [name, x] = wanted_[n];
    ASSERT_EQ(got.size(), x.size()) << name;
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(got[i], x[i], 3e-6) << name << " of " << whose << ", element " << i;
  }
  harness::Call call_;
  std::vector<std::pair<const char*, Numbers>> wanted_;
};

void check(Tokens<Forward>& made, const Numbers& o, const Numbers& state) {
  made.wants("o", made.p->o, {1, 4, 1, 2}, o);
  made.wants("state_out", made.p->state_out, {1, 1, 2, 2}, state);
  const auto out = oracle::Delta<Forward>(*made.p).forward(oracle::Mode::exact);
  made.check(std::vector<const oracle::Out*>{&out.o, &out.state_out});
}

TEST(delta, numbers_of_the_delta_rule) {
  Tokens<Forward> made;
  made.unit_keys();
  made.head("beta", made.p->beta, kBeta), made.head("gate_head", made.p->gate_head, kHeadGate);
  check(made, {.489279, .752349, 6, -2, -1.143806, -3.889772, .549443, -.293558},
        {-.216165, -1.22715, 1.315051, .640035});
}

TEST(delta, numbers_of_a_gate_for_each_key) {
  Tokens<Forward> made;
  made.unit_keys();
  made.head("beta", made.p->beta, kBeta), made.rows("gate_key", made.p->gate_key, kKeyGate);
  check(made, {.426634, .761298, 6, -2, -1.155676, -3.908025, .255099, -.123232},
        {-.416859, -.6481, .927056, .401636});
}

TEST(delta, numbers_of_erase) {
  Tokens<Forward> made;
  made.unit_keys();
  made.head("beta", made.p->beta, kBeta), made.rows("gate_key", made.p->gate_key, kKeyGate);
  made.rows("erase", made.p->erase, kErase);
  check(made, {.471575, .709033, 6.189384, -1.100739, -1.062264, -4.104334, .00914, -.065548},
        {-.916536, -.6755, .934817, .544404});
}

TEST(delta, numbers_of_a_low_rank) {
  Tokens<Forward> made;
  Numbers a, b;
  for (size_t i = 0; i < kK.size(); ++i) {
    const double unit = kK[i] / std::hypot(kK[i / 2 * 2], kK[i / 2 * 2 + 1]);
    a.push_back(-unit), b.push_back(unit * (i % 2 ? .9 : .3));
  }
  made.rows("gate_key", made.p->gate_key, kKeyGate);
  made.rows("low_a", made.p->low_a, a), made.rows("low_b", made.p->low_b, b);
  check(made, {1.090653, 2.031306, 6.009478, -1.981839, -1.860314, -6.56104, -1.496818, .853917},
        {-3.990072, .693317, .996436, 1.014518});
}

TEST(delta, numbers_of_the_gradient) {
  Tokens<Backward> made;
  Backward& p = *made.p;
  made.unit_keys();
  made.head("beta", p.beta, kBeta), made.head("gate_head", p.gate_head, kHeadGate);
  made.wants("dq", p.dq, {1, 4, 1, 2},
             {.489279, .127344, .615971, -1, -2.116933, 2.916645, -.39741, -.995034});
  made.wants("dk", p.dk, {1, 4, 1, 2},
             {.583006, .064553, -1.64778, -7.025727, 4.941939, .477487, .970287, 1.164137});
  made.wants("dv", p.dv, {1, 4, 1, 2},
             {.310843, .054777, -.763425, 1.935966, -1.13087, -1.068516, -.12, .135});
  made.wants("dbeta", p.dbeta, {1, 4, 1}, {.878291, -5.625984, -5.300457, 2.129645});
  made.wants("dgate_head", p.dgate_head, {1, 4, 1}, {.126339, .057457, -2.168783, -1.40927});
  made.wants("dstate_in", p.dstate_in, {1, 1, 2, 2}, {.596648, .105142, -.198883, -.035047});
  const auto x = oracle::Delta<Backward>(p).backward(oracle::Mode::exact);
  made.check(
      std::vector<const oracle::Out*>{&x.dq, &x.dk, &x.dv, &x.dbeta, &x.dgate_head, &x.dstate_in});
}

TEST(delta, numbers_of_the_gradient_of_erase) {
  Tokens<Backward> made;
  Backward& p = *made.p;
  made.unit_keys();
  made.head("beta", p.beta, kBeta), made.rows("gate_key", p.gate_key, kKeyGate);
  made.rows("erase", p.erase, kErase);
  made.wants("derase", p.derase, {1, 4, 1, 2},
             {-.121176, -.058998, -.838981, -1.053657, 0, 2.691742, .618666, .128945});
  made.wants("dbeta", p.dbeta, {1, 4, 1}, {1.997858, -3.439056, -5.285165, 1.025});
  made.wants("dgate_key", p.dgate_key, {1, 4, 1, 2},
             {-.067175, .300821, -.503389, 1.264389, 0, -1.577317, -.309333, -.329518});
  const auto x = oracle::Delta<Backward>(p).backward(oracle::Mode::exact);
  made.check(std::vector<const oracle::Out*>{&x.derase, &x.dbeta, &x.dgate_key});
}

// ---- forms that are others by another name

struct Small {
  properties::Some some{23};
  Forward p = {};
  Small() {
    p.q = some({2, 7, 4, 5}), p.k = some({2, 7, 2, 5}), p.v = some({2, 7, 2, 3});
    p.beta = some({2, 7, 2}), p.gate_key = some({2, 7, 2, 5}), p.state_in = some({2, 2, 5, 3});
    p.o = some({2, 7, 4, 3}), p.state_out = some({2, 2, 5, 3});
    p.scale = 1, p.beta_map = FOVEA_X_BETA_MAP_SIGMOID, p.gate_map = FOVEA_X_GATE_MAP_LOG_SIGMOID;
  }
  using Made = oracle::Delta<Forward>::Forward;
  static void same(const Made& a, const Made& b) {
    for (size_t i = 0; i < a.o.value.size(); ++i) EXPECT_NEAR(a.o.value[i], b.o.value[i], 1e-10);
    for (size_t i = 0; i < a.state_out.value.size(); ++i)
      EXPECT_NEAR(a.state_out.value[i], b.state_out.value[i], 1e-10);
  }
  // What the maps make of beta and gates.
  double strength(const oracle::Delta<Forward>& x, int64_t b, int64_t t, int64_t n) const {
    return oracle::beta_map_of(p.beta_map, x.beta(b, t, n)).value;
  }
};

template <class Visit>
void each_key(Visit visit) {
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t t = 0; t < 7; ++t)
      for (int64_t n = 0; n < 2; ++n)
        for (int64_t c = 0; c < 5; ++c) visit(b, t, n, c);
}

TEST(oracle, delta_erase_of_beta_k_is_plain) {
  Small x;
  const oracle::Delta<Forward> plain(x.p);
  Forward p = x.p;
  p.erase = x.some({2, 7, 2, 5});
  oracle::Delta<Forward> other(p);
  each_key([&](int64_t b, int64_t t, int64_t n, int64_t c) {
    other.erase.value[other.erase.at_index(b, t, n, c)] =
        x.strength(plain, b, t, n) * plain.k(b, t, n, c);
  });
  Small::same(plain.forward(oracle::Mode::exact), other.forward(oracle::Mode::exact));
}

TEST(oracle, delta_is_a_low_rank) {
  Small x;
  const oracle::Delta<Forward> plain(x.p);
  Forward p = x.p;
  p.beta = {}, p.low_a = x.some({2, 7, 2, 5}), p.low_b = x.some({2, 7, 2, 5});
  oracle::Delta<Forward> other(p);
  const oracle::GateMap gate = oracle::GateMap::of(p);
  each_key([&](int64_t b, int64_t t, int64_t n, int64_t c) {
    const int64_t at = other.low_a.at_index(b, t, n, c);
    const double decay = std::exp(gate(plain.gate_key(b, t, n, c), 0.0).value);
    other.low_a.value[at] = -decay * plain.k(b, t, n, c);
    other.k.value[at] = other.low_b.value[at] = x.strength(plain, b, t, n) * plain.k(b, t, n, c);
  });
  Small::same(plain.forward(oracle::Mode::exact), other.forward(oracle::Mode::exact));
}

TEST(oracle, delta_reads_back_what_it_wrote) {
  Small x;
  Forward p = x.p;
  p.beta = {}, p.q = p.k, p.l2_norm = 1, p.eps = 1e-30f;
  p.o = x.some({2, 7, 2, 3});
  const auto out = oracle::Delta<Forward>(p).forward(oracle::Mode::exact);
  const oracle::Dense v = oracle::load(p.v);
  for (size_t i = 0; i < v.value.size(); ++i) EXPECT_NEAR(out.o.value[i], v.value[i], 1e-12);
}

// The chunk form and the recurrence in float32, over chunk edges and resets.
TEST(oracle, delta_chunks_are_the_recurrence) {
  for (const int64_t s : {1, 63, 64, 65, 130})
    for (int form = 0; form < 3; ++form) {
      SCOPED_TRACE(testing::Message() << s << " tokens, form " << form);
      properties::Some some(31 + s);
      Backward p = {};
      p.q = some({1, s, 2, 18}), p.k = some({1, s, 1, 18}), p.v = some({1, s, 2, 6});
      p.gate_key = some({1, s, 2, 18}), p.gate_map = FOVEA_X_GATE_MAP_EXP, p.l2_norm = 1;
      if (form < 2) p.beta = some({1, s, 2}), p.beta_map = FOVEA_X_BETA_MAP_SIGMOID;
      if (form < 2) p.dbeta = p.beta;
      if (form == 1) p.erase = p.derase = some({1, s, 2, 18});
      if (form == 2) p.low_a = p.dlow_a = some({1, s, 2, 18});
      if (form == 2) p.low_b = p.dlow_b = some({1, s, 2, 18});
      for (const fovea_tensor* x : {&p.erase, &p.low_a, &p.low_b})
        for (int64_t i = 0; x->data && i < s * 36; ++i) static_cast<float*>(x->data)[i] *= .1f;
      for (const int64_t t : {int64_t{0}, s / 2, s - 1})
        for (int64_t c = 0; c < 30; ++c)
          static_cast<float*>(p.gate_key.data)[t * 36 + c] = HUGE_VALF;
      p.dout = some({1, s, 2, 6}), p.state_in = some({1, 2, 18, 6}), p.dq = p.q, p.dk = p.k;
      p.dv = p.v, p.dgate_key = p.gate_key, p.dstate_in = p.dstate_out = p.state_in;
      const oracle::Delta<Backward> x(p);
      const auto one = x.backward(oracle::Mode::exact), other = x.backward(oracle::Mode::rounded);
      const auto near = [](const char* name, const oracle::Out& a, const oracle::Out& b) {
        for (size_t i = 0; i < a.value.size(); ++i)
          ASSERT_NEAR(a.value[i], b.value[i], 1e-5 * (1 + a.largest)) << name << ' ' << i;
      };
      near("dq", one.dq, other.dq), near("dk", one.dk, other.dk), near("dv", one.dv, other.dv);
      near("dbeta", one.dbeta, other.dbeta), near("derase", one.derase, other.derase);
      near("dlow_a", one.dlow_a, other.dlow_a), near("dlow_b", one.dlow_b, other.dlow_b);
      near("dgate_key", one.dgate_key, other.dgate_key);
      near("dstate_in", one.dstate_in, other.dstate_in);
    }
}

// ---- the gradient

struct Slope {
  int form;   // 0 plain, 1 erase, 2 low rank
  int gates;  // 1 head, 2 key, 3 both
  int32_t gate_map, beta_map, l2_norm;
};

void expect_slopes(const Slope& way) {
  properties::Some some(17 + way.gate_map);
  const int64_t s = 4, d = 3, e = 2;
  Forward p = {};
  Backward q = {};
  const auto both = [&](fovea_tensor Forward::*a, fovea_tensor Backward::*b,
                        const std::vector<int64_t>& shape) { p.*a = q.*b = some(shape); };
  both(&Forward::q, &Backward::q, {2, s, 4, d}), both(&Forward::k, &Backward::k, {2, s, 1, d});
  both(&Forward::v, &Backward::v, {2, s, 2, e});
  both(&Forward::state_in, &Backward::state_in, {2, 2, d, e});
  if (way.form < 2) both(&Forward::beta, &Backward::beta, {2, s, 2});
  if (way.form == 1) both(&Forward::erase, &Backward::erase, {2, s, 2, d});
  if (way.form == 2) both(&Forward::low_a, &Backward::low_a, {2, s, 2, d});
  if (way.form == 2) both(&Forward::low_b, &Backward::low_b, {2, s, 2, d});
  if (way.gates & 1) both(&Forward::gate_head, &Backward::gate_head, {2, s, 2});
  if (way.gates & 2) both(&Forward::gate_key, &Backward::gate_key, {2, s, 2, d});
  both(&Forward::gate_rate, &Backward::gate_rate, {2});
  both(&Forward::gate_bias, &Backward::gate_bias, {2, d});
  // As they are, gates would let the state grow.
  for (int64_t i = 0; i < 2 * d && way.gate_map == FOVEA_X_GATE_MAP_LOG; ++i)
    static_cast<float*>(p.gate_bias.data)[i] -= 2;
  p.o = q.dout = some({2, s, 4, e}), p.state_out = q.dstate_out = some({2, 2, d, e});
  p.gate_map = q.gate_map = way.gate_map, p.beta_map = q.beta_map = way.beta_map;
  p.l2_norm = q.l2_norm = way.l2_norm, p.gate_bound = q.gate_bound = 3, p.gate_tau = 2;
  q.gate_tau = 2, q.dq = q.q, q.dk = q.k, q.dv = q.v, q.dbeta = q.beta, q.derase = q.erase;
  q.dgate_head = q.gate_head, q.dgate_key = q.gate_key, q.dgate_rate = q.gate_rate;
  q.dgate_bias = q.gate_bias, q.dlow_a = q.low_a, q.dlow_b = q.low_b, q.dstate_in = q.state_in;
  oracle::Delta<Forward> x(p);
  const auto made = oracle::Delta<Backward>(q).backward(oracle::Mode::exact);
  const oracle::Dense dout = oracle::load(q.dout), dlast = oracle::load(q.dstate_out);
  const auto loss = [&] {
    const auto out = x.forward(oracle::Mode::exact);
    return properties::weighed(dout, out.o) + properties::weighed(dlast, out.state_out);
  };
  const auto expect = [&](const char* name, oracle::Dense& of, const oracle::Out& gradient) {
    if (of) properties::expect_derivative(name, of, gradient.value, loss, 1e-6);
  };
  expect("q", x.q, made.dq), expect("k", x.k, made.dk), expect("v", x.v, made.dv);
  expect("beta", x.beta, made.dbeta), expect("erase", x.erase, made.derase);
  expect("gate_head", x.gate_head, made.dgate_head);
  expect("gate_key", x.gate_key, made.dgate_key);
  expect("gate_rate", x.rate, made.dgate_rate), expect("gate_bias", x.bias, made.dgate_bias);
  expect("low_a", x.low_a, made.dlow_a), expect("low_b", x.low_b, made.dlow_b);
  expect("state_in", x.state, made.dstate_in);
}

TEST(oracle, delta_gradient_is_the_derivative) {
  for (const Slope& way :
       {Slope{0, 0, 0, 0, 0}, Slope{0, 1, 1, 1, 1}, Slope{0, 2, 2, 2, 1}, Slope{0, 3, 3, 1, 0},
        Slope{1, 2, 1, 1, 1}, Slope{1, 3, 4, 2, 0}, Slope{1, 1, 3, 0, 0}, Slope{2, 0, 0, 0, 0},
        Slope{2, 1, 2, 0, 1}, Slope{2, 3, 1, 0, 1}, Slope{0, 2, 0, 1, 0}}) {
    SCOPED_TRACE(testing::Message()
                 << "form " << way.form << ", gates " << way.gates << ", map " << way.gate_map);
    expect_slopes(way);
  }
}

// ---- bits

constexpr int64_t kTokens = 150, kHeads = 4, kRows = kTokens + 10;
using Bits = std::vector<uint8_t>;

// The form of a layer's correction, and the type of its inputs.
struct Way {
  int form;  // 0 gate of keys, 1 gate of heads, 2 erase, 3 low rank
  int dtype;
  int64_t d = 24, e = 20;
};

// Tensors of one layer in memory of a context: h = 4, g = 2, x = 4.
class Layer {
 public:
  Layer(fovea_backend backend, const Way& way) : ctx_(backend), way_(way) {
    size_ = oracle::bytes_of(way.dtype);
    const auto fill = [&](harness::Memory& to, int dtype, double factor, uint64_t seed) {
      const harness::Random random(seed);
      Bits x(to.bytes);
      const size_t bytes = static_cast<size_t>(oracle::bytes_of(dtype));
      uint64_t n = 0;
      for (size_t i = 0; i + bytes <= x.size(); i += bytes)
        oracle::encode(dtype, factor * random.normal(n++), x.data() + i);
      to.write(x);
    };
    fill(q_, way.dtype, 1, 1), fill(k_, way.dtype, 1, 2), fill(v_, way.dtype, 1, 3);
    fill(beta_, way.dtype, 1, 4), fill(rows_, way.dtype, .2, 5), fill(low_, way.dtype, .2, 6);
    fill(gate_, way.dtype, 1, 7), fill(rate_, FOVEA_F32, .5, 8), fill(bias_, FOVEA_F32, .5, 9);
    pool_.write(Bits(pool_.bytes)), kept_.write(Bits(kept_.bytes)), o_.write(Bits(o_.bytes));
  }

  // Tokens [begin, begin + b s) as b sequences of s.
  Forward tokens(int64_t b, int64_t begin, int64_t s) {
    Forward p = {};
    p.struct_size = sizeof p;
    const auto of = [&](const harness::Memory& x, std::vector<int64_t> shape) {
      int64_t row = 1;
      for (const int64_t n : shape) row *= n;
      shape.insert(shape.begin(), {b, s});
      return tensor(x, begin * row * size_, way_.dtype, shape);
    };
    p.q = of(q_, {kHeads, way_.d}), p.k = of(k_, {2, way_.d}), p.v = of(v_, {kHeads, way_.e});
    p.o = of(o_, {kHeads, way_.e}), p.l2_norm = 1;
    if (way_.form < 3) p.beta = of(beta_, {kHeads}), p.beta_map = FOVEA_X_BETA_MAP_TWO_SIGMOID;
    if (way_.form == 2) p.erase = of(rows_, {kHeads, way_.d});
    if (way_.form == 3) p.low_a = of(rows_, {kHeads, way_.d}), p.low_b = of(low_, {kHeads, way_.d});
    p.gate_map = FOVEA_X_GATE_MAP_SOFTPLUS;
    if (way_.form == 1)
      p.gate_head = of(gate_, {kHeads});
    else
      p.gate_key = of(gate_, {kHeads, way_.d});
    p.gate_rate = tensor(rate_, 0, FOVEA_F32, {kHeads});
    p.gate_bias = tensor(bias_, 0, FOVEA_F32, {kHeads, way_.d});
    return p;
  }
  fovea_tensor pool() { return tensor(pool_, 0, FOVEA_F32, {kRows, kHeads, way_.d, way_.e}); }
  fovea_tensor kept() { return tensor(kept_, 0, FOVEA_F32, {kRows, kHeads, way_.d, way_.e}); }
  fovea_tensor integers(const std::vector<int32_t>& x, const std::vector<int64_t>& shape) {
    integers_.push_back(std::make_unique<harness::Memory>(ctx_, 4 * x.size()));
    Bits bytes(4 * x.size());
    std::memcpy(bytes.data(), x.data(), bytes.size());
    integers_.back()->write(bytes);
    return tensor(*integers_.back(), 0, FOVEA_I32, shape);
  }
  void run(const Forward& p) { harness::must(fovea_x_delta_forward(ctx_, &p), "x_delta_forward"); }
  // o of the tokens, then nothing in its place.
  Bits taken(int64_t begin = 0, int64_t end = kTokens) {
    const Bits all = o_.read();
    o_.write(Bits(o_.bytes));
    return some_of(all, begin, end);
  }
  Bits some_of(const Bits& o, int64_t begin, int64_t end) const {
    const int64_t row = size_ * kHeads * way_.e;
    return Bits(o.begin() + begin * row, o.begin() + end * row);
  }
  int dtype() const { return way_.dtype; }
  Bits pool_row(int64_t row) { return row_of(pool_, row); }
  Bits kept_row(int64_t row) { return row_of(kept_, row); }

 private:
  static fovea_tensor tensor(const harness::Memory& x, int64_t byte, int dtype,
                             const std::vector<int64_t>& shape) {
    return fovea_contiguous(static_cast<uint8_t*>(x.data) + byte, static_cast<fovea_dtype>(dtype),
                            static_cast<int32_t>(shape.size()), shape.data());
  }
  static Bits row_of(const harness::Memory& states, int64_t row) {
    const Bits all = states.read();
    const auto bytes = static_cast<int64_t>(states.bytes) / kRows;
    return Bits(all.begin() + row * bytes, all.begin() + (row + 1) * bytes);
  }
  static size_t floats(int64_t count) { return 4 * static_cast<size_t>(count); }
  harness::Context ctx_;
  const Way way_;
  int64_t size_;
  harness::Memory q_{ctx_, floats(kTokens*kHeads*way_.d)}, k_{ctx_, floats(kTokens * 2 * way_.d)};
  harness::Memory v_{ctx_, floats(kTokens*kHeads*way_.e)}, o_{ctx_, floats(kTokens*kHeads*way_.e)};
  harness::Memory rows_{ctx_, floats(kTokens*kHeads*way_.d)},
      low_{ctx_, floats(kTokens*kHeads*way_.d)};
  harness::Memory gate_{ctx_, floats(kTokens*kHeads*way_.d)}, beta_{ctx_, floats(kTokens*kHeads)};
  harness::Memory rate_{ctx_, floats(kHeads)}, bias_{ctx_, floats(kHeads*way_.d)};
  harness::Memory pool_{ctx_, floats(kRows* kHeads* way_.d* way_.e)};
  harness::Memory kept_{ctx_, floats(kRows* kHeads* way_.d* way_.e)};
  std::vector<std::unique_ptr<harness::Memory>> integers_;
};

// The whole sequence at once, its last state in row 0 of `kept`.
Bits whole(Layer& layer) {
  auto p = layer.tokens(1, 0, kTokens);
  p.state_out = layer.kept(), p.state_row = layer.integers({0}, {1});
  layer.run(p);
  return layer.taken();
}

// Tokens [begin, end) one by one, the state after each in its row of `kept`.
Bits steps(Layer& layer, int32_t begin, int32_t end) {
  for (int32_t t = begin; t < end; ++t) {
    auto p = layer.tokens(1, t, 1);
    p.state_in = p.state_out = layer.kept();
    p.state_row = layer.integers({t - 1}, {1}), p.state_out_row = layer.integers({t}, {1});
    layer.run(p);
  }
  return layer.taken(begin, end);
}

// Numbers that differ by one rounding of their type and by that of f32 sums.
void expect_near(int dtype, const Bits& got, const Bits& want) {
  const size_t bytes = static_cast<size_t>(oracle::bytes_of(dtype));
  const double unit = dtype == FOVEA_BF16 ? 0x1p-7 : dtype == FOVEA_F16 ? 0x1p-10 : 0;
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (size_t i = 0; i < want.size(); i += bytes)
    largest = std::max(largest, std::abs(oracle::decode(dtype, want.data() + i)));
  for (size_t i = 0; i < want.size(); i += bytes) {
    const double x = oracle::decode(dtype, want.data() + i);
    ASSERT_NEAR(oracle::decode(dtype, got.data() + i), x, unit * std::abs(x) + 1e-5 * largest)
        << i / bytes;
  }
}

void place(Layer& layer, Forward& p, const std::vector<int32_t>& rows) {
  p.state_in = p.state_out = layer.pool();
  p.state_row = layer.integers(rows, {static_cast<int64_t>(rows.size())});
}

template <class Test>
void each_layer(Test test) {
  for (const fovea_backend backend : harness::backends())
    for (const Way& way : {Way{0, FOVEA_F32}, Way{0, FOVEA_BF16}, Way{1, FOVEA_BF16},
                           Way{1, FOVEA_F32}, Way{2, FOVEA_F16}, Way{3, FOVEA_BF16},
                           Way{0, FOVEA_BF16, 128, 16}, Way{1, FOVEA_BF16, 64, 32}}) {
      SCOPED_TRACE(testing::Message() << harness::name_of(backend) << ", form " << way.form
                                      << ", dtype " << way.dtype);
      Layer layer(backend, way);
      test(layer);
    }
}

TEST(delta, calls_of_fewer_than_64_tokens_are_steps) {
  each_layer([](Layer& layer) {
    const Bits o = steps(layer, 0, kTokens);
    int64_t begin = 0;
    for (const int64_t s : {1, 2, 1, 9, 40, 1, 1, 1, 3, 63, 28}) {
      auto p = layer.tokens(1, begin, s);
      place(layer, p, {7});
      if (begin == 0) p.state_in.data = nullptr;
      layer.run(p);
      begin += s;
      EXPECT_EQ(layer.pool_row(7), layer.kept_row(begin - 1)) << begin;
    }
    ASSERT_EQ(begin, kTokens);
    EXPECT_EQ(layer.taken(), o);
  });
}

TEST(delta, cuts_at_64_tokens_are_the_whole) {
  each_layer([](Layer& layer) {
    const Bits o = whole(layer);
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{64}, std::vector<int64_t>{128}, std::vector<int64_t>{64, 128}}) {
      int64_t begin = 0;
      for (size_t i = 0; i <= cuts.size(); ++i) {
        const int64_t end = i < cuts.size() ? cuts[i] : kTokens;
        auto p = layer.tokens(1, begin, end - begin);
        place(layer, p, {3});
        if (begin == 0) p.state_in.data = nullptr;
        layer.run(p);
        begin = end;
      }
      EXPECT_EQ(layer.taken(), o) << cuts[0];
      EXPECT_EQ(layer.pool_row(3), layer.kept_row(0)) << cuts[0];
    }
  });
}

TEST(delta, steps_are_near_the_whole) {
  each_layer([](Layer& layer) {
    const Bits o = whole(layer), state = layer.kept_row(0);
    expect_near(layer.dtype(), steps(layer, 0, kTokens), o);
    expect_near(FOVEA_F32, layer.kept_row(kTokens - 1), state);
  });
}

TEST(delta, packed_is_separate) {
  each_layer([](Layer& layer) {
    const std::vector<int32_t> start = {0, 1, 1, 3, 70, 71, kTokens};
    for (size_t i = 0; i + 1 < start.size(); ++i) {
      auto p = layer.tokens(1, start[i], start[i + 1] - start[i]);
      p.state_out = layer.kept(), p.state_row = layer.integers({static_cast<int32_t>(i)}, {1});
      layer.run(p);
    }
    const Bits o = layer.taken();
    auto p = layer.tokens(1, 0, kTokens);
    place(layer, p, {10, 9, 8, 7, 6, 5});
    p.start = layer.integers(start, {7});
    layer.run(p);
    EXPECT_EQ(layer.taken(), o);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(layer.pool_row(10 - i), layer.kept_row(i)) << i;
  });
}

// Sequences of a batch are what each is alone, wherever its state lies.
TEST(delta, rows_of_a_pool_are_as_any) {
  each_layer([](Layer& layer) {
    const int64_t s = 30;
    for (int64_t i = 0; i < 5; ++i) {
      auto p = layer.tokens(1, i * s, s);
      p.state_out = layer.kept(), p.state_row = layer.integers({static_cast<int32_t>(i)}, {1});
      layer.run(p);
    }
    const Bits o = layer.taken();
    auto p = layer.tokens(5, 0, s);
    place(layer, p, {9, 2, 30, 0, 17});
    layer.run(p);
    EXPECT_EQ(layer.taken(), o);
    int64_t i = 0;
    for (const int64_t row : {9, 2, 30, 0, 17})
      EXPECT_EQ(layer.pool_row(row), layer.kept_row(i++)) << row;
    // Once more, from those rows and from rows of the sequences' own order.
    place(layer, p, {9, 2, 30, 0, 17});
    layer.run(p);
    const Bits second = layer.taken();
    auto own = layer.tokens(5, 0, s);
    own.state_in = own.state_out = layer.kept();
    own.state_in.shape[0] = own.state_out.shape[0] = 5;
    layer.run(own);
    EXPECT_EQ(layer.taken(), second);
    EXPECT_EQ(layer.pool_row(30), layer.kept_row(2));
  });
}

TEST(delta, a_committed_draft_is_plain_decode) {
  each_layer([](Layer& layer) {
    const int64_t draft = 90;  // tokens 90 .. 94 behind a prefix of 90
    auto prefix = layer.tokens(1, 0, draft);
    prefix.o.data = nullptr, prefix.state_out = layer.kept();
    prefix.state_row = layer.integers({static_cast<int32_t>(draft - 1)}, {1});
    layer.run(prefix);
    place(layer, prefix, {4});
    prefix.state_in.data = nullptr;
    layer.run(prefix);
    const Bits before = layer.pool_row(4);
    EXPECT_EQ(before, layer.kept_row(draft - 1));
    const Bits o = steps(layer, draft, draft + 5);
    auto verify = layer.tokens(1, draft, 5);
    place(layer, verify, {4});
    verify.state_out.data = nullptr;
    layer.run(verify);
    EXPECT_EQ(layer.taken(draft, draft + 5), o);
    EXPECT_EQ(layer.pool_row(4), before);
    auto commit = layer.tokens(1, draft, 5);
    place(layer, commit, {4});
    commit.o.data = nullptr, commit.len = layer.integers({3}, {1});
    layer.run(commit);
    EXPECT_EQ(layer.pool_row(4), layer.kept_row(draft + 2));
    // A row padded for a graph touches no state.
    auto padded = layer.tokens(2, draft, 1);
    place(layer, padded, {-1, -1});
    padded.len = layer.integers({0, 0}, {2}), padded.state_out = layer.kept();
    const Bits kept = layer.kept_row(0);
    layer.run(padded);
    EXPECT_EQ(layer.kept_row(0), kept);
  });
}

TEST(delta, a_snapshot_is_the_state_of_a_shorter_call) {
  each_layer([](Layer& layer) {
    struct Length {
      int64_t tokens, every;
    };
    for (const Length& length : {Length{kTokens, 64}, Length{63, 20}}) {
      std::vector<int32_t> rows = {5, 2, 8};
      rows.resize(length.tokens / length.every);
      auto p = layer.tokens(1, 0, length.tokens);
      p.snapshot = layer.kept(), p.snapshot_every = length.every;
      p.snapshot_row = layer.integers(rows, {1, static_cast<int64_t>(rows.size())});
      layer.run(p);
      for (size_t n = 0; n < rows.size(); ++n) {
        auto shorter = layer.tokens(1, 0, length.every * static_cast<int64_t>(n + 1));
        shorter.o.data = nullptr;
        place(layer, shorter, {1});
        shorter.state_in.data = nullptr;
        layer.run(shorter);
        EXPECT_EQ(layer.kept_row(rows[n]), layer.pool_row(1)) << length.every << ' ' << n;
      }
    }
  });
}

// The state after each token of a draft has a row of its own: decoding goes on from any of them.
TEST(delta, a_draft_is_rolled_back_to_any_of_its_tokens) {
  each_layer([](Layer& layer) {
    const Bits o = steps(layer, 0, 12);
    auto prefix = layer.tokens(1, 0, 6);
    place(layer, prefix, {4});
    prefix.state_in.data = nullptr;
    layer.run(prefix);
    auto draft = layer.tokens(1, 6, 5);
    place(layer, draft, {4});
    draft.state_out.data = nullptr, draft.snapshot = layer.pool(), draft.snapshot_every = 1;
    draft.snapshot_row = layer.integers({20, 3, 21, 9, 22}, {1, 5});
    layer.run(draft);
    EXPECT_EQ(layer.taken(6, 11), layer.some_of(o, 6, 11));
    int64_t accepted = 0;
    for (const int32_t row : {20, 3, 21, 9, 22}) {
      ++accepted;
      EXPECT_EQ(layer.pool_row(row), layer.kept_row(5 + accepted)) << accepted;
      auto next = layer.tokens(1, 6 + accepted, 1);
      place(layer, next, {row});
      layer.run(next);
      EXPECT_EQ(layer.taken(6 + accepted, 7 + accepted),
                layer.some_of(o, 6 + accepted, 7 + accepted));
    }
  });
}

// A state that is written each fourth step alone: the tokens since then are played again.
TEST(delta, a_ring_of_tokens_is_plain_decode) {
  each_layer([](Layer& layer) {
    const int64_t ring = 4;
    const Bits o = steps(layer, 0, 13);
    Bits before(layer.pool_row(4).size());
    for (int64_t t = 0; t < 13; ++t) {
      const int64_t base = t / ring * ring;
      auto p = layer.tokens(1, base, t - base + 1);
      place(layer, p, {4});
      p.output_from = layer.integers({static_cast<int32_t>(t - base)}, {1});
      p.state_out.data = nullptr;
      layer.run(p);
      const Bits all = layer.taken();
      EXPECT_EQ(layer.some_of(all, t, t + 1), layer.some_of(o, t, t + 1)) << t;
      EXPECT_EQ(layer.some_of(all, base, t), Bits(layer.some_of(all, base, t).size())) << t;
      EXPECT_EQ(layer.pool_row(4), before) << t;
      if (t + 1 < base + ring) continue;
      auto commit = layer.tokens(1, base, ring);
      place(layer, commit, {4});
      commit.o.data = nullptr;
      layer.run(commit);
      before = layer.pool_row(4);
      EXPECT_EQ(before, layer.kept_row(t));
    }
  });
}

// A rank that knows nothing of earlier tokens hands on two states: its own from zeros, and what it
// makes of the identity where nothing is written.  H of the rank before it goes through both.
TEST(delta, ranks_hand_on_two_states) {
  constexpr int64_t s = 40, h = 2, d = 16;
  const int64_t wide[] = {1, s, h, d}, of_state[] = {1, h, d, d}, narrow[] = {1, s, h};
  for (const fovea_backend backend : harness::backends())
    for (const bool keyed : {false, true}) {
      harness::Context ctx(backend);
      const auto floats = [&](int64_t n, uint64_t seed, double factor) {
        const harness::Random random(seed);
        std::vector<float> x(n);
        for (int64_t i = 0; i < n; ++i) x[i] = static_cast<float>(factor * random.normal(i));
        return x;
      };
      std::vector<std::unique_ptr<harness::Memory>> rooms;
      const auto put = [&](const std::vector<float>& x, int32_t ndim, const int64_t* shape) {
        rooms.push_back(std::make_unique<harness::Memory>(ctx, 4 * x.size()));
        Bits bytes(4 * x.size());
        std::memcpy(bytes.data(), x.data(), bytes.size());
        rooms.back()->write(bytes);
        return fovea_contiguous(rooms.back()->data, FOVEA_F32, ndim, shape);
      };
      std::vector<float> gates = floats(s * h * d, 4, .3), eye(h * d * d);
      for (float& x : gates) x = -std::abs(x);
      for (int64_t i = 0; i < h * d; ++i) eye[i * d + i % d] = 1;
      Forward p = {};
      p.struct_size = sizeof p, p.l2_norm = 1, p.beta_map = FOVEA_X_BETA_MAP_SIGMOID;
      p.q = put(floats(s * h * d, 1, 1), 4, wide), p.k = put(floats(s * h * d, 2, 1), 4, wide);
      p.beta = put(floats(s * h, 5, 1), 3, narrow);
      (keyed ? p.gate_key : p.gate_head) = put(gates, keyed ? 4 : 3, keyed ? wide : narrow);
      const fovea_tensor v = put(floats(s * h * d, 3, 1), 4, wide);
      const fovea_tensor none = put(std::vector<float>(s * h * d), 4, wide);
      // The state after the tokens, of a state before them.
      const auto after = [&](const fovea_tensor& values, const std::vector<float>& before) {
        p.v = values, p.state_in = put(before, 4, of_state);
        p.state_out = put(std::vector<float>(h * d * d), 4, of_state);
        harness::must(fovea_x_delta_forward(ctx, &p), "x_delta_forward");
        std::vector<float> state(h * d * d);
        const Bits bytes = rooms.back()->read();
        std::memcpy(state.data(), bytes.data(), bytes.size());
        return state;
      };
      const std::vector<float> first = floats(h * d * d, 6, 1), want = after(v, first);
      const std::vector<float> psi = after(v, std::vector<float>(h * d * d)),
                               phi = after(none, eye);
      for (int64_t i = 0; i < h * d; ++i)
        for (int64_t e = 0; e < d; ++e) {
          double sum = psi[i * d + e];
          for (int64_t c = 0; c < d; ++c)
            sum += static_cast<double>(phi[i * d + c]) * first[(i / d * d + c) * d + e];
          ASSERT_NEAR(want[i * d + e], sum, 2e-6 * (1 + std::abs(sum))) << i << ' ' << e;
        }
    }
}

}  // namespace
