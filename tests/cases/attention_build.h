// SPDX-License-Identifier: Apache-2.0
// Fills what attention_forward and attention_backward share, from a row of choices: where tokens
// are, q k v, positions, windows, mask, bias.  Everything that a call does not count is marked so.
#pragma once
#include <algorithm>
#include <numeric>

#include "cases/attention_case.h"
#include "oracle/attention.h"

namespace cases {

inline double draw(const harness::Random& random, uint64_t i, int64_t channel, Data data,
                   double spread) {
  const double x = random.normal(i);
  switch (data) {
    case Data::biased:
      return x + random.normal(1u << 30 | channel) * 0.5 + (channel % 17 == 3 ? 8 * spread : 0);
    case Data::outliers:
      return x + (random.uniform(i ^ 1ull << 40) < 0.001 ? 10 * random.normal(i ^ 1ull << 41) : 0);
    case Data::huge:
      return x * 100;
    default:
      return x;
  }
}

template <class P>
class AttentionBuild {
 public:
  // `shape_seed` decides what shapes and options depend on, `data_seed` values and lengths.
  AttentionBuild(Call& call, P& p, const AttentionCase& c, uint64_t shape_seed, uint64_t data_seed)
      : call_(call), p_(p), c_(c), random_(data_seed), seed_(shape_seed), data_(data_seed) {}

  // Token places first: the shapes of all else follow from them.
  void build() {
    sequences();
    tensors();
    oracle::Attention at;  // no data yet: only what says where tokens are
    load_places(at);
    attention_ = at;
    count_tokens();
    spans();
    positions();
    scores();
    if constexpr (kForward) scales(), axis();
  }

  // q's batch axis and row axis, sequences and key columns.
  int64_t b = 0, s = 0, r = 0, columns = 0;

  bool row_counts(int64_t batch, int64_t row) const { return row_counts_[batch * s + row]; }
  bool key_counts(int64_t cache, int64_t slot) const { return key_counts_[cache * slots_ + slot]; }
  const oracle::Attention& places() const { return attention_; }

  // (batch, row) -> sequence, or -1.
  int64_t sequence_of(int64_t batch, int64_t row) const {
    for (int64_t i = 0; i < r; ++i) {
      const oracle::Sequence q = oracle::sequence(attention_.at, i);
      if (q.batch == batch && row >= q.row && row < q.row + q.rows) return i;
    }
    return -1;
  }

  size_t ints(const char* name, fovea_tensor& slot, const std::vector<int64_t>& values) {
    const size_t field =
        call_.add(name, slot, Role::in, FOVEA_I32, {static_cast<int64_t>(values.size())});
    call_.fill_list(field, std::vector<double>(values.begin(), values.end()));
    return field;
  }
  size_t numbers(const char* name, fovea_tensor& slot, int dtype, const Shape& shape,
                 uint64_t stream, Data data, double spread = 1, Lay lay = Lay::contiguous) {
    const size_t field = call_.add(name, slot, Role::in, dtype, shape, lay);
    fill(field, stream, data, spread);
    return field;
  }
  void fill(size_t field, uint64_t stream, Data data, double spread) {
    const harness::Random random(data_ ^ stream << 32);
    uint64_t i = 0;
    const int rank = call_.fields[field].tensor.ndim;
    call_.fill(field, [&](const int64_t* index) {
      return spread * draw(random, i++, index[rank - 1], data, 1);
    });
  }

 private:
  static constexpr bool kForward = requires(P p) { p.page_table; };

