// SPDX-License-Identifier: Apache-2.0
// What every oracle reads and writes: a tensor as float64 values in logical order.
#pragma once
#include <array>
#include <vector>

#include "dtype.h"

namespace oracle {

// Exact: float64 throughout.  Rounded: the same loop in float32, with values rounded to the dtype
// where a kernel rounds.  Its distance to Exact is what a kernel is allowed twice of.
enum class Mode { exact, rounded };

// A loaded tensor, indexed logically whatever its strides were.
struct Dense {
  bool given = false;
  int dtype = 0;
  std::array<int64_t, FOVEA_MAX_DIMS> shape{1, 1, 1, 1, 1};
  std::vector<double> value;

  explicit operator bool() const { return given; }
  int64_t at_index(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0, int64_t e = 0) const {
    return (((a * shape[1] + b) * shape[2] + c) * shape[3] + d) * shape[4] + e;
  }
  double operator()(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0, int64_t e = 0) const {
    return value[at_index(a, b, c, d, e)];
  }
  int64_t integer(int64_t a, int64_t b = 0, int64_t c = 0) const {
    return static_cast<int64_t>(value[at_index(a, b, c)]);
  }
  const double* row(int64_t a, int64_t b, int64_t c) const {
    return value.data() + at_index(a, b, c);
  }
};

inline int64_t count_of(const fovea_tensor& x) {
  int64_t n = 1;
  for (int i = 0; i < x.ndim; ++i) n *= x.shape[i];
  return n;
}

// Calls visit(index, byte offset) for every element in logical order.
template <class Visit>
void each_index(const fovea_tensor& x, Visit visit) {
  const int64_t n = count_of(x), size = bytes_of(x.dtype);
  int64_t index[FOVEA_MAX_DIMS] = {};
  const int last = x.ndim > 0 ? x.ndim - 1 : 0;
  const int64_t columns = x.ndim > 0 ? x.shape[last] : 1;
  for (int64_t done = 0; done < n; done += columns) {
    int64_t offset = 0;
    for (int i = 0; i < last; ++i) offset += index[i] * x.stride[i];
    for (int64_t& c = index[last] = 0; c < columns; ++c)
      visit(static_cast<const int64_t*>(index), (offset + c * x.stride[last]) * size);
    for (int i = last - 1; i >= 0 && ++index[i] == x.shape[i]; --i) index[i] = 0;
  }
}

template <class Visit>
void each_element(const fovea_tensor& x, Visit visit) {
  each_index(x, [&](const int64_t*, int64_t byte) { visit(byte); });
}

inline Dense load(const fovea_tensor& x) {
  Dense out;
  if (!x.data) return out;
  out.given = true;
  out.dtype = x.dtype;
  for (int i = 0; i < x.ndim; ++i) out.shape[i] = x.shape[i];
  out.value.reserve(count_of(x));
  each_element(x, [&](int64_t byte) {
    out.value.push_back(decode(x.dtype, static_cast<const char*>(x.data) + byte));
  });
  return out;
}

// An output: its values, which of them the op writes, and how large the terms of its sums are.
struct Out {
  std::vector<double> value;
  std::vector<uint8_t> written;
  double largest = 0, square_sum = 0;  // of the magnitudes of rows: see terms()
  int64_t samples = 0;                 // rows
  double condition =
      0;            // largest |scale| |q| |k|: how far a score can be off, in units of its rounding
  double unit = 0;  // one rounding to the dtype, where an input of the sum is rounded

  Out() = default;
  Out(const fovea_tensor& x, double unit_)
      : value(count_of(x)), written(count_of(x)), unit(unit_) {}
  void set(int64_t i, double x) { value[i] = x, written[i] = 1; }
  // A row whose terms sum to `magnitude` in absolute value.
  void terms(double magnitude) {
    if (!std::isfinite(magnitude)) return;
    largest = std::max(largest, magnitude);
    square_sum += magnitude * magnitude;
    ++samples;
  }
  double rms() const { return samples ? std::sqrt(square_sum / static_cast<double>(samples)) : 0; }
};

}  // namespace oracle
