// SPDX-License-Identifier: Apache-2.0
// kl_forward and kl_backward beyond the sweep: the oracle against published numbers and central
// differences, the error of kl at any size of logits and length, and what must not change one bit.
#include "cases/kl_case.h"
#include "oracle/kl.h"

namespace {

using namespace cases;
using harness::Bytes;
using harness::Context;
using oracle::Mode;
using Values = std::vector<double>;

struct Tensors {
  std::vector<std::vector<float>> memory;
  fovea_tensor operator()(const std::vector<int64_t>& shape, const Values& values) {
    memory.emplace_back(values.begin(), values.end());
    return fovea_contiguous(memory.back().data(), FOVEA_F32, static_cast<int32_t>(shape.size()),
                            shape.data());
  }
};

// Two rows, three keys, causal, computed by hand: row 0 sees 2 keys, row 1 all 3.
//   a = (0, ln 2), (0, ln 2, ln 5);  b = (0, 0), (0, ln 3, 0)
//   KL(p || r) = sum p ln(p / r):  p = (1, 2) / 3, r = (1, 1) / 2;  p = (1, 2, 5) / 8, r = (1, 3,
//   1) / 5
TEST(oracle, golden_kl) {
  Tensors make;
  fovea_kl_forward_params p = {};
  p.q_teacher = make({1, 2, 1, 1}, {1, 1});
  p.k_teacher = make({1, 3, 1, 1}, {0, std::log(2), std::log(5)});
  p.q_student = make({1, 2, 1, 1}, {0, 1});
  p.k_student = make({1, 3, 1, 1}, {0, std::log(3), 0});
  p.total = make({1}, {0});
  p.causal = 1;
  const auto entropy = [](const Values& x, const Values& y) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) sum += x[i] * std::log(x[i] / y[i]);
    return sum;
  };
  const Values p0 = {1. / 3, 2. / 3}, r0 = {.5, .5}, p1 = {.125, .25, .625}, r1 = {.2, .6, .2};
  for (bool reverse : {false, true}) {
    p.direction = reverse;
    p.mean = reverse;
    const oracle::KlResult out = oracle::kl_forward(p, Mode::exact);
    const double first = reverse ? entropy(r0, p0) : entropy(p0, r0);
    const double second = reverse ? entropy(r1, p1) : entropy(p1, r1);
    EXPECT_NEAR(out.kl.value[0], first, 1e-7);
    EXPECT_NEAR(out.kl.value[1], second, 1e-7);
    EXPECT_NEAR((reverse ? out.lse_second : out.lse_first).value[1], std::log(8), 1e-7);
    EXPECT_NEAR((reverse ? out.lse_first : out.lse_second).value[1], std::log(5), 1e-7);
    EXPECT_NEAR(out.total.value[0], (first + second) / (reverse ? 2 : 1), 1e-7);
  }
}

// <dkl, kl> + dtotal total as a function of one input.
double loss(const oracle::KlCall& a, const oracle::KlIncoming& in,
            const fovea_kl_backward_params& p) {
  struct {
    fovea_tensor total;
  } asked = {p.dtotal};
  const oracle::KlResult out = oracle::kl_forward<double>(a, asked, Mode::exact);
  double sum = in.dtotal(0) * out.total.value[0];
  for (size_t i = 0; i < out.kl.value.size(); ++i) sum += in.dkl.value[i] * out.kl.value[i];
  return sum;
}

