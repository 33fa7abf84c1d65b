// SPDX-License-Identifier: Apache-2.0
#include "core/status.h"

#include <cstdio>
#include <cstring>

namespace fovea {

namespace {
// A plain array: no allocation on the error path, and nothing to destroy at thread exit.
thread_local char t_last_error[kErrorBytes];
}  // namespace

void fail(fovea_status status, const char* format, ...) {
  Error e{};
  e.status = status;
  va_list args;
  va_start(args, format);
  std::vsnprintf(e.text, sizeof e.text, format, args);
  va_end(args);
  throw e;
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
