// SPDX-License-Identifier: Apache-2.0
// Both parts attend by positions of tokens: compressed key c is where its last token is, and rows
// are where key_len says.  The window's part has the sink.
#include "core/fields.h"
#include "core/merge_parts.h"
#include "ops/compressed/steps.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_compressed_forward";
using Params = fovea_x_compressed_forward_params;
using compressed::as_list, compressed::or_else;

// The numbers of a call, zeros replaced.
struct Sizes {
  int64_t b, s, h;
  int64_t keys, compressed;  // of a sequence at most
  int64_t step, count, window;
  bool any;  // there are sequences, rows and heads
};

void check(const Params& p) {
  check_together(kOp, p.index_q, "index_q", p.index_k, "index_k");
  check_needs(kOp, p.weight, "weight", p.index_q, "index_q");
  check_needs(kOp, p.index, "index", p.index_q, "index_q");
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
  check_together(kOp, p.key_len, "key_len", p.compressed_len, "compressed_len");
  if (p.index_q.data && !p.index_q.shape[2])
    refuse("%s: index_q.shape[2] (index_heads) is 0, wanted 1 or more", kOp);
  for (const auto& [field, value] :
       {std::pair{"key_max", p.key_max}, {"count", p.count}, {"window", p.window}})
    check_not_negative(kOp, field, value);
  compressed::check_step(kOp, p.compress_step);
}

Sizes read_sizes(const Params& p) {
  check(p);
  Sizes a{};
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2];
  a.step = or_else(p.compress_step, 4), a.count = or_else(p.count, 512);
  a.window = or_else(p.window, 128);
  const bool paged = p.page_table.data != nullptr;
  const int64_t all = paged ? far_product(p.page_table.shape[1], p.k.shape[1]) : p.k.shape[1];
  a.keys = bounded(p.key_max, all);
  compressed::check_keys(kOp, a.keys);
  const int64_t u = p.k_compressed.shape[1];
  a.compressed = a.keys / a.step;
  if (u < a.compressed && !p.key_len.data)
    refuse("%s: k_compressed.shape[1] (u) is %lld, wanted at least %lld: blocks of %lld keys", kOp,
           lld(u), lld(a.compressed), lld(a.step));
  a.compressed = std::min(a.compressed, u);
  a.any = a.b && a.s && a.h;
  return a;
}

// Whether every list has all that its row may see.
bool takes_all(const Params& p, const Sizes& a) {
  return a.count >= a.compressed && (!p.index.data || p.index.shape[2] >= a.compressed);
}

// What all parts share.
template <class To>
To part_of(const Params& p) {
  To to{};
  to.q = p.q, to.query_len = p.query_len, to.scale = p.scale, to.causal = 1;
  return to;
}

// Where compressed keys and the rows that see them are.
template <class To>
To over_compressed(const Params& p, const Sizes& a) {
  To to = part_of<To>(p);
  to.key_len = p.compressed_len, to.context_len = p.key_len;
  to.key_step = a.step, to.key_shift = a.step - 1;
  // Without lengths the last row is at the last compressed key, not the last key.
  if (!p.key_len.data) to.key_shift -= a.keys - a.compressed;
  return to;
}

fovea_tensor first_compressed(const Sizes& a, fovea_tensor x) {
  x.shape[1] = a.compressed;
  return Program::given(x);
}

[[gnu::noinline]] void attend_window(Program& program, const Params& p, const Sizes& a,
                                     const fovea_tensor& o, const fovea_tensor& lse) {
  auto part = part_of<fovea_attention_forward_params>(p);
  part.k = p.k, part.v = p.v, part.o = o, part.lse = lse, part.sink_logit = p.sink_logit;
  part.key_len = p.key_len, part.page_table = p.page_table;
  part.key_max = p.key_max, part.window_left = a.window;
  program.run(part);
}

[[gnu::noinline]] void attend_all(Program& program, const Params& p, const Sizes& a,
                                  const fovea_tensor& o, const fovea_tensor& lse) {
  auto part = over_compressed<fovea_attention_forward_params>(p, a);
  part.k = first_compressed(a, p.k_compressed), part.v = first_compressed(a, p.v_compressed);
  part.o = o, part.lse = lse;
  program.run(part);
}

struct List {
  fovea_tensor index, count;  // (b, 1, s, keep), (b, 1, s)
};

[[gnu::noinline]] List select(Program& program, const Params& p, const Sizes& a) {
  const int64_t keep = std::min(a.count, a.compressed);
  const List list{as_list(program.output(p.index, FOVEA_I32, {a.b, a.s, keep})),
                  as_list(program.output(p.index_count, FOVEA_I32, {a.b, a.s}))};
  auto part = over_compressed<fovea_x_select_token_params>(p, a);
  part.q = p.index_q, part.k = first_compressed(a, p.index_k), part.weight = p.weight;
  part.index = list.index, part.index_count = list.count, part.count = a.count;
  part.scale = p.index_scale, part.measure = FOVEA_X_SELECT_SCORE_RELU_WEIGHTED;
  part.reduce = FOVEA_X_SELECT_REDUCE_SUM;
  program.run(part);
  return list;
}

[[gnu::noinline]] void attend_list(Program& program, const Params& p, const Sizes& a,
                                   const List& list, const fovea_tensor& o,
                                   const fovea_tensor& lse) {
  auto part = over_compressed<fovea_x_sparse_forward_params>(p, a);
  part.k = first_compressed(a, p.k_compressed), part.v = first_compressed(a, p.v_compressed);
  part.o = o, part.lse = lse;
  part.index = list.index, part.index_count = list.count;
  part.block_rows = part.block_keys = 1;
  program.run(part);
}

void body(Program& program, const Params& p) {
  const Sizes a = read_sizes(p);
  const auto dtype = static_cast<fovea_dtype>(p.o.dtype);
  const fovea_tensor o = program.array(dtype, {2, a.b, a.s, a.h, p.v.shape[3]});
  const fovea_tensor lse = program.array(FOVEA_F32, {2, a.b, a.h, a.s});
  attend_window(program, p, a, entry(o, 0), entry(lse, 0));
  List list{};
  if (p.index_q.data && (p.index.data || !takes_all(p, a))) list = select(program, p, a);
  if (p.index_q.data && !takes_all(p, a))
    attend_list(program, p, a, list, entry(o, 1), entry(lse, 1));
  else
    attend_all(program, p, a, entry(o, 1), entry(lse, 1));
  if (a.any) merge_parts(program, p, o, lse);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
