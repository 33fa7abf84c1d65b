// SPDX-License-Identifier: Apache-2.0
#include "ops/kl/gradient_tile_host.h"

namespace fovea::kl_host {
namespace {

using host::add_row;

// 0 * NaN is NaN: where some factor is no number, only pairs that see each other are multiplied.
bool pairwise(const SideTile& side, bool masked) {
  return masked && !side.finite();
}

template <class Add>
void each_pair(const SideTile& side, const RowTile& rows, const LocalSeen& seen, Add add) {
  for (int64_t j = 0; j < side.keys; ++j)
    for (int r = 0; r < rows.count; ++r)
      if (seen.sees(r, j)) add(j, r, side.x[j * rows.lanes + r]);
}

}  // namespace

bool GradientTile::load(const Sequence& q, RowTile& rows, double total_factor) {
  const Kl& a = b_.forward;
  for (int r = 0; r < rows.lanes; ++r) {
    lse_x_[r] = lse_y_[r] = kl_[r] = kl_second_[r] = grad_[r] = 0;
    if (r >= rows.count || !rows.sees_any(r)) continue;
    const int64_t row = rows.first + r;
    double grad = b_.dkl ? row_value(b_.dkl, q, rows.head, row) : 0;
    const float weight = b_.dtotal ? weight_of(a, q, rows.head, row) : 0;
    if (weight != 0) grad += total_factor * weight;
    grad_[r] = static_cast<float>(grad);
    if (grad_[r] == 0) {
      rows.drop(r);
      continue;
    }
    lse_x_[r] = row_value(a.first.lse, q, rows.head, row);
    lse_y_[r] = row_value(a.second.lse, q, rows.head, row);
    kl_[r] = row_value(a.kl, q, rows.head, row);
    if (a.share > 0) kl_second_[r] = row_value(a.kl_second, q, rows.head, row);
  }
  rows.bound();
  if (rows.begin >= rows.end) return false;
  x.load_rows(q, rows), y.load_rows(q, rows);
  return true;
}

void GradientTile::step(const Sequence& q, const RowTile& rows, int64_t begin, int64_t count,
                        bool masked, bool wide, const LocalSeen& seen) {
  const Kl& a = b_.forward;
  x.load_keys(q, rows.head, begin, count, wide && a.first.dq);
  y.load_keys(q, rows.head, begin, count, wide && a.second.dq);
  x.score(rows.lanes), y.score(rows.lanes);
  const host::Seen view = masked ? seen.view() : host::Seen{};
  if (a.share > 0)
    host::simd().mixture_backward(count, rows.lanes, x.x, y.x, view,
                                  {lse_x_, lse_y_, kl_, kl_second_, a.share}, grad_);
  else
    host::simd().dual_backward(count, rows.lanes, x.x, y.x, view, lse_x_, lse_y_, kl_, grad_);
}

void add_dq(const SideTile& side, const RowTile& rows, const LocalSeen& seen, bool masked,
            float* dq) {
  const int64_t pad = side.pad;
  if (pairwise(side, masked))
    return each_pair(side, rows, seen, [&](int64_t j, int r, float factor) {
      add_row(side.side.width, factor, side.k + j * side.k_row, dq + r * pad);
    });
  host::simd().gemm({rows.count, pad, side.keys, side.x, rows.lanes, side.k, side.k_row, dq, pad,
                     nullptr, true, true});
}

void add_dk(const SideTile& side, const RowTile& rows, const LocalSeen& seen, bool masked,
            float* dk) {
  const int64_t pad = side.pad;
  if (pairwise(side, masked))
    return each_pair(side, rows, seen, [&](int64_t j, int r, float factor) {
      add_row(side.side.width, factor, side.rows + r * pad, dk + j * pad);
    });
  host::simd().gemm({side.keys, pad, rows.count, side.x, rows.lanes, side.rows, pad, dk, pad,
                     nullptr, false, true});
}

}  // namespace fovea::kl_host
