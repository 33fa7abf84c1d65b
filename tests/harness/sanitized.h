// SPDX-License-Identifier: Apache-2.0
// Whether this program was linked with a sanitizer: the runtime's functions are there or not.
// The tests themselves are compiled without any, once for all programs.
#pragma once
#include <cstddef>

extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void*, size_t);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void*, size_t);
__attribute__((weak)) void __asan_set_death_callback(void (*)());
__attribute__((weak)) void __tsan_init();
}

namespace harness {

inline bool watches_addresses() {
  return __asan_poison_memory_region != nullptr;
}
inline bool sanitized() {
  return watches_addresses() || __tsan_init != nullptr;
}

}  // namespace harness
