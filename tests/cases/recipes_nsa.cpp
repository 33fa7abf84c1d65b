// SPDX-License-Identifier: Apache-2.0
// NSA by name: calls of x_nsa_forward whose numbers are the method's, against the definition of its
// paper, with means for compressed keys and with the caller's own.
#include "oracle/recipes_nsa.h"

#include "cases/recipe_case.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using oracle::Attention;
using oracle::Dense;
using oracle::Mode;
using oracle::Out;
using Params = fovea_x_nsa_forward_params;

// Attention over keys and values of another number, or of another place.
Attention over(Attention a, const Dense& k, const Dense& v) {
  a.k = k, a.v = v, a.at.extent = a.columns = k.shape[1];
  return a;
}

Branches branches(const Params& p, const NsaNumbers& n, Mode mode) {
  const Attention a = load_operands(p);
  const bool given = p.k_compressed.data != nullptr, own = p.k_window.data != nullptr;
  const auto compressed = [&](const fovea_tensor& of, const Dense& x, bool rounds) {
    return given ? oracle::load(of) : means_of(x, n, rounds);
  };
  // Rows choose by compressed keys as they are stored.
  const Dense chosen_by = compressed(p.k_compressed, a.k, true);
  const Dense k = compressed(p.k_compressed, a.k, mode == Mode::rounded);
  const Dense v = compressed(p.v_compressed, a.v, mode == Mode::rounded);
  const Attention window = own ? over(a, oracle::load(p.k_window), oracle::load(p.v_window)) : a;
  return nsa(over(a, k, v), a, window, chosen_by, n);
}

Table nsa_of(const NsaNumbers& n) {
  Table table("x_nsa_forward", [=](TableCall& made) {
    const Params& p = made.params<Params>();
    const std::array<Dense, 3> gate = {oracle::load(p.gate_compressed),
                                       oracle::load(p.gate_selected), oracle::load(p.gate_window)};
    const char* names[] = {"compressed", "selected", "window"};
    const fovea_tensor* lse[] = {&p.lse_compressed, &p.lse_selected, &p.lse_window};
    std::vector<Expected> out = {{"o", {}, {}}};
    for (size_t i = 0; i < 3; ++i) {
      out.push_back({std::string("o_") + names[i], {}, {}});
      out.push_back({std::string("lse_") + names[i], {}, {}});
    }
    for (const Mode mode : {Mode::exact, Mode::rounded}) {
      const auto to = mode == Mode::exact ? &Expected::exact : &Expected::rounded;
      const Branches paper = branches(p, n, mode);
      if (paper.margin < 1e-5) throw Close();
      fovea_tensor stored = p.o;  // a branch has the dtype of q
      stored.dtype = p.q.dtype;
      std::array<Out, 3> o;
      for (size_t i = 0; i < 3; ++i) {
        const auto one = oracle::forward(paper.of[i], stored, *lse[i], mode);
        out[2 * i + 1].*to = o[i] = one.o, out[2 * i + 2].*to = one.lse;
      }
      out[0].*to = gated(o, gate, p.o, p.q.dtype, mode);
    }
    return out;
  });
  return table.recipe("nsa").shape(
      [=](TableCall& made) { made.letters["u"] = n.compressed(made.letters["t"]); });
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  const std::string gates = " gate_compressed gate_selected gate_window";
  const std::string each =
      " o_compressed o_selected o_window lse_compressed lse_selected lse_window";
  const std::string given = " k_compressed v_compressed k_window v_window";
  add_cases(all, nsa_of({32, 16, 64, 16, 512})
                     .each("paper", {"q:bf16 b=1 s=5 t=1500 h=16 g=1 d=64 e=64" + gates + each,
                                     "q:f32 b=1 s=3 t=1300 h=4 g=2 d=32 e=16" + gates + given,
                                     "q:f16 b=2 s=40 t=40 h=4 g=2 d=32 e=32" + gates}));
  add_cases(all, nsa_of({4, 2, 4, 4, 5})
                     .each("small",
                           {"b=1 s=3 t=26 h=2 g=1 d=4 e=4 compress_keys=4 compress_step=2"
                            " block_keys=4 count=4 window=5" +
                            gates},
                           true));
  add_cases(
      all,
      nsa_of({8, 4, 16, 4, 20})
          .sweep({{"q:f32", "q:bf16", "q:f16"},
                  {"b=2 h=4 g=2 d=64 e=64", "b=1 h=4 g=4 d=16 e=24", "b=1 h=16 g=1 d=128 e=128"},
                  {"contiguous", "head_first", "odd"},
                  {"o:f32" + each, each, ""},
                  {"", given},
                  {"s=70 t=70", "s=20 t=150", "s=1 t=200", "s=5 t=7"},
                  {"compress_keys=8 compress_step=4 block_keys=16 count=4 window=20" + gates}},
                 64));
  return all;
}

const Family kFamily("recipes_nsa", recipe_cases);

}  // namespace
}  // namespace cases
