// SPDX-License-Identifier: Apache-2.0
// MagicPIG end to end: keys less their mean, codes of random hyperplanes by x_project_forward,
// tables in two calls of x_lsh_append, x_lsh_forward.  Over many draws of the hyperplanes the mean
// is that of dense attention.
#include <gtest/gtest.h>

#include "harness/bound.h"
#include "harness/random.h"

namespace {

constexpr int64_t kHeads = 2, kKeys = 96, kWidth = 8, kValues = 4;
constexpr int64_t kBits = 3, kTables = 30, kSeeds = 400;

template <class T>
struct Array {
  std::vector<T> x;
  fovea_tensor view;
  Array(fovea_dtype dtype, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    x.resize(static_cast<size_t>(count));
    view = fovea_contiguous(x.data(), dtype, static_cast<int32_t>(shape.size()), shape.data());
  }
};
using Floats = Array<float>;
using Integers = Array<int32_t>;

template <class P>
P params() {
  P p = {};
  p.struct_size = sizeof p;
  return p;
}

// Rows [begin, end) of the s axis.
fovea_tensor rows(fovea_tensor x, int64_t begin, int64_t end) {
  x.data = static_cast<int32_t*>(x.data) + begin * x.stride[1];
  x.shape[1] = end - begin;
  return x;
}

class Estimate {
 public:
  explicit Estimate(fovea_context* ctx) : ctx_(ctx) {
    harness::Random random(5);
    for (float& x : q_.x) x = static_cast<float>(random.normal(n_++));
    for (float& x : k_.x) x = 1 + 0.7f * static_cast<float>(random.normal(n_++));
    for (float& x : v_.x) x = static_cast<float>(random.normal(n_++));
    for (int64_t c = 0; c < kWidth; ++c) {
      float mean = 0;
      for (int64_t j = 0; j < kKeys; ++j) mean += k_.x[static_cast<size_t>(j * kWidth + c)];
      for (int64_t j = 0; j < kKeys; ++j) k_.x[static_cast<size_t>(j * kWidth + c)] -= mean / kKeys;
    }
    auto p = params<fovea_attention_forward_params>();
    p.q = q_.view, p.k = k_.view, p.v = v_.view, p.o = dense_.view, p.lse = dense_lse_.view;
    harness::must(fovea_attention_forward(ctx_, &p), "attention_forward");
  }

  // o, then the sum of weights over the dense one, then that times o, of each head.
  std::vector<double> draw(uint64_t seed) {
    const harness::Random random(seed);
    for (size_t i = 0; i < planes_.x.size(); ++i)
      planes_.x[i] = static_cast<float>(random.normal(i));
    hash(q_.view, code_q_.view), hash(k_.view, code_.view);
    append(0, 60), append(60, kKeys);
    auto p = params<fovea_x_lsh_forward_params>();
    p.q = q_.view, p.k = k_.view, p.v = v_.view, p.o = o_.view, p.lse = lse_.view;
    p.code_q = code_q_.view, p.bucket = bucket_.view, p.link = link_.view, p.bits = kBits;
    harness::must(fovea_x_lsh_forward(ctx_, &p), "x_lsh_forward");
    return numbers(o_, lse_);
  }
  std::vector<double> dense() const { return numbers(dense_, dense_lse_); }

 private:
  void hash(const fovea_tensor& x, const fovea_tensor& code) {
    auto p = params<fovea_x_project_forward_params>();
    p.x = x, p.weight = planes_.view, p.code = code, p.bits = kBits;
    harness::must(fovea_x_project_forward(ctx_, &p), "x_project_forward");
  }
  void append(int64_t begin, int64_t end) {
    auto p = params<fovea_x_lsh_append_params>();
    p.code = rows(code_.view, begin, end), p.bucket = bucket_.view, p.link = link_.view;
    old_.x[0] = static_cast<int32_t>(begin), p.old_len = old_.view;
    harness::must(fovea_x_lsh_append(ctx_, &p), "x_lsh_append");
  }
  std::vector<double> numbers(const Floats& o, const Floats& lse) const {
    std::vector<double> all(o.x.begin(), o.x.end());
    for (size_t head = 0; head < kHeads; ++head) {
      const double share = std::exp(static_cast<double>(lse.x[head] - dense_lse_.x[head]));
      all.push_back(share);
      for (size_t c = 0; c < kValues; ++c) all.push_back(share * o.x[head * kValues + c]);
    }
    return all;
  }

  fovea_context* ctx_;
  uint64_t n_ = 0;
  Floats q_{FOVEA_F32, {1, 1, kHeads, kWidth}}, k_{FOVEA_F32, {1, kKeys, 1, kWidth}},
      v_{FOVEA_F32, {1, kKeys, 1, kValues}}, planes_{FOVEA_F32, {1, kWidth, kBits*kTables}};
  Floats dense_{FOVEA_F32, {1, 1, kHeads, kValues}}, dense_lse_{FOVEA_F32, {1, kHeads, 1}},
      o_{FOVEA_F32, {1, 1, kHeads, kValues}}, lse_{FOVEA_F32, {1, kHeads, 1}};
  Integers code_q_{FOVEA_I32, {1, 1, kHeads, kTables}}, code_{FOVEA_I32, {1, kKeys, 1, kTables}},
      bucket_{FOVEA_I32, {1, 1, kTables, 1 << kBits}}, link_{FOVEA_I32, {1, 1, kTables, kKeys}},
      old_{FOVEA_I32, {1}};
};

TEST(magicpig, mean_is_dense_attention) {
  harness::Context ctx(FOVEA_HOST);
  Estimate estimate(ctx);
  const std::vector<double> dense = estimate.dense();
  std::vector<double> sum(dense.size()), squares(dense.size());
  for (int64_t seed = 0; seed < kSeeds; ++seed) {
    const std::vector<double> one = estimate.draw(100 + static_cast<uint64_t>(seed));
    for (size_t i = 0; i < one.size(); ++i) sum[i] += one[i], squares[i] += one[i] * one[i];
  }
  for (size_t i = 0; i < dense.size(); ++i) {
    const double mean = sum[i] / kSeeds;
    const double sigma = std::sqrt((squares[i] / kSeeds - mean * mean) / kSeeds);
    EXPECT_LE(std::abs(mean - dense[i]), 3 * sigma) << "number " << i << ", sigma " << sigma;
    EXPECT_LT(sigma, 0.05) << "number " << i;
    EXPECT_GT(sigma, 0) << "number " << i;
  }
}

}  // namespace
