// SPDX-License-Identifier: Apache-2.0
// x_select_block from the comment of experimental/select.h: every score, a plain sort, sets.
// Selections follow from the float64 scores in either mode; `margin` is how close one of them was.
#pragma once
#include <algorithm>
#include <numeric>

#include "sequence.h"

namespace oracle {

struct SelectResult {
  Out index, index_count, kept_score, kept_mass, score_out;
  double margin = HUGE_VAL;  // relative to the scores compared; ties do not count
};

// A list row: its sequence, and what positions make of it.
struct SelectRow {
  int64_t sequence = -1, batch = 0, row = 0, before = 0;
  int64_t rows = 0, keys = 0, column = 0, columns = 0, blocks = 0;
  int64_t first = 0, last = 0;  // positions
};

// A key of a sequence of keys, and how it compares: higher first, then lower index.
struct Ranked {
  double score;
  int64_t at;
};
inline bool goes_before(const Ranked& x, const Ranked& y) {
  return x.score != y.score ? x.score > y.score : x.at < y.at;
}
inline void note_gap(double x, double y, double& margin) {
  if (x == y || !std::isfinite(x) || !std::isfinite(y)) return;
  margin = std::min(margin, std::abs(x - y) / std::max(std::abs(x), std::abs(y)));
}

// What a rule takes: Appendix B of the definition, entry by entry.
struct RuleOf {
  int rule;
  int64_t k;
  float cover, threshold;
  int64_t min_extra;
  bool forced_count;
};

// The entries of `scores` taken beyond the forced ones, in their order.
inline std::vector<int64_t> apply_rule(const std::vector<double>& scores,
                                       const std::vector<char>& forced, const RuleOf& a,
                                       double& margin) {
  const int64_t n = static_cast<int64_t>(scores.size());
  std::vector<Ranked> order;
  double largest = 0;
  for (int64_t c = 0; c < n; ++c) {
    if (scores[c] > -HUGE_VAL) order.push_back({scores[c], c});
    largest = std::max(largest, scores[c]);
  }
  std::sort(order.begin(), order.end(), goes_before);
  const double most = 3.4028234663852886e38;
  const int e = largest > 0 ? std::ilogb(std::min<double>(static_cast<float>(largest), most)) : 0;
  const int log = n > 1 ? static_cast<int>(std::ceil(std::log2(static_cast<double>(n)))) : 0;
  const int q = std::min(40, 61 - log);
  const auto unit = [&](double score) {
    if (!(score > 0) || !(largest > 0)) return int64_t{0};
    const double w = std::min<double>(static_cast<float>(score), most);
    return static_cast<int64_t>(std::floor(std::ldexp(w, q - e)));
  };
  int64_t base = 0, m = 0, total = 0;
  if (a.forced_count) {
    for (int64_t c = 0; c < n; ++c)
      if (forced[c]) ++base, m += unit(scores[c]);
    std::erase_if(order, [&](const Ranked& x) { return forced[x.at] != 0; });
  }
  total = m;
  for (const Ranked& x : order) total += unit(x.score);
  size_t taken = 0;
  if (a.rule == FOVEA_X_SELECT_RULE_TOP_K) {
    taken = static_cast<size_t>(std::max<int64_t>(0, a.k - base));
  } else if (a.rule == FOVEA_X_SELECT_RULE_ABOVE || a.rule == FOVEA_X_SELECT_RULE_AT_LEAST) {
    for (const Ranked& x : order) {
      taken += a.rule == FOVEA_X_SELECT_RULE_ABOVE ? x.score > static_cast<double>(a.threshold)
                                                   : x.score >= static_cast<double>(a.threshold);
      note_gap(x.score, a.threshold, margin);
    }
  } else if (a.rule != FOVEA_X_SELECT_RULE_NONE && total > 0) {
    const double bound = static_cast<double>(a.cover) * static_cast<double>(total);
    const double t = a.rule == FOVEA_X_SELECT_RULE_TOP_P_GE ? std::ceil(bound) : std::floor(bound);
    for (const Ranked& x : order) {
      const auto before = static_cast<double>(m), with = static_cast<double>(m + unit(x.score));
      const bool take = a.rule == FOVEA_X_SELECT_RULE_TOP_P_GE   ? before < t
                        : a.rule == FOVEA_X_SELECT_RULE_TOP_P_GT ? before <= t
                                                                 : with <= t;
      if (before != t) margin = std::min(margin, std::abs(before - t) / static_cast<double>(total));
      if (with != t) margin = std::min(margin, std::abs(with - t) / static_cast<double>(total));
      if (!take) break;
      ++taken, m += unit(x.score);
    }
  }
  taken = std::max(taken, static_cast<size_t>(a.min_extra));
  taken = std::min(taken, order.size());
  if (taken && taken < order.size()) note_gap(order[taken - 1].score, order[taken].score, margin);
  std::vector<int64_t> list;
  for (size_t i = 0; i < taken; ++i) list.push_back(order[i].at);
  return list;
}

class SelectOracle {
 public:
  using Params = fovea_x_select_block_params;

