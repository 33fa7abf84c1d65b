// SPDX-License-Identifier: Apache-2.0
// Summaries of blocks of tokens and their gradients, from the comments of experimental/summary.h.
// Rounded mode is float32 with outputs rounded.
#pragma once
#include <algorithm>
#include <functional>
#include <numeric>

#include "sequence.h"
#include "tracked.h"

namespace oracle {

// What forward and backward have in common: which tokens a block of a head holds.
struct PoolBlocks {
  Layout places;
  Dense key_begin;
  Tracked x, gate, bias;
  int64_t u = 0, h = 0, g = 0, d = 0, f = 0, block = 64, step = 64;
  int32_t want = 0;
  bool complete = false, overlap = false;

  template <class P>
  PoolBlocks(const P& p, const fovea_tensor& y) : x(p.x), gate(p.gate), bias(p.bias) {
    places.key_start = load(p.key_start), places.key_len = load(p.key_len);
    if constexpr (requires { p.page_table; }) {
      places.page_table = load(p.page_table), places.cache_row = load(p.cache_row);
      places.page = places.page_table ? p.x.shape[1] : 0;
      places.caches = places.page_table ? places.page_table.shape[0] : 0;
    }
    places.extent = places.page ? places.page * places.page_table.shape[1] : p.x.shape[1];
    places.key_max = p.key_max;
    places.sequences = places.key_start ? places.key_start.shape[0] - 1 : y.shape[0];
    key_begin = load(p.key_begin);
    u = y.shape[1], h = y.shape[2], f = y.shape[3], g = p.x.shape[2], d = p.x.shape[3];
    if (p.block) block = p.block;
    step = p.step ? p.step : block;
    want = p.want ? p.want : FOVEA_X_SUMMARY_MEAN;
    complete = p.complete, overlap = p.overlap;
  }
  bool wants(int32_t part) const { return want & part; }
  bool running() const { return wants(FOVEA_X_SUMMARY_RUNNING); }

  struct Block {
    Sequence q;
    int64_t batch, slot, head, begin, end;
  };
  // f(block) for every block that its sequence has, of every head.
  template <class F>
  void each(F visit) const {
    for (int64_t r = 0; r < places.sequences; ++r) {
      const Sequence q = sequence(places, r);
      const int64_t batch = places.key_start ? 0 : r;
      for (int64_t head = 0; head < h; ++head)
        for (int64_t c = 0; c < u; ++c) {
          Block at{q, batch, c, head, c * step, c * step + block};
          if (key_begin) {
            at.begin = std::clamp<int64_t>(key_begin.integer(batch, head, c), 0, q.keys);
            at.end = std::clamp<int64_t>(key_begin.integer(batch, head, c + 1), at.begin, q.keys);
          } else if (running()) {
            if (c || q.keys == 0) continue;
            at.begin = 0, at.end = q.keys;
            if (places.key_start) at.slot = r;
          } else {
            if (at.begin >= q.keys || (complete && at.end > q.keys)) continue;
            at.end = std::min(at.end, q.keys);
            if (places.key_start) at.slot += q.store / step + r;
          }
          if (at.slot < u) visit(at);
        }
    }
  }
  // An element that a block reads: place of x, of gate and bias.
  struct Element {
    int64_t token, row, slot, column;
  };
  // Column c of the block, in the order of tokens.
  std::vector<Element> column(const Block& at, int64_t c) const {
    std::vector<Element> list;
    const auto add = [&](int64_t i, int64_t from) {
      const Place to = place(places, at.q, at.q.store + i);
      if (to.present) list.push_back({i, to.row, to.slot, from});
    };
    if (overlap)
      for (int64_t i = std::max<int64_t>(0, at.begin - block); i < at.begin; ++i) add(i, c);
    for (int64_t i = at.begin; i < at.end; ++i) add(i, overlap ? c + f : c);
    return list;
  }
  double value(const Element& e, int64_t head) const {
    return x(e.row, e.slot, head / (h / g), e.column);
  }
  double logit(const Block& at, const Element& e) const {
    double logit = gate(e.row, e.slot, at.head, e.column);
    if (bias) logit += bias(overlap ? e.token % block : e.token - at.begin, e.column);
    return logit;
  }
  // Softmax weights of gated.
  template <class Real>
  std::vector<Real> weights(const Block& at, const std::vector<Element>& list) const {
    std::vector<Real> w;
    for (const Element& e : list) w.push_back(static_cast<Real>(logit(at, e)));
    const Real top = w.empty() ? 0 : *std::max_element(w.begin(), w.end());
    for (Real& one : w) one = top == -HUGE_VAL ? Real{0} : std::exp(one - top);
    const Real sum = std::accumulate(w.begin(), w.end(), Real{0});
    for (Real& one : w) one = sum > 0 ? one / sum : Real{0};
    return w;
  }
};

struct PoolResult {
  Out y, similar, dissimilar;
};

template <class Real>
class PoolForward : public PoolBlocks {
 public:
  PoolForward(const fovea_x_pool_forward_params& p, Mode mode)
      : PoolBlocks(p, p.y),
        rank_score(p.rank_score),
        previous(p.previous),
        p_(p),
        mode_(mode),
        old_len_(load(p.old_len)),
        least_(load(p.similar_least)),
        y_(load_shape(p.y)) {
    result.y = Out(p.y, 0);
    if (p.similar.data) result.similar = Out(p.similar, 0);
    if (p.dissimilar.data) result.dissimilar = Out(p.dissimilar, 0);
    each([&](const Block& at) {
      if (old_len_ && at.end <= old_len_.integer(at.q.r)) return;
      row(at);
      similar(at);
    });
  }
  PoolResult result;
  Tracked rank_score, previous;

