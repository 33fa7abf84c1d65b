// SPDX-License-Identifier: Apache-2.0
// Golden vectors: tests/golden/<op>_<case>.safetensors, and recipe_<name>_<case>.safetensors for
// the methods by name, written by `conformance --export <dir>`.
//
// A file is a safetensors file: 8 bytes little-endian header length n, n bytes of JSON, raw
// little-endian tensor bytes.  The JSON maps a tensor's name to {"dtype", "shape", "data_offsets":
// [begin, end]} (offsets from the end of the header), row-major and contiguous.  dtype is one of
//   F32 F16 BF16 I32 I64 U8 I8 F8_E4M3 F8_E5M2  =  FOVEA_F32 F16 BF16 I32 I64 U8 I8 E4M3 E5M2.
// One key is not a tensor: "__metadata__", an object whose values are all strings:
//   op         the operation, "attention_forward": call fovea_<op>
//   params     a JSON object of the scalar fields that are not 0, {"causal": 1, "softcap": 2.0};
//              every other scalar field is 0
//   recipe     of some: the method by whose name the call is made, "streamingllm"; params then has
//              the scalar fields that differ from the method's numbers
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

#include <cstdio>
#include <fstream>
#include <sstream>

#include "contract_call.h"
#include "harness/cases.h"

namespace harness {

inline const char* safetensors_name(int dtype) {
  switch (dtype) {
    case FOVEA_F32:
      return "F32";
    case FOVEA_F16:
      return "F16";
    case FOVEA_BF16:
      return "BF16";
    case FOVEA_I32:
      return "I32";
    case FOVEA_I64:
      return "I64";
    case FOVEA_U8:
      return "U8";
    case FOVEA_I8:
      return "I8";
    case FOVEA_E4M3:
      return "F8_E4M3";
    default:
      return "F8_E5M2";
  }
}

// What a binding may be off by, relative to 1 + |want|: one rounding of the outputs' own coarsest
// dtype and of the probabilities, and f32 noise.
inline double golden_tolerance(const Call& call) {
  double unit = 0;
  for (const Field& f : call.fields) {
    if (f.expected() && f.bitwise) continue;
    if (oracle::is_float(f.tensor.dtype)) unit = std::max(unit, oracle::unit_of(f.tensor.dtype));
    if (f.expected()) unit = std::max(unit, f.exact.unit);
  }
  bool exact = true;
  for (const Field& f : call.fields) exact = exact && (!f.expected() || f.bitwise);
  return exact ? 0 : 4 * unit + 1e-5;
}

inline std::string json_number(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", x);
  return text;
}

class Golden {
 public:
  explicit Golden(const Call& call, const std::string& recipe = "") {
    std::string outputs;
    for (size_t i = 0; i < call.fields.size(); ++i) {
      const Field& f = call.fields[i];
      if (f.expected()) outputs += (outputs.empty() ? "" : ",") + f.name;
      if (f.role != Role::out) tensor(f, f.name, oracle::load(f.tensor).value);
      if (!f.expected()) continue;
      std::vector<double> after =
          f.role == Role::out ? f.exact.value : oracle::load(f.tensor).value;
      for (size_t n = 0; n < after.size(); ++n)
        if (f.exact.written[n]) after[n] = f.exact.value[n];
      tensor(f, f.role == Role::out ? f.name : f.name + ".after", after);
    }
    const std::vector<uint8_t> base = unsaid(call, recipe);
    std::string params;
    for (const contract::Field& f : contract::find_op(call.op.name)->fields)
      if (const double x = number(f, call.params); x != number(f, base))
        params += (params.empty() ? "" : ", ") + ("\\\"" + f.name + "\\\": ") + json_number(x);
    const std::string method = recipe.empty() ? "" : "\"recipe\": \"" + recipe + "\", ";
    header_ = "{\"__metadata__\": {\"op\": \"" + std::string(call.op.name) + "\", " + method +
              "\"params\": \"{" + params + "}\", \"outputs\": \"" + outputs +
              "\", \"tolerance\": \"" + json_number(golden_tolerance(call)) + "\"}" + tensors_ +
              "}";
    while (header_.size() % 8) header_ += ' ';
  }

  void write(const std::string& path) const {
    std::ofstream file(path, std::ios::binary);
    uint8_t size[8];
    for (int i = 0; i < 8; ++i) size[i] = static_cast<uint8_t>(header_.size() >> 8 * i);
    file.write(reinterpret_cast<const char*>(size), 8);
    file.write(header_.data(), static_cast<std::streamsize>(header_.size()));
    file.write(reinterpret_cast<const char*>(bytes_.data()),
               static_cast<std::streamsize>(bytes_.size()));
    file.close();
    if (!file) throw std::runtime_error("cannot write " + path);
  }

 private:
  // A scalar of a call; 0 of other fields.
  static double number(const contract::Field& f, const std::vector<uint8_t>& params) {
    const uint8_t* at = params.data() + f.offset;
    if (f.kind == contract::f32) return oracle::bits_at<float>(at);
    if (f.kind == contract::i64) return static_cast<double>(oracle::bits_at<int64_t>(at));
    return f.kind == contract::i32 ? oracle::bits_at<int32_t>(at) : 0;
  }

  // The scalars where params does not say: 0, or the numbers of a method.
  static std::vector<uint8_t> unsaid(const Call& call, const std::string& recipe) {
    std::vector<uint8_t> params = call.params;
    fovea_x_recipe method = {};
    method.struct_size = sizeof method;
    std::string written = " ";
    if (!recipe.empty()) {
      must(fovea_x_recipe_get(recipe.c_str(), &method), call.op.name);
      must(fovea_x_recipe_apply(recipe.c_str(), call.op.name, params.data()), call.op.name);
      written += method.numbers;
    }
    for (const contract::Field& f : contract::find_op(call.op.name)->fields)
      if (number(f, params) != 0 && written.find(" " + f.name + "=") == std::string::npos)
        std::memset(params.data() + f.offset, 0, f.kind == contract::i64 ? 8 : 4);
    return params;
  }

  void tensor(const Field& f, const std::string& name, const std::vector<double>& values) {
    const size_t begin = bytes_.size(),
                 size = static_cast<size_t>(oracle::bytes_of(f.tensor.dtype));
    for (double x : values) {
      uint8_t element[8] = {};
      oracle::encode(f.tensor.dtype, x, element);
      bytes_.insert(bytes_.end(), element, element + size);
    }
    std::ostringstream text;
    text << ", \"" << name << "\": {\"dtype\": \"" << safetensors_name(f.tensor.dtype)
         << "\", \"shape\": [";
    for (int i = 0; i < f.tensor.ndim; ++i) text << (i ? ", " : "") << f.tensor.shape[i];
    text << "], \"data_offsets\": [" << begin << ", " << bytes_.size() << "]}";
    tensors_ += text.str();
  }

  std::string header_, tensors_;
  std::vector<uint8_t> bytes_;
};

// Writes every tiny case; returns how many.
inline int export_golden(const std::vector<Case>& cases, const std::string& folder) {
  std::map<std::string, int> count;
  int written = 0;
  for (const Case& c : cases) {
    if (!c.tiny) continue;
    const Call call = c.build(seed_of(c.name));
    const std::string file = c.recipe.empty() ? c.op : "recipe_" + c.recipe;
    const std::string number = std::to_string(++count[file]);
    Golden(call, c.recipe).write(folder + "/" + file + "_" + number + ".safetensors");
    ++written;
  }
  return written;
}

}  // namespace harness
