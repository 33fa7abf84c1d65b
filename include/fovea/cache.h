/* SPDX-License-Identifier: Apache-2.0 */
/** Key and value caches, contiguous (b, t, g, d) or paged (pool, page, g, d) with a page_table: the
 *  same fields attention_forward reads.  Token j of a sequence lives in pool page page_table[row][j
 *  / page], slot j % page; any page size.  Who owns which page stays with the caller.
 *
 *  Decoding appends first and attends afterwards, with the length that cache_append left in
 *  key_len_out.  Bits: the same every run, whatever else the batch holds.
 *
 *  Limits: none on widths and heads; every valid call has one kernel a backend, without tensor
 *  cores.
 *
 *  In fovea.h:
 *    cache_append, _copy, _get: key and value caches, contiguous or paged
 *    bits, cache_*: no no no no no */
#ifndef FOVEA_CACHE_H
#define FOVEA_CACHE_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Writes new token i of each sequence at index key_len + i of the cache.  The optional RMSNorm of
 *  the first `width` columns of k_new comes first, then the optional rotation, then the cast:
 *    f32 f16 bf16    rounded to nearest even
 *    e4m3 e5m2 i8    value / scale, rounded to nearest even, saturating; NaN in i8: 0
 *
 *  The scale is k_scale's, or with k_scale_out it is found and written, for each token and head and
 *  each of `groups` equal parts of the columns:
 *    scale = max(amax / largest code, 2^-126), amax the largest finite |value| of the part
 *    scale = 1 where amax is 0
 *  with scale_power_of_two rounded up to a power of two.  Largest codes: 448, 57344, 127.
 *  attention_forward reads the scales as they are written here.
 *
 *  A token whose page is -1 or that lies past the cache's extent is dropped.  Every other byte of
 *  the cache stays as it was. */
typedef struct fovea_cache_append_params {
  size_t struct_size;       /**< sizeof(fovea_cache_append_params) */
  fovea_tensor k_new;       /**< [in, optional] (b, s, g, d) f32 f16 bf16: with k */
  fovea_tensor v_new;       /**< [in, optional] (b, s, f, e) f32 f16 bf16: with v; its head count is
                                 free of g */
  fovea_tensor k;           /**< [inout, optional] (rows, t, g, d) or paged (pool, page, g, d) f32
                                 f16 bf16 e4m3 e5m2 i8 */
  fovea_tensor v;           /**< [inout, optional] (rows, t, f, e) or paged (pool, page, f, e) f32
                                 f16 bf16 e4m3 e5m2 i8 */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed new token of each sequence;
                                 then b = 1 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32: first packed cache slot of each sequence
                                 (rows = 1); not with page_table or cache_row */
  fovea_tensor query_len;   /**< [in, optional] (r) i32: new tokens of each sequence; absent: all */
  fovea_tensor key_len;     /**< [in, optional] (r) i32: tokens in the cache before; absent: 0 */
  fovea_tensor page_table;  /**< [in, optional] (rows, pages) i32: -1: page absent */
  fovea_tensor cache_row;   /**< [in, optional] (r) i32: row of page_table, or of k and v; -1 or
                                 past the last skips the sequence; absent: its own number */
  fovea_tensor position;    /**< [in, optional] (b, s) i32: rotary position of each new token;
                                 absent: key_len + i */
  fovea_tensor cos;         /**< [in, optional] (positions, half) f32: rotates k_new; a position
                                 outside the table gives NaN */
  fovea_tensor sin;         /**< [in, optional] (positions, half) f32: with cos */
  fovea_tensor norm_weight; /**< [in, optional] (width) f32 f16 bf16: RMSNorm of the first width <=
                                 d columns of k_new */
  fovea_tensor k_scale;     /**< [in, optional] (g) f32: k stores value / scale (e4m3 e5m2 i8 only);
                                 absent: 1 */
  fovea_tensor v_scale;     /**< [in, optional] (f) f32: as k_scale, of v */
  fovea_tensor key_len_out; /**< [out, optional] (r) i32: key_len plus the new tokens; may be
                                 key_len */
  int64_t query_max;        /**< most new tokens of a sequence, bounds the grid; 0: s */
  int64_t key_max;          /**< tokens past this index are dropped; 0: t, or pages * page */
  float norm_eps;           /**< 0: 1e-6 */
  int32_t rope_begin;       /**< first rotated column of k_new */
  int32_t rope_interleaved; /**< 1: pairs (2i, 2i + 1); 0: pairs (i, i + half) */
  int32_t scale_power_of_two; /**< 1: scales that are written are powers of two; needs k_scale_out
                                   or v_scale_out */
  fovea_tensor k_scale_out;   /**< [inout, optional] (rows, t, g, groups) or paged (pool, page, g,
                                   groups) f32: scales of the new tokens of k (e4m3 e5m2 i8 only);
                                   others stay; not with k_scale */
  fovea_tensor v_scale_out;   /**< [inout, optional] (rows, t, f, groups) or paged (pool, page, f,
                                   groups) f32: as k_scale_out, of v */
} fovea_cache_append_params;

