// SPDX-License-Identifier: Apache-2.0
// A random call of any operation, drawn from the contract table: extents, optional tensors, dtypes,
// layouts, scalars, and what every input holds.  Nothing here knows what an operation computes;
// what the table does not tell of a family's calls, random/<family>.cpp does. Shapes are small and
// lean towards the edges: nothing, one, a tile less or more one.
//
//   Extents   what the letters of the glossary are (struct Extents)
//   Tensor    one tensor of the call: its view, and where its element 0 lies in an arena
//   Draw      makes a Call from (operation, seed)
//   Filler    what inputs hold (fill.h)
//   Rules     what only a family knows of its calls
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <initializer_list>
#include <set>

#include "contract_call.h"
#include "harness/random.h"
#include "oracle/dtype.h"

namespace random_calls {

using contract::Field;
using contract::Op;

constexpr int64_t kGuard = 256;  // bytes around every tensor; also its alignment

struct Tensor {
  const Field* field;
  fovea_tensor view;
  int64_t at = 0;    // byte of element 0 in the arena
  int64_t span = 0;  // bytes from element 0 to the end of the last; 0: no elements
  int shares = -1;   // the tensor whose memory this is
  bool input = false;
  bool null = false;  // without elements, and data is NULL
};

// Calls f(index, element offset) for every element of x in logical order.
template <class F>
void each_element(const fovea_tensor& x, F f) {
  std::array<int64_t, FOVEA_MAX_DIMS> index{};
  for (int i = 0; i < x.ndim; ++i)
    if (x.shape[i] == 0) return;
  for (int64_t at = 0;;) {
    f(index, at);
    int axis = x.ndim - 1;
    for (; axis >= 0; --axis) {
      at += x.stride[axis];
      if (++index[axis] < x.shape[axis]) break;
      at -= index[axis] * x.stride[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

inline int64_t ceil_div(int64_t x, int64_t y) {
  return x / y + (x % y != 0);
}

// Capped: wild extents reach 2^61.
inline int64_t times(int64_t x, int64_t y) {
  const __int128 n = static_cast<__int128>(x) * y;
  return n > INT64_MAX / 4 ? INT64_MAX / 4 : static_cast<int64_t>(n);
}

inline int64_t elements_of(const fovea_tensor& x) {
  __int128 n = 1;
  for (int i = 0; i < x.ndim; ++i) n *= x.shape[i];
  return n > INT64_MAX ? INT64_MAX : static_cast<int64_t>(n);
}

// Normal numbers in every float type, encoded once.
class Numbers {
 public:
  static constexpr int64_t kCount = 1 << 15;
  static const uint8_t* of(int dtype) {
    static const Numbers numbers;
    return numbers.bytes_[dtype].data();
  }

 private:
  Numbers() {
    harness::Random random(1);
    for (int dtype : {FOVEA_F32, FOVEA_F16, FOVEA_BF16, FOVEA_E4M3, FOVEA_E5M2, FOVEA_I8}) {
      const int64_t size = oracle::bytes_of(dtype);
      bytes_[dtype].resize(kCount * size);
      for (int64_t i = 0; i < kCount; ++i)
        oracle::encode(dtype, random.normal(i) * (dtype == FOVEA_I8 ? 40 : 1),
                       bytes_[dtype].data() + i * size);
    }
  }
  std::array<std::vector<uint8_t>, 16> bytes_;
};

struct Call {
  const Op* op;
  std::vector<uint64_t> words;  // the params
  std::vector<Tensor> tensors;
  int64_t bytes = 0;  // of the arena
  bool bits_may_differ = false, tame = true;
  uint64_t seed = 0;

  char* params() { return reinterpret_cast<char*>(words.data()); }
  const char* params() const { return reinterpret_cast<const char*>(words.data()); }
  fovea_tensor& slot(const Tensor& x) {
    return *reinterpret_cast<fovea_tensor*>(params() + x.field->offset);
  }
};

// As `rough` of Facts: a rounding may decide what is selected.
inline bool always(const Call&) {
  return true;
}

// How large a call may be, so that a million of them end.
struct Budget {
  double work;    // s * t * h * (d + e) and its like
  int64_t bytes;  // of all tensors
};

class Draw;
class Filler;

// What only a family knows.  Each may be missing.
struct Facts {
  void (*tensors)(Draw&) = nullptr;  // which optional tensors go together
  void (*letters)(Draw&) = nullptr;  // extents of letters that are the family's own
  void (*extents)(Draw&) = nullptr;  // extents that follow from others, with the scalars they share
  void (*scalars)(Draw&) = nullptr;  // scalars whose comment does not tell what they may be
  bool (*integers)(Filler&, const Tensor&) = nullptr;  // fills integers that name places: true
  bool (*rough)(const Call&) = nullptr;                // whether rounding decides what is computed
};

// A family registers itself: random/<family>.cpp defines one constant of this type, for the
// operations whose names begin so.
class Rules {
 public:
  Rules(std::initializer_list<const char*> ops, const Facts& facts);
};

// Calls f(facts) for every family that has rules for the operation.
void each_facts(const Op& op, const std::function<void(const Facts&)>& f);

class Draw {
 public:
  Draw(const Op& op, uint64_t seed, Budget budget) : op_(op), random_(seed), budget_(budget) {
    call_.op = &op, call_.seed = seed;
  }

  Call make() {
    do {
      extents_.clear(), given_.clear(), wanted_.clear(), call_.tensors.clear();
      taps = 1;
      call_.words.assign(op_.bytes / 8 + 1, 0);
      call_.words[0] = op_.bytes;
      choose_tensors();
      choose_extents();
      choose_scalars();
      for (const Field& f : op_.fields)
        if (f.kind == contract::tensor && given_.count(f.name)) add(f);
      share();
      place();
    } while (call_.bytes > budget_.bytes);
    call_.tame = !one_in(8);
    return std::move(call_);
  }

  // ---- for the rules of a family

  bool has(const char* name) const { return given_.count(name) != 0; }
  void give(const std::string& name) { given_.insert(name); }
  void drop(const std::string& name) { given_.erase(name); }
  bool knows(const char* name) const { return op_.find(name) != nullptr; }
  bool one_in(int64_t n) { return random_.integer(0, n - 1) == 0; }
  int64_t one_of(std::initializer_list<int64_t> list) {
    return list.begin()[random_.integer(0, static_cast<int64_t>(list.size()) - 1)];
  }
  int64_t& x(const char* letter) { return extents_[letter]; }
  template <class T>
  T& scalar(const char* name) {
    return *reinterpret_cast<T*>(call_.params() + op_.find(name)->offset);
  }
  template <class T>
  void set(const char* name, T value) {
    if (knows(name)) scalar<T>(name) = value;
  }
  // Sets it in one call of three.
  template <class T>
  void maybe(const char* name, T value) {
    if (knows(name) && one_in(3)) scalar<T>(name) = value;
  }
  int64_t below(int64_t n) { return random_.integer(0, n - 1); }
  // The dtype of a tensor that is added later.
  void wants(const std::string& name, int dtype) { wanted_[name] = dtype; }
  bool packed_rows() const { return packed_rows_; }
  bool packed_keys() const { return packed_keys_; }
  double taps = 1;  // products behind one logit, as far as `fit` counts them

  int64_t length() {
    switch (random_.integer(0, 7)) {
      case 0:
        return one_of({0, 1, 1, 2, 3});
      case 1:
      case 2:
        return one_of({1, 2, 3, 4, 5, 7, 8, 9});
      case 3:
      case 4:
        return random_.integer(1, 40);
      case 5:
        return one_of({15, 16, 17, 31, 32, 33, 63, 64, 65});
      case 6:
        return one_of({95, 96, 97, 127, 128, 129, 130, 191, 192, 193, 255, 256, 257});
      default:
        return random_.integer(1, 400);
    }
  }
  int64_t width() {
    if (one_in(60)) return one_of({0, 320, 512, 576, 577});
    if (one_in(2)) return one_of({64, 64, 128, 128, 256, 192, 96});
    if (one_in(2)) return one_of({8, 16, 24, 32, 40, 48, 72, 80, 88, 104, 112, 120, 136, 160, 200});
    return random_.integer(1, 130);
  }

 private:
  void choose_tensors();
  void choose_extents();
  void fit();
  void wild();
  void pages();
  void choose_scalars();
  void choose_values();
  int64_t extent(const Field& f, const std::string& dim);
  int64_t columns();
  int dtype_of(const Field& f);
  void add(const Field& f);
  void lay(fovea_tensor& x, const Field& f);
  void share();
  void place();

  const Op& op_;
  harness::Random random_;
  const Budget budget_;
  Call call_;
  std::map<std::string, int64_t> extents_;
  std::set<std::string> given_;
  std::map<std::string, int> wanted_;
  bool paged_ = false, packed_rows_ = false, packed_keys_ = false;
  int input_dtype_ = 0;
};

// What every input holds, into an image of the arena (contents.cpp).
void fill(const Call& call, uint8_t* image);

}  // namespace random_calls
