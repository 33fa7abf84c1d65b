// SPDX-License-Identifier: Apache-2.0
// One call of an operation, ready for any backend: the params, the bytes of every tensor with guard
// bands around and between the rows, and what the outputs must be.
#pragma once
#include <cstring>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "generated/headers.h"
#include "harness/random.h"
#include "oracle/dense.h"

namespace harness {

using oracle::Out;
using Shape = std::vector<int64_t>;

struct Op {
  const char* name;
  fovea_status (*run)(fovea_context*, const void*);
  fovea_status (*query)(fovea_context*, const void*, size_t*);
};
#define FOVEA_TEST_OP(x)                                                                                       \
  ::harness::Op {                                                                                              \
#x, [](fovea_context* c, const void* p) { return fovea_##x(c, static_cast<const fovea_##x##_params*>(p)); }, \
        [](fovea_context* c, const void* p, size_t* bytes) {                                     \
          return fovea_##x##_workspace(c, static_cast<const fovea_##x##_params*>(p), bytes);     \
        } \
  }

enum class Role { in, out, inout };

// How a tensor lies in memory.
enum class Lay {
  contiguous,
  head_first,  // (b, h, s, d): the two middle axes swapped
  gaps,        // every axis padded, rows still 16-byte aligned
  odd,         // every axis padded, starts one element in, nothing aligned
  wide,        // last stride 2
  turned,      // of three axes, the last two swapped: weights that are stored transposed
  pairs        // every axis padded, rows of 64 aligned to two elements alone
};
constexpr const char* kLayNames[] = {"contiguous", "head_first", "gaps", "odd",
                                     "wide",       "turned",     "pairs"};

// What a byte is to the call.
enum Cover : uint8_t {
  kGap,      // named by no tensor: may be neither read nor written
  kUnused,   // named but of no account: past a length, in an unused page
  kUsed,     // an input
  kWritten,  // an output
  kUpdated   // an input the op overwrites
};

constexpr int64_t kGuard = 256;  // bytes before and after every tensor

struct Storage {
  int dtype;
  std::vector<uint8_t> image, cover;
};

struct Field {
  std::string name;
  size_t slot;  // offset of the fovea_tensor in the params
  Role role;
  fovea_tensor tensor;  // data is the image's
  size_t storage;
  int64_t start;  // byte of the storage where element 0 lies
  Out exact, rounded;
  bool bitwise = false;
  bool expected() const { return !exact.value.empty(); }
};

// The bytes that fill everything of no account: NaN in every float, absurd in every integer.
inline void poison(int dtype, uint8_t* bytes, int64_t i) {
  static constexpr uint8_t integer[4] = {0xc0, 0xf1, 0xff, 0x7f};
  bytes[i] = dtype == FOVEA_I32 ? integer[i % 4] : 0xff;
}

class Call {
 public:
  Op op;
  std::vector<uint8_t> params;
  std::vector<Field> fields;
  std::vector<Storage> storages;
  std::function<Call(uint64_t draw)> drawn;  // the same call in another draw of roundings

  Call() = default;  // not copied: slots and images are pointed to
  Call(Call&&) = default;
  Call& operator=(Call&&) = default;

  template <class P>
  static Call make(const Op& op, P*& p) {
    Call call;
    call.op = op;
    call.params.resize(sizeof(P));
    p = reinterpret_cast<P*>(call.params.data());
    p->struct_size = sizeof(P);
    return call;
  }

  fovea_tensor& slot(const Field& field) {
    return *reinterpret_cast<fovea_tensor*>(params.data() + field.slot);
  }

  // Gives `slot` (a field of params) memory of its own.
  size_t add(const char* name, fovea_tensor& slot, Role role, int dtype, const Shape& shape,
             Lay lay = Lay::contiguous) {
    fovea_tensor x = {};
    x.dtype = dtype, x.ndim = static_cast<int32_t>(shape.size());
    for (int i = 0; i < x.ndim; ++i) x.shape[i] = shape[i];
    std::vector<int> order;  // axes, innermost first
    for (int i = x.ndim - 1; i >= 0; --i) order.push_back(i);
    if (lay == Lay::head_first && x.ndim >= 4) std::swap(order[1], order[2]);
    if (lay == Lay::turned && x.ndim == 3) std::swap(order[0], order[1]);
    int64_t pitch = lay == Lay::wide ? 2 : 1;
    for (size_t n = 0; n < order.size(); ++n) {
      x.stride[order[n]] = pitch;
      pitch *= std::max<int64_t>(shape[order[n]], 1);
      if (lay == Lay::gaps) pitch = n == 0 ? (pitch + 7) / 8 * 8 + 8 : pitch + x.stride[order[n]];
      if (lay == Lay::odd) pitch += n == 0 ? 3 - pitch % 2 : x.stride[order[n]];
      if (lay == Lay::pairs) pitch += n == 0 ? 2 : x.stride[order[n]];
    }
    return add_strided(name, slot, role, x, lay == Lay::odd ? 1 : 0);
  }

