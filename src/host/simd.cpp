// SPDX-License-Identifier: Apache-2.0
#include "host/simd.h"

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
  static const Simd& table = best();
  return table;
}

}  // namespace fovea::host
