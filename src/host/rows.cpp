// SPDX-License-Identifier: Apache-2.0
#include "host/rows.h"

#include <algorithm>

#include "core/convert.h"

namespace fovea::host {

void load_row(const Simd& simd, const void* data, int32_t dtype, int64_t offset, int64_t stride,
              int64_t count, float* to) {
  if (dtype != FOVEA_F32 && stride == 1)
    return simd.widen(count, static_cast<const uint16_t*>(data) + offset, dtype, to);
  const auto load = [&](const auto* from) {
    for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[offset + i * stride]);
  };
  if (dtype == FOVEA_F16) return load(static_cast<const F16*>(data));
  if (dtype == FOVEA_BF16) return load(static_cast<const Bf16*>(data));
  const float* from = static_cast<const float*>(data);
  if (stride != 1) return load(from);
  std::copy_n(from + offset, count, to);
}

void store_row(void* data, int32_t dtype, int64_t offset, int64_t stride, int64_t count,
               const float* from, float factor) {
  const auto store = [&]<class T>(T* to) {
    for (int64_t i = 0; i < count; ++i) to[offset + i * stride] = from_float<T>(from[i] * factor);
  };
  if (dtype == FOVEA_F16) return store(static_cast<F16*>(data));
  if (dtype == FOVEA_BF16) return store(static_cast<Bf16*>(data));
  store(static_cast<float*>(data));
}

void zero(Pool& pool, const View<4>& x, int32_t dtype, int64_t n0, int64_t n1, int64_t n2,
          int64_t n3) {
  if (!x || !n0 || !n1 || !n2 || !n3) return;
  pool.run(n0 * n1, static_cast<double>(n0) * n1 * n2 * n3 / 4, [&](int64_t item, int32_t) {
    const float nothing[1] = {0};
    for (int64_t i = 0; i < n2; ++i)
      for (int64_t j = 0; j < n3; ++j)
        store_row(
            x.data, dtype,
            item / n1 * x.stride[0] + item % n1 * x.stride[1] + i * x.stride[2] + j * x.stride[3],
            1, 1, nothing, 1);
  });
}

void transpose(const float* from, int64_t from_row, int64_t count, int64_t width, int64_t lanes,
               float* columns) {
  for (int64_t c = 0; c < width; ++c) {
    float* to = columns + c * lanes;
    for (int64_t r = 0; r < count; ++r) to[r] = from[r * from_row + c];
    for (int64_t r = count; r < lanes; ++r) to[r] = 0;
  }
}

}  // namespace fovea::host
