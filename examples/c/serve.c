/* SPDX-License-Identifier: Apache-2.0 */
/* A server's loop over linear attention: 64 requests share a pool of states.
 *   cc -O3 serve.c $(pkg-config --cflags --libs fovea) -lm -o serve && ./serve --random
 *   ./serve gated_deltanet.npz cuda     weights that examples/python/linear/lm.py saved
 *
 * The model is a byte language model with layers of gated_deltanet or kda.  fovea mixes the tokens,
 * by x_conv1d and x_delta.  The rest is plain C on the host, one row at a time: each token that is
 * read costs the same there, so on the host batches and drafts save little.
 *
 *    state         what a layer keeps of a request: a matrix a head, and the convolution's tail.
 *                  Its size does not depend on the length
 *    pool          rows of states; all layers use the same row numbers
 *    prefill       chunks of several prompts in one packed call: start, state_row, state_out_row
 *    decode        a token of every request whose prompt is through: one call a layer, in place
 *    drafts        up to four bytes that followed the same three bytes earlier in the text
 *    verify        s = 1 + drafts, no state_out: the pool stays as it was
 *    commit        the same tensors, len = accepted, no o: rejected drafts never reach the pool
 *    rollback      instead: a snapshot after each token; the last accepted one becomes the state
 *    prefix cache  a snapshot after each BLOCK tokens of a prompt.  A later request whose prompt
 *                  begins alike starts from it
 *
 * Every call has token_max < 64, so its sequences run token by token.  Then neither the batch nor
 * the cut into calls changes a bit.  The program holds this: all ways of serving must give the
 * bytes and the logits of one request at a time, or the exit status is 1. */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */
#include <fovea/experimental/linear.h>
#include <fovea/fovea.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { REQUESTS = 64, LONGEST = 256 };                 /* bytes of a prompt and its answer */
enum { RUNNING = 24, DRAFTS = 4, TRIED = 1 + DRAFTS }; /* TRIED: tokens of a verify */
enum { BLOCK = 16, CHUNK = 32, PACK = 4 }; /* tokens, tokens, prompts of a prefill call */
enum { ROWS = 128 };                       /* the most of one call */
enum { CACHED = 40, POOL = RUNNING * (1 + TRIED) + CACHED };
enum { BYTES = 256, LAYERS = 32, NGRAM = 3 };
typedef char rows_suffice[ROWS >= RUNNING * TRIED && ROWS >= PACK * CHUNK ? 1 : -1];

static void must(fovea_status status) {
  if (status == FOVEA_OK) return;
  fprintf(stderr, "%s: %s\n", fovea_status_name(status), fovea_last_error());
  exit(1);
}

static void fail(const char* format, ...) {
  va_list words;
  va_start(words, format);
  fprintf(stderr, "serve: ");
  vfprintf(stderr, format, words);
  fprintf(stderr, "\n");
  va_end(words);
  exit(1);
}

static void* room(size_t count, size_t size) {
  void* data = calloc(count ? count : 1, size);
  if (!data) fail("no memory for %zu times %zu bytes", count, size);
  return data;
}

/* ---- weights: an .npz is a ZIP of .npy arrays, which np.savez does not compress */

struct array {
  char name[32];     /* "0 q" */
  int rows, columns; /* all axes but the last in one */
  int used;
  float* data;
};

struct weights {
  const char* path; /* NULL: random numbers */
  uint32_t seed;
  struct array* array;
  int count, room;
};

struct file {
  const char* path;
  unsigned char* data;
  size_t size;
};

static struct file read_file(const char* path) {
  struct file f = {NULL, NULL, 0};
  FILE* in = fopen(path, "rb");
  long size = 0;
  f.path = path;
  if (!in) fail("%s: cannot be opened", path);
  if (fseek(in, 0, SEEK_END) || (size = ftell(in)) < 0 || size > 1 << 30 || fseek(in, 0, SEEK_SET))
    fail("%s: wanted a file of weights of at most 1 GiB", path);
  f.size = (size_t)size;
  f.data = room(f.size, 1);
  if (fread(f.data, 1, f.size, in) != f.size) fail("%s: cannot be read", path);
  fclose(in);
  return f;
}

static const unsigned char* part(const struct file* f, size_t at, size_t bytes) {
  if (at > f->size || bytes > f->size - at) fail("%s: is cut off, or no .npz file", f->path);
  return f->data + at;
}

static size_t number(const struct file* f, size_t at, int bytes) { /* little-endian */
  const unsigned char* from = part(f, at, (size_t)bytes);
  size_t n = 0;
  while (bytes--) n = n << 8 | from[bytes];
  return n;
}

