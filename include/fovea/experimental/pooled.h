/* SPDX-License-Identifier: Apache-2.0 */
/** Attention over key blocks that summaries choose: x_pool_forward of keys and of queries,
 *  x_select_block, then x_sparse_forward, in one call on one workspace.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  What each method gives:
 *    Quest            measure BOX, count, force_last 1, forced_count 1, block_keys = page; summary
 *                     and old_len keep the pages' bounds.
 *    MoBA             block_keys 512, count, force_own, forced_count 1, causal.
 *    SeerAttention    row, column: the gate's; 64 x 64, normalise SOFTMAX, rule ABOVE or count,
 *                     force_own, causal.
 *    SpargeAttention  128 x 64, normalise SOFTMAX, ratio or rule TOP_P_UNDER, min_extra 1,
 *                     row_similar_least, column_similar_least, skip_margin.  In 8 bits: quantise.
 *    VMoBA            count, or normalise MINMAX and rule TOP_P_GE; scope, force_own, forced_count.
 *    RocketKV         measure BOX, subset, block_keys = page, count, normalise SOFTMAX, reduce SUM,
 *                     g lists; x_evict_forward first drops keys of the prompt.
 *    DraftAttention   128 x 128, normalise SOFTMAX, scope HEAD, ratio, min_keep 1.
 *
 *  Extents of its own:
 *    row_heads = 4: heads of row
 *    column_heads = 2: key heads of column
 *    row_width = 8: columns of row and of column
 *    summary_width = 8: columns of summary */
#ifndef FOVEA_EXPERIMENTAL_POOLED_H
#define FOVEA_EXPERIMENTAL_POOLED_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Attention over key blocks that summaries choose.
 *
 *  Columns summarise key blocks, by x_pool_forward: the mean of the keys, for BOX their largest and
 *  smallest in each column of k.  What they are made from:
 *    neither column nor summary: all of k, in each call
 *    summary, old_len: only blocks that hold a key from old_len on; the others are read
 *    column: nothing is made; for BOX column_low too
 *  Rows summarise row blocks: row, else the mean of their queries, with block_rows 1 the queries.
 *
 *  With subset, BOX reads the columns R of a key head with the largest sum of |q_c| over its query
 *  heads, of equals the first.  One sign serves them all: where the sum of their q_c is > 0 the
 *  bound is the largest, else the smallest of the block.  A query's score is select_scale times
 *  sum over R of q_c bound / sqrt(share).  share is how much of its sum of |q_c| R holds; where it
 *  is 0 the score is 0.  select_scale 0 is then 1 / sqrt(d).  Keys are finite.  A softmax counts
 *  each block once, the last one too, where the paper's code counts its keys.
 *
 *  Selection is x_select_block's and the lists are its.  Row block R holds the rows [R block_rows,
 *  (R + 1) block_rows) of a sequence, key block c its keys [c block_keys, (c + 1) block_keys).
 *  Packed sequences begin where select.h says.  Row i is at position i + Lk - Lq.
 *  reduce is over the heads of the rows of a list head.  normalise is not WEIGHTED, rule not NONE.
 *  k = max(count, floor(ratio * key blocks of the scope)); one of the two is 0.
 *  Each row attends to the keys of its list, with causal to those up to its own position.
 *  index, index_count, block_rows and block_keys are what x_sparse_backward takes.
 *
 *  With quantise attention is x_quantised_forward's over the lists, and code to accumulate are its
 *  fields; without it they are 0.  Its codes are of q, k and v; the selection is of q and k as they
 *  are.  Then sequences are full or packed, k and v contiguous and of q's type, block_keys is a
 *  multiple of 64.
 *
 *  A row whose list is empty has o = 0.  Rows past query_len are neither read nor written.
 *
 *  Errors name this operation, then the part that refuses, with that part's names of fields.
 *  Limits are those of the parts.  Workspace: theirs, the summaries, and the lists that no output
 *  holds.
 *  Sources: Quest (2406.10774), MoBA (2502.13189), SeerAttention (2410.13276), SpargeAttention
 *  (2502.18137), VMoBA (2506.23858), DraftAttention (2505.14708), RocketKV (2502.14051). */
