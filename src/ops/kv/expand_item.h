// SPDX-License-Identifier: Apache-2.0
// The parts of x_kv_decode's forming of keys and values, for host and device alike.
#pragma once
#include "ops/kv/kernels.h"

namespace fovea::kv {

FOVEA_HD void store(const View<4>& to, int32_t dtype, int64_t r, int64_t j, int64_t head, int64_t c,
                    float x) {
  store_fp(to.at<F16>(r, j, head, c), dtype, 0, x);
}

// Of token j of a sequence one head's columns, every step-th from `lane` on.
FOVEA_HD void form_token(const KvExpand& x, int64_t r, int64_t j, int64_t head, int64_t lane,
                         int64_t step) {
  const Cache& c = x.cache;
  const int64_t row = x.row_of(r);
  if (row < 0) return;
  const State s = c.state(row);
  if (j >= s.length) return;
  const int64_t id = j < s.keys || j < s.values ? c.page_of(row, j) : -1;
  if (id < 0 && j < s.keys) return;
  for (int64_t i = lane; i < c.d; i += step)
    store(x.k, c.dtype, r, j, head, i,
          j < s.keys ? c.key(id, head, j, i) : c.key_in_tail(row, s, head, j, i));
  for (int64_t i = lane; i < c.e; i += step) {
    const bool code = j < s.values;
    store(x.v, c.dtype, r, j, head, i,
          !code    ? c.value_in_tail(row, head, j, i)
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
