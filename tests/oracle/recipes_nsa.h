// SPDX-License-Identifier: Apache-2.0
// NSA as its paper defines it (2502.11089, section 3): which compressed keys and which keys a row
// of each branch attends to, and the gated sum of the branches.  Calls are batched; the last rows
// are the last keys.
#pragma once
#include "recipes_indexed.h"

namespace oracle::recipes {

// Keys of a compressed key, and from one to the next; keys of a block, and how many blocks a row
// selects; keys of the window.
struct NsaNumbers {
  int64_t each, apart, block, blocks, window;
  int64_t compressed(int64_t keys) const { return keys < each ? 0 : (keys - each) / apart + 1; }
};

// Compressed, selected, window.
struct Branches {
  std::array<Attention, 3> of;
  double margin = HUGE_VAL;
};

// A simple compression: the means of keys or of values.
inline Dense means_of(const Dense& x, const NsaNumbers& n, bool rounds) {
  Dense y = x;
  y.shape[1] = n.compressed(x.shape[1]), y.value.clear();
  for (int64_t b = 0; b < y.shape[0]; ++b)
    for (int64_t at = 0; at < y.shape[1]; ++at)
      for (int64_t head = 0; head < y.shape[2]; ++head)
        for (int64_t c = 0; c < y.shape[3]; ++c) {
          double sum = 0;
          for (int64_t j = at * n.apart; j < at * n.apart + n.each; ++j) sum += x(b, j, head, c);
          const double mean = sum / static_cast<double>(n.each);
          y.value.push_back(rounds ? round_to(x.dtype, mean) : mean);
        }
  return y;
}

// Equations 8 to 11: the blocks of a row at position `i`, for all heads of a key head.  A
// compressed key's probability is that of each of the pieces of `apart` keys in it; a block's is
// that of its pieces.  The first block, the row's own and the one before it are among the best.
inline Keys64 blocks_of(const Attention& a, const Dense& compressed, const NsaNumbers& n, int64_t b,
                        int64_t key_head, int64_t i, double& margin) {
  const int64_t own = i / n.block, row = i - a.at.extent + a.s, heads = a.h / a.g;
  std::vector<double> score(own + 1);
  for (int64_t head = key_head * heads; head < (key_head + 1) * heads; ++head) {
    std::vector<double> p;
    double most = -HUGE_VAL, sum = 0;
    for (int64_t at = 0; at * n.apart + n.each <= i + 1; ++at) {
      p.push_back(a.scale *
                  dot<double>(a.q.row(b, row, head), compressed.row(b, at, key_head), a.d));
      most = std::max(most, p.back());
    }
    for (double& x : p) sum += x = std::exp(x - most);
    for (size_t at = 0; at < p.size(); ++at)
      for (int64_t piece = 0; piece < n.each / n.apart; ++piece)
        score[(static_cast<int64_t>(at) + piece) * n.apart / n.block] += p[at] / sum;
  }
  Keys64 out = {0, std::max<int64_t>(0, own - 1), own};
  Rated others;
  for (int64_t block = 1; block < own - 1; ++block) others.push_back({score[block], block});
  out.merge(best(others, n.blocks - static_cast<int64_t>(out.size()), margin));
  return out;
}

// Branches over compressed keys and values, over keys and values, and over the window's own.
inline Branches nsa(const Attention& compressed, const Attention& a, const Attention& window,
                    const Dense& chosen_by, const NsaNumbers& n) {
  Branches out;
  std::map<std::array<int64_t, 3>, Keys64> rows;
  out.of[0] = seen_by(compressed, [&](int64_t, int64_t, int64_t i, int64_t at) {
    const int64_t row = i - compressed.at.extent + a.s, position = row + a.at.extent - a.s;
    return at * n.apart + n.each - 1 <= position;
  });
  out.of[1] = seen_by(a, [&](int64_t b, int64_t head, int64_t i, int64_t j) {
    const auto [at, fresh] = rows.try_emplace({b, a.key_head(head), i});
    if (fresh) at->second = blocks_of(a, chosen_by, n, b, a.key_head(head), i, out.margin);
    return j <= i && at->second.count(j / n.block) != 0;
  });
  out.of[2] = seen_by(
      window, [&](int64_t, int64_t, int64_t i, int64_t j) { return j <= i && i - j < n.window; });
  return out;
}

// Equation 5: the sum of sigmoid(gate) times the branch.
inline Out gated(const std::array<Out, 3>& branch, const std::array<Dense, 3>& gate,
                 const fovea_tensor& o, int dtype, Mode mode) {
  Out out(o, unit_of(dtype));
  const bool rounds = mode == Mode::rounded;
  const auto columns = static_cast<size_t>(o.shape[3]);
  for (size_t row = 0; row < gate[0].value.size(); ++row) {
    std::vector<double> sum(columns);
    double terms = 0;
    for (size_t n = 0; n < 3; ++n) {
      double weight = 1 / (1 + std::exp(-gate[n].value[row]));
      if (rounds) weight = static_cast<float>(weight);
      for (size_t c = 0; c < columns; ++c) sum[c] += weight * branch[n].value[row * columns + c];
      terms += weight * branch[n].rms();
    }
    for (size_t c = 0; c < columns; ++c)
      out.set(static_cast<int64_t>(row * columns + c), rounds ? round_to(o.dtype, sum[c]) : sum[c]);
    out.terms(terms);
  }
  for (const Out& x : branch) out.condition = std::max(out.condition, x.condition);
  return out;
}

}  // namespace oracle::recipes
