// SPDX-License-Identifier: Apache-2.0
// A workspace is carved twice from one description: at plan time to count bytes, at run time to get
// pointers, so the two cannot disagree.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/status.h"

namespace fovea {

constexpr size_t kWorkspaceAlign = 256;

template <class T>
struct Slot {
  size_t offset = 0;
  size_t count = 0;
  T* at(void* base) const {
    return count ? reinterpret_cast<T*>(static_cast<unsigned char*>(base) + offset) : nullptr;
  }
};

// Extents that no workspace could serve are told by fits(), not by add(): a call that writes
// nothing may have them.
class Layout {
 public:
  // Room for the product of the counts.
  template <class T, class... More>
  Slot<T> add(int64_t first, More... more) {
    int64_t count = first;
    const bool none = first == 0 || ((more == 0) || ...);
    const bool counted =
        first >= 0 && (!__builtin_mul_overflow(count, static_cast<int64_t>(more), &count) && ...);
    if (none) return {bytes_, 0};
    if (!counted || count < 0 ||
        static_cast<uint64_t>(count) > (INT64_MAX - bytes_ - kWorkspaceAlign) / sizeof(T)) {
      fits_ = false;
      return {};
    }
    Slot<T> slot{bytes_, static_cast<size_t>(count)};
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + kWorkspaceAlign - 1) / kWorkspaceAlign *
              kWorkspaceAlign;
    return slot;
  }
  // As many bytes as `part` has, `times` over.
  Slot<unsigned char> add_all(const Layout& part, int64_t times) {
    fits_ = fits_ && part.fits_;
    return add<unsigned char>(static_cast<int64_t>(part.bytes_), times);
  }
  bool fits() const { return fits_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
  bool fits_ = true;
};

}  // namespace fovea
