// SPDX-License-Identifier: Apache-2.0
// The methods by name, experimental/recipe.h: calls whose numbers are the method's, against the
// definition of its paper.  What a case says in words stands in place of the method's numbers.
#include "oracle/recipes.h"

#include "cases/recipe_case.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using oracle::Attention;
using oracle::Mode;

Table dense(const DefineSeen& define, std::map<std::string, Table::Fill> fills = {}) {
  return Table(
      "attention_forward",
      [define](TableCall& made) { return attend<fovea_attention_forward_params>(made, define); },
      std::move(fills));
}

// ---- windows

void streaming(std::vector<harness::Case>& to) {
  const auto by = [](int64_t sinks, int64_t window) {
    return dense([=](const Attention& a, Mode) { return streamingllm(a, sinks, window); });
  };
  add_cases(to, by(4, 2000)
                    .recipe("streamingllm")
                    .each("paper", {"q:bf16 b=1 s=70 t=2100 h=2 g=1 d=16 e=16 lse",
                                    "q:f32 b=1 s=3 t=2003 h=2 g=2 d=8 e=8 lse"}));
  add_cases(to, by(4, 7)
                    .recipe("streamingllm")
                    .each("small", {"b=1 s=5 t=16 h=2 g=1 d=8 e=8 lse window_left=7"}, true));
  add_cases(to, by(2, 9)
                    .recipe("streamingllm")
                    .sweep(over_shapes({"s=20 t=40 window_left=9 sink_keys=2",
                                        "s=1 t=33 window_left=9 sink_keys=2",
                                        "s=40 t=30 window_left=9 sink_keys=2",
                                        "s=7 t=7 window_left=9 sink_keys=2"}),
                           31));
  // A step on a full ring of 4 + 12 slots, its keys turned by their ranks there.
  for (const int64_t seen : {11, 16, 45}) {
    const int64_t live = std::min<int64_t>(seen, 16);
    Table step = dense(
        [=](const Attention& a, Mode mode) { return streamingllm_in_cache(a, 4, 12, seen, mode); },
        {{"key_position", [=](const int64_t* i, double) {
            return static_cast<double>(rank_in_ring(i[2], 4, 12, seen));
          }}});
    const std::string words =
        "b=2 s=1 h=2 g=2 d=16 e=8 cos sin key_position lse half=8 positions=16 t=";
    add_cases(to, step.recipe("streamingllm")
                      .each(("seen" + std::to_string(seen)).c_str(),
                            {"q:f32 " + words + std::to_string(live),
                             "q:bf16 " + words + std::to_string(live)}));
  }
}

void spans(std::vector<harness::Case>& to) {
  const auto row = [](const std::function<int64_t(int64_t)>& window, int64_t sinks) {
    return [=](const int64_t* i, double) {
      const int64_t values[] = {window(i[0]), 1, window(i[0]) ? sinks : 0};
      return static_cast<double>(values[i[1]]);
    };
  };
  const auto moa_of = [&](int64_t sinks, int64_t unit) {
    const auto span = [=](int64_t head) { return unit * (1 + head * head); };
    return dense([=](const Attention& a, Mode) { return moa(a, sinks, span); },
                 {{"head_window", row(span, sinks)}});
  };
  add_cases(to, moa_of(64, 64).recipe("moa").each(
                    "paper", {"q:bf16 b=1 s=130 t=700 h=4 g=2 d=64 e=64 lse head_window"}));
  add_cases(to, moa_of(2, 2).recipe("moa").each(
                    "small", {"b=1 s=4 t=12 h=3 g=1 d=8 e=8 lse head_window"}, true));
  add_cases(
      to,
      moa_of(3, 5).recipe("moa").sweep(
          over_shapes({"s=20 t=90 head_window", "s=1 t=60 head_window", "s=50 t=20 head_window"}),
          32));
  const auto retrieval = [](int64_t head) { return head % 2 == 1; };
  const auto duo_of = [&](int64_t sinks, int64_t recent) {
    const auto window = [=](int64_t head) { return retrieval(head) ? 0 : recent; };
    return dense(
        [=](const Attention& a, Mode) { return duoattention(a, sinks, recent, retrieval); },
        {{"head_window", row(window, sinks)}});
  };
  add_cases(to, duo_of(64, 256)
                    .recipe("duoattention")
                    .each("paper", {"q:bf16 b=1 s=130 t=700 h=4 g=2 d=64 e=64 lse head_window"}));
  add_cases(to, duo_of(2, 3)
                    .recipe("duoattention")
                    .each("small", {"b=1 s=4 t=12 h=2 g=1 d=8 e=8 lse head_window"}, true));
  add_cases(to, duo_of(3, 6)
                    .recipe("duoattention")
                    .sweep(over_shapes({"s=20 t=90 head_window", "s=1 t=60 head_window",
                                        "s=50 t=20 head_window"}),
                           33));
}

