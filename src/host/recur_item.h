// SPDX-License-Identifier: Apache-2.0
// A recurrence token by token, core/recur.h.  An item is a sequence, a state head and a slice of
// value columns.  Between tokens its state stays in the worker's room, row by row; states in f32
// are read by the first token and written by the last where the caller has them.  What a column
// becomes depends on no other column, so slices of any width have the same bits.
#pragma once
#include <algorithm>

#include "core/recur.h"
#include "host/sweep.h"

namespace fovea::host {

constexpr int64_t kSlice = 64;    // value columns of an item that goes token by token
constexpr int64_t kOutputs = 16;  // outputs of a state head that are made at once

// A worker's room: vectors of one token, and states.
struct Room {
  Slot<float> query, y;                         // (outputs at once, d), (.., columns)
  Slot<float> key, decay, p, low_b;             // d
  Slot<float> dkey, dgate, dp, dlow_b;          // d
  Slot<float> value, column, u, z, du, dz, dy;  // columns of a slice
  Slot<float> state, w, kept, inner;

  Room() = default;
  // tokens: of the longest walk backwards, 0 in a forward; step: of its pieces.
  Room(const Recur& a, Layout& to, int64_t width, int64_t tokens, int64_t step) {
    const int64_t columns = std::max(std::min(width, a.e), int64_t{a.normalise});
    const int64_t outputs = a.heads ? std::min(a.outputs(), kOutputs) : 1;
    query = to.add<float>(outputs, a.d), y = to.add<float>(outputs, columns);
    for (Slot<float>* x : {&key, &decay, &p, &low_b}) *x = to.add<float>(a.d);
    for (Slot<float>* x : {&value, &column, &u, &z, &du, &dz, &dy}) *x = to.add<float>(columns);
    state = to.add<float>(a.d, columns);
    if (tokens == 0) return;
    for (Slot<float>* x : {&dkey, &dgate, &dp, &dlow_b}) *x = to.add<float>(a.d);
    w = to.add<float>(a.d, columns);
    kept = to.add<float>(ceil_div(tokens, step), a.d, columns);
    inner = to.add<float>(step + 1, a.d, columns);
  }
};

// One item's tokens.
class Item {
 public:
  Item(const Recur& a, const Room& room, void* base, int64_t item, int64_t width = kSlice)
      : a_(a),
        simd_(simd()),
        slices_(ceil_div(a.e, width)),
        slice(item % slices_),
        head(item / slices_ % a.heads),
        q(a.run[item / slices_ / a.heads]),
        first(slice * width),
        columns(std::min(width, a.e - first)),
        query(room.query.at(base)),
        key(room.key.at(base)),
        decay(room.decay.at(base)),
        p(room.p.at(base)),
        low_b(room.low_b.at(base)),
        value(room.value.at(base)),
        column(room.column.at(base)),
        u(room.u.at(base)),
        z(room.z.at(base)),
        y(room.y.at(base)),
        state(room.state.at(base)) {}

  static int64_t count(const Recur& a, int64_t width = kSlice) {
    return a.run.count * a.heads * ceil_div(a.e, width);
  }
  // Of the recurrence or its normaliser, whichever has more.
  static double most(const Recur& a, int64_t width = kSlice) {
    const int64_t n = count(a, width);
    return static_cast<double>(a.normalise ? std::max(n, a.run.count * a.heads) : n);
  }

  void load_state(float* to) const {
    if (!a_.state_in || q.state < 0) return static_cast<void>(std::fill_n(to, a_.d * columns, 0.f));
    for (int64_t c = 0; c < a_.d; ++c)
      load_row(simd_, a_.state_in.view.data, a_.state_in.dtype,
               a_.state_in.offset(q.state, head, c, first), a_.state_in.view.stride[3], columns,
               to + c * columns);
  }
  void store_state(const Floats<4>& to, int64_t row) const {
    for (int64_t c = 0; to && row >= 0 && c < a_.d; ++c)
      store_row(to.view.data, to.dtype, to.offset(row, head, c, first), to.view.stride[3], columns,
                state + c * columns, 1);
  }

