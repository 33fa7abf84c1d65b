// SPDX-License-Identifier: Apache-2.0
// A KL call as the attention sweeps see it, and what comes before and after them on CUDA.
#pragma once
#include <limits>

#include "core/workspace.h"
#include "cuda/launch.h"
#include "cuda/loop/mask.cuh"
#include "ops/kl/kernels.h"

namespace fovea::cuda {

// Floats of rows by keys, or by their blocks, that a call's workspace holds at a time: 64 MiB.
constexpr int64_t kPairsMost = int64_t{1} << 24;

// `own` as a call's q and k, `other` as its v (keys) and dout (rows, in the backward).
inline Attend attend_of(const Kl& a, const KlSide& own, const KlSide& other) {
  Attend x{};
  x.q = own.q, x.k = own.k, x.v = other.k, x.lse = own.lse;
  x.dtype = x.o_dtype = own.dtype;
  x.b = a.b, x.s = a.s, x.t = a.t, x.h = a.h;
  x.g = own.key_heads, x.d = own.width, x.e = other.width;
  x.columns = a.sequences.capacity;
  x.sequences = a.sequences, x.mask = a.mask;
  x.score.scale = own.scale;
  return x;
}

// Rows of a (b, h, s) f32 tensor: the caller's, or one in the workspace where a kernel needs what
// the caller does not.
struct RowSlot {
  View<3> given;
  Slot<float> slot;
  int64_t h = 0, s = 0;

  RowSlot() = default;
  RowSlot(Layout& layout, const Kl& a, const View<3>& x, bool needed)
      : given(x), slot(layout.add<float>(!x && needed ? a.b * a.h * a.s : 0)), h(a.h), s(a.s) {}
  View<3> at(void* base) const {
    if (given) return given;
    return {slot.at(base), {h * s, s, 1}};
  }
};

// sum w_i kl_i and sum w_i over the rows that see a key.
struct KlTotals {
  double value, weight;
};

// The workspace of the sums: one KlTotals a head, then that of all.
struct TotalSlots {
  Slot<KlTotals> parts;
  TotalSlots() = default;
  TotalSlots(Layout& layout, const Kl& a, bool needed)
      : parts(layout.add<KlTotals>(needed ? a.sequences.count * a.h + 1 : 0)) {}
};

// Adds up in a fixed order; `kl` absent: the weights alone.  Returns where the sum lies; with
// `total`, that is written too.
const KlTotals* add_up(Context& ctx, const char* op, const Kl& a, const View<3>& kl,
                       const View<3>& lse, KlTotals* parts);

}  // namespace fovea::cuda
