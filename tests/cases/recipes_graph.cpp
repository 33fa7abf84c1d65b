// SPDX-License-Identifier: Apache-2.0
// RetrievalAttention by name: calls of x_graph_forward whose numbers are the method's, against the
// definition of its paper.
#include "oracle/recipes_graph.h"

#include "cases/graph_case.h"
#include "cases/recipe_case.h"

namespace cases {
namespace {

using Params = fovea_x_graph_forward_params;

std::vector<harness::Case> recipe_cases() {
  const auto of = [](int64_t count, int64_t ef) {
    Table table("x_graph_forward", [=](TableCall& made) {
      const oracle::GraphCall graph(made.params<Params>());
      std::vector<Expected> out =
          attend<Params>(made, [&](const oracle::Attention& a, oracle::Mode) {
            return oracle::recipes::retrievalattention(a, graph, count, ef);
          });
      count_graph_read(made, graph);
      return out;
    });
    return table.contents(graph_contents).recipe("retrievalattention");
  };
  const std::string graph = " neighbour neighbour_count entry";
  std::vector<harness::Case> cases;
  add_cases(cases, of(100, 200).each(
                       "paper", {"q:bf16 b=1 s=2 t=900 h=4 g=2 d=64 e=64 degree=12 lse" + graph,
                                 "q:f32 b=2 s=1 t=300 h=2 g=2 d=16 e=24 degree=20 key_len" + graph,
                                 "q:f16 b=1 s=1 t=70 h=2 g=1 d=16 e=16 degree=9 odd lse" + graph}));
  add_cases(cases,
            of(3, 4).each("small",
                          {"b=1 s=1 t=9 h=2 g=1 d=4 e=4 count=3 ef=4 degree=3 lse" + graph}, true));
  add_cases(cases,
            of(7, 12).sweep(over_shapes({"s=3 t=60 count=7 ef=12 degree=5" + graph,
                                         "s=1 t=5 count=7 ef=12 degree=3" + graph,
                                         "s=4 query_len t=90 count=7 ef=12 degree=9" + graph}),
                            71));
  return cases;
}

const Family kFamily("recipes_graph", recipe_cases);

}  // namespace
}  // namespace cases
