// SPDX-License-Identifier: Apache-2.0
// Where a sequence's rows of o and lse are when the first `history` rows of each have none.
#pragma once
#include "core/attend.h"

namespace fovea {

struct OutRows {
  int64_t history, extent;  // extent: of the row axis of o

  struct Place {
    int64_t begin, count;
  };
  FOVEA_HD Place of(const Sequences& sequences, const Sequence& q, int64_t r) const {
    const int64_t skipped = sequences.query_start ? r * history : 0;
    const int64_t begin = clamp_i64(q.row_begin - skipped, 0, extent);
    return {begin, clamp_i64(q.rows - history, 0, extent - begin)};
  }
};

}  // namespace fovea
