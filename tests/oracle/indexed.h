// SPDX-License-Identifier: Apache-2.0
// x_indexed_forward from the comment of experimental/indexed.h: lists by x_select_token's oracle,
// attention over them by x_sparse_forward's, and a o + (1 - a) v_mean.  With index_step lists are
// of complete blocks, and the tail is put behind them here. Lists follow from the float64 scores in
// either mode.
#pragma once
#include "select_token.h"
#include "sparse.h"

namespace oracle {

struct IndexedResult {
  Out o, lse, index, index_count;
  double margin;
};

class IndexedOracle {
 public:
  using Params = fovea_x_indexed_forward_params;

  explicit IndexedOracle(const Params& p) : p_(p) {
    const fovea_tensor& q = p.code_q.data ? p.code_q : p.index_q.data ? p.index_q : p.q;
    const fovea_tensor& k = p.code.data      ? p.code
                            : p.block_k.data ? p.block_k
                            : p.index_k.data ? p.index_k
                                             : p.k;
    (p.code_q.data ? select_.code_q : select_.q) = q;
    (p.code.data ? select_.code : select_.k) = k;
    if (!p.code.data && !p.block_k.data)
      select_.k_scale = p.index_k.data ? p.index_k_scale : p.k_scale;
    select_.weight = p.weight;
    select_.count = p.count, select_.force_last = p.force_last;
    select_.pool_keys = p.pool_keys, select_.subset = p.subset;
    select_.scale = p.index_scale, select_.ratio = p.ratio;
    select_.measure = p.measure, select_.reduce = p.reduce;
    places(select_), places(attend_);
    b_ = p.q.shape[0], s_ = p.q.shape[1], h_ = p.q.shape[2], e_ = p.v.shape[3];
    x_ = p.lists ? p.lists : p.reduce ? 1 : q.shape[2];
    keep_ = p.page_table.data ? p.page_table.shape[1] * p.k.shape[1] : p.k.shape[1];
    if (p.block_k.data) keep_ = p.block_k.shape[1] + 1, complete();
    if (p.index.data) x_ = p.index.shape[1], keep_ = p.index.shape[3];
    attend_.q = p.q, attend_.k = p.k, attend_.v = p.v, attend_.o = p.o, attend_.lse = p.lse;
    attend_.q_value = p.q_value;
    attend_.k_scale = p.k_scale, attend_.v_scale = p.v_scale, attend_.sink_logit = p.sink_logit;
    attend_.scale = p.scale, attend_.softcap = p.softcap;
    attend_.block_rows = 1;
    const int64_t keys = p.pool_keys ? p.pool_keys : p.index_step;
    attend_.block_keys = keys ? static_cast<int32_t>(keys) : 1;
  }

  IndexedResult run(Mode mode) {
    std::vector<int32_t> list(b_ * x_ * s_ * keep_ + 1), count(b_ * x_ * s_ + 1);
    std::vector<float> mass(b_ * h_ * s_ + 1);
    select_.index = whole(list.data(), FOVEA_I32, {b_, x_, s_, keep_});
    select_.index_count = whole(count.data(), FOVEA_I32, {b_, x_, s_});
    if (p_.v_mean.data) select_.kept_mass = whole(mass.data(), FOVEA_F32, {b_, h_, s_});
    if (p_.block_k.data) select_.index.shape[3] = std::max<int64_t>(keep_ - 1, 0);
    TokenResult chosen = TokenOracle(select_).run(mode);
    if (p_.block_k.data) select_.index.shape[3] = keep_, put_tails(chosen);
    std::copy(chosen.index.value.begin(), chosen.index.value.end(), list.begin());
    std::copy(chosen.index_count.value.begin(), chosen.index_count.value.end(), count.begin());
    attend_.index = select_.index, attend_.index_count = select_.index_count;
    SparseResult sparse = SparseForward<double>(load_sparse(attend_), attend_, Mode::exact).out;
    if (mode == Mode::rounded)
      sparse = SparseForward<float>(load_sparse(attend_), attend_, mode).out;
    if (p_.v_mean.data) blend(mode, chosen.kept_mass, sparse.o);
    return {sparse.o, sparse.lse, p_.index.data ? chosen.index : Out(),
            p_.index_count.data ? chosen.index_count : Out(), chosen.margin};
  }

