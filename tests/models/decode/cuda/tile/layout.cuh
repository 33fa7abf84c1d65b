#pragma once
#include "fake.h"
namespace fovea::cuda {
inline uint32_t shared_address(const void* p) { return fake::shared_address(p); }
}  // namespace fovea::cuda
