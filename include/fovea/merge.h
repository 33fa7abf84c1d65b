/* SPDX-License-Identifier: Apache-2.0 */
/** Merging of attention states: a row's (o, lse) over several key sets into its (o, lse) over all.
 *    lse = ln sum_n exp(lse_n),  o = sum_n exp(lse_n - lse) o_n      (f32 arithmetic, n ascending)
 *  No part, or every lse_n = -inf: o = 0, lse = -inf.  NaN propagates.  Serves FlashDecoding,
 *  cascade attention over shared prefixes, chunked prefill, ring schemes.
 *
 *  Bits: the same every run, whatever else the batch holds.
 *
 *  Limits: none on widths and heads; every valid call has one kernel a backend, without tensor
 *  cores.
 *
 *  In fovea.h:
 *    merge_forward, _backward: attention over several key sets as one
 *    bits, merge_*: no no no no no */
#ifndef FOVEA_MERGE_H
#define FOVEA_MERGE_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fovea_merge_forward_params {
  size_t struct_size;    /**< sizeof(fovea_merge_forward_params) */
  fovea_tensor o_part;   /**< [in] (n, b, u, h, e) f32 f16 bf16: u rows a part; u = s without row */
  fovea_tensor lse_part; /**< [in] (n, b, h, u) f32: -inf: this part adds nothing, whatever its o */
  fovea_tensor row;      /**< [in, optional] (n, u) i32: row of o that a part's row belongs to, -1:
                              none; at most once per part (repeated: the last counts) */
  fovea_tensor o;        /**< [out] (b, s, h, e) f32 f16 bf16: may be o_part[0] exactly, when row is
                              absent */
  fovea_tensor lse;      /**< [out, optional] (b, h, s) f32: may be lse_part[0] exactly, when row is
                              absent */
} fovea_merge_forward_params;

FOVEA_API fovea_status fovea_merge_forward_workspace(
    fovea_context* ctx, const fovea_merge_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_merge_forward(
    fovea_context* ctx, const fovea_merge_forward_params* params);

/** Gradients of merge_forward, w_n = exp(lse_n - lse):
 *    do_n = w_n dout,  dlse_n = w_n (<dout, o_n - o> + dlse)
 *  A part's row that belongs to no row of o gets 0. */
typedef struct fovea_merge_backward_params {
  size_t struct_size;     /**< sizeof(fovea_merge_backward_params) */
  fovea_tensor o_part;    /**< [in] (n, b, u, h, e) f32 f16 bf16 */
  fovea_tensor lse_part;  /**< [in] (n, b, h, u) f32 */
  fovea_tensor row;       /**< [in, optional] (n, u) i32 */
  fovea_tensor o;         /**< [in] (b, s, h, e) f32 f16 bf16: of the forward */
  fovea_tensor lse;       /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor dout;      /**< [in] (b, s, h, e) as o: the gradient of o */
  fovea_tensor dlse;      /**< [in, optional] (b, h, s) f32: the gradient of lse; absent: 0 */
  fovea_tensor do_part;   /**< [out, optional] (n, b, u, h, e) as o_part */
  fovea_tensor dlse_part; /**< [out, optional] (n, b, h, u) f32 */
} fovea_merge_backward_params;

FOVEA_API fovea_status fovea_merge_backward_workspace(
    fovea_context* ctx, const fovea_merge_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_merge_backward(
    fovea_context* ctx, const fovea_merge_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
