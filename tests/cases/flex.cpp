// SPDX-License-Identifier: Apache-2.0
// x_flex_forward: covering arrays of shapes, places, budgets and outputs; heads of both kinds in
// one call; the edges.  Every other head is turned up, so that pooled scores tell little of it.
// Inputs are normal numbers, drawn again until no decision is close.  Whole rows of pooled scores
// add up to no share: rows times cover is no integer.
#include "cases/placed_case.h"
#include "oracle/recipes_flex.h"
#include "oracle/sparse.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using Params = fovea_x_flex_forward_params;
constexpr char kOp[] = "x_flex_forward";

class FlexBuild : Placed {
 public:
  FlexBuild(const std::string& words, uint64_t seed) : Placed(kOp, words, seed) {
    Letters& x = made.letters;
    const Params& p = made.params<Params>();
    if (!x.count("more")) x["n"] = (x["s"] + block(p) - 1) / block(p);
  }

  static harness::Call build(const std::string& words, uint64_t seed) {
    FlexBuild one(words, seed);
    one.inputs();
    one.fill([](const std::string& field, const int64_t* i, double x, double) {
      return field == "q" && i[2] % 2 ? 4 * x : x;
    });
    one.made.outputs();
    const Params& p = one.made.params<Params>();
    const oracle::Attention a = operands(p);
    one.account(a.at, a.at.sequences, {"q"}, {"k", "v"});
    double margin = HUGE_VAL;
    const std::vector<FlexHead> heads = flex_heads(
        a, {block(p), p.min_budget, p.max_budget, p.cover, static_cast<double>(p.threshold)},
        margin);
    if (margin < 1e-5) throw Close();
    if (one.made.letters.count("both")) both(heads);
    const int64_t keep = p.index.data ? p.index.shape[3] : a.at.extent + 1;
    const oracle::Attention seen = over_flex(a, block(p), keep, heads);
    const auto exact = oracle::forward(seen, p.o, p.lse, oracle::Mode::exact);
    const auto rounded = oracle::forward(seen, p.o, p.lse, oracle::Mode::rounded);
    oracle::Out index(p.index, 0), count(p.index_count, 0);
    lists(p, heads, index, count);
    one.made.expect({{"o", exact.o, rounded.o},
                     {"lse", exact.lse, rounded.lse},
                     {"index", index, index, true},
                     {"index_count", count, count, true}});
    return std::move(one.made.call);
  }

 private:
  static int64_t block(const Params& p) { return p.block ? p.block : 128; }
  static oracle::Attention operands(const Params& p) {
    fovea_x_sparse_forward_params to{};
    to.q = p.q, to.k = p.k, to.v = p.v, to.key_len = p.key_len, to.page_table = p.page_table;
    to.key_max = p.key_max, to.scale = p.scale;
    return oracle::load_sparse(to).a;
  }
  // Heads of both kinds that are not dense, or other inputs.
  static void both(const std::vector<FlexHead>& heads) {
    const auto has = [&](bool sparse) {
      return std::any_of(heads.begin(), heads.end(), [&](const FlexHead& head) {
        return !head.dense && head.sparse == sparse;
      });
    };
    if (!has(true) || !has(false)) throw Close();
  }
  static void lists(const Params& p, const std::vector<FlexHead>& heads, oracle::Out& index,
                    oracle::Out& count) {
    const int64_t n = p.index.shape[2], keep = p.index.shape[3];
    for (size_t at = 0; p.index.data && at < heads.size(); ++at)
      for (size_t row = 0; row < heads[at].lists.size(); ++row) {
        std::vector<int64_t> list = heads[at].lists[row];
        const int64_t line = static_cast<int64_t>(at) * n + static_cast<int64_t>(row);
        const auto wanted = static_cast<int64_t>(list.size());
        if (p.index_count.data) count.set(line, static_cast<double>(wanted));
        list.resize(std::min(wanted, keep));
        std::sort(list.begin(), list.end());
        list.resize(keep, -1);
        for (int64_t slot = 0; slot < keep; ++slot)
          index.set(line * keep + slot, static_cast<double>(list[slot]));
      }
  }
};

