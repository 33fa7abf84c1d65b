/* SPDX-License-Identifier: Apache-2.0 */
/** Full multi-token attention: conv_attention.h with its heads mixed, before or after the softmax,
 *  and the norm of each head that follows.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.  What proves itself moves to the stable headers under a name without `x_`.
 *
 *  Heads are mixed in groups of group_heads neighbours.  Head a takes mix[a, n] times head base +
 *  n, with base = a - a % group_heads.  With S, A of conv_attention.h:
 *    B^a = sum_n mix_before[a, n] A^(base + n)    absent: B = A
 *    P^a_ij = exp(B^a_ij - lse^a_i) over the keys row i sees, lse^a_i = ln(sum_j exp(B^a_ij))
 *    R^a = sum_n mix_after[a, n] P^(base + n)     absent: R = P
 *    o^a_i = sum_j R^a_ij v^a_j,  v^a of the key head of a
 *  Groups and the heads of a key head need not agree.  Groups of fewer heads are written as zeros
 *  in a larger one.  No convolution is a weight (h, 1, 1) of 1, whose head stride may be 0.
 *
 *  The rules of conv_attention.h hold: history, packed and paged forms, empty rows (o = 0, lse =
 *  -inf).  Nothing outside a sequence counts, NaN included.  Memory is linear in s and t.  Bits:
 *  the same every run; place, neighbours and size of the batch may change them.
 *
 *  Limits: d and e are 1 .. 576, taps 16 x 31, groups of 16 heads; norms have no limit.  Every
 *  valid call has a kernel on the host and a portable one on CUDA, without tensor cores.
 *  Source: Multi-Token Attention (2504.00927). */
#ifndef FOVEA_EXPERIMENTAL_MULTI_TOKEN_H
#define FOVEA_EXPERIMENTAL_MULTI_TOKEN_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Convolutional attention with mixed heads; prefill, decode over contiguous or paged caches. */
typedef struct fovea_x_multi_token_forward_params {
  size_t struct_size;       /**< sizeof(fovea_x_multi_token_forward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;           /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q */
  fovea_tensor v;           /**< [in] (rows, t, g, e) or paged (pool, page, g, e) as q: may be a
                                 view of k */
  fovea_tensor weight;      /**< [in] (h, kernel_rows, kernel_columns) as q or f32: 1 .. 16 rows,
                                 the last is the row itself; 1 .. 31 columns */
  fovea_tensor mix_before;  /**< [in, optional] (h, group_heads) f32: 1 .. 16 heads a group, a
                                 divisor of h */
  fovea_tensor mix_after;   /**< [in, optional] (h, group_heads) f32: the same groups */
  fovea_tensor o;           /**< [out] (b, rows_out, h, e) as q or f32 */
  fovea_tensor lse;         /**< [out, optional] (b, h, rows_out) f32: of B, before mix_after; for
                                 the backward */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                 ascending from 0; then b = 1 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32: first packed key of each sequence; not
                                 with page_table or cache_row */
  fovea_tensor query_len;   /**< [in, optional] (r) i32: rows in use, history's among them, at most
                                 s or the packed extent */
  fovea_tensor key_len;     /**< [in, optional] (r) i32: keys in use, at most t, packed extent or
                                 pages * page */
  fovea_tensor page_table;  /**< [in, optional] (rows, pages) i32: pool page of each logical page;
                                 -1: absent, its keys are not seen */
  fovea_tensor cache_row;   /**< [in, optional] (r) i32: row of page_table, or of k and v, that a
                                 sequence reads; -1 or past the last: no keys; absent: its own
                                 number */
  int64_t query_max;        /**< longest sequence of rows, history's among them, bounds the grid; 0:
                                 s */
  int64_t key_max;          /**< longest sequence of keys; 0: t, or pages * page */
  int64_t history;          /**< rows at the begin of each sequence of q that have no output */
  float scale;              /**< > 0; 0: 1 / sqrt(d) */
  int32_t causal;           /**< 1: row i sees keys up to i + Lk - Lq */
} fovea_x_multi_token_forward_params;

