// SPDX-License-Identifier: Apache-2.0
// x_compressed_forward and _backward: covering arrays of places, steps, windows and lists; the
// edges; the model's own sizes.  Scores are drawn again until no decision is close.
#include "oracle/compressed_backward.h"

#include "cases/placed_case.h"

namespace cases {
namespace {

using Params = fovea_x_compressed_forward_params;
constexpr char kOp[] = "x_compressed_forward";

// What the calls of P have in common.
template <class P>
class CompressedCall : protected Placed {
 protected:
  CompressedCall(const char* op, const std::string& words, uint64_t seed)
      : Placed(op, words, seed) {
    step_ = params().compress_step ? params().compress_step : 4;
    int64_t keys = capacity;
    if constexpr (requires(P p) { p.key_max; })
      if (params().key_max) keys = std::min(params().key_max, capacity);
    made.letters["u"] = keys / step_ + word("spare");
  }

  const P& params() const { return made.template params<P>(); }
  int64_t word(const char* letter) const {
    const auto at = made.letters.find(letter);
    return at == made.letters.end() ? 0 : at->second;
  }
  // Of the keys in use, less `lag`.
  int64_t compressed_len(int64_t r) const {
    const int64_t keys = oracle::load(params().key_len).integer(r);
    return std::clamp<int64_t>(keys / step_ - word("lag"), 0, made.letters.at("u"));
  }
  // Which inputs count.
  void read(const oracle::CompressedOracle& oracle) {
    const oracle::Layout& at = oracle.layout();
    const bool back = has_field(made.call, "dout");
    if (back)
      account(at, made.letters["b"], {"q", "o", "dout"}, {"k", "v"});
    else
      account(at, made.letters["b"], {"q", "index_q", "weight"}, {"k", "v"});
    for (const char* field : {"k_compressed", "v_compressed", "index_k"})
      only(field, 1,
           [&](int64_t r) { return oracle::sequence(at, r).rows ? oracle.compressed(r) : 0; });
    if (!back) return;
    const auto rows = [&](int64_t r) { return oracle::sequence(at, r).rows; };
    only("lse", 2, rows), only("index", 1, rows), only("index_count", 1, rows);
  }

  int64_t step_;

 private:
  // Of an input that the call has, elements below a bound on the axis count.
  template <class Bound>
  void only(const char* field, int axis, Bound bound) {
    if (!has_field(made.call, field)) return;
    const size_t f = made.call.field(field);
    if (f < made.call.fields.size())
      made.call.account(f, [&](const int64_t* i) { return i[axis] < bound(i[0]); });
  }
};

class CompressedBuild : CompressedCall<Params> {
 public:
  CompressedBuild(const std::string& words, uint64_t seed) : CompressedCall(kOp, words, seed) {}

