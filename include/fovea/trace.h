/* SPDX-License-Identifier: Apache-2.0 */
/** Which key blocks matter to each block of query rows, by hierarchical bisection.  The call also
 *  gives softmax attention over the blocks it keeps, and a list of the edges between them.
 *
 *  Rows are cut into n = ceil(s / block_rows) blocks, the keys of a sequence (Lk of them) into n_k
 *  = ceil(Lk / block_keys); tails are partial blocks.  Row m and key t are a valid pair where t <=
 *  m + Lk - s (causal only), t's page is there, and block_mask allows it.  block_mask allows it
 *  where bit t / block_keys of the row block is 1.  A key block is valid for a row block when some
 *  pair in the two is.  For each (batch, head, row block), with kq = keep_row of the block (absent:
 *  keep):
 *    1. m = 1 + the last key block with a causally valid pair (n_k unless causal, 0: none)
 *    2. branches b = 0 .. kq-1: [floor(b m / kq), floor((b+1) m / kq))
 *    3. ceil(log2(n_k)) times: every branch [x, y) is halved at x + ceil((y - x) / 2), left bit 0,
 *       right bit 1.  A half's representative is its first valid key block; a half without one is
 *       empty.  score = max over the valid pairs of the two blocks of <q_m, k_t>; NaN counts as
 *       -inf.  The best kq halves become the branches, in this order: higher score (-0 equals 0),
 *       smaller representative, smaller branch, bit 0; empty ones last.
 *    4. selected[t] = representative of branch t, or -1.
 *  Each block appears at most once.  The result depends on the inputs and on nothing else.
 *
 *  Arithmetic of a score.  exact = 1: a chain of f32 fused multiply-adds over the columns 0 .. d-1
 *  from 0, the max exact, a zero score +0.  Host and CUDA then agree bit for bit.  exact = 0: f32
 *  sums in the kernel's own order.  Backends then agree wherever all partial sums are exact.
 *  Elsewhere a decision may differ only where two scores differ by less than 2^-20 * d * max|q| *
 *  max|k|.
 *
 *  Attention and edges see the valid pairs of the selected blocks:
 *    x = scale <q_m, k_t>,  lse_m = ln sum_t exp(x_mt)
 *    p_mt = exp(x_mt - lse_m),  o_m = sum_t p_mt v_t
 *  Empty rows, lengths, what is not read: as attention_forward.  exp(lse - lse_dense) is the part
 *  of a row's mass that was kept.
 *
 *  Edges.  One record for each selected block, empty slots skipped, in the order (batch, head, row
 *  block, slot).  Record i of the call is row edge_offset + i of `edge` and `edge_weight`.  What
 *  does not fit below cap is dropped from the end of the order; edge_count counts it all the same.
 *  A trace of many layers is one list: give each call the edge_count of the one before as its
 *  edge_offset.  One counter, zero at first, may serve as both.  With row stride 5 over one buffer
 *  the two are records of 20 bytes {layer, head, row block, key block, weight}.
 *  Source: Stream (2510.19875).
 *
 *  In fovea.h:
 *    trace_forward: key blocks that matter, attention over them, edges
 *    bits, trace_forward, its edge list aside: no no no no no */
#ifndef FOVEA_TRACE_H
#define FOVEA_TRACE_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What edge_weight holds. */
typedef enum fovea_edge_kind {
  FOVEA_EDGE_KIND_SCORE = 0,     /**< score */
  FOVEA_EDGE_KIND_MAX_LOGIT = 1, /**< edge_max */
  FOVEA_EDGE_KIND_MASS = 2       /**< edge_mass */
} fovea_edge_kind;

/** Selection, attention over what was selected, edges: each output is optional, absent = not
 *  computed.  No workspace of s * t: at most linear in n * keep and in s.
 *
 *  Limits: d and e are 1 .. 576, keep 1 .. 256.  Every valid call has a kernel on the host and a
 *  portable one on CUDA.  The stages of a call ask for more to run on tensor cores, each for
 *  itself:
 *    all              sm_90; f16 or bf16; d a multiple of 8 up to 256; rows of q, k contiguous and
 *                     16-byte aligned
 *    selection        exact = 0
 *    o, lse           block_rows and block_keys of 64 or 128; e a multiple of 8 up to 256; rows
 *                     of v and o contiguous and 16-byte aligned
 *    lse_dense        no block_mask; pages of 64 or more
 *  Bits: the same every run, whatever else the batch holds, but for the edge list. */
