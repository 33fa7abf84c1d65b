// SPDX-License-Identifier: Apache-2.0
// quant_forward.
#include "oracle/quant.h"
#include "cases/all.h"
#include "cases/attention_case.h"
#include "cases/quant_case.h"

namespace cases {
namespace {

constexpr const char* kMethodNames[] = {"",         "sage1",    "sage2",   "sage2_i4", "sage2pp",
                                        "sage3_nv", "sage3_mx", "sagebwd", "tokens",   "blocks"};
constexpr const char* kScalesNames[] = {"unscaled", "head", "block"};

std::string name_of(const QuantForwardCase& c) {
  auto number = [](const char* letter, int64_t n) {
    return std::string(letter) + std::to_string(n);
  };
  std::string name = std::string(dtype_name(c.o_dtype)) + number("/b", c.b) + number("_s", c.s) +
                     number("_t", c.t) + number("_h", c.h) + number("_g", c.g) + number("_d", c.d) +
                     number("_e", c.e) + "/" +
                     (c.method == Method::fa3 ? kScalesNames[static_cast<int>(c.scales)]
                                              : kMethodNames[static_cast<int>(c.method)]);
  if (c.scales == Scales::block) name += number("", c.q_block) + number("_", c.k_block);
  const std::pair<bool, const char*> flags[] = {
      {c.causal, "_causal"},     {c.left > 0, "_left"},
      {c.right > 0, "_right"},   {c.transposed && !c.permuted, "_plain_order"},
      {!c.transposed, "_rows"},  {c.softcap, "_softcap"},
      {c.sink_logit, "_sink"},   {!c.lse, "_no_lse"},
      {c.scale > 0, "_scale"},   {c.k_mean, "_k_mean"},
      {c.q_plain, "_q_plain"},   {c.delta, "_delta"},
      {c.v_mean, "_v_mean"},     {c.zeros, "_zeros"},
      {c.constant, "_constant"}, {c.bf16_v, "_bf16_v"}};
  for (const auto& flag : flags) name += flag.first ? flag.second : "";
  if (c.v_block != 64) name += number("_v_block", c.v_block);
  if (c.list_rows)
    name += number("/list", c.list_rows) + number("x", c.list_keys) + number("_keep", c.keep) +
            number("_x", c.x) + (c.counts ? "_counts" : "") + (c.ascends ? "_ascending" : "");
  if (c.entry_keys) name += number("_entry", c.entry_keys);
  if (c.margin > 0) name += number("_margin", static_cast<int64_t>(10 * c.margin));
  if (c.where != Where::batched) name += std::string("_") + kWhereNames[static_cast<int>(c.where)];
  if (c.page)
    name += std::to_string(c.page) + (c.packed ? "_packed" : "") + (c.one_k ? "_one_k" : "") +
            (c.one_v ? "_one_v" : "");
  if (c.lay != Lay::contiguous)
    name += std::string("_") + harness::kLayNames[static_cast<int>(c.lay)];
  return name + (c.note.empty() ? "" : "_" + c.note);
}

class QuantForwardBuild {
 public:
  QuantForwardBuild(const QuantForwardCase& c, uint64_t seed) : c_(c), random_(seed) {}

  Call build() {
    Call call = Call::make(FOVEA_TEST_OP(quant_forward), p_);
    places(call);
    codes(call);
    if (c_.method == Method::fa3)
      scales(call);
    else
      method_scales(call);
    means(call);
    if (c_.sink_logit)
      call.fill(call.add("sink_logit", p_->sink_logit, Role::in, FOVEA_F32, {c_.h}),
                [&](const int64_t* i) { return i[0] % 2 ? -1.5 : 2.0; });
    p_->causal = c_.causal, p_->window_left = c_.left, p_->window_right = c_.right;
    p_->scale = c_.scale, p_->softcap = c_.softcap ? 3.0f : 0;
    const size_t o = call.add("o", p_->o, Role::out, c_.o_dtype, {b_, s_, c_.h, c_.e}, c_.lay);
    size_t lse = 0;
    if (c_.lse) lse = call.add("lse", p_->lse, Role::out, FOVEA_F32, {b_, c_.h, s_}, c_.lay);
    if (c_.list_rows) lists(call);
    size_t skipped = 0;
    if (c_.margin > 0) skipped = call.add("skipped", p_->skipped, Role::out, FOVEA_I64, {1});
    account(call);
    auto exact = oracle::quant_forward(*p_, oracle::Mode::exact);
    auto rounded = oracle::quant_forward(*p_, oracle::Mode::rounded);
    call.expect(o, std::move(exact.o), std::move(rounded.o));
    if (c_.lse) call.expect(lse, std::move(exact.lse), std::move(rounded.lse));
    if (c_.margin > 0)
      call.expect(skipped, std::move(exact.skipped), std::move(rounded.skipped), true);
    return call;
  }

 private:
  void places(Call& call) {
    b_ = key_b_ = c_.b, s_ = c_.s, t_ = c_.t;
    packed_ = c_.where == Where::varlen;
    if (packed_) {
      const std::vector<double> rows = starts_of(c_.b, c_.s), keys = starts_of(c_.b, c_.t);
      call.fill_list(call.add("query_start", p_->query_start, Role::in, FOVEA_I32, {c_.b + 1}),
                     rows);
      call.fill_list(call.add("key_start", p_->key_start, Role::in, FOVEA_I32, {c_.b + 1}), keys);
      s_ = static_cast<int64_t>(rows.back()), t_ = static_cast<int64_t>(keys.back());
      b_ = key_b_ = 1;
      p_->query_max = c_.s, p_->key_max = c_.t;
    }
    if (c_.where == Where::paged) pages(call);
    if (c_.where == Where::cache_row) {
      key_b_ = c_.b + 1;
      call.fill_list(call.add("cache_row", p_->cache_row, Role::in, FOVEA_I32, {c_.b}),
                     rows_of(key_b_));
    }
    if (c_.where != Where::lengths) return;
    const auto shorter = [](int64_t full) {
      return [full](const int64_t* i) {
        return static_cast<double>(i[0] == 0 ? full : i[0] == 1 ? full / 2 : 0);
      };
    };
    call.fill(call.add("query_len", p_->query_len, Role::in, FOVEA_I32, {c_.b}), shorter(s_));
    call.fill(call.add("key_len", p_->key_len, Role::in, FOVEA_I32, {c_.b}), shorter(t_));
  }

