/* SPDX-License-Identifier: Apache-2.0 */
/** Native Sparse Attention: compressed keys, selected blocks and a window, in one call on one
 *  workspace.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  Row i of a sequence is at position p = i + Lk - Lq.  Compressed key c stands for the keys
 *  [c compress_step, c compress_step + compress_keys), and exists where these are all there.
 *    compressed  attention over the c whose last key is at most p, with probabilities P_c
 *    scores      of block j of block_keys keys: the sum of P_c over c = a j + m - n with
 *                0 <= m < a and 0 <= n < l, summed over the query heads of a key head;
 *                a = block_keys / compress_step, l = compress_keys / compress_step
 *    selected    attention over the keys up to p of `count` blocks: the first, the row's own, the
 *                one before it, and the best of those that begin at p or before
 *    window      attention over the last `window` keys up to p
 *    o = sigmoid(gate_compressed) o_compressed + sigmoid(gate_selected) o_selected
 *        + sigmoid(gate_window) o_window */
#ifndef FOVEA_EXPERIMENTAL_NSA_H
#define FOVEA_EXPERIMENTAL_NSA_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Native Sparse Attention of q over k and v; prefill and decode, contiguous and paged caches.
 *
 *  x_project and x_pool make compressed keys and values.  Absent, they are means of k and v.
 *  Equal scores: the lower block first.  A branch without keys gives 0.
 *
 *  Rows past query_len are neither read nor written.  Keys past key_len and compressed keys past
 *  compressed_len are not read.
 *
 *  Errors name this operation, then the part that refuses, with that part's names of fields.  The
 *  parts are x_pool_forward, x_select_block, x_combine_forward, x_sparse_forward over the selected
 *  blocks, and attention_forward over the compressed keys and the window.  Limits are theirs.
 *  Workspace: theirs, and what no output holds of lists and branches.
 *  Source: Native Sparse Attention (2502.11089). */
typedef struct fovea_x_nsa_forward_params {
  size_t struct_size;           /**< sizeof(fovea_x_nsa_forward_params) */
  fovea_tensor q;               /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;               /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q */
  fovea_tensor v;               /**< [in] (rows, t, g, e) or paged (pool, page, g, e) as q */
  fovea_tensor o;               /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor k_compressed;    /**< [in, optional] (b, u, g, d) as q: with v_compressed; more than
                                     there are is fine; absent: means of k, without key_len */
  fovea_tensor v_compressed;    /**< [in, optional] (b, u, g, e) as q */
  fovea_tensor k_window;        /**< [in, optional] (rows, t, g, d) or paged (pool, page, g, d) as
                                     q: keys of the window; with v_window; absent: k */
  fovea_tensor v_window;        /**< [in, optional] (rows, t, g, e) or paged (pool, page, g, e) as
                                     q: absent: v */
  fovea_tensor gate_compressed; /**< [in, optional] (b, s, h) as q or f32: absent: the branch counts
                                     once */
  fovea_tensor gate_selected;   /**< [in, optional] (b, s, h) as q or f32: the same */
  fovea_tensor gate_window;     /**< [in, optional] (b, s, h) as q or f32: the same */
  fovea_tensor query_len;       /**< [in, optional] (r) i32: rows in use */
  fovea_tensor key_len;         /**< [in, optional] (r) i32: keys in use; with compressed_len */
  fovea_tensor compressed_len;  /**< [in, optional] (r) i32: compressed keys in use:
                                     floor((key_len - compress_keys) / compress_step) + 1, or 0 */
  fovea_tensor page_table;      /**< [in, optional] (rows, pages) i32: pool page of each page of k,
                                     v, k_window and v_window; -1: absent */
  fovea_tensor index;           /**< [out, optional] (b, g, s, keep) i32: the selected blocks,
                                     ascending, -1 past the count; those past `keep` are cut */
  fovea_tensor index_count;     /**< [out, optional] (b, g, s) i32: blocks wanted; with index */
  fovea_tensor o_compressed;    /**< [out, optional] (b, s, h, e) as q: of the branch, before its
                                     gate */
  fovea_tensor o_selected;      /**< [out, optional] (b, s, h, e) as q: the same */
  fovea_tensor o_window;        /**< [out, optional] (b, s, h, e) as q: the same */
  fovea_tensor lse_compressed;  /**< [out, optional] (b, h, s) f32: natural log of each row's sum */
  fovea_tensor lse_selected;    /**< [out, optional] (b, h, s) f32: the same */
  fovea_tensor lse_window;      /**< [out, optional] (b, h, s) f32: the same */
  int64_t query_max;            /**< longest sequence of rows; 0: s */
  int64_t key_max;              /**< longest sequence of keys; 0: t, or pages * page */
  int64_t compress_keys;        /**< keys of a compressed key, 1 .. 65536; 0: 32 */
  int64_t compress_step;        /**< keys from one to the next, a divisor of compress_keys and
                                     block_keys; 0: 16 */
  int64_t count;                /**< blocks that a row selects, the three forced ones among them; 0:
                                     16 */
  int64_t window;               /**< keys of the window, the row's own counted; 0: 512 */
  float scale;                  /**< of all three branches, > 0; 0: 1 / sqrt(d) */
  int32_t block_keys;           /**< keys of a selected block, 1 .. 128; 0: 64 */
  int32_t gate_plain;           /**< 1: gates multiply as they are; 0: their sigmoid does */
  int32_t reserved;             /**< 0 */
} fovea_x_nsa_forward_params;