/* One .npy: magic, version, length of the header, a Python dict as text, the numbers. */
static void add_array(struct weights* w, const struct file* f, const char* name, size_t at,
                      size_t bytes) {
  const int wide = number(f, at + 6, 1) > 1;
  const size_t text_at = at + (wide ? 12 : 10), length = number(f, at + 8, wide ? 4 : 2);
  char text[256] = {0}, *shape;
  struct array* a = &w->array[w->count++];
  long extent;
  size_t numbers;
  if (memcmp(part(f, at, 6), "\x93NUMPY", 6)) fail("%s: '%s' is no array", f->path, name);
  memcpy(text, part(f, text_at, length), length < sizeof text ? length : sizeof text - 1);
  shape = strstr(text, "'shape': (");
  if (!shape || !strstr(text, "'<f4'") || !strstr(text, "'fortran_order': False"))
    fail("%s: '%s' is %.*s, wanted f32 in row-major order", f->path, name,
         (int)strcspn(text, "}") + 1, text);
  strcpy(a->name, name);
  a->rows = a->columns = 1;
  for (shape += strlen("'shape': ("); (extent = strtol(shape, &shape, 10)) > 0; shape++) {
    if (extent > 1 << 24 || a->rows > (1 << 24) / a->columns)
      fail("%s: '%s' is too large", f->path, name);
    a->rows *= a->columns;
    a->columns = (int)extent;
    if (*shape != ',') break;
  }
  numbers = (size_t)a->rows * (size_t)a->columns * sizeof(float);
  if (text_at + length - at + numbers != bytes)
    fail("%s: '%s' has not the bytes of its shape", f->path, name);
  a->data = room(numbers, 1);
  memcpy(a->data, f->data + text_at + length, numbers);
}

static void load(struct weights* w, const char* path) {
  const struct file f = read_file(path);
  size_t end = f.size < 22 ? 0 : f.size - 22, at, local;
  int n;
  w->path = path;
  while (end && memcmp(f.data + end, "PK\5\6", 4)) end--; /* the end of the directory */
  if (!end) fail("%s: is cut off, or no .npz file", path);
  at = number(&f, end + 16, 4);
  w->room = (int)number(&f, end + 10, 2);
  w->array = room((size_t)w->room, sizeof *w->array);
  for (n = 0; n < w->room; n++) {
    const size_t bytes = number(&f, at + 24, 4), named = number(&f, at + 28, 2);
    char name[sizeof w->array->name + 4] = {0}, *suffix;
    if (memcmp(part(&f, at, 46), "PK\1\2", 4)) fail("%s: its directory is damaged", path);
    if (number(&f, at + 10, 2)) fail("%s: is compressed, wanted np.savez", path);
    if (named >= sizeof name) fail("%s: holds other things than weights", path);
    memcpy(name, part(&f, at + 46, named), named);
    suffix = strstr(name, ".npy");
    if (!suffix || suffix == name) fail("%s: '%s' is no array", path, name);
    *suffix = 0;
    if (strlen(name) >= sizeof w->array->name) fail("%s: '%s' is no weight", path, name);
    local = number(&f, at + 42, 4);
    local += 30 + number(&f, local + 26, 2) + number(&f, local + 28, 2);
    part(&f, local, bytes);
    add_array(w, &f, name, local, bytes);
    at += 46 + named + number(&f, at + 30, 2) + number(&f, at + 32, 2);
  }
  free(f.data);
}

static struct array* find(const struct weights* w, const char* name) {
  int n;
  for (n = 0; n < w->count; n++)
    if (strcmp(w->array[n].name, name) == 0) return &w->array[n];
  return NULL;
}

/* The extent of an axis of a weight that the file must have. */
static int extent(const struct weights* w, const char* name, int columns) {
  const struct array* a = find(w, name);
  if (!a) fail("%s: has no '%s', wanted a model of gated_deltanet or kda", w->path, name);
  return columns ? a->columns : a->rows;
}

static float noise(uint32_t* seed) { /* -1 .. 1 */
  *seed = *seed * 1664525u + 1013904223u;
  return (float)(*seed >> 8) / 8388608.0f - 1.0f;
}

/* A weight of the file, or mean + spread * noise. */
static float* take(struct weights* w, int layer, const char* name, int rows, int columns,
                   float mean, float spread) {
  char full[64];
  struct array* a;
  if (layer < 0)
    snprintf(full, sizeof full, "%s", name);
  else
    snprintf(full, sizeof full, "%d %s", layer, name);
  a = find(w, full);
  if (!a && !w->path) {
    int i;
    if (w->count == w->room) {
      w->room = w->room ? 2 * w->room : 64;
      w->array = realloc(w->array, (size_t)w->room * sizeof *w->array);
      if (!w->array) fail("no memory");
    }
    a = &w->array[w->count++];
    strcpy(a->name, full);
    a->rows = rows;
    a->columns = columns;
    a->data = room((size_t)rows * (size_t)columns, sizeof(float));
    for (i = 0; i < rows * columns; i++) a->data[i] = mean + spread * noise(&w->seed);
  }
  if (!a) fail("%s: has no '%s'", w->path, full);
  if (a->rows != rows || a->columns != columns)
    fail("%s: '%s' has %d rows of %d, wanted %d of %d", w->path, full, a->rows, a->columns, rows,
         columns);
  a->used = 1;
  return a->data;
}

/* ---- the model */

enum { Q, K, V };

struct layer {
  const float *mix_norm, *qkv[3], *taps[3], *beta, *gate_low, *gate, *gate_bias, *rate;
  const float *out_gate, *o_norm, *o, *each_norm, *each_gate, *each_up, *each_down;
};

struct model {
  int kda; /* 1: a decay of each key channel; 0: gated_deltanet, one of each head */
  int layers, width, heads, hidden, taps, rank;
  int gates; /* of a token: heads or width */
  const float *embedding, *last_norm, *head;
  struct layer layer[LAYERS];
};

