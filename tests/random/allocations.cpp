// SPDX-License-Identifier: Apache-2.0
#include "random/allocations.h"

#include <cstdlib>
#include <new>

namespace random_calls {
thread_local int64_t news_left = -1;
}

void* operator new(size_t bytes) {
  if (random_calls::news_left >= 0 && random_calls::news_left-- == 0) throw std::bad_alloc();
  if (void* data = std::malloc(bytes ? bytes : 1)) return data;
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, size_t) noexcept {
  std::free(data);
}
