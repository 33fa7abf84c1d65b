/* SPDX-License-Identifier: Apache-2.0 */
/** Paged key and value caches of 2 to 4 bits.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  Codes lie the same in every format.  Token j is in page page_table[row][j / page]:
 *    keys    block j % page / group, code j % group of each channel's words
 *    values  slot j % page, code c of each head's words
 *    words   a stream of codes in i32 words, the first in the lowest bits
 *  Strides are free: pages whose heads lie outside of their tokens are read fastest.
 *
 *  What a code stands for, and which tokens stay as they came, is `format`:
 *
 *  0, by groups (KIVI).  A group is `group` keys of one channel, or `group` channels of one value.
 *  Of its numbers x:
 *    scale = f16((largest - smallest) / (2^bits - 1)),  zero = f16(smallest)
 *    code  = (x - zero) / scale in f32, rounded to nearest even, within 0 .. 2^bits - 1; 0 where
 *            scale is 0
 *    x'    = code scale + zero, which a kernel may round to q's dtype
 *  NaN, infinities and numbers beyond f16 make x' of their group NaN.
 *    k_tail  token j is in slot j - counter[1]
 *    v_tail  token j is in slot j % (residual + 1)
 *  Later tokens are in the tails: at most `residual` keys, and one value more.
 *
 *  1, by levels (KVQuant), and 2, by norms (TurboQuant).  Tables of ascending levels are given.
 *  In f32, each step rounded:
 *    y     = (x - offset) / range
 *    code  = how many of the midpoints (level[i] + level[i + 1]) / 2 are below y
 *    x'    = level[code] range + offset, rounded once; a kernel may round it to q's dtype
 *  Format 2 has offset 0, and as range the norm of the token's head: sqrt of the sum of squares.
 *  Format 1 has for keys k_offset and k_range of the channel, for values the token's v_bound:
 *    offset = (high + low) / 2,  range = (high - low) / 2, or 1 where that is 0
 *  over all heads, where high and low are the largest and smallest that are no outliers.
 *  Outliers of a value are its n largest and its n smallest x.  Outliers of a key are those of its
 *  n largest and n smallest y that are outside -1 .. 1.  n is half of the extent of v_outlier or
 *  k_outlier, rounded down.  NaN is largest.  Of equals the lower column over all heads is larger,
 *  head * width + column.  An entry has that column in its low 16 bits and f16(x - x') above, with
 *  NaN as 0x7fff.  Decode adds it to x'.  Entries are sorted by column; unused ones, after all
 *  others, are 65535.
 *  NaN has code 0 where it is neither an outlier nor in range or offset.
 *  The first `firsts` tokens are in k_first and v_first as they came, and have no codes.
 *
 *  3, by tiles (KVarN).  A tile is `group` tokens of one head.  Its columns are tokens of keys or
 *  channels of values; its lines are channels of keys or tokens of values.
 *    x / factor  is quantised as in format 0, a line as a group; a column has a factor
 *    x'          = (code scale + zero) factor
 *  Factors even out the standard deviations of columns and lines, in 16 passes.  Of n numbers
 *    dev(y) = sqrt(sum (y - mean)^2 / (n - 1)),  mean = (sum y) / n
 *  In f32, each step rounded, sums in order, x / c as x (1 / c); from c = 1 and l = 1 on a pass is
 *    c = clip(c clip(dev(x / l) / c, 0.001, 1000), 0.7408182, 22026.465) for all columns, and then
 *    l = the same of lines, by dev(x / c)
 *  factor is f16(c) of the start or the pass with the least spread, of equals the last; 1 where the
 *  start's is NaN.  The spread is the largest dev(x / l) / c over the smallest, plus the same of
 *  dev(x / c) / l.  A smallest one counts as 1e-8 at least.
 *  The first `firsts` tokens, a multiple of group, are in k_first and v_first.  Later tokens are in
 *  the tails, at most `residual` of keys and of values: token j in slot j - counter[1].
 *
 *  Keys are stored as they are given.  Rotate them before, or let decode do so by cos and sin.
 *  TurboQuant and KVarN want q, k and v turned by an orthogonal matrix, and o turned back.
 *
 *  counter[row] is, on the device:
 *    0  length: tokens of the sequence
 *    1  keys that are not in a tail: in formats 0 and 3 a multiple of group, or all that are first
 *       tokens; else the length
 *    2  values that are not: in format 0 at most as many, else as many
 *    3  not read, not written
 *  A row begins with zeros.  To shorten a sequence, lower all three to the new length where they
 *  exceed it.  In formats 0 and 3 below counter[1] that length has to be a multiple of group, or
 *  within the first tokens.  A sequence moves with its pages, its tails, its first tokens and its
 *  counter.
 *  Sequences with a common prefix may share the pages that it fills, with tokens that all of them
 *  have quantised: nothing writes there.
 *
 *  Sources: KIVI (2402.02750), with zero and scale as above in place of f16 arithmetic.  KVQuant
 *  (2401.18079).  TurboQuant (2504.19874): the variant for the mean squared error.  KVarN
 *  (2606.03458), with its authors' bounds of factors; scale, zero and factor are rounded before
 *  codes are found.
 *
 *  Extents of its own:
 *    page_groups = 2: groups of keys in a page, page / group
 *    k_words = 1: group * bits / 32
 *    v_words = 1: e * v_bits / 32
 *    v_groups = 1: e / group, in format 3 one
 *    residual = 8: keys of a tail, a multiple of group
 *    ring = 9: values of a tail, residual + 1, in format 3 residual
 *    levels = 4: 2^bits
 *    firsts = 1: tokens that stay as they came
 *    k_outliers = 2: outliers of a key over all heads
 *    v_outliers = 2: outliers of a value over all heads */
