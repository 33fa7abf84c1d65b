/* SPDX-License-Identifier: Apache-2.0 */
/** Summaries: what sparse methods choose keys by, and how they put their branches together.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  Sums are in a fixed order: the same bits every run.
 *
 *  Extents of its own:
 *    places = 4: tokens of a block of x_pool's bias */
#ifndef FOVEA_EXPERIMENTAL_SUMMARY_H
#define FOVEA_EXPERIMENTAL_SUMMARY_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Parts of a row of y, bits of `want`.  Those of the first four that are wanted stand side by
 *  side, in the order of their bits; each of the others stands alone. */
typedef enum fovea_x_summary {
  FOVEA_X_SUMMARY_MAX = 1,      /**< the largest of the block in each column */
  FOVEA_X_SUMMARY_MIN = 2,      /**< the smallest */
  FOVEA_X_SUMMARY_MEAN = 4,     /**< sum / tokens of the block */
  FOVEA_X_SUMMARY_SUM = 8,      /**< the sum */
  FOVEA_X_SUMMARY_RANKED = 16,  /**< the mean of the `ranked` tokens with the largest rank_score,
                                     the first of equals; NaN ranks as -inf */
  FOVEA_X_SUMMARY_RUNNING = 32, /**< the mean of the sequence, from `previous` and what is new */
  FOVEA_X_SUMMARY_GATED = 64    /**< sum_i w_i x_i, w the softmax over the block of gate + bias, in
                                     each column by itself */
} fovea_x_summary;

/** Summaries of blocks of tokens: of keys, queries or values.
 *
 *    y[c] = summary of the tokens [c step, c step + block) of the sequence    c = 0, 1, ...
 *  as far as the sequence has them: a block counts its own tokens.  Head i of y reads head
 *  i / (h / g) of x.  A block without tokens gives 0.  Blocks that the sequence does not have are
 *  not written.  NaN in a column makes NaN of it.
 *
 *  Packed, the first block of sequence r is key_start[r] / step + r, as in x_select_block.  With
 *  key_begin blocks are [key_begin[c], key_begin[c + 1]), all u of them.
 *
 *  gated with overlap = 1 reads 2 f columns of x and gate.  Block c is then blocks c - 1 and c:
 *  the tokens of c - 1 give their first f columns, those of c the last f.  bias[i] is added to the
 *  gate of place i: token i of the block, with overlap of its own block.
 *
 *  similar = |mean of x_i / |x_i||^2 over the block, 0 for x_i = 0: 1 where all point one way.
 *
 *  Limits: none on widths.  Every valid call has a kernel on both backends, one pass over x.  On
 *  CUDA max, min, mean and sum are fastest where rows of x are whole pieces of 16 bytes.
 *  Sources: Quest (2406.10774), InfLLM (2402.04617), MoBA (2502.13189), NSA (2502.11089),
 *  SpargeAttention (2502.18137), SeerAttention (2410.13276), SparQ (2312.04985). */
