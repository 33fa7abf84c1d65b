// SPDX-License-Identifier: Apache-2.0
// An input whose elements know whether an oracle read them: the others do not count.
#pragma once
#include "dense.h"

namespace oracle {

struct Tracked {
  Dense x;
  mutable std::vector<char> read;

  Tracked() = default;
  explicit Tracked(const fovea_tensor& from) : x(load(from)), read(x.value.size()) {}
  explicit operator bool() const { return x.given; }
  double operator()(int64_t a, int64_t b = 0, int64_t c = 0, int64_t d = 0, int64_t e = 0) const {
    const int64_t at = x.at_index(a, b, c, d, e);
    read[at] = 1;
    return x.value[at];
  }
  bool was_read(const int64_t* index, int64_t rank) const {
    int64_t at[FOVEA_MAX_DIMS] = {};
    for (int64_t i = 0; i < rank; ++i) at[i] = index[i];
    return read[x.at_index(at[0], at[1], at[2], at[3], at[4])] != 0;
  }
};

}  // namespace oracle
