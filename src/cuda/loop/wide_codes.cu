// SPDX-License-Identifier: Apache-2.0
#include "cuda/loop/wide_codes.h"

#include <algorithm>
#include <climits>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/loop/hopper.h"

namespace fovea::cuda {
namespace {

constexpr int kTail = 64, kValues = 512;
constexpr int kPiece = 16;  // codes of a load

bool fits_int(const View<4>& x) {
  return x.stride[0] <= INT_MAX && x.stride[1] <= INT_MAX && x.stride[3] <= INT_MAX / kValues;
}

// v is the first columns of k, and counts as k does.
bool codes_in_k(const Attend& a) {
  if (a.k_dtype != a.v_dtype || !v_in_k(a) || a.k_scale.data != a.v_scale.data) return false;
  for (int i = 0; i < 4; ++i)
    if (a.k_scale.stride[i] != a.v_scale.stride[i]) return false;
  return a.groups <= 1;
}

}  // namespace

Attend uncoded(Attend a) {
  a.v_dtype = a.dtype;
  if (!a.q_value) a.k_dtype = a.dtype;
  a.q_value = {};
  return a;
}

int code_shift(const Attend& a) {
  const int64_t columns = a.e / std::max<int64_t>(a.groups, 1);
  if (a.groups <= 1) return 31;
  return columns == 128 ? 7 : columns == 256 ? 8 : -1;
}

Text joined_refuses(const Attend& a) {
  if (Text why = refuse_width("d with q_value", a.d, 8, kTail); !why.empty()) return why;
  const int64_t rows[3] = {a.b, a.s, a.h};
  return in_pieces(a.q_value, rows, 8) ? Text() : reason_rows("q_value");
}

Text codes_refuse(const Attend& a) {
  if (a.v_dtype != FOVEA_E4M3 && a.v_dtype != FOVEA_I8)
    return Text("v.dtype is ") + dtype_name(a.v_dtype) + ", wanted e4m3, i8 or that of q";
  if (!a.q_value && !codes_in_k(a))
    return "codes with neither q_value nor v as the first columns of k, one scale a row for both";
  if (a.q_value && a.e != kValues) return reason("e", a.e, Text::number(kValues) + " of codes");
  if (!a.q_value && (a.d < kValues || a.d % kPiece))
    return reason("d", a.d, "a multiple of 16 from 512 on, of codes");
  if (code_shift(a) < 0) return reason("columns of a scale of v", a.e / a.groups, "128, 256 or e");
  if (!fits_int(a.k) || !fits_int(a.v) || !fits_int(a.v_scale))
    return "strides of k, v or v_scale past 2^31, or of the columns of v_scale past 2^21";
  return "";
}

}  // namespace fovea::cuda
