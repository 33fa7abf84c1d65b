// SPDX-License-Identifier: Apache-2.0
// Linear attention by name: calls of x_gla_forward and x_delta_forward whose numbers are the
// method's, against the definition of its paper, token by token; and attention that forgets.  What
// the caller prepares is prepared here: k of 1 - alpha, keys of unit length, gates that all tokens
// share.  Words beside those of run_case.h:
//   const=1   gates that all tokens share have strides of 0 over b and s; a bias, over rows
#include "oracle/recipes_linear.h"

#include "cases/recipe_case.h"
#include "cases/run_case.h"
#include "oracle/delta.h"
#include "oracle/gla.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using oracle::Dense;
using oracle::Mode;
using oracle::Out;
using oracle::RunOracle;

using Define = std::function<Linear(const HeadLetters&)>;
// The row of a field that the caller makes for a token.
using Prepared = std::map<std::string, std::function<Vec(const HeadLetters&, int64_t t)>>;

struct Method {
  const char *name, *op;
  Define define;
  Prepared prepared = {};
  bool all_keys = false;
};

// The letters of a call: numbers of a seed, rounded where a field of their name holds them.
class Alphabet {
 public:
  Alphabet(const TableCall& made, uint64_t seed) : made_(made), seed_(seed) {}

  double operator()(const std::string& name, int64_t b, int64_t row, int64_t head,
                    int64_t c) const {
    const harness::Random random(seed_ ^ harness::seed_of(name));
    const auto n = static_cast<uint64_t>((b * 4096 + row) * 64 + head) * 1024;
    return stored(name, random.normal(n + static_cast<uint64_t>(c)));
  }
  double stored(const std::string& field, double x) const {
    const harness::Call& call = made_.call;
    if (!has_field(call, field) || call.field(field) == call.fields.size()) return x;
    return oracle::nearest(call.fields[call.field(field)].tensor.dtype, x);
  }

 private:
  const TableCall& made_;
  const uint64_t seed_;
};

// What an output head of a sequence reads, from its row `begin` on.
HeadLetters letters_of(const TableCall& made, const Alphabet& alphabet, int64_t batch,
                       int64_t begin, int64_t output) {
  const auto extent = [&](const char* name) { return made.letters.at(name); };
  HeadLetters x;
  x.d = extent("d"), x.e = extent("e"), x.keys = extent("t"), x.heads = extent("heads");
  x.head = output / (extent("heads_out") / x.heads);
  const std::map<std::string, int64_t> head = {{"q", output / (extent("heads_out") / extent("h"))},
                                               {"k", x.head / (x.heads / extent("g"))},
                                               {"v", x.head / (x.heads / extent("x"))}};
  x.letter = [=, &alphabet, own = x.head](const std::string& name, int64_t t, int64_t c) {
    const auto of = head.find(name);
    return alphabet(name, batch, begin + t, of == head.end() ? own : of->second, c);
  };
  x.constant = [&alphabet, own = x.head](const std::string& name, int64_t c) {
    return alphabet(name, 0, 0, own, c);
  };
  x.stored_in = [&alphabet](const std::string& field, double y) {
    return alphabet.stored(field, y);
  };
  return x;
}

// Elements of an input; one row of what the caller makes is kept.
class Contents {
 public:
  Contents(const TableCall& made, const Alphabet& alphabet, const Method& method,
           const harness::Field& field)
      : made_(made), alphabet_(alphabet), field_(field) {
    const auto found = method.prepared.find(field.name);
    if (found != method.prepared.end()) prepare_ = found->second;
  }

  double operator()(const int64_t* i) {
    const std::string& name = field_.name;
    const int rank = field_.tensor.ndim;
    if (is_run_integer(name)) return run_integer(made_, name, i);
    if (name == "state_in") return alphabet_(name, i[0], i[1], i[2], i[3]) / 2;
    if (name == "z_in") return std::abs(alphabet_(name, i[0], 0, i[1], i[2]));
    // Of a token, or of all tokens of a head.
    const bool token = rank > 2;
    const std::array<int64_t, 3> at = {token ? i[0] : 0, token ? i[1] : 0, i[token ? 2 : 0]};
    const int64_t c = rank == 4 ? i[3] : rank == 2 ? i[1] : 0;
    if (!prepare_) return alphabet_(name, at[0], at[1], at[2], c);
    if (row_.empty() || at != at_) {
      const int64_t heads = field_.tensor.shape[token ? 2 : 0];
      const int64_t output = at[2] * (made_.letters.at("heads_out") / heads);
      at_ = at, row_ = prepare_(letters_of(made_, alphabet_, at[0], 0, output), at[1]);
    }
    return row_[static_cast<size_t>(c)];
  }

