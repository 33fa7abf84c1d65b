/* SPDX-License-Identifier: Apache-2.0 */
/* Continuous batching on a paged cache, as an inference engine writes it:
 *   cc decode.c $(pkg-config --cflags --libs fovea) -lm -o decode && ./decode
 * or with a CUDA graph, where nvcc is in PATH (CUDA 12 or later):
 *   nvcc -DWITH_CUDA decode.c $(pkg-config --cflags --libs fovea) -o decode && ./decode cuda
 *
 * Requests of different lengths arrive over time and share a batch of SLOTS sequences.
 *
 *    admission    a request waits until its slot and all pages it may need are free
 *    prefill      one chunk of one prompt a step, so that decoding never waits for a long prompt
 *    decode       one token of every sequence whose prompt is through: one call for the batch
 *    finished     the pages go back to the pool, and the next request takes the slot
 *
 * All prompts begin with the same PREFIX tokens (a system prompt).  Its keys are held once.  A row's
 * attention over the prefix and over its sequence's own pages are two parts, and merge_forward makes
 * one of them.  "cuda" runs on device 0.  WITH_CUDA then captures the decode step in a CUDA graph.
 * There is no model: q, k and v are numbers made from a token and its place.  Every row is checked
 * against attention in float64, and a difference is exit status 1. */
#include <fovea/fovea.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef WITH_CUDA
#include <cuda_runtime_api.h>
#endif

enum { HEADS = 4, KEY_HEADS = 2, WIDTH = 32, VOCABULARY = HEADS * WIDTH };
enum { SLOTS = 4, CHUNK = 16, ROWS = CHUNK }; /* ROWS: the most of one call */
enum { PREFIX = 40, PAGE = 16, PAGES = 6, POOL = 14, LONGEST = PAGES * PAGE };
enum { Q_ROW = HEADS * WIDTH, K_ROW = KEY_HEADS * WIDTH }; /* floats of a token */

/* Arrival (in steps), tokens of the prompt behind the prefix, tokens to make. */
static const struct { int arrives, prompt, wanted; } requests[] = {
    {0, 5, 20},  {0, 50, 12}, {1, 17, 30}, {3, 1, 9},
    {4, 33, 40}, {6, 16, 1},  {9, 80, 16}, {30, 8, 24}};
enum { REQUESTS = sizeof requests / sizeof *requests };

/* A slot of the batch: what the engine knows of a running sequence. */
struct sequence {
  int request;          /* -1: the slot is free */
  int length;           /* tokens in the cache */
  int known;            /* prompt, and tokens made */
  int token[LONGEST + 1];
};

/* Memory of the context's device, and what the scheduler keeps on the host. */
struct engine {
  fovea_context* ctx;
  float *q, *k_new, *v_new;                  /* rows of one call */
  float *prefix_k, *prefix_v;                /* (1, PREFIX, KEY_HEADS, WIDTH) */
  float *pool_k, *pool_v;                    /* (POOL, PAGE, KEY_HEADS, WIDTH) */
  float *o_part, *lse_part, *o;              /* two parts, and what they merge to */
  int32_t *page_table, *key_len, *query_len; /* (SLOTS, PAGES), (SLOTS), (SLOTS) */
  struct sequence slot[SLOTS];
  int32_t table[SLOTS][PAGES], rows[SLOTS]; /* what page_table and query_len will be */
  int32_t free_page[POOL];
  int free_pages, promised, fewest_free; /* promised: to running sequences, not yet taken */
  int decode_steps; /* before there is a graph */
  double worst; /* largest difference from float64 */
#ifdef WITH_CUDA
  cudaStream_t stream;
  cudaGraphExec_t graph;
#endif
};

static void must(fovea_status status) {
  if (status == FOVEA_OK) return;
  fprintf(stderr, "%s: %s\n", fovea_status_name(status), fovea_last_error());
  exit(1);
}

#ifdef WITH_CUDA
static void must_cuda(cudaError_t error) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(error));
  exit(1);
}
#endif

