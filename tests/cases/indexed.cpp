// SPDX-License-Identifier: Apache-2.0
// x_indexed_forward: a covering array of measures, places and rules; the edges; the numbers
// of the methods by name, whose definitions cases/recipes_indexed.cpp has.
//   data=0   the index has small integers, whose scores are exact
//   data=1   it has normal numbers, drawn again until no decision is close
#include "oracle/indexed.h"

#include "cases/placed_case.h"

namespace cases {
namespace {

using Params = fovea_x_indexed_forward_params;
constexpr char kOp[] = "x_indexed_forward";

class IndexedBuild : Placed {
 public:
  IndexedBuild(const std::string& words, uint64_t seed) : Placed(kOp, words, seed) {}

  static harness::Call build(const std::string& words, uint64_t seed) {
    IndexedBuild one(words, seed);
    one.inputs();
    one.fill([&](const std::string& field, const int64_t*, double x, double u) {
      return one.value(field, x, u);
    });
    one.made.outputs();
    const Params& p = one.made.params<Params>();
    const oracle::Attention at = oracle::load_sparse(placed(p)).a;
    one.account(at.at, at.at.sequences, {"q", "q_value", "index_q", "code_q", "weight"},
                {"k", "v", "index_k", "code", "index_k_scale", "k_scale", "v_scale"});
    if (p.block_k.data) one.account_blocks(at.at);
    oracle::IndexedResult a = oracle::IndexedOracle(p).run(oracle::Mode::exact);
    oracle::IndexedResult b = oracle::IndexedOracle(p).run(oracle::Mode::rounded);
    if (a.margin < 1e-5 && one.rough()) throw Close();
    one.made.expect({{"o", a.o, b.o},
                     {"lse", a.lse, b.lse},
                     {"index", a.index, b.index, true},
                     {"index_count", a.index_count, b.index_count, true}});
    return std::move(one.made.call);
  }

