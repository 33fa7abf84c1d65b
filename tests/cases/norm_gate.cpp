// SPDX-License-Identifier: Apache-2.0
// x_norm_gate_forward and _backward: covering arrays of norms, gates, groups and what is added; the
// edges, and the layers by name.
#include "oracle/norm_gate.h"
#include "cases/table.h"

namespace cases {
namespace {

// `large` and `tiny` inputs; `centre` moves x away from 0, where a mean cancels.
double contents(const TableCall& made, const std::string& field, const int64_t* i, double normal) {
  if (field == "x") {
    const double spread = made.letters.count("large") ? 50 : made.letters.count("tiny") ? 1e-3 : 1;
    return spread * normal + (made.letters.count("centre") ? 3 : 0);
  }
  if (field == "gate" && made.letters.count("steep")) return i[3] % 2 ? 120 * normal : -90;
  return normal;
}

std::vector<Expected> forward(TableCall& made) {
  const auto& p = made.params<fovea_x_norm_gate_forward_params>();
  return {{"y", oracle::NormGate<double>(p).forward(p, oracle::Mode::exact),
           oracle::NormGate<float>(p).forward(p, oracle::Mode::rounded)}};
}

std::vector<Expected> backward(TableCall& made) {
  const auto& p = made.params<fovea_x_norm_gate_backward_params>();
  const auto exact = oracle::NormGate<double>(p).backward(p.dy);
  const auto rounded = oracle::NormGate<float>(p).backward(p.dy);
  std::vector<Expected> list;
  const auto add = [&](const char* name, const fovea_tensor& to, const std::vector<double>& first,
                       const std::vector<double>& second, const std::vector<double>& terms) {
    list.push_back({name, exact.out(to, first, terms, oracle::Mode::exact),
                    rounded.out(to, second, terms, oracle::Mode::rounded)});
  };
  add("dx", p.dx, exact.dx, rounded.dx, exact.dx_terms);
  add("dgate", p.dgate, exact.dgate, rounded.dgate, exact.dgate_terms);
  add("dweight", p.dweight, exact.dweight, rounded.dweight, exact.dweight_terms);
  add("dbias", p.dbias, exact.dbias, rounded.dbias, exact.dbias_terms);
  return list;
}

const std::vector<std::string> kTypes = {"x:f32", "x:f16", "x:bf16"};
const std::vector<std::string> kNorms = {"norm=0", "norm=1", "norm=1 centre=1", "norm=2", "norm=3"};
// Columns and groups: a warp holds up to 256, and reads wider ones again.
const std::vector<std::string> kWidths = {"e=1",
                                          "e=24 group=8",
                                          "e=64",
                                          "e=128 group=32",
                                          "e=257",
                                          "e=1000 group=500",
                                          "e=1024 group=256"};
const std::vector<std::string> kColumns = {"", "weight", "bias weight:f32", "weight bias",
                                           "weight weight:f32 bias bias:f32"};
const std::vector<std::string> kRest = {"", "large=1", "tiny=1 eps=0.001", "factor=0.25"};
const std::vector<std::string> kLays = {"contiguous", "head_first", "gaps", "odd", "wide"};

std::vector<harness::Case> forwards() {
  return Table("x_norm_gate_forward", forward)
      .contents(contents)
      .sweep({kTypes,
              kNorms,
              kWidths,
              {"", "gate", "gate act=1", "gate act=2 gate:f32", "gate gate_first=1",
               "gate gate_first=1 act=1"},
              {"", "add_before", "add_after", "add_before add_after add_after:f32"},
              kColumns,
              {"", "y:f32"},
              {"s=1", "s=7", "s=70 query_len"},
              {"h=1", "h=3"},
              kRest,
              kLays},
             7)
      .each("edge", {"b=0", "s=0 gate", "h=0 weight", "e=8 group=1 norm=1 gate",
                     "e=8 group=1 norm=2 bias", "gate steep=1 e=16", "gate steep=1 act=1 e=16"})
      .each("named",
            {"gate weight e=128 h=16 s=5 x:bf16", "gate act=1 weight e=128 h=16 s=5 x:bf16",
             "gate gate_first=1 weight h=1 e=4096 group=512 s=3 x:bf16",
             "norm=1 weight bias gate act=2 h=12 e=64 x:bf16 eps=0.00064"})
      .each("small",
            {"gate weight e=4 s=2", "norm=1 weight bias add_before e=6 group=3 s=2 x:bf16"}, true)
      .cases();
}

constexpr const char* kAll = " dx dweight dbias";

std::vector<harness::Case> backwards() {
  const std::string all = kAll;
  return Table("x_norm_gate_backward", backward)
      .contents(contents)
      .sweep({kTypes,
              kNorms,
              kWidths,
              {"", "gate dgate", "gate act=1 dgate dgate:f32", "gate act=2 gate:f32 dgate",
               "gate gate_first=1 dgate", "gate gate_first=1 act=1", "gate"},
              {"", "add_before"},
              kColumns,
              {"dx", "dx dx:f32 dweight", "dweight dbias", "dx dweight dbias"},
              {"", "dy:f32"},
              {"s=1", "s=7", "s=70 query_len", "s=300"},
              {"h=1", "h=3"},
              kRest,
              kLays},
             8)
      .each("edge", {"b=0" + all, "s=0 gate dgate" + all, "h=0 weight" + all,
                     "e=8 group=1 norm=1 gate dgate" + all, "gate steep=1 e=16 dgate" + all,
                     "gate gate_first=1 dgate e=8", "", "gate dgate"})
      .each("parts", {"b=2 s=700 e=9 h=2 gate dgate" + all, "b=1 s=1100 query_len e=33" + all})
      .each("named", {"gate dgate weight e=128 h=16 s=5 x:bf16" + all,
                      "gate gate_first=1 dgate weight h=1 e=4096 group=512 s=3 x:bf16" + all,
                      "norm=1 weight bias gate act=2 dgate h=12 e=64 x:bf16" + all})
      .each("small",
            {"gate weight bias e=4 s=2 dgate" + all,
             "norm=1 weight bias add_before e=6 group=3 s=2 x:bf16" + all},
            true)
      .cases();
}

const Family kForward("x_norm_gate_forward", forwards);
const Family kBackward("x_norm_gate_backward", backwards);

}  // namespace
}  // namespace cases
