/* SPDX-License-Identifier: Apache-2.0 */
/** Linear attention and its companions: operations that carry a state from token to token.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.
 *
 *  The fields of a run are the same in every operation of this header.  They say which tokens a
 *  sequence has, where its state comes from and where states go.
 *
 *    start          packed: b = 1, and x or q holds all tokens, sequence after sequence
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
 *  Bits: the same every run.  Rows of the pool and neighbours change none of a forward's.  Nor does
 *  packing, or the cut of a sequence into calls, while one kind of kernel serves them:
 *
 *    kind                  serves                                        cuts
 *    token by token        x_conv1d; calls with token_max (0: s) < 64    anywhere
 *    in chunks             x_gla and x_delta, longer calls               at 64 n tokens, f32 states
 *
 *  So a draft that is verified and committed is plain decode, bit for bit.
 *
 *  Few long sequences leave most of a GPU idle.  x_gla and x_delta then walk parts of a sequence at
 *  once, from states that a first walk over the parts finds.  splits says how many.  With 1 the
 *  table holds, and with 0 for sequences below 4096 tokens.  Kernels without parts ignore it.
 *
 *  Extents of its own:
 *    slots = 2: rows of state_in, r without state_row
 *    slots_out = 2: rows of state_out, r without state_row and state_out_row
 *    snapshots = 5: rows of snapshot
 *    taps = 3: taps of a channel's filter, at least 1
 *    tail = 4: columns of a convolution's state, at least taps - 1
 *    heads = 2: states of a sequence, the larger of g and x
 *    heads_out = 4: heads of o, the larger of h and heads */
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

/** What turns a raw gate x into the log of a decay: g = map(x + bias), with the rate of its head.
 *  A decay is e^g.  g = -inf resets exactly: what the state held before is gone, NaN too. */
typedef enum fovea_x_gate_map {
  FOVEA_X_GATE_MAP_LOG = 0,         /**< g = x, of any sign; nothing is ever divided by a decay */
  FOVEA_X_GATE_MAP_SOFTPLUS = 1,    /**< -exp(rate) ln(1 + exp(x)) */
  FOVEA_X_GATE_MAP_BOUNDED = 2,     /**< -gate_bound sigmoid(exp(rate) x) */
  FOVEA_X_GATE_MAP_LOG_SIGMOID = 3, /**< ln(sigmoid(x)) / gate_tau */
  FOVEA_X_GATE_MAP_EXP = 4          /**< -exp(x) */
} fovea_x_gate_map;

/** A map of each element of q or k. */
typedef enum fovea_x_feature_map {
  FOVEA_X_FEATURE_MAP_NONE = 0,         /**< x */
  FOVEA_X_FEATURE_MAP_RELU = 1,         /**< max(x, 0) */
  FOVEA_X_FEATURE_MAP_ELU_PLUS_ONE = 2, /**< x + 1 from 0 on, exp(x) below */
  FOVEA_X_FEATURE_MAP_SILU = 3          /**< x / (1 + exp(-x)) */
} fovea_x_feature_map;

/** A map of the strength of a correction. */
typedef enum fovea_x_beta_map {
  FOVEA_X_BETA_MAP_NONE = 0,       /**< x */
  FOVEA_X_BETA_MAP_SIGMOID = 1,    /**< sigmoid(x) */
  FOVEA_X_BETA_MAP_TWO_SIGMOID = 2 /**< 2 sigmoid(x) */
} fovea_x_beta_map;

