// SPDX-License-Identifier: Apache-2.0
// x_combine_forward and _backward, x_compare_forward: covering arrays of branches, gates and
// blocks; gradients that sum; the edges and the methods by name.
#include "oracle/summary_combine.h"
#include "cases/summary_case.h"

namespace cases {
namespace {

constexpr const char* kNames[] = {"x", "x2", "x3", "x4", "coarse"};
constexpr const char* kGates[] = {"gate", "gate2", "gate3", "gate4", "gate_coarse"};

template <class P>
void shape(TableCall& made) {
  Letters& x = made.letters;
  const auto& p = made.params<P>();
  const int64_t rows = p.block_rows ? p.block_rows : 64;
  if (!made.has("row_begin")) x["u"] = (x.at("s") + rows - 1) / rows;
  place_letters(made);
}

double contents(const TableCall& made, const std::string& field, const int64_t* i, double normal) {
  const Letters& x = made.letters;
  const int64_t s = x.at("s");
  if (field == "query_len") return static_cast<double>(i[0] == 0 ? s : i[0] * 5 % (s + 1));
  // From one row in; some blocks are empty.
  if (field == "row_begin") return static_cast<double>(1 + i[1] / 2 * 2 * s / (x.at("u") + 1));
  return normal;
}

template <class Oracle>
void count_terms(TableCall& made, const Oracle& o) {
  for (int n = 0; n < Oracle::kTerms; ++n)
    count_read(made, kNames[n], o.x[n]), count_read(made, kGates[n], o.gate[n]);
}

std::vector<Expected> forward(TableCall& made) {
  const auto& p = made.params<fovea_x_combine_forward_params>();
  const oracle::Combine<double> exact(p, p.y);
  const oracle::Combine<float> rounded(p, p.y);
  const oracle::Out y = exact.forward(p.y, oracle::Mode::exact);
  count_terms(made, exact);
  return {{"y", y, rounded.forward(p.y, oracle::Mode::rounded)}};
}

// The word `sums` gives every gradient axes of stride 0.
void sum_axes(TableCall& made, const char* field) {
  if (!made.has(field)) return;
  harness::Field& f = made.call.fields[made.call.field(field)];
  for (int axis : {1, 3}) f.tensor.stride[axis] = 0;
  made.call.slot(f).stride[1] = made.call.slot(f).stride[3] = 0;
}

std::vector<Expected> backward(TableCall& made) {
  auto& p = made.params<fovea_x_combine_backward_params>();
  const bool sums = made.letters.count("sums") != 0;
  if (sums)
    for (const char* field : {"dx2", "dgate", "dgate2", "dgate_coarse"}) sum_axes(made, field);
  const oracle::Combine<double> exact(p, p.dy);
  const oracle::Combine<float> rounded(p, p.dy);
  const oracle::Tracked dy(p.dy);
  const fovea_tensor* dx[] = {&p.dx, &p.dx2, &p.dx3, &p.dx4, &p.dcoarse};
  const fovea_tensor* dgate[] = {&p.dgate, &p.dgate2, &p.dgate3, &p.dgate4, &p.dgate_coarse};
  std::vector<Expected> list;
  for (int n = 0; n < 5; ++n)
    for (bool of_gate : {false, true}) {
      const fovea_tensor& to = of_gate ? *dgate[n] : *dx[n];
      list.push_back({std::string("d") + (of_gate ? kGates[n] : kNames[n]),
                      exact.gradient(to, n, of_gate, dy, oracle::Mode::exact),
                      rounded.gradient(to, n, of_gate, dy, oracle::Mode::rounded)});
    }
  return list;
}

std::vector<Expected> compared(TableCall& made) {
  const auto& p = made.params<fovea_x_compare_forward_params>();
  const oracle::Distances exact = oracle::compare<double>(p), rounded = oracle::compare<float>(p);
  const auto in_use = [&](const char* field, int axis) {
    const oracle::Dense len = oracle::load(p.query_len);
    if (len)
      made.call.account(made.call.field(field),
                        [&](const int64_t* i) { return i[axis + 1] < len.integer(i[axis]); });
  };
  in_use("reference", 0), in_use("candidate", 1);
  return {{"distance", exact.distance, rounded.distance}, {"best", exact.best, exact.best, true}};
}

// Candidates differ from each other by far, and the second is the best, or equal to the third.
double compare_contents(const TableCall& made, const std::string& field, const int64_t* i,
                        double normal) {
  if (field == "query_len") return contents(made, field, i, normal);
  if (field == "reference") return std::abs(normal);
  const double away = static_cast<double>(1 + (i[0] == 1 ? 0 : i[0]));
  return std::abs(normal) * (i[0] == 0 ? 4 : away) + (i[4] % (i[0] + 2) == 0 ? 3 * away : 0);
}

const std::vector<std::string> kTypes = {"x:f32", "x:f16", "x:bf16"};
const std::vector<std::string> kLays = {"contiguous", "head_first", "gaps", "odd", "wide"};
const std::vector<std::string> kBranches = {
    "",
    "x2 coefficient=1 coefficient2=-1",
    "x2 gate gate2 gate2_act=2",
    "x2 x3 gate gate2 gate3 gate_act=1 gate2_act=1 gate3_act=1",
    "x2 x3 x4 gate4 gate4_act=3 coefficient3=0.5",
    "coarse gate_coarse",
    "coarse gate_coarse gate gate_act=1 block_rows=4",
    "coarse row_begin u=5 gate_coarse gate_coarse_act=1 x4"};

std::vector<harness::Case> forwards() {
  return Table("x_combine_forward", forward)
      .shape(shape<fovea_x_combine_forward_params>)
      .contents(contents)
      .sweep({kTypes,
              kBranches,
              {"", "y:f32"},
              {"s=1", "s=7", "s=130"},
              {"b=1", "b=3 query_len"},
              {"h=1", "h=3"},
              {"e=1", "e=24", "e=130"},
              kLays},
             1)
      .each("edge", {"b=0", "s=0 coarse", "h=0", "e=0", "x2 coarse row_begin u=0"})
      .each("small", {"x2 gate gate2 gate2_act=2 s=2 e=3", "x:bf16 coarse block_rows=2 s=4 e=2"},
            true)
      .cases();
}

std::vector<harness::Case> backwards() {
  return Table("x_combine_backward", backward)
      .shape(shape<fovea_x_combine_backward_params>)
      .contents(contents)
      .sweep({kTypes,
              {"dx", "x2 gate gate2 gate2_act=2 dx dx2 dgate dgate2",
               "x2 gate gate2 gate2_act=3 dx dx2 dgate dgate2 sums=1 dgate:f32 dgate2:f32",
               "x2 x3 gate gate2 gate3 gate_act=1 gate2_act=1 gate3_act=1 dgate3 dx3",
               "x4 gate4 dx4 dgate4 coefficient4=0.5",
               "coarse gate_coarse dcoarse dgate_coarse block_rows=4",
               "coarse gate_coarse dcoarse dgate_coarse dgate_coarse:f32 sums=1",
               "coarse row_begin u=5 gate_coarse gate_coarse_act=1 dcoarse dgate_coarse"},
              {"", "dy:f32"},
              {"s=1", "s=7", "s=130"},
              {"b=1", "b=3 query_len"},
              {"h=1", "h=3"},
              {"e=1", "e=24", "e=130"},
              kLays},
             2)
      .each("edge", {"b=0 dx", "s=0 coarse dcoarse", "h=0 dx", "e=0 dx", ""})
      .each("small",
            {"x2 gate gate2 gate2_act=2 dx dx2 dgate dgate2 s=2 e=3",
             "coarse dcoarse block_rows=2 s=4 e=2 x:bf16"},
            true)
      .cases();
}

std::vector<harness::Case> compares() {
  return Table("x_compare_forward", compared)
      .contents(compare_contents)
      .sweep({{"reference:f32", "reference:f16", "reference:bf16"},
              {"measure=0", "measure=1"},
              {"distance best", "distance", "best"},
              {"n=1", "n=4"},
              {"s=1", "s=7", "s=130"},
              {"b=1", "b=3 query_len"},
              {"h=1", "h=3"},
              {"e=2", "e=24", "e=130"},
              kLays},
             3)
      .each("edge",
            {"n=0 distance best", "s=0 distance best", "e=0 distance best", "h=0 distance best"})
      .each("small", {"distance best s=2 e=3", "measure=1 distance best s=1 e=4 reference:bf16"},
            true)
      .cases();
}

const Family kForward("x_combine_forward", forwards);
const Family kBackward("x_combine_backward", backwards);
const Family kCompare("x_compare_forward", compares);

}  // namespace
}  // namespace cases
