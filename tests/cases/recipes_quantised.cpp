// SPDX-License-Identifier: Apache-2.0
// The methods of low-bit attention by name: calls of x_quantised_forward whose numbers are the
// method's, against the rounding that its paper defines.  How far each is from exact attention,
// tests/properties/quantised.cpp holds to what the papers claim.
#include "oracle/recipes_quantised.h"

#include "cases/recipe_case.h"
#include "cases/sagebwd_case.h"
#include "oracle/quantised.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using Params = fovea_x_quantised_forward_params;
using oracle::Mode;
using oracle::QuantAttention;

using Define = std::function<QuantAttention(QuantAttention, const Operands&)>;

// e4m3: whether tensor cores sum products of e4m3 in scores.
Table method(const Define& define, int p_format, int accumulate, bool e4m3 = false) {
  Table table("x_quantised_forward", [=](TableCall& made) -> std::vector<Expected> {
    const Params& p = made.params<Params>();
    fovea_quant_forward_params call{};
    call.q.dtype = e4m3 ? FOVEA_E4M3 : FOVEA_I8;
    call.o = p.o, call.lse = p.lse, call.p_format = p_format, call.accumulate = accumulate;
    const QuantAttention a =
        define(full_places(p), {oracle::load(p.q), oracle::load(p.k), oracle::load(p.v)});
    const auto exact = oracle::quant_forward(a, call, Mode::exact);
    const auto rounded = oracle::quant_forward(a, call, Mode::rounded);
    return {{"o", exact.o, rounded.o}, {"lse", exact.lse, rounded.lse}};
  });
  return table;
}

void all_of(std::vector<harness::Case>& to, Table table) {
  add_cases(to, Table(table).each("paper", {"q:f16 b=1 s=150 t=300 h=2 g=2 d=64 e=64 lse",
                                            "q:bf16 b=2 s=40 t=200 h=4 g=2 d=128 e=128 causal=1"}));
  add_cases(to, Table(table).each("small", {"q:f16 b=1 s=2 t=5 h=1 g=1 d=16 e=16 lse"}, true));
  add_cases(to, table.sweep({{"q:f16", "q:bf16"},
                             {"b=1 h=4 g=2 d=64 e=64", "b=2 h=2 g=1 d=128 e=128"},
                             {"s=130 t=130", "s=1 t=129", "s=63 t=65"},
                             {"contiguous", "head_first"},
                             {"lse o:f32", ""},
                             {"", "causal=1"}},
                            23));
}

// SageBwd's gradient, of the paper's own q^ and k^.
Table sagebwd_gradient() {
  return Table("x_quant_backward", [](TableCall& made) {
    const auto& p = made.params<fovea_x_quant_backward_params>();
    const Operands x{oracle::load(p.q), oracle::load(p.k), oracle::load(p.v)};
    QuantAttention a = sagebwd(full_places(p), x);
    a.v = x.v;
    return gradients_of(made, a);
  });
}

void all_gradients(std::vector<harness::Case>& to, Table table) {
  add_cases(to, Table(table).each("paper", {"q:f16 b=1 s=150 t=200 h=2 g=2 d=64 e=64 dq dk dv",
                                            "q:bf16 b=2 s=70 t=70 h=4 g=2 d=128 e=128 dq dk dv "
                                            "causal=1"}));
  add_cases(to, table.each("short", {"q:f16 b=1 s=2 t=5 h=1 g=1 d=16 e=16 dq dk dv"}));
}

std::vector<harness::Case> recipe_cases() {
  constexpr int kTwoLevel = FOVEA_ACCUMULATE_TWO_LEVEL, kHalf = FOVEA_ACCUMULATE_HALF_64,
                kFloat = FOVEA_ACCUMULATE_F32, kWide = FOVEA_P_FORMAT_E4M3_448;
  const auto two = [](const QuantAttention& a, const Operands& x) { return sageattention2(a, x); };
  std::vector<harness::Case> to;
  all_of(to, method(fa3_fp8, FOVEA_P_FORMAT_E4M3_256, kTwoLevel, true).recipe("fa3_fp8"));
  all_of(to, method(sageattention, FOVEA_P_FORMAT_HALF, kHalf).recipe("sageattention"));
  all_of(to, method(two, kWide, kTwoLevel).recipe("sageattention2"));
  all_of(to, method(sageattention2_int4, kWide, kTwoLevel).recipe("sageattention2_int4"));
  all_of(to, method(sageattention2pp, kWide, kHalf).recipe("sageattention2pp"));
  all_of(to, method(sageattention3, FOVEA_P_FORMAT_E2M1_TWO, kFloat).recipe("sageattention3"));
  all_of(to, method(sagebwd, FOVEA_P_FORMAT_I8, kFloat).recipe("sagebwd"));
  all_gradients(to, sagebwd_gradient().recipe("sagebwd"));
  return to;
}

const Family kFamily("recipes_quantised", recipe_cases);

}  // namespace
}  // namespace cases