typedef struct fovea_x_pool_forward_params {
  size_t struct_size;      /**< sizeof(fovea_x_pool_forward_params) */
  fovea_tensor x;          /**< [in] (b, t, g, d) or paged (pool, page, g, d) f32 f16 bf16: g
                                divides h */
  fovea_tensor y;          /**< [out] (b, u, h, f) as x or f32: f = d for each wanted part; may be
                                previous */
  fovea_tensor similar;    /**< [out, optional] (b, h, u) f32 */
  fovea_tensor dissimilar; /**< [out, optional] (b, h, u) u8: 3 where similar <= similar_least,
                                else 0: column_forced and row_forced of x_select_block; needs
                                similar_least */
  fovea_tensor similar_least; /**< [in, optional] (h) f32 */
  fovea_tensor rank_score;    /**< [in, optional] (b, h, t) or paged (b, h, keys) f32: of ranked */
  fovea_tensor gate;          /**< [in, optional] (b, t, h, d) as x or f32: of gated */
  fovea_tensor bias;          /**< [in, optional] (places, d) f32: of gated; places = block */
  fovea_tensor previous;      /**< [in, optional] (b, u, h, f) as y: of running: the mean of the
                                   first old_len tokens */
  fovea_tensor key_begin;     /**< [in, optional] (b, h, u+1) i32: ascending; in place of block and
                                   step */
  fovea_tensor key_start;     /**< [in, optional] (r+1) i32: first packed token of each sequence,
                                   ascending from 0; then b = 1 */
  fovea_tensor key_len;       /**< [in, optional] (r) i32: tokens in use */
  fovea_tensor old_len;    /**< [in, optional] (r) i32: only blocks that hold a token from here on
                                are written; absent: all */
  fovea_tensor page_table; /**< [in, optional] (rows, pages) i32: -1: page absent, and its tokens
                                do not count */
  fovea_tensor cache_row;  /**< [in, optional] (r) i32: row of page_table; -1 or past the last
                                skips the sequence; needs page_table */
  int64_t key_max;         /**< longest sequence; 0: t, or pages * page */
  int64_t block;           /**< tokens of a block, 1 .. 2^30; 0: 64 */
  int64_t step;            /**< tokens between blocks, 1 .. block; 0: block */
  int64_t ranked;          /**< tokens of ranked, >= 1 */
  int32_t want;            /**< sum of fovea_x_summary; 0: mean */
  int32_t complete;        /**< 1: only blocks that have all their tokens */
  int32_t overlap;         /**< 1: of gated, see above; step = block */
  int32_t reserved;        /**< 0 */
} fovea_x_pool_forward_params;

/** Gradients of x_pool_forward for max, min, mean, sum and gated.  Those of max and min go to the
 *  first of equal tokens.  Blocks that overlap add up, in their order.
 *
 *  gated, with w the weights of a block:
 *    dx_i = w_i dy,  dgate_i = w_i dy (x_i - y),  dbias[i] = sum over blocks of dgate
 *
 *  Every element of an output is written, 0 where no block reads the token. */
typedef struct fovea_x_pool_backward_params {
  size_t struct_size;     /**< sizeof(fovea_x_pool_backward_params) */
  fovea_tensor x;         /**< [in] (b, t, g, d) f32 f16 bf16: g divides h */
  fovea_tensor dy;        /**< [in] (b, u, h, f) as x or f32 */
  fovea_tensor gate;      /**< [in, optional] (b, t, h, d) as x or f32: of gated */
  fovea_tensor bias;      /**< [in, optional] (places, d) f32: of gated */
  fovea_tensor key_begin; /**< [in, optional] (b, h, u+1) i32: ascending */
  fovea_tensor key_start; /**< [in, optional] (r+1) i32: first packed token of each sequence,
                               ascending from 0; then b = 1 */
  fovea_tensor key_len;   /**< [in, optional] (r) i32: tokens in use */
  fovea_tensor dx;        /**< [out, optional] (b, t, g, d) as x */
  fovea_tensor dgate;     /**< [out, optional] (b, t, h, d) as x or f32: needs gate */
  fovea_tensor dbias;     /**< [out, optional] (places, d) f32: needs bias */
  int64_t key_max;        /**< longest sequence; 0: t */
  int64_t block;          /**< as in x_pool_forward */
  int64_t step;           /**< as in x_pool_forward */
  int32_t want;           /**< sum of fovea_x_summary without ranked and running; 0: mean */
  int32_t complete;       /**< 1: only blocks that have all their tokens */
  int32_t overlap;        /**< 1: of gated; step = block */
  int32_t reserved;       /**< 0 */
} fovea_x_pool_backward_params;

FOVEA_API fovea_status fovea_x_pool_forward_workspace(fovea_context* ctx,
                                                      const fovea_x_pool_forward_params* params,
                                                      size_t* bytes);
