// SPDX-License-Identifier: Apache-2.0
// What forward and backward of x_nsa share: the sizes of its blocks, and compressed keys.
#pragma once
#include <tuple>
#include <utility>

#include "core/fields.h"
#include "core/program.h"

namespace fovea::nsa {

// Keys, compressed keys and blocks of a call, zeros replaced.
struct Blocks {
  int64_t keys;        // of a sequence at most
  int64_t each, step;  // keys of a compressed key, and from one to the next
  int64_t compressed;  // of `keys`
  int64_t block, window;
};

inline int64_t or_else(int64_t value, int64_t otherwise) {
  return value ? value : otherwise;
}

// `keys`: that a sequence can have.
template <class P>
Blocks read_blocks(const char* op, const P& p, int64_t keys) {
  check_not_negative(op, "window", p.window);
  check_flag(op, "gate_plain", p.gate_plain);
  check_together(op, p.k_compressed, "k_compressed", p.v_compressed, "v_compressed");
  check_together(op, p.k_window, "k_window", p.v_window, "v_window");
  check_together(op, p.key_len, "key_len", p.compressed_len, "compressed_len");
  check_needs(op, p.key_len, "key_len", p.k_compressed, "k_compressed");
  constexpr int64_t most = 1 << 16;
  if (p.compress_keys < 0 || p.compress_keys > most)
    refuse("%s: compress_keys is %lld, wanted 1 .. %lld, or 0 for 32", op, lld(p.compress_keys),
           lld(most));
  if (p.block_keys < 0 || p.block_keys > 128)
    refuse("%s: block_keys is %d, wanted 1 .. 128, or 0 for 64", op, p.block_keys);
  Blocks a{};
  a.each = or_else(p.compress_keys, 32), a.step = or_else(p.compress_step, 16);
  a.block = or_else(p.block_keys, 64), a.window = or_else(p.window, 512);
  if (a.step < 0 || a.each % a.step || a.block % a.step)
    refuse(
        "%s: compress_step is %lld, wanted a divisor of compress_keys = %lld and block_keys = %lld",
        op, lld(a.step), lld(a.each), lld(a.block));
  a.keys = keys;
  if (a.keys > INT32_MAX)
    fail(FOVEA_UNSUPPORTED, "%s: a sequence has up to %lld keys, wanted at most %d", op,
         lld(a.keys), INT32_MAX);
  a.compressed = a.keys < a.each ? 0 : (a.keys - a.each) / a.step + 1;
  return a;
}

// x_pool of the compressed keys of x (b, t, g, d).
inline fovea_x_pool_forward_params pooling(const fovea_tensor& x, const fovea_tensor& y,
                                           const Blocks& a) {
  fovea_x_pool_forward_params part{};
  part.x = x, part.y = y, part.key_max = a.keys;
  part.block = a.each, part.step = a.step, part.complete = 1;
  return part;
}

// A gate (b, s, h) over the extents of its branch.
inline fovea_tensor over_branch(const fovea_tensor& gate, const fovea_tensor& branch) {
  return spread(gate, branch, {gate.stride[0], gate.stride[1], gate.stride[2], 0});
}

// The gates of the three branches, into the params of x_combine_forward or _backward.
template <class P, class To>
void read_gates(const P& p, To& to) {
  const fovea_tensor* gates[] = {&p.gate_compressed, &p.gate_selected, &p.gate_window};
  const std::pair<fovea_tensor*, int32_t*> places[] = {
      {&to.gate, &to.gate_act}, {&to.gate2, &to.gate2_act}, {&to.gate3, &to.gate3_act}};
  for (int n = 0; n < 3; ++n) {
    if (!gates[n]->data) continue;
    *places[n].first = over_branch(*gates[n], to.x);
    *places[n].second = p.gate_plain ? FOVEA_X_GATE_NONE : FOVEA_X_GATE_SIGMOID;
  }
}

}  // namespace fovea::nsa
