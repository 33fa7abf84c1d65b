// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "fovea/core.h"

namespace fovea {

struct DtypeInfo {
  const char* name;  // as written in header comments
  int bits;
};

// By the numbers of fovea_dtype.
constexpr DtypeInfo kDtypes[] = {{"?", 0},    {"f32", 32}, {"f16", 16}, {"bf16", 16}, {"e4m3", 8},
                                 {"e5m2", 8}, {"e2m1", 4}, {"i8", 8},   {"i32", 32},  {"i64", 64},
                                 {"u8", 8},   {"i4", 4},   {"e8m0", 8}};
static_assert(sizeof(kDtypes) / sizeof(DtypeInfo) == FOVEA_E8M0 + 1);

// {"?", 0} for a number that is no dtype.
constexpr DtypeInfo dtype_info(int32_t dtype) {
  return kDtypes[dtype > 0 && dtype <= FOVEA_E8M0 ? dtype : 0];
}

constexpr const char* dtype_name(int32_t dtype) {
  return dtype_info(dtype).name;
}
constexpr int64_t dtype_bytes(int32_t dtype) {
  return dtype_info(dtype).bits / 8;
}

}  // namespace fovea