static void* zeros(fovea_context* ctx, size_t bytes) {
  void *data, *none = calloc(1, bytes);
  must(fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, bytes, &data));
  if (!none) exit(1);
  must(fovea_copy(ctx, data, none, bytes));
  must(fovea_context_synchronize(ctx));
  free(none);
  return data;
}

static fovea_tensor floats(float* data, int64_t b, int64_t s, int64_t heads) {
  const int64_t shape[] = {b, s, heads, WIDTH};
  return fovea_contiguous(data, FOVEA_F32, 4, shape);
}

static fovea_tensor ints(int32_t* data, int32_t ndim, int64_t rows, int64_t columns) {
  const int64_t shape[] = {rows, columns};
  return fovea_contiguous(data, FOVEA_I32, ndim, shape);
}

/* ---- one forward: rows of `b` slots from `first` on, `s` rows each, of which query_len count.
 * Everything is a view: slots of the batch are slices of the same tables. */
static void forward(const struct engine* e, int first, int64_t b, int64_t s) {
  const int64_t rows = b * s;
  const fovea_tensor query_len = ints(e->query_len + first, 1, b, 0);
  const fovea_tensor key_len = ints(e->key_len + first, 1, b, 0);
  const fovea_tensor page_table = ints(e->page_table + first * PAGES, 2, b, PAGES);
  fovea_cache_append_params a = {0};
  fovea_attention_forward_params shared = {0}, own = {0};
  fovea_merge_forward_params m = {0};

  /* Append first: key_len counts the new tokens when attention reads it.  The device keeps the
   * lengths itself, so a replayed graph finds them grown. */
  a.struct_size = sizeof a;
  a.k_new = floats(e->k_new, b, s, KEY_HEADS);
  a.v_new = floats(e->v_new, b, s, KEY_HEADS);
  a.k = floats(e->pool_k, POOL, PAGE, KEY_HEADS);
  a.v = floats(e->pool_v, POOL, PAGE, KEY_HEADS);
  a.page_table = page_table;
  a.query_len = query_len;
  a.key_len = a.key_len_out = key_len;
  must(fovea_cache_append(e->ctx, &a));

  /* The prefix: the rows of all sequences are one sequence of queries over keys that all see. */
  shared.struct_size = sizeof shared;
  shared.q = floats(e->q, 1, rows, HEADS);
  shared.k = floats(e->prefix_k, 1, PREFIX, KEY_HEADS);
  shared.v = floats(e->prefix_v, 1, PREFIX, KEY_HEADS);
  shared.o = floats(e->o_part, 1, rows, HEADS);
  shared.lse = fovea_contiguous(e->lse_part, FOVEA_F32, 3, (int64_t[]){1, HEADS, rows});
  must(fovea_attention_forward(e->ctx, &shared));

  /* Own keys, through the page table; causal is aligned at the end, so a chunk sees what is before
   * it.  lse is (b, h, s); its strides put it where the merge wants (h, b * s). */
  own.struct_size = sizeof own;
  own.q = floats(e->q, b, s, HEADS);
  own.k = a.k;
  own.v = a.v;
  own.page_table = page_table;
  own.query_len = query_len;
  own.key_len = key_len;
  own.o = floats(e->o_part + rows * Q_ROW, b, s, HEADS);
  own.lse = fovea_contiguous(e->lse_part + rows * HEADS, FOVEA_F32, 3, (int64_t[]){b, HEADS, s});
  own.lse.stride[0] = s;
  own.lse.stride[1] = rows;
  own.causal = 1;
  must(fovea_attention_forward(e->ctx, &own));

  m.struct_size = sizeof m;
  m.o_part = fovea_contiguous(e->o_part, FOVEA_F32, 5, (int64_t[]){2, 1, rows, HEADS, WIDTH});
  m.lse_part = fovea_contiguous(e->lse_part, FOVEA_F32, 4, (int64_t[]){2, 1, HEADS, rows});
  m.o = floats(e->o, 1, rows, HEADS);
  must(fovea_merge_forward(e->ctx, &m));
}

