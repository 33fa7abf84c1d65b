// SPDX-License-Identifier: Apache-2.0
// Either part is attention's backward over its own keys, with o and lse of all keys: probabilities
// and deltas are then those of the whole softmax.  The window's part has the sink.
#include "core/block_positions.h"
#include "core/fields.h"
#include "core/program.h"
#include "ops/compressed/steps.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_compressed_backward";
using Params = fovea_x_compressed_backward_params;
using compressed::or_else;

struct Sizes {
  int64_t b, s, h;
  int64_t keys, step, window;
};

Sizes read_sizes(const Params& p) {
  compressed::check_step(kOp, p.compress_step);
  check_not_negative(kOp, "window", p.window);
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
  check_together(kOp, p.key_len, "key_len", p.compressed_len, "compressed_len");
  check_needs(kOp, p.dsink_logit, "dsink_logit", p.sink_logit, "sink_logit");
  Sizes a{};
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2];
  a.keys = p.k.shape[1], a.step = or_else(p.compress_step, 4), a.window = or_else(p.window, 128);
  compressed::check_keys(kOp, a.keys);
  const int64_t u = p.k_compressed.shape[1];
  if (!p.key_len.data && u != a.keys / a.step)
    refuse("%s: k_compressed.shape[1] (u) is %lld, wanted %lld: blocks of %lld keys", kOp, lld(u),
           lld(a.keys / a.step), lld(a.step));
  return a;
}

// What the parts share.
template <class To>
To part_of(const Params& p, const fovea_tensor& dq) {
  To to{};
  to.q = p.q, to.query_len = p.query_len, to.scale = p.scale;
  to.o = p.o, to.lse = p.lse, to.dout = p.dout, to.dq = dq;
  return to;
}

[[gnu::noinline]] void window(Program& program, const Params& p, const Sizes& a,
                              const fovea_tensor& dq) {
  auto part = part_of<fovea_attention_backward_params>(p, dq);
  part.k = p.k, part.v = p.v, part.key_len = p.key_len, part.sink_logit = p.sink_logit;
  part.dk = p.dk, part.dv = p.dv, part.dsink_logit = p.dsink_logit;
  part.causal = 1, part.window_left = a.window;
  program.run(part);
}

// Rows of q as positions among compressed keys, (b, h, s).
[[gnu::noinline]] fovea_tensor positions(Program& program, const Params& p, const Sizes& a) {
  BlockPositions part{};
  part.b = a.b, part.s = a.h ? a.s : 0, part.each = part.step = a.step, part.op = kOp;
  Sequences& q = part.sequences;
  q.query_len = int_vector(p.query_len), q.key_len = int_vector(p.key_len);
  q.s = q.query_max = part.s, q.capacity = q.key_max = a.keys, q.count = part.b;
  const fovea_tensor position = program.array(FOVEA_I32, {part.b, part.s});
  part.position = view_of<2>(position);
  program.run(choose("x_compressed_positions", program.context(), part, block_positions_host,
                     FOVEA_CUDA_KERNELS(block_positions_simt)));
  return spread(position, Program::given(p.lse), {position.stride[0], 0, position.stride[1]});
}

[[gnu::noinline]] void all(Program& program, const Params& p, const Sizes& a,
                           const fovea_tensor& dq) {
  auto part = part_of<fovea_attention_backward_params>(p, dq);
  part.query_position = positions(program, p, a), part.causal = 1;
  part.k = Program::given(p.k_compressed), part.v = Program::given(p.v_compressed);
  part.key_len = p.compressed_len, part.dk = p.dk_compressed, part.dv = p.dv_compressed;
  program.run(part);
}

// Lists name only what their rows see.
[[gnu::noinline]] void listed(Program& program, const Params& p, const fovea_tensor& dq) {
  auto part = part_of<fovea_x_sparse_backward_params>(p, dq);
  part.k = Program::given(p.k_compressed), part.v = Program::given(p.v_compressed);
  part.key_len = p.compressed_len, part.dk = p.dk_compressed, part.dv = p.dv_compressed;
  part.index = compressed::as_list(Program::given(p.index)), part.block_rows = part.block_keys = 1;
  if (p.index_count.data) part.index_count = compressed::as_list(p.index_count);
  if (!p.k_compressed.shape[1]) part.index.shape[3] = 0;  // no entry names a key
  program.run(part);
}

[[gnu::noinline]] void add(Program& program, const fovea_tensor& a, const fovea_tensor& b,
                           const fovea_tensor& to) {
  fovea_x_combine_forward_params part{};
  part.x = a, part.x2 = b, part.y = to;
  program.run(part);
}

void body(Program& program, const Params& p) {
  const Sizes a = read_sizes(p);
  fovea_tensor dq[2] = {};
  const auto dtype = static_cast<fovea_dtype>(p.q.dtype);
  if (p.dq.data)
    for (fovea_tensor& one : dq) one = program.array(dtype, {a.b, a.s, a.h, p.q.shape[3]});
  window(program, p, a, dq[0]);
  if (p.index.data)
    listed(program, p, dq[1]);
  else
    all(program, p, a, dq[1]);
  if (p.dq.data) add(program, dq[0], dq[1], p.dq);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