static void make_model(struct model* m, struct weights* w) {
  const char* gate = m->kda ? "gate_key" : "gate_head";
  float to_width, to_hidden; /* spreads of random weights */
  char name[32];
  int i, n;
  if (w->path) {
    m->kda = find(w, "0 gate_key") != NULL;
    gate = m->kda ? "gate_key" : "gate_head";
    m->width = extent(w, "embedding", 1);
    m->heads = extent(w, "0 gate_rate", 1);
    m->hidden = extent(w, "0 each_gate", 1);
    m->taps = extent(w, "0 q taps", 1);
    m->rank = m->kda ? extent(w, "0 gate_low", 1) : 0;
    for (i = 0; i <= LAYERS; i++) {
      sprintf(name, "%d mix norm", i);
      if (!find(w, name)) break;
    }
    m->layers = i;
    if (i > LAYERS) fail("%s: has more than %d layers", w->path, (int)LAYERS);
    if (m->width % m->heads) fail("%s: %d heads for a width of %d", w->path, m->heads, m->width);
    if (m->taps < 2) fail("%s: has %d taps, wanted at least 2", w->path, m->taps);
  }
  n = m->width;
  m->gates = m->kda ? n : m->heads;
  to_width = 2 / sqrtf((float)n);
  to_hidden = 2 / sqrtf((float)m->hidden);
  m->embedding = take(w, -1, "embedding", BYTES, n, 0, to_width);
  for (i = 0; i < m->layers; i++) {
    struct layer* l = &m->layer[i];
    int j;
    l->mix_norm = take(w, i, "mix norm", 1, n, 1, 0.1f);
    for (j = Q; j <= V; j++) {
      const char *matrix[] = {"q", "k", "v"}, *taps[] = {"q taps", "k taps", "v taps"};
      l->qkv[j] = take(w, i, matrix[j], n, n, 0, to_width);
      l->taps[j] = take(w, i, taps[j], n, m->taps, 0.3f, 0.5f);
    }
    l->beta = take(w, i, "beta", n, m->heads, 0, to_width);
    if (m->kda) l->gate_low = take(w, i, "gate_low", n, m->rank, 0, to_width);
    l->gate = take(w, i, gate, m->kda ? m->rank : n, m->gates, 0, to_width);
    sprintf(name, "%s bias", gate);
    l->gate_bias =
        take(w, i, name, m->kda ? m->heads : 1, m->gates / (m->kda ? m->heads : 1), -2, 1);
    l->rate = take(w, i, "gate_rate", 1, m->heads, 0, 0.3f);
    l->out_gate = take(w, i, "gate", n, n, 0, to_width);
    l->o_norm = take(w, i, "o norm", m->heads, n / m->heads, 1, 0.1f);
    l->o = take(w, i, "o", n, n, 0, 0.3f * to_width);
    l->each_norm = take(w, i, "each norm", 1, n, 1, 0.1f);
    l->each_gate = take(w, i, "each_gate", n, m->hidden, 0, to_width);
    l->each_up = take(w, i, "each_up", n, m->hidden, 0, to_width);
    l->each_down = take(w, i, "each_down", m->hidden, n, 0, 0.3f * to_hidden);
  }
  m->last_norm = take(w, m->layers, "last norm", 1, n, 1, 0.1f);
  m->head = take(w, m->layers, "head", n, BYTES, 0, to_width);
  for (i = 0; i < w->count; i++)
    if (!w->array[i].used)
      fail("%s: has '%s', wanted a model of gated_deltanet or kda", w->path, w->array[i].name);
}

/* y (m) = x (n) w (n, m): each sum in the order of x, whatever else the step computes. */
static void linear(float* y, const float* x, const float* w, int n, int m) {
  int i, j;
  for (j = 0; j < m; j++) y[j] = 0;
  for (i = 0; i < n; i++, w += m)
    for (j = 0; j < m; j++) y[j] += x[i] * w[j];
}

static void rms_norm(float* y, const float* x, const float* weight, int n) {
  float sum = 0;
  int i;
  for (i = 0; i < n; i++) sum += x[i] * x[i];
  sum = 1 / sqrtf(sum / (float)n + 1e-5f);
  for (i = 0; i < n; i++) y[i] = x[i] * sum * weight[i];
}

static float sigmoid(float x) {
  return 1 / (1 + expf(-x));
}

/* ---- the engine */

/* Where the sequences of a call are, and their states: read by the device. */
struct places {
  int32_t start[RUNNING + 1], len[RUNNING], accepted[RUNNING];
  int32_t from[RUNNING], to[RUNNING]; /* state_row, state_out_row */
  int32_t snapshot[RUNNING * TRIED];  /* (sequences, snapshots) */
};

/* Packed: one row of s tokens.  Otherwise `sequences` rows of s tokens, of which len count. */
struct call {
  int packed, sequences, s;
  int snapshots, every; /* columns of snapshot; 0: none are taken */
  int token[ROWS];      /* -1: none */
  int wanted[ROWS];     /* its logits */
  struct places places;
};

enum pass { RUN, VERIFY, COMMIT };