  // The rows that sequences read: the last first, two sequences one row, one sequence none.
  std::vector<double> rows_of(int64_t rows) const {
    std::vector<double> row;
    for (int64_t r = 0; r < c_.b; ++r)
      row.push_back(r == 3 ? -1 : static_cast<double>(rows - 1 - r / 2));
    return row;
  }
  // Tables in any order: of a pool with more pages than there are keys, some of them shared by two
  // rows, one absent.  Lengths end within pages.
  void pages(Call& call) {
    const int64_t pages = (c_.t + c_.page - 1) / c_.page, rows = c_.b + 1;
    key_b_ = rows * pages + 2, t_ = c_.page;
    call.fill(call.add("page_table", p_->page_table, Role::in, FOVEA_I32, {rows, pages}),
              [&](const int64_t* i) {
                if (i[0] == rows - 1 && i[1] == pages / 2 && pages > 1) return -1.0;
                const int64_t row = i[1] == 0 ? rows - 1 : i[0];
                return static_cast<double>((row * pages + i[1]) * 5 % (rows * pages));
              });
    call.fill_list(call.add("cache_row", p_->cache_row, Role::in, FOVEA_I32, {c_.b}),
                   rows_of(rows));
    call.fill(call.add("key_len", p_->key_len, Role::in, FOVEA_I32, {c_.b}),
              [&](const int64_t* i) { return static_cast<double>(c_.t - i[0] * 5 % (c_.t + 1)); });
    if (!c_.packed) return;
    const std::vector<double> starts = starts_of(c_.b, c_.s);
    call.fill_list(call.add("query_start", p_->query_start, Role::in, FOVEA_I32, {c_.b + 1}),
                   starts);
    b_ = 1, s_ = static_cast<int64_t>(starts.back()), p_->query_max = c_.s;
    rows_packed_ = true;
  }

  // Entries of any order, some of them twice or no key's; or each with keys, once.
  void lists(Call& call) {
    p_->block_rows = static_cast<int32_t>(c_.list_rows);
    p_->block_keys = static_cast<int32_t>(c_.list_keys);
    p_->entry_keys = static_cast<int32_t>(c_.entry_keys), p_->skip_margin = c_.margin;
    const int64_t step = c_.entry_keys ? c_.entry_keys : c_.list_keys;
    const int64_t blocks = (c_.t + step - 1) / step;
    const int64_t n = c_.list_rows == 1 ? s_ : entries_of(packed_, s_, c_.b, c_.list_rows);
    call.fill(call.add("index", p_->index, Role::in, FOVEA_I32, {b_, c_.x, n, c_.keep}),
              [&](const int64_t* i) -> double {
                const double u = random_.uniform(n_++);
                if (!c_.ascends) return std::floor(u * static_cast<double>(blocks + 2)) - 1;
                return std::floor((static_cast<double>(i[3]) + u) * static_cast<double>(blocks) /
                                  static_cast<double>(c_.keep));
              });
    if (c_.counts)
      call.fill(call.add("index_count", p_->index_count, Role::in, FOVEA_I32, {b_, c_.x, n}),
                [&](const int64_t*) {
                  return std::floor(random_.uniform(n_++) * static_cast<double>(c_.keep + 3)) - 1;
                });
  }

  bool is(Method a, Method b) const { return c_.method == a || c_.method == b; }
  bool four_bits() const { return is(Method::sage3_nv, Method::sage3_mx); }
  // Codes of q and k, of v.
  int code_dtype() const {
    return c_.method == Method::fa3                       ? FOVEA_E4M3
           : four_bits() || c_.method == Method::sage2_i4 ? FOVEA_U8
                                                          : FOVEA_I8;
  }
  int value_dtype() const {
    switch (c_.method) {
      case Method::sage1:
        return c_.bf16_v ? FOVEA_BF16 : FOVEA_F16;
      case Method::tokens:
        return FOVEA_BF16;
      case Method::sagebwd:
        return FOVEA_I8;
      default:
        return four_bits() ? FOVEA_U8 : FOVEA_E4M3;
    }
  }
  bool transposed() const { return c_.transposed && !is(Method::sage1, Method::tokens); }

  size_t code(Call& call, const char* name, fovea_tensor& slot, const Shape& shape, int dtype,
              bool key = false) {
    const size_t field = call.add(name, slot, Role::in, dtype, shape, c_.lay);
    const bool integers = dtype == FOVEA_I8, bytes = dtype == FOVEA_U8;
    // Sums of 64 products of 448 and these stay below f16's largest.
    const double spread = c_.method == Method::sage2pp ? 0.6 : 2;
    call.fill(field, [&](const int64_t* i) -> double {
      const double x = random_.normal(n_++), u = random_.uniform(n_++);
      if (key && (c_.constant || (c_.zeros && i[1] >= 64 && i[1] < 128))) return 0;
      if (bytes) {
        // No -8 in i4.
        const int low = static_cast<int>(u * 16) % 16, high = static_cast<int>(u * 4096) % 16;
        const int code = (low == 8 ? 7 : low) + (high == 8 ? 9 : high) * 16;
        return code;
      }
      if (integers) return std::max(-127.0, std::min(127.0, std::nearbyint(40 * x)));
      return (dtype == FOVEA_E4M3 ? spread : 1) * x;
    });
    return field;
  }
  void codes(Call& call) {
    const int dtype = code_dtype(), v = value_dtype();
    const int64_t pack = dtype == FOVEA_U8 ? 2 : 1, v_pack = v == FOVEA_U8 ? 2 : 1;
    q_ = code(call, "q", p_->q, {b_, s_, c_.h, c_.d / pack}, dtype);
    k_ = code(call, "k", p_->k, {key_b_, t_, c_.g, c_.d / pack}, dtype, true);
    if (transposed())
      v_ = code(call, "v_t", p_->v_t,
                {key_b_, c_.g, c_.e, entries_of(packed_, t_, c_.b, 128) * 128 / v_pack}, v);
    else
      v_ = code(call, "v", p_->v, {key_b_, t_, c_.g, c_.e}, v);
    p_->code_order = transposed() && c_.permuted;
    if (pack == 2) p_->code_format = four_bits() ? FOVEA_CODE_FORMAT_E2M1 : FOVEA_CODE_FORMAT_I4;
    if (v_pack == 2) p_->v_format = FOVEA_CODE_FORMAT_E2M1;
  }

