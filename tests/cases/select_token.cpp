// SPDX-License-Identifier: Apache-2.0
// x_select_token: a covering array of measures, places, windows and layouts; the edges and the
// methods by name.  data=0: small integers, whose scores are exact; 1: normal numbers, drawn again
// until no decision is close; 2: small integers with NaN and infinities among them.
#include "oracle/select_token.h"
#include "cases/placed_case.h"

namespace cases {
namespace {

using Params = fovea_x_select_token_params;
constexpr char kOp[] = "x_select_token";

class TokenBuild : Placed {
 public:
  TokenBuild(const std::string& words, uint64_t seed) : Placed(kOp, words, seed) {
    const int64_t block = made.params<Params>().block_keys ? made.params<Params>().block_keys : 64;
    made.letters["mask_bytes"] = ((capacity + block - 1) / block + 7) / 8;
  }

  static harness::Call build(const std::string& words, uint64_t seed) {
    TokenBuild one(words, seed);
    one.inputs();
    one.fill([&](const std::string& field, const int64_t*, double x, double u) {
      return field == "q" || field == "k" ? one.number(x, u) : other(field, u);
    });
    one.made.outputs();
    const Params& p = one.made.params<Params>();
    oracle::TokenOracle exact(p), rounded(p);
    one.account(exact.layout(), exact.sequences(), {"q", "code_q", "weight"},
                {"k", "code", "k_scale"});
    oracle::TokenResult a = exact.run(oracle::Mode::exact);
    oracle::TokenResult b = rounded.run(oracle::Mode::rounded);
    if (a.margin < 1e-5 && one.data == 1) throw Close();
    one.made.expect({{"index", a.index, b.index, true},
                     {"index_count", a.index_count, b.index_count, true},
                     {"kept_score", a.kept_score, b.kept_score},
                     {"kept_mass", a.kept_mass, b.kept_mass}});
    return std::move(one.made.call);
  }