/** Gated linear attention: a matrix H (d, e) for each sequence and head, to which every token adds
 *  one outer product.  For token t, rows q_t, k_t, v_t:
 *
 *    q^ = map_q(q_t),  k^ = select_t map_k(k_t)
 *    H_t = G_t . H_(t-1) + k^' v_t     G_t[c, j] = exp(gate_head + gate_key_c + gate_value_j)
 *    y_t = scale q^ H_t, or with read_before scale q^ H_(t-1)
 *    o_t = y_t + act(scale q^ . (bonus . k^) v_t) + skip . v_t
 *
 *  With `normalise` y_t is divided by scale q^ . z_t + eps:
 *
 *    z_t = decay . z_(t-1) + k^
 *
 *  With `full` every row reads the sum over all keys of its sequence, which count without rows too.
 *  Keys then have an extent t, and key_start and key_len of their own.
 *
 *  State head n reads key head n / (heads / g) and value head n / (heads / x).  Output head j reads
 *  query head j / (heads_out / h) and state head j / (heads_out / heads).  Gates are as given, or
 *  gate_map makes them of raw numbers; gate_rate, gate_bias, gate_bound and gate_tau are refused
 *  where no gate reads them.  A constant gate is a tensor with strides of 0 over b and s.
 *  States are f32 or bf16, in either order in memory.  Sums are f32, states are rounded when they
 *  are stored.
 *
 *  At least one of o, state_out and snapshot is given.  normalise excludes gate_value, read_before
 *  and bonus; it asks for z_in with state_in, z_out with state_out, z_snapshot with snapshot.  full
 *  excludes gates, read_before, bonus, skip and snapshot.
 *
 *  Limits: d is at most 512.  Every valid call has a kernel on the host and one on CUDA.  Hopper's
 *  tensor cores take f16 and bf16 with d of 64 or 128, e a multiple of 64, no gate or a head gate.
 *  Key gates are bf16 there.  Then k and v that are not finite reach rows of their chunk of 64
 *  tokens behind a reset, and the state.
 *  Source: the chunk and recurrent forms of arXiv 2312.06635, 2307.08621 and 2405.21060. */
typedef struct fovea_x_gla_forward_params {
  size_t struct_size;      /**< sizeof(fovea_x_gla_forward_params) */
  fovea_tensor q;          /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;          /**< [in] (b, t, g, d) as q: t = s without full */
  fovea_tensor v;          /**< [in] (b, t, x, e) as q */
  fovea_tensor gate_head;  /**< [in, optional] (b, s, heads) as q or f32 */
  fovea_tensor gate_key;   /**< [in, optional] (b, s, heads, d) as q or f32 */
  fovea_tensor gate_value; /**< [in, optional] (b, s, heads, e) as q or f32: has no bias */
  fovea_tensor gate_rate;  /**< [in, optional] (heads) f32: of gate_map 1 and 2; absent: 0 */
  fovea_tensor gate_bias;  /**< [in, optional] (heads, d) f32: of gate_key; of gate_head, without
                                gate_key: then column 0 is read; absent: 0 */
  fovea_tensor select;     /**< [in, optional] (b, t, heads) as q or f32: absent: 1 */
  fovea_tensor bonus;      /**< [in, optional] (heads, d) f32: absent: 0 */
  fovea_tensor skip;       /**< [in, optional] (heads, e) f32: absent: 0 */
  fovea_tensor state_in;   /**< [in, optional] (slots, heads, d, e) f32 bf16: absent: zeros */
  fovea_tensor z_in;       /**< [in, optional] (slots, heads, d) f32 */
  fovea_tensor o;          /**< [out, optional] (b, s, heads_out, e) as q or f32 */
  fovea_tensor state_out;  /**< [out, optional] (slots_out, heads, d, e) f32 bf16: may be
                                state_in */
  fovea_tensor z_out;      /**< [out, optional] (slots_out, heads, d) f32: may be z_in */
  fovea_tensor snapshot;   /**< [out, optional] (snapshots, heads, d, e) f32 bf16: needs
                                snapshot_row; may be state_out */
  fovea_tensor z_snapshot; /**< [out, optional] (snapshots, heads, d) f32: needs snapshot_row; may
                                be z_out */
  fovea_tensor start;      /**< [in, optional] (r+1) i32: first packed token of each sequence,
                                ascending from 0; then b = 1 */
  fovea_tensor len;        /**< [in, optional] (r) i32: tokens in use, at most s or the packed
                                extent */
  fovea_tensor state_row;  /**< [in, optional] (r) i32 */
  fovea_tensor state_out_row; /**< [in, optional] (r) i32 */
  fovea_tensor output_from;   /**< [in, optional] (r) i32: absent: 0 */
  fovea_tensor snapshot_row;  /**< [in, optional] (r, n) i32 */
  fovea_tensor key_start;     /**< [in, optional] (r+1) i32: with full and start alone */
  fovea_tensor key_len;       /**< [in, optional] (r) i32: keys in use, with full alone */
  int64_t token_max;          /**< 0: s */
  int64_t snapshot_every;     /**< tokens between snapshots, >= 1 with snapshot */
  float scale;                /**< 0: d^-1/2 */
  float eps;                  /**< of normalise; 0: 1e-6 */
  float gate_bound;           /**< gates are at least -gate_bound; 0: no bound.  The factor of
                                   gate_map 2, which needs one */
  float gate_tau;             /**< of gate_map 3; 0: 1 */
  int32_t gate_map;           /**< fovea_x_gate_map */
  int32_t map_q;              /**< fovea_x_feature_map */
  int32_t map_k;              /**< fovea_x_feature_map */
  int32_t full;               /**< 0: causal, 1: every row reads every key */
  int32_t read_before;        /**< 1: y_t reads the state before its token */
  int32_t normalise;          /**< 1: y_t is divided by scale q^ . z_t + eps */
  int32_t bonus_sigmoid;      /**< act: 0 none, 1 sigmoid of each column */
  int32_t splits;             /**< parts that a sequence is walked in at once; 0: chosen from
                                   shapes, 1: bits do not depend on cuts */
} fovea_x_gla_forward_params;

