/* SPDX-License-Identifier: Apache-2.0 */
/** Divergences of attention distributions beyond kl.h: recipes of distillation and indexer
 *  training.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.  What proves itself moves to the stable headers under a name without `x_`.
 *
 *  The rules of kl.h hold for each operation:
 *    positions    bottom-right aligned
 *    empty rows   a row that sees no key has divergence 0 and lse = -inf
 *    a forward    does not write rows past query_len
 *    a gradient   is written in every element, 0 past the lengths
 *    NaN          or an infinity in an input makes NaN of the rows that read it and of no other
 *    bits         the same every run; place, neighbours and size of the batch may change them
 *    workspace    linear in s and t, beside at most 64 MiB that hold values of some pairs at a time
 *
 *  Sums over rows are the caller's: a row's weight is its element of the incoming gradient.  A row
 *  where that is 0 gives nothing to any gradient, NaN included.
 *
 *  Limits: d and f are 1 .. 576.  Every valid call has a kernel on the host and a portable one on
 *  CUDA.  Tensor cores ask for f16 or bf16, the same for teacher and student, and widths that are
 *  multiples of 8.  Rows are contiguous and 16-byte aligned.  Each operation adds its own line. */
#ifndef FOVEA_EXPERIMENTAL_KL_H
#define FOVEA_EXPERIMENTAL_KL_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How the teacher's probabilities of a block's keys become one. */
typedef enum fovea_x_pool {
  FOVEA_X_POOL_SUM = 0, /**< their sum */
  FOVEA_X_POOL_MAX = 1  /**< the largest */
} fovea_x_pool;

/** The Jensen-Shannon divergence of two attention distributions over the same keys, with weight w
 *  in (0, 1).  P and R are the softmax rows of the teacher's and the student's logits (kl.h):
 *    M = w P + (1 - w) R
 *    kl_teacher_i = sum_j P_ij (ln P_ij - ln M_ij),  kl_student_i = sum_j R_ij (ln R_ij - ln M_ij)
 *    js_i = w kl_teacher_i + (1 - w) kl_student_i
 *  0 <= js <= -w ln w - (1 - w) ln(1 - w), whatever the logits.
 *
 *  Limits on tensor cores: as kl_forward and kl_backward. */
typedef struct fovea_x_kl_jensen_shannon_forward_params {
  size_t struct_size;       /**< sizeof(fovea_x_kl_jensen_shannon_forward_params) */
  fovea_tensor q_teacher;   /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k_teacher;   /**< [in] (key_b, t, g, d) as q_teacher */
  fovea_tensor q_student;   /**< [in] (b, s, h, f) f32 f16 bf16: need not be the teacher's dtype */
  fovea_tensor k_student;   /**< [in] (key_b, t, x, f) as q_student: x divides h */
  fovea_tensor js;          /**< [out, optional] (b, h, s) f32: one output at least */
  fovea_tensor kl_teacher;  /**< [out, optional] (b, h, s) f32: for the backward */
  fovea_tensor kl_student;  /**< [out, optional] (b, h, s) f32: for the backward */
  fovea_tensor lse_teacher; /**< [out, optional] (b, h, s) f32: for the backward */
  fovea_tensor lse_student; /**< [out, optional] (b, h, s) f32: for the backward */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                 ascending from 0; then b = 1 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32: first packed key of each sequence */
  fovea_tensor query_len;   /**< [in, optional] (r) i32: rows in use, at most s or the packed
                                 extent */
  fovea_tensor key_len;     /**< [in, optional] (r) i32: keys in use, at most t or the packed
                                 extent */
  fovea_tensor head_window; /**< [in, optional] (h, 3) i32: window_left, window_right, sink_keys of
                                 each head; the three fields and causal stay 0 */
  int64_t query_max;        /**< longest sequence of rows, bounds the grid; 0: s */
  int64_t key_max;          /**< longest sequence of keys; 0: t */
  int64_t window_left;      /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;     /**< keys seen to the right, the row's own position counted; 0: all, 1:
                                 none after itself */
  int64_t sink_keys;        /**< keys at positions below this stay visible through window_left */
  float scale_teacher;      /**< > 0; 0: 1 / sqrt(d) */
  float scale_student;      /**< > 0; 0: 1 / sqrt(f) */
  float weight;             /**< w, the teacher's share of M, between 0 and 1; 0: 0.5 */
  int32_t causal;           /**< 1: window_right = 1 */
} fovea_x_kl_jensen_shannon_forward_params;

