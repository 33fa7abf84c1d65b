// SPDX-License-Identifier: Apache-2.0
// Graphs over keys by the steps that experimental/graph.h states, one after the other, with sets
// and lists; scores in float64.
#pragma once
#include <algorithm>
#include <cmath>
#include <set>

#include "tracked.h"

namespace oracle {

using Ranked = std::pair<double, int64_t>;  // the negative of a score, the key: ascending
using RankedSet = std::set<Ranked>;

// What of a call the graphs are made of.
struct GraphCall {
  Tracked k, q, neighbour, count, entry;
  Dense query_len, key_len;
  int64_t b = 0, t = 0, g = 0, d = 0, s = 0, h = 0, degree = 0;

  template <class P>
  explicit GraphCall(const P& p)
      : k(p.k),
        q(p.q),
        neighbour(p.neighbour),
        count(p.neighbour_count),
        entry(p.entry),
        query_len(load(p.query_len)),
        key_len(load(p.key_len)),
        b(p.k.shape[0]),
        t(p.k.shape[1]),
        g(p.k.shape[2]),
        d(p.k.shape[3]),
        s(p.q.data ? p.q.shape[1] : 0),
        h(p.q.data ? p.q.shape[2] : 0),
        degree(p.neighbour.data ? p.neighbour.shape[3] : 0) {}
  int64_t keys(int64_t batch) const {
    return key_len ? std::clamp<int64_t>(key_len.integer(batch), 0, t) : t;
  }
  int64_t rows(int64_t batch) const {
    return query_len ? std::clamp<int64_t>(query_len.integer(batch), 0, s) : s;
  }
  std::vector<double> key(int64_t batch, int64_t head, int64_t j) const {
    std::vector<double> x;
    for (int64_t c = 0; c < d; ++c) x.push_back(k(batch, j, head, c));
    return x;
  }
  std::vector<double> query(int64_t batch, int64_t row, int64_t head) const {
    std::vector<double> x;
    for (int64_t c = 0; c < d; ++c) x.push_back(q(batch, row, head, c));
    return x;
  }
};

// The graph of one key head.  Lists are as they lie in memory: slots, and how many count.
class GraphHead {
 public:
  GraphHead(const GraphCall& call, int64_t batch, int64_t head, int64_t keys)
      : call_(call), batch_(batch), head_(head) {
    for (int64_t j = 0; j < keys; ++j) x_.push_back(call.key(batch, head, j));
    slots.resize(static_cast<size_t>(call.t)), counts.resize(slots.size());
    changed.resize(slots.size());
  }
  std::vector<std::vector<int64_t>> slots;
  std::vector<int64_t> counts;
  std::vector<char> changed;  // lists that were written
  int64_t entry = -1;

  // The caller's lists of keys [0, n), read when they are asked for.
  void take(int64_t n) { callers_ = n; }

  double score(const std::vector<double>& q, int64_t j) const {
    double sum = 0;
    for (size_t c = 0; c < q.size(); ++c) sum += q[c] * x_[static_cast<size_t>(j)][c];
    return std::isnan(sum) ? -HUGE_VAL : sum;
  }
  const std::vector<double>& key(int64_t x) const { return x_[static_cast<size_t>(x)]; }
  double score(int64_t i, int64_t j) const { return score(x_[static_cast<size_t>(i)], j); }

  std::vector<int64_t> list(int64_t j) {
    const auto at = static_cast<size_t>(j);
    if (j < callers_ && slots[at].empty()) {
      for (int64_t n = 0; n < call_.degree; ++n) slots[at].push_back(-2);  // not read
      counts[at] =
          std::clamp<int64_t>(static_cast<int64_t>(call_.count(batch_, head_, j)), 0, call_.degree);
      for (int64_t n = 0; n < counts[at]; ++n)
        slots[at][static_cast<size_t>(n)] =
            static_cast<int64_t>(call_.neighbour(batch_, head_, j, n));
    }
    slots[at].resize(static_cast<size_t>(call_.degree), -1);
    return {slots[at].begin(), slots[at].begin() + counts[at]};
  }
  void set(int64_t j, const std::vector<int64_t>& list) {
    const auto at = static_cast<size_t>(j);
    slots[at] = list, counts[at] = static_cast<int64_t>(list.size()), changed[at] = 1;
    slots[at].resize(static_cast<size_t>(call_.degree), -1);
  }

  // The best `width` of those scanned from keys below n.
  struct Found {
    RankedSet beam;
    int64_t scanned = 0;
  };
  Found search(const std::vector<double>& q, int64_t n, int64_t width) {
    Found out;
    std::set<int64_t> met, expanded;
    const auto scan = [&](int64_t j) {
      if (j < 0 || j >= n || !met.insert(j).second) return;
      out.beam.insert({-score(q, j), j});
      if (static_cast<int64_t>(out.beam.size()) > width) out.beam.erase(std::prev(out.beam.end()));
    };
    if (n > 0) scan(entry >= 0 && entry < n ? entry : 0);
    for (bool more = true; more;) {
      more = false;
      for (const Ranked& one : RankedSet(out.beam)) {
        if (!expanded.insert(one.second).second) continue;
        for (const int64_t j : list(one.second)) scan(j);
        more = true;
        break;
      }
    }
    out.scanned = static_cast<int64_t>(met.size());
    return out;
  }

