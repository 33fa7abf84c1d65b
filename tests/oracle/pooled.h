// SPDX-License-Identifier: Apache-2.0
// x_pooled_forward from the comment of experimental/pooled.h: summaries by x_pool_forward's oracle,
// lists by x_select_block's, attention over them by x_sparse_forward's.
// Lists follow from the float64 scores in either mode.
#pragma once
#include "select_block.h"
#include "sparse.h"
#include "summary_pool.h"

namespace oracle {

struct PooledResult {
  Out o, lse, summary, index, index_count;
  double margin;
};

class PooledOracle {
 public:
  using Params = fovea_x_pooled_forward_params;

  explicit PooledOracle(const Params& p) : p_(p) {
    const bool packed = p.query_start.data != nullptr;
    b_ = p.q.shape[0], s_ = p.q.shape[1], h_ = p.q.shape[2], d_ = p.q.shape[3];
    g_ = p.k.shape[2];
    r_ = packed ? p.query_start.shape[0] - 1 : p.key_start.data ? p.key_start.shape[0] - 1 : b_;
    rows_ = p.block_rows ? p.block_rows : 1, keys_ = p.block_keys ? p.block_keys : 64;
    t_ = p.page_table.data ? p.page_table.shape[1] * p.k.shape[1] : p.k.shape[1];
    n_ = rows_ == 1 ? s_ : s_ / rows_ + (packed ? r_ : s_ % rows_ != 0);
    if (p.row.data) n_ = p.row.shape[1];
    u_ = t_ / keys_ + (p.key_start.data ? r_ : t_ % keys_ != 0);
    if (p.column.data) u_ = p.column.shape[1];
    if (p.summary.data) u_ = p.summary.shape[1];
    x_ = p.lists ? p.lists : p.reduce ? 1 : p.row.data ? p.row.shape[2] : h_;
    keep_ = u_;
    if (p.index.data) x_ = p.index.shape[1], n_ = p.index.shape[2], keep_ = p.index.shape[3];
  }

  PooledResult run(Mode mode) {
    PooledResult out;
    fovea_x_select_block_params select = selection();
    if (p_.column.data)
      select.column = p_.column, select.column_low = p_.column_low;
    else
      pool_keys(select, mode, out.summary);
    if (!t_) select.column.shape[1] = select.column_low.shape[1] = 0;
    select.row = p_.row.data ? p_.row : p_.q;
    if (!p_.row.data && rows_ > 1) pool_rows(select);
    if (p_.subset) sign_scores(select);
    std::vector<int32_t> list(b_ * x_ * n_ * keep_ + 1), count(b_ * x_ * n_ + 1);
    select.index = whole(list.data(), FOVEA_I32, {b_, x_, n_, keep_});
    select.index_count = whole(count.data(), FOVEA_I32, {b_, x_, n_});
    if (s_) {
      SelectResult chosen = SelectOracle(select).run(mode);
      std::copy(chosen.index.value.begin(), chosen.index.value.end(), list.begin());
      std::copy(chosen.index_count.value.begin(), chosen.index_count.value.end(), count.begin());
      margin_ = std::min(margin_, chosen.margin);
      if (p_.index.data) out.index = chosen.index;
      if (p_.index_count.data) out.index_count = chosen.index_count;
    } else if (p_.index.data) {
      out.index = Out(p_.index, 0), out.index_count = Out(p_.index_count, 0);
    }
    fovea_x_sparse_forward_params attend = attention();
    attend.index = select.index, attend.index_count = select.index_count;
    SparseResult sparse = sparse_forward(attend, mode);
    out.o = sparse.o, out.lse = sparse.lse, out.margin = margin_;
    return out;
  }

 private:
  static fovea_tensor whole(void* data, fovea_dtype dtype, std::vector<int64_t> shape) {
    return fovea_contiguous(data, dtype, static_cast<int32_t>(shape.size()), shape.data());
  }

  fovea_x_select_block_params selection() const {
    fovea_x_select_block_params to{};
    to.cover_head = p_.cover_head;
    to.query_start = p_.query_start, to.key_start = p_.key_start;
    to.query_len = p_.query_len, to.key_len = p_.key_len;
    to.query_max = p_.query_max ? std::min(p_.query_max, s_) : s_;
    to.key_max = p_.key_max ? std::min(p_.key_max, t_) : t_;
    to.count = p_.count, to.min_keep = p_.min_keep, to.min_extra = p_.min_extra;
    to.force_first = p_.force_first, to.force_previous = p_.force_previous;
    to.force_last = p_.force_last, to.force_own = p_.force_own;
    to.forced_count = p_.forced_count;
    to.scale = p_.select_scale, to.ratio = p_.ratio, to.cover = p_.cover;
    to.threshold = p_.threshold, to.measure = p_.measure, to.normalise = p_.normalise;
    to.reduce = p_.reduce, to.rule = p_.rule, to.scope = p_.scope, to.causal = p_.causal;
    to.block_rows = static_cast<int32_t>(rows_), to.block_keys = static_cast<int32_t>(keys_);
    return to;
  }

