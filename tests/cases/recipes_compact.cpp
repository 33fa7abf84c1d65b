// SPDX-License-Identifier: Apache-2.0
// Compact attention by name: calls of attention_forward whose numbers are the method's, and of
// x_indexed_forward over latents, against the definition of its paper over expanded heads.  Layers
// give small integers and weights are -1, 0 and 1 times a power of two, so that what a call stores
// or absorbs is exact in every dtype.
#include "oracle/recipes_compact.h"

#include <memory>
#include <stdexcept>

#include "cases/recipe_case.h"
#include "oracle/recipes_indexed.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using oracle::Attention;
using oracle::Mode;
using Params = fovea_attention_forward_params;

uint64_t bits(uint64_t number, int64_t a, int64_t b, int64_t c, int64_t d) {
  for (const int64_t i : {a, b, c, d}) number = harness::hash(number ^ static_cast<uint64_t>(i));
  return number;
}

Letter layer(uint64_t number) {
  return [=](int64_t a, int64_t b, int64_t c, int64_t d) {
    return std::nearbyint(harness::Random(bits(number, a, b, c, d)).normal(0));
  };
}

// A product asks for a row again for each head and column: the columns of the last row are kept.
Letter by_row(const Letter& of) {
  struct Row {
    int64_t a = -1, b = -1, c = -1;
    std::vector<double> columns;
  };
  return [of, row = std::make_shared<Row>()](int64_t a, int64_t b, int64_t c, int64_t d) {
    if (row->a != a || row->b != b || row->c != c) *row = {a, b, c, {}};
    for (int64_t i = row->columns.size(); i <= d; ++i) row->columns.push_back(of(a, b, c, i));
    return row->columns[d];
  };
}

// Of products that sum up `rank` terms to numbers of about 1.
Letter weight(uint64_t number, int64_t rank) {
  const double unit = std::exp2(-std::round(std::log2(0.7 * static_cast<double>(rank)) / 2));
  return [=](int64_t a, int64_t b, int64_t c, int64_t d) {
    return unit * (static_cast<double>(bits(number, a, b, c, d) % 3) - 1);
  };
}

// Tokens of a sequence.
int64_t length(const TableCall& made, int64_t sequence) {
  const int64_t t = made.letters.at("t");
  return made.has("key_len") ? std::max<int64_t>(0, t - 5 * sequence) : t;
}

Asked asked(const TableCall& made) {
  const Params& p = made.params<Params>();
  return {p.q.shape[0], p.q.shape[1], p.k.shape[1], p.q.shape[2], oracle::load(p.key_len),
          p.q.dtype};
}

// Numbers that are the same in every dtype.
double held(int dtype, double x) {
  if (oracle::nearest(dtype, x) != x) throw std::logic_error("a layer's product is not exact");
  return x;
}

// The element of an operand: of a sequence, a position, a head and a column.
using Element = std::function<double(const TableCall&, const std::string& field, int64_t b,
                                     int64_t position, int64_t head, int64_t c)>;
using Define = std::function<Attention(const TableCall&)>;

// A table of quarter turns, as the definition rotates.
double turn(const std::string& field, const int64_t* i) {
  static constexpr double cosines[] = {1, 0, -1, 0};
  const int64_t turns = (1 + i[1] % 3) * i[0] + (field == "sin" ? 3 : 0);
  return cosines[turns % 4];
}

Table against(const Define& define, const Element& element) {
  Table table("attention_forward", [=](TableCall& made) {
    const Params& p = made.params<Params>();
    const Attention paper = define(made);
    const auto exact = oracle::forward(paper, p.o, p.lse, Mode::exact);
    const auto rounded = oracle::forward(paper, p.o, p.lse, Mode::rounded);
    if (made.has("key_len"))
      for (const char* field : {"k", "v"})
        made.call.account(made.call.field(field),
                          [&](const int64_t* i) { return i[1] < length(made, i[0]); });
    return std::vector<Expected>{{"o", exact.o, rounded.o}, {"lse", exact.lse, rounded.lse}};
  });
  return table.contents([=](const TableCall& made, const std::string& field, const int64_t* i,
                            double normal) {
    if (field == "key_len") return static_cast<double>(length(made, i[0]));
    if (field == "cos" || field == "sin") return turn(field, i);
    if (!element) return normal;
    const bool asks = field[0] == 'q';
    const int64_t position = asks ? length(made, i[0]) - made.letters.at("s") + i[1] : i[1];
    return held(made.params<Params>().q.dtype, element(made, field, i[0], position, i[2], i[3]));
  });
}

