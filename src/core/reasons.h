// SPDX-License-Identifier: Apache-2.0
// Why a kernel cannot serve a call, in the form of every refusal: field, got, wanted.  Users read
// these texts in fovea_context_last_reasons.
#pragma once
#include "core/dtype.h"
#include "core/text.h"

namespace fovea {

// "page is 5, wanted at least 16"
inline Text reason(const char* field, int64_t got, const Text& wanted) {
  return Text(field) + " is " + Text::number(got) + ", wanted " + wanted;
}

// "bias is given, wanted none"
inline Text reason_given(const char* field) {
  return Text(field) + " is given, wanted none";
}

// "dtype is f32, wanted f16 or bf16"
inline Text reason_dtype(int32_t dtype) {
  return Text("dtype is ") + dtype_name(dtype) + ", wanted f16 or bf16";
}

// "o.dtype is f32, wanted bf16 as in q"
inline Text reason_dtype(const char* field, int32_t got, int32_t wanted, const char* as) {
  return Text(field) + " is " + dtype_name(got) + ", wanted " + dtype_name(wanted) + " as in " + as;
}

// Of a width that is no multiple of `of`, or above `most` where that is not 0; "" where it fits.
inline Text refuse_width(const char* field, int64_t width, int64_t of, int64_t most = 0) {
  if (width % of == 0 && (!most || width <= most)) return "";
  Text wanted = "a multiple of " + Text::number(of);
  if (most) wanted += " up to " + Text::number(most);
  return reason(field, width, wanted);
}
// The same of d and e.
inline Text refuse_widths(int64_t d, int64_t e, int64_t of, int64_t most = 0) {
  const Text why = refuse_width("d", d, of, most);
  return why.empty() ? refuse_width("e", e, of, most) : why;
}

// "no instance in this build for bf16, d = 320, e = 320"
inline Text no_instance(int32_t dtype, const char* first, int64_t d, const char* second,
                        int64_t e) {
  return Text("no instance in this build for ") + dtype_name(dtype) + ", " + first + " = " +
         Text::number(d) + ", " + second + " = " + Text::number(e);
}

// What a block would use, and what it may.
inline Text reason_shared(int64_t needs, int64_t has) {
  return "a block needs " + Text::number(needs) + " bytes of shared memory, this device has " +
         Text::number(has);
}

// "compute capability is 8.0, wanted 9.0"
inline Text reason_capability(int arch, const char* wanted) {
  return "compute capability is " + Text::number(arch / 10) + "." + Text::number(arch % 10) +
         ", wanted " + wanted;
}

// Of a tensor that 16-byte copies cannot take.
inline constexpr char kPieceRows[] =
    "rows that are not contiguous and 16-byte aligned: wanted a last stride of 1, and the address "
    "and other strides multiples of 16 bytes";
inline Text reason_rows(const char* tensor) {
  return Text(tensor) + " has " + kPieceRows;
}

}  // namespace fovea
