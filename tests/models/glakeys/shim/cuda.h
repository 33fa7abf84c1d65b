#pragma once
#include "emu.h"
struct CUtensorMap { const uint16_t* data; int64_t stride[4], extent[4]; int rows; };
