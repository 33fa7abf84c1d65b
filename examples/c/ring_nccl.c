/* SPDX-License-Identifier: Apache-2.0 */
/* Ring attention over NCCL: a text cut over the GPUs of one process, exchange under computation.
 *   cc ring_nccl.c $(pkg-config --cflags --libs fovea) -lnccl -lcudart -lm -o ring_nccl && ./ring_nccl
 *
 * As ring_mpi.c: rank r of n has chunks r and 2 n - 1 - r of 2 n, and at hop i its rows meet the keys of
 * rank r - i.  Each GPU has two streams:
 *
 *    event     recorded                     waited for by
 *    arrived   the hop's keys are received  the computation of the hop
 *    done      a hop is computed            the receive that reuses the buffer of its keys
 *
 * Then one row is decoded over keys that stay on their GPUs.  Results are compared with float64. */
#include <cuda_runtime_api.h>
#include <fovea/fovea.h>
#include <nccl.h>
#include <string.h>

#include "reference.h"

enum { MOST = 8, CHUNK = 64, HEADS = 4, KEY_HEADS = 2, WIDTH = 64, SHARD = 2 * CHUNK };
enum { Q_ROW = HEADS * WIDTH, K_ROW = KEY_HEADS * WIDTH, Q_SHARD = SHARD * Q_ROW, K_SHARD = SHARD * K_ROW };
enum { STATE = HEADS * SHARD, PART = Q_ROW + HEADS };

typedef struct rank_state {
  fovea_context* ctx;
  cudaStream_t compute, copy;
  cudaEvent_t arrived[2], done[2];
  float *q, *own, *coming[2], *o, *lse; /* own, coming: k, then v.  o, lse: the state, then a part */
  float *part, *parts, *row;
  int touched[2];
} rank_state;

static rank_state at[MOST];
static ncclComm_t comm[MOST];
static int size;

static void must(fovea_status status) {
  if (status == FOVEA_OK) return;
  fprintf(stderr, "%s: %s\n", fovea_status_name(status), fovea_last_error());
  exit(1);
}

static void cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(error));
  exit(1);
}

static void nccl(ncclResult_t result) {
  if (result == ncclSuccess) return;
  fprintf(stderr, "%s\n", ncclGetErrorString(result));
  exit(1);
}

static float* room(rank_state* r, size_t count) {
  void* made = NULL;
  must(fovea_alloc(r->ctx, FOVEA_MEMORY_DEVICE, count * sizeof(float), &made));
  return made;
}

static fovea_tensor rows_of(float* x, int first, int rows, int heads) {
  const int64_t shape[] = {1, rows, heads, WIDTH};
  return fovea_contiguous(x + first * heads * WIDTH, FOVEA_F32, 4, shape);
}

static int chunk_of(int rank, int half) { return half ? 2 * size - 1 - rank : rank; }

/* Chunk `a` of the rows over chunk `b` of the keys in kv, merged into the state. */
static void pair(rank_state* r, float* kv, int a, int b, int causal) {
  const int slot = r->touched[a]++ ? 1 : 0;
  const int64_t o_parts[] = {2, 1, CHUNK, HEADS, WIDTH}, lse_parts[] = {2, 1, HEADS, CHUNK};
  fovea_attention_forward_params p = {0};
  fovea_merge_forward_params m = {0};
  m.struct_size = sizeof m;
  m.o_part = fovea_contiguous(r->o + a * CHUNK * Q_ROW, FOVEA_F32, 5, o_parts);
  m.o_part.stride[0] = Q_SHARD;
  m.lse_part = fovea_contiguous(r->lse + a * CHUNK, FOVEA_F32, 4, lse_parts);
  m.lse_part.stride[0] = m.lse_part.stride[1] = STATE;
  m.lse_part.stride[2] = SHARD;
  m.o = rows_of(r->o, a * CHUNK, CHUNK, HEADS);
  m.lse = fovea_contiguous(m.lse_part.data, FOVEA_F32, 3, lse_parts + 1);
  m.lse.stride[0] = STATE;
  m.lse.stride[1] = SHARD;
  p.struct_size = sizeof p;
  p.q = rows_of(r->q, a * CHUNK, CHUNK, HEADS);
  p.k = rows_of(kv, b * CHUNK, CHUNK, KEY_HEADS);
  p.v = rows_of(kv + K_SHARD, b * CHUNK, CHUNK, KEY_HEADS);
  p.o = m.o;
  p.o.data = (float*)m.o.data + slot * Q_SHARD;
  p.lse = m.lse;
  p.lse.data = (float*)m.lse.data + slot * STATE;
  p.causal = causal;
  must(fovea_attention_forward(r->ctx, &p));
  if (slot) must(fovea_merge_forward(r->ctx, &m));
}