FOVEA_API fovea_status fovea_x_pool_forward(fovea_context* ctx,
                                            const fovea_x_pool_forward_params* params);

FOVEA_API fovea_status fovea_x_pool_backward_workspace(fovea_context* ctx,
                                                       const fovea_x_pool_backward_params* params,
                                                       size_t* bytes);
FOVEA_API fovea_status fovea_x_pool_backward(fovea_context* ctx,
                                             const fovea_x_pool_backward_params* params);

/** What the heads of a group become in an output of x_probe_forward. */
typedef enum fovea_x_probe_reduce {
  FOVEA_X_PROBE_REDUCE_SUM = 0,  /**< the sum over the heads, in their order */
  FOVEA_X_PROBE_REDUCE_MEAN = 1, /**< the sum over their number */
  FOVEA_X_PROBE_REDUCE_MAX = 2   /**< the largest */
} fovea_x_probe_reduce;

/** Statistics of attention's probabilities over the rows of q, without storing them: q holds
 *  sampled rows at query_position, or the last rows of each sequence.
 *
 *    P_ij = exp(scale q_i k_j - lse_i) over the keys that row i sees, lse as attention_forward's
 *    column_sum[j]   = sum_i P_ij
 *    diagonal_sum[o] = sum of P_ij over p_i - j = o, o = 0, 1, ...
 *    block_sum[I, J] = sum of P_ij over the rows of row block I and the keys of key block J
 *    block_max[I, J] = the largest of these, 0 where there is none
 *  Head j of x is the h / x query heads from j (h / x) on, reduced.  With lse_in nothing is
 *  normalised anew; P above 65536 counts as that in diagonal_sum.
 *
 *  group_stride = S > 1 (antidiagonal scores): a row u and a key v stand for S tokens each,
 *    L_uv = scale / S sum_r q_(u S + r) k_(v S + r),  reversed = 1: q_(u S + S - 1 - r)
 *  and P is the softmax of L over v.  Tokens past the end, and those of absent pages, give 0.
 *  causal compares v with u + floor((context_len - Lq) / S).  Blocks count tokens, as without it.
 *
 *  Row blocks lie as in x_select_block: packed, the first of sequence r is query_start[r] /
 *  block_rows + r, with block_rows 1 query_start[r].  Row blocks that a sequence has are written
 * with all u key blocks, which are the sequence's own.  The other outputs are written in every
 * element, lse as far as there are rows.
 *
 *  Limits: d is 1 .. 576.  On Hopper tensor cores serve f16 and bf16 where d is a multiple of 8 and
 *  k has no pages.  Key blocks have a power of two of keys or groups.  f32 FMA serves the rest.
 *  Sources: H2O (2306.14048), MInference (2407.02490), SampleAttention (2406.15486), FlexPrefill
 *  (2502.20766), XAttention (2503.16428). */
