// SPDX-License-Identifier: Apache-2.0
// Low-bit caches of levels by name: calls of x_kv_decode on a cache that the method's definition
// fills, from keys and values that it knows whole.  Sequence b has t - 37 b tokens.
#include "cases/table.h"
#include "oracle/kv.h"
#include "oracle/recipes_kv.h"

namespace cases {
namespace {

using oracle::recipes::Coded;
using Params = fovea_x_kv_decode_params;

constexpr double kRange = 2.575829303548901;  // 99.5 % of normal numbers are below

struct Cached {
  const TableCall& made;
  const int64_t bits;
  const bool turbo;
  const int dtype;

  Cached(const TableCall& from, int64_t bits_, bool turbo_)
      : made(from),
        bits(bits_),
        turbo(turbo_),
        dtype(from.call.fields.empty() ? FOVEA_F16 : from.params<Params>().q.dtype) {}
  int64_t at(const char* letter) const { return made.letters.at(letter); }
  int64_t length(int64_t b) const { return std::max<int64_t>(0, at("t") - 37 * b); }
  static double center(int64_t c) { return static_cast<float>(0.2 * static_cast<double>(c % 5)); }

  // Numbers that the dtype holds.
  double drawn(bool key, int64_t b, int64_t j, int64_t c) const {
    const harness::Random random(key ? 81 : 82);
    const uint64_t n = static_cast<uint64_t>((b * 4096 + j) * 1024 + c);
    return oracle::nearest(dtype, random.normal(n) + (turbo || !key ? 0 : center(c)));
  }
  std::vector<double> row(bool key, int64_t b, int64_t j) const {
    std::vector<double> x;
    for (int64_t c = 0; c < at("g") * at(key ? "d" : "e"); ++c) x.push_back(drawn(key, b, j, c));
    return x;
  }
  oracle::recipes::Levels levels(bool key) const {
    return {bits, turbo ? 1 / std::sqrt(static_cast<double>(at(key ? "d" : "e"))) : 1 / kRange};
  }
  // Token j, all heads.  head: whose norm is in range.
  Coded code_token(bool key, int64_t b, int64_t j, int64_t head) const {
    const std::vector<double> x = row(key, b, j);
    const int64_t width = at(key ? "d" : "e"), half = at(key ? "k_outliers" : "v_outliers") / 2;
    if (turbo) {
      const auto begin = x.begin() + head * width;
      return oracle::recipes::turboquant(levels(key), std::vector<double>(begin, begin + width));
    }
    const oracle::recipes::Kvquant method = bits == 2   ? oracle::recipes::kvquant2(kRange, half)
                                            : bits == 3 ? oracle::recipes::kvquant3(kRange, half)
                                                        : oracle::recipes::kvquant4(kRange, half);
    if (!key) return method.value(x);
    std::vector<double> offset;
    for (size_t c = 0; c < x.size(); ++c) offset.push_back(center(static_cast<int64_t>(c)));
    return method.coded(x, offset, std::vector<double>(x.size(), static_cast<float>(kRange)), 1);
  }
  // The same, kept: every element of the cache asks.
  const Coded& token(bool key, int64_t b, int64_t j, int64_t head) const {
    static thread_local std::map<std::vector<int64_t>, Coded> kept;
    if (kept.size() > 4096) kept.clear();
    const std::vector<int64_t> of = {
        bits, turbo, dtype, at("g"),          at("d"),          at("e"),
        key,  b,     j,     turbo ? head : 0, at("k_outliers"), at("v_outliers")};
    const auto [found, fresh] = kept.try_emplace(of);
    if (fresh) found->second = code_token(key, b, j, head);
    return found->second;
  }
  // Of column c of a head.
  size_t place(bool key, int64_t head, int64_t c) const {
    return static_cast<size_t>(turbo ? c : head * at(key ? "d" : "e") + c);
  }
  double number(bool key, int64_t b, int64_t j, int64_t head, int64_t c) const {
    if (j < firsts()) return row(key, b, j)[head * at(key ? "d" : "e") + c];
    return token(key, b, j, head).back[place(key, head, c)];
  }
  int64_t firsts() const { return made.has("k_first") ? at("firsts") : 0; }

