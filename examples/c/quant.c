/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over 8-bit codes, and what the codes cost in accuracy.
 *   cc quant.c $(pkg-config --cflags --libs fovea) -lm -o quant && ./quant
 *
 * quant_quantize makes e4m3 codes and scales of q, k and v; quant_forward attends over the codes.
 * Three recipes see the same numbers, in which one column of q and k is ten times the others, as
 * models have them:
 *
 *    one scale a head          the outliers meet small numbers in one sum, each off by up to 1/16
 *    a scale a block of 64     hardly better: e4m3 has an exponent, so the scale is not what hurts
 *    blocks and a rotation     a Hadamard rotation of q and k spreads outliers over the columns; the
 *                              scores stay as they are, since both are rotated alike
 *
 * Printed is the relative error against float64, and beside it that of f32 attention.  The program
 * holds the rotated codes to 1/16, half of their mantissa's last bit, and to half the plain error. */
#include <fovea/fovea.h>

#include "reference.h"

enum { TOKENS = 256, HEADS = 4, WIDTH = 64, COUNT = TOKENS * HEADS * WIDTH };
static const int64_t shape[] = {1, TOKENS, HEADS, WIDTH};

/* The e4m3 codes of a tensor, and a scale for each head and block. */
struct codes {
  uint8_t code[COUNT];
  float scale[HEADS * (TOKENS / 64)];
  int64_t scales; /* of a head */
};

static void must(fovea_status status) {
  if (status == FOVEA_OK) return;
  fprintf(stderr, "%s: %s\n", fovea_status_name(status), fovea_last_error());
  exit(1);
}

static fovea_tensor scales(struct codes* c) {
  const int64_t scale_shape[] = {1, HEADS, c->scales};
  return fovea_contiguous(c->scale, FOVEA_F32, 3, scale_shape);
}

static void quantize(fovea_context* ctx, float* x, int64_t block, int hadamard, struct codes* to) {
  fovea_quant_quantize_params p = {0};
  to->scales = block ? TOKENS / block : 1;
  p.struct_size = sizeof p;
  p.x = fovea_contiguous(x, FOVEA_F32, 4, shape);
  p.code = fovea_contiguous(to->code, FOVEA_E4M3, 4, shape);
  p.scale = scales(to);
  p.block = block;
  p.hadamard = hadamard;
  p.seed = hadamard ? 7 : 0; /* signs of the rotation: the same for q and k */
  must(fovea_quant_quantize(ctx, &p));
}

/* Causal attention over codes.  Values are summed over tokens, so they have one scale a head. */
static void attend(fovea_context* ctx, float* q, float* k, float* v, float* o, int64_t block,
                   int hadamard) {
  static struct codes q_code, k_code, v_code;
  fovea_quant_forward_params p = {0};
  quantize(ctx, q, block, hadamard, &q_code);
  quantize(ctx, k, block, hadamard, &k_code);
  quantize(ctx, v, 0, 0, &v_code);
  p.struct_size = sizeof p;
  p.q = fovea_contiguous(q_code.code, FOVEA_E4M3, 4, shape);
  p.k = fovea_contiguous(k_code.code, FOVEA_E4M3, 4, shape);
  p.v = fovea_contiguous(v_code.code, FOVEA_E4M3, 4, shape);
  p.q_scale = scales(&q_code);
  p.k_scale = scales(&k_code);
  p.v_scale = scales(&v_code);
  p.o = fovea_contiguous(o, FOVEA_F32, 4, shape);
  p.q_block = p.k_block = (int32_t)block;
  p.causal = 1;
  must(fovea_quant_forward(ctx, &p));
}

int main(void) {
  static float q[COUNT], k[COUNT], v[COUNT], o[COUNT];
  static double wanted[COUNT];
  fovea_context* ctx = NULL;
  fovea_attention_forward_params p = {0};
  double plain, head, block, rotated;
  int i;
  random_fill(q, COUNT, 1);
  random_fill(k, COUNT, 2);
  random_fill(v, COUNT, 3);
  for (i = 0; i < COUNT; i += WIDTH) {
    q[i + 5] *= 10;
    k[i + 5] *= 10;
  }
  reference(q, k, v, wanted, NULL, TOKENS, TOKENS, HEADS, HEADS, WIDTH, 1);
  must(fovea_context_create(FOVEA_HOST, 0, &ctx));

  p.struct_size = sizeof p;
  p.q = fovea_contiguous(q, FOVEA_F32, 4, shape);
  p.k = fovea_contiguous(k, FOVEA_F32, 4, shape);
  p.v = fovea_contiguous(v, FOVEA_F32, 4, shape);
  p.o = fovea_contiguous(o, FOVEA_F32, 4, shape);
  p.causal = 1;
  must(fovea_attention_forward(ctx, &p));
  plain = relative_error(o, wanted, COUNT);
  attend(ctx, q, k, v, o, 0, 0);
  head = relative_error(o, wanted, COUNT);
  attend(ctx, q, k, v, o, 64, 0);
  block = relative_error(o, wanted, COUNT);
  attend(ctx, q, k, v, o, 64, 1);
  rotated = relative_error(o, wanted, COUNT);
  fovea_context_destroy(ctx);

  printf("                        relative error\n");
  printf("f32                     %.1e\n", plain);
  printf("e4m3, one scale a head  %.1e\n", head);
  printf("e4m3, blocks of 64      %.1e\n", block);
  printf("e4m3, blocks, rotated   %.1e\n", rotated);
  return !(plain < 1e-5 && rotated < 1.0 / 16 && rotated < head / 2);
}
