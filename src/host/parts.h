// SPDX-License-Identifier: Apache-2.0
// How the host cuts a sequence's keys into parts of work: by shapes alone, so that the bits do not
// change with the number of threads.
#pragma once
#include <algorithm>

#include "core/attend.h"

namespace fovea::host {

inline int64_t ceil_div(int64_t x, int64_t y) {
  return (x + y - 1) / y;
}

// Keys of each of `parts` parts: whole tiles of `tile`.
inline int64_t part_keys(int64_t keys, int64_t parts, int64_t tile) {
  return ceil_div(ceil_div(keys, parts), tile) * tile;
}

// Parts for a gradient whose item of work owns dk and dv of a part of a key head's keys.
inline int64_t gradient_parts(const Attend& a) {
  constexpr int64_t items_wanted = 32;  // (sequence, key head) pairs that need no parts
  constexpr int64_t least_keys = 256;   // the least keys worth a part
  constexpr int64_t most = 16;
  const int64_t items = a.sequences.count * a.g;
  if (items == 0 || items >= items_wanted) return 1;
  const int64_t wanted = std::min(most, ceil_div(items_wanted, items));
  return std::max<int64_t>(1, std::min(wanted, a.sequences.key_max / least_keys));
}

}  // namespace fovea::host
