// SPDX-License-Identifier: Apache-2.0
// Errors inside the library are exceptions; api.cpp and context.cpp turn them into a status and a
// thread-local sentence at the C boundary.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <exception>
#include <new>

#include "fovea/core.h"

namespace fovea {

constexpr int kErrorBytes = 1024;

struct Error {
  fovea_status status;
  char text[kErrorBytes];
};

[[noreturn]] [[gnu::format(printf, 2, 3)]] void fail(fovea_status status, const char* format, ...);
// The same with FOVEA_INVALID_ARGUMENT: refuse("attention_forward: scale is %g, wanted > 0", scale)
[[noreturn]] [[gnu::format(printf, 1, 2)]] void refuse(const char* format, ...);
// An int64_t for %lld.
constexpr long long lld(int64_t x) {
  return x;
}

// The sentence of this thread: `text` as it is, or "op: text".
void set_last_error(const char* text) noexcept;
void set_last_error(const char* op, const char* text) noexcept;
const char* last_error() noexcept;

// Runs f and maps what it throws to a status; every exported function that can fail goes through
// it.  Nothing here allocates.
template <class F>
fovea_status guarded(const char* op, F&& f) noexcept {
  set_last_error("");
  try {
    f();
    return FOVEA_OK;
  } catch (const Error& e) {
    set_last_error(e.text);
    return e.status;
  } catch (const std::bad_alloc&) {
    set_last_error(op, "host memory is exhausted");
    return FOVEA_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    set_last_error(op, e.what());
    return FOVEA_INTERNAL_ERROR;
  } catch (...) {
    set_last_error(op, "an unknown exception reached the boundary");
    return FOVEA_INTERNAL_ERROR;
  }
}

}  // namespace fovea
