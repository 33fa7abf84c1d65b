// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "fovea/core.h"

namespace fovea {

struct DtypeInfo {
  const char* name;  // as written in header comments
  int bits;
};

// {"?", 0} for a number that is no dtype.
constexpr DtypeInfo dtype_info(int32_t dtype) {
  switch (dtype) {
    case FOVEA_F32:
      return {"f32", 32};
    case FOVEA_F16:
      return {"f16", 16};
    case FOVEA_BF16:
      return {"bf16", 16};
    case FOVEA_E4M3:
      return {"e4m3", 8};
    case FOVEA_E5M2:
      return {"e5m2", 8};
    case FOVEA_E2M1:
      return {"e2m1", 4};
    case FOVEA_I8:
      return {"i8", 8};
    case FOVEA_I32:
      return {"i32", 32};
    case FOVEA_I64:
      return {"i64", 64};
    case FOVEA_U8:
      return {"u8", 8};
    case FOVEA_I4:
      return {"i4", 4};
    case FOVEA_E8M0:
      return {"e8m0", 8};
  }
  return {"?", 0};
}

constexpr const char* dtype_name(int32_t dtype) {
  return dtype_info(dtype).name;
}
constexpr int64_t dtype_bytes(int32_t dtype) {
  return dtype_info(dtype).bits / 8;
}

}  // namespace fovea