 private:
  static Dense load_shape(const fovea_tensor& y) {
    Dense shape;
    for (int i = 0; i < y.ndim; ++i) shape.shape[i] = y.shape[i];
    return shape;
  }
  void set(const Block& at, int64_t c, Real value, double terms) {
    const double v = static_cast<double>(value);
    result.y.set(y_.at_index(at.batch, at.slot, at.head, c),
                 mode_ == Mode::rounded ? round_to(p_.y.dtype, v) : v);
    largest_ = std::max(largest_, terms);
  }
  // The tokens that a block's mean is over, of ranked the best.
  std::vector<Element> ranked(const Block& at, std::vector<Element> list) const {
    const auto score = [&](const Element& e) {
      const double x = rank_score(at.batch, at.head, at.q.store + e.token);
      return std::isnan(x) ? -HUGE_VAL : x;
    };
    std::stable_sort(list.begin(), list.end(),
                     [&](const Element& a, const Element& b) { return score(a) > score(b); });
    if (static_cast<int64_t>(list.size()) > p_.ranked) list.resize(p_.ranked);
    std::sort(list.begin(), list.end(),
              [](const Element& a, const Element& b) { return a.token < b.token; });
    return list;
  }

  void row(const Block& at) {
    largest_ = 0;
    for (int64_t c = 0; c < (wants(FOVEA_X_SUMMARY_GATED) ? f : d); ++c) {
      std::vector<Element> list = column(at, c);
      if (wants(FOVEA_X_SUMMARY_GATED)) {
        gated(at, c, list);
        continue;
      }
      if (wants(FOVEA_X_SUMMARY_RANKED)) list = ranked(at, list);
      const int64_t old = old_len_ ? std::min(old_len_.integer(at.q.r), at.q.keys) : 0;
      if (running()) std::erase_if(list, [&](const Element& e) { return e.token < old; });
      Real sum = 0, high = 0, low = 0;
      double terms = 0;
      for (const Element& e : list) {
        const Real v = static_cast<Real>(value(e, at.head));
        high = &e == &list[0] ? v : std::max(high, v), low = &e == &list[0] ? v : std::min(low, v);
        sum += v, terms += std::abs(static_cast<double>(v));
      }
      const Real n = static_cast<Real>(list.size());
      if (running()) {
        const Real all = n + static_cast<Real>(old);
        const Real before =
            old ? static_cast<Real>(previous(at.batch, at.slot, at.head, c)) : Real{0};
        set(at, c, all > 0 ? (before * static_cast<Real>(old) + sum) / all : Real{0},
            terms + std::abs(static_cast<double>(before)));
        continue;
      }
      int64_t part = 0;
      const auto put = [&](int32_t bit, Real v) {
        if (wants(bit)) set(at, part++ * d + c, n > 0 ? v : Real{0}, terms);
      };
      put(FOVEA_X_SUMMARY_MAX, high), put(FOVEA_X_SUMMARY_MIN, low);
      put(FOVEA_X_SUMMARY_MEAN, sum / n), put(FOVEA_X_SUMMARY_SUM, sum);
      put(FOVEA_X_SUMMARY_RANKED, sum / n);
    }
    result.y.terms(largest_);
  }
  void gated(const Block& at, int64_t c, const std::vector<Element>& list) {
    const std::vector<Real> w = weights<Real>(at, list);
    Real sum = 0;
    double terms = 0;
    for (size_t n = 0; n < list.size(); ++n) {
      const Real v = static_cast<Real>(value(list[n], at.head));
      sum += w[n] * v, terms += std::abs(static_cast<double>(w[n] * v));
      result.y.condition = std::max(result.y.condition, std::abs(logit(at, list[n])));
    }
    set(at, c, sum, terms);
  }
  void similar(const Block& at) {
    if (!p_.similar.data && !p_.dissimilar.data) return;
    std::vector<Real> mean(d);
    const std::vector<Element> list = column(at, 0);
    for (Element e : list) {
      Real square = 0;
      for (e.column = 0; e.column < d; ++e.column) {
        const Real v = static_cast<Real>(value(e, at.head));
        square += v * v;
      }
      for (e.column = 0; e.column < d && square > 0; ++e.column)
        mean[e.column] += static_cast<Real>(value(e, at.head)) / std::sqrt(square);
    }
    double sum = 0;
    for (Real m : mean) {
      if (!list.empty()) m /= static_cast<Real>(list.size());
      sum += static_cast<double>(m * m);
    }
    const int64_t to = (at.batch * h + at.head) * u + at.slot;
    if (p_.similar.data) result.similar.set(to, sum), result.similar.terms(1);
    if (p_.dissimilar.data) result.dissimilar.set(to, sum > least_(at.head) ? 0 : 3);
  }

