/* SPDX-License-Identifier: Apache-2.0 */
/** Compressed attention: the last keys, and keys that each stand for a block of tokens, in one
 *  softmax, one call and one workspace.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  Row i of a sequence is at position p = i + Lk - Lq.  Compressed key c stands for the keys
 *  [c compress_step, (c + 1) compress_step), and rows from the last of these on may see it.  Row i
 *  sees two sets:
 *    window      the keys j with p - window < j <= p
 *    compressed  the c with (c + 1) compress_step - 1 <= p: all, or with index_q the `count`
 *                with the largest sum over the index's heads of
 *                weight max(index_scale <index_q, index_k_c>, 0)
 *  Equal scores: the lower c first.  With x = scale <q, k> of a key of either set:
 *    lse = ln(sum exp(x) + exp(sink_logit)),  o = sum exp(x - lse) v
 *
 *  DeepSeek-V4, whose two layers are CSA (with index_q, steps of 4) and HCA (all, steps of 128).
 *  Keys are values there: v is k, and v_compressed is k_compressed.  The steps around a call, of a
 *  prompt, of chunks of rows, or of one new token:
 *    before  cache_append writes k.  Where a block is full, x_pool_forward with GATED makes its
 *            key, with overlap for CSA.  cache_append norms and rotates it into k_compressed, by a
 *            table whose rows are compress_step apart.  index_k is made the same way.
 *    after   rope_forward with inverse turns o's rotated columns back. */
#ifndef FOVEA_EXPERIMENTAL_COMPRESSED_H
#define FOVEA_EXPERIMENTAL_COMPRESSED_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Attention of q over a window of k and v and over compressed keys; prefill and decode, contiguous
 *  and paged caches.
 *
 *  Rows past query_len are neither read nor written.  Keys past key_len and compressed keys past
 *  compressed_len are not read.  A row that sees no key gives o = 0 and lse = -inf, or sink_logit.
 *
 *  Errors name this operation, then the part that refuses, with that part's names of fields.  The
 *  parts are attention_forward over the window, x_select_token and x_sparse_forward over the
 *  compressed keys, or attention_forward over all of them, and merge_forward.  Limits are theirs.
 *  Where lists have room for every compressed key, attention_forward takes all and needs no list.
 *  o of a part is rounded to the dtype of o.  Workspace: theirs, o of two parts, and the lists that
 *  no output holds.
 *  Source: the report of DeepSeek-V4, sections 2.3.1 and 2.3.2. */
typedef struct fovea_x_compressed_forward_params {
  size_t struct_size;        /**< sizeof(fovea_x_compressed_forward_params) */
  fovea_tensor q;            /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;            /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q */
  fovea_tensor v;            /**< [in] (rows, t, g, e) or paged (pool, page, g, e) as q: may be a
                                  view of k */
  fovea_tensor k_compressed; /**< [in] (b, u, g, d) as q: more than there are is fine; fewer
                                    with compressed_len alone */
  fovea_tensor v_compressed; /**< [in] (b, u, g, e) as q: may be a view of k_compressed */
  fovea_tensor o;            /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;          /**< [out, optional] (b, h, s) f32: natural log of each row's sum */
  fovea_tensor index_q;      /**< [in, optional] (b, s, index_heads, index_width) f32 f16 bf16:
                                  with index_k; absent: every compressed key */
  fovea_tensor index_k;      /**< [in, optional] (b, u, index_keys, index_width) f32 f16
                                  bf16 */
  fovea_tensor weight;     /**< [in, optional] (b, s, index_heads) f32: needs index_q; absent: 1 */
  fovea_tensor sink_logit; /**< [in, optional] (h) f32: a learned term of the denominator */
  fovea_tensor query_len;  /**< [in, optional] (r) i32: rows in use */
  fovea_tensor key_len;    /**< [in, optional] (r) i32: keys in use; with compressed_len */
  fovea_tensor compressed_len; /**< [in, optional] (r) i32: compressed keys in use:
                                    floor(key_len / compress_step), or fewer */
  fovea_tensor page_table;  /**< [in, optional] (rows, pages) i32: pool page of each page of k and
                                 v; -1: absent */
  fovea_tensor index;       /**< [out, optional] (b, s, keep) i32: the compressed keys of each
                                 row, as x_select_token writes them; with index_q; those past
                                 `keep` are cut */
  fovea_tensor index_count; /**< [out, optional] (b, s) i32: keys wanted; with index */
  int64_t key_max;          /**< longest sequence of keys; 0: t, or pages * page */
  int64_t compress_step;    /**< keys of a compressed key, 1 .. 65536; 0: 4 */
  int64_t count;            /**< compressed keys of a list; 0: 512 */
  int64_t window;           /**< keys of the window, the row's own counted; 0: 128 */
  float scale;              /**< of attention's scores, > 0; 0: 1 / sqrt(d) */
  float index_scale;        /**< of the index's, > 0; 0: 1 / sqrt(index_width) */
} fovea_x_compressed_forward_params;

