// SPDX-License-Identifier: Apache-2.0
// Low-bit attention by name beside exact attention of what it was given, in float64: no further off
// than emulations of the papers' recipes are, at 512 tokens and d = 128.
//   D1  normal numbers
//   D2  channels with a bias: q and k .5 N, four of k 8 more or less, v .3 N
//   D3  one number of 1000 is an outlier of 10 N
#include <gtest/gtest.h>

#include "properties/compact.h"

namespace {

using namespace properties::compact;
using properties::Values;

constexpr int64_t kRows = 512, kWidth = 128;
enum class Kind { d1, d2, d3 };

Values drawn(Kind kind, int of, uint64_t seed) {
  const harness::Random random(seed);
  uint64_t n = 0;
  Values bias(kWidth), x(kRows * kWidth);
  for (int64_t c = 0; c < kWidth; ++c) {
    bias[c] = kind == Kind::d2 ? (of == 2 ? 0.3 : 0.5) * random.normal(n++) : 0;
    if (kind == Kind::d2 && of == 1 && c % 32 == 5) bias[c] += c % 64 == 5 ? 8 : -8;
  }
  for (int64_t i = 0; i < kRows * kWidth; ++i) {
    x[i] = random.normal(n++) + bias[i % kWidth];
    if (kind == Kind::d3 && random.uniform(n++) < 0.001) x[i] += 10 * random.normal(n++);
    x[i] = oracle::round_to(FOVEA_F16, x[i]);
  }
  return x;
}

// Rows of softmax(q k' / sqrt(d)) v.
Values exact(const Values& q, const Values& k, const Values& v, bool causal) {
  Values o(kRows * kWidth), p(kRows);
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t keys = causal ? i + 1 : kRows;
    double top = -HUGE_VAL, sum = 0;
    for (int64_t j = 0; j < keys; ++j) {
      p[j] = 0;
      for (int64_t c = 0; c < kWidth; ++c) p[j] += q[i * kWidth + c] * k[j * kWidth + c];
      p[j] /= std::sqrt(static_cast<double>(kWidth)), top = std::max(top, p[j]);
    }
    for (int64_t j = 0; j < keys; ++j) sum += p[j] = std::exp(p[j] - top);
    for (int64_t j = 0; j < keys; ++j)
      for (int64_t c = 0; c < kWidth; ++c) o[i * kWidth + c] += p[j] / sum * v[j * kWidth + c];
  }
  return o;
}

struct Error {
  double relative, cosine;
};
Error error_of(const Values& x, const Values& wanted) {
  double off = 0, xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    off += std::pow(x[i] - wanted[i], 2), xx += x[i] * x[i];
    yy += wanted[i] * wanted[i], xy += x[i] * wanted[i];
  }
  return {std::sqrt(off / yy), xy / std::sqrt(xx * yy)};
}

// smooth: the method's own smoothing of k, or none.
Error run(const char* name, Kind kind, bool causal, bool smooth = true) {
  Room room(FOVEA_HOST, FOVEA_F16);
  const Values q = drawn(kind, 0, 11), k = drawn(kind, 1, 12), v = drawn(kind, 2, 13);
  auto p = params<fovea_x_quantised_forward_params>();
  p.q = room.fill({1, kRows, 1, kWidth}, FOVEA_F16, q);
  p.k = room.fill({1, kRows, 1, kWidth}, FOVEA_F16, k);
  p.v = room.fill({1, kRows, 1, kWidth}, FOVEA_F16, v);
  p.o = room.empty({1, kRows, 1, kWidth}, FOVEA_F32);
  harness::must(fovea_x_recipe_apply(name, "x_quantised_forward", &p), name);
  p.causal = causal;
  if (!smooth) p.k_smooth = FOVEA_SMOOTH_NONE;
  harness::must(fovea_x_quantised_forward(room.ctx, &p), name);
  return error_of(room.values(p.o).value, exact(q, k, v, causal));
}

// The largest error on D1, D2, D3; the least cosine on D1.
struct Limit {
  const char* name;
  double d1, d2, d3, cosine;
};
constexpr Limit kLimits[] = {{"fa3_fp8", 7e-2, 4e-2, 0.12, 0.9975},
                             {"sageattention", 2e-2, 1e-2, 0.1, 0.9998},
                             {"sageattention2", 5.5e-2, 2.2e-2, 7e-2, 0.9985},
                             {"sageattention2pp", 5.5e-2, 2.2e-2, 7e-2, 0.9985},
                             {"sageattention2_int4", 0.28, 0.11, 9, 0.965},
                             {"sageattention3", 0.26, 0.11, 0.28, 0.970},
                             {"sagebwd", 3e-2, 1.2e-2, 0.1, 0.9995}};

