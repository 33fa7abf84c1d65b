// SPDX-License-Identifier: Apache-2.0
// One round of descriptor fuzzing on the host backend.  A valid small call is broken in a few
// places: dtypes, ranks, extents, strides, pointers, scalars, struct_size, the integers that
// tensors hold.  Any status may come back, but a failed one has a sentence, no call crashes, and a
// call that runs writes nothing but its outputs.
//
// Memory is honest as far as the library may use it: a tensor whose extents and strides are legal
// but reach past its buffer is only asked about (`_workspace`), which may touch no data.
#pragma once
#include <gtest/gtest.h>

#include "cases/all.h"
#include "contract_call.h"

namespace fuzz {

using harness::Call;
using harness::Role;

// Bytes of the fuzzer, or of a generator when they run out.
class Source {
 public:
  Source(const uint8_t* data, size_t size, uint64_t seed)
      : data_(data), size_(size), random_(seed) {}
  int64_t pick(int64_t count) {  // 0 .. count - 1
    if (next_ + 2 > size_) return random_.integer(0, count - 1);
    const int64_t x = data_[next_] | data_[next_ + 1] << 8;
    next_ += 2;
    return x % count;
  }
  bool one_in(int64_t n) { return pick(n) == 0; }

 private:
  const uint8_t* data_;
  size_t size_, next_ = 0;
  harness::Random random_;
};

constexpr int64_t kRoom = 1 << 16;  // bytes of every buffer between its guards
constexpr uint8_t kCanary = 0xc7;

// A buffer in the context's memory: the call's tensor lies at its start.
struct Buffer {
  explicit Buffer(fovea_context* ctx) : memory(ctx, kRoom + 2 * harness::kGuard) {}
  uint8_t* begin() const { return static_cast<uint8_t*>(memory.data) + harness::kGuard; }
  harness::Memory memory;
  bool written = false;  // an output of the call, or of unknown role
};

inline const std::vector<harness::Case>& seeds() {
  static const std::vector<harness::Case> list = [] {
    std::vector<harness::Case> out;
    for (harness::Case& c : cases::all())
      if (c.name.find("small") != std::string::npos ||
          (c.op.find("attention") == std::string::npos && c.op.find("kl_") == std::string::npos &&
           c.name.find("_b2_u300") == std::string::npos))
        out.push_back(std::move(c));
    return out;
  }();
  return list;
}

// The small calls that rounds start from, built once.
inline const Call& seed_call(int64_t i) {
  static std::map<int64_t, Call> built;
  auto found = built.find(i);
  if (found == built.end()) found = built.emplace(i, seeds()[i].build(7)).first;
  return found->second;
}

inline int64_t strange(Source& from, int64_t now) {
  static constexpr int64_t list[] = {
      0,         1,         2,        3, 7, 8, 64, -1, 1ll << 31, -(1ll << 31), (1ll << 32) + 1,
      1ll << 62, INT64_MAX, INT64_MIN};
  switch (from.pick(4)) {
    case 0:
      return now + 1;
    case 1:
      return now > 0 ? now - 1 : 0;
    default:
      return list[from.pick(std::size(list))];
  }
}

class Round {
 public:
  Round(fovea_context* ctx, const uint8_t* data, size_t size, uint64_t seed)
      : ctx_(ctx),
        from_(data, size, seed),
        call_(seed_call(from_.pick(static_cast<int64_t>(seeds().size())))),
        params_(call_.params) {
    // By the header: fields that were appended stand behind the numbers.
    for (const contract::Field& f : contract::find_op(call_.op.name)->fields)
      if (f.offset >= params_.size() || f.kind == contract::size)
        continue;
      else if (f.kind == contract::tensor)
        tensors_.push_back(f.offset);
      else
        for (size_t at = f.offset; at < f.offset + (f.kind == contract::i64 ? 8 : 4); at += 4)
          words_.push_back(at);
  }

  // Whether the call ran.
  bool run() {
    place();
    const int64_t changes = from_.pick(6);
    for (int64_t i = 0; i < changes; ++i) change();
    size_t bytes = 0;
    const fovea_status asked = call_.op.query(ctx_, params_.data(), &bytes);
    expect_sentence(asked);
    if (asked != FOVEA_OK && !struct_size_changed_) {
      // Refused: running must be refused alike, before any data is touched.
      EXPECT_EQ(call_.op.run(ctx_, params_.data()), asked) << fovea_last_error();
      return false;
    }
    if (asked != FOVEA_OK || !honest() || bytes > (64u << 20)) return false;
    if (std::getenv("FOVEA_FUZZ_SEED")) print();
    std::vector<std::vector<uint8_t>> before;
    for (const auto& buffer : buffers_) before.push_back(buffer->memory.read());
    expect_sentence(call_.op.run(ctx_, params_.data()));
    for (size_t i = 0; i < buffers_.size(); ++i)
      expect_unchanged(*buffers_[i], before[i], reach(i));
    return true;
  }

