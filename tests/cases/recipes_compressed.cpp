// SPDX-License-Identifier: Apache-2.0
// CSA and HCA by name: calls of x_compressed_forward whose numbers are the method's, against the
// definition of DeepSeek-V4's report.  Keys are values.
#include "oracle/recipes_compressed.h"

#include "cases/recipe_case.h"
#include "oracle/compressed.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using oracle::Attention;
using oracle::Dense;
using oracle::Mode;
using Params = fovea_x_compressed_forward_params;

// The index has small integers, whose scores no rounding changes.
double contents(const std::string& field, double normal) {
  if (field == "weight") return std::round(2 * normal);
  if (field.rfind("index_", 0) == 0) return std::clamp(std::round(1.2 * normal), -2.0, 2.0);
  return normal;
}

Table compressed(const CompressedNumbers& n, bool chooses) {
  Table table("x_compressed_forward", [=](TableCall& made) {
    const Params& p = made.params<Params>();
    const Attention a = load_operands(p);
    const Dense entries = oracle::load(p.k_compressed), sink = oracle::load(p.sink_logit);
    const Index index = {
        oracle::load(p.index_q), oracle::load(p.index_k), oracle::load(p.weight), {}, {}};
    const Compressed paper = chooses ? csa(a, entries, sink, index, n) : hca(a, entries, sink, n);
    if (paper.margin < 1e-5) throw Close();
    const auto exact = oracle::forward(paper.all, p.o, p.lse, Mode::exact);
    const auto rounded = oracle::merged(paper.window, paper.entries, p.o, p.lse);
    return std::vector<Expected>{{"o", exact.o, rounded.o}, {"lse", exact.lse, rounded.lse}};
  });
  return table.view("v", "k")
      .view("v_compressed", "k_compressed")
      .shape([=](TableCall& made) {
        made.letters["g"] = 1, made.letters["e"] = made.letters["d"];
        made.letters["u"] = made.letters["t"] / n.tokens;
      })
      .contents([](const TableCall&, const std::string& field, const int64_t*, double normal) {
        return contents(field, normal);
      });
}

// Axes of a sweep.
std::vector<std::vector<std::string>> shapes(std::vector<std::string> own) {
  return {{"q:f32", "q:bf16", "q:f16"},
          {"b=2 h=4 d=64", "b=1 h=8 d=32", "b=1 h=6 d=128"},
          {"contiguous", "gaps", "odd"},
          {"lse o:f32", "lse", ""},
          std::move(own)};
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  const std::string sink = " sink_logit", index = sink + " index_q index_k weight index_keys=1",
                    paper = index + " index_heads=8 index_width=16 lse";
  const auto sparse = [](const CompressedNumbers& n) { return compressed(n, true).recipe("csa"); };
  const auto heavy = [](const CompressedNumbers& n) { return compressed(n, false).recipe("hca"); };
  add_cases(all, sparse({4, 512, 128})
                     .each("paper", {"q:bf16 b=1 s=2 t=2300 h=4 d=64" + paper,
                                     "q:f32 b=1 s=3 t=2210 h=2 d=16" + paper,
                                     "q:bf16 b=1 s=40 t=40 h=2 d=512" + paper}));
  add_cases(all, sparse({2, 2, 3}).each("small",
                                        {"b=1 s=3 t=14 h=2 d=4 compress_step=2 count=2 window=3"
                                         " index_heads=2 index_width=4 lse" +
                                         index},
                                        true));
  const std::string few = " compress_step=4 count=5 window=12 index_heads=4 index_width=16" + index;
  add_cases(all, sparse({4, 5, 12})
                     .sweep(shapes({"s=70 t=70" + few, "s=20 t=151" + few, "s=1 t=160" + few,
                                    "s=5 t=7" + few}),
                            91));
  add_cases(all, heavy({128, 0, 128})
                     .each("paper", {"q:bf16 b=1 s=2 t=1300 h=4 d=512 lse" + sink,
                                     "q:f32 b=1 s=200 t=700 h=2 d=16 lse" + sink}));
  add_cases(all, heavy({4, 0, 5}).each(
                     "small", {"b=1 s=3 t=14 h=2 d=4 compress_step=4 window=5 lse" + sink}, true));
  const std::string step = " compress_step=16 window=12" + sink;
  add_cases(all, heavy({16, 0, 12})
                     .sweep(shapes({"s=70 t=70" + step, "s=20 t=151" + step, "s=1 t=160" + step,
                                    "s=5 t=7" + step}),
                            92));
  return all;
}

const Family kFamily("recipes_compressed", recipe_cases);

}  // namespace
}  // namespace cases