 private:
  const TableCall& made_;
  const Alphabet& alphabet_;
  const harness::Field& field_;
  std::function<Vec(const HeadLetters&, int64_t t)> prepare_;
  std::array<int64_t, 3> at_{};
  Vec row_;
};

void share_over_tokens(harness::Call& call, const char* name) {
  const size_t i = call.field(name);
  if (i == call.fields.size()) return;
  harness::Field& f = call.fields[i];
  f.tensor.stride[0] = f.tensor.stride[1] = 0, call.slot(f) = f.tensor;
}

// o and the last states by the definition, in the places that the operation's oracle knows.
template <class P>
class Defined {
 public:
  Defined(const TableCall& made, const Alphabet& alphabet, const Method& method)
      : made_(made),
        alphabet_(alphabet),
        method_(method),
        p_(made.params<P>()),
        run_(oracle::load_run(p_)) {}

  template <class Outs>
  void write(Outs& to) const {
    const int64_t outputs = made_.letters.at("heads_out"), heads = made_.letters.at("heads");
    for (int64_t i = 0; i < run_.r; ++i)
      for (int64_t output = 0; output < outputs; ++output) {
        const RunOracle::Tokens at = run_[i];
        const Linear y = method_.define(letters(i, at, output));
        for (int64_t t = at.from; t < at.count; ++t)
          for (int64_t j = 0; j < p_.v.shape[3] && made_.has("o"); ++j) {
            const int64_t row = at.batch * p_.q.shape[1] + at.begin + t;
            to.o.value[(row * outputs + output) * p_.v.shape[3] + j] = y.o[t][j];
          }
        if (output % (outputs / heads) == 0) state(i, output / (outputs / heads), y, to);
      }
  }

 private:
  HeadLetters letters(int64_t i, const RunOracle::Tokens& at, int64_t output) const {
    HeadLetters x = letters_of(made_, alphabet_, at.batch, at.begin, output);
    x.tokens = at.count;
    x.first = Matrix(x.d, x.e), x.z_first.resize(x.d);
    const int64_t row = p_.state_in.data ? run_.in_row(i, p_.state_in.shape[0]) : -1;
    const Dense state = row >= 0 ? oracle::load(p_.state_in) : Dense();
    for (int64_t c = 0; row >= 0 && c < x.d; ++c)
      for (int64_t j = 0; j < x.e; ++j) x.first(c, j) = state(row, x.head, c, j);
    if constexpr (requires { p_.z_in; })
      if (row >= 0 && p_.z_in.data) {
        const Dense z = oracle::load(p_.z_in);
        for (int64_t c = 0; c < x.d; ++c) x.z_first[c] = z(row, x.head, c);
      }
    return x;
  }
  template <class Outs>
  void state(int64_t i, int64_t n, const Linear& y, Outs& to) const {
    const int64_t row = p_.state_out.data ? run_.out_row(i, p_.state_out.shape[0]) : -1;
    if (row < 0) return;
    const int64_t at = row * made_.letters.at("heads") + n, count = y.state.rows * y.state.columns;
    for (int64_t c = 0; c < count; ++c) to.state_out.value[at * count + c] = y.state.x[c];
    if constexpr (requires { to.z_out; })
      for (int64_t c = 0; made_.has("z_out") && c < y.state.rows; ++c)
        to.z_out.value[at * y.state.rows + c] = y.z[c];
  }

  const TableCall& made_;
  const Alphabet& alphabet_;
  const Method& method_;
  const P& p_;
  const RunOracle run_;
};

// The definition's values in both modes.  The rounded one is off by what the operation's rounded
// oracle is off from its exact one, so that numbers other than the paper's are no rounding.
void expect(TableCall& made, const char* name, const Out& paper, const Out& exact, Out rounded) {
  for (size_t i = 0; i < rounded.value.size(); ++i)
    rounded.value[i] = paper.value[i] + (rounded.value[i] - exact.value[i]);
  if (made.has(name)) made.call.expect(made.call.field(name), paper, rounded);
}