FOVEA_API fovea_status fovea_x_kl_jensen_shannon_forward_workspace(
    fovea_context* ctx, const fovea_x_kl_jensen_shannon_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_kl_jensen_shannon_forward(
    fovea_context* ctx, const fovea_x_kl_jensen_shannon_forward_params* params);

/** Gradients of x_kl_jensen_shannon_forward.  The fields it shares say what the forward was.  Each
 *  output is optional: absent = not computed.  With a, b the logits of teacher and student:
 *    da_ij = djs_i w P_ij (ln P_ij - ln M_ij - kl_teacher_i)
 *    db_ij = djs_i (1 - w) R_ij (ln R_ij - ln M_ij - kl_student_i)
 *    dq_i = scale sum_j da_ij k_j,  dk_j = scale sum_i da_ij q_i,  and so with db */
typedef struct fovea_x_kl_jensen_shannon_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_kl_jensen_shannon_backward_params) */
  fovea_tensor q_teacher;   /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k_teacher;   /**< [in] (key_b, t, g, d) as q_teacher */
  fovea_tensor q_student;   /**< [in] (b, s, h, f) f32 f16 bf16 */
  fovea_tensor k_student;   /**< [in] (key_b, t, x, f) as q_student */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: as in the forward, and so for the fields
                                 below */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor key_len;     /**< [in, optional] (r) i32 */
  fovea_tensor head_window; /**< [in, optional] (h, 3) i32 */
  fovea_tensor kl_teacher;  /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor kl_student;  /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor lse_teacher; /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor lse_student; /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor djs;         /**< [in] (b, h, s) f32: the gradient of js */
  fovea_tensor dq_student;  /**< [out, optional] (b, s, h, f) as q_student */
  fovea_tensor dk_student;  /**< [out, optional] (key_b, t, x, f) as q_student */
  fovea_tensor dq_teacher;  /**< [out, optional] (b, s, h, d) as q_teacher */
  fovea_tensor dk_teacher;  /**< [out, optional] (key_b, t, g, d) as q_teacher */
  int64_t query_max;        /**< as in the forward, and so for the fields below */
  int64_t key_max;          /**< 0: t */
  int64_t window_left;      /**< 0: all */
  int64_t window_right;     /**< 0: all */
  int64_t sink_keys;        /**< 0: none */
  float scale_teacher;      /**< 0: 1 / sqrt(d) */
  float scale_student;      /**< 0: 1 / sqrt(f) */
  float weight;             /**< 0: 0.5 */
  int32_t causal;           /**< 1: window_right = 1 */
} fovea_x_kl_jensen_shannon_backward_params;

