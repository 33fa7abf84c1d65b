// SPDX-License-Identifier: Apache-2.0
#include "call.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace info {
namespace {

// The dtypes that a field takes by itself, or those of the field it follows.
bool takes(const Field& f, const std::string& dtype) {
  return std::count(f.dtypes.begin(), f.dtypes.end(), dtype) != 0;
}

std::string all_dtypes() {
  Words names;
  for (const Value& value : values_of("fovea_dtype")) names.push_back(value.name);
  return joined(names);
}

// What an operation's words may name.
std::string vocabulary(const Operation& op) {
  Words tensors, numbers;
  for (const Field& f : op.fields) {
    if (f.is_tensor()) tensors.push_back(f.name);
    if (f.is_number()) numbers.push_back(f.name);
  }
  std::string text =
      "it has the extents " + joined(op.extents()) + "; the tensors " + joined(tensors);
  if (!numbers.empty()) text += "; the numbers " + joined(numbers);
  return text + "; and dtype";
}

}  // namespace

Call::Call(const Operation& op, const Words& words) : op_(op), bytes_(op.bytes / 8) {
  bytes_[0] = op.bytes;
  for (const Field& f : op.fields)
    if (f.is_tensor() && f.required) given_.insert(f.name);
  for (const std::string& word : words) read(word);
  give_gradients();
  want_output();
  make();
  want_all_used();
}

void Call::read(const std::string& word) {
  const size_t at = word.find('=');
  if (at == std::string::npos || at == 0 || at + 1 == word.size())
    fail("'" + word + "' is no name=value");
  const std::string name = word.substr(0, at), value = word.substr(at + 1);
  if (!numbers_.insert(name).second) fail(name + " is given twice");
  if (name == "dtype") {
    dtype_ = dtype_number(value);
    if (!dtype_) fail("dtype is '" + value + "', wanted one of " + all_dtypes());
    return;
  }
  const bool is_extent = has_extent(name);
  const Field* f = op_.find(name);
  if (f && (f->kind == Kind::size || f->kind == Kind::reserved)) f = nullptr;
  if (!is_extent && !f) fail("there is no '" + name + "'; " + vocabulary(op_));
  if (is_extent) extents_[name] = whole(name, value, 0);
  if (f && f->is_tensor()) read_tensor(*f, value);
  if (f && f->is_number()) read_number(*f, value);
}

bool Call::has_extent(const std::string& name) const {
  const Words extents = op_.extents();
  return std::count(extents.begin(), extents.end(), name) != 0;
}

int64_t Call::whole(const std::string& name, const std::string& value, int64_t least) const {
  char* end = nullptr;
  errno = 0;
  const long long number = std::strtoll(value.c_str(), &end, 10);
  if (errno || *end || number < least)
    fail(name + " is '" + value + "', wanted a whole number" +
         (least == 0 ? " of at least 0" : ""));
  return number;
}

void Call::read_tensor(const Field& f, const std::string& value) {
  if (value == "0") {
    if (f.required) fail(f.name + " cannot be left out");
    left_out_.insert(f.name);
    return;
  }
  given_.insert(f.name);
  if (value == "1") return;
  dtypes_[f.name] = dtype_number(value);
  if (!dtypes_[f.name])
    fail(f.name + " is '" + value + "', wanted 1 (given), 0 (not), or a dtype: " + all_dtypes());
}

void Call::read_number(const Field& f, const std::string& value) {
  if (f.kind == Kind::f32) {
    char* end = nullptr;
    at<float>(f) = std::strtof(value.c_str(), &end);
    if (*end) fail(f.name + " is '" + value + "', wanted a number");
    return;
  }
  const std::vector<Value> values = values_of(f.words);
  Words names;
  for (const Value& v : values) {
    if (v.name == value) {
      at<int32_t>(f) = static_cast<int32_t>(v.number);
      return;
    }
    names.push_back(v.name);
  }
  const bool numeric = value.find_first_not_of("-0123456789") == std::string::npos;
  if (!values.empty() && !numeric)
    fail(f.name + " is '" + value + "', wanted one of " + joined(names));
  const int64_t number = whole(f.name, value, INT64_MIN);
  if (f.kind == Kind::i64) {
    at<int64_t>(f) = number;
  } else {
    if (number < INT32_MIN || number > INT32_MAX)
      fail(f.name + " is '" + value + "', wanted one that fits 32 bits");
    at<int32_t>(f) = static_cast<int32_t>(number);
  }
}

// d<x> is the gradient of x: with x given it is wanted, unless it is said not to be.
void Call::give_gradients() {
  for (const Field& f : op_.fields)
    if (f.is_tensor() && f.output && f.name[0] == 'd' && given(f.name.substr(1)) &&
        !left_out_.count(f.name))
      given_.insert(f.name);
}

void Call::want_output() const {
  Words outputs;
  for (const Field& f : op_.fields) {
    if (!f.is_tensor() || !f.output) continue;
    if (given(f.name)) return;
    outputs.push_back(f.name);
  }
  fail("no output is given, wanted one or more of " + joined(outputs) + ", as in " + outputs[0] +
       "=1");
}

bool Call::packed() const {
  for (const char* field : {"query_start", "start", "key_start"})
    if (op_.find(field)) return given(field);
  return false;
}