// ---- shared heads

void shared(std::vector<harness::Case>& to) {
  const auto of = [](const std::function<Attention(const Attention&)>& paper) {
    return against(
        [=](const TableCall& made) { return paper(oracle::load_attention(made.params<Params>())); },
        nullptr);
  };
  const std::vector<std::string> types = {"q:f32", "q:bf16", "q:f16"},
                                 layouts = {"contiguous", "head_first", "odd"},
                                 outs = {"lse o:f32", "lse", ""},
                                 where = {"b=2 s=20 t=60 key_len", "b=3 s=1 t=70 key_len",
                                          "b=1 s=33 t=33", "b=1 s=9 t=5"};
  const auto add = [&](Table table, const std::string& small, const std::vector<std::string>& heads,
                       uint64_t seed) {
    table.each("small", {"b=1 s=3 t=6 d=8 e=4 lse " + small}, true);
    add_cases(to, table.sweep({types, layouts, outs, where, heads}, seed));
  };
  add(of([](const Attention& a) { return mha(a); }).recipe("mha"), "h=3 g=3",
      {"h=1 g=1 d=16 e=16", "h=5 g=5 d=64 e=64", "h=4 g=4 d=24 e=40"}, 131);
  add(of([](const Attention& a) { return mqa(a); }).recipe("mqa"), "h=3 g=1",
      {"h=7 g=1 d=64 e=64", "h=32 g=1 d=16 e=24", "h=128 g=1 d=16 e=16"}, 132);
  // Of two groups each.
  Table grouped = of([](const Attention& a) { return gqa(a, 2); }).recipe("gqa");
  for (const int64_t each : {1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64})
    grouped.each("ratio", {"q:bf16 b=1 s=2 t=9 d=16 e=16 g=2 h=" + std::to_string(2 * each)});
  add(grouped, "h=4 g=2", {"h=6 g=2 d=64 e=64", "h=16 g=2 d=16 e=24", "h=10 g=2 d=128 e=128"}, 133);
}

// ---- latents

Mla layers_of_mla(const TableCall& made) {
  const Letters& x = made.letters;
  const int64_t rank = x.at("rank");
  thread_local const Letter layers[] = {by_row(layer(1)), by_row(layer(2)), by_row(layer(3)),
                                        by_row(layer(4))};
  return {x.at("nope"), x.at("rope"), rank,      x.at("width"),   layers[0],
          layers[1],    layers[2],    layers[3], weight(5, rank), weight(6, rank)};
}

// The rotated part of q and k; k has one for all heads.
double turned_part(const Mla& m, const std::string& field, int64_t b, int64_t position,
                   int64_t head, int64_t c) {
  return quarter_turned(
      [&](int64_t n) {
        return field == "k" ? m.k_rope(b, position, 0, n) : m.q_rope(b, position, head, n);
      },
      c, m.rope, position);
}

// Columns [q_nope W_UK^T; q_rope] and [c; k_rope].  With q_value these are two tensors.  With cos
// the call turns the cache's keys.
double absorbed(const TableCall& made, const std::string& field, int64_t b, int64_t position,
                int64_t head, int64_t c) {
  const Mla m = layers_of_mla(made);
  const bool apart = made.has("q_value");
  const int64_t first = apart && (field == "q" || field == "k") ? 0 : m.rank;
  if (c >= first || first == 0) {
    if (field == "k" && made.has("cos")) return m.k_rope(b, position, 0, c - first);
    return turned_part(m, field, b, position, head, c - first);
  }
  if (field[0] != 'q') return m.c(b, position, 0, c);
  double sum = 0;
  for (int64_t n = 0; n < m.nope; ++n)
    sum += m.q_nope(b, position, head, n) * m.w_uk(head, c, n, 0);
  return sum;
}

double expanded(const TableCall& made, const std::string& field, int64_t b, int64_t position,
                int64_t head, int64_t c) {
  const Mla m = layers_of_mla(made);
  if (field != "v" && c >= m.nope) return turned_part(m, field, b, position, head, c - m.nope);
  if (field == "q") return m.q_nope(b, position, head, c);
  const Letter& weight = field == "k" ? m.w_uk : m.w_uv;
  double sum = 0;
  for (int64_t r = 0; r < m.rank; ++r) sum += m.c(b, position, 0, r) * weight(head, r, c, 0);
  return sum;
}