  void load_query(int64_t at, int64_t output, float* to) const {
    load_mapped(a_.q, at, a_.query_head(output), a_.map_q, 1, to);
  }
  // Key, value, decays and what corrects, of the token `at` on the s axis.
  void load_token(int64_t at) const {
    load_mapped(a_.k, at, a_.key_head(head), a_.map_k, a_.select_of(q.batch, at, head), key);
    if (a_.v)
      load_row(simd_, a_.v.view.data, a_.v.dtype,
               a_.v.offset(q.batch, at, a_.value_head(head), first), a_.v.view.stride[3], columns,
               value);
    else
      std::fill_n(value, columns, 1.f);
    load_decays(at);
    if (a_.form == Recurrence::additive) return;
    beta = a_.beta_at(q.batch, at, head).value;
    const Floats<4>& from = a_.form == Recurrence::low_rank ? a_.low_a : a_.erase;
    if (from)
      load_row(simd_, from.view.data, from.dtype, from.offset(q.batch, at, head, 0),
               from.view.stride[3], a_.d, p);
    else
      for (int64_t c = 0; c < a_.d; ++c) p[c] = beta * key[c];
    if (a_.low_b)
      load_row(simd_, a_.low_b.view.data, a_.low_b.dtype, a_.low_b.offset(q.batch, at, head, 0),
               a_.low_b.view.stride[3], a_.d, low_b);
  }

  void load_decays(int64_t at) const {
    const float own = a_.gate_head ? a_.head_gate(q.batch, at, head).value : 0;
    if (a_.gate_key) {
      load_row(simd_, a_.gate_key.view.data, a_.gate_key.dtype,
               a_.gate_key.offset(q.batch, at, head, 0), a_.gate_key.view.stride[3], a_.d, decay);
      for (int64_t c = 0; a_.bias && c < a_.d; ++c) decay[c] += *a_.bias.at(head, c);
      map_gates(a_.d, decay);
      for (int64_t c = 0; a_.gate_head && c < a_.d; ++c) decay[c] += own;
      simd_.exponential(a_.d, decay);
    } else {
      std::fill_n(decay, a_.d, exp_of(own));
    }
    if (!a_.gate_value) return;
    load_row(simd_, a_.gate_value.view.data, a_.gate_value.dtype,
             a_.gate_value.offset(q.batch, at, head, first), a_.gate_value.view.stride[3], columns,
             column);
    map_gates(columns, column);
    simd_.exponential(columns, column);
  }

  // x' H, for a row of d.
  void product(const float* x, const float* of, float* to) const {
    std::fill_n(to, columns, 0.f);
    for (int64_t c = 0; c < a_.d; ++c) add_row(columns, x[c], of + c * columns, to);
  }
  // The state decays.
  void shrink(float* of) const {
    for (int64_t c = 0; c < a_.d; ++c) {
      float* row = of + c * columns;
      if (a_.gate_value)
        for (int64_t j = 0; j < columns; ++j) row[j] = decayed(decay[c] * column[j], row[j]);
      else if (decay[c] == 0)
        std::fill_n(row, columns, 0.f);
      else if (decay[c] != 1)
        for (int64_t j = 0; j < columns; ++j) row[j] *= decay[c];
    }
  }
  // H~ of a state, and u or z: what the update then adds.
  void correct(float* of) const {
    if (a_.form == Recurrence::low_rank) product(p, of, z);
    shrink(of);
    if (a_.form != Recurrence::corrected) return static_cast<void>(std::copy_n(value, columns, u));
    product(p, of, z);
    for (int64_t j = 0; j < columns; ++j) u[j] = beta * value[j] - z[j];
  }
  void add(float* to) const {
    for (int64_t c = 0; c < a_.d; ++c) {
      add_row(columns, key[c], u, to + c * columns);
      if (a_.form == Recurrence::low_rank) add_row(columns, low_b[c], z, to + c * columns);
    }
  }
  void update(float* of) const { correct(of), add(of); }
  // scale q^ . (bonus . k^)
  float bonus(const float* of) const {
    float sum = 0;
    for (int64_t c = 0; c < a_.d; ++c) sum += of[c] * *a_.bonus.at(head, c) * key[c];
    return a_.scale * sum;
  }
  float den(int64_t at, int64_t output) const {
    return a_.den ? *a_.den.at(q.batch, at, output) : 1.f;
  }

