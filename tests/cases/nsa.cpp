// SPDX-License-Identifier: Apache-2.0
// x_nsa_forward and _backward: covering arrays of places, block sizes, branches and gates; the
// edges; the paper's own sizes.  Scores are drawn again until no decision is close.
#include "oracle/nsa_backward.h"

#include "cases/placed_case.h"

namespace cases {
namespace {

using Params = fovea_x_nsa_forward_params;
constexpr char kOp[] = "x_nsa_forward";

// What the calls of P have in common.
template <class P>
class NsaCall : protected Placed {
 protected:
  NsaCall(const char* op, const std::string& words, uint64_t seed) : Placed(op, words, seed) {
    const auto& p = params();
    each_ = p.compress_keys ? p.compress_keys : 32, step_ = p.compress_step ? p.compress_step : 16;
    int64_t keys = capacity;
    if constexpr (requires { p.key_max; })
      if (p.key_max) keys = std::min(p.key_max, capacity);
    const auto more = made.letters.find("more");
    made.letters["u"] = compressed(keys) + (more == made.letters.end() ? 0 : more->second);
  }

  const P& params() const { return made.template params<P>(); }
  // Inputs that follow from nothing.
  void draw() {
    inputs();
    fill([&](const std::string& field, const int64_t* i, double x, double) {
      return field == "compressed_len" ? compressed_len(i[0]) : x;
    });
  }
  int64_t compressed(int64_t keys) const { return keys < each_ ? 0 : (keys - each_) / step_ + 1; }
  double compressed_len(int64_t r) const {
    return static_cast<double>(compressed(oracle::load(params().key_len).integer(r)));
  }
  // Which inputs count.
  void read(const oracle::Layout& at) {
    account(at, made.letters["b"], {"q", "gate_compressed", "gate_selected", "gate_window"},
            {"k", "v", "k_window", "v_window"});
    const auto rows = [&](int64_t b) { return oracle::sequence(at, b).rows; };
    for (const char* field : {"o_compressed", "o_selected", "o_window", "dout"})
      each_in(field, 1, rows);
    for (const char* field : {"k_compressed", "v_compressed"})
      each_in(field, 1, [&](int64_t b) { return compressed(oracle::sequence(at, b).keys); });
    for (const char* field :
         {"lse_compressed", "lse_selected", "lse_window", "index", "index_count"})
      each_in(field, 2, rows);
  }

 private:
  // Of an input that the call has, elements below a bound on the axis count.
  template <class Bound>
  void each_in(const char* field, int axis, Bound bound) {
    const bool known = contract::find_op(made.call.op.name)->find(field);
    const size_t f = known ? made.call.field(field) : 0;
    if (known && f < made.call.fields.size())
      made.call.account(f, [&](const int64_t* i) { return i[axis] < bound(i[0]); });
  }

  int64_t each_, step_;
};

class NsaBuild : NsaCall<Params> {
 public:
  NsaBuild(const std::string& words, uint64_t seed) : NsaCall(kOp, words, seed) {}

  static harness::Call build(const std::string& words, uint64_t seed) {
    NsaBuild one(words, seed);
    one.draw();
    const Params& p = one.params();
    oracle::NsaOracle oracle(p);
    one.read(oracle.layout());
    one.made.outputs();
    oracle::NsaResult a = oracle.run(oracle::Mode::exact);
    if (a.margin < 1e-4) throw Close();
    oracle::NsaResult b = oracle::NsaOracle(p).run(oracle::Mode::rounded);
    one.made.expect({{"o", a.o, b.o},
                     {"index", a.index, b.index, true},
                     {"index_count", a.index_count, b.index_count, true},
                     {"o_compressed", a.branch[0], b.branch[0]},
                     {"o_selected", a.branch[1], b.branch[1]},
                     {"o_window", a.branch[2], b.branch[2]},
                     {"lse_compressed", a.lse[0], b.lse[0]},
                     {"lse_selected", a.lse[1], b.lse[1]},
                     {"lse_window", a.lse[2], b.lse[2]}});
    return std::move(one.made.call);
  }
};

class NsaBackwardBuild : NsaCall<fovea_x_nsa_backward_params> {
 public:
  NsaBackwardBuild(const std::string& words, uint64_t seed)
      : NsaCall("x_nsa_backward", words, seed) {}

