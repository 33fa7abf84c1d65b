/* SPDX-License-Identifier: Apache-2.0 */
/** Keys by their hashes: tables of buckets, and the keys that a query meets in several tables.
 *  Attention over those is an estimate of attention over all (MagicPIG).
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  Tables are the caller's, in two tensors.  A batch has those of a sequence, a key head its own.
 *    bucket[b, g, l, c]  the highest key with code c in table l; -1: none
 *    link[b, g, l, j]    the next lower key with the code of key j in table l; -1: none
 *  A bucket is the chain of keys from bucket on.  Chains descend: what does not, or is no key below
 *  t, ends one.  Tables take 4 tables (buckets + t) bytes a key head.
 *
 *  Codes are those of x_project_forward with its `bits`: word l is the bucket in table l.  There
 *  are 2^bits buckets.  A code that is none of them is in no bucket.
 *
 *  Keys are centred: k is k - mean with the mean of the keys that the tables hold.  Centring and
 *  codes are the caller's.  A device part attends over keys less the same mean, so that lse of both
 *  parts are of the same scores.
 *
 *  The host alone has these operations; a CUDA context answers FOVEA_UNSUPPORTED.
 *
 *  Extents of its own:
 *    tables = 3: hash tables
 *    buckets = 4: of a table, 2^bits */
#ifndef FOVEA_EXPERIMENTAL_LSH_H
#define FOVEA_EXPERIMENTAL_LSH_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Puts keys into the tables: row n of code is the code of key old_len + n.
 *
 *  Of a sequence whose old_len is 0 all buckets are emptied first, so that its tables need no
 *  contents.  Else the tables hold keys below old_len and no other: keys leave by building anew.
 *  Keys from t on are not put in.  How keys are parted into calls does not matter, nor the number
 *  of threads: the tables are the same.
 *
 *  Limits: t and buckets below 2^31.  Host alone.
 *  Source: MagicPIG (2410.16179). */
typedef struct fovea_x_lsh_append_params {
  size_t struct_size;     /**< sizeof(fovea_x_lsh_append_params) */
  fovea_tensor code;      /**< [in] (b, s, g, tables) i32: of the keys that come */
  fovea_tensor bucket;    /**< [inout] (b, g, tables, buckets) i32 */
  fovea_tensor link;      /**< [inout] (b, g, tables, t) i32: room for t keys */
  fovea_tensor query_len; /**< [in, optional] (b) i32: keys that come, 0 .. s; absent: s */
  fovea_tensor old_len;   /**< [in, optional] (b) i32: keys that the tables hold; absent: 0 */
} fovea_x_lsh_append_params;

FOVEA_API fovea_status fovea_x_lsh_append_workspace(fovea_context* ctx,
                                                    const fovea_x_lsh_append_params* params,
                                                    size_t* bytes);
FOVEA_API fovea_status fovea_x_lsh_append(fovea_context* ctx,
                                          const fovea_x_lsh_append_params* params);

/** The keys that share the bucket of a query in at least min_match tables, for each row and head.
 *
 *  Keys ascend.  index_count is exact; where it exceeds keep, the highest keys are cut.  Places
 *  past the count are -1, and 0 in index_bias.  Rows past query_len are neither read nor written.
 *  Rows see all keys below key_len: the tables' keys come before the rows.
 *
 *  index_bias is what x_sparse_forward adds to a score, so that a key counts for those like it that
 *  were not met.  With K = bits, L = tables, m = min_match:
 *    cos = <q, k> / (|q| |k|), cut to -1 .. 1; 0 where |q| |k| is 0 or cos is no number
 *    p = (1 - acos(cos) / pi)^K         that one table has both in a bucket
 *    u = P[Binomial(L, p) >= m]         that m tables or more have
 *    index_bias = -ln(u + 1e-4)
 *  For m = 2, u = 1 - (1 - p)^(L-1) ((L - 1) p + 1).  p holds where codes are signs of products
 *  with normal numbers, k and code alike of centred keys.
 *
 *  Limits: t and buckets below 2^31.  Sums are in f64.  Host alone.
 *  Source: MagicPIG (2410.16179). */
