// SPDX-License-Identifier: Apache-2.0
// Tensor product attention, resolved.  A factor is a (first axis, token, rank, column) tensor, so
// its pages, rows and packed tokens are a cache's.
//   expand   y[token, i] = scale sum_a a[token, a, i] b[token, a], for heads of y's own
//   reduce   of dy: da[token, a, i] = scale <dy[token, i], b[token, a]>,
//            db[token, a] = scale sum_i a[token, a, i] dy[token, i], heads ascending
#pragma once
#include "core/attend.h"
#include "core/plan.h"
#include "fovea/experimental/tpa.h"

namespace fovea {

// One product of factors: rows of `heads` heads, `width` columns each.
struct Factors {
  View<4> a, b;  // a from the first head on
  int32_t dtype;
  int64_t n0, n1;  // extents of the first axis and of tokens
  int64_t ranks, heads, width;
  float scale;
};

struct TpaExpand {
  Factors of;
  View<4> y;      // (n0, n1, heads, width)
  IntVector len;  // (n0): tokens from there on are left out; absent: none are
  // Paged: n1 tokens a page, logical page p of row r becomes page r pages + p of y.
  View<2> page_table, table_out;  // (rows, pages) i32; n0 is rows pages
  int64_t pages, pool;

  FOVEA_HD int64_t tokens() const { return of.n0 * of.n1; }
  // Where the factors of token `at` of row n of y are; < 0: there are none.
  FOVEA_HD int64_t row(int64_t n, int64_t at) const {
    const int64_t r = pages ? n / pages : n, j = pages ? n % pages * of.n1 + at : at;
    if (len && j >= len[r]) return -1;
    return pages ? page(n) : n;
  }
  // The pool's page of number n; -1: absent.
  FOVEA_HD int64_t page(int64_t n) const {
    const int32_t id = *page_table.at<int32_t>(n / pages, n % pages);
    return id >= 0 && id < pool ? id : -1;
  }
};

// A gradient that is 0 stays so beside factors that are not finite: of unused tokens.
struct TpaReduce {
  Factors of;
  View<4> dy;        // (n0, n1, heads, width)
  View<4> da, db;    // as a and b; either may be absent
  View<4> sum;       // (n0, n1, ranks, width) f32: sums over the heads of calls before; or absent
  bool first, last;  // of the calls that share a sum
};

struct Tpa {
  fovea_x_tpa_forward_params params;
  Attend attend;  // q, k and v stay empty
  View<4> a_k, b_k, a_v, b_v, q, a_q, b_q;
  int64_t rank_q, rank_k, rank_v;
  float scale_q, scale_k, scale_v;
};

extern const Kernel<Tpa> tpa_forward_host;
extern const Kernel<TpaExpand> tpa_expand_host;
extern const Kernel<TpaReduce> tpa_reduce_host;

// CUDA builds only.
extern const Kernel<Tpa> tpa_forward_sm80;
extern const Kernel<TpaExpand> tpa_expand_simt;
extern const Kernel<TpaReduce> tpa_reduce_simt;

}  // namespace fovea
