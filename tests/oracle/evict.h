// SPDX-License-Identifier: Apache-2.0
// x_evict_forward from the comment of experimental/evict.h, in float64.  `margin`: how close the
// choice of a key was, relative; equal scores do not count.
#pragma once
#include <algorithm>
#include <cmath>

#include "tracked.h"

namespace oracle {

class EvictOracle {
 public:
  explicit EvictOracle(const fovea_x_evict_forward_params& p)
      : q(p.q),
        k(p.k),
        v(p.v),
        k_kept(p.k_kept, 0),
        v_kept(p.v_kept, 0),
        index(p.index, 0),
        index_count(p.index_count, 0),
        query_len_(load(p.query_len)),
        key_len_(load(p.key_len)),
        s_(p.q.shape[1]),
        h_(p.q.shape[2]),
        d_(p.q.shape[3]),
        t_(p.k.shape[1]),
        g_(p.k.shape[2]),
        e_(p.v.shape[3]),
        keep_(p.k_kept.shape[1]),
        window_(p.window ? p.window : std::min(s_, keep_)),
        width_(p.width ? p.width : 63),
        scale_(p.scale > 0 ? static_cast<double>(p.scale)
                           : 1 / std::sqrt(static_cast<double>(d_))) {
    for (int64_t b = 0; b < p.k.shape[0]; ++b)
      for (int64_t g = 0; g < g_; ++g) one(b, g, p);
  }
  Tracked q, k, v;
  Out k_kept, v_kept, index, index_count;
  double margin = HUGE_VAL;

 private:
  std::vector<double> sums(int64_t b, int64_t g, int64_t rows, int64_t keys) const {
    std::vector<double> sum(keys);
    for (int64_t head = g * (h_ / g_); head < (g + 1) * (h_ / g_); ++head)
      for (int64_t i = 0; i < rows; ++i) {
        std::vector<double> p;
        double all = 0;
        for (int64_t j = 0; j <= i + keys - rows && j < keys; ++j) {
          double score = 0;
          for (int64_t c = 0; c < d_; ++c) score += q(b, i, head, c) * k(b, j, g, c);
          p.push_back(std::exp(scale_ * score)), all += p.back();
        }
        for (size_t j = 0; j < p.size(); ++j) sum[j] += p[j] / all;
      }
    return sum;
  }

  void one(int64_t b, int64_t g, const fovea_x_evict_forward_params& p) {
    const int64_t keys = key_len_ ? std::clamp<int64_t>(key_len_.integer(b), 0, t_) : t_;
    const int64_t rows = query_len_ ? std::clamp<int64_t>(query_len_.integer(b), 0, s_) : s_;
    const std::vector<double> sum = sums(b, g, rows, keys);
    const int64_t end = std::max<int64_t>(0, keys - window_);
    std::vector<std::pair<double, int64_t>> order;  // negative score, key
    for (int64_t j = 0; j < end; ++j) {
      double most = 0;
      for (int64_t i = std::max<int64_t>(0, j - std::min(width_ / 2, t_));
           i < end && i - j <= width_ / 2; ++i)
        most = std::max(most, sum[i]);
      order.push_back({-most, j});
    }
    std::sort(order.begin(), order.end());
    const size_t most = static_cast<size_t>(keep_ - std::min(keep_, keys - end));
    const size_t taken = std::min(order.size(), most);
    // The closest other scores on either side of the last one that is taken.
    if (taken > 0 && taken < order.size())
      for (const auto& [score, j] : order)
        if (score != order[taken - 1].first)
          margin = std::min(margin, std::abs(score / order[taken - 1].first - 1));
    std::vector<int64_t> stay;
    for (size_t n = 0; n < taken; ++n) stay.push_back(order[n].second);
    for (int64_t j = end; j < keys; ++j) stay.push_back(j);
    std::sort(stay.begin(), stay.end());
    if (p.index_count.data) index_count.set(b * g_ + g, static_cast<double>(stay.size()));
    for (int64_t n = 0; n < keep_; ++n) {
      const bool there = n < static_cast<int64_t>(stay.size());
      const int64_t j = there ? stay[n] : -1, to = (b * keep_ + n) * g_ + g;
      if (p.index.data) index.set((b * g_ + g) * keep_ + n, static_cast<double>(j));
      for (int64_t c = 0; there && c < d_; ++c) k_kept.set(to * d_ + c, k(b, j, g, c));
      for (int64_t c = 0; there && c < e_; ++c) v_kept.set(to * e_ + c, v(b, j, g, c));
    }
  }

  Dense query_len_, key_len_;
  const int64_t s_, h_, d_, t_, g_, e_, keep_, window_, width_;
  const double scale_;
};

}  // namespace oracle
