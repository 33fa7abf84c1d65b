// SPDX-License-Identifier: Apache-2.0
// The parts of x_kv_decode's forming of keys and values, for host and device alike.
#pragma once
#include "ops/kv/kernels.h"
#include "ops/kv/levels.h"

namespace fovea::kv {

FOVEA_HD void store(const View<4>& to, int32_t dtype, int64_t r, int64_t j, int64_t head, int64_t c,
                    float x) {
  store_fp(to.at<F16>(r, j, head, c), dtype, 0, x);
}

FOVEA_HD float to_float_of(const Cache& c, const View<4>& x, int64_t row, int64_t j, int64_t head,
                           int64_t i) {
  return load_fp(x.at<F16>(row, j, head, i), c.dtype, 0);
}

// Outliers of one head's columns: numbers there that are x' and what it lacks.
template <class Number>
FOVEA_HD void form_outliers(const KvExpand& x, const View<3>& outliers, int64_t count,
                            const View<4>& to, int64_t width, int64_t id, int64_t r, int64_t j,
                            int64_t head, int64_t lane, int64_t step, const Number& number) {
  const int64_t slot = Cache::rest(j, x.cache.page);
  for (int64_t n = 0; n < count; ++n) {
    const uint32_t entry = *outliers.at<uint32_t>(id, slot, n);
    const int64_t c = column_of(entry) - head * width;
    if (c < 0 || c >= width || Cache::rest(c, step) != lane) continue;
    store(to, x.cache.dtype, r, j, head, c, number(c) + lacks_of(entry));
  }
}

// A first token as it came: one head's columns, every step-th from `lane` on.
FOVEA_HD void form_first(const KvExpand& x, int64_t row, int64_t r, int64_t j, int64_t head,
                         int64_t lane, int64_t step) {
  const Cache& c = x.cache;
  for (int64_t i = lane; i < c.d; i += step)
    store(x.k, c.dtype, r, j, head, i, to_float_of(c, c.k_first, row, j, head, i));
  for (int64_t i = lane; i < c.e; i += step)
    store(x.v, c.dtype, r, j, head, i, to_float_of(c, c.v_first, row, j, head, i));
}

// The same of a token in the formats of levels.
FOVEA_HD void form_levels(const KvExpand& x, int64_t row, int64_t r, int64_t j, int64_t head,
                          int64_t lane, int64_t step) {
  const Cache& c = x.cache;
  const int64_t id = c.page_of(row, j);
  if (id < 0) return;
  if (j < c.firsts) return form_first(x, row, r, j, head, lane, step);
  const auto key = [&](int64_t i) { return key_by_level(c, id, head, j, i); };
  const auto value = [&](int64_t i) { return value_by_level(c, id, head, j, i); };
  for (int64_t i = lane; i < c.d; i += step) store(x.k, c.dtype, r, j, head, i, key(i));
  for (int64_t i = lane; i < c.e; i += step) store(x.v, c.dtype, r, j, head, i, value(i));
  form_outliers(x, c.k_outlier, c.k_outliers, x.k, c.d, id, r, j, head, lane, step, key);
  form_outliers(x, c.v_outlier, c.v_outliers, x.v, c.e, id, r, j, head, lane, step, value);
}

// Of token j of a sequence one head's columns, every step-th from `lane` on.
FOVEA_HD void form_token(const KvExpand& x, int64_t r, int64_t j, int64_t head, int64_t lane,
                         int64_t step) {
  const Cache& c = x.cache;
  const int64_t row = x.row_of(r);
  if (row < 0) return;
  const State s = c.state(row);
  if (j >= s.length) return;
  if (!c.by_groups()) return form_levels(x, row, r, j, head, lane, step);
  const int64_t id = j < s.keys || j < s.values ? c.page_of(row, j) : -1;
  if (id < 0 && j < s.keys) return;
  if (j < c.firsts) return form_first(x, row, r, j, head, lane, step);
  for (int64_t i = lane; i < c.d; i += step)
    store(x.k, c.dtype, r, j, head, i,
          j < s.keys ? c.key(id, head, j, i) : c.key_in_tail(row, s, head, j, i));
  for (int64_t i = lane; i < c.e; i += step) {
    const bool code = j < s.values;
    store(x.v, c.dtype, r, j, head, i,
          !code    ? c.value_in_tail(row, s, head, j, i)
          : id < 0 ? quiet_nan()
                   : c.value(id, head, j, i));
  }
}

// The page of tokens from `block` groups on, and the length.
FOVEA_HD void form_place(const KvExpand& x, int64_t r, int64_t block) {
  const Cache& c = x.cache;
  const int64_t row = x.row_of(r);
  const State s = row < 0 ? State{} : c.state(row);
  if (block == 0) *x.length.at<int32_t>(r) = static_cast<int32_t>(s.length);
  const int64_t j = block * c.group;
  if (j >= x.tokens) return;
  const bool there = row >= 0 && (j >= s.keys || c.page_of(row, j) >= 0);
  *x.table.at<int32_t>(r, block) =
      there ? static_cast<int32_t>(r * (x.tokens / c.group) + block) : -1;
}

}  // namespace fovea::kv
