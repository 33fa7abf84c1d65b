// SPDX-License-Identifier: Apache-2.0
// Row statistics of the gradient over lists on Hopper: lse log2(e), and delta = <dout, o> - dlse.
// +inf and 0 for an empty row or one that is not there.
//   by tile   64 rows of a head follow one another; a packed sequence may begin inside a tile:
//             sequence r starts at tile row_begin / 64 + r, so neighbours share none
//   by token  the heads of a row follow one another
#pragma once
#include "core/attend.h"

namespace fovea::cuda {

constexpr int kListLines = 64;  // of a tile: keys, rows, or rows times heads

// Lists by block of keys that are gathered begin at multiples of kListPad entries, the places
// before the next repeat the first row: list t at padded(start of t, t).
constexpr int kListPad = 128;
FOVEA_HD int64_t padded(int64_t start, int64_t t) {
  return ((start + kListPad - 1) / kListPad + t) * kListPad;
}

struct ListStats {
  float *lse, *delta;
  int64_t by_head, by_row;  // strides
  int32_t each;             // tiles of a sequence; 0: packed sequences
  bool by_token;

  ListStats(const Attend& a, bool by_token) : lse(nullptr), delta(nullptr), by_token(by_token) {
    const Sequences& q = a.sequences;
    each = static_cast<int32_t>(q.query_start ? 0 : (q.query_max + kListLines - 1) / kListLines);
    const int64_t tiles = q.query_start ? a.s / kListLines + q.count : each * q.count;
    by_head = by_token ? 1 : tiles * kListLines;
    by_row = by_token ? a.h : 1;
  }
  int64_t floats(const Attend& a) const { return by_token ? a.b * a.s * a.h : a.h * by_head; }
  // Of row 0 of a sequence and head 0.
  FOVEA_HD int64_t first(const Attend& a, const Sequence& q, int64_t r) const {
    if (by_token) return (q.batch * a.s + q.row_begin) * by_row;
    return (each ? r * each : q.row_begin / kListLines + r) * kListLines;
  }
};

}  // namespace fovea::cuda
