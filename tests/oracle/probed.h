// SPDX-License-Identifier: Apache-2.0
// x_probed_forward from the comment of experimental/probed.h: sums by x_probe_forward's oracle,
// lists by x_select_block's and x_select_line's, attention over them by x_sparse_forward's.
// Lists follow from the float64 sums in either mode.  Sums of MEANS are written here.
#pragma once
#include "select_block.h"
#include "select_line.h"
#include "sparse.h"
#include "summary_probe.h"

namespace oracle {

struct ProbedResult {
  Out o, lse, index, index_count, column, column_count;
  double margin;
};

class ProbedOracle {
 public:
  using Params = fovea_x_probed_forward_params;

  explicit ProbedOracle(const Params& p) : p_(p) {
    const bool packed = p.query_start.data != nullptr;
    b_ = p.q.shape[0], s_ = p.q.shape[1];
    r_ = packed ? p.query_start.shape[0] - 1 : p.key_start.data ? p.key_start.shape[0] - 1 : b_;
    rows_ = p.block_rows ? p.block_rows : 64;
    means_ = p.kind == FOVEA_X_PROBED_KIND_MEANS, lines_ = p.kind == FOVEA_X_PROBED_KIND_LINES;
    blocks_ = means_ || p.kind == FOVEA_X_PROBED_KIND_BLOCKS;
    keys_ = lines_ ? rows_ : p.block_keys ? p.block_keys : 64;
    t_ = p.page_table.data ? p.page_table.shape[1] * p.k.shape[1] : p.k.shape[1];
    keys_most_ = p.key_max ? std::min(p.key_max, t_) : t_;
    n_ = rows_ == 1 ? s_ : s_ / rows_ + (packed ? r_ : s_ % rows_ != 0);
    if (p.index.data) n_ = std::max(n_, p.index.shape[2]);
    u_ = !blocks_ ? keys_most_ : t_ / keys_ + (p.key_start.data ? r_ : t_ % keys_ != 0);
    x_ = p.index.data    ? p.index.shape[1]
         : p.column.data ? p.column.shape[1]
         : p.lists       ? p.lists
                         : p.q.shape[2];
    keep_ = p.index.data ? p.index.shape[3] : u_;
    columns_ = p.column.data ? p.column.shape[2] : u_;
  }

  ProbedResult run(Mode mode) {
    ProbedResult out;
    fovea_x_probe_forward_params probe = probing();
    fovea_x_sparse_forward_params attend = attention();
    if (blocks_) {
      block_.assign(b_ * x_ * n_ * u_ + 1, 0);
      probe.block_rows = static_cast<int32_t>(rows_),
      probe.block_keys = static_cast<int32_t>(keys_);
      probe.block_sum = whole(block_.data(), FOVEA_F32, {b_, x_, n_, u_});
      if (means_)
        sum_means();
      else
        store(Probe<double>(probe).block_sum, block_);
      choose_blocks(probe.block_sum, mode, out);
      attend.block_keys = static_cast<int32_t>(keys_);
    } else {
      column_.assign(r_ * x_ * t_ + 1, 0), diagonal_ = column_;
      probe.column_sum = whole(column_.data(), FOVEA_F32, {r_, x_, t_});
      if (lines_) probe.diagonal_sum = whole(diagonal_.data(), FOVEA_F32, {r_, x_, t_});
      const Probe<double> sums(probe);
      store(sums.column_sum, column_), store(sums.diagonal_sum, diagonal_);
      choose_columns(mode, out);
      attend.block_keys = 0;
    }
    if (lines_) lines(mode, out), attend.block_keys = static_cast<int32_t>(keys_);
    if (lines_) attend.entry_keys = 1;
    if (blocks_ || lines_) {
      attend.index = whole(list_.data(), FOVEA_I32, {b_, x_, n_, keep_});
      attend.index_count = whole(count_.data(), FOVEA_I32, {b_, x_, n_});
    }
    if (!blocks_) {
      attend.column = whole(single_.data(), FOVEA_I32, {b_, x_, n_, columns_});
      attend.column_count = whole(single_count_.data(), FOVEA_I32, {b_, x_, n_});
    }
    SparseResult sparse = sparse_forward(attend, mode);
    out.o = sparse.o, out.lse = sparse.lse, out.margin = margin_;
    return out;
  }