  explicit SelectOracle(const Params& p)
      : p_(p),
        row_(load(p.row)),
        column_(load(p.column)),
        low_(load(p.column_low)),
        score_(load(p.score)),
        weight_(load(p.column_weight)),
        row_lse_(load(p.row_lse)),
        mask_(load(p.block_mask)),
        forced_(load(p.forced)),
        row_forced_(load(p.row_forced)),
        column_forced_(load(p.column_forced)),
        count_head_(load(p.count_head)),
        cover_head_(load(p.cover_head)) {
    at_.query_start = load(p.query_start), at_.key_start = load(p.key_start);
    at_.query_len = load(p.query_len), at_.key_len = load(p.key_len);
    const fovea_tensor& list = p.index.data ? p.index : p.index_count;
    b_ = list.shape[0], x_ = list.shape[1], n_ = list.shape[2];
    h_ = row_ ? row_.shape[2] : score_ ? score_.shape[1] : x_;
    g_ = column_          ? column_.shape[2]
         : weight_        ? weight_.shape[1]
         : column_forced_ ? column_forced_.shape[1]
                          : std::max<int64_t>(h_, 1);
    block_rows_ = p.block_rows ? p.block_rows : 1, block_keys_ = p.block_keys ? p.block_keys : 64;
    step_ = p.remap_step ? block_keys_ / p.remap_step : block_keys_;
    span_ = p.remap_step ? step_ * p.remap_span : block_keys_;
    u_ = column_          ? column_.shape[1]
         : score_         ? score_.shape[3]
         : column_forced_ ? column_forced_.shape[2]
                          : (p.key_max + block_keys_ - 1) / block_keys_;
    at_.s = n_ * block_rows_, at_.query_max = p.query_max, at_.key_max = p.key_max;
    at_.extent = column_ || score_ || column_forced_ ? u_ * step_ + (p.remap_step ? span_ - 1 : 0)
                                                     : p.key_max;
    y_ = (at_.extent + block_keys_ - 1) / block_keys_;
    sequences_ = at_.query_start ? at_.query_start.shape[0] - 1 : b_;
  }

  SelectResult run(Mode mode) {
    SelectResult result{Out(p_.index, 0), Out(p_.index_count, 0), Out(p_.kept_score, 0),
                        Out(p_.kept_mass, 0), Out(p_.score_out, 0)};
    for (int64_t r = 0; r < sequences_; ++r) {
      const std::vector<SelectRow> rows = rows_of(r);
      if (rows.empty()) continue;
      std::vector<std::vector<double>> exact = finals<double>(rows);
      std::vector<std::vector<double>> kept = mode == Mode::exact ? exact : finals<float>(rows);
      lists(rows, exact, kept, result);
    }
    return result;
  }
  int64_t y() const { return y_; }

