// SPDX-License-Identifier: Apache-2.0
// One tile of the backward: both sides of a row tile against a key tile, and what it adds to dq,
// dk.
#pragma once
#include "ops/kl/tile_host.h"

namespace fovea::kl_host {

// A row tile against a key tile; x.x and y.x become the gradients of their logits.
class GradientTile {
 public:
  GradientTile(const KlBackward& request, const SideRoom& first, const SideRoom& second, void* base)
      : x(request.forward, request.forward.first, first, base),
        y(request.forward, request.forward.second, second, base),
        b_(request) {}

  // Rows without a gradient are dropped.  False: none is left.
  bool load(const Sequence& q, RowTile& rows, double total_factor);
  // `wide`: dq is to be added.
  void step(const Sequence& q, const RowTile& rows, int64_t begin, int64_t count, bool masked,
            bool wide, const LocalSeen& seen);

  SideTile x, y;

 private:
  const KlBackward& b_;
  float lse_x_[kRows], lse_y_[kRows], kl_[kRows], kl_second_[kRows], grad_[kRows];
};

// dq of a row tile, and dk of a key tile, from the gradients that stand in side.x.
void add_dq(const SideTile& side, const RowTile& rows, const LocalSeen& seen, bool masked,
            float* dq);
void add_dk(const SideTile& side, const RowTile& rows, const LocalSeen& seen, bool masked,
            float* dk);

}  // namespace fovea::kl_host
