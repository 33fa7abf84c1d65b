/* SPDX-License-Identifier: Apache-2.0 */
/** Eviction: which keys of a prompt stay, for the caches that follow it.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them. */
#ifndef FOVEA_EXPERIMENTAL_EVICT_H
#define FOVEA_EXPERIMENTAL_EVICT_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The keys of each key head that a prompt's last rows attend to, and the prompt's last keys.
 *
 *  With P the causal softmax of the rows of q, which are the last of the sequence:
 *    1. sum_j   = the sum of P_ij over the rows i and over the query heads of the key head
 *    2. score_j = the largest of sum_(j - width / 2) .. sum_(j + width / 2), of those before the
 *                 last `window` keys
 *    3. the last `window` keys stay, and of the others those of the highest score, keep in all
 *  Order and ties are x_select_block's: of equal scores the lower key; NaN is never taken.
 *  Keys stay in their order, without gaps.  k and v are stored as given: keys keep the positions
 *  that they were rotated with.  Slots past a head's count are not written.
 *
 *  A sequence of fewer than keep keys keeps all of them.  Errors name this operation, then the part
 *  that refuses, with that part's names of fields.
 *
 *  Limits: d is 1 .. 576.  Workspace: that of x_probe_forward and x_select_block, and 8 b g t
 *  bytes.
 *  Sources: SnapKV (2404.14469), with the sum over a group and the wider maximum of RocketKV
 *  (2502.14051). */
typedef struct fovea_x_evict_forward_params {
  size_t struct_size;       /**< sizeof(fovea_x_evict_forward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16: the last rows of each sequence; 32
                                 in RocketKV */
  fovea_tensor k;           /**< [in] (b, t, g, d) as q: g divides h */
  fovea_tensor v;           /**< [in] (b, t, g, e) as q */
  fovea_tensor query_len;   /**< [in, optional] (b) i32: rows in use */
  fovea_tensor key_len;     /**< [in, optional] (b) i32: keys in use */
  fovea_tensor k_kept;      /**< [out] (b, keep, g, d) as k */
  fovea_tensor v_kept;      /**< [out] (b, keep, g, e) as k */
  fovea_tensor index;       /**< [out, optional] (b, g, keep) i32: the keys that stay, ascending; -1
                                 past the count */
  fovea_tensor index_count; /**< [out, optional] (b, g) i32: how many */
  int64_t window;           /**< last keys that stay, at most keep; 0: s, as far as keep goes */
  int64_t width;            /**< keys of a maximum, odd; 0: 63, 1: none */
  float scale;              /**< > 0; 0: 1 / sqrt(d) */
  int32_t reserved;         /**< 0 */
} fovea_x_evict_forward_params;

FOVEA_API fovea_status fovea_x_evict_forward_workspace(fovea_context* ctx,
                                                       const fovea_x_evict_forward_params* params,
                                                       size_t* bytes);
FOVEA_API fovea_status fovea_x_evict_forward(fovea_context* ctx,
                                             const fovea_x_evict_forward_params* params);

#ifdef __cplusplus
}
#endif

#endif
