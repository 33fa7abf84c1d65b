/* SPDX-License-Identifier: Apache-2.0 */
/* Attention from plain C, linked:
 *   cc attend.c $(pkg-config --cflags --libs fovea) -o attend && ./attend
 * The backend is the host unless the first argument is "cuda". */
#include <fovea/fovea.h>
#include <string.h>

#include "attend.h"

#define TRY(call)                                                                       \
  do {                                                                                  \
    fovea_status status = (call);                                                       \
    if (status != FOVEA_OK) {                                                           \
      fprintf(stderr, "%s: %s\n", fovea_status_name(status), fovea_last_error());       \
      return 1;                                                                         \
    }                                                                                   \
  } while (0)

int main(int argc, char** argv) {
  static float q[BATCH * QUERIES * HEADS * WIDTH], o[BATCH * QUERIES * HEADS * WIDTH];
  static float k[BATCH * KEYS * KEY_HEADS * WIDTH], v[BATCH * KEYS * KEY_HEADS * WIDTH];
  static float lse[BATCH * HEADS * QUERIES];
  const fovea_backend backend = argc > 1 && strcmp(argv[1], "cuda") == 0 ? FOVEA_CUDA : FOVEA_HOST;
  fovea_context* ctx = NULL;
  fovea_attention_forward_params p = {0};
  void *dq, *dk, *dv, *dout, *dlse;
  size_t bytes = 0;

  fill(q, sizeof q / sizeof *q, 1);
  fill(k, sizeof k / sizeof *k, 2);
  fill(v, sizeof v / sizeof *v, 3);

  /* Memory of the context's device; on the host backend it is ordinary memory. */
  TRY(fovea_context_create(backend, 0, &ctx));
  TRY(fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, sizeof q, &dq));
  TRY(fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, sizeof k, &dk));
  TRY(fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, sizeof v, &dv));
  TRY(fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, sizeof o, &dout));
  TRY(fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, sizeof lse, &dlse));
  TRY(fovea_copy(ctx, dq, q, sizeof q));
  TRY(fovea_copy(ctx, dk, k, sizeof k));
  TRY(fovea_copy(ctx, dv, v, sizeof v));

  p.struct_size = sizeof p;
  p.q = fovea_contiguous(dq, FOVEA_F32, 4, q_shape);
  p.k = fovea_contiguous(dk, FOVEA_F32, 4, kv_shape);
  p.v = fovea_contiguous(dv, FOVEA_F32, 4, kv_shape);
  p.o = fovea_contiguous(dout, FOVEA_F32, 4, q_shape);
  p.lse = fovea_contiguous(dlse, FOVEA_F32, 3, lse_shape);
  p.causal = 1;
  TRY(fovea_attention_forward_workspace(ctx, &p, &bytes)); /* optional: valid? how many bytes? */
  TRY(fovea_attention_forward(ctx, &p));

  TRY(fovea_copy(ctx, o, dout, sizeof o));
  TRY(fovea_copy(ctx, lse, dlse, sizeof lse));
  TRY(fovea_context_synchronize(ctx));
  print_rows(o, lse);
  fprintf(stderr, "fovea %s, kernel %s, workspace %lu bytes\n", fovea_build_get(FOVEA_BUILD_VERSION),
          fovea_context_last_kernel(ctx), (unsigned long)bytes);

  TRY(fovea_free(ctx, dq));
  TRY(fovea_free(ctx, dk));
  TRY(fovea_free(ctx, dv));
  TRY(fovea_free(ctx, dout));
  TRY(fovea_free(ctx, dlse));
  fovea_context_destroy(ctx);
  return 0;
}