struct engine {
  fovea_context* ctx;
  struct model m;
  /* On the device, of each layer.  qkv, mixed, beta and gate are kept for a commit. */
  float *pool[LAYERS], *tail_pool[LAYERS]; /* (POOL, heads, d, d), (POOL, 3 width, taps - 1) */
  float *qkv[LAYERS], *mixed[LAYERS];      /* (rows, 3 width): before the convolution, after */
  float *beta[LAYERS], *gate[LAYERS], *taps[LAYERS], *rate[LAYERS];
  float* o; /* (rows, width) */
  struct places* places;
  /* On the host. */
  float *h_x, *h_qkv, *h_beta, *h_gate, *h_out_gate, *h_o, *logits, *a, *b;
};

static void* zeros(fovea_context* ctx, size_t bytes) {
  void *data, *none = room(bytes, 1);
  must(fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, bytes, &data));
  must(fovea_copy(ctx, data, none, bytes));
  must(fovea_context_synchronize(ctx));
  free(none);
  return data;
}

static size_t floats(int64_t count) {
  return (size_t)count * sizeof(float);
}

static void start(struct engine* e, fovea_backend backend) {
  const struct model* m = &e->m;
  const int n = m->width, d = n / m->heads;
  const size_t widest = (size_t)(n > m->hidden ? n : m->hidden);
  int i, j;
  must(fovea_context_create(backend, 0, &e->ctx));
  for (i = 0; i < m->layers; i++) {
    e->pool[i] = zeros(e->ctx, floats((int64_t)POOL * n * d));
    e->tail_pool[i] = zeros(e->ctx, floats((int64_t)POOL * 3 * n * (m->taps - 1)));
    e->qkv[i] = zeros(e->ctx, floats(ROWS * 3 * n));
    e->mixed[i] = zeros(e->ctx, floats(ROWS * 3 * n));
    e->beta[i] = zeros(e->ctx, floats(ROWS * m->heads));
    e->gate[i] = zeros(e->ctx, floats(ROWS * m->gates));
    e->taps[i] = zeros(e->ctx, floats(3 * n * m->taps));
    e->rate[i] = zeros(e->ctx, floats(m->heads));
    for (j = Q; j <= V; j++)
      must(fovea_copy(e->ctx, e->taps[i] + j * n * m->taps, m->layer[i].taps[j],
                      floats(n * m->taps)));
    must(fovea_copy(e->ctx, e->rate[i], m->layer[i].rate, floats(m->heads)));
  }
  e->o = zeros(e->ctx, floats(ROWS * n));
  e->places = zeros(e->ctx, sizeof *e->places);
  e->h_x = room(ROWS, floats(n));
  e->h_qkv = room(ROWS, floats(3 * n));
  e->h_beta = room(ROWS, floats(m->heads));
  e->h_gate = room(ROWS, floats(m->gates));
  e->h_out_gate = room(ROWS, floats(n));
  e->h_o = room(ROWS, floats(n));
  e->logits = room(ROWS, floats(BYTES));
  e->a = room(widest, sizeof(float));
  e->b = room(widest, sizeof(float));
}

static void stop(struct engine* e) {
  void* host[] = {e->h_x, e->h_qkv,  e->h_beta, e->h_gate, e->h_out_gate,
                  e->h_o, e->logits, e->a,      e->b};
  size_t i;
  int n, j;
  for (n = 0; n < e->m.layers; n++) {
    void* all[] = {e->pool[n], e->tail_pool[n], e->qkv[n],  e->mixed[n],
                   e->beta[n], e->gate[n],      e->taps[n], e->rate[n]};
    for (j = 0; j < (int)(sizeof all / sizeof *all); j++) must(fovea_free(e->ctx, all[j]));
  }
  must(fovea_free(e->ctx, e->o));
  must(fovea_free(e->ctx, e->places));
  for (i = 0; i < sizeof host / sizeof *host; i++) free(host[i]);
  fovea_context_destroy(e->ctx);
}

static fovea_tensor view(float* data, int ndim, int64_t b, int64_t s, int64_t heads, int64_t d) {
  const int64_t shape[] = {b, s, heads, d};
  return fovea_contiguous(data, FOVEA_F32, ndim, shape);
}

static fovea_tensor ints(int32_t* data, int ndim, int64_t rows, int64_t columns) {
  const int64_t shape[] = {rows, columns};
  return fovea_contiguous(data, FOVEA_I32, ndim, shape);
}

/* Where a call's sequences and states are: the same fields in x_conv1d and x_delta. */
#define PLACE(p, c, at, pass)                                                               \
  do {                                                                                      \
    if ((c)->packed)                                                                        \
      (p)->start = ints((at)->start, 1, (c)->sequences + 1, 0);                             \
    else                                                                                    \
      (p)->len = ints((pass) == COMMIT ? (at)->accepted : (at)->len, 1, (c)->sequences, 0); \
    (p)->state_row = ints((at)->from, 1, (c)->sequences, 0);                                \
    if ((pass) != VERIFY) {                                                                 \
      (p)->state_out = (p)->state_in;                                                       \
      (p)->state_out_row = ints((at)->to, 1, (c)->sequences, 0);                            \
    }                                                                                       \
    if ((c)->every) {                                                                       \
      (p)->snapshot = (p)->state_in;                                                        \
      (p)->snapshot_row = ints((at)->snapshot, 2, (c)->sequences, (c)->snapshots);          \
      (p)->snapshot_every = (c)->every;                                                     \
    }                                                                                       \
    (p)->token_max = (c)->packed ? CHUNK : (c)->s;                                          \
  } while (0)

