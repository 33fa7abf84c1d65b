// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "cases/attention_case.h"

namespace cases {

// cos and sin of base 10000, as any caller may compute them.
inline void add_table(Call& call, fovea_tensor& cos, fovea_tensor& sin, int64_t positions,
                      int64_t half, Lay lay = Lay::contiguous) {
  for (int turn = 0; turn < 2; ++turn) {
    const size_t field = call.add(turn ? "sin" : "cos", turn ? sin : cos, Role::in, FOVEA_F32,
                                  {positions, half}, lay);
    call.fill(field, [&](const int64_t* i) {
      const double angle =
          static_cast<double>(i[0]) *
          std::pow(10000.0, -static_cast<double>(i[1]) / static_cast<double>(half));
      return turn ? std::sin(angle) : std::cos(angle);
    });
  }
}

}  // namespace cases
