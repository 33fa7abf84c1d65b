// SPDX-License-Identifier: Apache-2.0
// The header comments as a table, and valid calls of any operation built from it: the ground that
// contract.cpp mutates.  What the table does not tell of a family's calls, calls/<family>.cpp does.
#pragma once
#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "generated/headers.h"

namespace contract {

using Words = std::vector<std::string>;

Words split(const std::string& text);

enum Kind { size, tensor, i64, f32, i32, reserved };

struct Field {
  std::string name;
  Kind kind;
  size_t offset;
  Words dims, paged, dtypes;
  std::string dtype_as, alias;
  bool required, output, sums, inout;
  // Of a scalar, from its comment: the numbers of its enum, "0 1" of `1: words`, "+" of `0: words`
  // and `> 0; words` of a float; "": anything else.
  std::string values;
};

struct Op {
  const char* name;
  size_t bytes, first_bytes;
  fovea_status (*call)(fovea_context*, const void*);
  fovea_status (*query)(fovea_context*, const void*, size_t*);
  std::vector<Field> fields;
  const Field* find(const std::string& field) const {
    for (const Field& f : fields)
      if (f.name == field) return &f;
    return nullptr;
  }
};

// Every operation, in the order of the library.
const std::vector<Op>& ops();
// NULL: there is none of that name.
const Op* find_op(const std::string& name);
// The extents of a small call, by their names in the header comments.
const std::map<std::string, int64_t>& small_extents();

inline const std::map<std::string, int> kDtypes = {
    {"f32", FOVEA_F32},   {"f16", FOVEA_F16},   {"bf16", FOVEA_BF16}, {"e4m3", FOVEA_E4M3},
    {"e5m2", FOVEA_E5M2}, {"e2m1", FOVEA_E2M1}, {"i8", FOVEA_I8},     {"i32", FOVEA_I32},
    {"i64", FOVEA_I64},   {"u8", FOVEA_U8},     {"i4", FOVEA_I4},     {"e8m0", FOVEA_E8M0}};

// A valid call: the optional tensors it gives, dtypes (q:bf16), and extents and integer scalars
// (s=4) that are not the default.
struct Case {
  std::string op, name, given, settings;
};

// What the table says of an op by itself:
//   plain   every optional output that stands on no absent input
//   all     every optional tensor, but for those that place rows and keys
//   packed  plain, with *_start            where the op has them
//   paged   plain, with page_table and cache_row
//   large   plain, with extents that wake a context's threads
std::vector<Case> derived(const Op& op);

// Further calls of a family, which registers itself: calls/<family>.cpp defines one constant of
// this type.  A row replaces the derived one of its op and name; a row without an op that the
// library has is an error.
class Calls {
 public:
  Calls(std::initializer_list<Case> rows);
};

// Small valid calls of every operation: each tensor and each way to place rows and keys at least
// once.
const std::vector<Case>& small_cases();
// Of every operation one call that is long enough to wake a context's threads.
const std::vector<Case>& large_cases();

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.op << "_" << c.name;
}

// Strides that reach the least memory that a tensor of any extents may have: 0, but for the
// shortest axis, since all 0 are taken for forgotten ones.
inline void repeat(fovea_tensor& x) {
  int shortest = 0;
  for (int i = 0; i < x.ndim; ++i) {
    x.stride[i] = 0;
    if (x.shape[i] < x.shape[shortest]) shortest = i;
  }
  if (x.ndim) x.stride[shortest] = 1;
}

// The params of one call, byte by byte, with room for a tail.
class Params {
 public:
  explicit Params(const Op& op) : op_(&op), words_(op.bytes / 8 + 2) { set_size(op.bytes); }
  void set_size(size_t bytes) { words_[0] = bytes; }
  void* data() { return words_.data(); }
  const void* data() const { return words_.data(); }
  template <class T>
  T& at(size_t offset) {
    return *reinterpret_cast<T*>(reinterpret_cast<char*>(words_.data()) + offset);
  }
  fovea_tensor& operator[](const std::string& field) {
    return at<fovea_tensor>(op_->find(field)->offset);
  }
  const Op& op() const { return *op_; }

 private:
  const Op* op_;
  std::vector<uint64_t> words_;
};

// A small valid call with real memory behind every tensor.
class Call {
 public:
  explicit Call(const Case& c);

  bool has(const Field& f) const { return f.required || given_.count(f.name); }
  bool has(const char* name) const { return given_.count(name) != 0; }
  bool paged() const { return has("page_table"); }
  const Words& dims(const Field& f) const { return paged() && !f.paged.empty() ? f.paged : f.dims; }
  std::vector<const Field*> tensors() const {
    std::vector<const Field*> list;
    for (const Field& f : op->fields)
      if (f.kind == tensor && has(f)) list.push_back(&f);
    return list;
  }

  // Whether the extent must agree with another one of this call.
  bool tied(const Field& f, int axis) const;

  const Op* op;
  Params params;

 private:
  // The one field that packs the tensors of b.
  bool packed() const {
    return has("query_start") || has("start") || (!op->find("query_start") && has("key_start"));
  }

  // One name for all extents that must be equal; "fixed" for those that a single value fits.
  std::string canonical(const Field& f, std::string dim) const;

  bool asks_keys() const;

  int64_t extent(const Field& f, const std::string& dim) const;

  int64_t packed_extent(const Field& f) const;

  void give(const Field& f, int dtype);

  std::map<std::string, int64_t> extents_;
  std::map<std::string, bool> given_;
  std::vector<std::vector<uint64_t>> memory_;
};

}  // namespace contract
