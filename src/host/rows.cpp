// SPDX-License-Identifier: Apache-2.0
#include "host/rows.h"

#include <algorithm>

#include "core/convert.h"

namespace fovea::host {
namespace {

// The value of each code.
struct Codes {
  float of[256];
};
template <class T>
Codes codes_of() {
  Codes codes;
  for (int i = 0; i < 256; ++i) codes.of[i] = to_float(T{static_cast<uint8_t>(i)});
  return codes;
}
const Codes kE4m3 = codes_of<E4m3>(), kE5m2 = codes_of<E5m2>();

}  // namespace

void load_row(const Simd& simd, const void* data, int32_t dtype, int64_t offset, int64_t stride,
              int64_t count, float* to) {
  const auto load = [&](const auto* from) {
    for (int64_t i = 0; i < count; ++i) to[i] = to_float(from[offset + i * stride]);
  };
  const auto codes = [&](const Codes& values) {
    const uint8_t* from = static_cast<const uint8_t*>(data) + offset;
    for (int64_t i = 0; i < count; ++i) to[i] = values.of[from[i * stride]];
  };
  if (dtype == FOVEA_E4M3) return codes(kE4m3);
  if (dtype == FOVEA_E5M2) return codes(kE5m2);
  if (dtype == FOVEA_I8) return load(static_cast<const int8_t*>(data));
  if (dtype != FOVEA_F32 && stride == 1)
    return simd.widen(count, static_cast<const uint16_t*>(data) + offset, dtype, to);
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
  float* to = static_cast<float*>(data);
  if (stride != 1) return store(to);
  simd().scale(count, from, factor, to + offset);
}

void load_query(const Simd& simd, const View<4>& from, int32_t dtype, int64_t offset, int64_t width,
                int64_t pad, float scale, float* to) {
  load_row(simd, from.data, dtype, offset, from.stride[3], width, to);
  simd.scale(width, to, scale, to);
  std::fill(to + width, to + pad, 0.0f);
}

void store_rows(const View<4>& to, int32_t dtype, const Sequence& q, int64_t first, int64_t count,
                int64_t head, int64_t width, const float* from, int64_t pitch, float factor) {
  if (!to) return;
  for (int64_t r = 0; r < count; ++r)
    store_row(to.data, dtype, row_offset(to, q, first + r, head), to.stride[3], width,
              from + r * pitch, factor);
}

void store_keys(const View<4>& to, int32_t dtype, const Sequences& sequences, const Sequence& q,
                int64_t begin, int64_t end, int64_t key_head, int64_t width, const float* from,
                int64_t pitch) {
  if (!to) return;
  for (int64_t j = begin; j < end; ++j)
    store_row(to.data, dtype, sequences.key_offset(q, j, to.stride) + key_head * to.stride[2],
              to.stride[3], width, from + (j - begin) * pitch, 1);
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

void zero_rows(Pool& pool, const View<4>& x, int32_t dtype, const Sequences& sequences, int64_t b,
               int64_t heads, int64_t width) {
  const Sequences& q = sequences;
  if (q.query_start || q.query_len || q.query_max < q.s) zero(pool, x, dtype, b, q.s, heads, width);
}

void zero_keys(Pool& pool, const View<4>& x, int32_t dtype, const Sequences& sequences, int64_t t,
               int64_t heads, int64_t width) {
  const Sequences& q = sequences;
  if (q.key_start || q.key_len || q.key_first || q.key_max < q.capacity)
    zero(pool, x, dtype, q.key_start ? 1 : q.count, t, heads, width);
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
