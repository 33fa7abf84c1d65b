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

class Layout {
 public:
  template <class T>
  Slot<T> add(int64_t count) {
    if (count < 0 ||
        static_cast<uint64_t>(count) > (SIZE_MAX - bytes_ - kWorkspaceAlign) / sizeof(T))
      fail(FOVEA_INVALID_ARGUMENT, "the workspace for these extents does not fit in size_t");
    Slot<T> slot{bytes_, static_cast<size_t>(count)};
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + kWorkspaceAlign - 1) / kWorkspaceAlign *
              kWorkspaceAlign;
    return slot;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

}  // namespace fovea
