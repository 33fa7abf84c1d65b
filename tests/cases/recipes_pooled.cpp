// SPDX-License-Identifier: Apache-2.0
// The methods by name that choose key blocks by summaries: calls of x_pooled_forward, or of
// x_probed_forward by means of keys, whose numbers are the method's, against the definition of its
// paper.
#include "oracle/recipes_pooled.h"

#include "cases/recipe_case.h"
#include "oracle/recipes_quantised.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using oracle::Attention;
using oracle::Mode;
using Params = fovea_x_pooled_forward_params;
using Define = std::function<Chosen(const Attention&, const Params&)>;

Table pooled(const Define& define) {
  return Table("x_pooled_forward", [=](TableCall& made) {
    const Params& p = made.params<Params>();
    const Chosen paper = define(load_operands(p), p);
    if (paper.margin < 1e-5) throw Close();
    return attend<Params>(made, [&](const Attention&, Mode) { return paper.seen; });
  });
}

void pages(std::vector<harness::Case>& to) {
  const auto of = [](int64_t count, int64_t page) {
    return pooled([=](const Attention& a, const Params&) { return quest(a, count, page); });
  };
  add_cases(to, of(128, 16).recipe("quest").each("paper",
                                                 {"q:f32 b=1 s=1 t=2300 h=2 g=1 d=16 e=16 lse",
                                                  "q:bf16 b=1 s=1 t=2300 h=4 g=2 d=64 e=64",
                                                  "q:bf16 b=2 s=1 t=150 h=2 g=2 d=32 e=32 lse"}));
  add_cases(to, of(2, 4).recipe("quest").each(
                    "small", {"b=1 s=1 t=18 h=2 g=1 d=8 e=4 count=2 block_keys=4 lse"}, true));
  add_cases(to,
            of(4, 16).recipe("quest").sweep(
                over_shapes({"s=1 t=200 count=4", "s=1 t=65 count=4", "s=1 t=30 count=4"}), 51));
}

void hybrid(std::vector<harness::Case>& to) {
  const auto of = [](int64_t count, int64_t page) {
    return pooled([=](const Attention& a, const Params& p) {
             return rocketkv(a, count, page, p.subset);
           })
        .recipe("rocketkv");
  };
  add_cases(to,
            of(64, 4).each("paper", {"q:f32 b=1 s=1 t=700 h=2 g=1 d=16 e=16 lists=1 subset=4 lse",
                                     "q:bf16 b=1 s=1 t=2048 h=4 g=2 d=64 e=64 lists=2 subset=16",
                                     "q:bf16 b=2 s=1 t=150 h=2 g=2 d=32 e=32 lists=2 subset=32"
                                     " lse"}));
  add_cases(to, of(2, 4).each("small",
                              {"b=1 s=1 t=18 h=2 g=1 d=8 e=4 count=2 lists=1 subset=3 lse"}, true));
  const auto shapes = [](const std::string& words) {
    return std::vector<std::vector<std::string>>{
        {"q:f32", "q:bf16", "q:f16"},
        {"b=2 h=4 g=2 lists=2 d=64 e=64", "b=1 h=4 g=4 lists=4 d=16 e=24",
         "b=1 h=6 g=1 lists=1 d=128 e=128"},
        {"contiguous", "head_first", "odd"},
        {"lse o:f32", "lse", ""},
        {"subset=1", "subset=5", "subset=16"},
        {"s=1 t=200" + words, "s=1 t=65" + words, "s=1 t=30" + words}};
  };
  add_cases(to, of(4, 16).sweep(shapes(" count=4 block_keys=16"), 55));
}

