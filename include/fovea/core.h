/* SPDX-License-Identifier: Apache-2.0 */
/** Contexts, memory, errors and the tensor view: what every operation stands on.
 *
 *  One call shape.  Every operation X is
 *      fovea_status fovea_X(fovea_context*, const fovea_X_params*);
 *      fovea_status fovea_X_workspace(fovea_context*, const fovea_X_params*, size_t* bytes);
 *  Zero the params struct, set struct_size and the fields you need: 0 is the default of every field.
 *  `_workspace` makes every decision of the call without touching data (pointers may be fake, but
 *  their alignment counts, and that an output shares none): it says "valid?", "supported?" and "how
 *  many bytes?".
 *
 *  Glossary, letter for letter in headers, kernels, oracles, tests and bindings:
 *    b batch, s queries, t keys, h query heads, g key heads (g divides h; query head i reads key
 *    head i / (h / g)), d key width, e value width, r sequences (b, or the length of a `*_start`
 *    tensor less 1), keys: the key columns a row can be asked about (t; with key_start or
 *    page_table: key_max, and where that is 0 the packed t, or pages * page), bytes: ceil(keys / 8)
 *    exactly, a bit for each key column (rows are padded with the stride), key_b (1 with
 *    key_start, else r), rows (of a contiguous cache: key_b, or any number with cache_row).
 *    q k v o lse; dq dk dv; dout is the gradient of o.  Logical order is always (b, s, h, d):
 *    layouts are strides.
 *
 *  Field comments are the contract: `[in|out|inout, optional, sums] (dims) dtypes: words`, where
 *  `as x` means the dtype of field x, and `or paged (dims)` is the shape when page_table is given.
 *  The library checks every call against them.  Words are for people.
 *
 *  Variable length: with query_start (r + 1) the query-side tensors have b = 1 and s = all rows
 *  packed; key_start does the same for keys.  query_len and key_len (r) shorten padded, packed or
 *  paged rows.  They are read on the device, never copied back; query_max and key_max bound the
 *  grid (0: s, and t or pages * page).
 *
 *  Ownership: tensors are views; the library never frees them, keeps no pointer beyond the
 *  operation's completion on its stream, writes only [out] and [inout], reads only elements that
 *  shape and strides name, and allows aliasing only where a comment says so.  Elements of one [out]
 *  or [inout] may not overlap: each stride exceeds what the axes of smaller strides reach.
 *
 *  Refusals: a call of a FOVEA_HOST context that does not answer FOVEA_OK has changed no element.
 *  Threads that the system does not give are done without.
 *
 *  Threads: one thread at a time may use a context; any number of contexts work at once.  Of the
 *  calling thread a FOVEA_HOST operation needs at most 32 KiB of stack.  The thread's rounding mode,
 *  denormal mode and floating-point traps change no result and are afterwards as before, as are
 *  its floating-point flags and its signal mask.  After fork() the child may use FOVEA_HOST
 *  contexts that were idle then. */
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

/** Element types.  Sub-byte types pack two elements a byte. */
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
  FOVEA_BUILD_TOOLKIT = 3,       /**< CUDA toolkit, "13.0"; "none" in a host-only build */
  FOVEA_BUILD_ARCHITECTURES = 4, /**< device code in the library, "80,90a"; "none" without */
  FOVEA_BUILD_OPERATIONS = 5     /**< every operation, comma separated */
} fovea_build;

/** A view: never owns.  data == NULL means "not given".  Frozen: this struct never grows. */
typedef struct fovea_tensor {
  void* data;
  int32_t dtype;                  /**< fovea_dtype */
  int32_t ndim;                   /**< 0 .. FOVEA_MAX_DIMS */
  int64_t shape[FOVEA_MAX_DIMS];  /**< extents, >= 0; entries from ndim on are ignored */
  int64_t stride[FOVEA_MAX_DIMS]; /**< in elements, >= 0, always read; 0 broadcasts an axis of an input, sums into an output gradient; all 0 over more than one element is refused: strides were forgotten */
} fovea_tensor;

/** One device, one stream, one workspace.  One thread at a time; contexts are independent.  Of the
 *  CUDA graphs captured from one context only one may run at a time: they share its workspace and
 *  the counters that its kernels hand out work by. */
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
FOVEA_API fovea_tensor fovea_contiguous(void* data, fovea_dtype dtype, int32_t ndim, const int64_t* shape);

/** How many devices the backend has here.  FOVEA_HOST: 1.  FOVEA_CUDA: 0 without a driver, a GPU,
 *  or CUDA in this build; that is FOVEA_OK, not an error. */
FOVEA_API fovea_status fovea_device_count(fovea_backend backend, int32_t* count);

/** A context on `device` with a stream and a workspace of its own.  *out is NULL on failure. */
FOVEA_API fovea_status fovea_context_create(fovea_backend backend, int32_t device, fovea_context** out);

/** Waits for the context's work, then frees it.  NULL is fine. */
FOVEA_API void fovea_context_destroy(fovea_context* ctx);

/** Borrow a stream (a cudaStream_t; NULL goes back to the context's own).  FOVEA_HOST takes NULL only. */
FOVEA_API fovea_status fovea_context_set_stream(fovea_context* ctx, void* stream);

/** A fixed workspace, never grown, 256-byte aligned; too small a one makes an operation answer
 *  FOVEA_OUT_OF_MEMORY with the need in the text.  NULL with 0 bytes: the context's own again,
 *  grown on demand in stream order. */
FOVEA_API fovea_status fovea_context_set_workspace(fovea_context* ctx, void* data, size_t bytes);

/** Threads that a FOVEA_HOST operation may use, the caller's among them; 0: all hardware threads
 *  (the default).  FOVEA_CUDA contexts take it and keep it for fovea_context_get only. */
FOVEA_API fovea_status fovea_context_set_threads(fovea_context* ctx, int32_t threads);

/** Read one fovea_property. */
FOVEA_API fovea_status fovea_context_get(fovea_context* ctx, fovea_property key, int64_t* value);

/** Wait until all work of the context's stream is done; faults of earlier operations surface here. */
FOVEA_API fovea_status fovea_context_synchronize(fovea_context* ctx);

/** Later work of `ctx` waits for what `other` has enqueued so far.  No host wait between CUDA contexts. */
FOVEA_API fovea_status fovea_context_wait(fovea_context* ctx, fovea_context* other);

/** The kernel the last operation ran, "attention_forward.cuda.sm80.bf16.d128.whole"; "" before any.
 *  Valid until the context's next operation.  NULL context: "". */
FOVEA_API const char* fovea_context_last_kernel(fovea_context* ctx);

/** Memory of `bytes` (0 gives NULL), 256-byte aligned, freed by fovea_free on any context of the device. */
FOVEA_API fovea_status fovea_alloc(fovea_context* ctx, fovea_memory memory, size_t bytes, void** out);

/** Frees in stream order what fovea_alloc gave on the device.  NULL is fine; memory that fovea_alloc
 *  did not give, or that was freed already, is FOVEA_INVALID_ARGUMENT and stays as it is. */
FOVEA_API fovea_status fovea_free(fovea_context* ctx, void* data);

/** Copies `bytes` in stream order, in any direction between host and device; ranges may not
 *  overlap.  On CUDA, pageable host memory makes the call wait as the CUDA runtime does. */
FOVEA_API fovea_status fovea_copy(fovea_context* ctx, void* to, const void* from, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
