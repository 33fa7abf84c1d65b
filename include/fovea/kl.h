/* SPDX-License-Identifier: Apache-2.0 */
/** The divergence of two attention distributions over the same keys, and its gradient: attention
 *  distillation in one pass, with no s x t array anywhere.
 *
 *  Teacher and student have rows, keys and what a row sees in common.  Widths (d, f), key heads (g,
 *  x), dtypes and scales are their own.  For query row i over the keys j it sees (attention.h:
 *  positions bottom-right aligned, causal, windows, sinks):
 *    a_ij = scale_teacher * <q_teacher_i, k_teacher_j>
 *    b_ij = scale_student * <q_student_i, k_student_j>
 *    p_i = softmax(a_i),  r_i = softmax(b_i),  lse = ln sum_j exp of either
 *    kl_i = sum_j p_ij (ln p_ij - ln r_ij)     direction teacher_student
 *    kl_i = sum_j r_ij (ln r_ij - ln p_ij)     direction student_teacher
 *    total = sum_i w_i kl_i,  with mean divided by sum_i w_i
 *  where i runs over the rows that see a key and w_i is row_weight, or 1.  Where the divisor is 0
 *  so is total.  A row of weight 0 counts for nothing in total, NaN included.
 *
 *  A row that sees no key has kl = 0 and lse = -inf.  Rows past query_len are not written.  A NaN
 *  or an infinity in q or k makes NaN of the rows that read it and of no other.  Sums are f32, that
 *  of total f64 in a fixed order.  No two large logarithms are subtracted: large logits cost kl
 *  their own rounding and no more.  Bits: the same every run; on the host they do not depend on the
 *  batch size, on CUDA they may.  fovea.h has the table.
 *  Source: StreamKL (2606.20005).
 *
 *  In fovea.h:
 *    kl_forward, _backward: the divergence of two attention distributions
 *    bits, kl_forward, kl_backward: no no no no may */
#ifndef FOVEA_KL_H
#define FOVEA_KL_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Which distribution the logarithm of the ratio is weighted with. */
typedef enum fovea_direction {
  FOVEA_DIRECTION_TEACHER_STUDENT = 0, /**< KL(teacher || student): the student covers the
                                            teacher */
  FOVEA_DIRECTION_STUDENT_TEACHER = 1  /**< KL(student || teacher), reverse KL: the student seeks a
                                            mode */
} fovea_direction;

/** kl, the statistics that its gradient needs, and their sum, each where asked for.  Workspace does
 *  not depend on s * t.
 *
 *  Limits: d and f are 1 .. 576.  Every valid call has a kernel on the host and a portable one on
 *  CUDA.  Tensor cores ask for more:
 *    sm_90            f16 or bf16, the same for both; d and f multiples of 8 up to 256; no
 *                     sink_keys, no head_window; rows of q and k contiguous, 16-byte aligned */
typedef struct fovea_kl_forward_params {
  size_t struct_size;       /**< sizeof(fovea_kl_forward_params) */
  fovea_tensor q_teacher;   /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k_teacher;   /**< [in] (key_b, t, g, d) as q_teacher */
  fovea_tensor q_student;   /**< [in] (b, s, h, f) f32 f16 bf16: need not be the teacher's dtype */
  fovea_tensor k_student;   /**< [in] (key_b, t, x, f) as q_student: x divides h, query head i reads
                                 key head i / (h / x) */
  fovea_tensor kl;          /**< [out, optional] (b, h, s) f32: one of kl, lse_teacher, lse_student,
                                 total at least */
  fovea_tensor lse_teacher; /**< [out, optional] (b, h, s) f32: natural log of each row's sum, for
                                 the backward */
  fovea_tensor lse_student; /**< [out, optional] (b, h, s) f32 */
  fovea_tensor row_weight;  /**< [in, optional] (b, h, s) f32: w, for total */
  fovea_tensor total;       /**< [out, optional] (1) f32: the weighted sum or mean of kl */
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
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t direction;        /**< fovea_direction */
  int32_t mean;             /**< of total, 0: the sum, 1: the mean over rows that see a key */
  int32_t reserved;         /**< 0 */
} fovea_kl_forward_params;

FOVEA_API fovea_status fovea_kl_forward_workspace(
    fovea_context* ctx, const fovea_kl_forward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_kl_forward(
    fovea_context* ctx, const fovea_kl_forward_params* params);

/** Gradients of kl_forward from dkl, dtotal or both.  The fields it shares say what the forward
 *  was.  Each output is optional: absent = not computed, so a teacher without gradients costs none.
 *  Every element of an output is written: rows and keys past their lengths get 0.  x, P are the
 *  logits and probabilities of the distribution that weighs, the teacher's with teacher_student; y,
 *  R are those of the other:
 *    G_i = dkl_i + dtotal w_i,  with mean dkl_i + dtotal w_i / sum w
 *    dy_ij = G_i (R_ij - P_ij),  dx_ij = G_i P_ij (ln P_ij - ln R_ij - kl_i)
 *    dq_i = scale sum_j dx_ij k_j,  dk_j = scale sum_i dx_ij q_i,  and so with dy
 *  A NaN or an infinity in q or k makes NaN of dq of the rows that read it.  It makes NaN of dk of
 *  the keys that these rows see, and of nothing else.  A row with G_i = 0 gives nothing to any
 *  gradient, NaN included.  Bits: the same every run unless `nondeterministic`.  Workspace does not
 *  depend on s * t.
 *
 *  Limits: as kl_forward, but d and f up to 128 on sm_90, where rows of dq and dk are contiguous
 *  and 16-byte aligned too. */
typedef struct fovea_kl_backward_params {
  size_t struct_size;       /**< sizeof(fovea_kl_backward_params) */
  fovea_tensor q_teacher;   /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k_teacher;   /**< [in] (key_b, t, g, d) as q_teacher */
  fovea_tensor q_student;   /**< [in] (b, s, h, f) f32 f16 bf16 */
  fovea_tensor k_student;   /**< [in] (key_b, t, x, f) as q_student */
  fovea_tensor row_weight;  /**< [in, optional] (b, h, s) f32: w, with dtotal */
  fovea_tensor query_start; /**< [in, optional] (r+1) i32: as in the forward, and so for the fields
                                 below */
  fovea_tensor key_start;   /**< [in, optional] (r+1) i32 */
  fovea_tensor query_len;   /**< [in, optional] (r) i32 */
  fovea_tensor key_len;     /**< [in, optional] (r) i32 */
  fovea_tensor head_window; /**< [in, optional] (h, 3) i32 */
  fovea_tensor kl;          /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor lse_teacher; /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor lse_student; /**< [in] (b, h, s) f32: of the forward */
  fovea_tensor dkl;         /**< [in, optional] (b, h, s) f32: the gradient of kl; this or dtotal,
                                 or both */
  fovea_tensor dtotal;      /**< [in, optional] (1) f32: the gradient of total */
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
  int32_t causal;           /**< 1: window_right = 1 */
  int32_t direction;        /**< fovea_direction */
  int32_t mean;             /**< with dtotal */
  int32_t nondeterministic; /**< 1: a faster kernel whose sums may change order may be used */
} fovea_kl_backward_params;

FOVEA_API fovea_status fovea_kl_backward_workspace(
    fovea_context* ctx, const fovea_kl_backward_params* params, size_t* bytes);
FOVEA_API fovea_status fovea_kl_backward(
    fovea_context* ctx, const fovea_kl_backward_params* params);

#ifdef __cplusplus
}
#endif

#endif
