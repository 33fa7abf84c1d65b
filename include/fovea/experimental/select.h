/* SPDX-License-Identifier: Apache-2.0 */
/** Selections: which key blocks or keys each row of queries attends to, as lists for
 *  fovea_x_sparse_forward.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  Order and ties, of every selection:
 *    order        higher score first, then lower index; NaN counts as -inf, -0 equals 0
 *    eligible     a score of -inf is never taken by a rule, only by force
 *    lists        ascending, no entry twice; slots past the count are -1
 *    index_count  the count that was wanted; where it exceeds keep, the last of the order are cut
 *    bits         the same every run; host and CUDA agree wherever they compare equal scores
 *
 *  Row blocks and key blocks.  List row R of a sequence holds its rows [R block_rows, (R + 1)
 *  block_rows).  Key block c holds its keys [c block_keys, (c + 1) block_keys).  Tails are partial.
 *  A padded sequence of Lq rows has ceil(Lq / block_rows) list rows.  Packed, the first list row of
 *  sequence r is query_start[r] / block_rows + r, with block_rows 1 query_start[r].  Its first
 *  column is key_start[r] / block_keys + r.
 *  List rows of no sequence are neither read nor written.  Row i is at position i + Lk - Lq.  List
 *  head j of x serves the h / x query heads from j (h / x) on.  Column head j of g serves the h / g
 *  from j (h / g) on.
 *
 *  Extents of its own:
 *    y = 3: key blocks of a list row, see remap_step
 *    mask_bytes = 1: a bit for each key block, in whole bytes
 *    words = 2: words of 32 bits in a code
 *    slashes = 2: offsets of a head */
#ifndef FOVEA_EXPERIMENTAL_SELECT_H
#define FOVEA_EXPERIMENTAL_SELECT_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How a row's summary q and a column's make a score. */
typedef enum fovea_x_select_measure {
  FOVEA_X_SELECT_MEASURE_DOT = 0, /**< scale sum_c q_c column_c */
  FOVEA_X_SELECT_MEASURE_BOX = 1  /**< scale sum_c (max(q_c, 0) column_c + min(q_c, 0)
                                       column_low_c): no key between column_low and column has a
                                       larger dot product (Quest) */
} fovea_x_select_measure;

/** What scores s of the eligible columns become.  A row's sums and maxima are over them alone. */
typedef enum fovea_x_select_normalise {
  FOVEA_X_SELECT_NORMALISE_NONE = 0,     /**< s */
  FOVEA_X_SELECT_NORMALISE_SOFTMAX = 1,  /**< exp(s) / sum exp(s) over the row */
  FOVEA_X_SELECT_NORMALISE_WEIGHTED = 2, /**< w exp(s) / sum w exp(s), w = column_weight */
  FOVEA_X_SELECT_NORMALISE_MINMAX = 3,   /**< (s - min) / (max - min) over the scope; a range of at
                                              most 1e-6 counts as 1 */
  FOVEA_X_SELECT_NORMALISE_MAX = 4       /**< s / max over the row, s where max <= 0 */
} fovea_x_select_normalise;

/** How the query heads of a list head become one. */
typedef enum fovea_x_select_reduce {
  FOVEA_X_SELECT_REDUCE_NONE = 0, /**< x = h: each has its own list */
  FOVEA_X_SELECT_REDUCE_SUM = 1,  /**< in the order of heads; ineligible for one, ineligible */
  FOVEA_X_SELECT_REDUCE_MEAN = 2, /**< the sum over their number */
  FOVEA_X_SELECT_REDUCE_MAX = 3   /**< eligible for one, eligible */
} fovea_x_select_reduce;

/** Which of the eligible columns are taken, in their order.  Masses of the three cumulative rules
 *  are scores in fixed point, negative ones 0, T their total in the scope.  T = 0 takes nothing. */
typedef enum fovea_x_select_rule {
  FOVEA_X_SELECT_RULE_TOP_K = 0,       /**< the first k */
  FOVEA_X_SELECT_RULE_TOP_P_GE = 1,    /**< while the mass before is < cover T: reaches cover */
  FOVEA_X_SELECT_RULE_TOP_P_GT = 2,    /**< while the mass before is <= cover T: exceeds cover */
  FOVEA_X_SELECT_RULE_TOP_P_UNDER = 3, /**< while the mass with it is <= cover T */
  FOVEA_X_SELECT_RULE_ABOVE = 4,       /**< score > threshold */
  FOVEA_X_SELECT_RULE_AT_LEAST = 5,    /**< score >= threshold */
  FOVEA_X_SELECT_RULE_NONE = 6         /**< only what is forced: bits to lists, unions */
} fovea_x_select_rule;

