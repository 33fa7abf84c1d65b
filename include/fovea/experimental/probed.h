/* SPDX-License-Identifier: Apache-2.0 */
/** Attention over keys that a probe of its own probabilities finds, in one call on one workspace.
 *  The parts: x_probe_forward of some rows, of antidiagonals or, after x_pool_forward, of means of
 *  keys; x_select_block, for lines x_select_line, then x_sparse_forward.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  What each method gives; recipe.h has their numbers:
 *    XAttention       kind BLOCKS, group_stride, reversed, rule TOP_P_GE, cover, force_first,
 *                     force_own, forced_count, causal.
 *    SampleAttention  kind COLUMNS, sample, query_position, rule TOP_P_GE, cover, last_keys,
 *                     causal.
 *    MInference       kind LINES, probe_rows, count, force_first, slash_count, slash_force_first,
 *                     forced_count, causal.
 *    FlashPrefill     kind MEANS, threshold, force_first, force_previous, force_own, full_last,
 *                     causal.
 *
 *  Extents of its own:
 *    samples = 2: rows of sample */
#ifndef FOVEA_EXPERIMENTAL_PROBED_H
#define FOVEA_EXPERIMENTAL_PROBED_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What of the probabilities is chosen from. */
typedef enum fovea_x_probed_kind {
  FOVEA_X_PROBED_KIND_BLOCKS = 0,  /**< sums over row blocks and key blocks, of all rows */
  FOVEA_X_PROBED_KIND_COLUMNS = 1, /**< sums over the probed rows, of each key */
  FOVEA_X_PROBED_KIND_LINES = 2,   /**< the same, and of each distance behind the row */
  FOVEA_X_PROBED_KIND_MEANS = 3    /**< sums over row blocks of what all rows give the mean of each
                                        key block's keys */
} fovea_x_probed_kind;

/** Attention over keys that a probe finds.
 *
 *  BLOCKS: block_sum of x_probe_forward is the score of x_select_block.  Row block R holds the rows
 *  [R block_rows, (R + 1) block_rows) of a sequence, key block c its keys [c block_keys, (c + 1)
 *  block_keys).  Packed sequences begin where select.h says.
 *  COLUMNS: column_sum is the score of single keys; each row sees those that are chosen.
 *  LINES: diagonal_sum chooses distances too, slash_count of them.  x_select_line makes ranges of
 *  block_rows keys of them, for row blocks of as many rows; each row sees these and the columns.
 *  Each row also sees first_keys and last_keys of x_sparse_forward, in COLUMNS and LINES.
 *
 *  MEANS: m_c is the mean of the keys of block c, rounded to k's dtype.  R is a row block.
 *      w_Rc = sum of exp(scale q_i m_c) over the rows i of R that see all keys of block c.
 *  Row block R sees the blocks with w_Rc >= threshold * max_c w_Rc > 0, and those that are forced.
 *  The last full_last row blocks of a sequence see every block.  key_len is then at most what the
 *  cache holds.
 *
 *  The probed rows of COLUMNS and LINES are `sample` at query_position, else the last probe_rows
 *  rows.  Row i is at position i + Lk - Lq.  reduce is over the heads of a list head.  Selection is
 *  x_select_block's, with its order and ties, by rule TOP_K or a TOP_P one; of COLUMNS and LINES it
 *  covers a list head.
 *
 *  A row that sees nothing has o = 0.  Rows past query_len are neither read nor written.  Without
 *  rows of q no list is written.
 *
 *  Errors name this operation, then the part that refuses, with that part's names of fields.
 *  Limits are those of the parts.  Workspace: theirs, the sums, and the lists that no output holds.
 *  Sources: XAttention (2503.16428), SampleAttention (2406.15486), MInference (2407.02490),
 *  FlashPrefill (2603.06199). */
