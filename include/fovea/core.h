/* SPDX-License-Identifier: Apache-2.0 */
/** Contexts, memory, errors and the tensor view: what every operation stands on.  fovea.h is the
 *  manual; this header holds the rules.
 *
 *  Workspace query.  fovea_X_workspace makes every decision of fovea_X and touches no data: it says
 *  "valid?", "supported?" and "how many bytes?".  Addresses are only compared and checked for
 *  alignment, never dereferenced.  fovea_context_last_plan names the kernel that it chose.
 *
 *  Field comments are the contract.  The library checks every call against them, and they have one
 *  form: `[direction, optional, sums] (dims) or paged (dims) dtypes: words`.
 *
 *    [in]                     read
 *    [out]                    written; no two of its elements may overlap
 *    [inout]                  read and written
 *    optional                 data == NULL: not given
 *    sums                     an axis of stride 0 receives the sum over that axis, in a fixed order
 *    (b, s, h, d)             the extents, in this order whatever the strides
 *    (n)                      a name binds at the first field that is given, b and r before all
 *                             others, and agrees in every later one
 *    (2)                      a number is itself
 *    (r+1)                    r is this extent less 1; the last entry is the end of all sequences
 *    or paged (dims)          the extents when page_table is given
 *    f32 f16 bf16             any of these dtypes
 *    as q                     the dtype of field q
 *    as q or e4m3 i8          that dtype, or any of these
 *    may be x                 an output may be x itself, element by element; without these words an
 *                             output has memory of its own
 *    may be x exactly,        the same, and refused where y is given
 *    when y is absent
 *    may be x[0] exactly      the same of x's first slice
 *    needs x, with x          refused without x
 *    : words                  rules that have no form of their own, and what values mean
 *
 *  Extents.  These letters are the same in headers, kernels, oracles, tests and bindings.  Tensors
 *  are q k v o lse; dq dk dv are their gradients, and dout is the gradient of o.
 *
 *  Extents (printed by tools/api.py):
 *    b               batch: the sequences of a padded or paged call; 1 in a packed one
 *    s               query rows of a sequence; in a packed call those of all sequences
 *    t               keys of a sequence, or slots of a cache row; packed, those of all sequences
 *    h               query heads
 *    g               key heads, a divisor of h: query head i reads key head i / (h / g)
 *    d               columns of a query and of a key
 *    e               columns of a value
 *    f               kl.h: columns of the student; cache.h: heads of v
 *    n               what the operation counts: parts, pairs, row blocks, scales, entries of a list
 *    u               a second count: rows of a part (merge.h), of k_out (cache.h), blocks of keys
 *    x               kl.h: key heads of a student; linear.h: heads of v; else heads with a list
 *    pages           pages in a row of page_table
 *    pool            pages of a pool
 *    pool2           pages of the pool that is copied to
 *    page            tokens of a page
 *    groups          scales of a row of codes, each of an equal part of its columns
 *    positions       rows of cos and sin
 *    half            pairs of columns that turn
 *    width           columns under the RMSNorm, the first of d
 *    r               sequences, see below
 *    key_b           batch of a key tensor, see below
 *    rows            rows of a cache or of page_table, see below
 *    keys            key columns that a row of scores has, see below
 *    bytes           ceil(keys / 8) exactly, a bit for each key column; the stride pads
 *    padded          quant.h: token columns of transposed codes
 *    q_blocks        quant.h: scales of a query head
 *    k_blocks        quant.h: scales of a key head
 *    v_blocks        quant.h: scales of a value head
 *    rows_out        conv_attention.h: rows of o, which history has not
 *    kernel_rows     taps of the convolution over rows
 *    kernel_columns  taps of the convolution over keys
 *    group_heads     heads that are mixed with each other
 *    block_bytes     trace.h: a bit for each key block, in whole bytes
 *    keep            key blocks that a row block keeps, places of a list
 *    cap             rows of an edge list
 *    columns         single keys that a list row has beside its entries
 *    tiles           element masks of list entries
 *    tile_rows       rows of an element mask
 *    tile_bytes      a bit for each key of an element mask, in whole bytes
 *
 *  Four of them depend on what else is given:
 *
 *    r      b                     q (4, s, h, d): r = 4
 *           with a *_start, its   query_start (9): r = 8, and b = 1
 *           length less 1
 *    key_b  r                     q (4, s, h, d): k (4, t, g, d)
 *           with key_start, 1     key_start (9): k (1, t, g, d), all keys packed
 *    rows   key_b (a table: r)    r = 4: page_table (4, pages), or k (4, t, g, d)
 *           with cache_row, any   cache_row (4): page_table (64, pages), or k (64, t, g, d)
 *    keys   t                     k (4, 100, g, d): mask (4, h, s, 13), bias (4, h, s, 100)
 *           with page_table or    page_table (4, 3), pages of 16: bias (4, h, s, 48), or with
 *           key_start: key_max,   key_max = 40 (4, h, s, 40)
 *           where that is 0 the
 *           packed t, or
 *           pages * page
 *
 *  Variable length.  With query_start the tensors of the query side have b = 1 and hold all rows,
 *  sequence after sequence; key_start does the same for keys.  query_len and key_len shorten
 *  padded, packed or paged rows.  The device reads them, and they are never copied back.  query_max
 *  and key_max bound the grid; 0 means s, and t or pages * page.
 *
 *  Values of lengths, starts, pages, rows and key lists are not checked by default.  With
 *  FOVEA_CHECK=1 in the environment at a process's first call, one out of range is
 *  INVALID_ARGUMENT: "attention_forward: page_table[1][7] is 512, wanted -1 .. 511 (FOVEA_CHECK)".
 *  On CUDA such calls wait for their stream; under graph capture nothing is checked.
 *
 *  Ownership.
 *
 *    tensors     views; the library never frees them, and keeps no pointer past the operation
 *    writes      [out] and [inout] alone
 *    reads       elements that shape and strides name, and no others
 *    overlap     each stride of an output exceeds what the axes of smaller strides reach
 *    refusals    a FOVEA_HOST call that does not answer FOVEA_OK has changed no element
 *
 *  The host program's state.
 *
 *    stack       a FOVEA_HOST operation needs at most 32 KiB of the calling thread's
 *    threads     the library's start with the first operation that is large enough for them; the
 *                operation does without those that the system refuses
 *    signals     the calling thread's mask is afterwards as before
 *    AMX         where the CPU has it, attention in bf16 asks Linux for tile registers, once;
 *                signal frames are larger then, and smaller alternate stacks are refused
 *    floats      rounding mode, denormal mode and traps change no result; they and the flags of the
 *                calling thread are afterwards as before
 *    fork        the child may use FOVEA_HOST contexts that were idle at the fork */
