// SPDX-License-Identifier: Apache-2.0
#include "random/lists.h"

namespace random_calls {
namespace {

// Formats and groups that go together: fovea_x_code of q and k, of v, groups, p_format.
struct Method {
  int32_t code, v_code, q_group, k_group, v_group, p_format;
};
constexpr Method kMethods[] = {{0, 0, 0, 0, 0, 0}, {1, 4, 0, 0, 0, 2}, {1, 0, 1, 2, 4, 1},
                               {1, 0, 3, 3, 4, 1}, {2, 0, 1, 2, 4, 1}, {1, 1, 0, 0, 0, 3},
                               {3, 3, 5, 5, 7, 4}, {3, 3, 6, 6, 8, 5}};

void scalars(Draw& d) {
  const Method& m = kMethods[d.below(8)];
  d.set("code", m.code), d.set("v_code", m.v_code), d.set("p_format", m.p_format);
  d.set("q_group", m.q_group), d.set("k_group", m.k_group), d.set("v_group", m.v_group);
  const auto block = [&](int32_t group, std::initializer_list<int64_t> sizes) {
    const bool of_blocks = group <= FOVEA_SCALE_GROUP_THREAD_K;
    return static_cast<int32_t>(of_blocks ? d.one_of(sizes) : 0);
  };
  d.set("q_block", m.q_group ? block(m.q_group, {16, 32, 64, 128}) : block(0, {0, 16, 64, 192}));
  d.set("k_block", m.k_group ? block(m.k_group, {64, 128}) : block(0, {0, 32, 64, 128}));
  d.set("v_block", m.v_code == 4 || m.v_group ? 0 : block(0, {0, 64}));
  d.set("v_scale_max", m.v_code == 0 && d.one_in(3) ? 2.25f : 0.0f);
  d.set("k_smooth", static_cast<int32_t>(d.below(2)));
  const bool smooths = d.one_in(3);
  d.set("q_smooth", smooths ? 2 : 0);
  d.set("accumulate", static_cast<int32_t>(d.below(3)));
  const bool rotates = !smooths && d.one_in(4);
  d.set("hadamard", static_cast<int32_t>(rotates));
  d.set<int64_t>("seed", rotates ? 9 : 0);
  draw_margin(d);
}

void letters(Draw& d) {
  d.x("d") = d.one_of({2, 16, 32, 64, 64, 96, 128, 128});
  d.x("e") = d.one_of({1, 16, 64, 64, 128, 128});
  draw_list_letters(d);
}

void gradient_scalars(Draw& d) {
  d.set("k_smooth", static_cast<int32_t>(d.below(2)));
}
void gradient_letters(Draw& d) {
  d.x("d") = d.one_of({1, 2, 16, 33, 64, 96, 128});
  d.x("e") = d.one_of({1, 16, 40, 64, 128});
}

const Rules kQuantised({"x_quantised_"}, {.tensors = draw_lists,
                                          .letters = letters,
                                          .extents = draw_list_sizes,
                                          .scalars = scalars,
                                          .integers = draw_list_places,
                                          .rough = always});
const Rules kGradient({"x_quant_"},
                      {.letters = gradient_letters, .scalars = gradient_scalars, .rough = always});

}  // namespace
}  // namespace random_calls
