// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/program.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_nsa_forward";
constexpr int64_t kForced = 3;  // blocks: the first, the row's own, the one before it
using Params = fovea_x_nsa_forward_params;

// Keys, compressed keys and blocks of a call, zeros replaced.
struct Blocks {
  int64_t keys;        // of a sequence at most
  int64_t each, step;  // keys of a compressed key, and from one to the next
  int64_t compressed;  // of `keys`
  int64_t block, count, window;
};

int64_t or_else(int64_t value, int64_t otherwise) {
  return value ? value : otherwise;
}

Blocks read_blocks(const Params& p) {
  for (const auto& [field, value] : {std::pair{"query_max", p.query_max},
                                     {"key_max", p.key_max},
                                     {"count", p.count},
                                     {"window", p.window}})
    check_not_negative(kOp, field, value);
  constexpr int64_t most = 1 << 16;
  if (p.compress_keys < 0 || p.compress_keys > most)
    refuse("%s: compress_keys is %lld, wanted 1 .. %lld, or 0 for 32", kOp, lld(p.compress_keys),
           lld(most));
  if (p.block_keys < 0 || p.block_keys > 128)
    refuse("%s: block_keys is %d, wanted 1 .. 128, or 0 for 64", kOp, p.block_keys);
  Blocks a{};
  a.each = or_else(p.compress_keys, 32), a.step = or_else(p.compress_step, 16);
  a.block = or_else(p.block_keys, 64), a.count = or_else(p.count, 16);
  a.window = or_else(p.window, 512);
  if (a.step < 0 || a.each % a.step || a.block % a.step)
    refuse(
        "%s: compress_step is %lld, wanted a divisor of compress_keys = %lld and block_keys = %lld",
        kOp, lld(a.step), lld(a.each), lld(a.block));
  const bool paged = p.page_table.data != nullptr;
  a.keys = paged ? far_product(p.page_table.shape[1], p.k.shape[1]) : p.k.shape[1];
  if (p.key_max) a.keys = std::min(a.keys, p.key_max);
  if (a.keys > INT32_MAX)
    fail(FOVEA_UNSUPPORTED, "%s: a sequence has up to %lld keys, wanted at most %d", kOp,
         lld(a.keys), INT32_MAX);
  a.compressed = a.keys < a.each ? 0 : (a.keys - a.each) / a.step + 1;
  return a;
}

void check(const Params& p, const Blocks& a) {
  check_together(kOp, p.k_compressed, "k_compressed", p.v_compressed, "v_compressed");
  check_together(kOp, p.k_window, "k_window", p.v_window, "v_window");
  check_together(kOp, p.key_len, "key_len", p.compressed_len, "compressed_len");
  check_needs(kOp, p.key_len, "key_len", p.k_compressed, "k_compressed");
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
  check_flag(kOp, "gate_plain", p.gate_plain);
  if (p.k_compressed.data && p.k_compressed.shape[1] < a.compressed)
    refuse(
        "%s: k_compressed.shape[1] (u) is %lld, wanted at least %lld: compressed keys of %lld keys",
        kOp, lld(p.k_compressed.shape[1]), lld(a.compressed), lld(a.keys));
}

// What the parts share: which rows and keys there are, and the scale.
template <class To>
To part_of(const Params& p, const Blocks& a) {
  To to{};
  to.query_len = p.query_len, to.key_len = p.key_len;
  to.query_max = p.query_max, to.key_max = a.keys;
  to.scale = p.scale, to.causal = 1;
  return to;
}

[[gnu::noinline]] fovea_tensor compress(Program& program, const Params& p, const Blocks& a,
                                        const fovea_tensor& x, const fovea_tensor& given) {
  fovea_tensor y = given;
  y.shape[1] = a.compressed;
  if (given.data) return y;
  fovea_x_pool_forward_params part{};
  part.x = x, part.page_table = p.page_table, part.key_max = a.keys;
  y = program.array(static_cast<fovea_dtype>(x.dtype),
                    {p.q.shape[0], a.compressed, x.shape[2], x.shape[3]});
  part.y = y;
  part.block = a.each, part.step = a.step, part.complete = 1;
  program.run(part);
  return y;
}

[[gnu::noinline]] void attend_compressed(Program& program, const Params& p, const Blocks& a,
                                         const fovea_tensor& k, const fovea_tensor& v,
                                         const fovea_tensor& o) {
  auto part = part_of<fovea_attention_forward_params>(p, a);
  part.q = p.q, part.k = k, part.v = v, part.o = o, part.lse = p.lse_compressed;
  part.key_len = p.compressed_len, part.context_len = p.key_len, part.key_max = 0;
  part.key_step = a.step, part.key_shift = a.each - 1;
  // Without lengths the last row is at the last compressed key, not the last key.
  if (!p.key_len.data) part.key_shift -= a.keys - a.compressed;
  program.run(part);
}