/** What one application of the rule covers.  Index in the order: list row by list row. */
typedef enum fovea_x_select_scope {
  FOVEA_X_SELECT_SCOPE_ROW = 0,  /**< a list row */
  FOVEA_X_SELECT_SCOPE_HEAD = 1, /**< all list rows of a list head of a sequence */
  FOVEA_X_SELECT_SCOPE_ALL = 2   /**< all list heads of a sequence */
} fovea_x_select_scope;

/** Key blocks for each row block, from summaries of both or from given scores.  In this order:
 *    1. score      by measure, or scale * score
 *    2. eligible   the column is of the sequence; causal: its first key is not past the row block's
 *                  last row; complete: its last key is not past the first row; block_mask has 1;
 *                  column_forced has no bit 1.  Other columns, and scores that are NaN, have -inf
 *    3. normalise, 4. reduce: in this order, or reduce_raw = 1: reduce first
 *    5. remap      compressed columns to key blocks, see remap_step
 *    6. force      force_* and *_forced, of what is of the sequence and not past the row block as
 *                  in 2; the own blocks even with complete
 *    7. rule       in the scope; forced_count = 1: what is forced comes first, in the order of the
 *                  index, and uses up k or mass.  0: the rule runs over all that is eligible, and
 *                  what is forced is added.  Then min_extra, min_keep, max_keep
 *    8. lists
 *  Own blocks are those that hold a position of the row block.
 *
 *  Without query_len and query_start every sequence has query_max rows (0: n block_rows), without
 *  key_len and key_start key_max keys (0: u block_keys).
 *
 *  Limits: d is 1 .. 576.  Every valid call has a kernel on both backends.  A score is exact to f32
 *  rounding: a chain of f32 fused multiply-adds over the columns from 0.  On CUDA, with scope row,
 *  it is a sum of tensor cores, or, of f32 alone, the chain.  Workspace: 64 MiB at most for scope
 *  row and at least one list row of scores; b x n y scores for the others.
 *  Sources: Quest (2406.10774), NSA (2502.11089), MoBA (2502.13189), XAttention (2503.16428),
 *  SpargeAttention (2502.18137), SeerAttention (2410.13276). */