typedef struct fovea_x_probe_forward_params {
  size_t struct_size;  /**< sizeof(fovea_x_probe_forward_params) */
  fovea_tensor q;      /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;      /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q: g divides
                            h */
  fovea_tensor lse_in; /**< [in, optional] (b, h, s) f32: of each row; absent: it is found */
  fovea_tensor query_position; /**< [in, optional] (b, h, s) i32: absent: i + context_len - Lq */
  fovea_tensor lse;            /**< [out, optional] (b, h, s) f32: not with lse_in */
  fovea_tensor column_sum;     /**< [out, optional] (key_b, x, t) or paged (r, x, keys) f32: by
                                    storage index, or paged by key column */
  fovea_tensor diagonal_sum; /**< [out, optional] (r, x, keys) f32: needs key_step 1, key_shift 0 */
  fovea_tensor block_sum;    /**< [out, optional] (b, x, n, u) f32 */
  fovea_tensor block_max;    /**< [out, optional] (b, x, n, u) f32 */
  fovea_tensor query_start;  /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                  ascending from 0; then b = 1 */
  fovea_tensor key_start;    /**< [in, optional] (r+1) i32: first packed key of each sequence; not
                                  with page_table or cache_row */
  fovea_tensor query_len;    /**< [in, optional] (r) i32: rows in use */
  fovea_tensor key_len;      /**< [in, optional] (r) i32: keys in use */
  fovea_tensor page_table;   /**< [in, optional] (rows, pages) i32: -1: page absent, its keys are
                                  not seen */
  fovea_tensor cache_row;    /**< [in, optional] (r) i32: row of page_table, or of k */
  fovea_tensor context_len;  /**< [in, optional] (r) i32: absent: Lk; not with query_position */
  int64_t query_max;         /**< longest sequence of rows; 0: s */
  int64_t key_max;           /**< longest sequence of keys; 0: t, or pages * page */
  int64_t window_left;       /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;      /**< keys seen to the right, the same; 0: all, 1: none */
  int64_t sink_keys;         /**< first keys seen through window_left */
  int64_t key_step;          /**< key j is at position key_step j + key_shift; 0: 1 */
  int64_t key_shift;         /**< see key_step */
  int64_t group_stride;      /**< S, >= 1; 0: 1.  > 1: only block_sum and block_max, causal alone,
                                  and S divides block_rows and block_keys */
  float scale;               /**< > 0; 0: 1 / sqrt(d) */
  int32_t causal;            /**< 1: as window_right 1 */
  int32_t block_rows;        /**< rows of a row block, >= 1; 0: 64 */
  int32_t block_keys;        /**< keys of a key block, >= 1; 0: 64 */
  int32_t reversed;          /**< 1: of group_stride > 1, see above */
  int32_t reduce;            /**< fovea_x_probe_reduce */
} fovea_x_probe_forward_params;

FOVEA_API fovea_status fovea_x_probe_forward_workspace(fovea_context* ctx,
                                                       const fovea_x_probe_forward_params* params,
                                                       size_t* bytes);
FOVEA_API fovea_status fovea_x_probe_forward(fovea_context* ctx,
                                             const fovea_x_probe_forward_params* params);

/** What a gate is before it multiplies. */
typedef enum fovea_x_gate {
  FOVEA_X_GATE_NONE = 0,              /**< g */
  FOVEA_X_GATE_SIGMOID = 1,           /**< 1 / (1 + exp(-g)) */
  FOVEA_X_GATE_COMPLEMENT = 2,        /**< 1 - g */
  FOVEA_X_GATE_SIGMOID_COMPLEMENT = 3 /**< 1 - 1 / (1 + exp(-g)) */
} fovea_x_gate;

/** The weighted sum of branches.
 *
 *    y = sum of coefficient * act(gate) * x over x, x2, x3, x4 and coarse, in this order, in f32
 *  Row i takes the row of coarse whose block it is in: rows [row_begin[c], row_begin[c + 1]), or
 *  [c block_rows, (c + 1) block_rows).  A row in no block takes nothing of coarse.
 *  Rows past query_len are neither read nor written.
 *
 *  Limits: none on widths.  One pass over memory.  On CUDA the forward is fastest where rows are
 *  whole pieces of 16 bytes and a gate is one number a row.
 *  Sources: NSA (2502.11089), VSA (2505.13389), DuoAttention (2410.10819), SparQ (2312.04985),
 *  DiTFastAttn (2406.08552). */