  const fovea_x_pool_forward_params& p_;
  Mode mode_;
  Dense old_len_, least_, y_;
  double largest_ = 0;
};

template <class Real>
class PoolBackward : public PoolBlocks {
 public:
  PoolBackward(const fovea_x_pool_backward_params& p, Mode mode)
      : PoolBlocks(p, p.dy), dy(p.dy), p_(p), mode_(mode) {
    for (Sum* sum : {&dx_, &dgate_, &dbias_}) *sum = Sum();
    dx_.start(p.dx), dgate_.start(p.dgate), dbias_.start(p.dbias);
    each([&](const Block& at) {
      for (int64_t c = 0; c < (wants(FOVEA_X_SUMMARY_GATED) ? f : d); ++c)
        wants(FOVEA_X_SUMMARY_GATED) ? gated(at, c) : plain(at, c);
    });
    dx = dx_.out(p.dx, mode), dgate = dgate_.out(p.dgate, mode), dbias = dbias_.out(p.dbias, mode);
  }
  Tracked dy;
  Out dx, dgate, dbias;

 private:
  struct Sum {
    Dense shape;
    std::vector<Real> value;
    std::vector<double> terms;
    void start(const fovea_tensor& x) {
      for (int i = 0; i < x.ndim; ++i) shape.shape[i] = x.shape[i];
      value.assign(x.data ? count_of(x) : 0, Real{0}), terms.assign(value.size(), 0);
    }
    void add(int64_t at, Real v) {
      if (value.empty()) return;
      value[at] += v, terms[at] += std::abs(static_cast<double>(v));
    }
    Out out(const fovea_tensor& x, Mode mode) const {
      if (!x.data) return {};
      Out out(x, 0);
      for (size_t i = 0; i < value.size(); ++i) {
        const double v = static_cast<double>(value[i]);
        out.set(i, mode == Mode::rounded ? round_to(x.dtype, v) : v), out.terms(terms[i]);
      }
      return out;
    }
  };
  void give(const Block& at, const Element& e, Real v) {
    dx_.add(dx_.shape.at_index(e.row, e.slot, at.head / (h / g), e.column), v);
  }
  Real incoming(const Block& at, int64_t c) const {
    return static_cast<Real>(dy(at.batch, at.slot, at.head, c));
  }
  void plain(const Block& at, int64_t c) {
    const std::vector<Element> list = column(at, c);
    int64_t part = 0;
    const auto extreme = [&](int32_t bit, auto better) {
      if (!wants(bit)) return;
      const Real one = list.empty() ? Real{0} : incoming(at, part * d + c);
      ++part;
      const Element* best = nullptr;
      for (const Element& e : list)
        if (!best || better(value(e, at.head), value(*best, at.head))) best = &e;
      if (best) give(at, *best, one);
    };
    extreme(FOVEA_X_SUMMARY_MAX, std::greater<double>());
    extreme(FOVEA_X_SUMMARY_MIN, std::less<double>());
    for (const int32_t bit : {FOVEA_X_SUMMARY_MEAN, FOVEA_X_SUMMARY_SUM}) {
      if (!wants(bit)) continue;
      const Real n = bit == FOVEA_X_SUMMARY_MEAN ? static_cast<Real>(list.size()) : Real{1};
      for (const Element& e : list) give(at, e, incoming(at, part * d + c) / n);
      ++part;
    }
  }
  void gated(const Block& at, int64_t c) {
    const std::vector<Element> list = column(at, c);
    const std::vector<Real> w = weights<Real>(at, list);
    Real y = 0;
    for (size_t n = 0; n < list.size(); ++n) y += w[n] * static_cast<Real>(value(list[n], at.head));
    for (size_t n = 0; n < list.size(); ++n) {
      const Element& e = list[n];
      give(at, e, w[n] * incoming(at, c));
      const Real slope = w[n] * incoming(at, c) * (static_cast<Real>(value(e, at.head)) - y);
      dgate_.add(dgate_.shape.at_index(e.row, e.slot, at.head, e.column), slope);
      if (!bias) continue;
      dbias_.add((overlap ? e.token % block : e.token - at.begin) * d + e.column, slope);
    }
  }

  const fovea_x_pool_backward_params& p_;
  Mode mode_;
  Sum dx_, dgate_, dbias_;
};

}  // namespace oracle