/* What fovea does in a layer.  q, k and v lie side by side in a row, so one convolution serves
 * them, and x_delta reads them where they are. */
static void mix(struct engine* e, const struct call* c, int i, enum pass pass) {
  const struct model* m = &e->m;
  const int n = m->width, d = n / m->heads, b = c->packed ? 1 : c->sequences;
  fovea_x_conv1d_forward_params conv = {0};
  fovea_x_delta_forward_params delta = {0};
  fovea_tensor qkv[3];
  int j;

  conv.struct_size = sizeof conv;
  conv.x = view(e->qkv[i], 3, b, c->s, 3 * n, 0);
  conv.weight = view(e->taps[i], 2, 3 * n, m->taps, 0, 0);
  conv.state_in = view(e->tail_pool[i], 3, POOL, 3 * n, m->taps - 1, 0);
  conv.activation = FOVEA_X_CONV1D_ACTIVATION_SILU;
  if (pass != COMMIT) conv.y = view(e->mixed[i], 3, b, c->s, 3 * n, 0);
  PLACE(&conv, c, e->places, pass);
  must(fovea_x_conv1d_forward(e->ctx, &conv));

  for (j = Q; j <= V; j++) {
    qkv[j] = view(e->mixed[i] + j * n, 4, b, c->s, m->heads, d);
    qkv[j].stride[0] = (int64_t)c->s * 3 * n;
    qkv[j].stride[1] = 3 * n;
  }
  delta.struct_size = sizeof delta;
  delta.q = qkv[Q];
  delta.k = qkv[K];
  delta.v = qkv[V];
  delta.beta = view(e->beta[i], 3, b, c->s, m->heads, 0);
  if (m->kda)
    delta.gate_key = view(e->gate[i], 4, b, c->s, m->heads, d);
  else
    delta.gate_head = view(e->gate[i], 3, b, c->s, m->heads, 0);
  delta.gate_rate = view(e->rate[i], 1, m->heads, 0, 0, 0);
  delta.state_in = view(e->pool[i], 4, POOL, m->heads, d, d);
  delta.gate_map = FOVEA_X_GATE_MAP_SOFTPLUS;
  delta.beta_map = FOVEA_X_BETA_MAP_SIGMOID;
  delta.l2_norm = 1;
  if (pass != COMMIT) delta.o = view(e->o, 4, b, c->s, m->heads, d);
  PLACE(&delta, c, e->places, pass);
  must(fovea_x_delta_forward(e->ctx, &delta));
}

/* What a layer gives fovea of a row. */
static void before(struct engine* e, const struct layer* l, int row) {
  const struct model* m = &e->m;
  const int n = m->width;
  float* gate = e->h_gate + row * m->gates;
  int i;
  rms_norm(e->a, e->h_x + row * n, l->mix_norm, n);
  for (i = Q; i <= V; i++) linear(e->h_qkv + (row * 3 + i) * n, e->a, l->qkv[i], n, n);
  linear(e->h_beta + row * m->heads, e->a, l->beta, n, m->heads);
  linear(e->h_out_gate + row * n, e->a, l->out_gate, n, n);
  if (m->kda) {
    linear(e->b, e->a, l->gate_low, n, m->rank);
    linear(gate, e->b, l->gate, m->rank, n);
  } else {
    linear(gate, e->a, l->gate, n, m->heads);
  }
  for (i = 0; i < m->gates; i++) gate[i] += l->gate_bias[i];
}

/* What a layer makes of what fovea answers: the gated norm of each head, and the network. */
static void after(struct engine* e, const struct layer* l, int row) {
  const struct model* m = &e->m;
  const int n = m->width, d = n / m->heads;
  const float* gate = e->h_out_gate + row * n;
  float *x = e->h_x + row * n, *o = e->h_o + row * n;
  int i;
  for (i = 0; i < m->heads; i++) rms_norm(o + i * d, o + i * d, l->o_norm + i * d, d);
  for (i = 0; i < n; i++) o[i] *= m->kda ? sigmoid(gate[i]) : gate[i] * sigmoid(gate[i]);
  linear(e->a, o, l->o, n, n);
  for (i = 0; i < n; i++) x[i] += e->a[i];
  rms_norm(o, x, l->each_norm, n);
  linear(e->a, o, l->each_gate, n, m->hidden);
  linear(e->b, o, l->each_up, n, m->hidden);
  for (i = 0; i < m->hidden; i++) e->b[i] *= e->a[i] * sigmoid(e->a[i]);
  linear(o, e->b, l->each_down, m->hidden, n);
  for (i = 0; i < n; i++) x[i] += o[i];
}

