// SPDX-License-Identifier: Apache-2.0
#include "random/fill.h"

namespace random_calls {

void fill(const Call& call, uint8_t* image) {
  Filler(call, image).run();
}

}  // namespace random_calls
