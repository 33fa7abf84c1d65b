// SPDX-License-Identifier: Apache-2.0
// One tile of the backward: p and ds of a row tile against a key tile, both [key][lane].
#pragma once
#include "ops/attention/tile_host.h"

namespace fovea::attend_host {

// Carved out of a worker's workspace.
struct GradientRoom {
  GradientRoom(const Call& call, bool softcap, Layout& layout);
  Slot<float> q, q_columns, dout, dout_columns, o, p, ds, slope, k, v;
  Slot<unsigned char> seen;
};

class GradientTile {
 public:
  GradientTile(const Call& call, const AttendBackward& request, const GradientRoom& room,
               void* base);

  // q (scaled), dout, delta and lse of the rows.
  void load(const Sequence& q, const RowTile& rows);
  // p and ds, of the scores after softcap and bias.  False: some factor of the products to come is
  // not finite although a row may not see it, so only pairs with seen() may be multiplied.
  bool step(int64_t sequence, const Sequence& q, const RowTile& rows, int64_t begin, int64_t count,
            Cover cover, bool k_wide);
  // ds becomes the gradient of scale <q, k>.
  void through_softcap(const RowTile& rows);

  const KeyTile& keys() const { return keys_; }
  const float *q, *dout;  // [lane][d_pad], [lane][e_pad]
  const float *p, *ds;
  const unsigned char* seen;

 private:
  const Call& call_;
  const AttendBackward& request_;
  float *q_, *q_columns_, *dout_, *dout_columns_, *o_, *p_, *ds_, *slope_;
  unsigned char* seen_;
  KeyRoom room_;
  KeyTile keys_;
  float lse2_[kRows], delta_[kRows];
  bool rows_finite_ = true;
};

// dbias, by a sweep of its own: with sums over any of its dimensions in a fixed order.
int64_t bias_items(const AttendBackward& request);
void bias_item(const Call& call, const AttendBackward& request, int64_t item, GradientTile& tile,
               double* sums);
constexpr int64_t kBiasSums = kKeys * kRows;

}  // namespace fovea::attend_host
