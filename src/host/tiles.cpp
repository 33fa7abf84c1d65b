// SPDX-License-Identifier: Apache-2.0
#include "host/tiles.h"

#include <atomic>

#include "host/simd.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace fovea::host {
namespace {

#if defined(FOVEA_AMX) && defined(__linux__)
// The registers are 8 KB: Linux wants to be asked once a process, and grows signal frames then.
bool granted() {
  constexpr long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request, tile_data) == 0;
}

bool has_amx() {
  constexpr unsigned bf16 = 1u << 22, tile = 1u << 24, avx512_bf16 = 1u << 5;
  unsigned a, b, c, d;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & bf16) || !(d & tile)) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & avx512_bf16);
}
#endif

enum State { unknown, absent, present };

State find() {
#if defined(FOVEA_AMX) && defined(__linux__)
  return &simd() == &simd_avx512 && has_amx() && granted() ? present : absent;
#else
  return absent;
#endif
}

}  // namespace

const Tiles* tiles() {
  // As of simd(): no static local.
  static std::atomic<int> state{unknown};
  int found = state.load(std::memory_order_relaxed);
  if (found == unknown) state.store(found = find(), std::memory_order_relaxed);
#if defined(FOVEA_AMX)
  if (found == present) return &tiles_amx;
#endif
  return nullptr;
}

}  // namespace fovea::host
