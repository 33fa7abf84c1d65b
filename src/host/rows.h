// SPDX-License-Identifier: Apache-2.0
// Rows of f32, f16 or bf16 tensors to f32 rows and back, and turned into columns.
#pragma once
#include <cstdint>

#include "host/simd.h"

namespace fovea::host {

// `count` strided elements as f32.
void load_row(const Simd& simd, const void* data, int32_t dtype, int64_t offset, int64_t stride,
              int64_t count, float* to);

// factor * from, rounded to dtype.
void store_row(void* data, int32_t dtype, int64_t offset, int64_t stride, int64_t count,
               const float* from, float factor);

// columns[c * lanes + r] = from[r * from_row + c], lanes past `count` 0.
void transpose(const float* from, int64_t from_row, int64_t count, int64_t width, int64_t lanes,
               float* columns);

}  // namespace fovea::host