 private:
  template <class To>
  void places(To& to) const {
    to.query_start = p_.query_start, to.key_start = p_.key_start;
    to.query_len = p_.query_len, to.key_len = p_.key_len;
    to.page_table = p_.page_table, to.cache_row = p_.cache_row, to.context_len = p_.context_len;
    to.query_max = p_.query_max, to.key_max = p_.key_max;
    to.window_left = p_.window_left, to.window_right = p_.window_right;
    to.sink_keys = p_.sink_keys, to.causal = p_.causal;
    to.first_keys = p_.first_keys, to.last_keys = p_.last_keys;
  }
  // Selection among blocks that lie before the row as a whole; positions are those of all keys.
  void complete() {
    layout_ = load_sparse(attend_places()).a.at;
    for (int64_t r = 0; r < layout_.sequences; ++r)
      context_.push_back(static_cast<int32_t>(sequence(layout_, r).keys));
    context_.push_back(0);
    select_.page_table = select_.key_len = {}, select_.key_max = 0;
    select_.context_len = whole(context_.data(), FOVEA_I32, {layout_.sequences});
    select_.key_step = p_.index_step, select_.key_shift = p_.index_step - 1;
  }
  fovea_x_sparse_forward_params attend_places() const {
    fovea_x_sparse_forward_params to = attend_;
    to.q = p_.q, to.k = p_.k, to.v = p_.v;
    return to;
  }
  // Behind the blocks of each list the one that follows the row's last complete block.
  void put_tails(TokenResult& chosen) const {
    const Out none(select_.index, 0);
    const TokenResult some = chosen;
    chosen.index = none;
    for (int64_t r = 0; r < layout_.sequences; ++r) {
      const Sequence q = sequence(layout_, r);
      for (int64_t i = 0; i < q.rows; ++i)
        for (int64_t j = 0; j < x_; ++j) {
          const int64_t row = (q.batch * x_ + j) * s_ + q.row + i, p = i + q.keys - q.rows;
          const bool tail = p >= -1 && q.cache >= 0;
          const auto taken = static_cast<int64_t>(some.index_count.value[row]);
          chosen.index_count.set(row, static_cast<double>(taken + tail));
          for (int64_t n = 0; n < keep_; ++n)
            chosen.index.set(row * keep_ + n,
                             n + 1 < keep_ ? some.index.value[row * (keep_ - 1) + n] : -1);
          if (tail && keep_)
            chosen.index.set(row * keep_ + std::min(taken, keep_ - 1),
                             static_cast<double>((p + 1) / p_.index_step));
        }
    }
  }
  static fovea_tensor whole(void* data, fovea_dtype dtype, std::vector<int64_t> shape) {
    return fovea_contiguous(data, dtype, static_cast<int32_t>(shape.size()), shape.data());
  }

  // o of the list is rounded to v_mean's dtype before it is combined.
  void blend(Mode mode, const Out& mass, Out& o) const {
    const Dense mean = load(p_.v_mean);
    const bool rounds = mode == Mode::rounded;
    for (int64_t b = 0; b < b_; ++b)
      for (int64_t i = 0; i < s_; ++i)
        for (int64_t h = 0; h < h_; ++h)
          for (int64_t c = 0; c < e_; ++c) {
            const int64_t at = ((b * s_ + i) * h_ + h) * e_ + c;
            if (!o.written[at]) continue;
            const double share = mass.value[(b * h_ + h) * s_ + i];
            double own = o.value[at];
            if (rounds) own = round_to(p_.v_mean.dtype, own);
            const double y = share * own + (1 - share) * mean(b, h, c);
            o.terms(std::abs(share * own) + std::abs((1 - share) * mean(b, h, c)));
            o.set(at, rounds ? round_to(p_.o.dtype, y) : y);
          }
  }

  const Params& p_;
  fovea_x_select_token_params select_{};
  fovea_x_sparse_forward_params attend_{};
  int64_t b_, s_, h_, e_, x_, keep_;
  Layout layout_;
  std::vector<int32_t> context_;
};

}  // namespace oracle
