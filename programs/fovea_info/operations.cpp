// SPDX-License-Identifier: Apache-2.0
#include "operations.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "headers.h"

namespace info {
namespace {

// Rows as constants that need no code: text is split at run time.
struct OperationRow {
  const char* name;
  size_t bytes;
  fovea_status (*query)(fovea_context*, const void*, size_t*);
};
struct FieldRow {
  const char *operation, *name;
  Kind kind;
  size_t offset;
  const char *dims, *paged, *dtypes, *dtype_as, *alias;
  bool required, output, sums, inout;
  const char* words;
};
struct DimRow {
  const char *name, *meaning;
};
struct ValueRow {
  const char *enumeration, *name;
  int64_t number;
};

// clang-format off
#define DIM(name, meaning)
#define VALUE(enumeration, name, number)
#define FIELD(op, name, ...)
#define OP(op)                                                                           \
  {#op, sizeof(fovea_##op##_params), [](fovea_context* ctx, const void* p, size_t* n) {   \
     return fovea_##op##_workspace(ctx, static_cast<const fovea_##op##_params*>(p), n); }},
constexpr OperationRow kOperations[] = {
#include "operations.inc"
};
#undef OP
#undef FIELD
#define OP(op)
#define FIELD(op, name, kind, ...) {#op, #name, Kind::kind, __VA_ARGS__},
constexpr FieldRow kFields[] = {
#include "operations.inc"
};
#undef FIELD
#undef DIM
#define FIELD(op, name, ...)
#define DIM(name, meaning) {name, meaning},
constexpr DimRow kDims[] = {
#include "operations.inc"
};
#undef DIM
#undef VALUE
#define DIM(name, meaning)
#define VALUE(enumeration, name, number) {#enumeration, name, number},
constexpr ValueRow kValues[] = {
#include "operations.inc"
};
// clang-format on

std::vector<Operation> read() {
  std::vector<Operation> list;
  for (const OperationRow& row : kOperations) {
    list.push_back({row.name, row.bytes, row.query, {}});
    for (const FieldRow& f : kFields)
      if (list.back().name == f.operation)
        list.back().fields.push_back({f.name, f.kind, f.offset, split(f.dims), split(f.paged),
                                      split(f.dtypes), f.dtype_as, f.required, f.output, f.words});
  }
  return list;
}

}  // namespace

Words split(const std::string& text) {
  std::istringstream in(text);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::string joined(const Words& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

const Field* Operation::find(const std::string& field) const {
  for (const Field& f : fields)
    if (f.name == field) return &f;
  return nullptr;
}

Words Operation::extents() const {
  // Those that follow from others.
  Words seen = {"key_b", "keys", "bytes"};
  const size_t derived = seen.size();
  for (const Field& f : fields)
    for (const Words* dims : {&f.dims, &f.paged})
      for (const std::string& dim : *dims) {
        const std::string extent = dim.substr(0, dim.find('+'));
        if (!std::isdigit(static_cast<unsigned char>(extent[0])) &&
            std::find(seen.begin(), seen.end(), extent) == seen.end())
          seen.push_back(extent);
      }
  return {seen.begin() + static_cast<std::ptrdiff_t>(derived), seen.end()};
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> list = read();
  return list;
}

const Operation* find_operation(const std::string& name) {
  for (const Operation& op : operations())
    if (op.name == name) return &op;
  return nullptr;
}

std::string meaning(const std::string& extent) {
  for (const DimRow& row : kDims)
    if (extent == row.name) {
      const std::string text = row.meaning;
      return text.substr(0, text.find(", see below"));
    }
  return "";
}

std::vector<Value> values_of(const std::string& enumeration) {
  std::vector<Value> values;
  for (const ValueRow& row : kValues)
    if (enumeration == row.enumeration) values.push_back({row.name, row.number});
  return values;
}

std::string dtype_name(int32_t dtype) {
  for (const Value& value : values_of("fovea_dtype"))
    if (value.number == dtype) return value.name;
  return "?";
}

int32_t dtype_number(const std::string& name) {
  for (const Value& value : values_of("fovea_dtype"))
    if (value.name == name) return static_cast<int32_t>(value.number);
  return 0;
}

}  // namespace info
