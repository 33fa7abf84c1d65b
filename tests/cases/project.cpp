// SPDX-License-Identifier: Apache-2.0
// x_project_forward and _backward: covering arrays of layers, heads, widths and what follows the
// last layer; codes of integers, which are exact; the edges and the methods by name.
#include "oracle/project.h"
#include "cases/table.h"

namespace cases {
namespace {

// The last layer's columns are f; words count the bits of a code.
template <class P>
void shape(TableCall& made) {
  Letters& x = made.letters;
  if (x.count("row")) x["positions"] = x["row"];
  const char* last = made.has("weight3") ? "inner3" : made.has("weight2") ? "inner2" : "inner";
  x["f"] = x.at(last);
  if constexpr (requires(P p) { p.bits; }) {
    const int32_t bits = made.params<P>().bits;
    x["words"] = bits ? x["f"] / bits : (x["f"] + 31) / 32;
  }
}

// Sums of small integers are exact in any order, and so are their signs.  `nan` puts one into x.
double contents(const TableCall& made, const std::string& field, const int64_t* i, double normal) {
  if (field == "position") return static_cast<double>((i[1] * 5 + i[0]) % 17 - (i[1] == 3));
  if (field == "cos" || field == "sin") {
    const double angle = static_cast<double>(i[0]) / (1 + static_cast<double>(i[1]));
    return field == "cos" ? std::cos(angle) : std::sin(angle);
  }
  if (field == "x" && made.letters.count("nan") && i[1] == 0 && i[3] == 0) return NAN;
  const bool weight = field.rfind("weight", 0) == 0;
  if (made.has("code") && !made.params<fovea_x_project_forward_params>().act)
    return std::round(normal * (field == "x" ? 2 : 1));
  return weight ? normal / 4 : normal;
}

std::vector<Expected> forward(TableCall& made) {
  const auto& p = made.params<fovea_x_project_forward_params>();
  const fovea_tensor& rows = p.y.data ? p.y : p.code;
  if (!rows.data) return {};
  const auto exact = oracle::Project<double>(p, rows).forward(p, oracle::Mode::exact);
  const auto rounded = oracle::Project<float>(p, rows).forward(p, oracle::Mode::rounded);
  return {{"y", exact.y, rounded.y}, {"code", exact.code, exact.code, true}};
}

std::vector<Expected> backward(TableCall& made) {
  const auto& p = made.params<fovea_x_project_backward_params>();
  const auto exact = oracle::Project<double>(p, p.dy).backward(p.dy);
  const auto rounded = oracle::Project<float>(p, p.dy).backward(p.dy);
  std::vector<Expected> list;
  const auto add = [&](const char* name, const fovea_tensor& to, const auto& one,
                       const auto& other) {
    list.push_back({name, one.out(to, oracle::Mode::exact), other.out(to, oracle::Mode::rounded)});
  };
  add("dx", p.dx, exact.dx, rounded.dx);
  add("dnorm_weight", p.dnorm_weight, exact.dnorm_weight, rounded.dnorm_weight);
  const fovea_tensor* dweight[] = {&p.dweight, &p.dweight2, &p.dweight3};
  const fovea_tensor* dbias[] = {&p.dbias, &p.dbias2, &p.dbias3};
  static constexpr const char* weights[] = {"dweight", "dweight2", "dweight3"};
  static constexpr const char* biases[] = {"dbias", "dbias2", "dbias3"};
  for (int l = 0; l < 3; ++l) {
    add(weights[l], *dweight[l], exact.dweight[l], rounded.dweight[l]);
    add(biases[l], *dbias[l], exact.dbias[l], rounded.dbias[l]);
  }
  return list;
}

const std::vector<std::string> kTypes = {"x:f32", "x:f16", "x:bf16"};
const std::vector<std::string> kLays = {"contiguous", "head_first", "gaps",
                                        "odd",        "wide",       "turned"};
// Shared x, shared weights, sums over groups.
const std::vector<std::string> kHeads = {"g=1 h=1 maps=1", "g=3 h=3 maps=3", "g=4 h=4 maps=2",
                                         "g=1 h=4 maps=4", "g=2 h=6 maps=3", "g=6 h=2 maps=6",
                                         "g=4 h=1 maps=1"};
const std::vector<std::string> kRope = {"", "cos sin half=2",
                                        "cos sin half=1 rope_begin=1 rope_interleaved=1 position"};

// Tensor cores: tiles that are cut on each side; terms of several heads; what a tile's sums go
// through; layouts of whole pieces.
void named(Table& cases, const std::string& kernel, const std::string& type,
           const std::string& outputs, const std::vector<std::string>& list) {
  for (const std::string& words : list)
    cases.kernel(type.c_str(), {outputs + " x:" + type + " " + words}, kernel.c_str());
}

// Those of sm_80, which Hopper's kernel leaves to it: a bias, few rows of batches that lie
// unevenly.
const std::vector<std::string> kPortable = {"g=8 h=8 maps=8 d=128 inner=264 s=35 b=4 head_first",
                                            "g=2 h=2 maps=2 d=512 inner=128 s=5 b=2 head_first",
                                            "g=6 h=2 maps=6 d=72 inner=40 s=33 b=2 gaps",
                                            "g=6 h=2 maps=1 d=8 inner=8 s=2 b=2 gaps",
                                            "g=1 h=3 maps=3 d=264 inner=64 s=60 b=5 head_first",
                                            "g=1 h=1 maps=1 d=1032 inner=520 s=21 b=3 gaps"};
const std::vector<std::string> kBiases = {
    "g=2 h=4 maps=4 d=64 inner=136 s=9 b=4 bias",
    "g=4 h=2 maps=2 d=24 inner=16 s=40 bias bias:f32",
};

// A tile has rows of one batch or of all; heads of x or weights are shared, or summed.
const std::vector<std::string> kHopper = {"g=8 h=8 maps=8 d=128 inner=264 s=70 b=2",
                                          "g=2 h=2 maps=2 d=512 inner=128 s=5 b=1",
                                          "g=6 h=2 maps=6 d=72 inner=40 s=33 b=2",
                                          "g=6 h=2 maps=1 d=8 inner=8 s=1 b=1",
                                          "g=1 h=3 maps=3 d=264 inner=64 s=300 b=1",
                                          "g=1 h=1 maps=1 d=1032 inner=520 s=21 b=3",
                                          "g=2 h=2 maps=1 d=24 inner=16 s=1 b=70 gaps",
                                          "g=4 h=4 maps=2 d=40 inner=48 s=131 b=1 head_first",
                                          "g=2 h=4 maps=2 d=72 inner=48 s=140 b=3 head_first",
                                          "g=4 h=2 maps=4 d=40 inner=56 s=65 b=2 gaps"};

std::vector<harness::Case> forwards() {
  Table cases("x_project_forward", forward);
  cases.shape(shape<fovea_x_project_forward_params>).contents(contents);
  for (const std::string type : {"bf16", "f16"}) {
    const std::string sm80 = "sm80." + type, sm90 = "sm90." + type;
    for (const char* outputs : {"y", "y y:f32"}) {
      named(cases, sm80, type, outputs, kPortable);
      named(cases, sm80, type, outputs, kBiases);
      named(cases, sm90, type, outputs, kHopper);
      named(
          cases, sm90 + ".b64x128", type, outputs,
          {"g=3 h=3 maps=3 d=72 inner=136 s=9 turned", "g=4 h=2 maps=4 d=200 inner=40 s=5 turned"});
      // Each of Hopper's tiles: another would leave a GPU with more rounds of them.
      const std::string many = "g=100 h=100 maps=100 b=1 d=8 ";
      named(cases, sm90 + ".b128x256", type, outputs, {many + "inner=232 s=70 turned"});
      named(cases, sm90 + ".64x128", type, outputs, {many + "inner=136 s=9"});
      named(cases, sm90 + ".128x128", type, outputs, {many + "inner=104 s=70"});
      named(cases, sm90 + ".128x256", type, outputs, {many + "inner=232 s=70"});
      named(cases, sm90 + ".256x128", type, outputs, {many + "inner=104 s=130"});
    }
    named(cases, sm80, type, "y",
          {"norm_weight bias bias:f32 inner=64 d=72 s=40 cos sin half=8 rope_begin=16 position"});
    named(cases, sm90, type, "y",
          {"norm_weight inner=64 d=72 s=40 cos sin half=8 rope_begin=16 position",
           "code inner=104 d=40 s=9 g=4 h=2 maps=4", "cos sin half=4 inner=8 d=512 s=140 h=1"});
  }
  named(cases, "sm90.bf16", "bf16", "y", {"code g=1 h=8 maps=1 s=733 b=3 d=8 inner=512"});
  return cases
      .sweep({kTypes,
              kHeads,
              {"inner=4", "inner=67 bias", "inner=24 bias bias:f32",
               "weight2 inner=9 inner2=5 act=1 bias bias2",
               "weight2 weight3 inner=12 inner2=70 inner3=8 act=2 bias bias3 bias3:f32",
               "weight2 weight3 inner=5 inner2=6 inner3=7 bias2"},
              {"", "norm_weight", "norm_weight norm_weight:f32 norm_eps=0.5"},
              kRope,
              {"y", "y y:f32"},
              {"s=1", "s=7", "s=70"},
              {"b=1", "b=3"},
              {"d=1", "d=24", "d=130"},
              kLays},
             4)
      .sweep({kTypes,
              kHeads,
              {"inner=32", "inner=70 bias", "weight2 inner=9 inner2=12 act=1 bias2"},
              {"", "norm_weight", "cos sin half=2 position"},
              {"y code", "code"},
              {"s=1", "s=9"},
              {"d=5", "d=64"},
              kLays},
             5)
      .each("chunks", {"g=1 h=8 maps=1 s=733 b=3 d=2 inner=512 weight2 inner2=3 act=1 y code"})
      .each("bits", {"code bits=1 inner=5", "y code bits=10 inner=150 g=4 h=4",
                     "code bits=31 inner=62 x:bf16 maps=1"})
      .each("edge", {"b=0 y", "s=0 y code", "h=0 g=2 y", "d=0 bias y", "inner=0 y code", "y nan=1",
                     "code nan=1", "positions=0 cos sin half=1 y", "weight2 inner=0 bias2 y", ""})
      .each("named", {"y g=1 h=8 maps=8 d=512 inner=128 s=3 x:bf16",
                      "y g=16 h=16 maps=16 d=128 inner=512 s=2 b=1 x:bf16",
                      "code g=4 h=4 maps=4 d=128 inner=128 weight2 inner2=128 weight3 inner3=32 "
                      "act=1 x:f16 s=5"})
      .each("small", {"y inner=4 d=3 s=2 bias norm_weight", "code x:bf16 inner=5 d=4 s=2"}, true)
      .cases();
}

constexpr const char* kAll = " dx dweight dbias bias";

std::vector<harness::Case> backwards() {
  const std::string all = kAll;
  Table cases("x_project_backward", backward);
  cases.shape(shape<fovea_x_project_backward_params>).contents(contents);
  for (const std::string type : {"bf16", "f16"}) {
    const std::string sm80 = "sm80." + type, sm90 = "sm90." + type;
    for (const char* outputs : {"dx dweight", "dx dweight dbias bias"}) {
      named(cases, sm80, type, outputs, kPortable);
      named(cases, sm90, type, outputs, kHopper);
    }
    named(cases, sm90, type, "dx dweight dbias", kBiases);
    named(
        cases, sm90, type, "dx dweight",
        {"b=2 s=700 d=24 inner=16 g=2 h=2 maps=1", "b=3 s=400 d=40 inner=24 g=2 h=2 maps=1 gaps"});
    // Each of Hopper's tiles for dweight and for dx.
    const std::string many = "g=100 h=100 maps=100 b=1 ";
    named(cases, sm90 + ".a64x128.b64x128", type, "dx dweight", {many + "d=24 inner=16 s=3"});
    named(cases, sm90 + ".a128x128.b256x128", type, "dx dweight", {many + "d=72 inner=40 s=130"});
    named(cases, sm90 + ".a256x128.b128x256", type, "dx dweight", {many + "d=136 inner=40 s=70"});
    named(cases, sm90 + ".a128x256.b64x128", type, "dx dweight", {many + "d=72 inner=232 s=9"});
    named(cases, sm90 + ".a128x128.b128x128", type, "dx dweight", {many + "d=72 inner=40 s=70"});
  }
  return cases
      .sweep({kTypes,
              kHeads,
              {"inner=4" + all, "inner=67 dx", "inner=24 bias:f32" + all,
               "weight2 inner=9 inner2=5 act=1 bias2 dweight2 dbias2" + all,
               "weight2 weight3 inner=12 inner2=70 inner3=8 act=2 bias2 bias3 bias3:f32 dweight2 "
               "dbias2 dweight3 dbias3" +
                   all,
               "weight2 weight3 inner=5 inner2=6 inner3=7 bias2 dx dweight dweight3"},
              {"", "norm_weight dnorm_weight", "norm_weight norm_weight:f32 norm_eps=0.5"},
              kRope,
              {"", "dy:f32"},
              {"s=1", "s=7", "s=70"},
              {"b=1", "b=3"},
              {"d=1", "d=24", "d=130"},
              kLays},
             6)
      .each("edge", {"b=0" + all, "s=0 norm_weight dnorm_weight" + all, "h=0 g=2" + all,
                     "d=0" + all, "inner=0" + all, "weight2 inner=0 bias2 dweight2 dbias2" + all,
                     "nan=1" + all, "dbias bias", "norm_weight dnorm_weight", ""})
      .each("parts",
            {"b=2 s=700 d=9 inner=10 g=2 h=2 maps=1" + all,
             "s=600 weight2 inner=6 inner2=4 act=1 norm_weight dnorm_weight dweight2" + all})
      .each("chunks", {"g=1 h=8 maps=2 s=733 b=3 d=2 inner=512 weight2 inner2=3 act=1 bias2 "
                       "norm_weight dnorm_weight dweight2 dbias2" +
                       all})
      .each("named", {"g=1 h=8 maps=8 d=512 inner=64 s=3 x:bf16" + all,
                      "g=4 h=4 maps=4 d=64 inner=64 weight2 inner2=64 weight3 inner3=32 act=1 "
                      "dweight2 dweight3 x:bf16 s=65" +
                          all})
      .each("small",
            {"inner=4 d=3 s=2 norm_weight dnorm_weight" + all,
             "x:bf16 inner=3 d=4 s=2 weight2 inner2=2 act=1 dweight2" + all},
            true)
      .cases();
}

const Family kForward("x_project_forward", forwards);
const Family kBackward("x_project_backward", backwards);

}  // namespace
}  // namespace cases
