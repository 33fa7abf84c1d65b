/* SPDX-License-Identifier: Apache-2.0 */
/** Attention that rounds its operands to 8 or 4 bits: quant_quantize of k, q and v, then
 *  quant_forward, in one call on one workspace.  x_quant_backward is SageBwd's gradient.
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
 *    SageBwd               code I8, v_code I8, blocks of 64, k_smooth SEQUENCE */
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
 *  With index rows see the keys of lists, and skip_margin skips tiles of them: both as in
 *  quant_forward.
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
  fovea_tensor index;       /**< [in, optional] (b, x, n, keep) i32: entries of each list row */
  fovea_tensor index_count; /**< [in, optional] (b, x, n) i32: entries in use; with index */
  fovea_tensor skipped;     /**< [out, optional] (1) i64: tiles that were skipped; with index */
  int64_t query_max;        /**< longest sequence of rows, bounds the grid; 0: s */
  int64_t key_max;          /**< longest sequence of keys; 0: t */
  int64_t window_left;      /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;     /**< keys seen to the right, the row's own position counted; 0: all, 1:
                                 none after itself */
  int64_t seed;             /**< signs of the rotation; with hadamard */
  float scale;              /**< > 0; 0: 1 / sqrt(d) */
  float softcap;            /**< > 0; 0: none */
  float v_scale_max;        /**< the largest e4m3 code of v; 0: 448 */
  float skip_margin;        /**< in nats, with index; 0: nothing is skipped */
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
  int32_t block_rows;       /**< rows of a list row: 1 .. 128; 0 without index */
  int32_t block_keys;       /**< keys of an entry: a multiple of 64; 0 without index */
  int32_t entry_keys;       /**< from an entry's first key to the next's; 0: block_keys */
  int32_t reserved;         /**< 0 */
} fovea_x_quantised_forward_params;

FOVEA_API fovea_status fovea_x_quantised_forward_workspace(
    fovea_context* ctx, const fovea_x_quantised_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_quantised_forward(
    fovea_context* ctx, const fovea_x_quantised_forward_params* params);

/** Gradients of attention in 8 bits from dout: SageBwd's, from the o and lse of its forward,
 *  x_quantised_forward by the name sagebwd.  q^ and k^ are the codes of that forward: i8, a scale
 *  for each block of 64 tokens, k less its mean with k_smooth.  With p_ij and ds_ij of the pairs
 *  that see each other, 0 of the others:
 *    x_ij = scale q_scale k_scale <q^_i, k^_j> + scale <q_i, k_mean>,  p_ij = exp(x_ij - lse_i)
 *    ds_ij = p_ij (<dout_i, v_j> - <dout_i, o_i>)
 *    dv_j = sum_i p^_ij dout^_i
 *    dq_i = scale sum_j ds^_ij k_scale k^_j,  dk_j = scale sum_i ds^_ij q_scale q^_i
 *  ^ of p and ds: codes of i8 times their scale, for each tile of 64 rows and 64 keys.  Blocks and
 *  tiles are counted from a sequence's first token.  ^ of dout: the same for each block of 64 rows:
 *    a = the largest magnitude,  x^ = round(127 x / a) a / 127, to nearest even
 *  0 where a is below 2^-100.  A NaN or an infinity is in every number of its block or tile.  So it
 *  is in the gradients of all rows and keys of the tiles that it meets.
 *
 *  Four of the five products are so of codes; <dout_i, v_j> is of dout and v as they are.  Sums of
 *  codes are exact.  Sums over tiles are f32.  dq needs no term of k_mean: a row's ds sum to 0.
 *
 *  Each output is optional: absent = not computed.  Every element of an output is written: 0 where
 *  no sequence is, and in rows that see no key.  Sums have a fixed order: the same bits every run.
 *
 *  Sequences are full, or packed by *_start.  SageBwd has neither softcap nor sinks, so there are
 *  no fields of them.  Limits: d and e are 1 .. 576.  On CUDA f16 and bf16 of up to 128 columns
 *  run on tensor cores, other calls in f32.
 *  Workspace: codes and scales of q and k, and their mean; on CUDA two numbers a row, more codes.
 *  Hopper adds sums of dq in f32, 512 bytes for each row and head.
 *  Source: SageBwd (2505.11594), algorithm 3. */
typedef struct fovea_x_quant_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_quant_backward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;           /**< [in] (key_b, t, g, d) as q */
  fovea_tensor v;           /**< [in] (key_b, t, g, e) as q */
  fovea_tensor o;           /**< [in] (b, s, h, e) f32 f16 bf16: of the forward */
  fovea_tensor lse;         /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor dout;        /**< [in] (b, s, h, e) as o: the gradient of o */
  fovea_tensor dq;          /**< [out, optional] (b, s, h, d) as q */
  fovea_tensor dk;          /**< [out, optional] (key_b, t, g, d) as q */
  fovea_tensor dv;          /**< [out, optional] (key_b, t, g, e) as q */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                 ascending from 0; then b = 1 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32: first packed key of each sequence */
  int64_t query_max;        /**< longest sequence of rows, bounds the grid; 0: s */
  int64_t key_max;          /**< longest sequence of keys; 0: t */
  int64_t window_left;      /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;     /**< keys seen to the right, the row's own position counted; 0: all, 1:
                                 none after itself */
  float scale;              /**< > 0; 0: 1 / sqrt(d) */
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t k_smooth;         /**< fovea_smooth: NONE or SEQUENCE, as the forward's */
  int32_t reserved;         /**< 0 */
} fovea_x_quant_backward_params;

FOVEA_API fovea_status fovea_x_quant_backward_workspace(
    fovea_context* ctx, const fovea_x_quant_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_quant_backward(
    fovea_context* ctx, const fovea_x_quant_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