FOVEA_API fovea_status fovea_x_kl_jensen_shannon_backward_workspace(
    fovea_context* ctx, const fovea_x_kl_jensen_shannon_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_kl_jensen_shannon_backward(
    fovea_context* ctx, const fovea_x_kl_jensen_shannon_backward_params* params);

/** The divergence of attention summed over its heads from the scores of a sparse-attention indexer
 *  (DeepSeek).  It is one distribution a row, whose logits are a weighed sum of rectified products.
 *  With p^m the softmax row of teacher head m (kl.h), over heads m = 1 .. h and indexer heads n = 1
 *  ..  x:
 *    P_ij = 1/h sum_m p^m_ij
 *    b_ij = sum_n weight_in max(<q_student_in, k_student_j>, 0),  R_i = softmax(b_i)
 *    kl_i = sum_j P_ij (ln P_ij - ln R_ij)
 *  A scale of the student is part of weight.  All heads see the same keys.
 *
 *  Limits on tensor cores: d and f up to 256 on sm_80 and later.  On Hopper's own also no sink_keys
 *  and d and f up to 128. */
typedef struct fovea_x_kl_indexer_forward_params {
  size_t struct_size;       /**< sizeof(fovea_x_kl_indexer_forward_params) */
  fovea_tensor q_teacher;   /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k_teacher;   /**< [in] (key_b, t, g, d) as q_teacher */
  fovea_tensor q_student;   /**< [in] (b, s, x, f) f32 f16 bf16: need not be the teacher's dtype;
                                 any number of heads x */
  fovea_tensor k_student;   /**< [in] (key_b, t, 1, f) as q_student: one key head for all x */
  fovea_tensor weight;      /**< [in] (b, s, x) f32 */
  fovea_tensor kl;          /**< [out, optional] (b, s) f32: one output at least */
  fovea_tensor lse_teacher; /**< [out, optional] (b, h, s) f32: of each head, for the backward */
  fovea_tensor lse_student; /**< [out, optional] (b, s) f32: for the backward */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                 ascending from 0; then b = 1 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32: first packed key of each sequence */
  fovea_tensor query_len;   /**< [in, optional] (r) i32: rows in use, at most s or the packed
                                 extent */
  fovea_tensor key_len;     /**< [in, optional] (r) i32: keys in use, at most t or the packed
                                 extent */
  int64_t query_max;        /**< longest sequence of rows, bounds the grid; 0: s */
  int64_t key_max;          /**< longest sequence of keys; 0: t */
  int64_t window_left;      /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;     /**< keys seen to the right, the row's own position counted; 0: all, 1:
                                 none after itself */
  int64_t sink_keys;        /**< keys at positions below this stay visible through window_left */
  float scale_teacher;      /**< > 0; 0: 1 / sqrt(d) */
  int32_t causal;           /**< 1: window_right = 1 */
} fovea_x_kl_indexer_forward_params;

FOVEA_API fovea_status fovea_x_kl_indexer_forward_workspace(
    fovea_context* ctx, const fovea_x_kl_indexer_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_kl_indexer_forward(
    fovea_context* ctx, const fovea_x_kl_indexer_forward_params* params);

/** Gradients of x_kl_indexer_forward by the indexer's inputs; the teacher has none.  The fields it
 *  shares say what the forward was.  Each output is optional: absent = not computed.  With z_inj =
 *  <q_student_in, k_student_j> and u = 1 where z > 0, else 0:
 *    db_ij = dkl_i (R_ij - P_ij)
 *    dweight_in = sum_j db_ij max(z_inj, 0)
 *    dq_in = sum_j db_ij weight_in u_inj k_j,  dk_j = sum_in db_ij weight_in u_inj q_in
 *  Other than above, a NaN or an infinity in an input may make NaN of every gradient of its
 *  sequence.  That holds also where dkl of its row is 0. */
typedef struct fovea_x_kl_indexer_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_kl_indexer_backward_params) */
  fovea_tensor q_teacher;   /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k_teacher;   /**< [in] (key_b, t, g, d) as q_teacher */
  fovea_tensor q_student;   /**< [in] (b, s, x, f) f32 f16 bf16 */
  fovea_tensor k_student;   /**< [in] (key_b, t, 1, f) as q_student */
  fovea_tensor weight;      /**< [in] (b, s, x) f32 */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: as in the forward, and so for the fields
                                 below */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor key_len;     /**< [in, optional] (r) i32 */
  fovea_tensor lse_teacher; /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor lse_student; /**< [in] (b, s) f32: of the forward */
  fovea_tensor dkl;         /**< [in] (b, s) f32: the gradient of kl */
  fovea_tensor dq_student;  /**< [out, optional] (b, s, x, f) as q_student */
  fovea_tensor dk_student;  /**< [out, optional] (key_b, t, 1, f) as q_student */
  fovea_tensor dweight;     /**< [out, optional] (b, s, x) f32 */
  int64_t query_max;        /**< as in the forward, and so for the fields below */
  int64_t key_max;          /**< 0: t */
  int64_t window_left;      /**< 0: all */
  int64_t window_right;     /**< 0: all */
  int64_t sink_keys;        /**< 0: none */
  float scale_teacher;      /**< 0: 1 / sqrt(d) */
  int32_t causal;           /**< 1: window_right = 1 */
} fovea_x_kl_indexer_backward_params;