void mixture(std::vector<harness::Case>& to) {
  const auto of = [](int64_t blocks, int64_t size) {
    return pooled([=](const Attention& a, const Params&) { return moba(a, blocks, size); });
  };
  add_cases(to,
            of(3, 512).recipe("moba").each("paper", {"q:f32 b=1 s=9 t=2700 h=2 g=1 d=16 e=16 lse",
                                                     "q:bf16 b=1 s=20 t=1600 h=4 g=2 d=64 e=64"}));
  add_cases(to, of(2, 4).recipe("moba").each(
                    "small", {"b=1 s=5 t=18 h=2 g=1 d=8 e=4 count=2 block_keys=4 lse"}, true));
  add_cases(to, of(3, 16).recipe("moba").sweep(
                    over_shapes({"s=70 t=70 block_keys=16", "s=1 t=99 block_keys=16",
                                 "s=20 t=150 block_keys=16"}),
                    52));
}

void gates(std::vector<harness::Case>& to) {
  const auto of = [](const Blocks& blocks, double threshold) {
    return pooled([=](const Attention& a, const Params& p) {
      return seerattention(a, oracle::load(p.row), oracle::load(p.column), blocks, threshold);
    });
  };
  const std::string gate = " row column row_heads=4 column_heads=2 row_width=16 h=4 g=2";
  add_cases(to, of({64, 64, true}, 0.002)
                    .recipe("seerattention")
                    .each("paper", {"q:f32 b=1 s=200 t=330 n=4 u=6 d=32 e=32 lse" + gate,
                                    "q:bf16 b=2 s=150 t=150 n=3 u=3 d=64 e=64" + gate}));
  add_cases(to, of({4, 4, true}, 0.2)
                    .recipe("seerattention")
                    .each("small",
                          {"b=1 s=6 t=14 h=2 g=1 d=8 e=4 n=2 u=4 row column row_heads=2"
                           " column_heads=1 row_width=4 block_rows=4 block_keys=4"
                           " threshold=0.2 lse"},
                          true));
  const std::string few = " block_rows=16 block_keys=16 threshold=0.1" + gate;
  add_cases(to, of({16, 16, true}, 0.1)
                    .recipe("seerattention")
                    .each("", {"q:f16 b=2 s=70 t=134 n=5 u=9 d=32 e=16 lse" + few,
                               "q:bf16 b=1 s=33 t=90 n=3 u=6 d=64 e=64 o:f32" + few,
                               "q:f32 b=1 s=64 t=64 n=4 u=4 d=16 e=16 head_first" + few}));
}

void predicted(std::vector<harness::Case>& to) {
  const auto of = [](const Blocks& blocks, double share) {
    return pooled([=](const Attention& a, const Params&) { return spargeattn(a, blocks, share); });
  };
  add_cases(to, of({128, 64, false}, 0.5)
                    .recipe("spargeattn")
                    .each("paper", {"q:f32 b=1 s=300 t=450 h=2 g=1 d=32 e=32 lse",
                                    "q:bf16 b=1 s=260 t=260 h=2 g=2 d=64 e=64"}));
  add_cases(to, of({128, 64, true}, 0.5)
                    .recipe("spargeattn")
                    .each("causal", {"q:f32 b=1 s=300 t=300 h=2 g=1 d=32 e=32 causal=1 lse"}));
  add_cases(
      to, of({4, 4, false}, 0.5)
              .recipe("spargeattn")
              .each("small", {"b=1 s=6 t=14 h=2 g=1 d=8 e=4 block_rows=4 block_keys=4 lse"}, true));
  add_cases(to,
            of({16, 16, true}, 0.25)
                .recipe("spargeattn")
                .sweep(over_shapes({"s=70 t=70 block_rows=16 block_keys=16 ratio=0.25 causal=1",
                                    "s=20 t=130 block_rows=16 block_keys=16 ratio=0.25 causal=1"}),
                       53));
}

