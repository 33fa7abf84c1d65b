// SPDX-License-Identifier: Apache-2.0
// MagicPIG by name: calls of x_lsh_forward whose tables hold the codes of random hyperplanes.
#include "oracle/recipes_lsh.h"

#include "cases/lsh_case.h"
#include "cases/recipe_case.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using oracle::Attention;
using oracle::Mode;
using Params = fovea_x_lsh_forward_params;

Planes hyperplanes(int64_t bits, int64_t tables, int64_t d) {
  Planes planes{bits, tables, {}};
  const harness::Random random(41);
  for (int64_t n = 0; n < bits * tables * d; ++n)
    planes.normal.push_back(random.normal(static_cast<uint64_t>(n)));
  return planes;
}

// Gives the call the codes and the tables of the definition.
void give_hashes(TableCall& made, const Attention& a, const MagicPig& paper) {
  const int64_t t = a.at.extent, group = a.h / a.g;
  made.call.fill(made.call.field("code_q"), [&](const int64_t* i) {
    const auto& codes = paper.of_queries[static_cast<size_t>((i[0] * a.s + i[1]) * a.h + i[2])];
    return static_cast<double>(codes[static_cast<size_t>(i[3])]);
  });
  const oracle::CodeOf code = [&](int64_t b, int64_t g, int64_t l, int64_t j) {
    return paper.of_keys[static_cast<size_t>((b * t + j) * a.g + g)][static_cast<size_t>(l)];
  };
  fill_tables(
      made, code, [=](int64_t) { return t; }, oracle::load(made.params<Params>().code_q),
      [&](int64_t) { return a.s; }, group);
  for (const char* field : {"k", "v"})
    made.call.account(made.call.field(field), [&](const int64_t* i) {
      return paper.kept[static_cast<size_t>((i[0] * t + i[1]) * a.g + i[2])] != 0;
    });
}

Table magicpig_calls(int64_t bits) {
  return Table("x_lsh_forward",
               [=](TableCall& made) {
                 const Attention a = load_operands(made.params<Params>());
                 const MagicPig paper =
                     magicpig(a, hyperplanes(bits, made.letters.at("tables"), a.d));
                 give_hashes(made, a, paper);
                 return attend<Params>(made, [&](const Attention&, Mode) { return paper.seen; });
               },
               {{"code_q", [](const int64_t*, double) { return 0.0; }},
                {"bucket", [](const int64_t*, double) { return 0.0; }},
                {"link", [](const int64_t*, double) { return 0.0; }}})
      .recipe("magicpig");
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  const std::string paper = " tables=150 buckets=1024 lse";
  add_cases(all,
            magicpig_calls(10).each("paper", {"q:f32 b=1 s=1 t=300 h=2 g=1 d=8 e=8" + paper,
                                              "q:bf16 b=1 s=1 t=200 h=4 g=2 d=16 e=32" + paper,
                                              "q:f16 b=2 s=2 t=90 h=2 g=2 d=64 e=64" + paper}));
  add_cases(all,
            magicpig_calls(2).each(
                "small", {"b=1 s=1 t=12 h=2 g=1 d=4 e=4 bits=2 tables=5 buckets=4 lse"}, true));
  add_cases(all, magicpig_calls(4).sweep(over_shapes({"s=1 t=70 bits=4 tables=20 buckets=16",
                                                      "s=3 t=40 bits=4 tables=9 buckets=16",
                                                      "s=1 t=5 bits=4 tables=30 buckets=16"}),
                                         64));
  return all;
}

const Family kFamily("recipes_lsh", recipe_cases);

}  // namespace
}  // namespace cases
