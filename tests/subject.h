// SPDX-License-Identifier: Apache-2.0
// A call of the contract table with data in its tensors, run again and again on a backend: what it
// leaves behind can be compared byte by byte.
#pragma once
#include <signal.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "contract_call.h"

namespace subject {

using contract::Case;

// Every case of the contract and the large ones.
inline std::vector<Case> all_cases() {
  std::vector<Case> all = contract::small_cases();
  const std::vector<Case>& large = contract::large_cases();
  all.insert(all.end(), large.begin(), large.end());
  return all;
}

// Numbers of every kind: `hard` ones are infinite or none.
enum class Data { plain, hard };

using Bytes = std::vector<unsigned char>;

class Subject {
 public:
  explicit Subject(const Case& c, Data data = Data::plain) : call(c) {
    for (const contract::Field* f : call.tensors()) {
      const fovea_tensor& x = call.params[f->name];
      int64_t count = 1;
      for (int i = 0; i < x.ndim; ++i) count *= x.shape[i];
      spans_.push_back({f,
                        static_cast<unsigned char*>(x.data),
                        static_cast<size_t>(count * bytes_of(x.dtype)),
                        {}});
      Span& span = spans_.back();
      fill(*f, x.dtype, count, data);
      span.first.assign(span.data, span.data + span.bytes);
    }
  }
  Subject(const Subject&) = delete;

  const char* op() const { return call.op->name; }
  // The call on the host.
  fovea_status run(fovea_context* ctx) const { return call.op->call(ctx, call.params.data()); }
  void reset() {
    for (const Span& span : spans_) std::memcpy(span.data, span.first.data(), span.bytes);
  }
  Bytes bytes() const {
    Bytes all;
    for (const Span& span : spans_) all.insert(all.end(), span.data, span.data + span.bytes);
    return all;
  }
  // The first tensor whose bytes differ, "" for none.
  std::string difference(const Bytes& x, const Bytes& y) const {
    size_t at = 0;
    for (const Span& span : spans_) {
      if (!std::equal(x.begin() + at, x.begin() + at + span.bytes, y.begin() + at))
        return span.field->name;
      at += span.bytes;
    }
    return "";
  }

  struct Span {
    const contract::Field* field;
    unsigned char* data;
    size_t bytes;
    Bytes first;  // what it held before any call
  };
  const std::vector<Span>& spans() const { return spans_; }
  contract::Call call;

 private:
  static int64_t bytes_of(int dtype) {
    if (dtype == FOVEA_F32 || dtype == FOVEA_I32) return 4;
    if (dtype == FOVEA_F16 || dtype == FOVEA_BF16) return 2;
    return dtype == FOVEA_I64 ? 8 : 1;
  }

  template <class T, size_t N>
  void repeat(const T (&values)[N], int64_t count, size_t used) {
    T* to = reinterpret_cast<T*>(spans_.back().data);
    for (int64_t i = 0; i < count; ++i) to[i] = values[static_cast<size_t>(i * 7 + i / 5) % used];
  }

  void fill(const contract::Field& f, int dtype, int64_t count, Data data) {
    const size_t hard = data == Data::hard ? 4 : 0;
    if (f.output)
      return static_cast<void>(std::memset(spans_.back().data, 0x5a, spans_.back().bytes));
    if (dtype == FOVEA_F32) {
      // A denormal, and numbers that are exact in no rounding.
      static const uint32_t values[] = {0x3f000000, 0xbe99999a, 0x3f8ccccd, 0x000116c2,
                                        0xbf333333, 0x3dcccccd, 0xbf800000, 0x7f800000,
                                        0x7fc00000, 0xff7fffff, 0x00000000};
      return repeat(values, count, 7 + hard);
    }
    if (dtype == FOVEA_F16) {
      static const uint16_t values[] = {0x3800, 0xb4cd, 0x3c66, 0x0011, 0xb99a, 0x2e66,
                                        0xbc00, 0x7c00, 0x7e00, 0xfbff, 0x0000};
      return repeat(values, count, 7 + hard);
    }
    if (dtype == FOVEA_BF16) {
      static const uint16_t values[] = {0x3f00, 0xbe9a, 0x3f8d, 0x0002, 0xbf33, 0x3dcd,
                                        0xbf80, 0x7f80, 0x7fc0, 0xff7f, 0x0000};
      return repeat(values, count, 7 + hard);
    }
    auto* words = reinterpret_cast<int32_t*>(spans_.back().data);
    if (f.name.size() > 4 && f.name.rfind("_len") == f.name.size() - 4)
      std::fill_n(words, count, 2);
    else if (f.name == "index")
      for (int64_t i = 0; i < count; ++i) words[i] = static_cast<int32_t>(i * 3 % 5);
    else if (f.name.find("position") != std::string::npos)
      for (int64_t i = 0; i < count; ++i) words[i] = static_cast<int32_t>(i % 5);
    else if (dtype == FOVEA_U8)
      std::memset(words, 0xff, spans_.back().bytes);
    else if (bytes_of(dtype) == 1) {
      static const unsigned char values[] = {0x30, 0xb1, 0x38, 0x01, 0xb5, 0x22,
                                             0x81, 0x7e, 0x7f, 0xfe, 0x00};
      repeat(values, count, 7 + hard);
    }
  }

  std::vector<Span> spans_;
};

// The signals a thread blocks, one bit each.
inline uint64_t blocked_signals() {
  sigset_t set;
  pthread_sigmask(SIG_SETMASK, nullptr, &set);
  uint64_t bits = 0;
  for (int i = 1; i < 64; ++i) bits |= static_cast<uint64_t>(sigismember(&set, i) == 1) << i;
  return bits;
}

}  // namespace subject