typedef struct fovea_x_pooled_forward_params {
  size_t struct_size;  /**< sizeof(fovea_x_pooled_forward_params) */
  fovea_tensor q;      /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;      /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q or e4m3 e5m2
                            i8: codes need column */
  fovea_tensor v;      /**< [in] (rows, t, g, e) or paged (pool, page, g, e) as q or e4m3 e5m2
                            i8 */
  fovea_tensor o;      /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;    /**< [out, optional] (b, h, s) f32: of the sum over the list */
  fovea_tensor row;    /**< [in, optional] (b, n, row_heads, row_width) f32 f16 bf16: a summary of
                            each row block */
  fovea_tensor column; /**< [in, optional] (key_b, u, column_heads, row_width) f32 f16 bf16: a
                            summary of each key block */
  fovea_tensor column_low; /**< [in, optional] (key_b, u, column_heads, row_width) f32 f16 bf16: of
                              BOX with column: the smallest of its keys */
  fovea_tensor summary;    /**< [inout, optional] (key_b, u, g, summary_width) as k or f32: y of
                                x_pool_forward: summary_width = d, for BOX 2 d; not with column */
  fovea_tensor row_similar_least;    /**< [in, optional] (h) f32: a row block whose queries are not
                                          more alike takes all key blocks; with made rows, without
                                          reduce */
  fovea_tensor column_similar_least; /**< [in, optional] (g) f32: a key block whose keys are not
                                        more alike is taken by all rows, beside the rule; not with
                                          column, summary */
  fovea_tensor cover_head;           /**< [in, optional] (x) f32: cover of each list head */
  fovea_tensor sink_logit; /**< [in, optional] (h) f32: a learned term of the denominator */
  fovea_tensor k_scale;    /**< [in, optional] (rows, t, g, groups) or paged (pool, page, g, groups)
                                f32: as in attention_forward */
  fovea_tensor v_scale;    /**< [in, optional] (rows, t, g, groups) or paged (pool, page, g, groups)
                                f32: the same of v */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                 ascending from 0; then b = 1 */
  fovea_tensor key_start; /**< [in, optional] (r+1) i32: first packed key of each sequence; not with
                               page_table or cache_row */
  fovea_tensor query_len; /**< [in, optional] (r) i32: rows in use */
  fovea_tensor key_len;   /**< [in, optional] (r) i32: keys in use */
  fovea_tensor old_len;   /**< [in, optional] (r) i32: keys that summary has; with summary */
  fovea_tensor page_table; /**< [in, optional] (rows, pages) i32: pool page of each page of k and v;
                                -1: absent */
  fovea_tensor cache_row; /**< [in, optional] (r) i32: row of page_table, or with column of k and v;
                             with column or summary */
  fovea_tensor index;     /**< [out, optional] (b, x, n, keep) i32: the lists, as x_select_block
                               writes them; blocks past `keep` are cut */
  fovea_tensor index_count; /**< [out, optional] (b, x, n) i32: blocks wanted, with index */
  int64_t query_max;        /**< longest sequence of rows; 0: s */
  int64_t key_max;          /**< longest sequence of keys; 0: t, or pages * page */
  int64_t lists;            /**< list heads without index, a divisor of h; 0: heads of the rows
                                 without reduce, else 1 */
  int64_t count;            /**< k of TOP_K */
  int64_t min_keep;         /**< least entries of a list, forced ones among them */
  int64_t min_extra;        /**< least entries that the rule takes in its scope */
  int64_t force_first;      /**< the first key blocks are forced */
  int64_t force_previous;   /**< those before the own blocks */
  int64_t force_last;       /**< the last key blocks of the sequence */
  int64_t subset;           /**< columns of BOX, 1 .. d, with d at most 288; 0: all, each query by
                                 its own signs.  Not with row, column or block_rows > 1 */
  float scale;              /**< of attention's scores, > 0; 0: 1 / sqrt(d) */
  float softcap;            /**< of attention's scores; 0: none */
  float select_scale;       /**< of the summaries' scores, > 0; 0: 1 / sqrt(their width) */
  float ratio;              /**< of TOP_K: share of the key blocks of the scope */
  float cover;              /**< share of the mass, of the TOP_P rules */
  float threshold;          /**< of ABOVE and AT_LEAST */
  float skip_margin;    /**< in nats: tiles that add less are skipped, as in x_sparse_forward; 0:
                             none */
  int32_t measure;      /**< fovea_x_select_measure */
  int32_t normalise;    /**< fovea_x_select_normalise */
  int32_t reduce;       /**< fovea_x_select_reduce */
  int32_t rule;         /**< fovea_x_select_rule */
  int32_t scope;        /**< fovea_x_select_scope */
  int32_t forced_count; /**< 1: forced entries count for the rule */
  int32_t force_own;    /**< 1: key blocks that hold a position of the row block are forced */
  int32_t causal;       /**< 1: no key after a row's own position */
  int32_t block_rows;   /**< rows of a row block, 1 .. 128; 0: 1 */
  int32_t block_keys;   /**< keys of a key block, 1 .. 65536; 0: 64 */
  int32_t quantise;     /**< 1: attention of codes, by the fields below */
  int32_t code;         /**< fovea_x_code */
  int32_t v_code;       /**< fovea_x_code */
  int32_t q_group;      /**< fovea_scale_group */
  int32_t k_group;      /**< fovea_scale_group */
  int32_t v_group;      /**< fovea_scale_group */
  int32_t q_block;      /**< rows that share an entry of q's scales */
  int32_t k_block;      /**< the same of k */
  int32_t v_block;      /**< the same of v */
  int32_t k_smooth;     /**< fovea_smooth */
  int32_t p_format;     /**< fovea_p_format */
  int32_t accumulate;   /**< fovea_accumulate */
  int32_t reserved;     /**< 0 */
} fovea_x_pooled_forward_params;

FOVEA_API fovea_status fovea_x_pooled_forward_workspace(fovea_context* ctx,
                                                        const fovea_x_pooled_forward_params* params,
                                                        size_t* bytes);
FOVEA_API fovea_status fovea_x_pooled_forward(fovea_context* ctx,
                                              const fovea_x_pooled_forward_params* params);

#ifdef __cplusplus
}
#endif

#endif