 private:
  static fovea_tensor whole(void* data, fovea_dtype dtype, std::vector<int64_t> shape) {
    return fovea_contiguous(data, dtype, static_cast<int32_t>(shape.size()), shape.data());
  }
  template <class T>
  static void store(const Out& from, std::vector<T>& to) {
    for (size_t i = 0; i < from.value.size(); ++i)
      if (from.written[i]) to[i] = static_cast<T>(from.value[i]);
  }
  template <class To>
  void place(To& to) const {
    to.query_start = p_.query_start, to.key_start = p_.key_start;
    to.query_len = p_.query_len, to.key_len = p_.key_len;
    to.page_table = p_.page_table, to.cache_row = p_.cache_row;
    to.query_max = p_.query_max, to.key_max = p_.key_max;
  }

  fovea_x_probe_forward_params probing() const {
    fovea_x_probe_forward_params to{};
    place(to);
    to.q = p_.q, to.k = p_.k, to.group_stride = p_.group_stride, to.reversed = p_.reversed;
    to.reduce = p_.reduce, to.scale = p_.scale, to.causal = p_.causal;
    if (p_.sample.data) to.q = p_.sample, to.query_position = p_.query_position;
    if (p_.probe_rows && p_.probe_rows < s_) {
      to.q.shape[1] = p_.probe_rows;
      to.q.data = static_cast<uint8_t*>(p_.q.data) +
                  (s_ - p_.probe_rows) * p_.q.stride[1] * bytes_of(p_.q.dtype);
    }
    return to;
  }
  fovea_x_sparse_forward_params attention() const {
    fovea_x_sparse_forward_params to{};
    place(to);
    to.q = p_.q, to.k = p_.k, to.v = p_.v, to.o = p_.o, to.lse = p_.lse;
    to.sink_logit = p_.sink_logit, to.block_rows = static_cast<int32_t>(rows_);
    to.first_keys = p_.first_keys, to.last_keys = p_.last_keys;
    to.scale = p_.scale, to.softcap = p_.softcap, to.skip_margin = p_.skip_margin;
    to.causal = p_.causal;
    return to;
  }
  // The shares that the means of key blocks have of the sums of each row block, into block_.
  void sum_means() {
    const Attention a = load_sparse(attention()).a;
    const double scale = p_.scale > 0 ? p_.scale : 1 / std::sqrt(static_cast<double>(a.d));
    for (int64_t r = 0; r < r_; ++r) {
      const Sequence q = sequence(a.at, r);
      for (int64_t h = 0; h < a.h; ++h) {
        std::vector<std::vector<double>> mean;
        for (int64_t c = 0; (c + 1) * keys_ <= q.keys; ++c)
          mean.push_back(mean_of_block(a, q, a.key_head(h), c));
        for (int64_t n = 0; n * rows_ < q.rows; ++n) {
          std::vector<double> x, sum(u_);
          double most = -HUGE_VAL;
          for (const bool adds : {false, true})
            for (int64_t i = n * rows_; i < std::min(q.rows, (n + 1) * rows_); ++i)
              for (size_t c = 0; c < mean.size(); ++c) {
                if (static_cast<int64_t>(c + 1) * keys_ - 1 > i + q.keys - q.rows) continue;
                const double score =
                    scale * dot<double>(a.q.row(q.batch, q.row + i, h), mean[c].data(), a.d);
                if (adds)
                  sum[c] += std::exp(score - most);
                else
                  most = std::max(most, score);
              }
          for (int64_t c = 0; c < u_; ++c)
            block_[((q.batch * x_ + h) * n_ + n) * u_ + c] = static_cast<float>(sum[c]);
        }
      }
    }
  }
  std::vector<double> mean_of_block(const Attention& a, const Sequence& q, int64_t g,
                                    int64_t c) const {
    std::vector<double> mean(a.d);
    int64_t there = 0;
    for (int64_t j = c * keys_; j < (c + 1) * keys_; ++j) {
      const Place at = oracle::place(a.at, q, q.store + j);
      there += at.present;
      for (int64_t n = 0; at.present && n < a.d; ++n) mean[n] += a.k(at.row, at.slot, g, n);
    }
    for (double& x : mean) x = round_to(p_.k.dtype, there ? x / static_cast<double>(there) : 0);
    return mean;
  }
  fovea_x_select_block_params rules() const {
    fovea_x_select_block_params to{};
    to.cover_head = p_.cover_head, to.key_len = p_.key_len, to.count = p_.count;
    to.force_first = p_.force_first, to.cover = p_.cover, to.rule = p_.rule;
    to.forced_count = p_.forced_count;
    return to;
  }