typedef struct fovea_x_select_block_params {
  size_t struct_size;         /**< sizeof(fovea_x_select_block_params) */
  fovea_tensor row;           /**< [in, optional] (b, n, h, d) f32 f16 bf16: a summary of each row
                                   block, or the queries themselves; needs column */
  fovea_tensor column;        /**< [in, optional] (key_b, u, g, d) f32 f16 bf16: a summary of each
                                   key block: g divides h; box: the largest of its keys; needs
                                   row */
  fovea_tensor column_low;    /**< [in, optional] (key_b, u, g, d) f32 f16 bf16: box: the smallest
                                   of its keys; the dtype of column */
  fovea_tensor score;         /**< [in, optional] (b, h, n, u) f32: scores in place of row and
                                   column; its columns are the sequence's own */
  fovea_tensor column_weight; /**< [in, optional] (key_b, g, u) f32: >= 0, of normalise weighted */
  fovea_tensor row_lse;       /**< [in, optional] (b, h, n) f32: of normalise softmax: a score s
                                   becomes exp(min(s - row_lse, 0)), 0 where row_lse is not finite.
                                   It is the lse of attention over the columns, where that is at
                                   hand; not with reduce_raw */
  fovea_tensor block_mask;    /**< [in, optional] (b, x, n, mask_bytes) u8: bit c % 8 of byte c / 8
                                   is 1 where key block c is eligible; ceil(y / 8) bytes; not with
                                   remap_step */
  fovea_tensor forced;        /**< [in, optional] (b, x, n, mask_bytes) u8: the same where it is
                                   forced */
  fovea_tensor row_forced;    /**< [in, optional] (b, x, n) u8: not 0: all key blocks are forced */
  fovea_tensor column_forced; /**< [in, optional] (key_b, g, u) u8: bit 0: the key block is forced;
                                   bit 1: it is not eligible; not with remap_step */
  fovea_tensor count_head;    /**< [in, optional] (b, x) i32: k of each list head, < 0 as 0; count
                                   and ratio stay 0 */
  fovea_tensor cover_head;    /**< [in, optional] (x) f32: cover of each list head; cover stays 0 */
  fovea_tensor query_start;   /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                   ascending from 0; then b = 1 */
  fovea_tensor key_start;     /**< [in, optional] (r+1) i32: first packed key of each sequence */
  fovea_tensor query_len;     /**< [in, optional] (r) i32: rows in use */
  fovea_tensor key_len;       /**< [in, optional] (r) i32: keys in use */
  fovea_tensor index;         /**< [out, optional] (b, x, n, keep) i32: key blocks; one of index and
                                   index_count at least */
  fovea_tensor index_count;   /**< [out, optional] (b, x, n) i32: key blocks wanted */
  fovea_tensor kept_score;    /**< [out, optional] (b, x, n, keep) f32: their scores after step 5,
                                   -inf past the count; needs index */
  fovea_tensor kept_mass;     /**< [out, optional] (b, x, n) f32: sum of the scores of the list, of
                                   those > 0 */
  fovea_tensor score_out;     /**< [out, optional] (b, x, n, y) f32: all scores after step 5 */
  int64_t query_max;          /**< longest sequence of rows; 0: n block_rows */
  int64_t key_max;            /**< longest sequence of keys; 0: as many as the columns cover */
  int64_t count;              /**< k of top_k */
  int64_t min_keep;           /**< least entries of a list, forced ones among them */
  int64_t max_keep;           /**< most entries of a list; 0: no bound.  The last taken go first,
                                   forced ones from the highest index when nothing else is left */
  int64_t min_extra;          /**< least entries that the rule takes in its scope */
  int64_t force_first;        /**< the first key blocks are forced */
  int64_t force_previous;     /**< those before the own blocks */
  int64_t force_last;         /**< the last key blocks of the sequence */
  int64_t remap_step;         /**< a > 0: column c is keys [c s, c s + l) with s = block_keys / a,
                                   l = remap_span s.  It exists where these are keys.  Key block j
                                   has the sum of p[a j + m - n] over m < a and n < remap_span.
                                   p is 0 where there is no eligible column.
                                   y = ceil((u s + l - 1) / block_keys).  0: a column is a key
                                   block, y = u */
  int64_t remap_span;         /**< l in steps, >= 1 with remap_step */
  float scale;                /**< of scores, > 0; 0: 1 / sqrt(d), for given scores 1 */
  float ratio;                /**< k of top_k = ratio times the key blocks of the scope; count stays
                                   0 */
  float cover;                /**< share of the mass */
  float threshold;            /**< of above and at_least */
  int32_t measure;            /**< fovea_x_select_measure */
  int32_t normalise;          /**< fovea_x_select_normalise */
  int32_t reduce;             /**< fovea_x_select_reduce */
  int32_t reduce_raw;         /**< 1: heads are reduced before they are normalised; weights are then
                                   those of the first head */
  int32_t rule;               /**< fovea_x_select_rule */
  int32_t scope;              /**< fovea_x_select_scope */
  int32_t ratio_up;           /**< 1: k of ratio is rounded up, 0: down */
  int32_t forced_count;       /**< 1: forced entries count for the rule */
  int32_t force_own;          /**< 1: own blocks are forced */
  int32_t complete;           /**< 1: no key block that ends past the row block's first row; needs
                                   causal */
  int32_t causal;             /**< 1: no key block that begins past the row block's last row */
  int32_t block_rows;         /**< rows of a list row, >= 1; 0: 1 */
  int32_t block_keys;         /**< keys of a key block, >= 1; 0: 64 */
  int32_t reserved;           /**< 0 */
} fovea_x_select_block_params;

FOVEA_API fovea_status fovea_x_select_block_workspace(fovea_context* ctx,
                                                      const fovea_x_select_block_params* params,
                                                      size_t* bytes);
FOVEA_API fovea_status fovea_x_select_block(fovea_context* ctx,
                                            const fovea_x_select_block_params* params);