 private:
  // Complete blocks count.
  void account_blocks(const oracle::Layout& at) {
    std::map<std::array<int64_t, 2>, bool> used;
    const int64_t step = made.params<Params>().index_step;
    for (int64_t r = 0; r < at.sequences; ++r) {
      const oracle::Sequence q = oracle::sequence(at, r);
      for (int64_t c = 0; (c + 1) * step <= q.keys; ++c) used[{q.cache, c}] = true;
    }
    made.call.account(made.call.field("block_k"), [&](const int64_t* i) {
      return used.count({i[0], i[1]}) != 0;
    });
  }
  // Whether q and k are their own index, or the index has normal numbers.
  bool rough() const { return data == 1 || !(made.has("index_q") || made.has("code_q")); }
  double value(const std::string& field, double x, double u) const {
    if (field == "index_q" || field == "index_k" || field == "block_k")
      return data == 1 ? x : std::clamp(std::round(1.2 * x), -2.0, 2.0);
    if (field == "index_k_scale" || field == "k_scale" || field == "v_scale")
      return std::exp2(std::floor(u * 3) - 1);
    if (field == "weight") return std::floor(u * 5) - 1;
    if (field == "code_q" || field == "code")
      return static_cast<double>(static_cast<int32_t>(u * 4294967296.0 - 2147483648.0));
    return x;
  }
};

const std::vector<std::string> kPlaces = {"b=2",
                                          "b=3 query_len key_len",
                                          "query_start key_start",
                                          "b=3 page_table page=16 key_len",
                                          "b=3 page_table page=5 cache_row key_len",
                                          "b=3 cache_row",
                                          "query_start b=1 key_len",
                                          "key_start",
                                          "b=2 query_max=4 key_max=50"};
const std::vector<std::string> kWindows = {"", "causal=1", "causal=1 window_left=30 sink_keys=3",
                                           "causal=1 context_len"};
const std::vector<std::string> kRules = {"count=3",   "count=20 index index_count keep=9",
                                         "ratio=0.3", "count=4 force_last=2",
                                         "count=0",   "count=2 ratio=0.2 index keep=30"};
const std::vector<std::string> kBeside = {"", "first_keys=4", "first_keys=2 last_keys=3"};

void sweeps(WordCases& add) {
  const std::vector<std::string> of = {"q:f32", "q:bf16 k:bf16 v:bf16", "q:f16 k:f16 v:f16 o:f32",
                                       "q:bf16 k:e4m3 v:e4m3 k_scale v_scale groups=1"};
  add.sweep("index_q index_k index_scale=0.5 d=24 e=16",
            {of,
             {"index_q:f32 index_k:f32", "index_q:bf16 index_k:bf16",
              "index_q:e4m3 index_k:e4m3 index_k_scale index_groups=2", "index_q:bf16 index_k:i8"},
             {"", "measure=1", "measure=1 weight"},
             {"h=4 g=2 index_heads=4 index_keys=2 x=4",
              "h=4 g=2 index_heads=8 index_keys=2 x=2 lists=2 reduce=1",
              "h=4 g=1 index_heads=6 index_keys=1 x=1 reduce=1",
              "h=8 g=2 index_heads=2 index_keys=1 x=1 reduce=3"},
             {"s=1 t=70", "s=9 t=130"},
             {"index_width=8", "index_width=24"},
             kPlaces,
             kWindows,
             kRules,
             kBeside,
             {"", "lse", "lse sink_logit softcap=5"},
             {"", "pool_keys=16 ratio=0", "pool_keys=7 ratio=0"}},
            "index", 21);
  add.sweep("code_q code measure=2 d=16 e=16",
            {of,
             {"code_words=1", "code_words=3"},
             {"h=4 g=2 index_heads=4 index_keys=4 x=4",
              "h=4 g=2 index_heads=4 index_keys=2 x=2 lists=2 reduce=3"},
             {"s=1 t=70", "s=5 t=90"},
             kPlaces,
             kWindows,
             kRules,
             kBeside},
            "codes", 22);
  add.sweep("d=32 e=16 count=8 index_scale=0.3",
            {{"q:f32", "q:bf16 k:bf16 v:bf16 o:f32", "q:f16 k:f16 v:f16"},
             {"", "measure=3 subset=7"},
             {"h=4 g=2 x=4", "h=4 g=2 x=2 lists=2 reduce=1"},
             {"s=1 t=70", "s=3 t=40"},
             {"b=2", "b=3 query_len key_len", "b=3 page_table page=16 key_len",
              "b=2 query_max=2 key_max=30"},
             {"", "force_last=3", "index keep=5"},
             {"", "v_mean", "v_mean lse"}},
            "mean", 23);
}

// Scores of two parts: latents as v, their rotated part as k.  Records too, and Hopper's widths.
void joined(WordCases& add) {
  add.sweep("q_value index_q index_k weight measure=1 reduce=1 index_keys=1 x=1 g=1 index_width=16",
            {{"q:f32", "q:bf16 k:bf16 v:bf16", "q:f16 k:f16 v:f16 o:f32",
              "q:bf16 k:bf16 v:e4m3 v_scale groups=2"},
             {"index_q:bf16 index_k:bf16 index_heads=4", "index_q:f32 index_k:f32 index_heads=6"},
             {"h=8 d=16 e=32", "h=4 d=5 e=8", "h=3 d=8 e=24"},
             {"s=1 t=70", "s=9 t=130"},
             kPlaces,
             kWindows,
             {"count=3", "count=20 index index_count keep=9", "ratio=0.3", "count=4 force_last=2"},
             kBeside,
             {"", "lse", "lse sink_logit softcap=5", "lse scale=0.3"}},
            "joined", 25);
  const std::string wide =
      "q_value index_q index_k weight measure=1 reduce=1 index_heads=4 index_keys=1 x=1 g=1"
      " index_width=16 h=16 d=64 e=512 causal=1 count=70 lse q:bf16 ";
  for (const char* words :
       {"k:bf16 v:bf16 s=5 t=150 b=2 key_len query_len", "k:bf16 v:bf16 s=1 t=150 b=3 key_len",
        "k:bf16 v:bf16 s=1 t=150 b=3 page_table page=16 key_len",
        "k:bf16 v:e4m3 v_scale groups=4 s=3 t=150 b=2"})
    add.add(wide + words, "joined wide");
}

void blocks(WordCases& add) {
  add.sweep("index_q block_k index_scale=0.5 measure=1 d=24 e=16 causal=1",
            {{"q:f32", "q:bf16 k:bf16 v:bf16", "q:f16 k:f16 v:f16 o:f32",
              "q:bf16 k:e4m3 v:e4m3 k_scale v_scale groups=1"},
             {"index_q:f32 block_k:f32", "index_q:bf16 block_k:bf16", "index_q:e4m3 block_k:bf16"},
             {"", "weight", "measure=0", "measure=3 subset=5"},
             {"h=4 g=2 index_heads=4 index_keys=2 x=4",
              "h=4 g=2 index_heads=8 index_keys=2 x=2 lists=2 reduce=1",
              "h=4 g=1 index_heads=4 index_keys=1 x=1 reduce=1"},
             {"s=1 t=70", "s=9 t=128", "s=40 t=90"},
             {"index_step=4 blocks=33", "index_step=16 blocks=9", "index_step=1 blocks=133"},
             {"index_width=8", "index_width=24"},
             {"b=2", "b=3 query_len key_len", "b=3 page_table page=16 key_len",
              "b=3 page_table page=5 cache_row key_len", "b=3 cache_row", "query_start b=1 key_len",
              "b=2 query_max=4 key_max=50", "query_start"},
             {"count=3", "count=20 index index_count keep=9", "count=4 force_last=2",
              "count=0 index keep=2", "count=0 force_last=3 index index_count keep=30"},
             {"", "lse", "lse sink_logit softcap=5"}},
            "blocks", 24);
  for (const char* words :
       {"b=0 count=2 blocks=9 x=2", "s=0 count=2 blocks=9 x=2", "t=0 s=3 count=2 blocks=1 x=2",
        "index index_count keep=0 x=2 count=2 blocks=9 t=13 s=3",
        "index index_count keep=1 x=2 count=2 blocks=9 t=13 s=3",
        "t=5 s=9 count=2 blocks=2 x=2 index index_count keep=3",
        "t=33 s=9 count=9223372036854775807 force_last=9223372036854775807 blocks=9 x=2 lse"})
    add.add(
        "index_q block_k index_heads=2 index_keys=1 index_width=8 h=2 g=1 d=8 e=8 measure=1"
        " index_step=4 causal=1 " +
            std::string(words),
        "blocks edge");
}

void edges(WordCases& add) {
  for (const char* words :
       {"b=0 count=2 x=4", "s=0 count=2 x=4", "t=0 count=2 x=4", "t=0 count=2 x=4 v_mean",
        "h=0 g=0 x=0 count=2", "h=4 g=2 count=0", "index keep=0 x=4 count=2",
        "t=5 s=9 causal=1 count=2", "t=9 s=2 count=9223372036854775807 force_last=1 lse",
        "t=90 s=2 first_keys=9223372036854775807 count=4 h=4 g=2",
        "t=90 s=2 pool_keys=128 count=4 h=4 g=2"})
    add.add(words, "edge");
}

void methods(WordCases& add) {
  add.add(
         "index_q index_k weight measure=1 reduce=1 index_heads=16 index_keys=1"
         " index_width=32 h=8 g=1 x=1 d=40 e=32 b=2 s=7 t=90 causal=1 count=24 index keep=24"
         " index_scale=1 q:bf16 k:bf16 v:bf16",
         "dsa")
      .add(
          "index_q index_k reduce=1 lists=2 index_heads=4 index_keys=2 index_width=16 h=8"
          " g=2 x=2 d=32 e=32 b=1 s=20 t=130 causal=1 count=3 force_last=1 pool_keys=16 index"
          " keep=3 index_scale=1 q:bf16 k:bf16 v:bf16",
          "msa")
      .add(
          "measure=3 subset=16 reduce=1 lists=2 h=8 g=2 x=2 d=64 e=32 b=2 s=1 t=150"
          " causal=1 count=32 force_last=16 v_mean index keep=32 data=1",
          "sparq")
      .add(
          "index_q index_k index_heads=4 index_keys=4 index_width=16 h=4 g=4 x=4 d=32 e=32"
          " b=2 s=2 t=120 causal=1 ratio=0.25 count=1 index keep=40 data=1",
          "loki")
      .add(
          "code_q code measure=2 code_words=1 index_heads=4 index_keys=4 h=4 g=4 x=4 d=32"
          " e=32 b=2 s=2 t=200 causal=1 first_keys=8 last_keys=8 count=40 index keep=40",
          "hash");
}

std::vector<harness::Case> cases() {
  WordCases add(kOp, IndexedBuild::build);
  sweeps(add), joined(add), blocks(add), edges(add), methods(add);
  add.add("b=1 s=2 t=9 h=2 g=1 x=2 d=4 e=4 count=3 causal=1", "small", true)
      .add(
          "index_q index_k measure=1 weight reduce=1 b=1 s=2 t=9 h=2 g=1 x=1 index_heads=2"
          " index_keys=1 index_width=4 d=4 e=4 count=3 index keep=3 causal=1",
          "small", true)
      .add(
          "index_q block_k index_step=2 measure=1 reduce=1 b=1 s=3 t=9 blocks=5 h=2 g=1 x=1"
          " index_heads=2 index_keys=1 index_width=4 d=4 e=4 count=2 index keep=3 causal=1",
          "small", true);
  return add.cases();
}

const Family kFamily("indexed", cases);

}  // namespace
}  // namespace cases
