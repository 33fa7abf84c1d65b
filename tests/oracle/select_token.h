// SPDX-License-Identifier: Apache-2.0
// x_select_token from the comment of experimental/select.h: every score of a row, a plain sort.
// Selections follow from the float64 scores in either mode; `margin` is how close one of them was.
#pragma once
#include <bit>

#include "select_block.h"

namespace oracle {

struct TokenResult {
  Out index, index_count, kept_score, kept_mass;
  double margin = HUGE_VAL;
};

class TokenOracle {
 public:
  using Params = fovea_x_select_token_params;

  explicit TokenOracle(const Params& p)
      : p_(p),
        q_(load(p.q.data ? p.q : p.code_q)),
        k_(load(p.k.data ? p.k : p.code)),
        k_scale_(load(p.k_scale)),
        weight_(load(p.weight)),
        mask_(load(p.block_mask)),
        context_(load(p.context_len)) {
    at_.query_start = load(p.query_start), at_.key_start = load(p.key_start);
    at_.query_len = load(p.query_len), at_.key_len = load(p.key_len);
    at_.page_table = load(p.page_table), at_.cache_row = load(p.cache_row);
    h_ = q_.shape[2], g_ = k_.shape[2], d_ = q_.shape[3];
    at_.s = q_.shape[1], at_.extent = k_.shape[1], at_.caches = k_.shape[0];
    if (at_.page_table) {
      at_.page = k_.shape[1], at_.caches = at_.page_table.shape[0];
      at_.extent = at_.page_table.shape[1] * at_.page;
    }
    at_.query_max = p.query_max, at_.key_max = p.key_max;
    sequences_ = at_.query_start ? at_.query_start.shape[0] - 1
                 : at_.key_start ? at_.key_start.shape[0] - 1
                                 : q_.shape[0];
    const fovea_tensor& list = p.index.data ? p.index : p.index_count;
    x_ = list.shape[1];
  }

  const Layout& layout() const { return at_; }
  int64_t sequences() const { return sequences_; }

  TokenResult run(Mode mode) {
    TokenResult result{Out(p_.index, 0), Out(p_.index_count, 0), Out(p_.kept_score, 0),
                       Out(p_.kept_mass, 0)};
    for (int64_t r = 0; r < sequences_; ++r) {
      const Sequence q = sequence(at_, r);
      for (int64_t i = 0; i < q.rows; ++i)
        for (int64_t j = 0; j < x_; ++j)
          mode == Mode::exact ? list<double>(q, i, j, result) : list<float>(q, i, j, result);
    }
    return result;
  }

 private:
  int64_t position(const Sequence& q, int64_t i) const {
    return i + (context_ ? context_.integer(q.r) : q.keys) - q.rows;
  }
  bool seen(int64_t p, int64_t t) const {
    const int64_t right = p_.causal ? 1 : p_.window_right;
    if (right && t >= p + right) return false;
    return !p_.window_left || t > p - p_.window_left || t < p_.sink_keys;
  }
  int64_t key_at(int64_t j) const { return (p_.key_step ? p_.key_step : 1) * j + p_.key_shift; }

  bool selectable(const Sequence& q, int64_t i, int64_t list, int64_t j) const {
    const int64_t p = position(q, i), t = key_at(j);
    if (j < p_.first_keys || !seen(p, t)) return false;
    if (p_.last_keys && t <= p && t > p - p_.last_keys) return false;
    if (!place(at_, q, q.store + j).present) return false;
    if (!mask_) return true;
    const int64_t block = j / (p_.block_keys ? p_.block_keys : 64);
    return static_cast<int>(mask_(q.batch, list, q.row + i, block / 8)) >> (block % 8) & 1;
  }

  // The columns of subset, of a key head.
  std::vector<char> columns(const Sequence& q, int64_t i, int64_t g) const {
    std::vector<Ranked> order;
    for (int64_t c = 0; c < d_; ++c) {
      float sum = 0;
      for (int64_t head = g * (h_ / g_); head < (g + 1) * (h_ / g_); ++head)
        sum += static_cast<float>(std::abs(q_(q.batch, q.row + i, head, c)));
      order.push_back({sum, c});
    }
    std::sort(order.begin(), order.end(), goes_before);
    std::vector<char> chosen(d_);
    for (int64_t n = 0; n < p_.subset; ++n) chosen[order[n].at] = 1;
    return chosen;
  }

