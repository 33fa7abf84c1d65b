// SPDX-License-Identifier: Apache-2.0
// x_quantised_forward and x_quant_backward: covering arrays of formats, groups, smoothing and
// places; the edges.
#include "oracle/quantised.h"

#include "cases/sagebwd_case.h"

namespace cases {
namespace {

using Params = fovea_x_quantised_forward_params;

double start_of(const int64_t* i, double first, double second, double end) {
  return i[0] == 0 ? 0 : i[0] == 1 ? first : i[0] == 2 ? second : end;
}

Table table() {
  Table all("x_quantised_forward",
            [](TableCall& made) -> std::vector<Expected> {
              const oracle::QuantisedOracle oracle(made.params<Params>());
              const auto exact = oracle.run(oracle::Mode::exact);
              const auto rounded = oracle.run(oracle::Mode::rounded);
              return {{"o", exact.o, rounded.o},
                      {"lse", exact.lse, rounded.lse},
                      {"skipped", exact.skipped, rounded.skipped, true}};
            },
            {{"index", [](const int64_t* i, double) { return (2 * i[3] + 3 * i[2] + i[1]) % 5; }},
             {"index_count", [](const int64_t* i, double) { return 2 + (i[1] + i[2]) % 2; }},
             {"query_start", [](const int64_t* i, double) { return start_of(i, 60, 60, 150); }},
             {"key_start", [](const int64_t* i, double) { return start_of(i, 130, 170, 300); }}});
  // Three sequences, the second without rows.
  all.shape([](TableCall& made) {
    if (made.has("query_start")) made.letters["r+1"] = 4;
  });
  return all;
}

const char* const kFormats[] = {
    "",
    "q_block=64 k_block=128",
    "hadamard=1 seed=5",
    "code=1 v_code=4 p_format=2 accumulate=2 q_block=128 k_block=64 k_smooth=1",
    "code=1 q_group=1 q_block=16 k_group=2 k_block=128 k_smooth=1 v_group=4 p_format=1",
    "code=1 q_group=3 k_group=3 v_group=4 v_scale_max=2.25 p_format=1 accumulate=2",
    "code=2 q_group=1 q_block=32 k_group=2 k_block=64 k_smooth=1 q_smooth=2 v_group=4 p_format=1",
    "code=3 v_code=3 q_group=5 k_group=5 v_group=7 k_smooth=1 q_smooth=2 p_format=4 accumulate=1",
    "code=3 v_code=3 q_group=6 k_group=6 v_group=8 k_smooth=1 q_smooth=2 p_format=5 accumulate=1",
    "code=1 v_code=1 q_block=64 k_block=64 v_block=64 k_smooth=1 p_format=3 accumulate=1"};

// Every row of quant/forward_integer.inc, lengths off its tiles.
void add_integers(Table& all) {
  for (const std::string type : {"f16", "bf16"})
    for (const std::string width : {"64", "128"}) {
      const std::string quantise = "quant_quantize.cuda.tile." + type + ".d" + width + "+";
      const std::string kernel =
          quantise + quantise + quantise + "quant_forward.cuda.sm90_integer.d" + width;
      const std::string of =
          " code=1 v_code=1 q_block=64 k_block=64 v_block=64 p_format=3"
          " accumulate=1 q:" +
          type + " d=" + width + " e=" + width;
      all.kernel("integers",
                 {"b=2 s=70 t=140 h=4 g=2 causal=1 lse k_smooth=1 sink_logit" + of,
                  "b=1 s=150 t=300 query_start key_start h=2 g=1 k_smooth=1" + of,
                  "b=1 s=130 t=257 h=2 g=2 window_left=40 window_right=9 o:f32 lse" + of},
                 kernel.c_str());
    }
}

// Every row of quant/forward_half.inc, lengths off its tiles.
void add_halves(Table& all) {
  for (const std::string type : {"f16", "bf16"})
    for (const std::string width : {"64", "128"}) {
      const std::string quantise = "quant_quantize.cuda.tile." + type + ".d" + width + "+";
      const std::string kernel = quantise + quantise + "quant_forward.cuda.sm90_half.d" + width;
      const std::string of =
          " code=1 v_code=4 q_block=128 k_block=64 p_format=2 accumulate=2 q:" + type +
          " d=" + width + " e=" + width;
      all.kernel("halves",
                 {"b=2 s=70 t=140 h=4 g=2 causal=1 lse k_smooth=1 sink_logit" + of,
                  "b=1 s=150 t=300 query_start key_start h=2 g=1 k_smooth=1" + of,
                  "b=1 s=130 t=257 h=2 g=2 window_left=40 window_right=9 o:f32 lse" + of},
                 kernel.c_str());
    }
}

std::vector<harness::Case> cases_of() {
  Table all = table();
  std::vector<std::string> formats(std::begin(kFormats), std::end(kFormats));
  all.sweep({formats,
             {"q:f16", "q:bf16"},
             {"h=4 g=2 d=64 e=64", "h=2 g=2 d=128 e=128", "h=3 g=1 d=32 e=96"},
             {"b=2 s=70 t=140", "b=1 s=130 t=257", "b=2 s=1 t=65",
              "b=1 s=150 t=300 query_start key_start"},
             {"", "causal=1", "window_left=40 window_right=9", "sink_logit", "scale=0.2"},
             {"contiguous", "head_first", "odd"},
             {"lse o:f32", "lse", ""}},
            17);
  all.each("small",
           {"b=1 s=2 t=5 h=2 g=1 d=4 e=4 q:f16 lse",
            "b=1 s=3 t=6 h=2 g=1 d=4 e=4 q:bf16 lse code=1 v_code=4 p_format=2 q_block=64"
            " k_block=64 k_smooth=1"},
           true);
  all.each("edge", {"s=0 t=5 q:f16", "s=3 t=0 q:f16 lse", "h=0 g=1 s=2 t=2 q:f16"});
  add_integers(all);
  add_halves(all);
  const std::string lists = " block_rows=64 block_keys=64 index keep=3 lse ",
                    eight = " code=1 k_smooth=1 v_group=4 p_format=1 q_block=64 k_block=64";
  all.each("lists",
           {"b=1 s=130 t=290 h=2 g=1 d=64 e=64 q:f16 x=1 n=3" + lists + eight,
            "b=2 s=65 t=200 h=2 g=2 d=32 e=16 q:bf16 x=2 n=2 index_count causal=1" + lists,
            "b=1 s=150 t=300 h=2 g=1 d=64 e=64 q:bf16 x=1 n=5 query_start key_start skipped"
            " skip_margin=1.5" +
                lists + eight});
  return all.cases();
}

Table gradient_table() {
  Table all("x_quant_backward",
            [](TableCall& made) {
              const auto& p = made.params<fovea_x_quant_backward_params>();
              return gradients_of(made, oracle::load_quant_backward(p));
            },
            {{"query_start", [](const int64_t* i, double) { return start_of(i, 60, 60, 150); }},
             {"key_start", [](const int64_t* i, double) { return start_of(i, 130, 170, 300); }}});
  all.shape([](TableCall& made) {
    if (made.has("query_start")) made.letters["r+1"] = 4;
  });
  return all;
}

// Every row of quantised/backward.inc for tensor cores, lengths off its tiles.  Hopper's kernel
// takes no e that is an odd multiple of 8: such calls run by mma.sync on every device.
void add_tensor_cores(Table& all) {
  const auto add = [&](const std::string& words, const std::string& part, const std::string& row) {
    const std::string type = part.substr(0, part.find('.')), of = " q:" + type + " o:" + type,
                      quantise = "quant_quantize.cuda." +
                                 (part.find(".d") < part.size() ? "tile." + part : "any." + part);
    const std::string kernel = quantise + "+" + quantise + "+x_quant_backward.cuda." + row;
    all.kernel("tensor_cores", {words + of}, kernel.c_str());
  };
  for (const std::string type : {"f16", "bf16"}) {
    const auto by_mma = [&](const char* width) { return "sm80." + type + ".d" + width; };
    for (const char* width : {"64", "128"}) {
      const std::string d = width, wide = " d=" + d + " e=" + (d == "64" ? "56" : "120");
      const std::string part = type + ".d" + d;
      add("b=2 s=70 t=140 h=4 g=2 causal=1 dq dk dv k_smooth=1" + wide, part, by_mma(width));
      add("b=1 s=150 t=300 query_start key_start h=2 g=1 dq dk dv" + wide, part, by_mma(width));
      add("b=1 s=130 t=257 h=2 g=2 window_left=40 window_right=9 dq dk dv" + wide, part,
          by_mma(width));
    }
    add("b=1 s=160 t=310 query_start key_start query_max=50 key_max=200 h=3 g=1 d=64 e=40"
        " causal=1 dq dv k_smooth=1",
        type + ".d64", by_mma("64"));
    add("b=2 s=100 t=30 h=2 g=2 d=64 e=104 causal=1 dk k_smooth=1", type + ".d64", by_mma("128"));
    add("b=1 s=65 t=200 h=2 g=1 d=48 e=56 window_left=3 causal=1 dq dk", type, by_mma("64"));
    add("b=1 s=64 t=128 h=1 g=1 d=112 e=8 scale=0.2 dv", type, by_mma("128"));

    const std::string row = "sm90." + type + ".d128", narrow = "sm90." + type + ".d64",
                      wide = type + ".d128";
    add("b=2 s=70 t=140 h=4 g=2 d=128 e=128 causal=1 dq dk dv k_smooth=1", wide, row);
    add("b=1 s=257 t=130 h=2 g=1 d=128 e=128 dq dk dv", wide, row);
    add("b=1 s=200 t=400 h=2 g=2 d=128 e=64 causal=1 dq dk dv", wide, row);
    add("b=1 s=150 t=300 query_start key_start h=2 g=1 d=128 e=128 dq dk dv k_smooth=1", wide, row);
    add("b=1 s=130 t=257 h=3 g=1 d=64 e=80 window_left=40 window_right=9 dq dk dv", type + ".d64",
        row);
    add("b=1 s=160 t=310 query_start key_start query_max=50 key_max=200 h=3 g=1 d=64 e=48"
        " causal=1 dq dv k_smooth=1",
        type + ".d64", narrow);
    add("b=2 s=100 t=30 h=2 g=2 d=64 e=96 causal=1 dk k_smooth=1", type + ".d64", row);
    add("b=1 s=65 t=200 h=2 g=1 d=48 e=64 window_left=3 causal=1 dq dk", type, narrow);
    add("b=2 s=70 t=140 h=4 g=2 d=64 e=64 causal=1 dq dk dv k_smooth=1", type + ".d64", narrow);
    add("b=1 s=257 t=130 h=2 g=1 d=64 e=64 dq dk dv", type + ".d64", narrow);
    add("b=1 s=330 t=600 query_start key_start h=6 g=2 d=64 e=64 causal=1 dq dk dv k_smooth=1",
        type + ".d64", narrow);
    add("b=1 s=64 t=300 h=1 g=1 d=64 e=64 dq dk dv", type + ".d64", narrow);
    add("b=1 s=64 t=128 h=1 g=1 d=112 e=16 scale=0.2 dv", type, row);
  }
}

std::vector<harness::Case> gradients() {
  Table all = gradient_table();
  all.sweep(
      {{"q:f32", "q:f16", "q:bf16"},
       {"o:f32", ""},
       {"h=4 g=2 d=64 e=64", "h=2 g=2 d=128 e=128", "h=3 g=1 d=33 e=96", "h=2 g=1 d=1 e=5"},
       {"b=2 s=70 t=140", "b=1 s=130 t=257", "b=2 s=1 t=65", "b=1 s=64 t=64", "b=1 s=100 t=30",
        "b=1 s=150 t=300 query_start key_start",
        "b=1 s=160 t=310 query_start key_start query_max=50 key_max=200"},
       {"", "causal=1", "window_left=40 window_right=9", "window_left=3 causal=1", "scale=0.2"},
       {"contiguous", "head_first", "odd", "gaps"},
       {"dq dk dv", "dq dk dv k_smooth=1", "dq", "dk k_smooth=1", "dv", "dq dv k_smooth=1"}},
      19);
  // More keys than one part has.
  all.each("parts", {"b=1 s=70 t=1100 h=2 g=1 d=16 e=24 q:bf16 dq dk dv k_smooth=1",
                     "b=1 s=300 t=1030 h=2 g=1 d=16 e=8 q:f16 dq dk dv causal=1"});
  all.each("small",
           {"b=1 s=2 t=5 h=2 g=1 d=4 e=4 q:f16 dq dk dv",
            "b=1 s=5 t=4 h=2 g=1 d=8 e=3 q:bf16 dq dk dv k_smooth=1 causal=1"},
           true);
  all.each("wide", {"b=1 s=65 t=66 h=1 g=1 d=576 e=512 q:bf16 dq dk dv k_smooth=1",
                    "b=1 s=20 t=70 h=1 g=1 d=512 e=576 q:f16 dq dk dv"});
  all.each("edge", {"s=0 t=5 q:f16 dq dk dv", "s=3 t=0 q:f16 dq dk dv k_smooth=1",
                    "h=0 g=1 s=2 t=2 q:f16 dq dk dv", "s=3 t=5"});
  add_tensor_cores(all);
  return all.cases();
}

const Family kFamily("quantised", cases_of);
const Family kGradients("quant_backward", gradients);

}  // namespace
}  // namespace cases
