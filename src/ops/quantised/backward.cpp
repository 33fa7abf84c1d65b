// SPDX-License-Identifier: Apache-2.0
// x_quant_backward: quant_quantize of k and q as the forward does it, then the gradients of codes.
#include "core/fields.h"
#include "core/program.h"
#include "ops/quantised/kernels.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_quant_backward";
using Params = fovea_x_quant_backward_params;

// What a CUDA context is told.
constexpr Kernel<QuantBackward> kOnHost = {
    "", [](const Context&, const QuantBackward&, Plan&) {
      return Text("gradients of codes are the host's alone, wanted a host context");
    }};

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
  fovea_tensor code, scale, mean;
};

[[gnu::noinline]] Coded quantise(Program& program, const fovea_tensor& x, const fovea_tensor& start,
                                 int32_t smooth) {
  const int64_t b = x.shape[0], s = x.shape[1], h = x.shape[2], d = x.shape[3];
  const CodeRows rows{int_vector(start), s, start.data ? start.shape[0] - 1 : b, d};
  Coded to{};
  to.code = program.array(FOVEA_I8, {b, s, h, d});
  to.scale = program.array(FOVEA_F32,
                           {b, h, rows.scales(ScaleGroup{FOVEA_SCALE_GROUP_BLOCK, kTileTokens})});
  if (smooth) to.mean = program.array(FOVEA_F32, {b, h, rows.means(smooth), d});
  fovea_quant_quantize_params part{};
  part.x = Program::given(x), part.start = start;
  part.code = to.code, part.scale = to.scale, part.mean = to.mean;
  part.block = kTileTokens, part.smooth = smooth;
  program.run(part);
  return to;
}

void body(Program& program, const Params& p) {
  QuantBackward b = resolve(p);
  if (!p.dq.data && !p.dk.data && !p.dv.data) return;
  if (b.call.forward.sequences.count && p.q.shape[1]) {  // without rows, keys' gradients are 0
    const Coded k = quantise(program, p.k, p.key_start, p.k_smooth);
    const Coded q = quantise(program, p.q, p.query_start, FOVEA_SMOOTH_NONE);
    b.call.forward.q = view_of<4>(q.code), b.call.forward.k = view_of<4>(k.code);
    b.q_scale = view_of<3>(q.scale), b.k_scale = view_of<3>(k.scale);
    if (p.k_smooth) b.q_plain = view_of<4>(p.q), b.k_mean = view_of<4>(k.mean);
  }
  program.run(choose(kOp, program.context(), b, x_quant_backward_host, {kOnHost}));
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
