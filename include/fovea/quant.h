/* SPDX-License-Identifier: Apache-2.0 */
/** Attention over codes of 8 and 4 bits, with scales of heads, blocks, threads, channels or
 *  microblocks: FlashAttention-3 FP8, SageAttention and the forward of SageBwd.
 *
 *  A code stands for code * scale.  A block is a run of `block` tokens of one sequence, counted
 *  from its first.  Token i of a sequence has the scale of block i / block.  With block = 0 one
 *  scale serves all tokens of the sequence.  Scales of a head stand in one row:
 *    batched (no *_start)   block i / block of its own row; block = 0: one
 *    packed                 sequence r begins at entry start[r] / block + r; block = 0: at entry r
 *  so a packed row has s / block + r entries (block = 0: r), more than there are blocks.
 *
 *  fovea_scale_group names finer groups.  Entry of column c of token i, from its sequence's first
 *  entry, and where that is in a packed row:
 *    block      i / block                      as above
 *    thread_q   8 (i / block) + i % 8          8 (start[r] / block + r)
 *    thread_k   4 (i / block) + i % 8 / 2      4 (start[r] / block + r)
 *    token      i                              start[r]
 *    channel    c                              r d
 *    micro16    i ceil(d / 16) + c / 16        start[r] ceil(d / 16)
 *    micro16_t  of code_t alone, whose column is z: entry c (padded / 16) + z / 16 of the row
 *  micro32 and micro32_t: the same with 32.  The thread groups are what one thread of a tensor core
 *  product owns (SageAttention2, 2411.10958).
 *
 *  Values are read across tokens, so the product wants them transposed: (.., tokens), tokens
 *  contiguous, in units of 128.  Batched rows hold s tokens rounded up to a multiple of 128.
 *  Packed, sequence r begins at column (start[r] / 128 + r) * 128 of (s / 128 + r) * 128.
 *  Source: FlashAttention-3 (2407.08608), section 3.3.
 *
 *  Extents of its own:
 *    code_d = 8: columns of a row of codes: d, and d / 2 bytes where a byte holds two
 *    wide = 8: columns that a row of codes stands for
 *    v_means = 1: vectors of means of values: 1 or r
 *    means = 1: vectors of means of a head: 1 or r (a sequence's), or entries of blocks of 128
 *    k_means = 1: the same of keys, 1 or r
 *    deltas = 1: entries of blocks of 128 rows
 *
 *  In fovea.h:
 *    quant_quantize, quant_dequantize: codes of 8 and 4 bits with scales, and back
 *    quant_forward: attention over codes
 *    bits, quant_*: no no no no no */
#ifndef FOVEA_QUANT_H
#define FOVEA_QUANT_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The order of tokens in transposed codes.  V_PERM16 is what Hopper's tensor cores ask for.  Each
 *  run of 16 tokens then stands as 0 1 8 9 2 3 10 11 4 5 12 13 6 7 14 15. */
typedef enum fovea_code_order {
  FOVEA_CODE_ORDER_PLAIN = 0,    /**< as they are */
  FOVEA_CODE_ORDER_V_PERM16 = 1  /**< runs of 16 in the order above */
} fovea_code_order;

/** What a code is.  In i4 and e2m1 a byte holds two: element 2k in bits 0-3, 2k + 1 in bits 4-7.
 *  i4 is two's complement.  e2m1 has a sign and 0 0.5 1 1.5 2 3 4 6. */
typedef enum fovea_code_format {
  FOVEA_CODE_FORMAT_DTYPE = 0, /**< what the tensor's dtype says: e4m3 or i8 */
  FOVEA_CODE_FORMAT_I4 = 1,    /**< -7 .. 7, u8 of pairs */
  FOVEA_CODE_FORMAT_E2M1 = 2   /**< u8 of pairs */
} fovea_code_format;

