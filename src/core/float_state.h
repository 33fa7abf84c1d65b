// SPDX-License-Identifier: Apache-2.0
// The floating-point state of a thread: rounding, denormals, traps and flags.  The host program's
// must not reach results, and ours must not reach the host program.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#else
#include <cfenv>
#endif

namespace fovea {

// For its lifetime the thread rounds to nearest, keeps denormals and traps nothing; then it has its
// own state again, flags included.
class FloatState {
 public:
#if defined(__x86_64__)
  // The x87 unit serves long double alone, which the library does not use; its state costs 500 ns.
  FloatState() : before_(_mm_getcsr()) {
    set_default();
  }
  ~FloatState() {
    _mm_setcsr(before_);
  }
  static void set_default() {
    _mm_setcsr(0x1f80);
  }
#else
  FloatState() {
    std::fegetenv(&before_);
    set_default();
  }
  ~FloatState() {
    std::fesetenv(&before_);
  }
  static void set_default() {
    std::fesetenv(FE_DFL_ENV);
  }
#endif
  FloatState(const FloatState&) = delete;
  FloatState& operator=(const FloatState&) = delete;

 private:
#if defined(__x86_64__)
  unsigned before_;
#else
  std::fenv_t before_;
#endif
};

}  // namespace fovea