typedef struct fovea_x_probed_forward_params {
  size_t struct_size;  /**< sizeof(fovea_x_probed_forward_params) */
  fovea_tensor q;      /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;      /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q */
  fovea_tensor v;      /**< [in] (rows, t, g, e) or paged (pool, page, g, e) as q */
  fovea_tensor o;      /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;    /**< [out, optional] (b, h, s) f32: of the sum over what is seen */
  fovea_tensor sample; /**< [in, optional] (b, samples, h, d) as q: rows of q that are probed; of
                          COLUMNS and LINES */
  fovea_tensor query_position; /**< [in, optional] (b, h, samples) i32: their
                                  positions; with sample */
  fovea_tensor cover_head;     /**< [in, optional] (x) f32: cover of each list head */
  fovea_tensor sink_logit;     /**< [in, optional] (h) f32: a learned term of the denominator */
  fovea_tensor query_start;    /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                  ascending from 0; then b = 1; of BLOCKS */
  fovea_tensor key_start; /**< [in, optional] (r+1) i32: first packed key of each sequence; not with
                             page_table or cache_row; of BLOCKS */
  fovea_tensor query_len; /**< [in, optional] (r) i32: rows in use; of BLOCKS, and of MEANS without
                             full_last */
  fovea_tensor key_len;   /**< [in, optional] (r) i32: keys in use */
  fovea_tensor page_table; /**< [in, optional] (rows, pages) i32: pool page of each page of k and v;
                              -1: absent */
  fovea_tensor cache_row;  /**< [in, optional] (r) i32: row of page_table, or of k and v; not of
                              MEANS */
  fovea_tensor index;      /**< [out, optional] (b, x, n, keep) i32: the lists of BLOCKS, LINES and
                              MEANS; entries past `keep` are cut */
  fovea_tensor index_count; /**< [out, optional] (b, x, n) i32: entries wanted, with index */
  fovea_tensor column; /**< [out, optional] (b, x, columns) i32: the keys of COLUMNS and LINES; keys
                          past `columns` are cut */
  fovea_tensor column_count; /**< [out, optional] (b, x) i32: keys wanted, with column */
  int64_t query_max;         /**< longest sequence of rows; 0: s; of BLOCKS and MEANS */
  int64_t key_max;           /**< longest sequence of keys; 0: t, or pages * page */
  int64_t lists;             /**< list heads without outputs of lists, a divisor of h, of MEANS h;
                                  0: h */
  int64_t probe_rows;  /**< last rows that are probed, >= 1; without sample, of COLUMNS and LINES */
  int64_t count;       /**< k of TOP_K, of blocks or of columns */
  int64_t slash_count; /**< distances that are chosen; of LINES */
  int64_t slash_force_first; /**< the first distances are forced and count; of LINES */
  int64_t force_first;       /**< the first key blocks, or columns, are forced */
  int64_t force_previous;    /**< the key blocks before the own ones are forced; of MEANS */
  int64_t full_last;         /**< last row blocks that see all; of MEANS */
  int64_t first_keys;        /**< first keys that are seen beside the lists; of COLUMNS and LINES */
  int64_t last_keys; /**< keys up to the row's own position that are seen beside them; the same */
  int64_t group_stride; /**< antidiagonals of x_probe_forward; 0: 1; of BLOCKS */
  float scale;          /**< of attention's scores and the probe's, > 0; 0: 1 / sqrt(d) */
  float softcap;        /**< of attention's scores; 0: none */
  float cover;          /**< share of the mass, of the TOP_P rules */
  float threshold;      /**< share of the largest sum, > 0, <= 1; of MEANS */
  float skip_margin;    /**< in nats, as in x_sparse_forward; 0: none */
  int32_t kind;         /**< fovea_x_probed_kind */
  int32_t reduce;       /**< fovea_x_probe_reduce */
  int32_t rule;         /**< fovea_x_select_rule */
  int32_t forced_count; /**< 1: forced entries count for the rule */
  int32_t force_own;    /**< 1: key blocks of the row block's own positions are forced; of BLOCKS
                             and MEANS */
  int32_t reversed;     /**< 1: of group_stride > 1, as in x_probe_forward */
  int32_t causal;       /**< 1: no key after a row's own position; LINES and MEANS want it */
  int32_t block_rows;   /**< rows of a row block, 1 .. 128; 0: 64 */
  int32_t block_keys;   /**< keys of a key block, 1 .. 65536, of BLOCKS and MEANS; 0: 64 */
} fovea_x_probed_forward_params;

FOVEA_API fovea_status fovea_x_probed_forward_workspace(fovea_context* ctx,
                                                        const fovea_x_probed_forward_params* params,
                                                        size_t* bytes);
FOVEA_API fovea_status fovea_x_probed_forward(fovea_context* ctx,
                                              const fovea_x_probed_forward_params* params);

#ifdef __cplusplus
}
#endif

#endif
