/* SPDX-License-Identifier: Apache-2.0 */
/** Tensor product attention: heads of queries, keys and values are sums of outer products.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  A token's rows of head i, with ranks a:
 *    q_i = scale_q sum_a a_q[a,i] b_q[a],  k_i = scale_k sum_a a_k[a,i] b_k[a],
 *    v_i = scale_v sum_a a_v[a,i] b_v[a]
 *  o and lse are attention_forward's of these, h heads each.  What a row sees, positions and rows
 *  without a key are as in attention.h.
 *
 *  The cache is the four factors: (rank_k + rank_v) (h + width) numbers a token.  Each is a cache
 *  with a rank in place of a key head.  cache_append writes a_k and a_v as one cache of width h,
 *  and b_k and b_v as another.  A rotation turns rows of b_q and b_k, and commutes with the sums:
 *  cached b_k is turned already.  Queries that have their heads are q, in place of a_q and b_q.
 *
 *  On CUDA q, k and v are rounded to the dtype of the factors where a kernel has them in memory.
 *  On the host they are f32.  Nothing past key_len, in unused pages or in padding counts, NaN
 *  included.
 *
 *  Bits: the same every run on one device; place, neighbours and size of the batch may change them.
 *  Source: Tensor Product Attention Is All You Need (2501.06425).
 *
 *  Extents of its own:
 *    rank_q = 3: outer products of a query
 *    rank_k = 2: outer products of a key
 *    rank_v = 2: outer products of a value */
#ifndef FOVEA_EXPERIMENTAL_TPA_H
#define FOVEA_EXPERIMENTAL_TPA_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Attention over factored keys and values; prefill, decode over contiguous or paged caches.
 *
 *  Limits: d and e are 1 .. 576.  Every valid call has a kernel on the host and on CUDA.  With 16
 *  rows or fewer of a sequence a CUDA kernel reads the factors as they are:
 *    sm_80 and later  f16 or bf16; d and e multiples of 8 up to 128, h at most 128, ranks of keys
 *                     and values at most 16, as far as two tiles of 16 keys fit shared memory; rows
 *                     of b_k and b_v contiguous and 16-byte aligned
 *  Otherwise heads of q, k and v are formed in the workspace for attention_forward, up to 64 at
 *  once.  They take at most 1 GiB where one head fits in that. */
typedef struct fovea_x_tpa_forward_params {
  size_t struct_size;       /**< sizeof(fovea_x_tpa_forward_params) */
  fovea_tensor a_k;         /**< [in] (rows, t, rank_k, h) or paged (pool, page, rank_k, h) f32 f16
                                 bf16 */
  fovea_tensor b_k;         /**< [in] (rows, t, rank_k, d) or paged (pool, page, rank_k, d) as
                                 a_k */
  fovea_tensor a_v;         /**< [in] (rows, t, rank_v, h) or paged (pool, page, rank_v, h) as
                                 a_k */
  fovea_tensor b_v;         /**< [in] (rows, t, rank_v, e) or paged (pool, page, rank_v, e) as
                                 a_k */
  fovea_tensor q;           /**< [in, optional] (b, s, h, d) as a_k: queries of all heads; not with
                                 a_q */
  fovea_tensor a_q;         /**< [in, optional] (b, s, rank_q, h) as a_k: wanted where q is not
                                 given */
  fovea_tensor b_q;         /**< [in, optional] (b, s, rank_q, d) as a_k: with a_q */
  fovea_tensor o;           /**< [out] (b, s, h, e) as a_k or f32 */
  fovea_tensor lse;         /**< [out, optional] (b, h, s) f32 */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: as in attention.h, and so for the fields
                                 below */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor key_len;     /**< [in, optional] (r) i32 */
  fovea_tensor page_table;  /**< [in, optional] (rows, pages) i32: pages of all four factors */
  fovea_tensor cache_row;   /**< [in, optional] (r) i32 */
  fovea_tensor context_len; /**< [in, optional] (r) i32 */
  int64_t query_max;        /**< 0: s */
  int64_t key_max;          /**< 0: t, or pages * page */
  int64_t window_left;      /**< 0: all */
  int64_t window_right;     /**< 0: all */
  int64_t sink_keys;        /**< needs window_left; 0: none */
  int64_t key_step;         /**< 0: 1 */
  int64_t key_shift;        /**< position of the first key; within 2^31 of 0 */
  float scale;              /**< of scores; 0: 1 / sqrt(d) */
  float scale_q;            /**< of the sum over rank_q; 0: 1 / rank_q; not with q */
  float scale_k;            /**< 0: 1 / rank_k */
  float scale_v;            /**< 0: 1 / rank_v */
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t splits;           /**< parts the keys of a row are cut into; 0: chosen from shapes */
} fovea_x_tpa_forward_params;