  void sequences() {
    s = c_.s, r = b = c_.b, slots_ = c_.t, cache_rows_ = c_.b;
    std::vector<int64_t> query_len, key_len, key_first, query_start{0}, key_start{0};
    harness::Random starts(seed_);  // packed extents are shapes
    switch (c_.where) {
      case Where::batched:
        break;
      case Where::lengths:
      case Where::key_first:
      case Where::cache_row:
      case Where::paged:
        for (int64_t i = 0; i < r; ++i) {
          query_len.push_back(i == 0 ? s : random_.integer(0, s));
          key_len.push_back(i == 0 ? c_.t : random_.integer(0, c_.t));
        }
        break;
      case Where::varlen:
      case Where::varlen_queries:
        r = c_.b + 3, b = 1;
        for (int64_t i = 0; i < r; ++i) {
          const bool none = i == 1 || i == r - 1;
          query_start.push_back(query_start.back() + (none     ? 0
                                                      : i == 0 ? c_.s
                                                               : starts.integer(1, c_.s)));
          const bool keyless = i == r - 1 || (i == 2 && r > 4);
          key_start.push_back(key_start.back() + (keyless  ? 0
                                                  : i == 0 ? c_.t
                                                           : starts.integer(1, c_.t)));
        }
        s = query_start.back() + 2;  // rows that belong to no sequence
        p_.query_max = c_.s;
        ints("query_start", p_.query_start, query_start);
        if (c_.where == Where::varlen) {
          slots_ = key_start.back() + 3, cache_rows_ = 1;
          ints("key_start", p_.key_start, key_start);
          if (seed_ % 2) p_.key_max = c_.t;
        } else {
          cache_rows_ = r;
          for (int64_t i = 0; i < r; ++i) key_len.push_back(key_start[i + 1] - key_start[i]);
        }
        break;
    }
    // A tuned kernel is told the rows of a sequence, and takes pages from their first token.
    const bool tuned = c_.note == "tuned";
    if (c_.where == Where::paged && seed_ % 4 == 2 && !tuned) {
      for (int64_t i = 0; i < r; ++i)
        query_start.push_back(query_start.back() + (i == 0 ? s : starts.integer(0, s)));
      b = 1, s = query_start.back();
      ints("query_start", p_.query_start, query_start);
    }
    if (!query_len.empty() && seed_ % 3) ints("query_len", p_.query_len, query_len);
    if (!key_len.empty()) ints("key_len", p_.key_len, key_len);
    if (c_.where == Where::key_first || (c_.where == Where::paged && seed_ % 4 == 1 && !tuned)) {
      for (int64_t i = 0; i < r; ++i) key_first.push_back(random_.integer(0, key_len[i] / 2));
      ints("key_first", p_.key_first, key_first);
    }
    if constexpr (kForward) {
      if (c_.where == Where::cache_row || (c_.where == Where::paged && seed_ % 5 == 2)) {
        cache_rows_ = r + 2;
        std::vector<int64_t> rows(cache_rows_);
        std::iota(rows.begin(), rows.end(), 0);
        for (size_t i = rows.size() - 1; i > 0; --i)
          std::swap(rows[i], rows[random_.integer(0, static_cast<int64_t>(i))]);
        rows.resize(r);
        if (r > 1) rows[r - 1] = seed_ % 2 ? -1 : cache_rows_;  // neither is a row
        ints("cache_row", p_.cache_row, rows);
      }
      if (c_.where == Where::paged) pages(key_len);
    }
  }