FOVEA_API fovea_status fovea_x_multi_token_forward_workspace(
    fovea_context* ctx, const fovea_x_multi_token_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_multi_token_forward(
    fovea_context* ctx, const fovea_x_multi_token_forward_params* params);

/** Gradients of x_multi_token_forward from dout.  The fields it shares say what the forward was.
 *  Each output is optional: absent = not computed.  Every element of an output is written: rows and
 *  keys past their lengths get 0.  With base and n as above:
 *    dR^a_ij = <dout^a_i, v^a_j>,  X^an_i = sum_j dR^a_ij P^(base + n)_ij
 *    dP^(base + n) = sum_a mix_after[a, n] dR^a,  delta^(base + n)_i = sum_a mix_after[a, n] X^an_i
 *    dmix_after[a, n] = sum_i X^an_i,  dB_ij = P_ij (dP_ij - delta_i)
 *    dmix_before[a, n] = sum_ij dB^a_ij A^(base + n)_ij
 *    dA^(base + n) = sum_a mix_before[a, n] dB^a
 *  and dweight, dS, dq, dk from dA as in conv_attention.h, dv_j = sum_i R_ij dout_i. */
typedef struct fovea_x_multi_token_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_multi_token_backward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;           /**< [in] (key_b, t, g, d) as q */
  fovea_tensor v;           /**< [in] (key_b, t, g, e) as q */
  fovea_tensor weight;      /**< [in] (h, kernel_rows, kernel_columns) as q or f32 */
  fovea_tensor mix_before;  /**< [in, optional] (h, group_heads) f32 */
  fovea_tensor mix_after;   /**< [in, optional] (h, group_heads) f32 */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: as in the forward, and so for the fields
                                 below */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor key_len;     /**< [in, optional] (r) i32 */
  fovea_tensor lse;         /**< [in] (b, h, rows_out) f32: of the forward */
  fovea_tensor dout;        /**< [in] (b, rows_out, h, e) as q or f32: the gradient of o */
  fovea_tensor dq;          /**< [out, optional] (b, s, h, d) as q: rows of history have theirs
                                 too */
  fovea_tensor dk;          /**< [out, optional] (key_b, t, g, d) as q */
  fovea_tensor dv;          /**< [out, optional] (key_b, t, g, e) as q */
  fovea_tensor dweight;     /**< [out, optional, sums] (h, kernel_rows, kernel_columns) f32: a
                                 stride of 0 receives the ordered sum over that dimension */
  fovea_tensor dmix_before; /**< [out, optional, sums] (h, group_heads) f32: with mix_before, as
                                 dweight */
  fovea_tensor dmix_after;  /**< [out, optional, sums] (h, group_heads) f32: with mix_after, as
                                 dweight */
  int64_t query_max;        /**< as in the forward, and so for the fields below */
  int64_t key_max;          /**< 0: t */
  int64_t history;          /**< 0: none */
  float scale;              /**< 0: 1 / sqrt(d) */
  int32_t causal;           /**< 1: row i sees keys up to i + Lk - Lq */
} fovea_x_multi_token_backward_params;

FOVEA_API fovea_status fovea_x_multi_token_backward_workspace(
    fovea_context* ctx, const fovea_x_multi_token_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_multi_token_backward(
    fovea_context* ctx, const fovea_x_multi_token_backward_params* params);

/** The root-mean-square norm of each head, a group of its own, scaled by depth:
 *    y_c = factor gain_c x_c / sqrt(mean_c(x_c^2) + eps)
 *  Depth enters as factor: 1 - lambda with lambda = 0.8 - 0.6 exp(-0.3 layer) as differential
 *  transformers have it.  Rows past query_len are neither read nor written. */
typedef struct fovea_x_group_norm_forward_params {
  size_t struct_size;     /**< sizeof(fovea_x_group_norm_forward_params) */
  fovea_tensor x;         /**< [in] (b, s, h, e) f32 f16 bf16: o of the attention */
  fovea_tensor gain;      /**< [in, optional] (h, e) as x or f32: absent: 1; a stride of 0 shares
                               it */
  fovea_tensor y;         /**< [out] (b, s, h, e) as x or f32 */
  fovea_tensor query_len; /**< [in, optional] (b) i32: rows in use, 0 .. s */
  float factor;           /**< > 0; 0: 1 */
  float eps;              /**< > 0; 0: 1e-5 */
} fovea_x_group_norm_forward_params;

FOVEA_API fovea_status fovea_x_group_norm_forward_workspace(
    fovea_context* ctx, const fovea_x_group_norm_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_group_norm_forward(
    fovea_context* ctx, const fovea_x_group_norm_forward_params* params);

/** Gradients of x_group_norm_forward from dy.  Each output is optional: absent = not computed.
 *  With z = 1 / sqrt(mean_c(x_c^2) + eps):
 *    dx_c = factor z (gain_c dy_c - x_c z^2 mean_c(gain_c dy_c x_c))
 *    dgain_c = factor sum dy_c x_c z over the rows of all batches
 *  dx is written in every row, 0 past query_len. */
typedef struct fovea_x_group_norm_backward_params {
  size_t struct_size;     /**< sizeof(fovea_x_group_norm_backward_params) */
  fovea_tensor x;         /**< [in] (b, s, h, e) f32 f16 bf16 */
  fovea_tensor gain;      /**< [in, optional] (h, e) as x or f32 */
  fovea_tensor query_len; /**< [in, optional] (b) i32 */
  fovea_tensor dy;        /**< [in] (b, s, h, e) as x or f32: the gradient of y */
  fovea_tensor dx;        /**< [out, optional] (b, s, h, e) as x */
  fovea_tensor dgain;     /**< [out, optional, sums] (h, e) f32: with or without gain; a stride of 0
                               receives the ordered sum over that dimension */
  float factor;           /**< 0: 1 */
  float eps;              /**< 0: 1e-5 */
} fovea_x_group_norm_backward_params;

FOVEA_API fovea_status fovea_x_group_norm_backward_workspace(
    fovea_context* ctx, const fovea_x_group_norm_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_group_norm_backward(
    fovea_context* ctx, const fovea_x_group_norm_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