void latents(std::vector<harness::Case>& to) {
  const auto paper_of = [](Attention (*paper)(const Asked&, const Mla&)) {
    return [=](const TableCall& made) { return paper(asked(made), layers_of_mla(made)); };
  };
  const std::vector<std::string> types = {"q:f32", "q:bf16", "q:f16"}, outs = {"lse o:f32", "lse"},
                                 where = {"b=2 s=1 t=40 key_len", "b=1 s=3 t=33", "b=2 s=20 t=20",
                                          "b=3 s=7 t=11 key_len"};
  Table one = against(paper_of(mla), expanded).recipe("mla");
  one.shape([](TableCall& made) {
    Letters& x = made.letters;
    x["d"] = x.at("nope") + x.at("rope"), x["e"] = x.at("width"), x["g"] = x.at("h");
  });
  one.each("small", {"b=1 s=3 t=6 h=2 nope=6 rope=2 rank=5 width=4 lse"}, true);
  one.each("paper", {"q:bf16 b=1 s=5 t=9 h=2 nope=128 rope=64 rank=512 width=128 lse"});
  add_cases(to, one.sweep({types,
                           {"contiguous", "head_first", "odd"},
                           outs,
                           where,
                           {"h=1 nope=16 rope=8 rank=32 width=16",
                            "h=5 nope=48 rope=16 rank=24 "
                            "width=40"}},
                          134));

  Table whole = against(paper_of(mla_absorbed), absorbed).recipe("mla_absorbed");
  whole.view("v", "k").shape([](TableCall& made) {
    Letters& x = made.letters;
    x["d"] = x.at("rank") + x.at("rope"), x["e"] = x.at("rank"), x["g"] = 1;
  });
  const std::string small = "b=1 s=1 t=6 h=3 nope=12 rope=4 rank=8 width=0 scale=0.25 lse";
  const std::string paper = "q:bf16 b=1 s=2 t=17 nope=128 rope=64 rank=512 width=0 lse h=";
  whole.each("small", {small}, true);
  whole.each("paper", {paper + "4", paper + "1 q:f32"});
  // Scales of 1 / sqrt(nope + rope).
  const std::string some = "width=0 h=16 nope=12 rope=4 rank=24 scale=0.25",
                    few = "width=0 h=5 nope=48 rope=16 rank=32 scale=0.125",
                    turns = " cos sin positions=64 ";
  add_cases(to, whole.sweep({types,
                             {"contiguous", "gaps", "odd"},
                             outs,
                             where,
                             {some, few, some + turns + "half=2 rope_begin=24",
                              few + turns + "half=8 rope_begin=32"}},
                            135));
  Table split = against(paper_of(mla_absorbed), absorbed).recipe("mla_absorbed");
  split.shape([](TableCall& made) {
    Letters& x = made.letters;
    x["d"] = x.at("rope"), x["e"] = x.at("rank"), x["g"] = 1;
  });
  add_cases(
      to, split.sweep({types, {"q_value"}, {"contiguous", "odd"}, outs, where, {some, few}}, 136));
}

// ---- latents that an indexer chooses from

using IndexedParams = fovea_x_indexed_forward_params;

// DSA over heads that W_UK and W_UV expand.  Scores of the index are of small integers: exact.
Table chosen_latents(int64_t count) {
  Table table("x_indexed_forward", [=](TableCall& made) {
    const IndexedParams& p = made.params<IndexedParams>();
    const Asked x{p.q.shape[0], p.q.shape[1], p.k.shape[1], p.q.shape[2], {}, p.q.dtype};
    const Index index{
        oracle::load(p.index_q), oracle::load(p.index_k), oracle::load(p.weight), {}, {}};
    const Attention paper = dsa(mla_absorbed(x, layers_of_mla(made)), index, count).seen;
    const auto exact = oracle::forward(paper, p.o, p.lse, Mode::exact);
    const auto rounded = oracle::forward(paper, p.o, p.lse, Mode::rounded);
    return std::vector<Expected>{{"o", exact.o, rounded.o}, {"lse", exact.lse, rounded.lse}};
  });
  return table.recipe("dsa").contents(
      [](const TableCall& made, const std::string& field, const int64_t* i, double normal) {
        if (field == "weight") return std::round(2 * normal);
        if (field.rfind("index_", 0) == 0) return std::clamp(std::round(1.2 * normal), -2.0, 2.0);
        const bool asks = field[0] == 'q';
        const int64_t first = asks ? made.letters.at("t") - made.letters.at("s") : 0;
        return held(made.params<IndexedParams>().q.dtype,
                    absorbed(made, field, i[0], first + i[1], i[2], i[3]));
      });
}

