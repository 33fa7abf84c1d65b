// SPDX-License-Identifier: Apache-2.0
// InfLLM as its paper defines it: a token further back than the window is seen at the window's
// distance, and only in the first tokens, in the blocks of the list, or where no block is yet.
// Calls are batched; the last rows are the last keys.
#pragma once
#include "recipes_indexed.h"

namespace oracle::recipes {

// A rotary embedding whose angles are quarter turns, so that it rounds nothing: element c of a row
// at a position.  at(c): of the row before.
template <class At>
double quarter_turned(At at, int64_t c, int64_t d, int64_t position) {
  const int64_t half = d / 2, pair = c % half;
  const double a = at(pair), b = at(pair + half);
  const double of_a[] = {a, -b, -a, b}, of_b[] = {b, a, -b, -a};
  const auto turns = static_cast<size_t>(((1 + pair % 3) * position % 4 + 4) % 4);
  return c < half ? of_a[turns] : of_b[turns];
}

inline void quarter_turn(double* row, int64_t d, int64_t position) {
  const std::vector<double> x(row, row + d);
  for (int64_t c = 0; c < d; ++c)
    row[c] = quarter_turned([&](int64_t n) { return x[static_cast<size_t>(n)]; }, c, d, position);
}

struct Infllm {
  int64_t window, first, block, blocks;
};

// The blocks of a sequence, section 3.2: those that left the window of the rows before, rated by
// the mean query at the window's distance and the representative of each head.
inline Keys64 infllm_blocks(const Attention& a, const Dense& representative, const Infllm& of,
                            int64_t b, double& margin) {
  const int64_t before = a.at.extent - a.s - of.window, heads = representative.shape[2];
  Rated rated;
  for (int64_t n = of.first / of.block; (n + 1) * of.block <= before; ++n) rated.push_back({0, n});
  for (int64_t head = 0; head < a.h; ++head) {
    std::vector<double> mean(static_cast<size_t>(a.d));
    for (int64_t i = 0; i < a.s; ++i)
      for (int64_t c = 0; c < a.d; ++c)
        mean[static_cast<size_t>(c)] += a.q(b, i, head, c) / static_cast<double>(a.s);
    quarter_turn(mean.data(), a.d, of.window);
    for (auto& [score, n] : rated)
      score += dot<double>(mean.data(), representative.row(b, n, head / (a.h / heads)), a.d);
  }
  Keys64 out = best(rated, of.blocks, margin);
  for (int64_t n = 0; n < of.first / of.block; ++n) out.insert(n);
  return out;
}

// Attention of q and k without rotation.  A key stands twice, side by side in the columns that its
// two distances use: at its own within the window, at the window's beyond.
inline Chosen infllm(const Attention& a, const Dense& representative, const Infllm& of) {
  Chosen out;
  Attention& seen = out.seen;
  seen = a, seen.d = 2 * a.d;
  const int64_t keys = a.at.extent, ahead = keys - a.s;
  seen.at.key_len = {}, seen.at.extent = 2 * keys;
  seen.window_left = seen.window_right = 0;
  seen.q.shape[3] = seen.k.shape[3] = seen.d, seen.k.shape[1] = seen.v.shape[1] = 2 * keys;
  for (Dense* x : {&seen.q, &seen.k, &seen.v})
    x->value.assign(static_cast<size_t>(x->at_index(x->shape[0])), 0);
  const auto copy = [](Dense& to, const Dense& from, const std::array<int64_t, 3>& place,
                       const std::array<int64_t, 3>& source, int64_t column, int64_t turns) {
    const int64_t d = from.shape[3];
    double* x = to.value.data() + to.at_index(place[0], place[1], place[2], column);
    std::copy_n(from.row(source[0], source[1], source[2]), d, x);
    if (turns >= 0) quarter_turn(x, d, turns);
  };
  for (int64_t b = 0; b < a.b; ++b) {
    for (int64_t i = 0; i < a.s; ++i)
      for (int64_t h = 0; h < a.h; ++h) {
        copy(seen.q, a.q, {b, i, h}, {b, i, h}, 0, i + ahead);
        copy(seen.q, a.q, {b, i, h}, {b, i, h}, a.d, of.window);
      }
    for (int64_t j = 0; j < keys; ++j)
      for (int64_t g = 0; g < a.g; ++g) {
        copy(seen.k, a.k, {b, j, g}, {b, j, g}, 0, j);
        copy(seen.k, a.k, {b, keys + j, g}, {b, j, g}, a.d, -1);
        for (int64_t twin : {j, keys + j}) copy(seen.v, a.v, {b, twin, g}, {b, j, g}, 0, -1);
      }
  }
  std::vector<Keys64> list;
  for (int64_t b = 0; b < a.b; ++b)
    list.push_back(infllm_blocks(a, representative, of, b, out.margin));
  const int64_t blocks_end =
      std::max<int64_t>(0, (ahead - of.window) / of.block * of.block);  // beyond: no block yet
  seen = seen_by(seen, [&](int64_t b, int64_t, int64_t i, int64_t j) {
    const int64_t back = i - keys - j % keys;
    if (j < keys) return back >= 0 && back < of.window;
    return back >= of.window && (j - keys >= blocks_end ||
                                 list[static_cast<size_t>(b)].count((j - keys) / of.block) != 0);
  });
  return out;
}

}  // namespace oracle::recipes
