/* SPDX-License-Identifier: Apache-2.0 */
/** Gated slot attention: a memory of m slots for each head, read by a softmax over the slots.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  For token t with decays a_t = exp(g_t) of the slots, rows q_t, k_t, v_t:
 *
 *    K_t = diag(a_t) K_(t-1) + (1 - a_t)' map_k(k_t)     (m, d)
 *    V_t = diag(a_t) V_(t-1) + (1 - a_t)' v_t            (m, e)
 *    p_t = softmax(scale K_t map_q(q_t)'),  o_t = p_t V_t
 *
 *  These are two passes of x_gla on one workspace.  K goes by gate_value, with the slots as
 *  columns.  V goes by gate_key, with p as q.  The fields of a run are those of linear.h, without
 *  snapshots.  What it says of bits, cuts and rows of states holds here too.
 *
 *  Extents of its own:
 *    m = 3: slots of a head, 1 .. 512 */
#ifndef FOVEA_EXPERIMENTAL_GSA_H
#define FOVEA_EXPERIMENTAL_GSA_H

#include "linear.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Gated slot attention of q over the slots; prefill, chunks of it, decode.
 *
 *  State head n reads key head n / (heads / g) and value head n / (heads / x).  Output head j reads
 *  query head j / (heads_out / h) and state head j / (heads_out / heads).  gate_map makes g of raw
 *  gates, with rates of 0; the paper's is 3 with gate_tau = 8.  g = -inf resets a slot: it holds
 *  the token alone.  state_k lies as (d, m), the state of the first pass.
 *
 *  g, the scores and the softmax are f32.  1 - a and p are rounded to the dtype of q before they
 *  are used, states when they are stored.  Between calls only the two states are kept.
 *  At least one of o, state_k_out and state_v_out is given.  A pass without output does not run.
 *
 *  Errors name this operation, then the part that refuses, with that part's names of fields.  The
 *  part is x_gla_forward.  Limits: d and m are at most 512.  Hopper's tensor cores take bf16 and
 *  sequences from 64 tokens, with h = heads and no maps of q and k.  d, e and m are 64 or 128.
 *  Without states they take every m up to 128.
 *  Workspace: g, 1 - a, the scores, p, and that of the larger pass.  Arrays of slots have 64 or 128
 *  columns there.
 *  Source: Gated Slot Attention (2409.07146). */
typedef struct fovea_x_gsa_forward_params {
  size_t struct_size;         /**< sizeof(fovea_x_gsa_forward_params) */
  fovea_tensor q;             /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;             /**< [in] (b, s, g, d) as q */
  fovea_tensor v;             /**< [in] (b, s, x, e) as q */
  fovea_tensor gate;          /**< [in] (b, s, heads, m) as q or f32: raw, of each slot */
  fovea_tensor state_k_in;    /**< [in, optional] (slots, heads, d, m) f32 bf16: absent: zeros */
  fovea_tensor state_v_in;    /**< [in, optional] (slots, heads, m, e) f32 bf16: absent: zeros */
  fovea_tensor o;             /**< [out, optional] (b, s, heads_out, e) as q or f32 */
  fovea_tensor state_k_out;   /**< [out, optional] (slots_out, heads, d, m) f32 bf16: may be
                                   state_k_in */
  fovea_tensor state_v_out;   /**< [out, optional] (slots_out, heads, m, e) f32 bf16: may be
                                   state_v_in */
  fovea_tensor start;         /**< [in, optional] (r+1) i32: first packed token of each sequence,
                                   ascending from 0; then b = 1 */
  fovea_tensor len;           /**< [in, optional] (r) i32: tokens in use, at most s or the packed
                                   extent */
  fovea_tensor state_row;     /**< [in, optional] (r) i32: of both states */
  fovea_tensor state_out_row; /**< [in, optional] (r) i32: of both states */
  fovea_tensor output_from;   /**< [in, optional] (r) i32: absent: 0 */
  int64_t token_max;          /**< 0: s */
  float scale;                /**< of the scores; 0: d^-1/2 */
  float gate_bound;           /**< gates are at least -gate_bound; 0: no bound.  The factor of
                                   gate_map 2, which needs one */
  float gate_tau;             /**< of gate_map 3; 0: 1 */
  int32_t gate_map;           /**< fovea_x_gate_map */
  int32_t map_q;              /**< fovea_x_feature_map */
  int32_t map_k;              /**< fovea_x_feature_map */
} fovea_x_gsa_forward_params;

