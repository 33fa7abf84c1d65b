// SPDX-License-Identifier: Apache-2.0
// x_select_line from the scalar reference of vertical-slash: sets of keys, row by row.
#pragma once
#include <algorithm>
#include <set>

#include "sequence.h"

namespace oracle {

struct LineResult {
  Out index, index_count, column, column_count, bits_out;
};

class LineOracle {
 public:
  using Params = fovea_x_select_line_params;

  explicit LineOracle(const Params& p)
      : p_(p),
        bits_(load(p.bits)),
        vertical_(load(p.vertical)),
        vertical_count_(load(p.vertical_count)),
        slash_(load(p.slash)),
        slash_count_(load(p.slash_count)) {
    at_.query_start = load(p.query_start), at_.key_start = load(p.key_start);
    at_.query_len = load(p.query_len), at_.key_len = load(p.key_len);
    for (const fovea_tensor* x :
         {&p.index, &p.index_count, &p.column, &p.column_count, &p.bits_out})
      if (x->data) b_ = x->shape[0], x_ = x->shape[1], n_ = x->shape[2];
    rows_ = p.block_rows ? p.block_rows : 64, keys_ = p.block_keys ? p.block_keys : 64;
    at_.s = n_ * rows_, at_.query_max = p.query_max, at_.key_max = p.key_max;
    at_.extent = p.key_max;
    if (at_.key_start) at_.extent = INT64_MAX / 4;
    sequences_ = at_.query_start ? at_.query_start.shape[0] - 1 : b_;
  }

  LineResult run() const {
    LineResult out{Out(p_.index, 0), Out(p_.index_count, 0), Out(p_.column, 0),
                   Out(p_.column_count, 0), Out(p_.bits_out, 0)};
    each_row([&](const Sequence& q, int64_t i, int64_t row) {
      for (int64_t j = 0; j < x_; ++j) one(q, i, row, j, out);
    });
    return out;
  }
  // f(sequence, its list row, the row on the n axis)
  template <class F>
  void each_row(F f) const {
    for (int64_t r = 0; r < sequences_; ++r) {
      const Sequence q = sequence(at_, r);
      const int64_t first = rows_ == 1 ? q.row : at_.query_start ? q.row / rows_ + r : 0;
      for (int64_t i = 0; i * rows_ < q.rows; ++i) f(q, i, first + i);
    }
  }

 private:
  std::set<int64_t> lines(const Dense& x, const Dense& counts, int64_t batch, int64_t j) const {
    std::set<int64_t> all;
    if (!x) return all;
    int64_t count = x.shape[2];
    if (counts) count = std::clamp<int64_t>(counts.integer(batch, j), 0, count);
    for (int64_t n = 0; n < count; ++n)
      if (x.integer(batch, j, n) >= 0) all.insert(x.integer(batch, j, n));
    return all;
  }

  void one(const Sequence& q, int64_t i, int64_t row, int64_t j, LineResult& out) const {
    const int64_t a = i * rows_ + q.keys - q.rows;
    const int64_t last = std::min((i + 1) * rows_, q.rows) - 1 + q.keys - q.rows;
    const int64_t blocks = (q.keys + keys_ - 1) / keys_, m = keys_;
    std::set<int64_t> entries, columns;
    const std::set<int64_t> vertical = lines(vertical_, vertical_count_, q.batch, j),
                            slash = lines(slash_, slash_count_, q.batch, j);
    if (bits_) {
      for (int64_t c = 0; c < blocks; ++c)
        if (static_cast<int>(bits_(q.batch, j, row, c / 8)) >> (c % 8) & 1)
          if (!p_.causal || c * keys_ <= last) entries.insert(c);
    } else if (p_.in_blocks) {
      const int64_t own = last < 0 ? -1 : last / m;
      for (int64_t c = 0; c <= own && c < blocks; ++c)
        if (vertical.count(c) || slash.count(own - c)) entries.insert(c);
    } else {
      const int64_t e = a + m;
      std::vector<std::pair<int64_t, int64_t>> ranges;
      for (auto x = slash.rbegin(); x != slash.rend(); ++x) {
        if (*x >= e) continue;
        const int64_t hi = std::max(e - *x, m);
        if (ranges.empty() || hi > ranges.back().second + m)
          ranges.push_back({hi - m, hi});
        else if (hi > ranges.back().second)
          ranges.back().second += m;
      }
      std::set<int64_t> inside;
      for (auto [lo, hi] : ranges) {
        if (p_.aligned)
          for (int64_t c = lo / m; c * m < hi; ++c) {
            if (c < blocks) entries.insert(c);
            for (int64_t k = 0; k < m; ++k) inside.insert(c * m + k);
          }
        else
          for (int64_t s = lo; s < hi; s += m)
            if (s < q.keys) entries.insert(s);
        for (int64_t k = lo; k < hi; ++k) inside.insert(k);
      }
      for (int64_t v : vertical)
        if (v < e && v < q.keys && !inside.count(v)) columns.insert(v);
    }
    write(p_.index, p_.index_count, {q.batch, j, row}, entries, out.index, out.index_count);
    write(p_.column, p_.column_count, {q.batch, j, row}, columns, out.column, out.column_count);
    for (int64_t byte = 0; p_.bits_out.data && byte < p_.bits_out.shape[3]; ++byte) {
      int value = 0;
      for (int64_t c = 0; c < 8; ++c) value |= entries.count(byte * 8 + c) ? 1 << c : 0;
      out.bits_out.set(((q.batch * x_ + j) * n_ + row) * p_.bits_out.shape[3] + byte, value);
    }
  }
  void write(const fovea_tensor& list, const fovea_tensor& count, std::array<int64_t, 3> at,
             const std::set<int64_t>& all, Out& to, Out& to_count) const {
    const int64_t row = (at[0] * x_ + at[1]) * n_ + at[2];
    if (count.data) to_count.set(row, static_cast<double>(all.size()));
    auto next = all.begin();
    for (int64_t slot = 0; list.data && slot < list.shape[3]; ++slot)
      to.set(row * list.shape[3] + slot, next == all.end() ? -1 : static_cast<double>(*next++));
  }

  const Params& p_;
  Dense bits_, vertical_, vertical_count_, slash_, slash_count_;
  Layout at_;
  int64_t b_ = 0, x_ = 0, n_ = 0, rows_, keys_, sequences_;
};

}  // namespace oracle
