// SPDX-License-Identifier: Apache-2.0
// What cases of x_quant_backward expect: o and lse of the numbers that q and k stand for, and the
// gradients from them.
#pragma once
#include "cases/table.h"
#include "oracle/quant_backward.h"

namespace cases {

// What the forward gave, rounded as it is stored.
inline std::vector<Expected> gradients_of(TableCall& made, const oracle::QuantAttention& a) {
  using oracle::Mode, oracle::TileGradients;
  const auto& p = made.params<fovea_x_quant_backward_params>();
  const auto [o, lse] = TileGradients::forward(a, p);
  made.call.fill_list(made.call.field("o"), o);
  made.call.fill_list(made.call.field("lse"), lse);
  const auto exact = TileGradients(a, p).run(Mode::exact);
  const auto rounded = TileGradients(a, p).run(Mode::rounded);
  return {{"dq", exact.dq, rounded.dq}, {"dk", exact.dk, rounded.dk}, {"dv", exact.dv, rounded.dv}};
}

}  // namespace cases