typedef struct fovea_trace_forward_params {
  size_t struct_size;       /**< sizeof(fovea_trace_forward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;           /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q: page =
                                 block_keys */
  fovea_tensor v;           /**< [in, optional] (rows, t, g, e) or paged (pool, page, g, e) as q: o
                                 and edge_value need it */
  fovea_tensor keep_row;    /**< [in, optional] (n) i32: blocks to keep for each row block, cut to 0
                                 .. keep; absent: keep */
  fovea_tensor block_mask;  /**< [in, optional] (b, h, n, block_bytes) u8: bit u % 8 of byte u / 8
                                 is 1 where the row block may see key block u; ceil(key blocks / 8)
                                 bytes */
  fovea_tensor key_len;     /**< [in, optional] (r) i32: keys in use, at most t or pages * page */
  fovea_tensor page_table;  /**< [in, optional] (rows, pages) i32: pool page of each key block; -1:
                                 absent, its keys are not seen */
  fovea_tensor cache_row;   /**< [in, optional] (r) i32: row of page_table, or of k and v, that a
                                 sequence reads; -1 or past the last: no keys; absent: its own
                                 number */
  fovea_tensor selected;    /**< [out, optional] (b, h, n, keep) i32: key blocks in branch order, -1
                                 empty */
  fovea_tensor score;       /**< [out, optional] (b, h, n, keep) f32: their scores, times scale
                                 where scale is given; -inf empty */
  fovea_tensor o;           /**< [out, optional] (b, s, h, e) as q or f32: attention over the
                                 selected blocks */
  fovea_tensor lse;         /**< [out, optional] (b, h, s) f32: natural log of each row's sum over
                                 the selected blocks */
  fovea_tensor lse_dense;   /**< [out, optional] (b, h, s) f32: the same over all valid blocks: a
                                 pass over every key */
  fovea_tensor edge_score;  /**< [out, optional] (b, h, n, keep) f32: as score */
  fovea_tensor edge_max;    /**< [out, optional] (b, h, n, keep) f32: the largest x of a valid pair,
                                 NaN as -inf; -inf empty */
  fovea_tensor edge_mass;   /**< [out, optional] (b, h, n, keep) f32: sum of p over the pairs; a row
                                 block's sum to its rows that see a key; 0 empty */
  fovea_tensor edge_value;  /**< [out, optional] (b, h, n, keep, e) f32: sum of p_mt v_t over the
                                 pairs; 0 empty */
  fovea_tensor edge;        /**< [out, optional] (cap, 4) i32: layer, head (of the batch: batch * h
                                 + head), row block, key block; needs edge_count */
  fovea_tensor edge_weight; /**< [out, optional] (cap) f32: what edge_kind says; needs edge_count */
  fovea_tensor edge_count;  /**< [out, optional] (1) i64: edge_offset plus the records of this call,
                                 dropped ones among them; may be edge_offset */
  fovea_tensor edge_offset; /**< [in, optional] (1) i64: row of the first record, >= 0; absent: 0 */
  int64_t keep;             /**< key blocks a row block keeps: 1 .. 256 */
  float scale;              /**< of x, > 0; 0: 1 / sqrt(d), and score is the product itself */
  int32_t block_rows;       /**< 16, 32, 64 or 128; 0: 64 */
  int32_t block_keys;       /**< 16, 32, 64 or 128; 0: 64 */
  int32_t layer;            /**< first word of every edge, >= 0 */
  int32_t edge_kind;        /**< fovea_edge_kind */
  int32_t exact;            /**< 1: scores are chains of fused multiply-adds */
  int32_t causal;           /**< 1: row i sees keys up to i + Lk - s */
  int32_t reserved;         /**< 0 */
} fovea_trace_forward_params;

FOVEA_API fovea_status fovea_trace_forward_workspace(
    fovea_context* ctx, const fovea_trace_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_trace_forward(
    fovea_context* ctx, const fovea_trace_forward_params* params);

#ifdef __cplusplus
}
#endif

#endif
