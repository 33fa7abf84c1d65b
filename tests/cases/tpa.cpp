// SPDX-License-Identifier: Apache-2.0
// x_tpa_forward and _backward: covering arrays of ranks, heads, widths, places and windows; the
// shapes that each CUDA kernel has; the edges.  Words of their own:
//   zero=1   every third head has a_k of zeros, and a_v has both signs and zeros
//   group=n  a_k and a_v are constant: heads in groups of n, which makes GQA of the ranks
#include "oracle/tpa.h"

#include "cases/placed_case.h"

namespace cases {
namespace {

using Forward = fovea_x_tpa_forward_params;
using Backward = fovea_x_tpa_backward_params;
using Words = contract::Words;

class TpaBuild : protected Placed {
 public:
  TpaBuild(const char* op, const std::string& words, uint64_t seed) : Placed(op, words, seed) {
    Letters& x = made.letters;
    x["key_b"] = made.has("key_start") ? 1 : x["r"];
    zero_ = x.count("zero") != 0, group_ = x.count("group") ? x.at("group") : 0;
    inputs();
    fill([&](const std::string& field, const int64_t* i, double normal, double) {
      return value(field, i, normal);
    });
  }

  static harness::Call forward(const std::string& words, uint64_t seed) {
    TpaBuild one("x_tpa_forward", words, seed);
    one.made.outputs();
    const Forward& p = one.made.params<Forward>();
    one.account_all(oracle::tpa_attention(p, oracle::Mode::exact).at);
    const auto run = [&](oracle::Mode mode) {
      return oracle::forward(oracle::tpa_attention(p, mode), p.o, p.lse, mode);
    };
    const auto a = run(oracle::Mode::exact), b = run(oracle::Mode::rounded);
    one.made.expect({{"o", a.o, b.o}, {"lse", a.lse, b.lse}});
    return std::move(one.made.call);
  }

  static harness::Call backward(const std::string& words, uint64_t seed) {
    TpaBuild one("x_tpa_backward", words, seed);
    const Backward& p = one.made.params<Backward>();
    const oracle::Attention at = oracle::tpa_attention(p, oracle::Mode::exact);
    one.account_all(at.at);
    const auto forward = oracle::forward(at, p.o, p.lse, oracle::Mode::exact);
    one.put("o", forward.o), one.put("lse", forward.lse);
    one.made.outputs();
    const oracle::TpaGradients a = oracle::tpa_backward(p, oracle::Mode::exact);
    const oracle::TpaGradients b = oracle::tpa_backward(p, oracle::Mode::rounded);
    one.made.expect({{"da_k", a.da_k, b.da_k},
                     {"db_k", a.db_k, b.db_k},
                     {"da_v", a.da_v, b.da_v},
                     {"db_v", a.db_v, b.db_v},
                     {"dq", a.dq, b.dq},
                     {"da_q", a.da_q, b.da_q},
                     {"db_q", a.db_q, b.db_q}});
    return std::move(one.made.call);
  }

 private:
  void account_all(const oracle::Layout& at) {
    account(at, at.sequences, {"q", "a_q", "b_q", "o", "dout"}, {"a_k", "b_k", "a_v", "b_v"});
  }
  // What the forward gave is an input.
  void put(const char* field, const oracle::Out& x) {
    size_t n = 0;
    made.call.fill(made.call.field(field), [&](const int64_t*) { return x.value[n++]; });
  }
  double value(const std::string& field, const int64_t* i, double normal) const {
    if (field != "a_k" && field != "a_v") return normal;
    if (group_) return i[3] / group_ == i[2] ? 1 : 0;
    if (!zero_) return normal;
    return field == "a_k" ? (i[3] % 3 ? normal : 0) : std::round(normal);
  }