  static harness::Call build(const std::string& words, uint64_t seed) {
    NsaBackwardBuild one(words, seed);
    one.draw();
    const auto& p = one.params();
    const auto count = one.made.letters.find("count");
    oracle::NsaBackward oracle(p, count == one.made.letters.end() ? 0 : count->second);
    oracle::NsaResult f = oracle.forward();
    if (f.margin < 1e-4) throw Close();
    one.put("o_compressed", f.branch[0]), one.put("o_selected", f.branch[1]);
    one.put("o_window", f.branch[2]), one.put("lse_compressed", f.lse[0]);
    one.put("lse_selected", f.lse[1]), one.put("lse_window", f.lse[2]);
    one.put("index", f.index), one.put("index_count", f.index_count);
    one.read(oracle.layout());
    one.made.outputs();
    oracle::NsaGradients a = oracle.run(oracle::Mode::exact);
    oracle::NsaGradients b = oracle.run(oracle::Mode::rounded);
    one.made.expect({{"dq", a.dq, b.dq},
                     {"dk", a.dk, b.dk},
                     {"dv", a.dv, b.dv},
                     {"dk_compressed", a.dk_compressed, b.dk_compressed},
                     {"dv_compressed", a.dv_compressed, b.dv_compressed},
                     {"dk_window", a.dk_window, b.dk_window},
                     {"dv_window", a.dv_window, b.dv_window},
                     {"dgate_compressed", a.dgate[0], b.dgate[0]},
                     {"dgate_selected", a.dgate[1], b.dgate[1]},
                     {"dgate_window", a.dgate[2], b.dgate[2]}});
    return std::move(one.made.call);
  }

