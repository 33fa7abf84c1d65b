// SPDX-License-Identifier: Apache-2.0
// What forward and backward of x_gsa share: checks, the arrays between the passes, and the first
// pass.
#pragma once
#include "core/program.h"
#include "core/recur_fields.h"
#include "ops/gsa/rows.h"

namespace fovea::gsa {

constexpr int64_t kSlotsMost = kRecurWidthMost;  // they are the key columns of the second pass

inline void check_width(const char* op, const char* field, const char* letter, int64_t width) {
  if (width < 1) refuse("%s: %s.shape[3] (%s) is 0, wanted >= 1", op, field, letter);
  if (width > kSlotsMost)
    fail(FOVEA_UNSUPPORTED, "%s: %s.shape[3] (%s) is %lld, wanted at most %lld", op, field, letter,
         lld(width), lld(kSlotsMost));
}

// Numbers and extents that the contract cannot say; `o`: dout in the backward.  The rows of a call
// are those of its states.
template <class P>
GsaRows read_rows(const char* op, const P& p, const fovea_tensor& o, const char* o_name) {
  check_width(op, "q", "d", p.q.shape[3]), check_width(op, "gate", "m", p.gate.shape[3]);
  Recur a{};
  a.heads = std::max(p.k.shape[2], p.v.shape[2]);
  a.heads_out = std::max(p.q.shape[2], a.heads);
  check_ratio(op, "k", "g", p.k.shape[2], a.heads, "k and v");
  check_ratio(op, "v", "x", p.v.shape[2], a.heads, "k and v");
  check_ratio(op, "q", "h", p.q.shape[2], a.heads_out, "o");
  if (a.heads < 1 ? a.heads_out != 0 : a.heads_out % a.heads)
    refuse(
        "%s: q.shape[2] (h) is %lld, wanted a multiple or a divisor of the %lld heads of k and v",
        op, lld(p.q.shape[2]), lld(a.heads));
  if (o.data && o.shape[2] != a.heads_out)
    refuse("%s: %s.shape[2] (heads_out) is %lld, wanted %lld: the most heads of q, k and v", op,
           o_name, lld(o.shape[2]), lld(a.heads_out));
  // Heads of the states are those of gate: the contract says so.
  fovea_tensor gate = p.gate;
  check_heads(op, Program::given(gate), "gate", 2, a);
  check_not_negative(op, "token_max", p.token_max);
  check_number(op, "scale", p.scale, "d^-1/2");
  check_number(op, "gate_bound", p.gate_bound, "no bound");
  check_number(op, "gate_tau", p.gate_tau, "1");
  check_enum(op, "gate_map", p.gate_map, 5, "fovea_x_gate_map");
  check_enum(op, "map_q", p.map_q, 4, "fovea_x_feature_map");
  check_enum(op, "map_k", p.map_k, 4, "fovea_x_feature_map");
  if (p.gate_map == FOVEA_X_GATE_MAP_BOUNDED && !(p.gate_bound > 0))
    refuse("%s: gate_bound is 0 with gate_map = 2, wanted > 0: the map's factor", op);
  if (p.gate_tau > 0 && p.gate_map != FOVEA_X_GATE_MAP_LOG_SIGMOID)
    refuse("%s: gate_tau is %g with gate_map = %d, wanted 0: it is of gate_map 3", op, p.gate_tau,
           p.gate_map);
  GsaRows x{};
  x.run.start = int_vector(p.start), x.run.len = int_vector(p.len);
  x.run.output_from = int_vector(p.output_from);
  x.run.count = p.start.data ? p.start.shape[0] - 1 : p.q.shape[0];
  x.run.s = p.q.shape[1], x.run.token_max = bounded(p.token_max, x.run.s);
  for (const auto& [state, field] :
       {std::pair{&p.state_k_in, "state_k_in"}, {&p.state_v_in, "state_v_in"}})
    read_slots(op, field, "slots", *state, p.state_row, x.run, "state_row", "q");
  x.map = {p.gate_map, p.gate_bound, p.gate_tau > 0 ? p.gate_tau : 1};
  x.b = p.q.shape[0], x.s = x.run.s, x.heads = a.heads, x.m = x.columns = p.gate.shape[3];
  x.gate = floats_of<4>(p.gate);
  return x;
}

inline void run_rows(Program& program, const GsaRows& a) {
  program.run(
      choose("x_gsa_rows", program.context(), a, gsa_rows_host, FOVEA_CUDA_KERNELS(gsa_rows_simt)));
}

// Widths of Hopper's kernels of x_gla with key and value gates.
inline bool takes(int64_t width) {
  return width == 64 || width == 128;
}
// Whether they take both passes, where they take the slots.
template <class P>
bool on_tensor_cores(const Context& ctx, const P& p, const GsaRows& a) {
#if FOVEA_WITH_CUDA
  return ctx.backend == FOVEA_CUDA && gsa_on_hopper(ctx) && p.q.dtype == FOVEA_BF16 && !p.map_q &&
         !p.map_k && p.q.shape[2] == a.heads && takes(p.q.shape[3]) && takes(p.v.shape[3]) &&
         a.run.token_max >= 64;
#else
  return (void)ctx, (void)p, (void)a, false;
#endif
}
// How many columns the slots take then.  States have no room for more than m.
inline int64_t columns_of(const GsaRows& a, bool tensor_cores, bool states) {
  if (!tensor_cores || states || a.m > 128) return a.m;
  return a.m > 64 ? 128 : 64;
}

// Arrays between the passes.
struct Between {
  fovea_tensor log, rest;  // (b, s, heads, columns)
  fovea_tensor scores, p;  // (b, s, heads_out, columns)
};

inline fovea_tensor like(Program& program, const fovea_tensor& x, int32_t dtype) {
  return program.array(static_cast<fovea_dtype>(dtype),
                       {x.shape[0], x.shape[1], x.shape[2], x.shape[3]});
}

[[gnu::noinline]] inline void gates(Program& program, GsaRows a, const fovea_tensor& gate,
                                    int32_t dtype, Between& to) {
  fovea_tensor wide = gate;
  wide.shape[3] = a.columns;
  to.log = like(program, wide, FOVEA_F32), to.rest = like(program, wide, dtype);
  a.step = GsaStep::gates;
  a.log = floats_of<4>(to.log), a.rest = floats_of<4>(to.rest);
  run_rows(program, a);
}

// What the passes over keys and over values share of a call.
template <class To, class P>
To part_of(const P& p) {
  To to{};
  to.start = p.start, to.len = p.len, to.state_row = p.state_row, to.output_from = p.output_from;
  to.token_max = p.token_max;
  return to;
}
template <class To, class P>
To over_keys(const P& p, const Between& x) {
  To to = part_of<To>(p);
  to.q = Program::given(p.q), to.k = Program::given(p.k), to.v = x.rest, to.gate_value = x.log;
  to.state_in = p.state_k_in;
  to.scale = p.scale, to.map_q = p.map_q, to.map_k = p.map_k;
  return to;
}
template <class To, class P>
To over_values(const P& p, const Between& x) {
  To to = part_of<To>(p);
  to.q = x.p, to.k = x.rest, to.v = Program::given(p.v), to.gate_key = x.log;
  to.state_in = p.state_v_in, to.scale = 1;
  return to;
}

// The scores and p of rows of `outputs` (b, s, heads_out, ..), in arrays that begin here.
[[gnu::noinline]] inline void softmax(Program& program, GsaRows a, int32_t dtype, Between& to) {
  to.p = like(program, to.scores, dtype);
  a.step = GsaStep::softmax, a.heads = to.scores.shape[2];
  a.scores = floats_of<4>(to.scores), a.p = floats_of<4>(to.p);
  run_rows(program, a);
}

}  // namespace fovea::gsa