  // As add, with strides of the caller's choice, element 0 being number `start` of the storage, and
  // `spare` elements behind the last for another view.
  size_t add_strided(const char* name, fovea_tensor& slot, Role role, const fovea_tensor& x,
                     int64_t start = 0, int64_t spare = 0) {
    int64_t span = oracle::count_of(x) ? 1 : 0;
    for (int i = 0; i < x.ndim; ++i) span += span ? (x.shape[i] - 1) * x.stride[i] : 0;
    span += spare;
    const int64_t size = oracle::bytes_of(x.dtype);
    const int64_t bytes = (kGuard + (start + span) * size + 255) / 256 * 256 + kGuard;
    storages.push_back({x.dtype, std::vector<uint8_t>(bytes), std::vector<uint8_t>(bytes, kGap)});
    return attach(name, slot, role, x, storages.size() - 1, kGuard + start * size);
  }

  // A second view of `base`'s memory, from its element number `start`.
  size_t add_view(const char* name, fovea_tensor& slot, Role role, const fovea_tensor& x,
                  size_t base, int64_t start) {
    return attach(name, slot, role, x, fields[base].storage,
                  fields[base].start + start * oracle::bytes_of(x.dtype));
  }

  // value(index) for every element; all become inputs of account.
  template <class Value>
  void fill(size_t field, Value value) {
    each(field, [&](const int64_t* index, int64_t byte) {
      Storage& s = storages[fields[field].storage];
      oracle::encode(s.dtype, value(index), s.image.data() + byte);
      cover(s, byte, kUsed);
    });
  }
  void fill_list(size_t field, const std::vector<double>& values) {
    size_t n = 0;
    fill(field, [&](const int64_t*) { return values[n++]; });
  }
  // Only the elements for which test(index) holds are of account.  (A broadcast element is when any
  // of its readers is.)
  template <class Test>
  void account(size_t field, Test test) {
    Storage& s = storages[fields[field].storage];
    each(field, [&](const int64_t*, int64_t byte) { cover(s, byte, kUnused); });
    each(field, [&](const int64_t* index, int64_t byte) {
      if (test(index)) cover(s, byte, kUsed);
    });
  }

  void expect(size_t field, Out exact, Out rounded, bool bitwise = false) {
    Field& f = fields[field];
    f.exact = std::move(exact), f.rounded = std::move(rounded), f.bitwise = bitwise;
    size_t n = 0;
    each(field, [&](const int64_t*, int64_t byte) {
      const bool written = f.exact.written[n++];
      Storage& s = storages[f.storage];
      if (written)
        cover(s, byte, f.role == Role::inout || s.cover[byte] == kUsed ? kUpdated : kWritten);
    });
  }

  // The bytes to start from.  `poisoned`: garbage in everything of no account; else zeros.
  std::vector<uint8_t> image(size_t storage, bool poisoned) const {
    const Storage& s = storages[storage];
    std::vector<uint8_t> bytes = s.image;
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (s.cover[i] == kUsed || s.cover[i] == kUpdated) continue;
      if (poisoned)
        poison(s.dtype, bytes.data(), static_cast<int64_t>(i));
      else
        bytes[i] = s.cover[i] == kWritten ? 0x5a : 0;
    }
    return bytes;
  }

  // visit(index, byte of the storage) for every element of the field, in logical order.
  template <class Visit>
  void each(size_t field, Visit visit) const {
    const Field& f = fields[field];
    oracle::each_index(f.tensor,
                       [&](const int64_t* index, int64_t byte) { visit(index, f.start + byte); });
  }

  size_t field(const std::string& name) const {
    for (size_t i = 0; i < fields.size(); ++i)
      if (fields[i].name == name) return i;
    return fields.size();
  }

 private:
  size_t attach(const char* name, fovea_tensor& slot, Role role, fovea_tensor x, size_t storage,
                int64_t start) {
    x.data = storages[storage].image.data() + start;
    slot = x;
    const auto at = static_cast<size_t>(reinterpret_cast<uint8_t*>(&slot) - params.data());
    fields.push_back({name, at, role, x, storage, start, {}, {}, false});
    Storage& s = storages[storage];
    each(fields.size() - 1, [&](const int64_t*, int64_t byte) {
      if (s.cover[byte] == kGap) cover(s, byte, kUnused);
    });
    return fields.size() - 1;
  }
  static void cover(Storage& s, int64_t byte, Cover what) {
    for (int64_t i = 0; i < oracle::bytes_of(s.dtype); ++i) s.cover[byte + i] = what;
  }
};

}  // namespace harness