FOVEA_API fovea_status fovea_x_tpa_forward_workspace(
    fovea_context* ctx, const fovea_x_tpa_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_tpa_forward(
    fovea_context* ctx, const fovea_x_tpa_forward_params* params);

/** Gradients of x_tpa_forward from dout (and dlse).  The fields it shares say what the forward was.
 *  Each output is optional: absent = not computed.  Every element of an output is written: rows
 *  and keys past their lengths get 0.  With dq_i, dk_i, dv_i of attention_backward:
 *    da_k[a,i] = scale_k <dk_i, b_k[a]>,  db_k[a] = scale_k sum_i a_k[a,i] dk_i
 *  and so for q and v.  A head's dq, dk and dv are rounded to the dtype of the factors.  Sums over
 *  heads are f32 in a fixed order: the same bits every run unless `nondeterministic`.
 *
 *  Limits: as in the forward, no paged keys.  Heads and their gradients are in the workspace, up to
 *  64 at once and at most 1 GiB where one head fits in that.  With more heads f32 sums of db lie
 *  beside them. */
typedef struct fovea_x_tpa_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_tpa_backward_params) */
  fovea_tensor a_k;         /**< [in] (key_b, t, rank_k, h) f32 f16 bf16 */
  fovea_tensor b_k;         /**< [in] (key_b, t, rank_k, d) as a_k */
  fovea_tensor a_v;         /**< [in] (key_b, t, rank_v, h) as a_k */
  fovea_tensor b_v;         /**< [in] (key_b, t, rank_v, e) as a_k */
  fovea_tensor q;           /**< [in, optional] (b, s, h, d) as a_k */
  fovea_tensor a_q;         /**< [in, optional] (b, s, rank_q, h) as a_k */
  fovea_tensor b_q;         /**< [in, optional] (b, s, rank_q, d) as a_k */
  fovea_tensor o;           /**< [in] (b, s, h, e) as a_k or f32: of the forward */
  fovea_tensor lse;         /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor dout;        /**< [in] (b, s, h, e) as o: the gradient of o */
  fovea_tensor dlse;        /**< [in, optional] (b, h, s) f32: the gradient of lse; absent: 0 */
  fovea_tensor da_k;        /**< [out, optional] (key_b, t, rank_k, h) as a_k */
  fovea_tensor db_k;        /**< [out, optional] (key_b, t, rank_k, d) as a_k */
  fovea_tensor da_v;        /**< [out, optional] (key_b, t, rank_v, h) as a_k */
  fovea_tensor db_v;        /**< [out, optional] (key_b, t, rank_v, e) as a_k */
  fovea_tensor dq;          /**< [out, optional] (b, s, h, d) as a_k: needs q */
  fovea_tensor da_q;        /**< [out, optional] (b, s, rank_q, h) as a_k: needs a_q */
  fovea_tensor db_q;        /**< [out, optional] (b, s, rank_q, d) as a_k: needs b_q */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor key_len;     /**< [in, optional] (r) i32 */
  int64_t query_max;        /**< 0: s */
  int64_t key_max;          /**< 0: t */
  int64_t window_left;      /**< 0: all */
  int64_t window_right;     /**< 0: all */
  int64_t sink_keys;        /**< needs window_left; 0: none */
  float scale;              /**< 0: 1 / sqrt(d) */
  float scale_q;            /**< 0: 1 / rank_q */
  float scale_k;            /**< 0: 1 / rank_k */
  float scale_v;            /**< 0: 1 / rank_v */
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t nondeterministic; /**< 1: a faster kernel whose sums may change order may be used */
} fovea_x_tpa_backward_params;

FOVEA_API fovea_status fovea_x_tpa_backward_workspace(
    fovea_context* ctx, const fovea_x_tpa_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_tpa_backward(
    fovea_context* ctx, const fovea_x_tpa_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