  // <j, j> - 2 <i, j>: how far j lies from i, less what is i's alone.
  double far(int64_t i, int64_t j) const {
    double own = 0, both = 0;
    for (int64_t c = 0; c < call_.d; ++c) {
      const auto at = static_cast<size_t>(c);
      own += key(j)[at] * key(j)[at], both += key(i)[at] * key(j)[at];
    }
    return own - 2 * both;
  }
  std::vector<int64_t> prune(const RankedSet& ranked, int64_t x, int64_t most) const {
    std::vector<int64_t> kept, passed;
    for (const auto& [negative, y] : ranked) {
      if (y == x || negative == HUGE_VAL) continue;
      const int64_t now = y;
      const bool nearer = std::any_of(kept.begin(), kept.end(),
                                      [&](int64_t z) { return far(now, z) < far(now, x); });
      (nearer ? passed : kept).push_back(y);
      if (static_cast<int64_t>(kept.size()) == most) return kept;
    }
    const auto left = std::min(passed.size(), static_cast<size_t>(most) - kept.size());
    kept.insert(kept.end(), passed.begin(), passed.begin() + static_cast<int64_t>(left));
    return kept;
  }

  // y gets x.
  void link(int64_t n, int64_t y, int64_t x, int64_t most) {
    std::vector<int64_t> now = list(y);
    if (std::find(now.begin(), now.end(), x) != now.end()) return;
    if (static_cast<int64_t>(now.size()) < call_.degree) {
      const auto at = static_cast<size_t>(y);
      slots[at][static_cast<size_t>(counts[at]++)] = x, changed[at] = 1;
      return;
    }
    RankedSet ranked;
    now.push_back(x);
    for (const int64_t z : now)
      if (z >= 0 && z < n) ranked.insert({-score(y, z), z});
    set(y, prune(ranked, y, most));
  }

 private:
  const GraphCall& call_;
  const int64_t batch_, head_;
  int64_t callers_ = 0;
  std::vector<std::vector<double>> x_;
};

class GraphAppendOracle : public GraphCall {
 public:
  explicit GraphAppendOracle(const fovea_x_graph_append_params& p)
      : GraphCall(p),
        out_neighbour(p.neighbour, 0),
        out_count(p.neighbour_count, 0),
        out_entry(p.entry, 0),
        old_len_(load(p.old_len)),
        nearest_(p.nearest ? p.nearest : 100),
        kept_(p.kept ? p.kept : 16),
        added_(p.added ? p.added : 4),
        width_(p.width ? p.width : 2 * (kept_ + added_)) {
    for (int64_t batch = 0; batch < b; ++batch)
      for (int64_t head = 0; head < g; ++head) one(batch, head);
  }
  Out out_neighbour, out_count, out_entry;

 private:
  void one(int64_t batch, int64_t head) {
    const int64_t n = keys(batch);
    const int64_t old = old_len_ ? std::clamp<int64_t>(old_len_.integer(batch), 0, n) : 0;
    GraphHead graph(*this, batch, head, n);
    graph.take(old);
    if (old > 0 && old < n) graph.entry = static_cast<int64_t>(entry(batch, head));
    const bool trains = q && old == 0 && n > 0 && rows(batch) > 0 && h > 0;
    if (trains)
      build(graph, batch, head, n);
    else
      join(graph, old, n);
    if (n == 0 || (old == 0 && n > 0))
      out_entry.set(batch * g + head, static_cast<double>(graph.entry));
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = (batch * g + head) * t + j;
      const auto& slots = graph.slots[static_cast<size_t>(j)];
      if (!graph.changed[static_cast<size_t>(j)]) continue;
      out_count.set(at, static_cast<double>(graph.counts[static_cast<size_t>(j)]));
      for (int64_t m = 0; m < degree; ++m)
        if (slots[static_cast<size_t>(m)] != -2)
          out_neighbour.set(at * degree + m, static_cast<double>(slots[static_cast<size_t>(m)]));
    }
  }

  void join(GraphHead& graph, int64_t old, int64_t n) const {
    if (old == 0 && n > 0) graph.entry = 0;
    for (int64_t x = old; x < n; ++x) {
      graph.set(x, graph.prune(graph.search(graph.key(x), x, width_).beam, x, kept_));
      for (const int64_t y : graph.list(x)) graph.link(x + 1, y, x, kept_ + added_);
    }
  }