FOVEA_API fovea_status fovea_x_gsa_forward_workspace(
    fovea_context* ctx, const fovea_x_gsa_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_gsa_forward(
    fovea_context* ctx, const fovea_x_gsa_forward_params* params);

/** Gradients of x_gsa_forward from dout, and from the gradients of each sequence's last states.
 *  Each output is optional: absent = not computed.  With Y_t = scale K_t map_q(q_t)':
 *
 *    dp_t = V_t dout_t',  dY_t = p_t . (dp_t - p_t dp_t'),  and x_gla_backward of both passes
 *    dg = the sum of both passes' own - a . (the sum of both passes' d(1 - a)),  dgate = map' dg
 *
 *  dp and each pass's d(1 - a) are rounded to the dtype of q, as gradients of x_gla_backward are.
 *  dY is rounded on Hopper's tensor cores alone.  p of dY is the f32 softmax.  dgate is 0 where a
 *  gate is -inf or gate_bound holds.
 *  Every element of an output is written: 0 where no sequence is.  Rows before output_from have no
 *  output and take dout as 0.  Gradients of states have a row for each sequence of the call.
 *
 *  Errors and limits are as in the forward; on Hopper the pass over keys takes no output_from.  The
 *  parts are x_gla_forward and x_gla_backward.
 *  Sums have a fixed order: the same bits every run. */
typedef struct fovea_x_gsa_backward_params {
  size_t struct_size;        /**< sizeof(fovea_x_gsa_backward_params) */
  fovea_tensor q;            /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;            /**< [in] (b, s, g, d) as q */
  fovea_tensor v;            /**< [in] (b, s, x, e) as q */
  fovea_tensor gate;         /**< [in] (b, s, heads, m) as q or f32 */
  fovea_tensor state_k_in;   /**< [in, optional] (slots, heads, d, m) f32 bf16 */
  fovea_tensor state_v_in;   /**< [in, optional] (slots, heads, m, e) f32 bf16 */
  fovea_tensor dout;         /**< [in] (b, s, heads_out, e) as q or f32: the gradient of o */
  fovea_tensor dstate_k_out; /**< [in, optional] (r, heads, d, m) f32: of each sequence's last
                                  state; absent: 0 */
  fovea_tensor dstate_v_out; /**< [in, optional] (r, heads, m, e) f32: the same */
  fovea_tensor dq;           /**< [out, optional] (b, s, h, d) as q */
  fovea_tensor dk;           /**< [out, optional] (b, s, g, d) as q */
  fovea_tensor dv;           /**< [out, optional] (b, s, x, e) as q */
  fovea_tensor dgate;        /**< [out, optional] (b, s, heads, m) as q or f32: of the raw gate */
  fovea_tensor dstate_k_in;  /**< [out, optional] (r, heads, d, m) f32: of the state that each
                                  sequence starts from, given or zeros */
  fovea_tensor dstate_v_in;  /**< [out, optional] (r, heads, m, e) f32: the same */
  fovea_tensor start;        /**< [in, optional] (r+1) i32 */
  fovea_tensor len;          /**< [in, optional] (r) i32 */
  fovea_tensor state_row;    /**< [in, optional] (r) i32 */
  fovea_tensor output_from;  /**< [in, optional] (r) i32 */
  int64_t token_max;         /**< 0: s */
  float scale;               /**< 0: d^-1/2 */
  float gate_bound;          /**< 0: no bound */
  float gate_tau;            /**< of gate_map 3; 0: 1 */
  int32_t gate_map;          /**< fovea_x_gate_map */
  int32_t map_q;             /**< fovea_x_feature_map */
  int32_t map_k;             /**< fovea_x_feature_map */
} fovea_x_gsa_backward_params;

FOVEA_API fovea_status fovea_x_gsa_backward_workspace(
    fovea_context* ctx, const fovea_x_gsa_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_gsa_backward(
    fovea_context* ctx, const fovea_x_gsa_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
