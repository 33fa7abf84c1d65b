// SPDX-License-Identifier: Apache-2.0
// KVarN by name: calls of x_kv_decode on a cache that the method's definition fills, from keys and
// values that it knows whole.  Sequence b has t - 37 b tokens.
#include "cases/table.h"
#include "oracle/kv.h"
#include "oracle/recipes_kv.h"

namespace cases {
namespace {

using oracle::recipes::Kvarn;
using oracle::recipes::Letter;
using Params = fovea_x_kv_decode_params;

constexpr int64_t kTile = 128;

// Numbers that the tails hold exactly, with tokens and channels of their own size.
Letter drawn(uint64_t stream, int dtype) {
  return [=](int64_t b, int64_t j, int64_t head, int64_t c) {
    const harness::Random random(stream);
    const uint64_t n = static_cast<uint64_t>(((b * 4096 + j) * 64 + head) * 1024 + c);
    const double size = (1 + static_cast<double>(j % 3)) * (1 + 0.5 * static_cast<double>(c % 5));
    return oracle::nearest(dtype, random.normal(n) * size / 3);
  };
}

struct Cached {
  const TableCall& made;
  const int dtype;
  const Kvarn kvarn;
  const Letter k, v;

  explicit Cached(const TableCall& from)
      : made(from),
        dtype(from.params<Params>().q.dtype),
        kvarn(oracle::recipes::kvarn(from.letters.at("residual"))),
        k(drawn(91, dtype)),
        v(drawn(92, dtype)) {}
  int64_t at(const char* letter) const { return made.letters.at(letter); }
  int64_t length(int64_t b) const { return std::max<int64_t>(0, at("t") - 37 * b); }
  int64_t firsts() const { return made.has("k_first") ? at("firsts") : 0; }
  int64_t coded(int64_t b) const { return kvarn.count(length(b), firsts()); }

  // Kept: every element of the cache asks.
  const Kvarn::Tile& tile(bool key, int64_t b, int64_t j, int64_t head) const {
    static thread_local std::map<std::vector<int64_t>, Kvarn::Tile> kept;
    if (kept.size() > 256) kept.clear();
    const int64_t width = at(key ? "d" : "e");
    const auto [found, fresh] = kept.try_emplace({dtype, width, key, b, j / kTile, head});
    if (fresh) found->second = kvarn.tile(key, key ? k : v, width, b, j, head);
    return found->second;
  }
  double number(bool key, int64_t b, int64_t j, int64_t head, int64_t c) const {
    if (j < firsts() || j >= coded(b)) return (key ? k : v)(b, j, head, c);
    const Kvarn::Tile& of = tile(key, b, j, head);
    return key ? of(c, j % kTile) : of(j % kTile, c);
  }

