// SPDX-License-Identifier: Apache-2.0
// The table for AVX-512 F, BW, DQ and VL.
#define FOVEA_SIMD avx512
#define FOVEA_SIMD_WIDTH 16
// Rows and vectors of the block of sums that stays in registers.
#define FOVEA_SIMD_ROWS 6
#define FOVEA_SIMD_VECTORS 4
#include "host/simd.inc"
