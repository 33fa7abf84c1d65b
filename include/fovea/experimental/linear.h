/* SPDX-License-Identifier: Apache-2.0 */
/** Linear attention and its companions: operations that carry a state from token to token.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  The fields of a run are the same in every operation of this header.  They say which tokens a
 *  sequence has, where its state comes from and where states go.
 *
 *    start          packed: x has b = 1 and holds all tokens, sequence after sequence
 *    len            tokens in use.  Tokens past it are neither read nor written
 *    state_row      row of state_in that a sequence starts from; -1 or past the last: zeros
 *    state_out_row  row of state_out that takes its last state; -1 or past the last: nowhere;
 *                   absent: as state_row
 *    output_from    the first token whose output is written; earlier ones only move the state
 *    snapshot_row   [i] is the row of snapshot that takes the state after (i + 1) * snapshot_every
 *                   tokens; -1 or past the last: not kept.  States past len are not kept
 *    token_max      bounds the tokens of a sequence; 0: s
 *
 *  Without state_row sequence i starts from row i, and state_in has r rows.  Without it and
 *  state_out_row the same holds of state_out.  A sequence without tokens copies its state.  What is
 *  given without the tensor that it places is not read.
 *
 *  state_out may be state_in, and snapshot may be either.  A sequence may overwrite the row that it
 *  reads.  The caller sees to the rest: no row is written twice, or written by one sequence and
 *  read by another.
 *
 *    users do                           call
 *    prefill, chunked prefill           s tokens, state_row, state_out_row
 *    decode of many requests            s = 1, b rows of a pool in place
 *    a row padded for a CUDA graph      state_row = -1, len = 0: no state is touched
 *    verify a draft                     s = 1 + drafts, no state_out
 *    commit what was accepted           the same tensors, len = accepted, no output
 *    rollback slots                     snapshot_every = 1, snapshot_row (r, 1 + drafts)
 *    prefix caching                     snapshot_every = tokens of a block, rows of the block table
 *
 *  Bits: the same every run.  A forward's also do not change with the cut of a sequence into calls,
 *  with packing, with rows of the pool, or with neighbours.
 *
 *  Extents of its own:
 *    slots = 2: rows of state_in, r without state_row
 *    slots_out = 2: rows of state_out, r without state_row and state_out_row
 *    snapshots = 5: rows of snapshot
 *    taps = 3: taps of a channel's filter, at least 1
 *    tail = 4: columns of a state, at least taps - 1 */
#ifndef FOVEA_EXPERIMENTAL_LINEAR_H
#define FOVEA_EXPERIMENTAL_LINEAR_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What is applied to each sum of a convolution. */
typedef enum fovea_x_conv1d_activation {
  FOVEA_X_CONV1D_ACTIVATION_NONE = 0, /**< z */
  FOVEA_X_CONV1D_ACTIVATION_SILU = 1  /**< z / (1 + exp(-z)) */
} fovea_x_conv1d_activation;

/** Short causal convolution of each channel by itself, with state.  For token t of a sequence and
 *  channel c, with T = taps:
 *
 *    z_tc = bias_c + sum_u weight[c, u] x[t - (T - 1) + u, c]
 *    y_tc = act(z_tc)
 *
 *  Tokens before the first stand in the last T - 1 columns of the state, oldest first; without a
 *  state they are 0.  Earlier columns are neither read nor written.  States hold x itself, so any
 *  cut of a sequence gives the same bits.  At least one of y, state_out and snapshot is given.
 *
 *  Limits: none on channels and taps; every valid call has one kernel on the host and one on CUDA.
 *  CUDA reads 16 bytes at once where f, strides and addresses allow and taps are 2 .. 4. */