#ifndef FOVEA_CORE_H
#define FOVEA_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "export.h"

#define FOVEA_VERSION_MAJOR 0
#define FOVEA_VERSION_MINOR 1
#define FOVEA_VERSION_PATCH 0
/** major * 10000 + minor * 100 + patch, of this header; fovea_version() is the library's. */
#define FOVEA_VERSION \
  (FOVEA_VERSION_MAJOR * 10000 + FOVEA_VERSION_MINOR * 100 + FOVEA_VERSION_PATCH)

#define FOVEA_MAX_DIMS 5

#ifdef __cplusplus
extern "C" {
#endif

/** What a call came to.  The sentence behind it is fovea_last_error(). */
typedef enum fovea_status {
  FOVEA_OK = 0,
  FOVEA_INVALID_ARGUMENT = 1, /**< no fovea could run this: fix the caller */
  FOVEA_UNSUPPORTED = 2,      /**< valid, but no kernel for it here (backend, device, build) */
  FOVEA_OUT_OF_MEMORY = 3,    /**< the workspace or a buffer could not be had */
  FOVEA_DEVICE_ERROR = 4,     /**< the device failed: destroy the context */
  FOVEA_INTERNAL_ERROR = 5    /**< a bug in fovea */
} fovea_status;

/** Where a context computes. */
typedef enum fovea_backend {
  FOVEA_HOST = 1, /**< the CPU: works everywhere */
  FOVEA_CUDA = 2  /**< an NVIDIA GPU, sm_80 or later */
} fovea_backend;

/** Element types.  E2M1, I4 and E8M0 are reserved until an operation names them.  E2M1 and I4 pack
 *  two elements a byte; their strides too count elements. */
typedef enum fovea_dtype {
  FOVEA_F32 = 1,
  FOVEA_F16 = 2,
  FOVEA_BF16 = 3,
  FOVEA_E4M3 = 4,
  FOVEA_E5M2 = 5,
  FOVEA_E2M1 = 6,
  FOVEA_I8 = 7,
  FOVEA_I32 = 8,
  FOVEA_I64 = 9,
  FOVEA_U8 = 10,
  FOVEA_I4 = 11,
  FOVEA_E8M0 = 12
} fovea_dtype;

/** Kinds of memory for fovea_alloc. */
typedef enum fovea_memory {
  FOVEA_MEMORY_DEVICE = 0, /**< the backend's own memory (plain host memory on FOVEA_HOST) */
  FOVEA_MEMORY_HOST = 1    /**< pinned host memory that the device reads at the same address */
} fovea_memory;

/** Keys of fovea_context_get. */
typedef enum fovea_property {
  FOVEA_PROPERTY_BACKEND = 1,         /**< fovea_backend */
  FOVEA_PROPERTY_DEVICE = 2,          /**< device number */
  FOVEA_PROPERTY_MULTIPROCESSORS = 3, /**< multiprocessors (host: hardware threads) */
  FOVEA_PROPERTY_ARCHITECTURE = 4,    /**< 10 * compute capability, 90 for Hopper (host: 0) */
  FOVEA_PROPERTY_THREADS = 5,         /**< threads an operation may use on the host */
  FOVEA_PROPERTY_WORKSPACE_BYTES = 6, /**< bytes of the context's workspace now */
  FOVEA_PROPERTY_FREE_BYTES = 7,      /**< free memory of the device (host: available memory) */
  FOVEA_PROPERTY_TOTAL_BYTES = 8      /**< total memory of the device or machine */
} fovea_property;

/** Keys of fovea_build_get. */
typedef enum fovea_build {
  FOVEA_BUILD_VERSION = 1,       /**< "0.1.0" */
  FOVEA_BUILD_GIT = 2,           /**< commit the library was built from, "unknown" outside git */
  FOVEA_BUILD_TOOLKIT = 3,       /**< CUDA toolkit, "13.0"; "none" in a host-only build.
                                      "13.0, fast compile": with slow kernels, see README */
  FOVEA_BUILD_ARCHITECTURES = 4, /**< device code in the library, "80,90a"; "none" without */
  FOVEA_BUILD_OPERATIONS = 5,    /**< every operation, comma separated */
  FOVEA_BUILD_COMPILER = 6       /**< of the host's code, "gcc 12.2.0" */
} fovea_build;

/** A view: never owns.  data == NULL means "not given".  Frozen: this struct never grows.
 *
 *    stride    in elements, >= 0, always read: fill it in, as fovea_contiguous does
 *    0         broadcasts an axis of an input; sums over an axis of an output that `sums`
 *    all 0     over more than one element is refused: strides were forgotten */
typedef struct fovea_tensor {
  void* data;
  int32_t dtype;                  /**< fovea_dtype */
  int32_t ndim;                   /**< 0 .. FOVEA_MAX_DIMS */
  int64_t shape[FOVEA_MAX_DIMS];  /**< extents, >= 0; entries from ndim on are ignored */
  int64_t stride[FOVEA_MAX_DIMS]; /**< in elements, >= 0; see above */
} fovea_tensor;

/** One device, one stream, one workspace.  One thread at a time may use it; contexts are
 *  independent.  Of the CUDA graphs captured from one context only one may run at a time.  They
 *  share its workspace and the counters by which its kernels hand out work. */
typedef struct fovea_context fovea_context;

/** The library's FOVEA_VERSION. */
FOVEA_API int32_t fovea_version(void);

/** A fact of the build as static text; NULL for an unknown key. */
FOVEA_API const char* fovea_build_get(fovea_build key);

/** The sentence of this thread's last failed call: op, field, got, wanted.  Valid until this
 *  thread's next fovea call; "" when that call succeeded.  Never NULL. */
FOVEA_API const char* fovea_last_error(void);

/** "FOVEA_INVALID_ARGUMENT" and so on, static; "unknown fovea_status" for any other number. */
FOVEA_API const char* fovea_status_name(fovea_status status);

/** A row-major view of `data`.  An ndim out of range gives a view no operation accepts. */
FOVEA_API fovea_tensor fovea_contiguous(
    void* data, fovea_dtype dtype, int32_t ndim, const int64_t* shape);

/** How many devices the backend has here.  FOVEA_HOST: 1.  FOVEA_CUDA: 0 without a driver, a GPU,
 *  or CUDA in this build; that is FOVEA_OK, not an error. */
FOVEA_API fovea_status fovea_device_count(fovea_backend backend, int32_t* count);

/** A context on `device` with a stream and a workspace of its own.  *out is NULL on failure.
 *  On FOVEA_HOST this takes microseconds: threads start with the first call that needs them.  The
 *  first context on a GPU starts the device's runtime, which takes longer: keep contexts. */
FOVEA_API fovea_status fovea_context_create(
    fovea_backend backend, int32_t device, fovea_context** out);

/** Waits for the context's work, then frees it.  NULL is fine. */
FOVEA_API void fovea_context_destroy(fovea_context* ctx);

/** Borrow a stream, a cudaStream_t; NULL goes back to the context's own.  Work of the new stream
 *  follows work of the old one.  FOVEA_HOST takes NULL only. */
FOVEA_API fovea_status fovea_context_set_stream(fovea_context* ctx, void* stream);

/** A fixed workspace in memory of the device, 256-byte aligned, never grown.  Too small a one makes
 *  an operation answer FOVEA_OUT_OF_MEMORY with the need in the text.  NULL with 0 bytes: the
 *  context's own again, grown on demand in stream order. */
FOVEA_API fovea_status fovea_context_set_workspace(fovea_context* ctx, void* data, size_t bytes);

/** Threads that a FOVEA_HOST operation may use, the caller's among them; 0: all hardware threads
 *  (the default).  FOVEA_CUDA contexts take it and keep it for fovea_context_get only. */
FOVEA_API fovea_status fovea_context_set_threads(fovea_context* ctx, int32_t threads);

/** Read one fovea_property. */
FOVEA_API fovea_status fovea_context_get(fovea_context* ctx, fovea_property key, int64_t* value);

/** Wait until all work of the context's stream is done.  Faults of earlier operations surface here,
 *  or in any call before. */
FOVEA_API fovea_status fovea_context_synchronize(fovea_context* ctx);

/** Later work of `ctx` waits for what `other` has enqueued so far.  Between CUDA contexts the host
 *  does not wait; between backends it does. */
FOVEA_API fovea_status fovea_context_wait(fovea_context* ctx, fovea_context* other);

/** The kernel the last operation ran, "attention_forward.cuda.sm80.bf16.d128.whole"; "" before any.
 *  Valid until the context's next operation.  NULL context: "". */
FOVEA_API const char* fovea_context_last_kernel(fovea_context* ctx);

/** The kernel that the last operation or workspace query chose; "" before any.  After an operation
 *  it is last_kernel.  A query runs nothing and leaves last_kernel as it was; a refused call leaves
 *  both.  Valid until the context's next operation or query.  NULL context: "". */
FOVEA_API const char* fovea_context_last_plan(fovea_context* ctx);

/** Why no better kernel serves the call of last_plan, best first, separated by "; ".  One reason is
 *  "sm90: bias is given, wanted none".  "" where the best kernel serves, before any call, and on
 *  FOVEA_HOST, whose operations have one kernel each.  Cut at 1023 bytes.  Valid as last_plan is.
 *  NULL context: "". */
FOVEA_API const char* fovea_context_last_reasons(fovea_context* ctx);

/** Memory of `bytes`, 256-byte aligned; 0 bytes give NULL.  fovea_free on any context of the device
 *  frees it.  Device memory is there in stream order: other streams wait for this one first. */
FOVEA_API fovea_status fovea_alloc(
    fovea_context* ctx, fovea_memory memory, size_t bytes, void** out);

/** Frees in stream order what fovea_alloc gave on the device; FOVEA_MEMORY_HOST of a CUDA context
 *  is waited for.  NULL is fine.  Memory that fovea_alloc did not give, or that was freed already,
 *  is FOVEA_INVALID_ARGUMENT and stays as it is. */
FOVEA_API fovea_status fovea_free(fovea_context* ctx, void* data);

/** Copies `bytes` in stream order, in any direction between host and device; ranges may not
 *  overlap.  On CUDA, pageable host memory makes the call wait as the CUDA runtime does. */
FOVEA_API fovea_status fovea_copy(fovea_context* ctx, void* to, const void* from, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
