// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// What the comments of experimental/project.h say of layers, heads, codes and what goes together.
TEST(ContractProject, Forward) {
  const Params plain = valid("x_project_forward", "plain").params;
  const Params all = valid("x_project_forward", "all").params;
  says(with(plain, "act", 1), "x_project_forward: act is 1, wanted 0: there is no weight2");
  says(with(all, "act", 3), "x_project_forward: act is 3, wanted a fovea_x_project_act");
  says(with(plain, "bits", 2), "x_project_forward: bits is 2, wanted 0: there is no code");
  for (int bits : {-1, 32})
    says(with(all, "bits", bits),
         "x_project_forward: bits is " + std::to_string(bits) + ", wanted 1 .. 31, or 0 for signs");
  says(with(all, "bits", 4),
       "x_project_forward: code.shape[3] (words) is 2, wanted f / bits = 1: f is 6");
  says(with(all, "bits", 0),
       "x_project_forward: code.shape[3] (words) is 2, wanted ceil(f / 32) = 1: f is 6");
  says(with(plain, "rope_begin", 1),
       "x_project_forward: rope_begin or rope_interleaved is set without cos and sin");
  says(with(all, "rope_begin", 3),
       "x_project_forward: rope_begin is 3 with 2 * 2 rotated columns, wanted them inside d = 6");
  refuses(with(all, "rope_interleaved", 2), "rope_interleaved");
  Params p = plain;
  p.at<float>(p.op().find("norm_eps")->offset) = 1;
  says(p, "x_project_forward: norm_eps is 1 without norm_weight, wanted 0");
  p = all, p.at<float>(p.op().find("norm_eps")->offset) = -1;
  refuses(p, "norm_eps");
  p = plain, resize(p["y"], 3, 3);
  says(p, "x_project_forward: y.shape[3] (f) is 3, wanted 4: the columns of the last weight");
  p = plain, resize(p["y"], 2, 3);
  says(p,
       "x_project_forward: x.shape[2] (g) is 2 and y.shape[2] (h) 3, wanted one to divide the "
       "other");
  p = plain, resize(p["weight"], 0, 3);
  says(p,
       "x_project_forward: weight.shape[0] (maps) is 3, wanted a divisor of 4: the larger of g and "
       "h");
  p = all, p["y"].data = nullptr, resize(p["norm_weight"], 0, 5);
  says(p, "x_project_forward: norm_weight.shape[0] (f) is 5, wanted 6: the columns of weight3");
  p = all, p["weight3"].data = nullptr;
  says(p, "x_project_forward: bias3 is given without weight3, wanted both");
  p = all, p["weight2"].data = p["bias2"].data = nullptr;
  says(p, "x_project_forward: weight3 is given without weight2, wanted both");
  p = all, p["sin"].data = nullptr;
  says(p, "x_project_forward: cos is given without sin, wanted both");
  p["cos"].data = nullptr;
  says(p, "x_project_forward: position is given without cos, wanted both");
}

TEST(ContractProject, Backward) {
  const Params all = valid("x_project_backward", "all").params;
  for (const char* field : {"bias", "bias2", "bias3", "norm_weight"}) {
    Params p = all;
    p[field].data = nullptr;
    says(p, std::string("x_project_backward: d") + field + " is given without " + field +
                ", wanted both");
  }
  Params p = all;
  p["weight3"].data = p["bias3"].data = p["dbias3"].data = nullptr;
  refuses(p, "norm_weight");
  p["norm_weight"].data = p["dnorm_weight"].data = nullptr;
  refuses(p, "rope_begin");
}

}  // namespace
}  // namespace contract
