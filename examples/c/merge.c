/* SPDX-License-Identifier: Apache-2.0 */
/* Ring attention with merge_forward: a long sequence cut over RANKS devices.
 *   cc merge.c $(pkg-config --cflags --libs fovea) -lm -o merge && ./merge
 *
 * Rank r owns rows and keys r * BLOCK .. (r + 1) * BLOCK.  Keys travel: at hop n rank r sees the block
 * of rank r - n, so a rank never holds more than one block of foreign keys.  A state (o, lse) of
 * the keys seen so far is merged with the new part, in place.  Causally a block of later keys adds
 * nothing and is skipped, the own block is a triangle, and earlier blocks are seen whole.
 * The ranks are a loop here.  With one process a GPU the hop is a send and a receive. */
#include <fovea/fovea.h>

#include "reference.h"

enum { RANKS = 4, BLOCK = 48, HEADS = 4, KEY_HEADS = 2, WIDTH = 32 };
enum { ROWS = RANKS * BLOCK, Q_BLOCK = BLOCK * HEADS * WIDTH, K_BLOCK = BLOCK * KEY_HEADS * WIDTH };

static void must(fovea_status status) {
  if (status == FOVEA_OK) return;
  fprintf(stderr, "%s: %s\n", fovea_status_name(status), fovea_last_error());
  exit(1);
}

/* A block of rows against a block of keys: o (1, BLOCK, HEADS, WIDTH) and lse (1, HEADS, BLOCK). */
static void attend(fovea_context* ctx, float* q, float* k, float* v, float* o, float* lse,
                   int causal) {
  const int64_t q_shape[] = {1, BLOCK, HEADS, WIDTH}, k_shape[] = {1, BLOCK, KEY_HEADS, WIDTH};
  const int64_t lse_shape[] = {1, HEADS, BLOCK};
  fovea_attention_forward_params p = {0};
  p.struct_size = sizeof p;
  p.q = fovea_contiguous(q, FOVEA_F32, 4, q_shape);
  p.k = fovea_contiguous(k, FOVEA_F32, 4, k_shape);
  p.v = fovea_contiguous(v, FOVEA_F32, 4, k_shape);
  p.o = fovea_contiguous(o, FOVEA_F32, 4, q_shape);
  p.lse = fovea_contiguous(lse, FOVEA_F32, 3, lse_shape);
  p.causal = causal;
  must(fovea_attention_forward(ctx, &p));
}

/* Part 0 becomes the state of both parts: an output may be the first part itself. */
static void merge(fovea_context* ctx, float* o_part, float* lse_part) {
  const int64_t o_parts[] = {2, 1, BLOCK, HEADS, WIDTH}, lse_parts[] = {2, 1, HEADS, BLOCK};
  fovea_merge_forward_params p = {0};
  p.struct_size = sizeof p;
  p.o_part = fovea_contiguous(o_part, FOVEA_F32, 5, o_parts);
  p.lse_part = fovea_contiguous(lse_part, FOVEA_F32, 4, lse_parts);
  p.o = fovea_contiguous(o_part, FOVEA_F32, 4, o_parts + 1);
  p.lse = fovea_contiguous(lse_part, FOVEA_F32, 3, lse_parts + 1);
  must(fovea_merge_forward(ctx, &p));
}

int main(void) {
  static float q[RANKS * Q_BLOCK], k[RANKS * K_BLOCK], v[RANKS * K_BLOCK], o[RANKS * Q_BLOCK];
  static float o_part[2 * Q_BLOCK], lse_part[2 * HEADS * BLOCK], lse[HEADS * ROWS];
  static double wanted[RANKS * Q_BLOCK], wanted_lse[HEADS * ROWS];
  fovea_context* ctx = NULL;
  double error, lse_error;
  int rank, hop, i, head;
  random_fill(q, sizeof q / sizeof *q, 1);
  random_fill(k, sizeof k / sizeof *k, 2);
  random_fill(v, sizeof v / sizeof *v, 3);
  must(fovea_context_create(FOVEA_HOST, 0, &ctx));
  for (rank = 0; rank < RANKS; rank++) {
    float* own = q + rank * Q_BLOCK;
    for (hop = 0; hop < RANKS; hop++) {
      const int from = (rank - hop + RANKS) % RANKS; /* whose keys are here */
      if (from > rank) continue;
      /* The first part is the state itself; later ones stand beside it. */
      attend(ctx, own, k + from * K_BLOCK, v + from * K_BLOCK, o_part + (hop ? Q_BLOCK : 0),
             lse_part + (hop ? HEADS * BLOCK : 0), from == rank);
      if (hop) merge(ctx, o_part, lse_part);
    }
    for (i = 0; i < Q_BLOCK; i++) o[rank * Q_BLOCK + i] = o_part[i];
    for (head = 0; head < HEADS; head++)
      for (i = 0; i < BLOCK; i++) lse[head * ROWS + rank * BLOCK + i] = lse_part[head * BLOCK + i];
  }
  fovea_context_destroy(ctx);
  reference(q, k, v, wanted, wanted_lse, ROWS, ROWS, HEADS, KEY_HEADS, WIDTH, 1);
  error = relative_error(o, wanted, sizeof o / sizeof *o);
  lse_error = relative_error(lse, wanted_lse, sizeof lse / sizeof *lse);
  printf("%d ranks of %d keys: relative error of o %.1e, of lse %.1e\n", (int)RANKS, (int)BLOCK, error,
         lse_error);
  return !(error < 1e-6 && lse_error < 1e-6);
}
