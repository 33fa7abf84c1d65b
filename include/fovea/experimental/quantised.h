/* SPDX-License-Identifier: Apache-2.0 */
/** Attention that rounds its operands to 8 or 4 bits: quant_quantize of k, q and v, then
 *  quant_forward, in one call on one workspace.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  What each method gives (fovea_recipe_get has the numbers):
 *    FlashAttention-3 FP8  code E4M3, v_code E4M3
 *    SageAttention         code I8, k_smooth SEQUENCE, v_code PLAIN, p_format HALF
 *    SageAttention2        code I8 or I4, THREAD groups, k_smooth SEQUENCE, v_group CHANNEL
 *    SageAttention2++      the same with v_scale_max 2.25, accumulate HALF_64
 *    SageAttention3        code E2M1, MICRO16 groups, q_smooth BLOCK, k_smooth SEQUENCE
 *    SageBwd's forward     code I8, v_code I8, blocks of 64, k_smooth SEQUENCE */
#ifndef FOVEA_EXPERIMENTAL_QUANTISED_H
#define FOVEA_EXPERIMENTAL_QUANTISED_H

#include "../core.h"
#include "../quant.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What an operand is rounded to. */
typedef enum fovea_x_code {
  FOVEA_X_CODE_E4M3 = 0, /**< 8 bits, floating point */
  FOVEA_X_CODE_I8 = 1,   /**< 8 bits, integers */
  FOVEA_X_CODE_I4 = 2,   /**< 4 bits, integers; not of v */
  FOVEA_X_CODE_E2M1 = 3, /**< 4 bits, floating point, with scales of 16 or 32 values */
  FOVEA_X_CODE_PLAIN = 4 /**< v stays as it is: f16 or bf16 */
} fovea_x_code;

/** Attention of codes of q, k and v.
 *
 *  code is what q and k are rounded to, v_code what v is.  With v_code PLAIN v_group and v_block
 *  are 0.  q_smooth is NONE or BLOCK, k_smooth NONE or SEQUENCE.
 *
 *  Codes, groups, smoothing and the order of arithmetic are those of quant_quantize and
 *  quant_forward (quant.h).  k is quantised first, then q, then v, whose codes are transposed.
 *  k_smooth takes k's mean over its sequence off; lse is that of the unsmoothed scores.  q_smooth
 *  takes the mean of each 128 rows of q off and adds the scores that it makes.
 *
 *  Sequences are full, or packed by *_start: padding would enter means and scales.
 *  Errors name this operation, then the part that refuses, with that part's names of fields.
 *  Limits are those of the parts.  Workspace: theirs, codes, scales and means.  q_smooth takes
 *  4 b h ceil(s / 128) t bytes beside these.
 *  Sources: FlashAttention-3 (2407.08608), SageAttention (2410.02367), SageAttention2
 *  (2411.10958), SageAttention2++ (2505.21136), SageAttention3 and SageBwd (2505.11594). */
typedef struct fovea_x_quantised_forward_params {
  size_t struct_size;       /**< sizeof(fovea_x_quantised_forward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;           /**< [in] (key_b, t, g, d) as q */
  fovea_tensor v;           /**< [in] (key_b, t, g, e) as q */
  fovea_tensor o;           /**< [out] (b, s, h, e) f32 f16 bf16 */
  fovea_tensor lse;         /**< [out, optional] (b, h, s) f32: natural log of each row's sum */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                 ascending from 0; then b = 1 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32: first packed key of each sequence */
  fovea_tensor sink_logit;  /**< [in, optional] (h) f32: a learned term of the denominator: not
                                 scaled or capped */
  int64_t query_max;        /**< longest sequence of rows, bounds the grid; 0: s */
  int64_t key_max;          /**< longest sequence of keys; 0: t */
  int64_t window_left;      /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;     /**< keys seen to the right, the row's own position counted; 0: all, 1:
                                 none after itself */
  int64_t seed;             /**< signs of the rotation; with hadamard */
  float scale;              /**< > 0; 0: 1 / sqrt(d) */
  float softcap;            /**< > 0; 0: none */
  float v_scale_max;        /**< the largest e4m3 code of v; 0: 448 */
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t hadamard;         /**< 1: rotate the columns of q and k first */
  int32_t code;             /**< fovea_x_code */
  int32_t v_code;           /**< fovea_x_code */
  int32_t q_group;          /**< fovea_scale_group */
  int32_t k_group;          /**< fovea_scale_group */
  int32_t v_group;          /**< fovea_scale_group */
  int32_t q_block;          /**< rows that share an entry of q's scales: quant_quantize's block */
  int32_t k_block;          /**< the same of k */
  int32_t v_block;          /**< the same of v */
  int32_t q_smooth;         /**< fovea_smooth */
  int32_t k_smooth;         /**< fovea_smooth */
  int32_t p_format;         /**< fovea_p_format */
  int32_t accumulate;       /**< fovea_accumulate */
  int32_t reserved;         /**< 0 */
} fovea_x_quantised_forward_params;

FOVEA_API fovea_status fovea_x_quantised_forward_workspace(
    fovea_context* ctx, const fovea_x_quantised_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_quantised_forward(
    fovea_context* ctx, const fovea_x_quantised_forward_params* params);

#ifdef __cplusplus
}
#endif

#endif
