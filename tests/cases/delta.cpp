// SPDX-License-Identifier: Apache-2.0
// x_delta_forward and _backward: covering arrays of widths, heads, gates, forms and places; the
// calls of a server by name.  Words of its own:
//   keys=1      keys of a head point one way: the cosine of two is 0.9
//   wide=1      beta without a map lies in (0, 2), else in (0, 1)
//   gates=1     small gates; 2: -inf at the first, the last and random tokens, else 0;
//               3: -inf, 0, -1e-4, -20 and -88 element by element
//   constant=1  gates and beta have strides of 0 over b and s
//   all=1       gradients of all inputs that are given
//   sums=1      those of gates and beta have strides of 0 over b and s; 2: over b; 3: over heads,
//               and that of gate_bias too
//   nan=1       sequence 1 has NaN in every token; 2: in every state, and resets at first tokens
#include "oracle/delta.h"
#include "cases/run_case.h"

namespace cases {
namespace {

using Forward = fovea_x_delta_forward_params;
using Backward = fovea_x_delta_backward_params;

template <class P>
P& params_of(TableCall& made) {
  return *reinterpret_cast<P*>(made.call.params.data());
}

bool is_gate(const std::string& field) {
  return field == "gate_head" || field == "gate_key";
}

// Keys of length about 1, or with l2_norm of any.
double key(bool one_way, bool l2, double d, const int64_t* at, double normal) {
  if (d < 8) normal = std::clamp(normal, -1.0, 1.0);
  const double one = harness::hash(static_cast<uint64_t>(at[2] * 1009 + at[3])) % 2 ? 1 : -1;
  const double x = one_way ? std::sqrt(.9) * one + std::sqrt(.1) * normal : normal;
  return l2 ? x : .9 * x / std::sqrt(d);
}

double log_gate(int64_t kind, const int64_t* at, int64_t s, double uniform) {
  static constexpr double kinds[] = {-HUGE_VAL, 0, -1e-4, -20, -88};
  const bool edge = at[1] == 0 || at[1] == s - 1 ||
                    harness::hash(static_cast<uint64_t>(at[0] * 4099 + at[1])) % 23 == 0;
  if (kind == 1) return -.02 * uniform;
  if (kind == 2) return edge ? -HUGE_VAL : 0;
  if (kind == 3) return kinds[static_cast<int>(uniform * 5)];
  return -2 * uniform;
}

// Inputs of the call, element by element.
template <class P>
class Contents {
 public:
  Contents(TableCall& made, uint64_t seed) : made_(made), p_(params_of<P>(made)), seed_(seed) {}

  void fill() {
    harness::Call& call = made_.call;
    const auto each = [&](bool integers) {
      for (size_t i = 0; i < call.fields.size(); ++i)
        if (is_run_integer(call.fields[i].name) == integers) one(i);
    };
    each(true);
    nan_ = of_sequence_1();
    each(false);
  }

 private:
  std::vector<bool> of_sequence_1() const {
    const oracle::RunOracle run = oracle::load_run(p_);
    std::vector<bool> own(static_cast<size_t>(p_.q.shape[0] * run.s));
    if (letter(made_, "nan") != 1 || run.r < 2) return own;
    for (int64_t t = 0; t < run[1].count; ++t) own[run[1].batch * run.s + run[1].begin + t] = true;
    return own;
  }

  void one(size_t i) {
    harness::Call& call = made_.call;
    const std::string field = call.fields[i].name;
    const harness::Random random(seed_ ^ harness::seed_of(field)), other(~seed_ ^ random.seed);
    uint64_t n = 0;
    if (is_run_integer(field))
      return call.fill(i, [&](const int64_t* at) { return run_integer(made_, field, at); });
    const bool token = field == "q" || field == "k" || field == "v" || field == "dout";
    const Rule rule = rule_of(field);
    call.fill(i, [&](const int64_t* at) {
      const double normal = random.normal(n), uniform = other.uniform(n);
      ++n;
      if (token && nan_[at[0] * p_.q.shape[1] + at[1]]) return static_cast<double>(NAN);
      return rule(at, normal, uniform);
    });
  }

  // The value of an element, from a normal number and one of (0, 1).
  using Rule = std::function<double(const int64_t* at, double normal, double uniform)>;

  // erase and low_a lie along the keys that they go with, so that no state grows.
  Rule along(double factor, bool scaled) const {
    const auto k = std::make_shared<oracle::Dense>(oracle::load(p_.k));
    const int64_t group = made_.letters.at("heads") / std::max<int64_t>(p_.k.shape[2], 1);
    if (p_.l2_norm) factor /= std::sqrt(static_cast<double>(p_.k.shape[3]));
    return [=](const int64_t* at, double, double uniform) {
      const double x = (*k)(at[0], at[1], at[2] / group, at[3]);
      return std::isnan(x) ? 0 : factor * x * (scaled ? uniform : 1);
    };
  }

