// SPDX-License-Identifier: Apache-2.0
#include "core/block_positions.h"
#include "ops/nsa/blocks.h"

namespace fovea {
namespace {

using nsa::Blocks;
constexpr char kOp[] = "x_nsa_backward";
using Params = fovea_x_nsa_backward_params;

// An output that several parts add up to.  A single one writes it.
class Sum {
 public:
  Sum(Program& program, const fovea_tensor& to, int parts)
      : program_(program), to_(to), parts_(parts) {}

  // Where the next part writes.
  fovea_tensor next() {
    if (!to_.data || parts_ == 1) return to_;
    const int64_t* of = to_.shape;
    return part_[given_++] =
               program_.array(static_cast<fovea_dtype>(to_.dtype), {of[0], of[1], of[2], of[3]});
  }
  [[gnu::noinline]] void run() {
    if (!to_.data || parts_ == 1) return;
    fovea_x_combine_forward_params add{};
    add.x = part_[0], add.x2 = part_[1], add.y = to_;
    if (given_ > 2) add.x3 = part_[2];
    program_.run(add);
  }

 private:
  Program& program_;
  const fovea_tensor& to_;
  const int parts_;
  int given_ = 0;
  fovea_tensor part_[3];
};

void check(const Params& p, const Blocks& a) {
  const std::tuple<const fovea_tensor*, const char*, const fovea_tensor*, const char*> needs[] = {
      {&p.dk_compressed, "dk_compressed", &p.k_compressed, "k_compressed"},
      {&p.dv_compressed, "dv_compressed", &p.v_compressed, "v_compressed"},
      {&p.dk_window, "dk_window", &p.k_window, "k_window"},
      {&p.dv_window, "dv_window", &p.v_window, "v_window"},
      {&p.dgate_compressed, "dgate_compressed", &p.gate_compressed, "gate_compressed"},
      {&p.dgate_selected, "dgate_selected", &p.gate_selected, "gate_selected"},
      {&p.dgate_window, "dgate_window", &p.gate_window, "gate_window"}};
  for (const auto& [x, name, of, of_name] : needs) check_needs(kOp, *x, name, *of, of_name);
  if (p.k_compressed.data && p.k_compressed.shape[1] != a.compressed)
    refuse("%s: k_compressed.shape[1] (u) is %lld, wanted %lld: compressed keys of %lld keys", kOp,
           lld(p.k_compressed.shape[1]), lld(a.compressed), lld(a.keys));
}

// What the parts that attend share.
template <class To>
To part_of(const Params& p) {
  To to{};
  to.q = p.q, to.query_len = p.query_len, to.scale = p.scale, to.causal = 1;
  return to;
}

struct Branches {
  fovea_tensor dout[3];  // of o_compressed, o_selected, o_window
};

[[gnu::noinline]] Branches split(Program& program, const Params& p) {
  const int64_t* of = p.dout.shape;
  Branches d;
  for (fovea_tensor& x : d.dout)
    x = program.array(static_cast<fovea_dtype>(p.q.dtype), {of[0], of[1], of[2], of[3]});
  fovea_x_combine_backward_params part{};
  part.x = p.o_compressed;
  part.x2 = Program::given(p.o_selected), part.x3 = Program::given(p.o_window);
  nsa::read_gates(p, part);
  part.query_len = p.query_len, part.dy = p.dout;
  part.dx = d.dout[0], part.dx2 = d.dout[1], part.dx3 = d.dout[2];
  const auto gradient = [&](const fovea_tensor& x, fovea_tensor& to) {
    if (x.data) to = nsa::over_branch(x, part.x);
  };
  gradient(p.dgate_compressed, part.dgate), gradient(p.dgate_selected, part.dgate2);
  gradient(p.dgate_window, part.dgate3);
  program.run(part);
  return d;
}

[[gnu::noinline]] fovea_tensor positions(Program& program, const Params& p, const Blocks& a) {
  BlockPositions part{};
  part.b = p.q.shape[0], part.s = p.q.shape[2] ? p.q.shape[1] : 0, part.each = a.each,
  part.step = a.step, part.op = kOp;
  Sequences& q = part.sequences;
  q.query_len = int_vector(p.query_len), q.key_len = int_vector(p.key_len);
  q.s = q.query_max = part.s, q.capacity = q.key_max = a.keys, q.count = part.b;
  const fovea_tensor position = program.array(FOVEA_I32, {part.b, part.s});
  part.position = view_of<2>(position);
  program.run(choose("x_nsa_positions", program.context(), part, block_positions_host,
                     FOVEA_CUDA_KERNELS(block_positions_simt)));
  return spread(position, p.lse_compressed, {position.stride[0], 0, position.stride[1], 0});
}

// x, or its means.
[[gnu::noinline]] fovea_tensor compress(Program& program, const Blocks& a, const fovea_tensor& x,
                                        const fovea_tensor& given) {
  if (given.data) return given;
  const auto dtype = static_cast<fovea_dtype>(x.dtype);
  const fovea_tensor y = program.array(dtype, {x.shape[0], a.compressed, x.shape[2], x.shape[3]});
  fovea_x_pool_forward_params part = nsa::pooling(x, y, a);
  program.run(part);
  return y;
}

// Of the means' gradient dy to x.
[[gnu::noinline]] void spread_means(Program& program, const Blocks& a, const fovea_tensor& x,
                                    const fovea_tensor& dy, const fovea_tensor& dx) {
  if (!dx.data) return;
  fovea_x_pool_backward_params part{};
  part.x = x, part.dy = dy, part.dx = dx, part.key_max = a.keys;
  part.block = a.each, part.step = a.step, part.complete = 1;
  program.run(part);
}

struct Keys {
  fovea_tensor k, v;
};

[[gnu::noinline]] void compressed(Program& program, const Params& p, const Keys& x, const Keys& dx,
                                  const fovea_tensor& position, const fovea_tensor& dout,
                                  const fovea_tensor& dq) {
  auto part = part_of<fovea_attention_backward_params>(p);
  part.k = x.k, part.v = x.v, part.key_len = p.compressed_len, part.query_position = position;
  part.o = p.o_compressed, part.lse = p.lse_compressed, part.dout = dout;
  part.dq = dq, part.dk = dx.k, part.dv = dx.v;
  program.run(part);
}

[[gnu::noinline]] void selected(Program& program, const Params& p, const Blocks& a,
                                const fovea_tensor& dout, const fovea_tensor& dq, const Keys& dx) {
  auto part = part_of<fovea_x_sparse_backward_params>(p);
  part.k = p.k, part.v = p.v, part.key_len = p.key_len;
  part.index = Program::given(p.index), part.index_count = p.index_count;
  if (!a.keys) part.index.shape[3] = 0;  // no entry names a key
  part.block_rows = 1, part.block_keys = static_cast<int32_t>(a.block);
  part.o = p.o_selected, part.lse = p.lse_selected, part.dout = dout;
  part.dq = dq, part.dk = dx.k, part.dv = dx.v;
  program.run(part);
}

[[gnu::noinline]] void window(Program& program, const Params& p, const Blocks& a,
                              const fovea_tensor& dout, const fovea_tensor& dq, const Keys& dx) {
  auto part = part_of<fovea_attention_backward_params>(p);
  part.k = p.k_window.data ? p.k_window : p.k, part.v = p.v_window.data ? p.v_window : p.v;
  part.key_len = p.key_len, part.window_left = a.window;
  part.o = p.o_window, part.lse = p.lse_window, part.dout = dout;
  part.dq = dq, part.dk = dx.k, part.dv = dx.v;
  program.run(part);
}

void body(Program& program, const Params& p) {
  const Blocks a = nsa::read_blocks(kOp, p, p.k.shape[1]);
  check(p, a);
  const bool pooled = !p.k_compressed.data, shared = !p.k_window.data;
  Sum dq(program, p.dq, 3), dk(program, p.dk, 1 + pooled + shared),
      dv(program, p.dv, 1 + pooled + shared);
  const Branches d = split(program, p);
  const auto coarse = [&](const fovea_tensor& own, const fovea_tensor& mean,
                          const fovea_tensor& to) {
    if (!pooled || !to.data) return own;
    return program.array(static_cast<fovea_dtype>(mean.dtype),
                         {mean.shape[0], mean.shape[1], mean.shape[2], mean.shape[3]});
  };
  const Keys x{compress(program, a, p.k, p.k_compressed),
               compress(program, a, p.v, p.v_compressed)};
  const Keys dx{coarse(p.dk_compressed, x.k, p.dk), coarse(p.dv_compressed, x.v, p.dv)};
  const fovea_tensor position = positions(program, p, a);
  compressed(program, p, x, dx, position, d.dout[0], dq.next());
  if (pooled) {
    spread_means(program, a, p.k, dx.k, dk.next());
    spread_means(program, a, p.v, dx.v, dv.next());
  }
  selected(program, p, a, d.dout[1], dq.next(), {dk.next(), dv.next()});
  const Keys own{p.dk_window, p.dv_window};
  window(program, p, a, d.dout[2], dq.next(), shared ? Keys{dk.next(), dv.next()} : own);
  dq.run(), dk.run(), dv.run();
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