  void choose_blocks(const fovea_tensor& sums, Mode mode, ProbedResult& out) {
    fovea_x_select_block_params to = rules();
    to.score = sums, to.query_start = p_.query_start, to.key_start = p_.key_start;
    to.query_len = p_.query_len, to.query_max = p_.query_max ? std::min(p_.query_max, s_) : s_;
    to.key_max = keys_most_, to.force_own = p_.force_own, to.causal = p_.causal;
    to.block_rows = static_cast<int32_t>(rows_), to.block_keys = static_cast<int32_t>(keys_);
    if (means_) {
      to.rule = FOVEA_X_SELECT_RULE_AT_LEAST, to.normalise = FOVEA_X_SELECT_NORMALISE_MAX;
      to.threshold = p_.threshold, to.force_previous = p_.force_previous;
    }
    list_.assign(b_ * x_ * n_ * keep_ + 1, -1), count_.assign(b_ * x_ * n_ + 1, 0);
    to.index = whole(list_.data(), FOVEA_I32, {b_, x_, n_, keep_});
    to.index_count = whole(count_.data(), FOVEA_I32, {b_, x_, n_});
    if (!keys_most_) to.score.shape[3] = 0;
    SelectResult chosen{Out(to.index, 0), Out(to.index_count, 0), {}, {}, {}};
    if (s_) chosen = SelectOracle(to).run(mode);
    if (p_.full_last) see_all(chosen);
    store(chosen.index, list_), store(chosen.index_count, count_);
    margin_ = std::min(margin_, chosen.margin);
    if (p_.index.data) out.index = chosen.index;
    if (p_.index_count.data) out.index_count = chosen.index_count;
  }

