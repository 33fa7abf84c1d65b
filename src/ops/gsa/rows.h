// SPDX-License-Identifier: Apache-2.0
// What x_gsa does between the passes of x_gla, a row of m slots at a time:
//   gates     g = map(gate) in f32, and 1 - exp(g)
//   softmax   p of the scores, 0 in rows without output
//   adjoint   the gradient of the scores: p . (dp - p dp'), 0 in rows without output
//   gradient  dgate = map' (dg + dg2 - exp(g) (drest + drest2)), 0 where no sequence is
// Arrays between the passes may have more columns than slots: x_gla's then do nothing there.
// A row belongs to a team: the one thread of a host worker, or lanes that share the slots.
#pragma once
#include "core/locate.h"
#include "core/plan.h"
#include "core/recur.h"

namespace fovea {

enum class GsaStep : int32_t { gates, softmax, adjoint, gradient };

struct GsaRows {
  GsaStep step;
  Run run;
  GateMap map;
  int64_t b, s, heads, m;  // heads: of a token's rows
  int64_t columns;         // of the arrays, at least m
  Floats<4> gate;
  Floats<4> log, rest;    // of `gates`: g and 1 - exp(g)
  Floats<4> scores;       // f32
  Floats<4> p;            // of `adjoint`: dp
  Floats<4> dscores;      // of `adjoint`: scores or p
  Floats<4> dlog, dlog2;  // of the pass over keys and of the one over values
  Floats<4> drest, drest2;
  Floats<4> dgate;

  FOVEA_HD int64_t rows() const { return b * s * heads; }

  // Row `row` of rows().
  template <class Team>
  FOVEA_HD void operator()(const Team& team, int64_t row) const {
    const int64_t token = quotient(row, heads), batch = quotient(token, s);
    const Place place{batch, token - batch * s, row - token * heads};
    const Use use = use_of(place);
    if (step == GsaStep::gates) return write_gates(team, place, use.in_use);
    if (step == GsaStep::gradient) return write_gradient(team, place, use.in_use);
    if (use.has_output) return read_slots(team, place);
    const Row to(made(), place);
    for (int64_t c = team.lane(); c < columns; c += team.lanes()) to.store(0, c);
  }

 private:
  struct Place {
    int64_t batch, at, head;
  };
  // A row of an array: its offset is found once.
  struct Row {
    void* data;
    int32_t dtype;
    int64_t first, step;
    FOVEA_HD Row(const Floats<4>& x, const Place& p)
        : data(x.view.data),
          dtype(x.dtype),
          first(x.offset(p.batch, p.at, p.head, int64_t{0})),
          step(x.view.stride[3]) {}
    FOVEA_HD float operator()(int64_t c) const { return load_fp(data, dtype, first + c * step); }
    FOVEA_HD void store(float x, int64_t c) const { store_fp(data, dtype, first + c * step, x); }
  };
  struct Use {
    bool in_use, has_output;
  };
  FOVEA_HD const Floats<4>& made() const { return step == GsaStep::softmax ? p : dscores; }
  FOVEA_HD Use use_of(const Place& place) const {
    const int64_t r = run.start ? run.begun_before(place.at + 1) - 1 : place.batch;
    if (r < 0 || r >= run.count) return {false, false};
    const RunTokens q = run[r];
    const int64_t t = place.at - q.begin;
    return {t < q.count, t < q.count && t >= q.from};
  }

  template <class Team>
  FOVEA_HD void write_gates(const Team& team, const Place& place, bool in_use) const {
    const Row from(gate, place), to(log, place), to_rest(rest, place);
    for (int64_t c = team.lane(); c < columns; c += team.lanes()) {
      const float g = in_use && c < m ? map(from(c), 0).value : 0;
      to.store(g, c), to_rest.store(-expm1f(g), c);
    }
  }

  template <class Team>
  FOVEA_HD void write_gradient(const Team& team, const Place& place, bool in_use) const {
    const Row from(gate, place), by_log(dlog, place), by_log2(dlog2, place);
    const Row by_rest(drest, place), by_rest2(drest2, place), to(dgate, place);
    for (int64_t c = team.lane(); c < m; c += team.lanes()) {
      float x = 0;
      const LogGate g = in_use ? map(from(c), 0) : LogGate{0, 0, 0};
      if (g.slope != 0)
        x = g.slope * (by_log(c) + by_log2(c) - exp_of(g.value) * (by_rest(c) + by_rest2(c)));
      to.store(x, c);
    }
  }

  // The softmax, or its adjoint.
  template <class Team>
  FOVEA_HD void read_slots(const Team& team, const Place& place) const {
    const Row from(scores, place), dp(p, place), to(made(), place);
    const bool adjoint = step == GsaStep::adjoint;
    float most = -INFINITY, sum = 0, inner = 0;
    for (int64_t c = team.lane(); c < m; c += team.lanes()) most = fmaxf(most, from(c));
    most = team.max(most);
    for (int64_t c = team.lane(); c < m; c += team.lanes()) {
      const float part = exp_of(from(c) - most);
      sum += part;
      if (adjoint) inner += part * dp(c);
    }
    sum = team.sum(sum);
    if (adjoint) inner = team.sum(inner) / sum;
    for (int64_t c = team.lane(); c < columns; c += team.lanes()) {
      float x = c < m ? exp_of(from(c) - most) / sum : 0;
      if (adjoint && c < m) x *= dp(c) - inner;
      to.store(x, c);
    }
  }
};

extern const Kernel<GsaRows> gsa_rows_host;

// CUDA builds only.
extern const Kernel<GsaRows> gsa_rows_simt;
bool gsa_on_hopper(const Context& ctx);

}  // namespace fovea
