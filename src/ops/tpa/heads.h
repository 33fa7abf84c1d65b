// SPDX-License-Identifier: Apache-2.0
// What forward and backward of x_tpa share: checks, and heads that are formed in the workspace.
#pragma once
#include "core/fields.h"
#include "core/program.h"
#include "ops/tpa/kernels.h"

namespace fovea::tpa {

constexpr int64_t kHeadsMost = 64;           // that are formed at once
constexpr int64_t kRoom = int64_t{1} << 30;  // bytes of them

inline float factor_of(const char* op, const char* field, float scale, int64_t rank) {
  check_number(op, field, scale, "1 / rank");
  return scale > 0 ? scale : static_cast<float>(1.0 / static_cast<double>(rank));
}

// What both have: factors, extents, sequences, window and scales.
template <class P>
Tpa read(const char* op, const P& p) {
  Tpa x{};
  if (p.q.data && p.a_q.data) refuse("%s: q is given with a_q, wanted one of them", op);
  if (!p.q.data && !p.a_q.data) refuse("%s: q and a_q are not given, wanted one of them", op);
  check_together(op, p.a_q, "a_q", p.b_q, "b_q");
  if (p.q.data && p.scale_q != 0) refuse("%s: scale_q is %g with q, wanted 0", op, p.scale_q);
  const auto rank = [&](const fovea_tensor& a, const char* name, const char* letter) {
    if (a.shape[2] < 1) refuse("%s: %s.shape[2] (%s) is 0, wanted >= 1", op, name, letter);
    return a.shape[2];
  };
  x.rank_k = rank(p.a_k, "a_k", "rank_k"), x.rank_v = rank(p.a_v, "a_v", "rank_v");
  x.rank_q = p.a_q.data ? rank(p.a_q, "a_q", "rank_q") : 1;
  x.a_k = view_of<4>(p.a_k), x.b_k = view_of<4>(p.b_k);
  x.a_v = view_of<4>(p.a_v), x.b_v = view_of<4>(p.b_v);
  x.q = view_of<4>(p.q), x.a_q = view_of<4>(p.a_q), x.b_q = view_of<4>(p.b_q);

  Attend& a = x.attend;
  a.o = view_of<4>(p.o), a.lse = view_of<3>(p.lse);
  a.dtype = a.k_dtype = a.v_dtype = p.a_k.dtype, a.o_dtype = p.o.dtype;
  a.b = p.o.shape[0], a.s = p.o.shape[1], a.h = a.g = p.o.shape[2], a.e = p.o.shape[3];
  a.d = p.b_k.shape[3], a.t = p.a_k.shape[1];
  if (a.d < 1 || a.e < 1)
    refuse("%s: b_k.shape[3] (d) is %lld and b_v.shape[3] (e) %lld, wanted >= 1", op, lld(a.d),
           lld(a.e));
  if (a.d > kWidthMax || a.e > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: widths d = %lld and e = %lld, wanted at most %lld", op, lld(a.d),
         lld(a.e), lld(kWidthMax));
  read_sequences(a, op, p);
  a.mask.window = read_window(op, p);
  read_sinks(a.mask.window, op, p);
  a.score.scale = read_scale(op, "scale", p.scale, a.d, "1 / sqrt(d)");
  x.scale_q = factor_of(op, "scale_q", p.scale_q, x.rank_q);
  x.scale_k = factor_of(op, "scale_k", p.scale_k, x.rank_k);
  x.scale_v = factor_of(op, "scale_v", p.scale_v, x.rank_v);
  return x;
}

// A tensor of heads [first, first + count) on an axis.
inline fovea_tensor heads_of(const fovea_tensor& x, int axis, int64_t first, int64_t count) {
  if (!x.data) return x;
  fovea_tensor y = from(x, axis, first);
  y.shape[axis] = count;
  return y;
}

// Heads that are formed at once, where one takes so many elements.
inline int64_t heads_at_once(int32_t dtype, int64_t h, int64_t elements) {
  const int64_t bytes = far_product(elements, dtype_bytes(static_cast<fovea_dtype>(dtype)));
  return std::min(h, clamp_i64(kRoom / std::max<int64_t>(bytes, 1), 1, kHeadsMost));
}

inline Factors factors_of(const fovea_tensor& a, const fovea_tensor& b, int64_t first,
                          int64_t heads, float scale) {
  return {view_of<4>(heads_of(Program::given(a), 3, first, heads)),
          view_of<4>(b),
          a.dtype,
          a.shape[0],
          a.shape[1],
          a.shape[2],
          heads,
          b.shape[3],
          scale};
}

// y of the factors, in an array that is already there.
[[gnu::noinline]] inline void run_expand(Program& program, const TpaExpand& x) {
  program.run(choose("x_tpa_expand", program.context(), x, tpa_expand_host,
                     FOVEA_CUDA_KERNELS(tpa_expand_simt)));
}
[[gnu::noinline]] inline void run_reduce(Program& program, const TpaReduce& x) {
  program.run(choose("x_tpa_reduce", program.context(), x, tpa_reduce_host,
                     FOVEA_CUDA_KERNELS(tpa_reduce_simt)));
}

// Rows of so many heads, as an array.
inline fovea_tensor rows_of(Program& program, const fovea_tensor& b, int64_t heads) {
  return program.array(static_cast<fovea_dtype>(b.dtype),
                       {b.shape[0], b.shape[1], heads, b.shape[3]});
}

// Heads [first, first + count) of the factors into the first heads of y.  len: of rows that are
// sequences, or absent.
inline fovea_tensor expand(Program& program, const fovea_tensor& a, const fovea_tensor& b,
                           const fovea_tensor& y, int64_t first, int64_t count, float scale,
                           const fovea_tensor& len) {
  TpaExpand x{};
  const fovea_tensor to = heads_of(y, 2, 0, count);
  x.of = factors_of(a, b, first, count, scale);
  x.of.n1 = y.shape[1];  // key_max may cut it
  x.y = view_of<4>(to), x.len = int_vector(len);
  run_expand(program, x);
  return to;
}

}  // namespace fovea::tpa