typedef struct fovea_x_select_lsh_params {
  size_t struct_size;       /**< sizeof(fovea_x_select_lsh_params) */
  fovea_tensor code_q;      /**< [in] (b, s, h, tables) i32: of the queries; g divides h */
  fovea_tensor bucket;      /**< [in] (b, g, tables, buckets) i32 */
  fovea_tensor link;        /**< [in] (b, g, tables, t) i32 */
  fovea_tensor q;           /**< [in, optional] (b, s, h, d) f32 f16 bf16: of index_bias */
  fovea_tensor k;           /**< [in, optional] (b, t, g, d) f32 f16 bf16: centred keys, of
                                 index_bias */
  fovea_tensor query_len;   /**< [in, optional] (b) i32: rows in use, 0 .. s */
  fovea_tensor key_len;     /**< [in, optional] (b) i32: keys in use, 0 .. t; those from here on are
                                 passed over */
  fovea_tensor index;       /**< [out, optional] (b, h, s, keep) i32: keys by their number; one of
                                 index and index_count at least */
  fovea_tensor index_count; /**< [out, optional] (b, h, s) i32: keys met */
  fovea_tensor index_bias;  /**< [out, optional] (b, h, s, keep) f32: needs index, q and k */
  int64_t min_match;        /**< tables that must agree, 1 .. tables; 0: 2 */
  int32_t bits;             /**< of a code: buckets = 2^bits; 0: as buckets has it */
  int32_t reserved;         /**< 0 */
} fovea_x_select_lsh_params;

FOVEA_API fovea_status fovea_x_select_lsh_workspace(fovea_context* ctx,
                                                    const fovea_x_select_lsh_params* params,
                                                    size_t* bytes);
FOVEA_API fovea_status fovea_x_select_lsh(fovea_context* ctx,
                                          const fovea_x_select_lsh_params* params);

/** Attention over the keys that hashes find, as an estimate of attention over all: x_select_lsh
 *  with index_bias, then x_sparse_forward, in one call on one workspace.
 *
 *    o_i = sum_j w_ij v_j / sum_j w_ij,  w_ij = exp(scale <q_i, k_j>) / (u_ij + 1e-4)
 *    lse_i = ln sum_j w_ij, over the keys j that x_select_lsh finds for row i; both sums estimate
 *            those over all keys, but for the 1e-4
 *
 *  merge_forward joins o and lse with those of keys that are always seen: the first, the latest.
 *  A row that meets no key has o = 0 and lse = -inf: a merge leaves it out.  Rows past query_len
 *  are not written.
 *
 *  Errors name this operation, then the part that refuses, with that part's names of fields.
 *  Limits: those of the parts; host alone.  Workspace: theirs, and the lists that no output holds.
 *  Source: MagicPIG (2410.16179). */
typedef struct fovea_x_lsh_forward_params {
  size_t struct_size;       /**< sizeof(fovea_x_lsh_forward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;           /**< [in] (b, t, g, d) as q: centred keys */
  fovea_tensor v;           /**< [in] (b, t, g, e) as q */
  fovea_tensor o;           /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;         /**< [out, optional] (b, h, s) f32: natural log of each row's sum */
  fovea_tensor code_q;      /**< [in] (b, s, h, tables) i32: codes of q */
  fovea_tensor bucket;      /**< [in] (b, g, tables, buckets) i32: as x_lsh_append writes it */
  fovea_tensor link;        /**< [in] (b, g, tables, t) i32: the same */
  fovea_tensor query_len;   /**< [in, optional] (b) i32: rows in use, 0 .. s */
  fovea_tensor key_len;     /**< [in, optional] (b) i32: keys in use, 0 .. t */
  fovea_tensor index;       /**< [out, optional] (b, h, s, keep) i32: the lists, as x_select_lsh
                                 writes them */
  fovea_tensor index_count; /**< [out, optional] (b, h, s) i32: keys met; with index */
  fovea_tensor index_bias;  /**< [out, optional] (b, h, s, keep) f32: needs index */
  int64_t max_keys;         /**< places of a list without index; keys past them are cut; 0: t */
  int64_t min_match;        /**< tables that must agree, 1 .. tables; 0: 2 */
  float scale;              /**< > 0; 0: 1 / sqrt(d) */
  int32_t bits;             /**< of a code: buckets = 2^bits; 0: as buckets has it */
} fovea_x_lsh_forward_params;

FOVEA_API fovea_status fovea_x_lsh_forward_workspace(fovea_context* ctx,
                                                     const fovea_x_lsh_forward_params* params,
                                                     size_t* bytes);
FOVEA_API fovea_status fovea_x_lsh_forward(fovea_context* ctx,
                                           const fovea_x_lsh_forward_params* params);

#ifdef __cplusplus
}
#endif

#endif
