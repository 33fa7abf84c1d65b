// SPDX-License-Identifier: Apache-2.0
// The methods by name that choose by probed probabilities: calls of x_probed_forward whose numbers
// are the method's, against the definition of its paper.
#include "oracle/recipes_probed.h"

#include "cases/recipe_case.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using oracle::Attention;
using oracle::Mode;
using Params = fovea_x_probed_forward_params;
using Define = std::function<Chosen(const Attention&)>;

// What rows look at: a score is row(rows behind it) key(key) and a normal number times `noise`.
struct Looks {
  std::function<double(int64_t)> key = [](int64_t) { return 0; };
  double noise = 1;
  std::function<double(int64_t)> row = [](int64_t) { return 1; };
};

// Of a sampled row: its number in q.  `apart` rows lie from one to the next; the last is q's last.
int64_t row_of(const TableCall& made, int64_t n) {
  const Letters& of = made.letters;
  return of.at("s") - 1 - (of.at("samples") - 1 - n) * of.at("apart");
}

Table probed(const Looks& looks, const Define& define) {
  Table table("x_probed_forward", [=](TableCall& made) {
    const Params& p = made.params<Params>();
    const Attention a = load_operands(p);
    if (made.has("sample"))
      made.call.fill(made.call.field("sample"),
                     [&](const int64_t* i) { return a.q(i[0], row_of(made, i[1]), i[2], i[3]); });
    const Chosen paper = define(a);
    if (paper.margin < 1e-5) throw Close();
    return attend<Params>(made, [&](const Attention&, Mode) { return paper.seen; });
  });
  return table.contents(
      [=](const TableCall& made, const std::string& field, const int64_t* i, double normal) {
        const Letters& of = made.letters;
        if (field == "query_position")
          return static_cast<double>(row_of(made, i[2]) + of.at("t") - of.at("s"));
        if (field == "q" && i[3] == 0)
          return looks.row(of.at("s") - 1 - i[1]) * std::sqrt(static_cast<double>(of.at("d")));
        if (field == "k") return i[3] == 0 ? looks.key(i[1]) : looks.noise * normal;
        return normal;
      });
}

void antidiagonals(std::vector<harness::Case>& to) {
  const auto of = [](const Blocks& blocks, int64_t stride, double share) {
    const Looks looks = {[=](int64_t key) { return key / blocks.keys % 3 == 1 ? 2.5 : 0; }};
    return probed(looks, [=](const Attention& a) { return xattention(a, blocks, stride, share); })
        .recipe("xattention");
  };
  add_cases(to, of({128, 128, true}, 16, 0.9)
                    .each("paper", {"q:bf16 b=1 s=300 t=1100 h=2 g=1 d=32 e=32 lse",
                                    "q:f32 b=1 s=650 t=650 h=2 g=2 d=16 e=16"}));
  add_cases(to, of({128, 128, false}, 16, 0.9)
                    .each("plain", {"q:f32 b=1 s=260 t=900 h=2 g=1 d=32 e=32 lse causal=0"
                                    " force_first=0 force_own=0"}));
  add_cases(to, of({4, 4, true}, 2, 0.7)
                    .each("small",
                          {"b=1 s=6 t=18 h=2 g=1 d=8 e=4 block_rows=4 block_keys=4"
                           " group_stride=2 cover=0.7 lse"},
                          true));
  const std::string few = " block_rows=32 block_keys=16 group_stride=8 cover=0.7";
  add_cases(to, of({32, 16, true}, 8, 0.7)
                    .sweep(over_shapes({"s=70 t=70" + few, "s=64 t=128" + few, "s=33 t=130" + few,
                                        "s=1 t=95" + few}),
                           61));
}

void samples(std::vector<harness::Case>& to) {
  const auto of = [](int64_t apart, double share, int64_t window) {
    const Looks looks = {[](int64_t key) { return key % 7 == 3 ? 4.5 : 0; }};
    return probed(looks,
                  [=](const Attention& a) { return sampleattention(a, apart, share, window); })
        .recipe("sampleattention");
  };
  const std::string given = " sample query_position";
  // 5 % of the rows, 8 % of the keys.
  add_cases(to,
            of(20, 0.95, 24)
                .each("paper", {"q:bf16 b=1 s=300 t=300 h=2 g=1 d=32 e=32 lse samples=15 apart=20"
                                " last_keys=24" +
                                    given,
                                "q:f32 b=2 s=90 t=300 h=2 g=2 d=16 e=16 samples=5 apart=20"
                                " last_keys=24" +
                                    given}));
  add_cases(
      to, of(3, 0.7, 2).each(
              "small",
              {"b=1 s=6 t=14 h=2 g=1 d=8 e=4 samples=2 apart=3 last_keys=2 cover=0.7 lse" + given},
              true));
  const std::string few = " apart=9 last_keys=6 cover=0.7" + given;
  add_cases(to, of(9, 0.7, 6).sweep(
                    over_shapes({"s=70 t=70 samples=8" + few, "s=33 t=130 samples=4" + few,
                                 "s=1 t=95 samples=1" + few}),
                    62));
}

// So that each number of the paper decides what is seen: a stretch where every third key is a
// column and no distance is chosen, one where fewer and fewer distances are, and two that the last
// rows do not look at, but those before them do.
double stretches(int64_t key) {
  if (key < 300 || key >= 10416) return -8;
  if (key >= 9816) return -0.005 * static_cast<double>(key - 9816);
  if (key >= 2000 && key < 5600) return key % 3 ? -8 : 0.3;
  return 0;
}
double last_64(int64_t behind) {
  return behind < 64 ? 1 : -0.5;
}

void lines(std::vector<harness::Case>& to) {
  const auto of = [](const Looks& looks, const Lines& numbers) {
    return probed(looks, [=](const Attention& a) { return minference(a, numbers); })
        .recipe("minference");
  };
  const Looks even;
  const Lines paper = {64, 1000, 30, 6096, 100, 64};
  add_cases(to, of({stretches, 0.3, last_64}, paper)
                    .each("paper", {"q:f32 b=1 s=136 t=10816 h=1 g=1 d=16 e=16 lse",
                                    "q:bf16 b=1 s=136 t=10816 h=1 g=1 d=16 e=8"}));
  // Fewer keys than it chooses: all of them.
  add_cases(to, of(even, paper)
                    .each("paper", {"q:bf16 b=1 s=150 t=150 h=2 g=2 d=32 e=32 lse",
                                    "q:f32 b=1 s=40 t=300 h=2 g=1 d=16 e=16"}));
  add_cases(to, of(even, {2, 3, 1, 4, 2, 4})
                    .each("small",
                          {"b=1 s=6 t=22 h=2 g=1 d=8 e=4 probe_rows=2 count=3 force_first=1"
                           " slash_count=4 slash_force_first=2 block_rows=4 lse"},
                          true));
  const std::string few =
      " probe_rows=16 count=12 force_first=4 slash_count=9 slash_force_first=3 block_rows=16";
  add_cases(to, of(even, {16, 12, 4, 9, 3, 16})
                    .sweep(over_shapes({"s=100 t=100" + few, "s=60 t=180" + few, "s=5 t=140" + few,
                                        "s=1 t=95" + few}),
                           63));
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  antidiagonals(all), samples(all), lines(all);
  return all;
}

const Family kFamily("recipes_probed", recipe_cases);

}  // namespace
}  // namespace cases
