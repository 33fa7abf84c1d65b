// SPDX-License-Identifier: Apache-2.0
// x_compressed_forward: covering arrays of places, steps, windows and lists; the edges; the model's
// own sizes.  Scores are drawn again until no decision is close.
#include "oracle/compressed.h"

#include "cases/placed_case.h"

namespace cases {
namespace {

using Params = fovea_x_compressed_forward_params;
constexpr char kOp[] = "x_compressed_forward";

class CompressedBuild : Placed {
 public:
  CompressedBuild(const std::string& words, uint64_t seed) : Placed(kOp, words, seed) {
    const Params& p = params();
    step_ = p.compress_step ? p.compress_step : 4;
    made.letters["u"] =
        (p.key_max ? std::min(p.key_max, capacity) : capacity) / step_ + word("spare");
  }

  static harness::Call build(const std::string& words, uint64_t seed) {
    CompressedBuild one(words, seed);
    one.inputs();
    one.fill([&](const std::string& field, const int64_t* i, double x, double) {
      return field == "compressed_len" ? one.compressed_len(i[0]) : x;
    });
    one.made.outputs();
    oracle::CompressedOracle oracle(one.params());
    one.read(oracle);
    oracle::CompressedResult a = oracle.run(oracle::Mode::exact);
    if (a.margin < 1e-4) throw Close();
    oracle::CompressedResult b = oracle::CompressedOracle(one.params()).run(oracle::Mode::rounded);
    one.made.expect({{"o", a.o, b.o},
                     {"lse", a.lse, b.lse},
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
  // Of the keys in use, less `lag`.
  double compressed_len(int64_t r) const {
    const int64_t keys = oracle::load(params().key_len).integer(r);
    return static_cast<double>(
        std::clamp<int64_t>(keys / step_ - word("lag"), 0, made.letters.at("u")));
  }
  // Which inputs count.
  void read(const oracle::CompressedOracle& oracle) {
    const oracle::Layout& at = oracle.layout();
    account(at, made.letters["b"], {"q", "index_q", "weight"}, {"k", "v"});
    for (const char* field : {"k_compressed", "v_compressed", "index_k"})
      if (has_field(made.call, field))
        made.call.account(made.call.field(field), [&](const int64_t* i) {
          return oracle::sequence(at, i[0]).rows && i[1] < oracle.compressed(i[0]);
        });
  }

  int64_t step_;
};

const std::string kIndex = " index_q index_k weight";

void sweeps(WordCases& add) {
  add.sweep("",
            {{"q:f32", "q:bf16", "q:f16 o:f32", "q:bf16 o:f32"},
             {"b=3", "b=3 query_len", "b=3 key_len compressed_len",
              "b=3 key_len compressed_len query_len lag=2", "b=3 page_table page=16",
              "b=3 page_table page=5 key_len compressed_len lag=2 spare=-2", "b=1",
              "b=2 key_max=60 spare=3"},
             {"h=4 g=2", "h=8 g=1", "h=2 g=2"},
             {"d=16 e=16", "d=32 e=24", "d=64 e=64"},
             {"s=1 t=150", "s=9 t=130", "s=70 t=70", "s=40 t=33"},
             {"compress_step=4", "compress_step=16", "compress_step=1", "compress_step=7"},
             {"window=20", "window=1", "window=1000"},
             {"", "index_heads=4 index_keys=1 index_width=16 count=6" + kIndex,
              "index_heads=2 index_keys=2 index_width=24 count=4 index keep=3 index_count" + kIndex,
              "index_heads=3 index_keys=1 index_width=8 count=1 index_scale=0.7 index keep=9"
              " index_q:bf16 index_k:bf16 index_q index_k"},
             {"", "sink_logit", "sink_logit scale=0.3"},
             {"", "lse"},
             {"contiguous", "head_first", "gaps", "odd"}},
            "", 81);
}

void edges(WordCases& add) {
  const std::string small = " h=2 g=1 d=4 e=4 compress_step=2 window=3 count=2",
                    index = " index_heads=2 index_keys=1 index_width=4 index index_count" + kIndex,
                    all = " lse sink_logit keep=2" + index;
  for (const std::string& words : std::vector<std::string>{
           "b=0 s=3 t=9" + small, "b=0 s=3 t=9" + small + all, "s=0 t=9" + small + all,
           "s=3 t=0" + small + all, "s=3 t=0 lse" + small, "s=3 t=1 lse" + small,
           "h=0 g=0 s=3 t=9 d=4 e=4 compress_step=2", "s=9 t=5" + small + all,
           "s=9 t=5 lse" + small, "s=3 t=9 keep=0" + small + index,
           "s=3 t=9 keep=1 lse" + small + index,
           "s=3 t=9 keep=4 lse h=2 g=1 d=4 e=4 compress_step=65536" + index,
           "s=3 t=9 keep=9 lse h=2 g=1 d=4 e=4 compress_step=1 count=9223372036854775807"
           " window=9223372036854775807" +
               index,
           "s=3 t=19 lse h=2 g=1 d=4 e=4"})
    add.add(words, "edge");
}

std::vector<harness::Case> cases() {
  WordCases add(kOp, CompressedBuild::build);
  sweeps(add), edges(add);
  // The model's: one head of 512, steps of 4 and 128.
  add.add(
         "b=1 s=5 t=333 h=8 g=1 d=512 e=512 q:bf16 sink_logit lse index_heads=8 index_keys=1"
         " index_width=128 index_q:bf16 index_k:bf16 count=48 index keep=48 index_count" +
             kIndex,
         "model")
      .add(
          "b=2 s=1 t=700 key_len compressed_len h=16 g=1 d=512 e=512 q:bf16 sink_logit lse"
          " index_heads=16 index_keys=1 index_width=128 index_q:bf16 index_k:bf16 count=64" +
              kIndex,
          "model")
      .add("b=1 s=130 t=600 h=4 g=1 d=512 e=512 q:bf16 sink_logit lse compress_step=128", "model")
      .add(
          "b=2 s=1 t=900 key_len compressed_len page_table page=64 h=16 g=1 d=512 e=512 q:bf16"
          " sink_logit lse compress_step=128",
          "model")
      .add(
          "b=1 s=3 t=14 h=2 g=1 d=4 e=4 compress_step=2 window=3 count=2 sink_logit lse"
          " index_heads=2 index_keys=1 index_width=4 index keep=2 index_count" +
              kIndex,
          "small", true)
      .add("b=1 s=3 t=14 h=2 g=1 d=4 e=4 compress_step=4 window=5 sink_logit lse", "small", true);
  return add.cases();
}

const Family kFamily("compressed", cases);

}  // namespace
}  // namespace cases
