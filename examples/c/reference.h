/* SPDX-License-Identifier: Apache-2.0 */
/* What the examples are checked with: attention in float64, numbers that look random, and how far two
 * results are apart. */
#ifndef REFERENCE_H
#define REFERENCE_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* One sequence: q (s, h, d), k and v (t, g, d), o (s, h, d), lse (h, s) or NULL; causal is aligned at
 * the end.  Row-major. */
static void reference(const float* q, const float* k, const float* v, double* o, double* lse, int s,
                      int t, int h, int g, int d, int causal) {
  double* score = malloc(sizeof *score * (size_t)t);
  int i, j, c, head;
  if (!score) exit(1);
  for (i = 0; i < s; i++) {
    for (head = 0; head < h; head++) {
      const int keys = causal ? i + t - s + 1 : t, from = head / (h / g);
      double* row = o + (i * h + head) * d;
      double most = -INFINITY, sum = 0;
      for (j = 0; j < keys; j++) {
        score[j] = 0;
        for (c = 0; c < d; c++)
          score[j] += (double)q[(i * h + head) * d + c] * (double)k[(j * g + from) * d + c];
        score[j] /= sqrt((double)d);
        if (score[j] > most) most = score[j];
      }
      for (c = 0; c < d; c++) row[c] = 0;
      for (j = 0; j < keys; j++) {
        const double weight = exp(score[j] - most);
        sum += weight;
        for (c = 0; c < d; c++) row[c] += weight * (double)v[(j * g + from) * d + c];
      }
      for (c = 0; c < d; c++) row[c] = keys > 0 ? row[c] / sum : 0;
      if (lse) lse[head * s + i] = most + log(sum);
    }
  }
  free(score);
}

/* Numbers in -1 .. 1. */
static void random_fill(float* x, size_t count, uint32_t seed) {
  size_t i;
  for (i = 0; i < count; i++) {
    seed = seed * 1664525u + 1013904223u;
    x[i] = (float)(seed >> 16) / 32768.0f - 1.0f;
  }
}

/* Root mean square of got - wanted, over that of wanted. */
static double relative_error(const float* got, const double* wanted, size_t count) {
  double off = 0, all = 0;
  size_t i;
  for (i = 0; i < count; i++) {
    off += ((double)got[i] - wanted[i]) * ((double)got[i] - wanted[i]);
    all += wanted[i] * wanted[i];
  }
  return sqrt(off / all);
}

#endif