// The same in 8 bits: the paper's blocks are the mask of the paper's codes.
void predicted_in_codes(std::vector<harness::Case>& to) {
  const auto of = [](bool causal) {
    return Table("x_pooled_forward",
                 [=](TableCall& made) -> std::vector<Expected> {
                   const Params& p = made.params<Params>();
                   const Chosen paper = spargeattn(load_operands(p), {128, 64, causal}, 0.5);
                   if (paper.margin < 1e-5) throw Close();
                   auto a = spargeattn_int8(
                       full_places(p), {oracle::load(p.q), oracle::load(p.k), oracle::load(p.v)},
                       128, 64);
                   a.mask = paper.seen.mask;
                   fovea_quant_forward_params call{};
                   call.q.dtype = FOVEA_I8, call.o = p.o, call.lse = p.lse;
                   call.p_format = FOVEA_P_FORMAT_E4M3_448;
                   const auto exact = oracle::quant_forward(a, call, Mode::exact);
                   const auto rounded = oracle::quant_forward(a, call, Mode::rounded);
                   return {{"o", exact.o, rounded.o}, {"lse", exact.lse, rounded.lse}};
                 })
        .recipe("spargeattn_int8");
  };
  add_cases(to, of(false).each("paper", {"q:f16 b=1 s=200 t=330 h=2 g=1 d=64 e=64 lse",
                                         "q:bf16 b=1 s=130 t=130 h=2 g=2 d=128 e=128 o:f32"}));
  add_cases(to, of(true).each("causal", {"q:bf16 b=1 s=300 t=300 h=2 g=1 d=64 e=64 causal=1 lse",
                                         "q:f16 b=1 s=140 t=200 h=2 g=1 d=128 e=128 causal=1"}));
  add_cases(to, of(false).each("small", {"q:f16 b=1 s=2 t=70 h=1 g=1 d=16 e=16 lse"}, true));
}

// Keys of a block lie around a point of their own, so that their means differ.
void thresholds(std::vector<harness::Case>& to) {
  using Probed = fovea_x_probed_forward_params;
  const auto of = [](const FlashPrefill& numbers) {
    Table table("x_probed_forward", [=](TableCall& made) {
      const Chosen paper = flashprefill(load_operands(made.params<Probed>()), numbers);
      // A mean in 16 bits may be rounded the other way.
      const bool wide = made.params<Probed>().k.dtype == FOVEA_F32;
      if (paper.margin < (wide ? 1e-5 : 1e-3)) throw Close();
      return attend<Probed>(made, [&](const Attention&, Mode) { return paper.seen; });
    });
    return table
        .contents([=](const TableCall&, const std::string& field, const int64_t* i, double normal) {
          const int64_t place = (i[1] / numbers.size * 7 + i[2] * 3 + i[3] * 5) * 37 % 101;
          return field == "k" ? normal + static_cast<double>(place - 50) / 25 : normal;
        })
        .recipe("flashprefill");
  };
  add_cases(to, of({128, 2, 4, 2, 0.7})
                    .each("paper", {"q:f32 b=1 s=900 t=900 h=2 g=1 d=16 e=16 lse",
                                    "q:bf16 b=1 s=768 t=768 h=2 g=2 d=32 e=16"}));
  add_cases(to, of({4, 1, 2, 1, 0.7})
                    .each("small",
                          {"b=1 s=26 t=26 h=2 g=1 d=8 e=4 block_rows=4 block_keys=4 force_first=1"
                           " force_previous=1 full_last=1 lse"},
                          true));
  const std::string few =
      " block_rows=16 block_keys=16 force_first=1 force_previous=1 full_last=1 threshold=0.6";
  add_cases(to, of({16, 1, 2, 1, 0.6})
                    .sweep(over_shapes({"s=200 t=200" + few, "s=70 t=201" + few, "s=1 t=90" + few,
                                        "s=100 t=228" + few}),
                           54));
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  pages(all), hybrid(all), mixture(all), gates(all), predicted(all), thresholds(all);
  predicted_in_codes(all);
  return all;
}

const Family kFamily("recipes_pooled", recipe_cases);

}  // namespace
}  // namespace cases
