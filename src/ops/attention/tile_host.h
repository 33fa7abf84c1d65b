// SPDX-License-Identifier: Apache-2.0
// What the host's forward and backward share: the frame of host/sweep.h with packed rows.
//   Packed rows: the rows of all query heads of one key head, row = i * group + head, so that one
//   pass over the keys serves them all.  Lane r of a tile is packed row begin + r.
#pragma once
#include "host/sweep.h"

namespace fovea::attend_host {

using host::ceil_div, host::Cover, host::KeySpan, host::KeyWalk, host::kFlopsPerNanosecond,
    host::kInf, host::kKeys, host::kRows, host::load_row, host::row_offset, host::row_value,
    host::store_row, host::transpose;

// Constant over a call.
struct Call {
  explicit Call(const Attend& request);
  Attend a;
  const host::Simd& simd;
  int64_t group;         // query heads of a key head
  int64_t d_pad, e_pad;  // widths in whole vectors
  bool elementwise;      // some feature is looked at score by score
  bool values_of_keys;   // v is the first columns of k
  host::KeySide key_side() const {
    return {simd, a.sequences, a.k, a.k_dtype, a.d, a.k_scale, a.groups};
  }
  host::KeySide value_side() const {
    return {simd, a.sequences, a.v, a.v_dtype, a.e, a.v_scale, a.groups};
  }
};

// With positions of keys given in a tensor every lane sees all keys by index, and the window is
// looked at score by score.
struct RowTile : host::RowTile {
  // Rows [first, first + count) of the `heads` heads from first_head on, packed.
  RowTile(const Call& call, const Sequence& q, int64_t first_head, int64_t heads, int64_t first,
          int64_t count);
  int64_t key_head;
  int64_t row[kRows];   // within the sequence
  int64_t head[kRows];  // query head
  int64_t position[kRows];
  Window window[kRows];
};

struct KeyTile {
  int64_t begin;
  int count;
  const float *k, *v;
  int64_t k_row, v_row;
  bool any_absent;
  bool absent[kKeys];  // page or position says: no key here
  int64_t position[kKeys];
  const bool* absences() const { return any_absent ? absent : nullptr; }
};

// Room for a key tile that has to be converted.
struct KeyRoom {
  float *k, *v;
};

// All of a tile but k and v.
void place_keys(const Call& call, const Sequence& q, int64_t key_head, int64_t begin, int64_t count,
                KeyTile& tile);
void load_keys(const Call& call, const Sequence& q, int64_t key_head, int64_t begin, int64_t count,
               host::KeyUse k, host::KeyUse v, const KeyRoom& room, KeyTile& tile);

// From <q, k> * scale to scores: softcap, alibi, bias, and -inf where a row does not see a key.
// slope, if given, receives d score / d (scale <q, k>).  Returns whether a -inf may be there.
bool finish_scores(const Call& call, int64_t sequence, const Sequence& q, const RowTile& rows,
                   const KeyTile& keys, Cover cover, float* x, float* slope);

}  // namespace fovea::attend_host