  // The list rows of a sequence.
  std::vector<SelectRow> rows_of(int64_t r) const {
    const Sequence q = sequence(at_, r);
    const int64_t start = at_.query_start ? at_.query_start.integer(r) : 0;
    const int64_t first = at_.query_start && block_rows_ > 1 ? start / block_rows_ + r : start;
    std::vector<SelectRow> rows;
    for (int64_t i = 0; i * block_rows_ < q.rows; ++i) {
      SelectRow at;
      at.sequence = r, at.batch = at_.query_start ? 0 : r, at.row = first + i, at.before = i;
      at.rows = q.rows, at.keys = q.keys;
      at.column = at_.key_start ? at_.key_start.integer(r) / step_ + r : 0;
      if (p_.remap_step)
        at.columns = q.keys >= span_ ? (q.keys - span_) / step_ + 1 : 0;
      else
        at.columns = (q.keys + block_keys_ - 1) / block_keys_;
      at.blocks = (q.keys + block_keys_ - 1) / block_keys_;
      at.first = i * block_rows_ + q.keys - q.rows;
      at.last = std::min((i + 1) * block_rows_, q.rows) - 1 + q.keys - q.rows;
      rows.push_back(at);
    }
    return rows;
  }

 private:
  int64_t key_batch(const SelectRow& at) const { return at_.key_start ? 0 : at.sequence; }

  bool may_see(const SelectRow& at, int64_t begin, int64_t end) const {
    if (!p_.causal) return true;
    if (p_.complete) return std::min(end, at.keys) - 1 <= at.first;
    return begin <= at.last;
  }
  static bool bit(const Dense& x, const SelectRow& at, int64_t j, int64_t c) {
    return static_cast<int>(x(at.batch, j, at.row, c / 8)) >> (c % 8) & 1;
  }
  int flags(const SelectRow& at, int64_t head, int64_t c) const {
    if (!column_forced_) return 0;
    return static_cast<int>(column_forced_(key_batch(at), head / (h_ / g_), at.column + c));
  }
  bool is_forced(const SelectRow& at, int64_t j, int64_t c) const {
    bool own = false;
    int64_t own_first = at.blocks;
    for (int64_t p = std::max<int64_t>(at.first, 0); p <= at.last; ++p) {
      own |= p / block_keys_ == c;
      own_first = std::min(own_first, p / block_keys_);
    }
    if (own && p_.force_own) return true;
    bool forced = c < p_.force_first || c >= at.blocks - p_.force_last;
    // A sequence of rows before all keys has no own blocks: none are previous to them.
    if (own_first < at.blocks || at.last >= 0)
      forced |= c < own_first && c >= own_first - p_.force_previous;
    if (forced_) forced |= bit(forced_, at, j, c);
    if (row_forced_) forced |= row_forced_(at.batch, j, at.row) != 0;
    if (!p_.remap_step) forced |= (flags(at, j * (h_ / x_), c) & 1) != 0;
    if (!forced) return false;
    if (p_.remap_step) return !p_.causal || c * block_keys_ <= at.last;
    return may_see(at, c * block_keys_, (c + 1) * block_keys_);
  }

  template <class Real>
  Real raw(const SelectRow& at, int64_t j, int64_t head, int64_t c) const {
    if (!may_see(at, c * step_, c * step_ + span_)) return -HUGE_VALF;
    if (mask_ && !bit(mask_, at, j, c)) return -HUGE_VALF;
    if (flags(at, head, c) & 2) return -HUGE_VALF;
    Real sum = 0;
    double scale = p_.scale > 0 ? static_cast<double>(p_.scale) : 1;
    if (row_) {
      if (!(p_.scale > 0)) scale = static_cast<float>(1 / std::sqrt(double(row_.shape[3])));
      const double* q = row_.row(at.batch, at.row, head);
      const int64_t kb = key_batch(at), kg = head / (h_ / g_);
      for (int64_t i = 0; i < row_.shape[3]; ++i) {
        const double v = column_(kb, at.column + c, kg, i);
        const double w = low_ ? low_(kb, at.column + c, kg, i) : 0;
        const double high = low_ && q[i] < 0 ? 0 : q[i], low = low_ && q[i] < 0 ? q[i] : 0;
        sum += static_cast<Real>(high * v);
        if (low_) sum += static_cast<Real>(low * w);
      }
    } else if (score_) {
      sum = static_cast<Real>(score_(at.batch, head, at.row, c));
    }
    sum *= static_cast<Real>(scale);
    return std::isnan(sum) ? -HUGE_VALF : sum;
  }

