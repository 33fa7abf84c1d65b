// SPDX-License-Identifier: Apache-2.0
// The backward token by token.  An item walks its tokens once and keeps the state of every `step`
// tokens.  Then it takes pieces of `step` tokens from the last to the first: states within a piece
// are made again, and tokens are read backwards with
//   W = dstate_out;  W += scale q^' dy,  dq^ = scale dy H_t',  then the adjoint of one update.
#pragma once
#include <algorithm>

#include "host/recur_item.h"

namespace fovea::host {

class BackwardItem : public Item {
 public:
  BackwardItem(const RecurBackward& b, const Room& room, void* base, int64_t item, int64_t step,
               int64_t plane, int64_t width = kSlice)
      : Item(b.forward, room, base, item, width),
        b_(b),
        step_(step),
        plane_(plane + slice),
        dkey_(room.dkey.at(base)),
        dgate_(room.dgate.at(base)),
        dp_(room.dp.at(base)),
        dlow_b_(room.dlow_b.at(base)),
        du_(room.du.at(base)),
        dz_(room.dz.at(base)),
        dy_(room.dy.at(base)),
        w_(room.w.at(base)),
        kept_(room.kept.at(base)),
        inner_(room.inner.at(base)) {}

  void run() const {
    load_state(state);
    load_gradient();
    if (a_.full) return full();
    walk(0, q.count);
    store_gradient();
  }
  // Tokens [begin, last): `state` is before the first, W of after the last becomes of before the
  // first.
  void walk(int64_t first_token, int64_t last) const {
    const int64_t size = a_.d * columns, pieces = ceil_div(last - first_token, step_);
    for (int64_t t = first_token; t < last; ++t) {
      const int64_t piece = (t - first_token) / step_;
      if ((t - first_token) % step_ == 0) std::copy_n(state, size, kept_ + piece * size);
      if (piece == pieces - 1) break;
      load_token(q.begin + t), update(state);
    }
    for (int64_t piece = pieces; piece-- > 0;) {
      const int64_t begin = first_token + piece * step_, end = std::min(last, begin + step_);
      std::copy_n(kept_ + piece * size, size, state);
      for (int64_t t = begin; t < end; ++t) {
        std::copy_n(state, size, inner_ + (t - begin) * size);
        if (t + 1 < end) load_token(q.begin + t), update(state);
      }
      for (int64_t t = end; t-- > begin;) token(t, inner_ + (t - begin) * size);
    }
  }
  float* gradient() const { return w_; }
  void load_gradient() const {
    for (int64_t c = 0; c < a_.d; ++c)
      for (int64_t j = 0; j < columns; ++j)
        w_[c * columns + j] =
            b_.dstate_out ? *b_.dstate_out.at(q.sequence, head, c, first + j) : 0.f;
  }
  void store_gradient() const {
    for (int64_t c = 0; b_.dstate_in && c < a_.d; ++c)
      for (int64_t j = 0; j < columns; ++j)
        *b_.dstate_in.at(q.sequence, head, c, first + j) = w_[c * columns + j];
  }

 private:
  int64_t row(int64_t rows, int64_t at) const { return (plane_ * a_.b + q.batch) * rows + at; }

  // dq^ of an output from the state that it read, and what it adds to W.
  void output(int64_t t, int64_t output, const float* read) const {
    const int64_t at = q.begin + t;
    load_query(at, output, query);
    const bool there = t >= q.from;
    if (there)
      load_row(simd_, a_.o.view.data, a_.o.dtype, a_.o.offset(q.batch, at, output, first),
               a_.o.view.stride[3], columns, dy_);
    else
      std::fill_n(dy_, columns, 0.f);
    if (a_.bonus) {
      const float own = bonus(query);
      float sum = 0;
      for (int64_t j = 0; j < columns; ++j) {
        const float slope = dy_[j] * a_.bonus_slope(own * value[j]);
        sum += slope * value[j], y[j] += own * slope;
      }
      b_.terms.de[row(a_.s, at) * a_.heads_out + output] = sum;
    }
    const float factor = a_.scale / den(at, output);
    for (int64_t j = 0; j < columns; ++j) dy_[j] *= factor;
    float* dq = b_.terms.dq + (row(a_.s, at) * a_.heads_out + output) * a_.d;
    for (int64_t c = 0; c < a_.d; ++c) {
      dq[c] = there ? simd_.dot(columns, dy_, read + c * columns) : 0;
      if (there) add_row(columns, query[c], dy_, w_ + c * columns);
    }
  }