 private:
  double number(double x, double u) const {
    if (data == 1) return x;
    if (data == 2 && u < 0.02) return u < 0.01 ? NAN : u < 0.015 ? HUGE_VAL : -HUGE_VAL;
    return std::clamp(std::round(1.2 * x), -2.0, 2.0);
  }
  static double other(const std::string& field, double u) {
    if (field == "block_mask") return std::floor(u * 256);
    if (field == "k_scale") return std::exp2(std::floor(u * 3) - 1);
    if (field == "weight") return std::floor(u * 5) - 1;
    return static_cast<double>(static_cast<int32_t>(u * 4294967296.0 - 2147483648.0));  // codes
  }
};

harness::Call build_token(const std::string& words, uint64_t seed) {
  const bool listed = words.find("index") != std::string::npos;
  return TokenBuild::build(words + (listed ? "" : " index index_count kept_score"), seed);
}

const std::vector<std::string> kTokenPlaces = {"b=2",
                                               "b=3 query_len key_len",
                                               "query_start key_start",
                                               "b=3 page_table page=16 key_len",
                                               "b=3 page_table page=5 cache_row key_len",
                                               "b=3 cache_row",
                                               "query_start b=1 key_len",
                                               "key_start",
                                               "b=2 query_max=4 key_max=50"};
const std::vector<std::string> kTokenWindows = {"",
                                                "causal=1",
                                                "causal=1 window_left=20 sink_keys=3",
                                                "window_left=9 window_right=4",
                                                "causal=1 key_step=4 key_shift=3 context_len",
                                                "causal=1 context_len"};
const std::vector<std::string> kTokenRules = {"count=3",
                                              "count=20",
                                              "count=0",
                                              "ratio=0.3",
                                              "count=4 force_last=2",
                                              "count=2 ratio=0.2 force_last=3",
                                              "count=100000 force_last=1000000"};
const std::vector<std::string> kTokenHeads = {
    "h=4 g=2 x=4",          "h=4 g=2 x=2 reduce=1", "h=4 g=2 x=1 reduce=1", "h=6 g=3 x=1 reduce=3",
    "h=8 g=1 x=4 reduce=2", "h=3 g=3 x=3",          "h=34 g=1 x=1 reduce=1"};

void token_sweeps(WordCases& add) {
  const std::vector<std::string> lays = {"contiguous", "head_first", "gaps", "odd", "wide"};
  const std::vector<std::string> left_out = {"", "first_keys=4", "last_keys=5",
                                             "first_keys=2 last_keys=3", "block_mask block_keys=8"};
  add.sweep("q k scale=0.5 keep=9",
            {{"q:f32", "q:bf16", "q:f16", "q:e4m3"},
             {"k:f32", "k:bf16", "k:f16", "k:e4m3", "k:e4m3 k_scale groups=1",
              "k:e4m3 k_scale groups=2", "k:e5m2", "k:i8"},
             {"", "measure=1", "measure=1 weight"},
             {"s=1 t=70", "s=9 t=130", "s=17 t=40", "s=2 t=300"},
             {"d=8", "d=40", "d=130"},
             kTokenHeads,
             kTokenPlaces,
             kTokenWindows,
             kTokenRules,
             left_out,
             {"", "pool_keys=16 ratio=0", "pool_keys=7 ratio=0"},
             lays},
            "exact", 11);
  add.sweep(
      "q k measure=3 data=1 keep=12 index index_count kept_score kept_mass",
      {{"q:f32", "q:bf16"},
       {"k:f32", "k:bf16", "k:e4m3 k_scale groups=2"},
       {"s=1 t=70", "s=3 t=130"},
       {"d=8 subset=3", "d=40 subset=40", "d=64 subset=1", "d=130 subset=70"},
       {"h=4 g=2 x=4", "h=4 g=2 x=2 reduce=1", "h=4 g=2 x=1 reduce=3", "h=20 g=1 x=1 reduce=2"},
       kTokenPlaces,
       kTokenRules,
       left_out},
      "subset", 12);
  add.sweep(
      "q k data=1 keep=12 index index_count kept_score kept_mass",
      {{"q:f32", "q:bf16"},
       {"s=1 t=70", "s=3 t=130"},
       {"d=8", "d=40"},
       {"h=4 g=2 x=4", "h=4 g=2 x=2 reduce=1", "h=4 g=2 x=1 reduce=3", "h=4 g=1 x=2 reduce=2"},
       kTokenPlaces,
       kTokenWindows,
       kTokenRules,
       left_out},
      "mass", 13);
  add.sweep("code_q code measure=2 keep=9",
            {{"words=1", "words=4"},
             {"s=1 t=70", "s=9 t=130"},
             kTokenHeads,
             kTokenPlaces,
             kTokenWindows,
             kTokenRules,
             left_out,
             lays},
            "hamming", 14);
}

void token_edges(WordCases& add) {
  for (const char* words :
       {"q k b=0 count=2 x=4", "q k s=0 count=2 x=4", "q k t=0 count=2 x=4",
        "q k h=0 g=0 x=0 count=2", "q k keep=0 count=2 x=4",
        "q k t=5 s=9 causal=1 count=2 x=4 keep=4", "q k data=2 t=90 s=6 count=70 x=4 keep=80",
        "q k data=2 t=90 s=6 count=5 x=1 reduce=1 scale=1 keep=5",
        "q k data=2 measure=1 weight t=90 s=6 count=30 x=1 reduce=1 scale=1 keep=40",
        "q k data=2 t=90 s=3 count=3 x=2 reduce=3 scale=1 pool_keys=8 force_last=2 keep=5",
        "q k t=90 count=9223372036854775807 force_last=9223372036854775807 x=4 keep=100",
        "q k t=90 first_keys=9223372036854775807 count=4 x=4",
        "q k t=90 last_keys=9223372036854775807 count=4 x=4 causal=1",
        "q k t=90 pool_keys=9223372036854775807 count=4 x=4 keep=2"})
    add.add(words, "edge");
  add.add("q k t=90 count=4 x=4 index_count", "edge")
      .add("q k t=90 count=4 x=4 index keep=3", "edge");
  // Rows of several passes, and of one key's score throughout.
  add.add("q k d=4 t=9000 s=1 b=1 h=2 g=1 x=2 count=2048 keep=2048 q:bf16 k:bf16 scale=1", "long")
      .add(
          "q k d=64 t=5000 s=2 b=1 h=64 g=1 x=1 reduce=1 measure=1 weight count=512 keep=512"
          " q:e4m3 k:e4m3 k_scale groups=1 causal=1 scale=1",
          "long")
      .add("q k d=1 t=3000 s=70 b=1 h=2 g=2 x=1 reduce=3 count=100 keep=64 causal=1", "ties");
}

// The selections of published methods, by their numbers.
void token_methods(WordCases& add) {
  add.add(
         "q k q:e4m3 k:e4m3 k_scale groups=1 measure=1 weight reduce=1 h=64 g=1 x=1 d=128 s=3 t=200"
         " b=1 causal=1 count=64 keep=64 scale=1",
         "dsa")
      .add(
          "q k pool_keys=16 reduce=3 h=8 g=2 x=2 d=32 s=20 t=130 b=1 causal=1 count=4 force_last=1"
          " keep=4 scale=1",
          "msa")
      .add(
          "q k measure=1 reduce=1 h=8 g=1 x=1 d=32 s=5 t=100 key_step=4 key_shift=3 context_len"
          " causal=1 count=8 keep=8 scale=1",
          "qsa")
      .add(
          "q k measure=3 subset=16 d=64 h=8 g=2 x=2 reduce=1 s=1 t=150 b=2 key_len data=1 count=32"
          " force_last=16 keep=32 index index_count kept_mass",
          "sparq")
      .add("q k d=16 h=4 g=4 x=4 s=1 t=200 b=2 key_len data=1 ratio=0.25 count=1 keep=60", "loki")
      .add(
          "code_q code measure=2 words=1 h=4 g=4 x=4 s=1 t=300 b=2 key_len causal=1 first_keys=8"
          " last_keys=8 count=40 keep=40",
          "hash");
}

// Each instance of the Hopper kernel, on tiles that end within a box of keys, of rows and of heads.
std::vector<harness::Case> token_kernels() {
  std::vector<harness::Case> cases;
  const auto named = [&](const std::string& words, const std::string& kernel) {
    WordCases one(kOp, build_token);
    one.add(words + " reduce=1 scale=0.5 index index_count kept_score", "sm90");
    cases.push_back(one.cases()[0]);
    cases.back().cuda_kernel = kernel;
  };
  const auto extents = [](int64_t d, int64_t h) {
    return " d=" + std::to_string(d) + " h=" + std::to_string(h);
  };
  for (const std::string dtype : {"bf16", "f16", "e4m3"})
    for (const int64_t width : {64, 128})
      for (const int64_t heads : {16, 32, 64}) {
        const std::string kernel =
            "sm90." + dtype + ".d" + std::to_string(width) + ".h" + std::to_string(heads);
        const std::string both = "q k q:" + dtype + " k:" + dtype;
        named(both + extents(width, heads) +
                  " g=1 x=1 measure=1 weight b=2 s=21 t=300 causal=1"
                  " count=40 keep=40",
              kernel);
        named(both + extents(width - 16, heads - 3) +
                  " g=1 x=1 b=3 query_len key_len s=9 t=500"
                  " count=300 keep=260 first_keys=4",
              kernel);
      }
  const std::string kernel = "sm90.bf16.d128.h16", e4m3 = "sm90.e4m3.d128.h64";
  for (const char* words :
       {"g=2 x=2 b=3 page_table page=16 key_len s=9 t=300 count=20 keep=20 causal=1",
        "g=1 x=2 b=3 page_table page=256 cache_row key_len s=9 t=700 count=20 keep=20 force_last=2",
        "g=1 x=2 query_start key_start s=70 t=300 count=20 keep=20 causal=1 last_keys=5",
        "g=2 x=2 query_start b=1 key_len s=70 t=300 count=20 keep=20 window_left=40 sink_keys=3",
        "g=1 x=2 b=2 s=9 t=300 count=20 keep=20 block_mask block_keys=8 causal=1",
        "g=1 x=2 b=2 s=9 t=300 ratio=0.3 count=5 keep=90 causal=1 key_step=4 key_shift=3 "
        "context_len"})
    named(std::string("q k q:bf16 k:bf16 d=128 h=32 ") + words, kernel);
  for (const char* words : {"b=2 s=5 t=300 count=40 keep=40 causal=1",
                            "b=3 page_table page=64 key_len s=5 t=300 count=40 keep=40"})
    named(std::string("q k q:e4m3 k:e4m3 k_scale groups=1 d=128 h=64 g=1 x=1 measure=1 weight ") +
              words,
          e4m3);
  named(
      "q k q:bf16 k:bf16 d=128 h=64 g=1 x=1 measure=1 weight data=1 b=1 s=9 t=700 count=60"
      " keep=60 causal=1",
      "sm90.bf16.d128.h64");
  named(
      "q k q:bf16 k:bf16 d=64 h=64 g=1 x=1 measure=1 weight data=2 b=1 s=9 t=700 count=600"
      " keep=600 causal=1",
      "sm90.bf16.d64.h64");
  // Infinite keys, where the tile has more heads than the call.
  for (const auto& [words, of] : std::vector<std::pair<std::string, std::string>>{
           {"q:bf16 k:bf16 h=34 measure=1 weight", "sm90.bf16.d64.h64"},
           {"q:f16 k:f16 h=5", "sm90.f16.d64.h16"},
           {"q:bf16 k:bf16 h=17 key_len", "sm90.bf16.d64.h32"}})
    named("q k d=64 g=1 x=1 data=2 b=2 s=9 t=700 count=90 keep=90 reduce=1 " + words, of);
  // Rows that one block lists: from a sample, of several steps, with forced entries, with equal
  // ones that leave no room, of too many wanted.
  for (const char* words :
       {"s=140 t=8300 d=16 count=500 keep=500 causal=1",
        "s=2 t=7000 d=16 data=1 count=2048 keep=2048",
        "s=2 t=7000 d=16 count=600 keep=700 force_last=100 causal=1",
        "s=2 t=7000 d=16 count=300 keep=200 force_last=3000",
        "s=2 t=7000 d=16 count=1500 keep=900 first_keys=40 last_keys=2000 causal=1",
        "s=2 t=7000 d=16 data=2 count=400 keep=400", "s=3 t=6000 d=8 count=100 keep=90",
        "s=2 t=6000 d=16 count=3000 keep=3000", "s=2 t=4100 d=16 count=0 keep=5",
        "s=2 t=6000 d=16 block_mask block_keys=8 count=900 keep=900"})
    named(std::string("q k q:bf16 k:bf16 h=2 g=1 x=1 b=1 ") + words, "sm90.bf16.d64.h16");
  // Three chunks of rows, whose halves of the workspace take turns.
  named("q k q:bf16 k:bf16 h=2 g=1 x=1 b=8300 s=1 t=20 d=16 count=3 keep=3", "sm90.bf16.d64.h16");
  return cases;
}

// Each instance of the Hopper kernel for blocks of keys, and what each of its ways needs.
std::vector<harness::Case> token_blocks_kernels() {
  std::vector<harness::Case> cases;
  const auto named = [&](const std::string& words, const std::string& kernel) {
    WordCases one(kOp, build_token);
    one.add("q k scale=0.5 index index_count kept_score " + words, "sm90_blocks");
    cases.push_back(one.cases()[0]);
    cases.back().cuda_kernel = "sm90.blocks." + kernel;
  };
  // Two groups of rows: the first fills its tile, the second a product of it.
  for (const std::string dtype : {"bf16", "f16"})
    for (const int64_t width : {64, 128}) {
      const std::string both = "q:" + dtype + " k:" + dtype + " d=";
      const std::string kernel = dtype + ".d" + std::to_string(width);
      named(both + std::to_string(width) +
                " h=4 g=1 x=4 b=1 s=70 t=700 causal=1 pool_keys=128 count=3 keep=3 force_last=1",
            kernel);
      named(both + std::to_string(width - 16) +
                " h=3 g=1 x=3 b=3 query_len key_len s=9 t=500 pool_keys=64 count=4 keep=3"
                " first_keys=70",
            kernel);
    }
  for (const char* words :
       {// Blocks of other sizes, heads of a list, heads of a key head.
        "h=4 g=1 x=4 b=2 s=21 t=300 pool_keys=32 count=5 keep=6 causal=1 force_last=2",
        "h=8 g=2 x=4 reduce=1 b=1 s=40 t=500 pool_keys=16 count=8 keep=8 causal=1",
        "h=8 g=1 x=2 reduce=2 b=1 s=40 t=500 pool_keys=128 count=2 keep=2 causal=1",
        "h=16 g=2 x=2 reduce=3 b=1 s=40 t=500 pool_keys=32 count=8 keep=8 causal=1",
        "h=16 g=1 x=2 reduce=1 b=1 s=19 t=300 pool_keys=64 count=2 keep=2",
        "h=4 g=1 x=4 b=1 s=70 t=1300 pool_keys=256 count=2 keep=2 causal=1 force_last=1",
        "h=2 g=1 x=2 b=1 s=9 t=2900 pool_keys=1024 count=2 keep=3 causal=1",
        "h=2 g=2 x=2 b=1 s=300 t=400 pool_keys=128 count=2 keep=2 causal=1 force_last=1",
        "h=2 g=2 x=2 b=1 s=300 t=200 pool_keys=16 count=4 keep=4 causal=1",
        "h=70 g=1 x=70 b=1 s=5 t=150 pool_keys=16 count=3 keep=3 causal=1",
        "h=140 g=2 x=70 reduce=1 b=1 s=5 t=150 pool_keys=16 count=3 keep=3 causal=1",
        // Places.
        "h=4 g=1 x=4 b=3 page_table page=16 key_len s=9 t=500 pool_keys=64 count=3 keep=3 "
        "causal=1",
        "h=4 g=1 x=4 b=3 page_table page=64 key_len s=1 t=900 pool_keys=128 count=3 keep=3 "
        "causal=1 force_last=1",
        "h=4 g=2 x=4 b=3 page_table page=256 cache_row key_len s=9 t=700 pool_keys=128 count=3 "
        "keep=3 force_last=1",
        "h=4 g=1 x=4 b=2 page_table page=8 s=70 t=300 pool_keys=16 count=5 keep=5 causal=1",
        "h=4 g=1 x=4 query_start key_start s=150 t=500 pool_keys=32 count=3 keep=3 causal=1",
        "h=4 g=2 x=2 reduce=1 query_start b=1 key_len s=70 t=300 pool_keys=16 count=3 keep=3",
        "h=4 g=1 x=4 b=3 cache_row s=9 t=300 pool_keys=32 count=3 keep=3 head_first",
        // Windows and what is left out.
        "h=4 g=1 x=4 b=1 s=70 t=600 pool_keys=64 count=3 keep=3 causal=1 window_left=200 "
        "sink_keys=70",
        "h=4 g=1 x=4 b=1 s=70 t=600 pool_keys=32 count=3 keep=3 window_left=90 window_right=40",
        "h=4 g=1 x=4 b=1 s=70 t=600 pool_keys=64 count=3 keep=3 causal=1 last_keys=130 "
        "first_keys=3",
        "h=4 g=1 x=4 b=1 s=70 t=600 pool_keys=64 count=3 keep=3 last_keys=9223372036854775807",
        "h=4 g=1 x=4 b=2 s=70 t=300 pool_keys=16 count=3 keep=3 causal=1 key_step=4 key_shift=3 "
        "context_len last_keys=9",
        // Rules.
        "h=4 g=1 x=4 b=1 s=9 t=600 pool_keys=32 count=5 keep=2 causal=1 force_last=3",
        "h=4 g=1 x=4 b=1 s=9 t=600 pool_keys=32 count=100000 keep=25 force_last=1000000",
        "h=4 g=1 x=4 b=1 s=9 t=600 pool_keys=32 count=0 keep=3 causal=1",
        // Rows of some lengths, and several chunks.
        "h=2 g=1 x=2 b=1 s=2 t=3000 pool_keys=16 count=40 keep=40 causal=1 force_last=2",
        "h=2 g=1 x=2 b=1 s=2 t=9000 pool_keys=16 count=40 keep=40 causal=1 force_last=2",
        "h=2 g=1 x=2 b=1 s=2 t=20000 pool_keys=16 count=40 keep=40 causal=1 force_last=2",
        "h=64 g=64 x=64 b=140 s=1 t=40 pool_keys=16 count=2 keep=2 force_last=1",
        // Rounding, NaN and infinities.
        "h=4 g=1 x=4 data=1 b=1 s=9 t=700 pool_keys=64 count=4 keep=4 causal=1",
        "h=8 g=1 x=2 reduce=1 data=1 b=1 s=9 t=700 pool_keys=64 count=4 keep=4 causal=1",
        "h=4 g=1 x=4 data=2 b=1 s=9 t=300 pool_keys=16 count=9 keep=12 force_last=1",
        "h=8 g=1 x=4 reduce=2 data=2 b=1 s=9 t=300 pool_keys=16 count=9 keep=12 causal=1",
        "h=8 g=1 x=2 reduce=3 data=2 b=1 s=9 t=300 pool_keys=16 count=9 keep=12 causal=1"})
    named(std::string("q:bf16 k:bf16 d=32 ") + words, "bf16.d64");
  return cases;
}

std::vector<harness::Case> token_cases() {
  WordCases add(kOp, build_token);
  token_sweeps(add), token_edges(add), token_methods(add);
  add.add("q k b=1 s=2 t=9 h=2 g=1 x=2 d=4 count=3 keep=3 causal=1 scale=1", "small", true)
      .add("q k b=1 s=2 t=9 h=2 g=1 x=1 reduce=1 measure=1 weight d=4 count=3 keep=3 scale=1",
           "small", true)
      .add("code_q code measure=2 b=1 s=1 t=9 h=2 g=2 x=2 count=3 keep=4", "small", true);
  std::vector<harness::Case> cases = token_kernels();
  for (const harness::Case& one : token_blocks_kernels()) cases.push_back(one);
  for (const harness::Case& one : add.cases()) cases.push_back(one);
  return cases;
}

const Family kFamily("select_token", token_cases);

}  // namespace
}  // namespace cases
