// SPDX-License-Identifier: Apache-2.0
// x_nsa_forward: a covering array of places, block sizes, branches and gates; the edges; the
// paper's own sizes.  Scores are drawn again until no decision is close.
#include "oracle/nsa.h"

#include "cases/placed_case.h"

namespace cases {
namespace {

using Params = fovea_x_nsa_forward_params;
constexpr char kOp[] = "x_nsa_forward";

class NsaBuild : Placed {
 public:
  NsaBuild(const std::string& words, uint64_t seed) : Placed(kOp, words, seed) {
    const auto& p = made.params<Params>();
    each_ = p.compress_keys ? p.compress_keys : 32, step_ = p.compress_step ? p.compress_step : 16;
    const int64_t keys = p.key_max ? std::min(p.key_max, capacity) : capacity;
    const auto more = made.letters.find("more");
    made.letters["u"] = compressed(keys) + (more == made.letters.end() ? 0 : more->second);
  }

  static harness::Call build(const std::string& words, uint64_t seed) {
    for (uint64_t attempt = 0;; ++attempt) {
      NsaBuild one(words, seed + attempt * 0x9e37);
      one.inputs();
      one.fill([&](const std::string& field, const int64_t* i, double x, double) {
        return field == "compressed_len" ? one.compressed_len(i[0]) : x;
      });
      one.made.outputs();
      const Params& p = one.made.params<Params>();
      oracle::NsaOracle oracle(p);
      one.read(oracle.layout());
      oracle::NsaResult a = oracle.run(oracle::Mode::exact);
      if (a.margin < 1e-4 && attempt < 60) continue;
      if (a.margin < 1e-4) throw std::runtime_error(words + ": every draw is close");
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
  }

 private:
  int64_t compressed(int64_t keys) const { return keys < each_ ? 0 : (keys - each_) / step_ + 1; }
  double compressed_len(int64_t r) const {
    const fovea_tensor& len = made.params<Params>().key_len;
    return static_cast<double>(compressed(oracle::load(len).integer(r)));
  }
  // Which inputs count.
  void read(const oracle::Layout& at) {
    account(at, made.letters["b"], {"q", "gate_compressed", "gate_selected", "gate_window"},
            {"k", "v", "k_window", "v_window"});
    for (const char* field : {"k_compressed", "v_compressed"})
      if (made.has(field))
        made.call.account(made.call.field(field), [&](const int64_t* i) {
          return i[1] < compressed(oracle::sequence(at, i[0]).keys);
        });
  }

  int64_t each_, step_;
};

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
  const std::string gates = " gate_compressed gate_selected gate_window",
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

std::vector<harness::Case> cases() {
  WordCases add(kOp, NsaBuild::build);
  sweeps(add), edges(add);
  const std::string gates = " gate_compressed gate_selected gate_window";
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
  return add.cases();
}

const Family kFamily("nsa", cases);

}  // namespace
}  // namespace cases