/** How a query and a key make a score, for each query head. */
typedef enum fovea_x_select_score {
  FOVEA_X_SELECT_SCORE_DOT = 0,           /**< scale <q, k> */
  FOVEA_X_SELECT_SCORE_RELU_WEIGHTED = 1, /**< weight max(scale <q, k>, 0): lightning indexers */
  FOVEA_X_SELECT_SCORE_HAMMING = 2,       /**< scale (32 words - 2 popcount(code_q xor code)) */
  FOVEA_X_SELECT_SCORE_SUBSET = 3         /**< scale <q_R, k_R> / sqrt(|q_R|_1 / |q|_1), 0 where
                                               |q_R|_1 is.  R: the `subset` columns with the largest
                                               sum of |q_c| over the query heads of a key head */
} fovea_x_select_score;

/** The keys of each row with the highest scores, for x_sparse_forward with block_keys 1, or with
 *  pool_keys the blocks of keys.  Scoring and selection run over a few rows at a time, and no array
 *  of all rows and keys is made.
 *
 *  A row sees keys as in attention_forward: lengths, pages, causal, windows, sink_keys,
 *  context_len, key_step and key_shift.  Of these, keys in first_keys and last_keys are left out,
 *  since x_sparse_forward sees them by itself, and block_mask leaves out others.  List head j of x
 *  serves the h / x query heads from j (h / x) on; reduce makes one score of theirs.
 *  With pool_keys a block's score is the largest of its keys', and index holds block numbers.
 *  k = max(count, floor(ratio * keys that the window lets the row see)).
 *
 *  Rows past query_len are neither read nor written.  A row that sees nothing has count 0.
 *
 *  Limits: d is 1 .. 576.  Every valid call has a kernel on both backends.  Its product is a chain
 *  of f32 fused multiply-adds over the columns from 0.  On Hopper tensor cores take some with d to
 *  128, and sums have another order:
 *    dot, relu_weighted   f16, bf16, e4m3; 16, 32 or 64 query heads a list head
 *    dot with pool_keys   f16, bf16; 1, 2, 4 or 8; blocks of 16, 32, 64 or a multiple of 128 keys
 *  Workspace: 512 MiB at most, and at least the scores of one row.
 *  Sources: DSA (2512.02556), SparQ (2312.04985), Loki (2406.02542), HashAttention (2412.14468),
 *  MiniMax Sparse Attention (2606.13392). */
typedef struct fovea_x_select_token_params {
  size_t struct_size;       /**< sizeof(fovea_x_select_token_params) */
  fovea_tensor q;           /**< [in, optional] (b, s, h, d) f32 f16 bf16 e4m3: the scale of codes
                                 is the caller's, in weight or scale; needs k; not with hamming */
  fovea_tensor k;           /**< [in, optional] (rows, t, g, d) or paged (pool, page, g, d) f32 f16
                                 bf16 e4m3 e5m2 i8: g divides h; needs q */
  fovea_tensor k_scale;     /**< [in, optional] (rows, t, g, groups) or paged (pool, page, g,
                                 groups) f32: as in attention_forward, for e4m3, e5m2 and i8; needs
                                 k */
  fovea_tensor code_q;      /**< [in, optional] (b, s, h, words) i32: hamming: the bits of each
                                 query; needs code */
  fovea_tensor code;        /**< [in, optional] (rows, t, g, words) or paged (pool, page, g, words)
                                 i32: the bits of each key; needs code_q */
  fovea_tensor weight;      /**< [in, optional] (b, s, h) f32: of relu_weighted; absent: 1 */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                 ascending from 0; then b = 1 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32: first packed key of each sequence; not
                                 with page_table or cache_row */
  fovea_tensor query_len;   /**< [in, optional] (r) i32: rows in use */
  fovea_tensor key_len;     /**< [in, optional] (r) i32: keys in use */
  fovea_tensor page_table;  /**< [in, optional] (rows, pages) i32: pool page of each page of keys;
                                 -1: absent, its keys are not seen */
  fovea_tensor cache_row;   /**< [in, optional] (r) i32: row of page_table, or of k, that a sequence
                                 reads; -1 or past the last: no keys; absent: its own number */
  fovea_tensor context_len; /**< [in, optional] (r) i32: p_i = i + context_len - Lq; absent: Lk */
  fovea_tensor block_mask;  /**< [in, optional] (b, x, s, mask_bytes) u8: bit c % 8 of byte c / 8
                                 is 1 where keys of block c of block_keys may be selected.  It has a
                                 bit for each block of t or pages * page keys */
  fovea_tensor index;       /**< [out, optional] (b, x, s, keep) i32: keys by their number in the
                                 sequence; one of index and index_count at least */
  fovea_tensor index_count; /**< [out, optional] (b, x, s) i32: keys wanted */
  fovea_tensor kept_score;  /**< [out, optional] (b, x, s, keep) f32: their scores, -inf past the
                                 count; needs index */
  fovea_tensor kept_mass;   /**< [out, optional] (b, h, s) f32: share of the query head's softmax
                                 that the list holds, over all keys that can be selected.  0 for an
                                 empty list.  Of dot and subset without pool_keys; needs index */
  int64_t query_max;        /**< longest sequence of rows; 0: s */
  int64_t key_max;          /**< longest sequence of keys; 0: t or pages * page */
  int64_t window_left;      /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;     /**< keys seen to the right, the row's own position counted; 0: all */
  int64_t sink_keys;        /**< keys at positions below this stay visible through window_left */
  int64_t key_step;         /**< p_j = key_step * j + key_shift, below 2^31; 0: 1 */
  int64_t key_shift;        /**< position of the first key; within 2^31 of 0 */
  int64_t count;            /**< keys, or blocks of pool_keys, to select */
  int64_t first_keys;       /**< the first keys are left out */
  int64_t last_keys;        /**< keys with p_i - last_keys < p_j <= p_i are left out */
  int64_t force_last;       /**< the last keys (or blocks) that the row sees are taken first, and
                                 count */
  int64_t pool_keys;        /**< keys of a block that is selected as a whole; 0: keys */
  int64_t subset;           /**< columns of SUBSET, 1 .. d */
  int64_t block_keys;       /**< keys of a block of block_mask; 0: 64 */
  float scale;              /**< > 0; 0: 1 / sqrt(d), for hamming 1 */
  float ratio;              /**< share of the keys that a row sees; not with pool_keys */
  int32_t measure;          /**< fovea_x_select_score */
  int32_t reduce;           /**< fovea_x_select_reduce */
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t reserved;         /**< 0 */
} fovea_x_select_token_params;

