/* SPDX-License-Identifier: Apache-2.0 */
/** Attention over lists: a block of query rows sees the keys that its list names.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.  What proves itself moves to the stable headers under a name without `x_`.
 *
 *  For query row i and key j of one sequence, with attention.h's score_ij over what row i sees by
 *  its windows.  Positions are bottom-right aligned, or by context_len, key_step and key_shift:
 *    n_ij = how often the list of row i names key j
 *    p_ij = n_ij exp(score_ij - lse_i),  lse_i = ln(sum_j n_ij exp(score_ij) + exp(sink_logit_h))
 *    o_i = sum_j p_ij v_j
 *  Windows and lists both hold: a key that is named but outside the window is not seen.
 *
 *  Lists.
 *    list head  Query head i has list head i / (h / x); x divides h.
 *    list row   Row i of a sequence has list row i / block_rows, or the one with
 *               row_begin[R] <= i < row_begin[R+1], else none.  n is ceil(s / block_rows) or more.
 *               Packed, the first list row of sequence r is query_start[r] / block_rows + r, and n
 *               is s / block_rows + r or more.  With block_rows = 1 it is query_start[r], and n is
 *               s or more.
 *    entry      Number e names keys [e entry_keys, e entry_keys + block_keys) of the sequence, or
 *               [key_begin[e], key_begin[e+1]), as far as there are such keys.  -1 and numbers
 *               without a key name none.  Entries stand in any order.  A key that two entries name
 *               counts twice, whether they are equal or overlap.
 *    count      Places from index_count on are not read.  A count below 0 or above keep is cut to
 *               that.  Absent: keep.
 *    tile       Of an entry with a tile, row a of the row block sees key c of the entry where bit
 *               c % 8 of tile_bits[tile, a, c / 8] is 1.  -1: all pairs; another number that is no
 *               tile: no pair.
 *    column     Single keys beside the entries, each as often as it stands there.  Those that an
 *               entry of the same list row names, whatever its tile, are skipped.
 *    always     Keys [0, first_keys) and those with p_i - last_keys < p_j <= p_i are seen once,
 *               whatever entries and columns say.
 *  index and column may each be given alone.  Without both every key is named once.  The answer of
 *  a call that uses no field of this header's own is attention_forward's, bit for bit.
 *
 *  lse is a natural logarithm and includes sink_logit.  A row that sees no key gives o = 0 and
 *  lse = -inf, or sink_logit_h.  Rows past query_len are not written.  Nothing past key_len, in
 *  unused pages, in padding or past a count is read or counts, NaN included.  Codes of k and v
 *  count times their scales, as in attention.h.
 *
 *  Skipping.  Rows stand in groups of 64 of one head, counted from the first of their list row.
 *  Without index they are counted from the first of the sequence.  A tile is
 *  max(1, 64 / block_keys) neighbouring places of the list, beginning at a multiple of that.  An
 *  entry of more than 64 keys is cut at every 64th from its first.  Without index tiles are 64
 *  keys, beginning at a multiple of 64.  Tiles are met in order.  Keys that are always seen come
 *  before them, and columns after; neither is ever skipped.
 *  top_i is the largest score that row i has met so far.  A tile is skipped where every row of the
 *  group has score_ij < top_i - skip_margin for each key that it sees.  It then adds nothing to o,
 *  lse, mass and top.  What is dropped is at most Lk exp(-skip_margin) of a row's sum.
 *
 *  Bits: the same every run on one device; place, neighbours and size of the batch may change them.
 *  Source: FlashAttention-2 (2307.08691); lists as in NSA (2502.11089), MInference (2407.02490),
 *  Quest (2406.10774); skip_margin: BLASST (2512.12087); mass: H2O (2306.14048); head_map: CHAI
 *  (2403.08058). */
