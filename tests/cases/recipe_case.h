// SPDX-License-Identifier: Apache-2.0
// What the cases of methods by name share: the operands of a call, attention under a definition,
// the shapes that every method is tried on.
#pragma once
#include "cases/table.h"
#include "oracle/sparse.h"

namespace cases {

// q, k and v of a call and where its sequences are, without what it sees.
template <class P>
oracle::Attention load_operands(const P& p) {
  if constexpr (requires { p.head_map; }) {
    return oracle::load_sparse(p).a;
  } else if constexpr (requires { p.local_chunk; }) {
    return oracle::load_attention(p);
  } else {
    fovea_x_sparse_forward_params to{};
    to.q = p.q, to.k = p.k, to.v = p.v, to.key_len = p.key_len;
    if constexpr (requires { p.query_len; }) to.query_len = p.query_len;
    return oracle::load_sparse(to).a;
  }
}

using DefineSeen =
    std::function<oracle::Attention(const oracle::Attention& operands, oracle::Mode)>;

// o and lse of the call's operands under a definition.
template <class P>
std::vector<Expected> attend(TableCall& made, const DefineSeen& define) {
  using oracle::Mode;
  const P& p = made.params<P>();
  const oracle::Attention a = load_operands(p);
  const auto exact = oracle::forward(define(a, Mode::exact), p.o, p.lse, Mode::exact);
  const auto rounded = oracle::forward(define(a, Mode::rounded), p.o, p.lse, Mode::rounded);
  return {{"o", exact.o, rounded.o}, {"lse", exact.lse, rounded.lse}};
}

// Axes of a sweep: dtypes, heads and widths, layouts, outputs, and what the method brings.
inline std::vector<std::vector<std::string>> over_shapes(std::vector<std::string> own) {
  return {{"q:f32", "q:bf16", "q:f16"},
          {"b=2 h=4 g=2 d=64 e=64", "b=1 h=4 g=4 d=16 e=24", "b=1 h=6 g=1 d=128 e=128"},
          {"contiguous", "head_first", "odd"},
          {"lse o:f32", "lse", ""},
          std::move(own)};
}

inline void add_cases(std::vector<harness::Case>& to, const Table& table) {
  for (const harness::Case& c : table.cases()) to.push_back(c);
}

}  // namespace cases
