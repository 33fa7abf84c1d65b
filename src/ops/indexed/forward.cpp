// SPDX-License-Identifier: Apache-2.0
#include "core/fields.h"
#include "core/program.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_indexed_forward";
using Params = fovea_x_indexed_forward_params;

// The index: its queries and keys, lists and their capacity.
struct Index {
  fovea_tensor q, k;
  int64_t x, keep;
  int64_t keys, blocks;  // of a sequence at most; of block_k with its tail
};

// floor(ratio * keys), at least `least`.
int64_t share(float ratio, int64_t keys, int64_t least) {
  const double part = static_cast<double>(ratio) * static_cast<double>(keys);
  return part > static_cast<double>(least) ? static_cast<int64_t>(part) : least;
}

// What block_k asks of the other fields.
void check_blocks(const Params& p, const Index& a) {
  const auto without = [](bool given, const char* field) {
    if (given) refuse("%s: %s is given with block_k, wanted it absent", kOp, field);
  };
  without(p.index_k.data, "index_k");
  without(p.code.data, "code");
  without(p.v_mean.data, "v_mean");
  without(p.key_start.data, "key_start");
  without(p.context_len.data, "context_len");
  for (const auto& [field, value] : {std::pair{"window_left", p.window_left},
                                     {"window_right", p.window_right},
                                     {"sink_keys", p.sink_keys},
                                     {"first_keys", p.first_keys},
                                     {"last_keys", p.last_keys},
                                     {"pool_keys", p.pool_keys}})
    if (value) refuse("%s: %s is %lld with block_k, wanted 0", kOp, field, lld(value));
  if (p.ratio > 0) refuse("%s: ratio is %g with block_k, wanted count alone", kOp, p.ratio);
  if (p.causal != 1) refuse("%s: causal is %d with block_k, wanted 1", kOp, p.causal);
  if (p.block_k.shape[1] < a.blocks)
    refuse(
        "%s: block_k.shape[1] (blocks) is %lld, wanted at least %lld: blocks of %lld keys and "
        "the tail of %lld keys",
        kOp, lld(p.block_k.shape[1]), lld(a.blocks), lld(p.index_step), lld(a.keys));
}

// Keys of a sequence, and blocks of them.
void read_keys(const Params& p, Index& a) {
  const bool paged = p.page_table.data != nullptr;
  const int64_t capacity = paged ? far_product(p.page_table.shape[1], p.k.shape[1]) : p.k.shape[1];
  a.keys = bounded(p.key_max, capacity);
  if (p.index_step < 0 || p.index_step > 128)
    refuse("%s: index_step is %lld, wanted 1 .. 128, or 0 without block_k", kOp, lld(p.index_step));
  if ((p.index_step != 0) != (p.block_k.data != nullptr))
    refuse("%s: index_step is %lld %s block_k, wanted %s", kOp, lld(p.index_step),
           p.block_k.data ? "with" : "without", p.block_k.data ? "1 .. 128" : "0");
  if (!p.block_k.data) return;
  a.blocks = a.keys / p.index_step + 1;
  check_blocks(p, a);
}

Index read_index(const Params& p) {
  const bool blocks = p.block_k.data != nullptr;
  if (blocks)
    check_together(kOp, p.index_q, "index_q", p.block_k, "block_k");
  else
    check_together(kOp, p.index_q, "index_q", p.index_k, "index_k");
  check_together(kOp, p.code_q, "code_q", p.code, "code");
  check_needs(kOp, p.index_k_scale, "index_k_scale", p.index_k, "index_k");
  check_needs(kOp, p.index_count, "index_count", p.index, "index");
  if (p.code.data && p.index_k.data)
    refuse("%s: code is given with index_k, wanted one of them", kOp);
  const bool hamming = p.code_q.data != nullptr, own = p.index_q.data != nullptr;
  const fovea_tensor q = hamming ? p.code_q : own ? p.index_q : Program::given(p.q);
  const fovea_tensor k = hamming  ? p.code
                         : blocks ? p.block_k
                         : own    ? p.index_k
                                  : Program::given(p.k);
  if (p.weight.data && !own) refuse("%s: weight is given without index_q, wanted both", kOp);
  for (const auto& [field, value] :
       {std::pair{"lists", p.lists}, {"count", p.count}, {"force_last", p.force_last}})
    check_not_negative(kOp, field, value);
  if (p.pool_keys < 0 || p.pool_keys > 128)
    refuse("%s: pool_keys is %lld, wanted 1 .. 128, or 0 for keys", kOp, lld(p.pool_keys));
  check_number(kOp, "ratio", p.ratio, "count alone");
  if (p.ratio > 1) refuse("%s: ratio is %g, wanted 0 .. 1", kOp, p.ratio);
  if (p.index.data && p.lists && p.lists != p.index.shape[1])
    refuse("%s: lists is %lld with index of %lld heads (x), wanted 0 or as many", kOp, lld(p.lists),
           lld(p.index.shape[1]));

  Index index{q, k, p.lists, 0, 0, 0};
  read_keys(p, index);
  const int64_t wanted = share(p.ratio, index.keys, std::max(p.count, p.force_last));
  index.keep = std::min(ceil_of(index.keys, p.pool_keys ? p.pool_keys : 1), wanted);
  if (blocks) index.keep = std::min(index.blocks - 1, wanted) + 1;
  if (blocks && !index.keys) index.keep = index.k.shape[1] = 0;
  if (!index.x) index.x = p.reduce ? 1 : q.shape[2];
  if (p.index.data) index.x = p.index.shape[1], index.keep = p.index.shape[3];
  if (!p.q.shape[2]) {
    if (p.index.data && index.x)
      refuse("%s: index.shape[1] (x) is %lld, wanted 0 as q has no heads", kOp, lld(index.x));
    index.x = index.q.shape[2] = 0;
  }
  return index;
}

