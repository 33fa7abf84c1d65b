/* SPDX-License-Identifier: Apache-2.0 */
/* fovea's attention as a custom op in a ggml graph, in the place of ggml_flash_attn_ext.
 *   cc ggml_op.c $(pkg-config --cflags --libs fovea ggml) -lggml-base -lggml-cpu -lm -o ggml_op && ./ggml_op
 *
 * ggml_fovea_attn takes the tensors of ggml_flash_attn_ext, and gives what it gives:
 *
 *    ggml, ne            fovea
 *    q (d, s, h, b)      (b, s, h, d) by strides: ggml counts bytes, fovea elements
 *    k (d, t, g, b)      (b, t, g, d), permuted views of a cache included; v likewise
 *    mask (t, s, 1, b)   bias (b, h, s, t), f16: the stride over heads is 0, -inf masks
 *    out (e, h, s, b)    (b, s, h, e), f32
 *
 * fovea wants q in the dtype of k, so an f32 q over an f16 cache is cast in the graph.  The op is one
 * task of ggml's, because fovea has threads of its own.  ALiBi (max_bias) and quantised caches are
 * refused.  ggml builds with CMake from its own source, which PyPI's ggml-python carries too, as
 * vendor/ggml.  The program compares both with float64: a prompt and a decoding step, over f16 and f32
 * caches that ggml permutes as llama.cpp does. */
#include <fovea/fovea.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <string.h>

#include "reference.h"

/* One a graph node; it outlives the graph's run. */
struct fovea_attn {
  fovea_context* ctx;
  float scale, softcap;
  fovea_status status; /* of the run: a ggml op has no way to fail */
};

static int32_t dtype_of(enum ggml_type type) {
  return type == GGML_TYPE_F32    ? FOVEA_F32
         : type == GGML_TYPE_F16  ? FOVEA_F16
         : type == GGML_TYPE_BF16 ? FOVEA_BF16
                                  : 0;
}

/* A view with axes a, b, c, 0 of a ggml tensor: fovea's order is outermost first. */
static fovea_tensor view(const struct ggml_tensor* x, int a, int b, int c) {
  const int axis[] = {a, b, c, 0};
  const size_t size = ggml_type_size(x->type);
  fovea_tensor v = {0};
  int i;
  v.data = x->data;
  v.dtype = dtype_of(x->type);
  v.ndim = 4;
  for (i = 0; i < 4; i++) {
    v.shape[i] = x->ne[axis[i]];
    v.stride[i] = (int64_t)(x->nb[axis[i]] / size);
  }
  return v;
}

static void run_fovea_attn(struct ggml_tensor* out, int ith, int nth, void* userdata) {
  struct fovea_attn* op = userdata;
  fovea_attention_forward_params p = {0};
  (void)nth;
  if (ith) return;
  p.struct_size = sizeof p;
  p.q = view(out->src[0], 3, 1, 2);
  p.k = view(out->src[1], 3, 1, 2);
  p.v = view(out->src[2], 3, 1, 2);
  p.o = view(out, 3, 2, 1);
  if (out->src[3]) { /* one mask for all heads, and for all sequences where it has but one */
    p.bias = view(out->src[3], 3, 2, 1);
    p.bias.shape[0] = p.q.shape[0];
    p.bias.shape[1] = p.q.shape[2];
    p.bias.shape[2] = p.q.shape[1]; /* ggml pads the rows of a mask */
    p.bias.stride[1] = 0;
    if (out->src[3]->ne[3] == 1) p.bias.stride[0] = 0;
  }
  p.scale = op->scale;
  p.softcap = op->softcap;
  op->status = fovea_attention_forward(op->ctx, &p);
  if (op->status) fprintf(stderr, "%s\n", fovea_last_error());
}

/* ggml_flash_attn_ext's tensors; NULL where fovea has no dtype for them.  mask may be NULL. */
static struct ggml_tensor* ggml_fovea_attn(struct ggml_context* g, struct fovea_attn* op,
                                           struct ggml_tensor* q, struct ggml_tensor* k,
                                           struct ggml_tensor* v, struct ggml_tensor* mask) {
  struct ggml_tensor* src[4] = {q, k, v, mask};
  if (!dtype_of(k->type) || v->type != k->type || (mask && mask->ne[2] != 1)) return NULL;
  if (q->type != k->type) src[0] = ggml_cast(g, q, k->type);
  return ggml_custom_4d(g, GGML_TYPE_F32, v->ne[0], q->ne[2], q->ne[1], q->ne[3], src, mask ? 4 : 3,
                        run_fovea_attn, 1, op);
}