/* The decode step has one shape whatever runs in it: a free slot has query_len 0.  So it is captured
 * once; a replay reads tokens, lengths and pages anew.  The first step runs as it is, which grows
 * the context's workspace: that is not possible under capture. */
static void decode_step(struct engine* e) {
#ifdef WITH_CUDA
  cudaGraph_t graph = NULL;
  if (e->stream && e->decode_steps == 1) {
    must_cuda(cudaStreamBeginCapture(e->stream, cudaStreamCaptureModeThreadLocal));
    forward(e, 0, SLOTS, 1); /* recorded, not run */
    must_cuda(cudaStreamEndCapture(e->stream, &graph));
    must_cuda(cudaGraphInstantiate(&e->graph, graph, 0));
    must_cuda(cudaGraphDestroy(graph));
  }
  if (e->graph) {
    must_cuda(cudaGraphLaunch(e->graph, e->stream));
    return;
  }
#endif
  e->decode_steps++;
  forward(e, 0, SLOTS, 1);
}

/* ---- the stand-in for a model, and the check */

enum { QUERY, KEY, VALUE };

/* The q, k or v of a token at a position: numbers in -2 .. 2. */
static void embed(float* x, int count, int kind, int token, int position) {
  uint32_t state = (uint32_t)(position * 1000 + token * 3 + kind) * 2654435761u;
  int i;
  for (i = 0; i < count; i++) {
    state = state * 1664525u + 1013904223u;
    x[i] = (float)(state >> 16) / 16384.0f - 2.0f;
  }
}

static int prefix_token(int i) { return (i * 7 + 3) % VOCABULARY; }
static int prompt_token(int request, int i) { return (request * 31 + i * 11) % VOCABULARY; }

/* The largest difference of a row from softmax(q k^T / sqrt(d)) v in float64, over the prefix and
 * the sequence's own tokens 0 .. at. */
static double difference(const struct sequence* s, int at, const float* o) {
  float q[Q_ROW], k[K_ROW], v[K_ROW];
  double worst = 0;
  int head, j, c;
  embed(q, Q_ROW, QUERY, s->token[at], PREFIX + at);
  for (head = 0; head < HEADS; head++) {
    const int from = head / (HEADS / KEY_HEADS) * WIDTH;
    double sum = 0, mean[WIDTH] = {0};
    for (j = 0; j < PREFIX + at + 1; j++) {
      const int token = j < PREFIX ? prefix_token(j) : s->token[j - PREFIX];
      double score = 0;
      embed(k, K_ROW, KEY, token, j);
      embed(v, K_ROW, VALUE, token, j);
      for (c = 0; c < WIDTH; c++) score += (double)q[head * WIDTH + c] * k[from + c];
      score = exp(score / sqrt((double)WIDTH)); /* small enough for exp without its maximum */
      sum += score;
      for (c = 0; c < WIDTH; c++) mean[c] += score * v[from + c];
    }
    for (c = 0; c < WIDTH; c++) worst = fmax(worst, fabs(mean[c] / sum - o[head * WIDTH + c]));
  }
  return worst;
}

/* ---- the scheduler */

static int pages_of(int tokens) { return (tokens + PAGE - 1) / PAGE; }

/* The last token that is made is never fed back, so it needs no place. */
static int pages_needed(int r) { return pages_of(requests[r].prompt + requests[r].wanted - 1); }

static int admit(struct engine* e, int r) {
  const int32_t none = 0;
  int i, n;
  if (pages_needed(r) > e->free_pages - e->promised) return 0;
  for (i = 0; i < SLOTS; i++) {
    struct sequence* s = &e->slot[i];
    if (s->request >= 0) continue;
    s->request = r;
    s->length = 0;
    s->known = requests[r].prompt;
    for (n = 0; n < s->known; n++) s->token[n] = prompt_token(r, n);
    e->promised += pages_needed(r);
    must(fovea_copy(e->ctx, e->key_len + i, &none, sizeof none));
    return 1;
  }
  return 0;
}

