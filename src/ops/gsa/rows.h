// SPDX-License-Identifier: Apache-2.0
// What x_gsa does between the passes of x_gla, a row of m slots at a time:
//   gates     g = map(gate) in f32, and 1 - exp(g)
//   softmax   p of the scores, 0 in rows without output
//   adjoint   the gradient of the scores: p . (dp - p dp'), 0 in rows without output
//   gradient  dgate = map' (dg + dg2 - exp(g) (drest + drest2)), 0 where no sequence is
// Arrays between the passes may have more columns than slots: x_gla's then do nothing there.
// A row belongs to a team: the one thread of a host worker, or a warp whose lanes share the slots.
#pragma once
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
    const int64_t n = row % heads, at = row / heads % s, batch = row / heads / s;
    const Use use = use_of(batch, at);
    if (step == GsaStep::gates) return write_gates(team, batch, at, n, use.in_use);
    if (step == GsaStep::gradient) return write_gradient(team, batch, at, n, use.in_use);
    if (use.has_output) return read_slots(team, batch, at, n);
    for (int64_t c = team.lane(); c < columns; c += team.lanes()) made().store(0, batch, at, n, c);
  }

 private:
  FOVEA_HD const Floats<4>& made() const { return step == GsaStep::softmax ? p : dscores; }
  struct Use {
    bool in_use, has_output;
  };
  FOVEA_HD Use use_of(int64_t batch, int64_t at) const {
    const int64_t r = run.start ? run.begun_before(at + 1) - 1 : batch;
    if (r < 0 || r >= run.count) return {false, false};
    const RunTokens q = run[r];
    const int64_t t = at - q.begin;
    return {t < q.count, t < q.count && t >= q.from};
  }

  template <class Team>
  FOVEA_HD void write_gates(const Team& team, int64_t batch, int64_t at, int64_t n,
                            bool in_use) const {
    for (int64_t c = team.lane(); c < columns; c += team.lanes()) {
      const float g = in_use && c < m ? map(gate(batch, at, n, c), 0).value : 0;
      log.store(g, batch, at, n, c), rest.store(-expm1f(g), batch, at, n, c);
    }
  }

  template <class Team>
  FOVEA_HD void write_gradient(const Team& team, int64_t batch, int64_t at, int64_t n,
                               bool in_use) const {
    for (int64_t c = team.lane(); c < m; c += team.lanes()) {
      float x = 0;
      const LogGate g = in_use ? map(gate(batch, at, n, c), 0) : LogGate{0, 0, 0};
      if (g.slope != 0) {
        const float by_rest = drest(batch, at, n, c) + drest2(batch, at, n, c);
        x = g.slope * (dlog(batch, at, n, c) + dlog2(batch, at, n, c) - exp_of(g.value) * by_rest);
      }
      dgate.store(x, batch, at, n, c);
    }
  }

  // The softmax, or its adjoint.
  template <class Team>
  FOVEA_HD void read_slots(const Team& team, int64_t batch, int64_t at, int64_t n) const {
    float most = -INFINITY, sum = 0, inner = 0;
    for (int64_t c = team.lane(); c < m; c += team.lanes())
      most = fmaxf(most, scores(batch, at, n, c));
    most = team.max(most);
    for (int64_t c = team.lane(); c < m; c += team.lanes()) {
      const float part = exp_of(scores(batch, at, n, c) - most);
      sum += part;
      if (step == GsaStep::adjoint) inner += part * p(batch, at, n, c);
    }
    sum = team.sum(sum);
    if (step == GsaStep::adjoint) inner = team.sum(inner) / sum;
    for (int64_t c = team.lane(); c < columns; c += team.lanes()) {
      float x = c < m ? exp_of(scores(batch, at, n, c) - most) / sum : 0;
      if (step == GsaStep::adjoint && c < m) x *= p(batch, at, n, c) - inner;
      made().store(x, batch, at, n, c);
    }
  }
};

extern const Kernel<GsaRows> gsa_rows_host;

// CUDA builds only.
extern const Kernel<GsaRows> gsa_rows_simt;
bool gsa_on_hopper(const Context& ctx);

}  // namespace fovea
