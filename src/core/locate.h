// SPDX-License-Identifier: Apache-2.0
// From a flat token number to its sequence: what operations on tokens alone (append, get, rope)
// walk, so that a packed batch costs its tokens and not sequences times the longest.
#pragma once
#include "core/attend.h"

namespace fovea {

// x / y of counts >= 0; 64-bit division is slow on a device and rarely needed.
FOVEA_HD int64_t quotient(int64_t x, int64_t y) {
  return (x | y) >> 32 ? x / y
                       : static_cast<int64_t>(static_cast<uint32_t>(x) / static_cast<uint32_t>(y));
}

struct Token {
  Sequence sequence;
  int64_t number;  // of the sequence; < 0: the slot belongs to none
  int64_t index;   // in the sequence
};

FOVEA_HD int64_t token_slots(const Sequences& q) {
  return q.query_start ? q.s : q.count * q.query_max;
}

// by_row: slots are rows of a packed batch; else every sequence has query_max of them.
FOVEA_HD Token token_at(const Sequences& q, int64_t slot, bool by_row) {
  Token token;
  if (by_row) {
    // The last sequence that starts at or before the slot; empty ones share their start.
    int64_t low = 0, high = q.count;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (q.query_start[middle] <= slot)
        low = middle + 1;
      else
        high = middle;
    }
    token.number = low - 1;
    if (token.number < 0) return token;
    token.sequence = q[token.number];
    token.index = slot - token.sequence.row_begin;
  } else {
    token.number = quotient(slot, q.query_max);
    token.index = slot - token.number * q.query_max;
    token.sequence = q[token.number];
  }
  if (token.index < 0 || token.index >= token.sequence.rows) token.number = -1;
  return token;
}
FOVEA_HD Token token_at(const Sequences& q, int64_t slot) {
  return token_at(q, slot, static_cast<bool>(q.query_start));
}

}  // namespace fovea
