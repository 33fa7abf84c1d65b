// SPDX-License-Identifier: Apache-2.0
// x_infllm_forward from the paper's definition (2402.04617): a row of scores in which the window
// has one rotation and far keys another, one softmax over the union of what the row sees.
//   The list follows from float64 scores in either mode; `margin` is how close one was.
#pragma once
#include <set>

#include "attention.h"
#include "select_block.h"

namespace oracle {

struct InfllmResult {
  Out o, lse, local_score, index, index_count;
  double margin = HUGE_VAL;
};

class InfllmOracle {
 public:
  using Params = fovea_x_infllm_forward_params;

  explicit InfllmOracle(const Params& p)
      : p_(p),
        window_(p.window ? p.window : 4096),
        block_(p.block_keys ? p.block_keys : 128),
        count_(p.count ? p.count : 16),
        q_(load(p.q)),
        q_far_(load(p.q_far)),
        k_(load(p.k)),
        k_window_(load(p.k_window)),
        v_(load(p.v)),
        representative_(load(p.representative)),
        block_len_(load(p.block_len)) {
    fovea_attention_forward_params a{};
    a.q = p.q, a.k = p.k, a.v = p.v;
    a.query_len = p.query_len, a.key_len = p.key_len, a.page_table = p.page_table;
    at_ = load_attention(a).at;
    b_ = p.q.shape[0], s_ = p.q.shape[1], h_ = p.q.shape[2], d_ = p.q.shape[3];
    scale_ = p.scale > 0 ? static_cast<double>(p.scale) : 1 / std::sqrt(static_cast<double>(d_));
  }

  const Layout& layout() const { return at_; }
  // Blocks of a sequence that have a representative.
  int64_t blocks(int64_t r) const {
    const int64_t most = p_.representative.shape[1];
    return std::min(most, (block_len_.integer(r) + block_ - 1) / block_);
  }
  int64_t first_blocks() const { return p_.init_keys / block_; }

  InfllmResult run(Mode mode) {
    InfllmResult out;
    out.o = Out(p_.o, unit_of(p_.q.dtype));
    if (p_.lse.data) out.lse = Out(p_.lse, 0);
    out.index = Out(p_.index, 0), out.index_count = Out(p_.index_count, 0);
    if (p_.local_score.data) {
      out.local_score = Out(p_.local_score, 0);
      const Dense given = load(p_.local_score);
      for (int64_t n = 0; n < count_of(p_.local_score); ++n) out.local_score.set(n, given.value[n]);
    }
    for (int64_t r = 0; r < b_; ++r) {
      const Sequence seq = sequence(at_, r);
      if (!seq.rows || !h_) continue;
      const std::set<int64_t> list = choose(seq, out);
      for (int64_t head = 0; head < h_; ++head)
        mode == Mode::exact ? attend<double>(seq, head, list, mode, out)
                            : attend<float>(seq, head, list, mode, out);
    }
    return out;
  }

 private:
  // The first blocks, and the best of the others by the mean query: section 3.2, one list for all
  // heads.
  std::set<int64_t> choose(const Sequence& q, InfllmResult& out) const {
    std::vector<double> score(static_cast<size_t>(blocks(q.r)));
    const int64_t group = p_.representative.shape[2] ? h_ / p_.representative.shape[2] : 1;
    for (int64_t head = 0; head < h_; ++head)
      for (int64_t c = 0; c < d_; ++c) {
        double mean = 0;
        for (int64_t i = 0; i < q.rows; ++i) mean += q_far_(q.batch, i, head, c);
        mean /= static_cast<double>(q.rows);
        for (size_t n = 0; n < score.size(); ++n)
          score[n] += mean * representative_(q.r, static_cast<int64_t>(n), head / group, c);
      }
    std::vector<int64_t> order;
    std::vector<Ranked> others;
    for (int64_t n = 0; n < static_cast<int64_t>(score.size()); ++n)
      if (n < first_blocks())
        order.push_back(n);
      else
        others.push_back({score[static_cast<size_t>(n)], n});
    std::sort(others.begin(), others.end(), goes_before);
    const int64_t first = static_cast<int64_t>(order.size());
    for (const Ranked& x : others) order.push_back(x.at);
    const int64_t all = static_cast<int64_t>(order.size());
    const int64_t wanted = first + std::min(all - first, count_);
    const int64_t keep = p_.index.data ? p_.index.shape[1] : wanted, kept = std::min(wanted, keep);
    for (int64_t cut : {wanted, kept})
      if (cut > first && cut < all)
        note_gap(others[static_cast<size_t>(cut - first - 1)].score,
                 others[static_cast<size_t>(cut - first)].score, out.margin);
    const std::set<int64_t> list(order.begin(), order.begin() + kept);
    auto at = list.begin();
    for (int64_t n = 0; p_.index.data && n < keep; ++n)
      out.index.set(q.r * keep + n, n < kept ? static_cast<double>(*at++) : -1);
    if (p_.index_count.data) out.index_count.set(q.r, static_cast<double>(wanted));
    return list;
  }

