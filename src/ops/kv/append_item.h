// SPDX-License-Identifier: Apache-2.0
// The parts of x_kv_append, an item each, for host and device alike.
#pragma once
#include "ops/kv/kernels.h"

namespace fovea::kv {

// An element of new rows or of a tail, as bits.
FOVEA_HD uint16_t* element(const View<4>& x, int64_t a, int64_t b, int64_t head, int64_t c) {
  return x.at<uint16_t>(a, b, head, c);
}
FOVEA_HD float to_number(const Cache& c, uint16_t bits) {
  return c.dtype == FOVEA_F16 ? to_float(F16{bits}) : to_float(Bf16{bits});
}
FOVEA_HD uint16_t* fresh(const View<4>& x, const KvAppend::Turn& t, int64_t j, int64_t head,
                         int64_t c) {
  return element(x, t.sequence.batch, t.sequence.row_begin + j - t.from.length, head, c);
}

// Group (block, head, channel) of the keys that leave the tail.
FOVEA_HD void quantise_keys(const KvAppend& a, const KvAppend::Turn& t, int64_t item) {
  const Cache& c = a.cache;
  const int64_t rest = quotient(item, c.d), channel = item - rest * c.d;
  const int64_t block = quotient(rest, c.g), head = rest - block * c.g;
  const int64_t first = t.from.keys + block * c.group;
  if (first >= t.to.keys) return;
  const int64_t id = c.page_of(t.row, first);
  if (id < 0) return;
  const int64_t at = quotient(c.rest(first, c.page), c.group);
  const auto read = [&](int32_t n) {
    const int64_t j = first + n;
    return to_number(c, j < t.from.length
                            ? *element(c.k_tail, t.row, j - t.from.keys, head, channel)
                            : *fresh(a.k_new, t, j, head, channel));
  };
  quantise(c.group, c.bits, read, c.k_scale.at<F16>(id, at, head, channel),
           c.k_zero.at<F16>(id, at, head, channel), [&](uint32_t word, int32_t n) {
             *c.k_code.at<uint32_t>(id, at, head, channel, n) = word;
           });
}

// Group (token, head, channels) of the values that leave the tail.
FOVEA_HD void quantise_values(const KvAppend& a, const KvAppend::Turn& t, int64_t item) {
  const Cache& c = a.cache;
  const int64_t groups = c.e / c.group;
  const int64_t rest = quotient(item, groups), group = item - rest * groups;
  const int64_t token = quotient(rest, c.g), head = rest - token * c.g;
  const int64_t j = t.from.values + token;
  if (j >= t.to.values) return;
  const int64_t id = c.page_of(t.row, j);
  if (id < 0) return;
  const int64_t first = group * c.group, slot = c.rest(j, c.page);
  const auto read = [&](int32_t n) {
    return to_number(c, j < t.from.length
                            ? *element(c.v_tail, t.row, c.rest(j, c.ring()), head, first + n)
                            : *fresh(a.v_new, t, j, head, first + n));
  };
  const int64_t words = c.group / c.word_codes();
  quantise(c.group, c.bits, read, c.v_scale.at<F16>(id, slot, head, group),
           c.v_zero.at<F16>(id, slot, head, group), [&](uint32_t word, int32_t n) {
             *c.v_code.at<uint32_t>(id, slot, head, group * words + n) = word;
           });
}

// Of the last ring() new tokens number n, from the newest: one column of a head to its tails, as
// calls with one token would leave them.
FOVEA_HD void to_tails(const KvAppend& a, const KvAppend::Turn& t, int64_t n, int64_t head,
                       int64_t column) {
  const Cache& c = a.cache;
  const int64_t j = t.to.length - 1 - n;
  if (j < t.from.length || j < c.firsts) return;
  if (n < c.residual && column < c.d)
    *element(c.k_tail, t.row, c.rest(j - t.from.keys, c.residual), head, column) =
        *fresh(a.k_new, t, j, head, column);
  if (column < c.e)
    *element(c.v_tail, t.row, c.value_slot(t.from.keys, j), head, column) =
        *fresh(a.v_new, t, j, head, column);
}

FOVEA_HD void count(const KvAppend& a, const KvAppend::Turn& t) {
  const Cache& c = a.cache;
  *c.counter.at<int32_t>(t.row, 0) = static_cast<int32_t>(t.to.length);
  *c.counter.at<int32_t>(t.row, 1) = static_cast<int32_t>(t.to.keys);
  *c.counter.at<int32_t>(t.row, 2) = static_cast<int32_t>(t.to.values);
}

}  // namespace fovea::kv