  // Summaries as float64 makes them, stored as f32; how close a block is to its similar_least.
  struct Summaries {
    Out y;
    std::vector<uint8_t> dissimilar;
  };
  Summaries pool(fovea_x_pool_forward_params pool, const fovea_tensor& least, int64_t batch,
                 int64_t u, int64_t heads, Mode mode) {
    Summaries made;
    std::vector<float> similar(batch * heads * u + 1);
    made.dissimilar.resize(similar.size());
    if (least.data) {
      pool.similar_least = least;
      pool.similar = whole(similar.data(), FOVEA_F32, {batch, heads, u});
      pool.dissimilar = whole(made.dissimilar.data(), FOVEA_U8, {batch, heads, u});
    }
    const PoolResult all = mode == Mode::exact ? PoolForward<double>(pool, mode).result
                                               : PoolForward<float>(pool, mode).result;
    made.y = all.y;
    const Dense bound = load(least);
    for (size_t i = 0; least.data && i < all.dissimilar.value.size(); ++i) {
      if (!all.dissimilar.written[i]) continue;
      made.dissimilar[i] = static_cast<uint8_t>(all.dissimilar.value[i]);
      const auto head = static_cast<int64_t>(i) / u % heads;
      margin_ = std::min(margin_, std::abs(all.similar.value[i] - bound(head)));
    }
    return made;
  }

  void pool_keys(fovea_x_select_block_params& select, Mode mode, Out& summary) {
    const bool box = p_.measure == FOVEA_X_SELECT_MEASURE_BOX;
    const int64_t f = box ? 2 * d_ : d_, batch = p_.key_start.data ? 1 : r_;
    columns_.assign(batch * u_ * g_ * f + 1, 0);
    fovea_x_pool_forward_params to{};
    to.x = p_.k, to.key_start = p_.key_start, to.key_len = p_.key_len;
    to.page_table = p_.page_table, to.cache_row = p_.cache_row, to.key_max = p_.key_max;
    to.block = keys_, to.old_len = p_.old_len;
    to.want = box ? FOVEA_X_SUMMARY_MAX | FOVEA_X_SUMMARY_MIN : FOVEA_X_SUMMARY_MEAN;
    to.y = p_.summary.data ? p_.summary : whole(columns_.data(), FOVEA_F32, {batch, u_, g_, f});
    const Dense before = load(p_.summary);
    for (size_t i = 0; i < before.value.size(); ++i)
      columns_[i] = static_cast<float>(before.value[i]);
    Summaries made = pool(to, p_.column_similar_least, batch, u_, g_, Mode::exact);
    for (size_t i = 0; i < made.y.value.size(); ++i)
      if (made.y.written[i]) columns_[i] = static_cast<float>(nearest(to.y.dtype, made.y.value[i]));
    select.column = whole(columns_.data(), FOVEA_F32, {batch, u_, g_, f});
    select.column.shape[3] = d_;
    if (box) select.column_low = select.column, select.column_low.data = columns_.data() + d_;
    dissimilar_columns_ = made.dissimilar;
    if (p_.column_similar_least.data)
      select.column_forced = whole(dissimilar_columns_.data(), FOVEA_U8, {batch, g_, u_});
    if (!p_.summary.data) return;
    if (mode == Mode::rounded) made = pool(to, {}, batch, u_, g_, mode);
    summary = made.y;
  }

  void pool_rows(fovea_x_select_block_params& select) {
    row_sums_.assign(b_ * n_ * h_ * d_ + 1, 0);
    fovea_x_pool_forward_params to{};
    to.x = p_.q, to.key_start = p_.query_start, to.key_len = p_.query_len;
    to.key_max = p_.query_max, to.block = rows_;
    to.y = whole(row_sums_.data(), FOVEA_F32, {b_, n_, h_, d_});
    const Summaries made = pool(to, p_.row_similar_least, b_, n_, h_, Mode::exact);
    for (size_t i = 0; i < made.y.value.size(); ++i)
      row_sums_[i] = static_cast<float>(made.y.value[i]);
    select.row = to.y;
    dissimilar_rows_ = made.dissimilar;
    if (p_.row_similar_least.data)
      select.row_forced = whole(dissimilar_rows_.data(), FOVEA_U8, {b_, h_, n_});
  }

