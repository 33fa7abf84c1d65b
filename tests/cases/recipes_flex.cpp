// SPDX-License-Identifier: Apache-2.0
// FlexPrefill by name: calls of x_flex_forward whose numbers are the method's, against the
// definition of its paper.
#include "oracle/recipes_flex.h"

#include "cases/recipe_case.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using Params = fovea_x_flex_forward_params;

Table flex(const Flex& of) {
  Table table("x_flex_forward", [=](TableCall& made) {
    const Chosen paper = flexprefill(load_operands(made.params<Params>()), of);
    if (paper.margin < 1e-5) throw Close();
    return attend<Params>(made, [&](const oracle::Attention&, oracle::Mode) { return paper.seen; });
  });
  // Pooled scores tell little of every other head.
  return table
      .contents([](const TableCall&, const std::string& field, const int64_t* i, double normal) {
        return field == "q" && i[2] % 2 ? 4 * normal : normal;
      })
      .recipe("flexprefill");
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  add_cases(all, flex({128, 1024, 0, 0.9f, 0.1})
                     .each("paper", {"q:f32 b=1 s=1300 t=1300 h=2 g=1 d=16 e=16 lse",
                                     "q:bf16 b=1 s=300 t=1500 h=2 g=2 d=32 e=32 lse",
                                     "q:bf16 b=1 s=200 t=1024 h=2 g=2 d=32 e=32"}));
  add_cases(
      all,
      flex({2, 2, 0, 0.5f, 0.1})
          .each("small", {"b=1 s=9 t=9 h=2 g=1 d=4 e=4 block=2 min_budget=2 cover=0.5 lse"}, true));
  add_cases(all, flex({16, 16, 0, 0.9f, 0.1})
                     .sweep(over_shapes({"s=70 t=70 block=16 min_budget=16",
                                         "s=20 t=130 block=16 min_budget=16",
                                         "s=128 t=128 block=16 min_budget=16",
                                         "s=25 t=30 block=16 min_budget=16"}),
                            55));
  return all;
}

const Family kFamily("recipes_flex", recipe_cases);

}  // namespace
}  // namespace cases