static void retire(struct engine* e, int i) {
  int n;
  for (n = 0; n < PAGES; n++) {
    if (e->table[i][n] < 0) continue;
    e->free_page[e->free_pages++] = e->table[i][n];
    e->table[i][n] = -1;
  }
  e->slot[i].request = -1;
}

/* Takes the pages that `rows` more tokens of a slot reach, and writes its rows of q, k_new, v_new
 * from row `at` of the call on. */
static void feed(struct engine* e, int i, int rows, int at, float (*host)[ROWS * Q_ROW]) {
  struct sequence* s = &e->slot[i];
  int n;
  for (n = pages_of(s->length); n < pages_of(s->length + rows); n++) {
    e->table[i][n] = e->free_page[--e->free_pages];
    e->promised--;
  }
  if (e->free_pages < e->fewest_free) e->fewest_free = e->free_pages;
  for (n = 0; n < rows; n++) {
    const int token = s->token[s->length + n], position = PREFIX + s->length + n;
    embed(host[QUERY] + (at + n) * Q_ROW, Q_ROW, QUERY, token, position);
    embed(host[KEY] + (at + n) * K_ROW, K_ROW, KEY, token, position);
    embed(host[VALUE] + (at + n) * K_ROW, K_ROW, VALUE, token, position);
  }
  e->rows[i] = rows;
}

/* Checks the rows of a slot; the last one, if no known token follows, makes the next. */
static int harvest(struct engine* e, int i, const float* o) {
  struct sequence* s = &e->slot[i];
  int n, c, best = 0;
  for (n = 0; n < e->rows[i]; n++)
    e->worst = fmax(e->worst, difference(s, s->length + n, o + n * Q_ROW));
  s->length += e->rows[i];
  if (s->length < s->known) return 0;
  o += (e->rows[i] - 1) * Q_ROW;
  for (c = 1; c < Q_ROW; c++)
    if (o[c] > o[best]) best = c;
  s->token[s->known++] = best;
  if (s->known < requests[s->request].prompt + requests[s->request].wanted) return 0;
  retire(e, i);
  return 1;
}

/* One chunk of slot `chunk`'s prompt, or with -1 a token of every slot that decodes.  Answers how
 * many sequences are done. */
static int call(struct engine* e, int chunk) {
  static float host[3][ROWS * Q_ROW], o[ROWS * Q_ROW];
  int i, done = 0, fed = 0;
  for (i = 0; i < SLOTS; i++) {
    struct sequence* s = &e->slot[i];
    const int left = s->request < 0 ? 0 : s->known - s->length;
    e->rows[i] = 0;
    if (chunk == i) feed(e, i, left < CHUNK ? left : CHUNK, 0, host);
    if (chunk < 0 && left == 1 && s->length >= requests[s->request].prompt) feed(e, i, 1, i, host);
    fed += e->rows[i];
  }
  if (!fed) return 0;
  must(fovea_copy(e->ctx, e->q, host[QUERY], sizeof host[QUERY]));
  must(fovea_copy(e->ctx, e->k_new, host[KEY], ROWS * K_ROW * sizeof(float)));
  must(fovea_copy(e->ctx, e->v_new, host[VALUE], ROWS * K_ROW * sizeof(float)));
  must(fovea_copy(e->ctx, e->page_table, e->table, sizeof e->table));
  must(fovea_copy(e->ctx, e->query_len, e->rows, sizeof e->rows));
  if (chunk < 0)
    decode_step(e);
  else
    forward(e, chunk, 1, CHUNK);
  must(fovea_copy(e->ctx, o, e->o, sizeof o));
  must(fovea_context_synchronize(e->ctx));
  for (i = 0; i < SLOTS; i++)
    if (e->rows[i]) done += harvest(e, i, o + (chunk < 0 ? i : 0) * Q_ROW);
  return done;
}

