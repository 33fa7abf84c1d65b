// SPDX-License-Identifier: Apache-2.0
// Attention over lists by its definition (experimental/sparse.h): for each row the pairs with keys
// that its list names, a key as often as it is named, and over them the formula of attention.h:
//   m = max score (and sink_logit),  l = sum exp(score - m) + exp(sink_logit - m)
//   o = sum exp(score - m) v / l,  lse = m + ln l,  mass_j += exp(score - lse)
// What is skipped is decided in float64.  Rounded mode is float32 with the unnormalised p rounded.
#pragma once
#include "attention_backward.h"

namespace oracle {

struct Sparse {
  Attention a;
  Dense index, index_count, index_bias, column, column_count, row_begin, key_begin, tile, tile_bits;
  Dense head_map, skip_head, mass;
  int64_t x = 1;
  int64_t first_keys = 0, last_keys = 0, block_rows = 0, block_keys = 0, entry_keys = 0;
  double skip_margin = 0;

  bool listed() const { return index || column; }
  int64_t list_head(int64_t head) const { return head / (a.h / x); }
};

template <class P>
Sparse load_sparse(const P& p) {
  Sparse s;
  Attention& a = s.a;
  a.q = load(p.q), a.k = load(p.k), a.v = load(p.v), a.sink_logit = load(p.sink_logit);
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.g = p.k.shape[2], a.e = p.v.shape[3];
  a.at.query_start = load(p.query_start), a.at.key_start = load(p.key_start);
  a.at.query_len = load(p.query_len), a.at.key_len = load(p.key_len);
  a.at.s = a.s, a.at.extent = p.k.shape[1];
  a.at.query_max = p.query_max, a.at.key_max = p.key_max;
  a.at.sequences = p.query_start.data ? p.query_start.shape[0] - 1
                   : p.key_start.data ? p.key_start.shape[0] - 1
                                      : a.b;
  double width = static_cast<double>(a.d);
  s.index = load(p.index), s.index_count = load(p.index_count);
  s.row_begin = load(p.row_begin), s.key_begin = load(p.key_begin);
  s.tile = load(p.tile), s.tile_bits = load(p.tile_bits);
  if (p.index.data) s.x = p.index.shape[1];
  if constexpr (requires { p.column; }) {
    a.q_value = load(p.q_value);
    if (p.q_value.data) width += static_cast<double>(a.e);
    a.at.page_table = load(p.page_table), a.at.cache_row = load(p.cache_row);
    a.at.caches = p.page_table.data ? p.page_table.shape[0] : p.k.shape[0];
    if (p.page_table.data)
      a.at.page = p.k.shape[1], a.at.extent = p.page_table.shape[1] * a.at.page;
    a.k_codes = p.k.dtype != p.q.dtype, a.v_codes = p.v.dtype != p.q.dtype;
    times_scale(a.k, load(p.k_scale)), times_scale(a.v, load(p.v_scale));
    a.k.dtype = a.v.dtype = p.q.dtype;
    a.context_len = load(p.context_len);
    a.key_step = p.key_step ? p.key_step : 1, a.key_shift = p.key_shift;
    s.index_bias = load(p.index_bias), s.column = load(p.column);
    s.column_count = load(p.column_count);
    s.head_map = load(p.head_map), s.skip_head = load(p.skip_head), s.mass = load(p.mass);
    s.skip_margin = p.skip_margin;
    if (!p.index.data && p.column.data) s.x = p.column.shape[1];
    if (!p.index.data && !p.column.data && p.mass.data) s.x = p.mass.shape[1];
  }
  a.window_left = p.window_left, a.window_right = p.causal ? 1 : p.window_right;
  a.sink_keys = p.sink_keys;
  a.scale = p.scale > 0 ? p.scale : 1 / std::sqrt(width);
  a.softcap = p.softcap;
  s.first_keys = p.first_keys, s.last_keys = p.last_keys;
  s.block_rows = p.block_rows, s.block_keys = p.block_keys;
  s.entry_keys = p.entry_keys ? p.entry_keys : p.block_keys;
  return s;
}

// A key that a row meets.  tile: number of the tile that may be skipped, -1: none may.
struct Pair {
  int64_t j, tile;
  double bias;
};

// Number of the list row of row i of a sequence, -1: it has none; `begin`: its first row.
inline int64_t list_row_of(const Sparse& s, const Sequence& q, int64_t head, int64_t i,
                           int64_t& begin) {
  begin = 0;
  if (s.row_begin) {
    const int64_t rows = s.row_begin.shape[2] - 1;
    for (int64_t n = 0; n < rows; ++n) {
      begin = s.row_begin.integer(q.batch, head, n);
      if (begin <= i && i < s.row_begin.integer(q.batch, head, n + 1)) return n;
    }
    return -1;
  }
  begin = i / s.block_rows * s.block_rows;
  int64_t first = 0;
  if (s.a.at.query_start) first = s.block_rows == 1 ? q.row : q.row / s.block_rows + q.r;
  return first + i / s.block_rows;
}

inline int64_t used(const Dense& count, int64_t b, int64_t x, int64_t n, int64_t most) {
  return count ? std::clamp<int64_t>(count.integer(b, x, n), 0, most) : most;
}

// Every meeting of row i of a head with a key, in the order of the header.
inline std::vector<Pair> pairs_of(const Sparse& s, const Sequence& q, int64_t head, int64_t i,
                                  const std::vector<Key>& keys) {
  std::vector<Pair> out;
  const auto seen = [&](int64_t j) { return sees(s.a, q, head, i, keys[j]); };
  if (!s.listed()) {
    for (int64_t j = 0; j < q.keys; ++j)
      if (seen(j)) out.push_back({j, j / 64, 0});
    return out;
  }
  const int64_t x = s.list_head(head), p_i = row_position(s.a, q, head, i);
  const auto always = [&](int64_t j) {
    const int64_t p_j = keys[j].position;
    return j < s.first_keys || (p_j <= p_i && p_i - p_j < s.last_keys);
  };
  for (int64_t j = 0; j < q.keys; ++j)
    if (always(j) && seen(j)) out.push_back({j, -1, 0});
  int64_t begin;
  const int64_t row = list_row_of(s, q, x, i, begin);
  if (row < 0) return out;
  std::vector<char> named(q.keys);
  const int64_t keep = s.index.shape[3];
  const int64_t together = s.block_keys ? std::max<int64_t>(1, 64 / s.block_keys) : 1;
  const int64_t count = s.index ? used(s.index_count, q.batch, x, row, keep) : 0;
  for (int64_t m = 0; m < count; ++m) {
    const auto e = static_cast<int64_t>(s.index(q.batch, x, row, m));
    if (e < 0 || (s.key_begin && e >= s.key_begin.shape[2] - 1)) continue;
    const int64_t from = s.key_begin ? s.key_begin.integer(q.batch, x, e) : e * s.entry_keys;
    const int64_t to = s.key_begin ? s.key_begin.integer(q.batch, x, e + 1) : from + s.block_keys;
    const int64_t tile = s.tile ? static_cast<int64_t>(s.tile(q.batch, x, row, m)) : -1;
    for (int64_t j = from; j < to && j < q.keys; ++j) {
      named[j] = 1;
      if (tile < -1 || (s.tile && tile >= s.tile_bits.shape[0])) continue;
      const int64_t c = j - from;
      if (tile >= 0 && !(s.tile_bits.integer(tile, i - begin, c / 8) >> (c % 8) & 1)) continue;
      const double bias = s.index_bias ? s.index_bias(q.batch, head, row, m) : 0;
      if (always(j) || !seen(j) || bias == -HUGE_VAL) continue;
      out.push_back({j, m / together * 1000000 + c / 64, bias});
    }
  }
  const int64_t columns = s.column ? used(s.column_count, q.batch, x, row, s.column.shape[3]) : 0;
  for (int64_t m = 0; m < columns; ++m) {
    const auto j = static_cast<int64_t>(s.column(q.batch, x, row, m));
    if (j >= 0 && j < q.keys && !named[j] && !always(j) && seen(j)) out.push_back({j, -1, 0});
  }
  return out;
}

struct SparseResult {
  Out o, lse, mass, skipped;
};

// Rows of one head: their pairs and scores.
template <class Real>
struct SparseRow {
  int64_t i, group;
  std::vector<Pair> pairs;
  std::vector<Real> x;
};

template <class Real>
int64_t tiles_before(const SparseRow<Real>& row, size_t n) {
  return std::count_if(row.pairs.begin(), row.pairs.begin() + static_cast<int64_t>(n),
                       [](const Pair& pair) { return pair.tile >= 0; });
}

// Tiles that a group of 64 rows skips are taken out of the rows' pairs.
template <class Real>
int64_t skip_tiles(double margin, const std::vector<std::vector<double>>& exact,
                   std::vector<SparseRow<Real>>& rows) {
  int64_t skipped = 0;
  size_t begin = 0;
  while (begin < rows.size()) {
    size_t end = begin;
    while (end < rows.size() && rows[end].group == rows[begin].group) ++end;
    std::vector<double> top(end - begin, -HUGE_VAL);
    std::vector<int64_t> tiles;
    for (size_t r = begin; r < end; ++r)
      for (size_t n = 0; n < rows[r].pairs.size(); ++n) {
        const int64_t tile = rows[r].pairs[n].tile;
        if (tile >= 0) tiles.push_back(tile);
        // What is always seen stands before the tiles; columns behind them come too late.
        if (tile < 0 && tiles_before(rows[r], n) == 0)
          top[r - begin] = std::max(top[r - begin], exact[r][n]);
      }
    std::sort(tiles.begin(), tiles.end());
    tiles.erase(std::unique(tiles.begin(), tiles.end()), tiles.end());
    std::vector<int64_t> gone;
    for (int64_t tile : tiles) {
      bool skip = true;
      for (size_t r = begin; r < end; ++r)
        for (size_t n = 0; n < rows[r].pairs.size(); ++n)
          if (rows[r].pairs[n].tile == tile) skip = skip && exact[r][n] < top[r - begin] - margin;
      if (skip) {
        gone.push_back(tile), ++skipped;
        continue;
      }
      for (size_t r = begin; r < end; ++r)
        for (size_t n = 0; n < rows[r].pairs.size(); ++n)
          if (rows[r].pairs[n].tile == tile) top[r - begin] = std::max(top[r - begin], exact[r][n]);
    }
    for (size_t r = begin; r < end; ++r) {
      SparseRow<Real> kept{rows[r].i, rows[r].group, {}, {}};
      for (size_t n = 0; n < rows[r].pairs.size(); ++n)
        if (!std::binary_search(gone.begin(), gone.end(), rows[r].pairs[n].tile))
          kept.pairs.push_back(rows[r].pairs[n]), kept.x.push_back(rows[r].x[n]);
      rows[r] = std::move(kept);
    }
    begin = end;
  }
  return skipped;
}

template <class Real>
class SparseForward {
 public:
  template <class P>
  SparseForward(const Sparse& s, const P& p, Mode mode) : s_(s), a_(s.a), mode_(mode) {
    out.o = Out(p.o, unit_of(a_.q.dtype)), o_dtype_ = p.o.dtype;
    if (p.lse.data) out.lse = Out(p.lse, 0);
    if (p.skipped.data) out.skipped = Out(p.skipped, 0), out.skipped.set(0, 0);
    if (p.mass.data) out.mass = Out(p.mass, 0);
    for (size_t n = 0; n < out.mass.value.size(); ++n)
      out.mass.set(static_cast<int64_t>(n), s.mass.value[n]);
    mass_.assign(out.mass.value.size(), 0);
    for (int64_t r = 0; r < a_.at.sequences; ++r)
      for (int64_t head = 0; head < a_.h; ++head)
        if (!s.skip_head || s.skip_head.integer(head) == 0) run(sequence(a_.at, r), head);
    for (size_t n = 0; n < mass_.size(); ++n) {
      const double y = s.mass.value[n] + mass_[n];
      out.mass.set(static_cast<int64_t>(n), mode == Mode::rounded ? static_cast<float>(y) : y);
      out.mass.terms(std::abs(s.mass.value[n]) + mass_[n]);
    }
  }
  SparseResult out;