struct List {
  fovea_tensor index, count;
};

[[gnu::noinline]] List select(Program& program, const Params& p, const Blocks& a,
                              const fovea_tensor& k) {
  const int64_t b = p.q.shape[0], s = p.q.shape[1], g = p.k.shape[2];
  const int64_t blocks = a.keys / a.block + (a.keys % a.block != 0);
  const int64_t keep = std::min(blocks, std::max(a.count, kForced));
  List list{p.index, p.index_count};
  if (!p.index.data) list.index = program.array(FOVEA_I32, {b, g, s, keep});
  if (!p.index_count.data) list.count = program.array(FOVEA_I32, {b, g, s});
  auto part = part_of<fovea_x_select_block_params>(p, a);
  part.row = Program::given(p.q), part.column = k;
  part.index = list.index, part.index_count = list.count;
  part.count = a.count, part.forced_count = 1;
  part.force_first = part.force_previous = part.force_own = 1;
  // Without columns and remap_step there are no keys; key_max 0 is not that.
  if (a.keys) part.remap_step = a.block / a.step, part.remap_span = a.each / a.step;
  part.normalise = FOVEA_X_SELECT_NORMALISE_SOFTMAX, part.reduce = FOVEA_X_SELECT_REDUCE_SUM;
  part.complete = 1, part.block_rows = 1, part.block_keys = static_cast<int32_t>(a.block);
  program.run(part);
  return list;
}

[[gnu::noinline]] void attend_selected(Program& program, const Params& p, const Blocks& a,
                                       const List& list, const fovea_tensor& o) {
  auto part = part_of<fovea_x_sparse_forward_params>(p, a);
  part.q = p.q, part.k = p.k, part.v = p.v, part.o = o, part.lse = p.lse_selected;
  part.page_table = p.page_table;
  part.index = list.index, part.index_count = list.count;
  part.block_rows = 1, part.block_keys = static_cast<int32_t>(a.block);
  program.run(part);
}

[[gnu::noinline]] void attend_window(Program& program, const Params& p, const Blocks& a,
                                     const fovea_tensor& o) {
  auto part = part_of<fovea_attention_forward_params>(p, a);
  part.q = p.q, part.o = o, part.lse = p.lse_window, part.page_table = p.page_table;
  part.k = p.k_window.data ? p.k_window : p.k, part.v = p.v_window.data ? p.v_window : p.v;
  part.window_left = a.window;
  program.run(part);
}

[[gnu::noinline]] void combine(Program& program, const Params& p, const fovea_tensor (&o)[3]) {
  fovea_x_combine_forward_params part{};
  part.query_len = p.query_len;
  const auto computed = [&](const fovea_tensor& x) { return first_rows(x, p.query_max); };
  part.x = computed(o[0]), part.x2 = computed(o[1]), part.x3 = computed(o[2]);
  part.y = computed(p.o);
  const auto gate = [&](const fovea_tensor& x, fovea_tensor& to, int32_t& act) {
    if (!x.data) return;
    to = spread(x, part.y, {x.stride[0], x.stride[1], x.stride[2], 0});
    act = p.gate_plain ? FOVEA_X_GATE_NONE : FOVEA_X_GATE_SIGMOID;
  };
  gate(p.gate_compressed, part.gate, part.gate_act);
  gate(p.gate_selected, part.gate2, part.gate2_act);
  gate(p.gate_window, part.gate3, part.gate3_act);
  program.run(part);
}

void body(Program& program, const Params& p) {
  const Blocks a = read_blocks(p);
  check(p, a);
  const fovea_tensor* outputs[] = {&p.o_compressed, &p.o_selected, &p.o_window};
  const int64_t* of = p.o.shape;
  const auto dtype = static_cast<fovea_dtype>(p.q.dtype);
  fovea_tensor o[3];
  for (int n = 0; n < 3; ++n)
    o[n] = outputs[n]->data ? *outputs[n] : program.array(dtype, {of[0], of[1], of[2], of[3]});
  const fovea_tensor k = compress(program, p, a, p.k, p.k_compressed);
  attend_compressed(program, p, a, k, compress(program, p, a, p.v, p.v_compressed), o[0]);
  attend_selected(program, p, a, select(program, p, a, k), o[1]);
  attend_window(program, p, a, o[2]);
  combine(program, p, o);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