  static harness::Call build(const std::string& words, uint64_t seed) {
    CompressedBuild one(words, seed);
    one.inputs();
    one.fill([&](const std::string& field, const int64_t* i, double x, double) {
      return field == "compressed_len" ? static_cast<double>(one.compressed_len(i[0])) : x;
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
};

class CompressedBackwardBuild : CompressedCall<fovea_x_compressed_backward_params> {
 public:
  CompressedBackwardBuild(const std::string& words, uint64_t seed)
      : CompressedCall("x_compressed_backward", words, seed) {}

  static harness::Call build(const std::string& words, uint64_t seed) {
    CompressedBackwardBuild one(words, seed);
    one.inputs();
    one.fill([&](const std::string& field, const int64_t* i, double x, double u) {
      if (field == "compressed_len") return static_cast<double>(one.compressed_len(i[0]));
      if (field == "index_count") return std::floor(u * 1.2 * one.keep());
      return field == "index" ? one.entry(i) : x;
    });
    oracle::CompressedBackward oracle(one.params());
    const oracle::CompressedResult f = oracle.forward();
    one.put("o", f.o), one.put("lse", f.lse);
    one.read(oracle.oracle());
    one.made.outputs();
    oracle::CompressedBackward again(one.params());
    again.forward();
    oracle::CompressedGradients a = again.run(oracle::Mode::exact);
    oracle::CompressedGradients b = again.run(oracle::Mode::rounded);
    one.made.expect({{"dq", a.dq, b.dq},
                     {"dk", a.dk, b.dk},
                     {"dv", a.dv, b.dv},
                     {"dk_compressed", a.dk_compressed, b.dk_compressed},
                     {"dv_compressed", a.dv_compressed, b.dv_compressed},
                     {"dsink_logit", a.dsink_logit, b.dsink_logit}});
    return std::move(one.made.call);
  }

 private:
  double keep() const { return static_cast<double>(made.letters.at("keep")); }
  // Every third of what the row sees, from one of the first three on; -1 behind them.
  double entry(const int64_t* i) const {
    const auto& p = params();
    const int64_t b = i[0], s = made.letters.at("s");
    const int64_t keys = p.key_len.data ? oracle::load(p.key_len).integer(b) : p.k.shape[1];
    const int64_t rows = p.query_len.data ? std::min(s, oracle::load(p.query_len).integer(b)) : s;
    const int64_t position = i[1] + keys - rows, c = (i[1] + b) % 3 + 3 * i[2];
    const int64_t there = p.key_len.data ? compressed_len(b) : p.k_compressed.shape[1];
    return static_cast<double>(c < there && (c + 1) * step_ - 1 <= position ? c : -1);
  }
  // What the forward gave is an input.
  void put(const char* field, const oracle::Out& x) {
    size_t n = 0;
    made.call.fill(made.call.field(field), [&](const int64_t*) { return x.value[n++]; });
  }
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

const std::string kGradients = " dq dk dv dk_compressed dv_compressed";

std::vector<harness::Case> backward_cases() {
  WordCases add("x_compressed_backward", CompressedBackwardBuild::build);
  add.sweep("",
            {{"q:f32", "q:bf16", "q:f16 o:f32", "q:bf16 o:f32"},
             {"b=2", "b=3 query_len", "b=3 key_len compressed_len",
              "b=3 key_len compressed_len query_len lag=2 spare=3"},
             {"h=4 g=2", "h=8 g=1", "h=2 g=2"},
             {"d=16 e=16", "d=32 e=24"},
             {"s=1 t=150", "s=9 t=100", "s=70 t=70", "s=40 t=33"},
             {"compress_step=4", "compress_step=16", "compress_step=1", "compress_step=7"},
             {"window=20", "window=1", "window=1000"},
             {"", "index keep=5", "index index_count keep=4"},
             {"", "sink_logit", "sink_logit dsink_logit scale=0.3"},
             {kGradients, "dq", "dk dv_compressed", "dv dk_compressed", "dq dk_compressed"},
             {"contiguous", "head_first", "gaps", "odd"}},
            "", 82);
  const std::string small = " h=2 g=1 d=4 e=4 compress_step=2 window=3 sink_logit dsink_logit" +
                            kGradients,
                    index = " index index_count keep=2";
  for (const std::string& words : std::vector<std::string>{
           "b=0 s=3 t=9" + small, "b=0 s=3 t=9" + small + index, "s=0 t=9" + small,
           "s=0 t=9" + small + index, "s=3 t=0" + small, "s=3 t=0" + small + index,
           "s=3 t=1" + small, "h=0 g=0 s=3 t=9 d=4 e=4 compress_step=2" + kGradients,
           "s=9 t=5" + small, "s=9 t=5" + small + index, "s=3 t=9 index keep=0" + small,
           "s=3 t=9 h=2 g=1 d=4 e=4 compress_step=65536" + kGradients})
    add.add(words, "edge");
  add.add("b=1 s=130 t=400 h=4 g=1 d=512 e=512 q:bf16 sink_logit dsink_logit compress_step=128" +
              kGradients,
          "model")
      .add(
          "b=1 s=64 t=200 h=8 g=1 d=512 e=512 q:bf16 sink_logit dsink_logit index index_count"
          " keep=16" +
              kGradients,
          "model")
      .add(
          "b=1 s=3 t=14 h=2 g=1 d=4 e=4 compress_step=2 window=3 sink_logit dsink_logit index"
          " index_count keep=2" +
              kGradients,
          "small", true)
      .add("b=1 s=3 t=14 h=2 g=1 d=4 e=4 compress_step=4 window=5 sink_logit dsink_logit" +
               kGradients,
           "small", true);
  return add.cases();
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
  std::vector<harness::Case> all = add.cases();
  for (harness::Case& one : backward_cases()) all.push_back(std::move(one));
  return all;
}

const Family kFamily("compressed", cases);

}  // namespace
}  // namespace cases
