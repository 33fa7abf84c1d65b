// SPDX-License-Identifier: Apache-2.0
// The header comments as a table, and a small valid call of any operation built from it: the ground
// that contract.cpp mutates.
#pragma once
#include <algorithm>
#include <cctype>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "fovea/experimental/kl.h"
#include "fovea/experimental/multi_token.h"
#include "fovea/fovea.h"

namespace contract {

using Words = std::vector<std::string>;

inline Words split(const std::string& text) {
  std::istringstream in(text);
  Words words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

enum Kind { size, tensor, i64, f32, i32, reserved };

struct Field {
  std::string name;
  Kind kind;
  size_t offset;
  Words dims, paged, dtypes;
  std::string dtype_as, alias;
  bool required, output, sums;
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

// clang-format off
#define OP_BEGIN(op, first_size)                                                             \
  {#op, sizeof(fovea_##op##_params), first_size,                                             \
   [](fovea_context* c, const void* p) {                                                     \
     return fovea_##op(c, static_cast<const fovea_##op##_params*>(p)); },                    \
   [](fovea_context* c, const void* p, size_t* n) {                                          \
     return fovea_##op##_workspace(c, static_cast<const fovea_##op##_params*>(p), n); }, {
#define FIELD(op, name, kind, offset, dims, paged, dtypes, as, alias, required, output, sums) \
  {#name, kind, offset, split(dims), split(paged), split(dtypes), as, alias, required, output, sums},
#define OP_END(op) }},
// clang-format on
inline const std::vector<Op>& ops() {
  static const std::vector<Op> table = {
#include "contract_table.inc"
  };
  return table;
}

inline const std::map<std::string, int> kDtypes = {
    {"f32", FOVEA_F32},   {"f16", FOVEA_F16},   {"bf16", FOVEA_BF16}, {"e4m3", FOVEA_E4M3},
    {"e5m2", FOVEA_E5M2}, {"e2m1", FOVEA_E2M1}, {"i8", FOVEA_I8},     {"i32", FOVEA_I32},
    {"i64", FOVEA_I64},   {"u8", FOVEA_U8},     {"i4", FOVEA_I4},     {"e8m0", FOVEA_E8M0}};

// A valid call: the optional tensors it gives, dtypes and extents that are not the default, and
// integer scalars.
struct Case {
  const char *op, *name, *given, *settings;
};

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
  explicit Call(const Case& c) : op(find_op(c.op)), params(*op) {
    extents_ = {{"b", 2},
                {"s", 3},
                {"t", 5},
                {"h", 4},
                {"g", 2},
                {"d", 8},
                {"e", 6},
                {"f", 2},
                {"n", 2},
                {"x", 2},
                {"u", 3},
                {"pool", 6},
                {"pool2", 6},
                {"page", 2},
                {"pages", 3},
                {"half", 2},
                {"width", 4},
                {"positions", 16},
                {"padded", 128},
                {"q_blocks", 1},
                {"k_blocks", 1},
                {"v_blocks", 1},
                {"rows_out", 3},
                {"kernel_rows", 2},
                {"kernel_columns", 3},
                {"keep", 2},
                {"block_bytes", 1},
                {"cap", 4}};
    for (const std::string& name : split(c.given)) given_[name] = true;
    std::map<std::string, int> dtypes;
    for (const std::string& setting : split(c.settings)) {
      const size_t at = setting.find_first_of(":=");
      const std::string name = setting.substr(0, at), value = setting.substr(at + 1);
      if (setting[at] == ':') {
        dtypes[name] = kDtypes.at(value);
      } else if (op->find(name)) {
        params.at<int64_t>(op->find(name)->offset) = std::stoll(value);
      } else {
        extents_[name] = std::stoll(value);
      }
    }
    for (const Field& f : op->fields) {
      if (f.kind != tensor || !has(f)) continue;
      const int dtype = dtypes.count(f.name) ? dtypes.at(f.name)
                        : f.dtype_as.empty() ? kDtypes.at(f.dtypes[0])
                                             : params[f.dtype_as].dtype;
      give(f, dtype);
    }
  }

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
  bool tied(const Field& f, int axis) const {
    const std::string name = canonical(f, dims(f)[axis]);
    if (name == "fixed") return true;
    int uses = 0;
    for (const Field* other : tensors())
      for (const std::string& dim : dims(*other)) uses += canonical(*other, dim) == name;
    return uses > 1;
  }

  const Op* op;
  Params params;

 private:
  static const Op* find_op(const std::string& name) {
    for (const Op& op : ops())
      if (name == op.name) return &op;
    return nullptr;
  }

  // The one field that packs the tensors of b.
  bool packed() const {
    return has("query_start") || has("start") || (!op->find("query_start") && has("key_start"));
  }

  // One name for all extents that must be equal; "fixed" for those that a single value fits.
  std::string canonical(const Field& f, std::string dim) const {
    if (dim == "bytes" || dim == "block_bytes") return "fixed";  // a bit for each key or block
    if (isdigit(dim[0])) return "fixed";
    // What lengths decide.
    if (dim == "padded" || dim.find("_blocks") != std::string::npos) return "fixed";
    if ((dim == "n" || dim == "r+1") && op->find("code_t")) return "fixed";
    // Rows of q and of o, with the history that lies between them.
    if ((dim == "s" || dim == "rows_out") && op->find("history")) return "fixed";
    if (dim == "rows" && has("cache_row")) return dim;
    if (dim == "rows") dim = f.name == "page_table" ? "r" : "key_b";
    if (dim == "key_b") dim = has("key_start") && op->find("query_start") ? "fixed" : "r";
    if (dim == "keys") dim = paged() || has("key_start") ? "fixed" : "t";
    if (dim == "b") dim = packed() ? "fixed" : "r";
    if (dim == "pages") dim = !extents_.count("keys") && asks_keys() ? "fixed" : dim;
    return dim == "r+1" ? "r" : dim;
  }

  bool asks_keys() const {
    for (const Field* f : tensors())
      for (const std::string& dim : dims(*f))
        if (dim == "keys") return true;
    return false;
  }

  int64_t extent(const Field& f, const std::string& dim) const {
    if (isdigit(dim[0])) return std::stoll(dim);
    const auto known = extents_.find(dim);
    if (known != extents_.end()) return known->second;
    if (dim == "r") return extents_.at("b");
    if (dim == "r+1") return extent(f, "r") + 1;
    if (dim == "key_b") return has("key_start") && op->find("query_start") ? 1 : extent(f, "r");
    if (dim == "rows") return f.name == "page_table" ? extent(f, "r") : extent(f, "key_b");
    if (dim == "keys")
      return paged() ? extents_.at("pages") * extents_.at("page") : extents_.at("t");
    return (extent(f, "keys") + 7) / 8;  // bytes
  }

  void give(const Field& f, int dtype) {
    int64_t shape[FOVEA_MAX_DIMS] = {};
    double room = 64;
    for (size_t i = 0; i < dims(f).size(); ++i)
      shape[i] = extent(f, dims(f)[i]), room *= static_cast<double>(shape[i]) + 1;
    // Eight bytes an element and a lead, so larger extents fit as well; none has room for wild
    // ones.
    memory_.emplace_back(static_cast<size_t>(room < 0x1p22 ? room : 0x1p17));
    params[f.name] = fovea_contiguous(memory_.back().data(), static_cast<fovea_dtype>(dtype),
                                      static_cast<int32_t>(dims(f).size()), shape);
    auto* words = reinterpret_cast<int32_t*>(memory_.back().data());
    if (f.dims[0] == "r+1")
      for (int i = 0; i <= std::min<int64_t>(shape[0] + 1, 1 << 17); ++i) words[i] = 2 * i;
    if (f.name == "page_table" || f.name == "pair" || f.name == "cache_row")
      for (int i = 0; i < 6; ++i) words[i] = i;
    if (f.name == "row")
      for (int64_t i = 0; i < shape[0] * shape[1] && i < 1 << 17; ++i)
        words[i] = static_cast<int32_t>(i % shape[1]) - 1;
  }

  std::map<std::string, int64_t> extents_;
  std::map<std::string, bool> given_;
  std::vector<std::vector<uint64_t>> memory_;
};

}  // namespace contract