static void forward(struct engine* e, struct call* c, enum pass pass) {
  const struct model* m = &e->m;
  const int n = m->width, rows = c->packed ? c->s : c->sequences * c->s;
  int i, j, row;
  must(fovea_copy(e->ctx, e->places, &c->places, sizeof c->places));
  for (row = 0; row < rows; row++)
    for (j = 0; j < n && c->token[row] >= 0; j++)
      e->h_x[row * n + j] = m->embedding[c->token[row] * n + j] * (0.5f * sqrtf((float)n));
  for (i = 0; i < m->layers; i++) {
    for (row = 0; row < rows; row++)
      if (c->token[row] >= 0) before(e, &m->layer[i], row);
    must(fovea_copy(e->ctx, e->qkv[i], e->h_qkv, floats(rows * 3 * n)));
    must(fovea_copy(e->ctx, e->beta[i], e->h_beta, floats(rows * m->heads)));
    must(fovea_copy(e->ctx, e->gate[i], e->h_gate, floats(rows * m->gates)));
    mix(e, c, i, pass);
    must(fovea_copy(e->ctx, e->h_o, e->o, floats(rows * n)));
    must(fovea_context_synchronize(e->ctx));
    for (row = 0; row < rows; row++)
      if (c->token[row] >= 0) after(e, &m->layer[i], row);
  }
  for (row = 0; row < rows; row++) {
    if (!c->wanted[row]) continue;
    rms_norm(e->a, e->h_x + row * n, m->last_norm, n);
    linear(e->logits + row * BYTES, e->a, m->head, n, BYTES);
  }
}

/* Moves the states over the tokens that were accepted: the tensors are still there. */
static void commit(struct engine* e, struct call* c) {
  int i;
  must(fovea_copy(e->ctx, e->places, &c->places, sizeof c->places));
  for (i = 0; i < e->m.layers; i++) mix(e, c, i, COMMIT);
}

/* ---- the scheduler */

/* How requests are served. */
struct way {
  const char* name;
  int running; /* requests at the same time */
  int drafts, rollback, cache;
};

struct request {
  unsigned char text[LONGEST];
  int arrives, prompt, wanted; /* step, bytes, bytes */
  int known, read;             /* bytes of text; those that its state holds */
  int running;
  int32_t row, slot[TRIED]; /* of the pool: its state, and rollback's */
  uint64_t logits;          /* a hash of all logits that chose a byte */
};

/* A snapshot: the state after the first `length` bytes of a text. */
struct snapshot {
  const unsigned char* text;
  int length, made, used; /* bytes, step, step */
  int32_t row;
};

struct server {
  struct engine* e;
  const struct way* way;
  struct request* request; /* REQUESTS of them */
  int32_t free_row[POOL];
  int free_rows, running, done, step;
  struct snapshot snapshot[CACHED];
  int snapshots;
  long tokens, drafted, accepted, skipped; /* tokens through the model; by the prefix cache */
  double seconds;
};

static int32_t take_row(struct server* s) {
  if (!s->free_rows) fail("no free row in the pool");
  return s->free_row[--s->free_rows];
}

static void admit(struct server* s, struct request* r) {
  int i;
  r->running = 1;
  r->row = take_row(s);
  for (i = 0; i < TRIED && s->way->rollback; i++) r->slot[i] = take_row(s);
  s->running++;
}

/* Takes the byte that logits choose, the first of equals. */
static void choose(struct server* s, struct request* r, const float* logits) {
  unsigned char bits[BYTES * sizeof(float)];
  int i, best = 0;
  memcpy(bits, logits, sizeof bits);
  for (i = 0; i < (int)sizeof bits; i++) r->logits = (r->logits ^ bits[i]) * 1099511628211u;
  for (i = 1; i < BYTES; i++)
    if (logits[i] > logits[best]) best = i;
  r->text[r->known++] = (unsigned char)best;
  if (r->known < r->prompt + r->wanted) return;
  r->running = 0;
  s->free_row[s->free_rows++] = r->row;
  for (i = 0; i < TRIED && s->way->rollback; i++) s->free_row[s->free_rows++] = r->slot[i];
  s->running--;
  s->done++;
}

/* The snapshot of exactly these bytes, or NULL. */
static struct snapshot* look_up(struct server* s, const unsigned char* text, int length) {
  int i;
  for (i = 0; i < s->snapshots; i++)
    if (s->snapshot[i].length == length && memcmp(s->snapshot[i].text, text, (size_t)length) == 0)
      return &s->snapshot[i];
  return NULL;
}

/* The longest snapshot that a prompt begins with.  One of this step is not written yet.  A token is
 * left to read: its logits choose the first byte. */
static struct snapshot* longest(struct server* s, const struct request* r) {
  int length = (r->prompt - 1) / BLOCK * BLOCK;
  for (; length; length -= BLOCK) {
    struct snapshot* found = look_up(s, r->text, length);
    if (!found || found->made == s->step) continue;
    found->used = s->step;
    return found;
  }
  return NULL;
}

/* The row for a new snapshot of these bytes; -1: there is one, or all rows are in use this step. */
static int32_t keep(struct server* s, const unsigned char* text, int length) {
  struct snapshot* to = look_up(s, text, length);
  int i;
  if (to) {
    to->used = s->step;
    return -1;
  }
  if (s->snapshots < CACHED) {
    to = &s->snapshot[s->snapshots++];
    to->row = take_row(s);
  } else {
    for (to = s->snapshot, i = 1; i < CACHED; i++)
      if (s->snapshot[i].used < to->used) to = &s->snapshot[i];
    if (to->used == s->step) return -1; /* a sequence of this call may read it */
  }
  to->text = text;
  to->length = length;
  to->made = to->used = s->step;
  return to->row;
}