typedef struct fovea_x_combine_forward_params {
  size_t struct_size;       /**< sizeof(fovea_x_combine_forward_params) */
  fovea_tensor x;           /**< [in] (b, s, h, e) f32 f16 bf16: a branch; stride 0 broadcasts */
  fovea_tensor x2;          /**< [in, optional] (b, s, h, e) as x */
  fovea_tensor x3;          /**< [in, optional] (b, s, h, e) as x */
  fovea_tensor x4;          /**< [in, optional] (b, s, h, e) as x */
  fovea_tensor coarse;      /**< [in, optional] (b, u, h, e) as x: a row for each block of rows */
  fovea_tensor gate;        /**< [in, optional] (b, s, h, e) as x or f32: of x; absent: 1 */
  fovea_tensor gate2;       /**< [in, optional] (b, s, h, e) as x or f32: of x2; absent: 1 */
  fovea_tensor gate3;       /**< [in, optional] (b, s, h, e) as x or f32: of x3; absent: 1 */
  fovea_tensor gate4;       /**< [in, optional] (b, s, h, e) as x or f32: of x4; absent: 1 */
  fovea_tensor gate_coarse; /**< [in, optional] (b, s, h, e) as x or f32: of coarse; absent: 1 */
  fovea_tensor row_begin;   /**< [in, optional] (b, u+1) i32: first row of each block, ascending; in
                               place of block_rows */
  fovea_tensor query_len;   /**< [in, optional] (b) i32: rows in use, 0 .. s */
  fovea_tensor y;           /**< [out] (b, s, h, e) as x or f32: may be x */
  int64_t block_rows;       /**< rows of a block of coarse, >= 1; 0: 64 */
  float coefficient;        /**< not 0; 0: 1 */
  float coefficient2;       /**< not 0; 0: 1 */
  float coefficient3;       /**< not 0; 0: 1 */
  float coefficient4;       /**< not 0; 0: 1 */
  float coefficient_coarse; /**< not 0; 0: 1 */
  int32_t gate_act;         /**< fovea_x_gate */
  int32_t gate2_act;        /**< fovea_x_gate */
  int32_t gate3_act;        /**< fovea_x_gate */
  int32_t gate4_act;        /**< fovea_x_gate */
  int32_t gate_coarse_act;  /**< fovea_x_gate */
} fovea_x_combine_forward_params;