#ifndef FOVEA_EXPERIMENTAL_SPARSE_H
#define FOVEA_EXPERIMENTAL_SPARSE_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Attention of q over the listed k and v; prefill and decode, contiguous and paged caches.
 *
 *  Limits: d and e are 1 .. 576.  Every valid call has a kernel on the host and a portable one on
 *  CUDA.  Without a field of this header the limits are attention_forward's.  Tensor cores ask for:
 *    sm_80 and later  what attention_forward asks for there, an index, and beside it only bias,
 *                     row_begin, first_keys and last_keys; no softcap
 *    Hopper's own     sm_90, no codes; blocks of 16, 32, 64 or 128 keys; of at most 128 rows of the
 *                     heads that share a list, or a multiple of 64 rows; single rows: any multiple
 *                     of 128 keys.  Or no list, but skip_margin or skipped alone, and d and e of at
 *                     most 128
 *    columns there    no codes and no pages; d and e of at most 128; blocks of 16, 32 or a multiple
 *                     of 64 keys at any key, column, first_keys and last_keys of at most 4096; 16
 *                     rows or more of the heads that share a list; at most one split
 *    wide heads there no codes; d of at most 576, e of at most 512, one of them above 256, or
 *                     q_value with d of at most 64 and no softcap; lists of single rows and single
 *                     keys alone, in any order; 8 heads or more that share a list and a key head
 *    codes of these   e4m3 or i8, as attention_forward's there: FP8-MLA's records with q_value, or
 *                     v the first columns of k; windows and positions of any kind; no softcap */
