// SPDX-License-Identifier: Apache-2.0
#include "contract/check.h"

namespace contract {
namespace {

// What experimental/linear.h says of rows of states, of snapshots and of filters.
TEST(ContractConv1d, Forward) {
  const Params own = valid("x_conv1d_forward", "own_rows").params;
  const Params all = valid("x_conv1d_forward", "all").params;
  Params p = own;
  resize(p["state_in"], 0, 5);
  says(
      p,
      "x_conv1d_forward: state_in.shape[0] (slots) is 5, wanted 2: without state_row each sequence "
      "of x has a row");
  p = own, resize(p["state_out"], 0, 1);
  says(p,
       "x_conv1d_forward: state_out.shape[0] (slots_out) is 1, wanted 2: without state_row and "
       "state_out_row each sequence of x has a row");
  p = own, resize(p["weight"], 1, 0);
  says(p, "x_conv1d_forward: weight.shape[1] (taps) is 0, wanted >= 1");
  p = own, resize(p["weight"], 1, 6);
  says(p, "x_conv1d_forward: state_in.shape[2] (tail) is 4, wanted at least taps - 1 = 5");
  says(with(own, "activation", 2),
       "x_conv1d_forward: activation is 2, wanted a fovea_x_conv1d_activation");
  p = own, p["y"].data = p["state_out"].data = nullptr;
  says(p, "x_conv1d_forward: y, state_out and snapshot are not given, wanted one of them at least");
  p = all, p["snapshot_row"].data = nullptr;
  says(p, "x_conv1d_forward: snapshot is given without snapshot_row, wanted both");
  const auto number = [&](const Params& from, const char* field, int64_t value) {
    Params made = from;
    made.at<int64_t>(made.op().find(field)->offset) = value;
    return made;
  };
  says(number(all, "snapshot_every", 0), "x_conv1d_forward: snapshot_every is 0, wanted >= 1");
  says(number(own, "snapshot_every", -1), "x_conv1d_forward: snapshot_every is -1, wanted >= 0");
  says(number(own, "token_max", -1), "x_conv1d_forward: token_max is -1, wanted >= 0");
}

TEST(ContractConv1d, Backward) {
  const Params own = valid("x_conv1d_backward", "own_rows").params;
  Params p = own;
  resize(p["weight"], 1, 6), resize(p["dweight"], 1, 6);
  says(p, "x_conv1d_backward: state_in.shape[2] (tail) is 4, wanted at least taps - 1 = 5");
  p["state_in"].data = nullptr;
  says(p, "x_conv1d_backward: dstate_out.shape[2] (tail) is 4, wanted at least taps - 1 = 5");
  refuses(with(own, "activation", -1), "activation");
}

}  // namespace
}  // namespace contract