void indexed_latents(std::vector<harness::Case>& to) {
  const auto shaped = [](Table table, bool apart) {
    return table.shape([=](TableCall& made) {
      Letters& x = made.letters;
      x["d"] = x.at("rope") + (apart ? 0 : x.at("rank")), x["e"] = x.at("rank"), x["g"] = 1;
    });
  };
  const std::string index = "index_q index_k weight index_keys=1 width=0 ";
  const std::vector<std::string> types = {"q:f32", "q:bf16", "q:f16"},
                                 layouts = {"contiguous", "odd"}, outs = {"lse o:f32", "lse"},
                                 where = {"b=2 s=1 t=40", "b=1 s=9 t=33", "b=2 s=7 t=7"},
                                 heads = {"h=16 nope=12 rope=4 rank=24 scale=0.25",
                                          "h=8 nope=48 rope=16 rank=32 scale=0.125"};
  const std::string few = index + "count=12 index_heads=4 index_width=16";
  Table apart = shaped(chosen_latents(3), true);
  apart.each("latents_small",
             {index + "q_value count=3 index_heads=2 index_width=4 b=1 s=2 t=9 h=3 nope=12 rope=4"
                      " rank=8 scale=0.25 lse"},
             true);
  add_cases(to, apart);
  add_cases(to, shaped(chosen_latents(12), true)
                    .sweep({types, {few + " q_value"}, layouts, outs, where, heads}, 143));
  Table whole = shaped(chosen_latents(12), false);
  whole.view("v", "k");
  add_cases(to, whole.sweep({types, {few}, layouts, outs, where, heads}, 144));
  // As DeepSeek-V3.2 has it, on tensor cores where there are such.
  const std::string paper = index +
                            "q:bf16 nope=128 rope=64 rank=512 scale=0.07216878364870322"
                            " index_heads=8 index_width=16 count=96 lse ";
  add_cases(to, shaped(chosen_latents(96), true)
                    .each("paper", {paper + "q_value b=1 s=3 t=140 h=16",
                                    paper + "q_value b=2 s=1 t=130 h=16"}));
}

// ---- one head of many

Mfa layers_of_mfa(const TableCall& made) {
  const int64_t rank = made.letters.at("rank");
  return {rank, made.letters.at("d"), layer(11), layer(12), layer(13), weight(14, rank)};
}

double factored(const TableCall& made, const std::string& field, int64_t b, int64_t position,
                int64_t head, int64_t c) {
  const Mfa m = layers_of_mfa(made);
  if (field == "v") return m.v(b, position, 0, c);
  if (field == "k" && made.has("cos")) return m.k(b, position, 0, c);
  return quarter_turned(
      [&](int64_t n) {
        if (field == "k") return m.k(b, position, 0, n);
        double sum = 0;
        for (int64_t r = 0; r < m.rank; ++r)
          sum += m.low(b, position, 0, r) * m.w_up(head, r, n, 0);
        return sum;
      },
      c, m.width, position);
}

void factors(std::vector<harness::Case>& to) {
  const auto of = [](Attention (*paper)(const Asked&, const Mfa&)) {
    return against([=](const TableCall& made) { return paper(asked(made), layers_of_mfa(made)); },
                   factored);
  };
  const std::vector<std::string> types = {"q:f32", "q:bf16", "q:f16"},
                                 layouts = {"contiguous", "gaps", "odd"}, outs = {"lse o:f32", ""},
                                 where = {"g=1 b=2 s=1 t=40 key_len", "g=1 b=1 s=20 t=33",
                                          "g=1 b=2 s=9 t=9"};
  Table two = of(mfa).recipe("mfa");
  two.each("small", {"g=1 b=1 s=2 t=5 h=3 d=6 e=6 rank=4 lse"}, true);
  two.each("paper", {"g=1 q:bf16 b=1 s=1 t=30 h=4 d=256 e=256 rank=256 lse"});
  add_cases(
      to,
      two.sweep({types, layouts, outs, where, {"h=4 d=32 e=32 rank=32", "h=16 d=16 e=16 rank=64"}},
                137));
  Table keys = of(mfa_kr).recipe("mfa_kr");
  keys.view("v", "k");
  keys.each("small", {"g=1 b=1 s=2 t=5 h=3 d=8 e=8 rank=4 lse cos sin half=4 positions=8"}, true);
  keys.each("paper", {"g=1 q:bf16 b=1 s=1 t=30 h=4 d=256 e=256 rank=256 lse cos sin half=128 "
                      "positions=32"});
  add_cases(to, keys.sweep({types,
                            layouts,
                            outs,
                            where,
                            {"h=4 d=32 e=32 rank=32 cos sin half=16 positions=64",
                             "h=16 d=16 e=16 rank=64 cos sin half=8 positions=40"}},
                           138));
}

