// SPDX-License-Identifier: Apache-2.0
// The tensors that both directions of convolutional attention read.
#pragma once
#include <numeric>

#include "cases/conv_case.h"
#include "oracle/conv_attention_backward.h"

namespace cases {

// `shape_seed` decides packed extents, `data_seed` values and lengths.
template <class P>
class ConvBuild {
 public:
  ConvBuild(Call& call, P& p, const ConvCase& c, uint64_t shape_seed, uint64_t data_seed)
      : call_(call), p_(p), c_(c), random_(data_seed), seed_(shape_seed), data_(data_seed) {}

  int64_t b = 0, s = 0, r = 0, rows_out = 0;

  // Inputs; o's extents are said in p.o before the oracle is asked.
  void build() {
    places();
    if (c_.query_max) p_.query_max = c_.query_max;
    rows_out = s - c_.history * (p_.query_start.data ? r : 1);
    p_.history = c_.history, p_.causal = c_.causal, p_.scale = c_.scale;
    tensors();
  }

  // Marks rows and keys that no sequence has as of no account; after o is in p.
  void account() {
    const oracle::ConvAttention a = oracle::load_conv(p_);
    std::vector<char> rows(b * s), keys(cache_rows_ * slots_), outs(b * rows_out);
    for (int64_t i = 0; i < r; ++i) {
      const oracle::Sequence q = oracle::sequence(a.at, i);
      for (int64_t n = 0; n < q.rows; ++n) rows[q.batch * s + q.row + n] = 1;
      for (int64_t n = c_.history; n < q.rows; ++n) outs[q.batch * rows_out + a.out_row(q, n)] = 1;
      for (int64_t n = 0; n < q.keys; ++n) {
        const oracle::Place to = oracle::place(a.at, q, q.store + n);
        if (to.present) keys[to.row * slots_ + to.slot] = 1;
      }
    }
    const auto mark = [&](const char* name, const std::vector<char>& counts, int64_t width,
                          int axis) {
      const size_t field = call_.field(name);
      if (field < call_.fields.size() && call_.fields[field].role == Role::in)
        call_.account(field, [&](const int64_t* i) { return counts[i[0] * width + i[axis]] != 0; });
    };
    mark("q", rows, s, 1), mark("k", keys, slots_, 1), mark("v", keys, slots_, 1);
    mark("o", outs, rows_out, 1), mark("dout", outs, rows_out, 1), mark("lse", outs, rows_out, 2);
  }

  size_t numbers(const char* name, fovea_tensor& slot, int dtype, const Shape& shape,
                 uint64_t stream, double spread) {
    const size_t field = call_.add(name, slot, Role::in, dtype, shape, c_.lay);
    const harness::Random random(data_ ^ stream << 32);
    uint64_t n = 0;
    call_.fill(field, [&](const int64_t*) { return spread * random.normal(n++); });
    return field;
  }

 private:
  static constexpr bool kForward = requires(P p) { p.page_table; };

  size_t ints(const char* name, fovea_tensor& slot, const std::vector<int64_t>& values) {
    const size_t field =
        call_.add(name, slot, Role::in, FOVEA_I32, {static_cast<int64_t>(values.size())});
    call_.fill_list(field, std::vector<double>(values.begin(), values.end()));
    return field;
  }

  void places() {
    s = c_.s, r = b = c_.b, slots_ = c_.t, cache_rows_ = c_.b;
    std::vector<int64_t> query_len, key_len;
    if (c_.where == Where::varlen || c_.where == Where::varlen_queries) return packed();
    if (c_.where == Where::batched) return;
    for (int64_t i = 0; i < r; ++i) {
      query_len.push_back(i == 0 ? s : random_.integer(0, s));
      key_len.push_back(i == 0 ? c_.t : random_.integer(0, c_.t));
    }
    if (seed_ % 3) ints("query_len", p_.query_len, query_len);
    ints("key_len", p_.key_len, key_len);
    if constexpr (kForward) {
      if (c_.where == Where::cache_row || (c_.where == Where::paged && seed_ % 5 == 2)) {
        cache_rows_ = r + 2;
        std::vector<int64_t> rows(r);
        for (int64_t i = 0; i < r; ++i) rows[i] = (i + 1) % cache_rows_;
        if (r > 1) rows[r - 1] = seed_ % 2 ? -1 : cache_rows_;  // neither is a row
        ints("cache_row", p_.cache_row, rows);
      }
      if (c_.where == Where::paged) pages(key_len);
    }
  }

