/* SPDX-License-Identifier: Apache-2.0 */
/* Multi-token attention: the logits of a head are convolved over rows and keys before the softmax.
 *   cc conv_attention.c $(pkg-config --cflags --libs fovea) -lm -o conv_attention && ./conv_attention
 *
 * Three things are shown, and each is checked:
 *
 *    identity    one tap of 1 at the row and key themselves is attention_forward
 *    taps        6 rows by 5 keys of taps a head, against the formula in float64
 *    decoding    a token at a time gives the rows of the whole prompt: the taps reach back TAPS - 1
 *                rows, and `history` brings those query rows along */
#include <fovea/fovea.h>

#include "reference.h"

enum { TOKENS = 40, HEADS = 2, WIDTH = 16, TAPS = 6, COLUMNS = 5, LEFT = (COLUMNS - 1) / 2 };
enum { ROW = HEADS * WIDTH, COUNT = TOKENS * ROW };

static void must(fovea_status status) {
  if (status == FOVEA_OK) return;
  fprintf(stderr, "%s: %s\n", fovea_status_name(status), fovea_last_error());
  exit(1);
}

static fovea_tensor floats(float* data, int64_t s) {
  const int64_t shape[] = {1, s, HEADS, WIDTH};
  return fovea_contiguous(data, FOVEA_F32, 4, shape);
}

/* Causal: the last `rows` of `tokens` tokens, aligned at the end.  o has rows - history rows. */
static void convolve(fovea_context* ctx, float* q, float* k, float* v, float* weight, float* o,
                     int64_t rows, int64_t tokens, int64_t history) {
  const int64_t taps[] = {HEADS, TAPS, COLUMNS};
  fovea_conv_attention_forward_params p = {0};
  p.struct_size = sizeof p;
  p.q = floats(q + (tokens - rows) * ROW, rows);
  p.k = floats(k, tokens);
  p.v = floats(v, tokens);
  p.weight = fovea_contiguous(weight, FOVEA_F32, 3, taps);
  p.o = floats(o, rows - history);
  p.history = history;
  p.causal = 1;
  must(fovea_conv_attention_forward(ctx, &p));
}

/* The formula of conv_attention.h: S, its convolution A, the softmax of A over keys 0 .. i. */
static void formula(const float* q, const float* k, const float* v, const float* weight, double* o) {
  static double S[TOKENS][TOKENS];
  int head, i, j, c, u, w;
  for (head = 0; head < HEADS; head++) {
    for (i = 0; i < TOKENS; i++) {
      for (j = 0; j < TOKENS; j++) {
        S[i][j] = 0; /* also where the row does not see the key */
        for (c = 0; j <= i && c < WIDTH; c++)
          S[i][j] += (double)q[i * ROW + head * WIDTH + c] * (double)k[j * ROW + head * WIDTH + c];
        S[i][j] /= sqrt((double)WIDTH);
      }
    }
    for (i = 0; i < TOKENS; i++) {
      double sum = 0, mean[WIDTH] = {0};
      for (j = 0; j <= i; j++) {
        double A = 0;
        for (u = 0; u < TAPS; u++)
          for (w = 0; w < COLUMNS; w++) {
            const int m = i - (TAPS - 1) + u, n = j - LEFT + w;
            if (m >= 0 && n >= 0 && n < TOKENS)
              A += (double)weight[(head * TAPS + u) * COLUMNS + w] * S[m][n];
          }
        sum += exp(A);
        for (c = 0; c < WIDTH; c++) mean[c] += exp(A) * (double)v[j * ROW + head * WIDTH + c];
      }
      for (c = 0; c < WIDTH; c++) o[i * ROW + head * WIDTH + c] = mean[c] / sum;
    }
  }
}

int main(void) {
  static float q[COUNT], k[COUNT], v[COUNT], o[COUNT], step[COUNT];
  static float weight[HEADS * TAPS * COLUMNS], identity[HEADS * TAPS * COLUMNS];
  static double wanted[COUNT];
  fovea_context* ctx = NULL;
  double plain, taps, decoded;
  int head, n;
  random_fill(q, COUNT, 1);
  random_fill(k, COUNT, 2);
  random_fill(v, COUNT, 3);
  random_fill(weight, sizeof weight / sizeof *weight, 4);
  for (head = 0; head < HEADS; head++)
    identity[(head * TAPS + TAPS - 1) * COLUMNS + LEFT] = 1;
  must(fovea_context_create(FOVEA_HOST, 0, &ctx));

  convolve(ctx, q, k, v, identity, o, TOKENS, TOKENS, 0);
  reference(q, k, v, wanted, NULL, TOKENS, TOKENS, HEADS, HEADS, WIDTH, 1);
  plain = relative_error(o, wanted, COUNT);

  convolve(ctx, q, k, v, weight, o, TOKENS, TOKENS, 0);
  formula(q, k, v, weight, wanted);
  taps = relative_error(o, wanted, COUNT);

  /* Token n, with as many query rows before it as there are and the taps reach. */
  for (n = 0; n < TOKENS; n++) {
    const int history = n < TAPS - 1 ? n : TAPS - 1;
    convolve(ctx, q, k, v, weight, step + n * ROW, history + 1, n + 1, history);
  }
  decoded = relative_error(step, wanted, COUNT);
  fovea_context_destroy(ctx);
  printf("relative error: identity %.1e, %d x %d taps %.1e, decoded %.1e\n", plain, (int)TAPS,
         (int)COLUMNS, taps, decoded);
  return !(plain < 1e-6 && taps < 1e-5 && decoded < 1e-5);
}