  Rule rule_of(const std::string& field) const {
    const bool nan = letter(made_, "nan") == 2;
    if (field == "k")
      return [one_way = letter(made_, "keys") != 0, l2 = p_.l2_norm != 0,
              d = static_cast<double>(p_.k.shape[3])](const int64_t* at, double x, double) {
        return key(one_way, l2, d, at, x);
      };
    if (field == "erase" || field == "low_b") return along(1, true);
    if (field == "low_a") return along(-1, false);
    if (field == "beta" && p_.beta_map == 0)
      return [most = letter(made_, "wide") ? 2 : 1](const int64_t*, double, double uniform) {
        return most * uniform;
      };
    if (is_gate(field) && nan)
      return [](const int64_t* at, double, double x) { return at[1] == 0 ? -HUGE_VAL : -x; };
    if (is_gate(field) && p_.gate_map == FOVEA_X_GATE_MAP_LOG)
      return [kind = letter(made_, "gates"), s = p_.q.shape[1]](
                 const int64_t* at, double, double x) { return log_gate(kind, at, s, x); };
    if (field == "state_in" && nan) return [](const int64_t*, double, double) { return NAN; };
    if (field == "gate_rate" || field == "gate_bias" || field == "state_in")
      return [](const int64_t*, double normal, double) { return normal / 2; };
    return [](const int64_t*, double normal, double) { return normal; };
  }

