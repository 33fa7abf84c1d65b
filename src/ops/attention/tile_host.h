// SPDX-License-Identifier: Apache-2.0
// What the host's forward and backward share: a tile of query rows in vector lanes, a tile of keys
// as f32 rows, and the score tile x[key][lane] between them.
//   Packed rows: the rows of all query heads of one key head, row = i * group + head, so that one
//   pass over the keys serves them all.  Lane r of a tile is packed row begin + r.
//   A key tile is read in place where it is f32 with dense rows, else converted to scratch.
#pragma once
#include "core/attend.h"
#include "core/workspace.h"
#include "host/parts.h"
#include "host/rows.h"

namespace fovea::attend_host {

using host::ceil_div;
using host::load_row;
using host::store_row;
using host::transpose;

constexpr int kRows = 64;  // lanes of a full tile: four AVX-512 vectors
constexpr int kKeys = 96;  // keys of a tile: a multiple of the 6 rows of a register block

// Constant over a call.
struct Call {
  explicit Call(const Attend& request);
  Attend a;
  const host::Simd& simd;
  int64_t group;         // query heads of a key head
  int64_t d_pad, e_pad;  // widths in whole vectors
  bool elementwise;      // some feature is looked at score by score
  int64_t padded(int64_t width) const { return (width + simd.width - 1) / simd.width * simd.width; }
};

enum class Cover { none, part, full };

struct RowTile {
  int64_t key_head;
  int count, lanes;     // lanes: count in whole vectors
  int64_t row[kRows];   // within the sequence
  int64_t head[kRows];  // query head
  int64_t position[kRows];
  Window window[kRows];
  // Keys lane r sees by index: [low, high) and [first_low, first_high), the sink keys.  With
  // positions given in tensors these are all keys, and the window is looked at score by score.
  int64_t low[kRows], high[kRows], first_low[kRows], first_high[kRows];

  int64_t begin, end;  // no lane sees a key outside

  // Rows [first, first + count) of the `heads` heads from first_head on, packed.
  RowTile(const Call& call, const Sequence& q, int64_t first_head, int64_t heads, int64_t first,
          int64_t count);
  Cover cover(int64_t key_begin, int64_t key_end) const;
};

struct KeyTile {
  int64_t begin;
  int count;
  const float *k, *v;
  int64_t k_row, v_row;
  bool any_absent;
  bool absent[kKeys];  // page or position says: no key here
  int64_t position[kKeys];
};

// Room for a key tile that has to be converted.
struct KeyRoom {
  float *k, *v;
};

// Which of the two tensors is read as vectors (the right side of a product).
struct KeyUse {
  bool k, v;            // wanted at all
  bool k_wide, v_wide;  // whole vectors wanted: the row is padded with zeros where need be
  bool once;            // few rows: nothing is gained by copying v together
};

void load_keys(const Call& call, const Sequence& q, int64_t key_head, int64_t begin, int64_t count,
               KeyUse use, const KeyRoom& room, KeyTile& tile);

// From <q, k> * scale to scores: softcap, alibi, bias, and -inf where a row does not see a key.
// slope, if given, receives d score / d (scale <q, k>).  Returns whether a -inf may be there.
bool finish_scores(const Call& call, int64_t sequence, const Sequence& q, const RowTile& rows,
                   const KeyTile& keys, Cover cover, float* x, float* slope);

}  // namespace fovea::attend_host
