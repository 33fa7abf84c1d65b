// SPDX-License-Identifier: Apache-2.0
// Gated slot attention by name as its paper defines it, equations 7 and 8: two memories of m slots,
// a softmax over the slots between.  No number of a call is read.
#pragma once
#include "oracle/recipes_linear.h"

namespace oracle::recipes {

struct Slots {
  Matrix k, v;         // (m, d) and (m, e)
  std::vector<Vec> o;  // of each token
};

inline Vec softmax_of(const Vec& scores) {
  double most = -HUGE_VAL;
  for (const double x : scores) most = std::max(most, x);
  const Vec parts = each_of(scores, [=](double x) { return std::exp(x - most); });
  return 1 / sum_of(parts) * parts;
}

// alpha = sigmoid(gate)^(1 / 8); q and k behind their SiLU, v is.
inline Slots gsa(const HeadLetters& x, Slots slots) {
  for (int64_t t = 0; t < x.tokens; ++t) {
    const Vec alpha = each_of(x.row("gate", t, slots.k.rows),
                              [](double one) { return std::pow(logistic(one), 1. / 8); });
    const Vec rest = each_of(alpha, [](double one) { return 1 - one; });
    slots.k = diag(alpha) * slots.k + outer(rest, each_of(x.k(t), silu));
    slots.v = diag(alpha) * slots.v + outer(rest, x.v(t));
    const Vec scores = x.scale() * (slots.k * each_of(x.q(t), silu));
    slots.o.push_back(softmax_of(scores) * slots.v);
  }
  return slots;
}

}  // namespace oracle::recipes