/* The keys of hop `hop` start to travel into buffer hop % 2. */
static void send(int hop) {
  int rank;
  for (rank = 0; rank < size; rank++) {
    cuda(cudaSetDevice(rank));
    cuda(cudaStreamWaitEvent(at[rank].copy, at[rank].done[hop % 2], 0));
  }
  nccl(ncclGroupStart());
  for (rank = 0; rank < size; rank++) {
    const int to = (rank + hop) % size, from = (rank - hop + size) % size;
    nccl(ncclSend(at[rank].own, 2 * K_SHARD, ncclFloat, to, comm[rank], at[rank].copy));
    nccl(ncclRecv(at[rank].coming[hop % 2], 2 * K_SHARD, ncclFloat, from, comm[rank], at[rank].copy));
  }
  nccl(ncclGroupEnd());
  for (rank = 0; rank < size; rank++) {
    cuda(cudaSetDevice(rank));
    cuda(cudaEventRecord(at[rank].arrived[hop % 2], at[rank].copy));
  }
}

static void compute(int hop) {
  int rank, a, b;
  for (rank = 0; rank < size; rank++) {
    rank_state* r = &at[rank];
    const int from = (rank - hop + size) % size;
    cuda(cudaSetDevice(rank));
    if (hop) cuda(cudaStreamWaitEvent(r->compute, r->arrived[hop % 2], 0));
    for (a = 0; a < 2; a++)
      for (b = 0; b < 2; b++)
        if (chunk_of(from, b) <= chunk_of(rank, a))
          pair(r, hop ? r->coming[hop % 2] : r->own, a, b, chunk_of(from, b) == chunk_of(rank, a));
    cuda(cudaEventRecord(r->done[hop % 2], r->compute));
  }
}

/* The last row over the keys of every GPU: o and lse of the parts are gathered, and merged in order. */
static void decode(void) {
  const int64_t lse_shape[] = {1, HEADS, 1}, o_parts[] = {size, 1, 1, HEADS, WIDTH};
  const int64_t lse_parts[] = {size, 1, HEADS, 1};
  int rank;
  for (rank = 0; rank < size; rank++) {
    fovea_attention_forward_params p = {0};
    p.struct_size = sizeof p;
    p.q = rows_of(at[rank].row, 0, 1, HEADS);
    p.k = rows_of(at[rank].own, 0, SHARD, KEY_HEADS);
    p.v = rows_of(at[rank].own + K_SHARD, 0, SHARD, KEY_HEADS);
    p.o = rows_of(at[rank].part, 0, 1, HEADS);
    p.lse = fovea_contiguous(at[rank].part + Q_ROW, FOVEA_F32, 3, lse_shape);
    must(fovea_attention_forward(at[rank].ctx, &p));
  }
  nccl(ncclGroupStart());
  for (rank = 0; rank < size; rank++)
    nccl(ncclAllGather(at[rank].part, at[rank].parts, PART, ncclFloat, comm[rank], at[rank].compute));
  nccl(ncclGroupEnd());
  for (rank = 0; rank < size; rank++) {
    fovea_merge_forward_params m = {0};
    m.struct_size = sizeof m;
    m.o_part = fovea_contiguous(at[rank].parts, FOVEA_F32, 5, o_parts);
    m.lse_part = fovea_contiguous(at[rank].parts + Q_ROW, FOVEA_F32, 4, lse_parts);
    m.o_part.stride[0] = m.lse_part.stride[0] = PART;
    m.o = rows_of(at[rank].row, 0, 1, HEADS); /* the row is read by then */
    must(fovea_merge_forward(at[rank].ctx, &m));
  }
}

