// SPDX-License-Identifier: Apache-2.0
// Low-bit caches by name: calls of x_kv_decode on a cache that the method's definition fills, from
// keys and values that it knows whole.  Sequence b has t - 37 b tokens.
#include "oracle/recipes_kv.h"

#include "cases/table.h"
#include "oracle/kv.h"

namespace cases {
namespace {

using oracle::recipes::Kivi;
using oracle::recipes::Letter;
using Params = fovea_x_kv_decode_params;

// Numbers that the tails hold exactly.
Letter drawn(uint64_t stream, int dtype) {
  return [=](int64_t b, int64_t j, int64_t head, int64_t c) {
    const harness::Random random(stream);
    const uint64_t n = static_cast<uint64_t>(((b * 4096 + j) * 64 + head) * 1024 + c);
    return oracle::nearest(dtype, random.normal(n) + 0.2 * static_cast<double>(c % 5));
  };
}

struct Cached {
  const TableCall& made;
  Kivi kivi;
  Letter k, v;

  Cached(const TableCall& made, int64_t bits)
      : made(made),
        kivi(bits == 2 ? oracle::recipes::kivi2(made.letters.at("residual"))
                       : oracle::recipes::kivi4(made.letters.at("residual"))) {
    const auto& p = made.params<Params>();
    k = drawn(71, p.q.dtype), v = drawn(72, p.q.dtype);
  }
  int64_t at(const char* letter) const { return made.letters.at(letter); }
  int64_t length(int64_t b) const { return std::max<int64_t>(0, at("t") - 37 * b); }

  // Pages of sequence b are b pages + 0, 1, ...; word: of codes, or -1: a scale, -2: a zero.
  double key(const int64_t* i, int64_t word) const {
    const int64_t b = i[0] / at("pages"), first = i[0] % at("pages") * at("page") + i[1] * 32;
    if (b >= at("b") || first >= kivi.count(length(b)).keys) return 0;
    return part(kivi.key(k, b, first, i[2], i[3]), word);
  }
  double value(const int64_t* i, int64_t channel, int64_t word) const {
    const int64_t b = i[0] / at("pages"), j = i[0] % at("pages") * at("page") + i[1];
    if (b >= at("b") || j >= kivi.count(length(b)).values) return 0;
    return part(kivi.value(v, b, j, i[2], channel), word);
  }
  double part(const Kivi::Group& x, int64_t word) const {
    if (word < 0) return word == -1 ? x.scale : x.zero;
    uint32_t bits = 0;
    for (int64_t n = 0; n < 32 / kivi.bits; ++n)
      bits |= static_cast<uint32_t>(x.code[word * (32 / kivi.bits) + n]) << (n * kivi.bits);
    return static_cast<int32_t>(bits);
  }
  double tail(const Letter& of, const int64_t* i, bool keys) const {
    const Kivi::Count n = kivi.count(length(i[0]));
    const int64_t ring = kivi.residual + 1;
    int64_t j = n.keys + i[1];
    if (!keys)
      for (j = n.values; j < length(i[0]) && j % ring != i[1];) ++j;
    return j < length(i[0]) ? of(i[0], j, i[2], i[3]) : 0;
  }
  double contents(const std::string& field, const int64_t* i, double normal) const {
    const int64_t words = kivi.bits;  // of a group
    if (field == "k_code") return key(i, i[4]);
    if (field == "k_scale") return key(i, -1);
    if (field == "k_zero") return key(i, -2);
    if (field == "v_code") return value(i, i[3] / words * 32, i[3] % words);
    if (field == "v_scale") return value(i, i[3] * 32, -1);
    if (field == "v_zero") return value(i, i[3] * 32, -2);
    if (field == "k_tail") return tail(k, i, true);
    if (field == "v_tail") return tail(v, i, false);
    if (field == "page_table") return static_cast<double>(i[0] * at("pages") + i[1]);
    if (field != "counter") return normal;
    const Kivi::Count n = kivi.count(length(i[0]));
    const int64_t numbers[] = {length(i[0]), n.keys, n.values, 0};
    return static_cast<double>(numbers[i[1]]);
  }
};

void shape(TableCall& made, int64_t bits) {
  Letters& x = made.letters;
  if (x["residual"] < 32) x["residual"] = 128;
  if (x["page"] < 32) x["page"] = 64;
  if (x["e"] < 32) x["e"] = 32;
  x["pages"] = (x["t"] + x["page"] - 1) / x["page"], x["pool"] = x["pages"] * x["b"] + 1;
  x["r"] = x["rows"] = x["b"], x["page_groups"] = x["page"] / 32, x["k_words"] = bits;
  x["v_words"] = x["e"] * bits / 32, x["v_groups"] = x["e"] / 32, x["ring"] = x["residual"] + 1;
}

// The paper's attention; roundings are the operation's.
std::vector<Expected> by_the_paper(TableCall& made, int64_t bits) {
  const Params& p = made.params<Params>();
  const Cached cached(made, bits);
  oracle::KvDecodeOracle paper(p, oracle::Mode::exact);
  oracle::Attention& a = paper.a;
  for (int64_t b = 0; b < a.b; ++b)
    for (int64_t j = 0; j < cached.length(b); ++j)
      for (int64_t head = 0; head < a.g; ++head) {
        const int64_t block = b * (paper.at.capacity() / 32) + j / 32, n = cached.length(b);
        for (int64_t c = 0; c < a.d; ++c)
          a.k.value[a.k.at_index(block, j % 32, head, c)] =
              cached.kivi.key_of(cached.k, n, b, j, head, c);
        for (int64_t c = 0; c < a.e; ++c)
          a.v.value[a.v.at_index(block, j % 32, head, c)] =
              cached.kivi.value_of(cached.v, n, b, j, head, c);
      }
  const oracle::KvDecodeOracle rounded(p, oracle::Mode::rounded);
  const auto exact = oracle::forward(a, p.o, p.lse, oracle::Mode::exact);
  const auto other = oracle::forward(rounded.a, p.o, p.lse, oracle::Mode::rounded);
  return {{"o", exact.o, other.o}, {"lse", exact.lse, other.lse}};
}

Table of_bits(int64_t bits) {
  return Table("x_kv_decode", [bits](TableCall& made) { return by_the_paper(made, bits); });
}

const std::string kTensors = "k_scale k_zero v_scale v_zero k_tail v_tail";

void method(std::vector<harness::Case>& all, Table& table, int64_t bits) {
  table.shape([bits](TableCall& made) { shape(made, bits); })
      .contents([bits](const TableCall& made, const std::string& field, const int64_t* i,
                       double normal) { return Cached(made, bits).contents(field, i, normal); });
  table.each("small", {"b=1 s=1 t=70 h=2 g=1 d=2 e=32 residual=32 page=32 lse " + kTensors}, true);
  table.sweep({{"q:f16 " + kTensors, "q:bf16 " + kTensors},
               {"b=1 s=1 t=129", "b=2 s=1 t=128", "b=2 s=3 t=170", "b=1 s=20 t=150"},
               {"h=2 g=1 d=8 e=32", "h=2 g=2 d=12 e=64"},
               {"residual=128", "residual=32", "residual=64 page=96"},
               {"contiguous", "odd"},
               {"", "lse", "lse o:f32"}},
              static_cast<uint64_t>(311 + bits));
  for (const harness::Case& one : table.cases()) all.push_back(one);
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  method(all, of_bits(2).recipe("kivi2"), 2), method(all, of_bits(4).recipe("kivi4"), 4);
  return all;
}

const Family kFamily("recipes_kv", recipe_cases);

}  // namespace
}  // namespace cases
