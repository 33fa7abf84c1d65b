// SPDX-License-Identifier: Apache-2.0
// Rows of strided f32, f16 or bf16 elements to and from contiguous f32, and from codes of 8 bits.
#pragma once
#include "core/attend.h"
#include "host/parallel.h"
#include "host/simd.h"

namespace fovea::host {

// `count` strided elements as f32.
void load_row(const Simd& simd, const void* data, int32_t dtype, int64_t offset, int64_t stride,
              int64_t count, float* to);
// factor * from, rounded to dtype.
void store_row(void* data, int32_t dtype, int64_t offset, int64_t stride, int64_t count,
               const float* from, float factor);

// Element offset of row `row` of a sequence, in (b, s, heads, width).
inline int64_t row_offset(const View<4>& x, const Sequence& q, int64_t row, int64_t head) {
  return q.batch * x.stride[0] + (q.row_begin + row) * x.stride[1] + head * x.stride[2];
}
// The number that row `row` of a sequence has, in (b, heads, s).
inline float& row_slot(const View<3>& x, const Sequence& q, int64_t head, int64_t row) {
  return *x.at(q.batch, head, q.row_begin + row);
}
inline float row_value(const View<3>& x, const Sequence& q, int64_t head, int64_t row) {
  return row_slot(x, q, head, row);
}

// One row of q times scale, zeros from `width` to `pad`.
void load_query(const Simd& simd, const View<4>& from, int32_t dtype, int64_t offset, int64_t width,
                int64_t pad, float scale, float* to);

// factor * from to rows [first, first + count) of one head; rows of `from` lie `pitch` apart.
void store_rows(const View<4>& to, int32_t dtype, const Sequence& q, int64_t first, int64_t count,
                int64_t head, int64_t width, const float* from, int64_t pitch, float factor);
// The same to keys [begin, end) of one key head.
void store_keys(const View<4>& to, int32_t dtype, const Sequences& sequences, const Sequence& q,
                int64_t begin, int64_t end, int64_t key_head, int64_t width, const float* from,
                int64_t pitch);

// Every element of a tensor of n0 x n1 x n2 x n3, if it is given.
void zero(Pool& pool, const View<4>& x, int32_t dtype, int64_t n0, int64_t n1, int64_t n2,
          int64_t n3);
// Zeros in a gradient of rows (b, s, heads, width), of keys (.., t, heads, width), where there may
// be some that no sequence reaches.
void zero_rows(Pool& pool, const View<4>& x, int32_t dtype, const Sequences& sequences, int64_t b,
               int64_t heads, int64_t width);
void zero_keys(Pool& pool, const View<4>& x, int32_t dtype, const Sequences& sequences, int64_t t,
               int64_t heads, int64_t width);

// sum += factor * from.
inline void add_row(int64_t width, float factor, const float* from, float* sum) {
  for (int64_t c = 0; c < width; ++c) sum[c] += factor * from[c];
}

// to(i) = value(i) for i < count.  Where `to` has a stride of 0, an element is the sum of those
// that fall on it, in ascending order.
template <class To, class Value>
void store_sums(int64_t count, To to, Value value) {
  for (int64_t i = 0; i < count; ++i) to(i) = 0;
  for (int64_t i = 0; i < count; ++i) to(i) += static_cast<float>(value(i));
}

// columns[c * lanes + r] = from[r * from_row + c], lanes past `count` 0.
void transpose(const float* from, int64_t from_row, int64_t count, int64_t width, int64_t lanes,
               float* columns);

}  // namespace fovea::host
