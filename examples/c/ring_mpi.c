/* SPDX-License-Identifier: Apache-2.0 */
/* Ring attention and split decoding over MPI: a text cut over the processes of a job.
 *   mpicc ring_mpi.c $(pkg-config --cflags --libs fovea) -lm -o ring_mpi && mpirun -n 2 ./ring_mpi
 *
 * Rank r of n has chunks r and 2 n - 1 - r of 2 n (zig-zag), so that all have the same causal work.  At
 * hop i its rows meet the keys of rank r - i, which come while hop i - 1 is computed.  merge_forward joins
 * the states (o, lse), attention_backward makes the gradients of a hop from the whole row's o and lse, and
 * dk, dv of a hop go home.  Every process checks its part against one process's result. */
#include <fovea/fovea.h>
#include <mpi.h>
#include <string.h>

#include "reference.h"

enum { CHUNK = 16, HEADS = 4, KEY_HEADS = 2, WIDTH = 32, SHARD = 2 * CHUNK };
enum { Q_ROW = HEADS * WIDTH, K_ROW = KEY_HEADS * WIDTH, Q_SHARD = SHARD * Q_ROW, K_SHARD = SHARD * K_ROW };

static fovea_context* ctx;
static int rank, size;

static void must(fovea_status status) {
  if (status == FOVEA_OK) return;
  fprintf(stderr, "rank %d: %s: %s\n", rank, fovea_status_name(status), fovea_last_error());
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static float* numbers(size_t count) {
  float* x = calloc(count, sizeof *x);
  if (!x) MPI_Abort(MPI_COMM_WORLD, 1);
  return x;
}

/* A view of `rows` rows of a shard, from its row `at`. */
static fovea_tensor rows_of(float* x, int at, int rows, int heads) {
  const int64_t shape[] = {1, rows, heads, WIDTH};
  return fovea_contiguous(x + at * heads * WIDTH, FOVEA_F32, 4, shape);
}

static fovea_tensor lse_of(float* lse, int at, int rows) {
  const int64_t shape[] = {1, HEADS, rows};
  fovea_tensor t = fovea_contiguous(lse + at, FOVEA_F32, 3, shape);
  t.stride[0] = HEADS * SHARD;
  t.stride[1] = SHARD;
  return t;
}

/* The two chunks of a rank in the order of the text. */
static int chunk_of(int of, int half) { return half ? 2 * size - 1 - of : of; }

/* Copies a rank's chunks out of the whole text. */
static void take(float* shard, const float* whole, int of, int row) {
  int half;
  for (half = 0; half < 2; half++)
    memcpy(shard + half * CHUNK * row, whole + (size_t)chunk_of(of, half) * CHUNK * (size_t)row,
           sizeof *shard * CHUNK * (size_t)row);
}

/* Chunk `a` of the own rows over chunk `b` of the keys in kv, merged into part 0 of o and lse. */
static void forward(float* q, float* kv, float* o, float* lse, int a, int b, int causal, int first) {
  const int slot = first ? 0 : 1;
  fovea_attention_forward_params p = {0};
  p.struct_size = sizeof p;
  p.q = rows_of(q, a * CHUNK, CHUNK, HEADS);
  p.k = rows_of(kv, b * CHUNK, CHUNK, KEY_HEADS);
  p.v = rows_of(kv + K_SHARD, b * CHUNK, CHUNK, KEY_HEADS);
  p.o = rows_of(o + slot * Q_SHARD, a * CHUNK, CHUNK, HEADS);
  p.lse = lse_of(lse + slot * HEADS * SHARD, a * CHUNK, CHUNK);
  p.causal = causal;
  must(fovea_attention_forward(ctx, &p));
  if (!first) {
    fovea_merge_forward_params m = {0};
    const int64_t o_parts[] = {2, 1, CHUNK, HEADS, WIDTH}, lse_parts[] = {2, 1, HEADS, CHUNK};
    m.struct_size = sizeof m;
    m.o = rows_of(o, a * CHUNK, CHUNK, HEADS);
    m.lse = lse_of(lse, a * CHUNK, CHUNK);
    m.o_part = fovea_contiguous(m.o.data, FOVEA_F32, 5, o_parts);
    m.o_part.stride[0] = Q_SHARD;
    m.lse_part = fovea_contiguous(m.lse.data, FOVEA_F32, 4, lse_parts);
    m.lse_part.stride[0] = m.lse_part.stride[1] = HEADS * SHARD;
    m.lse_part.stride[2] = SHARD;
    must(fovea_merge_forward(ctx, &m));
  }
}

/* The gradients of the same pair, added to dq and to dkv of the keys. */
static void backward(float* q, float* kv, float* o, float* lse, float* dout, float* dq, float* dkv, int a,
                     int b, int causal) {
  static float made_q[CHUNK * Q_ROW], made_k[CHUNK * K_ROW], made_v[CHUNK * K_ROW];
  fovea_attention_backward_params p = {0};
  int i;
  p.struct_size = sizeof p;
  p.q = rows_of(q, a * CHUNK, CHUNK, HEADS);
  p.k = rows_of(kv, b * CHUNK, CHUNK, KEY_HEADS);
  p.v = rows_of(kv + K_SHARD, b * CHUNK, CHUNK, KEY_HEADS);
  p.o = rows_of(o, a * CHUNK, CHUNK, HEADS);
  p.lse = lse_of(lse, a * CHUNK, CHUNK);
  p.dout = rows_of(dout, a * CHUNK, CHUNK, HEADS);
  p.dq = rows_of(made_q, 0, CHUNK, HEADS);
  p.dk = rows_of(made_k, 0, CHUNK, KEY_HEADS);
  p.dv = rows_of(made_v, 0, CHUNK, KEY_HEADS);
  p.causal = causal;
  must(fovea_attention_backward(ctx, &p));
  for (i = 0; i < CHUNK * Q_ROW; i++) dq[a * CHUNK * Q_ROW + i] += made_q[i];
  for (i = 0; i < CHUNK * K_ROW; i++) {
    dkv[b * CHUNK * K_ROW + i] += made_k[i];
    dkv[K_SHARD + b * CHUNK * K_ROW + i] += made_v[i];
  }
}

/* All hops.  Without dout the forward into o and lse; with it dq, and dkv of the own keys. */
static void ring(float* q, float* own, float* o, float* lse, float* dout, float* dq, float* dkv) {
  float *held = own, *coming = numbers(2 * K_SHARD), *spare = numbers(2 * K_SHARD);
  float *part = numbers(2 * K_SHARD), *home = numbers(2 * K_SHARD);
  int touched[2] = {0, 0}, hop, a, b, i;
  for (hop = 0; hop < size; hop++) {
    const int from = (rank - hop + size) % size, next = hop + 1;
    MPI_Request wait[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    if (next < size) { /* under this hop's computation */
      MPI_Irecv(coming, 2 * K_SHARD, MPI_FLOAT, (rank - next + size) % size, next, MPI_COMM_WORLD, wait);
      MPI_Isend(own, 2 * K_SHARD, MPI_FLOAT, (rank + next) % size, next, MPI_COMM_WORLD, wait + 1);
    }
    memset(part, 0, sizeof *part * 2 * K_SHARD);
    for (a = 0; a < 2; a++)
      for (b = 0; b < 2; b++) {
        const int row = chunk_of(rank, a), key = chunk_of(from, b);
        if (key > row) continue;
        if (dout)
          backward(q, held, o, lse, dout, dq, part, a, b, key == row);
        else
          forward(q, held, o, lse, a, b, key == row, !touched[a]++);
      }
    if (dout) { /* the keys' gradients go to their rank, and are added in the order of the hops */
      MPI_Sendrecv(part, 2 * K_SHARD, MPI_FLOAT, from, size + hop, home, 2 * K_SHARD, MPI_FLOAT,
                   (rank + hop) % size, size + hop, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      for (i = 0; i < 2 * K_SHARD; i++) dkv[i] += home[i];
    }
    MPI_Waitall(2, wait, MPI_STATUSES_IGNORE);
    held = coming, coming = spare, spare = held;
  }
  free(spare), free(coming), free(part), free(home);
}

/* One new row, the same everywhere, over the keys that each rank has; parts are merged in order. */
static void decode(float* row, float* kv, float* o) {
  const int64_t o_parts[] = {size, 1, 1, HEADS, WIDTH}, lse_parts[] = {size, 1, HEADS, 1};
  float part[Q_ROW + HEADS], *parts = numbers((size_t)size * (Q_ROW + HEADS));
  const int64_t lse_shape[] = {1, HEADS, 1};
  fovea_attention_forward_params p = {0};
  fovea_merge_forward_params m = {0};
  p.struct_size = sizeof p, m.struct_size = sizeof m;
  p.q = rows_of(row, 0, 1, HEADS);
  p.k = rows_of(kv, 0, SHARD, KEY_HEADS);
  p.v = rows_of(kv + K_SHARD, 0, SHARD, KEY_HEADS);
  p.o = rows_of(part, 0, 1, HEADS);
  p.lse = fovea_contiguous(part + Q_ROW, FOVEA_F32, 3, lse_shape);
  must(fovea_attention_forward(ctx, &p));
  MPI_Allgather(part, Q_ROW + HEADS, MPI_FLOAT, parts, Q_ROW + HEADS, MPI_FLOAT, MPI_COMM_WORLD);
  m.o_part = fovea_contiguous(parts, FOVEA_F32, 5, o_parts);
  m.lse_part = fovea_contiguous(parts + Q_ROW, FOVEA_F32, 4, lse_parts);
  m.o_part.stride[0] = m.lse_part.stride[0] = Q_ROW + HEADS;
  m.o = rows_of(o, 0, 1, HEADS);
  must(fovea_merge_forward(ctx, &m));
  free(parts);
}

/* How far a shard is from the same rows of the whole. */
static double off(const float* shard, const float* whole, int row) {
  float* mine = numbers((size_t)SHARD * (size_t)row);
  double *wanted = malloc(sizeof *wanted * SHARD * (size_t)row), error;
  int i;
  if (!wanted) MPI_Abort(MPI_COMM_WORLD, 1);
  take(mine, whole, rank, row);
  for (i = 0; i < SHARD * row; i++) wanted[i] = (double)mine[i];
  error = relative_error(shard, wanted, (size_t)SHARD * (size_t)row);
  free(mine), free(wanted);
  return error;
}

int main(int argc, char** argv) {
  static float q[Q_SHARD], kv[2 * K_SHARD], dout[Q_SHARD], o[2 * Q_SHARD], lse[2 * HEADS * SHARD];
  static float dq[Q_SHARD], dkv[2 * K_SHARD], one[Q_ROW];
  double errors[5], worst[5], wanted[Q_ROW], bound, *exact;
  float *all_q, *all_k, *all_v, *all_do, *all_o, *all_lse, *all_dq, *all_dk, *all_dv;
  const int64_t lse_shape[] = {1, HEADS, 0};
  fovea_attention_forward_params f = {0};
  fovea_attention_backward_params g = {0};
  int tokens, i;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  must(fovea_context_create(FOVEA_HOST, 0, &ctx));
  must(fovea_context_set_threads(ctx, 1));
  tokens = size * SHARD;
  all_q = numbers((size_t)tokens * Q_ROW), all_do = numbers((size_t)tokens * Q_ROW);
  all_o = numbers((size_t)tokens * Q_ROW), all_dq = numbers((size_t)tokens * Q_ROW);
  all_k = numbers((size_t)tokens * K_ROW), all_v = numbers((size_t)tokens * K_ROW);
  all_dk = numbers((size_t)tokens * K_ROW), all_dv = numbers((size_t)tokens * K_ROW);
  all_lse = numbers((size_t)tokens * HEADS);
  random_fill(all_q, (size_t)tokens * Q_ROW, 1), random_fill(all_do, (size_t)tokens * Q_ROW, 4);
  random_fill(all_k, (size_t)tokens * K_ROW, 2), random_fill(all_v, (size_t)tokens * K_ROW, 3);
  take(q, all_q, rank, Q_ROW), take(dout, all_do, rank, Q_ROW);
  take(kv, all_k, rank, K_ROW), take(kv + K_SHARD, all_v, rank, K_ROW);

  ring(q, kv, o, lse, NULL, NULL, NULL);
  ring(q, kv, o, lse, dout, dq, dkv);
  decode(all_q + (tokens - 1) * Q_ROW, kv, one);

  /* One process's result. */
  f.struct_size = sizeof f, g.struct_size = sizeof g;
  f.q = g.q = rows_of(all_q, 0, tokens, HEADS), f.k = g.k = rows_of(all_k, 0, tokens, KEY_HEADS);
  f.v = g.v = rows_of(all_v, 0, tokens, KEY_HEADS), f.o = g.o = rows_of(all_o, 0, tokens, HEADS);
  f.lse = fovea_contiguous(all_lse, FOVEA_F32, 3, lse_shape);
  f.lse.shape[2] = f.lse.stride[1] = tokens, f.lse.stride[0] = (int64_t)tokens * HEADS;
  g.lse = f.lse, g.dout = rows_of(all_do, 0, tokens, HEADS), g.dq = rows_of(all_dq, 0, tokens, HEADS);
  g.dk = rows_of(all_dk, 0, tokens, KEY_HEADS), g.dv = rows_of(all_dv, 0, tokens, KEY_HEADS);
  f.causal = g.causal = 1;
  must(fovea_attention_forward(ctx, &f));
  must(fovea_attention_backward(ctx, &g));
  exact = malloc(sizeof *exact * (size_t)tokens * Q_ROW);
  if (!exact) MPI_Abort(MPI_COMM_WORLD, 1);
  reference(all_q, all_k, all_v, exact, NULL, tokens, tokens, HEADS, KEY_HEADS, WIDTH, 1);
  bound = relative_error(all_o, exact, (size_t)tokens * Q_ROW);
  for (i = 0; i < Q_ROW; i++) wanted[i] = (double)all_o[(tokens - 1) * Q_ROW + i];
  errors[0] = off(o, all_o, Q_ROW), errors[1] = off(dq, all_dq, Q_ROW);
  errors[2] = off(dkv, all_dk, K_ROW), errors[3] = off(dkv + K_SHARD, all_dv, K_ROW);
  errors[4] = relative_error(one, wanted, Q_ROW);
  MPI_Allreduce(errors, worst, 5, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  for (i = 0; i < 5; i++) bound = worst[i] > bound ? worst[i] : bound;
  if (rank == 0)
    printf("%d ranks of %d tokens: relative error of o %.1e, dq %.1e, dk %.1e, dv %.1e, decode %.1e\n", size,
           (int)SHARD, worst[0], worst[1], worst[2], worst[3], worst[4]);
  fovea_context_destroy(ctx);
  MPI_Finalize();
  return !(bound < 1e-6);
}