FOVEA_API fovea_status fovea_x_kl_indexer_backward_workspace(
    fovea_context* ctx, const fovea_x_kl_indexer_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_kl_indexer_backward(
    fovea_context* ctx, const fovea_x_kl_indexer_backward_params* params);

/** KL divergence over chosen keys: each row sees the keys that its list names and no others.
 *    kl_i = sum_n P_in (ln P_in - ln R_in),  n over the list's entries that name a key
 *  with P, R the softmax rows of the teacher's and the student's logits (kl.h) over these entries.
 *  An entry is a key's number within its sequence; one that is negative, or no key of the sequence,
 *  is none.  A key that stands twice counts twice.  Work is that of the lists, not of s * t.
 *
 *  Limits on tensor cores, sm_80 and later: d and f up to 128; 4 heads or more that share a list,
 *  and one key head. */
typedef struct fovea_x_kl_gather_forward_params {
  size_t struct_size;       /**< sizeof(fovea_x_kl_gather_forward_params) */
  fovea_tensor q_teacher;   /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k_teacher;   /**< [in] (key_b, t, g, d) as q_teacher */
  fovea_tensor q_student;   /**< [in] (b, s, h, f) f32 f16 bf16: need not be the teacher's dtype */
  fovea_tensor k_student;   /**< [in] (key_b, t, x, f) as q_student: x divides h */
  fovea_tensor index;       /**< [in] (b, h, s, n) i32: stride 0 over h shares a list among heads */
  fovea_tensor kl;          /**< [out, optional] (b, h, s) f32: one output at least */
  fovea_tensor lse_teacher; /**< [out, optional] (b, h, s) f32: for the backward */
  fovea_tensor lse_student; /**< [out, optional] (b, h, s) f32: for the backward */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                 ascending from 0; then b = 1 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32: first packed key of each sequence */
  fovea_tensor query_len;   /**< [in, optional] (r) i32: rows in use, at most s or the packed
                                 extent */
  fovea_tensor key_len;     /**< [in, optional] (r) i32: keys in use, at most t or the packed
                                 extent */
  int64_t query_max;        /**< longest sequence of rows, bounds the grid; 0: s */
  int64_t key_max;          /**< longest sequence of keys; 0: t */
  float scale_teacher;      /**< > 0; 0: 1 / sqrt(d) */
  float scale_student;      /**< > 0; 0: 1 / sqrt(f) */
} fovea_x_kl_gather_forward_params;

FOVEA_API fovea_status fovea_x_kl_gather_forward_workspace(
    fovea_context* ctx, const fovea_x_kl_gather_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_kl_gather_forward(
    fovea_context* ctx, const fovea_x_kl_gather_forward_params* params);

/** Gradients of x_kl_gather_forward.  The fields it shares say what the forward was.  Each output
 *  is optional: absent = not computed.  With a, b the logits of teacher and student:
 *    db_in = dkl_i (R_in - P_in),  da_in = dkl_i P_in (ln P_in - ln R_in - kl_i)
 *    dq_i = scale sum_n db_in k_n,  dk_j = scale sum db_in q_i over the entries that name j
 *  and the same with da for the teacher.  Other than above, a NaN or an infinity in a q may make
 *  NaN of dk of every key of its sequence.  That holds also where dkl of its row is 0. */
typedef struct fovea_x_kl_gather_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_kl_gather_backward_params) */
  fovea_tensor q_teacher;   /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k_teacher;   /**< [in] (key_b, t, g, d) as q_teacher */
  fovea_tensor q_student;   /**< [in] (b, s, h, f) f32 f16 bf16 */
  fovea_tensor k_student;   /**< [in] (key_b, t, x, f) as q_student */
  fovea_tensor index;       /**< [in] (b, h, s, n) i32 */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: as in the forward, and so for the fields
                                 below */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor key_len;     /**< [in, optional] (r) i32 */
  fovea_tensor kl;          /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor lse_teacher; /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor lse_student; /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor dkl;         /**< [in] (b, h, s) f32: the gradient of kl */
  fovea_tensor dq_student;  /**< [out, optional] (b, s, h, f) as q_student */
  fovea_tensor dk_student;  /**< [out, optional] (key_b, t, x, f) as q_student */
  fovea_tensor dq_teacher;  /**< [out, optional] (b, s, h, d) as q_teacher */
  fovea_tensor dk_teacher;  /**< [out, optional] (key_b, t, g, d) as q_teacher */
  int64_t query_max;        /**< as in the forward, and so for the fields below */
  int64_t key_max;          /**< 0: t */
  float scale_teacher;      /**< 0: 1 / sqrt(d) */
  float scale_student;      /**< 0: 1 / sqrt(f) */
} fovea_x_kl_gather_backward_params;

