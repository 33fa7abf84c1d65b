/* SPDX-License-Identifier: Apache-2.0 */
/** Exact softmax attention: prefill, decode, and the gradient.
 *
 *  For query row i at position p_i and key j at position p_j of one sequence (lengths Lq, Lk):
 *    x = scale * <q_i, k_j>  (+ scale * <q_value_i, v_j>)
 *    x = softcap * tanh(x / softcap)                          when softcap > 0
 *    score_ij = x - alibi_h * |p_i - p_j| + bias_ij
 *    o_i = sum_j exp(score_ij - lse_i) v_j,  lse_i = ln(sum_j exp(score_ij) + exp(sink_logit_h))
 *  over the keys row i sees:
 *    p_j < p_i + window_right (when > 0; causal means window_right = 1),
 *    p_j > p_i - window_left (when > 0) or p_j < sink_keys,
 *    floor(p_i / local_chunk) = floor(p_j / local_chunk) (when local_chunk > 0),
 *    its mask bit is 1, and the key's page and key_position are not negative.
 *  Positions are bottom-right aligned, p_i = i + Lk - Lq and p_j = j, unless given.  With equal
 *  lengths causal is the usual triangle.  One query against a cache of Lk keys sees all of it.
 *  Keys that stand for blocks of tokens have p_j = key_step * j + key_shift, and their rows
 *  p_i = i + context_len - Lq.
 *
 *        Lq = 2, Lk = 4, causal       Lq = 4, Lk = 2, causal
 *          keys  0 1 2 3                keys  0 1
 *          row 0 x x x .                row 0 . .    empty: o = 0, lse = -inf, gradients 0
 *          row 1 x x x x                row 1 . .
 *                                       row 2 x .
 *                                       row 3 x x
 *
 *  lse is a natural logarithm.  A row that sees no key gives o = 0 and lse = -inf, or with
 *  sink_logit lse = sink_logit_h.  Rows past query_len are not written.  Nothing past key_len, in
 *  unused pages or in padding counts, NaN included.  Sums are f32 on both backends.  On tensor
 *  cores, and in bf16 on CPUs with AMX, the probabilities are rounded to the dtype of q before the
 *  second product.  With AMX subnormal numbers of q, k and v count as 0.
 *
 *  An element of k or v in e4m3, e5m2 or i8 counts as code * scale.  k_scale and v_scale have the
 *  scales of each token, head and group of columns.  cache_append writes such caches.
 *
 *  Bits: the same every run on one device.  With `splits` given they do not depend on the batch
 *  size, with 0 they may; fovea.h has the table.
 *  Source: FlashAttention (2205.14135, 2307.08691), FlashDecoding, PagedAttention (2309.06180).
 *  Compressed keys: NSA (2502.11089), InfLLM (2402.04617).
 *
 *  In fovea.h:
 *    attention_forward, _backward: exact softmax attention: prefill, decode, paged caches
 *    bits, attention_forward with splits given: no no no no no
 *    bits, attention_forward: no no no may may
 *    bits, attention_backward: no no no may may */
#ifndef FOVEA_ATTENTION_H
#define FOVEA_ATTENTION_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Attention of q over k and v; prefill, decode over contiguous or paged caches alike.
 *
 *  Limits: d and e are 1 .. 576.  Every valid call has a kernel on the host and a portable one on
 *  CUDA.  Tensor cores ask for more:
 *    sm_80 and later  f16 or bf16, k and v as q; d and e multiples of 8 up to 256; rows of q, k, v,
 *                     o contiguous and 16-byte aligned; no q_value, no cos
 *                     or k and v both e4m3 or e5m2, or both i8, with one scale a row or none, and
 *                     widths that are multiples of 16; products of codes are in f16
 *    Hopper's own     sm_90, no codes, bias, alibi, mask, query_position or key_position; softcap
 *                     without head_window, local_chunk, sink_keys, context_len, key_step and
 *                     key_shift; pages of 16 tokens or more, without softcap and key_first
 *    wider heads      sm_90, one of d and e above 256, d up to 576 and e up to 512, or q_value with
 *                     d up to 64; no codes, bias, alibi, mask, query_position or key_position;
 *                     pages of any size.  v that is the first columns of k (MLA) is read once
 *    codes of these   e4m3 or i8; e 512 with q_value, v of codes, scales of 128, 256 or all its
 *                     columns (FP8-MLA); or d from 512 on, k and v of codes, v the first columns of
 *                     k, one scale a row for both; no softcap, sink_keys, head_window, local_chunk,
 *                     context_len, key_step or key_shift */
