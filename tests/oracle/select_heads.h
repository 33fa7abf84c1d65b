// SPDX-License-Identifier: Apache-2.0
// x_select_heads: average linkage in float64, pair by pair of heads.
#pragma once
#include <algorithm>

#include "dense.h"

namespace oracle {

struct HeadsResult {
  Out head_map, label, count;
  double margin = HUGE_VAL;  // by which a merge was the closest; equal features do not count
};

inline HeadsResult select_heads(const fovea_x_select_heads_params& p) {
  const Dense q = load(p.q), k = load(p.k), len = load(p.query_len), of = load(p.clusters_of);
  const int64_t h = q.shape[2], d = q.shape[3];
  HeadsResult out{Out(p.head_map, 0), Out(p.label, 0), Out(p.count, 0)};
  const double scale = p.scale > 0 ? static_cast<double>(p.scale) : 1 / std::sqrt(double(d));
  for (int64_t b = 0; b < q.shape[0]; ++b) {
    const int64_t m = len ? std::clamp<int64_t>(len.integer(b), 0, q.shape[1]) : q.shape[1];
    const int64_t wanted = std::clamp<int64_t>(of ? of.integer(b) : p.clusters, 1, h);
    std::vector<std::vector<double>> feature(h);
    for (int64_t head = 0; head < h; ++head)
      for (int64_t i = 0; i < m; ++i) {
        std::vector<double> row(m);
        double sum = 0;
        for (int64_t j = 0; j < (p.causal ? i + 1 : m); ++j) {
          double x = 0;
          for (int64_t c = 0; c < d; ++c)
            x += q(b, i, head, c) * k(b, j, head / (h / k.shape[2]), c);
          sum += row[j] = std::exp(scale * x);
        }
        for (double x : row) feature[head].push_back(x / sum);
      }
    const auto distance = [&](int64_t i, int64_t j) {
      double dot = 0, x = 0, y = 0;
      for (size_t n = 0; n < feature[i].size(); ++n)
        dot += feature[i][n] * feature[j][n], x += feature[i][n] * feature[i][n],
            y += feature[j][n] * feature[j][n];
      const double apart = feature[i] == feature[j] && m ? 0 : 1 - dot / std::sqrt(x * y);
      return std::isnan(apart) ? HUGE_VAL : apart;
    };
    std::vector<std::vector<int64_t>> clusters;
    for (int64_t i = 0; i < h; ++i) clusters.push_back({i});
    while (static_cast<int64_t>(clusters.size()) > wanted) {
      double best = HUGE_VAL, second = HUGE_VAL;
      size_t x = 0, y = 1;
      bool any = false;
      for (size_t i = 0; i < clusters.size(); ++i)
        for (size_t j = i + 1; j < clusters.size(); ++j) {
          double mean = 0;
          for (int64_t u : clusters[i])
            for (int64_t v : clusters[j]) mean += distance(u, v);
          mean /= static_cast<double>(clusters[i].size() * clusters[j].size());
          if (!any || mean < best)
            second = any ? best : second, best = mean, x = i, y = j, any = true;
          else
            second = std::min(second, mean);
        }
      if (second != best && std::isfinite(second)) out.margin = std::min(out.margin, second - best);
      clusters[x].insert(clusters[x].end(), clusters[y].begin(), clusters[y].end());
      clusters.erase(clusters.begin() + static_cast<int64_t>(y));
    }
    for (size_t n = 0; n < clusters.size(); ++n)
      for (int64_t head : clusters[n]) {
        out.head_map.set(b * h + head, static_cast<double>(clusters[n][0]));
        if (p.label.data) out.label.set(b * h + head, static_cast<double>(n));
      }
    if (p.count.data && h) out.count.set(b, static_cast<double>(clusters.size()));
  }
  return out;
}

}  // namespace oracle
