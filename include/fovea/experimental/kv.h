/* SPDX-License-Identifier: Apache-2.0 */
/** Paged key and value caches of 2 or 4 bits, with the newest tokens as they came.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  A group is `group` keys of one channel, or `group` channels of one value.  Of its numbers x:
 *    scale = f16((largest - smallest) / (2^bits - 1)),  zero = f16(smallest)
 *    code  = (x - zero) / scale in f32, rounded to nearest even, within 0 .. 2^bits - 1; 0 where
 *            scale is 0
 *    x'    = code scale + zero, which a kernel may round to q's dtype
 *  Keys are quantised along tokens and values along channels.  NaN, infinities and numbers beyond
 *  f16 make x' of their group NaN.  Keys are stored as they are given: rotate them before.
 *
 *  Where things lie.  Token j is in page page_table[row][j / page]:
 *    keys    block j % page / group, code j % group of each channel's words
 *    values  slot j % page, code c of each head's words
 *    words   32 / bits codes in an i32, the first in the lowest bits
 *    k_tail  slot j - counter[1]
 *    v_tail  slot j % (residual + 1)
 *  Strides are free: pages whose heads lie outside of their tokens are read fastest.
 *
 *  counter[row] is, on the device:
 *    0  length: tokens of the sequence
 *    1  keys that are quantised, a multiple of group
 *    2  values that are quantised, at most as many
 *    3  not read, not written
 *  A row begins with zeros.  Later tokens are in the tails: at most `residual` keys, and one value
 *  more.  To shorten a sequence, lower all three to the new length where they exceed it.  Below
 *  counter[1] that length has to be a multiple of group.  A sequence moves with its pages, its
 *  tails and its counter.
 *
 *  Sources: KIVI (2402.02750), with zero and scale as above in place of f16 arithmetic.
 *
 *  Extents of its own:
 *    page_groups = 2: groups of keys in a page, page / group
 *    k_words = 1: group * bits / 32
 *    v_words = 1: e * bits / 32
 *    v_groups = 1: e / group
 *    residual = 8: keys of a tail, a multiple of group
 *    ring = 9: values of a tail, residual + 1 */
#ifndef FOVEA_EXPERIMENTAL_KV_H
#define FOVEA_EXPERIMENTAL_KV_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Appends new tokens to the caches, each as this:
 *    1. Where `residual` keys are in the tail, they are quantised into pages, which empties it.
 *    2. Where residual + 1 values are in the tail, the oldest is quantised.
 *    3. The token goes to both tails, and the length grows by one.
 *  Bits of n tokens are those of n calls with one token.  With `flush` what steps 1 and 2 would do
 *  next is done at the end, without waiting for a token: values at `residual` already.  A call
 *  without tokens (s = 0) flushes alone.
 *
 *  A sequence ends at pages * page tokens; later ones are dropped.  Codes for a page that is -1 are
 *  dropped.  Pages are wanted when tokens leave the tails.  No two sequences may share a cache row
 *  or a page.  Every decision is taken on the device, so that a captured graph serves all lengths.
 *
 *  Bits: those of the host, the same every run.
 *  Limits: every valid call has a kernel on the host and on CUDA.  No workspace. */
typedef struct fovea_x_kv_append_params {
  size_t struct_size;       /**< sizeof(fovea_x_kv_append_params) */
  fovea_tensor k_new;       /**< [in] (b, s, g, d) f16 bf16 */
  fovea_tensor v_new;       /**< [in] (b, s, g, e) as k_new */
  fovea_tensor k_code;      /**< [inout] (pool, page_groups, g, d, k_words) i32 */
  fovea_tensor k_scale;     /**< [inout] (pool, page_groups, g, d) f16 */
  fovea_tensor k_zero;      /**< [inout] (pool, page_groups, g, d) f16 */
  fovea_tensor v_code;      /**< [inout] (pool, page, g, v_words) i32 */
  fovea_tensor v_scale;     /**< [inout] (pool, page, g, v_groups) f16 */
  fovea_tensor v_zero;      /**< [inout] (pool, page, g, v_groups) f16 */
  fovea_tensor k_tail;      /**< [inout] (rows, residual, g, d) as k_new */
  fovea_tensor v_tail;      /**< [inout] (rows, ring, g, e) as k_new */
  fovea_tensor counter;     /**< [inout] (rows, 4) i32 */
  fovea_tensor page_table;  /**< [in] (rows, pages) i32: -1: page absent */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed new token of each sequence;
                                 then b = 1 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32: new tokens of each sequence; absent: all */
  fovea_tensor cache_row;   /**< [in, optional] (r) i32: row of page_table, tails and counter; -1 or
                                 past the last skips the sequence; absent: its own number */
  int64_t query_max;        /**< most new tokens of a sequence, bounds the grid; 0: s */
  int32_t bits;             /**< 2 or 4; 0: 2 */
  int32_t group;            /**< group * bits is a multiple of 32; 0: 32 */
  int32_t flush;            /**< 1: quantises at the end what is due */
  int32_t reserved;         /**< 0 */
} fovea_x_kv_append_params;

