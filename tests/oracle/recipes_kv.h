// SPDX-License-Identifier: Apache-2.0
// KIVI from its paper (2402.02750), on whole keys and values: per-channel keys, per-token values,
// a residual of full precision.  Zero and scale are rounded to f16, as they are stored.
#pragma once
#include <functional>

#include "attention.h"

namespace oracle::recipes {

// (sequence, token, head, column)
using Letter = std::function<double(int64_t, int64_t, int64_t, int64_t)>;

struct Kivi {
  int64_t bits, group, residual;

  struct Group {
    double zero, scale;
    std::vector<int64_t> code;
    double operator[](int64_t n) const { return static_cast<double>(code[n]) * scale + zero; }
  };
  // Q(X) = round((X - z) / s), z = min X, s = (max X - min X) / (2^B - 1)
  Group quantised(const std::vector<double>& x) const {
    const double least = *std::min_element(x.begin(), x.end());
    const double most = *std::max_element(x.begin(), x.end()), codes = std::exp2(bits) - 1;
    Group to{nearest(FOVEA_F16, least), nearest(FOVEA_F16, (most - least) / codes), {}};
    for (const double one : x) {
      const double code = to.scale == 0 ? 0 : std::nearbyint((one - to.zero) / to.scale);
      to.code.push_back(static_cast<int64_t>(std::clamp(code, 0.0, codes)));
    }
    return to;
  }
  // Keys along tokens: the group of token j; values along channels.
  Group key(const Letter& k, int64_t b, int64_t j, int64_t head, int64_t c) const {
    std::vector<double> x;
    for (int64_t n = 0; n < group; ++n) x.push_back(k(b, j / group * group + n, head, c));
    return quantised(x);
  }
  Group value(const Letter& v, int64_t b, int64_t j, int64_t head, int64_t c) const {
    std::vector<double> x;
    for (int64_t n = 0; n < group; ++n) x.push_back(v(b, j, head, c / group * group + n));
    return quantised(x);
  }

  // Algorithm 1 after a prompt of one token and length - 1 steps: what is quantised when the last
  // token attends.  A step attends, then quantises a full residual of keys, and the oldest value.
  struct Count {
    int64_t keys = 0, values = 0;
  };
  Count count(int64_t length) const {
    Count n;
    for (int64_t j = 1; j < length; ++j) {
      if (j - n.keys == residual) n.keys = j;
      if (j - n.values > residual) ++n.values;
    }
    return n;
  }
  // Row j as attention reads it.
  double key_of(const Letter& k, int64_t length, int64_t b, int64_t j, int64_t head,
                int64_t c) const {
    return j < count(length).keys ? key(k, b, j, head, c)[j % group] : k(b, j, head, c);
  }
  double value_of(const Letter& v, int64_t length, int64_t b, int64_t j, int64_t head,
                  int64_t c) const {
    return j < count(length).values ? value(v, b, j, head, c)[c % group] : v(b, j, head, c);
  }
};

inline Kivi kivi2(int64_t residual) {
  return {2, 32, residual};
}
inline Kivi kivi4(int64_t residual) {
  return {4, 32, residual};
}

}  // namespace oracle::recipes