FOVEA_API fovea_status fovea_x_compressed_forward_workspace(
    fovea_context* ctx, const fovea_x_compressed_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_compressed_forward(fovea_context* ctx,
                                                  const fovea_x_compressed_forward_params* params);

/** Gradients of x_compressed_forward from dout, o and lse, under the forward's lists.  The fields
 *  it shares say what the forward was.  Each output is optional: absent = not computed.  Every
 *  element of an output is written: rows and keys past their lengths get 0.  The index has no
 *  gradient here.
 *    delta_i = <dout_i, o_i>,  p = exp(x - lse_i) of each key that row i sees
 *    ds = p (<dout_i, v> - delta_i)
 *    dq_i = scale sum ds k,  dk = scale sum ds q_i,  dv = sum p dout_i
 *    dsink_logit_h = - sum_i exp(sink_logit_h - lse_i) delta_i
 *  Where keys are values their gradient is dk + dv.
 *
 *  Errors and limits are as in the forward.  The parts are attention_backward, x_sparse_backward
 *  and x_combine_forward; dq of either set of keys is rounded to the dtype of q.  Bits: the same
 *  every run.  No paged keys. */
typedef struct fovea_x_compressed_backward_params {
  size_t struct_size;          /**< sizeof(fovea_x_compressed_backward_params) */
  fovea_tensor q;              /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;              /**< [in] (b, t, g, d) as q */
  fovea_tensor v;              /**< [in] (b, t, g, e) as q */
  fovea_tensor k_compressed;   /**< [in] (b, u, g, d) as q: of t keys; any u with
                                    compressed_len */
  fovea_tensor v_compressed;   /**< [in] (b, u, g, e) as q */
  fovea_tensor sink_logit;     /**< [in, optional] (h) f32 */
  fovea_tensor query_len;      /**< [in, optional] (b) i32: rows in use */
  fovea_tensor key_len;        /**< [in, optional] (b) i32: keys in use; with compressed_len */
  fovea_tensor compressed_len; /**< [in, optional] (b) i32: compressed keys in use */
  fovea_tensor index;          /**< [in, optional] (b, s, keep) i32: of the forward; absent: it had
                                    no index_q */
  fovea_tensor index_count;    /**< [in, optional] (b, s) i32: of the forward; absent: all */
  fovea_tensor o;              /**< [in] (b, s, h, e) as q or f32: of the forward */
  fovea_tensor lse;            /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor dout;           /**< [in] (b, s, h, e) as o: the gradient of o */
  fovea_tensor dq;             /**< [out, optional] (b, s, h, d) as q */
  fovea_tensor dk;             /**< [out, optional] (b, t, g, d) as q */
  fovea_tensor dv;             /**< [out, optional] (b, t, g, e) as q */
  fovea_tensor dk_compressed;  /**< [out, optional] (b, u, g, d) as q */
  fovea_tensor dv_compressed;  /**< [out, optional] (b, u, g, e) as q */
  fovea_tensor dsink_logit;    /**< [out, optional] (h) f32: needs sink_logit */
  int64_t compress_step;       /**< as in the forward, and so for the fields below */
  int64_t window;              /**< 0: 128 */
  float scale;                 /**< 0: 1 / sqrt(d) */
  int32_t reserved;            /**< 0 */
} fovea_x_compressed_backward_params;

FOVEA_API fovea_status fovea_x_compressed_backward_workspace(
    fovea_context* ctx, const fovea_x_compressed_backward_params* params, size_t* bytes);
FOVEA_API fovea_status
fovea_x_compressed_backward(fovea_context* ctx, const fovea_x_compressed_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