// ---- over x_sparse_forward

using Sparse = fovea_x_sparse_forward_params;

// Keys of every other tile are small: its scores lie far below what rows have met, or close to it.
double blasst_key(const TableCall&, const std::string& field, const int64_t* i, double normal) {
  return field == "k" ? normal * (i[1] / 64 % 2 ? 0.03 : 6) : normal;
}

Table skipping(double margin) {
  Table table("x_sparse_forward", [=](TableCall& made) {
    const Sparse& p = made.params<Sparse>();
    const Blasst paper = blasst(load_operands(p), margin, 64, 64);
    std::vector<Expected> out =
        attend<Sparse>(made, [&](const Attention&, Mode) { return paper.seen; });
    oracle::Out skipped(p.skipped, 0);
    if (made.has("skipped")) skipped.set(0, static_cast<double>(paper.skipped));
    out.push_back({"skipped", skipped, skipped, true});
    return out;
  });
  return table.contents(blasst_key).recipe("blasst");
}

void skips(std::vector<harness::Case>& to) {
  add_cases(to, skipping(4).each("small", {"b=1 s=3 t=130 h=2 g=1 d=8 e=8 lse skipped"}, true));
  add_cases(to, skipping(4).sweep(over_shapes({"s=150 t=400 skipped", "s=64 t=192",
                                               "s=1 t=300 skipped", "s=300 t=300 skipped"}),
                                  34));
  add_cases(to, skipping(9).each(
                    "margin", {"q:f32 b=1 s=150 t=400 h=2 g=1 d=64 e=64 skip_margin=9 skipped"}));
  // Nothing lies so far below.
  add_cases(to, skipping(1000).each(
                    "dense", {"q:f32 b=1 s=70 t=200 h=2 g=1 d=64 e=64 skip_margin=1000 skipped"}));
}

// Slots of a sequence that are live.
int64_t live(int64_t sequence, int64_t t) {
  return std::max<int64_t>(1, t - 3 * sequence);
}

void heavy(std::vector<harness::Case>& to) {
  Table table("x_sparse_forward", [](TableCall& made) {
    const Sparse& p = made.params<Sparse>();
    const Attention paper = h2o(load_operands(p));
    std::vector<Expected> out = attend<Sparse>(made, [&](const Attention&, Mode) { return paper; });
    const oracle::Dense before = oracle::load(p.mass);
    out.push_back({"mass", accumulated<double>(paper, before, p.mass, Mode::exact),
                   accumulated<float>(paper, before, p.mass, Mode::rounded)});
    if (made.has("key_len"))
      for (const char* field : {"k", "v"})
        made.call.account(made.call.field(field), [&](const int64_t* i) {
          return i[1] < live(i[0], made.letters.at("t"));
        });
    return out;
  });
  table.contents(
      [](const TableCall& made, const std::string& field, const int64_t* i, double normal) {
        if (field == "key_len") return static_cast<double>(live(i[0], made.letters.at("t")));
        return field == "mass" ? std::abs(normal) : normal;
      });
  table.recipe("h2o");
  add_cases(to, table.each("small", {"b=2 s=1 t=9 h=4 g=2 d=8 e=8 x=2 lse mass key_len"}, true)
                    .sweep(over_shapes({"s=1 t=70 x=1 mass key_len", "s=40 t=40 x=2 mass",
                                        "s=9 t=50 x=1 mass", "s=1 t=5 x=2 mass key_len"}),
                           35));
}

void clusters(std::vector<harness::Case>& to) {
  const auto cluster = [](int64_t sequence, int64_t head) { return head / 2 * 2 + sequence % 2; };
  const std::map<std::string, Table::Fill> fills = {
      {"head_map",
       [=](const int64_t* i, double) { return static_cast<double>(cluster(i[0], i[1])); }}};
  Table table(
      "x_sparse_forward",
      [=](TableCall& made) {
        return attend<Sparse>(made, [&](const Attention& a, Mode) { return chai(a, cluster); });
      },
      fills);
  table.recipe("chai");
  add_cases(
      to, table.each("small", {"b=2 s=3 t=7 h=4 g=2 d=8 e=8 lse head_map"}, true)
              .sweep(over_shapes({"s=20 t=90 head_map", "s=1 t=60 head_map", "s=40 t=30 head_map"}),
                     36));
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  streaming(all), spans(all), skips(all), heavy(all), clusters(all);
  return all;
}

const Family kFamily("recipes", recipe_cases);

}  // namespace
}  // namespace cases
