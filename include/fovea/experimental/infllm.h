/* SPDX-License-Identifier: Apache-2.0 */
/** InfLLM: a local window, the first keys, and far blocks that representatives choose, in one call
 *  on one workspace.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  Row i of a sequence is at position p = i + Lk - Lq, and sees the keys j up to p of four sets:
 *    local      p - window < j <= p
 *    first      j < init_keys
 *    blocks     `count` chosen blocks of block_keys keys below block_len
 *    remainder  j >= block_len: no block holds it yet
 *  Keys that are not local are far.  One softmax is over all of them.  Scores take their operands
 *  as the caller rotated them:
 *    local  scale <q_i, k_window_j>   q and k_window by their own positions
 *    far    scale <q_far_i, k_j>      q_far by one position for all rows, `window`; k not at all
 *
 *  Blocks.  Block c holds the keys [c block_keys, (c + 1) block_keys) of a sequence, as far as they
 *  are below block_len.  The blocks of init_keys are always seen; `count` others are those whose
 *    sum over the query heads of <mean over the rows of q_far, representative_c>
 *  is largest: one list for all rows and heads of a sequence.  Equal scores: the lower block first.
 *  A score that is NaN is -inf, and is not taken.
 *
 *  The steps around a call, of a prompt in chunks of rows, or of one new token:
 *    before  cache_append writes k, k_window and v; local_score is 0 for new keys
 *    after   Once a block has left the window, x_pool_forward writes its representative: RANKED, of
 *            k by rank_score local_score, `ranked` 4.  Then block_len grows by block_keys.
 *  All keys are in one cache.  Blocks that wait in host memory are the caller's: cache_copy with a
 *  pool there, and the parts of this call one by one.
 *
 *  Extents of its own:
 *    representative_heads = 4: heads of representative */
#ifndef FOVEA_EXPERIMENTAL_INFLLM_H
#define FOVEA_EXPERIMENTAL_INFLLM_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** InfLLM's attention of q over a cache; chunks of a prompt and decode, contiguous and paged.
 *
 *  local_score gets, of each head and key, the sum over the rows of the local probabilities under
 *  the softmax over all keys.  Every element of it is read and written.
 *
 *  A row that sees nothing has o = 0 and lse = -inf.  Rows past query_len are neither read nor
 *  written.  Of a sequence without rows, and without heads, no list is written.
 *
 *  Errors name this operation, then the part that refuses, with that part's names of fields.  The
 *  parts are attention_forward of window and remainder, x_pool_forward of q_far, x_select_block,
 *  x_sparse_forward over the blocks, merge_forward.  For local_score x_probe_forward takes the
 *  merged lse, and x_combine_forward adds; it also keeps rows past query_len.  Limits are theirs.
 *  Workspace: theirs, three branches of o in f32, the sums, and the lists that no output holds.
 *  Source: InfLLM (2402.04617). */
typedef struct fovea_x_infllm_forward_params {
  size_t struct_size;          /**< sizeof(fovea_x_infllm_forward_params) */
  fovea_tensor q;              /**< [in] (b, s, h, d) f32 f16 bf16: rotated by their positions */
  fovea_tensor q_far;          /**< [in] (b, s, h, d) as q: the same queries, all rotated by the
                                    position `window` */
  fovea_tensor k;              /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q: not
                                    rotated */
  fovea_tensor k_window;       /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q: the same
                                    keys, rotated by their positions; read in the window alone */
  fovea_tensor v;              /**< [in] (rows, t, g, e) or paged (pool, page, g, e) as q */
  fovea_tensor o;              /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;            /**< [out, optional] (b, h, s) f32: natural log of each row's sum */
  fovea_tensor representative; /**< [in] (b, u, representative_heads, d) f32 f16 bf16: of each
                                    block; heads divide h.  Those of init_keys do not count */
  fovea_tensor local_score;    /**< [inout, optional] (b, h, t) or paged (b, h, keys) f32: what
                                    local probabilities are added to */
  fovea_tensor query_len;      /**< [in, optional] (r) i32: rows in use */
  fovea_tensor key_len;        /**< [in] (r) i32: keys in use, the rows' own among them */
  fovea_tensor block_len;      /**< [in] (r) i32: keys in blocks, 0 .. min(key_len, u block_keys) */
  fovea_tensor page_table;     /**< [in, optional] (rows, pages) i32: pool page of each page of k,
                                    k_window and v; -1: absent */
  fovea_tensor index;          /**< [out, optional] (b, keep) i32: the blocks, those of init_keys
                                    among them, ascending, -1 past the count; those past `keep` are
                                    cut */
  fovea_tensor index_count;    /**< [out, optional] (b) i32: blocks wanted; with index */
  int64_t window;              /**< keys of the window, the row's own counted, 1 .. 2^31 - 1; 0:
                                    4096 */
  int64_t init_keys;           /**< first keys that all rows see, a multiple of block_keys */
  int64_t count;               /**< blocks that are chosen beside those; 0: 16 */
  float scale;                 /**< of all scores, > 0; 0: 1 / sqrt(d) */
  int32_t block_keys;          /**< keys of a block, 1 .. 65536; 0: 128 */
} fovea_x_infllm_forward_params;

FOVEA_API fovea_status fovea_x_infllm_forward_workspace(fovea_context* ctx,
                                                        const fovea_x_infllm_forward_params* params,
                                                        size_t* bytes);
FOVEA_API fovea_status fovea_x_infllm_forward(fovea_context* ctx,
                                              const fovea_x_infllm_forward_params* params);

#ifdef __cplusplus
}
#endif

#endif
