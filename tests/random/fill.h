// SPDX-License-Identifier: Apache-2.0
// What inputs hold.  Floats are normal numbers; one call in eight has NaN, infinities and large
// values among them.  Integers name places, and one in fifty names none.  Where two writers of one
// element would make the result depend on their order (pages that are written), places differ.
#pragma once
#include "random/draw.h"

namespace random_calls {

constexpr double kStrange[] = {NAN, HUGE_VAL, -HUGE_VAL, 0, -0.0, 1e4, -3e4, 1e-8, 300};

class Filler {
 public:
  Filler(const Call& call, uint8_t* image)
      : call_(call), image_(image), random_(call.seed ^ 0x5eed) {}

  void run() {
    for (const Tensor& x : call_.tensors)
      if (x.input && x.shares < 0 && x.span) one(x);
  }

  // ---- for the rules of a family

  bool one_in(int64_t n) { return random_.integer(0, n - 1) == 0; }
  bool is(const Tensor& x, std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (x.field->name == name) return true;
    return false;
  }
  // An extent of a field, or otherwise.
  int64_t extent(const char* field, int axis, int64_t otherwise) const {
    for (const Tensor& x : call_.tensors)
      if (x.field->name == field) return x.view.shape[axis];
    return otherwise;
  }
  bool given(const char* field) const { return extent(field, 0, -1) >= 0; }

  void one(const Tensor& x) {
    if (x.view.dtype == FOVEA_I32) return integers(x);
    if (x.view.dtype == FOVEA_I64) return put<int64_t>(x, [&] { return random_.integer(0, 20); });
    if (x.view.dtype == FOVEA_U8) {
      // Exponents of scales lie near 1 where values are compared: else one number is the whole sum.
      const bool near = call_.tame && x.field->name.find("scale") != std::string::npos;
      return put<uint8_t>(x, [&] {
        const auto bits = static_cast<uint8_t>(random_.bits(random_.next++));
        return near ? static_cast<uint8_t>(120 + bits % 16) : bits;
      });
    }
    floats(x);
  }

  template <class T, class F>
  void put(const Tensor& x, F value) {
    each_element(x.view, [&](const auto&, int64_t at) {
      const T v = value();
      std::memcpy(image_ + x.at + at * static_cast<int64_t>(sizeof(T)), &v, sizeof v);
    });
  }

  void floats(const Tensor& x) {
    const int64_t size = oracle::bytes_of(x.view.dtype);
    const uint8_t* numbers = Numbers::of(x.view.dtype);
    int64_t next = random_.integer(0, Numbers::kCount - 1);
    each_element(x.view, [&](const auto&, int64_t at) {
      std::memcpy(image_ + x.at + at * size, numbers + next * size, size);
      next = next + 1 == Numbers::kCount ? 0 : next + 1;
    });
    const bool positive = x.field->name.find("scale") != std::string::npos;
    if (positive)
      each_element(x.view,
                   [&](const auto&, int64_t at) { image_[x.at + at * size + size - 1] &= 0x7f; });
    if (call_.tame || positive || !one_in(2) || x.view.dtype == FOVEA_I8) return;
    int64_t left = random_.integer(0, 30);
    each_element(x.view, [&](const auto&, int64_t at) {
      if (left-- > 0) return;
      left = random_.integer(0, 60);
      oracle::encode(x.view.dtype, kStrange[random_.integer(0, std::size(kStrange) - 1)],
                     image_ + x.at + at * size);
    });
  }

  // Ascending from 0, each sequence with `least` at least.
  void starts(const Tensor& x, int64_t total, int64_t least) {
    const int64_t r = x.view.shape[0] - 1;
    std::vector<int32_t> cut(r + 1, 0);
    const int64_t loose = std::max<int64_t>(0, total - r * least);
    for (int64_t i = 1; i < r; ++i) cut[i] = static_cast<int32_t>(random_.integer(0, loose));
    if (r > 0) cut[r] = static_cast<int32_t>(one_in(8) ? random_.integer(0, loose) : loose);
    std::sort(cut.begin(), cut.end());
    for (int64_t i = 0; i <= r; ++i) cut[i] += static_cast<int32_t>(i * least);
    size_t n = 0;
    put<int32_t>(x, [&] { return cut[n++]; });
  }