  // One sequence has no row beyond its history, one no key; some rows and keys belong to none.
  void packed() {
    std::vector<int64_t> query_start{0}, key_start{0}, key_len;
    harness::Random starts(seed_);
    r = c_.b + 2, b = 1;
    for (int64_t i = 0; i < r; ++i) {
      const int64_t rows = i == 0   ? c_.s
                           : i == 1 ? c_.history
                                    : starts.integer(c_.history, std::max(c_.history, c_.s));
      query_start.push_back(query_start.back() + rows);
      key_start.push_back(key_start.back() + (i == 0   ? c_.t
                                              : i == 2 ? 0
                                                       : starts.integer(0, c_.t)));
      key_len.push_back(key_start[i + 1] - key_start[i]);
    }
    s = query_start.back() + 2;
    p_.query_max = c_.s;
    ints("query_start", p_.query_start, query_start);
    if (c_.where == Where::varlen) {
      slots_ = key_start.back() + 3, cache_rows_ = 1;
      ints("key_start", p_.key_start, key_start);
      if (seed_ % 2) p_.key_max = c_.t;
    } else {
      cache_rows_ = r;
      ints("key_len", p_.key_len, key_len);
    }
  }

  // Pages of every cache row in a shuffled order, some absent; a table longer than needed.
  void pages(const std::vector<int64_t>& key_len) {
    if constexpr (kForward) {
      const int64_t width = (c_.t + c_.page - 1) / c_.page + 1, pool = cache_rows_ * width + 2;
      std::vector<int64_t> order(pool);
      std::iota(order.begin(), order.end(), 0);
      harness::Random shuffle(seed_ + 77);
      for (size_t i = order.size() - 1; i > 0; --i)
        std::swap(order[i], order[shuffle.integer(0, static_cast<int64_t>(i))]);
      const size_t field =
          call_.add("page_table", p_.page_table, Role::in, FOVEA_I32, {cache_rows_, width});
      const bool holes = width > 2 && seed_ % 2;
      call_.fill(field, [&](const int64_t* i) {
        return holes && i[1] % 3 == 1 ? -1.0 : static_cast<double>(order[i[0] * width + i[1]]);
      });
      // Entries past a length are not read.
      std::vector<int64_t> used(cache_rows_);
      for (int64_t i = 0; i < r; ++i) {
        const int64_t row =
            p_.cache_row.data ? static_cast<const int32_t*>(p_.cache_row.data)[i] : i;
        if (row >= 0 && row < cache_rows_) used[row] = (key_len[i] + c_.page - 1) / c_.page;
      }
      call_.account(field, [&](const int64_t* i) { return i[1] < used[i[0]]; });
      cache_rows_ = pool, slots_ = c_.page;
    }
  }

  void tensors() {
    const double spread = c_.data == Data::huge ? 100 : c_.data == Data::sharp ? 5 : 1;
    numbers("q", p_.q, c_.dtype, {b, s, c_.h, c_.d}, 1, spread);
    numbers("k", p_.k, c_.dtype, {cache_rows_, slots_, c_.g, c_.d}, 2, spread);
    numbers("v", p_.v, c_.dtype, {cache_rows_, slots_, c_.g, c_.e}, 3, 1);
    spoil("q", Data::nan_q), spoil("k", Data::nan_k), spoil("v", Data::nan_v);
    const size_t weight =
        call_.add("weight", p_.weight, Role::in, c_.weight_f32 ? FOVEA_F32 : c_.dtype,
                  {c_.h, c_.kernel_rows, c_.kernel_columns}, c_.lay);
    const harness::Random random(data_ ^ 5ull << 32);
    const double size = 1 / std::sqrt(static_cast<double>(c_.kernel_rows * c_.kernel_columns));
    uint64_t n = 0;
    call_.fill(weight, [&](const int64_t* i) {
      const bool own = i[1] == c_.kernel_rows - 1 && i[2] == (c_.kernel_columns - 1) / 2;
      const double noise = size * random.normal(n++);
      return own + (c_.taps == Taps::delta ? 0 : noise);
    });
  }

  // One NaN: in row 1 (or key 1) of the first sequence.
  void spoil(const char* name, Data when) {
    if (c_.data != when) return;
    const size_t field = call_.field(name);
    call_.each(field, [&](const int64_t* i, int64_t byte) {
      if (i[0] == 0 && i[1] == 1 && i[2] == 0 && i[3] == 0)
        oracle::encode(c_.dtype, NAN,
                       call_.storages[call_.fields[field].storage].image.data() + byte);
    });
  }

  Call& call_;
  P& p_;
  const ConvCase& c_;
  harness::Random random_;
  const uint64_t seed_, data_;
  int64_t cache_rows_ = 0, slots_ = 0;
};

}  // namespace cases
