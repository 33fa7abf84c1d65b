// SPDX-License-Identifier: Apache-2.0
// The gradient of kl by the scores of one distribution, for the sweeps of attention's gradient: its
// rows are q, its keys k, the other's keys v and its rows dout, so that x = q k' and y = dout v'
// are the products of both.
#pragma once
#include "cuda/loop/backward_tiles.cuh"
#include "cuda/loop/pairs.cuh"
#include "cuda/tensor_map.h"
#include "ops/kl/sides.cuh"

namespace fovea::cuda {

// What a row's pair of scores is worth, kl = KL(first || second), r = exp(x - lse), p = exp(y -
// lse')
//   second  gain (r - p)                                  x are the scores of the second
//   first   gain r ((x - lse) - (y - lse') - kl)          of the first
//   mixed   gain share r (ln(r / m) - kl)                 of either, m = share r + (1 - share) p
enum class KlOwn { first, second, mixed };

// One distribution's gradient as a call of attention's backward: no dv, `gain` the gradient of each
// row's kl.
struct KlGradient {
  AttendBackward call;
  View<3> lse, other_lse, kl;
  const float* gain;  // (b, h, s)
  float other_scale;
  int64_t own_heads, other_heads;  // key heads of both; call.forward may be cut by those of both
  KlOwn own;
  float share;  // of the own in the mixture; 0: none
  const char* op;
};

inline const char* op_of(const KlBackward& b) {
  return b.forward.share > 0 ? "x_kl_jensen_shannon_backward" : "kl_backward";
}

// Of `side` first or second; its own is mixed where the divergence is.
KlGradient gradient_of(const KlBackward& b, KlOwn side, const float* gain);

struct KlBackwardInstance90 {
  int32_t dtype, d, e;
  int32_t rows, keys, panels;  // of a tile; `panels` of 64 columns of d
  void (*launch)(Context&, const KlGradient&, const BackwardMaps&, const BackwardWork&,
                 const BackwardGrid90&);
};

// A row of backward.inc.
struct KlBackwardConfig90 {
  int dtype, d, e;
  int rows;    // of a tile
  int stages;  // of q
};

// Explicitly instantiated, one file for each dtype and width.
template <KlBackwardConfig90 C>
KlBackwardInstance90 kl_backward_sm90_instance();

// The gain of each row: dkl + dtotal w (/ sum w); 0 for a row that sees no key.  Zeros where no
// block comes.
struct GainSlots {
  Slot<float> gain;
  TotalSlots totals;
  GainSlots(Layout& layout, const KlBackward& b);
  const float* fill(Context& ctx, const KlBackward& b, void* base) const;
};

}  // namespace fovea::cuda