  // Different numbers below `count`, then -1.
  void distinct(const Tensor& x, int64_t count) { distinct_from(x, 0, count); }
  // The same of first .. first + count - 1.
  void distinct_from(const Tensor& x, int64_t first, int64_t count) {
    std::vector<int32_t> list;
    for (int64_t i = 0; i < count; ++i) list.push_back(static_cast<int32_t>(first + i));
    for (size_t i = list.size(); i > 1; --i)
      std::swap(list[i - 1],
                list[static_cast<size_t>(random_.integer(0, static_cast<int64_t>(i) - 1))]);
    put<int32_t>(x, [&] {
      if (list.empty() || one_in(12)) return -1;
      const int32_t last = list.back();
      list.pop_back();
      return last;
    });
  }

  // low .. high, and now and then a number that names nothing.
  void places(const Tensor& x, int64_t low, int64_t high) {
    static constexpr int32_t list[] = {-1, INT32_MAX, INT32_MIN, -7, 1 << 20};
    put<int32_t>(x, [&] {
      if (one_in(50)) return list[random_.integer(0, std::size(list) - 1)];
      return static_cast<int32_t>(random_.integer(low, std::max(low, high)));
    });
  }

  int64_t random(int64_t low, int64_t high) { return random_.integer(low, high); }

  void integers(const Tensor& x) {
    bool done = false;
    each_facts(*call_.op,
               [&](const Facts& f) { done = done || (f.integers && f.integers(*this, x)); });
    if (done) return;
    const bool writes = std::any_of(call_.op->fields.begin(), call_.op->fields.end(),
                                    [](const Field& f) { return f.output && !f.paged.empty(); });
    const int64_t s = rows(), capacity = keys();
    if (x.field->dims[0] == "r+1") {
      const Field* history = call_.op->find("history");
      int64_t least = 0;
      if (history && x.field->name == "query_start")
        std::memcpy(&least, call_.params() + history->offset, sizeof least);
      const bool of_keys = x.field->name == "key_start" && call_.op->find("query_start");
      return starts(x, of_keys ? capacity : s, least);
    }
    if (is(x, {"query_len"})) return places(x, 0, s + 1);
    if (is(x, {"key_len", "key_first"}))
      return places(x, 0, is(x, {"key_first"}) ? std::min<int64_t>(9, capacity) : capacity + 1);
    if (is(x, {"page_table"})) {
      const int64_t pool = extent(stored(), 0, 0);
      return writes ? distinct(x, pool) : places(x, -1, pool - 1);
    }
    if (is(x, {"cache_row"})) {
      const int64_t of = given("page_table") ? extent("page_table", 0, 0) : extent(stored(), 0, 0);
      return writes ? distinct(x, of) : places(x, 0, of - 1);
    }
    if (is(x, {"index"})) return places(x, -1, capacity - 1);
    if (is(x, {"head_window"})) return places(x, 0, 20);
    if (is(x, {"position"})) return places(x, 0, extent("cos", 0, 1) - 1);
    return places(x, -1, capacity + 3);  // query_position, key_position
  }

  int64_t rows() const {
    for (const char* name : {"q", "q_teacher", "a_q", "x", "k_new", "v_new", "k_out"})
      if (given(name)) return extent(name, 1, 0);
    return 0;
  }
  // The tensor of keys, or of tokens.
  const char* stored() const {
    for (const char* name : {"k", "k_teacher", "a_k", "v"})
      if (given(name)) return name;
    return "x";
  }
  int64_t keys() const {
    const char* name = stored();
    return given("page_table") ? extent("page_table", 1, 0) * extent(name, 1, 0)
                               : extent(name, 1, 0);
  }

 private:
  const Call& call_;
  uint8_t* image_;
  harness::Random random_;
};

}  // namespace random_calls