  void build(GraphHead& graph, int64_t batch, int64_t head, int64_t n) const {
    // 1.
    std::vector<std::vector<int64_t>> lists;
    for (int64_t row = 0; row < rows(batch); ++row)
      for (int64_t each = head * (h / g); each < (head + 1) * (h / g); ++each) {
        const std::vector<double> query_row = query(batch, row, each);
        RankedSet ranked;
        for (int64_t j = 0; j < n; ++j) ranked.insert({-graph.score(query_row, j), j});
        std::vector<int64_t> list;
        for (const auto& [negative, j] : ranked)
          if (static_cast<int64_t>(list.size()) < nearest_ && negative != HUGE_VAL)
            list.push_back(j);
        lists.push_back(list);
      }
    // 2 and 3.
    for (int64_t x = 0; x < n; ++x) {
      std::set<int64_t> best, holding;
      for (const auto& list : lists) {
        if (!list.empty() && list[0] == x) best.insert(list.begin(), list.end());
        if (std::find(list.begin(), list.end(), x) != list.end())
          holding.insert(list.begin(), list.end());
      }
      RankedSet ranked;
      for (const int64_t y : best.empty() ? holding : best) ranked.insert({-graph.score(x, y), y});
      graph.set(x, graph.prune(ranked, x, kept_));
    }
    // 4.
    std::vector<double> sum(static_cast<size_t>(d));
    for (int64_t x = 0; x < n; ++x)
      for (int64_t c = 0; c < d; ++c) sum[static_cast<size_t>(c)] += k(batch, x, head, c);
    RankedSet ranked;
    for (int64_t x = 0; x < n; ++x) ranked.insert({-graph.score(sum, x), x});
    graph.entry = ranked.begin()->second;
    std::vector<std::vector<int64_t>> found;
    for (int64_t x = 0; x < n; ++x)
      found.push_back(graph.prune(graph.search(graph.key(x), n, width_).beam, x, added_));
    for (int64_t x = 0; x < n; ++x)
      for (const int64_t y : found[static_cast<size_t>(x)]) {
        if (static_cast<int64_t>(graph.list(x).size()) < degree)
          graph.link(n, x, y, kept_ + added_);
        graph.link(n, y, x, kept_ + added_);
      }
  }

  Dense old_len_;
  int64_t nearest_, kept_, added_, width_;
};

// The keys that a query head's row finds, best first, and how many were scanned.
struct GraphFound {
  std::vector<int64_t> keys;
  int64_t scanned = 0;
};

inline GraphFound find_in_graph(const GraphCall& call, int64_t batch, int64_t row, int64_t head,
                                int64_t count, int64_t ef) {
  const int64_t key_head = head / (call.h / call.g), n = call.keys(batch);
  GraphHead graph(call, batch, key_head, n);
  const std::vector<double> q = call.query(batch, row, head);
  GraphHead::Found found;
  if (ef && n) {
    graph.take(n), graph.entry = static_cast<int64_t>(call.entry(batch, key_head));
    found = graph.search(q, n, ef);
  } else {
    for (int64_t j = 0; j < n; ++j) found.beam.insert({-graph.score(q, j), j});
    found.scanned = n;
  }
  GraphFound out{{}, found.scanned};
  for (const auto& [negative, j] : found.beam)
    if (static_cast<int64_t>(out.keys.size()) < count && negative != HUGE_VAL)
      out.keys.push_back(j);
  return out;
}

// x_select_graph's outputs.
class SelectGraphOracle : public GraphCall {
 public:
  template <class P>
  explicit SelectGraphOracle(const P& p)
      : GraphCall(p), index(p.index, 0), index_count(p.index_count, 0), scanned(p.scanned, 0) {
    const int64_t keep = p.index.data ? p.index.shape[3] : 0;
    for (int64_t batch = 0; batch < b; ++batch)
      for (int64_t row = 0; row < rows(batch); ++row)
        for (int64_t head = 0; head < h; ++head) {
          const GraphFound found = find_in_graph(*this, batch, row, head, p.count, p.ef);
          const int64_t at = (batch * h + head) * s + row;
          std::set<int64_t> list;
          for (const int64_t j : found.keys)
            if (static_cast<int64_t>(list.size()) < keep) list.insert(j);
          if (p.index_count.data) index_count.set(at, static_cast<double>(found.keys.size()));
          if (p.scanned.data) scanned.set(at, static_cast<double>(found.scanned));
          auto next = list.begin();
          for (int64_t m = 0; m < keep; ++m)
            index.set(at * keep + m, next == list.end() ? -1 : static_cast<double>(*next++));
          chosen.push_back({batch, head, row});
          keys_of.push_back({found.keys.begin(), found.keys.end()});
          if (p.index.data) keys_of.back() = list;
        }
  }
  // Whether a row's list holds the key.
  bool holds(int64_t batch, int64_t head, int64_t row, int64_t j) const {
    for (size_t n = 0; n < chosen.size(); ++n)
      if (chosen[n] == std::array<int64_t, 3>{batch, head, row}) return keys_of[n].count(j) != 0;
    return false;
  }
  Out index, index_count, scanned;

 private:
  std::vector<std::array<int64_t, 3>> chosen;
  std::vector<std::set<int64_t>> keys_of;
};

}  // namespace oracle