FOVEA_API fovea_status fovea_x_kv_append_workspace(fovea_context* ctx,
                                                   const fovea_x_kv_append_params* params,
                                                   size_t* bytes);
FOVEA_API fovea_status fovea_x_kv_append(fovea_context* ctx,
                                         const fovea_x_kv_append_params* params);

/** Attention over such a cache, after x_kv_append has put the rows' own tokens there: o and lse are
 *  attention_forward's over x' and the tails.  Row i of Lq is at position i + length - Lq.  A token
 *  that is quantised into a page that is -1 is not there.
 *
 *  Bits: the same every run on one device; place, neighbours and size of the batch may change them.
 *  Limits: d and e are 1 .. 576.  Every valid call has a kernel on the host and on CUDA.  With 16
 *  rows or fewer of a sequence a CUDA kernel reads the codes as they are:
 *    sm_80 and later  d and e both 64 or both 128; group 32, no sink_keys; channels of k_code one
 *                     run, rows of all tensors contiguous and 16-byte aligned, those of v_scale and
 *                     v_zero to their size
 *  The host does for groups to 128.  Otherwise keys and values are formed in the workspace for
 *  attention_forward: d + e numbers a key head of each token that a sequence may have. */
typedef struct fovea_x_kv_decode_params {
  size_t struct_size;       /**< sizeof(fovea_x_kv_decode_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f16 bf16 */
  fovea_tensor k_code;      /**< [in] (pool, page_groups, g, d, k_words) i32 */
  fovea_tensor k_scale;     /**< [in] (pool, page_groups, g, d) f16 */
  fovea_tensor k_zero;      /**< [in] (pool, page_groups, g, d) f16 */
  fovea_tensor v_code;      /**< [in] (pool, page, g, v_words) i32 */
  fovea_tensor v_scale;     /**< [in] (pool, page, g, v_groups) f16 */
  fovea_tensor v_zero;      /**< [in] (pool, page, g, v_groups) f16 */
  fovea_tensor k_tail;      /**< [in] (rows, residual, g, d) as q */
  fovea_tensor v_tail;      /**< [in] (rows, ring, g, e) as q */
  fovea_tensor counter;     /**< [in] (rows, 4) i32 */
  fovea_tensor page_table;  /**< [in] (rows, pages) i32: -1: page absent */
  fovea_tensor o;           /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;         /**< [out, optional] (b, h, s) f32 */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: as in attention.h, and so for the fields
                                 below */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor cache_row;   /**< [in, optional] (r) i32: as in x_kv_append; without a row there are
                                 no keys */
  fovea_tensor sink_logit;  /**< [in, optional] (h) f32 */
  int64_t query_max;        /**< 0: s */
  int64_t key_max;          /**< tokens past this index do not count, nor in length; 0: pages *
                                 page */
  int64_t window_left;      /**< 0: all */
  int64_t window_right;     /**< 0: all */
  int64_t sink_keys;        /**< needs window_left; 0: none */
  float scale;              /**< of scores; 0: 1 / sqrt(d) */
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t bits;             /**< 2 or 4; 0: 2 */
  int32_t group;            /**< group * bits is a multiple of 32; 0: 32 */
  int32_t splits;           /**< parts the keys of a row are cut into; 0: chosen from shapes */
  int32_t reserved;         /**< 0 */
} fovea_x_kv_decode_params;

FOVEA_API fovea_status fovea_x_kv_decode_workspace(fovea_context* ctx,
                                                   const fovea_x_kv_decode_params* params,
                                                   size_t* bytes);
FOVEA_API fovea_status fovea_x_kv_decode(fovea_context* ctx,
                                         const fovea_x_kv_decode_params* params);

#ifdef __cplusplus
}
#endif

#endif