  // Pages of every cache row, in an order that page_seed alone decides; some absent; a table
  // longer than any sequence needs.
  void pages(const std::vector<int64_t>& key_len) {
    if constexpr (kForward) {
      const int64_t width = (c_.t + c_.page - 1) / c_.page + 1;
      const int64_t pool = cache_rows_ * width + 2;
      std::vector<int64_t> order(pool);
      std::iota(order.begin(), order.end(), 0);
      harness::Random shuffle(c_.page_seed + 77);
      for (size_t i = order.size() - 1; i > 0; --i)
        std::swap(order[i], order[shuffle.integer(0, static_cast<int64_t>(i))]);
      const size_t field =
          call_.add("page_table", p_.page_table, Role::in, FOVEA_I32, {cache_rows_, width},
                    c_.lay == Lay::contiguous ? Lay::contiguous : Lay::gaps);
      const bool holes = width > 2 && seed_ % 2;
      call_.fill(field, [&](const int64_t* i) {
        const bool absent = holes && i[1] % 3 == 1;
        return absent ? -1.0 : static_cast<double>(order[i[0] * width + i[1]]);
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
      if (seed_ % 7 == 3) p_.key_max = c_.t;
    }
  }

  void tensors() {
    const double spread = c_.softcap ? 4 : c_.data == Data::sharp ? 5 : 1;
    const bool broadcast = c_.shared == Shared::broadcast;
    const size_t q =
        broadcast ? call_.add_strided("q", p_.q, Role::in, broadcast_over_first({b, s, c_.h, c_.d}))
                  : call_.add("q", p_.q, Role::in, c_.dtype, {b, s, c_.h, c_.d}, c_.lay);
    fill(q, 1, c_.data, spread);
    const int k_dtype = dtype_of('k'), v_dtype = dtype_of('v');
    const Shape k_shape = {cache_rows_, slots_, c_.g, c_.d},
                v_shape = {cache_rows_, slots_, c_.g, c_.e};
    size_t k, v;
    if (c_.shared == Shared::kv) {  // (rows, t, 2, g, d)
      fovea_tensor x = broadcast_over_first(k_shape);
      x.stride[1] *= 2, x.stride[0] = slots_ * x.stride[1];
      k = call_.add_strided("k", p_.k, Role::in, x, 0, c_.g * c_.d);
      v = call_.add_view("v", p_.v, Role::in, x, k, c_.g * c_.d);
    } else if (broadcast) {
      k = call_.add_strided("k", p_.k, Role::in, broadcast_over_first(k_shape));
      v = call_.add_strided("v", p_.v, Role::in, broadcast_over_first(v_shape));
    } else if (c_.shared == Shared::record) {
      k = call_.add_strided("k", p_.k, Role::in, in_records(k_dtype, k_shape));
      v = call_.add_strided("v", p_.v, Role::in, in_records(v_dtype, v_shape));
    } else {
      k = call_.add("k", p_.k, Role::in, k_dtype, k_shape, c_.lay);
      fovea_tensor x = call_.fields[k].tensor;
      x.shape[3] = c_.e;
      v = c_.shared == Shared::v_in_k ? call_.add_view("v", p_.v, Role::in, x, k, 0)
                                      : call_.add("v", p_.v, Role::in, v_dtype, v_shape, c_.lay);
    }
    fill(k, 2, c_.data, spread_of(k_dtype));
    if (c_.shared != Shared::v_in_k)
      fill(v, 3, c_.data == Data::huge ? Data::normal : c_.data, spread_of(v_dtype));
    spoil("q", Data::nan_q), spoil("k", Data::nan_k), spoil("v", Data::nan_v);
  }

  int dtype_of(char side) const {
    const int codes = side == 'k' ? c_.k_dtype : c_.v_dtype;
    return codes ? codes : c_.dtype;
  }
  // Codes fill what their type has room for.
  static double spread_of(int dtype) { return dtype == FOVEA_I8 ? 40 : 1; }

  void scales() {
    scales_of("k_scale", p_.k_scale, c_.k_scales, FOVEA_I8 == c_.k_dtype);
    if (c_.shared == Shared::v_in_k && p_.k_scale.data)
      call_.add_view("v_scale", p_.v_scale, Role::in, p_.k_scale, call_.field("k_scale"), 0);
    else
      scales_of("v_scale", p_.v_scale, c_.v_scales, FOVEA_I8 == c_.v_dtype);
  }
  // Groups divide both widths, since both scales have as many.
  void scales_of(const char* name, fovea_tensor& slot, CodeScales kind, bool i8) {
    if (kind == CodeScales::none) return;
    const bool grouped = c_.k_scales == CodeScales::grouped || c_.v_scales == CodeScales::grouped;
    const int64_t groups = !grouped                         ? 1
                           : c_.d % 4 == 0 && c_.e % 4 == 0 ? 4
                           : c_.d % 2 == 0 && c_.e % 2 == 0 ? 2
                                                            : 1;
    const int64_t shape[4] = {cache_rows_, slots_, c_.g, groups};
    fovea_tensor x = fovea_contiguous(nullptr, FOVEA_F32, 4, shape);
    if (kind == CodeScales::head) x.stride[0] = x.stride[1] = x.stride[3] = 0, x.stride[2] = 2;
    if (kind == CodeScales::token)
      x.stride[0] = slots_, x.stride[1] = 1, x.stride[2] = x.stride[3] = 0;
    if (kind == CodeScales::token_head) x.stride[3] = groups > 1 ? 0 : 1;
    if (c_.shared == Shared::record) x = in_records(FOVEA_F32, {cache_rows_, slots_, c_.g, groups});
    const size_t field = call_.add_strided(name, slot, Role::in, x);
    const harness::Random random(data_ ^ static_cast<uint64_t>(name[0]) << 40);
    call_.fill(field, [&](const int64_t* i) {
      uint64_t at = 0;
      for (int axis = 0; axis < 4; ++axis) at += static_cast<uint64_t>(i[axis] * x.stride[axis]);
      return (i8 ? 0.03 : 1) * (0.5 + random.uniform(at));
    });
    call_.account(field, [&](const int64_t* i) { return key_counts(i[0], i[1]); });
  }

  void axis() {
    if (c_.axis == Axis::none) return;
    if (c_.axis == Axis::step) p_.key_step = 4, p_.key_shift = 3;
    if (c_.axis == Axis::outside) p_.key_shift = std::max<int64_t>(2, c_.t / 5);
    if (c_.axis == Axis::behind)
      p_.key_step = 1 + static_cast<int64_t>(seed_ % 3), p_.key_shift = -7;
    if (p_.sink_keys) p_.sink_keys *= p_.key_step ? p_.key_step : 1;
    if (c_.axis == Axis::behind && seed_ % 2) return;
    // Some contexts end before the keys, or have fewer positions than rows.
    std::vector<int64_t> context;
    for (int64_t i = 0; i < r; ++i) {
      const int64_t keys = oracle::sequence(attention_.at, i).keys;
      const int64_t end = keys * (p_.key_step ? p_.key_step : 1) + p_.key_shift;
      context.push_back(i % 3 == 2 ? random_.integer(0, std::max<int64_t>(end, 1))
                                   : end + random_.integer(-2, 5));
    }
    ints("context_len", p_.context_len, context);
  }

  static fovea_tensor in_records(int dtype, const Shape& shape) {
    fovea_tensor x = fovea_contiguous(nullptr, static_cast<fovea_dtype>(dtype), 4, shape.data());
    x.stride[1] = shape[2] * 656 / oracle::bytes_of(dtype), x.stride[0] = shape[1] * x.stride[1];
    return x;
  }
  fovea_tensor broadcast_over_first(const Shape& shape) const {
    fovea_tensor x = fovea_contiguous(nullptr, static_cast<fovea_dtype>(c_.dtype), 4, shape.data());
    x.stride[0] = 0;
    return x;
  }

  // One NaN: in row 1 (or key 1) of the first sequence.
  void spoil(const char* name, Data when) {
    if (c_.data != when) return;
    const size_t field = call_.field(name);
    call_.each(field, [&](const int64_t* i, int64_t byte) {
      if (i[0] == 0 && i[1] == 1 && i[2] == 0 && i[3] == 0)
        oracle::encode(call_.fields[field].tensor.dtype, NAN,
                       call_.storages[call_.fields[field].storage].image.data() + byte);
    });
  }

  void load_places(oracle::Attention& at) {
    at = oracle::load_attention(p_);
    columns = at.columns;
  }

  void count_tokens() {
    row_counts_.assign(b * s, false), key_counts_.assign(cache_rows_ * slots_, false);
    const oracle::Layout& at = attention_.at;
    std::vector<double> k_tokens, v_tokens;
    for (int64_t i = 0; i < r; ++i) {
      const oracle::Sequence q = oracle::sequence(at, i);
      for (int64_t n = 0; n < q.rows; ++n) row_counts_[q.batch * s + q.row + n] = true;
      for (int64_t n = 0; n < q.keys; ++n) {
        const oracle::Place to = oracle::place(at, q, q.store + n);
        if (to.present) key_counts_[to.row * slots_ + to.slot] = true;
        if (to.present && at.page) write_token(to, i, n);
      }
    }
    call_.account(call_.field("q"), [&](const int64_t* i) { return row_counts(i[0], i[1]); });
    for (const char* name : {"k", "v"})
      call_.account(call_.field(name), [&](const int64_t* i) { return key_counts(i[0], i[1]); });
  }

  // Paged data is a function of (sequence, token), not of the page that holds it.
  void write_token(const oracle::Place& to, int64_t sequence, int64_t token) {
    for (const char* name : {"k", "v"}) {
      const size_t field = call_.field(name);
      if (c_.shared == Shared::v_in_k && name[0] == 'v') continue;
      const harness::Field& f = call_.fields[field];
      const harness::Random random(data_ ^ static_cast<uint64_t>(name[0]) << 32);
      const int dtype = f.tensor.dtype;
      for (int64_t g = 0; g < f.tensor.shape[2]; ++g)
        for (int64_t c = 0; c < f.tensor.shape[3]; ++c) {
          const int64_t* stride = f.tensor.stride;
          const int64_t at =
              to.row * stride[0] + to.slot * stride[1] + g * stride[2] + c * stride[3];
          const auto i = static_cast<uint64_t>(((sequence * 100000 + token) * 1000 + g) * 1000 + c);
          oracle::encode(
              dtype,
              spread_of(dtype) *
                  draw(random, i, c,
                       name[0] == 'v' && c_.data == Data::huge ? Data::normal : c_.data, 1),
              call_.storages[f.storage].image.data() + f.start + at * oracle::bytes_of(dtype));
        }
    }
  }

  void spans() {
    const int64_t w = std::max<int64_t>(1, c_.t / 3);
    switch (c_.span) {
      case Span::full:
        break;
      case Span::causal:
        p_.causal = 1;
        break;
      case Span::left:
        p_.causal = 1, p_.window_left = w;
        break;
      case Span::left_sink:
        p_.causal = 1, p_.window_left = w, p_.sink_keys = 3;
        break;
      case Span::band:
        p_.window_left = w, p_.window_right = w / 2 + 2;
        break;
      case Span::chunk:
        p_.causal = static_cast<int32_t>(seed_ % 2),
        p_.local_chunk = std::max<int64_t>(2, c_.t / 4);
        break;
      case Span::chunk_sink:  // chunks wider than the window, one of them half sink keys
        p_.causal = 1, p_.window_left = 3;
        p_.local_chunk = std::max<int64_t>(2, w), p_.sink_keys = w + w / 2;
        break;
      case Span::head_window: {
        const size_t field =
            call_.add("head_window", p_.head_window, Role::in, FOVEA_I32, {c_.h, 3},
                      c_.lay == Lay::wide ? Lay::wide : Lay::contiguous);
        call_.fill(field, [&](const int64_t* i) -> double {
          switch (i[0] % 4) {
            case 0:
              return static_cast<double>(i[1] == 0 ? w : i[1] == 1 ? 1 : 2);
            case 1:
              return 0;
            case 2:
              return static_cast<double>(i[1] == 1);
            default:
              return static_cast<double>(i[1] == 0 ? 1 : i[1] == 1 ? w : 0);
          }
        });
      }
    }
  }

  void positions() {
    if (c_.positions == Positions::none) return;
    // Every second case has one position for all heads.
    const bool shared = seed_ % 2;
    fovea_tensor x = {};
    x.dtype = FOVEA_I32, x.ndim = 3;
    auto shape = [&](int64_t n0, int64_t n1, int64_t n2) {
      x.shape[0] = n0, x.shape[1] = n1, x.shape[2] = n2;
      x.stride[0] = (shared ? 1 : n1) * n2, x.stride[1] = shared ? 0 : n2, x.stride[2] = 1;
    };
    shape(b, c_.h, s);
    const harness::Random random(data_ ^ 91);
    const size_t rows = call_.add_strided("query_position", p_.query_position, Role::in, x);
    call_.fill(rows, [&](const int64_t* i) {
      const uint64_t n = static_cast<uint64_t>((i[0] * 64 + (shared ? 0 : i[1])) * 100000 + i[2]);
      return std::floor(random.uniform(n) * static_cast<double>(c_.t + 2)) - 1;
    });
    call_.account(rows, [&](const int64_t* i) { return row_counts(i[0], i[2]); });
    if (c_.positions != Positions::both) return;
    const bool paged = attention_.at.page > 0;
    const int64_t rows_of_keys = paged ? r : p_.key_start.data ? 1 : r;
    shape(rows_of_keys, c_.g, paged ? columns : slots_);
    const size_t keys = call_.add_strided("key_position", p_.key_position, Role::in, x);
    call_.fill(keys, [&](const int64_t* i) {
      const uint64_t n =
          static_cast<uint64_t>((i[0] * 64 + (shared ? 0 : i[1])) * 100000 + i[2]) + (1ull << 50);
      return random.uniform(n) < 0.1
                 ? -1.0
                 : std::floor(random.uniform(n + (1ull << 51)) * static_cast<double>(c_.t));
    });
    call_.account(keys, [&](const int64_t* i) { return key_column_counts(i[0], i[2]); });
  }

  // Whether token `token` (as key_position counts) of row `row` of key_position belongs to a
  // sequence.
  bool key_column_counts(int64_t row, int64_t token) const {
    for (int64_t i = 0; i < r; ++i) {
      if (!p_.key_start.data && i != row) continue;
      const oracle::Sequence q = oracle::sequence(attention_.at, i);
      if (token >= q.store && token < q.store + q.keys) return true;
    }
    return false;
  }

  // Whether (batch, row) asks about column `column` of its sequence.
  bool column_counts(int64_t batch, int64_t row, int64_t begin, int64_t end) const {
    const int64_t i = sequence_of(batch, row);
    if (i < 0) return false;
    const oracle::Sequence q = oracle::sequence(attention_.at, i);
    return begin < q.first + q.keys && end > q.first;
  }

  void scores() {
    p_.scale = c_.scale;
    if (c_.softcap) p_.softcap = seed_ % 2 ? 15.f : 3.f;
    if (c_.sink_logit) numbers("sink_logit", p_.sink_logit, FOVEA_F32, {c_.h}, 5, Data::normal);
    if (c_.alibi) {
      const size_t field = call_.add("alibi", p_.alibi, Role::in, FOVEA_F32, {r, c_.h});
      call_.fill(field, [&](const int64_t* i) {
        return std::exp2(-8.0 * static_cast<double>(i[1] + 1 + i[0] % 2) /
                         static_cast<double>(c_.h + 1));
      });
    }
    if (c_.mask) {
      const size_t field =
          call_.add("mask", p_.mask, Role::in, FOVEA_U8, {b, c_.h, s, (columns + 7) / 8});
      const harness::Random random(data_ ^ 92);
      uint64_t n = 0;
      call_.fill(field, [&](const int64_t* i) {
        const uint64_t bits = random.bits(n) | random.bits(n << 32 | 1);
        ++n;
        const bool blank =
            c_.masked == Masked::all ||
            (c_.masked == Masked::tiles ? i[3] / 8 % 2 == i[2] / 16 % 2 : i[2] % 7 == 5);
        return blank ? 0.0 : static_cast<double>(bits & 255);
      });
      call_.account(field, [&](const int64_t* i) {
        return column_counts(i[0], i[2], i[3] * 8, i[3] * 8 + 8);
      });
    }
    if (c_.bias == Bias::none) return;
    fovea_tensor x = {};
    x.dtype = c_.bias == Bias::broadcast ? FOVEA_F16
              : c_.bias == Bias::bf16    ? FOVEA_BF16
                                         : FOVEA_F32;
    x.ndim = 4;
    const int64_t shape[4] = {b, c_.h, s, columns};
    const bool broadcast = c_.bias == Bias::broadcast;
    for (int64_t i = 3, pitch = 1; i >= 0; --i) {
      x.shape[i] = shape[i];
      const bool same = broadcast ? i == 0 || i == 1 + static_cast<int64_t>(seed_ % 2)
                                  : c_.bias == Bias::by_key && i == 2;
      x.stride[i] = same ? 0 : pitch;
      if (x.stride[i]) pitch = pitch * shape[i] + (i == 3 && c_.lay == Lay::odd);
    }
    const size_t field = call_.add_strided("bias", p_.bias, Role::in, x);
    const harness::Random random(data_ ^ 93);
    uint64_t n = 0;
    call_.fill(field, [&](const int64_t* i) {
      ++n;
      const bool out =
          c_.bias == Bias::minus_inf && (random.uniform(n + (1ull << 40)) < 0.3 || i[2] % 11 == 4);
      return out ? -HUGE_VAL : random.normal(n);
    });
    call_.account(field,
                  [&](const int64_t* i) { return column_counts(i[0], i[2], i[3], i[3] + 1); });
  }

  Call& call_;
  P& p_;
  const AttentionCase& c_;
  harness::Random random_;
  const uint64_t seed_, data_;
  int64_t cache_rows_ = 0, slots_ = 0;
  std::vector<bool> row_counts_, key_counts_;
  oracle::Attention attention_;
};

}  // namespace cases
