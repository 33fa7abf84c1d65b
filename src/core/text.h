// SPDX-License-Identifier: Apache-2.0
// A short text in place: the name of a kernel, or why one cannot serve a call.  What does not fit
// is cut.  Not std::string: <string> would cost every CUDA file half a second to compile.
#pragma once
#include <cstdint>
#include <cstring>

namespace fovea {

template <size_t kBytes>
class TextOf {
 public:
  TextOf() { data_[0] = 0; }
  TextOf(const char* text) : TextOf() { add(text, strlen(text)); }
  TextOf(const TextOf& other) noexcept : size_(other.size_) {
    memcpy(data_, other.data_, size_ + 1);
  }
  TextOf& operator=(const TextOf& other) noexcept {
    if (this == &other) return *this;
    size_ = other.size_;
    memcpy(data_, other.data_, size_ + 1);
    return *this;
  }
  static TextOf number(int64_t x) {
    char digits[24];
    size_t at = sizeof digits;
    uint64_t rest = x < 0 ? 0 - uint64_t(x) : uint64_t(x);
    do digits[--at] = char('0' + rest % 10);
    while (rest /= 10);
    if (x < 0) digits[--at] = '-';
    TextOf text;
    text.add(digits + at, sizeof digits - at);
    return text;
  }

  bool empty() const { return size_ == 0; }
  void clear() { data_[size_ = 0] = 0; }
  const char* c_str() const { return data_; }
  TextOf& operator+=(const char* text) {
    add(text, strlen(text));
    return *this;
  }
  TextOf& operator+=(const TextOf& other) {
    add(other.data_, other.size_);
    return *this;
  }
  friend TextOf operator+(TextOf a, const TextOf& b) { return a += b; }
  friend TextOf operator+(TextOf a, const char* b) { return a += b; }

 private:
  void add(const char* from, size_t bytes) {
    bytes = bytes < kBytes - 1 - size_ ? bytes : kBytes - 1 - size_;
    memmove(data_ + size_, from, bytes);
    size_ += bytes;
    data_[size_] = 0;
  }

  size_t size_ = 0;
  char data_[kBytes];
};

using Text = TextOf<248>;

}  // namespace fovea