#ifndef FOVEA_EXPERIMENTAL_KV_H
#define FOVEA_EXPERIMENTAL_KV_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What codes stand for. */
typedef enum fovea_x_kv_format {
  FOVEA_X_KV_FORMAT_GROUPS = 0, /**< scale and zero of a group (KIVI) */
  FOVEA_X_KV_FORMAT_LEVELS = 1, /**< levels, offset and range, outliers (KVQuant) */
  FOVEA_X_KV_FORMAT_NORMS = 2,  /**< levels times the norm of a token's head (TurboQuant) */
  FOVEA_X_KV_FORMAT_TILES = 3   /**< scale and zero of lines, a factor of columns (KVarN) */
} fovea_x_kv_format;

/** Appends new tokens to the caches.  In formats 1 and 2 a token is quantised as it comes, and
 * `flush` does nothing.  In formats 0 and 3 each is appended as this:
 *    1. Where `residual` keys are in the tail, they are quantised into pages, which empties it; in
 *       format 3 with their values.
 *    2. In format 0, where residual + 1 values are in the tail, the oldest is quantised.
 *    3. The token goes to both tails, and the length grows by one.
 *  Bits of n tokens are those of n calls with one token.  With `flush` what steps 1 and 2 would do
 *  next is done at the end, without waiting for a token: values at `residual` already.  A call
 *  without tokens (s = 0) flushes alone.
 *
 *  A sequence ends at pages * page tokens; later ones are dropped.  Codes for a page that is -1 are
 *  dropped.  Pages are wanted when tokens are quantised.  No two sequences may share a cache row,
 * or a page that a call writes.  Every decision is taken on the device, so that a captured graph
 *  serves all lengths.
 *
 *  Bits: those of the host, the same every run.
 *  Limits: every valid call has a kernel on the host.  CUDA has kernels of all formats, in 3 with
 *  d, e and group up to 5900 on sm_80 and 8200 on Hopper.  No workspace but that of format 3 on the
 *  host: a tile of each thread. */
