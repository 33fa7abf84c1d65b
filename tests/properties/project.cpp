// SPDX-License-Identifier: Apache-2.0
// The oracle of experimental/project.h: each gradient against central differences of its forward.
#include "oracle/project.h"
#include "properties/derivatives.h"

namespace {

using oracle::Mode;
using properties::expect_derivative, properties::Some, properties::weighed;

// Layers, heads of x and of y, maps, activation, norm and rotation.
struct Variant {
  int layers;
  int64_t g, h, maps;
  int32_t act;
  bool norm, turn;
};
constexpr Variant kVariants[] = {{1, 2, 4, 2, 0, false, true},
                                 {1, 4, 2, 4, 0, true, true},
                                 {2, 2, 2, 1, 1, true, false},
                                 {3, 1, 3, 3, 2, false, false},
                                 {3, 6, 2, 3, 1, true, true}};

TEST(oracle, project_gradient_is_the_derivative) {
  for (const Variant& v : kVariants) {
    SCOPED_TRACE(v.layers * 10 + v.act);
    Some some(71 + v.layers);
    fovea_x_project_forward_params p = {};
    const int64_t width[] = {3, v.layers == 1 ? 4 : 5, v.layers == 2 ? 4 : 2, 4};
    p.x = some({2, 3, v.g, 3});
    fovea_tensor* weight[] = {&p.weight, &p.weight2, &p.weight3};
    fovea_tensor* bias[] = {&p.bias, &p.bias2, &p.bias3};
    for (int l = 0; l < v.layers; ++l)
      *weight[l] = some({v.maps, width[l], width[l + 1]}), *bias[l] = some({v.maps, width[l + 1]});
    if (v.norm) p.norm_weight = some({4});
    if (v.turn) p.cos = some({3, 1}), p.sin = some({3, 1}), p.rope_begin = 1;
    p.act = v.act, p.norm_eps = 0.1f, p.y = some({2, 3, v.h, 4});
    const oracle::Dense dy = oracle::load(p.y);

    oracle::Project<double> project(p, p.y);
    const auto gradients = project.backward(p.y);
    const auto loss = [&] { return weighed(dy, project.forward(p, Mode::exact).y); };
    expect_derivative("x", project.x, gradients.dx.value, loss);
    for (int l = 0; l < v.layers; ++l) {
      expect_derivative("weight", project.weight[l], gradients.dweight[l].value, loss);
      expect_derivative("bias", project.bias[l], gradients.dbias[l].value, loss);
    }
    if (v.norm)
      expect_derivative("norm_weight", project.norm_weight, gradients.dnorm_weight.value, loss);
  }
}

}  // namespace
