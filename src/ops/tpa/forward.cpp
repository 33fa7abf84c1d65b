// SPDX-License-Identifier: Apache-2.0
#include "core/reasons.h"
#include "ops/tpa/heads.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_tpa_forward";
using Params = fovea_x_tpa_forward_params;

Tpa resolve(const Params& p) {
  Tpa x = tpa::read(kOp, p);
  Attend& a = x.attend;
  Sequences& q = a.sequences;
  q.cache_row = int_vector(p.cache_row);
  for (const auto& [field, name] :
       {std::pair{&p.page_table, "page_table"}, {&p.cache_row, "cache_row"}})
    if (field->data && p.key_start.data)
      refuse("%s: key_start is given with %s, wanted one of them", kOp, name);
  place_keys(q, kOp, "a_k", p.a_k, p.page_table, p.key_max);
  a.columns = q.capacity;
  read_axis(a, kOp, p);
  check_not_negative(kOp, "splits", p.splits);
  a.splits = p.splits;
  x.params = p;
  return x;
}

// ---- heads in the workspace, for attention_forward

// Keys as they are formed: as many of a row as the call can have; or in pages of their own.
struct Keys {
  fovea_tensor k, v;   // room for the most heads at once
  fovea_tensor table;  // of their pages, if paged
};

Keys room_of(Program& program, const Params& p, int64_t heads) {
  const bool paged = p.page_table.data;
  const int64_t page = p.a_k.shape[1];
  int64_t n0 = p.a_k.shape[0], n1 = page;
  Keys x{};
  if (paged) {
    const int64_t pages =
        std::min(p.page_table.shape[1], p.key_max ? ceil_of(p.key_max, page) : INT64_MAX);
    x.table = program.array(FOVEA_I32, {p.page_table.shape[0], pages});
    n0 = far_product(p.page_table.shape[0], pages);
  } else if (!p.key_start.data) {
    n1 = bounded(p.key_max, n1);
  }
  const auto dtype = static_cast<fovea_dtype>(p.a_k.dtype);
  x.k = program.array(dtype, {n0, n1, heads, p.b_k.shape[3]});
  x.v = program.array(dtype, {n0, n1, heads, p.b_v.shape[3]});
  return x;
}

// Elements of a head of q, k and v.
int64_t elements_of(const Params& p) {
  const int64_t rows = p.page_table.data ? far_product(p.page_table.shape[0], p.page_table.shape[1])
                                         : p.a_k.shape[0];
  const int64_t keys = far_product(rows, p.a_k.shape[1]);
  int64_t n = far_product(keys, p.b_k.shape[3] + p.b_v.shape[3]);
  if (p.a_q.data) n += far_product(far_product(p.b_q.shape[0], p.b_q.shape[1]), p.b_q.shape[3]);
  return n;
}

struct Heads {
  int64_t first, count;
};

fovea_tensor expand_keys(Program& program, const Params& p, const Keys& keys, const Heads& at,
                         const fovea_tensor& a, const fovea_tensor& b, const fovea_tensor& y,
                         float scale) {
  // Rows are sequences where nothing says otherwise.
  const bool own = !p.cache_row.data && !p.key_start.data;
  const fovea_tensor len = own ? p.key_len : fovea_tensor{};
  if (!p.page_table.data) return tpa::expand(program, a, b, y, at.first, at.count, scale, len);
  TpaExpand x{};
  const fovea_tensor to = tpa::heads_of(y, 2, 0, at.count);
  x.of = tpa::factors_of(a, b, at.first, at.count, scale);
  x.of.n0 = y.shape[0], x.y = view_of<4>(to), x.len = int_vector(len);
  x.page_table = view_of<2>(p.page_table), x.table_out = view_of<2>(keys.table);
  x.pages = keys.table.shape[1], x.pool = a.shape[0];
  tpa::run_expand(program, x);
  return to;
}

[[gnu::noinline]] void attend(Program& program, const Params& p, const Heads& at,
                              const fovea_tensor& q, const Keys& keys) {
  fovea_attention_forward_params to{};
  to.q = Program::given(q), to.k = keys.k, to.v = keys.v;
  to.o = tpa::heads_of(p.o, 2, at.first, at.count);
  to.lse = tpa::heads_of(p.lse, 1, at.first, at.count);
  to.query_start = p.query_start, to.key_start = p.key_start;
  to.query_len = p.query_len, to.key_len = p.key_len;
  to.page_table = keys.table, to.cache_row = p.cache_row, to.context_len = p.context_len;
  to.query_max = p.query_max, to.key_max = p.key_max;
  to.window_left = p.window_left, to.window_right = p.window_right, to.sink_keys = p.sink_keys;
  to.key_step = p.key_step, to.key_shift = p.key_shift;
  to.scale = p.scale, to.causal = p.causal, to.splits = p.splits;
  program.run(to);
}

void body(Program& program, const Tpa& x) {
  const Params& p = x.params;
  const int64_t h = x.attend.h;
  if (!h || !x.attend.b || !x.attend.s) return;
  const int64_t most = tpa::heads_at_once(p.a_k.dtype, h, elements_of(p));
  const Keys room = room_of(program, p, most);
  const fovea_tensor rows = p.q.data ? p.q : tpa::rows_of(program, p.b_q, most);
  const fovea_tensor len = p.query_start.data ? fovea_tensor{} : p.query_len;
  for (int64_t first = 0; first < h; first += most) {
    const Heads at{first, std::min(most, h - first)};
    Keys keys = room;
    keys.k = expand_keys(program, p, room, at, p.a_k, p.b_k, room.k, x.scale_k);
    keys.v = expand_keys(program, p, room, at, p.a_v, p.b_v, room.v, x.scale_v);
    const fovea_tensor q =
        p.q.data ? tpa::heads_of(p.q, 2, first, at.count)
                 : tpa::expand(program, p.a_q, p.b_q, rows, first, at.count, x.scale_q, len);
    attend(program, p, at, q, keys);
  }
}

const Kernel<Tpa> tpa_forward_any = {"", [](const Context& ctx, const Tpa& x, Plan& plan) {
                                       plan = compose(kOp, ctx, x, body);
                                       return Text();
                                     }};

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return choose(kOp, ctx, resolve(p), tpa_forward_host,
                FOVEA_CUDA_KERNELS(tpa_forward_sm80, tpa_forward_any));
}

}  // namespace fovea
