// SPDX-License-Identifier: Apache-2.0
// trace_forward from the comment of trace.h: attention by its formula over the valid pairs of the
// selected blocks, a row at a time, and the weights and records of the edges.
// Rounded mode is the attention in float32, with the unnormalised p and o rounded.
#pragma once
#include "trace_select.h"

namespace oracle {

// Which field an output belongs to is its name; those that the call does not have stay empty.
struct TraceResult {
  Out selected, score, o, lse, lse_dense, edge_score, edge_max, edge_mass, edge_value, edge,
      edge_weight, edge_count;
};

template <class Real>
struct TraceRows {
  std::vector<Real> mass;                // of each slot
  std::vector<std::vector<Real>> value;  // of each slot
  std::vector<double> value_terms;
};

template <class Real>
Real logit(const Trace& a, const RowBlock& at, int64_t row, int64_t key) {
  const double *x = a.q.row(at.q.batch, row, at.head), *y = key_row(a, at, key);
  Real sum = 0;
  for (int64_t c = 0; c < a.d; ++c) sum += static_cast<Real>(x[c]) * static_cast<Real>(y[c]);
  return sum * static_cast<Real>(a.scale);
}

inline double norm_of(const double* x, int64_t n) {
  double sum = 0;
  for (int64_t c = 0; c < n; ++c) sum += x[c] * x[c];
  return std::sqrt(sum);
}

// lse of a row over `keys`, the unnormalised p in `p`, and the largest |scale| |q| |k|.
template <class Real>
Real row_sum(const Trace& a, const RowBlock& at, int64_t row, const std::vector<int64_t>& keys,
             std::vector<Real>& p, Real& l, double& condition) {
  Real m = -HUGE_VAL;
  p.assign(keys.size(), 0), l = 0;
  const double q_norm = norm_of(a.q.row(at.q.batch, row, at.head), a.d);
  for (size_t i = 0; i < keys.size(); ++i) {
    p[i] = logit<Real>(a, at, row, keys[i]);
    if (p[i] > m || std::isnan(p[i])) m = p[i];
    const double size = a.scale * q_norm * norm_of(key_row(a, at, keys[i]), a.d);
    if (std::isfinite(size)) condition = std::max(condition, size);
    if (std::isnan(m)) break;
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    p[i] = std::isnan(m) ? m : m == -HUGE_VAL ? 0 : std::exp(p[i] - m);
    l += p[i];
  }
  return l == 0 ? -HUGE_VAL : m + std::log(l);
}

inline std::vector<int64_t> valid_keys(const Trace& a, const RowBlock& at, int64_t row,
                                       const std::vector<int64_t>& blocks) {
  std::vector<int64_t> keys;
  for (int64_t u : blocks)
    for (int64_t j = u * a.block_keys; u >= 0 && j < std::min(at.q.keys, (u + 1) * a.block_keys);
         ++j)
      if (valid(a, at, row, j)) keys.push_back(j);
  return keys;
}

template <class Real>
class TraceForward {
 public:
  TraceForward(const fovea_trace_forward_params& p, Mode mode)
      : p_(p), a_(load_trace(p)), rounded_(mode == Mode::rounded) {
    const auto out = [](const fovea_tensor& x, double unit) {
      return x.data ? Out(x, unit) : Out();
    };
    out_ = {out(p.selected, 0), out(p.score, 0),       out(p.o, unit_of(p.q.dtype)),
            out(p.lse, 0),      out(p.lse_dense, 0),   out(p.edge_score, 0),
            out(p.edge_max, 0), out(p.edge_mass, 0),   out(p.edge_value, unit_of(p.q.dtype)),
            out(p.edge, 0),     out(p.edge_weight, 0), out(p.edge_count, 0)};
    if (p.edge_offset.data) records_ = std::max<int64_t>(load(p.edge_offset).integer(0), 0);
  }

  TraceResult run() {
    for (int64_t b = 0; b < a_.b; ++b)
      for (int64_t head = 0; head < a_.h; ++head)
        for (int64_t block = 0; block < a_.n; ++block) block_of(row_block(a_, b, head, block));
    if (p_.edge_count.data) out_.edge_count.set(0, static_cast<double>(records_));
    return std::move(out_);
  }

 private:
  void block_of(const RowBlock& at) {
    std::vector<int64_t> blocks(a_.keep, -1);
    std::vector<float> scores(a_.keep, -HUGE_VALF);
    const std::vector<Candidate> found = trace_block(a_, at);
    for (size_t t = 0; t < found.size(); ++t)
      blocks[t] = found[t].representative, scores[t] = found[t].score;
    const TraceRows<Real> rows = rows_of(at, blocks);
    if (p_.lse_dense.data) dense(at);
    const int64_t slot = ((at.q.batch * a_.h + at.head) * a_.n + at.block) * a_.keep;
    for (int64_t t = 0; t < a_.keep; ++t) {
      const double score = p_.scale > 0 ? p_.scale * scores[t] : scores[t];
      const double logit = largest(at, blocks[t]), mass = rows.mass[t];
      if (p_.selected.data) out_.selected.set(slot + t, static_cast<double>(blocks[t]));
      if (p_.score.data) out_.score.set(slot + t, score);
      if (p_.edge_score.data) out_.edge_score.set(slot + t, score);
      if (p_.edge_max.data) out_.edge_max.set(slot + t, logit), told(out_.edge_max, logit);
      if (p_.edge_mass.data) out_.edge_mass.set(slot + t, mass), out_.edge_mass.terms(mass);
      if (p_.edge_value.data) {
        for (int64_t c = 0; c < a_.e; ++c)
          out_.edge_value.set((slot + t) * a_.e + c, rows.value[t][c]);
        out_.edge_value.terms(rows.value_terms[t]);
      }
      if (blocks[t] >= 0)
        record(at, blocks[t],
               p_.edge_kind == FOVEA_EDGE_KIND_SCORE  ? score
               : p_.edge_kind == FOVEA_EDGE_KIND_MASS ? mass
                                                      : logit);
    }
  }