  // A row of the table of methods.
  struct Rule {
    int p_format, accumulate, q_group, k_group, v_group;
    int32_t q_block, k_block, v_block;
  };
  Rule rule() const {
    constexpr int block = FOVEA_SCALE_GROUP_BLOCK, token = FOVEA_SCALE_GROUP_TOKEN;
    constexpr int rows = FOVEA_SCALE_GROUP_THREAD_Q, keys = FOVEA_SCALE_GROUP_THREAD_K;
    constexpr int channel = FOVEA_SCALE_GROUP_CHANNEL;
    const auto q = static_cast<int32_t>(c_.q_block), k = static_cast<int32_t>(c_.k_block);
    switch (c_.method) {
      case Method::sage1:
        if (c_.bf16_v)
          return {FOVEA_P_FORMAT_HALF, FOVEA_ACCUMULATE_F32, rows, keys, channel, q, k, 0};
        return {FOVEA_P_FORMAT_HALF, FOVEA_ACCUMULATE_HALF_64, block, block, block, q, k, 0};
      case Method::sage2pp:
        return {FOVEA_P_FORMAT_E4M3_448, FOVEA_ACCUMULATE_HALF_64, rows, keys, channel, q, k, 0};
      case Method::sage3_nv:
        return {FOVEA_P_FORMAT_E2M1_TWO,
                FOVEA_ACCUMULATE_F32,
                FOVEA_SCALE_GROUP_MICRO16,
                FOVEA_SCALE_GROUP_MICRO16,
                FOVEA_SCALE_GROUP_MICRO16_T,
                0,
                0,
                0};
      case Method::sage3_mx:
        return {FOVEA_P_FORMAT_E2M1_ONE,
                FOVEA_ACCUMULATE_F32,
                FOVEA_SCALE_GROUP_MICRO32,
                FOVEA_SCALE_GROUP_MICRO32,
                FOVEA_SCALE_GROUP_MICRO32_T,
                0,
                0,
                0};
      case Method::sagebwd:
        return {FOVEA_P_FORMAT_I8,
                FOVEA_ACCUMULATE_F32,
                block,
                block,
                block,
                q,
                k,
                static_cast<int32_t>(c_.v_block)};
      case Method::tokens:
        return {FOVEA_P_FORMAT_HALF, FOVEA_ACCUMULATE_F32, token, token, block, 0, 0, 0};
      case Method::blocks:
        return {FOVEA_P_FORMAT_E4M3_448, FOVEA_ACCUMULATE_TWO_LEVEL, block, block, block, q, k, 0};
      default:
        return {FOVEA_P_FORMAT_E4M3_448, FOVEA_ACCUMULATE_TWO_LEVEL, rows, keys, channel, q, k, 0};
    }
  }

  // Of rows of k and v; `one`: it stands once for all of them.
  size_t add_of_rows(Call& call, const char* name, fovea_tensor& slot, int dtype,
                     const Shape& shape, bool one) {
    if (!one) return call.add(name, slot, Role::in, dtype, shape);
    fovea_tensor x = fovea_contiguous(nullptr, static_cast<fovea_dtype>(dtype),
                                      static_cast<int>(shape.size()), shape.data());
    x.stride[0] = 0;
    return call.add_strided(name, slot, Role::in, x);
  }
  int64_t scale_count(int group, int64_t block, int64_t tokens, int64_t columns,
                      bool rows = false) const {
    const bool packed = packed_ || (rows && rows_packed_);
    switch (group) {
      case FOVEA_SCALE_GROUP_THREAD_Q:
        return 8 * entries_of(packed, tokens, c_.b, block);
      case FOVEA_SCALE_GROUP_THREAD_K:
        return 4 * entries_of(packed, tokens, c_.b, block);
      case FOVEA_SCALE_GROUP_TOKEN:
        return tokens;
      case FOVEA_SCALE_GROUP_CHANNEL:
        return packed ? c_.b * columns : columns;
      case FOVEA_SCALE_GROUP_MICRO16:
        return tokens * ((columns + 15) / 16);
      case FOVEA_SCALE_GROUP_MICRO32:
        return tokens * ((columns + 31) / 32);
      case FOVEA_SCALE_GROUP_MICRO16_T:
        return columns * entries_of(packed, tokens, c_.b, 128) * 8;
      case FOVEA_SCALE_GROUP_MICRO32_T:
        return columns * entries_of(packed, tokens, c_.b, 128) * 4;
      default:
        return entries_of(packed, tokens, c_.b, block);
    }
  }
  void scale(Call& call, const char* name, fovea_tensor& slot, int64_t b, int64_t heads,
             int64_t count, int group, double base, bool key = false, bool one = false) {
    const bool small = group >= FOVEA_SCALE_GROUP_MICRO16;
    const bool ue8m0 = group == FOVEA_SCALE_GROUP_MICRO32 || group == FOVEA_SCALE_GROUP_MICRO32_T;
    const int dtype = !small ? FOVEA_F32 : ue8m0 ? FOVEA_U8 : FOVEA_E4M3;
    const size_t field = add_of_rows(call, name, slot, dtype, {b, heads, count}, one);
    if (&slot != &p_->q_scale) of_rows_.push_back(field);
    call.fill(field, [&](const int64_t* i) -> double {
      const double u = random_.uniform(n_++);
      if (ue8m0) return 124 + std::floor(3 * u);
      if (small) return 0.3 + 0.5 * u;
      if (key && c_.zeros && i[2] == 1) return 1e-7 / 127;
      return base * (0.6 + u);
    });
  }
  void method_scales(Call& call) {
    const Rule x = rule();
    p_->p_format = x.p_format, p_->accumulate = x.accumulate;
    p_->q_group = x.q_group, p_->k_group = x.k_group, p_->v_group = x.v_group;
    p_->q_block = x.q_block, p_->k_block = x.k_block, p_->v_block = x.v_block;
    // Scores of a few units, whatever the codes are.
    const double base = code_dtype() == FOVEA_U8 ? 0.25 : 0.03;
    scale(call, "q_scale", p_->q_scale, b_, c_.h, scale_count(x.q_group, x.q_block, s_, c_.d, true),
          x.q_group, base);
    scale(call, "k_scale", p_->k_scale, key_b_, c_.g, scale_count(x.k_group, x.k_block, t_, c_.d),
          x.k_group, base, true, c_.one_k);
    if (value_dtype() == FOVEA_F16) return;
    scale(call, "v_scale", p_->v_scale, key_b_, c_.g, scale_count(x.v_group, x.v_block, t_, c_.e),
          x.v_group, 0.02, false, c_.one_v);
  }

  void means(Call& call) {
    const auto fill = [&](size_t field, double spread) {
      call.fill(field, [&](const int64_t*) { return spread * random_.normal(n_++); });
    };
    const int64_t means = packed_ ? c_.b : 1;
    const auto of_rows = [&](size_t field, double spread) {
      fill(field, spread), of_rows_.push_back(field);
    };
    if (c_.k_mean)
      of_rows(
          add_of_rows(call, "k_mean", p_->k_mean, FOVEA_F32, {key_b_, c_.g, means, c_.d}, c_.one_v),
          2);
    if (c_.q_plain)
      fill(call.add("q_plain", p_->q_plain, Role::in, c_.o_dtype, {b_, s_, c_.h, c_.d}), 1);
    if (c_.v_mean)
      of_rows(call.add("v_mean", p_->v_mean, Role::in, FOVEA_F32, {key_b_, c_.g, means, c_.e}), 1);
    if (!c_.delta) return;
    deltas_ = entries_of(packed_, s_, c_.b, 128);
    delta_ = call.add("delta", p_->delta, Role::in, FOVEA_F32, {b_, c_.h, deltas_, t_});
    fill(delta_, 0.7 * std::sqrt(static_cast<double>(c_.d)));
  }