 private:
  int64_t scored(const Sequence& q, int64_t head) const {
    const int64_t m = s_.head_map ? s_.head_map.integer(q.batch, head) : head;
    return m >= 0 && m < a_.h ? m : head;
  }

  void run(const Sequence& q, int64_t head) {
    const int64_t m = scored(q, head);
    const Keys<Real> keys(a_, q, a_.key_head(m), mode_), values(a_, q, a_.key_head(head), mode_);
    const Keys<double> exact_keys(a_, q, a_.key_head(m), Mode::exact);
    std::vector<SparseRow<Real>> rows;
    std::vector<std::vector<double>> exact;
    for (int64_t i = 0; i < q.rows; ++i) {
      int64_t begin = 0, row = 0;
      if (s_.listed()) row = list_row_of(s_, q, s_.list_head(head), i, begin);
      rows.push_back({i,
                      row < 0 ? -1 - i : row * 1000000 + (i - begin) / 64,
                      pairs_of(s_, q, head, i, keys.key),
                      {}});
      exact.emplace_back();
      for (const Pair& pair : rows.back().pairs) {
        rows.back().x.push_back(score(a_, q, m, i, keys, pair.j) + static_cast<Real>(pair.bias));
        if (s_.skip_margin > 0)
          exact.back().push_back(score(a_, q, m, i, exact_keys, pair.j) + pair.bias);
      }
    }
    if (s_.skip_margin > 0) {
      const int64_t skipped = skip_tiles(s_.skip_margin, exact, rows);
      if (!out.skipped.value.empty())
        out.skipped.set(0, out.skipped.value[0] + static_cast<double>(skipped));
    }
    for (const SparseRow<Real>& row : rows) finish(q, head, m, row, keys, values);
  }