  // Whether the row at position p sees key j, and by which rotation.
  bool local(int64_t p, int64_t j) const { return j <= p && p - j < window_; }
  bool far(const Sequence& q, int64_t p, int64_t j, const std::set<int64_t>& list) const {
    return p - j >= window_ && (j >= block_len_.integer(q.r) || list.count(j / block_) != 0);
  }

  template <class Real>
  void attend(const Sequence& q, int64_t head, const std::set<int64_t>& list, Mode mode,
              InfllmResult& out) {
    const int64_t g = head / (h_ / p_.k.shape[2]), e = p_.v.shape[3];
    std::vector<Real> added(static_cast<size_t>(q.keys));
    for (int64_t i = 0; i < q.rows; ++i) {
      const int64_t p = i + q.keys - q.rows;
      std::vector<Real> x(static_cast<size_t>(q.keys), -HUGE_VAL), n(x.size());
      std::vector<Place> key(x.size());
      Real top = -HUGE_VAL, sum = 0;
      double condition = 0;
      for (int64_t j = 0; j < q.keys; ++j) {
        key[j] = place(at_, q, j);
        if (!key[j].present || (!local(p, j) && !far(q, p, j, list))) continue;
        const double* of = (local(p, j) ? q_ : q_far_).row(q.batch, i, head);
        const double* to = (local(p, j) ? k_window_ : k_).row(key[j].row, key[j].slot, g);
        x[j] = dot<Real>(of, to, d_) * static_cast<Real>(scale_);
        top = std::max(top, x[j]);
        condition = std::max(condition, scale_ * norm(of, d_) * norm(to, d_));
      }
      for (int64_t j = 0; j < q.keys && top > -HUGE_VAL; ++j) {
        n[j] = std::exp(x[j] - top), sum += n[j];
        if (mode == Mode::rounded) n[j] = static_cast<Real>(round_to(p_.q.dtype, n[j]));
      }
      std::vector<Real> y(static_cast<size_t>(e));
      double terms = 0;
      for (int64_t j = 0; j < q.keys; ++j) {
        if (n[j] == 0) continue;
        const double* v = v_.row(key[j].row, key[j].slot, g);
        for (int64_t c = 0; c < e; ++c) y[c] += n[j] * static_cast<Real>(v[c]);
        terms += n[j] / sum * largest_abs(v, e);
      }
      out.o.terms(terms), out.o.condition = std::max(out.o.condition, condition);
      for (int64_t c = 0; c < e; ++c) {
        const double value = sum > 0 ? y[c] / sum : 0;
        out.o.set(((q.batch * s_ + i) * h_ + head) * e + c,
                  mode == Mode::rounded ? round_to(p_.o.dtype, value) : value);
      }
      const Real lse = sum > 0 ? top + std::log(sum) : -HUGE_VAL;
      if (p_.lse.data) {
        out.lse.set((q.batch * h_ + head) * s_ + i, static_cast<double>(lse));
        out.lse.terms(1 + std::abs(static_cast<double>(lse)) + condition);
      }
      if (p_.local_score.data)
        out.local_score.condition = std::max(out.local_score.condition, condition);
      for (int64_t j = 0; j < q.keys; ++j)
        if (local(p, j) && x[j] > -HUGE_VAL) added[j] += std::exp(x[j] - lse);
    }
    for (int64_t j = 0; p_.local_score.data && j < q.keys; ++j) {
      const int64_t at = (q.r * h_ + head) * p_.local_score.shape[2] + j;
      const double old = out.local_score.value[at];
      out.local_score.set(at, static_cast<double>(static_cast<Real>(old) + added[j]));
      out.local_score.terms(std::abs(old) + static_cast<double>(added[j]));
    }
  }

  const Params& p_;
  const int64_t window_, block_, count_;
  const Dense q_, q_far_, k_, k_window_, v_, representative_, block_len_;
  Layout at_;
  int64_t b_, s_, h_, d_;
  double scale_;
};

}  // namespace oracle
