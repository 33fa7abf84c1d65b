// SPDX-License-Identifier: Apache-2.0
#include "host/simd.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

// The build can leave the wider tables unused, so that one machine can test them all.
#ifndef FOVEA_SIMD_WIDEST
#define FOVEA_SIMD_WIDEST 16
#endif

namespace fovea::host {
namespace {

#if defined(__x86_64__)
// Not a word that every compiler's __builtin_cpu_supports knows.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

const Simd& best() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (FOVEA_SIMD_WIDEST >= 16 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return simd_avx512;
  if (FOVEA_SIMD_WIDEST >= 8 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      has_f16c())
    return simd_avx2;
#endif
  return simd_base;
}

}  // namespace

const Simd& simd() {
  // No static local: the child of a fork() would wait for the thread that was making it.
  static std::atomic<const Simd*> table{nullptr};
  const Simd* found = table.load(std::memory_order_relaxed);
  if (!found) table.store(found = &best(), std::memory_order_relaxed);
  return *found;
}

}  // namespace fovea::host
