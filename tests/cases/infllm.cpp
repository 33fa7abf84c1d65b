// SPDX-License-Identifier: Apache-2.0
// x_infllm_forward: covering arrays of places, blocks, windows and lists; the edges; the paper's
// own sizes.  Scores are drawn again until no decision is close.
#include "oracle/infllm.h"

#include "cases/placed_case.h"

namespace cases {
namespace {

using Params = fovea_x_infllm_forward_params;
constexpr char kOp[] = "x_infllm_forward";

class InfllmBuild : Placed {
 public:
  InfllmBuild(const std::string& words, uint64_t seed) : Placed(kOp, words, seed) {
    window_ = params().window ? params().window : 4096;
    block_ = params().block_keys ? params().block_keys : 128;
    made.letters["u"] = (capacity + block_ - 1) / block_ + word("spare");
    made.letters["keys"] = capacity;
  }

  static harness::Call build(const std::string& words, uint64_t seed) {
    InfllmBuild one(words, seed);
    one.inputs();
    one.fill([&](const std::string& field, const int64_t* i, double x, double u) {
      return field == "block_len" ? one.block_len(i[0]) : field == "local_score" ? u : x;
    });
    one.made.outputs();
    const oracle::InfllmOracle oracle(one.params());
    one.read(oracle);
    oracle::InfllmResult a = oracle::InfllmOracle(one.params()).run(oracle::Mode::exact);
    if (a.margin < 1e-4) throw Close();
    oracle::InfllmResult b = oracle::InfllmOracle(one.params()).run(oracle::Mode::rounded);
    one.made.expect({{"o", a.o, b.o},
                     {"lse", a.lse, b.lse},
                     {"local_score", a.local_score, b.local_score},
                     {"index", a.index, b.index, true},
                     {"index_count", a.index_count, b.index_count, true}});
    return std::move(one.made.call);
  }

 private:
  const Params& params() const { return made.params<Params>(); }
  int64_t word(const char* letter) const {
    const auto at = made.letters.find(letter);
    return at == made.letters.end() ? 0 : at->second;
  }
  // The whole blocks that are older than the first row's window, less `lag` and with `more` keys.
  double block_len(int64_t r) {
    const int64_t keys = oracle::load(params().key_len).integer(r), s = made.letters["s"];
    const int64_t ready = (keys - s + 1 - window_) / block_ - word("lag");
    return static_cast<double>(
        std::clamp<int64_t>(std::max<int64_t>(ready, 0) * block_ + word("more"), 0,
                            std::max<int64_t>(0, std::min(keys, made.letters["u"] * block_))));
  }
  // Which inputs count.
  void read(const oracle::InfllmOracle& oracle) {
    const oracle::Layout& at = oracle.layout();
    account(at, made.letters["b"], {"q", "q_far"}, {"k", "k_window", "v"});
    made.call.account(made.call.field("representative"), [&](const int64_t* i) {
      return oracle::sequence(at, i[0]).rows && i[1] >= oracle.first_blocks() &&
             i[1] < oracle.blocks(i[0]);
    });
  }

  int64_t window_, block_;
};

const std::string kAll = " lse local_score index index_count keep=30";

void sweeps(WordCases& add) {
  add.sweep(
      "",
      {{"q:f32", "q:bf16", "q:f16 o:f32", "q:bf16 o:f32"},
       {"b=3", "b=3 query_len", "b=3 page_table page=16", "b=3 page_table page=5 query_len", "b=1"},
       {"h=4 g=2 representative_heads=4", "h=8 g=1 representative_heads=1",
        "h=2 g=2 representative_heads=2", "h=6 g=3 representative_heads=3"},
       {"d=16 e=16", "d=32 e=24"},
       {"s=1 t=200", "s=9 t=200", "s=40 t=210", "s=140 t=300"},
       {"block_keys=8 init_keys=16", "block_keys=16 init_keys=0", "block_keys=10 init_keys=10",
        "block_keys=32 init_keys=32"},
       {"window=20", "window=1", "window=64", "window=1000"},
       {"count=3", "count=1 lag=2", "count=40 spare=3", "count=2 more=3", "count=2 lag=1"},
       {"", "index keep=2", "index index_count keep=9"},
       {"", "lse", "local_score", "lse local_score scale=0.3"},
       {"representative:f32", "representative:bf16"},
       {"contiguous", "head_first", "gaps", "odd"}},
      "", 71);
}

void edges(WordCases& add) {
  const std::string small =
      " h=2 g=1 representative_heads=2 d=4 e=4 block_keys=4 init_keys=4 window=4 count=2";
  const std::string none = " g=0 representative_heads=0 d=4 e=4 block_keys=4 window=4 h=0";
  for (const std::string& words : std::vector<std::string>{
           "b=0 s=3 t=19" + small, "s=0 t=19" + small + kAll, "s=3 t=0" + small + kAll,
           "s=3 t=19" + none, "s=3 t=19 index index_count keep=2 lse local_score" + none,
           "s=9 t=5" + small + kAll, "s=5 t=29 index keep=0" + small,
           "s=5 t=29 index index_count keep=1" + small, "s=1 t=29 b=1" + small + kAll,
           "s=4 t=40 lag=9 more=3" + small + kAll,
           "s=5 t=40 h=2 g=1 representative_heads=2 d=4 e=4 block_keys=1 init_keys=3 window=2"
           " count=9223372036854775807" +
               kAll,
           "s=5 t=40 h=2 g=1 representative_heads=2 d=4 e=4 block_keys=65536 init_keys=65536"
           " window=2147483647" +
               kAll,
           "s=5 t=40 h=2 g=1 representative_heads=2 d=4 e=4" + kAll})
    add.add(words, "edge");
}

std::vector<harness::Case> cases() {
  WordCases add(kOp, InfllmBuild::build);
  sweeps(add), edges(add);
  // The paper's blocks of 128 with the first 128 keys, over shorter windows.
  add.add(
         "b=1 s=1 t=3000 h=4 g=2 representative_heads=4 d=64 e=64 q:bf16 init_keys=128 window=512"
         " count=4 representative:bf16" +
             kAll,
         "paper")
      .add(
          "b=1 s=130 t=1500 h=4 g=2 representative_heads=4 d=64 e=64 q:f16 init_keys=128"
          " window=256 count=3 representative:f16" +
              kAll,
          "paper")
      .add(
          "b=2 s=300 t=1100 h=2 g=2 representative_heads=2 d=128 e=128 q:bf16 init_keys=128"
          " window=128 count=2 representative:bf16 local_score",
          "paper")
      .add(
          "b=1 s=3 t=32 h=2 g=1 representative_heads=2 d=8 e=4 block_keys=4 init_keys=4 window=8"
          " count=2 lse local_score index index_count keep=4",
          "small", true)
      .add(
          "b=3 s=2 t=30 page_table page=4 h=2 g=1 representative_heads=1 d=8 e=4"
          " block_keys=4 init_keys=4 window=5 count=2 lse local_score index keep=3",
          "small", true);
  return add.cases();
}

const Family kFamily("infllm", cases);

}  // namespace
}  // namespace cases