TEST(quantised, methods_are_as_close_to_exact_attention_as_their_papers_say) {
  for (const Limit& limit : kLimits)
    for (const bool causal : {false, true}) {
      SCOPED_TRACE(std::string(limit.name) + (causal ? " causal" : " full"));
      const Error normal = run(limit.name, Kind::d1, causal);
      EXPECT_LT(normal.relative, limit.d1);
      EXPECT_GT(normal.cosine, limit.cosine);
      EXPECT_LT(run(limit.name, Kind::d2, causal).relative, limit.d2);
      EXPECT_LT(run(limit.name, Kind::d3, causal).relative, limit.d3);
    }
}

TEST(quantised, keys_less_their_mean_are_what_biased_channels_ask_for) {
  EXPECT_GT(run("sageattention", Kind::d2, false, false).relative,
            1.4 * run("sageattention", Kind::d2, false).relative);
  EXPECT_GT(run("sageattention2_int4", Kind::d2, false, false).relative,
            1.7 * run("sageattention2_int4", Kind::d2, false).relative);
}

// Gradients of sum(o * dout) of exact attention.
struct Exact {
  Values dq, dk, dv;
};
Exact exact_gradients(const Values& q, const Values& k, const Values& v, const Values& dout,
                      bool causal) {
  Exact x{Values(kRows * kWidth), Values(kRows * kWidth), Values(kRows * kWidth)};
  const double scale = 1 / std::sqrt(static_cast<double>(kWidth));
  Values p(kRows), dp(kRows);
  for (int64_t i = 0; i < kRows; ++i) {
    const int64_t keys = causal ? i + 1 : kRows, row = i * kWidth;
    double top = -HUGE_VAL, sum = 0, delta = 0;
    for (int64_t j = 0; j < keys; ++j) {
      p[j] = dp[j] = 0;
      for (int64_t c = 0; c < kWidth; ++c) {
        p[j] += scale * q[row + c] * k[j * kWidth + c];
        dp[j] += dout[row + c] * v[j * kWidth + c];
      }
      top = std::max(top, p[j]);
    }
    for (int64_t j = 0; j < keys; ++j) sum += p[j] = std::exp(p[j] - top);
    for (int64_t j = 0; j < keys; ++j) p[j] /= sum, delta += p[j] * dp[j];
    for (int64_t j = 0; j < keys; ++j)
      for (int64_t c = 0; c < kWidth; ++c) {
        const double ds = scale * p[j] * (dp[j] - delta);
        x.dq[row + c] += ds * k[j * kWidth + c];
        x.dk[j * kWidth + c] += ds * q[row + c];
        x.dv[j * kWidth + c] += p[j] * dout[row + c];
      }
  }
  return x;
}

// Errors of dq, dk and dv of the method, its own forward before.
std::array<Error, 3> gradients(fovea_backend backend, Kind kind, bool causal) {
  Room room(backend, FOVEA_F16);
  const Values q = drawn(kind, 0, 11), k = drawn(kind, 1, 12), v = drawn(kind, 2, 13);
  const Values dout = drawn(Kind::d1, 3, 14);
  auto p = params<fovea_x_quantised_forward_params>();
  auto back = params<fovea_x_quant_backward_params>();
  const auto rows = [&](int dtype) { return room.empty({1, kRows, 1, kWidth}, dtype); };
  p.q = back.q = room.fill({1, kRows, 1, kWidth}, FOVEA_F16, q);
  p.k = back.k = room.fill({1, kRows, 1, kWidth}, FOVEA_F16, k);
  p.v = back.v = room.fill({1, kRows, 1, kWidth}, FOVEA_F16, v);
  p.o = back.o = rows(FOVEA_F32), p.lse = back.lse = room.empty({1, 1, kRows}, FOVEA_F32);
  back.dout = room.fill({1, kRows, 1, kWidth}, FOVEA_F32, dout);
  back.dq = rows(FOVEA_F16), back.dk = rows(FOVEA_F16), back.dv = rows(FOVEA_F16);
  harness::must(fovea_x_recipe_apply("sagebwd", "x_quantised_forward", &p), "forward");
  harness::must(fovea_x_recipe_apply("sagebwd", "x_quant_backward", &back), "backward");
  p.causal = back.causal = causal;
  harness::must(fovea_x_quantised_forward(room.ctx, &p), "forward");
  harness::must(fovea_x_quant_backward(room.ctx, &back), "backward");
  const Exact wanted = exact_gradients(q, k, v, dout, causal);
  return {error_of(room.values(back.dq).value, wanted.dq),
          error_of(room.values(back.dk).value, wanted.dk),
          error_of(room.values(back.dv).value, wanted.dv)};
}

