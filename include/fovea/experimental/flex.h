/* SPDX-License-Identifier: Apache-2.0 */
/** FlexPrefill: attention of a prompt over key blocks that each head chooses by itself, in one call
 *  on one workspace.  The parts: x_probe_forward of the last rows, x_pool_forward,
 *  x_compare_forward, x_select_block, x_select_line, then x_sparse_forward.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them. */
#ifndef FOVEA_EXPERIMENTAL_FLEX_H
#define FOVEA_EXPERIMENTAL_FLEX_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Causal attention over the blocks of FlexPrefill.
 *
 *  With B = block, a head of a sequence of Lk keys, and the last min(B, s) rows of q:
 *    1. c_j      sum of those rows' probabilities of key j; a_x that of the distance x behind the
 *                row.  C_J and A_X: sums over blocks of B keys, and of B distances from 0 on
 *    2. kind     p = softmax over key blocks of scale <mean of the rows, mean of the block's keys>.
 *                The head is block-sparse where the root of the Jensen-Shannon divergence of p and
 *                C / sum C, in nats, is below threshold
 *    3. budgets  n = K / B + 1, rounded down, K the fewest of c whose sum exceeds cover times all;
 *                the same of a.  Cut to min_budget and max_budget, in blocks, rounded up.
 *                Block-sparse heads have min_budget for both
 *    4. lines    key block 0 and the others with the largest C_J, n in all; distance 0 and the
 *                others with the largest A_X.  Row block I, where its last position is, sees
 *                blocks J <= I with J a chosen block or I - J a chosen distance, and its own blocks
 *    5. blocks   of a block-sparse head also: softmax over J <= I of scale <mean of the row block,
 *                mean of the block's keys>; of all row blocks' values together the largest, while
 *                their sum is at most cover times all
 *  A sequence of at most max(2 B, min_budget) keys is dense.
 *
 *  Row i is at position i + Lk - s, and sees no key after it.  Row block R holds rows [R B,
 *  (R + 1) B).  Order, ties and sums of shares are select.h's.  A row that sees nothing has o = 0.
 *  Counts stay on the device, and nothing is read back.
 *
 *  Not here: packed sequences, query_len and cache_row; the last rows are the last of q.
 *  Errors name this operation, then the part that refuses, with that part's names of fields.
 *  Limits are those of the parts.  Workspace: theirs, two sums of each key and head, and the lists.
 *  Source: FlexPrefill (2502.20766). */
typedef struct fovea_x_flex_forward_params {
  size_t struct_size;      /**< sizeof(fovea_x_flex_forward_params) */
  fovea_tensor q;          /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;          /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q */
  fovea_tensor v;          /**< [in] (rows, t, g, e) or paged (pool, page, g, e) as q */
  fovea_tensor o;          /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;        /**< [out, optional] (b, h, s) f32: of the sum over what is seen */
  fovea_tensor key_len;    /**< [in, optional] (r) i32: keys in use */
  fovea_tensor page_table; /**< [in, optional] (rows, pages) i32: pool page of each page of k and v;
                                -1: absent */
  fovea_tensor index;      /**< [out, optional] (b, h, n, keep) i32: key blocks of each row block;
                                those past `keep` are cut; without rows not written */
  fovea_tensor index_count; /**< [out, optional] (b, h, n) i32: key blocks wanted, with index */
  int64_t key_max;          /**< longest sequence of keys; 0: t, or pages * page */
  int64_t min_budget;       /**< least keys on the chosen blocks, and on the distances */
  int64_t max_budget;       /**< most keys there, >= min_budget; 0: no bound */
  float scale;              /**< > 0; 0: 1 / sqrt(d) */
  float cover;              /**< share of the probabilities */
  float threshold;          /**< of step 2; 0: no head is block-sparse */
  int32_t block;            /**< rows and keys of a block, 1 .. 128; 0: 128 */
} fovea_x_flex_forward_params;

FOVEA_API fovea_status fovea_x_flex_forward_workspace(fovea_context* ctx,
                                                      const fovea_x_flex_forward_params* params,
                                                      size_t* bytes);
FOVEA_API fovea_status fovea_x_flex_forward(fovea_context* ctx,
                                            const fovea_x_flex_forward_params* params);

#ifdef __cplusplus
}
#endif

#endif