FOVEA_API fovea_status fovea_cache_append_workspace(fovea_context* ctx,
                                                    const fovea_cache_append_params* params,
                                                    size_t* bytes);
FOVEA_API fovea_status fovea_cache_append(fovea_context* ctx,
                                          const fovea_cache_append_params* params);

/** Copies whole pages, target[pair[i][1]] = source[pair[i][0]]: copy-on-write, swap, offload (one
 *  pool in FOVEA_MEMORY_HOST).  A pair with a number outside its pool is skipped.  No page may be a
 *  target twice, or a target and a source. */
typedef struct fovea_cache_copy_params {
  size_t struct_size;  /**< sizeof(fovea_cache_copy_params) */
  fovea_tensor source; /**< [in] (pool, page, g, d) f32 f16 bf16 e4m3 e5m2 i8 i32 u8 */
  fovea_tensor target; /**< [inout] (pool2, page, g, d) as source: may be source */
  fovea_tensor pair;   /**< [in] (n, 2) i32: source page, target page; -1 skips */
} fovea_cache_copy_params;

FOVEA_API fovea_status fovea_cache_copy_workspace(fovea_context* ctx,
                                                  const fovea_cache_copy_params* params,
                                                  size_t* bytes);
FOVEA_API fovea_status fovea_cache_copy(fovea_context* ctx, const fovea_cache_copy_params* params);

/** Reads one cache tensor back, paged to contiguous.  k_out[i, j] is k of sequence i, token j,
 *  times k_scale, for j below the sequence's length.  An absent page gives 0.  Other rows of k_out
 *  are not written.  Keys and values are two calls. */
typedef struct fovea_cache_get_params {
  size_t struct_size;      /**< sizeof(fovea_cache_get_params) */
  fovea_tensor k;          /**< [in] (rows, t, g, d) or paged (pool, page, g, d) f32 f16 bf16 e4m3
                                e5m2 i8 */
  fovea_tensor key_start;  /**< [in, optional] (r+1) i32: k_out is packed, (1, total, g, d): first
                                row of each sequence; k keeps a row for each */
  fovea_tensor key_len;    /**< [in, optional] (r) i32: tokens in use; absent: the extent of k_out
                                or of its packed part */
  fovea_tensor page_table; /**< [in, optional] (rows, pages) i32: -1: page absent */
  fovea_tensor cache_row;  /**< [in, optional] (r) i32: row of page_table, or of k; -1 or past the
                                last skips the sequence */
  fovea_tensor k_scale;    /**< [in, optional] (g) f32: absent: 1 */
  fovea_tensor k_out;      /**< [out] (b, u, g, d) f32 f16 bf16 */
  int64_t key_max;         /**< tokens past this index are not read; 0: t, or pages * page */
} fovea_cache_get_params;

FOVEA_API fovea_status fovea_cache_get_workspace(fovea_context* ctx,
                                                 const fovea_cache_get_params* params,
                                                 size_t* bytes);
FOVEA_API fovea_status fovea_cache_get(fovea_context* ctx, const fovea_cache_get_params* params);

#ifdef __cplusplus
}
#endif

#endif