/** What shares a scale; entries as the opening comment says. */
typedef enum fovea_scale_group {
  FOVEA_SCALE_GROUP_BLOCK = 0,     /**< a block of tokens */
  FOVEA_SCALE_GROUP_THREAD_Q = 1,  /**< tokens of a block that are equal modulo 8 */
  FOVEA_SCALE_GROUP_THREAD_K = 2,  /**< tokens of a block whose i % 8 / 2 are equal */
  FOVEA_SCALE_GROUP_TOKEN = 3,     /**< a token */
  FOVEA_SCALE_GROUP_CHANNEL = 4,   /**< a column, over all tokens of a sequence */
  FOVEA_SCALE_GROUP_MICRO16 = 5,   /**< 16 columns of a token */
  FOVEA_SCALE_GROUP_MICRO32 = 6,   /**< 32 columns of a token */
  FOVEA_SCALE_GROUP_MICRO16_T = 7, /**< 16 columns of code_t */
  FOVEA_SCALE_GROUP_MICRO32_T = 8  /**< 32 columns of code_t */
} fovea_scale_group;

/** What is taken off before codes are made. */
typedef enum fovea_smooth {
  FOVEA_SMOOTH_NONE = 0,     /**< nothing */
  FOVEA_SMOOTH_SEQUENCE = 1, /**< each column's mean over the sequence */
  FOVEA_SMOOTH_BLOCK = 2     /**< each column's mean over a block of 128 tokens, rounded to bf16 */
} fovea_smooth;

/** Codes of x:
 *    y = x, or with hadamard y = (x * sign) H / sqrt(m) on each run of m columns, m the largest
 *        power of two that divides d, H the Hadamard matrix in Sylvester order
 *    y = y - mean                                                              with smooth
 *    a = max(max |y| over the tokens and columns that share a scale, 1e-7)
 *    scale = a / most,  code = y * (most / a) rounded to nearest even
 *  in f32; most is 448 of e4m3 (or scale_max), 127 of i8, 7 of i4.  Where y holds an infinity
 *  scale is +inf, where it holds a NaN scale is NaN; the codes under such a scale are 0.
 *
 *  e2m1 goes with the micro groups and they with it (NVFP4 and MXFP4), with a = max |y|:
 *    micro16  scale = e4m3(a / 6),  code = y * (1 / scale) rounded to nearest even, at most 6
 *    micro32  scale = 2^k, k = max(floor(log2 a) - 2, -127), as u8 k + 127;  code = y / scale
 *  Where a or scale is 0 the codes are 0.  Where y holds a NaN or an infinity they are too, and
 *  scale is NaN (u8: 255).
 *
 *  mean is a column's sum over the tokens there are, divided by their number, in f32.  The sum is
 *  a tree: of tokens 2i and 2i + 1 of a sequence, of such pairs, and so on.  With both means off,
 *  scores lack <mean, k - k_mean> (SageAttention2, 2411.10958).  delta is that, of block I of 128
 *  rows and every key j of its sequence, in f32: to be added before the scale.
 *
 *  q and k rotated alike have the scores they had before, with outliers spread over columns.  The
 *  sign of column c is - where the top bit of z is 1:
 *    z = seed + (c + 1) * 0x9E3779B97F4A7C15;  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
 *    z = (z ^ z >> 27) * 0x94D049BB133111EB;   z = z ^ z >> 31            (64 bits, unsigned)
 *  Packed tokens of no sequence are not written, nor are scales that are theirs alone.  Other
 *  scales and means of no token, and transposed codes of none, are 0.  What delta has for no block
 *  or for no key of its sequence is not written.  Bits of codes, scales and means: the same on host
 *  and CUDA, whatever else the batch holds.
 *
 *  Limits: d is up to 3072 on CUDA, any on the host. */
