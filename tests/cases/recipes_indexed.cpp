// SPDX-License-Identifier: Apache-2.0
// The methods by name that choose keys by an index: calls of x_indexed_forward whose numbers are
// the method's, against the definition of its paper.
#include "oracle/recipes_indexed.h"

#include "cases/recipe_case.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using oracle::Attention;
using oracle::Mode;
using Params = fovea_x_indexed_forward_params;

Index index_of(const Params& p) {
  return {oracle::load(p.index_q), oracle::load(p.block_k.data ? p.block_k : p.index_k),
          oracle::load(p.weight), oracle::load(p.code_q), oracle::load(p.code)};
}

// `exact`: the index has small integers, whose scores no rounding changes.
double contents(bool exact, const std::string& field, double normal) {
  if (field == "code_q" || field == "code")
    return static_cast<double>(static_cast<int32_t>(std::clamp(normal, -4.0, 4.0) * 5e8));
  if (field == "weight") return std::round(2 * normal);
  if (exact && (field.rfind("index_", 0) == 0 || field == "block_k"))
    return std::clamp(std::round(1.2 * normal), -2.0, 2.0);
  return normal;
}

using Define = std::function<Chosen(const Attention&, const Index&, const Params&)>;

Table indexed(bool exact, const Define& define) {
  Table table("x_indexed_forward", [=](TableCall& made) {
    const Params& p = made.params<Params>();
    const Chosen paper = define(load_operands(p), index_of(p), p);
    if (!exact && paper.margin < 1e-5) throw Close();
    return attend<Params>(made, [&](const Attention&, Mode) { return paper.seen; });
  });
  return table.contents([=](const TableCall&, const std::string& field, const int64_t*,
                            double normal) { return contents(exact, field, normal); });
}

void relu(std::vector<harness::Case>& to) {
  const auto of = [](int64_t count) {
    return indexed(
        true, [=](const Attention& a, const Index& x, const Params&) { return dsa(a, x, count); });
  };
  const std::string index = " index_q index_k weight index_heads=8 index_keys=1 index_width=16";
  add_cases(
      to, of(2048).recipe("dsa").each("paper", {"q:f32 b=1 s=2 t=2200 h=4 g=1 d=24 e=16" + index}));
  add_cases(to, of(3).recipe("dsa").each(
                    "small",
                    {"b=1 s=2 t=9 h=2 g=1 d=4 e=4 count=3 index_q index_k weight index_heads=2"
                     " index_keys=1 index_width=4 lse"},
                    true));
  add_cases(to, of(24).recipe("dsa").sweep(
                    over_shapes({"s=7 t=90 count=24" + index, "s=1 t=60 count=24" + index,
                                 "s=5 t=20 count=24" + index}),
                    41));
}

void compressed(std::vector<harness::Case>& to) {
  const auto of = [](int64_t blocks) {
    return indexed(true, [=](const Attention& a, const Index& x,
                             const Params& p) { return qsa(a, x, blocks, p.index_step); })
        .recipe("qsa");
  };
  const std::string index = " index_q block_k index_heads=4 index_keys=1 index_width=";
  add_cases(to, of(512).each("paper", {"q:f32 b=1 s=5 t=2303 blocks=576 h=4 g=1 d=24 e=16 lse" +
                                       index + "128"}));
  add_cases(to, of(2).each("small",
                           {"b=1 s=6 t=16 blocks=5 h=2 g=1 d=4 e=4 count=2 lse index_q block_k"
                            " index_heads=2 index_keys=1 index_width=4"},
                           true));
  const std::string few = " count=5" + index + "16";
  add_cases(to, of(5).sweep(over_shapes({"s=9 t=90 blocks=23" + few, "s=1 t=64 blocks=17" + few,
                                         "s=40 t=40 blocks=30" + few, "s=1 t=63 blocks=16" + few}),
                            43));
}

void pooled(std::vector<harness::Case>& to) {
  const auto of = [](int64_t blocks, int64_t size) {
    return indexed(true, [=](const Attention& a, const Index& x, const Params& p) {
      return msa(a, x, p.lists, blocks, size);
    });
  };
  const std::string index = " index_q index_k index_heads=4 index_keys=2 index_width=16";
  add_cases(to, of(16, 128).recipe("msa").each(
                    "paper", {"q:bf16 b=1 s=3 t=2500 h=4 g=2 d=32 e=32 lists=2" + index}));
  add_cases(to, of(2, 4).recipe("msa").each(
                    "small",
                    {"b=1 s=3 t=19 h=4 g=2 d=4 e=4 lists=2 count=2 pool_keys=4 index_q index_k"
                     " index_heads=4 index_keys=2 index_width=4 lse"},
                    true));
  const std::string few = " lists=2 count=3 pool_keys=16" + index;
  add_cases(to, of(3, 16).recipe("msa").sweep(
                    over_shapes({"s=20 t=130" + few, "s=1 t=95" + few, "s=9 t=9" + few}), 42));
}

