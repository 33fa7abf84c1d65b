// SPDX-License-Identifier: Apache-2.0
// The last key of a block of tokens that each row sees, as a position among such keys: attention's
// backward has no key_step.
#pragma once
#include "core/attend.h"
#include "core/plan.h"

namespace fovea {

struct BlockPositions {
  Sequences sequences;
  View<2> position;  // (b, s)
  int64_t b, s;
  int64_t each, step;  // tokens of a block, and from one to the next
  const char* op;

  // Of row i of a sequence; -1: it sees none.
  FOVEA_HD int32_t at(const Sequence& q, int64_t i) const {
    const int64_t behind = i + q.keys - q.rows - (each - 1);
    return behind < 0 ? -1 : static_cast<int32_t>(behind / step);
  }
};

extern const Kernel<BlockPositions> block_positions_host;

// CUDA builds only.
extern const Kernel<BlockPositions> block_positions_simt;

}  // namespace fovea