FOVEA_API fovea_status fovea_x_gla_forward_workspace(fovea_context* ctx,
                                                     const fovea_x_gla_forward_params* params,
                                                     size_t* bytes);
FOVEA_API fovea_status fovea_x_gla_forward(fovea_context* ctx,
                                           const fovea_x_gla_forward_params* params);

/** Gradients of x_gla_forward from dout, and from the gradients of each sequence's last state. Each
 *  output is optional: absent = not computed.  With W_t the gradient of H_t:
 *
 *    X = G_t . H_(t-1) . W_t
 *    dq^ = scale dout H_t',  dk^ = W_t v_t',  dv = k^ W_t,  W_(t-1) = G_t . W_t
 *    dgate_head = sum X,  dgate_key = sum_j X[c, j],  dgate_value = sum_c X[c, j]
 *
 *  and what normaliser, bonus, skip, select and the maps add.  Gradients of gates are those of what
 *  was given: of raw gates with gate_map.  Where a gate is -inf, or gate_bound holds, they are 0.
 *  Every element of an output is written: 0 where no sequence is.  Rows before output_from have no
 *  output and take dout as 0.  Gradients of states have a row for each sequence of the call.
 *  Sums have a fixed order: the same bits every run.
 *
 *  Limits: d is at most 512.  Every valid call has a kernel on the host and one on CUDA.  Hopper's
 *  tensor cores take sequences from 64 tokens with d of 64 or 128, without maps of q and k, full
 *  and normalise.  f16 and bf16 run there with a head gate or none, and e a multiple of 64.  bf16
 *  runs with gate_key, e of 64 or 128, bonus and read_before too. */
