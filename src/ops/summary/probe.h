// SPDX-License-Identifier: Apache-2.0
// A call of x_probe_forward, resolved.  Rows and keys of the sweep are units of `stride` tokens.
#pragma once
#include <cmath>

#include "core/convert.h"
#include "core/list_rows.h"
#include "core/plan.h"
#include "fovea/experimental/summary.h"

namespace fovea {

struct ProbeCall {
  Attend a;  // q, k, lse, window, positions, scale over stride
  View<3> lse_in, column_sum, diagonal_sum;
  View<4> block_sum, block_max;
  int64_t x, n, u, columns;              // columns: extent of diagonal_sum
  int64_t stride, unit_rows, unit_keys;  // of a block, in units
  int32_t reduce;
  bool reversed, causal;

  FOVEA_HD int64_t group() const { return a.h / x; }
  FOVEA_HD int64_t rows(const Sequence& q) const { return (q.rows + stride - 1) / stride; }
  FOVEA_HD int64_t keys(const Sequence& q) const { return (q.keys + stride - 1) / stride; }
  FOVEA_HD int64_t rows_most() const { return (a.sequences.query_max + stride - 1) / stride; }
  FOVEA_HD int64_t keys_most() const { return (a.sequences.key_max + stride - 1) / stride; }
  FOVEA_HD bool blocks() const { return block_sum || block_max; }
  FOVEA_HD int64_t width() const { return stride * a.d; }

  // Element offset of column c of unit row i; of unit key j.  -1: zeros.
  FOVEA_HD int64_t q_offset(const Sequence& q, int64_t h, int64_t i, int64_t r) const {
    const int64_t row = i * stride + (reversed ? stride - 1 - r : r);
    if (row >= q.rows) return -1;
    return q.batch * a.q.stride[0] + (q.row_begin + row) * a.q.stride[1] + h * a.q.stride[2];
  }
  FOVEA_HD int64_t k_offset(const Sequence& q, int64_t h, int64_t j, int64_t r) const {
    const int64_t key = j * stride + r;
    if (key >= q.keys) return -1;
    const int64_t at = a.sequences.key_offset(q, key, a.k.stride);
    return at < 0 ? -1 : at + h / (a.h / a.g) * a.k.stride[2];
  }
  // Unit key that unit row 0 is at.
  FOVEA_HD int64_t shift(const Sequence& q) const {
    const int64_t x = q.context - q.rows;
    return x >= 0 ? x / stride : -((stride - 1 - x) / stride);
  }
  FOVEA_HD bool sees(const Sequence& q, int64_t h, int64_t i, int64_t j) const {
    if (i >= rows(q) || j >= keys(q)) return false;
    if (stride > 1) return !causal || j <= i + shift(q);
    if (a.sequences.page && a.sequences.key_offset(q, j, a.k.stride) < 0) return false;
    return a.mask.window.sees(a.mask.query_at(q, h, i), a.mask.axis.at(j));
  }
  // Whether some row of [i0, i1) may see some key of [j0, j1).
  FOVEA_HD bool may_see(const Sequence& q, int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
    if (stride > 1) return !causal || j0 <= i1 - 1 + shift(q);
    if (a.mask.query_position) return true;
    const int64_t first = a.mask.query_at(q, 0, i0), last = a.mask.query_at(q, 0, i1 - 1);
    const Window& w = a.mask.window;
    const int64_t low = a.mask.axis.at(j0), high = a.mask.axis.at(j1 - 1);
    if (w.right > 0 && low >= last + w.right) return false;
    return !(w.left > 0 && high <= first - w.left && low >= w.sink);
  }
  FOVEA_HD int64_t first_block(const Sequence& q, int64_t r) const {
    if (!a.sequences.query_start) return 0;
    return first_list_row<int64_t>(q.row_begin, r, unit_rows * stride);
  }
};

FOVEA_HD float probe_p(float logit, float lse) {
  return logit == -INFINITY || lse == -INFINITY ? 0.f : expf(logit - lse);
}

// A probability as an integer: sums do not depend on their order.
constexpr double kProbeUnit = 0x1p36;
FOVEA_HD unsigned long long probe_fixed(float p) {
  if (!(p > 0)) return 0;
  return static_cast<unsigned long long>((p < 65536.f ? static_cast<double>(p) : 65536.0) *
                                         kProbeUnit);
}
FOVEA_HD float probe_float(unsigned long long sum) {
  return static_cast<float>(static_cast<double>(sum) / kProbeUnit);
}

// What a head's value does to that of its group; 0 before the first.
FOVEA_HD float probe_join(const ProbeCall& p, float group, float head) {
  if (p.reduce == FOVEA_X_PROBE_REDUCE_MAX) return head > group || head != head ? head : group;
  return group + head;
}
FOVEA_HD float probe_end(const ProbeCall& p, float group) {
  const bool mean = p.reduce == FOVEA_X_PROBE_REDUCE_MEAN && p.group() > 1;
  return mean ? group / static_cast<float>(p.group()) : group;
}

// Of a group's heads, `columns` sums each.
FOVEA_HD float probe_diagonal(const ProbeCall& p, const unsigned long long* sums, int64_t o) {
  float group = 0;
  for (int64_t n = 0; n < p.group(); ++n)
    group = probe_join(p, group, probe_float(sums[n * p.columns + o]));
  return probe_end(p, group);
}

extern const Kernel<ProbeCall> probe_forward_host;

// CUDA builds only.
extern const Kernel<ProbeCall> probe_forward_sm90, probe_forward_simt;

}  // namespace fovea
