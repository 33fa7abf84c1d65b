// SPDX-License-Identifier: Apache-2.0
// A sequence walked in parts at once, where few sequences and heads would leave a GPU idle.
//   1. A first walk over all parts but the last, from zeros: what a part adds to the state, and its
//      carry M, so that H after it = M H before it + added.  Part 0 starts from the call's state.
//   2. The states before parts 2 and on, one after the other.
//   3. A second walk over all parts, from those states, with outputs and snapshots.
#pragma once
#include "core/context.h"
#include "core/recur.h"

namespace fovea::cuda {

struct ChainParts {
  int32_t count;    // of a sequence; 1: it is walked once, and nothing below is read
  int32_t chunks;   // of a part
  bool first;       // this is the first walk
  Floats<4> state;  // (sequence count + part, head, d, e): H before a part.  Of part 2 and on the
                    // first walk leaves what the part before adds.
  Floats<4> carry;  // (sequence count + part, head, d, d): M of a part
  View<3> decay;    // (sequence count + part, head, d): its diagonal, where M has no more

  // Where they lie, in f32.
  void set(const Recur& a, float* states, float* carries, float* decays = nullptr) {
    state = {{states, {a.heads * a.d * a.e, a.d * a.e, a.e, 1}}, FOVEA_F32};
    carry = {{carries, {a.heads * a.d * a.d, a.d * a.d, a.d, 1}}, FOVEA_F32};
    decay = {decays, {a.heads * a.d, a.d, 1}};
  }
};

// How many parts the call asks for, or what should be fastest.  `chains`: blocks of a walk of one
// part; `carried`: those of its M.
int64_t parts_of(const Recur& a, int64_t multiprocessors, int64_t chains, int64_t carried);

// Step 2.
void join_parts(Context& ctx, const char* op, const Recur& a, const ChainParts& parts);
// The same of decays.
void join_decayed_parts(Context& ctx, const char* op, const Recur& a, const ChainParts& parts);
// The decays of parts under a head gate or none.
void decays_of_parts(Context& ctx, const char* op, const Recur& a, const ChainParts& parts);

}  // namespace fovea::cuda
