// SPDX-License-Identifier: Apache-2.0
// quant_forward.
#include "oracle/quant.h"
#include "cases/all.h"
#include "cases/attention_case.h"
#include "cases/quant_case.h"

namespace cases {
namespace {

constexpr const char* kScalesNames[] = {"unscaled", "head", "block"};

std::string name_of(const QuantForwardCase& c) {
  auto number = [](const char* letter, int64_t n) {
    return std::string(letter) + std::to_string(n);
  };
  std::string name = std::string(dtype_name(c.o_dtype)) + number("/b", c.b) + number("_s", c.s) +
                     number("_t", c.t) + number("_h", c.h) + number("_g", c.g) + number("_d", c.d) +
                     number("_e", c.e) + "/" + kScalesNames[static_cast<int>(c.scales)];
  if (c.scales == Scales::block) name += number("", c.q_block) + number("_", c.k_block);
  const std::pair<bool, const char*> flags[] = {
      {c.causal, "_causal"},    {c.left > 0, "_left"},
      {c.right > 0, "_right"},  {c.transposed && !c.permuted, "_plain_order"},
      {!c.transposed, "_rows"}, {c.softcap, "_softcap"},
      {c.sink_logit, "_sink"},  {!c.lse, "_no_lse"},
      {c.scale > 0, "_scale"}};
  for (const auto& flag : flags) name += flag.first ? flag.second : "";
  if (c.where != Where::batched) name += std::string("_") + kWhereNames[static_cast<int>(c.where)];
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
    scales(call);
    if (c_.sink_logit)
      call.fill(call.add("sink_logit", p_->sink_logit, Role::in, FOVEA_F32, {c_.h}),
                [&](const int64_t* i) { return i[0] % 2 ? -1.5 : 2.0; });
    p_->causal = c_.causal, p_->window_left = c_.left, p_->window_right = c_.right;
    p_->scale = c_.scale, p_->softcap = c_.softcap ? 3.0f : 0;
    const size_t o = call.add("o", p_->o, Role::out, c_.o_dtype, {b_, s_, c_.h, c_.e}, c_.lay);
    size_t lse = 0;
    if (c_.lse) lse = call.add("lse", p_->lse, Role::out, FOVEA_F32, {b_, c_.h, s_}, c_.lay);
    account(call);
    auto exact = oracle::quant_forward(*p_, oracle::Mode::exact);
    auto rounded = oracle::quant_forward(*p_, oracle::Mode::rounded);
    call.expect(o, std::move(exact.o), std::move(rounded.o));
    if (c_.lse) call.expect(lse, std::move(exact.lse), std::move(rounded.lse));
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
    if (c_.where != Where::lengths) return;
    const auto shorter = [](int64_t full) {
      return [full](const int64_t* i) {
        return static_cast<double>(i[0] == 0 ? full : i[0] == 1 ? full / 2 : 0);
      };
    };
    call.fill(call.add("query_len", p_->query_len, Role::in, FOVEA_I32, {c_.b}), shorter(s_));
    call.fill(call.add("key_len", p_->key_len, Role::in, FOVEA_I32, {c_.b}), shorter(t_));
  }

  size_t code(Call& call, const char* name, fovea_tensor& slot, const Shape& shape) {
    const size_t field = call.add(name, slot, Role::in, FOVEA_E4M3, shape, c_.lay);
    call.fill(field, [&](const int64_t*) { return 2 * random_.normal(n_++); });
    return field;
  }
  void codes(Call& call) {
    q_ = code(call, "q", p_->q, {b_, s_, c_.h, c_.d});
    k_ = code(call, "k", p_->k, {key_b_, t_, c_.g, c_.d});
    if (c_.transposed)
      v_ = code(call, "v_t", p_->v_t,
                {key_b_, c_.g, c_.e, entries_of(packed_, t_, c_.b, 128) * 128});
    else
      v_ = code(call, "v", p_->v, {key_b_, t_, c_.g, c_.e});
    p_->code_order = c_.transposed && c_.permuted;
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
                       {b_, c_.h, entries_of(packed_, s_, c_.b, p_->q_block)}),
              scale(0.5));
    call.fill(call.add("k_scale", p_->k_scale, Role::in, FOVEA_F32,
                       {key_b_, c_.g, entries_of(packed_, t_, c_.b, p_->k_block)}),
              scale(0.5));
    call.fill(call.add("v_scale", p_->v_scale, Role::in, FOVEA_F32,
                       {key_b_, c_.g, entries_of(packed_, t_, c_.b, 0)}),
              scale(0.01));
  }

  // Rows and keys past their lengths count for nothing, nor does padding.
  void account(Call& call) {
    const oracle::QuantAttention a = oracle::load_quant(*p_);
    std::vector<char> rows(b_ * s_), keys(key_b_ * t_), columns(key_b_ * a.v_t.shape[3]);
    for (int64_t r = 0; r < a.at.sequences; ++r) {
      const oracle::Sequence q = oracle::sequence(a.at, r);
      for (int64_t i = 0; i < q.rows; ++i) rows[q.batch * s_ + q.row + i] = 1;
      for (int64_t j = 0; j < q.keys; ++j) {
        keys[q.cache * t_ + q.store + j] = 1;
        if (a.v_t)
          columns[q.cache * a.v_t.shape[3] +
                  oracle::value_column(a.at.key_start, r, j, a.permuted)] = 1;
      }
    }
    call.account(q_, [&](const int64_t* i) { return rows[i[0] * s_ + i[1]] != 0; });
    call.account(k_, [&](const int64_t* i) { return keys[i[0] * t_ + i[1]] != 0; });
    call.account(v_, [&](const int64_t* i) {
      return c_.transposed ? columns[i[0] * a.v_t.shape[3] + i[3]] != 0
                           : keys[i[0] * t_ + i[1]] != 0;
    });
  }

  const QuantForwardCase& c_;
  harness::Random random_;
  uint64_t n_ = 0;
  fovea_quant_forward_params* p_ = nullptr;
  int64_t b_ = 0, key_b_ = 0, s_ = 0, t_ = 0;
  bool packed_ = false;
  size_t q_ = 0, k_ = 0, v_ = 0;
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
  return cases;
}

const Family kFamily("quant", quant_forward_cases);

}  // namespace

}  // namespace cases