template <class P, class Exact, class Rounded>
void expect_all(TableCall& made, const Alphabet& alphabet, const Method& method, const Exact& exact,
                const Rounded& rounded) {
  Exact paper = exact;
  Defined<P>(made, alphabet, method).write(paper);
  expect(made, "o", paper.o, exact.o, rounded.o);
  expect(made, "state_out", paper.state_out, exact.state_out, rounded.state_out);
  if constexpr (requires { paper.z_out; })
    expect(made, "z_out", paper.z_out, exact.z_out, rounded.z_out);
}

harness::Call call_of(const Method& method, const std::string& words, uint64_t seed) {
  TableCall made(method.op, words, seed);
  run_shape(made, 0);
  Letters& x = made.letters;
  x["heads"] = std::max(x["g"], x["x"]), x["heads_out"] = std::max(x["h"], x["heads"]);
  if (!method.all_keys) x["t"] = x["s"];
  made.inputs();
  if (letter(made, "const"))
    for (const char* name : {"gate_head", "gate_key"}) share_over_tokens(made.call, name);
  const Alphabet alphabet(made, seed);
  for (size_t i = 0; i < made.call.fields.size(); ++i)
    made.call.fill(i, Contents(made, alphabet, method, made.call.fields[i]));
  made.outputs();
  made.apply(method.name);
  if (std::string(method.op) == "x_gla_forward") {
    using P = fovea_x_gla_forward_params;
    const P& p = made.params<P>();
    expect_all<P>(made, alphabet, method, oracle::Gla<double, P>(p).forward(Mode::exact),
                  oracle::Gla<float, P>(p).forward(Mode::rounded));
  } else {
    using P = fovea_x_delta_forward_params;
    const oracle::Delta<P> oracle(made.params<P>());
    expect_all<P>(made, alphabet, method, oracle.forward(Mode::exact),
                  oracle.forward(Mode::rounded));
  }
  return std::move(made.call);
}

// ---- cases

class LinearTable {
 public:
  LinearTable(const char* op, Define define, Prepared prepared = {})
      : method_{"", op, std::move(define), std::move(prepared)} {}
  LinearTable& recipe(const char* name) {
    method_.name = name;
    return *this;
  }
  // Rows read all keys, of an extent of their own.
  LinearTable& all_keys() {
    method_.all_keys = true;
    return *this;
  }
  LinearTable& each(const char* note, const std::vector<std::string>& words, bool small = false) {
    for (const std::string& one : words) add(one, note, small);
    return *this;
  }
  LinearTable& sweep(const std::vector<std::vector<std::string>>& axes, uint64_t seed) {
    for (const std::string& words : covering(axes, seed)) add(words, "", false);
    return *this;
  }
  const std::vector<harness::Case>& cases() const { return cases_; }

 private:
  void add(const std::string& words, const std::string& note, bool small) {
    const auto build = [method = method_, words](uint64_t seed) {
      return call_of(method, words, seed);
    };
    cases_.push_back({method_.op,
                      std::string("recipe_") + method_.name + "_" + name_of_words(words, note),
                      build, "", "", small, false, method_.name});
  }

  Method method_;
  std::vector<harness::Case> cases_;
};

const char* const kGla = "x_gla_forward";
const char* const kDelta = "x_delta_forward";

// A small golden call, and a sweep over places, shapes and dtypes.  `given`: what the method needs;
// `heads` and `widths` of the sweep.
struct Shapes {
  std::string given = "";
  std::vector<std::string> heads = {"h=2 g=2 x=2", "h=4 g=2 x=2", "h=2 g=2 x=4"};
  std::vector<std::string> widths = {"d=16 e=24", "d=64 e=16", "d=9 e=5"};
  std::string small = "h=2 g=2 x=2 d=4 e=3";
  std::vector<std::string> places = {"b=2 s=9", "b=1 s=70", "b=3 s=20 len", "start seqs=5 s=40",
                                     "b=4 s=1"};
  std::string z = "";       // normalise: states of the normaliser
  std::string shared = "";  // words of gates that all tokens share
};