  // Normalises lines of one scope: each is a row.
  template <class Real>
  void normalise(const std::vector<SelectRow>& rows, int64_t head,
                 std::vector<std::vector<Real>>& lines, Real low, Real high) const {
    for (size_t i = 0; i < lines.size(); ++i) {
      std::vector<Real>& x = lines[i];
      const SelectRow& at = rows[i % rows.size()];
      if (row_lse_) {
        const double lse = row_lse_(at.batch, head, at.row);
        for (Real& s : x)
          if (s > -HUGE_VALF)
            s = std::isfinite(lse) ? std::exp(std::min(s - static_cast<Real>(lse), Real{0})) : 0;
        continue;
      }
      Real top = -HUGE_VALF, sum = 0;
      for (Real s : x) top = std::max(top, s);
      for (size_t c = 0; c < x.size(); ++c) {
        Real& s = x[c];
        if (s == -HUGE_VALF) continue;
        switch (p_.normalise) {
          case FOVEA_X_SELECT_NORMALISE_MAX:
            if (top > 0) s /= top;
            break;
          case FOVEA_X_SELECT_NORMALISE_MINMAX:
            s = (s - low) / (high - low <= static_cast<Real>(1e-6f) ? 1 : high - low);
            break;
          case FOVEA_X_SELECT_NORMALISE_WEIGHTED:
          case FOVEA_X_SELECT_NORMALISE_SOFTMAX:
            s = s == top ? 1 : std::exp(s - top);
            if (weight_)
              s *= static_cast<Real>(
                  weight_(key_batch(at), head / (h_ / g_), at.column + static_cast<int64_t>(c)));
            sum += s;
            break;
          default:
            break;
        }
        if (std::isnan(s)) s = -HUGE_VALF;
      }
      if (p_.normalise == FOVEA_X_SELECT_NORMALISE_SOFTMAX ||
          p_.normalise == FOVEA_X_SELECT_NORMALISE_WEIGHTED)
        for (Real& s : x)
          if (s > -HUGE_VALF) s = sum > 0 ? s / sum : 0;
    }
  }