TEST(oracle, kl_gradient_is_the_derivative) {
  for (int variant = 0; variant < 4; ++variant) {
    SCOPED_TRACE(variant);
    Tensors make;
    uint64_t n = 0;
    const harness::Random random(11 + variant);
    auto some = [&](const std::vector<int64_t>& shape) {
      int64_t count = 1;
      for (int64_t x : shape) count *= x;
      Values values(count);
      for (double& x : values) x = random.normal(n++);
      return make(shape, values);
    };
    fovea_kl_backward_params p = {};
    p.q_teacher = some({2, 5, 4, 3}), p.k_teacher = some({2, 6, 2, 3});
    p.q_student = some({2, 5, 4, 2}), p.k_student = some({2, 6, 1, 2});
    p.row_weight = some({2, 4, 5}), p.dkl = some({2, 4, 5}), p.dtotal = make({1}, {.7});
    p.kl = some({2, 4, 5}), p.lse_teacher = p.lse_student = p.kl;
    p.causal = 1, p.window_left = variant == 3 ? 3 : 0, p.sink_keys = variant == 3;
    p.direction = variant % 2, p.mean = variant / 2, p.scale_student = 0.9f;
    oracle::KlCall a = oracle::load_kl(p);
    oracle::KlIncoming in = oracle::load_kl_incoming(p);
    struct {
      fovea_tensor total = {};
    } nothing;
    const oracle::KlResult f = oracle::kl_forward<double>(a, nothing, Mode::exact);
    in.kl.value = f.kl.value, in.lse_first.value = f.lse_first.value;
    in.lse_second.value = f.lse_second.value;
    const oracle::KlGradients g = oracle::kl_backward<double>(a, in, Mode::exact);
    const auto compare = [&](const char* name, oracle::Dense& x, const Values& gradient) {
      SCOPED_TRACE(name);
      ASSERT_EQ(x.value.size(), gradient.size());
      for (size_t i = 0; i < gradient.size(); ++i) {
        const double at = x.value[i], step = 1e-5;
        x.value[i] = at + step;
        const double above = loss(a, in, p);
        x.value[i] = at - step;
        const double below = loss(a, in, p);
        x.value[i] = at;
        EXPECT_NEAR(gradient[i], (above - below) / (2 * step), 1e-8) << "element " << i;
      }
    };
    oracle::KlSide &first = a.reverse ? a.student : a.teacher,
                   &second = a.reverse ? a.teacher : a.student;
    compare("q of the first", first.q, g.dq_first.value);
    compare("k of the first", first.k, g.dk_first.value);
    compare("q of the second", second.q, g.dq_second.value);
    compare("k of the second", second.k, g.dk_second.value);
  }
}

class Kl : public testing::TestWithParam<fovea_backend> {
 protected:
  Kl() : ctx(GetParam()) {}
  Values output(const Call& call, const char* name, int threads = 0) {
    return harness::values_of(call, call.field(name),
                              harness::run_way(ctx, call, {true, false, threads}));
  }
  Context ctx;
};
INSTANTIATE_TEST_SUITE_P(numbers, Kl, testing::ValuesIn(harness::backends()),
                         [](const auto& at) { return std::string(harness::name_of(at.param)); });

// Both sides' q times what brings the largest logit of the first side to `most`, within f16.
void grow(Call& call, const KlCase& c, double most) {
  const auto* p = reinterpret_cast<const fovea_kl_forward_params*>(call.params.data());
  const oracle::KlCall a = oracle::load_kl(*p);
  const oracle::Sequence q = oracle::sequence(a.at, 0);
  double largest = 0;
  for (int64_t i = 0; i < c.s; ++i)
    for (double x : oracle::KlRow<double>(a, q, 0, i).x) largest = std::max(largest, std::abs(x));
  for (const char* name : {"q_teacher", "q_student"}) {
    const oracle::Dense old = oracle::load(call.fields[call.field(name)].tensor);
    const double factor = std::min(most / largest, 1e4);
    size_t n = 0;
    call.fill(call.field(name), [&](const int64_t*) { return old.value[n++] * factor; });
  }
}

// The numerical bar of the specification: independent distributions and nearly equal ones, logits
// to 1000, lengths to 32k; 1e-5 for a student that is the teacher.  Logits near 1000 are f32
// numbers 6e-5 apart, which no way of adding them undoes: 4 of their roundings are allowed beside
// the bar.
TEST_P(Kl, error_at_any_size_and_length) {
  for (const int dtype : {FOVEA_F32, FOVEA_BF16, FOVEA_F16})
    for (const double most : {1., 10., 100., 1000.})
      for (const int64_t t : {1, 130, 1024, 32768})
        for (const KlData data : {KlData::normal, KlData::near, KlData::same}) {
          KlCase c;
          c.teacher = c.student = dtype, c.data = data, c.b = 1, c.h = c.g = c.x = 1, c.t = t;
          c.s = std::min<int64_t>(t, t > 1024 ? 2 : 16), c.d = c.f = t > 1024 ? 16 : 64,
          c.outputs = 1;
          c.span = Span::causal;
          SCOPED_TRACE(name_of(c, false) + " logits to " + std::to_string(most));
          Call call = build_kl_forward(c, 5);
          if (!harness::served(ctx, call)) GTEST_SKIP() << "no kernel";
          grow(call, c, most);
          const auto* p = reinterpret_cast<const fovea_kl_forward_params*>(call.params.data());
          const Values want = oracle::kl_forward(*p, Mode::exact).kl.value,
                       got = output(call, "kl");
          const double bar = dtype == FOVEA_F32 ? 2e-5 : 1e-4;
          for (size_t i = 0; i < got.size(); ++i)
            if (data == KlData::same)
              EXPECT_NEAR(got[i], 0, 1e-5);
            else
              EXPECT_NEAR(got[i], want[i],
                          bar * (1 + std::abs(want[i])) + (most < 1000 ? 0 : 0x1p-22 * most));
        }
}

