// SPDX-License-Identifier: Apache-2.0
// x_tpa_backward: heads of q, k and v in the workspace, attention_backward over them, then their
// gradients reduced to the factors'.  Heads come in the same parts as in the forward.
#include "ops/tpa/heads.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_tpa_backward";
using Params = fovea_x_tpa_backward_params;

// One of q, k and v: its factors, their gradients, and rows of the heads that are formed at once.
struct Side {
  fovea_tensor a, b, da, db;
  float scale;
  fovea_tensor len;
  fovea_tensor y, dy;  // rows; dy is absent where nothing is asked for
  fovea_tensor sum;    // of db over parts; absent with one part

  bool wanted() const { return da.data || db.data; }
};

Side side_of(Program& program, Side x, int64_t heads, bool parts) {
  x.y = tpa::rows_of(program, x.b, heads);
  if (!x.wanted()) return x;
  x.dy = tpa::rows_of(program, x.b, heads);
  if (parts && x.db.data)
    x.sum = program.array(FOVEA_F32, {x.b.shape[0], x.b.shape[1], x.b.shape[2], x.b.shape[3]});
  return x;
}

struct Heads {
  int64_t first, count;
  bool begins, ends;
};

fovea_tensor expand(Program& program, const Side& x, const Heads& at) {
  return tpa::expand(program, x.a, x.b, x.y, at.first, at.count, x.scale, x.len);
}

void reduce(Program& program, const Side& x, const Heads& at) {
  if (!x.wanted()) return;
  TpaReduce to{};
  to.of = tpa::factors_of(x.a, x.b, at.first, at.count, x.scale);
  to.dy = view_of<4>(tpa::heads_of(x.dy, 2, 0, at.count));
  to.da = view_of<4>(tpa::heads_of(x.da, 3, at.first, at.count));
  to.db = view_of<4>(x.db), to.sum = view_of<4>(x.sum);
  to.first = at.begins, to.last = at.ends;
  tpa::run_reduce(program, to);
}

[[gnu::noinline]] void attend(Program& program, const Params& p, const Heads& at,
                              const fovea_tensor (&rows)[3], const fovea_tensor (&gradients)[3]) {
  fovea_attention_backward_params to{};
  to.q = Program::given(rows[0]), to.k = rows[1], to.v = rows[2];
  const auto heads = [&](const fovea_tensor& x, int axis) {
    return tpa::heads_of(x, axis, at.first, at.count);
  };
  to.o = heads(Program::given(p.o), 2), to.lse = heads(Program::given(p.lse), 1);
  to.dout = heads(Program::given(p.dout), 2), to.dlse = heads(p.dlse, 1);
  to.dq = gradients[0], to.dk = gradients[1], to.dv = gradients[2];
  to.query_start = p.query_start, to.key_start = p.key_start;
  to.query_len = p.query_len, to.key_len = p.key_len;
  to.query_max = p.query_max, to.key_max = p.key_max;
  to.window_left = p.window_left, to.window_right = p.window_right, to.sink_keys = p.sink_keys;
  to.scale = p.scale, to.causal = p.causal, to.nondeterministic = p.nondeterministic;
  program.run(to);
}

void check(const Params& p) {
  check_needs(kOp, p.dq, "dq", p.q, "q"), check_needs(kOp, p.da_q, "da_q", p.a_q, "a_q");
  check_needs(kOp, p.db_q, "db_q", p.b_q, "b_q");
}

// Elements of a head: rows and their gradients.
int64_t elements_of(const Params& p) {
  const auto rows = [](const fovea_tensor& b) {
    return b.data ? far_product(far_product(b.shape[0], b.shape[1]), b.shape[3]) : 0;
  };
  return 2 * (rows(p.b_k) + rows(p.b_v) + rows(p.b_q));
}

// Without pairs all gradients are 0, and those of no head's own are so after the first heads.
int64_t heads_to_walk(const Params& p, const Attend& a, int64_t most) {
  const bool rows = a.b && a.s, keys = p.a_k.shape[0] && p.a_k.shape[1];
  const bool of_heads =
      (rows && (p.dq.data || p.da_q.data)) || (keys && (p.da_k.data || p.da_v.data));
  return (rows && keys) || of_heads ? a.h : std::min(a.h, most);
}

fovea_tensor heads_if(const fovea_tensor& x, const Heads& at) {
  return x.data ? tpa::heads_of(x, 2, 0, at.count) : x;
}

void body(Program& program, const Params& p) {
  const Tpa x = tpa::read(kOp, p);
  check(p);
  const bool factored = p.a_q.data, of_q = p.dq.data || p.da_q.data || p.db_q.data;
  if (!of_q && !p.da_k.data && !p.db_k.data && !p.da_v.data && !p.db_v.data) return;
  const int64_t elements = elements_of(p);
  const bool queries = p.q.data && x.attend.b && x.attend.s;
  if (!elements && !queries) return;  // however many heads there are
  const int64_t most = tpa::heads_at_once(p.a_k.dtype, x.attend.h, elements);
  const int64_t h = heads_to_walk(p, x.attend, most);
  const bool parts = most < h;
  const fovea_tensor key_len = p.key_start.data ? fovea_tensor{} : p.key_len;
  const fovea_tensor query_len = p.query_start.data ? fovea_tensor{} : p.query_len;
  const Side k =
      side_of(program, {p.a_k, p.b_k, p.da_k, p.db_k, x.scale_k, key_len, {}, {}, {}}, most, parts);
  const Side v =
      side_of(program, {p.a_v, p.b_v, p.da_v, p.db_v, x.scale_v, key_len, {}, {}, {}}, most, parts);
  Side q{p.a_q, p.b_q, p.da_q, p.db_q, x.scale_q, query_len, {}, {}, {}};
  if (factored) q = side_of(program, q, most, parts);
  int64_t first = 0;
  do {  // once without heads: sums over none are 0
    const int64_t count = std::min(most, h - first);
    const Heads at{first, count, first == 0, first + count == h};
    const fovea_tensor rows[] = {
        factored ? expand(program, q, at) : tpa::heads_of(p.q, 2, first, count),
        expand(program, k, at), expand(program, v, at)};
    const fovea_tensor gradients[] = {
        factored ? heads_if(q.dy, at) : tpa::heads_of(p.dq, 2, first, count), heads_if(k.dy, at),
        heads_if(v.dy, at)};
    attend(program, p, at, rows, gradients);
    if (factored) reduce(program, q, at);
    reduce(program, k, at), reduce(program, v, at);
    first += count;
  } while (first < h);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  return compose(kOp, ctx, p, body);
}

}  // namespace fovea
