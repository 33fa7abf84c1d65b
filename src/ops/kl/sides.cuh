// SPDX-License-Identifier: Apache-2.0
// A KL call as the attention sweeps see it, and what comes before and after them on CUDA.
#pragma once
#include <limits>

#include "core/workspace.h"
#include "cuda/launch.h"
#include "cuda/loop/mask.cuh"
#include "cuda/loop/zero.cuh"
#include "ops/kl/kernels.h"

namespace fovea::cuda {

// Floats of rows by keys, or by their blocks, that a call's workspace holds at a time: 64 MiB.
constexpr int64_t kPairsMost = int64_t{1} << 24;

inline const char* op_of(const Kl& a) {
  return a.share > 0 ? "x_kl_jensen_shannon_forward" : "kl_forward";
}

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

// Element of row i in a (b, h, s) tensor, and what lies there.
FOVEA_HD int64_t row_place(const Sequence& q, int64_t h, int64_t i, const int64_t* stride) {
  return q.batch * stride[0] + h * stride[1] + (q.row_begin + i) * stride[2];
}
__device__ __forceinline__ float row_value(const View<3>& x, const Sequence& q, int64_t h,
                                           int64_t i) {
  return x.as()[row_place(q, h, i, x.stride)];
}

// Zeros for a side's gradients, q of so many heads and k of so many keys: before a sweep, where
// some rows or keys belong to no sequence.
void zero_gradients(Context& ctx, const char* op, const Kl& a, const KlSide& side, int64_t heads,
                    int64_t keys);
inline bool ragged(const Kl& a) {
  return ragged(attend_of(a, a.first, a.first));
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