void tried(std::vector<harness::Case>& to, LinearTable table, const Shapes& shapes, uint64_t seed) {
  const std::string in = " state_in" + (shapes.z.empty() ? "" : " " + shapes.z + "_in");
  const std::string out = " state_out" + (shapes.z.empty() ? "" : " " + shapes.z + "_out");
  const std::string given = shapes.given.empty() ? "" : " " + shapes.given;
  table.each("small", {"b=1 s=6 " + shapes.small + given + " o" + in + out}, true);
  table.sweep(
      {{"q:f32", "q:bf16", "q:f16"},
       shapes.heads,
       shapes.widths,
       shapes.places,
       {"contiguous", "head_first", "odd"},
       {"o" + given, "o o:f32" + given + shapes.shared},
       {in.substr(1) + out, out.substr(1), in.substr(1) + " state_row" + out + " output_from"}},
      seed);
  for (const harness::Case& c : table.cases()) to.push_back(c);
}

// Every row reads all keys: no state, keys of another number.
void tried_on_all_keys(std::vector<harness::Case>& to, LinearTable table,
                       const std::vector<std::string>& widths, const std::string& small,
                       uint64_t seed) {
  table.all_keys().each("small", {"b=1 s=4 t=6 h=2 g=2 x=2 o " + small}, true);
  table.sweep({{"q:f32", "q:bf16", "q:f16"},
               {"h=2 g=2 x=2", "h=4 g=2 x=2"},
               widths,
               {"b=2 s=9 t=70", "b=1 s=70 t=70", "b=3 s=20 t=7"},
               {"contiguous", "head_first", "odd"},
               {"o", "o o:f32", "o state_out z_out"}},
              seed);
  for (const harness::Case& c : table.cases()) to.push_back(c);
}

// ---- additive states

const std::vector<std::string> kAlike = {"h=2 g=2 x=2", "h=3 g=3 x=3"};

void normalised(std::vector<harness::Case>& to) {
  tried(to, LinearTable(kGla, linear_transformer).recipe("linear_transformer"), {.z = "z"}, 81);
  const std::vector<std::string> widths = {"d=16 e=24", "d=64 e=16", "d=33 e=5"};
  tried_on_all_keys(to, LinearTable(kGla, sana).recipe("sana"), widths, "d=8 e=3", 82);
  tried_on_all_keys(to, LinearTable(kGla, sla).recipe("sla"), widths, "d=8 e=3", 83);
  const auto mapped = [](const char* field) {
    return
        [=](const HeadLetters& x, int64_t t) { return taylor_map(x.row(field, t, (x.d - 1) / 2)); };
  };
  tried_on_all_keys(
      to, LinearTable(kGla, qt_vit, {{"q", mapped("q")}, {"k", mapped("k")}}).recipe("qt_vit"),
      {"d=17 e=24", "d=65 e=16", "d=33 e=5"}, "d=17 e=3", 84);
}

void by_head(std::vector<harness::Case>& to) {
  tried(to, LinearTable(kGla, chela).recipe("chela"), {}, 85);
  const auto slope = [](const HeadLetters& x, int64_t) {
    return Vec{-lightning_rate(x.head, x.heads)};
  };
  tried(to, LinearTable(kGla, lightning, {{"gate_head", slope}}).recipe("lightning"),
        {.given = "gate_head gate_head:f32", .shared = " const=1"}, 86);
  const auto gamma = [](const HeadLetters& x, int64_t) {
    return Vec{std::log(1 - std::exp2(-5.0 - static_cast<double>(x.head)))};
  };
  tried(to, LinearTable(kGla, retnet, {{"gate_head", gamma}}).recipe("retnet"),
        {.given = "gate_head gate_head:f32", .shared = " const=1"}, 87);
  tried(to, LinearTable(kGla, simple_gla).recipe("simple_gla"), {.given = "gate_head"}, 88);
  const auto delta = [](const HeadLetters& x, int64_t t) { return Vec{step_of(x, t)}; };
  tried(to, LinearTable(kGla, mamba2, {{"select", delta}}).recipe("mamba2"),
        {.given = "gate_head gate_rate gate_bias select select:f32 skip",
         .heads = {"h=1 g=1 x=4", "h=2 g=2 x=4", "h=2 g=2 x=2"},
         .small = "h=1 g=1 x=2 d=4 e=3"},
        89);
}