typedef struct fovea_x_kv_append_params {
  size_t struct_size;      /**< sizeof(fovea_x_kv_append_params) */
  fovea_tensor k_new;      /**< [in] (b, s, g, d) f16 bf16 */
  fovea_tensor v_new;      /**< [in] (b, s, g, e) as k_new */
  fovea_tensor k_code;     /**< [inout] (pool, page_groups, g, d, k_words) i32 */
  fovea_tensor k_scale;    /**< [inout, optional] (pool, page_groups, g, d) f16: formats 0, 3 */
  fovea_tensor k_zero;     /**< [inout, optional] (pool, page_groups, g, d) f16: formats 0, 3 */
  fovea_tensor v_code;     /**< [inout] (pool, page, g, v_words) i32 */
  fovea_tensor v_scale;    /**< [inout, optional] (pool, page, g, v_groups) f16: formats 0, 3 */
  fovea_tensor v_zero;     /**< [inout, optional] (pool, page, g, v_groups) f16: formats 0, 3 */
  fovea_tensor k_tail;     /**< [inout, optional] (rows, residual, g, d) as k_new: formats 0, 3 */
  fovea_tensor v_tail;     /**< [inout, optional] (rows, ring, g, e) as k_new: formats 0, 3 */
  fovea_tensor k_factor;   /**< [inout, optional] (pool, page, g) f16: format 3 */
  fovea_tensor v_factor;   /**< [inout, optional] (pool, page_groups, g, e) f16: format 3 */
  fovea_tensor k_level;    /**< [in, optional] (levels) f32: formats 1 and 2 */
  fovea_tensor v_level;    /**< [in, optional] (levels) f32: formats 1 and 2 */
  fovea_tensor k_offset;   /**< [in, optional] (g, d) f32: format 1 */
  fovea_tensor k_range;    /**< [in, optional] (g, d) f32: format 1 */
  fovea_tensor v_bound;    /**< [inout, optional] (pool, page, 2) f32: format 1: offset and range */
  fovea_tensor k_norm;     /**< [inout, optional] (pool, page, g) f32: format 2 */
  fovea_tensor v_norm;     /**< [inout, optional] (pool, page, g) f32: format 2 */
  fovea_tensor k_outlier;  /**< [inout, optional] (pool, page, k_outliers) i32: format 1; absent:
                                none */
  fovea_tensor v_outlier;  /**< [inout, optional] (pool, page, v_outliers) i32: format 1; absent:
                                none */
  fovea_tensor k_first;    /**< [inout, optional] (rows, firsts, g, d) as k_new: formats 1 .. 3 */
  fovea_tensor v_first;    /**< [inout, optional] (rows, firsts, g, e) as k_new: with k_first */
  fovea_tensor counter;    /**< [inout] (rows, 4) i32 */
  fovea_tensor page_table; /**< [in] (rows, pages) i32: -1: page absent */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed new token of each sequence;
                                 then b = 1 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32: new tokens of each sequence; absent: all */
  fovea_tensor cache_row;   /**< [in, optional] (r) i32: row of page_table, tails and counter; -1 or
                                 past the last skips the sequence; absent: its own number */
  int64_t query_max;        /**< most new tokens of a sequence, bounds the grid; 0: s */
  int32_t bits;             /**< 2 or 4, in formats 1 and 2 also 3; 0: 2 */
  int32_t group;            /**< group * bits is a multiple of 32; 0: 32 */
  int32_t flush;            /**< 1: quantises at the end what is due */
  int32_t format;           /**< fovea_x_kv_format */
  int32_t v_bits;           /**< of values; 0: bits.  Another number than bits: format 3, 2 or 4 */
  int32_t reserved;         /**< 0 */
} fovea_x_kv_append_params;

FOVEA_API fovea_status fovea_x_kv_append_workspace(fovea_context* ctx,
                                                   const fovea_x_kv_append_params* params,
                                                   size_t* bytes);
FOVEA_API fovea_status fovea_x_kv_append(fovea_context* ctx,
                                         const fovea_x_kv_append_params* params);

/** Attention over such a cache, after x_kv_append has put the rows' own tokens there: o and lse are
 *  attention_forward's over x' and the tails.  Row i of Lq is at position i + length - Lq.  A token
 *  that is quantised into a page that is -1 is not there, nor is a first token of such a page.
 *
 *  Bits: the same every run on one device; place, neighbours and size of the batch may change them.
 *  Limits: d and e are 1 .. 576.  Every valid call has a kernel on the host and on CUDA.  With 16
 *  rows or fewer of a sequence CUDA reads the codes as they are:
 *    sm_80 and later  d and e both 64 or both 128; group 32, no sink_keys; channels of k_code a run
 *      format 0       no cos; rows of all tensors contiguous and 16-byte aligned, those of v_scale
 *                     and v_zero to their size
 *      formats 1, 2   cos and sin of all columns, not interleaved; rows of codes contiguous and
 *                     aligned to 16 bytes, those of 24 bytes to 8; a token's outliers contiguous,
 *                     as many as shared memory holds (Hopper: some 250 of keys and of values)
 *  The host does in formats 0 and 3 for groups to 128, without cos.  Otherwise keys and values are
 *  formed in the workspace for attention_forward: d + e numbers a key head of each token that a
 *  sequence may have. */
