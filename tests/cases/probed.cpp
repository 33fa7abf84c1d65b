// SPDX-License-Identifier: Apache-2.0
// x_probed_forward: covering arrays of kinds, rules and places; the edges; calls as methods make
// them, which recipes_probed.cpp holds to their papers.
// Inputs are normal numbers, drawn again until no decision is close.
#include "oracle/probed.h"

#include "cases/placed_case.h"

namespace cases {
namespace {

using Params = fovea_x_probed_forward_params;
constexpr char kOp[] = "x_probed_forward";

class ProbedBuild : Placed {
 public:
  ProbedBuild(const std::string& words, uint64_t seed) : Placed(kOp, words, seed) {
    Letters& x = made.letters;
    const Params& p = made.params<Params>();
    const int64_t rows = p.block_rows ? p.block_rows : 64;
    x["n"] = rows == 1                 ? x["s"]
             : made.has("query_start") ? x["s"] / rows + x["r"]
                                       : x["s"] / rows + (x["s"] % rows != 0);
    x["key_b"] = made.has("key_start") ? 1 : x["r"];
  }

  static harness::Call build(const std::string& words, uint64_t seed) {
    ProbedBuild one(words, seed);
    one.inputs();
    one.fill([&](const std::string& field, const int64_t* i, double x, double u) {
      return one.value(field, i, x, u);
    });
    one.made.outputs();
    const Params& p = one.made.params<Params>();
    const oracle::Attention at = oracle::load_sparse(placed(p)).a;
    one.account(at.at, at.at.sequences, {"q"}, {"k", "v"});
    oracle::ProbedResult a = oracle::ProbedOracle(p).run(oracle::Mode::exact);
    oracle::ProbedResult b = oracle::ProbedOracle(p).run(oracle::Mode::rounded);
    // A mean in 16 bits may be rounded the other way.
    const bool rounds = p.kind == FOVEA_X_PROBED_KIND_MEANS && p.k.dtype != FOVEA_F32;
    if (a.margin < (rounds ? 1e-3 : 2e-5)) throw Close();
    one.made.expect({{"o", a.o, b.o},
                     {"lse", a.lse, b.lse},
                     {"index", a.index, b.index, true},
                     {"index_count", a.index_count, b.index_count, true},
                     {"column", a.column, b.column, true},
                     {"column_count", a.column_count, b.column_count, true}});
    return std::move(one.made.call);
  }