// total is a tree of fixed shape: the same bits for any number of threads.
TEST_P(Kl, threads_change_no_bit) {
  KlCase c;
  c.b = 2, c.s = 700, c.t = 300, c.d = c.f = 16, c.weights = KlWeights::some, c.mean = true;
  const Call forward = build_kl_forward(c, 3);
  if (!harness::served(ctx, forward)) GTEST_SKIP() << "no kernel";
  c.incoming = 3;
  const Call backward = build_kl_backward(c, 3);
  const Bytes first = harness::run_way(ctx, forward, {true, false, 1}),
              first_back = harness::run_way(ctx, backward, {true, false, 1});
  for (int threads : {2, 3, 5, 8}) {
    const harness::Way way{true, false, threads};
    EXPECT_EQ(harness::first_difference(forward, first, harness::run_way(ctx, forward, way)), "");
    EXPECT_EQ(harness::first_difference(backward, first_back, harness::run_way(ctx, backward, way)),
              "");
  }
}

// A row without a gradient is of no account: NaN in it changes no bit of any output.
TEST_P(Kl, a_dead_row_changes_no_bit) {
  for (const int dtype : {FOVEA_F32, FOVEA_BF16, FOVEA_F16})
    for (const Span span : {Span::full, Span::causal}) {
      KlCase c;
      c.teacher = c.student = dtype, c.b = 1, c.s = 70, c.t = 130, c.d = c.f = 64, c.span = span;
      c.reverse = span == Span::causal;
      SCOPED_TRACE(name_of(c, true));
      const Call clean = build_kl_backward(c, 3);
      Call spoiled = build_kl_backward(c, 3);
      if (!harness::served(ctx, clean)) GTEST_SKIP() << "no kernel";
      for (const char* name : {"q_teacher", "q_student"}) {
        const size_t field = spoiled.field(name);
        uint8_t* const image = spoiled.storages[spoiled.fields[field].storage].image.data();
        spoiled.each(field, [&](const int64_t* i, int64_t byte) {
          if (i[1] % 9 == 7) oracle::encode(dtype, NAN, image + byte);  // where dkl is 0
        });
      }
      const harness::Way way{true, false, 0};
      EXPECT_EQ(harness::first_difference(clean, harness::run_way(ctx, clean, way),
                                          harness::run_way(ctx, spoiled, way)),
                "");
    }
}

// Memory stays linear: doubling rows and keys at most doubles the workspace.
TEST_P(Kl, workspace_is_linear) {
  const auto bytes = [&](int64_t n) {
    const int64_t q_shape[] = {1, n, 16, 128}, rows[] = {1, 16, n};
    void* fake[17];
    for (int i = 0; i < 17; ++i) fake[i] = reinterpret_cast<void*>(uintptr_t{4096} * (i + 1));
    fovea_kl_backward_params p = {};
    p.struct_size = sizeof p;
    int at = 0;
    for (fovea_tensor* x : {&p.q_teacher, &p.k_teacher, &p.q_student, &p.k_student, &p.dq_student,
                            &p.dk_student, &p.dq_teacher, &p.dk_teacher})
      *x = fovea_contiguous(fake[at++], FOVEA_BF16, 4, q_shape);
    for (fovea_tensor* x : {&p.kl, &p.lse_teacher, &p.lse_student, &p.dkl, &p.row_weight})
      *x = fovea_contiguous(fake[at++], FOVEA_F32, 3, rows);
    const int64_t one[] = {1};
    p.dtotal = fovea_contiguous(fake[at++], FOVEA_F32, 1, one);
    p.mean = p.causal = 1;
    size_t size = 0;
    const fovea_status status = fovea_kl_backward_workspace(ctx, &p, &size);
    EXPECT_TRUE(status == FOVEA_OK || status == FOVEA_UNSUPPORTED) << fovea_last_error();
    return size;
  };
  for (int64_t n : {4096, 65536, 1 << 20}) EXPECT_LE(bytes(2 * n), 2 * bytes(n));
}

}  // namespace