  // Sequence and token of a slot of a page; false: nothing is in codes there.
  bool token_at(int64_t id, int64_t slot, int64_t* b, int64_t* j) const {
    *b = id / at("pages"), *j = id % at("pages") * at("page") + slot;
    return *b < at("b") && *j < coded(*b) && *j >= firsts();
  }
  // Word w of codes.
  static double word(int64_t w, int64_t bits, const std::vector<int64_t>& code) {
    uint32_t to = 0;
    for (int64_t n = 0; n < 32 / bits; ++n)
      to |= static_cast<uint32_t>(code[w * (32 / bits) + n]) << (n * bits);
    return static_cast<int32_t>(to);
  }
  double late(bool key, const int64_t* i) const {
    if (i[0] >= at("b")) return 0;
    const int64_t j = coded(i[0]) + i[1];
    return j < length(i[0]) ? (key ? k : v)(i[0], j, i[2], i[3]) : 0;
  }
  double contents(const std::string& field, const int64_t* i, double normal) const {
    const bool key = field[0] == 'k';
    const std::string of = field.substr(field.find('_') + 1);
    if (of == "tail") return late(key, i);
    if (of == "first") return i[0] < at("b") ? (key ? k : v)(i[0], i[1], i[2], i[3]) : 0;
    if (field == "page_table") return static_cast<double>(i[0] * at("pages") + i[1]);
    if (field == "counter")
      return static_cast<double>(i[1] == 0 ? length(i[0]) : i[1] < 3 ? coded(i[0]) : 0);
    if (of != "code" && of != "scale" && of != "zero" && of != "factor") return normal;
    int64_t b, j;
    const bool by_tile = key ? of != "factor" : of == "factor";
    if (!token_at(i[0], by_tile ? i[1] * kTile : i[1], &b, &j)) return 0;
    const Kvarn::Tile& x = tile(key, b, j, i[2]);
    if (of == "factor") return x.factor[key ? j % kTile : i[3]];
    const int64_t line = key ? i[3] : j % kTile;
    if (of == "code") return word(i[key ? 4 : 3], key ? 4 : 2, x.code[line]);
    return of == "scale" ? x.scale[line] : x.zero[line];
  }
};

void shape(TableCall& made) {
  Letters& x = made.letters;
  if (x["residual"] < kTile) x["residual"] = kTile;
  if (x["page"] < kTile) x["page"] = kTile;
  if (x["e"] < 16) x["e"] = 16;
  x["pages"] = (x["t"] + x["page"] - 1) / x["page"], x["pool"] = x["pages"] * x["b"] + 1;
  x["r"] = x["rows"] = x["b"], x["page_groups"] = x["page"] / kTile;
  x["k_words"] = kTile * 4 / 32, x["v_words"] = x["e"] * 2 / 32, x["v_groups"] = 1;
  x["ring"] = x["residual"], x["firsts"] = kTile;
}

// The paper's attention; roundings are the operation's.
std::vector<Expected> by_the_paper(TableCall& made) {
  const Params& p = made.params<Params>();
  const Cached cached(made);
  oracle::KvDecodeOracle paper(p, oracle::Mode::exact);
  oracle::Attention& a = paper.a;
  for (int64_t b = 0; b < a.b; ++b)
    for (int64_t j = 0; j < cached.length(b); ++j)
      for (int64_t head = 0; head < a.g; ++head) {
        const int64_t block = b * (paper.at.capacity() / kTile) + j / kTile;
        for (int64_t c = 0; c < a.d; ++c)
          a.k.value[a.k.at_index(block, j % kTile, head, c)] = cached.number(true, b, j, head, c);
        for (int64_t c = 0; c < a.e; ++c)
          a.v.value[a.v.at_index(block, j % kTile, head, c)] = cached.number(false, b, j, head, c);
      }
  const oracle::KvDecodeOracle rounded(p, oracle::Mode::rounded);
  const auto exact = oracle::forward(a, p.o, p.lse, oracle::Mode::exact);
  const auto other = oracle::forward(rounded.a, p.o, p.lse, oracle::Mode::rounded);
  return {{"o", exact.o, other.o}, {"lse", exact.lse, other.lse}};
}

std::vector<harness::Case> recipe_cases() {
  const std::string tensors = " k_scale k_zero v_scale v_zero k_tail v_tail k_factor v_factor";
  Table table("x_kv_decode", by_the_paper);
  table.recipe("kvarn").shape(shape).contents(
      [](const TableCall& made, const std::string& field, const int64_t* i, double normal) {
        return Cached(made).contents(field, i, normal);
      });
  table.each("small", {"b=1 s=1 t=140 h=2 g=1 d=2 e=16 lse" + tensors}, true);
  table.sweep({{"q:f16" + tensors, "q:bf16" + tensors, "q:f16 k_first v_first" + tensors},
               {"b=1 s=1 t=257", "b=2 s=1 t=290", "b=1 s=20 t=300"},
               {"h=2 g=1 d=8 e=32", "h=2 g=2 d=12 e=16"},
               {"residual=128", "residual=256 page=256"},
               {"contiguous", "odd"},
               {"", "lse", "lse o:f32"}},
              331);
  return table.cases();
}

const Family kFamily("recipes_kv_tiles", recipe_cases);

}  // namespace
}  // namespace cases
