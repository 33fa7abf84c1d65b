// SPDX-License-Identifier: Apache-2.0
// InfLLM by its name: calls of x_infllm_forward whose numbers are the method's, against the
// definition of its paper.  Rotations are quarter turns, which round nothing.
#include "oracle/recipes_infllm.h"

#include "cases/recipe_case.h"

namespace cases {
namespace {

using namespace oracle::recipes;
using oracle::Attention;
using oracle::Mode;
using Params = fovea_x_infllm_forward_params;

// An element of x (b, s, h, d) as its row is at a position.
double turned(const fovea_tensor& x, const int64_t* i, int64_t position) {
  const auto at = [&](int64_t c) {
    const int64_t n =
        i[0] * x.stride[0] + i[1] * x.stride[1] + i[2] * x.stride[2] + c * x.stride[3];
    return oracle::decode(x.dtype,
                          static_cast<const char*>(x.data) + n * oracle::bytes_of(x.dtype));
  };
  return quarter_turned(at, i[3], x.shape[3], position);
}

// Keys of whole blocks that the rows before left behind.
int64_t block_len(const TableCall& made, const Infllm& of) {
  const int64_t before = made.letters.at("t") - made.letters.at("s") - of.window;
  return before < 0 ? 0 : before / of.block * of.block;
}

Table remembered(const Infllm& of) {
  return Table("x_infllm_forward",
               [=](TableCall& made) {
                 const Params& p = made.params<Params>();
                 Attention a = load_operands(p);
                 for (int64_t b = 0; b < a.b; ++b)
                   for (int64_t i = 0; i < a.s; ++i)
                     for (int64_t h = 0; h < a.h; ++h)
                       quarter_turn(a.q.value.data() + a.q.at_index(b, i, h), a.d,
                                    a.s - a.at.extent - i);
                 const Chosen paper = infllm(a, oracle::load(p.representative), of);
                 if (paper.margin < 1e-5) throw Close();
                 const auto run = [&](Mode mode) {
                   return oracle::forward(paper.seen, p.o, p.lse, mode);
                 };
                 const auto exact = run(Mode::exact), rounded = run(Mode::rounded);
                 return std::vector<Expected>{{"o", exact.o, rounded.o},
                                              {"lse", exact.lse, rounded.lse}};
               })
      .recipe("infllm")
      .shape([=](TableCall& made) {
        made.letters["u"] = made.letters["t"] / of.block + 1;
        made.letters["representative_heads"] = made.letters["h"];
      })
      .contents([=](const TableCall& made, const std::string& field, const int64_t* i, double x) {
        const Params& p = made.params<Params>();
        const int64_t ahead = made.letters.at("t") - made.letters.at("s");
        if (field == "key_len") return static_cast<double>(made.letters.at("t"));
        if (field == "block_len") return static_cast<double>(block_len(made, of));
        // From the row's own position to the window's.
        if (field == "q_far") return turned(p.q, i, of.window - ahead - i[1]);
        if (field == "k_window") return turned(p.k, i, i[1]);
        return x;
      });
}

std::vector<harness::Case> recipe_cases() {
  std::vector<harness::Case> all;
  add_cases(all, remembered({4096, 128, 128, 16})
                     .each("paper", {"q:bf16 b=1 s=1 t=7000 h=4 g=2 d=64 e=64 lse",
                                     "q:f32 b=1 s=9 t=6700 h=2 g=1 d=16 e=16 lse",
                                     "q:bf16 b=2 s=20 t=150 h=2 g=2 d=32 e=32 lse"}));
  add_cases(all, remembered({6, 4, 4, 2})
                     .each("small",
                           {"b=1 s=3 t=34 h=2 g=1 d=8 e=4 window=6 init_keys=4 block_keys=4"
                            " count=2 lse"},
                           true));
  add_cases(all, remembered({40, 16, 16, 3})
                     .sweep(over_shapes({"s=70 t=270 window=40 init_keys=16 block_keys=16 count=3",
                                         "s=1 t=199 window=40 init_keys=16 block_keys=16 count=3",
                                         "s=20 t=150 window=40 init_keys=16 block_keys=16"
                                         " count=3"}),
                            54));
  return all;
}

const Family kFamily("recipes_infllm", recipe_cases);

}  // namespace
}  // namespace cases
