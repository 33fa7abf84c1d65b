// SPDX-License-Identifier: Apache-2.0
// Hash tables and what is read from them, from the comments of experimental/lsh.h, by counting.
// Nothing is read from a table: an oracle knows the code of every key.
#pragma once
#include <functional>
#include <set>

#include "sparse.h"

namespace oracle {

// The code of key j of a key head in table l.
using CodeOf = std::function<int64_t(int64_t b, int64_t g, int64_t l, int64_t j)>;

// The highest key below `from` with that code; -1: none.
inline int64_t highest(const CodeOf& code, int64_t b, int64_t g, int64_t l, int64_t c,
                       int64_t from) {
  for (int64_t j = from - 1; j >= 0; --j)
    if (code(b, g, l, j) == c) return j;
  return -1;
}

// -ln(u + 1e-4) of a query and a key.
template <class Real>
Real lsh_bias(const double* q, const double* k, int64_t d, int64_t bits, int64_t tables,
              int64_t least) {
  Real product = 0, of_q = 0, of_k = 0;
  for (int64_t c = 0; c < d; ++c) {
    const Real x = static_cast<Real>(q[c]), y = static_cast<Real>(k[c]);
    product += x * y, of_q += x * x, of_k += y * y;
  }
  Real cosine = product / (std::sqrt(of_q) * std::sqrt(of_k));
  if (std::isnan(cosine)) cosine = 0;
  cosine = std::clamp<Real>(cosine, -1, 1);
  const double p = std::pow(1 - std::acos(static_cast<double>(cosine)) / M_PI, bits);
  // P[Binomial(tables, p) >= least], by its terms, the smallest first.
  double u = 0;
  for (int64_t n = tables; n >= least; --n) {
    double ways = 0;
    for (int64_t i = 1; i <= n; ++i)
      ways += std::log(static_cast<double>(tables - n + i) / static_cast<double>(i));
    const double missed = n == tables ? 0 : static_cast<double>(tables - n) * std::log1p(-p);
    if (p > 0) u += std::exp(ways + static_cast<double>(n) * std::log(p) + missed);
  }
  return static_cast<Real>(-std::log(std::min(u, 1.0) + 1e-4));
}

struct LshResult {
  Out index, index_count, index_bias;
  std::vector<std::set<int64_t>> kept;  // of each (b, g): keys in a list of its heads
};

// x_select_lsh of tables that hold the keys below held(b).  Params may be x_lsh_forward's.
template <class P>
class LshSelect {
 public:
  LshSelect(const P& p, CodeOf code, std::function<int64_t(int64_t b)> held)
      : p_(p), code_(std::move(code)), held_(std::move(held)), code_q_(load(p.code_q)) {
    b_ = p.code_q.shape[0], s_ = p.code_q.shape[1], h_ = p.code_q.shape[2];
    tables_ = p.code_q.shape[3], g_ = p.bucket.shape[1], t_ = p.link.shape[3];
    query_len_ = load(p.query_len), key_len_ = load(p.key_len);
    if (p.q.data && p.k.data) q_ = load(p.q), k_ = load(p.k);
    while (int64_t{1} << bits_ < p.bucket.shape[3]) ++bits_;
  }
  int64_t rows(int64_t b) const {
    return query_len_ ? std::clamp<int64_t>(query_len_.integer(b), 0, s_) : s_;
  }
  int64_t keys(int64_t b) const {
    return std::min(held_(b), key_len_ ? std::clamp<int64_t>(key_len_.integer(b), 0, t_) : t_);
  }
  int64_t group() const { return h_ / g_; }
  int64_t bits() const { return bits_; }

  // The lists, of `keep` places.
  LshResult run(int64_t keep, Mode mode) const {
    LshResult out;
    out.index = shaped(keep), out.index_bias = shaped(keep), out.index_count = shaped(1);
    out.kept.resize(static_cast<size_t>(b_ * g_));
    for (int64_t b = 0; b < b_; ++b)
      for (int64_t i = 0; i < rows(b); ++i)
        for (int64_t head = 0; head < h_; ++head) row(b, i, head, keep, mode, out);
    return out;
  }
  // How many keys share min_match buckets or more with a row.
  std::vector<int64_t> met(int64_t b, int64_t i, int64_t head) const {
    std::vector<int64_t> all;
    for (int64_t j = 0; j < keys(b); ++j) {
      int64_t matches = 0;
      for (int64_t l = 0; l < tables_; ++l) {
        const auto own = static_cast<int64_t>(code_q_(b, i, head, l));
        matches += own >= 0 && own < p_.bucket.shape[3] && code_(b, head / group(), l, j) == own;
      }
      if (matches >= least()) all.push_back(j);
    }
    return all;
  }
  int64_t least() const { return p_.min_match ? p_.min_match : 2; }

 private:
  Out shaped(int64_t places) const {
    Out out;
    out.value.resize(static_cast<size_t>(b_ * h_ * s_ * places));
    out.written.resize(out.value.size());
    return out;
  }
  void row(int64_t b, int64_t i, int64_t head, int64_t keep, Mode mode, LshResult& out) const {
    const std::vector<int64_t> all = met(b, i, head);
    const int64_t at = (b * h_ + head) * s_ + i;
    out.index_count.set(at, static_cast<double>(all.size()));
    for (int64_t n = 0; n < keep; ++n) {
      const bool there = n < static_cast<int64_t>(all.size());
      const int64_t j = there ? all[static_cast<size_t>(n)] : -1;
      out.index.set(at * keep + n, static_cast<double>(j));
      double bias = 0;
      if (there) out.kept[static_cast<size_t>(b * g_ + head / group())].insert(j);
      if (there && q_) bias = bias_of(b, i, head, j, mode);
      out.index_bias.set(at * keep + n, bias);
      if (there) out.index_bias.terms(1 + std::abs(bias));
    }
  }
  double bias_of(int64_t b, int64_t i, int64_t head, int64_t j, Mode mode) const {
    const double *q = q_.row(b, i, head), *k = k_.row(b, j, head / group());
    if (mode == Mode::exact) return lsh_bias<double>(q, k, q_.shape[3], bits_, tables_, least());
    return lsh_bias<float>(q, k, q_.shape[3], bits_, tables_, least());
  }

  const P& p_;
  const CodeOf code_;
  const std::function<int64_t(int64_t b)> held_;
  Dense code_q_, query_len_, key_len_, q_, k_;
  int64_t b_, s_, h_, g_, t_, tables_, bits_ = 0;
};

// x_lsh_forward: attention over the lists, by x_sparse_forward's oracle.
inline SparseResult lsh_forward(const fovea_x_lsh_forward_params& p, const LshResult& lists,
                                int64_t keep, Mode mode) {
  const int64_t b = p.q.shape[0], s = p.q.shape[1], h = p.q.shape[2];
  fovea_x_sparse_forward_params to{};
  to.q = p.q, to.k = p.k, to.v = p.v, to.o = p.o, to.lse = p.lse, to.scale = p.scale;
  to.query_len = p.query_len, to.key_len = p.key_len, to.block_rows = to.block_keys = 1;
  Sparse sparse = load_sparse(to);
  const auto dense = [&](const Out& from, int dtype) {
    return Dense{true, dtype, {b, h, s, keep, 1}, from.value};
  };
  sparse.x = h;
  sparse.index = dense(lists.index, FOVEA_I32), sparse.index_bias = dense(lists.index_bias, 0);
  if (mode == Mode::exact) return std::move(SparseForward<double>(sparse, to, mode).out);
  return std::move(SparseForward<float>(sparse, to, mode).out);
}

}  // namespace oracle
