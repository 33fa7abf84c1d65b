// SPDX-License-Identifier: Apache-2.0
// Rows of x_select_token a few at a time: a group is `rows` neighbouring rows of one sequence.
// Groups are numbered through the batch, so a chunk of them needs nothing from the device.
#pragma once
#include "core/list_rows.h"
#include "core/locate.h"

namespace fovea {

struct TokenGroup {
  Sequence sequence;
  int64_t first;  // row of the sequence
  int64_t rows;   // <= 0: none
};

struct TokenGroups {
  int64_t rows, each;  // each: groups of a sequence that is not packed

  TokenGroups() = default;
  TokenGroups(const Sequences& q, int64_t rows)
      : rows(rows), each((q.query_max + rows - 1) / rows) {}
  int64_t count(const Sequences& q) const {
    return q.query_start ? q.s / rows + q.count : q.count * each;
  }
  FOVEA_HD int64_t first_of(const Sequences& q, int64_t r) const {
    return first_list_row<int64_t>(clamp_i64(q.query_start[r], 0, q.s), r, rows);
  }
  FOVEA_HD TokenGroup at(const Sequences& q, int64_t number) const {
    TokenGroup group;
    group.rows = 0;
    if (q.query_start) {
      // The last sequence whose groups begin at or before it.
      int64_t low = 0, high = q.count;
      while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (first_of(q, middle) <= number)
          low = middle + 1;
        else
          high = middle;
      }
      if (low < 1) return group;
      group.sequence = q[low - 1];
      group.first = (number - first_of(q, low - 1)) * rows;
    } else {
      const int64_t r = quotient(number, each);
      group.sequence = q[r], group.first = (number - r * each) * rows;
    }
    const int64_t left = group.sequence.rows - group.first;
    group.rows = left < rows ? left : rows;
    return group;
  }
};

}  // namespace fovea