 private:
  double value(const std::string& field, const int64_t* i, double x, double u) {
    Letters& of = made.letters;
    if (field == "cover_head") return 0.2 + 0.6 * u;
    if (field == "k" && of.count("kind") && of["kind"] == FOVEA_X_PROBED_KIND_MEANS) return 3 * x;
    if (field == "query_position") {
      const int64_t step = std::max<int64_t>(1, of["s"] / std::max<int64_t>(1, of["samples"]));
      return static_cast<double>(
          std::max<int64_t>(0, of["t"] - 1 - (of["samples"] - 1 - i[2]) * step));
    }
    return x;
  }
};

const std::vector<std::string> kTypes = {"q:f32", "q:bf16 k:bf16 v:bf16",
                                         "q:f16 k:f16 v:f16 o:f32"};
const std::vector<std::string> kHeads = {"h=4 g=2 x=4", "h=4 g=2 x=2 lists=2",
                                         "h=6 g=1 x=1 lists=1 reduce=2"};
const std::vector<std::string> kTails = {"", "lse", "lse sink_logit softcap=5", "skip_margin=2"};

void sweeps(WordCases& add) {
  add.sweep(
      "d=16 e=24",
      {kTypes,
       kHeads,
       {"block_rows=16 block_keys=16", "block_rows=32 block_keys=8", "block_rows=1 block_keys=16"},
       {"s=33 t=130", "s=70 t=70", "s=1 t=90"},
       {"b=2", "b=3 query_len key_len", "query_start key_start", "b=3 page_table page=16 key_len",
        "b=3 page_table page=5 cache_row key_len", "b=3 cache_row", "b=2 query_max=20 key_max=50"},
       {"count=2", "rule=1 cover=0.6", "rule=2 cover_head", "rule=3 cover=0.7 force_own=1"},
       {"", "force_first=1 force_own=1 forced_count=1", "force_first=2"},
       {"", "causal=1"},
       {"", "index keep=3", "index index_count keep=9"},
       kTails},
      "blocks", 51);
  add.sweep(
      "d=16 e=16 rule=1 cover=0.6 force_own=1 force_first=1 forced_count=1",
      {kTypes,
       kHeads,
       {"group_stride=4 block_rows=16 block_keys=16", "group_stride=8 block_rows=32 block_keys=16",
        "group_stride=8 block_rows=64 block_keys=64"},
       {"s=33 t=130", "s=70 t=70", "s=64 t=128"},
       {"b=2", "b=3 query_len key_len", "query_start key_start", "b=3 page_table page=16 key_len"},
       {"", "reversed=1"},
       {"", "causal=1"}},
      "antidiagonals", 52);
  add.sweep("d=16 e=16 kind=1",
            {kTypes,
             kHeads,
             {"block_rows=16", "block_rows=128", "block_rows=1"},
             {"s=33 t=130", "s=70 t=70"},
             {"b=2", "b=3 key_len", "b=3 page_table page=16 key_len",
              "b=3 page_table page=5 cache_row key_len", "b=2 key_max=50",
              "b=3 page_table page=16 key_len key_max=50"},
             {"probe_rows=8", "probe_rows=90", "sample query_position samples=5"},
             {"count=9", "rule=1 cover=0.5", "rule=2 cover_head"},
             {"", "force_first=3 forced_count=1", "first_keys=4 last_keys=9"},
             {"", "causal=1"},
             {"", "column columns=7", "column column_count columns=60"},
             kTails},
            "columns", 53);
  add.sweep("d=16 e=16 kind=2 causal=1 slash_count=9",
            {kTypes,
             kHeads,
             {"block_rows=16", "block_rows=8", "block_rows=64"},
             {"s=33 t=130", "s=70 t=70"},
             {"b=2", "b=3 key_len", "b=3 page_table page=16 key_len", "b=2 key_max=50",
              "b=3 page_table page=5 key_max=1000"},
             {"probe_rows=8", "sample query_position samples=5"},
             {"count=9", "rule=1 cover=0.4", "count=0"},
             {"", "force_first=3 forced_count=1 slash_force_first=4", "first_keys=4 last_keys=9"},
             {"", "column columns=7", "index index_count keep=5 column column_count columns=60"},
             {"", "lse sink_logit softcap=5"}},
            "lines", 54);
}

void means(WordCases& add) {
  add.sweep("d=16 e=24 kind=3 causal=1",
            {kTypes,
             {"h=4 g=2 x=4", "h=6 g=1 x=6 lists=6"},
             {"block_rows=16 block_keys=16", "block_rows=32 block_keys=8",
              "block_rows=1 block_keys=16", "block_rows=8 block_keys=32"},
             {"s=33 t=130", "s=70 t=70", "s=1 t=90"},
             {"b=2", "b=3 key_len", "b=3 page_table page=16 key_len", "b=3 page_table page=5",
              "b=2 query_max=20 key_max=50"},
             {"threshold=0.7", "threshold=0.95", "threshold=0.1", "threshold=1"},
             {"", "force_first=1 force_own=1 force_previous=2", "force_own=1 forced_count=1"},
             {"", "full_last=1", "full_last=2"},
             {"", "index keep=3", "index index_count keep=9"},
             kTails},
            "means", 55);
  add.sweep("d=16 e=16 kind=3 causal=1 b=3 query_len threshold=0.8 force_own=1",
            {kTypes,
             {"h=4 g=2 x=4"},
             {"block_rows=16 block_keys=8"},
             {"s=33 t=130", "s=70 t=70"},
             {"", "key_len", "key_len page_table page=16"}},
            "means of lengths", 56);
  for (const char* words :
       {"b=0 x=2", "s=0 x=2", "t=0 x=2", "t=0 s=5 x=2 full_last=1 force_own=1", "h=0 g=0 x=0",
        "t=5 s=9 block_rows=4 block_keys=2 full_last=9223372036854775807",
        "t=40 s=40 block_rows=4 block_keys=4 force_previous=9223372036854775807 lse",
        "t=40 s=40 block_rows=4 block_keys=4 index keep=0 x=2"})
    add.add("kind=3 causal=1 threshold=0.7 h=2 g=1 d=8 e=8 " + std::string(words), "means edge");
}

void edges(WordCases& add) {
  for (const char* words :
       {"b=0 count=2 x=4", "s=0 count=2 x=4", "t=0 count=2 x=4", "t=0 count=2 x=4 force_own=1",
        "h=0 g=0 x=0 count=2", "h=4 g=2 count=0", "index keep=0 x=4 count=2",
        "kind=1 probe_rows=3 b=0 count=2 x=4", "kind=1 probe_rows=3 s=0 count=2 x=4",
        "kind=1 probe_rows=3 t=0 count=2 x=4", "kind=1 probe_rows=3 h=0 g=0 x=0 count=2",
        "kind=2 probe_rows=3 causal=1 slash_count=2 t=0 s=5 count=2 x=4",
        "kind=2 probe_rows=3 causal=1 slash_count=2 t=9 s=0 count=2 x=4",
        "kind=2 probe_rows=3 causal=1 slash_count=9223372036854775807 t=9 s=4 "
        "count=9223372036854775807",
        "kind=1 probe_rows=9223372036854775807 t=90 s=20 count=9223372036854775807 lse",
        "t=5 s=9 causal=1 count=2 block_keys=2 block_rows=4",
        "t=5 s=9 kind=1 probe_rows=9 causal=1 count=2 block_rows=4"})
    add.add(words, "edge");
}

void methods(WordCases& add) {
  const std::string of = " q:bf16 k:bf16 v:bf16";
  const std::string blocks =
      "rule=1 force_first=1 force_own=1 forced_count=1 causal=1 reversed=1 h=4 g=2 x=4 d=32 e=32 ";
  add.add("b=2 s=128 t=128 group_stride=8 block_rows=32 block_keys=32 cover=0.8 " + blocks,
          "xattention")
      .add(
          "b=1 s=70 t=134 group_stride=16 block_rows=32 block_keys=32 cover=0.6 lse index"
          " index_count keep=5 " +
              blocks + of,
          "xattention")
      .add(
          "b=2 s=300 t=700 group_stride=16 block_rows=128 block_keys=128 cover=0.7 rule=1"
          " force_first=1 force_own=1 forced_count=1 causal=1 reversed=1 h=4 g=2 x=4 d=128 e=128" +
              of,
          "hopper");
  const std::string sampled =
      "kind=1 sample query_position samples=6 rule=1 causal=1 h=4 g=2 x=4 d=32 e=32 block_rows=64 ";
  add.add("b=2 s=90 t=90 cover=0.7 last_keys=8 " + sampled, "sample_attention")
      .add("b=1 s=60 t=200 cover=0.5 last_keys=16 lse column column_count columns=200 " + sampled +
               of,
           "sample_attention");
  const std::string lines =
      "kind=2 count=12 force_first=4 forced_count=1 slash_count=10 slash_force_first=4 causal=1"
      " h=4 g=2 x=4 d=32 e=32 block_rows=16 ";
  add.add("b=2 s=100 t=100 probe_rows=16 " + lines, "minference")
      .add("b=1 s=60 t=180 probe_rows=64 lse index index_count keep=20 " + lines + of,
           "minference");
}

std::vector<harness::Case> cases() {
  WordCases add(kOp, ProbedBuild::build);
  sweeps(add), means(add), edges(add), methods(add);
  add.add(
         "b=1 s=4 t=8 h=2 g=1 x=2 d=4 e=4 rule=1 cover=0.5 force_own=1 forced_count=1 causal=1"
         " group_stride=2 reversed=1 block_rows=2 block_keys=2 index index_count keep=2",
         "small", true)
      .add(
          "kind=2 b=1 s=4 t=8 h=2 g=1 x=2 d=4 e=4 probe_rows=2 count=2 slash_count=2 causal=1"
          " block_rows=2 column column_count columns=2",
          "small", true)
      .add(
          "kind=3 b=1 s=8 t=8 h=2 g=1 x=2 n=4 d=4 e=4 threshold=0.8 force_own=1 full_last=1"
          " causal=1 block_rows=2 block_keys=2 index index_count keep=4",
          "small", true);
  return add.cases();
}

const Family kFamily("probed", cases);

}  // namespace
}  // namespace cases
