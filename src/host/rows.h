// SPDX-License-Identifier: Apache-2.0
// Rows of strided f32, f16 or bf16 elements to and from contiguous f32.
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

// Every element of a tensor of n0 x n1 x n2 x n3, if it is given.
void zero(Pool& pool, const View<4>& x, int32_t dtype, int64_t n0, int64_t n1, int64_t n2,
          int64_t n3);

// columns[c * lanes + r] = from[r * from_row + c], lanes past `count` 0.
void transpose(const float* from, int64_t from_row, int64_t count, int64_t width, int64_t lanes,
               float* columns);

}  // namespace fovea::host
