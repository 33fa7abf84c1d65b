// SPDX-License-Identifier: Apache-2.0
// Statistics of attention's probabilities, from the comments of experimental/summary.h.  Every P of
// a head is held at once.  Rounded mode is float32.
#pragma once
#include <algorithm>

#include "sequence.h"
#include "tracked.h"

namespace oracle {

template <class Real>
class Probe {
 public:
  explicit Probe(const fovea_x_probe_forward_params& p)
      : q(p.q), k(p.k), lse_in(p.lse_in), query_position(p.query_position), p_(p) {
    places_.query_start = load(p.query_start), places_.key_start = load(p.key_start);
    places_.query_len = load(p.query_len), places_.key_len = load(p.key_len);
    places_.page_table = load(p.page_table), places_.cache_row = load(p.cache_row);
    context_len_ = load(p.context_len);
    places_.page = places_.page_table ? p.k.shape[1] : 0;
    places_.extent = places_.page ? places_.page * places_.page_table.shape[1] : p.k.shape[1];
    places_.caches = places_.page_table ? places_.page_table.shape[0] : p.k.shape[0];
    places_.s = p.q.shape[1], places_.query_max = p.query_max, places_.key_max = p.key_max;
    places_.sequences = places_.query_start ? places_.query_start.shape[0] - 1
                        : places_.key_start ? places_.key_start.shape[0] - 1
                                            : p.q.shape[0];
    h_ = p.q.shape[2], g_ = p.k.shape[2], d_ = p.q.shape[3], x_ = h_;
    for (const auto& [out, from] : {std::pair{&column_sum, &p.column_sum},
                                    {&diagonal_sum, &p.diagonal_sum},
                                    {&block_sum, &p.block_sum},
                                    {&block_max, &p.block_max},
                                    {&lse, &p.lse}}) {
      if (!from->data) continue;
      *out = Out(*from, 0);
      if (out != &lse) x_ = from->shape[1];
    }
    stride_ = p.group_stride ? p.group_stride : 1;
    scale_ = (p.scale > 0 ? static_cast<Real>(p.scale) : 1 / std::sqrt(static_cast<Real>(d_))) /
             static_cast<Real>(stride_);
    if (p.column_sum.data)
      for (int64_t n = 0; n < count_of(p.column_sum); ++n) column_sum.set(n, 0);
    for (int64_t r = 0; r < places_.sequences; ++r)
      for (int64_t x = 0; x < x_; ++x) group(sequence(places_, r), x);
  }
  Tracked q, k, lse_in, query_position;
  Out lse, column_sum, diagonal_sum, block_sum, block_max;

 private:
  // A head's statistics: of each key, of each distance, of each pair of blocks.
  struct Sums {
    std::vector<Real> column, diagonal, block, most;
  };
  int64_t row_blocks(const Sequence& s) const {
    const int64_t rows = p_.block_rows ? p_.block_rows : 64;
    return (s.rows + rows - 1) / rows;
  }
  int64_t u() const { return p_.block_sum.data ? p_.block_sum.shape[3] : p_.block_max.shape[3]; }

  void group(const Sequence& s, int64_t x) {
    const int64_t heads = h_ / x_;
    std::vector<Sums> all;
    for (int64_t n = 0; n < heads; ++n) all.push_back(head(s, x * heads + n));
    const auto reduced = [&](std::vector<Real> Sums::*list, int64_t at) {
      Real sum = 0, most = 0;
      for (const Sums& one : all) sum += (one.*list)[at], most = std::max(most, (one.*list)[at]);
      if (p_.reduce == FOVEA_X_PROBE_REDUCE_MAX) return static_cast<double>(most);
      if (p_.reduce == FOVEA_X_PROBE_REDUCE_MEAN) sum /= static_cast<Real>(heads);
      return static_cast<double>(sum);
    };
    const auto put = [](Out& out, int64_t at, double value) {
      out.set(at, value), out.terms(value);
    };
    for (int64_t j = 0; p_.column_sum.data && j < s.keys; ++j) {
      const int64_t batch = places_.key_start ? 0 : s.r;
      put(column_sum, (batch * x_ + x) * p_.column_sum.shape[2] + s.store + j,
          reduced(&Sums::column, j));
    }
    for (int64_t o = 0; p_.diagonal_sum.data && o < p_.diagonal_sum.shape[2]; ++o)
      put(diagonal_sum, (s.r * x_ + x) * p_.diagonal_sum.shape[2] + o, reduced(&Sums::diagonal, o));
    const int64_t rows = p_.block_rows ? p_.block_rows : 64;
    const int64_t n = p_.block_sum.data ? p_.block_sum.shape[2] : p_.block_max.shape[2];
    for (int64_t I = 0; I < row_blocks(s); ++I)
      for (int64_t J = 0; J < u(); ++J) {
        const int64_t row = I + (rows == 1 ? s.row : places_.query_start ? s.row / rows + s.r : 0);
        if (row >= n) continue;
        const int64_t at = ((s.batch * x_ + x) * n + row) * u() + J;
        if (p_.block_sum.data) put(block_sum, at, reduced(&Sums::block, I * u() + J));
        if (p_.block_max.data) put(block_max, at, reduced(&Sums::most, I * u() + J));
      }
  }

