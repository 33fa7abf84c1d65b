// SPDX-License-Identifier: Apache-2.0
// x_gsa_forward and _backward: covering arrays of widths, heads, gates with their maps, places of
// tokens and states.  Words beside those of run_case.h:
//   hard=1    gates of 0, -1e-4, -20, -88, -1e4 and -inf among others; raw ones of 0, 30 and 90
//   hard=2    gates of -inf at every 13th row and at the ends of chunks
//   reset=1   states are NaN, and the first row resets
//   shared=1  each state_out is the memory of its state_in
//   const=1   gate with strides of 0 over b and s
#include "oracle/gsa.h"

#include "cases/run_case.h"

namespace cases {
namespace {

using contract::Words;
using Forward = fovea_x_gsa_forward_params;
using Backward = fovea_x_gsa_backward_params;

template <class P>
P& params_of(TableCall& made) {
  return *reinterpret_cast<P*>(made.call.params.data());
}

// The gate at an index, from a normal number.
double gate_at(const TableCall& made, int32_t map, const int64_t* i, double normal) {
  static constexpr double logs[] = {0, -1e-4, -20, -88, -1e4, -HUGE_VAL};
  static constexpr double raws[] = {0, 30, -30, 90};
  const int64_t hard = letter(made, "hard"), s = made.letters.at("s");
  const auto place = static_cast<uint64_t>(((i[0] * 1009 + i[1]) * 31 + i[2]) * 517 + i[3]);
  const uint64_t draw = hard == 1 ? harness::hash(place) % 24 : 24;
  if (map) return draw < 4 ? raws[draw] : 1.5 * normal;
  if (draw < 6) return logs[draw];
  if (letter(made, "reset") && i[1] == 0) return -HUGE_VAL;
  if (hard == 2 && (i[1] % 64 == 0 || i[1] % 64 == 63 || i[1] == s - 1 || i[1] % 13 == 7))
    return -HUGE_VAL;
  return -std::abs(normal) / 4;
}

template <class P>
void inputs(TableCall& made, uint64_t seed) {
  const P& p = params_of<P>(made);
  run_shape(made, 0);
  Letters& x = made.letters;
  x["heads"] = std::max(x["g"], x["x"]), x["heads_out"] = std::max(x["h"], x["heads"]);
  made.inputs();
  harness::Call& call = made.call;
  for (size_t i = 0; i < call.fields.size(); ++i) {
    const harness::Random random(seed ^ (i + 1) << 32);
    harness::Field& f = call.fields[i];
    const std::string name = f.name;
    const bool shared = name == "gate" && letter(made, "const");
    if (shared) f.tensor.stride[0] = f.tensor.stride[1] = 0, call.slot(f) = f.tensor;
    uint64_t n = 0;
    call.fill(i, [&](const int64_t* index) -> double {
      const double normal = random.normal(n++);
      if (is_run_integer(name)) return run_integer(made, name, index);
      if (letter(made, "reset") && name.find("state_") == 0) return NAN;
      if (name != "gate") return normal;
      const int64_t at[] = {0, 0, index[2], index[3]};
      if (!shared) return gate_at(made, p.gate_map, index, normal);
      return gate_at(made, p.gate_map, at,
                     random.normal(static_cast<uint64_t>(index[2] * 997 + index[3])));
    });
  }
}

// Inputs that the oracle has not read are of no account.
template <class Oracle>
void account(harness::Call& call, const Oracle& oracle) {
  const auto one = [&](const char* name, const oracle::Tracked& x) {
    const size_t i = call.field(name);
    if (!x || i == call.fields.size()) return;
    call.account(i, [&](const int64_t* at) { return x.was_read(at, call.fields[i].tensor.ndim); });
  };
  one("q", oracle.q), one("k", oracle.k), one("v", oracle.v), one("gate", oracle.gate);
  one("state_k_in", oracle.state_k_in), one("state_v_in", oracle.state_v_in);
  one("dout", oracle.dout), one("dstate_k_out", oracle.dstate_k_out);
  one("dstate_v_out", oracle.dstate_v_out);
}

void share(TableCall& made, Forward& p) {
  const auto view = [&](const char* name, const char* of, fovea_tensor& slot) {
    const size_t in = made.call.field(of);
    made.call.add_view(name, slot, harness::Role::out, made.call.fields[in].tensor, in, 0);
  };
  if (!letter(made, "shared")) return;
  view("state_k_out", "state_k_in", p.state_k_out);
  view("state_v_out", "state_v_in", p.state_v_out);
}

harness::Call forward(const std::string& words, uint64_t seed) {
  TableCall made("x_gsa_forward", words, seed);
  inputs<Forward>(made, seed);
  Forward& p = params_of<Forward>(made);
  share(made, p);
  made.outputs();
  const oracle::Gsa<double, Forward> oracle(p);
  const auto exact = oracle.forward(oracle::Mode::exact);
  const auto rounded = oracle::Gsa<float, Forward>(p).forward(oracle::Mode::rounded);
  harness::Call& call = made.call;
  account(call, oracle);
  if (p.o.data) call.expect(call.field("o"), exact.o, rounded.o);
  if (p.state_k_out.data)
    call.expect(call.field("state_k_out"), exact.state_k_out, rounded.state_k_out);
  if (p.state_v_out.data)
    call.expect(call.field("state_v_out"), exact.state_v_out, rounded.state_v_out);
  return std::move(call);
}

harness::Call backward(const std::string& words, uint64_t seed) {
  TableCall made("x_gsa_backward", words, seed);
  inputs<Backward>(made, seed);
  Backward& p = params_of<Backward>(made);
  made.outputs();
  const oracle::Gsa<double, Backward> oracle(p);
  const auto exact = oracle.backward(oracle::Mode::exact);
  const auto rounded = oracle::Gsa<float, Backward>(p).backward(oracle::Mode::rounded);
  harness::Call& call = made.call;
  account(call, oracle);
  const auto expect = [&](const char* name, const fovea_tensor& x, const auto& one,
                          const auto& other) {
    if (x.data) call.expect(call.field(name), one, other);
  };
  expect("dq", p.dq, exact.dq, rounded.dq);
  expect("dk", p.dk, exact.dk, rounded.dk);
  expect("dv", p.dv, exact.dv, rounded.dv);
  expect("dgate", p.dgate, exact.dgate, rounded.dgate);
  expect("dstate_k_in", p.dstate_k_in, exact.dstate_k_in, rounded.dstate_k_in);
  expect("dstate_v_in", p.dstate_v_in, exact.dstate_v_in, rounded.dstate_v_in);
  return std::move(call);
}

const Words kTypes = {"q:f32", "q:f16", "q:bf16"};
const Words kWidths = {"d=1 e=24 m=5",   "d=16 e=40 m=16", "d=33 e=1 m=7",
                       "d=64 e=64 m=64", "d=24 e=16 m=70", "d=8 e=8 m=1"};
const Words kHeads = {"h=2 g=2 x=2", "h=4 g=2 x=2", "h=2 g=2 x=4",
                      "h=1 g=1 x=4", "h=4 g=1 x=2", "h=4 g=4 x=2"};
const Words kPlaces = {"b=2 s=9",
                       "b=1 s=129",
                       "b=1 s=64",
                       "b=3 s=20 len",
                       "start seqs=5 s=65",
                       "start seqs=3 len s=80",
                       "b=3 s=9 len token_max=5",
                       "b=4 s=1"};
const Words kLays = {"contiguous", "head_first", "gaps", "odd", "wide"};
const Words kGates = {"",
                      "gate:f32",
                      "hard=1",
                      "gate:f32 hard=2",
                      "gate:f32 const=1",
                      "gate_bound=2.5",
                      "gate_map=1",
                      "gate_map=2 gate_bound=5 hard=1",
                      "gate_map=3 gate_tau=8",
                      "gate_map=3 gate_tau=8 hard=1",
                      "gate_map=4 gate_bound=3 hard=1"};
const Words kMaps = {"", "map_q=3 map_k=3", "map_q=2 map_k=1", "scale=0.3"};
const Words kIn = {"", "state_k_in state_v_in", "state_k_in state_v_in state_row",
                   "state_k_in state_k_in:bf16 state_row", "state_v_in state_v_in:bf16"};
const Words kOut = {"o",
                    "o o:f32 output_from",
                    "o state_k_out state_v_out",
                    "state_k_out state_v_out state_out_row",
                    "state_v_out state_v_out:bf16",
                    "o state_k_out state_k_out:bf16 state_out_row",
                    "state_k_out"};

// Calls whose passes both run on Hopper, by the names of the kernels.  Slots are m, or in arrays of
// 64 or 128 columns.
using Kernels = std::string (*)(const std::string& width);
void chains(std::vector<harness::Case>& to, const char* op, WordCases::Build build,
            const Words& calls, Kernels kernels) {
  for (size_t i = 0; i < calls.size(); ++i)
    for (const char* m : {"64", "128", "48", "96"}) {
      if (std::stoi(m) % 64 && calls[i].find("state") != std::string::npos) continue;
      const std::string words = std::string("q:bf16 d=") + (i % 2 ? "64" : "128") +
                                " e=" + (i % 3 ? "64" : "128") + " m=" + m + " " + calls[i];
      const auto draw = [build, words](uint64_t seed) { return build(words, seed); };
      to.push_back({op,
                    name_of_words(words, "kernel"),
                    draw,
                    kernels(std::stoi(m) > 64 ? "128" : "64"),
                    "",
                    false,
                    false,
                    {}});
    }
}

std::vector<harness::Case> forward_chains() {
  std::vector<harness::Case> cases;
  const Words calls = {
      "o b=2 s=300 h=2 g=2 x=2 gate_map=3 gate_tau=8",
      "o b=1 s=330 h=4 g=2 x=4 state_k_in state_v_in state_k_out state_v_out gate:f32",
      "o start seqs=5 s=300 h=2 g=2 x=2 gate_map=3 gate_tau=8 hard=1",
      "o o:f32 b=3 s=320 len output_from h=2 g=2 x=1 gate_map=3",
      "o start seqs=3 len s=310 h=2 g=2 x=2 state_k_in state_v_in state_row state_k_out "
      "state_v_out state_out_row gate_map=4 gate_bound=3",
      "o b=2 s=310 h=2 g=2 x=2 hard=2 head_first"};
  chains(cases, "x_gsa_forward", forward, calls, [](const std::string& width) {
    const std::string part = "x_gsa_rows.cuda.simt+x_gla_forward.cuda.sm90.bf16.d" + width;
    return part + ".value+" + part + ".key";
  });
  return cases;
}

std::vector<harness::Case> backward_chains() {
  std::vector<harness::Case> cases;
  const Words calls = {
      "dq dk dv dgate b=2 s=300 h=2 g=2 x=2 gate_map=3 gate_tau=8",
      "dq dk dv dgate dstate_k_in dstate_v_in b=1 s=330 h=4 g=2 x=4 state_k_in state_v_in "
      "dstate_k_out dstate_v_out gate:f32",
      "dq dk dv dgate start seqs=5 s=300 h=2 g=2 x=2 gate_map=3 gate_tau=8 hard=1",
      "dq dk dv dgate dgate:f32 b=3 s=320 len h=2 g=2 x=1 gate_map=4 gate_bound=3",
      "dq dk dv dgate b=2 s=310 h=2 g=2 x=2 hard=2 head_first"};
  chains(cases, "x_gsa_backward", backward, calls, [](const std::string& width) {
    const std::string rows = "x_gsa_rows.cuda.simt+", cuda = ".cuda.sm90.bf16.d" + width;
    return rows + "x_gla_forward" + cuda + ".value+" + rows + "x_gla_backward" + cuda + ".key+" +
           rows + "x_gla_backward" + cuda + ".value+x_gsa_rows.cuda";
  });
  return cases;
}

void append(std::vector<harness::Case>& to, const std::vector<harness::Case>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

std::vector<harness::Case> forwards() {
  WordCases cases("x_gsa_forward", forward);
  cases.add("o state_k_in state_v_in state_k_out state_v_out b=1 s=5 h=2 g=2 x=2 d=4 e=3 m=3",
            "small", true);
  cases.sweep("", {kTypes, kWidths, kHeads, kPlaces, kLays, kGates, kMaps, kIn, kOut}, "sweep", 1);
  cases.add("o state_k_in state_v_in state_k_out state_v_out reset=1 b=2 s=70 h=2 g=2 x=2 d=9 e=5",
            "nothing stays of a reset");
  const std::string pool = "o state_k_in state_v_in state_row shared=1 d=16 e=8 m=16 q:bf16 ";
  cases.add(pool + "b=5 s=1 h=4 g=2 x=2", "decode in place");
  cases.add(pool + "b=4 s=7 len state_out_row h=2 g=2 x=2", "rows change places");
  cases.add("o b=1 s=1 h=1 g=1 x=1 d=512 e=2 m=512", "widest");
  cases.add("o state_k_out state_v_out state_k_in state_v_in b=2 s=0 h=2 g=2 x=2", "no token");
  cases.add("o state_k_out b=2 s=4 h=2 g=2 x=2 e=0", "no column of v");
  std::vector<harness::Case> all = cases.cases();
  append(all, forward_chains());
  return all;
}

std::vector<harness::Case> backwards() {
  WordCases cases("x_gsa_backward", backward);
  const std::string all = "dq dk dv dgate dstate_k_in dstate_v_in ";
  cases.add(all + "state_k_in state_v_in dstate_k_out dstate_v_out b=1 s=5 h=2 g=2 x=2 d=4 e=3 m=3",
            "small", true);
  const Words last = {"", "dstate_k_out dstate_v_out", "dstate_k_out", "dstate_v_out output_from"};
  cases.sweep(all, {kTypes, kWidths, kHeads, kPlaces, kLays, kGates, kMaps, kIn, last}, "sweep", 2);
  const Words one = {
      "dq", "dk", "dv", "dgate", "dgate dgate:f32", "dstate_k_in", "dstate_v_in", "dv dstate_v_in"};
  cases.sweep("d=16 e=24 m=9 dout:f32", {kTypes, kHeads, {"b=2 s=20", "b=1 s=70"}, one}, "one", 3);
  cases.add(all + "reset=1 state_k_in state_v_in b=2 s=70 h=2 g=2 x=2 d=9 e=5",
            "nothing stays of a reset");
  cases.add(all + "b=2 s=0 h=2 g=2 x=2 dstate_k_out dstate_v_out", "no token");
  std::vector<harness::Case> with = cases.cases();
  append(with, backward_chains());
  return with;
}

const Family kForward("x_gsa_forward", forwards);
const Family kBackward("x_gsa_backward", backwards);

}  // namespace
}  // namespace cases