typedef struct fovea_quant_quantize_params {
  size_t struct_size;     /**< sizeof(fovea_quant_quantize_params) */
  fovea_tensor x;         /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor start;     /**< [in, optional] (r+1) i32: first packed token of each sequence,
                               ascending from 0; then b = 1 */
  fovea_tensor code;      /**< [out, optional] (b, s, h, code_d) e4m3 i8 u8: absent: only code_t is
                               written */
  fovea_tensor code_t;    /**< [out, optional] (b, h, d, padded) e4m3 i8 u8: the codes with tokens
                               contiguous, for v_t; of code's dtype.  A byte that holds two halves
                               padded */
  fovea_tensor scale;     /**< [out] (b, h, n) f32 e4m3 u8: n as said above; f32, but e4m3 of
                               micro16 and u8 of micro32 */
  fovea_tensor mean;      /**< [out, optional] (b, h, means, d) f32: with smooth; one of a sequence
                               (packed r), or one of each block of 128 */
  fovea_tensor k;         /**< [in, optional] (key_b, t, g, d) as x: for delta */
  fovea_tensor k_mean;    /**< [in, optional] (key_b, g, k_means, d) f32: one of a sequence; absent:
                               0 */
  fovea_tensor key_start; /**< [in, optional] (r+1) i32: first packed key of each sequence */
  fovea_tensor delta;     /**< [out, optional] (b, h, deltas, t) f32: of each block of 128; with
                               smooth 2 and k */
  int64_t block;          /**< tokens of a block: 16, 32 or a multiple of 64, 0: all of a sequence.
                               Of thread_q 16 to 128, of thread_k 64 or 128, else 0 */
  int64_t seed;           /**< signs of the rotation; with hadamard */
  float scale_max;        /**< e4m3's largest code, one that e4m3 holds; 0: 448 */
  int32_t hadamard;       /**< 1: rotate the columns first */
  int32_t code_order;     /**< fovea_code_order */
  int32_t group;          /**< fovea_scale_group */
  int32_t code_format;    /**< fovea_code_format */
  int32_t smooth;         /**< fovea_smooth */
} fovea_quant_quantize_params;