  // Output i of the state head, from row `row` of query and of the sums y.
  void store_output(int64_t at, int64_t i, int64_t row, bool with_token) const {
    const int64_t output = head * a_.outputs() + i;
    const float over = den(at, output), own = a_.bonus ? bonus(query + row * a_.d) : 0;
    float* sums = y + row * columns;
    for (int64_t j = 0; j < columns; ++j) {
      sums[j] = (a_.scale * sums[j] + a_.added) / over;
      if (a_.bonus) sums[j] += a_.bonus_of(own * value[j]);
      if (with_token && a_.skip) sums[j] += *a_.skip.at(head, first + j) * value[j];
    }
    store_row(a_.o.view.data, a_.o.dtype, a_.o.offset(q.batch, at, output, first),
              a_.o.view.stride[3], columns, sums, 1);
  }

  void forward() const {
    if (a_.full) {
      load_state(state);
      const Recur::Keys keys = a_.keys(q);
      for (int64_t t = 0; t < keys.count; ++t) load_token(keys.begin + t), update(state);
      for (int64_t t = q.from; a_.o && t < q.count; ++t)
        for (int64_t i = 0; i < a_.outputs(); ++i) {
          load_query(q.begin + t, head * a_.outputs() + i, query);
          product(query, state, y);
          store_output(q.begin + t, i, 0, false);
        }
      return store_last();
    }
    if (!q.count) return load_state(state), store_last();
    // States in f32 are read by the first token and written by the last where they are.
    Place before{state, columns}, after{state, columns};
    if (!a_.state_in || q.state < 0)
      before.row = nullptr;
    else if (lies_in_floats(a_.state_in))
      before = place(a_.state_in, q.state);
    else
      load_state(state);
    const int64_t out = a_.state_out ? a_.run.out_row(q.sequence) : -1;
    const bool there = out >= 0 && !a_.snapshot && lies_in_floats(a_.state_out);
    if (there) after = place(a_.state_out, out);
    if (out < 0 && !a_.snapshot) after.row = nullptr;
    for (int64_t t = 0; t < q.count; ++t) {
      const Place room{state, columns};
      step(t, t ? room : before, t + 1 < q.count ? room : after);
      keep(t + 1);
    }
    if (!there) store_last();
  }
  // Tokens [begin, end) of a causal call.
  void walk(int64_t begin, int64_t end) const {
    for (int64_t t = begin; t < end; ++t) {
      step(t, {state, columns}, {state, columns});
      keep(t + 1);
    }
  }
  void store_last() const {
    if (a_.state_out) store_state(a_.state_out, a_.run.out_row(q.sequence));
  }
  // The snapshot of the state after `tokens`.
  void keep(int64_t tokens) const {
    if (a_.snapshot && tokens % a_.run.every == 0)
      store_state(a_.snapshot, kept_row(tokens / a_.run.every - 1));
  }

 protected:
  // The columns of a slice, in rows of a state.
  struct Place {
    float* row;
    int64_t pitch;
  };
  static bool lies_in_floats(const Floats<4>& x) {
    return x.dtype == FOVEA_F32 && x.view.stride[3] == 1;
  }
  Place place(const Floats<4>& x, int64_t row) const {
    return {static_cast<float*>(x.view.data) + x.offset(row, head, 0, first), x.view.stride[2]};
  }

