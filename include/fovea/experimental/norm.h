/* SPDX-License-Identifier: Apache-2.0 */
/** The norm behind an attention or a recurrence, with the gate and the sums around it in one pass.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  Sums are in f32 and in a fixed order: the same bits every run. */
#ifndef FOVEA_EXPERIMENTAL_NORM_H
#define FOVEA_EXPERIMENTAL_NORM_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What each group of columns is divided by. */
typedef enum fovea_x_norm_gate_norm {
  FOVEA_X_NORM_GATE_NORM_RMS = 0,   /**< n = v / sqrt(mean(v^2) + eps) */
  FOVEA_X_NORM_GATE_NORM_LAYER = 1, /**< n = (v - mean(v)) / sqrt(mean((v - mean(v))^2) + eps) */
  FOVEA_X_NORM_GATE_NORM_L2 = 2,    /**< n = v / sqrt(sum(v^2) + eps) */
  FOVEA_X_NORM_GATE_NORM_NONE = 3   /**< n = v */
} fovea_x_norm_gate_norm;

/** What a gate becomes before it is multiplied. */
typedef enum fovea_x_norm_gate_act {
  FOVEA_X_NORM_GATE_ACT_SILU = 0,    /**< x / (1 + exp(-x)) */
  FOVEA_X_NORM_GATE_ACT_SIGMOID = 1, /**< 1 / (1 + exp(-x)) */
  FOVEA_X_NORM_GATE_ACT_NONE = 2     /**< x */
} fovea_x_norm_gate_act;

/** For each row and head, with a = act(gate), and 1 without a gate:
 *
 *    u = x + add_before
 *    v = u a with gate_first, u without
 *    n = the norm of v over each `group` of columns
 *    w = factor weight n + bias
 *    y = (w without the gate, w a behind the norm) + add_after
 *
 *    RetNet, GLA, Gated DeltaNet, KDA   gate, weight; act silu, or sigmoid for KDA
 *    Mamba-2                            gate, gate_first, weight; group = e h / groups with h = 1
 *    RWKV-6, RWKV-7                     norm layer, weight, bias, gate of act none
 *    multi-token attention              weight, factor
 *    a block's residual and norm        add_before, weight
 *
 *  Limits: none on widths.  Every valid call has one kernel a backend, in f32. */
typedef struct fovea_x_norm_gate_forward_params {
  size_t struct_size;      /**< sizeof(fovea_x_norm_gate_forward_params) */
  fovea_tensor x;          /**< [in] (b, s, h, e) f32 f16 bf16 */
  fovea_tensor gate;       /**< [in, optional] (b, s, h, e) as x or f32: absent: a = 1 */
  fovea_tensor add_before; /**< [in, optional] (b, s, h, e) as x or f32: absent: 0 */
  fovea_tensor add_after;  /**< [in, optional] (b, s, h, e) as x or f32: absent: 0 */
  fovea_tensor weight;     /**< [in, optional] (h, e) as x or f32: absent: 1; a stride of 0 shares
                                it */
  fovea_tensor bias;       /**< [in, optional] (h, e) as x or f32: absent: 0 */
  fovea_tensor y;          /**< [out] (b, s, h, e) as x or f32 */
  fovea_tensor query_len;  /**< [in, optional] (b) i32: rows in use, 0 .. s */
  int64_t group;           /**< columns under one norm, a divisor of e; 0: e */
  float factor;            /**< > 0; 0: 1 */
  float eps;               /**< > 0; 0: 1e-5 */
  int32_t norm;            /**< fovea_x_norm_gate_norm */
  int32_t act;             /**< fovea_x_norm_gate_act */
  int32_t gate_first;      /**< 1: the gate stands before the norm */
  int32_t reserved;        /**< 0 */
} fovea_x_norm_gate_forward_params;

FOVEA_API fovea_status fovea_x_norm_gate_forward_workspace(
    fovea_context* ctx, const fovea_x_norm_gate_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_norm_gate_forward(fovea_context* ctx,
                                                 const fovea_x_norm_gate_forward_params* params);

/** Gradients of x_norm_gate_forward from dy.  Each output is optional: absent = not computed.  dx
 * is add_before's gradient too, and dy is add_after's.  With the gate behind the norm, and with
 * mean over a group:
 *
 *    t = dy a,  dgate = dy w act'(gate),  dbias = sum t,  dweight = factor sum t n
 *    dn = factor weight t,  dx = z (dn - n mean(dn n)), less z mean(dn) with norm layer
 *
 *  gate_first: t = dy, and the last line gives dv; then dx = dv a and dgate = dv u act'(gate).
 *  dx and dgate are written in every row, 0 past query_len.  Sums are over the rows of all
 *  batches. */
typedef struct fovea_x_norm_gate_backward_params {
  size_t struct_size;      /**< sizeof(fovea_x_norm_gate_backward_params) */
  fovea_tensor x;          /**< [in] (b, s, h, e) f32 f16 bf16 */
  fovea_tensor gate;       /**< [in, optional] (b, s, h, e) as x or f32 */
  fovea_tensor add_before; /**< [in, optional] (b, s, h, e) as x or f32 */
  fovea_tensor weight;     /**< [in, optional] (h, e) as x or f32 */
  fovea_tensor bias;       /**< [in, optional] (h, e) as x or f32 */
  fovea_tensor query_len;  /**< [in, optional] (b) i32 */
  fovea_tensor dy;         /**< [in] (b, s, h, e) as x or f32 */
  fovea_tensor dx;         /**< [out, optional] (b, s, h, e) as x or f32 */
  fovea_tensor dgate;      /**< [out, optional] (b, s, h, e) as x or f32: needs gate */
  fovea_tensor dweight; /**< [out, optional, sums] (h, e) f32: with or without weight; a stride of
                             0 receives the ordered sum over that dimension */
  fovea_tensor dbias;   /**< [out, optional, sums] (h, e) f32: with or without bias */
  int64_t group;        /**< 0: e */
  float factor;         /**< 0: 1 */
  float eps;            /**< 0: 1e-5 */
  int32_t norm;         /**< fovea_x_norm_gate_norm */
  int32_t act;          /**< fovea_x_norm_gate_act */
  int32_t gate_first;   /**< 0 or 1 */
  int32_t reserved;     /**< 0 */
} fovea_x_norm_gate_backward_params;

FOVEA_API fovea_status fovea_x_norm_gate_backward_workspace(
    fovea_context* ctx, const fovea_x_norm_gate_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_norm_gate_backward(fovea_context* ctx,
                                                  const fovea_x_norm_gate_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
