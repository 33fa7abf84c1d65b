// SPDX-License-Identifier: Apache-2.0
// The table for AVX2 and FMA.
#define FOVEA_SIMD avx2
#define FOVEA_SIMD_WIDTH 8
// Rows and vectors of the block of sums that stays in registers.
#define FOVEA_SIMD_ROWS 6
#define FOVEA_SIMD_VECTORS 2
#include "host/simd.inc"