typedef struct fovea_x_sparse_forward_params {
  size_t struct_size;        /**< sizeof(fovea_x_sparse_forward_params) */
  fovea_tensor q;            /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;            /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q or e4m3 e5m2
                                  i8 */
  fovea_tensor v;            /**< [in] (rows, t, g, e) or paged (pool, page, g, e) as q or e4m3 e5m2
                                  i8: may be a view of k */
  fovea_tensor o;            /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;          /**< [out, optional] (b, h, s) f32: natural log of each row's sum */
  fovea_tensor q_value;      /**< [in, optional] (b, s, h, e) as q: second query, contracted with v
                                  (split MLA caches) */
  fovea_tensor index;        /**< [in, optional] (b, x, n, keep) i32: entries of each list row */
  fovea_tensor index_count;  /**< [in, optional] (b, x, n) i32: entries in use; with index */
  fovea_tensor index_bias;   /**< [in, optional] (b, h, n, keep) f32: added to the scores of an
                                  entry; with index and block_keys = 1 */
  fovea_tensor column;       /**< [in, optional] (b, x, n, columns) i32: single keys */
  fovea_tensor column_count; /**< [in, optional] (b, x, n) i32: columns in use; with column; absent:
                                  all */
  fovea_tensor row_begin;    /**< [in, optional] (b, x, n+1) i32: first row of each list row,
                                  ascending; block_rows stays 0; not with query_start, tile */
  fovea_tensor key_begin;    /**< [in, optional] (b, x, u+1) i32: first key of each entry,
                                  ascending; block_keys and entry_keys stay 0; not with query_start,
                                  tile */
  fovea_tensor tile;         /**< [in, optional] (b, x, n, keep) i32: tile of each entry, -1: none;
                                  with index and tile_bits */
  fovea_tensor tile_bits;    /**< [in, optional] (tiles, tile_rows, tile_bytes) u8: block_rows rows
                                  of ceil(block_keys / 8) bytes; with tile */
  fovea_tensor sink_logit;   /**< [in, optional] (h) f32: a learned term of the denominator: not
                                  scaled, capped or biased */
  fovea_tensor head_map;     /**< [in, optional] (b, h) i32: head whose q and key head make the
                                  scores of a head; list, sink_logit and v stay its own; no head:
                                  itself */
  fovea_tensor skip_head;    /**< [in, optional] (h) i32: not 0: o and lse of the head are not
                                  written, and it adds nothing to mass and skipped */
  fovea_tensor mass;         /**< [inout, optional] (key_b, x, t) or paged (r, x, keys) f32: the sum
                                  of p_ij over the rows of the list head's h / x heads is added, by
                                  storage index, or paged by key column */
  fovea_tensor skipped;      /**< [out, optional] (1) i64: tiles that some row of a group sees and
                                  that were skipped, over all groups */
  fovea_tensor k_scale;      /**< [in, optional] (rows, t, g, groups) or paged (pool, page, g,
                                  groups) f32: k counts times its scale, a scale for each of
                                  `groups` equal parts of d (e4m3 e5m2 i8 only); stride 0
                                  broadcasts; absent: 1 */
  fovea_tensor v_scale;      /**< [in, optional] (rows, t, g, groups) or paged (pool, page, g,
                                  groups) f32: as k_scale, of v */
  fovea_tensor context_len;  /**< [in, optional] (r) i32: p_i = i + context_len - Lq; absent: Lk */
  fovea_tensor query_start;  /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                  ascending from 0; then b = 1 */
  fovea_tensor key_start;    /**< [in, optional] (r+1) i32: first packed key of each sequence; not
                                  with page_table or cache_row */
  fovea_tensor query_len;    /**< [in, optional] (r) i32: rows in use, at most s or the packed
                                  extent */
  fovea_tensor key_len;      /**< [in, optional] (r) i32: keys in use, at most t, packed extent or
                                  pages * page */
  fovea_tensor page_table;   /**< [in, optional] (rows, pages) i32: pool page of each logical page;
                                  -1: absent, its keys are not seen */
  fovea_tensor cache_row;    /**< [in, optional] (r) i32: row of page_table, or of k and v, that a
                                  sequence reads; -1 or past the last: no keys; absent: its own
                                  number */
  int64_t query_max;         /**< longest sequence of rows, bounds the grid; 0: s */
  int64_t key_max;           /**< longest sequence of keys; 0: t, or pages * page */
  int64_t window_left;       /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;      /**< keys seen to the right, the row's own position counted; 0: all, 1:
                                  none after itself */
  int64_t sink_keys;         /**< keys at positions below this stay visible through window_left */
  int64_t key_step;          /**< p_j = key_step * j + key_shift, below 2^31; 0: 1 */
  int64_t key_shift;         /**< position of the first key, may be negative; within 2^31 of 0 */
  int64_t first_keys;        /**< first keys of the sequence that are always seen; with index or
                                  column */
  int64_t last_keys;         /**< keys up to the row's own position, it counted, that are always
                                  seen; with index or column */
  float scale;               /**< > 0; 0: 1 / sqrt(d), or 1 / sqrt(d + e) with q_value */
  float softcap;             /**< 0: none */
  float skip_margin;         /**< in nats; 0: nothing is skipped */
  int32_t causal;            /**< 1: window_right = 1 */
  int32_t splits;            /**< parts the keys or the list of a row are cut into; 0: chosen from
                                  shapes, 1 with skip_margin; not above 1 with skip_margin */
  int32_t block_rows;        /**< rows of a list row: 1 .. 128; 0 without index and column, or with
                                  row_begin */
  int32_t block_keys;        /**< keys of an entry: 1 .. 65536; 0 without index, or with
                                  key_begin */
  int32_t entry_keys;        /**< from an entry's first key to the next's, at most block_keys; 0:
                                  block_keys */
} fovea_x_sparse_forward_params;

FOVEA_API fovea_status fovea_x_sparse_forward_workspace(fovea_context* ctx,
                                                        const fovea_x_sparse_forward_params* params,
                                                        size_t* bytes);
FOVEA_API fovea_status fovea_x_sparse_forward(fovea_context* ctx,
                                              const fovea_x_sparse_forward_params* params);