  void finish(const Sequence& q, int64_t head, int64_t m_head, const SparseRow<Real>& row,
              const Keys<Real>& keys, const Keys<Real>& values) {
    const int64_t i = row.i;
    const Real sink = a_.sink_logit ? static_cast<Real>(a_.sink_logit(head)) : -HUGE_VAL;
    Real m = sink;
    double condition = 0;
    const double q_norm = norm(a_.q.row(q.batch, q.row + i, m_head), a_.d);
    for (size_t n = 0; n < row.x.size(); ++n) {
      if (row.x[n] > m || std::isnan(row.x[n])) m = row.x[n];
      if (std::isnan(m)) break;
      condition = std::max(
          condition, a_.scale * q_norm * keys.k_norm[row.pairs[n].j] + std::abs(row.pairs[n].bias));
    }
    Real l = m == -HUGE_VAL ? 0 : std::exp(sink - m);
    std::vector<Real> p(row.x.size());
    for (size_t n = 0; n < p.size() && m != -HUGE_VAL; ++n) {
      p[n] = std::isnan(m) ? m : std::exp(row.x[n] - m);
      l += p[n];
    }
    double terms = 0;
    for (size_t n = 0; n < p.size(); ++n) {
      if (!mass_.empty()) add_mass(q, head, row.pairs[n].j, l == 0 ? 0 : p[n] / l);
      if (l > 0 && p[n] > 0) terms += p[n] / l * values.v_largest[row.pairs[n].j];
      if (mode_ == Mode::rounded) p[n] = static_cast<Real>(round_to(a_.q.dtype, p[n]));
    }
    out.o.terms(terms);
    out.o.condition = std::max(out.o.condition, condition);
    out.mass.condition = std::max(out.mass.condition, condition);
    for (int64_t c = 0; c < a_.e; ++c) {
      Real sum = 0;
      for (size_t n = 0; n < p.size(); ++n)
        if (p[n] != 0) sum += p[n] * static_cast<Real>(values.v[row.pairs[n].j][c]);
      double y = l == 0 ? 0 : sum / l;
      if (mode_ == Mode::rounded) y = round_to(o_dtype_, y);
      out.o.set(((q.batch * a_.s + q.row + i) * a_.h + head) * a_.e + c, y);
    }
    if (out.lse.value.empty()) return;
    const double y = l == 0 ? -HUGE_VAL : static_cast<double>(m + std::log(l));
    out.lse.set((q.batch * a_.h + head) * a_.s + q.row + i,
                mode_ == Mode::rounded ? static_cast<float>(y) : y);
    out.lse.terms(1 + std::abs(y) + condition);
  }

