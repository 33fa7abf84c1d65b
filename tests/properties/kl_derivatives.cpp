// SPDX-License-Identifier: Apache-2.0
// The oracles of experimental/kl.h: each gradient against central differences of its forward.
#include "oracle/kl_indexer.h"
#include "oracle/kl_jensen_shannon.h"
#include "properties/derivatives.h"

namespace {

using namespace properties;
using oracle::Mode;

TEST(oracle, jensen_shannon_gradient_is_the_derivative) {
  for (int variant = 0; variant < 3; ++variant) {
    SCOPED_TRACE(variant);
    Some some(21 + variant);
    fovea_x_kl_jensen_shannon_backward_params p = {};
    p.q_teacher = some({2, 5, 4, 3}), p.k_teacher = some({2, 6, 2, 3});
    p.q_student = some({2, 5, 4, 2}), p.k_student = some({2, 6, 1, 2});
    p.kl_teacher = p.kl_student = p.lse_teacher = p.lse_student = p.djs = some({2, 4, 5});
    p.causal = 1, p.window_left = variant == 2 ? 3 : 0, p.sink_keys = variant == 2;
    p.weight = variant == 0 ? 0 : 0.2f, p.scale_student = 0.9f;
    oracle::KlCall a = oracle::load_kl(p);
    const double w = oracle::share_of(p);
    const auto f = oracle::jensen_shannon_forward<double>(a, w, Mode::exact);
    auto in = oracle::load_jensen_shannon_incoming(p);
    in.kl_teacher.value = f.kl_teacher.value, in.kl_student.value = f.kl_student.value;
    in.lse_teacher.value = f.lse_teacher.value, in.lse_student.value = f.lse_student.value;
    const auto g = oracle::jensen_shannon_backward<double>(a, in, w, Mode::exact);
    const auto loss = [&] {
      return weighed(in.djs, oracle::jensen_shannon_forward<double>(a, w, Mode::exact).js);
    };
    expect_derivative("q_teacher", a.teacher.q, g.dq_first.value, loss);
    expect_derivative("k_teacher", a.teacher.k, g.dk_first.value, loss);
    expect_derivative("q_student", a.student.q, g.dq_second.value, loss);
    expect_derivative("k_student", a.student.k, g.dk_second.value, loss);
  }
}

TEST(oracle, indexer_gradient_is_the_derivative) {
  for (int variant = 0; variant < 2; ++variant) {
    SCOPED_TRACE(variant);
    Some some(31 + variant);
    fovea_x_kl_indexer_backward_params p = {};
    p.q_teacher = some({2, 5, 4, 3}), p.k_teacher = some({2, 6, 2, 3});
    p.q_student = some({2, 5, 3, 2}), p.k_student = some({2, 6, 1, 2});
    p.weight = some({2, 5, 3}), p.lse_teacher = some({2, 4, 5});
    p.lse_student = p.dkl = some({2, 5});
    p.causal = 1, p.window_left = variant ? 3 : 0, p.sink_keys = variant;
    oracle::Indexer a = oracle::load_indexer(p);
    const auto f = oracle::indexer_forward<double>(a, Mode::exact);
    auto in = oracle::load_indexer_incoming(p);
    in.lse_teacher.value = f.lse_teacher.value, in.lse_student.value = f.lse_student.value;
    const auto g = oracle::indexer_backward<double>(a, in, Mode::exact);
    const auto loss = [&] {
      return weighed(in.dkl, oracle::indexer_forward<double>(a, Mode::exact).kl);
    };
    expect_derivative("q_student", a.call.student.q, g.dq.value, loss);
    expect_derivative("k_student", a.call.student.k, g.dk.value, loss);
    expect_derivative("weight", a.weight, g.dweight.value, loss);
  }
}

TEST(oracle, gather_gradient_is_the_derivative) {
  Some some(41);
  fovea_x_kl_gather_backward_params p = {};
  p.q_teacher = some({2, 5, 4, 3}), p.k_teacher = some({2, 6, 2, 3});
  p.q_student = some({2, 5, 4, 2}), p.k_student = some({2, 6, 1, 2});
  p.kl = p.lse_teacher = p.lse_student = p.dkl = some({2, 4, 5});
  p.index = some({2, 4, 5, 7});
  oracle::KlCall a = oracle::load_kl(p);
  for (double& x : a.index.value) x = std::floor(2.5 * x + 2);  // none, keys, keys twice, past them
  oracle::KlIncoming in{a.index, a.index, a.index, oracle::load(p.dkl), {}};
  const auto f = oracle::kl_forward<double>(a, oracle::NoTotal{}, Mode::exact);
  for (oracle::Dense* x : {&in.kl, &in.lse_first, &in.lse_second}) *x = in.dkl;
  in.kl.value = f.kl.value, in.lse_first.value = f.lse_first.value;
  in.lse_second.value = f.lse_second.value;
  const auto g = oracle::kl_backward<double>(a, in, Mode::exact);
  const auto loss = [&] {
    return weighed(in.dkl, oracle::kl_forward<double>(a, oracle::NoTotal{}, Mode::exact).kl);
  };
  expect_derivative("q_teacher", a.teacher.q, g.dq_first.value, loss);
  expect_derivative("k_teacher", a.teacher.k, g.dk_first.value, loss);
  expect_derivative("q_student", a.student.q, g.dq_second.value, loss);
  expect_derivative("k_student", a.student.k, g.dk_second.value, loss);
}

TEST(oracle, pool_gradient_is_the_derivative) {
  for (int variant = 0; variant < 3; ++variant) {
    SCOPED_TRACE(variant);
    Some some(51 + variant);
    fovea_x_kl_pool_backward_params p = {};
    p.q_teacher = some({2, 5, 4, 3}), p.k_teacher = some({2, 7, 2, 3});
    p.q_student = some({2, 5, 4, 2}), p.k_student = some({2, 4, 1, 2});
    p.lse_teacher = p.lse_student = p.dkl = some({2, 4, 5});
    p.block_keys = variant == 2 ? 3 : 2, p.pool = variant == 1, p.causal = variant > 0;
    oracle::KlCall a = oracle::load_kl(p);
    const auto f = oracle::kl_forward<double>(a, oracle::NoTotal{}, Mode::exact);
    const oracle::Dense dkl = oracle::load(p.dkl);
    oracle::KlIncoming in{dkl, dkl, dkl, dkl, {}};
    in.lse_first.value = f.lse_first.value, in.lse_second.value = f.lse_second.value;
    const auto g = oracle::kl_backward<double>(a, in, Mode::exact);
    const auto loss = [&] {
      return weighed(dkl, oracle::kl_forward<double>(a, oracle::NoTotal{}, Mode::exact).kl);
    };
    expect_derivative("q_student", a.student.q, g.dq_second.value, loss);
    expect_derivative("k_student", a.student.k, g.dk_second.value, loss);
  }
}

// Probabilities of keys 1/8, 2/8, 5/8 in blocks (0, 1), (2): sums 3/8, 5/8; maxima 2/7, 5/7.
TEST(oracle, golden_pool) {
  const float q[] = {1}, zero[] = {0}, k[] = {0, std::log(2.0f), std::log(5.0f)}, blocks[] = {0, 0};
  const int64_t one[] = {1, 1, 1, 1}, keys[] = {1, 3, 1, 1}, units[] = {1, 2, 1, 1};
  const auto tensor = [](const float* x, const int64_t* shape) {
    return fovea_contiguous(const_cast<float*>(x), FOVEA_F32, 4, shape);
  };
  fovea_x_kl_pool_forward_params p = {};
  p.q_teacher = tensor(q, one), p.k_teacher = tensor(k, keys);
  p.q_student = tensor(zero, one), p.k_student = tensor(blocks, units);
  p.block_keys = 2;
  for (const bool max : {false, true}) {
    p.pool = max;
    const double a = max ? 2. / 7 : 3. / 8, b = 1 - a;
    const auto got = oracle::kl_forward<double>(oracle::load_kl(p), oracle::NoTotal{}, Mode::exact);
    EXPECT_NEAR(got.kl.value[0], a * std::log(2 * a) + b * std::log(2 * b), 1e-7);
  }
}

}  // namespace