FOVEA_API fovea_status fovea_x_select_token_workspace(fovea_context* ctx,
                                                      const fovea_x_select_token_params* params,
                                                      size_t* bytes);
FOVEA_API fovea_status fovea_x_select_token(fovea_context* ctx,
                                            const fovea_x_select_token_params* params);

/** Lists from lines or from bits.
 *
 *  Lines are key numbers (vertical) and distances behind the row (slash).  They ascend, no number
 *  twice, as x_select_block writes them.  Entries < 0 and past the counts are none.  With M =
 *  block_rows = block_keys, a row block at positions [a, a + M) and e = a + M:
 *    ranges    for each slash x < e, the largest first: [hi - M, hi) with hi = max(e - x, M).  With
 *              hi at most M past the end of the open range that is extended by M, if hi is past it
 *              at all; else the next range opens
 *    index     the first keys of the parts of M keys into which the ranges fall, of those that are
 *              keys: for entry_keys = 1.  aligned = 1: the key blocks that the ranges touch
 *    column    the verticals below e that are keys, outside the ranges; aligned: outside the
 *              blocks
 *  in_blocks = 1: numbers are of key blocks.  Block I holds the row block's last position.  index
 *  holds the blocks J <= I with J a vertical or I - J a slash.
 *  Rows past a causal diagonal are the reader's to hide: give x_sparse_forward causal = 1.
 *
 *  Bits: index holds the key blocks of the sequence whose bit is 1.  With causal = 1 none begins
 *  past the row block's last row.
 *
 *  Where a count exceeds what fits, the highest are cut.  List rows of no sequence are not written.
 *  Every valid call has one kernel a backend.
 *  Sources: MInference (2407.02490), FlexPrefill (2502.20766). */
