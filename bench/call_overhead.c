/* SPDX-License-Identifier: Apache-2.0 */
/* Host time of one call that has nothing to compute: attention_forward with b = 0, s alternating
 * between 3 and 4, h = g = 2, d = 64, f32, outputs given.  The params are filled anew for every
 * call. Prints `language <tab> p50_ns`: the median over 2000 samples of 64 calls each. */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fovea/fovea.h"

enum { SAMPLES = 2000, CALLS = 64 };

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static int ascending(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static fovea_status call(fovea_context* ctx, void* data, int64_t s) {
  fovea_attention_forward_params p;
  int64_t shape[4];
  shape[0] = 0, shape[1] = s, shape[2] = 2, shape[3] = 64;
  memset(&p, 0, sizeof p);
  p.struct_size = sizeof p;
  p.q = fovea_contiguous(data, FOVEA_F32, 4, shape);
  p.k = p.q;
  p.v = p.q;
  p.o = p.q;
  return fovea_attention_forward(ctx, &p);
}

int main(int argc, char** argv) {
  static double sample[SAMPLES];
  const int cuda = argc > 1 && !strcmp(argv[1], "cuda");
  fovea_context* ctx = NULL;
  void* data = NULL;
  int i, j;
  if (fovea_context_create(cuda ? FOVEA_CUDA : FOVEA_HOST, 0, &ctx) ||
      fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, 256, &data) || call(ctx, data, 3)) {
    fprintf(stderr, "%s\n", fovea_last_error());
    return 1;
  }
  for (i = 0; i < SAMPLES; ++i) {
    const double begin = now_ns();
    for (j = 0; j < CALLS; ++j) {
      if (call(ctx, data, 3 + (j & 1))) {
        fprintf(stderr, "%s\n", fovea_last_error());
        return 1;
      }
    }
    sample[i] = (now_ns() - begin) / CALLS;
  }
  qsort(sample, SAMPLES, sizeof *sample, ascending);
  printf("c\t%.0f\n", sample[SAMPLES / 2]);
  fovea_free(ctx, data);
  fovea_context_destroy(ctx);
  return 0;
}