  void scales(Call& call) {
    if (c_.scales == Scales::none) return;
    const bool blocks = c_.scales == Scales::block;
    p_->q_block = static_cast<int32_t>(blocks ? c_.q_block : 0);
    p_->k_block = static_cast<int32_t>(blocks ? c_.k_block : 0);
    const auto scale = [&](double base) {
      return [this, base](const int64_t*) { return base * (0.6 + random_.uniform(n_++)); };
    };
    call.fill(call.add("q_scale", p_->q_scale, Role::in, FOVEA_F32,
                       {b_, c_.h, entries_of(packed_ || rows_packed_, s_, c_.b, p_->q_block)}),
              scale(0.5));
    call.fill(add_of_rows(call, "k_scale", p_->k_scale, FOVEA_F32,
                          {key_b_, c_.g, entries_of(packed_, t_, c_.b, p_->k_block)}, c_.one_k),
              scale(0.5));
    call.fill(add_of_rows(call, "v_scale", p_->v_scale, FOVEA_F32,
                          {key_b_, c_.g, entries_of(packed_, t_, c_.b, 0)}, c_.one_v),
              scale(0.01));
  }

  // Rows and keys past their lengths count for nothing, nor does padding.
  void account(Call& call) {
    const oracle::QuantAttention a = oracle::load_quant(*p_);
    std::vector<char> rows(b_ * s_), keys(key_b_ * t_), columns(key_b_ * a.v_t.shape[3]);
    std::vector<char> pages(key_b_);
    for (int64_t r = 0; r < a.at.sequences; ++r) {
      const oracle::Sequence q = oracle::sequence(a.at, r);
      for (int64_t i = 0; i < q.rows; ++i) rows[q.batch * s_ + q.row + i] = 1;
      for (int64_t j = 0; j < q.keys; ++j) {
        const oracle::Place at = oracle::key_place(a, q, j);
        if (!at.present) continue;
        pages[at.row] = keys[at.row * t_ + q.store + at.slot] = 1;
        if (a.v_t.given)
          columns[at.row * a.v_t.shape[3] +
                  oracle::value_column(a.at.key_start, r, at.slot, a.permuted)] = 1;
      }
    }
    call.account(q_, [&](const int64_t* i) { return rows[i[0] * s_ + i[1]] != 0; });
    for (size_t field : of_rows_)
      if (c_.where == Where::paged)
        call.account(field, [&](const int64_t* i) { return pages[i[0]] != 0; });
    call.account(k_, [&](const int64_t* i) { return keys[i[0] * t_ + i[1]] != 0; });
    if (c_.delta) account_delta(call, a);
    const int64_t pack = value_dtype() == FOVEA_U8 ? 2 : 1;
    call.account(v_, [&](const int64_t* i) {
      if (!transposed()) return keys[i[0] * t_ + i[1]] != 0;
      const int64_t at = i[0] * a.v_t.shape[3] + i[3] * pack;
      return columns[at] != 0 || columns[at + pack - 1] != 0;
    });
  }

  // Of a block of rows, of keys that some of them see.
  void account_delta(Call& call, const oracle::QuantAttention& a) {
    std::vector<char> seen(b_ * deltas_ * t_);
    for (int64_t r = 0; r < a.at.sequences; ++r) {
      const oracle::Sequence q = oracle::sequence(a.at, r);
      const int64_t first = q.batch * deltas_ + oracle::scale_base(a.at.query_start, r, 128);
      for (int64_t i = 0; i < q.rows; ++i) {
        const int64_t position = i + q.keys - q.rows;
        for (int64_t j = 0; j < q.keys; ++j)
          if ((a.right <= 0 || j < position + a.right) && (a.left <= 0 || j > position - a.left))
            seen[(first + i / 128) * t_ + q.store + j] = 1;
      }
    }
    call.account(delta_,
                 [&](const int64_t* i) { return seen[(i[0] * deltas_ + i[2]) * t_ + i[3]] != 0; });
  }

