// SPDX-License-Identifier: Apache-2.0
// Golden vectors: tests/golden/<op>_<case>.safetensors, written by `conformance --export <dir>`.
//
// A file is a safetensors file: 8 bytes little-endian header length n, n bytes of JSON, raw
// little-endian tensor bytes.  The JSON maps a tensor's name to {"dtype", "shape", "data_offsets":
// [begin, end]} (offsets from the end of the header), row-major and contiguous.  dtype is one of
//   F32 F16 BF16 I32 U8 I8 F8_E4M3 F8_E5M2  =  FOVEA_F32 F16 BF16 I32 U8 I8 E4M3 E5M2.
// One key is not a tensor: "__metadata__", an object whose values are all strings:
//   op         the operation, "attention_forward": call fovea_<op>
//   params     a JSON object of the scalar fields that are not 0, {"causal": 1, "softcap": 2.0};
//              every other scalar field is 0
//   outputs    comma list of the fields the op writes, "o,lse"
//   tolerance  decimal number, see below; "0" = bit for bit
// A tensor is named as its field of fovea_<op>_params.  Fields that the file does not hold are not
// given (data NULL).
//   [in]     the tensor is the input.
//   [out]    listed in outputs; the tensor is the expected result: allocate one of its dtype and
//            shape, pass it, compare.  Every element of it is written by the op.
//   [inout]  listed in outputs; `<name>` holds the bytes before, `<name>.after` the expected bytes
//            after: pass a copy of `<name>`, compare it with `<name>.after`.
// Comparison, element by element: got == want (this covers infinities), or both NaN, or
//   |got - want| <= tolerance * (1 + |want|).   Integer tensors are compared exactly.
// Scalar fields in params are JSON integers for integer fields and JSON numbers for float fields.
#pragma once
