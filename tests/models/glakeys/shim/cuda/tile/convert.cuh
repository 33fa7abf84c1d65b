#pragma once
#include "emu.h"
#include "core/convert.h"
namespace fovea::cuda {
template <int Dtype> float2 pair_of(uint32_t x) { static_assert(Dtype == FOVEA_BF16); return {float_of(x << 16), float_of(x & 0xffff0000u)}; }
}