  const QuantForwardCase& c_;
  harness::Random random_;
  uint64_t n_ = 0;
  fovea_quant_forward_params* p_ = nullptr;
  int64_t b_ = 0, key_b_ = 0, s_ = 0, t_ = 0;
  int64_t deltas_ = 0;
  bool packed_ = false, rows_packed_ = false;
  size_t q_ = 0, k_ = 0, v_ = 0, delta_ = 0;
  std::vector<size_t> of_rows_;  // scales and means of rows of k and v
};

}  // namespace

Call build_quant_forward(const QuantForwardCase& c, uint64_t seed) {
  return QuantForwardBuild(c, seed).build();
}

namespace {

// Of the tuned kernels: every row of quant/forward.inc, lengths off its tiles.
std::vector<QuantForwardCase> quant_tuned_rows() {
  std::vector<QuantForwardCase> rows;
  for (int64_t d : {64, 128, 256}) {
    QuantForwardCase c;
    c.note = "tuned";
    c.d = c.e = d, c.b = 1, c.s = 200, c.t = 430, c.h = 2, c.g = 1, c.o_dtype = FOVEA_BF16;
    rows.push_back(c);
    c.causal = true, c.o_dtype = FOVEA_F16;
    rows.push_back(c);
    c.s = 330, c.t = 200;  // rows that see nothing
    rows.push_back(c);
    c.causal = false, c.left = 100, c.right = 30, c.o_dtype = FOVEA_F32, c.s = 200, c.t = 430;
    rows.push_back(c);
    c.left = c.right = 0, c.where = Where::varlen, c.b = 3, c.s = 90, c.o_dtype = FOVEA_BF16;
    rows.push_back(c);
    c.where = Where::lengths, c.causal = true, c.sink_logit = true;
    rows.push_back(c);
    c = rows[rows.size() - 6];
    c.scales = Scales::block;
    rows.push_back(c);
    c.q_block = c.k_block = 64, c.causal = true, c.where = Where::varlen;
    rows.push_back(c);
    c.scales = Scales::none, c.where = Where::batched, c.lay = Lay::head_first, c.lse = false;
    rows.push_back(c);
    // Many tiles a row, many items a block.
    QuantForwardCase many;
    many.note = "tuned";
    many.d = many.e = d, many.s = 5, many.t = 9000, many.b = many.h = many.g = 1;
    rows.push_back(many);
    many.b = 20, many.h = 16, many.g = 4, many.s = 10, many.t = 140, many.where = Where::varlen;
    many.causal = true, many.o_dtype = FOVEA_BF16;
    rows.push_back(many);
  }
  return rows;
}

// Of the tuned kernels of i8: every row of quant/forward_i8.inc.
std::vector<QuantForwardCase> quant_integer_rows() {
  std::vector<QuantForwardCase> rows;
  for (int64_t d : {64, 128, 256}) {
    QuantForwardCase c;
    c.note = "tuned", c.method = Method::sage2;
    c.d = c.e = d, c.b = 1, c.s = 200, c.t = 430, c.h = 2, c.g = 1, c.o_dtype = FOVEA_BF16;
    c.q_block = 16, c.k_block = 128;
    rows.push_back(c);
    c.causal = c.k_mean = c.q_plain = true, c.o_dtype = FOVEA_F16;
    rows.push_back(c);
    c.s = 330, c.t = 200, c.q_plain = false, c.k_block = 64;  // rows that see nothing
    rows.push_back(c);
    c.causal = false, c.left = 100, c.right = 30, c.o_dtype = FOVEA_F32, c.s = 200, c.t = 430;
    c.q_block = 64, c.q_plain = true;
    rows.push_back(c);
    c.left = c.right = 0, c.where = Where::varlen, c.b = 3, c.s = 90, c.o_dtype = FOVEA_BF16;
    c.zeros = true;
    rows.push_back(c);
    c.where = Where::lengths, c.causal = true, c.sink_logit = true, c.method = Method::sage2pp;
    rows.push_back(c);
    c.constant = true, c.where = Where::batched, c.zeros = false;
    rows.push_back(c);
    c = rows[rows.size() - 7];
    c.method = Method::blocks, c.q_block = 128;
    rows.push_back(c);
    c.q_block = c.k_block = 64, c.causal = true, c.where = Where::varlen;
    rows.push_back(c);
    c.q_block = c.k_block = 0, c.where = Where::batched, c.lse = false, c.lay = Lay::head_first;
    rows.push_back(c);
    // Keys of a tail that is less than a thread's first key; many tiles; many items.
    for (int64_t t : {1, 63, 65, 129, 193, 257}) {
      QuantForwardCase tail;
      tail.note = "tuned", tail.method = Method::sage2, tail.d = tail.e = d;
      tail.s = 3, tail.t = t, tail.b = tail.g = 1, tail.q_block = 16, tail.k_block = 64;
      rows.push_back(tail);
    }
    QuantForwardCase many;
    many.note = "tuned", many.method = Method::sage2pp, many.q_block = 16, many.k_mean = true;
    many.d = many.e = d, many.s = 5, many.t = 9000, many.b = many.h = many.g = 1;
    rows.push_back(many);
    many.b = 9, many.h = 16, many.g = 4, many.s = 10, many.t = 140, many.where = Where::varlen;
    many.causal = true, many.o_dtype = FOVEA_BF16, many.q_plain = true;
    rows.push_back(many);
  }
  return rows;
}

// Of the tuned kernels of i8 alone: every row of quant/forward_integer.inc.  Those of sm_80 have
// blocks of no power of two on Hopper.
std::vector<QuantForwardCase> quant_run_rows() {
  std::vector<QuantForwardCase> rows;
  for (int64_t d : {64, 128}) {
    QuantForwardCase first;
    first.note = "tuned", first.method = Method::sagebwd, first.q_block = first.k_block = 64;
    first.d = first.e = d, first.b = 1, first.s = 200, first.t = 430, first.h = 2, first.g = 1;
    first.o_dtype = FOVEA_BF16;
    rows.push_back(first);
    QuantForwardCase c = first;
    c.causal = c.k_mean = c.q_plain = true, c.o_dtype = FOVEA_F16;
    rows.push_back(c);
    c.s = 330, c.t = 200, c.q_plain = false, c.k_block = 128, c.v_block = 0;  // rows without keys
    rows.push_back(c);
    c.causal = false, c.left = 100, c.right = 30, c.o_dtype = FOVEA_F32, c.s = 200, c.t = 430;
    c.q_block = 0, c.k_block = 0, c.v_block = 256, c.lse = false;
    rows.push_back(c);
    c = first;
    c.where = Where::varlen, c.b = 3, c.s = 90, c.zeros = true;
    rows.push_back(c);
    c.where = Where::lengths, c.causal = c.sink_logit = true, c.q_block = 16;
    rows.push_back(c);
    c.where = Where::batched, c.zeros = false, c.constant = true, c.lay = Lay::head_first;
    rows.push_back(c);
    // A factor so large that a run has one weight; one key; many tiles; many items.
    c = first;
    c.s = 70, c.t = 130, c.scale = 3e5f;
    rows.push_back(c);
    c.t = 1, c.scale = 0;
    rows.push_back(c);
    c.s = 5, c.t = 9000, c.h = 1, c.k_mean = true;
    rows.push_back(c);
    c.b = 9, c.h = 16, c.g = 4, c.s = 10, c.t = 140, c.where = Where::varlen, c.causal = true;
    rows.push_back(c);
  }
  return rows;
}

// Of the tuned kernels of v in 16 bits: every row of quant/forward_half.inc.
std::vector<QuantForwardCase> quant_half_rows() {
  std::vector<QuantForwardCase> rows;
  for (int64_t d : {64, 128})
    for (bool bf16 : {false, true}) {
      QuantForwardCase first;
      first.note = "tuned", first.method = Method::sage1, first.bf16_v = bf16;
      first.q_block = bf16 ? 16 : 128, first.k_block = 64;
      first.d = first.e = d, first.b = 1, first.s = 200, first.t = 430, first.h = 2, first.g = 1;
      first.o_dtype = FOVEA_BF16;
      rows.push_back(first);
      QuantForwardCase c = first;
      c.causal = c.k_mean = c.q_plain = true, c.o_dtype = FOVEA_F16;
      rows.push_back(c);
      c.s = 330, c.t = 200, c.q_plain = false, c.k_block = 128;  // rows that see nothing
      rows.push_back(c);
      c.causal = false, c.left = 100, c.right = 30, c.o_dtype = FOVEA_F32, c.s = 200, c.t = 430;
      c.q_block = 64, c.q_plain = true, c.lse = false;
      rows.push_back(c);
      c = first;
      c.where = Where::varlen, c.b = 3, c.s = 90, c.zeros = true;
      rows.push_back(c);
      c.where = Where::lengths, c.causal = c.sink_logit = true, c.q_block = 16, c.h = 4, c.g = 2;
      rows.push_back(c);
      c.where = Where::batched, c.zeros = false, c.constant = true, c.lay = Lay::head_first;
      rows.push_back(c);
      // Narrower v, then narrower q and k; a factor so large that rows have few weights.
      c = first;
      c.e = d / 2 + 8, c.k_mean = true;
      rows.push_back(c);
      c.d = d - 16, c.e = d, c.causal = true;
      rows.push_back(c);
      c = first;
      c.s = 70, c.t = 130, c.scale = 30;
      rows.push_back(c);
      // Keys of a tail that is less than a thread's first key; many tiles; many items.
      for (int64_t t : {1, 63, 65, 129, 257}) {
        QuantForwardCase tail = first;
        tail.s = 3, tail.t = t, tail.h = 1;
        rows.push_back(tail);
      }
      c = first;
      c.s = 5, c.t = 9000, c.h = 1, c.k_mean = true;
      rows.push_back(c);
      c.b = 9, c.h = 16, c.g = 4, c.s = 10, c.t = 140, c.where = Where::varlen, c.causal = true;
      rows.push_back(c);
    }
  return rows;
}

// Of the tuned kernels: i8 with delta, and i4, with delta and without.
std::vector<QuantForwardCase> quant_delta_rows() {
  std::vector<QuantForwardCase> rows;
  int n = 0;
  for (QuantForwardCase c : quant_integer_rows()) {
    const bool tail = c.s == 3, blocks = c.method == Method::blocks;
    if (!blocks && !tail && c.where != Where::varlen) {
      rows.push_back(c);
      rows.back().method = Method::sage2_i4;
    }
    c.delta = true, c.q_plain = c.k_mean;
    if (blocks || c.causal) rows.push_back(c);
    if (blocks) continue;
    c.method = Method::sage2_i4;
    if (++n % 4 == 2) c.lay = Lay::head_first;
    rows.push_back(c);
  }
  // Widths below an instance's, e below d and above; sixteen columns; rows over two tiles.
  constexpr int64_t widths[][2] = {{80, 72}, {64, 40}, {16, 64}, {96, 128}, {160, 200}};
  for (const auto& width : widths) {
    QuantForwardCase c;
    c.note = "tuned", c.method = Method::sage2_i4, c.d = width[0], c.e = width[1], c.q_block = 16;
    c.s = 140, c.t = 301, c.h = 4, c.g = 2, c.causal = c.delta = c.k_mean = c.q_plain = true;
    rows.push_back(c);
    c.sink_logit = true, c.left = 70, c.causal = false, c.where = Where::varlen, c.b = 3;
    rows.push_back(c);
  }
  // Rows of a cache, one sequence without; more work items than blocks at once.
  QuantForwardCase c;
  c.note = "tuned", c.method = Method::sage2_i4, c.where = Where::cache_row, c.b = 4, c.s = 70;
  c.t = 200, c.d = c.e = 128, c.h = 2, c.g = 1, c.causal = c.delta = true, c.q_block = 16;
  rows.push_back(c);
  c = {};
  c.note = "tuned", c.method = Method::sage2_i4, c.b = 2, c.h = 40, c.g = 4, c.s = 260, c.t = 261;
  c.d = c.e = 64, c.delta = c.causal = true, c.q_block = 16;
  rows.push_back(c);
  return rows;
}

// Of every method: lengths off blocks, masks, places, means.
std::vector<QuantForwardCase> quant_method_rows() {
  std::vector<QuantForwardCase> rows;
  constexpr int64_t lengths[][2] = {{1, 1},   {5, 300},  {65, 129}, {130, 64},
                                    {63, 63}, {33, 257}, {3, 0},    {129, 65}};
  constexpr int64_t widths[][2] = {{64, 64}, {32, 24}, {128, 128}, {96, 40}};
  constexpr int dtypes[] = {FOVEA_F32, FOVEA_F16, FOVEA_BF16};
  constexpr Lay lays[] = {Lay::contiguous, Lay::gaps, Lay::odd};
  constexpr int64_t blocks[][2] = {{128, 64}, {16, 128}, {32, 64}, {64, 192}};
  int i = 0;
  for (Method method :
       {Method::sage1, Method::sage2, Method::sage2_i4, Method::sage2pp, Method::sage3_nv,
        Method::sage3_mx, Method::sagebwd, Method::tokens, Method::blocks})
    for (int n = 0; n < 9; ++n, ++i) {
      QuantForwardCase c;
      c.method = method;
      c.s = lengths[i % 8][0], c.t = lengths[i % 8][1];
      c.d = widths[(i + i / 8) % 4][0], c.e = widths[(i + i / 8) % 4][1];
      c.q_block = blocks[i % 4][0], c.k_block = blocks[i % 4][1];
      c.o_dtype = dtypes[i % 3], c.h = 4, c.g = i % 3 == 0 ? 4 : i % 3 == 1 ? 1 : 2;
      c.where = i % 5 == 2 ? Where::varlen : i % 5 == 4 ? Where::lengths : Where::batched;
      c.b = c.where == Where::batched ? 2 : 3;
      c.transposed = i % 7 != 3 || method == Method::sage3_nv || method == Method::sage3_mx;
      c.permuted = i % 2;
      c.causal = i % 3 == 1, c.left = i % 7 == 4 ? 20 : 0, c.right = i % 3 == 2 && i % 2 ? 3 : 0;
      c.k_mean = n % 3 != 0, c.q_plain = n % 3 == 1, c.delta = n % 3 != 2 && n % 2;
      c.v_mean = n % 4 == 2, c.softcap = n == 7, c.sink_logit = n == 5 || n == 8;
      c.lse = n != 6, c.lay = lays[i % 3];
      rows.push_back(c);
    }
  for (Method method : {Method::sage1, Method::sage2, Method::sagebwd})
    for (bool constant : {false, true}) {
      QuantForwardCase c;
      c.method = method, c.s = 70, c.t = 200, c.d = c.e = 64, c.k_mean = c.q_plain = true;
      c.zeros = !constant, c.constant = constant, c.k_block = 64, c.o_dtype = FOVEA_BF16;
      rows.push_back(c);
    }
  return rows;
}

// Of every method over lists: blocks of rows off tiles, blocks of keys of any size, skipped tiles.
std::vector<QuantForwardCase> quant_list_rows() {
  std::vector<QuantForwardCase> rows;
  constexpr int64_t lengths[][2] = {{5, 300}, {130, 257}, {65, 129}, {200, 64}, {3, 0}, {90, 400}};
  constexpr int64_t widths[][2] = {{64, 64}, {32, 24}, {16, 40}};
  constexpr int64_t list_rows[] = {128, 64, 1, 100, 17}, list_keys[] = {64, 128, 192, 64};
  int i = 0;
  for (Method method :
       {Method::fa3, Method::sage1, Method::sage2, Method::sage2_i4, Method::sage2pp,
        Method::sage3_nv, Method::sage3_mx, Method::sagebwd, Method::tokens, Method::blocks})
    for (int n = 0; n < 4; ++n, ++i) {
      QuantForwardCase c;
      c.method = method, c.h = 4, c.g = i % 3 == 0 ? 4 : i % 3 == 1 ? 1 : 2;
      c.s = lengths[i % 6][0], c.t = lengths[i % 6][1];
      c.d = widths[i % 3][0], c.e = widths[i % 3][1], c.k_block = 64;
      c.where = i % 7 == 2 ? Where::varlen : i % 7 == 5 ? Where::lengths : Where::batched;
      c.b = c.where == Where::batched ? 1 : 3;
      c.list_rows = list_rows[i % 5], c.list_keys = list_keys[i % 4], c.keep = 2 + i % 3;
      c.entry_keys = i % 8 == 5 ? 64 : 0, c.x = i % 3 == 0 ? 4 : i % 4 == 1 ? 2 : 1;
      c.counts = i % 4 == 2, c.margin = i % 3 == 1 ? 1.5f : 0;
      c.causal = i % 4 == 1, c.left = i % 7 == 4 ? 50 : 0;
      c.k_mean = n == 1 || n == 2, c.q_plain = n == 1, c.delta = n == 1 || n == 3;
      c.v_mean = n == 2, c.softcap = i % 11 == 7, c.sink_logit = i % 5 == 3;
      c.permuted = i % 2, c.o_dtype = i % 2 ? FOVEA_BF16 : FOVEA_F32;
      rows.push_back(c);
    }
  return rows;
}

// Of the tuned kernels over lists: every row of quant/listed.inc.
std::vector<QuantForwardCase> quant_tuned_list_rows() {
  std::vector<QuantForwardCase> rows;
  for (int64_t d : {64, 128, 256}) {
    QuantForwardCase c;
    c.note = "tuned", c.method = Method::sage2;
    c.d = c.e = d, c.b = 1, c.s = 140, c.t = 300, c.h = 2, c.g = 1, c.o_dtype = FOVEA_BF16;
    c.q_block = 16, c.k_block = 128, c.list_rows = 128, c.keep = 4, c.ascends = true;
    rows.push_back(c);
    c.causal = c.k_mean = c.q_plain = true, c.o_dtype = FOVEA_F16, c.x = 2, c.k_block = 64;
    rows.push_back(c);
    c.ascends = false, c.keep = 7, c.counts = true, c.q_plain = false;
    rows.push_back(c);
    c.causal = false, c.left = 100, c.right = 30, c.list_keys = 128, c.keep = 3;
    c.o_dtype = FOVEA_F32;
    rows.push_back(c);
    c.left = c.right = 0, c.where = Where::varlen, c.b = 3, c.s = 131, c.x = 1, c.q_plain = true;
    rows.push_back(c);
    c.where = Where::lengths, c.causal = c.sink_logit = true, c.list_keys = 64, c.keep = 9;
    c.method = Method::sage2pp, c.t = 257;
    rows.push_back(c);
    // The last block, which is cut, many times over.
    c = {};
    c.note = "tuned", c.method = Method::blocks, c.d = c.e = d, c.b = 1, c.s = 130, c.t = 40;
    c.h = c.g = 1, c.q_block = c.k_block = 64, c.list_rows = 128, c.keep = 8;
    rows.push_back(c);
    c.q_block = c.k_block = 0, c.lay = Lay::head_first, c.t = 193, c.lse = false;
    rows.push_back(c);
    // Many tiles a row.
    c = {};
    c.note = "tuned", c.method = Method::sage2, c.q_block = 16, c.k_mean = true, c.d = c.e = d;
    c.s = 1, c.t = 5500, c.b = c.h = c.g = 1, c.list_rows = 128, c.keep = 80, c.ascends = true;
    rows.push_back(c);
  }
  return rows;
}

// Pages of every method: shorter than a tile, off blocks, whole tiles; some shared, one absent.
std::vector<QuantForwardCase> quant_paged_rows() {
  std::vector<QuantForwardCase> rows;
  constexpr int64_t lengths[][2] = {{1, 40}, {5, 150}, {33, 257}, {70, 130}, {3, 70}};
  constexpr int64_t widths[][2] = {{64, 64}, {32, 24}, {16, 40}};
  constexpr int64_t pages[] = {16, 128, 1, 48, 64, 5, 192};
  constexpr Lay lays[] = {Lay::contiguous, Lay::gaps, Lay::odd};
  int i = 0;
  for (Method method :
       {Method::fa3, Method::sage1, Method::sage2, Method::sage2_i4, Method::sage2pp,
        Method::sage3_nv, Method::sage3_mx, Method::sagebwd, Method::tokens, Method::blocks})
    for (int n = 0; n < 3; ++n, ++i) {
      QuantForwardCase c;
      c.note = i % 8 == 7 ? "rows" : "";
      c.method = method, c.h = 4, c.g = i % 3 == 0 ? 4 : i % 3 == 1 ? 1 : 2, c.b = 4;
      c.where = i % 8 == 7 ? Where::cache_row : Where::paged;
      c.page = i % 8 == 7 ? 0 : pages[i % 7], c.packed = c.page && i % 5 == 2;
      c.s = lengths[i % 5][0], c.t = lengths[i % 5][1];
      c.d = widths[i % 3][0], c.e = widths[i % 3][1];
      c.scales = static_cast<Scales>(n), c.k_block = n ? 64 : 128, c.lay = lays[i / 2 % 3];
      c.transposed = n || method == Method::sage3_nv || method == Method::sage3_mx;
      c.permuted = i % 2, c.o_dtype = i % 2 ? FOVEA_BF16 : FOVEA_F32;
      c.causal = i % 4 == 1, c.left = i % 7 == 4 ? 20 : 0, c.sink_logit = i % 6 == 3;
      c.k_mean = n == 1, c.v_mean = i % 4 == 2, c.softcap = i % 11 == 7;
      rows.push_back(c);
    }
  return rows;
}

// Of the tuned kernels over pages: every row of quant/paged.inc.
std::vector<QuantForwardCase> quant_tuned_paged_rows() {
  std::vector<QuantForwardCase> rows;
  const auto add = [&](const QuantForwardCase& c, int64_t page) {
    rows.push_back(c), rows.back().page = page;
  };
  for (int64_t d : {64, 128, 256}) {
    QuantForwardCase all;
    all.note = "tuned", all.where = Where::paged, all.one_v = true;
    all.d = all.e = d, all.b = 2, all.s = 140, all.t = 430, all.h = 2, all.g = 1;
    QuantForwardCase c = all;
    c.one_k = true, c.o_dtype = FOVEA_BF16;
    add(c, 128);
    c.causal = true, c.one_k = false, c.o_dtype = FOVEA_F16;
    add(c, 64);
    c.s = 270, c.t = 200, c.scales = Scales::block, c.q_block = 64;  // rows that see nothing
    add(c, 256);
    c.causal = false, c.left = 100, c.right = 30, c.s = 140, c.t = 430, c.k_block = 64;
    c.o_dtype = FOVEA_F32;
    add(c, 192);
    // One sequence without keys, packed rows.
    c.left = c.right = 0, c.b = 4, c.s = 70, c.packed = c.causal = c.sink_logit = true;
    c.k_block = 128, c.h = 4, c.g = 2;
    add(c, 128);
    c = all, c.scales = Scales::none, c.lay = Lay::head_first, c.lse = false;
    add(c, 64);
    c = all, c.b = 1, c.s = 5, c.t = 9000, c.h = 1;  // more pages than a warp looks up at once
    add(c, 64);
    c = all, c.method = Method::sage2, c.q_block = 16, c.o_dtype = FOVEA_BF16;
    add(c, 128);
    c.causal = c.k_mean = true, c.k_block = 64, c.o_dtype = FOVEA_F16;
    add(c, 64);
    c.b = 4, c.s = 70, c.packed = c.sink_logit = true, c.method = Method::sage2pp;
    add(c, 192);
    c = all, c.method = Method::blocks, c.q_block = c.k_block = 0, c.one_k = true;
    add(c, 256);
    // Keys of a tail that is less than a thread's first key.
    for (int64_t t : {1, 65, 193}) {
      QuantForwardCase tail = all;
      tail.method = Method::sage2, tail.b = tail.h = 1, tail.s = 3, tail.t = t;
      tail.q_block = 16, tail.k_block = 64;
      add(tail, 128);
    }
  }
  return rows;
}

// Of the tuned kernels over small pages: every row of quant/page_runs.inc.
std::vector<QuantForwardCase> quant_tuned_run_rows() {
  std::vector<QuantForwardCase> rows;
  for (int64_t d : {64, 128, 256}) {
    QuantForwardCase all;
    all.note = "tuned", all.where = Where::paged, all.one_k = all.one_v = true;
    all.d = all.e = d, all.b = 2, all.s = 140, all.t = 330, all.h = 2, all.g = 1;
    QuantForwardCase c = all;
    c.page = 16, c.o_dtype = FOVEA_BF16;
    rows.push_back(c);
    c.page = 32, c.causal = true, c.o_dtype = FOVEA_F16;
    rows.push_back(c);
    c.page = 48, c.b = 4, c.s = 70, c.packed = c.sink_logit = true, c.h = 4, c.g = 2;
    rows.push_back(c);
    c = all, c.page = 96, c.left = 100, c.right = 30, c.lay = Lay::head_first;
    rows.push_back(c);
    c = all, c.page = 16, c.scales = Scales::none, c.b = 1, c.s = 5, c.t = 3000, c.h = 1;
    rows.push_back(c);
  }
  return rows;
}

// Of the tuned kernels: rows of a cache, one sequence without.
std::vector<QuantForwardCase> quant_tuned_row_rows() {
  std::vector<QuantForwardCase> rows;
  QuantForwardCase c;
  c.note = "tuned", c.where = Where::cache_row, c.b = 4, c.s = 70, c.t = 200, c.d = c.e = 128;
  c.h = 2, c.g = 1, c.causal = true;
  rows.push_back(c);
  c.method = Method::sage2, c.k_mean = c.q_plain = true, c.q_block = 16, c.k_block = 64;
  rows.push_back(c);
  rows.push_back(c);
  rows.back().method = Method::sagebwd, rows.back().q_block = 64;
  rows.push_back(c);
  rows.back().method = Method::sage1;
  c.list_rows = 128, c.keep = 4, c.ascends = true, c.q_plain = false;
  rows.push_back(c);
  return rows;
}

std::vector<harness::Case> quant_forward_cases() {
  std::vector<harness::Case> cases;
  const auto add = [&](const QuantForwardCase& c, std::string kernel = "", bool tiny = false) {
    cases.push_back({"quant_forward", name_of(c),
                     [c](uint64_t seed) { return QuantForwardBuild(c, seed).build(); },
                     std::move(kernel), "", tiny});
  };
  constexpr int64_t lengths[][2] = {{1, 1},    {5, 300}, {65, 129}, {130, 64},
                                    {33, 257}, {3, 0},   {70, 70}};
  constexpr int64_t widths[][2] = {{16, 16}, {40, 24}, {128, 128}, {1, 1}, {64, 96}, {576, 512}};
  constexpr Lay lays[] = {Lay::contiguous, Lay::head_first, Lay::gaps, Lay::odd, Lay::wide};
  constexpr int dtypes[] = {FOVEA_F32, FOVEA_F16, FOVEA_BF16};
  for (int i = 0; i < 42; ++i) {
    QuantForwardCase c;
    c.s = lengths[i % 7][0], c.t = lengths[i % 7][1];
    c.d = widths[(i + i / 7) % 6][0], c.e = widths[(i + i / 7) % 6][1];
    c.o_dtype = dtypes[i % 3], c.h = 6, c.g = i % 4 == 0 ? 6 : i % 4 == 1 ? 1 : 2;
    c.scales = static_cast<Scales>(i % 3), c.q_block = i % 2 ? 64 : 128,
    c.k_block = 192 - c.q_block;
    c.transposed = i % 4 < 3, c.permuted = i % 4 < 2, c.lay = lays[i % 5];
    c.where = i % 5 == 2 ? Where::varlen : i % 5 == 4 ? Where::lengths : Where::batched;
    c.b = c.where == Where::batched ? 2 : 3;
    c.causal = i % 3 == 1, c.left = i % 7 == 4 ? 20 : 0, c.right = i % 3 == 2 && i % 2 ? 3 : 0;
    c.softcap = i % 6 == 5, c.sink_logit = i % 8 == 3, c.lse = i % 9 != 4;
    c.scale = i % 10 == 7 ? 0.3f : 0;
    add(c);
  }
  for (const QuantForwardCase& c : quant_tuned_rows()) add(c, "sm90.d" + std::to_string(c.d));
  for (const QuantForwardCase& c : quant_integer_rows()) add(c, "sm90_i8.d" + std::to_string(c.d));
  for (const QuantForwardCase& c : quant_delta_rows()) {
    const int64_t width = std::max(c.d, c.e);
    add(c, std::string(c.method == Method::sage2_i4 ? "sm90_i4" : "sm90_i8") +
               (c.delta ? ".delta.d" : ".d") +
               std::to_string(width <= 64    ? 64
                              : width <= 128 ? 128
                                             : 256));
  }
  for (QuantForwardCase c : quant_run_rows()) {
    add(c, "sm90_integer.d" + std::to_string(c.d));
    if (c.q_block != 64 || c.k_block != 64 || c.t != 430) continue;
    c.k_block = 192, c.zeros = false, c.note = "block192_tuned";
    add(c, "sm80_i8.d" + std::to_string(c.d));
  }
  for (const QuantForwardCase& c : quant_half_rows())
    add(c, c.d > 64 || c.e > 64 ? "sm90_half.d128" : "sm90_half.d64");
  for (const QuantForwardCase& c : quant_method_rows()) add(c);
  QuantForwardCase c;
  c.note = "tuned", c.s = 70, c.t = 300, c.d = 80, c.e = 72, c.scales = Scales::block;
  add(c, "sm90.d128");
  c = {};
  c.note = "small", c.s = 3, c.t = 9, c.h = 2, c.g = 1, c.d = 8, c.e = 8, c.b = 1;
  c.transposed = false;
  add(c, "", true);
  c.transposed = true, c.causal = true, c.scales = Scales::block, c.e = 4;
  add(c, "", true);
  c.note = "edge", c.s = 0;
  add(c);
  c.s = 3, c.h = c.g = 0;
  add(c);
  for (const QuantForwardCase& list : quant_list_rows()) add(list);
  for (const QuantForwardCase& list : quant_tuned_list_rows())
    add(list, "sm90_i8.lists.d" + std::to_string(list.d));
  for (const QuantForwardCase& paged : quant_paged_rows()) add(paged);
  const auto kind = [](const QuantForwardCase& tuned) {
    return std::string(tuned.method == Method::fa3       ? "sm90"
                       : tuned.method == Method::sagebwd ? "sm90_integer"
                       : tuned.method == Method::sage1   ? "sm90_half"
                                                         : "sm90_i8") +
           (tuned.list_rows   ? ".lists"
            : !tuned.page     ? ""
            : tuned.page % 64 ? ".runs"
                              : ".pages") +
           ".d" + std::to_string(tuned.d);
  };
  for (const QuantForwardCase& tuned : quant_tuned_paged_rows()) add(tuned, kind(tuned));
  for (const QuantForwardCase& tuned : quant_tuned_run_rows()) add(tuned, kind(tuned));
  for (const QuantForwardCase& tuned : quant_tuned_row_rows()) add(tuned, kind(tuned));
  c.note = "small", c.h = 2, c.g = 1, c.list_rows = 2, c.keep = 2, c.margin = 1;
  add(c, "", true);
  return cases;
}

const Family kFamily("quant", quant_forward_cases);

}  // namespace

}  // namespace cases
