// SPDX-License-Identifier: Apache-2.0
// MagicPIG as its paper defines it: random hyperplanes, keys that collide with the query in two
// tables or more, and attention over them with each weight over the chance of that.
#pragma once
#include "recipes.h"

namespace oracle::recipes {

// `bits` hyperplanes for each of `tables` tables.
struct Planes {
  int64_t bits, tables;
  std::vector<double> normal;  // (tables, bits, d)

  std::vector<int64_t> codes(const double* x, int64_t d) const {
    std::vector<int64_t> out(static_cast<size_t>(tables));
    for (int64_t n = 0; n < tables * bits; ++n)
      if (dot<double>(x, normal.data() + n * d, d) > 0)
        out[static_cast<size_t>(n / bits)] += int64_t{1} << n % bits;
    return out;
  }
};

struct MagicPig {
  Attention seen;
  std::vector<std::vector<int64_t>> of_queries, of_keys;  // (b, s, h) and (b, t, g)
  std::vector<char> kept;                                 // (b, t, g)
};

// Section 4: p is the chance of a collision in one table, u that of two collisions or more.  Keys
// are centred.
inline MagicPig magicpig(const Attention& a, const Planes& planes) {
  MagicPig out;
  const int64_t t = a.at.extent, group = a.h / a.g;
  for (int64_t n = 0; n < a.b * a.s * a.h; ++n)
    out.of_queries.push_back(planes.codes(a.q.value.data() + n * a.d, a.d));
  for (int64_t n = 0; n < a.b * t * a.g; ++n)
    out.of_keys.push_back(planes.codes(a.k.value.data() + n * a.d, a.d));
  out.kept.resize(out.of_keys.size());
  Dense bias{true, FOVEA_F32, {a.b, a.h, a.s, t, 1}, {}};
  bias.value.resize(static_cast<size_t>(a.b * a.h * a.s * t));
  out.seen = seen_by(a, [&](int64_t b, int64_t head, int64_t i, int64_t j) {
    const int64_t row = i - t + a.s, key = (b * t + j) * a.g + head / group;
    const auto& q = out.of_queries[static_cast<size_t>((b * a.s + row) * a.h + head)];
    const auto& k = out.of_keys[static_cast<size_t>(key)];
    int64_t matches = 0;
    for (size_t l = 0; l < q.size(); ++l) matches += q[l] == k[l];
    if (matches < 2) return false;
    const double *x = a.q.row(b, row, head), *y = a.k.row(b, j, head / group);
    const double cosine = dot<double>(x, y, a.d) / (norm(x, a.d) * norm(y, a.d));
    const double angle = std::acos(std::clamp(cosine, -1.0, 1.0));
    const double p = std::pow(1 - angle / M_PI, planes.bits);
    const auto tables = static_cast<double>(planes.tables);
    const double u = 1 - std::pow(1 - p, tables - 1) * ((tables - 1) * p + 1);
    bias.value[static_cast<size_t>(bias.at_index(b, head, row, j))] = -std::log(u + 1e-4);
    out.kept[static_cast<size_t>(key)] = 1;
    return true;
  });
  out.seen.bias = bias, out.seen.columns = t;
  return out;
}

}  // namespace oracle::recipes