// ---- outer products

using TpaParams = fovea_x_tpa_forward_params;

Tpa layers_of_tpa(const TableCall& made) {
  const Letters& x = made.letters;
  return {x.at("rank_q"), x.at("rank_k"), x.at("rank_v"), x.at("d"), x.at("e"), layer(21),
          layer(22),      layer(23),      layer(24),      layer(25), layer(26)};
}

// Rows of b_q and b_k are turned.
double product(const TableCall& made, const std::string& field, const int64_t* i) {
  const Tpa m = layers_of_tpa(made);
  const bool asks = field.back() == 'q';
  const int64_t position = asks ? length(made, i[0]) - made.letters.at("s") + i[1] : i[1];
  const bool heads = field[0] == 'a';
  const Letter& of = asks                  ? heads ? m.a_q : m.b_q
                     : field.back() == 'k' ? heads ? m.a_k : m.b_k
                     : heads               ? m.a_v
                                           : m.b_v;
  const auto at = [&](int64_t c) { return of(i[0], position, i[2], c); };
  return heads || field == "b_v" ? at(i[3]) : quarter_turned(at, i[3], m.d, position);
}

std::vector<Expected> products_of(TableCall& made) {
  const TpaParams& p = made.params<TpaParams>();
  const Asked x{p.o.shape[0], p.o.shape[1], p.a_k.shape[1], p.o.shape[2], oracle::load(p.key_len),
                p.a_k.dtype};
  const Attention paper = tpa(x, layers_of_tpa(made));
  // Rows of heads are rounded where they are in memory.
  Attention stored = paper;
  for (oracle::Dense* rows : {&stored.q, &stored.k, &stored.v})
    for (double& element : rows->value) element = oracle::round_to(p.a_k.dtype, element);
  if (made.has("key_len"))
    for (const char* field : {"a_k", "b_k", "a_v", "b_v"})
      made.call.account(made.call.field(field),
                        [&](const int64_t* i) { return i[1] < length(made, i[0]); });
  const auto exact = oracle::forward(paper, p.o, p.lse, Mode::exact);
  const auto rounded = oracle::forward(stored, p.o, p.lse, Mode::rounded);
  return {{"o", exact.o, rounded.o}, {"lse", exact.lse, rounded.lse}};
}

void outer_products(std::vector<harness::Case>& to) {
  Table table("x_tpa_forward", products_of);
  table.recipe("tpa").contents(
      [](const TableCall& made, const std::string& field, const int64_t* i, double) {
        if (field == "key_len") return static_cast<double>(length(made, i[0]));
        return product(made, field, i);
      });
  const std::string given = "a_q b_q ";
  table.each("small", {given + "b=1 s=3 t=6 h=3 d=4 e=4 rank_q=2 lse"}, true);
  table.each("paper", {given + "a_k:bf16 b=1 s=1 t=30 h=22 d=64 e=64 rank_q=6 lse",
                       given + "a_k:bf16 b=1 s=33 t=33 h=47 d=64 e=64 rank_q=6 lse"});
  add_cases(to, table.sweep({{given},
                             {"a_k:f32", "a_k:bf16", "a_k:f16"},
                             {"contiguous", "gaps", "odd"},
                             {"lse o:f32", "lse", ""},
                             {"b=2 s=1 t=40 key_len", "b=1 s=20 t=33", "b=2 s=9 t=9"},
                             {"rank_q=1 rank_k=1 rank_v=1", "rank_q=6 rank_k=2 rank_v=2",
                              "rank_q=12 rank_k=3 rank_v=4"},
                             {"h=4 d=16 e=24", "h=22 d=64 e=64", "h=5 d=128 e=128"}},
                            139));
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  shared(all), latents(all), indexed_latents(all), factors(all), outer_products(all);
  return all;
}

const Family kFamily("recipes_compact", recipe_cases);

}  // namespace
}  // namespace cases
