/* SPDX-License-Identifier: Apache-2.0 */
/** Convolutional (multi-token) attention: the logits of a head are convolved over rows and keys
 *  before the softmax.  A sequence has lengths Lq and Lk; q, k, v are those of the head, and W =
 *  weight[head] has kernel_rows x kernel_columns taps.  For row i and key j:
 *    S_ij = scale * <q_i, k_j>  where row i sees key j, else 0
 *    A_ij = sum_uv W[u,v] S[i - (kernel_rows - 1) + u, j - left + v]
 *           left = (kernel_columns - 1) / 2
 *    o_i = sum_j exp(A_ij - lse_i) v_j,  lse_i = ln(sum_j exp(A_ij))  over the keys row i sees
 *  Row i sees key j when j < Lk, j's page is present and, with causal, j <= i + Lk - Lq.  Rows and
 *  keys outside the sequence count as 0 in A: rows are those of the same sequence, i and earlier
 *  ones.  W = 1 at [kernel_rows - 1, left] and 0 elsewhere is attention_forward; even
 *  kernel_columns have one tap more to the right.  A row never depends on a key it does not see.
 *
 *  history: the first rows of each sequence feed only the convolution of later ones.  They count in
 *  Lq, but o and lse hold the other rows alone, rows_out = s - history.  Decoding n rows is a call
 *  with the kernel_rows - 1 query rows before them as history; it gives the full forward's rows.
 *  Packed: every sequence has at least `history` rows, rows_out = s - r * history, and sequence i
 *  begins at row query_start[i] - i * history of o.
 *
 *  lse is a natural logarithm.  A row that sees no key gives o = 0 and lse = -inf.  Rows past
 *  query_len are not written.  Nothing past key_len, in unused pages or in padding counts, NaN
 *  included.  Sums are f32.  Where q is f16 or bf16, S, weight and dA may enter their convolutions
 *  as f16.  S is then in units of 64, dA in units of its head's largest |dout|.  Bits: the same
 *  every run on one device; fovea.h has the table.
 *  Source: Multi-Token Attention (2504.00927).
 *
 *  In fovea.h:
 *    conv_attention_forward, _backward: logits convolved over rows and keys before the softmax
 *    bits, conv_attention_forward: no may no may may
 *    bits, conv_attention_backward: no no no may may */
#ifndef FOVEA_CONV_ATTENTION_H
#define FOVEA_CONV_ATTENTION_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Convolutional attention of q over k and v; prefill, decode over contiguous or paged caches.
 *
 *  Limits: d and e are 1 .. 576, taps 16 x 31.  Every valid call has a kernel on the host and a
 *  portable one on CUDA.  Tensor cores ask for more:
 *    sm_90            f16 or bf16; d and e multiples of 8 up to 128; up to 12 x 17 taps; no pages;
 *                     rows of q, k, v, o contiguous and 16-byte aligned */
typedef struct fovea_conv_attention_forward_params {
  size_t struct_size;       /**< sizeof(fovea_conv_attention_forward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;           /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q */
  fovea_tensor v;           /**< [in] (rows, t, g, e) or paged (pool, page, g, e) as q: may be a
                                 view of k */
  fovea_tensor weight;      /**< [in] (h, kernel_rows, kernel_columns) as q or f32: 1 .. 16 rows,
                                 the last is the row itself; 1 .. 31 columns */
  fovea_tensor o;           /**< [out] (b, rows_out, h, e) as q or f32 */
  fovea_tensor lse;         /**< [out, optional] (b, h, rows_out) f32: natural log of each row's
                                 sum */
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
  int32_t splits;           /**< parts the keys of a row are cut into; 0: chosen from shapes */
  int32_t reserved;         /**< 0 */
} fovea_conv_attention_forward_params;

FOVEA_API fovea_status fovea_conv_attention_forward_workspace(
    fovea_context* ctx, const fovea_conv_attention_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_conv_attention_forward(
    fovea_context* ctx, const fovea_conv_attention_forward_params* params);

/** Gradients of conv_attention_forward from dout.  The fields it shares say what the forward was.
 *  Each output is optional: absent = not computed.  Every element of an output is written: rows and
 *  keys past their lengths get 0.
 *    delta_i = <dout_i, o_i>,  P_ij = exp(A_ij - lse_i),  dA_ij = P_ij (<dout_i, v_j> - delta_i)
 *    dweight[u,v] = sum_ij dA_ij S[i - (kernel_rows - 1) + u, j - left + v]   over all sequences
 *    dS_mn = sum_uv W[u,v] dA[m + (kernel_rows - 1) - u, n + left - v],  0 where m does not see n
 *    dq_m = scale sum_n dS_mn k_n,  dk_n = scale sum_m dS_mn q_m,  dv_j = sum_i P_ij dout_i
 *  P and dA are 0 where a row does not see a key, and in rows of history.  Forward and backward may
 *  round differently: one takes S and weight as f16, the other does not (o in f32, rows not
 *  aligned).  P is then off by a factor of up to exp(2^-10 sum_uv |W S|), since lse is taken as it
 *  is given.  Bits: the same every run.  Workspace is linear in s and t.
 *
 *  Limits: d and e are 1 .. 576, taps 16 x 31, no paged keys.  Every valid call has a kernel on the
 *  host and a portable one on CUDA.  Tensor cores ask for more:
 *    sm_90            f16 or bf16, o and dout as q; d and e multiples of 8 up to 128; up to 12 x 12
 *                     taps; rows contiguous and 16-byte aligned */
typedef struct fovea_conv_attention_backward_params {
  size_t struct_size;       /**< sizeof(fovea_conv_attention_backward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;           /**< [in] (key_b, t, g, d) as q */
  fovea_tensor v;           /**< [in] (key_b, t, g, e) as q */
  fovea_tensor weight;      /**< [in] (h, kernel_rows, kernel_columns) as q or f32 */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: as in the forward, and so for the fields
                                 below */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor key_len;     /**< [in, optional] (r) i32 */
  fovea_tensor o;           /**< [in] (b, rows_out, h, e) as q or f32: of the forward */
  fovea_tensor lse;         /**< [in] (b, h, rows_out) f32: of the forward */
  fovea_tensor dout;        /**< [in] (b, rows_out, h, e) as o: the gradient of o */
  fovea_tensor dq;          /**< [out, optional] (b, s, h, d) as q: rows of history have theirs
                                 too */
  fovea_tensor dk;          /**< [out, optional] (key_b, t, g, d) as q */
  fovea_tensor dv;          /**< [out, optional] (key_b, t, g, e) as q */
  fovea_tensor dweight;     /**< [out, optional, sums] (h, kernel_rows, kernel_columns) f32: a
                                 stride of 0 receives the ordered sum over that dimension */
  int64_t query_max;        /**< as in the forward, and so for the fields below */
  int64_t key_max;          /**< 0: t */
  int64_t history;          /**< 0: none */
  float scale;              /**< 0: 1 / sqrt(d) */
  int32_t causal;           /**< 1: row i sees keys up to i + Lk - Lq */
  int32_t nondeterministic; /**< 0 or 1, without effect: every kernel has one order of sums */
  int32_t reserved;         /**< 0 */
} fovea_conv_attention_backward_params;

FOVEA_API fovea_status fovea_conv_attention_backward_workspace(
    fovea_context* ctx, const fovea_conv_attention_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_conv_attention_backward(
    fovea_context* ctx, const fovea_conv_attention_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
