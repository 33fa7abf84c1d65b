// SPDX-License-Identifier: Apache-2.0
#include "core/status.h"

#include <cstdio>
#include <cstring>

namespace fovea {

namespace {
// A plain array: no allocation on the error path, and nothing to destroy at thread exit.
thread_local char t_last_error[kErrorBytes];

[[noreturn]] [[gnu::format(printf, 2, 0)]] void raise(fovea_status status, const char* format,
                                                      va_list args) {
  Error e{};
  e.status = status;
  std::vsnprintf(e.text, sizeof e.text, format, args);
  throw e;
}
}  // namespace

void fail(fovea_status status, const char* format, ...) {
  va_list args;
  va_start(args, format);
  raise(status, format, args);
}

void refuse(const char* format, ...) {
  va_list args;
  va_start(args, format);
  raise(FOVEA_INVALID_ARGUMENT, format, args);
}

void set_last_error(const char* text) noexcept {
  std::snprintf(t_last_error, sizeof t_last_error, "%s", text);
}

void set_last_error(const char* op, const char* text) noexcept {
  std::snprintf(t_last_error, sizeof t_last_error, "%s: %s", op, text);
}

const char* last_error() noexcept {
  return t_last_error;
}

}  // namespace fovea
