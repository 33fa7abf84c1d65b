// SPDX-License-Identifier: Apache-2.0
// A gradient against central differences of its forward.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "harness/random.h"
#include "oracle/dense.h"

namespace properties {

using Values = std::vector<double>;

// Tensors of random normal numbers, alive as long as this.
class Some {
 public:
  explicit Some(uint64_t seed) : random_(seed) {}
  fovea_tensor operator()(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (int64_t x : shape) count *= x;
    memory_.emplace_back(count);
    for (float& x : memory_.back()) x = static_cast<float>(random_.normal(n_++));
    return fovea_contiguous(memory_.back().data(), FOVEA_F32, static_cast<int32_t>(shape.size()),
                            shape.data());
  }

 private:
  harness::Random random_;
  uint64_t n_ = 0;
  std::vector<std::vector<float>> memory_;
};

// Of every element, or of about `samples`.
template <class Loss>
void expect_derivative(const char* name, oracle::Dense& x, const Values& gradient, Loss loss,
                       double tolerance = 1e-8, size_t samples = SIZE_MAX) {
  SCOPED_TRACE(name);
  ASSERT_EQ(x.value.size(), gradient.size());
  const size_t every = std::max<size_t>(1, gradient.size() / samples);
  for (size_t i = 0; i < gradient.size(); i += every) {
    const double at = x.value[i], step = 1e-5;
    x.value[i] = at + step;
    const double above = loss();
    x.value[i] = at - step;
    const double below = loss();
    x.value[i] = at;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * step), tolerance) << "element " << i;
  }
}

inline double weighed(const oracle::Dense& gradient, const oracle::Out& value) {
  double sum = 0;
  for (size_t i = 0; i < value.value.size(); ++i) sum += gradient.value[i] * value.value[i];
  return sum;
}

}  // namespace properties