typedef struct fovea_attention_forward_params {
  size_t struct_size;          /**< sizeof(fovea_attention_forward_params) */
  fovea_tensor q;              /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;              /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q or e4m3
                                    e5m2 i8 */
  fovea_tensor v;              /**< [in] (rows, t, g, e) or paged (pool, page, g, e) as q or e4m3
                                    e5m2 i8: may be a view of k */
  fovea_tensor o;              /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;            /**< [out, optional] (b, h, s) f32: natural log of each row's sum */
  fovea_tensor q_value;        /**< [in, optional] (b, s, h, e) as q: second query, contracted with
                                    v (split MLA caches) */
  fovea_tensor query_start;    /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                    ascending from 0; then b = 1 */
  fovea_tensor key_start;      /**< [in, optional] (r+1) i32: first packed key of each sequence; not
                                    with page_table or cache_row */
  fovea_tensor query_len;      /**< [in, optional] (r) i32: rows in use, at most s or the packed
                                    extent */
  fovea_tensor key_len;        /**< [in, optional] (r) i32: keys in use, key_first's among them, at
                                    most t, packed extent or pages * page */
  fovea_tensor key_first;      /**< [in, optional] (r) i32: keys skipped at the left of each
                                    sequence (left padding); positions count from there */
  fovea_tensor page_table;     /**< [in, optional] (rows, pages) i32: pool page of each logical
                                    page; -1: absent, its keys are not seen */
  fovea_tensor cache_row;      /**< [in, optional] (r) i32: row of page_table, or of k and v, that a
                                    sequence reads; -1 or past the last: no keys; absent: its own
                                    number */
  fovea_tensor query_position; /**< [in, optional] (b, h, s) i32: absent: row + Lk - Lq */
  fovea_tensor key_position;   /**< [in, optional] (key_b, g, t) or paged (r, g, keys) i32:
                                    negative: no key here; absent: index in the sequence from
                                    key_first */
  fovea_tensor head_window;    /**< [in, optional] (h, 3) i32: window_left, window_right, sink_keys
                                    of each head; the three fields and causal stay 0 */
  fovea_tensor mask;           /**< [in, optional] (b, h, s, bytes) u8: bit j % 8 of byte j / 8 is 1
                                    where the row may see its sequence's key column j */
  fovea_tensor bias;           /**< [in, optional] (b, h, s, keys) f32 f16 bf16: added to scores;
                                    -inf masks; stride 0 broadcasts */
  fovea_tensor alibi;          /**< [in, optional] (r, h) f32: slope times distance is subtracted */
  fovea_tensor sink_logit;     /**< [in, optional] (h) f32: a learned term of the denominator: not
                                    scaled, capped or biased */
  fovea_tensor cos;            /**< [in, optional] (positions, half) f32: keys are stored unrotated
                                    and turned by their position after loading; v untouched */
  fovea_tensor sin;            /**< [in, optional] (positions, half) f32: with cos */
  int64_t query_max;           /**< longest sequence of rows, bounds the grid; 0: s */
  int64_t key_max;             /**< longest sequence of keys; 0: t, or pages * page */
  int64_t window_left;         /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;        /**< keys seen to the right, the row's own position counted; 0: all,
                                    1: none after itself */
  int64_t sink_keys;           /**< keys at positions below this stay visible through window_left */
  int64_t local_chunk;         /**< rows see keys of their own chunk of this many positions only; 0:
                                    off */
  float scale;                 /**< > 0; 0: 1 / sqrt(d), or 1 / sqrt(d + e) with q_value */
  float softcap;               /**< 0: none */
  int32_t causal;              /**< 1: window_right = 1 */
  int32_t rope_begin;          /**< first rotated column of k; 2 * half columns are turned */
  int32_t rope_interleaved;    /**< 1: pairs (2i, 2i + 1); 0: pairs (i, i + half) */
  int32_t splits;              /**< parts the keys of a row are cut into; 0: chosen from shapes */
  fovea_tensor k_scale;        /**< [in, optional] (rows, t, g, groups) or paged (pool, page, g,
                                    groups) f32: k counts times its scale, a scale for each of
                                    `groups` equal parts of d (e4m3 e5m2 i8 only); stride 0
                                    broadcasts; absent: 1 */
  fovea_tensor v_scale;        /**< [in, optional] (rows, t, g, groups) or paged (pool, page, g,
                                    groups) f32: as k_scale, of v */
  fovea_tensor context_len;    /**< [in, optional] (r) i32: p_i = i + context_len - Lq; absent: Lk;
                                    not with query_position */
  int64_t key_step;            /**< p_j = key_step * j + key_shift, below 2^31; not with
                                    key_position; 0: 1 */
  int64_t key_shift;           /**< position of the first key, may be negative; within 2^31 of 0 */
} fovea_attention_forward_params;

