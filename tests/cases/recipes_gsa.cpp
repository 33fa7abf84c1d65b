// SPDX-License-Identifier: Apache-2.0
// Gated slot attention by name: calls of x_gsa_forward whose numbers are the method's, against the
// definition of its paper, token by token.  Words are those of run_case.h.
#include "oracle/recipes_gsa.h"

#include "cases/run_case.h"
#include "oracle/gsa.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using oracle::Dense;
using oracle::Mode;
using oracle::Out;
using oracle::RunOracle;
using Params = fovea_x_gsa_forward_params;

// The letters of an output head of a sequence are what the call's tensors hold.
class Letters {
 public:
  Letters(const TableCall& made, const Params& p)
      : heads_(made.letters.at("heads")), outputs_(made.letters.at("heads_out")) {
    for (const auto& [name, x] :
         {std::pair{"q", &p.q}, {"k", &p.k}, {"v", &p.v}, {"gate", &p.gate}})
      tensors_[name] = oracle::load(*x);
  }
  HeadLetters operator()(const RunOracle::Tokens& at, int64_t output) const {
    HeadLetters x;
    x.tokens = at.count, x.d = tensors_.at("q").shape[3], x.e = tensors_.at("v").shape[3];
    x.heads = heads_, x.head = output / (outputs_ / heads_);
    x.letter = [this, at, output, head = x.head](const std::string& name, int64_t t, int64_t c) {
      const Dense& of = tensors_.at(name);
      const int64_t n =
          name == "q" ? output / (outputs_ / of.shape[2]) : head / (heads_ / of.shape[2]);
      return of(at.batch, at.begin + t, n, c);
    };
    return x;
  }

 private:
  const int64_t heads_, outputs_;
  std::map<std::string, Dense> tensors_;
};

// What the memories hold before the first token.
Slots first(const Params& p, const RunOracle& run, int64_t i, int64_t head) {
  const int64_t d = p.q.shape[3], e = p.v.shape[3], m = p.gate.shape[3];
  Slots x{Matrix(m, d), Matrix(m, e), {}};
  if (!p.state_k_in.data) return x;
  const int64_t row = run.in_row(i, p.state_k_in.shape[0]);
  if (row < 0) return x;
  const Dense k = oracle::load(p.state_k_in), v = oracle::load(p.state_v_in);
  for (int64_t c = 0; c < m; ++c) {
    for (int64_t u = 0; u < d; ++u) x.k(c, u) = k(row, head, u, c);
    for (int64_t j = 0; j < e; ++j) x.v(c, j) = v(row, head, c, j);
  }
  return x;
}

RunOracle run_of(const Params& p) {
  RunOracle run{oracle::load(p.start),       oracle::load(p.len),
                oracle::load(p.state_row),   oracle::load(p.state_out_row),
                oracle::load(p.output_from), {}};
  run.s = p.q.shape[1], run.token_max = p.token_max;
  run.r = run.start ? run.start.shape[0] - 1 : p.q.shape[0];
  return run;
}

// The definition's values in the places that the operation's oracle knows.
template <class Outs>
void define(const TableCall& made, const Params& p, Outs& to) {
  const RunOracle run = run_of(p);
  const Letters letters(made, p);
  const int64_t heads = made.letters.at("heads"), outputs = made.letters.at("heads_out");
  const int64_t d = p.q.shape[3], e = p.v.shape[3], m = p.gate.shape[3];
  for (int64_t i = 0; i < run.r; ++i)
    for (int64_t output = 0; output < outputs; ++output) {
      const RunOracle::Tokens at = run[i];
      const HeadLetters x = letters(at, output);
      const Slots y = gsa(x, first(p, run, i, x.head));
      for (int64_t t = at.from; t < at.count && p.o.data; ++t)
        for (int64_t j = 0; j < e; ++j)
          to.o.value[((at.batch * run.s + at.begin + t) * outputs + output) * e + j] = y.o[t][j];
      const int64_t row = p.state_k_out.data ? run.out_row(i, p.state_k_out.shape[0]) : -1;
      if (row < 0) continue;
      const int64_t state = row * heads + x.head;
      for (int64_t c = 0; c < m; ++c) {
        for (int64_t u = 0; u < d; ++u) to.state_k_out.value[(state * d + u) * m + c] = y.k(c, u);
        for (int64_t j = 0; j < e; ++j) to.state_v_out.value[(state * m + c) * e + j] = y.v(c, j);
      }
    }
}

// The rounded values are off by what the operation's rounded oracle is off from its exact one, so
// that numbers other than the paper's are no rounding.
Expected expected(const char* name, const Out& paper, const Out& exact, Out rounded) {
  for (size_t i = 0; i < rounded.value.size(); ++i)
    rounded.value[i] = paper.value[i] + (rounded.value[i] - exact.value[i]);
  return {name, paper, rounded};
}

std::vector<Expected> by_the_paper(TableCall& made) {
  const Params& p = made.params<Params>();
  const auto exact = oracle::Gsa<double, Params>(p).forward(Mode::exact);
  const auto rounded = oracle::Gsa<float, Params>(p).forward(Mode::rounded);
  auto paper = exact;
  define(made, p, paper);
  std::vector<Expected> all;
  if (p.o.data) all.push_back(expected("o", paper.o, exact.o, rounded.o));
  if (!p.state_k_out.data) return all;
  all.push_back(expected("state_k_out", paper.state_k_out, exact.state_k_out, rounded.state_k_out));
  all.push_back(expected("state_v_out", paper.state_v_out, exact.state_v_out, rounded.state_v_out));
  return all;
}

std::vector<harness::Case> recipe_cases() {
  Table table("x_gsa_forward", by_the_paper);
  table.recipe("gsa")
      .shape([](TableCall& made) {
        run_shape(made, 0);
        auto& x = made.letters;
        x["heads"] = std::max(x["g"], x["x"]), x["heads_out"] = std::max(x["h"], x["heads"]);
      })
      .contents(
          [](const TableCall& made, const std::string& field, const int64_t* i, double normal) {
            return is_run_integer(field) ? run_integer(made, field, i)
                   : field == "v"        ? silu(normal)
                                         : normal;
          });
  const std::string in = "state_k_in state_v_in", out = " state_k_out state_v_out";
  table.each("small", {"b=1 s=6 h=2 g=2 x=2 d=4 e=3 m=5 o " + in + out}, true);
  table.sweep({{"q:f32", "q:bf16", "q:f16"},
               {"h=2 g=2 x=2", "h=4 g=2 x=2", "h=2 g=2 x=4"},
               {"d=16 e=24 m=16", "d=64 e=16 m=64", "d=9 e=5 m=7"},
               {"b=2 s=9", "b=1 s=70", "b=3 s=20 len", "start seqs=5 s=40", "b=4 s=1"},
               {"contiguous", "head_first", "odd"},
               {"o", "o o:f32 gate:f32"},
               {in + out, out.substr(1), in + " state_row" + out + " output_from"}},
              121);
  return table.cases();
}

const Family kFamily("recipes_gsa", recipe_cases);

}  // namespace
}  // namespace cases
