// SPDX-License-Identifier: Apache-2.0
// A call made of words: extents, tensors that are given, dtypes and numbers.  Its tensors have no
// memory, since a workspace query reads none.
#pragma once
#include <map>
#include <set>
#include <stdexcept>

#include "operations.h"

namespace info {

// Words that make no call; the sentence says which and what is wanted.
struct Misuse : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class Call {
 public:
  // words: "s=512", "mask=1", "k=e4m3", "causal=1".
  Call(const Operation& op, const Words& words);

  const void* params() const { return bytes_.data(); }
  // "q" and "(2, 512, 32, 128) bf16", "causal" and "1": what is given, in the order of the fields.
  std::vector<std::pair<std::string, std::string>> rows() const;

 private:
  template <class T>
  T& at(const Field& f) {
    return *reinterpret_cast<T*>(reinterpret_cast<char*>(bytes_.data()) + f.offset);
  }
  template <class T>
  const T& at(const Field& f) const {
    return const_cast<Call*>(this)->at<T>(f);
  }
  [[noreturn]] void fail(const std::string& sentence) const {
    throw Misuse(op_.name + ": " + sentence);
  }

  void read(const std::string& word);
  void read_tensor(const Field& f, const std::string& value);
  void read_number(const Field& f, const std::string& value);
  int64_t whole(const std::string& name, const std::string& value, int64_t least) const;

  bool given(const std::string& field) const { return given_.count(field) != 0; }
  bool has_extent(const std::string& name) const;
  bool packed() const;
  void give_gradients();
  void want_output() const;
  int32_t dtype_of(const Field& f);
  int64_t extent(const Field& f, std::string dim);
  int64_t named(const std::string& dim);
  void make();
  std::string number_text(const Field& f) const;
  Words bringing(const std::string& extent) const;
  void want_all_used() const;

  const Operation& op_;
  std::vector<uint64_t> bytes_;
  std::map<std::string, int64_t> extents_;  // by name
  std::map<std::string, int32_t> dtypes_;   // by tensor
  std::set<std::string> given_, left_out_, numbers_, used_, missing_;
  int32_t dtype_ = 0;        // of every tensor that takes it
  bool dtype_used_ = false;  // by one
};

}  // namespace info