  template <class Real>
  Real score(const Sequence& q, int64_t i, int64_t head, int64_t j,
             const std::vector<char>& chosen) const {
    const Place at = place(at_, q, q.store + j);
    const int64_t g = head / (h_ / g_);
    if (p_.measure == FOVEA_X_SELECT_SCORE_HAMMING) {
      int64_t apart = 0;
      for (int64_t w = 0; w < d_; ++w)
        apart += std::popcount(
            static_cast<uint32_t>(static_cast<int64_t>(q_(q.batch, q.row + i, head, w))) ^
            static_cast<uint32_t>(static_cast<int64_t>(k_(at.row, at.slot, g, w))));
      return static_cast<Real>(32 * d_ - 2 * apart) *
             static_cast<Real>(p_.scale > 0 ? p_.scale : 1);
    }
    Real sum = 0, all = 0, part = 0;
    for (int64_t c = 0; c < d_; ++c) {
      double k = k_(at.row, at.slot, g, c);
      if (k_scale_)
        k = static_cast<float>(k * k_scale_(at.row, at.slot, g, c / (d_ / k_scale_.shape[3])));
      const double x = q_(q.batch, q.row + i, head, c);
      const bool counts = p_.measure != FOVEA_X_SELECT_SCORE_SUBSET || chosen[c];
      all += static_cast<Real>(std::abs(x));
      if (!counts) continue;
      part += static_cast<Real>(std::abs(x)), sum += static_cast<Real>(x * k);
    }
    Real s = sum * static_cast<Real>(p_.scale > 0 ? p_.scale
                                                  : static_cast<float>(1 / std::sqrt(double(d_))));
    if (p_.measure == FOVEA_X_SELECT_SCORE_SUBSET) s = part > 0 ? s / std::sqrt(part / all) : 0;
    if (p_.measure == FOVEA_X_SELECT_SCORE_RELU_WEIGHTED) {
      s = s <= 0 ? 0 : s;
      if (weight_) s *= static_cast<Real>(weight_(q.batch, q.row + i, head));
    }
    return std::isnan(s) ? -HUGE_VALF : s;
  }

  template <class Real>
  void list(const Sequence& q, int64_t i, int64_t j, TokenResult& result) const {
    const int64_t group = h_ / x_, pool = p_.pool_keys ? p_.pool_keys : 1;
    std::vector<std::vector<Real>> heads(group, std::vector<Real>(q.keys, -HUGE_VALF));
    std::vector<double> key(q.keys, -HUGE_VAL), exact(q.keys, -HUGE_VAL);
    std::vector<char> there(q.keys);
    int64_t row_sees = 0, last = -1;
    for (int64_t t = 0; t < q.keys; ++t) {
      if (seen(position(q, i), key_at(t))) ++row_sees, last = t;
      there[t] = selectable(q, i, j, t);
    }
    for (int64_t n = 0; n < group; ++n) {
      const int64_t head = j * group + n;
      const std::vector<char> chosen =
          p_.subset ? columns(q, i, head / (h_ / g_)) : std::vector<char>();
      for (int64_t t = 0; t < q.keys; ++t)
        if (there[t]) {
          heads[n][t] = score<Real>(q, i, head, t, chosen);
          combine(n, score<double>(q, i, head, t, chosen), exact[t]);
          double mine = heads[n][t];
          Real sum = static_cast<Real>(key[t]);
          combine(n, static_cast<Real>(mine), sum);
          key[t] = sum;
        }
    }
    for (int64_t t = 0; t < q.keys; ++t)
      if (p_.reduce == FOVEA_X_SELECT_REDUCE_MEAN)
        key[t] = static_cast<Real>(key[t]) / static_cast<Real>(group), exact[t] /= group;
    // Units: the largest of a block.
    const int64_t units = last < 0 ? 0 : last / pool + 1;
    std::vector<double> unit(units, -HUGE_VAL), unit_exact(units, -HUGE_VAL);
    std::vector<char> forced(units);
    for (int64_t t = 0; t <= last; ++t) {
      unit[t / pool] = std::max(unit[t / pool], key[t]);
      unit_exact[t / pool] = std::max(unit_exact[t / pool], exact[t]);
      forced[t / pool] |= there[t] && t / pool >= units - p_.force_last;
    }
    int64_t k = p_.count;
    if (p_.ratio > 0)
      k = std::max<int64_t>(
          k, static_cast<int64_t>(static_cast<double>(p_.ratio) * static_cast<double>(row_sees)));
    const std::vector<int64_t> chosen = choose(unit_exact, forced, k, result);
    write(q, i, j, chosen, unit, heads, there, result);
  }
  template <class Real>
  void combine(int64_t n, Real score, Real& sum) const {
    if (n == 0)
      sum = score;
    else
      sum = p_.reduce == FOVEA_X_SELECT_REDUCE_MAX ? std::max(sum, score) : sum + score;
    if (std::isnan(sum)) sum = -HUGE_VALF;
  }