typedef struct fovea_x_kv_decode_params {
  size_t struct_size;       /**< sizeof(fovea_x_kv_decode_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f16 bf16 */
  fovea_tensor k_code;      /**< [in] (pool, page_groups, g, d, k_words) i32 */
  fovea_tensor k_scale;     /**< [in, optional] (pool, page_groups, g, d) f16: formats 0, 3 */
  fovea_tensor k_zero;      /**< [in, optional] (pool, page_groups, g, d) f16: formats 0, 3 */
  fovea_tensor v_code;      /**< [in] (pool, page, g, v_words) i32 */
  fovea_tensor v_scale;     /**< [in, optional] (pool, page, g, v_groups) f16: formats 0, 3 */
  fovea_tensor v_zero;      /**< [in, optional] (pool, page, g, v_groups) f16: formats 0, 3 */
  fovea_tensor k_tail;      /**< [in, optional] (rows, residual, g, d) as q: formats 0, 3 */
  fovea_tensor v_tail;      /**< [in, optional] (rows, ring, g, e) as q: formats 0, 3 */
  fovea_tensor k_factor;    /**< [in, optional] (pool, page, g) f16: format 3 */
  fovea_tensor v_factor;    /**< [in, optional] (pool, page_groups, g, e) f16: format 3 */
  fovea_tensor k_level;     /**< [in, optional] (levels) f32: formats 1 and 2 */
  fovea_tensor v_level;     /**< [in, optional] (levels) f32: formats 1 and 2 */
  fovea_tensor k_offset;    /**< [in, optional] (g, d) f32: format 1 */
  fovea_tensor k_range;     /**< [in, optional] (g, d) f32: format 1 */
  fovea_tensor v_bound;     /**< [in, optional] (pool, page, 2) f32: format 1: offset and range */
  fovea_tensor k_norm;      /**< [in, optional] (pool, page, g) f32: format 2 */
  fovea_tensor v_norm;      /**< [in, optional] (pool, page, g) f32: format 2 */
  fovea_tensor k_outlier;   /**< [in, optional] (pool, page, k_outliers) i32: format 1; absent:
                                 none */
  fovea_tensor v_outlier;   /**< [in, optional] (pool, page, v_outliers) i32: format 1; absent:
                                 none */
  fovea_tensor k_first;     /**< [in, optional] (rows, firsts, g, d) as q: formats 1 .. 3 */
  fovea_tensor v_first;     /**< [in, optional] (rows, firsts, g, e) as q: with k_first */
  fovea_tensor counter;     /**< [in] (rows, 4) i32 */
  fovea_tensor page_table;  /**< [in] (rows, pages) i32: -1: page absent */
  fovea_tensor o;           /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;         /**< [out, optional] (b, h, s) f32 */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: as in attention.h, and so for the fields
                                 below */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor cache_row;   /**< [in, optional] (r) i32: as in x_kv_append; without a row there are
                                 no keys */
  fovea_tensor sink_logit;  /**< [in, optional] (h) f32 */
  fovea_tensor cos;         /**< [in, optional] (positions, half) f32: keys are stored unrotated and
                                 turned by their position after loading; v untouched */
  fovea_tensor sin;         /**< [in, optional] (positions, half) f32: with cos */
  int64_t query_max;        /**< 0: s */
  int64_t key_max;          /**< tokens past this index do not count, nor in length; 0: pages *
                                 page */
  int64_t window_left;      /**< 0: all */
  int64_t window_right;     /**< 0: all */
  int64_t sink_keys;        /**< needs window_left; 0: none */
  float scale;              /**< of scores; 0: 1 / sqrt(d) */
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t bits;             /**< 2 or 4, in formats 1 and 2 also 3; 0: 2 */
  int32_t group;            /**< group * bits is a multiple of 32; 0: 32 */
  int32_t splits;           /**< parts the keys of a row are cut into; 0: chosen from shapes */
  int32_t format;           /**< fovea_x_kv_format */
  int32_t rope_begin;       /**< as in attention.h */
  int32_t rope_interleaved; /**< as in attention.h */
  int32_t v_bits;           /**< as in x_kv_append */
  int32_t reserved;         /**< 0 */
} fovea_x_kv_decode_params;

FOVEA_API fovea_status fovea_x_kv_decode_workspace(fovea_context* ctx,
                                                   const fovea_x_kv_decode_params* params,
                                                   size_t* bytes);
FOVEA_API fovea_status fovea_x_kv_decode(fovea_context* ctx,
                                         const fovea_x_kv_decode_params* params);

#ifdef __cplusplus
}
#endif

#endif