  // The last row blocks: every key block that begins at a row's position or before.
  void see_all(SelectResult& chosen) const {
    const Layout at = load_sparse(attention()).a.at;
    for (int64_t r = 0; r < r_; ++r) {
      const Sequence q = sequence(at, r);
      const int64_t all = (q.rows + rows_ - 1) / rows_;
      for (int64_t n = std::max<int64_t>(0, all - p_.full_last); n < all; ++n) {
        const int64_t last = std::min(q.rows, (n + 1) * rows_) - 1 + q.keys - q.rows;
        const int64_t blocks = last < 0 ? 0 : std::min(last, q.keys - 1) / keys_ + 1;
        for (int64_t h = 0; h < x_; ++h) {
          const int64_t row = (q.batch * x_ + h) * n_ + n;
          chosen.index_count.set(row, static_cast<double>(blocks));
          for (int64_t c = 0; c < keep_; ++c)
            chosen.index.set(row * keep_ + c, c < blocks ? static_cast<double>(c) : -1);
        }
      }
    }
  }
  // Entries of one row of lists a head.
  struct Keys {
    std::vector<int32_t> index, count;
    Out of_index, of_count;
  };
  Keys choose_keys(fovea_x_select_block_params to, std::vector<float>& sums, int64_t keep,
                   Mode mode) {
    Keys keys{
        std::vector<int32_t>(b_ * x_ * keep + 1, -1), std::vector<int32_t>(b_ * x_ + 1), {}, {}};
    to.score = whole(sums.data(), FOVEA_F32, {b_, x_, 1, t_});
    to.score.shape[3] = keys_most_;
    to.index = whole(keys.index.data(), FOVEA_I32, {b_, x_, 1, keep});
    to.index_count = whole(keys.count.data(), FOVEA_I32, {b_, x_, 1});
    to.query_max = 1, to.key_max = keys_most_, to.block_keys = 1;
    SelectResult chosen = SelectOracle(to).run(mode);
    store(chosen.index, keys.index), store(chosen.index_count, keys.count);
    margin_ = std::min(margin_, chosen.margin);
    keys.of_index = chosen.index, keys.of_count = chosen.index_count;
    return keys;
  }
  void choose_columns(Mode mode, ProbedResult& out) {
    vertical_ = choose_keys(rules(), column_, columns_, mode);
    if (p_.column.data) out.column = vertical_.of_index;
    if (p_.column_count.data) out.column_count = vertical_.of_count;
    single_.clear(), single_count_.clear();
    for (int64_t list = 0; list < b_ * x_; ++list)
      for (int64_t i = 0; i < n_; ++i) {
        single_count_.push_back(vertical_.count[list]);
        for (int64_t m = 0; m < columns_; ++m)
          single_.push_back(vertical_.index[list * columns_ + m]);
      }
    single_.push_back(0), single_count_.push_back(0);
  }

  void lines(Mode mode, ProbedResult& out) {
    fovea_x_select_block_params slashes{};
    slashes.key_len = p_.key_len, slashes.count = p_.slash_count, slashes.forced_count = 1;
    slashes.force_first = p_.slash_force_first;
    const int64_t most = std::min(std::max(p_.slash_count, p_.slash_force_first), u_);
    Keys slash = choose_keys(slashes, diagonal_, most, mode);
    fovea_x_select_line_params to{};
    to.vertical = whole(vertical_.index.data(), FOVEA_I32, {b_, x_, columns_});
    to.vertical_count = whole(vertical_.count.data(), FOVEA_I32, {b_, x_});
    to.slash = whole(slash.index.data(), FOVEA_I32, {b_, x_, most});
    to.slash_count = whole(slash.count.data(), FOVEA_I32, {b_, x_});
    to.key_len = p_.key_len, to.query_max = s_, to.key_max = keys_most_;
    to.block_rows = static_cast<int32_t>(rows_), to.block_keys = static_cast<int32_t>(keys_);
    list_.assign(b_ * x_ * n_ * keep_ + 1, -1), count_.assign(b_ * x_ * n_ + 1, 0);
    single_.assign(b_ * x_ * n_ * columns_ + 1, -1), single_count_.assign(b_ * x_ * n_ + 1, 0);
    to.index = whole(list_.data(), FOVEA_I32, {b_, x_, n_, keep_});
    to.index_count = whole(count_.data(), FOVEA_I32, {b_, x_, n_});
    to.column = whole(single_.data(), FOVEA_I32, {b_, x_, n_, columns_});
    to.column_count = whole(single_count_.data(), FOVEA_I32, {b_, x_, n_});
    LineResult made{Out(to.index, 0), Out(to.index_count, 0), {}, {}, {}};
    if (s_ && keys_most_) made = LineOracle(to).run();
    store(made.index, list_), store(made.index_count, count_);
    store(made.column, single_), store(made.column_count, single_count_);
    if (p_.index.data) out.index = made.index;
    if (p_.index_count.data) out.index_count = made.index_count;
  }

  const Params& p_;
  std::vector<float> block_, column_, diagonal_;
  std::vector<int32_t> list_, count_, single_, single_count_;
  Keys vertical_;
  int64_t b_, s_, r_, rows_, keys_, t_, keys_most_, n_, u_, x_, keep_, columns_;
  bool blocks_, lines_, means_;
  double margin_ = HUGE_VAL;
};

}  // namespace oracle
