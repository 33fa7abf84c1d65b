// SPDX-License-Identifier: Apache-2.0
#include "random/run.h"

namespace random_calls {
namespace {

void tensors(Draw& d) {
  run_tensors(d, "y");
}

void extents(Draw& d) {
  d.x("taps") = d.one_in(40) ? 0 : d.one_of({1, 2, 3, 4, 4, 4, 5, 8});
  d.x("tail") = std::max<int64_t>(0, d.x("taps") - 1) + d.one_of({0, 0, 1, 6});
  run_extents(d);
}

const Rules kConv1d({"x_conv1d_"}, {.tensors = tensors,
                                    .extents = extents,
                                    .scalars = run_scalars,
                                    .integers = run_integers});

}  // namespace
}  // namespace random_calls
