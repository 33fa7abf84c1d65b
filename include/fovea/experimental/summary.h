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
 *  Limits: none on widths.  Every valid call has one kernel a backend, one pass over x.
 *  Sources: Quest (2406.10774), InfLLM (2402.04617), MoBA (2502.13189), NSA (2502.11089),
 *  SpargeAttention (2502.18137), SeerAttention (2410.13276), SparQ (2312.04985). */
typedef struct fovea_x_pool_forward_params {
  size_t struct_size;         /**< sizeof(fovea_x_pool_forward_params) */
  fovea_tensor x;             /**< [in] (b, t, g, d) or paged (pool, page, g, d) f32 f16 bf16: g
                                   divides h */
  fovea_tensor y;             /**< [out] (b, u, h, f) as x or f32: f = d for each wanted part; may be
                                   previous */
  fovea_tensor similar;       /**< [out, optional] (b, h, u) f32 */
  fovea_tensor dissimilar;    /**< [out, optional] (b, h, u) u8: 3 where similar <= similar_least,
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
  fovea_tensor old_len;       /**< [in, optional] (r) i32: only blocks that hold a token from here on
                                   are written; absent: all */
  fovea_tensor page_table;    /**< [in, optional] (rows, pages) i32: -1: page absent, and its tokens
                                   do not count */
  fovea_tensor cache_row;     /**< [in, optional] (r) i32: row of page_table; -1 or past the last
                                   skips the sequence; needs page_table */
  int64_t key_max;            /**< longest sequence; 0: t, or pages * page */
  int64_t block;              /**< tokens of a block, 1 .. 2^30; 0: 64 */
  int64_t step;               /**< tokens between blocks, 1 .. block; 0: block */
  int64_t ranked;             /**< tokens of ranked, >= 1 */
  int32_t want;               /**< sum of fovea_x_summary; 0: mean */
  int32_t complete;           /**< 1: only blocks that have all their tokens */
  int32_t overlap;            /**< 1: of gated, see above; step = block */
  int32_t reserved;           /**< 0 */
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

FOVEA_API fovea_status fovea_x_pool_forward_workspace(
    fovea_context* ctx, const fovea_x_pool_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_pool_forward(
    fovea_context* ctx, const fovea_x_pool_forward_params* params);

FOVEA_API fovea_status fovea_x_pool_backward_workspace(
    fovea_context* ctx, const fovea_x_pool_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_pool_backward(
    fovea_context* ctx, const fovea_x_pool_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
