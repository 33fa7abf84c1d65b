// cp.async on the CPU: a copy lands at once or only when it is waited for, by chance.
#pragma once
#include "fake.h"
namespace fovea::cuda {
inline void copy_async(uint32_t to, const void* from, bool valid) {
  fake::copy_async(to, from, valid);
}
inline void copy_commit() {}
template <int Pending>
inline void copy_wait() {
  static_assert(Pending == 0);
  fake::copy_wait();
}
}  // namespace fovea::cuda