// Where sequences and their keys lie and what rows see, which all parts share.
template <class To>
To shared(const Params& p) {
  To to{};
  to.query_start = p.query_start, to.key_start = p.key_start;
  to.query_len = p.query_len, to.key_len = p.key_len;
  to.page_table = p.page_table, to.cache_row = p.cache_row, to.context_len = p.context_len;
  to.query_max = p.query_max, to.key_max = p.key_max;
  to.window_left = p.window_left, to.window_right = p.window_right, to.sink_keys = p.sink_keys;
  to.causal = p.causal;
  return to;
}

fovea_x_select_token_params selection(const Params& p, const Index& index) {
  auto select = shared<fovea_x_select_token_params>(p);
  if (p.code_q.data)
    select.code_q = index.q, select.code = index.k;
  else
    select.q = index.q, select.k = index.k;
  select.k_scale = p.index_q.data ? p.index_k_scale : p.code_q.data ? fovea_tensor{} : p.k_scale;
  select.weight = p.weight;
  if (p.weight.data) select.weight.shape[2] = index.q.shape[2];
  select.count = p.count, select.force_last = p.force_last;
  select.first_keys = p.first_keys, select.last_keys = p.last_keys;
  select.pool_keys = p.pool_keys, select.subset = p.subset;
  select.scale = p.index_scale, select.ratio = p.ratio;
  select.measure = p.measure, select.reduce = p.reduce;
  return select;
}

// Selection among the blocks of block_k.  Block c is at the last position before its first key, so
// the last one that a row sees is its tail, which is forced; those before it are complete.
void over_blocks(const Params& p, const Index& index, fovea_x_select_token_params& select) {
  select.page_table = {};
  select.key_len = {}, select.context_len = p.key_len;
  select.key_max = index.blocks;
  select.key_step = p.index_step, select.key_shift = -1;
  // Without lengths the last row is at the last block, not the last key.
  if (!p.key_len.data) select.key_shift += index.blocks - index.keys;
  select.count = std::min(p.count, index.blocks - 1) + 1;
  select.force_last = std::min(p.force_last, index.blocks - 1) + 1;
}

// What selection writes and attention reads.
struct Lists {
  fovea_tensor index, index_count, kept_mass;
};

[[gnu::noinline]] Lists select(Program& program, const Params& p, const Index& index) {
  const int64_t b = p.q.shape[0], s = p.q.shape[1], h = p.q.shape[2];
  auto part = selection(p, index);
  if (p.block_k.data) over_blocks(p, index, part);
  part.index = program.output(p.index, FOVEA_I32, {b, index.x, s, index.keep});
  part.index_count = program.output(p.index_count, FOVEA_I32, {b, index.x, s});
  if (p.v_mean.data) part.kept_mass = program.array(FOVEA_F32, {b, h, s});
  program.run(part);
  return {part.index, part.index_count, part.kept_mass};
}

[[gnu::noinline]] void attend(Program& program, const Params& p, const Lists& lists,
                              const fovea_tensor& o) {
  auto part = shared<fovea_x_sparse_forward_params>(p);
  part.q = p.q, part.k = p.k, part.v = p.v, part.o = o, part.lse = p.lse;
  part.q_value = p.q_value;
  part.k_scale = p.k_scale, part.v_scale = p.v_scale, part.sink_logit = p.sink_logit;
  part.index = lists.index, part.index_count = lists.index_count;
  part.block_rows = 1;
  const int64_t keys = p.pool_keys ? p.pool_keys : p.index_step;
  part.block_keys = keys ? static_cast<int32_t>(keys) : 1;
  part.first_keys = p.first_keys, part.last_keys = p.last_keys;
  part.scale = p.scale, part.softcap = p.softcap;
  program.run(part);
}

[[gnu::noinline]] void blend(Program& program, const Params& p, const Lists& lists,
                             const fovea_tensor& o) {
  fovea_x_combine_forward_params part{};
  part.x = first_rows(o, p.query_max), part.y = first_rows(p.o, p.query_max),
  part.query_len = p.query_len;
  const int64_t *mean = p.v_mean.stride, *mass = lists.kept_mass.stride;
  part.x2 = spread(p.v_mean, part.y, {mean[0], 0, mean[1], mean[2]});
  part.gate = part.gate2 = spread(lists.kept_mass, part.y, {mass[0], mass[2], mass[1], 0});
  part.gate2_act = FOVEA_X_GATE_COMPLEMENT;
  program.run(part);
}

void body(Program& program, const Params& p) {
  const Lists lists = select(program, p, read_index(p));
  if (!p.v_mean.data) return attend(program, p, lists, p.o);
  const int64_t* of = p.o.shape;
  const auto dtype = static_cast<fovea_dtype>(p.v_mean.dtype);
  const fovea_tensor o = program.array(dtype, {of[0], of[1], of[2], of[3]});
  attend(program, p, lists, o);
  blend(program, p, lists, o);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  if (p.v_mean.data && p.query_start.data)
    refuse("%s: v_mean is given with query_start, wanted one of them", kOp);
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
