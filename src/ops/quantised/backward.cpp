// SPDX-License-Identifier: Apache-2.0
// x_quant_backward: quant_quantize of k and q as the forward does it, then the gradients of codes.
#include "core/fields.h"
#include "core/program.h"
#include "ops/quantised/kernels.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_quant_backward";
using Params = fovea_x_quant_backward_params;

// Whether the call's kernel reads transposed codes.
bool takes_columns([[maybe_unused]] const Context& ctx, [[maybe_unused]] const QuantBackward& b) {
#if FOVEA_WITH_CUDA
  if (ctx.backend != FOVEA_HOST)
    return x_quant_backward_sm90_serves(ctx, b) || x_quant_backward_sm80_serves(ctx, b);
#endif
  return false;
}

QuantBackward resolve(const Params& p) {
  QuantBackward b{};
  Attend& a = b.call.forward;
  read_operands(a, kOp, p, p.v, "v");
  read_sequences(a, kOp, p);
  place_keys(a.sequences, kOp, "k", p.k, {}, p.key_max);
  a.columns = a.sequences.capacity;
  a.mask.window = read_window(kOp, p);
  a.score.scale = read_scale(kOp, "scale", p.scale, a.d, "1 / sqrt(d)");
  if (p.k_smooth != FOVEA_SMOOTH_NONE && p.k_smooth != FOVEA_SMOOTH_SEQUENCE)
    refuse("%s: k_smooth is %d, wanted NONE or SEQUENCE of fovea_smooth", kOp, p.k_smooth);
  b.call.dout = view_of<4>(p.dout);
  b.call.dq = gradient_view(p.dq), b.call.dk = gradient_view(p.dk);
  b.call.dv = gradient_view(p.dv);
  return b;
}

struct Coded {
  fovea_tensor code, columns, scale, mean;
};

[[gnu::noinline]] Coded quantise(Program& program, const fovea_tensor& x, const fovea_tensor& start,
                                 int32_t smooth, bool columns) {
  const int64_t b = x.shape[0], s = x.shape[1], h = x.shape[2], d = x.shape[3];
  const CodeRows rows{int_vector(start), s, start.data ? start.shape[0] - 1 : b, d};
  Coded to{};
  to.code = program.array(FOVEA_I8, {b, s, h, d});
  to.scale = program.array(FOVEA_F32,
                           {b, h, rows.scales(ScaleGroup{FOVEA_SCALE_GROUP_BLOCK, kTileTokens})});
  if (columns) to.columns = program.array(FOVEA_I8, {b, h, d, rows.padded()});
  if (smooth) to.mean = program.array(FOVEA_F32, {b, h, rows.means(smooth), d});
  fovea_quant_quantize_params part{};
  part.x = Program::given(x), part.start = start;
  part.code = to.code, part.code_t = to.columns, part.scale = to.scale, part.mean = to.mean;
  if (columns) part.code_order = FOVEA_CODE_ORDER_V_PERM16;
  part.block = kTileTokens, part.smooth = smooth;
  program.run(part);
  return to;
}

void body(Program& program, const Params& p) {
  QuantBackward b = resolve(p);
  if (!p.dq.data && !p.dk.data && !p.dv.data) return;
  if (b.call.forward.sequences.count && p.q.shape[1]) {  // without rows, keys' gradients are 0
    const bool columns = takes_columns(program.context(), b);
    const Coded k = quantise(program, p.k, p.key_start, p.k_smooth, columns);
    const Coded q = quantise(program, p.q, p.query_start, FOVEA_SMOOTH_NONE, columns);
    b.call.forward.q = view_of<4>(q.code), b.call.forward.k = view_of<4>(k.code);
    b.q_columns = view_of<4>(q.columns), b.k_columns = view_of<4>(k.columns);
    b.q_scale = view_of<3>(q.scale), b.k_scale = view_of<3>(k.scale);
    if (p.k_smooth) b.q_plain = view_of<4>(p.q), b.k_mean = view_of<4>(k.mean);
  }
  program.run(choose(
      kOp, program.context(), b, x_quant_backward_host,
      FOVEA_CUDA_KERNELS(x_quant_backward_sm90, x_quant_backward_sm80, x_quant_backward_simt)));
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