typedef struct fovea_x_select_line_params {
  size_t struct_size;          /**< sizeof(fovea_x_select_line_params) */
  fovea_tensor bits;           /**< [in, optional] (b, x, n, mask_bytes) u8: bit c % 8 of byte c /
                                    8 is of key block c; not with vertical or slash */
  fovea_tensor vertical;       /**< [in, optional] (b, x, u) i32: key numbers */
  fovea_tensor vertical_count; /**< [in, optional] (b, x) i32: how many, cut to u; needs vertical */
  fovea_tensor slash;          /**< [in, optional] (b, x, slashes) i32: distances */
  fovea_tensor slash_count;    /**< [in, optional] (b, x) i32: how many, cut to slashes; needs
                                    slash */
  fovea_tensor query_start;    /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                    ascending from 0; then b = 1 */
  fovea_tensor key_start;      /**< [in, optional] (r+1) i32: first packed key of each sequence */
  fovea_tensor query_len;      /**< [in, optional] (r) i32: rows in use */
  fovea_tensor key_len;        /**< [in, optional] (r) i32: keys in use */
  fovea_tensor index;          /**< [out, optional] (b, x, n, keep) i32: -1 past the count; one
                                    output at least */
  fovea_tensor index_count;    /**< [out, optional] (b, x, n) i32: entries wanted */
  fovea_tensor column;         /**< [out, optional] (b, x, n, columns) i32: single keys, -1 past the
                                    count; lines that are not in_blocks */
  fovea_tensor column_count;   /**< [out, optional] (b, x, n) i32: single keys wanted; as column */
  fovea_tensor bits_out;       /**< [out, optional] (b, x, n, mask_bytes) u8: the entries as bits,
                                    for `forced` of x_select_block; lines aligned or in_blocks */
  int64_t query_max;           /**< longest sequence of rows; 0: n block_rows */
  int64_t key_max;             /**< longest sequence of keys, >= 1; mask_bytes has its blocks */
  int32_t aligned;             /**< 1: index holds key blocks; lines that are not in_blocks */
  int32_t in_blocks;           /**< 1: lines are of key blocks */
  int32_t causal;              /**< 1: no key block past the row block; of bits */
  int32_t block_rows;          /**< rows of a list row, >= 1; 0: 64 */
  int32_t block_keys;          /**< keys of a key block, >= 1; 0: 64; lines: as block_rows */
  int32_t reserved;            /**< 0 */
} fovea_x_select_line_params;

FOVEA_API fovea_status fovea_x_select_line_workspace(fovea_context* ctx,
                                                     const fovea_x_select_line_params* params,
                                                     size_t* bytes);
FOVEA_API fovea_status fovea_x_select_line(fovea_context* ctx,
                                           const fovea_x_select_line_params* params);

/** Clusters of query heads whose attention over a prompt's first tokens is alike (CHAI).
 *
 *  The feature of a head is its s x s matrix of probabilities: softmax rows of scale <q_i, k_j>.
 *  Two heads are 1 - cos apart, two clusters the mean over their pairs of heads.  Clusters begin as
 *  single heads.  The two that are closest become one until there are `clusters`.  Of equal
 *  distances the one of the smallest first head counts, then of the smallest second.  A distance
 *  that is no number counts as infinite.  head_map[i] is the smallest head of i's cluster: the one
 *  that computes scores for all.  Labels number the clusters by their smallest heads.
 *
 *  Limits: d is 1 .. 576, h at most 256.  Sums are f32; the two backends may differ where distances
 *  are equal to rounding.  Every valid call has one kernel a backend.
 *  Source: CHAI (2403.08058). */
typedef struct fovea_x_select_heads_params {
  size_t struct_size;       /**< sizeof(fovea_x_select_heads_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16: the first tokens, five in CHAI */
  fovea_tensor k;           /**< [in] (b, s, g, d) f32 f16 bf16: g divides h */
  fovea_tensor query_len;   /**< [in, optional] (b) i32: tokens in use, at most s */
  fovea_tensor clusters_of; /**< [in, optional] (b) i32: clusters of each batch, cut to 1 .. h;
                                 clusters stays 0 */
  fovea_tensor head_map;    /**< [out] (b, h) i32 */
  fovea_tensor label;       /**< [out, optional] (b, h) i32 */
  fovea_tensor count;       /**< [out, optional] (b) i32: clusters there are */
  int64_t clusters;         /**< >= 1, cut to h */
  float scale;              /**< > 0; 0: 1 / sqrt(d) */
  int32_t causal;           /**< 1: token i sees tokens up to itself; 0: all */
} fovea_x_select_heads_params;

FOVEA_API fovea_status fovea_x_select_heads_workspace(fovea_context* ctx,
                                                      const fovea_x_select_heads_params* params,
                                                      size_t* bytes);
FOVEA_API fovea_status fovea_x_select_heads(fovea_context* ctx,
                                            const fovea_x_select_heads_params* params);

#ifdef __cplusplus
}
#endif

#endif
