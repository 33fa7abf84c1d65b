// SPDX-License-Identifier: Apache-2.0
// Rows of gradients that are sums of terms (core/recur_gradients.h) and no map's slope: the numbers
// of RecurBackward::term, a vector at a time.
#pragma once
#include <algorithm>

#include "core/recur_gradients.h"
#include "host/rows.h"

namespace fovea::host {

class GradientRows {
 public:
  GradientRows(const RecurBackward& b, RecurGradient what)
      : b_(b), a_(b.forward), simd_(simd()), what_(what) {}

  // Is the gradient made of such rows?
  bool plain() const {
    const Floats<4>& to = b_.output(what_);
    const RecurBackward::Extents n = b_.extents(what_);
    for (int i = 0; i < 4; ++i)
      if (to.view.stride[i] == 0 && n.n[i] > 1) return false;
    if (b_.idle()) return false;
    switch (what_) {
      case RecurGradient::q:
        return !a_.l2_norm && !a_.map_q && !a_.bonus;
      case RecurGradient::k:
        return !a_.l2_norm && !a_.map_k && !a_.bonus;
      case RecurGradient::v:
        return !a_.skip;
      case RecurGradient::gate_key:
        return !a_.gate.map && !(a_.gate.bound > 0);
      case RecurGradient::beta:
        return !a_.l2_norm && !a_.map_k;
      case RecurGradient::erase:
        return true;
      default:
        return false;
    }
  }
  void store(int64_t batch, int64_t at, int64_t head) const {
    const Floats<4>& to = b_.output(what_);
    const int64_t width = b_.extents(what_).n[3];
    const bool of_keys = what_ == RecurGradient::k || what_ == RecurGradient::v;
    const bool used = of_keys ? a_.key_in_use(batch, at) : a_.in_use(batch, at);
    float row[kPiece];
    for (int64_t first = 0; first < width; first += kPiece) {
      const int64_t count = std::min(kPiece, width - first);
      std::fill_n(row, count, 0.f);
      if (used) fill(batch, at, head, first, count, row);
      store_row(to.view.data, to.dtype, to.offset(batch, at, head, first), to.view.stride[3], count,
                row, 1);
    }
  }

 private:
  static constexpr int64_t kPiece = 512;  // the widest key

  void fill(int64_t batch, int64_t at, int64_t head, int64_t first, int64_t count,
            float* row) const {
    const RecurTerms& t = b_.terms;
    switch (what_) {
      case RecurGradient::q: {
        const int64_t each = a_.heads_out / a_.h;
        for (int64_t j = head * each; j < (head + 1) * each; ++j)
          add(t.dq, a_.s, a_.heads_out, batch, at, j, 1, row);
        return;
      }
      case RecurGradient::k: {
        const int64_t each = a_.heads / a_.g;
        for (int64_t n = head * each; n < (head + 1) * each; ++n) {
          const float select = a_.select_of(batch, at, n);
          add(t.dk, a_.t, a_.heads, batch, at, n, select, row);
          if (a_.form == Recurrence::corrected && !a_.erase)
            add(t.dp, a_.s, a_.heads, batch, at, n, select * a_.beta_at(batch, at, n).value, row);
        }
        return;
      }
      case RecurGradient::v: {
        const int64_t each = a_.heads / a_.x;
        for (int64_t n = head * each; n < (head + 1) * each; ++n) {
          const float* of = t.dv + ((batch * a_.t + at) * a_.heads + n) * a_.e + first;
          for (int64_t j = 0; j < count; ++j) row[j] += of[j];
        }
        return;
      }
      case RecurGradient::gate_key:
        add(t.dg, a_.s, a_.heads, batch, at, head, 1, row);
        for (int64_t c = 0; c < count; ++c)
          if (a_.key_gate(batch, at, head, c).slope == 0) row[c] = 0;
        return;
      case RecurGradient::beta:
        return fill_beta(batch, at, head, row);
      default:
        return add(t.dp, a_.s, a_.heads, batch, at, head, 1, row);
    }
  }
  // Planes of an array (slices, b rows, heads, d).
  void add(const float* x, int64_t rows, int64_t heads, int64_t batch, int64_t at, int64_t head,
           float factor, float* row) const {
    for (int64_t slice = 0; slice < b_.terms.slices; ++slice) {
      const float* of = x + (((slice * a_.b + batch) * rows + at) * heads + head) * a_.d;
      for (int64_t c = 0; c < a_.d; ++c) row[c] += factor * of[c];
    }
  }
  void fill_beta(int64_t batch, int64_t at, int64_t head, float* to) const {
    float sum = 0;
    for (int64_t slice = 0; slice < b_.terms.slices; ++slice)
      sum += b_.terms.dbeta[((slice * a_.b + batch) * a_.s + at) * a_.heads + head];
    if (!a_.erase) {
      float dp[kPiece] = {}, key[kPiece];
      add(b_.terms.dp, a_.s, a_.heads, batch, at, head, 1, dp);
      const int64_t from = a_.key_head(head);
      load_row(simd_, a_.k.view.data, a_.k.dtype, a_.k.offset(batch, at, from, 0),
               a_.k.view.stride[3], a_.d, key);
      sum += a_.select_of(batch, at, head) * simd_.dot(a_.d, dp, key);
    }
    const float slope = a_.beta_at(batch, at, head).slope;
    *to = sum == 0 || slope == 0 ? 0 : sum * slope;
  }

  const RecurBackward& b_;
  const Recur& a_;
  const Simd& simd_;
  const RecurGradient what_;
};

}  // namespace fovea::host