void columns(std::vector<harness::Case>& to) {
  const auto of = [](int64_t width, int64_t count, int64_t latest) {
    Table table("x_indexed_forward", [=](TableCall& made) {
      const Params& p = made.params<Params>();
      const Attention a = load_operands(p);
      const Sparq paper = sparq(a, p.lists, width, count, latest);
      if (paper.margin < 1e-5) throw Close();
      std::vector<Expected> out =
          attend<Params>(made, [&](const Attention&, Mode) { return paper.seen; });
      const oracle::Dense mean = oracle::load(p.v_mean);
      with_mean(paper, a, mean, p.o.dtype, Mode::exact, out[0].exact);
      with_mean(paper, a, mean, p.o.dtype, Mode::rounded, out[0].rounded);
      return out;
    });
    return table.recipe("sparq");
  };
  add_cases(to, of(64, 128, 64)
                    .each("paper", {"q:bf16 b=1 s=1 t=400 h=8 g=2 d=128 e=64 lists=2 v_mean",
                                    "q:f32 b=2 s=1 t=300 h=4 g=4 d=128 e=128 lists=4 v_mean"}));
  add_cases(
      to,
      of(3, 4, 2).each(
          "small",
          {"b=1 s=1 t=12 h=4 g=2 d=8 e=4 lists=2 v_mean subset=3 count=4 force_last=2 lse"}, true));
  const std::string few = " v_mean subset=9 count=16 force_last=5";
  add_cases(to, of(9, 16, 5).each("", {"q:f16 b=2 s=3 t=60 h=4 g=2 d=64 e=32 lists=2 lse" + few,
                                       "q:bf16 b=1 s=1 t=90 h=6 g=1 d=32 e=64 lists=1 o:f32" + few,
                                       "q:f32 b=2 s=1 t=10 h=4 g=2 d=16 e=16 lists=2" + few,
                                       "q:f32 b=1 s=2 t=70 h=4 g=4 d=64 e=16 lists=4 odd" + few}));
}

void shares(std::vector<harness::Case>& to) {
  const Table principal = indexed(
      false, [](const Attention& a, const Index& x, const Params&) { return loki(a, x, 0.25); });
  const std::string views = " index_q index_k index_heads=4 index_keys=4 index_width=8 h=4 g=4";
  add_cases(to, Table(principal).recipe("loki").each(
                    "small",
                    {"b=1 s=2 t=13 h=2 g=2 d=8 e=4 index_q index_k index_heads=2 index_keys=2"
                     " index_width=2 lse"},
                    true));
  add_cases(to, Table(principal).recipe("loki").each(
                    "", {"q:f32 b=2 s=3 t=120 d=32 e=32 lse" + views,
                         "q:bf16 b=1 s=1 t=200 d=32 e=16 o:f32" + views,
                         "q:f16 b=2 s=2 t=3 d=32 e=64 lse" + views,
                         "q:bf16 b=1 s=40 t=40 d=32 e=32 head_first" + views}));
  const auto hash = [](int64_t first, int64_t latest) {
    return indexed(true, [=](const Attention& a, const Index& x, const Params&) {
      return hashattention(a, x, first, latest, 0.0625);
    });
  };
  const std::string codes = " code_q code index_heads=4 index_keys=4 code_words=1 h=4 g=2";
  add_cases(to, hash(128, 128)
                    .recipe("hashattention")
                    .each("paper", {"q:bf16 b=1 s=2 t=700 d=32 e=32 lse" + codes,
                                    "q:f32 b=1 s=1 t=200 d=16 e=16 lse" + codes}));
  add_cases(to, hash(2, 3)
                    .recipe("hashattention")
                    .each("small",
                          {"b=1 s=2 t=40 h=2 g=1 d=4 e=4 code_q code index_heads=2 index_keys=2"
                           " code_words=1 first_keys=2 last_keys=3 lse"},
                          true));
  add_cases(to,
            hash(8, 5)
                .recipe("hashattention")
                .each("", {"q:f16 b=2 s=3 t=120 d=32 e=16 first_keys=8 last_keys=5" + codes,
                           "q:bf16 b=2 s=1 t=9 d=32 e=32 first_keys=8 last_keys=5 lse" + codes}));
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  relu(all), compressed(all), pooled(all), columns(all), shares(all);
  return all;
}

const Family kFamily("recipes_indexed", recipe_cases);

}  // namespace
}  // namespace cases