  // Forced units, then the best others: all that are wanted.
  std::vector<int64_t> choose(const std::vector<double>& unit, const std::vector<char>& forced,
                              int64_t k, TokenResult& result) const {
    std::vector<int64_t> list;
    std::vector<Ranked> order;
    for (int64_t c = 0; c < static_cast<int64_t>(unit.size()); ++c) {
      if (forced[c])
        list.push_back(c);
      else if (unit[c] > -HUGE_VAL)
        order.push_back({unit[c], c});
    }
    std::sort(order.begin(), order.end(), goes_before);
    const int64_t base = static_cast<int64_t>(list.size()),
                  all = static_cast<int64_t>(order.size());
    const int64_t taken = std::min(all, std::max<int64_t>(0, k - base));
    for (int64_t n = 0; n < taken; ++n) list.push_back(order[n].at);
    const int64_t keep = p_.index.data ? p_.index.shape[3] : INT64_MAX;
    for (int64_t cut : {taken, std::min(taken, keep - base)})
      if (cut > 0 && cut < all) note_gap(order[cut - 1].score, order[cut].score, result.margin);
    return list;
  }

  template <class Real>
  void write(const Sequence& q, int64_t i, int64_t j, std::vector<int64_t> list,
             const std::vector<double>& unit, const std::vector<std::vector<Real>>& heads,
             const std::vector<char>& there, TokenResult& result) const {
    const int64_t s = q.row + i, extent = p_.q.data ? p_.q.shape[1] : p_.code_q.shape[1];
    const int64_t row = (q.batch * x_ + j) * extent + s, wanted = int64_t(list.size());
    if (p_.index_count.data) result.index_count.set(row, static_cast<double>(wanted));
    if (!p_.index.data) return;
    const int64_t keep = p_.index.shape[3];
    list.resize(std::min(wanted, keep));
    std::sort(list.begin(), list.end());
    double largest = 0;
    for (double x : unit)
      if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    result.kept_score.terms(largest);
    for (int64_t slot = 0; slot < keep; ++slot) {
      const bool used = slot < static_cast<int64_t>(list.size());
      result.index.set(row * keep + slot, used ? static_cast<double>(list[slot]) : -1);
      if (p_.kept_score.data)
        result.kept_score.set(row * keep + slot, used ? unit[list[slot]] : -HUGE_VAL);
    }
    for (int64_t n = 0; p_.kept_mass.data && n < h_ / x_; ++n) {
      Real top = -HUGE_VALF, sum = 0, kept = 0;
      for (int64_t t = 0; t < q.keys; ++t)
        if (there[t]) top = std::max(top, heads[n][t]);
      const auto part = [&](int64_t t) {
        return heads[n][t] == top ? Real(1) : std::exp(heads[n][t] - top);
      };
      for (int64_t t = 0; top > -HUGE_VALF && t < q.keys; ++t)
        if (there[t]) sum += part(t);
      for (int64_t t : list) kept += top > -HUGE_VALF ? part(t) : 0;
      result.kept_mass.set((q.batch * h_ + j * (h_ / x_) + n) * extent + s,
                           sum > 0 ? kept / sum : 0);
      result.kept_mass.terms(1);
    }
  }

  const Params& p_;
  Dense q_, k_, k_scale_, weight_, mask_, context_;
  Layout at_;
  int64_t h_, g_, d_, x_, sequences_;
};

}  // namespace oracle