void by_channel(std::vector<harness::Case>& to) {
  tried(to, LinearTable(kGla, gla).recipe("gla"), {.given = "gate_key"}, 91);
  const auto rest = [](const HeadLetters& x, int64_t t) {
    return each_of(alpha_16(x, t), [](double alpha) { return 1 - alpha; });
  };
  // The paper's product is unscaled, the call's is scaled.
  const auto bonus = [](const HeadLetters& x, int64_t) {
    return 1 / x.scale() * x.weights("w_aug", x.d);
  };
  tried(to, LinearTable(kGla, metala, {{"k", rest}, {"bonus", bonus}}).recipe("metala"),
        {.given = "gate_key bonus", .heads = kAlike}, 92);
  const auto log_alpha = [](const HeadLetters& x, int64_t t) {
    return each_of(hgrn2_alpha(x, t), [](double alpha) { return std::log(alpha); });
  };
  const auto left = [](const HeadLetters& x, int64_t t) {
    return each_of(hgrn2_alpha(x, t), [](double alpha) { return 1 - alpha; });
  };
  tried(to, LinearTable(kGla, hgrn2, {{"k", left}, {"gate_key", log_alpha}}).recipe("hgrn2"),
        {.given = "gate_key", .heads = kAlike}, 93);
  const auto omega = [](const HeadLetters& x, int64_t) { return x.weights("omega", x.d); };
  tried(to, LinearTable(kGla, rwkv5, {{"gate_key", omega}}).recipe("rwkv5"),
        {.given = "gate_key gate_key:f32 bonus", .shared = " const=1"}, 94);
  tried(to, LinearTable(kGla, rwkv6).recipe("rwkv6"), {.given = "gate_key bonus"}, 95);
  const auto decay = [](const HeadLetters& x, int64_t t) { return rodimus_gates(x, t).log_alpha; };
  const auto key = [](const HeadLetters& x, int64_t t) {
    return rodimus_gates(x, t).select * l2(x.row("key", t, x.d));
  };
  tried(to, LinearTable(kGla, rodimus, {{"k", key}, {"gate_key", decay}}).recipe("rodimus"),
        {.given = "gate_key",
         .heads = {"h=1 g=1 x=1", "h=2 g=2 x=2"},
         .widths = {"d=16 e=24", "d=64 e=130", "d=9 e=5"},
         .small = "h=1 g=1 x=1 d=4 e=5"},
        96);
}

// ---- corrected states

// Keys of the caller's making: a key head for each state.
const std::vector<std::string> kOwnKeys = {"h=2 g=2 x=2", "h=4 g=2 x=2"};

void without_gate(std::vector<harness::Case>& to) {
  const auto mapped = [](const char* letter) {
    return [=](const HeadLetters& x, int64_t t) { return dpfp(x.row(letter, t, x.d / 2)); };
  };
  tried(to,
        LinearTable(kDelta, deltanet, {{"q", mapped("query")}, {"k", mapped("key")}})
            .recipe("deltanet"),
        {.given = "beta", .heads = kOwnKeys, .widths = {"d=16 e=24", "d=64 e=16", "d=10 e=5"}},
        101);
  tried(to, LinearTable(kDelta, deltanet2).recipe("deltanet2"), {.given = "beta"}, 102);
}

void gated(std::vector<harness::Case>& to) {
  const std::string gate = " gate_head gate_rate gate_bias";
  tried(to, LinearTable(kDelta, gated_deltanet).recipe("gated_deltanet"), {.given = "beta" + gate},
        103);
  const int64_t writes = 2;
  const auto query = [=](const HeadLetters& x, int64_t t) {
    return (t % writes == writes - 1 ? 1.0 : 0.0) * x.row("query", t / writes, x.d);
  };
  const auto decay = [=](const HeadLetters& x, int64_t t) {
    return Vec{t % writes == 0 ? log_forget_of(x, t / writes) : 0};
  };
  tried(to,
        LinearTable(kDelta, [=](const HeadLetters& x) { return gated_deltaproduct(x, writes); },
                    {{"q", query}, {"gate_head", decay}})
            .recipe("gated_deltaproduct"),
        {.given = "beta gate_head",
         .heads = {"h=2 g=2 x=2", "h=4 g=2 x=2"},
         .places = {"b=2 s=10", "b=1 s=70", "b=3 s=20 len", "b=4 s=2"}},
        104);
  const auto read = [](const HeadLetters& x, int64_t t) {
    return -logistic(x.constant("b", 0)) * l2(x.row("key", t, x.d));
  };
  const auto write = [](const HeadLetters& x, int64_t t) {
    return x.beta(t) * l2(x.row("key", t, x.d));
  };
  const auto corrected = [](const HeadLetters& x, int64_t t) {
    return l2(x.row("query", t, x.d)) - x.constant("d", 0) * l2(x.row("key", t, x.d));
  };
  tried(to,
        LinearTable(kDelta, comba,
                    {{"q", corrected}, {"k", write}, {"low_a", read}, {"low_b", write}})
            .recipe("comba"),
        {.given = "low_a low_b" + gate, .heads = kAlike}, 105);
}