 private:
  fovea_tensor& tensor(size_t i) {
    return *reinterpret_cast<fovea_tensor*>(params_.data() + tensors_[i]);
  }

  fovea_tensor& slot(const harness::Field& f) {
    return *reinterpret_cast<fovea_tensor*>(params_.data() + f.slot);
  }

  // Every tensor gets room of its own; views of one storage share it.
  void place() {
    std::map<size_t, size_t> of_storage;
    for (const harness::Field& f : call_.fields) {
      if (!of_storage.count(f.storage)) {
        of_storage[f.storage] = buffers_.size();
        buffers_.push_back(std::make_unique<Buffer>(ctx_));
        std::memset(buffers_.back()->memory.data, kCanary, buffers_.back()->memory.bytes);
        const auto& image = call_.storages[f.storage].image;
        std::memcpy(buffers_.back()->begin(), image.data() + harness::kGuard,
                    std::min<size_t>(image.size() - harness::kGuard, kRoom));
      }
      Buffer& buffer = *buffers_[of_storage[f.storage]];
      buffer.written = buffer.written || f.role != Role::in;
      slot(f).data = buffer.begin() + (f.start - harness::kGuard);
    }
  }

  void change() {
    switch (from_.pick(12)) {
      case 0:
        return change_struct_size();
      case 1:
      case 2:
      case 3:
        return change_scalar();
      case 4:
      case 5:
        return change_integers();
      default:
        return change_tensor(tensor(from_.pick(static_cast<int64_t>(tensors_.size()))));
    }
  }

  void change_struct_size() {
    static constexpr size_t sizes[] = {0, 7, 8, 104};
    size_t size = params_.size();
    const int64_t i = from_.pick(6);
    // Never more: the bytes behind the struct are not the caller's to promise.
    if (i < 4) size = sizes[i];
    if (i == 4) size -= 4;
    std::memcpy(params_.data(), &size, sizeof size);
    struct_size_changed_ = true;
  }

  // Any word of a number.
  void change_scalar() {
    if (words_.empty()) return;
    static constexpr uint32_t list[] = {0,          1,          2,          3,          16,
                                        0xffffffff, 0x7fffffff, 0x80000000, 0x3f800000, 0x3dcccccd,
                                        0x7f800000, 0x7fc00000, 0xbf800000};
    const uint32_t value = list[from_.pick(std::size(list))];
    const size_t at = words_[from_.pick(static_cast<int64_t>(words_.size()))];
    std::memcpy(params_.data() + at, &value, 4);
  }

  // What i32 tensors say about places: lengths, starts, pages, rows, positions.
  void change_integers() {
    const harness::Field& f = call_.fields[from_.pick(static_cast<int64_t>(call_.fields.size()))];
    const int64_t n = oracle::count_of(f.tensor);
    if (f.tensor.dtype != FOVEA_I32 || n == 0) return;
    static constexpr int32_t list[] = {0, 1, -1, 2, 5, 100, INT32_MAX, INT32_MIN, 1 << 20};
    uint8_t* data = static_cast<uint8_t*>(slot(f).data);
    int64_t left = from_.pick(n), byte = 0;
    oracle::each_element(f.tensor, [&](int64_t at) { byte = left-- == 0 ? at : byte; });
    const int32_t value = list[from_.pick(std::size(list))];
    if (data && in_buffer(data + byte, 4)) std::memcpy(data + byte, &value, 4);
  }

  void change_tensor(fovea_tensor& x) {
    switch (from_.pick(8)) {
      case 0:
        x.dtype = static_cast<int32_t>(from_.pick(15)) - 1;
        return;
      case 1:
        x.ndim = static_cast<int32_t>(from_.pick(8)) - 1;
        return;
      case 2:
      case 3: {
        int64_t& n = x.shape[from_.pick(FOVEA_MAX_DIMS)];
        n = strange(from_, n);
        return;
      }
      case 4:
      case 5: {
        int64_t& n = x.stride[from_.pick(FOVEA_MAX_DIMS)];
        n = strange(from_, n);
        return;
      }
      case 6:
        if (from_.one_in(2))
          x.data = nullptr;
        else if (x.data)
          x.data = static_cast<uint8_t*>(x.data) + 1 + from_.pick(3);
        return;
      default: {  // another tensor, for an absent one too: whatever it is used for
        x = tensor(from_.pick(static_cast<int64_t>(tensors_.size())));
        for (const auto& buffer : buffers_)
          if (x.data >= buffer->begin() && x.data < buffer->begin() + kRoom) buffer->written = true;
      }
    }
  }

