// SPDX-License-Identifier: Apache-2.0
// The table for the instruction set every CPU of the target has.
#define FOVEA_SIMD base
#define FOVEA_SIMD_WIDTH 4
// Rows and vectors of the block of sums that stays in registers.
#define FOVEA_SIMD_ROWS 4
#define FOVEA_SIMD_VECTORS 2
#include "host/simd.inc"
