// SPDX-License-Identifier: Apache-2.0
#include "ops/nsa/blocks.h"

namespace fovea {
namespace {

using nsa::Blocks;

constexpr char kOp[] = "x_nsa_forward";
constexpr int64_t kForced = 3;  // blocks: the first, the row's own, the one before it
using Params = fovea_x_nsa_forward_params;

// The most keys that a sequence has.
int64_t keys_of(const Params& p) {
  for (const auto& [field, value] :
       {std::pair{"query_max", p.query_max}, {"key_max", p.key_max}, {"count", p.count}})
    check_not_negative(kOp, field, value);
  const bool paged = p.page_table.data != nullptr;
  const int64_t all = paged ? far_product(p.page_table.shape[1], p.k.shape[1]) : p.k.shape[1];
  return bounded(p.key_max, all);
}

void check(const Params& p, const Blocks& a) {
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
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
  y = program.array(static_cast<fovea_dtype>(x.dtype),
                    {p.q.shape[0], a.compressed, x.shape[2], x.shape[3]});
  fovea_x_pool_forward_params part = nsa::pooling(x, y, a);
  part.page_table = p.page_table;
  program.run(part);
  return y;
}

[[gnu::noinline]] void attend_compressed(Program& program, const Params& p, const Blocks& a,
                                         const fovea_tensor& k, const fovea_tensor& v,
                                         const fovea_tensor& o, const fovea_tensor& lse) {
  auto part = part_of<fovea_attention_forward_params>(p, a);
  part.q = p.q, part.k = k, part.v = v, part.o = o, part.lse = lse;
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
                              const fovea_tensor& k, const fovea_tensor& lse) {
  const int64_t b = p.q.shape[0], s = p.q.shape[1], g = p.k.shape[2];
  const int64_t blocks = ceil_of(a.keys, a.block);
  const int64_t count = nsa::or_else(p.count, 16);
  const int64_t keep = std::min(blocks, std::max(count, kForced));
  const List list{program.output(p.index, FOVEA_I32, {b, g, s, keep}),
                  program.output(p.index_count, FOVEA_I32, {b, g, s})};
  auto part = part_of<fovea_x_select_block_params>(p, a);
  part.row = Program::given(p.q), part.column = k;
  // With lengths the caller says how many compressed keys there are: they may be others than here.
  if (!p.key_len.data) part.row_lse = lse;
  part.index = list.index, part.index_count = list.count;
  part.count = count, part.forced_count = 1;
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
  nsa::read_gates(p, part);
  program.run(part);
}

void body(Program& program, const Params& p) {
  const Blocks a = nsa::read_blocks(kOp, p, keys_of(p));
  check(p, a);
  const fovea_tensor* outputs[] = {&p.o_compressed, &p.o_selected, &p.o_window};
  const int64_t* of = p.o.shape;
  const auto dtype = static_cast<fovea_dtype>(p.q.dtype);
  fovea_tensor o[3];
  for (int n = 0; n < 3; ++n)
    o[n] = program.output(*outputs[n], dtype, {of[0], of[1], of[2], of[3]});
  const fovea_tensor k = compress(program, p, a, p.k, p.k_compressed);
  const fovea_tensor lse = program.output(p.lse_compressed, FOVEA_F32, {of[0], of[2], of[1]});
  attend_compressed(program, p, a, k, compress(program, p, a, p.v, p.v_compressed), o[0], lse);
  attend_selected(program, p, a, select(program, p, a, k, lse), o[1]);
  attend_window(program, p, a, o[2]);
  combine(program, p, o);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
