#pragma once
#include "emu.h"
namespace fovea::cuda {
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kNegativeInfinity = -__builtin_huge_valf();
inline float exp2_fast(float x) { float y = std::exp2(x); return std::fabs(y) < 1.17549435e-38f ? 0.f : y; }
inline float max_or_nan(float x, float y) { return x != x ? x : y != y ? y : x > y ? x : y; }
}