/** Gradients of x_sparse_forward from dout (and dlse).  The fields it shares say what the forward
 *  was.  Each output is optional: absent = not computed.  Every element of an output is written:
 *  rows and keys past their lengths, and keys that nobody names, get 0.
 *    delta_i = <dout_i, o_i> - dlse_i,  p_ij = n_ij exp(score_ij - lse_i)
 *    ds_ij = p_ij (<dout_i, v_j> - delta_i),  dx_ij = ds_ij (1 - (x_ij / softcap)^2)
 *    dv_j = sum_i p_ij dout_i,  dq_i = scale sum_j dx_ij k_j,  dk_j = scale sum_i dx_ij q_i
 *    dsink_logit_h = - sum_i exp(sink_logit_h - lse_i) delta_i
 *  Workspace is linear in s, t and the entries: lists are sorted by key there.  Bits: the same
 * every run unless `nondeterministic`.
 *
 *  Limits: d and e are 1 .. 576, no paged keys.  Every valid call has a kernel on the host and a
 *  portable one on CUDA.  Without a field of this header the limits are attention_backward's.
 *  Hopper's tensor cores ask for what attention_backward asks for there, d and e of at most 128,
 *  and no softcap.  They take an index, and beside it only index_count.  Blocks are multiples of 64
 *  keys, and of 64 rows or of one.  With one row, all heads of a key head share a list, and their
 *  number divides 64. */
typedef struct fovea_x_sparse_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_sparse_backward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;           /**< [in] (key_b, t, g, d) as q */
  fovea_tensor v;           /**< [in] (key_b, t, g, e) as q */
  fovea_tensor index;       /**< [in, optional] (b, x, n, keep) i32: as in the forward, and so for
                                 the fields below */
  fovea_tensor index_count; /**< [in, optional] (b, x, n) i32 */
  fovea_tensor row_begin;   /**< [in, optional] (b, x, n+1) i32 */
  fovea_tensor key_begin;   /**< [in, optional] (b, x, u+1) i32 */
  fovea_tensor tile;        /**< [in, optional] (b, x, n, keep) i32 */
  fovea_tensor tile_bits;   /**< [in, optional] (tiles, tile_rows, tile_bytes) u8 */
  fovea_tensor sink_logit;  /**< [in, optional] (h) f32 */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor key_len;     /**< [in, optional] (r) i32 */
  fovea_tensor o;           /**< [in] (b, s, h, e) as q or f32: of the forward */
  fovea_tensor lse;         /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor dout;        /**< [in] (b, s, h, e) as o: the gradient of o */
  fovea_tensor dlse;        /**< [in, optional] (b, h, s) f32: the gradient of lse; absent: 0 */
  fovea_tensor dq;          /**< [out, optional] (b, s, h, d) as q */
  fovea_tensor dk;          /**< [out, optional] (key_b, t, g, d) as q */
  fovea_tensor dv;          /**< [out, optional] (key_b, t, g, e) as q */
  fovea_tensor dsink_logit; /**< [out, optional] (h) f32: needs sink_logit */
  int64_t query_max;        /**< as in the forward, and so for the fields below */
  int64_t key_max;          /**< 0: t */
  int64_t window_left;      /**< 0: all */
  int64_t window_right;     /**< 0: all */
  int64_t sink_keys;        /**< 0: none */
  int64_t first_keys;       /**< 0: none */
  int64_t last_keys;        /**< 0: none */
  float scale;              /**< 0: 1 / sqrt(d) */
  float softcap;            /**< 0: none */
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t block_rows;       /**< 0: with row_begin, or without index */
  int32_t block_keys;       /**< 0: with key_begin, or without index */
  int32_t entry_keys;       /**< 0: block_keys */
  int32_t nondeterministic; /**< 1: a faster kernel whose sums may change order may be used */
  int32_t reserved;         /**< 0 */
} fovea_x_sparse_backward_params;

FOVEA_API fovea_status fovea_x_sparse_backward_workspace(
    fovea_context* ctx, const fovea_x_sparse_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_sparse_backward(fovea_context* ctx,
                                               const fovea_x_sparse_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
