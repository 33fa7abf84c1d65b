// SPDX-License-Identifier: Apache-2.0
#include "ops/gsa/passes.h"

namespace fovea {
namespace {

using gsa::Between;

constexpr char kOp[] = "x_gsa_forward";
using Params = fovea_x_gsa_forward_params;
using Part = fovea_x_gla_forward_params;

void check(const Params& p, const GsaRows& a) {
  if (!p.o.data && !p.state_k_out.data && !p.state_v_out.data)
    refuse("%s: o, state_k_out and state_v_out are not given, wanted one of them at least", kOp);
  const fovea_tensor& rows = p.state_out_row.data ? p.state_out_row : p.state_row;
  for (const auto& [state, field] :
       {std::pair{&p.state_k_out, "state_k_out"}, {&p.state_v_out, "state_v_out"}})
    read_slots(kOp, field, "slots_out", *state, rows, a.run, "state_row and state_out_row", "q");
}

[[gnu::noinline]] void over_keys(Program& program, const Params& p, Between& x) {
  auto part = gsa::over_keys<Part>(p, x);
  part.o = x.scores, part.state_out = p.state_k_out, part.state_out_row = p.state_out_row;
  program.run(part);
}

[[gnu::noinline]] void over_values(Program& program, const Params& p, const Between& x) {
  auto part = gsa::over_values<Part>(p, x);
  part.o = p.o, part.state_out = p.state_v_out, part.state_out_row = p.state_out_row;
  program.run(part);
}

void body(Program& program, const Params& p) {
  GsaRows a = gsa::read_rows(kOp, p, p.o, "o");
  check(p, a);
  const bool states =
      p.state_k_in.data || p.state_v_in.data || p.state_k_out.data || p.state_v_out.data;
  a.columns = gsa::columns_of(a, gsa::on_tensor_cores(program.context(), p, a), states);
  Between x{};
  gsa::gates(program, a, p.gate, p.q.dtype, x);
  if (p.o.data) x.scores = program.array(FOVEA_F32, {a.b, a.s, p.o.shape[2], a.columns});
  if (p.o.data || p.state_k_out.data) over_keys(program, p, x);
  if (p.o.data) gsa::softmax(program, a, p.q.dtype, x);
  if (!p.o.data) x.p = x.rest;  // of the right extents, and not read
  if (p.o.data || p.state_v_out.data) over_values(program, p, x);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
