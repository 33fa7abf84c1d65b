// SPDX-License-Identifier: Apache-2.0
// Which rows a block owns and where its keys lie, dense, packed and paged alike.
// Pack GQA: packed row m of key head g is query row m / group of head g * group + m % group.
#pragma once
#include "core/attend.h"

namespace fovea::cuda {

// Element offset of row i and head h of a sequence in a (b, s, h, column) and a (b, h, s) tensor.
FOVEA_HD int64_t row_offset(const Sequence& q, int64_t i, int64_t h, const int64_t* stride) {
  return q.batch * stride[0] + (q.row_begin + i) * stride[1] + h * stride[2];
}
FOVEA_HD int64_t lse_offset(const Sequence& q, int64_t i, int64_t h, const int64_t* stride) {
  return q.batch * stride[0] + h * stride[1] + (q.row_begin + i) * stride[2];
}

// The packed rows of one sequence and one key head.
struct PackGqaRows {
  Sequence seq;
  int64_t r, g, group;

  FOVEA_HD int64_t count() const { return seq.rows * group; }
  FOVEA_HD int64_t row(int64_t m) const { return m / group; }
  FOVEA_HD int64_t head(int64_t m) const { return g * group + m % group; }
  FOVEA_HD int64_t head_begin() const { return g * group; }
  FOVEA_HD int64_t head_end() const { return (g + 1) * group; }
  // Element offset of packed row m in a (b, s, h, column) tensor.
  FOVEA_HD int64_t offset(int64_t m, const int64_t* stride) const {
    return row_offset(seq, row(m), head(m), stride);
  }
  // The same in a (b, h, s) tensor.
  FOVEA_HD int64_t lse_offset(int64_t m, const int64_t* stride) const {
    return seq.batch * stride[0] + head(m) * stride[1] + (seq.row_begin + row(m)) * stride[2];
  }
};

// Where logical key j is stored: index on the first axis (row or pool page; -1: absent) and token.
struct KeyPlace {
  int64_t block, token;
  FOVEA_HD bool absent() const { return block < 0; }
  // Element offset in k or v: strides (first axis, token, head, column).
  FOVEA_HD int64_t offset(int64_t g, const int64_t* stride) const {
    return block * stride[0] + token * stride[1] + g * stride[2];
  }
};

FOVEA_HD KeyPlace key_place(const Sequences& sequences, const Sequence& q, int64_t j) {
  const int64_t i = q.key_begin + j;
  if (!sequences.page) return {q.key_batch, i};
  return {sequences.page_of(q, i), i % sequences.page};
}

}  // namespace fovea::cuda
