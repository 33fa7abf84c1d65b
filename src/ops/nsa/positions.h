// SPDX-License-Identifier: Apache-2.0
// The last compressed key that each row sees, as a position among compressed keys: attention's
// backward has no key_step.
#pragma once
#include "core/attend.h"
#include "core/plan.h"

namespace fovea {

struct NsaPositions {
  Sequences sequences;
  View<2> position;  // (b, s)
  int64_t b, s, each, step;

  // Of row i of a sequence; -1: it sees none.
  FOVEA_HD int32_t at(const Sequence& q, int64_t i) const {
    const int64_t behind = i + q.keys - q.rows - (each - 1);
    return behind < 0 ? -1 : static_cast<int32_t>(behind / step);
  }
};

extern const Kernel<NsaPositions> nsa_positions_host;

// CUDA builds only.
extern const Kernel<NsaPositions> nsa_positions_simt;

}  // namespace fovea