/* ---- the comparison: one sequence, GQA, `rows` new tokens behind a cache */

enum { WIDTH = 64, HEADS = 8, KEY_HEADS = 2, KEYS = 96 };

static void put(struct ggml_tensor* x, float* values) { /* writes, and reads back as rounded */
  const int64_t count = ggml_nelements(x);
  if (x->type == GGML_TYPE_F16) {
    ggml_fp32_to_fp16_row(values, x->data, count);
    ggml_fp16_to_fp32_row(x->data, values, count);
  } else {
    memcpy(x->data, values, (size_t)count * sizeof *values);
  }
}

static int compare(fovea_context* ctx, enum ggml_type type, int rows) {
  static float q[KEYS * HEADS * WIDTH], k[KEYS * KEY_HEADS * WIDTH], v[KEYS * KEY_HEADS * WIDTH];
  static float mask_row[KEYS * KEYS];
  static double wanted[KEYS * HEADS * WIDTH];
  const struct ggml_init_params init = {64u << 20, NULL, false};
  struct ggml_context* g = ggml_init(init);
  struct fovea_attn op = {ctx, 0, 0, FOVEA_INTERNAL_ERROR};
  struct ggml_tensor *tq, *tk, *tv, *mask, *theirs, *ours;
  struct ggml_cgraph* graph;
  const size_t count = (size_t)rows * HEADS * WIDTH;
  double us, them;
  int i, j, wrong;
  if (!g) return 1;
  /* As llama.cpp has them: rows of (heads, width), permuted to the order of ggml_flash_attn_ext. */
  tq = ggml_new_tensor_3d(g, GGML_TYPE_F32, WIDTH, HEADS, rows);
  tk = ggml_new_tensor_3d(g, type, WIDTH, KEY_HEADS, KEYS);
  tv = ggml_new_tensor_3d(g, type, WIDTH, KEY_HEADS, KEYS);
  mask = ggml_new_tensor_4d(g, GGML_TYPE_F16, KEYS, rows, 1, 1);
  random_fill(q, count, 1);
  random_fill(k, sizeof k / sizeof *k, 2);
  random_fill(v, sizeof v / sizeof *v, 3);
  for (i = 0; i < rows; i++)
    for (j = 0; j < KEYS; j++) mask_row[i * KEYS + j] = j <= i + KEYS - rows ? 0 : -INFINITY;
  put(tq, q);
  put(tk, k);
  put(tv, v);
  put(mask, mask_row);
  op.scale = 1 / sqrtf((float)WIDTH);
  tq = ggml_permute(g, tq, 0, 2, 1, 3);
  tk = ggml_permute(g, tk, 0, 2, 1, 3);
  tv = ggml_permute(g, tv, 0, 2, 1, 3);
  theirs = ggml_flash_attn_ext(g, tq, tk, tv, mask, op.scale, 0, 0);
  ours = ggml_fovea_attn(g, &op, tq, tk, tv, mask);
  if (!ours) return 1;
  graph = ggml_new_graph(g);
  ggml_build_forward_expand(graph, theirs);
  ggml_build_forward_expand(graph, ours);
  if (ggml_graph_compute_with_ctx(g, graph, 2) != GGML_STATUS_SUCCESS || op.status) return 1;
  reference(q, k, v, wanted, NULL, rows, KEYS, HEADS, KEY_HEADS, WIDTH, 1);
  us = relative_error(ours->data, wanted, count);
  them = relative_error(theirs->data, wanted, count);
  /* What f16 rounds away of q is at most 2^-11 of it; f32 leaves the order of sums. */
  wrong = !(us < (type == GGML_TYPE_F16 ? 1.0 / 2048 : 1e-6)) || !ggml_are_same_shape(ours, theirs);
  printf("%s cache, %2d rows over %d keys: relative error %.1e, ggml_flash_attn_ext %.1e%s\n",
         ggml_type_name(type), rows, (int)KEYS, us, them, wrong ? " WRONG" : "");
  ggml_free(g);
  return wrong;
}

int main(void) {
  fovea_context* ctx = NULL;
  int wrong = 0;
  if (fovea_context_create(FOVEA_HOST, 0, &ctx)) {
    fprintf(stderr, "%s\n", fovea_last_error());
    return 1;
  }
  wrong |= compare(ctx, GGML_TYPE_F16, 32);
  wrong |= compare(ctx, GGML_TYPE_F16, 1);
  wrong |= compare(ctx, GGML_TYPE_F32, 32);
  wrong |= compare(ctx, GGML_TYPE_F32, 1);
  fovea_context_destroy(ctx);
  return wrong;
}