  TableCall& made_;
  const P& p_;
  const uint64_t seed_;
  std::vector<bool> nan_;
};

// A tensor of gates or beta, or of their gradients, whose axes over which it repeats have strides
// of 0.
void add_repeated(TableCall& made, const char* field, fovea_tensor& slot, const fovea_tensor& like,
                  harness::Role role, int64_t ways, int dtype) {
  fovea_tensor x =
      fovea_contiguous(nullptr, static_cast<fovea_dtype>(dtype), like.ndim, like.shape);
  const bool tokens = like.ndim >= 3;
  if (tokens && (ways == 1 || ways == 2)) x.stride[0] = 0;
  if (tokens && ways == 1) x.stride[1] = 0;
  if (ways == 3 && like.ndim > 1) x.stride[tokens ? 2 : 0] = 0;
  made.call.add_strided(field, slot, role, x);
}

// What of the inputs counts.
template <class P>
void account(TableCall& made, const P& p) {
  harness::Call& call = made.call;
  const oracle::RunOracle run = oracle::load_run(p);
  const auto in_use = [&](bool outputs) {
    std::vector<bool> used(static_cast<size_t>(p.q.shape[0] * run.s));
    for (int64_t i = 0; i < run.r; ++i) {
      const auto q = run[i];
      for (int64_t t = outputs ? q.from : 0; t < q.count; ++t)
        used[q.batch * run.s + q.begin + t] = true;
    }
    return [used, s = run.s](const int64_t* at) { return used[at[0] * s + at[1]]; };
  };
  constexpr bool forward = requires {
    p.state_out;
  };
  for (const char* field :
       {"q", "k", "v", "beta", "erase", "gate_head", "gate_key", "low_a", "low_b", "dout"})
    if (const size_t i = call.field(field); i < call.fields.size())
      call.account(i,
                   in_use(std::string(field) == "dout" || (forward && std::string(field) == "q")));
  if (const size_t i = call.field("gate_bias"); i < call.fields.size() && !p.gate_key.data)
    call.account(i, [&](const int64_t* at) { return at[1] == 0; });
  if (!made.has("state_in")) return;
  std::vector<bool> read(static_cast<size_t>(made.letters["slots"]));
  for (int64_t i = 0; i < run.r; ++i)
    if (const int64_t row = run.in_row(i, made.letters["slots"]); row >= 0) read[row] = true;
  call.account(call.field("state_in"), [&](const int64_t* at) { return read[at[0]]; });
}

template <class P>
void inputs(TableCall& made, uint64_t seed) {
  P& p = params_of<P>(made);
  int64_t every = 0;
  if constexpr (requires { p.state_out; }) every = p.snapshot_every;
  run_shape(made, every);
  Letters& x = made.letters;
  x["heads"] = std::max(x["g"], x["x"]), x["heads_out"] = std::max(x["h"], x["heads"]);
  if (letter(made, "constant")) {
    made.inputs({"gate_head", "gate_key", "beta"});
    const int64_t rows[] = {x["b"], x["s"], x["heads"], x["d"]};
    const auto repeat = [&](const char* field, fovea_tensor& slot, int axes) {
      const fovea_tensor like = fovea_contiguous(nullptr, FOVEA_F32, axes, rows);
      if (made.has(field)) add_repeated(made, field, slot, like, harness::Role::in, 1, FOVEA_F32);
    };
    repeat("gate_head", p.gate_head, 3), repeat("gate_key", p.gate_key, 4);
    repeat("beta", p.beta, 3);
  } else {
    made.inputs();
  }
  Contents<P>(made, seed).fill();
  account(made, p);
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

template <class Outs>
void expect(TableCall& made, const char* name, const fovea_tensor& x, const Outs& one,
            const Outs& other) {
  if (x.data) made.call.expect(made.call.field(name), one, other);
}

harness::Call forward(const std::string& words, uint64_t seed) {
  TableCall made("x_delta_forward", words, seed);
  inputs<Forward>(made, seed);
  Forward& p = params_of<Forward>(made);
  share(made, p);
  made.outputs();
  const oracle::Delta<Forward> delta(p);
  const auto exact = delta.forward(oracle::Mode::exact);
  const auto rounded = delta.forward(oracle::Mode::rounded);
  expect(made, "o", p.o, exact.o, rounded.o);
  expect(made, "state_out", p.state_out, exact.state_out, rounded.state_out);
  expect(made, "snapshot", p.snapshot, exact.snapshot, rounded.snapshot);
  return std::move(made.call);
}

// The gradient of every input that is given.
void gradients(TableCall& made, Backward& p) {
  const int64_t ways = letter(made, "sums");
  const auto add = [&](const char* of, const char* field, fovea_tensor& slot,
                       const fovea_tensor& like) {
    if (!made.has(of)) return;
    const bool f32 = like.ndim < 3 || like.stride[0] == 0 || ways == 1;
    add_repeated(made, field, slot, like, harness::Role::out, ways, f32 ? FOVEA_F32 : like.dtype);
  };
  add("beta", "dbeta", p.dbeta, p.beta);
  add("gate_head", "dgate_head", p.dgate_head, p.gate_head);
  add("gate_key", "dgate_key", p.dgate_key, p.gate_key);
  add("gate_rate", "dgate_rate", p.dgate_rate, p.gate_rate);
  add("gate_bias", "dgate_bias", p.dgate_bias, p.gate_bias);
  const auto plain = [&](const char* of, const char* field) {
    if (made.has(of)) add_field(made.call, field, made.letters, made.lay);
  };
  plain("q", "dq"), plain("k", "dk"), plain("v", "dv"), plain("erase", "derase");
  plain("low_a", "dlow_a"), plain("low_b", "dlow_b"), plain("q", "dstate_in");
}

harness::Call backward(const std::string& words, uint64_t seed) {
  TableCall made("x_delta_backward", words, seed);
  inputs<Backward>(made, seed);
  Backward& p = params_of<Backward>(made);
  letter(made, "all") ? gradients(made, p) : made.outputs();
  const oracle::Delta<Backward> delta(p);
  const auto exact = delta.backward(oracle::Mode::exact);
  const auto rounded = delta.backward(oracle::Mode::rounded);
  expect(made, "dq", p.dq, exact.dq, rounded.dq), expect(made, "dk", p.dk, exact.dk, rounded.dk);
  expect(made, "dv", p.dv, exact.dv, rounded.dv);
  expect(made, "dbeta", p.dbeta, exact.dbeta, rounded.dbeta);
  expect(made, "derase", p.derase, exact.derase, rounded.derase);
  expect(made, "dgate_head", p.dgate_head, exact.dgate_head, rounded.dgate_head);
  expect(made, "dgate_key", p.dgate_key, exact.dgate_key, rounded.dgate_key);
  expect(made, "dgate_rate", p.dgate_rate, exact.dgate_rate, rounded.dgate_rate);
  expect(made, "dgate_bias", p.dgate_bias, exact.dgate_bias, rounded.dgate_bias);
  expect(made, "dlow_a", p.dlow_a, exact.dlow_a, rounded.dlow_a);
  expect(made, "dlow_b", p.dlow_b, exact.dlow_b, rounded.dlow_b);
  expect(made, "dstate_in", p.dstate_in, exact.dstate_in, rounded.dstate_in);
  return std::move(made.call);
}

const std::vector<std::string> kTypes = {"q:f32", "q:f16", "q:bf16"};
const std::vector<std::string> kWidths = {"d=1 e=1",   "d=1 e=24",  "d=16 e=24",  "d=16 e=130",
                                          "d=33 e=64", "d=64 e=64", "d=33 e=130", "d=128 e=24",
                                          "d=64 e=1",  "d=200 e=1", "d=200 e=24"};
const std::vector<std::string> kHeads = {"h=2 g=2 x=2", "h=4 g=2 x=2", "h=2 g=2 x=4",
                                         "h=1 g=1 x=4", "h=4 g=1 x=2", "h=1 g=1 x=1"};
const std::vector<std::string> kLays = {"contiguous", "head_first", "gaps", "odd", "wide"};
const std::vector<std::string> kPlaces = {"b=2 s=65",
                                          "b=1 s=129",
                                          "b=3 s=40 len",
                                          "start seqs=5 s=64",
                                          "start seqs=3 len s=100",
                                          "b=3 s=9 len token_max=5",
                                          "start seqs=6 s=4",
                                          "b=2 s=1"};
const std::vector<std::string> kGates = {
    "",
    "gate_head",
    "gate_key",
    "gate_head gate_key gates=1",
    "gate_head gates=2",
    "gate_key gates=2",
    "gate_head:f32 gate_head gates=3",
    "gate_key:f32 gate_key gates=3",
    "gate_key gate_map=1 gate_rate gate_bias",
    "gate_head gate_map=1 gate_rate gate_bias gate_bound=2",
    "gate_key:f32 gate_key gate_map=2 gate_bound=5 gate_rate",
    "gate_head gate_key gate_map=2 gate_bound=0.6065307 gate_bias",
    "gate_key gate_map=3 gate_tau=16",
    "gate_head gate_map=4 gate_bound=1 gate_bias",
    "gate_key gate_bound=0.5",
    "gate_key constant=1 gates=1",
    "gate_head gate_map=1 gate_rate constant=1"};
const std::vector<std::string> kForms = {"",
                                         "beta",
                                         "beta beta:f32 beta_map=1 l2_norm=1",
                                         "beta beta_map=2 l2_norm=1 eps=0.01",
                                         "beta beta:f32 wide=1 l2_norm=1 keys=1",
                                         "beta keys=1",
                                         "erase beta",
                                         "erase l2_norm=1",
                                         "low_a low_b",
                                         "low_a low_b l2_norm=1"};

// Sequences in parts, of which short ones have fewer, and what the kernel's name says of them.
const std::vector<std::pair<std::string, std::string>> kParts = {
    {"e=64 b=2 s=330 h=2 g=2 x=2 state_in state_out splits=3", ".parts3"},
    {"e=128 start seqs=4 s=700 h=2 g=1 x=2 state_in state_row shared=1 splits=4", ".parts4"},
    {"e=64 b=1 s=450 h=2 g=2 x=2 state_in state_out snapshot snapshot_row snapshot_every=64 "
     "splits=100",
     ".parts8"},
    {"e=64 b=3 s=260 len output_from h=2 g=2 x=4 state_in state_row state_out splits=2", ".parts2"},
    {"e=64 b=1 s=64 h=1 g=1 x=1 state_in state_out splits=4", ""}};

// Chunks of 64 tokens on Hopper.
void chains(std::vector<harness::Case>& cases) {
  const std::string op = "x_delta_forward";
  const auto add = [&](const std::string& words, const std::string& kernel) {
    const auto draw = [words](uint64_t seed) { return forward(words, seed); };
    cases.push_back({op, name_of_words(words, "kernel"), draw, kernel, "", false});
  };
  const std::vector<std::string> shapes = {
      "e=64 b=2 s=150 h=2 g=2 x=2 state_in state_out",
      "e=128 start seqs=5 s=200 h=4 g=2 x=2 state_in state_row state_out",
      "e=64 b=3 s=100 len output_from h=2 g=2 x=4 state_in shared=1 state_row",
      "e=128 b=1 s=330 h=4 g=1 x=2 snapshot snapshot_row snapshot_every=64 state_out "
      "state_out:bf16 o:f32",
      "e=64 b=2 s=65 h=4 g=4 x=2 state_in state_in:bf16 state_out state_out_row scale=0.3",
      "e=64 b=2 s=140 h=2 g=1 x=1 state_in state_row shared=2 state_out_row snapshot_row "
      "snapshot_every=64",
      "e=64 start seqs=5 s=90 nan=1 state_out",
      "e=192 b=5 s=71 h=1 g=1 x=2 head_first state_out"};
  const std::vector<std::string> forms = {
      "beta gate_head gates=1",
      "beta beta_map=1 l2_norm=1 keys=1",
      "beta gate_head gates=2",
      "beta beta:f32 beta_map=2 l2_norm=1 gate_head gate_head:f32 gate_map=1 "
      "gate_rate gate_bias",
      "beta wide=1 l2_norm=1",
      "gate_head gates=3",
      "beta l2_norm=1 gate_head gate_map=3 gate_tau=16",
      "beta gate_head constant=1"};
  for (const char* d : {"64", "128"}) {
    const std::string words = std::string("o q:bf16 d=") + d + " ";
    const std::string kernel = std::string("sm90.bf16.d") + d;
    for (size_t i = 0; i < shapes.size(); ++i)
      for (size_t turn : {0, 3})
        add(words + shapes[i] + " " + forms[(i + turn) % forms.size()], kernel);
    add(words + "e=64 b=3 s=70 h=1 g=1 x=1 nan=2 state_in state_out gate_head gates=2 beta",
        kernel);
    add(words +
            "e=64 b=3 s=270 h=1 g=1 x=1 nan=2 state_in state_out gate_head gates=2 beta splits=4",
        kernel + ".parts4");
    for (size_t i = 0; i < kParts.size(); ++i)
      for (size_t turn : {0, 1, 4})
        add(words + kParts[i].first + " " + forms[(i + turn) % forms.size()],
            kernel + kParts[i].second);
  }
  // The state alone, in parts.
  add("q:bf16 d=64 e=64 b=2 s=330 h=1 g=1 x=1 state_in state_out splits=3 beta gate_head gates=1",
      "sm90.bf16.d64.parts3");
}

// The same under key gates.
void key_chains(std::vector<harness::Case>& cases) {
  const std::string op = "x_delta_forward";
  const auto add = [&](const std::string& words, const std::string& kernel) {
    const auto draw = [words](uint64_t seed) { return forward(words, seed); };
    cases.push_back({op, name_of_words(words, "kernel"), draw, kernel, "", false});
  };
  const std::vector<std::string> shapes = {
      "e=64 b=2 s=150 h=2 g=2 x=2 state_in state_out",
      "e=128 start seqs=5 s=200 h=2 g=2 x=2 state_in state_row state_out",
      "e=64 b=3 s=100 len output_from h=2 g=2 x=4 state_in shared=1 state_row",
      "e=128 b=1 s=330 h=2 g=1 x=4 snapshot snapshot_row snapshot_every=64 state_out "
      "state_out:bf16 o:f32",
      "e=64 b=2 s=65 h=4 g=4 x=2 state_in state_in:bf16 state_out state_out_row scale=0.3",
      "e=64 b=2 s=140 h=1 g=1 x=1 state_in state_row shared=2 state_out_row snapshot_row "
      "snapshot_every=64",
      "e=64 start seqs=5 s=90 h=2 g=2 x=2 nan=1 state_out",
      "e=192 b=5 s=71 h=1 g=1 x=2 head_first state_out"};
  const std::vector<std::string> forms = {
      "beta gate_key gates=1",
      "beta beta_map=1 l2_norm=1 keys=1 gate_key",
      "beta gate_key gates=2",
      "beta beta:f32 beta_map=2 l2_norm=1 gate_key gate_key:f32 gate_map=1 gate_rate gate_bias",
      "beta wide=1 l2_norm=1 gate_key gate_map=2 gate_bound=5 gate_rate",
      "gate_key:f32 gate_key gates=3",
      "beta l2_norm=1 gate_head gate_key gate_map=3 gate_tau=16",
      "beta gate_key constant=1",
      "l2_norm=1 gate_key gate_key:f32 gate_map=4 gate_bias",
      "beta gate_key gates=3 gate_bound=9"};
  const std::vector<std::string> low = {
      "low_a low_b gate_key gates=1",
      "low_a low_b gate_key gate_map=2 gate_bound=0.6065307 gate_bias",
      "low_a low_b l2_norm=1 gate_key",
      "low_a low_b gate_key gates=2",
      "low_a low_b gate_head gate_key:f32 gate_key gates=3",
      "low_a low_b l2_norm=1 gate_key:f32 gate_key gate_map=1 gate_rate gate_bias",
      "low_a low_b gate_key gates=3 gate_bound=9"};
  for (const char* d : {"64", "128"}) {
    const std::string words = std::string("o q:bf16 d=") + d + " ";
    const std::string kernel = std::string("sm90.key.bf16.d") + d;
    for (size_t i = 0; i < shapes.size(); ++i)
      for (size_t turn : {0, 3, 7})
        add(words + shapes[i] + " " + forms[(i + turn) % forms.size()], kernel);
    add(words + "e=64 b=3 s=70 h=1 g=1 x=1 nan=2 state_in state_out gate_key gates=2 beta", kernel);
    for (size_t i = 0; i < shapes.size(); ++i)
      for (size_t turn : {0, 3})
        add(words + shapes[i] + " " + low[(i + turn) % low.size()],
            std::string("sm90.low.bf16.d") + d);
    for (size_t i = 0; i < kParts.size(); ++i) {
      const auto& [call, name] = kParts[i];
      add(words + call + " " + forms[i], kernel + name);
      add(words + call + " " + low[i], std::string("sm90.low.bf16.d") + d + name);
    }
  }
}

// Decode and drafts of few tokens, by the name of the kernel.
void steps(std::vector<harness::Case>& cases) {
  const std::string op = "x_delta_forward";
  const auto add = [&](const std::string& words, const std::string& kernel) {
    const auto draw = [words](uint64_t seed) { return forward(words, seed); };
    cases.push_back({op, name_of_words(words, "kernel"), draw, kernel, "", false});
  };
  const std::vector<std::string> calls = {
      "b=3 s=1 h=2 g=2 x=2 state_out",
      "b=5 s=1 h=4 g=4 x=4 shared=1 state_row",
      "b=5 s=1 h=2 g=2 x=4 shared=1 state_row state_out_row",
      "b=70 s=1 h=8 g=8 x=8 state_out",
      "b=2 s=8 h=2 g=2 x=2 state_row",
      "b=1 s=16 h=2 g=2 x=2 state_out",
      "start seqs=5 s=16 h=4 g=2 x=2 state_row state_out",
      "b=3 s=5 len output_from h=6 g=2 x=2 state_out",
      "b=3 s=4 h=2 g=2 x=2 state_row state_out_row state_out snapshot snapshot_row "
      "snapshot_every=1",
      "b=2 s=16 h=2 g=1 x=1 state_row shared=2 state_out_row snapshot_row snapshot_every=2",
      "b=16 s=4 h=8 g=8 x=8 len state_row",
      "b=3 s=3 h=2 g=2 x=2 state_in:bf16 state_out state_out:bf16"};
  // Of more heads than a GPU has blocks, which then stay for several of them.
  const std::vector<std::string> many = {"b=40 s=8 e=128 state_row", "b=40 s=3 e=128 state_row",
                                         "start seqs=50 s=8 e=128 state_row",
                                         "b=40 s=5 e=128 len output_from", "b=20 s=4 e=256"};
  const std::vector<std::string> forms = {
      "beta gate_key gates=1",
      "beta beta_map=1 l2_norm=1 keys=1 gate_head",
      "beta gate_head gates=2",
      "beta beta:f32 beta_map=2 l2_norm=1 gate_key gate_key:f32 gate_map=1 gate_rate gate_bias",
      "beta l2_norm=1",
      "low_a low_b gate_key gates=1",
      "low_a low_b gate_key gates=2",
      "low_a low_b gate_head"};
  for (const char* type : {"bf16", "f16", "f32"})
    for (const char* d : {"64", "128"})
      for (size_t i = 0; i < calls.size(); ++i)
        for (size_t turn : {0, 3}) {
          const char* e = i % 2 == 0 ? " e=128 " : " e=64 ";
          add(std::string("o state_in q:") + type + " d=" + d + e + calls[i] + " " +
                  forms[(i + turn) % forms.size()],
              std::string("simt.") + type + ".d" + d + ".steps");
        }
  for (size_t i = 0; i < 2 * many.size(); ++i) {
    const std::string type = i % 3 ? "bf16" : "f32";
    add("o state_in q:" + type + " d=128 h=8 g=8 x=8 " + many[i % many.size()] + " " +
            forms[i % forms.size()],
        "sm90." + type + ".d128.drafts");
  }
  add("state_in state_out q:bf16 d=128 e=128 b=3 s=4 len h=2 g=2 x=2 beta gate_key",
      "simt.bf16.d128.steps");
  // Blocks of three warps and of one.
  for (const char* words : {"e=96 s=1", "e=96 s=11", "e=160 s=3", "e=160 s=9"})
    add(std::string("o state_in state_out q:bf16 d=128 b=2 h=2 g=2 x=2 beta gate_key ") + words,
        "simt.bf16.d128.steps");
}

// The same, of gradients.
void backward_chains(std::vector<harness::Case>& cases) {
  const std::string op = "x_delta_backward";
  const auto add = [&](const std::string& words, const std::string& kernel) {
    const auto draw = [words](uint64_t seed) { return backward(words, seed); };
    cases.push_back({op, name_of_words(words, "kernel"), draw, kernel, "", false});
  };
  const std::vector<std::string> shapes = {
      "e=64 b=2 s=150 h=2 g=2 x=2 state_in dstate_out all=1",
      "e=128 start seqs=5 s=200 h=4 g=2 x=2 state_in state_row dstate_out all=1",
      "e=64 b=3 s=100 len output_from h=2 g=2 x=4 state_in state_row all=1",
      "e=128 b=1 s=330 h=4 g=1 x=2 dstate_out all=1 sums=1",
      "e=64 b=2 s=65 h=4 g=4 x=2 state_in state_in:bf16 scale=0.3 dstate_out all=1 sums=3",
      "e=64 b=2 s=134 h=2 g=1 x=1 state_in state_row output_from all=1 sums=2",
      "e=64 start seqs=5 s=90 nan=1 dq dk dv dstate_in",
      "e=128 b=1 s=256 h=1 g=1 x=1 dstate_out all=1",
      "e=192 b=5 s=71 h=1 g=1 x=2 head_first dstate_out all=1"};
  const std::vector<std::string> forms = {
      "beta gate_head gates=1",
      "beta beta_map=1 l2_norm=1 keys=1",
      "beta gate_head gates=2",
      "beta beta:f32 beta_map=2 l2_norm=1 gate_head gate_head:f32 gate_map=1 "
      "gate_rate gate_bias",
      "beta wide=1 l2_norm=1",
      "gate_head gates=3",
      "beta l2_norm=1 gate_head gate_map=3 gate_tau=16",
      "beta gate_head constant=1"};
  for (const char* d : {"64", "128"}) {
    const std::string words = std::string("q:bf16 d=") + d + " ";
    const std::string kernel = std::string("sm90.bf16.d") + d;
    for (size_t i = 0; i < shapes.size(); ++i)
      for (size_t turn : {0, 3}) {
        const std::string& form = forms[(i + turn) % forms.size()];
        // dbeta summed over tokens is f32's.
        const bool simt = shapes[i].find("sums=1") != std::string::npos && form.find("beta") == 0;
        add(words + shapes[i] + " " + form, simt ? std::string("simt.bf16.d") + d : kernel);
      }
    add(words + "e=64 b=3 s=70 h=1 g=1 x=1 nan=2 state_in dstate_out gate_head gates=2 beta all=1",
        kernel);
    // More outputs of a state head than stages.
    add(words + "e=64 b=1 s=200 h=12 g=2 x=2 gate_head beta l2_norm=1 all=1", kernel);
    for (const char* alone : {"dq", "dk", "dv", "dstate_in", "beta dbeta", "gate_head dgate_head",
                              "gate_head gate_map=1 gate_rate dgate_rate"})
      add(words + "e=64 b=2 s=70 h=2 g=2 x=2 state_in dstate_out " + alone, kernel);
  }
}

// The same under key gates.
void key_backward_chains(std::vector<harness::Case>& cases) {
  const std::string op = "x_delta_backward";
  const auto add = [&](const std::string& words, const std::string& kernel) {
    const auto draw = [words](uint64_t seed) { return backward(words, seed); };
    cases.push_back({op, name_of_words(words, "kernel"), draw, kernel, "", false});
  };
  const std::vector<std::string> shapes = {
      "e=64 b=2 s=150 h=2 g=2 x=2 state_in dstate_out all=1",
      "e=128 start seqs=5 s=200 h=2 g=2 x=2 state_in state_row dstate_out all=1",
      "e=64 b=3 s=100 len output_from h=2 g=2 x=4 state_in state_row all=1",
      "e=128 b=1 s=330 h=2 g=1 x=4 dstate_out all=1 sums=1",
      "e=64 b=2 s=65 h=4 g=4 x=2 state_in state_in:bf16 scale=0.3 dstate_out all=1 sums=3",
      "e=64 b=2 s=134 h=1 g=1 x=1 state_in state_row output_from all=1 sums=2",
      "e=64 start seqs=5 s=90 h=2 g=2 x=2 nan=1 dq dk dv dstate_in",
      "e=128 b=1 s=256 h=1 g=1 x=1 dstate_out all=1",
      "e=192 b=5 s=71 h=1 g=1 x=2 head_first dstate_out all=1"};
  const std::vector<std::string> forms = {
      "beta gate_key gates=1",
      "beta beta_map=1 l2_norm=1 keys=1 gate_key",
      "beta gate_key gates=2",
      "beta beta:f32 beta_map=2 l2_norm=1 gate_key gate_key:f32 gate_map=1 gate_rate gate_bias",
      "beta wide=1 l2_norm=1 gate_key gate_map=2 gate_bound=5 gate_rate",
      "gate_key:f32 gate_key gates=3",
      "beta l2_norm=1 gate_head gate_key gate_map=3 gate_tau=16",
      "beta gate_key constant=1",
      "l2_norm=1 gate_key gate_key:f32 gate_map=4 gate_bias",
      "beta gate_key gates=3 gate_bound=9"};
  const std::vector<std::string> low = {
      "low_a low_b gate_key gates=1",
      "low_a low_b gate_key gate_map=2 gate_bound=0.6065307 gate_bias",
      "low_a low_b l2_norm=1 gate_key",
      "low_a low_b gate_key gates=2",
      "low_a low_b gate_head gate_key:f32 gate_key gates=3",
      "low_a low_b l2_norm=1 gate_key:f32 gate_key gate_map=1 gate_rate gate_bias",
      "low_a low_b gate_key gates=3 gate_bound=9"};
  for (const char* d : {"64", "128"}) {
    const std::string words = std::string("q:bf16 d=") + d + " ";
    const std::string kernel = std::string("sm90.key.bf16.d") + d;
    for (size_t i = 0; i < shapes.size(); ++i)
      for (size_t turn : {0, 3, 7}) {
        const std::string& form = forms[(i + turn) % forms.size()];
        // dbeta summed over tokens is f32's.
        const bool simt = shapes[i].find("sums=1") != std::string::npos && form.find("beta") == 0;
        add(words + shapes[i] + " " + form, simt ? std::string("simt.bf16.d") + d : kernel);
      }
    add(words + "e=64 b=3 s=70 h=1 g=1 x=1 nan=2 state_in dstate_out gate_key gates=2 beta all=1",
        kernel);
    for (size_t i = 0; i < shapes.size(); ++i)
      for (size_t turn : {0, 3})
        add(words + shapes[i] + " " + low[(i + turn) % low.size()],
            std::string("sm90.low.bf16.d") + d);
    for (const char* alone : {"dlow_a", "dlow_b", "dq", "dv", "dgate_key"})
      add(words + "e=64 b=2 s=70 h=2 g=2 x=2 state_in dstate_out gate_key low_a low_b " + alone,
          std::string("sm90.low.bf16.d") + d);
    for (const char* alone : {"dq", "dk", "dv", "dstate_in", "beta dbeta", "dgate_key",
                              "gate_head dgate_head", "gate_map=1 gate_rate dgate_rate"})
      add(words + "e=64 b=2 s=70 h=2 g=2 x=2 state_in dstate_out gate_key " + alone, kernel);
  }
}

std::vector<harness::Case> forwards() {
  WordCases cases("x_delta_forward", forward);
  cases.sweep("o",
              {kTypes,
               kWidths,
               kHeads,
               kLays,
               kPlaces,
               kGates,
               kForms,
               {"", "o:f32"},
               {"", "state_in", "state_in state_row", "state_in:bf16 state_in state_row"},
               {"", "state_out", "state_out state_out_row", "state_out state_out:bf16"},
               {"", "snapshot snapshot_row snapshot_every=16",
                "snapshot snapshot_row snapshot_every=64 snapshot:bf16"},
               {"", "output_from"},
               {"", "scale=0.3"}},
              "", 21);
  cases.sweep("state_in",
              {{"q:f32", "q:bf16"},
               {"d=16 e=24", "d=24 e=16"},
               {"h=2 g=1 x=2", "h=4 g=2 x=2"},
               {"b=5 s=1", "b=5 s=4 len", "b=3 s=40", "start seqs=6 s=50", "start seqs=5 s=9 len"},
               {"shared=1", "shared=1 state_row", "shared=1 state_row state_out_row",
                "shared=2 last=1 state_row snapshot_row snapshot_every=1",
                "shared=2 state_row state_out_row snapshot_row snapshot_every=1",
                "shared=2 state_row state_out_row snapshot_row snapshot_every=2"},
               {"o", "o beta gate_head", "low_a low_b gate_key gates=2"},
               {"", "state_in:bf16"}},
              "in_place", 22);
  // Sequences of more than a chunk.
  cases.sweep("o",
              {kTypes,
               {"d=16 e=24", "d=33 e=130", "d=64 e=64"},
               kHeads,
               {"b=1 s=129", "b=2 s=150 len", "start seqs=4 s=330", "b=2 s=64"},
               kGates,
               kForms,
               {"", "state_in", "state_in state_row"},
               {"", "state_out state_out_row"},
               {"", "snapshot snapshot_row snapshot_every=64"},
               {"", "output_from"}},
              "chunks", 24);
  // What a server does, at the shapes of a layer of a small model.
  const std::string layer =
      "q:bf16 h=2 g=2 x=4 d=32 e=48 l2_norm=1 beta beta_map=1 gate_head gate_map=1 gate_rate "
      "gate_bias ";
  cases.add(layer + "b=1 s=200 o state_in state_row state_out", "prefill");
  cases.add(layer + "b=7 s=1 o state_in state_row shared=1", "decode");
  cases.add(layer + "b=7 s=1 o state_in state_row len shared=1", "padded_rows");
  cases.add(layer + "b=6 s=5 o state_in state_row", "verify");
  cases.add(layer + "b=6 s=5 state_in state_row len shared=1", "commit");
  cases.add(
      layer + "b=6 s=5 o state_in state_row state_out_row snapshot_row snapshot_every=1 shared=2",
      "rollback");
  cases.add(layer +
                "b=2 s=200 o state_in state_row state_out snapshot snapshot_row "
                "snapshot_every=64",
            "prefix");
  cases.add(layer + "start seqs=9 s=120 o state_in state_row shared=1", "mixed");
  for (const char* s : {"63", "64", "65", "128", "193"})
    for (const char* form : {"beta l2_norm=1 gate_key gates=2 keys=1", "erase gate_key gates=3",
                             "low_a low_b gate_key gate_map=2 gate_bound=0.6065307"})
      cases.add(
          std::string("q:bf16 b=1 h=1 g=1 x=1 d=48 e=24 o state_in state_out s=") + s + " " + form,
          "chunks");
  cases.add("q:f16 b=1 s=70 h=4 g=1 x=2 d=200 e=130 l2_norm=1 beta o state_out gate_key", "wide");
  for (const char* words : {"b=0 o", "s=0 o state_in state_out", "b=3 s=2 d=1 e=1 o state_out len",
                            "start seqs=1 s=0 o state_out", "e=0 b=2 s=3 o state_out",
                            "b=4 s=12 snapshot snapshot_row snapshot_every=5 state_in",
                            "start seqs=7 s=2 o state_in state_out low_a low_b"})
    cases.add(words, "edge");
  // Another sequence's NaN, a state's, and blocks past 65,535.
  cases.add("start seqs=5 s=80 nan=1 o state_in state_out gate_key", "nan");
  cases.add("b=3 s=70 nan=1 o state_in state_out low_a low_b", "nan");
  cases.add("b=3 s=70 nan=2 o state_in state_out gate_key beta", "nan");
  cases.add("start seqs=1 s=66 nan=2 q:bf16 o state_in state_out gate_head erase", "nan");
  cases.add("b=2304 s=1 h=32 g=32 x=32 d=2 e=3 o state_in shared=1", "blocks");
  const std::string small = "b=1 s=3 h=2 g=1 x=2 d=4 e=3 o state_in state_out ";
  cases.add(small + "beta gate_head", "small", true);
  cases.add(small +
                "q:bf16 beta beta_map=1 l2_norm=1 gate_key gate_map=1 gate_rate gate_bias "
                "state_row",
            "small");
  // A golden file has outputs of which every element is written.
  cases.add("q:bf16 b=2 s=3 h=1 g=1 x=2 d=8 e=4 o state_in state_row low_a low_b gate_key", "small",
            true);
  std::vector<harness::Case> all = cases.cases();
  chains(all), key_chains(all), steps(all);
  return all;
}

std::vector<harness::Case> backwards() {
  WordCases cases("x_delta_backward", backward);
  const std::string all = " all=1";
  cases.sweep(
      "",
      {kTypes,
       kWidths,
       kHeads,
       kLays,
       kPlaces,
       kGates,
       kForms,
       {"", "dout:f32"},
       {"", "state_in", "state_in state_row", "state_in:bf16 state_in state_row"},
       {"", "dstate_out"},
       {"all=1", "all=1 sums=1", "all=1 sums=2", "all=1 sums=3", "dq", "dk", "dv", "dstate_in"},
       {"", "output_from"},
       {"", "scale=0.3"}},
      "", 23);
  // Each gradient of what is optional alone.
  const std::string gated = "b=2 s=20 h=2 g=1 x=2 d=16 e=8 state_in dstate_out ";
  for (const char* words :
       {"beta dbeta", "beta dbeta beta_map=2 dbeta:f32", "beta dbeta l2_norm=1", "erase derase",
        "erase beta dbeta head_first", "gate_head dgate_head wide",
        "gate_head gate_key dgate_head gates=3", "gate_head gate_key dgate_key gates=2 odd",
        "gate_key dgate_key dgate_key:f32 q:bf16", "gate_key gate_map=1 gate_rate dgate_rate",
        "gate_head gate_bias dgate_bias",
        "gate_key gate_map=2 gate_bound=3 gate_rate gate_bias dgate_bias dgate_rate",
        "low_a low_b dlow_a", "low_a low_b dlow_b gate_key gates=3", ""})
    cases.add(gated + words, "alone");
  for (const char* s : {"63", "64", "65", "128", "193"})
    for (const char* form : {"beta l2_norm=1 gate_key gates=2 keys=1", "erase gate_key gates=3",
                             "low_a low_b gate_key gate_map=2 gate_bound=0.6065307"})
      cases.add(std::string("q:bf16 b=1 h=1 g=1 x=1 d=48 e=24 state_in dstate_out s=") + s + " " +
                    form + all,
                "chunks");
  // So long that the host keeps the state of every second chunk.
  cases.add("b=1 h=1 g=1 x=1 d=4 e=3 s=8200 beta gate_head" + all, "chunks_apart");
  cases.add("q:bf16 b=1 s=70 h=2 g=1 x=2 d=128 e=130 l2_norm=1 beta gate_key" + all, "wide");
  for (const char* words :
       {"b=0", "s=0 state_in dstate_out", "b=3 s=2 d=1 e=1 len state_in dstate_out beta",
        "start seqs=1 s=0", "e=0 b=2 s=3 gate_head", "d=1 e=1 b=2 s=3 l2_norm=1",
        "start seqs=7 s=2 state_in dstate_out low_a low_b"})
    cases.add(words + all, "edge");
  cases.add("start seqs=5 s=80 nan=1 state_in gate_key dq dk dv dstate_in", "nan");
  cases.add("b=3 s=70 nan=1 state_in low_a low_b dq dk dv dstate_in", "nan");
  cases.add("b=3 s=70 nan=2 state_in dstate_out gate_key beta" + all, "nan");
  cases.add("b=2304 s=1 h=32 g=32 x=32 d=2 e=3 state_in dq dk dv dstate_in", "blocks");
  const std::string small = "b=1 s=3 h=2 g=1 x=2 d=4 e=3 state_in dstate_out ";
  cases.add(small + "beta gate_head dq dk dv dbeta dgate_head dstate_in", "small", true);
  cases.add(
      "q:bf16 b=2 s=3 h=1 g=1 x=2 d=8 e=4 low_a low_b gate_key dq dk dv dgate_key dlow_a "
      "dlow_b",
      "small", true);
  std::vector<harness::Case> all_cases = cases.cases();
  backward_chains(all_cases), key_backward_chains(all_cases);
  return all_cases;
}

const Family kForward("x_delta_forward", forwards);
const Family kBackward("x_delta_backward", backwards);

}  // namespace
}  // namespace cases