/* One packed call: a chunk of up to PACK prompts. */
static void prefill(struct server* s) {
  static struct call c;
  struct request* of[PACK];
  int i, j, n = 0;
  memset(&c, 0, sizeof c);
  c.packed = 1;
  c.snapshots = CHUNK / BLOCK;
  c.every = s->way->cache ? BLOCK : 0;
  for (i = 0; i < REQUESTS && n < PACK; i++) {
    struct request* r = &s->request[i];
    int tokens;
    if (!r->running || r->read >= r->prompt) continue;
    c.places.from[n] = r->read ? r->row : -1; /* -1: zeros */
    if (!r->read && s->way->cache) {
      const struct snapshot* found = longest(s, r);
      if (found) {
        c.places.from[n] = found->row;
        r->read = found->length;
        s->skipped += found->length;
      }
    }
    tokens = r->prompt - r->read < CHUNK ? r->prompt - r->read : CHUNK;
    for (j = 0; j < tokens; j++) c.token[c.s + j] = r->text[r->read + j];
    for (j = 0; j < CHUNK / BLOCK && c.every; j++)
      c.places.snapshot[n * c.snapshots + j] =
          (j + 1) * BLOCK <= tokens ? keep(s, r->text, r->read + (j + 1) * BLOCK) : -1;
    c.places.to[n] = r->row;
    r->read += tokens;
    c.s += tokens;
    c.wanted[c.s - 1] = r->read == r->prompt;
    c.places.start[n + 1] = c.s;
    of[n++] = r;
  }
  if (!n) return;
  c.sequences = n;
  s->tokens += c.s;
  forward(s->e, &c, RUN);
  for (i = 0; i < n; i++) {
    const int last = c.places.start[i + 1] - 1;
    if (c.wanted[last]) choose(s, of[i], s->e->logits + last * BYTES);
  }
}

/* The bytes behind the last earlier place of a text's last NGRAM bytes; how many. */
static int draft(const struct request* r, unsigned char* to) {
  const int left = r->prompt + r->wanted - r->known - 1; /* a verify makes one byte more */
  const int most = left < DRAFTS ? left : DRAFTS;
  int at, n = 0;
  for (at = r->known - NGRAM - 1; at >= 0; at--)
    if (memcmp(r->text + at, r->text + r->known - NGRAM, NGRAM) == 0) break;
  if (at < 0) return 0;
  for (at += NGRAM; n < most && at < r->known; at++) to[n++] = r->text[at];
  return n;
}