  void add_mass(const Sequence& q, int64_t head, int64_t j, double p) {
    const int64_t row = a_.at.page ? q.r : a_.at.key_start ? 0 : q.r;
    const int64_t at = a_.at.page ? j : q.store + j;
    mass_[s_.mass.at_index(row, s_.list_head(head), at)] += p;
  }

  const Sparse& s_;
  const Attention& a_;
  const Mode mode_;
  int o_dtype_ = 0;
  std::vector<double> mass_;
};

template <class P>
SparseResult sparse_forward(const P& p, Mode mode) {
  const Sparse s = load_sparse(p);
  return mode == Mode::exact ? std::move(SparseForward<double>(s, p, mode).out)
                             : std::move(SparseForward<float>(s, p, mode).out);
}

// Gradients by the formula of attention_backward.h, a pair as often as it meets.
template <class Real, class P>
BackwardResult sparse_backward(const Sparse& s, const P& p, Mode mode) {
  const Attention& a = s.a;
  const Incoming in{load(p.o), load(p.lse), load(p.dout), load(p.dlse)};
  Gradients<Real> sums(a);
  for (int64_t r = 0; r < a.at.sequences; ++r) {
    const Sequence q = sequence(a.at, r);
    for (int64_t head = 0; head < a.h; ++head) {
      const Keys<Real> keys(a, q, a.key_head(head), mode);
      for (int64_t i = 0; i < q.rows; ++i) {
        std::vector<int64_t> met;
        for (const Pair& pair : pairs_of(s, q, head, i, keys.key)) met.push_back(pair.j);
        backward_row(a, in, q, head, i, keys, met, mode, sums);
      }
    }
  }
  const double unit = unit_of(a.q.dtype);
  BackwardResult out{gather(p.dq, sums.dq, unit, mode),
                     gather(p.dk, sums.dk, unit, mode),
                     gather(p.dv, sums.dv, unit, mode),
                     gather(p.dsink_logit, sums.dsink_logit, 0, mode),
                     {},
                     {}};
  for (double x : sums.dq_terms) out.dq.terms(x);
  for (double x : sums.dk_terms) out.dk.terms(x);
  for (double x : sums.dv_terms) out.dv.terms(x);
  out.dsink_logit.terms(sums.dsink_terms);
  for (Out* x : {&out.dq, &out.dk, &out.dv, &out.dsink_logit}) x->condition = sums.condition;
  return out;
}

template <class P>
BackwardResult sparse_backward(const P& p, Mode mode) {
  const Sparse s = load_sparse(p);
  return mode == Mode::exact ? sparse_backward<double>(s, p, mode)
                             : sparse_backward<float>(s, p, mode);
}

}  // namespace oracle