 private:
  // What the forward gave is an input.
  void put(const char* field, const oracle::Out& x) {
    size_t n = 0;
    if (made.has(field))
      made.call.fill(made.call.field(field), [&](const int64_t*) { return x.value[n++]; });
  }
};

const std::string kGates = " gate_compressed gate_selected gate_window",
                  kDgates = " dgate_compressed dgate_selected dgate_window";
const std::string kAll = "lse_compressed lse_selected lse_window o_compressed o_selected o_window ";

void sweeps(WordCases& add) {
  add.sweep("",
            {{"q:f32", "q:bf16", "q:f16 o:f32", "q:bf16 o:f32"},
             {"b=2", "b=3 page_table page=16", "b=2 k_compressed v_compressed more=3",
              "b=3 query_len key_len compressed_len k_compressed v_compressed",
              "b=3 page_table page=5 key_len compressed_len k_compressed v_compressed more=2",
              "b=2 query_max=4 key_max=50"},
             {"h=4 g=2", "h=8 g=1", "h=2 g=2"},
             {"d=16 e=16", "d=32 e=24"},
             {"s=1 t=150", "s=9 t=150", "s=70 t=70"},
             {"compress_keys=8 compress_step=4 block_keys=16",
              "compress_keys=16 compress_step=16 block_keys=16",
              "compress_keys=6 compress_step=2 block_keys=10",
              "compress_keys=24 compress_step=8 block_keys=8"},
             {"count=4", "count=6 index index_count keep=6", "count=1 index keep=3",
              "count=5 index index_count keep=4", "count=40"},
             {"window=20", "window=1", "window=1000"},
             {"", "k_window v_window"},
             {"", "gate_compressed gate_selected gate_window",
              "gate_compressed:f32 gate_compressed gate_selected:f32 gate_selected",
              "gate_window gate_plain=1"},
             {"", "scale=0.3", kAll},
             {"contiguous", "head_first", "gaps", "odd"}},
            "", 31);
}

void edges(WordCases& add) {
  const std::string gates = kGates,
                    small = " compress_keys=4 compress_step=2 block_keys=4 window=4 count=2";
  for (const std::string& words : std::vector<std::string>{
           "b=0 s=3 t=9 h=2 g=2 d=4 e=4" + small, "s=0 t=9 h=2 g=2 d=4 e=4 index keep=2" + small,
           "s=3 t=0 h=2 g=2 d=4 e=4 index index_count keep=2" + small + gates,
           "h=0 g=0 s=3 t=9 index keep=2 d=4 e=4" + small,
           "s=3 t=3 h=2 g=1 d=4 e=4 index keep=2" + small + gates,
           "s=9 t=5 h=2 g=1 d=4 e=4 index index_count keep=2" + small + gates + " " + kAll,
           "s=5 t=9 h=2 g=1 d=4 e=4 index keep=0" + small + gates,
           "s=5 t=40 h=2 g=1 d=4 e=4 compress_keys=40 compress_step=1 block_keys=1 count=9 "
           "window=3",
           "s=5 t=40 h=2 g=1 d=4 e=4 count=9223372036854775807 window=9223372036854775807" + gates})
    add.add(words, "edge");
}

std::vector<harness::Case> backward_cases() {
  WordCases add("x_nsa_backward", NsaBackwardBuild::build);
  const std::string given = "k_compressed v_compressed dk_compressed dv_compressed ",
                    own = "k_window v_window dk_window dv_window ";
  add.sweep("",
            {{"q:f32", "q:bf16", "q:f16 dout:f32", "q:bf16 dout:f32"},
             {"b=2", "b=2 " + given, "b=3 query_len key_len compressed_len " + given},
             {"h=4 g=2", "h=8 g=1", "h=2 g=2"},
             {"d=16 e=16", "d=32 e=24"},
             {"s=1 t=150", "s=9 t=100", "s=70 t=70"},
             {"compress_keys=8 compress_step=4 block_keys=16",
              "compress_keys=16 compress_step=16 block_keys=16",
              "compress_keys=6 compress_step=2 block_keys=10"},
             {"count=4 keep=4", "count=6 keep=8 index_count", "count=5 keep=3 index_count"},
             {"window=20", "window=1", "window=1000"},
             {"", own},
             {"", kGates, kGates + kDgates, kGates + kDgates + " gate_plain=1"},
             {"dq dk dv", "dq", "dk", "dv", "dq dv scale=0.3"},
             {"contiguous", "head_first", "gaps", "odd"}},
            "", 32);
  const std::string small =
      " compress_keys=4 compress_step=2 block_keys=4 window=4 count=2 dq dk dv";
  for (const char* words :
       {"b=0 s=3 t=9 h=2 g=2 d=4 e=4 keep=3", "s=0 t=9 h=2 g=2 d=4 e=4 keep=3",
        "s=3 t=0 h=2 g=2 d=4 e=4 keep=0", "h=0 g=0 s=3 t=9 d=4 e=4 keep=3",
        "s=9 t=5 h=2 g=1 d=4 e=4 keep=2 index_count", "s=3 t=3 h=2 g=1 d=4 e=4 keep=1"})
    add.add(words + small + kGates + kDgates, "edge");
  add.add("b=1 s=130 t=130 h=4 g=2 d=64 e=64 q:bf16 count=2 keep=3 window=32 dq dk dv" + kGates +
              kDgates,
          "prompt")
      .add(
          "b=1 s=3 t=24 h=2 g=1 d=4 e=4 compress_keys=4 compress_step=2 block_keys=4 count=4"
          " window=5 keep=4 dq dk dv" +
              kGates + kDgates,
          "small", true)
      .add(
          "b=1 s=2 t=22 h=2 g=1 d=4 e=4 compress_keys=4 compress_step=4 block_keys=4 count=4"
          " window=3 keep=4 index_count dq dk dv " +
              given + own + kGates + kDgates,
          "small", true);
  return add.cases();
}

std::vector<harness::Case> cases() {
  WordCases add(kOp, NsaBuild::build);
  sweeps(add), edges(add);
  const std::string& gates = kGates;
  // The paper's: 32 keys every 16, 16 blocks of 64, a window of 512, 16 heads a group.
  add.add("b=1 s=3 t=1500 h=16 g=1 d=64 e=64 q:bf16 index index_count keep=16" + gates, "paper")
      .add("b=1 s=2 t=1300 h=16 g=1 d=192 e=128 q:bf16 k_window v_window" + gates, "paper")
      .add("b=1 s=130 t=130 h=4 g=2 d=64 e=64 q:bf16 count=2 window=32 " + kAll + gates, "prompt")
      .add(
          "b=1 s=3 t=24 h=2 g=1 d=4 e=4 compress_keys=4 compress_step=2 block_keys=4 count=4"
          " window=5 index keep=4" +
              gates,
          "small", true)
      .add(
          "b=1 s=2 t=22 h=2 g=1 d=4 e=4 k_compressed v_compressed k_window v_window compress_keys=4"
          " compress_step=4 block_keys=4 count=4 window=3 " +
              kAll + gates,
          "small", true);
  std::vector<harness::Case> all = add.cases();
  for (harness::Case& one : backward_cases()) all.push_back(std::move(one));
  return all;
}

const Family kFamily("nsa", cases);

}  // namespace
}  // namespace cases