  // Sequence and token of a slot of a page; false: nothing is there.
  bool token_at(int64_t id, int64_t slot, int64_t* b, int64_t* j) const {
    *b = id / at("pages"), *j = id % at("pages") * at("page") + slot;
    return *b < at("b") && *j < length(*b) && *j >= firsts();
  }
  // Word w of a stream; code(n) may be 0.
  template <class Code>
  double word(int64_t w, const Code& code) const {
    uint32_t to = 0;
    for (int64_t bit = 0; bit < 32; ++bit) {
      const int64_t n = (w * 32 + bit) / bits, of = (w * 32 + bit) % bits;
      to |= static_cast<uint32_t>(code(n) >> of & 1) << bit;
    }
    return static_cast<int32_t>(to);
  }
  double outlier(bool key, const int64_t* i) const {
    int64_t b, j, n = i[2];
    if (!token_at(i[0], i[1], &b, &j)) return 65535;
    for (const auto& [column, lacks] : token(key, b, j, 0).outlier) {
      if (n--) continue;
      uint8_t bytes[2];
      oracle::encode(FOVEA_F16, lacks, bytes);
      return static_cast<int32_t>(static_cast<uint32_t>(column) |
                                  static_cast<uint32_t>(bytes[0]) << 16 |
                                  static_cast<uint32_t>(bytes[1]) << 24);
    }
    return 65535;
  }
  double contents(const std::string& field, const int64_t* i, double normal) const {
    int64_t b, j;
    if (field == "k_level" || field == "v_level") return levels(field[0] == 'k').level[i[0]];
    if (field == "k_offset") return center(i[0] * at("d") + i[1]);
    if (field == "k_range") return static_cast<float>(kRange);
    if (field == "k_outlier" || field == "v_outlier") return outlier(field[0] == 'k', i);
    if (field == "k_first")
      return i[0] < at("b") ? drawn(true, i[0], i[1], i[2] * at("d") + i[3]) : 0;
    if (field == "v_first")
      return i[0] < at("b") ? drawn(false, i[0], i[1], i[2] * at("e") + i[3]) : 0;
    if (field == "page_table") return static_cast<double>(i[0] * at("pages") + i[1]);
    if (field == "counter") return i[1] < 3 ? static_cast<double>(length(i[0])) : 0;
    if (field == "k_code")
      return word(i[4], [&](int64_t n) {
        if (!token_at(i[0], i[1] * 32 + n, &b, &j)) return int64_t{0};
        return token(true, b, j, i[2]).code[place(true, i[2], i[3])];
      });
    if (field == "v_code") {
      if (!token_at(i[0], i[1], &b, &j)) return 0;
      const Coded& of = token(false, b, j, i[2]);
      return word(i[3], [&](int64_t n) { return of.code[place(false, i[2], n)]; });
    }
    if (field == "v_bound" || field == "k_norm" || field == "v_norm") {
      const bool bound = field == "v_bound";
      if (!token_at(i[0], i[1], &b, &j)) return 1;
      const Coded& of = token(field[0] == 'k', b, j, bound ? 0 : i[2]);
      return bound && i[2] == 0 ? of.offset : of.range;
    }
    if (field == "cos" || field == "sin") {
      const double angle =
          static_cast<double>(i[0]) *
          std::pow(1e4, -2.0 * static_cast<double>(i[1]) / static_cast<double>(at("d")));
      return field == "cos" ? std::cos(angle) : std::sin(angle);
    }
    return normal;
  }
};

void shape(TableCall& made, int64_t bits) {
  Letters& x = made.letters;
  if (x["page"] < 32) x["page"] = 64;
  if (x["e"] < 32) x["e"] = 32;
  x["pages"] = (x["t"] + x["page"] - 1) / x["page"], x["pool"] = x["pages"] * x["b"] + 1;
  x["r"] = x["rows"] = x["b"], x["page_groups"] = x["page"] / 32, x["k_words"] = bits;
  x["v_words"] = x["e"] * bits / 32, x["levels"] = int64_t{1} << bits, x["firsts"] = 1;
  x["positions"] = x["pages"] * x["page"], x["half"] = x["d"] / 2;
}

// The paper's attention; roundings are the operation's.
std::vector<Expected> by_the_paper(TableCall& made, int64_t bits, bool turbo) {
  const Params& p = made.params<Params>();
  const Cached cached(made, bits, turbo);
  oracle::KvDecodeOracle paper(p, oracle::Mode::exact);
  oracle::Attention& a = paper.a;
  for (int64_t b = 0; b < a.b; ++b)
    for (int64_t j = 0; j < cached.length(b); ++j)
      for (int64_t head = 0; head < a.g; ++head) {
        const int64_t block = b * (paper.at.capacity() / 32) + j / 32;
        for (int64_t c = 0; c < a.d; ++c)
          a.k.value[a.k.at_index(block, j % 32, head, c)] = cached.number(true, b, j, head, c);
        for (int64_t c = 0; c < a.e; ++c)
          a.v.value[a.v.at_index(block, j % 32, head, c)] = cached.number(false, b, j, head, c);
      }
  const oracle::KvDecodeOracle rounded(p, oracle::Mode::rounded);
  const auto exact = oracle::forward(a, p.o, p.lse, oracle::Mode::exact);
  const auto other = oracle::forward(rounded.a, p.o, p.lse, oracle::Mode::rounded);
  return {{"o", exact.o, other.o}, {"lse", exact.lse, other.lse}};
}

Table of_levels(int64_t bits, bool turbo) {
  return Table("x_kv_decode", [=](TableCall& made) { return by_the_paper(made, bits, turbo); });
}

void method(std::vector<harness::Case>& all, Table& table, int64_t bits, bool turbo) {
  const std::string tensors =
      turbo ? " k_level v_level k_norm v_norm"
            : " k_level v_level k_offset k_range v_bound k_outlier v_outlier cos sin";
  table.shape([=](TableCall& made) { shape(made, bits); })
      .contents(
          [=](const TableCall& made, const std::string& field, const int64_t* i, double normal) {
            return Cached(made, bits, turbo).contents(field, i, normal);
          });
  table.each("small",
             {"b=1 s=1 t=20 h=2 g=1 d=4 e=32 page=32 lse k_outliers=2 v_outliers=2" + tensors},
             true);
  table.sweep({{"q:f16" + tensors, "q:bf16" + tensors, "q:f16 k_first v_first" + tensors},
               {"b=1 s=1 t=65", "b=2 s=1 t=64", "b=2 s=3 t=70", "b=1 s=20 t=90"},
               {"h=2 g=1 d=8 e=32", "h=2 g=2 d=12 e=64"},
               {"k_outliers=2 v_outliers=2", "k_outliers=4 v_outliers=6"},
               {"contiguous", "odd"},
               {"", "lse", "lse o:f32"}},
              static_cast<uint64_t>(321 + bits));
  for (const harness::Case& one : table.cases()) all.push_back(one);
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  method(all, of_levels(2, false).recipe("kvquant2"), 2, false);
  method(all, of_levels(3, false).recipe("kvquant3"), 3, false);
  method(all, of_levels(4, false).recipe("kvquant4"), 4, false);
  method(all, of_levels(4, true).recipe("turboquant"), 4, true);
  return all;
}

const Family kFamily("recipes_kv_levels", recipe_cases);

}  // namespace
}  // namespace cases