FOVEA_API fovea_status fovea_x_combine_forward_workspace(
    fovea_context* ctx, const fovea_x_combine_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_combine_forward(fovea_context* ctx,
                                               const fovea_x_combine_forward_params* params);

/** Gradients of x_combine_forward.
 *
 *    dx = coefficient act(gate) dy,  dgate = coefficient act'(gate) x dy
 *  An axis of stride 0 of a gradient receives the sum over that axis.  dcoarse sums over the rows
 * of each block.  Rows past query_len give 0. */
typedef struct fovea_x_combine_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_combine_backward_params) */
  fovea_tensor x;           /**< [in] (b, s, h, e) f32 f16 bf16: a branch; stride 0 broadcasts */
  fovea_tensor x2;          /**< [in, optional] (b, s, h, e) as x */
  fovea_tensor x3;          /**< [in, optional] (b, s, h, e) as x */
  fovea_tensor x4;          /**< [in, optional] (b, s, h, e) as x */
  fovea_tensor coarse;      /**< [in, optional] (b, u, h, e) as x: a row for each block of rows */
  fovea_tensor gate;        /**< [in, optional] (b, s, h, e) as x or f32: of x; absent: 1 */
  fovea_tensor gate2;       /**< [in, optional] (b, s, h, e) as x or f32: of x2; absent: 1 */
  fovea_tensor gate3;       /**< [in, optional] (b, s, h, e) as x or f32: of x3; absent: 1 */
  fovea_tensor gate4;       /**< [in, optional] (b, s, h, e) as x or f32: of x4; absent: 1 */
  fovea_tensor gate_coarse; /**< [in, optional] (b, s, h, e) as x or f32: of coarse; absent: 1 */
  fovea_tensor row_begin;   /**< [in, optional] (b, u+1) i32: first row of each block, ascending; in
                               place of block_rows */
  fovea_tensor query_len;   /**< [in, optional] (b) i32: rows in use, 0 .. s */
  fovea_tensor dy;          /**< [in] (b, s, h, e) as x or f32 */
  fovea_tensor dx;          /**< [out, optional, sums] (b, s, h, e) as x */
  fovea_tensor dx2;         /**< [out, optional, sums] (b, s, h, e) as x: needs x2 */
  fovea_tensor dx3;         /**< [out, optional, sums] (b, s, h, e) as x: needs x3 */
  fovea_tensor dx4;         /**< [out, optional, sums] (b, s, h, e) as x: needs x4 */
  fovea_tensor dcoarse;     /**< [out, optional] (b, u, h, e) as x: needs coarse */
  fovea_tensor dgate;       /**< [out, optional, sums] (b, s, h, e) as x or f32: needs gate */
  fovea_tensor dgate2;      /**< [out, optional, sums] (b, s, h, e) as x or f32: needs gate2 */
  fovea_tensor dgate3;      /**< [out, optional, sums] (b, s, h, e) as x or f32: needs gate3 */
  fovea_tensor dgate4;      /**< [out, optional, sums] (b, s, h, e) as x or f32: needs gate4 */
  fovea_tensor dgate_coarse; /**< [out, optional, sums] (b, s, h, e) as x or f32: needs
                                  gate_coarse */
  int64_t block_rows;        /**< rows of a block of coarse, >= 1; 0: 64 */
  float coefficient;         /**< not 0; 0: 1 */
  float coefficient2;        /**< not 0; 0: 1 */
  float coefficient3;        /**< not 0; 0: 1 */
  float coefficient4;        /**< not 0; 0: 1 */
  float coefficient_coarse;  /**< not 0; 0: 1 */
  int32_t gate_act;          /**< fovea_x_gate */
  int32_t gate2_act;         /**< fovea_x_gate */
  int32_t gate3_act;         /**< fovea_x_gate */
  int32_t gate4_act;         /**< fovea_x_gate */
  int32_t gate_coarse_act;   /**< fovea_x_gate */
} fovea_x_combine_backward_params;