typedef struct fovea_x_gla_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_gla_backward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;           /**< [in] (b, t, g, d) as q */
  fovea_tensor v;           /**< [in] (b, t, x, e) as q */
  fovea_tensor gate_head;   /**< [in, optional] (b, s, heads) as q or f32 */
  fovea_tensor gate_key;    /**< [in, optional] (b, s, heads, d) as q or f32 */
  fovea_tensor gate_value;  /**< [in, optional] (b, s, heads, e) as q or f32 */
  fovea_tensor gate_rate;   /**< [in, optional] (heads) f32 */
  fovea_tensor gate_bias;   /**< [in, optional] (heads, d) f32 */
  fovea_tensor select;      /**< [in, optional] (b, t, heads) as q or f32 */
  fovea_tensor bonus;       /**< [in, optional] (heads, d) f32 */
  fovea_tensor skip;        /**< [in, optional] (heads, e) f32 */
  fovea_tensor state_in;    /**< [in, optional] (slots, heads, d, e) f32 bf16 */
  fovea_tensor z_in;        /**< [in, optional] (slots, heads, d) f32 */
  fovea_tensor dout;        /**< [in] (b, s, heads_out, e) as q or f32: the gradient of o */
  fovea_tensor dstate_out;  /**< [in, optional] (r, heads, d, e) f32: of each sequence's last state;
                                 absent: 0 */
  fovea_tensor dz_out;      /**< [in, optional] (r, heads, d) f32: needs dstate_out */
  fovea_tensor dq;          /**< [out, optional] (b, s, h, d) as q */
  fovea_tensor dk;          /**< [out, optional] (b, t, g, d) as q */
  fovea_tensor dv;          /**< [out, optional] (b, t, x, e) as q */
  fovea_tensor dgate_head;  /**< [out, optional, sums] (b, s, heads) as q or f32: needs gate_head; a
                                 stride of 0 receives the sum over that dimension, here and below */
  fovea_tensor dgate_key;   /**< [out, optional, sums] (b, s, heads, d) as q or f32: needs
                                 gate_key */
  fovea_tensor dgate_value; /**< [out, optional, sums] (b, s, heads, e) as q or f32: needs
                                 gate_value */
  fovea_tensor dgate_rate;  /**< [out, optional] (heads) f32: needs gate_rate */
  fovea_tensor dgate_bias;  /**< [out, optional, sums] (heads, d) f32: needs gate_bias */
  fovea_tensor dselect;     /**< [out, optional, sums] (b, t, heads) as q or f32: needs select */
  fovea_tensor dbonus;      /**< [out, optional, sums] (heads, d) f32: needs bonus */
  fovea_tensor dskip;       /**< [out, optional, sums] (heads, e) f32: needs skip */
  fovea_tensor dstate_in;   /**< [out, optional] (r, heads, d, e) f32: of the state that each
                                 sequence starts from, given or zeros */
  fovea_tensor dz_in;       /**< [out, optional] (r, heads, d) f32: with normalise alone */
  fovea_tensor start;       /**< [in, optional] (r+1) i32 */
  fovea_tensor len;         /**< [in, optional] (r) i32 */
  fovea_tensor state_row;   /**< [in, optional] (r) i32 */
  fovea_tensor output_from; /**< [in, optional] (r) i32 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32 */
  fovea_tensor key_len;     /**< [in, optional] (r) i32 */
  int64_t token_max;        /**< 0: s */
  float scale;              /**< 0: d^-1/2 */
  float eps;                /**< of normalise; 0: 1e-6 */
  float gate_bound;         /**< 0: no bound */
  float gate_tau;           /**< of gate_map 3; 0: 1 */
  int32_t gate_map;         /**< fovea_x_gate_map */
  int32_t map_q;            /**< fovea_x_feature_map */
  int32_t map_k;            /**< fovea_x_feature_map */
  int32_t full;             /**< 0: causal, 1: every row reads every key */
  int32_t read_before;      /**< 1: y_t reads the state before its token */
  int32_t normalise;        /**< 1: y_t is divided by scale q^ . z_t + eps */
  int32_t bonus_sigmoid;    /**< act: 0 none, 1 sigmoid of each column */
  int32_t reserved;         /**< 0 */
} fovea_x_gla_backward_params;

FOVEA_API fovea_status fovea_x_gla_backward_workspace(fovea_context* ctx,
                                                      const fovea_x_gla_backward_params* params,
                                                      size_t* bytes);
FOVEA_API fovea_status fovea_x_gla_backward(fovea_context* ctx,
                                            const fovea_x_gla_backward_params* params);

/** The delta rule: each token corrects what the state answers to its key.  For token t, with decays
 *  and heads as in x_gla_forward and q^, k^ = q_t, k_t, divided by their norms with l2_norm:
 *
 *    H~ = exp(gate_head + gate_key_c) . H_(t-1)
 *    u_t = beta v_t - p H~     p = erase_t, or without it beta k^
 *    H_t = H~ + k^' u_t,  o_t = scale q^ H_t
 *
 *  With low_a and low_b the correction is their outer product; it reads the state before its decay:
 *
 *    H_t = H~ + low_b' (low_a H_(t-1)) + k^' v_t
 *
 *  beta is as given, or beta_map makes it of raw numbers.  l2_norm: x / sqrt(sum x^2 + eps) of each
 *  head.  At least one of o, state_out and snapshot is given.  low_a excludes beta and erase.
 *
 *  Limits: d is at most 512.  Every valid call has a kernel on the host and one on CUDA.  Hopper's
 *  tensor cores take bf16 with d of 64 or 128, e a multiple of 64, any gate, low_a with gate_key,
 *  no erase.  There a NaN of the state outlives the reset of a key gate within 64 tokens.
 *  Source: arXiv 2406.06484, 2412.06464, 2503.14456 and 2510.26692. */
