// SPDX-License-Identifier: Apache-2.0
// The methods by name (src/recipes.json) as their papers define them.  A definition says which
// token attends to which, by positions from 0, or changes the operands; attention over that is
// attention.h's.  No window, list or number of a call is read: tests/cases/recipes.cpp gives the
// definition the paper's own.
#pragma once
#include <functional>

#include "attention.h"

namespace oracle::recipes {

// Whether the token at position i attends to the one at position j, in a head of a sequence.
using Attends = std::function<bool(int64_t sequence, int64_t head, int64_t i, int64_t j)>;

// Attention of batched sequences that sees what a definition says and nothing else.
inline Attention seen_by(Attention a, const Attends& attends) {
  a.window_left = a.window_right = a.sink_keys = a.local_chunk = 0;
  a.head_window = {};
  a.mask = Dense{true, FOVEA_U8, {a.b, a.h, a.s, (a.at.extent + 7) / 8, 1}, {}};
  a.mask.value.resize(a.b * a.h * a.s * a.mask.shape[3]);
  for (int64_t b = 0; b < a.b; ++b) {
    const Sequence at = sequence(a.at, b);
    for (int64_t head = 0; head < a.h; ++head)
      for (int64_t row = 0; row < at.rows; ++row)
        for (int64_t j = 0; j < at.keys; ++j)
          if (attends(b, head, row + at.keys - at.rows, j))
            a.mask.value[a.mask.at_index(b, head, row, j / 8)] += 1 << j % 8;
  }
  return a;
}

// The first tokens and the latest ones, the token itself counted.
inline bool sinks_and_window(int64_t i, int64_t j, int64_t sinks, int64_t window) {
  return j <= i && (j < sinks || i - j < window);
}

// StreamingLLM, section 3.2: attention sinks and a rolling window.
inline Attention streamingllm(const Attention& a, int64_t sinks, int64_t window) {
  return seen_by(a, [=](int64_t, int64_t, int64_t i, int64_t j) {
    return sinks_and_window(i, j, sinks, window);
  });
}

// Its positions within the cache: the token in slot j of a ring of `sinks` + `window` slots that
// has seen `seen` tokens is turned by its rank among the live ones, and all of them are seen.
inline int64_t rank_in_ring(int64_t slot, int64_t sinks, int64_t window, int64_t seen) {
  if (slot < sinks || seen <= sinks + window) return slot;
  const int64_t oldest = (seen - sinks) % window;  // its slot behind the sinks
  return sinks + (slot - sinks - oldest + window) % window;
}

inline Attention streamingllm_in_cache(Attention a, int64_t sinks, int64_t window, int64_t seen,
                                       Mode mode) {
  const Dense cos = a.cos, sin = a.sin;
  a.cos = a.sin = a.key_position = a.query_position = {};
  for (int64_t b = 0; b < a.b; ++b)
    for (int64_t j = 0; j < a.at.extent; ++j)
      for (int64_t g = 0; g < a.g; ++g) {
        double* k = a.k.value.data() + a.k.at_index(b, j, g);
        const int64_t rank = rank_in_ring(j, sinks, window, seen);
        if (mode == Mode::exact)
          rotate<double>(k, cos, sin, rank, 0, false, false);
        else
          rotate<float>(k, cos, sin, rank, 0, false, false);
        for (int64_t c = 0; c < a.d && mode == Mode::rounded; ++c) k[c] = round_to(a.k.dtype, k[c]);
      }
  return seen_by(a, [](int64_t, int64_t, int64_t, int64_t) { return true; });
}

// MoA, section 3: a sliding window of its own for each head, behind the first tokens.
inline Attention moa(const Attention& a, int64_t sinks,
                     const std::function<int64_t(int64_t head)>& span) {
  return seen_by(a, [=](int64_t, int64_t head, int64_t i, int64_t j) {
    return sinks_and_window(i, j, sinks, span(head));
  });
}

// DuoAttention, section 2: retrieval heads see all, streaming heads the first and latest tokens.
inline Attention duoattention(const Attention& a, int64_t sinks, int64_t recent,
                              const std::function<bool(int64_t head)>& retrieval) {
  return seen_by(a, [=](int64_t, int64_t head, int64_t i, int64_t j) {
    return retrieval(head) ? j <= i : sinks_and_window(i, j, sinks, recent);
  });
}

// BLASST, algorithm 1: a tile of keys is left out where no row's score in it comes within `margin`
// of what the row has met in the tiles before.
struct Blasst {
  Attention seen;
  int64_t skipped = 0;
};

inline Blasst blasst(const Attention& a, double margin, int64_t tile_rows, int64_t tile_keys) {
  const auto scores = [&](int64_t b, int64_t head, int64_t row, int64_t j) {
    return a.scale * dot<double>(a.q.row(b, row, head), a.k.row(b, j, a.key_head(head)), a.d);
  };
  Blasst out;
  std::vector<char> kept(a.b * a.h * a.s * a.at.extent);
  const auto place = [&](int64_t b, int64_t head, int64_t row, int64_t j) -> char& {
    return kept[((b * a.h + head) * a.s + row) * a.at.extent + j];
  };
  for (int64_t b = 0; b < a.b; ++b)
    for (int64_t head = 0; head < a.h; ++head)
      for (int64_t first = 0; first < a.s; first += tile_rows) {
        const int64_t end = std::min(a.s, first + tile_rows);
        std::vector<double> met(end - first, -HUGE_VAL);
        for (int64_t from = 0; from < a.at.extent; from += tile_keys) {
          bool skip = true, meets = false;
          std::vector<double> here(end - first, -HUGE_VAL);
          for (int64_t row = first; row < end; ++row)
            for (int64_t j = from; j < std::min(a.at.extent, from + tile_keys); ++j)
              if (j <= row + a.at.extent - a.s) {
                double& most = here[row - first];
                most = std::max(most, scores(b, head, row, j)), meets = true;
                skip = skip && most < met[row - first] - margin;
              }
          if (meets && skip) {
            ++out.skipped;
            continue;
          }
          for (int64_t row = first; row < end; ++row) {
            met[row - first] = std::max(met[row - first], here[row - first]);
            for (int64_t j = from; j < std::min(a.at.extent, from + tile_keys); ++j)
              place(b, head, row, j) = 1;
          }
        }
      }
  out.seen = seen_by(a, [&](int64_t b, int64_t head, int64_t i, int64_t j) {
    return j <= i && place(b, head, i - a.at.extent + a.s, j);
  });
  return out;
}

// H2O, section 4: each token's accumulated attention, of all rows and heads of a list head.  Lives
// of slots are lengths: the newest token sees every live slot.
inline Attention h2o(const Attention& a) {
  return seen_by(a, [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i; });
}

template <class Real>
Out accumulated(const Attention& a, const Dense& before, const fovea_tensor& to, Mode mode) {
  Out out(to, 0);
  std::vector<double> sum(out.value.size());
  const int64_t lists = to.shape[1], t = a.at.extent;
  for (int64_t b = 0; b < a.b; ++b) {
    const Sequence at = sequence(a.at, b);
    for (int64_t head = 0; head < a.h; ++head) {
      const Keys<Real> keys(a, at, a.key_head(head), mode);
      for (int64_t row = 0; row < at.rows; ++row) {
        std::vector<Real> x(at.keys, -HUGE_VAL);
        Real most = -HUGE_VAL, total = 0;
        for (int64_t j = 0; j < at.keys; ++j)
          if (sees(a, at, head, row, keys.key[j])) {
            x[j] = score(a, at, head, row, keys, j), most = std::max(most, x[j]);
            const double q_norm = norm(a.q.row(b, row, head), a.d);
            out.condition = std::max(out.condition, a.scale * q_norm * keys.k_norm[j]);
          }
        for (const Real y : x) total += std::exp(y - most);
        for (int64_t j = 0; j < at.keys; ++j)
          sum[(b * lists + head / (a.h / lists)) * t + j] += std::exp(x[j] - most) / total;
      }
    }
  }
  for (size_t n = 0; n < sum.size(); ++n) {
    const double y = before.value[n] + sum[n];
    out.set(static_cast<int64_t>(n), mode == Mode::rounded ? static_cast<float>(y) : y);
    out.terms(std::abs(before.value[n]) + sum[n]);
  }
  return out;
}

// CHAI, section 3: the scores of a cluster's head serve all of its heads, each with its own values.
inline Attention chai(const Attention& a,
                      const std::function<int64_t(int64_t sequence, int64_t head)>& cluster) {
  Attention own = a;
  own.g = a.h;
  const auto spread = [&](Dense& to, const Dense& from, int64_t heads, int64_t width,
                          const std::function<int64_t(int64_t, int64_t)>& source) {
    to.shape[2] = heads;
    to.value.resize(to.shape[0] * to.shape[1] * heads * width);
    for (int64_t b = 0; b < to.shape[0]; ++b)
      for (int64_t n = 0; n < to.shape[1]; ++n)
        for (int64_t head = 0; head < heads; ++head)
          std::copy_n(from.row(b, n, source(b, head)), width,
                      to.value.begin() + to.at_index(b, n, head));
  };
  spread(own.q, a.q, a.h, a.d, cluster);
  spread(own.k, a.k, a.h, a.d,
         [&](int64_t b, int64_t head) { return a.key_head(cluster(b, head)); });
  spread(own.v, a.v, a.h, a.e, [&](int64_t, int64_t head) { return a.key_head(head); });
  return seen_by(own, [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i; });
}

}  // namespace oracle::recipes
