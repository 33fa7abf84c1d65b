// SPDX-License-Identifier: Apache-2.0
#include "cuda/loop/mma_refuses.h"

#include <algorithm>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/loop/row_tile.cuh"

namespace fovea::cuda {
namespace {

Text refuse_codes(const Attend& a) {
  if (!a.codes()) return "";
  if (a.k_dtype == a.dtype) return reason_dtype("k.dtype", a.k_dtype, a.v_dtype, "v");
  if (a.v_dtype == a.dtype || (a.k_dtype == FOVEA_I8) != (a.v_dtype == FOVEA_I8))
    return reason_dtype("v.dtype", a.v_dtype, a.k_dtype, "k");
  return a.groups > 1 ? reason("groups of k_scale and v_scale", a.groups, "1") : "";
}

}  // namespace

Text mma_refuses(const Attend& a) {
  if (a.dtype != FOVEA_F16 && a.dtype != FOVEA_BF16) return reason_dtype(a.dtype);
  if (a.q_value) return reason_given("q_value");
  if (a.rope.cos) return reason_given("cos");
  if (Text why = refuse_codes(a); !why.empty()) return why;
  const int64_t piece = a.codes() ? 16 : 8;  // elements of 16 bytes
  if (Text why = refuse_widths(a.d, a.e, piece, 256); !why.empty()) return why;
  const int64_t many = 2;  // extents the call does not carry
  if (!in_pieces(a.q, {a.b, a.s, a.h}, 8)) return reason_rows("q");
  if (!in_pieces(a.k, {many, a.t, a.g}, piece)) return reason_rows("k");
  if (!in_pieces(a.v, {many, a.t, a.g}, piece)) return reason_rows("v");
  if (!in_pieces(a.o, {a.b, a.s, a.h}, a.o_dtype == FOVEA_F32 ? 4 : 8)) return reason_rows("o");
  const Sequences& q = a.sequences;
  if (q.key_max > kIndexMax ||
      q.query_max * std::max<int64_t>(a.h / std::max<int64_t>(a.g, 1), 1) > kIndexMax)
    return "more than 2^30 keys or rows in a sequence";
  return "";
}

}  // namespace fovea::cuda
