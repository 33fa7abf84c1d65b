// SPDX-License-Identifier: Apache-2.0
// How params structs evolve without breaking callers built against another release: fields are only
// appended, so the shared prefix means the same on both sides and zero means "default".
#pragma once
#include <algorithm>
#include <cstring>

#include "core/status.h"

namespace fovea {

// No release's params come near this: a larger struct_size was never set, and there may be no such
// tail to read.
constexpr size_t kParamsMax = 65536;

template <class P>
P copy_params(const char* op, const P* params, size_t first_size) {
  if (!params) refuse("%s: params is NULL", op);
  const size_t size = params->struct_size;
  if (size < first_size || size > kParamsMax)
    refuse("%s: struct_size is %zu, wanted sizeof(fovea_%s_params) (%zu)", op, size, op, sizeof(P));
  P copy{};
  std::memcpy(&copy, params, std::min(size, sizeof(P)));
  // A caller built against a newer header may have fields this library does not know.
  const auto* bytes = reinterpret_cast<const unsigned char*>(params);
  for (size_t i = sizeof(P); i < size; ++i)
    if (bytes[i])
      fail(FOVEA_UNSUPPORTED,
           "%s: struct_size is %zu and byte %zu is set: a field newer than this library (%zu "
           "bytes) is in use",
           op, size, i, sizeof(P));
  copy.struct_size = sizeof(P);
  return copy;
}

}  // namespace fovea