FOVEA_API fovea_status fovea_attention_forward_workspace(
    fovea_context* ctx, const fovea_attention_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_attention_forward(fovea_context* ctx,
                                               const fovea_attention_forward_params* params);

/** Gradients of attention_forward from dout (and dlse).  The fields it shares say what the forward
 *  was.  Each output is optional: absent = not computed.  Every element of an output is written:
 *  rows and keys past their lengths get 0.  dq, dk and dv are f32 sums, each rounded to q's dtype
 *  or stored in f32.  Sums over several calls then round once.
 *    delta_i = <dout_i, o_i> - dlse_i,  p_ij = exp(score_ij - lse_i)
 *    ds_ij = p_ij (<dout_i, v_j> - delta_i)
 *    dv_j = sum_i p_ij dout_i, dbias_ij = ds_ij, dx_ij = ds_ij (1 - (x_ij / softcap)^2)
 *    dq_i = scale sum_j dx_ij k_j,  dk_j = scale sum_i dx_ij q_i
 *    dsink_logit_h = - sum_i exp(sink_logit_h - lse_i) delta_i
 *    dalibi_bh = - sum_ij ds_ij |p_i - p_j|
 *  Tensor cores cut sums of f16 and bf16 products off instead of rounding them.  A sum over n rows,
 *  of all query heads that share the key, is off by up to n 2^-26 of its terms' sizes.  Bits: the
 *  same every run unless `nondeterministic`.  Workspace is linear in s and t.
 *
 *  Limits: d and e are 1 .. 576, no paged keys.  Every valid call has a kernel on the host and a
 *  portable one on CUDA.  Tensor cores ask for more:
 *    sm_80 and later  f16 or bf16, o and dout as q; d and e multiples of 8 up to 256; rows
 *                     contiguous and 16-byte aligned
 *    Hopper's own     sm_90, and no bias, alibi, mask, positions, head_window, softcap, local_chunk
 *                     or sink_keys
 *    wider heads      as sm_80 and later, up to 576; d + e, each rounded up to 64, up to 1088 on
 *                     sm_90 and 768 on sm_80 */
typedef struct fovea_attention_backward_params {
  size_t struct_size;          /**< sizeof(fovea_attention_backward_params) */
  fovea_tensor q;              /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;              /**< [in] (key_b, t, g, d) as q */
  fovea_tensor v;              /**< [in] (key_b, t, g, e) as q */
  fovea_tensor query_start;    /**< [in, optional] (r+1) i32: as in the forward, and so for the
                                    fields below */
  fovea_tensor key_start;      /**< [in, optional] (r+1) i32 */
  fovea_tensor query_len;      /**< [in, optional] (r) i32 */
  fovea_tensor key_len;        /**< [in, optional] (r) i32 */
  fovea_tensor key_first;      /**< [in, optional] (r) i32 */
  fovea_tensor query_position; /**< [in, optional] (b, h, s) i32 */
  fovea_tensor key_position;   /**< [in, optional] (key_b, g, t) i32 */
  fovea_tensor head_window;    /**< [in, optional] (h, 3) i32 */
  fovea_tensor mask;           /**< [in, optional] (b, h, s, bytes) u8 */
  fovea_tensor bias;           /**< [in, optional] (b, h, s, keys) f32 f16 bf16 */
  fovea_tensor alibi;          /**< [in, optional] (r, h) f32 */
  fovea_tensor sink_logit;     /**< [in, optional] (h) f32 */
  fovea_tensor o;              /**< [in] (b, s, h, e) as q or f32: of the forward */
  fovea_tensor lse;            /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor dout;           /**< [in] (b, s, h, e) as o: the gradient of o */
  fovea_tensor dlse;           /**< [in, optional] (b, h, s) f32: the gradient of lse; absent: 0 */
  fovea_tensor dq;             /**< [out, optional] (b, s, h, d) as q or f32 */
  fovea_tensor dk;             /**< [out, optional] (key_b, t, g, d) as q or f32 */
  fovea_tensor dv;             /**< [out, optional] (key_b, t, g, e) as q or f32 */
  fovea_tensor dsink_logit;    /**< [out, optional] (h) f32: needs sink_logit */
  fovea_tensor dbias;          /**< [out, optional, sums] (b, h, s, keys) f32: needs bias; a stride
                                    of 0 receives the ordered sum over that dimension */
  fovea_tensor dalibi;         /**< [out, optional, sums] (r, h) f32: needs alibi */
  int64_t query_max;           /**< as in the forward, and so for the fields below */
  int64_t key_max;             /**< 0: t */
  int64_t window_left;         /**< 0: all */
  int64_t window_right;        /**< 0: all */
  int64_t sink_keys;           /**< 0: none */
  int64_t local_chunk;         /**< 0: off */
  float scale;                 /**< 0: 1 / sqrt(d) */
  float softcap;               /**< 0: none */
  int32_t causal;              /**< 1: window_right = 1 */
  int32_t nondeterministic;    /**< 1: a faster kernel whose sums may change order may be used */
} fovea_attention_backward_params;

FOVEA_API fovea_status fovea_attention_backward_workspace(
    fovea_context* ctx, const fovea_attention_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_attention_backward(fovea_context* ctx,
                                                const fovea_attention_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