FOVEA_API fovea_status fovea_x_nsa_forward_workspace(
    fovea_context* ctx, const fovea_x_nsa_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_nsa_forward(
    fovea_context* ctx, const fovea_x_nsa_forward_params* params);

/** Gradients of x_nsa_forward from dout, the branches' o and lse, and the list.  The fields it
 *  shares say what the forward was; what key_max and query_max cut, lengths say here.  The list has
 *  no gradient.  Each output is optional: absent = not computed.  Every element of an output is
 *  written: rows and keys past their lengths get 0.
 *    do_n = act(gate_n) dout,  dgate_n = act'(gate_n) <o_n, dout> of each branch n
 *    dq, dk, dv: the sums of the branches' own, each rounded to the dtype of q before
 *  Where k_compressed or k_window is absent, dk and dv hold what reaches k and v through the
 *  branch.
 *
 *  Errors and limits are as in the forward.  The parts are x_combine_backward, attention_backward,
 *  x_sparse_backward and x_pool_backward.  Bits: the same every run.  No paged keys. */
typedef struct fovea_x_nsa_backward_params {
  size_t struct_size;           /**< sizeof(fovea_x_nsa_backward_params) */
  fovea_tensor q;               /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;               /**< [in] (b, t, g, d) as q */
  fovea_tensor v;               /**< [in] (b, t, g, e) as q */
  fovea_tensor k_compressed;    /**< [in, optional] (b, u, g, d) as q: with v_compressed; u of
                                     t keys */
  fovea_tensor v_compressed;    /**< [in, optional] (b, u, g, e) as q */
  fovea_tensor k_window;        /**< [in, optional] (b, t, g, d) as q: with v_window */
  fovea_tensor v_window;        /**< [in, optional] (b, t, g, e) as q */
  fovea_tensor gate_compressed; /**< [in, optional] (b, s, h) as q or f32 */
  fovea_tensor gate_selected;   /**< [in, optional] (b, s, h) as q or f32 */
  fovea_tensor gate_window;     /**< [in, optional] (b, s, h) as q or f32 */
  fovea_tensor query_len;       /**< [in, optional] (b) i32: rows in use */
  fovea_tensor key_len;         /**< [in, optional] (b) i32: keys in use; with compressed_len */
  fovea_tensor compressed_len;  /**< [in, optional] (b) i32: compressed keys in use */
  fovea_tensor index;           /**< [in] (b, g, s, keep) i32: of the forward */
  fovea_tensor index_count;     /**< [in, optional] (b, g, s) i32: of the forward; absent: all */
  fovea_tensor o_compressed;    /**< [in] (b, s, h, e) as q: of the forward, and so for the next */
  fovea_tensor o_selected;      /**< [in] (b, s, h, e) as q */
  fovea_tensor o_window;        /**< [in] (b, s, h, e) as q */
  fovea_tensor lse_compressed;  /**< [in] (b, h, s) f32 */
  fovea_tensor lse_selected;    /**< [in] (b, h, s) f32 */
  fovea_tensor lse_window;      /**< [in] (b, h, s) f32 */
  fovea_tensor dout;            /**< [in] (b, s, h, e) as q or f32: the gradient of o */
  fovea_tensor dq;              /**< [out, optional] (b, s, h, d) as q */
  fovea_tensor dk;              /**< [out, optional] (b, t, g, d) as q */
  fovea_tensor dv;              /**< [out, optional] (b, t, g, e) as q */
  fovea_tensor dk_compressed;   /**< [out, optional] (b, u, g, d) as q: needs k_compressed */
  fovea_tensor dv_compressed;   /**< [out, optional] (b, u, g, e) as q: needs v_compressed */
  fovea_tensor dk_window;       /**< [out, optional] (b, t, g, d) as q: needs k_window */
  fovea_tensor dv_window;       /**< [out, optional] (b, t, g, e) as q: needs v_window */
  fovea_tensor dgate_compressed; /**< [out, optional] (b, s, h) as q or f32: needs
                                     gate_compressed */
  fovea_tensor dgate_selected; /**< [out, optional] (b, s, h) as q or f32: needs
                                     gate_selected */
  fovea_tensor dgate_window; /**< [out, optional] (b, s, h) as q or f32: needs
                                     gate_window */
  int64_t compress_keys;        /**< as in the forward, and so for the fields below */
  int64_t compress_step;        /**< 0: 16 */
  int64_t window;               /**< 0: 512 */
  float scale;                  /**< 0: 1 / sqrt(d) */
  int32_t block_keys;           /**< 0: 64 */
  int32_t gate_plain;           /**< 1: gates multiply as they are */
  int32_t reserved;             /**< 0 */
} fovea_x_nsa_backward_params;

FOVEA_API fovea_status fovea_x_nsa_backward_workspace(
    fovea_context* ctx, const fovea_x_nsa_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_nsa_backward(
    fovea_context* ctx, const fovea_x_nsa_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