typedef struct fovea_x_conv1d_forward_params {
  size_t struct_size;         /**< sizeof(fovea_x_conv1d_forward_params) */
  fovea_tensor x;             /**< [in] (b, s, f) f32 f16 bf16 */
  fovea_tensor weight;        /**< [in] (f, taps) as x or f32: the last tap is the token's own */
  fovea_tensor bias;          /**< [in, optional] (f) f32: absent: 0 */
  fovea_tensor state_in;      /**< [in, optional] (slots, f, tail) as x or f32: absent: zeros */
  fovea_tensor y;             /**< [out, optional] (b, s, f) as x or f32 */
  fovea_tensor state_out;     /**< [out, optional] (slots_out, f, tail) as x or f32: may be
                                   state_in */
  fovea_tensor snapshot;      /**< [out, optional] (snapshots, f, tail) as x or f32: needs
                                   snapshot_row; may be state_out */
  fovea_tensor start;         /**< [in, optional] (r+1) i32: first packed token of each sequence,
                                   ascending from 0; then b = 1 */
  fovea_tensor len;           /**< [in, optional] (r) i32: tokens in use, at most s or the packed
                                   extent */
  fovea_tensor state_row;     /**< [in, optional] (r) i32 */
  fovea_tensor state_out_row; /**< [in, optional] (r) i32 */
  fovea_tensor output_from;   /**< [in, optional] (r) i32: absent: 0 */
  fovea_tensor snapshot_row;  /**< [in, optional] (r, n) i32 */
  int64_t token_max;          /**< 0: s */
  int64_t snapshot_every;     /**< tokens between snapshots, >= 1 with snapshot */
  int32_t activation;         /**< fovea_x_conv1d_activation */
  int32_t reserved;           /**< 0 */
} fovea_x_conv1d_forward_params;

FOVEA_API fovea_status fovea_x_conv1d_forward_workspace(fovea_context* ctx,
                                                        const fovea_x_conv1d_forward_params* params,
                                                        size_t* bytes);
FOVEA_API fovea_status fovea_x_conv1d_forward(fovea_context* ctx,
                                              const fovea_x_conv1d_forward_params* params);

/** Gradients of x_conv1d_forward from dy and from the gradient of each sequence's last state.  Each
 *  output is optional: absent = not computed.  With dz_t = dy_t act'(z_t), 0 before output_from and
 *  past the last token:
 *
 *    dx_t = sum_u weight[u] dz_(t + T - 1 - u), and dstate_out where the last state has token t
 *    dstate_in = the same of the tokens before the first
 *    dweight[u] = sum_t dz_t x_(t - (T - 1) + u),  dbias = sum_t dz_t, over all sequences
 *
 *  dx is written in every row, 0 past len and where no sequence is.  States' gradients have a row
 *  for each sequence, in the order of the call and not of the pool.  Their columns before the last
 *  T - 1 are 0.  Sums have a fixed order: the same bits every run. */
typedef struct fovea_x_conv1d_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_conv1d_backward_params) */
  fovea_tensor x;           /**< [in] (b, s, f) f32 f16 bf16 */
  fovea_tensor weight;      /**< [in] (f, taps) as x or f32 */
  fovea_tensor bias;        /**< [in, optional] (f) f32 */
  fovea_tensor state_in;    /**< [in, optional] (slots, f, tail) as x or f32 */
  fovea_tensor dy;          /**< [in] (b, s, f) as x or f32 */
  fovea_tensor dstate_out;  /**< [in, optional] (r, f, tail) as x or f32: of each sequence's last
                                 state; absent: 0 */
  fovea_tensor dx;          /**< [out, optional] (b, s, f) as x */
  fovea_tensor dweight;     /**< [out, optional, sums] (f, taps) f32: a stride of 0 receives the sum
                                 over that dimension */
  fovea_tensor dbias;       /**< [out, optional] (f) f32: with or without bias */
  fovea_tensor dstate_in;   /**< [out, optional] (r, f, tail) as x or f32: of the state that each
                                 sequence starts from, given or zeros */
  fovea_tensor start;       /**< [in, optional] (r+1) i32 */
  fovea_tensor len;         /**< [in, optional] (r) i32 */
  fovea_tensor state_row;   /**< [in, optional] (r) i32 */
  fovea_tensor output_from; /**< [in, optional] (r) i32 */
  int64_t token_max;        /**< 0: s */
  int32_t activation;       /**< fovea_x_conv1d_activation */
  int32_t reserved;         /**< 0 */
} fovea_x_conv1d_backward_params;

FOVEA_API fovea_status fovea_x_conv1d_backward_workspace(
    fovea_context* ctx, const fovea_x_conv1d_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_conv1d_backward(fovea_context* ctx,
                                               const fovea_x_conv1d_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