int main(void) {
  static float q[MOST * Q_SHARD], k[MOST * K_SHARD], v[MOST * K_SHARD], o[MOST * Q_SHARD], row[Q_ROW];
  static double wanted[MOST * Q_SHARD];
  double error, row_error;
  int tokens, rank, hop, half;
  if (cudaGetDeviceCount(&size) != cudaSuccess || size < 1) return puts("ring_nccl: no GPU is here"), 0;
  size = size < MOST ? size : MOST;
  tokens = size * SHARD;
  random_fill(q, (size_t)tokens * Q_ROW, 1);
  random_fill(k, (size_t)tokens * K_ROW, 2);
  random_fill(v, (size_t)tokens * K_ROW, 3);
  nccl(ncclCommInitAll(comm, size, NULL));
  for (rank = 0; rank < size; rank++) {
    rank_state* r = &at[rank];
    cuda(cudaSetDevice(rank));
    must(fovea_context_create(FOVEA_CUDA, rank, &r->ctx));
    cuda(cudaStreamCreateWithFlags(&r->compute, cudaStreamNonBlocking));
    cuda(cudaStreamCreateWithFlags(&r->copy, cudaStreamNonBlocking));
    must(fovea_context_set_stream(r->ctx, r->compute));
    for (half = 0; half < 2; half++) {
      cuda(cudaEventCreateWithFlags(&r->arrived[half], cudaEventDisableTiming));
      cuda(cudaEventCreateWithFlags(&r->done[half], cudaEventDisableTiming));
      r->coming[half] = room(r, 2 * K_SHARD);
    }
    r->q = room(r, Q_SHARD), r->own = room(r, 2 * K_SHARD), r->row = room(r, Q_ROW);
    r->o = room(r, 2 * Q_SHARD), r->lse = room(r, 2 * STATE);
    r->part = room(r, PART), r->parts = room(r, (size_t)size * PART);
    for (half = 0; half < 2; half++) {
      const int to = half * CHUNK, from = chunk_of(rank, half) * CHUNK;
      must(fovea_copy(r->ctx, r->q + to * Q_ROW, q + from * Q_ROW, sizeof(float) * CHUNK * Q_ROW));
      must(fovea_copy(r->ctx, r->own + to * K_ROW, k + from * K_ROW, sizeof(float) * CHUNK * K_ROW));
      must(fovea_copy(r->ctx, r->own + K_SHARD + to * K_ROW, v + from * K_ROW,
                      sizeof(float) * CHUNK * K_ROW));
    }
    must(fovea_copy(r->ctx, r->row, q + (tokens - 1) * Q_ROW, sizeof row));
    must(fovea_context_synchronize(r->ctx)); /* the copying stream reads these too */
  }
  for (hop = 0; hop < size; hop++) {
    if (hop + 1 < size) send(hop + 1); /* under this hop's computation */
    compute(hop);
  }
  decode();
  for (rank = 0; rank < size; rank++) {
    for (half = 0; half < 2; half++)
      must(fovea_copy(at[rank].ctx, o + chunk_of(rank, half) * CHUNK * Q_ROW,
                      at[rank].o + half * CHUNK * Q_ROW, sizeof(float) * CHUNK * Q_ROW));
    if (rank == 0) must(fovea_copy(at[rank].ctx, row, at[rank].row, sizeof row));
    must(fovea_context_synchronize(at[rank].ctx));
  }
  reference(q, k, v, wanted, NULL, tokens, tokens, HEADS, KEY_HEADS, WIDTH, 1);
  error = relative_error(o, wanted, (size_t)tokens * Q_ROW);
  row_error = relative_error(row, wanted + (size_t)(tokens - 1) * Q_ROW, Q_ROW);
  printf("%d GPUs of %d tokens: relative error of o %.1e, of a decoded row %.1e\n", size, (int)SHARD, error,
         row_error);
  for (rank = 0; rank < size; rank++) {
    fovea_context_destroy(at[rank].ctx);
    nccl(ncclCommDestroy(comm[rank]));
  }
  return !(error < 1e-5 && row_error < 1e-5);
}