static void start(struct engine* e, fovea_backend backend) {
  static float k[PREFIX * K_ROW], v[PREFIX * K_ROW];
  int i, n;
  must(fovea_context_create(backend, 0, &e->ctx));
#ifdef WITH_CUDA
  if (backend == FOVEA_CUDA)
    must_cuda(cudaStreamCreateWithFlags(&e->stream, cudaStreamNonBlocking));
  must(fovea_context_set_stream(e->ctx, e->stream)); /* a stream of ours can be captured */
#endif
  e->q = zeros(e->ctx, ROWS * Q_ROW * sizeof(float));
  e->k_new = zeros(e->ctx, ROWS * K_ROW * sizeof(float));
  e->v_new = zeros(e->ctx, ROWS * K_ROW * sizeof(float));
  e->prefix_k = zeros(e->ctx, sizeof k);
  e->prefix_v = zeros(e->ctx, sizeof v);
  e->pool_k = zeros(e->ctx, POOL * PAGE * K_ROW * sizeof(float));
  e->pool_v = zeros(e->ctx, POOL * PAGE * K_ROW * sizeof(float));
  e->o_part = zeros(e->ctx, 2 * ROWS * Q_ROW * sizeof(float));
  e->lse_part = zeros(e->ctx, 2 * ROWS * HEADS * sizeof(float));
  e->o = zeros(e->ctx, ROWS * Q_ROW * sizeof(float));
  e->page_table = zeros(e->ctx, sizeof e->table);
  e->key_len = zeros(e->ctx, SLOTS * sizeof(int32_t));
  e->query_len = zeros(e->ctx, sizeof e->rows);
  for (i = 0; i < PREFIX; i++) {
    embed(k + i * K_ROW, K_ROW, KEY, prefix_token(i), i);
    embed(v + i * K_ROW, K_ROW, VALUE, prefix_token(i), i);
  }
  must(fovea_copy(e->ctx, e->prefix_k, k, sizeof k));
  must(fovea_copy(e->ctx, e->prefix_v, v, sizeof v));
  e->fewest_free = e->free_pages = POOL;
  for (i = 0; i < POOL; i++) e->free_page[i] = i;
  for (i = 0; i < SLOTS; i++) {
    e->slot[i].request = -1;
    for (n = 0; n < PAGES; n++) e->table[i][n] = -1;
  }
}

static void stop(struct engine* e) {
  void* all[] = {e->q, e->k_new, e->v_new, e->prefix_k, e->prefix_v, e->pool_k, e->pool_v,
                 e->o_part, e->lse_part, e->o, e->page_table, e->key_len, e->query_len};
  size_t i;
#ifdef WITH_CUDA
  if (e->graph) cudaGraphExecDestroy(e->graph); /* before the context, whose workspace it holds */
#endif
  for (i = 0; i < sizeof all / sizeof *all; i++) must(fovea_free(e->ctx, all[i]));
  fovea_context_destroy(e->ctx);
#ifdef WITH_CUDA
  if (e->stream) cudaStreamDestroy(e->stream);
#endif
}

int main(int argc, char** argv) {
  static struct engine e;
  int step, i, next = 0, done = 0, made = 0;
  start(&e, argc > 1 && strcmp(argv[1], "cuda") == 0 ? FOVEA_CUDA : FOVEA_HOST);
  for (step = 0; done < REQUESTS; step++) {
    int oldest = -1;
    while (next < REQUESTS && requests[next].arrives <= step && admit(&e, next)) next++;
    for (i = 0; i < SLOTS; i++) {
      const struct sequence* s = &e.slot[i];
      if (s->request < 0 || s->length >= requests[s->request].prompt) continue;
      if (oldest < 0 || s->request < e.slot[oldest].request) oldest = i;
    }
    if (oldest >= 0) done += call(&e, oldest);
    done += call(&e, -1);
  }
  for (i = 0; i < REQUESTS; i++) made += requests[i].wanted;
  printf("%d requests, %d tokens in %d steps, at most %d of %d pages, by %s\n", (int)REQUESTS, made,
         step, POOL - e.fewest_free, (int)POOL, fovea_context_last_kernel(e.ctx));
  printf("largest difference from float64: %.1e\n", e.worst);
  stop(&e);
  return !(e.worst < 1e-5) || e.free_pages != POOL || e.promised;
}