/* One call for all requests whose prompts are through: the last byte of each, and its drafts. */
static void decode(struct server* s) {
  static struct call c;
  struct request* of[RUNNING];
  unsigned char drafts[RUNNING][DRAFTS];
  int i, j, n = 0, most = 0;
  enum pass pass;
  memset(&c, 0, sizeof c);
  for (i = 0; i < REQUESTS; i++) {
    struct request* r = &s->request[i];
    int tried;
    if (!r->running || r->read < r->prompt) continue;
    tried = s->way->drafts ? draft(r, drafts[n]) : 0;
    s->drafted += tried;
    c.places.len[n] = 1 + tried;
    if (tried > most) most = tried;
    of[n++] = r;
  }
  if (!n) return;
  c.sequences = n;
  c.s = 1 + most;
  pass = most ? VERIFY : RUN;
  if (most && s->way->rollback) c.every = 1;
  c.snapshots = c.s;
  for (i = 0; i < n; i++) {
    c.places.from[i] = c.places.to[i] = of[i]->row;
    for (j = 0; j < c.s; j++) {
      const int there = j < c.places.len[i];
      c.places.snapshot[i * c.s + j] = there ? of[i]->slot[j] : -1;
      c.wanted[i * c.s + j] = there;
      c.token[i * c.s + j] = !there ? -1 : j ? drafts[i][j - 1] : of[i]->text[of[i]->known - 1];
    }
    s->tokens += c.places.len[i];
  }
  forward(s->e, &c, pass);
  for (i = 0; i < n; i++) {
    struct request* r = of[i];
    int accepted = 0, right = 1;
    while (right) {
      choose(s, r, s->e->logits + (i * c.s + accepted) * BYTES);
      accepted++;
      right = accepted < c.places.len[i] && drafts[i][accepted - 1] == r->text[r->known - 1];
    }
    r->read += accepted;
    s->accepted += accepted - 1;
    c.places.accepted[i] = accepted;
    if (c.every && r->running) { /* the state of the last accepted token is the state */
      const int32_t row = r->row;
      r->row = r->slot[accepted - 1];
      r->slot[accepted - 1] = row;
    }
  }
  if (pass == VERIFY && !c.every) commit(s->e, &c);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void serve(struct server* s) {
  const double began = now();
  int i, next = 0;
  for (i = 0; i < POOL; i++) s->free_row[s->free_rows++] = i;
  for (i = 0; i < REQUESTS; i++) {
    struct request* r = &s->request[i];
    r->known = r->prompt;
    r->logits = 14695981039346656037u;
  }
  while (s->done < REQUESTS) {
    s->step++; /* from 1 on: a snapshot of step 0 is none */
    for (; next < REQUESTS && s->request[next].arrives <= s->step; next++) {
      if (s->running == s->way->running) break;
      admit(s, &s->request[next]);
    }
    prefill(s);
    decode(s);
  }
  s->seconds = now() - began;
  if (s->free_rows + s->snapshots != POOL)
    fail("%d rows of the pool are lost", POOL - s->free_rows);
}

/* Prompts of four prefixes and different ends. */
static void make_requests(struct request* request) {
  static const char* prefixes[] = {
      "The following sections describe the syntax of the language, which is given in BNF. ",
      "When a name is not found at all, a NameError exception is raised. For example, ",
      "An object's type determines the operations that it supports. ", "Names refer to objects. "};
  static const char ends[] =
      "the value of an expression is the value of its last operand, and a statement may contain "
      "other statements; a class definition is an executable statement.";
  int i;
  for (i = 0; i < REQUESTS; i++) {
    struct request* r = &request[i];
    const char* prefix = prefixes[i % 4];
    const size_t length = strlen(prefix), own = (size_t)(3 + i * 7 % 29);
    const size_t from = (size_t)(i * 37) % (sizeof ends - 1 - own);
    memcpy(r->text, prefix, length);
    memcpy(r->text + length, ends + from, own);
    r->prompt = (int)(length + own);
    r->wanted = 8 + i * 13 % 41;
    r->arrives = i / 2;
  }
}

/* Serves the requests in every way; 0: all gave the same bytes from the same logits. */
static int compare(struct engine* e, int random) {
  static const struct way ways[] = {{"one request at a time", 1, 0, 0, 0},
                                    {"batched", RUNNING, 0, 0, 0},
                                    {"batched, drafts and commit", RUNNING, 1, 0, 0},
                                    {"batched, drafts and rollback", RUNNING, 1, 1, 0},
                                    {"batched, prefix cache", RUNNING, 0, 0, 1}};
  static struct request alone[REQUESTS], request[REQUESTS];
  const struct model* m = &e->m;
  const long state = (long)floats(m->width * (m->width / m->heads + 3 * (m->taps - 1)) * m->layers);
  int i, made = 0, wrong = 0;
  size_t n;
  memset(alone, 0, sizeof alone);
  make_requests(alone);
  for (i = 0; i < REQUESTS; i++) made += alone[i].wanted;
  printf("%s, %d layers of width %d: %d requests, %d tokens to make, %d states of %ld bytes\n",
         m->kda ? "kda" : "gated_deltanet", m->layers, m->width, (int)REQUESTS, made, (int)POOL,
         state);
  printf("%-30s%10s%8s%13s\n", "", "tokens/s", "steps", "tokens read");
  for (n = 0; n < sizeof ways / sizeof *ways; n++) {
    static struct server s;
    memset(&s, 0, sizeof s);
    s.e = e;
    s.way = &ways[n];
    s.request = n ? request : alone;
    if (n) {
      memset(request, 0, sizeof request);
      make_requests(request);
    }
    serve(&s);
    printf("%-30s%10.0f%8d%13ld", s.way->name, made / s.seconds, s.step, s.tokens);
    if (s.way->drafts) printf("   %ld of %ld drafts accepted", s.accepted, s.drafted);
    if (s.way->cache) printf("   %ld found in snapshots", s.skipped);
    printf("\n");
    for (i = 0; i < REQUESTS && n; i++) {
      if (memcmp(request[i].text, alone[i].text, LONGEST) == 0 &&
          request[i].logits == alone[i].logits)
        continue;
      fprintf(stderr, "serve: %s: request %d has other %s than alone\n", s.way->name, i,
              memcmp(request[i].text, alone[i].text, LONGEST) ? "bytes" : "logits");
      wrong = 1;
    }
    /* With the built-in weights every way must have something to do. */
    if (random && ((s.way->drafts && (!s.accepted || s.accepted == s.drafted)) ||
                   (s.way->cache && !s.skipped)))
      fail("%s: nothing was accepted, rejected or found", s.way->name);
  }
  if (!random)
    printf("request 0: \"%.*s\" goes on \"%.*s\"\n", alone[0].prompt, (const char*)alone[0].text,
           alone[0].wanted, (const char*)alone[0].text + alone[0].prompt);
  if (!wrong)
    printf("the same bytes and the same bits of logits in every way, by %s\n",
           fovea_context_last_kernel(e->ctx));
  return wrong;
}

/* Weights of a file, or with path NULL random ones. */
static int try_model(const char* path, int kda, fovea_backend backend) {
  static struct engine e;
  struct weights w = {NULL, 11, NULL, 0, 0};
  int i, wrong;
  memset(&e, 0, sizeof e);
  if (path) {
    load(&w, path);
  } else {
    e.m.kda = kda;
    e.m.layers = e.m.heads = 2;
    e.m.width = 32;
    e.m.hidden = 48;
    e.m.taps = 4;
    e.m.rank = 8;
  }
  make_model(&e.m, &w);
  start(&e, backend);
  wrong = compare(&e, !path);
  stop(&e);
  for (i = 0; i < w.count; i++) free(w.array[i].data);
  free(w.array);
  return wrong;
}

int main(int argc, char** argv) {
  const int cuda = argc == 3 && strcmp(argv[2], "cuda") == 0;
  const fovea_backend backend = cuda ? FOVEA_CUDA : FOVEA_HOST;
  if (argc < 2 || argc > 3 || (argc == 3 && !cuda && strcmp(argv[2], "host")))
    fail("wanted: serve MODEL.npz [host|cuda], or serve --random [host|cuda]");
  if (strcmp(argv[1], "--random")) return try_model(argv[1], 0, backend);
  return try_model(NULL, 0, backend) | try_model(NULL, 1, backend);
}
