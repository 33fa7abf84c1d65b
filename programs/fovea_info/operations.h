// SPDX-License-Identifier: Apache-2.0
// Every operation with its fields, as the headers have them (operations.inc, generated).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fovea/core.h"

namespace info {

using Words = std::vector<std::string>;

// At spaces.
Words split(const std::string& text);
// "a, b, c"
std::string joined(const Words& words);

enum class Kind { size, tensor, i64, f32, i32, reserved };

struct Field {
  std::string name;
  Kind kind;
  size_t offset;
  // Of a tensor: extents, those of a paged call, dtypes, and the field whose dtype it has.
  Words dims, paged, dtypes;
  std::string dtype_as;
  bool required, output;
  std::string words;  // of the comment; of an enum its name

  bool is_tensor() const { return kind == Kind::tensor; }
  bool is_number() const { return kind == Kind::i64 || kind == Kind::f32 || kind == Kind::i32; }
};

struct Operation {
  std::string name;
  size_t bytes;  // of its params
  fovea_status (*query)(fovea_context*, const void*, size_t*);
  std::vector<Field> fields;

  // nullptr: there is none of that name.
  const Field* find(const std::string& field) const;
  // The extents that a call may name, in the order of the fields.
  Words extents() const;
};

// In the order of the library.
const std::vector<Operation>& operations();
// nullptr: there is none of that name.
const Operation* find_operation(const std::string& name);

// What an extent means; "" for a name that is none.
std::string meaning(const std::string& extent);

struct Value {
  std::string name;
  int64_t number;
};
// The values of an enum, "fovea_dtype"; none for a name that is no enum.
std::vector<Value> values_of(const std::string& enumeration);
// "bf16"; "?" for a number that is no dtype.
std::string dtype_name(int32_t dtype);
// 0: there is none of that name.
int32_t dtype_number(const std::string& name);

}  // namespace info
