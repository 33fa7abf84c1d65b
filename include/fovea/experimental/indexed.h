/* SPDX-License-Identifier: Apache-2.0 */
/** Attention over the keys that an index finds: x_select_token, then x_sparse_forward, and with
 *  v_mean x_combine_forward, in one call on one workspace.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  For each row, with S its list of keys and a the share of the index's softmax that S holds:
 *    o = attention over S and over the keys that first_keys and last_keys name
 *    with v_mean: a o + (1 - a) v_mean
 *
 *  What each method gives:
 *    DSA            index_q, index_k, weight; measure RELU_WEIGHTED, reduce SUM.
 *    MSA            index_q, index_k; pool_keys 128, force_last 1, reduce SUM, g lists.
 *    SparQ          subset, v_mean; measure SUBSET, reduce SUM, force_last, g lists.
 *    Loki           index_q, index_k: the first columns of the rotated q and k; ratio.
 *    HashAttention  code_q, code; measure HAMMING, first_keys, last_keys.
 *    QSA            index_q, block_k; index_step 4, measure RELU_WEIGHTED, reduce SUM, causal.
 *
 *  Extents of its own:
 *    index_heads = 2: query heads of the index
 *    index_keys = 2: key heads of the index
 *    index_width = 8: columns of a query and of a key of the index
 *    index_groups = 2: scales of a row of index_k
 *    code_words = 2: words of 32 bits in a code
 *    blocks = 9: keys of block_k in a row */
#ifndef FOVEA_EXPERIMENTAL_INDEXED_H
#define FOVEA_EXPERIMENTAL_INDEXED_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Attention over the keys that an index finds.
 *
 *  Selection is x_select_token's, with index_q and index_k as its q and k; absent, q and k are
 *  their own index.  reduce is over the index's heads of a list head.  A list has k entries, forced
 *  ones among them, with
 *  k = max(count, floor(ratio * keys that the window lets the row see), force_last).
 *  Equal scores: the lower key first.  Rows past query_len are neither read nor written.
 *
 *  With index_step n the index has a key for each block of n keys.  Block c is the keys
 *  [c n, (c + 1) n) of a sequence.  key_len is then at most what the cache holds.  Row i at
 *  position p sees blocks whose keys are all at p or before.  Its list has the k best of these, and
 *  the tail behind them: block floor((p + 1) / n), whose keys up to p are seen.  Without keys it is
 *  empty.  k = max(count, force_last), and index_count counts the tail too.
 *  block_k holds floor(keys / n) + 1 blocks of a sequence or more, keys being the most that it has.
 *  Values of incomplete blocks do not count.  With page_table block_k is not paged, and has a row
 *  for each row of the table.
 *
 *  Errors name this operation, then the part that refuses, with that part's names of fields.
 *  Limits are those of the parts.  Workspace: theirs, and the lists that no output holds.
 *  Sources: DSA (2512.02556), MiniMax Sparse Attention (2606.13392), SparQ (2312.04985), Loki
 *  (2406.02542), HashAttention (2412.14468); QSA of Qwen3.8-Flash-Next. */
