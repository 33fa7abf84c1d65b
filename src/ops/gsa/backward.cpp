// SPDX-License-Identifier: Apache-2.0
// x_gsa_backward: the scores and p again, the pass over values backwards, the softmax's adjoint,
// the pass over keys backwards, then both passes' gradients of a gate in one.
#include "ops/gsa/passes.h"

namespace fovea {
namespace {

using gsa::Between;

constexpr char kOp[] = "x_gsa_backward";
using Params = fovea_x_gsa_backward_params;
using Part = fovea_x_gla_backward_params;

// Gradients of g and of 1 - a, from one pass.
struct OfGate {
  fovea_tensor log, rest;
};

[[gnu::noinline]] void scores(Program& program, const Params& p, Between& x) {
  auto part = gsa::over_keys<fovea_x_gla_forward_params>(p, x);
  part.o = x.scores;
  program.run(part);
}

[[gnu::noinline]] void over_values(Program& program, const Params& p, const Between& x,
                                   const fovea_tensor& dp, const OfGate& to) {
  auto part = gsa::over_values<Part>(p, x);
  part.dout = Program::given(p.dout), part.dstate_out = p.dstate_v_out;
  part.dq = dp, part.dk = to.rest, part.dv = p.dv, part.dgate_key = to.log;
  part.dstate_in = p.dstate_v_in;
  program.run(part);
}

// Returns the gradient of the scores, in the place of dp or of the scores: Hopper's pass over keys
// takes it as bf16.
[[gnu::noinline]] fovea_tensor adjoint(Program& program, GsaRows a, const Between& x,
                                       const fovea_tensor& dp, bool tensor_cores) {
  const fovea_tensor& to = tensor_cores ? dp : x.scores;
  a.step = GsaStep::adjoint, a.heads = dp.shape[2];
  a.scores = floats_of<4>(x.scores), a.p = floats_of<4>(dp), a.dscores = floats_of<4>(to);
  gsa::run_rows(program, a);
  return to;
}

[[gnu::noinline]] void over_keys(Program& program, const Params& p, const Between& x,
                                 const fovea_tensor& dscores, const OfGate& to) {
  auto part = gsa::over_keys<Part>(p, x);
  part.dout = dscores, part.dstate_out = p.dstate_k_out;
  part.dq = p.dq, part.dk = p.dk, part.dv = to.rest, part.dgate_value = to.log;
  part.dstate_in = p.dstate_k_in;
  program.run(part);
}

[[gnu::noinline]] void gradient(Program& program, GsaRows a, const OfGate& keys,
                                const OfGate& values, const fovea_tensor& dgate) {
  a.step = GsaStep::gradient;
  a.dlog = floats_of<4>(keys.log), a.drest = floats_of<4>(keys.rest);
  a.dlog2 = floats_of<4>(values.log), a.drest2 = floats_of<4>(values.rest);
  a.dgate = floats_of<4>(dgate);
  gsa::run_rows(program, a);
}

void body(Program& program, const Params& p) {
  GsaRows a = gsa::read_rows(kOp, p, Program::given(p.dout), "dout");
  const bool states = p.state_k_in.data || p.state_v_in.data || p.dstate_k_out.data ||
                      p.dstate_v_out.data || p.dstate_k_in.data || p.dstate_v_in.data;
  const bool tensor_cores = !p.output_from.data && gsa::on_tensor_cores(program.context(), p, a);
  a.columns = gsa::columns_of(a, tensor_cores, states);
  const bool of_gate = p.dgate.data;
  const bool keys = of_gate || p.dq.data || p.dk.data || p.dstate_k_in.data;
  if (!keys && !p.dv.data && !p.dstate_v_in.data) return;  // nothing is asked for
  Between x{};
  gsa::gates(program, a, p.gate, p.q.dtype, x);
  x.scores = program.array(FOVEA_F32, {a.b, a.s, p.dout.shape[2], a.columns});
  scores(program, p, x);
  gsa::softmax(program, a, p.q.dtype, x);
  OfGate by_keys{}, by_values{};
  for (OfGate* to : {&by_keys, &by_values})
    if (of_gate) {
      to->log = gsa::like(program, x.log, FOVEA_F32);
      to->rest = gsa::like(program, x.rest, p.q.dtype);
    }
  const fovea_tensor dp = keys ? gsa::like(program, x.p, p.q.dtype) : fovea_tensor{};
  over_values(program, p, x, dp, by_values);
  if (!keys) return;
  over_keys(program, p, x, adjoint(program, a, x, dp, tensor_cores && gsa::takes(a.columns)),
            by_keys);
  if (of_gate) gradient(program, a, by_keys, by_values, p.dgate);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