const std::vector<std::string> kTypes = {"q:f32", "q:bf16 k:bf16 v:bf16",
                                         "q:f16 k:f16 v:f16 o:f32"};

void sweeps(WordCases& add) {
  add.sweep(
      "d=16 e=24",
      {kTypes,
       {"h=4 g=2", "h=4 g=4", "h=6 g=1"},
       {"block=8", "block=16", "block=13"},
       {"s=70 t=70", "s=96 t=96", "s=33 t=130", "s=1 t=90", "s=150 t=150"},
       {"b=2", "b=3 key_len", "b=3 page_table page=16 key_len", "b=3 page_table page=5 key_len",
        "b=2 page_table page=16", "b=2 key_max=60", "b=2 page_table page=16 key_max=60"},
       {"cover=0.47 threshold=0.2", "cover=0.87 threshold=0.1", "cover=0.67",
        "cover=0.31 threshold=9"},
       {"", "min_budget=30", "min_budget=17 max_budget=40", "max_budget=9"},
       {"", "index keep=3", "index index_count keep=20"},
       {"", "lse", "lse scale=0.5"}},
      "flex", 61);
  add.sweep("d=32 e=32 both=1 cover=0.83 threshold=0.15",
            {kTypes,
             {"h=4 g=2", "h=2 g=2", "h=6 g=2"},
             {"block=16 s=130 t=130", "block=16 s=200 t=200", "block=32 s=170 t=300"},
             {"b=1", "b=2", "b=3 key_len"},
             {"", "min_budget=32", "min_budget=16 max_budget=48"},
             {"index index_count keep=20", "lse"},
             {"contiguous", "odd", "head_first"}},
            "kinds", 62);
}

void edges(WordCases& add) {
  for (const char* words :
       {"b=0 block=4 cover=0.5", "s=0 block=4 cover=0.5", "t=0 s=3 block=4 cover=0.5",
        "t=0 s=3 block=4 cover=0.5 index index_count keep=2", "h=0 g=0 block=4 cover=0.5",
        "s=0 block=4 cover=0.5 index keep=2 n=1 more=1",
        "s=9 t=9 block=4 index index_count keep=0 cover=0.5",
        "s=9 t=9 block=4 index index_count keep=4 n=5 more=1 cover=0.5",
        "s=8 t=8 block=4 index index_count keep=4 cover=0.5",
        "s=20 t=5 block=1 index index_count keep=9 cover=0.5 lse",
        "s=20 t=20 block=1 index index_count keep=20 cover=0.87 threshold=0.3 lse",
        "s=20 t=12 block=4 cover=0.5 index index_count keep=3 threshold=0.1",
        "s=40 t=40 block=4 cover=0", "s=40 t=40 block=4 cover=0 threshold=5 index keep=10",
        "s=40 t=40 block=4 cover=1 threshold=5", "s=40 t=40 block=4 cover=3",
        "s=40 t=40 block=4 cover=0.9 min_budget=9223372036854775807",
        "s=40 t=40 block=4 cover=0.9 min_budget=8 max_budget=9223372036854775807",
        "s=40 t=40 block=4 cover=0.9 key_max=9223372036854775807"})
    add.add(words, "edge");
}

std::vector<harness::Case> cases() {
  WordCases add(kOp, FlexBuild::build);
  sweeps(add), edges(add);
  add.add("b=1 s=300 t=300 h=2 g=1 d=128 e=128 cover=0.5 threshold=0.1 q:bf16 k:bf16 v:bf16 lse",
          "hopper")
      .add("b=1 s=400 t=529 h=2 g=1 d=64 e=64 cover=0.9 q:f16 k:f16 v:f16", "hopper");
  add.add(
      "b=1 s=10 t=10 h=2 g=1 d=4 e=4 block=2 cover=0.5 threshold=0.15 both=1 index index_count"
      " keep=4",
      "small", true);
  return add.cases();
}

const Family kFamily("flex", cases);

}  // namespace
}  // namespace cases