// What emulations of SageBwd are off by, times 1.5.
TEST(quantised, gradients_are_as_close_to_exact_ones_as_the_paper_says) {
  const struct {
    Kind kind;
    double dq, dk, dv;
  } limits[] = {
      {Kind::d1, 7e-2, 7e-2, 6e-2}, {Kind::d2, 8e-2, 8e-2, 7e-2}, {Kind::d3, 0.14, 0.17, 0.15}};
  for (const fovea_backend backend : harness::backends())
    for (const auto& limit : limits)
      for (const bool causal : {false, true}) {
        SCOPED_TRACE(harness::name_of(backend) + std::string(causal ? ", causal " : ", full ") +
                     std::to_string(static_cast<int>(limit.kind)));
        const auto [dq, dk, dv] = gradients(backend, limit.kind, causal);
        EXPECT_LT(dq.relative, limit.dq);
        EXPECT_LT(dk.relative, limit.dk);
        EXPECT_LT(dv.relative, limit.dv);
        if (limit.kind != Kind::d1) continue;
        for (const Error& error : {dq, dk, dv}) EXPECT_GT(error.cosine, 0.997);
        // 16 bits would be ten times as close.
        for (const Error& error : {dq, dk, dv}) EXPECT_GT(error.relative, 5e-3);
      }
}

// Weights and their gradients have a scale for each 64 rows and 64 keys, dout one for each 64 rows:
// a number below 1/254 of the largest beside it is 0.
void scales_of_64_rows(fovea_backend backend) {
  constexpr int64_t kAll = 128;
  Room room(backend, FOVEA_F32);
  auto p = params<fovea_x_quant_backward_params>();
  const auto rows = [&](const Values& x) { return room.fill({1, kAll, 1, 1}, FOVEA_F32, x); };
  const double far = std::log(300.0), lse = std::log(1 + 1 / 300.0);
  // The weights of each row are 300 : 1; v is 1 and -1.
  const double o = 299.0 / 301;
  Values dout(kAll, 1 / 300.0);
  dout[0] = 1;
  p.q = rows(Values(kAll, 1)), p.o = rows(Values(kAll, o)), p.dout = rows(dout);
  p.k = room.fill({1, 2, 1, 1}, FOVEA_F32, {0, -far});
  p.v = room.fill({1, 2, 1, 1}, FOVEA_F32, {1, -1});
  p.lse = room.fill({1, 1, kAll}, FOVEA_F32, Values(kAll, lse));
  p.dq = room.empty({1, kAll, 1, 1}, FOVEA_F32);
  p.dv = room.empty({1, 2, 1, 1}, FOVEA_F32);
  p.scale = 1;
  harness::must(fovea_x_quant_backward(room.ctx, &p), "backward");
  const Values dq = room.values(p.dq).value, dv = room.values(p.dv).value;
  const double weight = 300.0 / 301, ds = 1 / 301.0 * (1 + o);
  EXPECT_NEAR(dq[0], far * ds, 1e-5);
  for (int64_t i = 1; i < 64; ++i) EXPECT_EQ(dq[i], 0) << i;
  for (int64_t i = 64; i < kAll; ++i) EXPECT_NEAR(dq[i], far * ds / 300, 1e-7) << i;
  EXPECT_NEAR(dv[0], weight * (1 + 64 / 300.0), 1e-5);
  EXPECT_EQ(dv[1], 0);
}

TEST(quantised, gradients_have_scales_of_64_rows) {
  for (const fovea_backend backend : harness::backends()) scales_of_64_rows(backend);
}

// No scale of p, ds or dout has a floor: gradients of a loss's mean over many tokens are tiny.
void tiny_as_large(fovea_backend backend) {
  constexpr int64_t kFew = 70, kColumns = 16;
  constexpr double kTiny = 0x1p-40;
  Room room(backend, FOVEA_F32);
  auto p = params<fovea_x_quant_backward_params>();
  uint64_t seed = 0;
  const auto rows = [&](double factor) {
    const harness::Random random(++seed);
    Values x(kFew * kColumns);
    for (size_t i = 0; i < x.size(); ++i) x[i] = factor * random.normal(i);
    return room.fill({1, kFew, 1, kColumns}, FOVEA_F32, x);
  };
  p.q = rows(1), p.k = rows(1), p.v = rows(1), p.o = rows(1);
  p.lse = room.fill({1, 1, kFew}, FOVEA_F32, Values(kFew, 4));
  p.k_smooth = FOVEA_SMOOTH_SEQUENCE;
  std::vector<Values> found[2];
  for (const bool tiny : {false, true}) {
    seed = 9;
    p.dout = rows(tiny ? kTiny : 1);
    for (fovea_tensor* x : {&p.dq, &p.dk, &p.dv})
      *x = room.empty({1, kFew, 1, kColumns}, FOVEA_F32);
    harness::must(fovea_x_quant_backward(room.ctx, &p), "backward");
    for (const fovea_tensor& x : {p.dq, p.dk, p.dv}) found[tiny].push_back(room.values(x).value);
  }
  for (int of = 0; of < 3; ++of)
    for (size_t i = 0; i < found[0][of].size(); ++i) {
      EXPECT_NE(found[0][of][i], 0) << of << " " << i;
      EXPECT_EQ(found[1][of][i], kTiny * found[0][of][i]) << of << " " << i;
    }
}

TEST(quantised, tiny_gradients_have_the_codes_of_large_ones) {
  for (const fovea_backend backend : harness::backends()) tiny_as_large(backend);
}

}  // namespace
