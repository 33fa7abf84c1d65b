// SPDX-License-Identifier: Apache-2.0
// x_conv1d_forward and _backward: covering arrays of layouts, taps and places of tokens and states;
// the calls of a server by name.
#include "oracle/conv1d.h"
#include "cases/run_case.h"

namespace cases {
namespace {

using Forward = fovea_x_conv1d_forward_params;
using Backward = fovea_x_conv1d_backward_params;

template <class P>
P& params_of(TableCall& made) {
  return *reinterpret_cast<P*>(made.call.params.data());
}

template <class P>
void inputs(TableCall& made, uint64_t seed) {
  P& p = params_of<P>(made);
  int64_t every = 0;
  if constexpr (requires { p.state_out; }) every = p.snapshot_every;
  run_shape(made, every);
  Letters& x = made.letters;
  x["tail"] = std::max(x["tail"], x["taps"] - 1);
  made.inputs();
  harness::Call& call = made.call;
  for (size_t i = 0; i < call.fields.size(); ++i) {
    const std::string field = call.fields[i].name;
    const harness::Random random(seed ^ (i + 1) << 32);
    uint64_t n = 0;
    call.fill(i, [&](const int64_t* index) {
      if (is_run_integer(field)) return run_integer(made, field, index);
      const double normal = random.normal(n++);
      if (field == "x" && letter(made, "nan") && index[1] % 9 == 4 && index[2] == 0)
        return static_cast<double>(NAN);
      return field == "weight" ? normal / 2 : normal;
    });
  }
  // What counts of tokens and of states.
  const oracle::RunOracle run = oracle::load_run(p);
  const auto in_use = [&](bool outputs) {
    std::vector<bool> used(static_cast<size_t>(p.x.shape[0] * run.s));
    for (int64_t i = 0; i < run.r; ++i) {
      const auto q = run[i];
      for (int64_t t = outputs ? q.from : 0; t < q.count; ++t)
        used[q.batch * run.s + q.begin + t] = true;
    }
    return [used, s = run.s](const int64_t* at) { return used[at[0] * s + at[1]]; };
  };
  call.account(call.field("x"), in_use(false));
  if (has_field(call, "dy")) call.account(call.field("dy"), in_use(true));
  const auto last = [&](const int64_t* at) { return at[2] >= x["tail"] - (x["taps"] - 1); };
  if (made.has("dstate_out")) call.account(call.field("dstate_out"), last);
  if (!made.has("state_in")) return;
  std::vector<bool> read(static_cast<size_t>(x["slots"]));
  for (int64_t i = 0; i < run.r; ++i)
    if (const int64_t row = run.in_row(i, x["slots"]); row >= 0) read[row] = true;
  call.account(call.field("state_in"), [&](const int64_t* at) { return read[at[0]] && last(at); });
}

// state_out and snapshot in the memory of state_in.
void share(TableCall& made, Forward& p) {
  const size_t in = made.call.field("state_in");
  const auto view = [&](const char* name, fovea_tensor& slot) {
    made.call.add_view(name, slot, harness::Role::out, made.call.fields[in].tensor, in, 0);
  };
  if (letter(made, "shared") && !letter(made, "last")) view("state_out", p.state_out);
  if (letter(made, "shared") == 2) view("snapshot", p.snapshot);
}

harness::Call forward(const std::string& words, uint64_t seed) {
  TableCall made("x_conv1d_forward", words, seed);
  inputs<Forward>(made, seed);
  Forward& p = params_of<Forward>(made);
  share(made, p);
  made.outputs();
  const auto exact = oracle::Conv1d<double, Forward>(p).forward(oracle::Mode::exact);
  const auto rounded = oracle::Conv1d<float, Forward>(p).forward(oracle::Mode::rounded);
  harness::Call& call = made.call;
  if (p.y.data) call.expect(call.field("y"), exact.y, rounded.y);
  if (p.state_out.data)
    call.expect(call.field("state_out"), rounded.state_out, rounded.state_out, true);
  if (p.snapshot.data)
    call.expect(call.field("snapshot"), rounded.snapshot, rounded.snapshot, true);
  return std::move(call);
}

harness::Call backward(const std::string& words, uint64_t seed) {
  TableCall made("x_conv1d_backward", words, seed);
  inputs<Backward>(made, seed);
  Backward& p = params_of<Backward>(made);
  if (letter(made, "sums")) {  // 1: over the channels, 2: over the taps
    const int64_t shape[] = {p.x.shape[2], p.weight.shape[1]};
    fovea_tensor x = fovea_contiguous(nullptr, FOVEA_F32, 2, shape);
    x.stride[letter(made, "sums") - 1] = 0;
    made.call.add_strided("dweight", p.dweight, harness::Role::out, x);
  }
  made.outputs();
  const auto exact = oracle::Conv1d<double, Backward>(p).backward(oracle::Mode::exact);
  const auto rounded = oracle::Conv1d<float, Backward>(p).backward(oracle::Mode::rounded);
  harness::Call& call = made.call;
  const auto expect = [&](const char* name, const fovea_tensor& x, const auto& one,
                          const auto& other) {
    if (x.data) call.expect(call.field(name), one, other);
  };
  expect("dx", p.dx, exact.dx, rounded.dx);
  expect("dweight", p.dweight, exact.dweight, rounded.dweight);
  expect("dbias", p.dbias, exact.dbias, rounded.dbias);
  expect("dstate_in", p.dstate_in, exact.dstate_in, rounded.dstate_in);
  return std::move(call);
}

const std::vector<std::string> kTypes = {"x:f32", "x:f16", "x:bf16"};
const std::vector<std::string> kTaps = {"taps=4",        "taps=3 tail=2", "taps=2 tail=5",
                                        "taps=1 tail=0", "taps=7 tail=6", "taps=4 tail=9"};
const std::vector<std::string> kChannels = {"f=1", "f=24", "f=72", "f=130"};
const std::vector<std::string> kLays = {"contiguous", "head_first", "gaps", "odd", "wide"};
const std::vector<std::string> kPlaces = {"b=2",
                                          "b=1 s=70",
                                          "b=3 len",
                                          "start seqs=5 s=33",
                                          "start seqs=3 len s=150",
                                          "b=3 s=9 len token_max=5",
                                          "start seqs=6 s=4"};

std::vector<harness::Case> forwards() {
  WordCases cases("x_conv1d_forward", forward);
  cases.sweep("y",
              {kTypes,
               kTaps,
               kChannels,
               kLays,
               kPlaces,
               {"", "bias", "bias weight:f32"},
               {"", "activation=1"},
               {"", "y:f32"},
               {"", "state_in", "state_in state_row", "state_in:f32 state_in state_row"},
               {"", "state_out", "state_out state_out_row", "state_out state_out:f32"},
               {"", "snapshot snapshot_row snapshot_every=1",
                "snapshot snapshot_row snapshot_every=3 snapshot:f32"},
               {"", "output_from"}},
              "", 11);
  cases.sweep("state_in",
              {{"x:f32", "x:bf16"},
               {"taps=4", "taps=4 tail=9", "taps=2 tail=1", "taps=7 tail=6"},
               {"f=24", "f=33"},
               {"b=5 s=1", "b=5 s=4 len", "b=3 s=40", "start seqs=6 s=50", "start seqs=5 s=9 len"},
               {"shared=1", "shared=1 state_row", "shared=1 state_row state_out_row",
                "shared=2 last=1 state_row snapshot_row snapshot_every=1",
                "shared=2 state_row state_out_row snapshot_row snapshot_every=1",
                "shared=2 state_row state_out_row snapshot_row snapshot_every=2"},
               {"y", "y activation=1 bias", ""}},
              "in_place", 12);
  // What a server does, at the shapes of a layer of a small model.
  const std::string layer = "x:bf16 f=256 taps=4 tail=3 activation=1 ";
  cases.add(layer + "b=1 s=300 y state_in state_row state_out", "prefill");
  cases.add(layer + "b=7 s=1 y state_in state_row shared=1", "decode");
  cases.add(layer + "b=7 s=1 y state_in state_row len shared=1", "padded_rows");
  cases.add(layer + "b=6 s=5 y state_in state_row", "verify");
  cases.add(layer + "b=6 s=5 state_in state_row len shared=1", "commit");
  cases.add(
      layer + "b=6 s=5 y state_in state_row state_out_row snapshot_row snapshot_every=1 shared=2",
      "rollback");
  cases.add(layer +
                "b=2 s=260 y state_in state_row state_out snapshot snapshot_row "
                "snapshot_every=64",
            "prefix");
  cases.add(layer + "start seqs=9 s=120 y state_in state_row shared=1", "mixed");
  for (const char* words : {"b=0 y", "s=0 y state_in state_out", "f=0 y state_out",
                            "b=3 s=2 taps=9 y state_in state_out len",
                            "start seqs=1 s=0 y state_out", "b=2 s=20 nan=1 y state_out len",
                            "b=4 s=12 snapshot snapshot_row snapshot_every=5 state_in"})
    cases.add(words, "edge");
  // Another sequence's NaN, and blocks past 65,535.
  cases.add("start seqs=5 s=40 nan=1 y f=16", "nan");
  cases.add("b=70000 s=1 f=2 taps=2 y state_in shared=1", "blocks");
  cases.add("b=1 s=2 f=3 taps=3 tail=2 y state_in state_out bias activation=1", "small", true);
  // A golden file has outputs of which every element is written.
  cases.add("x:bf16 b=2 s=3 f=4 taps=2 tail=1 y state_in state_row activation=1", "small", true);
  return cases.cases();
}

std::vector<harness::Case> backwards() {
  WordCases cases("x_conv1d_backward", backward);
  cases.sweep("",
              {kTypes,
               kTaps,
               kChannels,
               kLays,
               kPlaces,
               {"", "bias", "bias weight:f32"},
               {"", "activation=1"},
               {"", "dy:f32"},
               {"", "state_in", "state_in state_row", "state_in:f32 state_in state_row"},
               {"", "dstate_out", "dstate_out dstate_out:f32"},
               {"dx dweight dbias dstate_in", "dx", "dweight dbias", "dstate_in dstate_in:f32",
                "dx dbias sums=1", "dx dstate_in sums=2"},
               {"", "output_from"}},
              "", 13);
  const std::string all = " dx dweight dbias dstate_in";
  cases.add("x:bf16 b=2 s=700 f=64 taps=4 activation=1 bias state_in dstate_out" + all, "pieces");
  cases.add("b=1 s=900 f=5 taps=3 activation=1" + all, "pieces");
  cases.add("b=3 s=2 taps=4 f=8 state_in dstate_out len" + all, "short");
  for (const char* words : {"b=0", "s=0 state_in dstate_out", "f=0",
                            "b=2 s=2 taps=9 state_in dstate_out len", "start seqs=1 s=0"})
    cases.add(words + all, "edge");
  cases.add("start seqs=5 s=40 nan=1 f=16 dx dstate_in", "nan");
  cases.add("b=70000 s=1 f=2 taps=2 state_in dx dstate_in", "blocks");
  cases.add("b=1 s=3 f=3 taps=3 tail=2 state_in dstate_out bias activation=1" + all, "small", true);
  cases.add("x:bf16 start seqs=2 s=5 f=4 taps=2 tail=1 dx dweight", "small", true);
  return cases.cases();
}

const Family kForward("x_conv1d_forward", forwards);
const Family kBackward("x_conv1d_backward", backwards);

}  // namespace
}  // namespace cases