  // The scores after step 5 of a sequence: line j * rows + i of list head j and row i.
  template <class Real>
  std::vector<std::vector<double>> finals(const std::vector<SelectRow>& rows) const {
    using Lines = std::vector<std::vector<Real>>;
    const int64_t n = static_cast<int64_t>(rows.size()), group = x_ ? h_ / x_ : 0;
    std::vector<Lines> heads(h_);
    for (int64_t head = 0; head < h_; ++head)
      for (const SelectRow& at : rows) {
        std::vector<Real> line(at.columns);
        for (int64_t c = 0; c < at.columns; ++c) line[c] = raw<Real>(at, head / group, head, c);
        heads[head].push_back(line);
      }
    if (!p_.reduce_raw) normalise_all(rows, heads, 1);
    std::vector<Lines> lists(x_);
    for (int64_t j = 0; j < x_; ++j)
      for (int64_t i = 0; i < n; ++i) {
        std::vector<Real> line = heads[j * group][i];
        for (int64_t k = 1; k < group; ++k)
          for (size_t c = 0; c < line.size(); ++c) {
            const Real other = heads[j * group + k][i][c];
            line[c] =
                p_.reduce == FOVEA_X_SELECT_REDUCE_MAX ? std::max(line[c], other) : line[c] + other;
            if (std::isnan(line[c])) line[c] = -HUGE_VALF;
          }
        if (p_.reduce == FOVEA_X_SELECT_REDUCE_MEAN)
          for (Real& s : line) s /= static_cast<Real>(group);
        lists[j].push_back(line);
      }
    if (p_.reduce_raw) normalise_all(rows, lists, group);
    std::vector<std::vector<double>> all;
    for (int64_t j = 0; j < x_; ++j)
      for (int64_t i = 0; i < n; ++i) {
        const std::vector<Real> line = p_.remap_step ? remapped(rows[i], lists[j][i]) : lists[j][i];
        all.emplace_back(line.begin(), line.end());
      }
    return all;
  }
  // heads_apart: query heads from one of `heads` to the next.
  template <class Real>
  void normalise_all(const std::vector<SelectRow>& rows,
                     std::vector<std::vector<std::vector<Real>>>& heads,
                     int64_t heads_apart) const {
    const auto range = [](const std::vector<Real>& x, Real& low, Real& high) {
      for (Real s : x)
        if (s > -HUGE_VALF) low = std::min(low, s), high = std::max(high, s);
    };
    Real all_low = HUGE_VALF, all_high = -HUGE_VALF;
    for (const auto& lines : heads)
      for (const auto& x : lines) range(x, all_low, all_high);
    for (size_t k = 0; k < heads.size(); ++k) {
      Real low = HUGE_VALF, high = -HUGE_VALF;
      for (const auto& x : heads[k]) range(x, low, high);
      for (size_t i = 0; i < heads[k].size(); ++i) {
        if (p_.scope == FOVEA_X_SELECT_SCOPE_ALL) low = all_low, high = all_high;
        if (p_.scope == FOVEA_X_SELECT_SCOPE_ROW)
          low = HUGE_VALF, high = -HUGE_VALF, range(heads[k][i], low, high);
        std::vector<std::vector<Real>> one = {heads[k][i]};
        normalise<Real>({rows[i]}, static_cast<int64_t>(k) * heads_apart, one, low, high);
        heads[k][i] = one[0];
      }
    }
  }
  template <class Real>
  std::vector<Real> remapped(const SelectRow& at, const std::vector<Real>& p) const {
    std::vector<Real> out(at.blocks);
    for (int64_t j = 0; j < at.blocks; ++j) {
      for (int64_t m = 0; m < p_.remap_step; ++m)
        for (int64_t n = 0; n < p_.remap_span; ++n) {
          const int64_t c = p_.remap_step * j + m - n;
          if (c >= 0 && c < at.columns && p[c] > -HUGE_VALF) out[j] += p[c];
        }
      if (p_.causal && j * block_keys_ > at.last) out[j] = -HUGE_VALF;
    }
    return out;
  }

  int64_t k_of(const SelectRow& at, int64_t j, int64_t entries) const {
    if (count_head_) return std::max<int64_t>(0, count_head_.integer(at.batch, j));
    if (p_.count || !(p_.ratio > 0)) return p_.count;
    const double k = static_cast<double>(p_.ratio) * static_cast<double>(entries);
    return static_cast<int64_t>(p_.ratio_up ? std::ceil(k) : std::floor(k));
  }

  void lists(const std::vector<SelectRow>& rows, const std::vector<std::vector<double>>& exact,
             const std::vector<std::vector<double>>& kept, SelectResult& result) const {
    const int64_t n = static_cast<int64_t>(rows.size()), blocks = rows[0].blocks;
    const int64_t scopes = p_.scope == FOVEA_X_SELECT_SCOPE_ROW    ? x_ * n
                           : p_.scope == FOVEA_X_SELECT_SCOPE_HEAD ? x_
                                                                   : std::min<int64_t>(x_, 1);
    const int64_t lines = scopes ? x_ * n / scopes : 0;
    for (int64_t scope = 0; scope < scopes; ++scope) {
      std::vector<double> scores;
      std::vector<char> forced;
      const int64_t j = scope * lines / n;
      for (int64_t l = scope * lines; l < (scope + 1) * lines; ++l)
        for (int64_t c = 0; c < blocks; ++c) {
          scores.push_back(exact[l][c]);
          forced.push_back(is_forced(rows[l % n], l / n, c));
        }
      const int64_t entries = lines * blocks;
      const RuleOf rule{p_.rule,
                        k_of(rows[0], j, entries),
                        cover_head_ ? static_cast<float>(cover_head_(j)) : p_.cover,
                        p_.threshold,
                        p_.min_extra,
                        p_.forced_count != 0};
      std::vector<char> taken(scores.size());
      for (int64_t e : apply_rule(scores, forced, rule, result.margin)) taken[e] = 1;
      for (int64_t l = 0; l < lines; ++l) {
        const int64_t at = scope * lines + l;
        row_list(rows[at % n], at / n, kept[at], scores.data() + l * blocks,
                 forced.data() + l * blocks, taken.data() + l * blocks, result);
      }
    }
  }