void gated_by_channel(std::vector<harness::Case>& to) {
  const std::string gate = " gate_key gate_rate gate_bias";
  tried(to, LinearTable(kDelta, kda).recipe("kda"), {.given = "beta" + gate}, 106);
  tried(to, LinearTable(kDelta, kda_bounded).recipe("kda_bounded"), {.given = "beta" + gate}, 107);
  const auto unit = [](const char* letter) {
    return [=](const HeadLetters& x, int64_t t) { return l2(x.row(letter, t, x.d)); };
  };
  const auto erase = [](const HeadLetters& x, int64_t t) {
    return gate_of(x, "b", t, x.d) * l2(x.row("key", t, x.d));
  };
  const auto value = [](const HeadLetters& x, int64_t t) {
    return gate_of(x, "w", t, x.e) * x.row("value", t, x.e);
  };
  tried(to,
        LinearTable(kDelta, gdn2,
                    {{"q", unit("query")}, {"k", unit("key")}, {"v", value}, {"erase", erase}})
            .recipe("gdn2"),
        {.given = "erase" + gate, .heads = kOwnKeys}, 108);
  const auto keys = [](Vec (*of)(const Rwkv7Keys&)) {
    return [=](const HeadLetters& x, int64_t t) { return of(rwkv7_keys(x, t)); };
  };
  tried(to,
        LinearTable(kDelta, rwkv7,
                    {{"k", keys([](const Rwkv7Keys& y) { return y.k; })},
                     {"low_a", keys([](const Rwkv7Keys& y) { return -1.0 * y.kappa; })},
                     {"low_b", keys([](const Rwkv7Keys& y) { return y.a * y.kappa; })}})
            .recipe("rwkv7"),
        {.given = "gate_key low_a low_b", .heads = kOwnKeys}, 109);
}

// ---- attention that forgets

// The log of a forget gate; sums of them are exact in f32.
double log_forget(int64_t b, int64_t head, int64_t t) {
  const auto place = static_cast<uint64_t>((b * 64 + head) * 4096 + t);
  return -static_cast<double>(1 + harness::hash(place) % 64) / 256;
}

void forgetting(std::vector<harness::Case>& to) {
  const auto bias = [](const int64_t* i, double) {
    double sum = 0;
    for (int64_t t = 0; t <= i[3]; ++t) sum += log_forget(i[0], i[1], t);
    return -sum;
  };
  Table table("attention_forward",
              [](TableCall& made) {
                harness::Call& call = made.call;
                harness::Field& f = call.fields[call.field("bias")];
                if (letter(made, "const")) f.tensor.stride[2] = 0, call.slot(f) = f.tensor;
                return attend<fovea_attention_forward_params>(
                    made, [](const oracle::Attention& a, Mode) { return fox(a, log_forget); });
              },
              {{"bias", bias}});
  table.recipe("fox").each("small", {"b=1 s=4 t=7 h=2 g=1 d=4 e=4 bias"}, true);
  table.sweep(
      {{"q:f32", "q:bf16", "q:f16"},
       {"b=2 h=4 g=2 d=64 e=64", "b=1 h=4 g=4 d=16 e=24", "b=1 h=6 g=1 d=128 e=128"},
       {"contiguous", "head_first", "odd"},
       {"o:f32", ""},
       {"s=20 t=90 bias", "s=1 t=60 bias", "s=50 t=50 bias const=1", "s=1 t=33 bias const=1"}},
      110);
  add_cases(to, table);
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  normalised(all), by_head(all), by_channel(all);
  without_gate(all), gated(all), gated_by_channel(all);
  forgetting(all);
  return all;
}

const Family kFamily("recipes_linear", recipe_cases);

}  // namespace
}  // namespace cases