int32_t Call::dtype_of(const Field& f) {
  if (const auto own = dtypes_.find(f.name); own != dtypes_.end()) return own->second;
  if (!f.dtype_as.empty()) return at<fovea_tensor>(*op_.find(f.dtype_as)).dtype;
  if (dtype_ && takes(f, dtype_name(dtype_))) {
    dtype_used_ = true;
    return dtype_;
  }
  return dtype_number(f.dtypes.front());
}

// An extent that the call names itself.
int64_t Call::named(const std::string& dim) {
  used_.insert(dim);
  if (const auto known = extents_.find(dim); known != extents_.end()) return known->second;
  if (dim == "e" && has_extent("d")) return named("d");
  if (dim == "b" && packed()) return 1;
  missing_.insert(dim);
  return 1;
}

// The rules of core.h for what depends on what else is given.
int64_t Call::extent(const Field& f, std::string dim) {
  if (dim.find_first_not_of("0123456789") == std::string::npos) return std::stoll(dim);
  const bool starts = given("query_start") || given("start") || given("key_start");
  if (const size_t plus = dim.find('+'); plus != std::string::npos)
    return extent(f, dim.substr(0, plus)) + 1;
  if (dim == "rows" && !given("cache_row")) dim = f.name == "page_table" ? "r" : "key_b";
  if (dim == "key_b") {
    const bool own = given("key_start") && (op_.find("query_start") || op_.find("start"));
    if (own) return 1;
    dim = "r";
  }
  if (dim == "r") return named(starts && (packed() || extents_.count("r")) ? "r" : "b");
  if (dim == "bytes") {
    const int64_t keys = extent(f, "keys");
    return keys / 8 + (keys % 8 != 0);
  }
  if (dim != "keys") return named(dim);
  const bool paged = given("page_table");
  const Field* most = op_.find("key_max");
  if ((paged || given("key_start")) && most && at<int64_t>(*most) > 0) return at<int64_t>(*most);
  if (!paged) return named("t");
  int64_t keys = 0;
  if (__builtin_mul_overflow(named("pages"), named("page"), &keys))
    fail("pages * page is more than int64_t counts");
  return keys;
}

void Call::make() {
  uintptr_t number = 0;
  for (const Field& f : op_.fields) {
    if (!f.is_tensor() || !given(f.name)) continue;
    const Words& dims = given("page_table") && !f.paged.empty() ? f.paged : f.dims;
    int64_t shape[FOVEA_MAX_DIMS] = {};
    for (size_t i = 0; i < dims.size(); ++i) shape[i] = extent(f, dims[i]);
    // Addresses are compared and checked for alignment: these differ, and nothing lies there.
    void* address = reinterpret_cast<void*>(++number << 40);
    at<fovea_tensor>(f) = fovea_contiguous(address, static_cast<fovea_dtype>(dtype_of(f)),
                                           static_cast<int32_t>(dims.size()), shape);
  }
  if (missing_.empty()) return;
  std::string text;
  for (const std::string& name : op_.extents())
    if (missing_.count(name))
      text += (text.empty() ? "" : "; ") + name + " (" + meaning(name) + ")";
  fail((missing_.size() == 1 ? "an extent is missing: " : "extents are missing: ") + text);
}

// The tensors that are not given, with any of which the call would have the extent.
Words Call::bringing(const std::string& extent) const {
  Words names;
  const Field* table = op_.find("page_table");
  for (const Field& f : op_.fields)
    if (table && given(f.name) && !given(table->name) &&
        std::count(f.paged.begin(), f.paged.end(), extent))
      return {table->name};
  for (const Field& f : op_.fields) {
    const bool has = std::count(f.dims.begin(), f.dims.end(), extent + "+1") != 0 ||
                     (extent != "r" && std::count(f.dims.begin(), f.dims.end(), extent) != 0);
    if (f.is_tensor() && !given(f.name) && (extent == "rows" ? f.name == "cache_row" : has))
      names.push_back(f.name);
  }
  return names;
}

// Nothing is passed over in silence.
void Call::want_all_used() const {
  for (const auto& [name, value] : extents_)
    if (!used_.count(name) && !op_.find(name)) {
      const Words holders = bringing(name);
      fail(name + " is given, but no tensor of this call has it" +
           (holders.empty()
                ? ""
                : ", wanted one of " + joined(holders) + ", as in " + holders[0] + "=1"));
    }
  if (dtype_ && !dtype_used_)
    fail("dtype is " + dtype_name(dtype_) + ", which no tensor of this call takes");
}

std::string Call::number_text(const Field& f) const {
  if (f.kind == Kind::i64) return std::to_string(at<int64_t>(f));
  if (f.kind == Kind::i32) {
    for (const Value& value : values_of(f.words))
      if (value.number == at<int32_t>(f)) return value.name;
    return std::to_string(at<int32_t>(f));
  }
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(at<float>(f)));
  return text;
}

std::vector<std::pair<std::string, std::string>> Call::rows() const {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Field& f : op_.fields) {
    if (f.is_tensor() && given(f.name)) {
      const auto& x = at<fovea_tensor>(f);
      Words shape;
      for (int i = 0; i < x.ndim; ++i) shape.push_back(std::to_string(x.shape[i]));
      std::string text = "(";
      rows.push_back({f.name, text.append(joined(shape)) + ") " + dtype_name(x.dtype)});
    } else if (f.is_number() && numbers_.count(f.name)) {
      rows.push_back({f.name, number_text(f)});
    }
  }
  return rows;
}

}  // namespace info