  bool in_buffer(const uint8_t* at, int64_t bytes) const {
    for (const auto& buffer : buffers_)
      if (at >= buffer->begin() && at + bytes <= buffer->begin() + kRoom) return true;
    return false;
  }

  // Bytes that a tensor the library accepted may touch; -1: more than any buffer has.
  static int64_t span_of(const fovea_tensor& x) {
    __int128 span = 1, count = 1;
    for (int i = 0; i < x.ndim; ++i) {
      if (x.shape[i] == 0) return 0;
      span += static_cast<__int128>(x.shape[i] - 1) * x.stride[i];
      count *= x.shape[i];
      if (span > kRoom || count > kRoom) return -1;
    }
    return static_cast<int64_t>(span) * oracle::bytes_of(x.dtype);
  }

  // Every tensor fits where it lies, and the work is small.
  bool honest() {
    int64_t work = 1, columns = 1;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const fovea_tensor& x = tensor(i);
      if (!x.data) continue;
      const int64_t span = span_of(x);
      if (span < 0 || (span > 0 && !in_buffer(static_cast<uint8_t*>(x.data), span))) return false;
      work = std::max(work, oracle::count_of(x));
      for (int n = 0; n < x.ndim; ++n) columns = std::max(columns, x.shape[n]);
    }
    return work * columns < (1 << 24);
  }

  // First byte of buffer i past every tensor that lies in it.
  int64_t reach(size_t i) {
    int64_t end = 0;
    for (size_t n = 0; n < tensors_.size(); ++n) {
      const fovea_tensor& x = tensor(n);
      const auto* data = static_cast<const uint8_t*>(x.data);
      if (data && data >= buffers_[i]->begin() && data < buffers_[i]->begin() + kRoom)
        end = std::max(end, data - buffers_[i]->begin() + span_of(x));
    }
    return end;
  }

  void expect_unchanged(const Buffer& buffer, const std::vector<uint8_t>& before, int64_t end) {
    const std::vector<uint8_t> after = buffer.memory.read();
    const size_t free_from = harness::kGuard,
                 free_to = buffer.written ? harness::kGuard + end : harness::kGuard;
    for (size_t i = 0; i < after.size(); ++i)
      if ((i < free_from || i >= free_to) && after[i] != before[i]) {
        ADD_FAILURE() << call_.op.name << " wrote byte "
                      << static_cast<int64_t>(i) - harness::kGuard
                      << " of a buffer whose tensors end at " << end
                      << (buffer.written ? "" : " and are inputs");
        return;
      }
  }

  // What a failing round is about.
  void print() {
    std::printf("%s\n", call_.op.name);
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const fovea_tensor& x = tensor(i);
      if (!x.data) continue;
      std::printf("  tensor %zu: dtype %d, shape", i, x.dtype);
      for (int n = 0; n < x.ndim; ++n) std::printf(" %lld", static_cast<long long>(x.shape[n]));
      std::printf(", stride");
      for (int n = 0; n < x.ndim; ++n) std::printf(" %lld", static_cast<long long>(x.stride[n]));
      for (size_t b = 0; b < buffers_.size(); ++b)
        if (x.data >= buffers_[b]->begin() && x.data < buffers_[b]->begin() + kRoom)
          std::printf(", buffer %zu at %td", b,
                      static_cast<uint8_t*>(x.data) - buffers_[b]->begin());
      std::printf("\n");
    }
    for (const size_t at : words_) {
      int32_t word;
      std::memcpy(&word, params_.data() + at, 4);
      std::printf("%s%d", at % 32 ? " " : "\n  ", word);
    }
    std::printf("\n");
  }

  static void expect_sentence(fovea_status status) {
    EXPECT_GE(status, FOVEA_OK);
    EXPECT_LE(status, FOVEA_OUT_OF_MEMORY) << fovea_last_error();
    EXPECT_EQ(status == FOVEA_OK, fovea_last_error()[0] == 0) << fovea_status_name(status);
  }

  fovea_context* ctx_;
  Source from_;
  const Call& call_;
  std::vector<uint8_t> params_;
  std::vector<size_t> tensors_, words_;  // where they stand in the params
  std::vector<std::unique_ptr<Buffer>> buffers_;
  bool struct_size_changed_ = false;
};

}  // namespace fuzz