  void row_list(const SelectRow& at, int64_t j, const std::vector<double>& kept,
                const double* scores, const char* forced, const char* taken,
                SelectResult& result) const {
    std::vector<int64_t> list;  // forced ones first, then those taken, in their order
    std::vector<Ranked> order;
    for (int64_t c = 0; c < at.blocks; ++c) {
      if (forced[c])
        list.push_back(c);
      else if (scores[c] > -HUGE_VAL)
        order.push_back({scores[c], c});
    }
    std::sort(order.begin(), order.end(), goes_before);
    int64_t size = static_cast<int64_t>(list.size());
    const int64_t forced_size = size;
    for (const Ranked& x : order) {
      list.push_back(x.at);
      size += taken[x.at] != 0;
    }
    const auto all = static_cast<int64_t>(list.size());
    size = std::max(size, std::min(p_.min_keep, all));
    if (p_.max_keep) size = std::min(size, p_.max_keep);
    const int64_t wanted = size;
    if (p_.index.data) size = std::min<int64_t>(size, p_.index.shape[3]);
    for (int64_t cut : {wanted, size})
      if (cut > forced_size && cut < all)
        note_gap(scores[list[cut - 1]], scores[list[cut]], result.margin);
    list.resize(size);
    std::sort(list.begin(), list.end());
    double mass = 0, terms = 0;
    const auto place = [&](const fovea_tensor& x, int64_t extent, int64_t slot) {
      return ((at.batch * x.shape[1] + j) * x.shape[2] + at.row) * extent + slot;
    };
    for (int64_t slot = 0; p_.index.data && slot < p_.index.shape[3]; ++slot) {
      const bool used = slot < size;
      result.index.set(place(p_.index, p_.index.shape[3], slot),
                       used ? static_cast<double>(list[slot]) : -1);
      if (p_.kept_score.data)
        result.kept_score.set(place(p_.index, p_.index.shape[3], slot),
                              used ? kept[list[slot]] : -HUGE_VAL);
    }
    for (int64_t c : list) mass += std::max(0.0, kept[c]);
    for (int64_t c = 0; c < at.blocks; ++c)
      if (std::isfinite(kept[c])) terms = std::max(terms, std::abs(kept[c]));
    result.kept_score.terms(terms), result.score_out.terms(terms);
    result.kept_mass.terms(mass);
    if (p_.index_count.data)
      result.index_count.set(place(p_.index_count, 1, 0), static_cast<double>(wanted));
    if (p_.kept_mass.data) result.kept_mass.set(place(p_.kept_mass, 1, 0), mass);
    for (int64_t c = 0; p_.score_out.data && c < p_.score_out.shape[3]; ++c)
      result.score_out.set(place(p_.score_out, p_.score_out.shape[3], c),
                           c < at.blocks ? kept[c] : -HUGE_VAL);
  }

  const Params& p_;
  Dense row_, column_, low_, score_, weight_, row_lse_, mask_, forced_, row_forced_, column_forced_;
  Dense count_head_, cover_head_;
  Layout at_;
  int64_t b_, x_, n_, h_, g_, u_ = 0, y_ = 0, block_rows_, block_keys_, step_, span_, sequences_;
};

}  // namespace oracle
