// SPDX-License-Identifier: Apache-2.0
// Compact attention by name as its papers define it: every head has queries, keys and values, which
// layers expand from what is stored.  Attention is over the expanded heads, whatever a call stores
// or absorbs.  No head count, scale or view of a call is read.
#pragma once
#include "recipes.h"
#include "recipes_infllm.h"

namespace oracle::recipes {

// What a layer gives: of (sequence, position, head, column), or of a weight's (head, row, column).
using Letter = std::function<double(int64_t, int64_t, int64_t, int64_t)>;

// Sequences of at most `tokens` tokens each, whose last `rows` ask.
struct Asked {
  int64_t sequences, rows, tokens, heads;
  Dense key_len;  // tokens of each sequence, or none: all
  int dtype;      // in which a call has its queries

  int64_t position(int64_t b, int64_t row) const {
    return (key_len ? key_len.integer(b) : tokens) - rows + row;
  }
};

// Attention of heads that share nothing: each token sees itself and those before.
inline Attention of_heads(const Asked& x, int64_t d, int64_t e, const Letter& q, const Letter& k,
                          const Letter& v) {
  Attention a;
  a.b = x.sequences, a.s = x.rows, a.h = a.g = x.heads, a.d = d, a.e = e;
  a.at.s = a.s, a.at.extent = a.columns = x.tokens, a.at.sequences = a.at.caches = a.b;
  a.at.key_len = x.key_len;
  a.scale = 1 / std::sqrt(static_cast<double>(d));
  const auto fill = [&](int64_t tokens, int64_t width, const auto& element) {
    Dense to{true, x.dtype, {a.b, tokens, a.h, width, 1}, {}};
    for (int64_t b = 0; b < a.b; ++b)
      for (int64_t i = 0; i < tokens; ++i)
        for (int64_t head = 0; head < a.h; ++head)
          for (int64_t c = 0; c < width; ++c) to.value.push_back(element(b, i, head, c));
    return to;
  };
  a.q = fill(a.s, d, [&](int64_t b, int64_t i, int64_t head, int64_t c) {
    return q(b, x.position(b, i), head, c);
  });
  a.k = fill(x.tokens, d, k), a.v = fill(x.tokens, e, v);
  return seen_by(a, [](int64_t, int64_t, int64_t i, int64_t j) { return j <= i; });
}

// ---- shared heads

// `groups` heads of keys and values, each repeated for its query heads.
inline Attention repeated(const Attention& a, int64_t groups) {
  const int64_t each = a.h / groups;
  const Asked x{a.b, a.s, a.at.extent, a.h, a.at.key_len, a.q.dtype};
  return of_heads(
      x, a.d, a.e,
      [&](int64_t b, int64_t position, int64_t head, int64_t c) {
        return a.q(b, position - x.position(b, 0), head, c);
      },
      [&](int64_t b, int64_t j, int64_t head, int64_t c) { return a.k(b, j, head / each, c); },
      [&](int64_t b, int64_t j, int64_t head, int64_t c) { return a.v(b, j, head / each, c); });
}

// Multi-head attention, section 3.2.2: heads of their own.
inline Attention mha(const Attention& a) {
  return repeated(a, a.h);
}

// Multi-query attention, section 3: one head of keys and values for all query heads.
inline Attention mqa(const Attention& a) {
  return repeated(a, 1);
}

// Grouped-query attention, section 2.2: a head of keys and values for each group of query heads.
inline Attention gqa(const Attention& a, int64_t groups) {
  return repeated(a, groups);
}

// ---- multi-head latent attention

// q and k_rope are as the layers give them, before rotation.  c is a token's latent behind its
// norm.
struct Mla {
  int64_t nope, rope, rank, width;  // d_h, d_h^R, d_c and the values' own
  Letter q_nope, q_rope, k_rope, c;
  Letter w_uk, w_uv;  // (head, row, column, 0): rank rows
};

// A row through a head's matrix.
inline double up(const Letter& row, int64_t rank, const Letter& weight, int64_t b, int64_t i,
                 int64_t head, int64_t column) {
  double sum = 0;
  for (int64_t r = 0; r < rank; ++r) sum += row(b, i, 0, r) * weight(head, r, column, 0);
  return sum;
}

// DeepSeek-V2, equations 14 to 18: q = [q^C; RoPE(q^R)], k = [c W_UK; RoPE(k^R)], the scale that of
// both parts, under values of the caller's choice.
inline Attention mla_over(const Asked& x, const Mla& m, int64_t e, const Letter& values) {
  const auto beside = [&](const Letter& plain, const Letter& turned) -> Letter {
    return [&m, plain, turned](int64_t b, int64_t i, int64_t head, int64_t c) {
      if (c < m.nope) return plain(b, i, head, c);
      return quarter_turned([&](int64_t n) { return turned(b, i, head, n); }, c - m.nope, m.rope,
                            i);
    };
  };
  const Letter k_nope = [&](int64_t b, int64_t j, int64_t head, int64_t column) {
    return up(m.c, m.rank, m.w_uk, b, j, head, column);
  };
  const Letter k_rope = [&](int64_t b, int64_t j, int64_t, int64_t n) {
    return m.k_rope(b, j, 0, n);
  };
  return of_heads(x, m.nope + m.rope, e, beside(m.q_nope, m.q_rope), beside(k_nope, k_rope),
                  values);
}

// v = c W_UV.
inline Attention mla(const Asked& x, const Mla& m) {
  return mla_over(x, m, m.width, [&](int64_t b, int64_t j, int64_t head, int64_t column) {
    return up(m.c, m.rank, m.w_uv, b, j, head, column);
  });
}

// With W_UV absorbed into W_O, section 2.1.2, a head's output is its weighted latents.
inline Attention mla_absorbed(const Asked& x, const Mla& m) {
  return mla_over(x, m, m.rank,
                  [&](int64_t b, int64_t j, int64_t, int64_t r) { return m.c(b, j, 0, r); });
}

// ---- multi-matrix factorization attention

// low is the query behind the shared down-projection and its norm, k before rotation.
struct Mfa {
  int64_t rank, width;
  Letter low, k, v;
  Letter w_up;  // (head, row, column, 0)
};

inline Attention mfa_over(const Asked& x, const Mfa& m, const Letter& values) {
  const auto one = [](const Letter& of) -> Letter {
    return [&of](int64_t b, int64_t j, int64_t, int64_t c) { return of(b, j, 0, c); };
  };
  const auto turned = [&](const Letter& of) -> Letter {
    return [&m, of](int64_t b, int64_t i, int64_t head, int64_t c) {
      return quarter_turned([&](int64_t n) { return of(b, i, head, n); }, c, m.width, i);
    };
  };
  const Letter q = [&](int64_t b, int64_t i, int64_t head, int64_t c) {
    return up(m.low, m.rank, m.w_up, b, i, head, c);
  };
  return of_heads(x, m.width, m.width, turned(q), turned(one(m.k)), one(values));
}

// Section 3.2: many query heads of one low-rank factor, one head of keys and values.
inline Attention mfa(const Asked& x, const Mfa& m) {
  return mfa_over(x, m, m.v);
}

// Section 3.3, v = k M: the output before M is the weighted keys, which are not rotated.
inline Attention mfa_kr(const Asked& x, const Mfa& m) {
  return mfa_over(x, m, m.k);
}

// ---- tensor product attention

// Factors as the layers give them, before rotation: a of (rank, head), b of (rank, column).
struct Tpa {
  int64_t rank_q, rank_k, rank_v, d, e;
  Letter a_q, b_q, a_k, b_k, a_v, b_v;
};

// Section 3.1: Q, K and V are means of outer products, and RoPE turns rows of heads.  Theorem 1:
// factors that are turned give the same.
inline Attention tpa(const Asked& x, const Tpa& m) {
  const auto mean = [](const Letter& a, const Letter& b, int64_t rank) -> Letter {
    return [=](int64_t sequence, int64_t i, int64_t head, int64_t c) {
      double sum = 0;
      for (int64_t r = 0; r < rank; ++r) sum += a(sequence, i, r, head) * b(sequence, i, r, c);
      return sum / static_cast<double>(rank);
    };
  };
  const auto turned = [&](const Letter& of) -> Letter {
    return [&m, of](int64_t sequence, int64_t i, int64_t head, int64_t c) {
      return quarter_turned([&](int64_t n) { return of(sequence, i, head, n); }, c, m.d, i);
    };
  };
  return of_heads(x, m.d, m.e, turned(mean(m.a_q, m.b_q, m.rank_q)),
                  turned(mean(m.a_k, m.b_k, m.rank_k)), mean(m.a_v, m.b_v, m.rank_v));
}

}  // namespace oracle::recipes