typedef struct fovea_x_indexed_forward_params {
  size_t struct_size;         /**< sizeof(fovea_x_indexed_forward_params) */
  fovea_tensor q;             /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;             /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q or e4m3
                                   e5m2 i8 */
  fovea_tensor v;             /**< [in] (rows, t, g, e) or paged (pool, page, g, e) as q or e4m3
                                   e5m2 i8 */
  fovea_tensor o;             /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;           /**< [out, optional] (b, h, s) f32: of the sum over the list */
  fovea_tensor q_value;       /**< [in, optional] (b, s, h, e) as q: second query of attention
                                   alone, contracted with v (split MLA caches) */
  fovea_tensor index_q;       /**< [in, optional] (b, s, index_heads, index_width) f32 f16 bf16
                                   e4m3: with index_k or block_k; absent: q */
  fovea_tensor index_k;       /**< [in, optional] (rows, t, index_keys, index_width) or paged
                                   (pool, page, index_keys, index_width) f32 f16 bf16 e4m3
                                   e5m2 i8 */
  fovea_tensor index_k_scale; /**< [in, optional] (rows, t, index_keys, index_groups) or paged
                                   (pool, page, index_keys, index_groups) f32: of codes in
                                   index_k */
  fovea_tensor block_k;       /**< [in, optional] (rows, blocks, index_keys, index_width) f32 f16
                                   bf16: in place of index_k: a key for each block of index_step
                                   keys */
  fovea_tensor weight;        /**< [in, optional] (b, s, index_heads) f32: of RELU_WEIGHTED */
  fovea_tensor code_q;        /**< [in, optional] (b, s, index_heads, code_words) i32: of HAMMING */
  fovea_tensor code;          /**< [in, optional] (rows, t, index_keys, code_words) or paged (pool,
                                   page, index_keys, code_words) i32: of HAMMING */
  fovea_tensor v_mean;        /**< [in, optional] (b, h, e) as q: the mean of the values of each
                                   sequence; of DOT and SUBSET without pool_keys, not packed */
  fovea_tensor sink_logit;    /**< [in, optional] (h) f32: a learned term of the denominator */
  fovea_tensor k_scale;       /**< [in, optional] (rows, t, g, groups) or paged (pool, page, g,
                                   groups) f32: as in attention_forward */
  fovea_tensor v_scale;       /**< [in, optional] (rows, t, g, groups) or paged (pool, page, g,
                                   groups) f32: the same of v */
  fovea_tensor query_start;   /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                   ascending from 0; then b = 1 */
  fovea_tensor key_start;     /**< [in, optional] (r+1) i32: first packed key of each sequence; not
                                   with page_table or cache_row */
  fovea_tensor query_len;     /**< [in, optional] (r) i32: rows in use */
  fovea_tensor key_len;       /**< [in, optional] (r) i32: keys in use */
  fovea_tensor page_table;    /**< [in, optional] (rows, pages) i32: pool page of each page of k, v
                                   and the index's keys; -1: absent */
  fovea_tensor cache_row;     /**< [in, optional] (r) i32: row of page_table, or of k and v */
  fovea_tensor context_len;   /**< [in, optional] (r) i32: p_i = i + context_len - Lq; absent: Lk */
  fovea_tensor index;         /**< [out, optional] (b, x, s, keep) i32: the lists, as x_select_token
                                   writes them; keys past `keep` are cut */
  fovea_tensor index_count;   /**< [out, optional] (b, x, s) i32: keys wanted, with index */
  int64_t query_max;          /**< longest sequence of rows; 0: s */
  int64_t key_max;            /**< longest sequence of keys; 0: t, or pages * page */
  int64_t window_left;        /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;       /**< keys seen to the right, the same; 0: all, 1: none */
  int64_t sink_keys;          /**< keys at positions below this stay visible through window_left */
  int64_t lists;              /**< list heads without index, a divisor of h; 0: index_heads without
                                   reduce, else 1 */
  int64_t count;              /**< keys, or blocks of pool_keys, in a list */
  int64_t first_keys;         /**< first keys that are seen beside the list */
  int64_t last_keys;          /**< keys up to the row's own position that are seen beside it */
  int64_t force_last;         /**< the last keys (or blocks) that the row sees are in the list */
  int64_t pool_keys;          /**< keys of a block that is selected as a whole, 1 .. 128; 0: keys */
  int64_t index_step;         /**< keys of a block of block_k, 1 .. 128; with it causal is 1, the
                                   other windows, first_keys, last_keys, pool_keys and ratio are 0,
                                   and key_start, context_len and v_mean absent */
  int64_t subset;             /**< columns of SUBSET, 1 .. index_width */
  float scale;                /**< of attention's scores, > 0; 0: 1 / sqrt(d), or 1 / sqrt(d + e)
                                   with q_value */
  float softcap;              /**< of attention's scores; 0: none */
  float index_scale;          /**< of the index's, > 0; 0: 1 / sqrt(index_width), for HAMMING 1 */
  float ratio;                /**< share of the keys that a row sees; not with pool_keys */
  int32_t measure;            /**< fovea_x_select_score */
  int32_t reduce;             /**< fovea_x_select_reduce */
  int32_t causal;             /**< 1: window_right = 1 */
  int32_t reserved;           /**< 0 */
} fovea_x_indexed_forward_params;

FOVEA_API fovea_status fovea_x_indexed_forward_workspace(
    fovea_context* ctx, const fovea_x_indexed_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_indexed_forward(
    fovea_context* ctx, const fovea_x_indexed_forward_params* params);

#ifdef __cplusplus
}
#endif

#endif