typedef struct fovea_x_delta_forward_params {
  size_t struct_size;         /**< sizeof(fovea_x_delta_forward_params) */
  fovea_tensor q;             /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;             /**< [in] (b, s, g, d) as q */
  fovea_tensor v;             /**< [in] (b, s, x, e) as q */
  fovea_tensor beta;          /**< [in, optional] (b, s, heads) as q or f32: absent: 1 */
  fovea_tensor erase;         /**< [in, optional] (b, s, heads, d) as q */
  fovea_tensor gate_head;     /**< [in, optional] (b, s, heads) as q or f32 */
  fovea_tensor gate_key;      /**< [in, optional] (b, s, heads, d) as q or f32 */
  fovea_tensor gate_rate;     /**< [in, optional] (heads) f32: of gate_map 1 and 2; absent: 0 */
  fovea_tensor gate_bias;     /**< [in, optional] (heads, d) f32: of gate_key; of gate_head, without
                                   gate_key: then column 0 is read; absent: 0 */
  fovea_tensor low_a;         /**< [in, optional] (b, s, heads, d) as q: needs low_b */
  fovea_tensor low_b;         /**< [in, optional] (b, s, heads, d) as q: needs low_a */
  fovea_tensor state_in;      /**< [in, optional] (slots, heads, d, e) f32 bf16: absent: zeros */
  fovea_tensor o;             /**< [out, optional] (b, s, heads_out, e) as q or f32 */
  fovea_tensor state_out;     /**< [out, optional] (slots_out, heads, d, e) f32 bf16: may be
                                   state_in */
  fovea_tensor snapshot;      /**< [out, optional] (snapshots, heads, d, e) f32 bf16: needs
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
  float scale;                /**< 0: d^-1/2 */
  float eps;                  /**< of l2_norm; 0: 1e-6 */
  float gate_bound;           /**< gates are at least -gate_bound; 0: no bound.  The factor of
                                   gate_map 2, which needs one */
  float gate_tau;             /**< of gate_map 3; 0: 1 */
  int32_t gate_map;           /**< fovea_x_gate_map */
  int32_t beta_map;           /**< fovea_x_beta_map */
  int32_t l2_norm;            /**< 1: q and k are divided by their norms */
  int32_t splits;             /**< parts that a sequence is walked in at once; 0: chosen from
                                   shapes, 1: bits do not depend on cuts */
} fovea_x_delta_forward_params;

FOVEA_API fovea_status fovea_x_delta_forward_workspace(fovea_context* ctx,
                                                       const fovea_x_delta_forward_params* params,
                                                       size_t* bytes);
FOVEA_API fovea_status fovea_x_delta_forward(fovea_context* ctx,
                                             const fovea_x_delta_forward_params* params);

/** Gradients of x_delta_forward from dout, and from the gradients of each sequence's last state;
 *  rules as in x_gla_backward.  With W_t the gradient of H_t and du = k^ W_t:
 *
 *    dq^ = scale dout H_t',  dv = beta du,  dp = -du H~',  X = W_t - p' du
 *    dk^ = W_t u_t' (without erase: + beta dp),  dbeta = du . v (+ dp . k^),  derase = dp
 *    dgate_key = sum_j (H~ . X)[c, j],  W_(t-1) = exp(gate) . X
 *
 *  and with low_a and low_b:
 *
 *    z = low_a H_(t-1),  dz = low_b W_t
 *    dlow_b = W_t z',  dlow_a = dz H_(t-1)',  W_(t-1) = exp(gate) . W_t + low_a' dz
 *
 *  Limits: as of x_delta_forward; on Hopper's tensor cores sequences from 64 tokens, and with
 *  gate_key as many heads of q as of states. */