  bool zero_;
  int64_t group_;
};

const Words kTypes = {"a_k:f32", "a_k:bf16", "a_k:f16 o:f32", "a_k:bf16 o:f32"};
const Words kRanks = {"rank_k=1 rank_v=1", "rank_k=2 rank_v=2", "rank_k=3 rank_v=4",
                      "rank_k=16 rank_v=1", "rank_k=1 rank_v=17"};
const Words kQueries = {"q", "a_q b_q rank_q=1", "a_q b_q rank_q=6", "a_q b_q rank_q=6 scale_q=0.5",
                        "a_q b_q rank_q=16"};
const Words kHeads = {"h=1", "h=4", "h=22", "h=32", "h=47"};
const Words kWidths = {"d=64 e=64", "d=128 e=64", "d=64 e=128", "d=40 e=24", "d=5 e=7"};
const Words kWindows = {"",
                        "causal=1",
                        "causal=1 window_left=30 sink_keys=3",
                        "window_left=9 window_right=4",
                        "causal=1 context_len",
                        "causal=1 context_len key_step=2 key_shift=3",
                        "causal=1 window_left=20 key_step=3 key_shift=-7"};
const Words kPlaces = {"b=2",
                       "b=3 query_len key_len",
                       "query_start key_start",
                       "b=3 page_table page=16 key_len",
                       "b=3 page_table page=5 cache_row key_len",
                       "b=3 cache_row",
                       "query_start b=1 key_len",
                       "key_start",
                       "b=2 query_max=4 key_max=50",
                       "b=2 page_table page=8 key_max=30"};
const Words kLays = {"contiguous", "head_first", "gaps", "odd"};

// The cache as it is stored, for rows that are few: a kernel of so many columns, warps of 16 heads.
std::vector<harness::Case> decode() {
  const std::pair<const char*, std::vector<std::string>> rows[] = {
      {"sm80.bf16.d128.4x16",
       {"b=3 s=1 t=300 h=32 d=128 e=128 rank_q=6 key_len", "b=2 s=3 t=150 h=32 d=128 e=128",
        "b=2 s=1 t=90 h=16 d=128 e=128 rank_k=12 rank_v=4",
        "b=3 s=2 t=200 h=32 d=128 e=128 page_table page=64 key_len o:f32",
        "b=3 s=1 t=200 h=24 d=64 e=128 page_table page=16 cache_row key_len splits=3",
        "b=2 s=1 t=300 h=40 d=96 e=80 window_left=100 sink_keys=5 splits=2"}},
      {"sm80.bf16.d64.4x16",
       {"b=2 s=16 t=100 h=8 d=64 e=64", "b=2 s=1 t=700 h=47 d=64 e=64 splits=5",
        "b=1 s=1 t=33 h=1 d=64 e=64 rank_k=1 rank_v=1", "b=1 s=1 t=2000 h=22 d=64 e=64",
        "b=2 s=2 t=90 h=16 d=56 e=64 rank_k=16 rank_v=1", "b=2 s=1 t=0 h=8 d=64 e=64"}},
      {"sm80.bf16.d128.8x16", {"b=1 s=1 t=130 h=128 d=128 e=128", "b=2 s=1 t=99 h=96 d=128 e=64"}},
      {"sm80.bf16.d64.8x16", {"b=2 s=2 t=130 h=72 d=64 e=64 page_table page=5 key_len"}},
      {"sm80.f16.d128.4x16", {"b=2 s=1 t=300 h=32 d=128 e=128 splits=4"}},
      {"sm80.f16.d64.4x16", {"b=2 s=1 t=130 h=22 d=64 e=64"}},
      {"sm80.f16.d128.8x16", {"b=1 s=1 t=130 h=128 d=128 e=128"}},
      {"sm80.f16.d64.8x16", {"b=2 s=1 t=70 h=128 d=64 e=64 splits=2"}}};
  std::vector<harness::Case> all;
  for (const auto& [kernel, words] : rows)
    for (const std::string& one : words) {
      WordCases cases("x_tpa_forward", TpaBuild::forward);
      const bool half = std::string(kernel).find(".f16") != std::string::npos;
      cases.add(std::string(half ? "a_k:f16" : "a_k:bf16") + " a_q b_q lse causal=1 " + one,
                "decode");
      all.push_back(cases.cases()[0]);
      all.back().cuda_kernel = kernel;
    }
  return all;
}

// Rows that are many, and heads that are formed in parts.
void formed(WordCases& cases) {
  for (const char* words :
       {"a_k:bf16 b=2 s=17 t=100 h=8 d=64 e=64 q lse causal=1",
        "a_k:bf16 b=1 s=130 t=130 h=67 d=64 e=64 causal=1 a_q b_q rank_q=6 lse",
        "a_k:f32 b=1 s=20 t=70 h=70 d=8 e=16 q", "a_k:f16 b=2 s=200 t=200 h=4 d=128 e=128 q lse",
        "a_k:bf16 b=2 s=40 t=96 h=71 d=64 e=64 a_q b_q page_table page=16 key_len lse",
        "a_k:bf16 b=2 s=33 t=65 h=22 d=256 e=192 a_q b_q causal=1"})
    cases.add(words, "formed");
}

void forward_edges(WordCases& cases) {
  for (const char* words :
       {"b=0 q", "s=0 q lse", "t=0 s=3 q lse", "t=0 s=20 a_q b_q lse", "h=0 q lse", "h=0 a_q b_q",
        "s=9 t=5 causal=1 a_q b_q lse", "s=33 t=5 causal=1 q lse a_k:bf16 d=16 e=16",
        "t=0 s=1 a_k:bf16 d=64 e=64 h=8 q lse", "page_table page=4 t=0 s=2 q lse",
        "t=40 s=5 h=6 zero=1 a_q b_q lse", "t=40 s=5 h=6 zero=1 a_q b_q lse a_k:bf16 d=64 e=64",
        "t=40 s=5 h=6 rank_k=3 rank_v=3 group=2 scale_k=1 scale_v=1 q lse",
        "d=576 e=576 h=2 s=3 t=9 q", "d=576 e=8 h=2 s=3 t=9 q a_k:bf16"})
    cases.add(words, "edge");
}

std::vector<harness::Case> forwards() {
  WordCases cases("x_tpa_forward", TpaBuild::forward);
  cases.add("b=1 s=3 t=6 h=3 d=4 e=5 a_q b_q lse causal=1", "small", true);
  cases.add("b=1 s=1 t=7 h=2 d=8 e=4 rank_v=1 q", "small", true);
  cases.sweep("",
              {kTypes,
               kRanks,
               kQueries,
               kHeads,
               kWidths,
               {"s=1 t=70", "s=3 t=33", "s=16 t=90", "s=37 t=100"},
               kPlaces,
               kWindows,
               kLays,
               {"", "lse"},
               {"", "scale=0.3", "scale_k=1 scale_v=1", "splits=3"}},
              "", 141);
  formed(cases), forward_edges(cases);
  std::vector<harness::Case> all = cases.cases();
  for (harness::Case& one : decode()) all.push_back(std::move(one));
  return all;
}

std::vector<harness::Case> backwards() {
  WordCases cases("x_tpa_backward", TpaBuild::backward);
  const std::string keys = "da_k db_k da_v db_v ";
  cases.add(keys + "b=1 s=3 t=5 h=3 d=4 e=5 a_q b_q da_q db_q dlse causal=1", "small", true);
  cases.add(keys + "b=1 s=2 t=4 h=2 d=4 e=4 q dq rank_k=1", "small", true);
  const Words types = {"a_k:f32", "a_k:bf16", "a_k:f16 o:f32 dout:f32", "a_k:bf16 o:f32 dout:f32"};
  const Words asked = {"q dq " + keys,
                       "a_q b_q rank_q=6 da_q db_q " + keys,
                       "a_q b_q rank_q=3 db_q da_k db_v",
                       "a_q b_q da_q db_k scale_q=0.4",
                       "q da_v",
                       "q dq"};
  const Words places = {
      "b=2",       "b=3 query_len key_len",     "query_start key_start", "query_start b=1 key_len",
      "key_start", "b=2 query_max=4 key_max=50"};
  cases.sweep("",
              {types,
               kRanks,
               asked,
               kHeads,
               kWidths,
               {"s=1 t=40", "s=16 t=50", "s=37 t=37"},
               places,
               {"", "causal=1", "causal=1 window_left=10 sink_keys=3"},
               kLays,
               {"", "dlse"},
               {"", "scale=0.3", "scale_k=1 scale_v=1"}},
              "", 142);
  const std::string all = keys + "a_q b_q da_q db_q rank_q=6 ";
  // Heads in parts: sums over all of them.
  cases.add(all + "a_k:bf16 b=1 s=70 t=70 h=70 d=64 e=64 causal=1", "parts");
  cases.add(all + "a_k:f32 b=1 s=9 t=20 h=129 d=8 e=16", "parts");
  for (const char* words : {"b=0", "s=0", "t=0 s=3", "h=0", "s=9 t=5 causal=1",
                            "t=40 s=5 h=6 zero=1", "nondeterministic=1 s=40 t=40 h=4"})
    cases.add(all + words, "edge");
  std::vector<harness::Case> list = cases.cases();
  for (harness::Case& one : list)
    one.bits_may_differ = one.name.find("nondeterministic") != std::string::npos;
  return list;
}

const Family kForward("x_tpa_forward", forwards);
const Family kBackward("x_tpa_backward", backwards);

}  // namespace
}  // namespace cases