FOVEA_API fovea_status fovea_quant_quantize_workspace(
    fovea_context* ctx, const fovea_quant_quantize_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_quant_quantize(
    fovea_context* ctx, const fovea_quant_quantize_params* params);

/** What codes stand for:
 *    y = code * scale, + mean with smooth, then with hadamard (y H / sqrt(m)) * sign
 *  each step rounded in f32, y then to its dtype.  Groups, formats, means and signs: as
 *  quant_quantize.  Packed tokens of no sequence are not written.  Bits: the same on host and CUDA,
 *  whatever else the batch holds.
 *
 *  Limits: d is up to 3072 on CUDA, any on the host. */
typedef struct fovea_quant_dequantize_params {
  size_t struct_size;  /**< sizeof(fovea_quant_dequantize_params) */
  fovea_tensor y;      /**< [out] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor start;  /**< [in, optional] (r+1) i32: first packed token of each sequence, ascending
                            from 0; then b = 1 */
  fovea_tensor code;   /**< [in, optional] (b, s, h, code_d) e4m3 i8 u8: this or code_t */
  fovea_tensor code_t; /**< [in, optional] (b, h, d, padded) e4m3 i8 u8: as quant_quantize's */
  fovea_tensor scale;  /**< [in] (b, h, n) f32 e4m3 u8: as quant_quantize's */
  fovea_tensor mean;   /**< [in, optional] (b, h, means, d) f32: with smooth */
  int64_t block;       /**< as quant_quantize's */
  int64_t seed;        /**< signs of the rotation; with hadamard */
  int32_t hadamard;    /**< 1: the codes are of rotated columns */
  int32_t code_order;  /**< fovea_code_order */
  int32_t group;       /**< fovea_scale_group */
  int32_t code_format; /**< fovea_code_format */
  int32_t smooth;      /**< fovea_smooth */
  int32_t reserved;    /**< 0 */
} fovea_quant_dequantize_params;

FOVEA_API fovea_status fovea_quant_dequantize_workspace(
    fovea_context* ctx, const fovea_quant_dequantize_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_quant_dequantize(
    fovea_context* ctx, const fovea_quant_dequantize_params* params);

/** What p is rounded to before it meets v, and what v then is.
 *    E4M3_256, E4M3_448  e4m3(c p) / c, c = 256 or 448; v e4m3
 *    HALF                f16(p); v f16 or bf16
 *    I8                  with a = max p of 64 keys: round(127 p / a) a / 127; v i8
 *    E2M1_TWO            t = 2688 p, with a = max t of 16 keys: u = e4m3(a / 6),
 *                        e2m1(t / u) u / 2688, 0 where u is; v e2m1
 *    E2M1_ONE            with a = max p of 32 keys: u = 2^(floor(log2 a) - 2), e2m1(p / u) u;
 *                        v e2m1
 *  Runs of 16, 32 and 64 keys are counted from a sequence's first. */
typedef enum fovea_p_format {
  FOVEA_P_FORMAT_E4M3_256 = 0, /**< FlashAttention-3 */
  FOVEA_P_FORMAT_E4M3_448 = 1, /**< SageAttention2 */
  FOVEA_P_FORMAT_HALF = 2,     /**< SageAttention */
  FOVEA_P_FORMAT_I8 = 3,       /**< SageBwd */
  FOVEA_P_FORMAT_E2M1_TWO = 4, /**< SageAttention3, NVFP4: a scale of two levels */
  FOVEA_P_FORMAT_E2M1_ONE = 5  /**< SageAttention3, MXFP4: a scale of one level */
} fovea_p_format;

/** How products of p and v are summed.  A kernel may be more exact than what is asked for: CUDA
 *  sums half_64 in f32. */
typedef enum fovea_accumulate {
  FOVEA_ACCUMULATE_TWO_LEVEL = 0, /**< tensor cores sum few keys, then these join O in f32 */
  FOVEA_ACCUMULATE_F32 = 1,       /**< in f32 as the tensor cores keep it */
  FOVEA_ACCUMULATE_HALF_64 = 2    /**< f16 within 64 keys, f32 across them; SageAttention, 2++ */
} fovea_accumulate;

/** Attention of codes: FlashAttention-3's FP8 recipe, SageAttention 1, 2, 2++ and 3, the forward of
 *  SageBwd, SpargeAttention over lists.  For query row i over the keys it sees (attention.h:
 *  positions bottom-right aligned, causal, windows), in tiles from the last to the first:
 *    score = scale * (q_scale * k_scale * <q_i, k_j> + delta_ij) + r_i
 *    score = softcap * tanh(score / softcap)            when softcap > 0
 *    m' = max(m, score),  p = exp(score - m'),  l = exp(m - m') l + sum p
 *    O = exp(m - m') O + sum_j rounded(p_j) v_scale v_j
 *    o = O / l,  lse = m + ln l                         (l + exp(sink_logit_h) with sink_logit)
 *  rounded: as p_format says, to nearest even.  The tile is the kernel's own, a multiple of 64
 *  keys.  Tensor cores keep 13 bits of a sum of e4m3: they sum at most 4096 keys before these join
 *  O in f32.  Scales are not negative; an absent one is 1.  Empty rows, lengths and what is not
 *  read: as attention_forward.  Bits: the same every run, whatever else the batch holds.
 *
 *  Smoothing.  k stands for keys less k_mean, so each score of row i lacks the same
 *  r_i = scale <q_i, k_mean>.  It is added where it shows: in lse, under softcap and beside
 *  sink_logit.  q_i is q_plain; without it what q's codes stand for.  q less the mean of its 128
 *  rows lacks delta, as quant_quantize writes it; then k_mean asks for q_plain.  v_mean is added to
 *  o, times the share of l that keys have.
 *
 *  Pages.  With page_table token j of a sequence is token j % page of pool page
 *  page_table[row][j / page].  A pool is what quant_quantize makes of x (pool, page, g, d), a page
 *  a sequence of its batch.  Blocks, groups, padded columns and means are those of a page.  With
 *  block = 0 one scale serves a page, and a page's last block may be shorter.  Means belong to the
 *  keys of their page, k_j = k_scale k + k_mean and v_j = v_scale v + v_mean: scores lack nothing.
 *  A mean that pages share has stride 0.  Runs of p_format are counted as without pages.
 *
 *  Lists.  With index row i sees those keys alone that its list names and its window leaves, a key
 *  as often as it is named.
 *    list head  Query head i has list head i / (h / x); x divides h.
 *    list row   Row i of a sequence has list row i / block_rows; n is ceil(s / block_rows) or more.
 *               Packed, the first list row of sequence r is query_start[r] / block_rows + r, and n
 *               is s / block_rows + r or more.  With block_rows = 1 it is query_start[r], and n is
 *               s or more.
 *    entry      Number e names keys [e entry_keys, e entry_keys + block_keys) of the sequence, as
 *               far as there are such keys.  -1 and numbers without a key name none.  Entries stand
 *               in any order.
 *    count      Places from index_count on are not read.  A count below 0 or above keep is cut to
 *               that.  Absent: keep.
 *  In what order keys are met is then the kernel's own, but with skip_margin: from the first place
 *  to the last.
 *
 *  Skipping (SpargeAttention).  Rows stand in groups of 64 of one head, counted from the first of
 *  their list row.  An entry is cut into tiles of 64 keys, from its first.  top_i is the largest
 *  score that row i has met so far.  A tile is skipped where every row of the group has
 *  score_ij < top_i - skip_margin for each key that it sees.  It then adds nothing to o, lse and
 *  top.  What is dropped is at most Lk exp(-skip_margin) of a row's sum.
 *
 *  Methods:
 *    |                 | q, k  | q_group, k_group   | v    | v_group   | p_format | accumulate |
 *    | FlashAttention-3| e4m3  | block              | e4m3 | block     | e4m3_256 | two_level  |
 *    | SageAttention   | i8    | block              | f16  | none      | half     | half_64    |
 *    | SageAttention2  | i8 i4 | thread_q, thread_k | e4m3 | channel   | e4m3_448 | two_level  |
 *    | SageAttention2++| i8    | thread_q, thread_k | e4m3 | channel   | e4m3_448 | half_64    |
 *    | SageAttention3  | e2m1  | micro16, micro32   | e2m1 | micro*_t  | e2m1_*   | f32        |
 *    | SageBwd         | i8    | block              | i8   | block     | i8       | f32        |
 *    | SpargeAttention | i8    | block              | e4m3 | channel   | e4m3_448 | two_level  |
 *  q and k of one type go with any v and the p_format that v has above.  code_format is of q and k,
 *  v_format of v_t.  Groups of q and k: block, thread_q (q), thread_k (k), token, micro16, micro32;
 *  of v: block, channel, and micro16_t, micro32_t of v_t.
 *
 *  Limits: d and e are 1 .. 576.  Every valid call has a kernel on the host and a portable one on
 *  CUDA.  Tensor cores ask for more:
 *    all              v_t in v_perm16, or v of f16 or bf16; no softcap or v_mean; delta as below;
 *                     d a multiple of 16 and e of 8, up to 256; rows of q, k, v, v_t, o contiguous
 *                     and 16-byte aligned
 *    sm_90, e4m3      p_format e4m3_256, groups block of 0, 64 or 128 tokens, v_group block; no
 *                     k_mean
 *    sm_90, i8, e4m3  p_format e4m3_448, q_scale and k_scale; q_group block or thread_q, q_block 0
 *                     or a power of two; k_group block or thread_k, k_block 0 or a power of two
 *                     from 64 on; v_group block (v_block = 0) or channel; rows of k_mean and
 *                     q_plain contiguous and 16-byte aligned; delta too
 *    sm_90, i4, e4m3  as i8, e4m3, whose products are exact for i4: codes are unpacked into the
 *                     workspace; rows of q and k 8-byte aligned; no index or page_table
 *    sm_90, i8, f16   v of f16 or bf16; q and k as i8, e4m3; v_scale absent, or v_group block
 *                     (v_block = 0) or channel; up to 128; no delta, index or page_table
 *    sm_90, i8        p_format i8, all three scales; q and k as above, but k_group block; v_group
 *                     block, v_block 0 or a power of two from 64 on; up to 128; no index or
 *                     page_table
 *    sm_90, pages     page a multiple of 64; v_scale, and k_mean of i8, one of all pages: absent,
 *                     of stride 0 or of a pool of one page.  e4m3 with such a k_scale, k_block = 0:
 *                     page a multiple of 16
 *    sm_80, i8        p_format i8, scales of block, blocks of 0 or multiples of 64; up to 128; no
 *                     index, page_table or cache_row
 *    sm_90, index     as i8, e4m3; block_rows = 128, entry_keys = block_keys or 0; no
 *                     skip_margin or delta */
typedef struct fovea_quant_forward_params {
  size_t struct_size;       /**< sizeof(fovea_quant_forward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) e4m3 i8 u8: u8: pairs of columns, see
                                 code_format */
  fovea_tensor k;           /**< [in] (rows, t, g, d) or paged (pool, page, g, d) as q */
  fovea_tensor v;           /**< [in, optional] (rows, t, g, e) or paged (pool, page, g, e) e4m3 i8
                                 f16 bf16: this or v_t */
  fovea_tensor v_t;         /**< [in, optional] (rows, g, e, padded) or paged (pool, g, e, padded)
                                 e4m3 i8 u8: values with tokens contiguous, in code_order, placed as
                                 quant_quantize does */
  fovea_tensor q_scale;     /**< [in, optional] (b, h, q_blocks) f32 e4m3 u8: absent: 1 */
  fovea_tensor k_scale;     /**< [in, optional] (rows, g, k_blocks) or paged (pool, g, k_blocks) f32
                                 e4m3 u8: absent: 1 */
  fovea_tensor v_scale;     /**< [in, optional] (rows, g, v_blocks) or paged (pool, g, v_blocks) f32
                                 e4m3 u8: absent: 1 */
  fovea_tensor o;           /**< [out] (b, s, h, e) f32 f16 bf16 */
  fovea_tensor lse;         /**< [out, optional] (b, h, s) f32: natural log of each row's sum */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                 ascending from 0; then b = 1 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32: first packed key of each sequence; not
                                 with page_table or cache_row */
  fovea_tensor query_len;   /**< [in, optional] (r) i32: rows in use, at most s or the packed
                                 extent */
  fovea_tensor key_len;     /**< [in, optional] (r) i32: keys in use, at most t, packed extent or
                                 pages * page */
  fovea_tensor page_table;  /**< [in, optional] (rows, pages) i32: pool page of each logical page;
                                 -1: absent, its keys are not seen */
  fovea_tensor cache_row;   /**< [in, optional] (r) i32: row of page_table, or of k and v, that a
                                 sequence reads; -1 or past the last: no keys; absent: its own
                                 number */
  fovea_tensor sink_logit;  /**< [in, optional] (h) f32: a learned term of the denominator: not
                                 scaled or capped */
  fovea_tensor k_mean;      /**< [in, optional] (rows, g, means, wide) or paged (pool, g, means,
                                 wide) f32: what k stands for less than; means = 1, packed r */
  fovea_tensor q_plain;     /**< [in, optional] (b, s, h, wide) f32 f16 bf16: rows that q's codes
                                 stand for, in k_mean's columns; not with page_table */
  fovea_tensor delta;       /**< [in, optional] (b, h, deltas, t) f32: for each 128 rows of a
                                 sequence, placed as block scales are; not with page_table */
  fovea_tensor v_mean;      /**< [in, optional] (rows, g, v_means, e) or paged (pool, g, v_means, e)
                                 f32: v_means = 1, packed r */
  fovea_tensor index;       /**< [in, optional] (b, x, n, keep) i32: entries of each list row; not
                                 with page_table */
  fovea_tensor index_count; /**< [in, optional] (b, x, n) i32: entries in use; with index */
  fovea_tensor skipped;     /**< [out, optional] (1) i64: tiles that some row of a group sees and
                                 that were skipped, over all groups; with index */
  int64_t query_max;        /**< longest sequence of rows, bounds the grid; 0: s */
  int64_t key_max;          /**< longest sequence of keys; 0: t, or pages * page */
  int64_t window_left;      /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;     /**< keys seen to the right, the row's own position counted; 0: all, 1:
                                 none after itself */
  float scale;              /**< > 0; 0: 1 / sqrt(columns of q) */
  float softcap;            /**< > 0; 0: none */
  float skip_margin;        /**< in nats, with index; 0: nothing is skipped */
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t q_block;          /**< rows that share an entry of q_scale: 16, 32 or a multiple of 64; 0:
                                 all of a sequence; thread_q: the run */
  int32_t k_block;          /**< keys that share an entry of k_scale, as q_block; thread_k: the
                                 run */
  int32_t code_order;       /**< fovea_code_order */
  int32_t code_format;      /**< fovea_code_format */
  int32_t v_format;         /**< fovea_code_format */
  int32_t p_format;         /**< fovea_p_format */
  int32_t accumulate;       /**< fovea_accumulate */
  int32_t q_group;          /**< fovea_scale_group */
  int32_t k_group;          /**< fovea_scale_group */
  int32_t v_group;          /**< fovea_scale_group */
  int32_t v_block;          /**< keys that share an entry of v_scale, as q_block */
  int32_t block_rows;       /**< rows of a list row: 1 .. 128; 0 without index */
  int32_t block_keys;       /**< keys of an entry: a multiple of 64 up to 65536; 0 without index */
  int32_t entry_keys;       /**< from an entry's first key to the next's: a multiple of 64, at most
                                 block_keys; 0: block_keys */
} fovea_quant_forward_params;

FOVEA_API fovea_status fovea_quant_forward_workspace(
    fovea_context* ctx, const fovea_quant_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_quant_forward(
    fovea_context* ctx, const fovea_quant_forward_params* params);

#ifdef __cplusplus
}
#endif

#endif