  // Token t of the sequence.
  void step(int64_t t, const Place& before, Place after) const {
    const int64_t at = q.begin + t, outputs = a_.o && t >= q.from ? a_.outputs() : 0;
    load_token(at);
    TokenStep x = {};
    x.rows = a_.d, x.columns = columns, x.query = query, x.y = y;
    // Outputs beyond those that are made with the update read one of the states.
    if (!a_.read_before && outputs > kOutputs && !after.row) after = {state, columns};
    const Place& read = a_.read_before ? before : after;
    const auto others = [&] {
      x.key = nullptr, x.from = read.row, x.from_row = read.pitch;
      for (int64_t i = kOutputs; i < outputs; i += kOutputs) answer(at, i, outputs, x);
    };
    if (a_.read_before) others();
    x.from = before.row, x.from_row = before.pitch, x.to = after.row, x.to_row = after.pitch;
    x.decay = decay, x.column = a_.gate_value ? column : nullptr;
    x.key = key, x.value = value, x.beta = beta;
    x.p = a_.form == Recurrence::additive ? nullptr : p;
    x.low = a_.form == Recurrence::low_rank ? low_b : nullptr;
    x.read_before = a_.read_before;
    answer(at, 0, outputs, x);
    if (!a_.read_before) others();
  }
  // Outputs from `begin` on, as many as are made at once.
  void answer(int64_t at, int64_t begin, int64_t outputs, TokenStep& x) const {
    x.outputs = std::min(kOutputs, outputs - begin);
    for (int64_t i = 0; i < x.outputs; ++i)
      load_query(at, head * outputs + begin + i, query + i * a_.d);
    simd_.token_step(x);
    for (int64_t i = 0; i < x.outputs; ++i) store_output(at, begin + i, i, true);
  }

  // The map of raw gates in place.
  void map_gates(int64_t count, float* x) const {
    const GateMap& map = a_.gate;
    const float rate = std::exp(a_.rate_of(head));
    const auto each = [&](float factor) {
      for (int64_t i = 0; i < count; ++i) x[i] *= factor;
    };
    if (map.map == FOVEA_X_GATE_MAP_SOFTPLUS)
      simd_.softplus(count, x), each(-rate);
    else if (map.map == FOVEA_X_GATE_MAP_BOUNDED)
      each(rate), simd_.logistic(count, x), each(-map.bound);
    else if (map.map == FOVEA_X_GATE_MAP_LOG_SIGMOID)
      each(-1), simd_.softplus(count, x), each(-1 / map.tau);
    else if (map.map == FOVEA_X_GATE_MAP_EXP)
      simd_.exponential(count, x), each(-1);
    for (int64_t i = 0; map.bound > 0 && i < count; ++i)
      x[i] = x[i] < -map.bound ? -map.bound : x[i];
  }

  int64_t kept_row(int64_t i) const { return i < a_.run.kept ? a_.run.kept_row(q, i) : -1; }

  void load_mapped(const Floats<4>& x, int64_t at, int64_t from, int32_t map, float factor,
                   float* to) const {
    load_row(simd_, x.view.data, x.dtype, x.offset(q.batch, at, from, 0), x.view.stride[3], a_.d,
             to);
    if (a_.l2_norm) {
      float squares = 0;
      for (int64_t c = 0; c < a_.d; ++c) squares += to[c] * to[c];
      factor = 1 / std::sqrt(squares + a_.eps);
    }
    if (map)
      for (int64_t c = 0; c < a_.d; ++c) to[c] = feature_of(map, to[c]).value;
    if (factor != 1)
      for (int64_t c = 0; c < a_.d; ++c) to[c] *= factor;
  }

  const Recur& a_;
  const Simd& simd_;
  const int64_t slices_;

 public:
  const int64_t slice, head;
  const RunTokens q;
  const int64_t first, columns;
  float *query, *key, *decay, *p, *low_b, *value, *column, *u, *z, *y, *state;
  mutable float beta = 1;
};

}  // namespace fovea::host
