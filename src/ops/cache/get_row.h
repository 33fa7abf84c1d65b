// SPDX-License-Identifier: Apache-2.0
// One row out of the cache, for host and device alike: V elements of a key head, times the scale,
// one f32 product and one rounding; an absent page gives 0.
#pragma once
#include <type_traits>

#include "core/chunk.h"
#include "core/convert.h"
#include "core/locate.h"
#include "ops/cache/kernels.h"

namespace fovea {

// The token of row `slot` of k_out, number < 0 where there is none to read.
FOVEA_HD Token get_token(const CacheGet& a, int64_t slot) {
  Token token = token_at(a.sequences, slot);
  if (token.number < 0) return token;
  const Sequence& q = token.sequence;
  if (token.index >= q.keys) token.number = -1;
  return token;
}

template <class Cache, class Out>
bool wide(const CacheGet& a) {
  constexpr int v = kWide<Cache, Out>;
  return a.d % v == 0 && chunked(a.k, sizeof(Cache), v) && chunked(a.k_out, sizeof(Out), v);
}

// `offset` is that of the token in the cache, < 0 where its page is absent.
template <int V, class Cache, class Out>
FOVEA_HD void get_unit(const CacheGet& a, const Token& token, int64_t offset, int64_t head,
                       int64_t unit) {
  const Sequence& q = token.sequence;
  const int64_t c = unit * V;
  const int64_t step_k = V > 1 ? 1 : a.k.stride[3], step_out = V > 1 ? 1 : a.k_out.stride[3];
  auto& out = *reinterpret_cast<Chunk<Out, V>*>(a.k_out.as<Out>() + q.batch * a.k_out.stride[0] +
                                                (q.row_begin + token.index) * a.k_out.stride[1] +
                                                head * a.k_out.stride[2] + c * step_out);
  if (offset < 0) {
    for (int i = 0; i < V; ++i) out.x[i] = from_float<Out>(0);
    return;
  }
  const auto in = *reinterpret_cast<const Chunk<Cache, V>*>(a.k.as<Cache>() + offset +
                                                            head * a.k.stride[2] + c * step_k);
  if constexpr (std::is_same_v<Cache, Out>) {
    if (!a.scale) {
      out = in;
      return;
    }
  }
  const float scale = a.scale ? a.scale.as<float>()[head * a.scale.stride[0]] : 1;
  Chunk<Out, V> row;
  for (int i = 0; i < V; ++i) row.x[i] = from_float<Out>(canonical(to_float(in.x[i]) * scale));
  out = row;
}

}  // namespace fovea