FOVEA_API fovea_status fovea_x_combine_backward_workspace(
    fovea_context* ctx, const fovea_x_combine_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_combine_backward(fovea_context* ctx,
                                                const fovea_x_combine_backward_params* params);

/** How x_compare_forward measures. */
typedef enum fovea_x_compare_measure {
  FOVEA_X_COMPARE_MSE = 0, /**< the mean of (candidate - reference)^2 over rows and columns */
  FOVEA_X_COMPARE_JSD = 1  /**< the mean over rows of sqrt(1/2 KL(p, m) + 1/2 KL(q, m)), m = (p + q)
                                / 2.  p and q are the rows over their sums; entries are >= 0 */
} fovea_x_compare_measure;

/** Distances of candidates from a reference, for each head of each sequence.
 *
 *  Rows past query_len do not count; without rows the distance is 0.  A row whose sum is 0 is a
 *  vector of zeros.  NaN is never best.
 *
 *  Limits: none on widths.  One pass over memory, one kernel a backend.
 *  Sources: Sparse VideoGen (2502.01776), FlexPrefill (2502.20766). */
typedef struct fovea_x_compare_forward_params {
  size_t struct_size;     /**< sizeof(fovea_x_compare_forward_params) */
  fovea_tensor reference; /**< [in] (b, s, h, e) f32 f16 bf16 */
  fovea_tensor candidate; /**< [in] (n, b, s, h, e) as reference */
  fovea_tensor query_len; /**< [in, optional] (b) i32: rows in use, 0 .. s */
  fovea_tensor distance;  /**< [out, optional] (n, b, h) f32 */
  fovea_tensor best; /**< [out, optional] (b, h) i32: the candidate with the smallest distance, the
                        first of equals; -1: none */
  int32_t measure;   /**< fovea_x_compare_measure */
  int32_t reserved;  /**< 0 */
} fovea_x_compare_forward_params;

FOVEA_API fovea_status fovea_x_compare_forward_workspace(
    fovea_context* ctx, const fovea_x_compare_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_compare_forward(fovea_context* ctx,
                                               const fovea_x_compare_forward_params* params);

/** Which keys a bounded cache keeps. */
typedef enum fovea_x_cache_rule {
  FOVEA_X_CACHE_RULE_RING = 0, /**< positions below sink_keys, and the last `recent` */
  FOVEA_X_CACHE_RULE_HEAVY = 1 /**< the last `recent` positions, and of the others the `heavy` with
                                    the largest score, the lowest position of equals; NaN is -inf */
} fovea_x_cache_rule;

/** One step of a bounded cache: what is too much goes, and new tokens come.
 *
 *  The live tokens of a head are its slots [0, count), in no order of positions.  Attention over
 *  them is x_sparse_forward's or attention_forward's with key_len = count.  New token n is at
 *  position old_len + n; without old_len, behind the largest live position, or 0 without one.
 *
 *  ring   Position p has slot p where p < sink_keys + recent, else sink_keys + (p - sink_keys) %
 *         recent.  With capacity[g] a head has recent = capacity[g] - sink_keys; heads may differ.
 *         Slots from count on are not written.
 *  heavy  1. mass is added to the score of each live slot.
 *         2. Live tokens that the rule does not keep go.  Kept ones in slots from the new count on
 *            move down to the free slots, both in ascending order.
 *         3. New tokens come behind, with a score of 0; needs t >= heavy + recent + s.
 *         So the mass that attention gives the new tokens counts at the next step.
 *
 *  k and v are stored as given.  Keys that are to be rotated by cache rank are rotated later.
 *
 *  Limits: none on widths.  Every valid call has one kernel a backend.
 *  Sources: StreamingLLM (2309.17453), H2O (2306.14048), MoA (2406.14909), DuoAttention
 *  (2410.10819). */
typedef struct fovea_x_cache_step_params {
  size_t struct_size;     /**< sizeof(fovea_x_cache_step_params) */
  fovea_tensor k;         /**< [inout] (b, t, g, d) f32 f16 bf16: t slots */
  fovea_tensor v;         /**< [inout] (b, t, g, e) as k */
  fovea_tensor position;  /**< [inout] (b, g, t) i32: of each live slot */
  fovea_tensor count;     /**< [inout] (b, g) i32: live slots */
  fovea_tensor score;     /**< [inout, optional] (b, g, t) f32: of heavy */
  fovea_tensor k_new;     /**< [in, optional] (b, s, g, d) as k: needs v_new; absent: only what is
                               too much goes */
  fovea_tensor v_new;     /**< [in, optional] (b, s, g, e) as k */
  fovea_tensor mass;      /**< [in, optional] (b, g, t) f32: of heavy, of each live slot */
  fovea_tensor query_len; /**< [in, optional] (b) i32: new tokens in use, 0 .. s */
  fovea_tensor old_len;   /**< [in, optional] (b) i32: tokens before the new ones */
  fovea_tensor capacity;  /**< [in, optional] (g) i32: of ring: slots of each head, sink_keys + 1 ..
                               t; recent stays 0 */
  int64_t sink_keys;      /**< of ring */
  int64_t recent;         /**< of ring >= 1, of heavy >= 0 */
  int64_t heavy;          /**< of heavy, >= 0 */
  int32_t rule;           /**< fovea_x_cache_rule */
  int32_t reserved;       /**< 0 */
} fovea_x_cache_step_params;

FOVEA_API fovea_status fovea_x_cache_step_workspace(fovea_context* ctx,
                                                    const fovea_x_cache_step_params* params,
                                                    size_t* bytes);
FOVEA_API fovea_status fovea_x_cache_step(fovea_context* ctx,
                                          const fovea_x_cache_step_params* params);

#ifdef __cplusplus
}
#endif

#endif
