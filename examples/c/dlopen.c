/* SPDX-License-Identifier: Apache-2.0 */
/* The same attention without linking fovea:
 *   cc dlopen.c $(pkg-config --cflags fovea) -ldl -o dlopen && ./dlopen
 * It loads libfovea.so.0 from where the loader looks, or the file that its argument names.  The
 * header gives the types; the functions come by name. */
#include <dlfcn.h>
#include <fovea/fovea.h>

#include "attend.h"

/* The functions this program uses, as one table. */
static struct {
  const char* (*last_error)(void);
  fovea_tensor (*contiguous)(void*, fovea_dtype, int32_t, const int64_t*);
  fovea_status (*context_create)(fovea_backend, int32_t, fovea_context**);
  void (*context_destroy)(fovea_context*);
  fovea_status (*attention_forward)(fovea_context*, const fovea_attention_forward_params*);
} fovea;

/* POSIX makes a function pointer of dlsym's object pointer; ISO C only lets us say so by memory. */
static int load(void* library, const char* name, void* slot) {
  void* symbol = dlsym(library, name);
  if (!symbol) fprintf(stderr, "%s\n", dlerror());
  *(void**)slot = symbol;
  return symbol != NULL;
}

int main(int argc, char** argv) {
  static float q[BATCH * QUERIES * HEADS * WIDTH], o[BATCH * QUERIES * HEADS * WIDTH];
  static float k[BATCH * KEYS * KEY_HEADS * WIDTH], v[BATCH * KEYS * KEY_HEADS * WIDTH];
  static float lse[BATCH * HEADS * QUERIES];
  fovea_attention_forward_params p = {0};
  fovea_context* ctx = NULL;
  int failed;
  void* library = dlopen(argc > 1 ? argv[1] : "libfovea.so.0", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  if (!load(library, "fovea_last_error", &fovea.last_error) ||
      !load(library, "fovea_contiguous", &fovea.contiguous) ||
      !load(library, "fovea_context_create", &fovea.context_create) ||
      !load(library, "fovea_context_destroy", &fovea.context_destroy) ||
      !load(library, "fovea_attention_forward", &fovea.attention_forward))
    return 1;

  fill(q, sizeof q / sizeof *q, 1);
  fill(k, sizeof k / sizeof *k, 2);
  fill(v, sizeof v / sizeof *v, 3);
  p.struct_size = sizeof p;
  p.q = fovea.contiguous(q, FOVEA_F32, 4, q_shape);
  p.k = fovea.contiguous(k, FOVEA_F32, 4, kv_shape);
  p.v = fovea.contiguous(v, FOVEA_F32, 4, kv_shape);
  p.o = fovea.contiguous(o, FOVEA_F32, 4, q_shape);
  p.lse = fovea.contiguous(lse, FOVEA_F32, 3, lse_shape);
  p.causal = 1;
  failed = fovea.context_create(FOVEA_HOST, 0, &ctx) != FOVEA_OK ||
           fovea.attention_forward(ctx, &p) != FOVEA_OK;
  if (failed)
    fprintf(stderr, "%s\n", fovea.last_error());
  else
    print_rows(o, lse);
  fovea.context_destroy(ctx);
  dlclose(library);
  return failed;
}
