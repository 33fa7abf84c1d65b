// SPDX-License-Identifier: Apache-2.0
// x_gla_forward and _backward: covering arrays of widths, heads, gates with their maps, places of
// tokens and states; the normaliser and `full`, which exclude others, in arrays of their own; the
// calls of a server by name.  Words beside those of run_case.h:
//   hard=1     gates of 0, -1e-4, -20, -88, -1e4 and -inf among others; raw ones of 0, 30 and 90
//   hard=2     gates of -inf at the first, the last and every 13th row; hard=3: in half the
//   channels const=1    gates with strides of 0 over b and s turned=1   states lie as (e, d) all=1
//   every gradient that the call may ask for; gates=1, rest=1: those of gates, the others sums=1
//   gradients of gates and of select summed over b and s; sums=2: over the channels too nan=1
//   another sequence has a NaN reset=1    states are NaN, and the first row resets
#include "oracle/gla.h"

#include "cases/run_case.h"

namespace cases {
namespace {

using contract::Words;
using Forward = fovea_x_gla_forward_params;
using Backward = fovea_x_gla_backward_params;

template <class P>
P& params_of(TableCall& made) {
  return *reinterpret_cast<P*>(made.call.params.data());
}

bool begins(const std::string& text, const char* with) {
  return text.rfind(with, 0) == 0;
}

// ---- words

// Without what only gates have where there is none, and with the outputs that the words stand for.
std::string settled_words(const std::string& op, const std::string& text) {
  Words words;
  bool gated = false, biased = false;
  for (const std::string& word : contract::split(text)) {
    gated |= word == "gate_head" || word == "gate_key" || word == "gate_value";
    biased |= word == "gate_head" || word == "gate_key";
  }
  std::string out;
  const auto add = [&](const std::string& word) {
    if (std::find(words.begin(), words.end(), word) != words.end()) return;
    words.push_back(word), out += (out.empty() ? "" : " ") + word;
  };
  for (const std::string& word : contract::split(text)) {
    const bool of_gates = begins(word, "gate_") || begins(word, "hard") || begins(word, "const");
    if ((of_gates && !gated) || (begins(word, "gate_bias") && !biased)) continue;
    add(word);
  }
  const auto has = [&](const char* word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (has("normalise=1"))
    for (const char* state : {"state_in", "state_out", "snapshot", "dstate_out", "dstate_in"})
      if (has(state)) {
        std::string z = state;
        add(z.find("state") == std::string::npos ? "z_" + z : z.replace(z.find("state"), 5, "z"));
      }
  if (op != "x_gla_backward") return out;
  const Words given = words;
  const size_t before = words.size();
  for (const contract::Field& f : contract::find_op(op)->fields) {
    if (f.kind != contract::tensor || !f.output) continue;
    const std::string of = f.name.substr(1);
    const bool gate = begins(of, "gate");
    const bool there = of == "q" || of == "k" || of == "v" || of == "state_in" ||
                       (of == "z_in" && has("normalise=1")) || has(of.c_str());
    if (there && (has("all=1") || (gate && has("gates=1")) || (!gate && has("rest=1"))))
      add(f.name);
  }
  if (words.size() == before && (has("gates=1") || has("rest=1"))) add("dv");
  return out;
}

// ---- strides

template <class Change>
void restride(harness::Call& call, const char* name, Change change) {
  const size_t i = call.field(name);
  if (i == call.fields.size()) return;
  harness::Field& f = call.fields[i];
  change(f.tensor), call.slot(f) = f.tensor;
}

const std::vector<const char*> kStates = {"state_in", "state_out", "snapshot", "dstate_in",
                                          "dstate_out"};

void turn_states(TableCall& made) {
  for (const char* name : kStates)
    if (letter(made, "turned") && made.lay == harness::Lay::contiguous)
      restride(made.call, name, [](fovea_tensor& x) { x.stride[2] = 1, x.stride[3] = x.shape[2]; });
}

void sum_gradients(TableCall& made) {
  if (!letter(made, "sums")) return;
  for (const char* name : {"dgate_head", "dgate_key", "dgate_value", "dselect"})
    restride(made.call, name, [&](fovea_tensor& x) {
      x.stride[0] = x.stride[1] = 0;
      if (letter(made, "sums") == 2 && x.ndim == 4) x.stride[3] = 0;
    });
  if (letter(made, "sums") == 2)
    for (const char* name : {"dgate_bias", "dbonus", "dskip"})
      restride(made.call, name, [](fovea_tensor& x) { x.stride[1] = 0; });
}

// ---- contents

struct GateFill {
  int64_t s, hard;
  bool raw;  // gate_map makes a log of it

  // Of batch, row, head and channel.
  double operator()(const std::array<int64_t, 4>& i, bool wide, double normal) const {
    static constexpr double logs[] = {0, -1e-4, -20, -88, -1e4, -HUGE_VAL};
    static constexpr double raws[] = {0, 30, -30, 90};
    const auto place = static_cast<uint64_t>(((i[0] * 1009 + i[1]) * 31 + i[2]) * 517 + i[3]);
    const uint64_t draw = hard == 1 ? harness::hash(place) % 24 : 24;
    if (raw) return draw < 4 ? raws[draw] : 1.5 * normal;
    if (draw < 6) return logs[draw];
    const bool row = i[1] % 64 == 0 || i[1] % 64 == 63 || i[1] == s - 1 || i[1] % 13 == 7;
    if (hard == 4 || (row && (hard == 2 || (hard == 3 && (!wide || i[3] % 2 == 0)))))
      return -HUGE_VAL;
    return -std::abs(normal) / 4;
  }
};

// The element of a field at an index, from the n-th normal number of its stream.
using Fill = std::function<double(const int64_t* index, uint64_t n)>;

Fill gate_fill(const TableCall& made, bool wide, int32_t map, const harness::Random& random) {
  const GateFill gate{made.letters.at("s"), letter(made, "hard"), map != 0};
  if (letter(made, "const"))
    return [=](const int64_t* i, uint64_t) {
      const int64_t column = wide ? i[3] : 0;
      return gate({0, 0, i[2], column}, wide,
                  random.normal(static_cast<uint64_t>(i[2] * 997 + column)));
    };
  return [=](const int64_t* i, uint64_t n) {
    return gate({i[0], i[1], i[2], wide ? i[3] : 0}, wide, random.normal(n));
  };
}

// Starts of keys, some sequence without any; how many are in use.
Fill key_fill(const TableCall& made, bool start) {
  const int64_t t = made.letters.at("t"), r = made.letters.at("r");
  return [=](const int64_t* i, uint64_t) {
    const int64_t q = i[0];
    if (!start) return static_cast<double>(q == 0 ? t + 1 : q * 7 % (t + 1));
    return static_cast<double>(q == 1 && r > 2 ? 0 : q * (t - t / 8) / std::max<int64_t>(r, 1));
  };
}

template <class P>
Fill fill_of(const TableCall& made, const P& p, const std::string& field,
             const harness::Random& random) {
  if (field == "key_start" || field == "key_len") return key_fill(made, field == "key_start");
  if (is_run_integer(field))
    return [&made, field](const int64_t* i, uint64_t) { return run_integer(made, field, i); };
  if (field == "gate_bias" && !p.gate_map)
    return [=](const int64_t*, uint64_t n) { return -std::abs(random.normal(n)) / 4; };
  if (field == "gate_rate" || field == "gate_bias")
    return [=](const int64_t*, uint64_t n) { return random.normal(n) / 2; };
  if (begins(field, "gate_")) return gate_fill(made, field != "gate_head", p.gate_map, random);
  if (field == "state_in" && letter(made, "reset"))
    return [](const int64_t*, uint64_t) -> double { return NAN; };
  if (field == "z_in" || (field == "select" && p.normalise))
    return [=](const int64_t*, uint64_t n) { return std::abs(random.normal(n)); };
  const bool forward = has_field(made.call, "o"), packed = made.has("start");
  const int64_t last = made.letters.at("s") - 1;
  if (letter(made, "nan") && field == (forward ? "k" : "dout"))
    return [=](const int64_t* i, uint64_t n) {
      const bool sick = !forward ? i[0] == 1 && i[1] == last
                        : packed ? i[1] == 2
                                 : i[0] == 1 && i[1] == 0;
      return sick ? NAN : random.normal(n);
    };
  return [=](const int64_t*, uint64_t n) { return random.normal(n); };
}

template <class P>
void inputs(TableCall& made, uint64_t seed) {
  const P& p = params_of<P>(made);
  int64_t every = 0;
  if constexpr (requires { p.state_out; }) every = p.snapshot_every;
  run_shape(made, every);
  Letters& x = made.letters;
  x["heads"] = std::max(x["g"], x["x"]), x["heads_out"] = std::max(x["h"], x["heads"]);
  if (!p.full) x["t"] = x["s"];
  made.inputs();
  turn_states(made);
  harness::Call& call = made.call;
  if (letter(made, "const"))
    for (const char* name : {"gate_head", "gate_key", "gate_value"})
      restride(call, name, [](fovea_tensor& y) { y.stride[0] = y.stride[1] = 0; });
  for (size_t i = 0; i < call.fields.size(); ++i) {
    const harness::Random random(seed ^ (i + 1) << 32);
    const Fill fill = fill_of(made, p, call.fields[i].name, random);
    uint64_t n = 0;
    call.fill(i, [&](const int64_t* index) { return fill(index, n++); });
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
  one("q", oracle.q), one("k", oracle.k), one("v", oracle.v);
  one("gate_head", oracle.gate_head), one("gate_key", oracle.gate_key);
  one("gate_value", oracle.gate_value), one("gate_rate", oracle.gate_rate);
  one("gate_bias", oracle.gate_bias), one("select", oracle.select), one("bonus", oracle.bonus);
  one("skip", oracle.skip), one("state_in", oracle.state_in), one("z_in", oracle.z_in);
  one("dout", oracle.dout), one("dstate_out", oracle.dstate_out), one("dz_out", oracle.dz_out);
}

// ---- calls

// state_out and snapshot in the memory of state_in.
void share(TableCall& made, Forward& p) {
  const auto view = [&](const char* name, const char* of, fovea_tensor& slot) {
    const size_t in = made.call.field(of);
    if (made.has(of))
      made.call.add_view(name, slot, harness::Role::out, made.call.fields[in].tensor, in, 0);
  };
  if (letter(made, "shared") && !letter(made, "last"))
    view("state_out", "state_in", p.state_out), view("z_out", "z_in", p.z_out);
  if (letter(made, "shared") == 2)
    view("snapshot", "state_in", p.snapshot), view("z_snapshot", "z_in", p.z_snapshot);
}

harness::Call forward(const std::string& words, uint64_t seed) {
  TableCall made("x_gla_forward", words, seed);
  inputs<Forward>(made, seed);
  Forward& p = params_of<Forward>(made);
  share(made, p);
  made.outputs();
  turn_states(made);
  const oracle::Gla<double, Forward> oracle(p);
  const auto exact = oracle.forward(oracle::Mode::exact);
  const auto rounded = oracle::Gla<float, Forward>(p).forward(oracle::Mode::rounded);
  harness::Call& call = made.call;
  account(call, oracle);
  const auto expect = [&](const char* name, const fovea_tensor& x, const auto& one,
                          const auto& other) {
    if (x.data) call.expect(call.field(name), one, other);
  };
  expect("o", p.o, exact.o, rounded.o);
  expect("state_out", p.state_out, exact.state_out, rounded.state_out);
  expect("z_out", p.z_out, exact.z_out, rounded.z_out);
  expect("snapshot", p.snapshot, exact.snapshot, rounded.snapshot);
  expect("z_snapshot", p.z_snapshot, exact.z_snapshot, rounded.z_snapshot);
  return std::move(call);
}

harness::Call backward(const std::string& words, uint64_t seed) {
  TableCall made("x_gla_backward", words, seed);
  inputs<Backward>(made, seed);
  Backward& p = params_of<Backward>(made);
  made.outputs();
  turn_states(made), sum_gradients(made);
  const oracle::Gla<double, Backward> oracle(p);
  const auto exact = oracle.backward(oracle::Mode::exact);
  const auto rounded = oracle::Gla<float, Backward>(p).backward(oracle::Mode::rounded);
  harness::Call& call = made.call;
  account(call, oracle);
  const auto expect = [&](const char* name, const fovea_tensor& x, const auto& one,
                          const auto& other) {
    if (x.data) call.expect(call.field(name), one, other);
  };
  expect("dq", p.dq, exact.dq, rounded.dq);
  expect("dk", p.dk, exact.dk, rounded.dk);
  expect("dv", p.dv, exact.dv, rounded.dv);
  expect("dgate_head", p.dgate_head, exact.dgate_head, rounded.dgate_head);
  expect("dgate_key", p.dgate_key, exact.dgate_key, rounded.dgate_key);
  expect("dgate_value", p.dgate_value, exact.dgate_value, rounded.dgate_value);
  expect("dgate_rate", p.dgate_rate, exact.dgate_rate, rounded.dgate_rate);
  expect("dgate_bias", p.dgate_bias, exact.dgate_bias, rounded.dgate_bias);
  expect("dselect", p.dselect, exact.dselect, rounded.dselect);
  expect("dbonus", p.dbonus, exact.dbonus, rounded.dbonus);
  expect("dskip", p.dskip, exact.dskip, rounded.dskip);
  expect("dstate_in", p.dstate_in, exact.dstate_in, rounded.dstate_in);
  expect("dz_in", p.dz_in, exact.dz_in, rounded.dz_in);
  return std::move(call);
}

// ---- cases

class GlaCases {
 public:
  GlaCases(const char* op, WordCases::Build build) : op_(op), build_(build), cases_(op, build) {}
  void add(const std::string& words, const std::string& note, bool small = false) {
    const std::string settled = settled_words(op_, words);
    if (seen_.insert(name_of_words(settled, note)).second) cases_.add(settled, note, small);
  }
  void sweep(const std::string& common, const std::vector<Words>& axes, const std::string& note,
             uint64_t seed) {
    for (const std::string& words : covering(axes, seed)) add(common + " " + words, note);
  }
  // For a kernel of CUDA.
  void kernel(const std::string& words, const std::string& cuda_kernel) {
    const std::string settled = settled_words(op_, words);
    const auto draw = [build = build_, settled](uint64_t seed) { return build(settled, seed); };
    kernels_.push_back({op_, name_of_words(settled, "kernel"), draw, cuda_kernel, "", false});
  }
  std::vector<harness::Case> cases() const {
    std::vector<harness::Case> all = cases_.cases();
    all.insert(all.end(), kernels_.begin(), kernels_.end());
    return all;
  }

 private:
  const std::string op_;
  const WordCases::Build build_;
  WordCases cases_;
  std::vector<harness::Case> kernels_;
  std::set<std::string> seen_;
};

const Words kTypes = {"q:f32", "q:f16", "q:bf16"};
const Words kWidths = {"d=1 e=24",  "d=16 e=130", "d=33 e=1",
                       "d=64 e=64", "d=128 e=16", "d=200 e=8"};
const Words kHeads = {"h=2 g=2 x=2", "h=4 g=2 x=2", "h=2 g=2 x=4", "h=1 g=1 x=4",
                      "h=4 g=1 x=2", "h=1 g=3 x=3", "h=4 g=4 x=2", "h=2 g=4 x=1"};
const Words kPlaces = {"b=2 s=9",
                       "b=1 s=129",
                       "b=1 s=64",
                       "b=3 s=20 len",
                       "start seqs=5 s=65",
                       "start seqs=3 len s=80",
                       "b=3 s=9 len token_max=5",
                       "start seqs=6 s=4"};
const Words kLays = {"contiguous", "head_first", "gaps", "odd", "wide", "turned=1"};
const Words kGates = {"gate_head",
                      "gate_key",
                      "gate_value",
                      "",
                      "gate_head gate_key",
                      "gate_key gate_value",
                      "gate_key gate_key:f32",
                      "gate_head gate_head:f32 const=1",
                      "gate_key gate_key:f32 const=1",
                      "gate_value gate_value:f32 const=1"};
const Words kMaps = {"",
                     "hard=1",
                     "hard=2",
                     "hard=3",
                     "gate_bound=2.5 gate_bias",
                     "gate_map=1 gate_rate gate_bias",
                     "gate_map=1 gate_bias gate_bound=4 hard=1",
                     "gate_map=2 gate_bound=5 gate_rate hard=1",
                     "gate_map=2 gate_bound=0.6065307 gate_bias",
                     "gate_map=3 hard=1",
                     "gate_map=3 gate_tau=16 gate_bias",
                     "gate_map=4 gate_bias",
                     "gate_map=4 gate_bound=3 hard=1"};
const Words kKeys = {"", "select", "select select:f32 map_k=2", "map_q=1 map_k=1",
                     "map_q=3 map_k=3"};
const Words kAdded = {"", "bonus", "bonus bonus_sigmoid=1", "skip", "bonus skip"};
const Words kIn = {"", "state_in", "state_in state_row", "state_in state_in:bf16 state_row"};
const Words kPositive = {"map_q=2 map_k=2", "map_q=2 map_k=1 eps=0.01", "map_q=2 map_k=2 select"};
const Words kKept = {"", "snapshot snapshot_row snapshot_every=7",
                     "snapshot snapshot_row snapshot_every=3 snapshot:bf16",
                     "snapshot snapshot_row snapshot_every=64"};
const Words kOut = {"", "state_out state_out_row", "state_out state_out:bf16", "state_out"};
const Words kFull = {"b=2 s=9 t=70",
                     "b=2 s=20 t=3",
                     "b=3 s=20 t=33 len key_len",
                     "b=2 s=9 t=9 key_len",
                     "start seqs=4 s=30 key_start t=50",
                     "start seqs=3 s=9 key_start t=40 key_len len"};

// Chunks of 64 tokens on Hopper, with a head gate or select and without.
void chains(GlaCases& cases) {
  const Words shapes = {
      "b=2 s=150 h=2 g=2 x=2 state_in state_out",
      "start seqs=5 s=200 h=4 g=2 x=2 e=128 state_in state_row state_out skip",
      "b=3 s=100 len output_from h=2 g=2 x=4 state_in shared=1 state_row",
      "b=1 s=330 h=4 g=1 x=2 snapshot snapshot_row snapshot_every=64 state_out state_out:bf16 "
      "o:f32",
      "b=2 s=65 h=4 g=4 x=2 state_in state_in:bf16 turned=1 state_out state_out_row scale=0.3",
      "b=2 s=140 h=2 g=1 x=1 state_in state_row shared=2 state_out_row snapshot_row "
      "snapshot_every=64",
      "start seqs=5 s=90 nan=1 state_out",
      "b=5 s=71 head_first state_out"};
  // Parts of sequences, of which short ones have fewer, and what the kernel's name says of them.
  const std::vector<std::pair<std::string, std::string>> parts = {
      {"e=64 b=2 s=330 h=2 g=2 x=2 state_in state_out splits=3", ".parts3"},
      {"e=128 start seqs=4 s=700 h=4 g=2 x=2 state_in state_row shared=1 splits=4", ".parts4"},
      {"e=64 b=1 s=450 h=2 g=2 x=2 state_in state_out snapshot snapshot_row snapshot_every=64 "
       "splits=100",
       ".parts8"},
      {"e=64 b=3 s=260 len output_from h=2 g=2 x=4 state_in state_row state_out splits=2",
       ".parts2"},
      {"e=64 b=1 s=64 h=1 g=1 x=1 state_in state_out splits=4", ""}};
  const Words gates = {"gate_head hard=1",
                       "gate_head gate_head:f32 const=1",
                       "gate_head gate_map=1 gate_rate gate_bias select select:f32",
                       "gate_head hard=2 select",
                       "gate_head hard=4",
                       "select",
                       "gate_head gate_map=2 gate_bound=1",
                       "gate_head gate_map=3 gate_tau=16"};
  for (const char* type : {"bf16", "f16"})
    for (const char* d : {"64", "128"}) {
      const std::string words = std::string("o q:") + type + " d=" + d + " ";
      const std::string kernel = std::string("sm90.") + type + ".d" + d;
      for (size_t i = 0; i < shapes.size(); ++i) {
        const std::string width = shapes[i].find("e=128") == std::string::npos ? "e=64 " : "";
        cases.kernel(words + width + shapes[i], kernel + ".plain");
        cases.kernel(words + width + shapes[i] + " " + gates[i], kernel + ".head");
      }
      cases.kernel(words + "e=64 b=2 s=70 hard=2 reset=1 state_in state_out gate_head",
                   kernel + ".head");
      cases.kernel(words + "e=64 b=2 s=70 h=8 g=2 x=2 state_in", kernel + ".plain");
      for (size_t i = 0; i < parts.size(); ++i) {
        const auto& [call, name] = parts[i];
        cases.kernel(words + call, kernel + ".plain" + name);
        cases.kernel(words + call + " " + gates[i], kernel + ".head" + name);
      }
      cases.kernel(words + "e=64 b=2 s=270 hard=2 reset=1 state_in state_out gate_head splits=4",
                   kernel + ".head.parts4");
    }
  // The state alone, in parts.
  const std::string alone = "q:bf16 d=64 e=64 b=2 s=330 h=1 g=1 x=1 state_in state_out splits=3";
  cases.kernel(alone, "sm90.bf16.d64.plain.parts3");
  cases.kernel(alone + " gate_head hard=1", "sm90.bf16.d64.head.parts3");
}

// The same with key gates, in bf16.
void keyed_chains(GlaCases& cases) {
  const Words calls = {
      "b=2 s=150 h=2 g=2 x=2 state_in state_out gate_key hard=1",
      "b=2 s=150 h=2 g=2 x=2 state_in state_out gate_key hard=1 read_before=1 bonus",
      "start seqs=5 s=200 h=4 g=2 x=2 e=128 state_in state_row state_out skip gate_key "
      "gate_key:f32",
      "b=3 s=100 len output_from h=2 g=2 x=4 state_in shared=1 state_row gate_key gate_map=3 "
      "gate_tau=16",
      "b=1 s=330 h=4 g=1 x=2 snapshot snapshot_row snapshot_every=64 state_out state_out:bf16 "
      "o:f32 "
      "gate_key gate_map=1 gate_rate gate_bias",
      "b=2 s=65 h=4 g=4 x=2 state_in state_in:bf16 turned=1 state_out state_out_row scale=0.3 "
      "gate_key gate_map=4 gate_bias read_before=1 bonus",
      "b=2 s=140 h=2 g=1 x=1 state_in state_row shared=2 state_out_row snapshot_row "
      "snapshot_every=64 gate_key gate_map=2 gate_bound=1",
      "start seqs=5 s=90 nan=1 state_out gate_key",
      "start seqs=5 s=90 nan=1 state_out gate_key read_before=1",
      "b=5 s=71 head_first state_out gate_key hard=2",
      "b=1 s=200 h=8 g=2 x=2 state_in state_out gate_key hard=3 bonus bonus_sigmoid=1",
      "b=2 s=129 gate_key hard=4 read_before=1 bonus o:f32", "b=2 s=129 gate_key hard=4 o:f32",
      "b=2 s=190 gate_key gate_key:f32 const=1 state_in state_out",
      "b=2 s=70 hard=2 reset=1 state_in state_out gate_key",
      "b=1 s=256 gate_key gate_map=4 gate_bound=3 gate_bias hard=1 read_before=1 state_in "
      "state_out",
      "b=1 s=100 gaps gate_key gate_key:f32 state_out",
      "b=2 s=130 state_in state_out gate_key read_before=1 skip bonus output_from",
      // More chunks than blocks.
      "b=2 s=130 h=144 g=72 x=72 state_out gate_key gate_map=3",
      "start seqs=5 s=300 h=60 g=60 x=60 state_out gate_key read_before=1 bonus"};
  for (const char* d : {"64", "128"})
    for (const std::string& call : calls) {
      const bool wide = call.find("e=128") != std::string::npos;
      cases.kernel(std::string("o q:bf16 d=") + d + (wide ? " " : " e=64 ") + call,
                   std::string("sm90.bf16.d") + d + ".key");
    }
}

// Value gates, in bf16, by the width of the gates.
void valued_chains(GlaCases& cases) {
  const Words calls = {
      "o b=2 s=150 h=2 g=2 x=2 state_in state_out gate_value hard=1",
      "o start seqs=5 s=200 h=2 g=2 x=2 state_in state_row state_out gate_value gate_value:f32",
      "o b=3 s=100 len output_from h=4 g=2 x=4 state_in shared=1 state_row gate_value gate_map=3 "
      "gate_tau=16",
      "o b=1 s=330 h=4 g=4 x=1 state_out state_out:bf16 o:f32 gate_value gate_map=1 gate_rate",
      "o b=2 s=65 h=4 g=4 x=2 state_in state_in:bf16 turned=1 state_out state_out_row scale=0.3 "
      "gate_value gate_map=4",
      "b=2 s=140 h=2 g=2 x=2 state_in state_out gate_value gate_map=2 gate_bound=1",
      "o start seqs=5 s=90 nan=1 state_out gate_value",
      "o b=5 s=71 head_first state_out gate_value hard=2",
      "o b=1 s=200 state_in state_out gate_value hard=3", "o b=2 s=129 gate_value hard=4 o:f32",
      "o b=2 s=190 gate_value gate_value:f32 const=1 state_in state_out",
      "o b=2 s=70 hard=2 reset=1 state_in state_out gate_value",
      "o b=1 s=256 gate_value gate_map=4 gate_bound=3 hard=1 state_in state_out",
      "o b=1 s=100 gaps gate_value gate_value:f32 state_out",
      "o b=2 s=130 output_from state_in gate_value gate_map=3",
      "o b=1 s=700 h=2 g=2 x=2 gate_value gate_map=3 gate_tau=16 state_out",
      // More chunks than blocks.
      "o start seqs=5 s=300 h=60 g=60 x=60 state_out gate_value"};
  for (const char* e : {"64", "128"})
    for (size_t i = 0; i < calls.size(); ++i)
      cases.kernel(std::string("q:bf16 d=") + (i % 2 ? "128" : "64") + " e=" + e +
                       (calls[i].find(" h=") < calls[i].size() ? " " : " h=2 g=2 x=2 ") + calls[i],
                   std::string("sm90.bf16.d") + e + ".value");
  for (const char* words : {"snapshot snapshot_row snapshot_every=64", "read_before=1", "skip"})
    cases.kernel(std::string("o q:bf16 d=64 e=64 b=2 s=130 h=2 g=2 x=2 gate_value ") + words,
                 "simt");
}

// Decode and drafts of few tokens, by the name of the kernel.
void steps(GlaCases& cases) {
  const Words calls = {
      "b=3 s=1 h=2 g=2 x=2 state_out",
      "b=5 s=1 h=4 g=4 x=4 shared=1 state_row gate_head gate_map=1 gate_rate gate_bias skip",
      "b=5 s=1 h=1 g=1 x=4 shared=1 state_row state_out_row gate_head select",
      "b=70 s=1 h=8 g=8 x=8 state_out gate_key",
      "b=2 s=8 h=2 g=2 x=2 state_row gate_key hard=1",
      "b=2 s=8 h=2 g=2 x=2 state_out gate_head hard=1",
      "b=1 s=16 h=2 g=2 x=2 state_out gate_key gate_key:f32 gate_map=4 gate_bias",
      "start seqs=5 s=16 h=4 g=2 x=2 state_row state_out gate_head",
      "b=3 s=5 len output_from h=6 g=2 x=2 state_out gate_key gate_map=3 gate_tau=16",
      "b=3 s=4 h=2 g=2 x=2 state_row state_out_row state_out snapshot snapshot_row "
      "snapshot_every=1 gate_key",
      "b=2 s=16 h=2 g=1 x=1 state_row shared=2 state_out_row snapshot_row snapshot_every=2 "
      "gate_head",
      "b=16 s=4 h=8 g=8 x=8 len state_row gate_head hard=2",
      "b=2 s=3 h=2 g=2 x=2 reset=1 state_out gate_head hard=2",
      "b=2 s=3 h=2 g=2 x=2 reset=1 state_out gate_key hard=2",
      "b=3 s=3 h=2 g=2 x=2 turned=1 state_in:bf16 state_out state_out:bf16 gate_key",
      "b=2 s=2 h=2 g=2 x=2 turned=1 state_out snapshot snapshot_row snapshot_every=1 "
      "snapshot:bf16 gate_head",
      "b=2 s=3 h=2 g=2 x=2 state_in:bf16 state_out gate_head gate_key gate_map=1 gate_bias",
      "b=3 s=1 h=2 g=2 x=4 read_before=1 bonus skip state_out gate_key",
      "b=2 s=5 output_from h=4 g=2 x=2 read_before=1 bonus bonus_sigmoid=1 state_out gate_key",
      "b=2 s=7 output_from h=4 g=2 x=2 gate_head o:f32",
      "b=2 s=6 h=6 g=2 x=2 state_row state_out snapshot snapshot_row snapshot_every=3 gate_head",
      "b=2 s=4 h=4 g=2 x=2 read_before=1 skip state_out gate_head",
      "b=2 s=4 h=2 g=2 x=2 read_before=1 snapshot snapshot_row snapshot_every=1 gate_key"};
  for (const char* type : {"bf16", "f16", "f32"})
    for (const char* d : {"64", "128"})
      for (size_t i = 0; i < calls.size(); ++i) {
        const char* e = i % 3 == 0 ? " e=128 " : i % 3 == 1 ? " e=64 " : " e=256 ";
        cases.kernel(std::string("o state_in q:") + type + " d=" + d + e + calls[i],
                     std::string("simt.") + type + ".d" + d + ".steps");
      }
  cases.kernel("state_in state_out q:bf16 d=128 e=128 b=3 s=4 len h=2 g=2 x=2 gate_key",
               "simt.bf16.d128.steps");
  // Blocks of three warps and of one.
  for (const char* words : {"e=96 s=1", "e=96 s=11", "e=160 s=3", "e=160 s=9"})
    cases.kernel(std::string("o state_in state_out q:bf16 d=128 b=2 h=2 g=2 x=2 gate_key ") + words,
                 "simt.bf16.d128.steps");
  for (const char* words : {"d=64 e=64 gate_head", "d=128 e=64 gate_key"})
    cases.add(std::string("o q:bf16 b=3 s=6 h=4 g=2 x=2 normalise=1 map_q=2 map_k=2 state_in "
                          "state_out ") +
                  words,
              "steps");
}

// Drafts of more heads than a GPU has blocks, which then stay for several of them.
void many_drafts(GlaCases& cases) {
  const Words calls = {
      "b=40 s=8 h=8 e=128 state_row gate_head",
      "b=40 s=8 h=8 e=128 gate_key gate_key:f32 gate_map=4 gate_bias",
      "b=40 s=3 h=8 e=128 state_row gate_head gate_map=1 gate_rate "
      "gate_bias select",
      "start seqs=60 s=8 h=8 e=128 state_row gate_head",
      "b=40 s=5 len output_from h=16 e=128 gate_key gate_map=3 gate_tau=16",
      "b=40 s=3 h=8 e=128 turned=1 gate_key",
      "b=20 s=4 h=8 e=256 state_row gate_key",
      "b=40 s=3 h=8 e=128 read_before=1 bonus skip gate_key",
      "b=40 s=4 h=16 e=128 output_from read_before=1 bonus bonus_sigmoid=1 gate_key",
      "b=40 s=2 h=8 e=128 read_before=1 skip gate_head",
      "b=40 s=3 h=8 e=128 reset=1 gate_key hard=2",
      "b=40 s=4 h=8 e=128 read_before=1 reset=1 gate_key hard=2",
      "b=20 s=2 h=8 e=256 turned=1 o:f32"};
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string type = i % 2 ? "f32" : "bf16";
    cases.kernel("o state_in q:" + type + " d=128 g=8 x=8 " + calls[i],
                 "sm90." + type + ".d128.drafts");
  }
  cases.kernel("o state_in q:f16 d=128 e=128 b=40 s=16 h=8 g=8 x=8 gate_head",
               "sm90.f16.d128.drafts");
}

// Chains of the gradients on tensor cores, by the name of the kernel.
void gradient_chains(GlaCases& cases) {
  const Words shapes = {
      "b=2 s=150 h=2 g=2 x=2 state_in dstate_out all=1",
      "start seqs=5 s=200 h=2 g=1 x=4 e=128 state_in state_row dstate_out skip all=1",
      "b=3 s=100 len output_from h=2 g=2 x=4 state_in state_row dstate_out all=1",
      "b=1 s=330 h=2 g=2 x=2 e=128 dq dk dv gates=1",
      "b=2 s=65 h=4 g=4 x=2 state_in state_in:bf16 turned=1 scale=0.3 dstate_out all=1 sums=1",
      "b=1 s=1100 h=1 g=1 x=1 state_in dstate_out all=1",
      "start seqs=5 s=180 output_from h=2 g=2 x=2 dstate_out all=1",
      "b=5 s=71 h=2 g=2 x=2 head_first rest=1"};
  const Words gates = {"gate_head hard=1",
                       "gate_head gate_head:f32 const=1",
                       "gate_head gate_map=1 gate_rate gate_bias select select:f32",
                       "gate_head hard=2 select",
                       "gate_head hard=4",
                       "gate_head",
                       "gate_head gate_map=2 gate_bound=1",
                       "gate_head gate_map=3 gate_tau=16"};
  for (const char* type : {"bf16", "f16"})
    for (const char* d : {"64", "128"}) {
      const std::string words = std::string("q:") + type + " d=" + d + " ";
      const std::string kernel = std::string("sm90.") + type + ".d" + d;
      for (size_t i = 0; i < shapes.size(); ++i) {
        const std::string width = shapes[i].find("e=128") == std::string::npos ? "e=64 " : "";
        cases.kernel(words + width + shapes[i], kernel + ".plain");
        cases.kernel(words + width + shapes[i] + " " + gates[i], kernel + ".head");
      }
      const std::string narrow = words + "e=64 b=2 s=70 h=2 g=2 x=2 ";
      cases.kernel(narrow + "hard=2 reset=1 state_in gate_head all=1", kernel + ".head");
      cases.kernel(narrow + "select state_in all=1", kernel + ".plain");
      cases.kernel(words + "e=64 b=2 s=100 h=2 g=1 x=2 gate_head select dselect", kernel + ".head");
      cases.kernel(narrow + "gate_head dgate_head", kernel + ".head");
      cases.kernel(narrow + "dstate_out dstate_in", kernel + ".plain");
      cases.kernel(narrow + "dstate_out dstate_in dk", kernel + ".plain");
      cases.kernel(narrow + "nan=1 dk dv dstate_in gate_head dgate_head", kernel + ".head");
    }
}

// The same where many state heads share a head of q and k, in bf16.
void shared_gradient_chains(GlaCases& cases) {
  const Words calls = {
      "b=2 s=150 h=1 g=1 x=8 state_in dstate_out gate_head hard=1 all=1",
      "start seqs=5 s=200 h=2 g=2 x=8 e=128 state_in state_row dstate_out skip gate_head "
      "gate_map=1 "
      "gate_rate gate_bias select select:f32 all=1",
      "b=3 s=100 len output_from h=1 g=1 x=17 state_in state_row dstate_out gate_head all=1",
      "b=1 s=330 h=1 g=1 x=24 gate_head gate_map=1 gate_rate gate_bias select skip dselect dq dk "
      "dv "
      "gates=1",
      "b=1 s=1100 h=1 g=1 x=4 e=128 state_in dstate_out gate_head hard=2 select all=1",
      "start seqs=5 s=180 output_from h=2 g=2 x=8 dstate_out all=1",
      "b=2 s=65 h=4 g=4 x=16 state_in state_in:bf16 turned=1 scale=0.3 dstate_out gate_head all=1 "
      "sums=1",
      "b=5 s=71 h=1 g=1 x=8 head_first gate_head const=1 rest=1",
      "b=2 s=70 h=2 g=2 x=8 hard=2 reset=1 state_in gate_head select all=1",
      "b=2 s=70 h=2 g=2 x=8 nan=1 dk dv dstate_in gate_head dgate_head",
      "b=2 s=100 h=1 g=1 x=4 gate_head select dselect dq",
      "b=2 s=70 h=1 g=1 x=4 dstate_out dstate_in dq dk gate_head",
      "b=2 s=129 h=1 g=1 x=4 gate_head hard=4 dgate_head"};
  for (const char* d : {"64", "128"})
    for (const std::string& call : calls) {
      const bool wide = call.find("e=128") != std::string::npos;
      const bool gated = call.find("gate_head") != std::string::npos;
      cases.kernel(std::string("q:bf16 d=") + d + (wide ? " " : " e=64 ") + call,
                   std::string("sm90.bf16.d") + d + (gated ? ".head" : ".plain") + ".shared");
    }
}

// The same with key gates, in bf16.
void keyed_gradient_chains(GlaCases& cases) {
  const Words calls = {
      "b=2 s=150 h=2 g=2 x=2 state_in dstate_out gate_key hard=1 all=1",
      "b=2 s=150 h=2 g=2 x=2 state_in dstate_out gate_key hard=1 read_before=1 bonus all=1",
      "start seqs=5 s=200 h=2 g=1 x=4 e=128 state_in state_row dstate_out skip gate_key "
      "gate_key:f32 all=1",
      "b=3 s=100 len output_from h=2 g=2 x=4 state_in state_row dstate_out gate_key gate_map=3 "
      "gate_tau=16 all=1",
      "b=1 s=330 h=2 g=2 x=2 e=128 gate_key gate_map=1 gate_rate gate_bias dq dk dv gates=1",
      "b=2 s=65 h=4 g=4 x=2 state_in state_in:bf16 turned=1 scale=0.3 dstate_out gate_key "
      "gate_map=4 gate_bias read_before=1 bonus all=1 sums=1",
      "b=1 s=140 h=8 g=8 x=8 gate_key gate_map=2 gate_bound=1 bonus all=1 sums=2",
      "start seqs=5 s=180 output_from h=2 g=2 x=2 dstate_out gate_key read_before=1 all=1",
      "b=5 s=71 h=2 g=2 x=2 head_first gate_key hard=2 rest=1",
      "b=1 s=200 h=2 g=2 x=2 e=128 state_in dstate_out gate_key hard=3 bonus bonus_sigmoid=1 all=1",
      "b=2 s=129 h=2 g=2 x=2 gate_key hard=4 read_before=1 bonus all=1",
      "b=2 s=129 h=2 g=2 x=2 gate_key hard=4 all=1",
      "b=2 s=190 h=2 g=2 x=2 gate_key gate_key:f32 const=1 state_in dstate_out all=1 sums=1",
      "b=2 s=70 h=2 g=2 x=2 hard=2 reset=1 state_in gate_key all=1",
      "b=1 s=256 h=2 g=2 x=2 gate_key gate_map=4 gate_bound=3 gate_bias hard=1 read_before=1 "
      "state_in dstate_out all=1",
      "b=2 s=70 h=2 g=2 x=2 nan=1 dk dv dstate_in gate_key dgate_key",
      "b=2 s=100 h=2 g=2 x=2 e=128 gate_key dgate_key",
      "b=2 s=100 h=2 g=2 x=2 dstate_out gate_key dstate_in",
      "b=1 s=300 h=2 g=2 x=2 e=128 gate_key gate_map=3 gate_tau=16 dq dk dv dgate_key",
      "b=1 s=300 h=2 g=2 x=2 e=128 gate_key gate_map=4 read_before=1 bonus dq dk dv dgate_key "
      "dbonus",
      "b=1 s=1100 h=1 g=1 x=1 state_in dstate_out gate_key gate_map=3 gate_tau=16 all=1"};
  for (const char* d : {"64", "128"})
    for (const std::string& call : calls) {
      const bool wide = call.find("e=128") != std::string::npos;
      cases.kernel(std::string("q:bf16 d=") + d + (wide ? " " : " e=64 ") + call,
                   std::string("sm90.bf16.d") + d + ".key");
    }
}

// Value gates, in bf16, by the width of the gates.
void valued_gradient_chains(GlaCases& cases) {
  const Words calls = {
      "b=2 s=150 h=2 g=2 x=2 state_in dstate_out gate_value hard=1 all=1",
      "start seqs=5 s=200 h=4 g=1 x=4 state_in state_row dstate_out gate_value gate_value:f32 "
      "all=1",
      "b=3 s=100 len h=4 g=4 x=2 state_in state_row dstate_out gate_value gate_map=3 gate_tau=16 "
      "all=1",
      "b=1 s=330 h=2 g=2 x=2 gate_value gate_map=1 gate_rate dq dk dv gates=1",
      "b=2 s=65 h=4 g=4 x=2 state_in state_in:bf16 turned=1 scale=0.3 dstate_out gate_value "
      "gate_map=4 all=1 sums=1",
      "b=1 s=140 h=8 g=8 x=8 gate_value gate_map=2 gate_bound=1 gate_rate all=1",
      "b=5 s=71 h=2 g=2 x=2 head_first gate_value hard=2 all=1",
      "b=1 s=200 h=2 g=2 x=2 state_in dstate_out gate_value hard=3 all=1",
      "b=2 s=129 h=2 g=2 x=2 gate_value hard=4 all=1",
      "b=2 s=190 h=2 g=2 x=2 gate_value gate_value:f32 const=1 state_in dstate_out all=1 sums=1",
      "b=2 s=70 h=2 g=2 x=2 hard=2 reset=1 state_in gate_value all=1",
      "b=1 s=256 h=2 g=2 x=2 gate_value gate_map=4 gate_bound=3 hard=1 state_in dstate_out all=1",
      "b=2 s=70 h=2 g=2 x=2 nan=1 dk dv dstate_in gate_value dgate_value",
      "b=2 s=100 h=2 g=2 x=2 gate_value dgate_value",
      "b=2 s=100 h=2 g=2 x=2 dstate_out gate_value dstate_in",
      "start seqs=4 s=200 len h=2 g=2 x=2 state_in gate_value dq",
      "b=1 s=700 h=1 g=1 x=1 state_in dstate_out gate_value gate_map=3 gate_tau=16 all=1"};
  for (const char* e : {"64", "128"})
    for (size_t i = 0; i < calls.size(); ++i)
      cases.kernel(std::string("q:bf16 d=") + (i % 2 ? "128" : "64") + " e=" + e + " " + calls[i],
                   std::string("sm90.bf16.d") + e + ".value");
  // dq alone: no walk backwards.
  for (const char* words : {"state_in", "start seqs=4 s=200 len", "output_from"})
    cases.kernel(std::string("q:bf16 d=64 e=128 b=2 s=130 h=2 g=2 x=2 gate_key dq ") + words,
                 "sm90.bf16.d64.key");
  cases.kernel("q:bf16 d=64 e=64 b=2 s=130 h=2 g=2 x=2 output_from gate_value all=1", "simt");
}

// Around the ends of chunks and of their parts.
const int64_t kLengths[] = {1, 15, 16, 17, 63, 64, 65, 127, 128};

std::vector<harness::Case> forwards() {
  GlaCases cases("x_gla_forward", forward);
  cases.sweep("o",
              {kTypes,
               kWidths,
               kHeads,
               kPlaces,
               kLays,
               kGates,
               kMaps,
               kKeys,
               kAdded,
               kIn,
               kOut,
               kKept,
               {"", "o:f32"},
               {"", "read_before=1"},
               {"", "output_from"},
               {"", "scale=0.3"}},
              "", 21);
  cases.sweep("normalise=1 o",
              {kTypes,
               {"d=16 e=24", "d=64 e=64", "d=33 e=1"},
               kHeads,
               kPlaces,
               kLays,
               {"", "gate_head", "gate_key", "gate_head gate_head:f32", "gate_head const=1"},
               {"", "hard=1", "hard=2", "gate_map=3", "gate_map=1 gate_rate gate_bias"},
               kPositive,
               {"", "skip"},
               kIn,
               kOut,
               kKept},
              "", 22);
  cases.sweep("full=1 o",
              {kTypes,
               {"d=16 e=24", "d=64 e=64", "d=33 e=1", "d=1 e=130"},
               kHeads,
               kFull,
               kLays,
               {"normalise=1 map_q=2 map_k=2", "normalise=1 map_q=2 map_k=1 eps=0.01",
                "map_q=1 map_k=1", ""},
               {"", "select", "select select:f32"},
               kIn,
               kOut,
               {"", "output_from"}},
              "", 23);
  cases.sweep("state_in",
              {{"q:f32", "q:bf16"},
               {"d=16 e=24", "d=64 e=32", "d=33 e=5"},
               {"h=2 g=2 x=2", "h=4 g=2 x=2", "h=2 g=2 x=4"},
               {"b=5 s=1", "b=5 s=4 len", "b=2 s=20", "start seqs=6 s=30", "start seqs=5 s=9 len"},
               {"shared=1", "shared=1 state_row", "shared=1 state_row state_out_row",
                "shared=2 last=1 state_row snapshot_row snapshot_every=1",
                "shared=2 state_row state_out_row snapshot_row snapshot_every=1",
                "shared=2 state_row state_out_row snapshot_row snapshot_every=2"},
               {"o", ""},
               {"", "state_in:bf16", "turned=1"},
               {"gate_key", "gate_head", "normalise=1 map_q=2 map_k=2", "gate_value"}},
              "in_place", 24);
  // Sequences of more than a chunk.
  cases.sweep(
      "o",
      {kTypes,
       {"d=16 e=24", "d=33 e=130", "d=64 e=64"},
       kHeads,
       {"b=1 s=129", "b=2 s=150 len", "start seqs=4 s=330", "b=2 s=64"},
       {"gate_head", "gate_key", "", "gate_head gate_key", "gate_head gate_head:f32 const=1",
        "gate_key gate_key:f32 const=1"},
       kMaps,
       kKeys,
       kAdded,
       kIn,
       kOut,
       {"", "snapshot snapshot_row snapshot_every=64", "snapshot snapshot_row snapshot_every=128"},
       {"", "read_before=1"},
       {"", "output_from"}},
      "chunks", 28);
  cases.sweep("normalise=1 o",
              {kTypes,
               {"d=16 e=24", "d=33 e=130", "d=64 e=64"},
               kHeads,
               {"b=1 s=129", "b=2 s=150 len", "start seqs=4 s=330"},
               {"", "gate_head", "gate_key", "gate_key hard=2"},
               kPositive,
               kIn,
               kOut,
               {"", "snapshot snapshot_row snapshot_every=64"}},
              "chunks", 29);
  // What a server does, for layers of known models.
  chains(cases);
  steps(cases), many_drafts(cases), keyed_chains(cases), valued_chains(cases);
  const std::string retention = "q:bf16 h=4 g=4 x=4 d=64 e=64 gate_head gate_head:f32 const=1 ";
  const std::string mamba =
      "q:bf16 h=1 g=1 x=4 d=64 e=32 gate_head gate_map=1 gate_rate gate_bias select select:f32 "
      "skip "
      "scale=1 ";
  const std::string rwkv = "q:bf16 h=3 g=3 x=3 d=64 e=64 gate_key gate_map=4 read_before=1 bonus ";
  const std::string gated = "q:bf16 h=2 g=2 x=2 d=128 e=64 gate_key gate_map=3 gate_tau=16 ";
  cases.add(retention + "b=1 s=150 o state_in state_row state_out", "prefill");
  cases.add(mamba + "b=1 s=150 o state_in state_row state_out", "prefill");
  cases.add(rwkv + "b=1 s=150 o state_in state_row state_out", "prefill");
  cases.add(gated + "b=1 s=150 o state_in state_row state_out", "prefill");
  cases.add(gated + "b=7 s=1 o state_in state_row shared=1", "decode");
  cases.add(mamba + "b=7 s=1 o state_in state_row len shared=1", "padded_rows");
  cases.add(rwkv + "b=6 s=5 o state_in state_row", "verify");
  cases.add(gated + "b=6 s=5 state_in state_row len shared=1", "commit");
  cases.add(
      mamba + "b=6 s=5 o state_in state_row state_out_row snapshot_row snapshot_every=1 shared=2",
      "rollback");
  cases.add(
      gated + "b=1 s=140 o state_in state_row state_out snapshot snapshot_row snapshot_every=64",
      "prefix");
  cases.add(retention + "start seqs=9 s=120 o state_in state_row shared=1", "mixed");
  for (const char* words :
       {"b=0 o state_out", "s=0 o state_in state_out", "e=0 o state_out", "h=0 g=0 x=0 o state_out",
        "start seqs=1 s=0 o state_out gate_key", "start seqs=0 s=5 o",
        "d=1 e=1 o state_out gate_key", "b=2 s=3 full=1 t=0 o state_in state_out",
        "b=2 s=0 full=1 t=5 o state_in state_out",
        "b=3 s=9 len snapshot snapshot_row snapshot_every=2", "b=2 s=70 gate_key hard=1 o d=7 e=9"})
    cases.add(words, "edge");
  for (const char* gates : {"", "gate_head", "gate_key"}) {
    cases.add(std::string("start seqs=5 s=90 nan=1 o state_out d=16 e=16 q:bf16 ") + gates, "nan");
    cases.add(std::string("b=3 s=70 nan=1 o state_out d=16 e=16 ") + gates, "nan");
  }
  for (const char* words : {"gate_head", "gate_key", "gate_value", "q:bf16 gate_key d=64 e=64"})
    cases.add(std::string("b=2 s=70 hard=2 reset=1 state_in o state_out ") + words, "reset");
  for (const int64_t s : kLengths)
    for (const char* words :
         {"gate_key hard=1", "q:bf16 gate_head gate_map=3", "q:f16 gate_key hard=4"})
      cases.add("b=1 h=2 d=16 e=16 o state_in state_out s=" + std::to_string(s) + " " + words,
                "length");
  cases.add("b=2100 s=1 h=32 g=32 x=32 d=2 e=1 gate_head o state_in shared=1", "blocks");
  // More outputs of a state than the host makes at once, before and behind the token.
  for (const char* words : {"", "read_before=1 bonus", "state_out", "read_before=1 state_out skip"})
    cases.add(std::string("b=2 s=9 h=40 g=2 x=1 d=8 e=5 gate_head o state_in ") + words, "outputs");
  cases.add("b=1 s=3 h=2 g=1 x=2 d=3 e=2 gate_key gate_head bonus o state_in state_out", "small",
            true);
  cases.add(
      "q:bf16 b=2 s=3 h=2 g=2 x=1 d=4 e=2 gate_head gate_map=3 normalise=1 map_q=2 map_k=2 o "
      "state_out",
      "small", true);
  return cases.cases();
}

std::vector<harness::Case> backwards() {
  GlaCases cases("x_gla_backward", backward);
  const Words outputs = {"all=1",  "dq",           "dk",
                         "dv",     "dstate_in",    "gates=1",
                         "rest=1", "all=1 sums=1", "gates=1 sums=2"};
  const Words last = {"", "dstate_out"};
  cases.sweep("",
              {kTypes,
               kWidths,
               kHeads,
               kPlaces,
               kLays,
               kGates,
               kMaps,
               kKeys,
               kAdded,
               kIn,
               last,
               outputs,
               {"", "dout:f32"},
               {"", "read_before=1"},
               {"", "output_from"},
               {"", "scale=0.3"}},
              "", 25);
  cases.sweep("normalise=1",
              {kTypes,
               {"d=16 e=24", "d=64 e=64", "d=33 e=1"},
               kHeads,
               kPlaces,
               kLays,
               {"", "gate_head", "gate_key", "gate_head gate_head:f32", "gate_head const=1"},
               {"", "hard=1", "hard=2", "gate_map=3", "gate_map=1 gate_rate gate_bias"},
               kPositive,
               {"", "skip"},
               kIn,
               last,
               outputs},
              "", 26);
  cases.sweep("full=1",
              {kTypes,
               {"d=16 e=24", "d=64 e=64", "d=33 e=1", "d=1 e=130"},
               kHeads,
               kFull,
               kLays,
               {"normalise=1 map_q=2 map_k=2", "normalise=1 map_q=2 map_k=1 eps=0.01",
                "map_q=1 map_k=1", ""},
               {"", "select", "select select:f32"},
               kIn,
               last,
               {"all=1", "dq", "dk", "dv", "dstate_in", "rest=1"},
               {"", "output_from"}},
              "", 27);
  gradient_chains(cases);
  shared_gradient_chains(cases);
  keyed_gradient_chains(cases);
  valued_gradient_chains(cases);
  cases.add("q:bf16 h=2 g=2 x=2 d=64 e=64 b=1 s=150 gate_head gate_head:f32 const=1 all=1 sums=1",
            "retention");
  cases.add(
      "q:bf16 h=1 g=1 x=4 d=64 e=32 b=1 s=130 gate_head gate_map=1 gate_rate gate_bias select "
      "select:f32 skip scale=1 all=1",
      "mamba");
  cases.add(
      "q:bf16 h=2 g=2 x=2 d=64 e=64 b=1 s=130 gate_key gate_map=4 read_before=1 bonus state_in "
      "dstate_out all=1",
      "rwkv");
  cases.add("q:bf16 h=2 g=2 x=2 d=128 e=64 b=1 s=130 gate_key gate_map=3 gate_tau=16 all=1",
            "gated");
  for (const char* words :
       {"b=0", "s=0 state_in dstate_out", "e=0 gate_key", "h=0 g=0 x=0",
        "start seqs=1 s=0 gate_key", "d=1 e=1 gate_key", "b=2 s=3 full=1 t=0 state_in dstate_out",
        "b=2 s=0 full=1 t=5 state_in dstate_out", "b=2 s=70 gate_key hard=1 d=7 e=9",
        "start seqs=6 s=5 state_in dstate_out len gate_head"})
    cases.add(std::string(words) + " all=1", "edge");
  for (const char* gates : {"gate_head dgate_head", "gate_key dgate_key"})
    cases.add(std::string("b=3 s=70 nan=1 dk dv dstate_in d=16 e=16 ") + gates, "nan");
  for (const char* words : {"gate_head", "gate_key", "gate_value", "q:bf16 gate_key d=64 e=64"})
    cases.add(std::string("b=2 s=70 hard=2 reset=1 state_in all=1 ") + words, "reset");
  for (const int64_t s : kLengths)
    for (const char* words :
         {"gate_key hard=1", "q:bf16 gate_head gate_map=3", "q:f16 gate_key hard=4"})
      cases.add("b=1 h=2 d=16 e=16 state_in dstate_out all=1 s=" + std::to_string(s) + " " + words,
                "length");
  const std::string full_set =
      "b=2 s=9 gate_head gate_key gate_value gate_rate gate_bias gate_map=1 select bonus skip "
      "state_in "
      "dstate_out ";
  for (const char* output : {"dgate_head", "dgate_key", "dgate_value", "dgate_rate", "dgate_bias",
                             "dselect", "dbonus", "dskip", ""})
    cases.add(full_set + output, "alone");
  cases.add("b=2 s=9 gate_head normalise=1 map_q=2 map_k=2 dz_in", "alone");
  cases.add("b=2100 s=1 h=32 g=32 x=32 d=2 e=1 gate_head state_in dq dk dv dgate_head dstate_in",
            "blocks");
  cases.add("b=1 s=3 h=2 g=1 x=2 d=3 e=2 gate_key gate_head bonus state_in dstate_out all=1",
            "small", true);
  cases.add(
      "q:bf16 b=2 s=3 h=2 g=2 x=1 d=4 e=2 gate_head gate_map=3 normalise=1 map_q=2 map_k=2 all=1",
      "small", true);
  return cases.cases();
}

const Family kForward("x_gla_forward", forwards);
const Family kBackward("x_gla_backward", backwards);

}  // namespace
}  // namespace cases