typedef struct fovea_x_delta_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_delta_backward_params) */
  fovea_tensor q;           /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;           /**< [in] (b, s, g, d) as q */
  fovea_tensor v;           /**< [in] (b, s, x, e) as q */
  fovea_tensor beta;        /**< [in, optional] (b, s, heads) as q or f32 */
  fovea_tensor erase;       /**< [in, optional] (b, s, heads, d) as q */
  fovea_tensor gate_head;   /**< [in, optional] (b, s, heads) as q or f32 */
  fovea_tensor gate_key;    /**< [in, optional] (b, s, heads, d) as q or f32 */
  fovea_tensor gate_rate;   /**< [in, optional] (heads) f32 */
  fovea_tensor gate_bias;   /**< [in, optional] (heads, d) f32 */
  fovea_tensor low_a;       /**< [in, optional] (b, s, heads, d) as q: needs low_b */
  fovea_tensor low_b;       /**< [in, optional] (b, s, heads, d) as q: needs low_a */
  fovea_tensor state_in;    /**< [in, optional] (slots, heads, d, e) f32 bf16 */
  fovea_tensor dout;        /**< [in] (b, s, heads_out, e) as q or f32: the gradient of o */
  fovea_tensor dstate_out;  /**< [in, optional] (r, heads, d, e) f32: of each sequence's last state;
                                 absent: 0 */
  fovea_tensor dq;          /**< [out, optional] (b, s, h, d) as q */
  fovea_tensor dk;          /**< [out, optional] (b, s, g, d) as q */
  fovea_tensor dv;          /**< [out, optional] (b, s, x, e) as q */
  fovea_tensor dbeta;       /**< [out, optional, sums] (b, s, heads) as q or f32: needs beta; a
                                 stride of 0 receives the sum over that dimension, here and below */
  fovea_tensor derase;      /**< [out, optional] (b, s, heads, d) as q: needs erase */
  fovea_tensor dgate_head;  /**< [out, optional, sums] (b, s, heads) as q or f32: needs gate_head */
  fovea_tensor dgate_key;   /**< [out, optional, sums] (b, s, heads, d) as q or f32: needs
                                 gate_key */
  fovea_tensor dgate_rate;  /**< [out, optional] (heads) f32: needs gate_rate */
  fovea_tensor dgate_bias;  /**< [out, optional, sums] (heads, d) f32: needs gate_bias */
  fovea_tensor dlow_a;      /**< [out, optional] (b, s, heads, d) as q: needs low_a */
  fovea_tensor dlow_b;      /**< [out, optional] (b, s, heads, d) as q: needs low_b */
  fovea_tensor dstate_in;   /**< [out, optional] (r, heads, d, e) f32: of the state that each
                                 sequence starts from, given or zeros */
  fovea_tensor start;       /**< [in, optional] (r+1) i32 */
  fovea_tensor len;         /**< [in, optional] (r) i32 */
  fovea_tensor state_row;   /**< [in, optional] (r) i32 */
  fovea_tensor output_from; /**< [in, optional] (r) i32 */
  int64_t token_max;        /**< 0: s */
  float scale;              /**< 0: d^-1/2 */
  float eps;                /**< of l2_norm; 0: 1e-6 */
  float gate_bound;         /**< 0: no bound */
  float gate_tau;           /**< of gate_map 3; 0: 1 */
  int32_t gate_map;         /**< fovea_x_gate_map */
  int32_t beta_map;         /**< fovea_x_beta_map */
  int32_t l2_norm;          /**< 1: q and k are divided by their norms */
  int32_t reserved;         /**< 0 */
} fovea_x_delta_backward_params;

FOVEA_API fovea_status fovea_x_delta_backward_workspace(fovea_context* ctx,
                                                        const fovea_x_delta_backward_params* params,
                                                        size_t* bytes);
FOVEA_API fovea_status fovea_x_delta_backward(fovea_context* ctx,
                                              const fovea_x_delta_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