FOVEA_API fovea_status fovea_x_kl_gather_backward_workspace(
    fovea_context* ctx, const fovea_x_kl_gather_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_kl_gather_backward(
    fovea_context* ctx, const fovea_x_kl_gather_backward_params* params);

/** The divergence of attention pooled over blocks of keys from a gate's block scores
 *  (SeerAttention).  Block u has keys u * block_keys .. (u + 1) * block_keys - 1 of its sequence; a
 *  row sees it where it sees one of them.  With p the teacher's softmax row (kl.h) and J_iu the
 *  keys of u that row i sees:
 *    S_iu = pool of p_ij over j in J_iu,  P_iu = S_iu / sum_v S_iv
 *    b_iu = scale_student <q_student_i, k_student_u>,  R_i = softmax(b_i) over the blocks it sees
 *    kl_i = sum_u P_iu (ln P_iu - ln R_iu)
 *  Packed keys: sequence i's first block is at key_start[i] / block_keys + i.
 *
 *  Limits on tensor cores: d and f up to 256 and block_keys a multiple of 64, on sm_80 and later.
 *  The backward's own of Hopper take block_keys of 64 or 128, d and f up to 128, and no sink_keys
 *  or head_window. */
typedef struct fovea_x_kl_pool_forward_params {
  size_t struct_size;       /**< sizeof(fovea_x_kl_pool_forward_params) */
  fovea_tensor q_teacher;   /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k_teacher;   /**< [in] (key_b, t, g, d) as q_teacher */
  fovea_tensor q_student;   /**< [in] (b, s, h, f) f32 f16 bf16: need not be the teacher's dtype */
  fovea_tensor k_student;   /**< [in] (key_b, u, x, f) as q_student: of each block; u at least t /
                                 block_keys rounded up, with key_start t / block_keys + r; x divides
                                 h */
  fovea_tensor kl;          /**< [out, optional] (b, h, s) f32: one output at least */
  fovea_tensor lse_teacher; /**< [out, optional] (b, h, s) f32: ln sum_u of what pooling makes of
                                 exp(logit), for the backward */
  fovea_tensor lse_student; /**< [out, optional] (b, h, s) f32: for the backward */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: first packed row of each sequence,
                                 ascending from 0; then b = 1 */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32: first packed key of each sequence */
  fovea_tensor query_len;   /**< [in, optional] (r) i32: rows in use, at most s or the packed
                                 extent */
  fovea_tensor key_len;     /**< [in, optional] (r) i32: keys in use, at most t or the packed
                                 extent */
  fovea_tensor head_window; /**< [in, optional] (h, 3) i32: window_left, window_right, sink_keys of
                                 each head; the three fields and causal stay 0 */
  int64_t query_max;        /**< longest sequence of rows, bounds the grid; 0: s */
  int64_t key_max;          /**< longest sequence of keys; 0: t */
  int64_t window_left;      /**< keys seen to the left, the row's own position counted; 0: all */
  int64_t window_right;     /**< keys seen to the right, the row's own position counted; 0: all, 1:
                                 none after itself */
  int64_t sink_keys;        /**< keys at positions below this stay visible through window_left */
  int64_t block_keys;       /**< keys of a block; 0: 64 */
  float scale_teacher;      /**< > 0; 0: 1 / sqrt(d) */
  float scale_student;      /**< > 0; 0: 1 / sqrt(f) */
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t pool;             /**< fovea_x_pool */
} fovea_x_kl_pool_forward_params;

FOVEA_API fovea_status fovea_x_kl_pool_forward_workspace(
    fovea_context* ctx, const fovea_x_kl_pool_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_kl_pool_forward(
    fovea_context* ctx, const fovea_x_kl_pool_forward_params* params);

/** Gradients of x_kl_pool_forward by the student's inputs; the teacher has none.  The fields it
 *  shares say what the forward was.  Each output is optional: absent = not computed.
 *    db_iu = dkl_i (R_iu - P_iu)
 *    dq_i = scale_student sum_u db_iu k_u,  dk_u = scale_student sum_i db_iu q_i */
typedef struct fovea_x_kl_pool_backward_params {
  size_t struct_size;       /**< sizeof(fovea_x_kl_pool_backward_params) */
  fovea_tensor q_teacher;   /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k_teacher;   /**< [in] (key_b, t, g, d) as q_teacher */
  fovea_tensor q_student;   /**< [in] (b, s, h, f) f32 f16 bf16 */
  fovea_tensor k_student;   /**< [in] (key_b, u, x, f) as q_student */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: as in the forward, and so for the fields
                                 below */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor key_len;     /**< [in, optional] (r) i32 */
  fovea_tensor head_window; /**< [in, optional] (h, 3) i32 */
  fovea_tensor lse_teacher; /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor lse_student; /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor dkl;         /**< [in] (b, h, s) f32: the gradient of kl */
  fovea_tensor dq_student;  /**< [out, optional] (b, s, h, f) as q_student */
  fovea_tensor dk_student;  /**< [out, optional] (key_b, u, x, f) as q_student */
  int64_t query_max;        /**< as in the forward, and so for the fields below */
  int64_t key_max;          /**< 0: t */
  int64_t window_left;      /**< 0: all */
  int64_t window_right;     /**< 0: all */
  int64_t sink_keys;        /**< 0: none */
  int64_t block_keys;       /**< 0: 64 */
  float scale_teacher;      /**< 0: 1 / sqrt(d) */
  float scale_student;      /**< 0: 1 / sqrt(f) */
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t pool;             /**< fovea_x_pool */
} fovea_x_kl_pool_backward_params;

FOVEA_API fovea_status fovea_x_kl_pool_backward_workspace(
    fovea_context* ctx, const fovea_x_kl_pool_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_x_kl_pool_backward(
    fovea_context* ctx, const fovea_x_kl_pool_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
