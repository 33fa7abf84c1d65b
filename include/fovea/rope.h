/* SPDX-License-Identifier: Apache-2.0 */
/** Rotary position embedding.  Column pair (x_a, x_b) number i of a row at position p turns by
 *  angle p * frequency_i:
 *    y_a = x_a cos - x_b sin,  y_b = x_a sin + x_b cos
 *  Pairs are (i, i + half), or (2i, 2i + 1) when interleaved, counted from rope_begin.  Bits: the
 *  same every run, whatever else the batch holds.
 *
 *  Limits: none on widths and heads; every valid call has one kernel a backend, without tensor
 *  cores.
 *  Source: RoFormer (2104.09864); YaRN (2309.00071).
 *
 *  In fovea.h:
 *    rope_forward, rope_table_get: rotary position embedding and its tables
 *    bits, rope_*: no no no no no */
#ifndef FOVEA_ROPE_H
#define FOVEA_ROPE_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How rope_table_get bends the frequencies of a longer context.
 *
 *  LLAMA3 goes by wavelength.  Wavelengths above original_len / low_factor are divided by factor.
 *  Those below original_len / high_factor are kept.  Those between are blended.
 *
 *  YARN goes by pair number.  Pairs up to the one that turns high_factor times within original_len
 *  are kept.  Pairs from the one that turns low_factor times are divided by factor.  Those between
 *  are blended.  The two pairs are found from base and rounded outward.  The caller folds mscale
 *  into scale. */
typedef enum fovea_scaling {
  FOVEA_SCALING_NONE = 0,   /**< base^(-i / half) */
  FOVEA_SCALING_LINEAR = 1, /**< divided by factor */
  FOVEA_SCALING_LLAMA3 = 2, /**< divided, kept or blended by wavelength */
  FOVEA_SCALING_YARN = 3    /**< divided, kept or blended by pair number */
} fovea_scaling;

/** y = x rotated; with `inverse` by the negative angle, which is also the gradient. */
typedef struct fovea_rope_forward_params {
  size_t struct_size;       /**< sizeof(fovea_rope_forward_params) */
  fovea_tensor x;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor y;           /**< [out] (b, s, h, d) as x: may be x */
  fovea_tensor position;    /**< [in, optional] (b, s) i32: row of the table; outside it the rotated
                                 columns are NaN; absent: index in the sequence */
  fovea_tensor start;       /**< [in, optional] (r+1) i32: first packed row of each sequence; then b
                                 = 1; rows of none are not written */
  fovea_tensor cos;         /**< [in] (positions, half) f32 */
  fovea_tensor sin;         /**< [in] (positions, half) f32 */
  int32_t rope_begin;       /**< first rotated column; 2 * half columns turn, the rest is copied */
  int32_t rope_interleaved; /**< 1: pairs (2i, 2i + 1); 0: pairs (i, i + half) */
  int32_t inverse;          /**< 1: the negative angle */
  int32_t reserved;         /**< 0 */
} fovea_rope_forward_params;

FOVEA_API fovea_status fovea_rope_forward_workspace(
    fovea_context* ctx, const fovea_rope_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_rope_forward(
    fovea_context* ctx, const fovea_rope_forward_params* params);

/** Fills cos and sin for positions position_begin, position_begin + 1, ...  Angles are formed and
 *  reduced in f64: errors stay below 2^-22 for positions below 2^22. */
typedef struct fovea_rope_table_get_params {
  size_t struct_size;      /**< sizeof(fovea_rope_table_get_params) */
  fovea_tensor cos;        /**< [out] (positions, half) f32 */
  fovea_tensor sin;        /**< [out] (positions, half) f32 */
  fovea_tensor frequency;  /**< [in, optional] (half) f32: radians a position; absent: base^(-i /
                                half); scaling applies to either */
  int64_t position_begin;  /**< position of row 0; may be negative */
  int64_t original_len;    /**< context length of training; 0: 8192 (llama3), 4096 (yarn) */
  float base;              /**< 0: 10000; with frequency read by yarn alone */
  float factor;            /**< >= 1; 0: 1 */
  float low_factor;        /**< 0: 1 */
  float high_factor;       /**< 0: 4 (llama3), 32 (yarn) */
  int32_t scaling;         /**< fovea_scaling */
  int32_t reserved;        /**< 0 */
} fovea_rope_table_get_params;

FOVEA_API fovea_status fovea_rope_table_get_workspace(
    fovea_context* ctx, const fovea_rope_table_get_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_rope_table_get(
    fovea_context* ctx, const fovea_rope_table_get_params* params);

#ifdef __cplusplus
}
#endif

#endif