  // The noise of a score is that of its products.
  void told(Out& out, double x) {
    out.condition = condition_, out.terms(1 + std::abs(x) + condition_);
  }

  void record(const RowBlock& at, int64_t key_block, double weight) {
    const int64_t row = records_++;
    const double words[4] = {static_cast<double>(p_.layer),
                             static_cast<double>(at.q.batch * a_.h + at.head),
                             static_cast<double>(at.block), static_cast<double>(key_block)};
    if (p_.edge.data && row < p_.edge.shape[0])
      for (int i = 0; i < 4; ++i) out_.edge.set(row * 4 + i, words[i]);
    if (!p_.edge_weight.data || row >= p_.edge_weight.shape[0]) return;
    out_.edge_weight.set(row, weight);
    told(out_.edge_weight, weight);
  }

  double largest(const RowBlock& at, int64_t key_block) const {
    Real best = -HUGE_VAL;
    if (key_block < 0) return best;
    any_pair(a_, at, key_block, [&](int64_t row, int64_t key) {
      if (!valid(a_, at, row, key)) return false;
      const Real x = logit<Real>(a_, at, row, key);
      if (x > best) best = x;
      return false;
    });
    return best;
  }

  TraceRows<Real> rows_of(const RowBlock& at, const std::vector<int64_t>& blocks) {
    TraceRows<Real> sums;
    sums.mass.assign(a_.keep, 0), sums.value_terms.assign(a_.keep, 0);
    sums.value.assign(a_.keep, std::vector<Real>(a_.e, 0));
    std::vector<Real> p;
    for (int64_t row = a_.first_row(at.block); row < a_.last_row(at.block); ++row) {
      const std::vector<int64_t> keys = valid_keys(a_, at, row, blocks);
      Real l;
      const Real lse = row_sum(a_, at, row, keys, p, l, condition_);
      if (p_.lse.data) {
        out_.lse.set((at.q.batch * a_.h + at.head) * a_.s + row, lse);
        out_.lse.terms(1 + std::abs(static_cast<double>(lse)) + condition_);
      }
      std::vector<Real> o(a_.e, 0);
      double terms = 0;
      for (size_t i = 0; i < keys.size(); ++i) {
        const size_t slot =
            std::find(blocks.begin(), blocks.end(), keys[i] / a_.block_keys) - blocks.begin();
        const Real share = l == 0 ? 0 : p[i] / l;
        sums.mass[slot] += share;
        if (!a_.v || share == 0) continue;
        const Place where = place(a_.at, at.q, keys[i]);
        const double* v = a_.v.row(where.row, where.slot, at.key_head);
        const Real coarse = rounded_ ? static_cast<Real>(round_to(a_.q.dtype, p[i])) : p[i];
        double most = 0;
        for (int64_t c = 0; c < a_.e; ++c) {
          o[c] += coarse * static_cast<Real>(v[c]);
          sums.value[slot][c] += share * static_cast<Real>(v[c]);
          most = std::max(most, std::abs(v[c]));
        }
        terms += share * most, sums.value_terms[slot] += share * most;
      }
      for (int64_t c = 0; p_.o.data && c < a_.e; ++c) {
        const double y = l == 0 ? 0 : o[c] / l;
        out_.o.set(((at.q.batch * a_.s + row) * a_.h + at.head) * a_.e + c,
                   rounded_ ? round_to(p_.o.dtype, y) : y);
      }
      out_.o.terms(terms);
    }
    for (Out* out : {&out_.o, &out_.lse, &out_.edge_mass, &out_.edge_value})
      out->condition = condition_;
    return sums;
  }

  void dense(const RowBlock& at) {
    std::vector<int64_t> blocks;
    for (int64_t u = 0; u * a_.block_keys < at.q.keys; ++u) blocks.push_back(u);
    std::vector<Real> p;
    for (int64_t row = a_.first_row(at.block); row < a_.last_row(at.block); ++row) {
      Real l;
      const Real lse =
          row_sum(a_, at, row, valid_keys(a_, at, row, blocks), p, l, dense_condition_);
      out_.lse_dense.set((at.q.batch * a_.h + at.head) * a_.s + row, lse);
      out_.lse_dense.terms(1 + std::abs(static_cast<double>(lse)) + dense_condition_);
    }
    out_.lse_dense.condition = dense_condition_;
  }

  const fovea_trace_forward_params& p_;
  const Trace a_;
  const bool rounded_;
  TraceResult out_;
  int64_t records_ = 0;
  double condition_ = 0, dense_condition_ = 0;
};

inline TraceResult trace_forward(const fovea_trace_forward_params& p, Mode mode) {
  return mode == Mode::exact ? TraceForward<double>(p, mode).run()
                             : TraceForward<float>(p, mode).run();
}

}  // namespace oracle