  // Of a token: the columns R of a key head and the sums of its queries' |q_c| and q_c.
  struct Signed {
    std::vector<int64_t> columns;
    std::vector<double> sum;
  };
  Signed signs(const Dense& q, int64_t batch, int64_t row, int64_t g) {
    Signed out;
    std::vector<Ranked> sizes;
    out.sum.resize(d_);
    for (int64_t c = 0; c < d_; ++c) {
      sizes.push_back({0, c});
      for (int64_t head = g * (h_ / g_); head < (g + 1) * (h_ / g_); ++head)
        out.sum[c] += q(batch, row, head, c), sizes[c].score += std::abs(q(batch, row, head, c));
      if (out.sum[c] != 0) margin_ = std::min(margin_, std::abs(out.sum[c]) / sizes[c].score);
    }
    std::sort(sizes.begin(), sizes.end(), goes_before);
    for (int64_t n = 0; n < p_.subset; ++n) out.columns.push_back(sizes[n].at);
    if (p_.subset < d_) note_gap(sizes[p_.subset - 1].score, sizes[p_.subset].score, margin_);
    return out;
  }
  // Scores by bounds under one sign for the query heads of a key head, in place of row and column.
  void sign_scores(fovea_x_select_block_params& select) {
    const Dense q = load(p_.q);
    Layout at;
    at.query_start = load(p_.query_start), at.key_start = load(p_.key_start);
    at.query_len = load(p_.query_len), at.key_len = load(p_.key_len);
    at.sequences = r_, at.s = s_, at.extent = t_;
    at.query_max = p_.query_max, at.key_max = p_.key_max;
    const double scale = p_.select_scale > 0 ? static_cast<double>(p_.select_scale)
                                             : 1 / std::sqrt(static_cast<double>(d_));
    scores_.assign(b_ * h_ * n_ * u_ + 1, 0);
    for (int64_t r = 0; r < r_; ++r) {
      const Sequence seq = sequence(at, r);
      const int64_t first = at.key_start ? seq.store / keys_ + r : 0;
      for (int64_t i = 0; i < seq.rows; ++i)
        for (int64_t head = 0; head < h_; ++head) {
          const int64_t g = head / (h_ / g_), row = seq.row + i;
          const Signed by = signs(q, seq.batch, row, g);
          double all = 0, part = 0;
          for (int64_t c = 0; c < d_; ++c) all += std::abs(q(seq.batch, row, head, c));
          for (const int64_t c : by.columns) part += std::abs(q(seq.batch, row, head, c));
          for (int64_t n = 0; n * keys_ < seq.keys; ++n) {
            const float* bounds =
                columns_.data() + (((at.key_start ? 0 : r) * u_ + first + n) * g_ + g) * 2 * d_;
            double score = 0;
            for (const int64_t c : by.columns)
              score += q(seq.batch, row, head, c) *
                       static_cast<double>(bounds[by.sum[c] > 0 ? c : d_ + c]);
            scores_[((seq.batch * h_ + head) * n_ + row) * u_ + n] =
                static_cast<float>(part > 0 ? scale * score / std::sqrt(part / all) : 0);
          }
        }
    }
    select.score = whole(scores_.data(), FOVEA_F32, {b_, h_, n_, t_ ? u_ : 0});
    select.row = select.column = select.column_low = {};
    select.measure = 0, select.scale = 0;
  }

  fovea_x_sparse_forward_params attention() const {
    fovea_x_sparse_forward_params to{};
    to.q = p_.q, to.k = p_.k, to.v = p_.v, to.o = p_.o, to.lse = p_.lse;
    to.k_scale = p_.k_scale, to.v_scale = p_.v_scale, to.sink_logit = p_.sink_logit;
    to.query_start = p_.query_start, to.key_start = p_.key_start;
    to.query_len = p_.query_len, to.key_len = p_.key_len;
    to.page_table = p_.page_table, to.cache_row = p_.cache_row;
    to.query_max = p_.query_max, to.key_max = p_.key_max;
    to.scale = p_.scale, to.softcap = p_.softcap, to.skip_margin = p_.skip_margin;
    to.causal = p_.causal;
    to.block_rows = static_cast<int32_t>(rows_), to.block_keys = static_cast<int32_t>(keys_);
    return to;
  }

  const Params& p_;
  std::vector<float> columns_, row_sums_, scores_;
  std::vector<uint8_t> dissimilar_columns_, dissimilar_rows_;
  int64_t b_, s_, h_, d_, g_, r_, rows_, keys_, t_, n_, u_, x_, keep_;
  double margin_ = HUGE_VAL;
};

}  // namespace oracle