  void token(int64_t t, float* before) const {
    const int64_t at = q.begin + t;
    load_token(at);
    std::fill_n(y, columns, 0.f);  // what the bonus adds to dv
    const int64_t size = a_.d * columns;
    const auto each_output = [&](const float* read) {
      for (int64_t j = head * a_.outputs(); j < (head + 1) * a_.outputs(); ++j) output(t, j, read);
    };
    float* const past = a_.form == Recurrence::low_rank || a_.read_before ? state : nullptr;
    if (past) std::copy_n(before, size, past);
    correct(before);  // now H~
    if (!a_.read_before) {
      std::copy_n(before, size, inner_after());
      add(inner_after());
      each_output(inner_after());
    }
    adjoint(at, before, past);
    if (a_.read_before) each_output(past);
    float* dv = b_.terms.dv + ((q.batch * a_.t + at) * a_.heads + head) * a_.e + first;
    if (a_.v)
      for (int64_t j = 0; j < columns; ++j) dv[j] = du_[j] + y[j];
  }
  // Room of one state behind those of a piece.
  float* inner_after() const { return inner_ + step_ * a_.d * columns; }

  // W of the state after the token becomes that of the state before.  `shrunk` is H~, `past`
  // H_(t-1).
  void adjoint(int64_t at, const float* shrunk, const float* past) const {
    const bool corrected = a_.form == Recurrence::corrected, low = a_.form == Recurrence::low_rank;
    const int64_t of_key = (row(a_.t, at) * a_.heads + head) * a_.d;
    product(key, w_, du_);
    if (low) product(low_b, w_, dz_);
    if (a_.gate_value) std::fill_n(dcolumn(at), columns, 0.f);
    for (int64_t c = 0; c < a_.d; ++c) {
      float* w = w_ + c * columns;
      const float* h = shrunk + c * columns;
      dkey_[c] = simd_.dot(columns, w, u);
      if (corrected) {
        dp_[c] = -simd_.dot(columns, h, du_);
        add_row(columns, -p[c], du_, w);
      } else if (low) {
        dlow_b_[c] = simd_.dot(columns, w, z), dp_[c] = simd_.dot(columns, past + c * columns, dz_);
      }
      dgate_[c] = decay[c] == 0 ? 0 : simd_.dot(columns, h, w);
      if (a_.gate_value) {
        float* to = dcolumn(at);
        for (int64_t j = 0; j < columns; ++j)
          if (decay[c] * column[j] != 0) to[j] += h[j] * w[j];
      }
    }
    if (a_.row_gates()) std::copy_n(dgate_, a_.d, b_.terms.dg + of_key);
    std::copy_n(dkey_, a_.d, b_.terms.dk + of_key);
    if (corrected || low) std::copy_n(dp_, a_.d, b_.terms.dp + of_key);
    if (low) std::copy_n(dlow_b_, a_.d, b_.terms.db + of_key);
    if (corrected) {
      b_.terms.dbeta[row(a_.s, at) * a_.heads + head] = simd_.dot(columns, du_, value);
      for (int64_t j = 0; j < columns; ++j) du_[j] *= beta;
    }
    shrink(w_);
    for (int64_t c = 0; low && c < a_.d; ++c) add_row(columns, p[c], dz_, w_ + c * columns);
  }
  float* dcolumn(int64_t at) const {
    return b_.terms.dgv + ((q.batch * a_.s + at) * a_.heads + head) * a_.e + first;
  }

  void full() const {
    const Recur::Keys keys = a_.keys(q);
    for (int64_t t = 0; t < keys.count; ++t) load_token(keys.begin + t), update(state);
    for (int64_t t = 0; t < q.count; ++t)
      for (int64_t j = head * a_.outputs(); j < (head + 1) * a_.outputs(); ++j) output(t, j, state);
    for (int64_t t = 0; t < keys.count; ++t) {
      const int64_t at = keys.begin + t;
      load_token(at);
      product(key, w_, du_);
      float* dk = b_.terms.dk + (row(a_.t, at) * a_.heads + head) * a_.d;
      for (int64_t c = 0; c < a_.d; ++c) dk[c] = simd_.dot(columns, w_ + c * columns, value);
      float* dv = b_.terms.dv + ((q.batch * a_.t + at) * a_.heads + head) * a_.e + first;
      if (a_.v) std::copy_n(du_, columns, dv);
    }
    store_gradient();
  }

  const RecurBackward& b_;
  const int64_t step_, plane_;
  float *dkey_, *dgate_, *dp_, *dlow_b_, *du_, *dz_, *dy_, *w_, *kept_, *inner_;
};

}  // namespace fovea::host