  int64_t context(const Sequence& s) const {
    return context_len_ ? context_len_.integer(s.r) : s.keys;
  }
  bool sees(const Sequence& s, int64_t head, int64_t i, int64_t j) const {
    if (stride_ > 1) {
      const double shift =
          std::floor(static_cast<double>(context(s) - s.rows) / static_cast<double>(stride_));
      return !p_.causal || static_cast<double>(j - i) <= shift;
    }
    if (!place(places_, s, s.store + j).present) return false;
    const int64_t from = position(s, head, i),
                  to = (p_.key_step ? p_.key_step : 1) * j + p_.key_shift;
    const int64_t right = p_.causal ? 1 : p_.window_right;
    if (right && to >= from + right) return false;
    return !(p_.window_left && to <= from - p_.window_left && to >= p_.sink_keys);
  }
  int64_t position(const Sequence& s, int64_t head, int64_t i) const {
    if (query_position) return static_cast<int64_t>(query_position(s.batch, head, s.row + i));
    return i + context(s) - s.rows;
  }
  Real logit(const Sequence& s, int64_t head, int64_t i, int64_t j) {
    Real sum = 0;
    double terms = 0;
    for (int64_t r = 0; r < stride_; ++r) {
      const int64_t row = i * stride_ + (p_.reversed ? stride_ - 1 - r : r);
      const int64_t key = j * stride_ + r;
      // A token counts, though what it would be multiplied with is past the end.
      const Place at = key < s.keys ? place(places_, s, s.store + key) : Place{0, 0, false};
      const bool there = at.present;
      for (int64_t c = 0; c < d_; ++c) {
        const double own = row < s.rows ? q(s.batch, s.row + row, head, c) : 0;
        const double one = own * (there ? k(at.row, at.slot, head / (h_ / g_), c) : 0);
        sum += static_cast<Real>(one), terms += std::abs(one);
      }
    }
    terms *= static_cast<double>(scale_);
    for (Out* out : {&lse, &column_sum, &diagonal_sum, &block_sum, &block_max})
      out->condition = std::max(out->condition, terms);
    return sum * scale_;
  }

  Sums head(const Sequence& s, int64_t head) {
    const int64_t rows = (s.rows + stride_ - 1) / stride_, keys = (s.keys + stride_ - 1) / stride_;
    Sums sums;
    sums.column.resize(s.keys);
    sums.diagonal.resize(p_.diagonal_sum.data ? p_.diagonal_sum.shape[2] : 0);
    sums.block.resize(row_blocks(s) * u()), sums.most.resize(sums.block.size());
    for (int64_t i = 0; i < rows; ++i) {
      std::vector<Real> x(keys, -HUGE_VAL);
      for (int64_t j = 0; j < keys; ++j)
        if (sees(s, head, i, j)) x[j] = logit(s, head, i, j);
      const Real top = x.empty() ? -HUGE_VAL : *std::max_element(x.begin(), x.end());
      Real sum = 0;
      for (Real one : x) sum += top == -HUGE_VAL ? 0 : std::exp(one - top);
      Real lse_i = sum > 0 ? top + std::log(sum) : -HUGE_VAL;
      if (lse_in) lse_i = static_cast<Real>(lse_in(s.batch, head, s.row + i));
      if (p_.lse.data) {
        lse.set((s.batch * h_ + head) * places_.s + s.row + i, static_cast<double>(lse_i));
        lse.terms(std::abs(static_cast<double>(lse_i)) + 1);
      }
      for (int64_t j = 0; j < keys; ++j)
        if (x[j] != -HUGE_VAL) add(s, head, i, j, std::exp(x[j] - lse_i), sums);
    }
    return sums;
  }
  void add(const Sequence& s, int64_t head, int64_t i, int64_t j, Real p, Sums& sums) const {
    if (stride_ == 1) sums.column[j] += p;
    if (p_.diagonal_sum.data) {
      const int64_t o = position(s, head, i) - j;
      if (o >= 0 && o < p_.diagonal_sum.shape[2]) sums.diagonal[o] += p;
    }
    const int64_t I = i * stride_ / (p_.block_rows ? p_.block_rows : 64);
    const int64_t J = j * stride_ / (p_.block_keys ? p_.block_keys : 64);
    if (J >= u()) return;
    sums.block[I * u() + J] += p;
    sums.most[I * u() + J] = std::max(sums.most[I * u() + J], p);
  }

  const fovea_x_probe_forward_params& p_;
  Layout places_;
  Dense context_len_;
  int64_t h_, g_, d_, x_, stride_;
  Real scale_;
};

}  // namespace oracle
