/* SPDX-License-Identifier: Apache-2.0 */
/** fovea: attention and its relatives behind one stable C ABI, on the CPU and on NVIDIA GPUs.
 *
 *  The library is one shared object.  It needs no Python and no PyTorch, and no CUDA driver to
 *  load.  This header includes every stable family.  experimental/ holds names that begin with
 *  fovea_x_ and may change with any release.  core.h describes contexts, memory and the fields of a
 *  call.
 *
 *  A program.  Causal attention of one head over four tokens, on the CPU:
 *
 *    #include <fovea/fovea.h>
 *    #include <stdio.h>
 *    int main(void) {
 *      float x[8] = {1, 0, 0, 1, 1, 1, 0, 0}, o[8];
 *      const int64_t shape[4] = {1, 4, 1, 2};
 *      fovea_attention_forward_params p = {0};
 *      fovea_context* ctx = NULL;
 *      fovea_status status = fovea_context_create(FOVEA_HOST, 0, &ctx);
 *      p.struct_size = sizeof p;
 *      p.q = p.k = p.v = fovea_contiguous(x, FOVEA_F32, 4, shape);
 *      p.o = fovea_contiguous(o, FOVEA_F32, 4, shape);
 *      p.causal = 1;
 *      if (status == FOVEA_OK) status = fovea_attention_forward(ctx, &p);
 *      if (status == FOVEA_OK) status = fovea_context_synchronize(ctx);
 *      if (status == FOVEA_OK) printf("%g %g\n", o[0], o[1]);
 *      else puts(fovea_last_error());
 *      fovea_context_destroy(ctx);
 *      return status;
 *    }
 *
 *  The shape is (b, s, h, d): batch, rows, heads, width.  Row 0 sees key 0 alone and prints "1 0".
 *
 *  Contexts and streams.
 *
 *    context        one device, one stream, one workspace
 *    threads        one thread at a time uses a context; contexts work side by side
 *    stream         a context has its own; fovea_context_set_stream borrows one of yours
 *    order          the work of one context runs in the order of the calls
 *    other streams  a context's own stream waits for none of them, the default stream included
 *    two contexts   fovea_context_wait orders them; two of CUDA need no wait of the host
 *
 *  When a call is done.
 *
 *    FOVEA_HOST     on return; fovea_context_synchronize finds nothing to wait for
 *    FOVEA_CUDA     on return the call is checked and enqueued; the stream runs it later
 *
 *  The params struct is read before the call returns and may lie on the stack.  On CUDA the inputs
 *  stay as they are, and all memory stays allocated, until the stream has passed the call.  Results
 *  are there after fovea_context_synchronize, and for all later work of the same stream.
 *
 *  Where tensors live.  Every tensor lies in memory of the context's device: fovea_alloc's,
 *  cudaMalloc's, a framework's.  Index arrays do too: starts, lengths, page tables, positions,
 *  masks.  The device reads them and the host does not, so their contents are not checked.  A
 *  length beyond its extent or its `*_max` is cut to it.  A page or a cache row that does not exist
 *  has no keys.  A host pointer in a CUDA call is not noticed at the call: it faults when the
 *  kernel runs.
 *
 *  Errors.  Every function that can fail answers a fovea_status, and fovea_last_error() has the
 *  sentence: operation, field, what it got, what it wanted.
 *
 *    at the call    FOVEA_INVALID_ARGUMENT, _UNSUPPORTED, _OUT_OF_MEMORY; the next call works
 *    later          FOVEA_DEVICE_ERROR: a fault of earlier work; destroy the context
 *
 *  Workspaces.
 *
 *    default        the context's own: grown in stream order by at least half, freed with it
 *    fixed          fovea_context_set_workspace: never grown; too small is FOVEA_OUT_OF_MEMORY
 *    the need       fovea_X_workspace; on FOVEA_HOST it grows with the number of threads
 *
 *  CUDA graphs.
 *
 *    growth         not under capture: FOVEA_OUT_OF_MEMORY; run once before, or give a fixed one
 *    fovea_alloc    of device memory: not under capture
 *    fovea_free     under capture keeps the memory until the context is destroyed
 *    a replay       reads tensors anew, lengths and pages among them; the params struct is captured
 *    at a time      one graph of those captured from a context: they share its workspace
 *    life           the context outlives its graphs
 *
 *  What bits depend on.  A sequence's results follow from its own rows, keys and lengths, and from
 *  the call's fields, shapes and strides.  Another device, another CPU or another release may
 *  change them.  The rest:
 *
 *                                          run  place  neighbours  batch, host  batch, CUDA
 *    attention_forward with splits given   no   no     no          no           no
 *    attention_forward                     no   no     no          may          may
 *    attention_backward                    no   no     no          may          may
 *    merge_*                               no   no     no          no           no
 *    cache_*                               no   no     no          no           no
 *    rope_*                                no   no     no          no           no
 *    quant_*                               no   no     no          no           no
 *    kl_forward, kl_backward               no   no     no          no           may
 *    conv_attention_forward                no   may    no          may          may
 *    conv_attention_backward               no   no     no          may          may
 *    trace_forward, its edge list aside    no   no     no          no           no
 *    experimental                          no   may    may         may          may
 *
 *    run         the same call again, in any workspace; on FOVEA_HOST with any number of threads
 *    place       the sequence's index in a batch
 *    neighbours  what the batch's other sequences hold, their lengths included
 *    batch       how many sequences there are
 *
 *  `nondeterministic` makes the run of attention's and kl's CUDA gradients `may`.  Only `run` holds
 *  of packed calls, and of sums over sequences: total, dsink_logit, dweight, strides of 0.
 *  tests/harness/check.h holds every case to `run`; tests/properties/bits.cpp every other `no`.
 *
 *  Operations.  Each has its header's formulas, and one line of limits.
 *
 *    attention_forward, _backward       exact softmax attention: prefill, decode, paged caches
 *    merge_forward, _backward           attention over several key sets as one
 *    cache_append, _copy, _get          key and value caches, contiguous or paged
 *    rope_forward, rope_table_get       rotary position embedding and its tables
 *    quant_quantize, quant_dequantize   codes of 8 and 4 bits with scales, and back
 *    quant_forward                      attention over codes
 *    kl_forward, _backward              the divergence of two attention distributions
 *    conv_attention_forward, _backward  logits convolved over rows and keys before the softmax
 *    trace_forward                      key blocks that matter, attention over them, edges */
#ifndef FOVEA_FOVEA_H
#define FOVEA_FOVEA_H

#include "attention.h"
#include "cache.h"
#include "conv_attention.h"
#include "core.h"
#include "kl.h"
#include "merge.h"
#include "quant.h"
#include "rope.h"
#include "trace.h"

#endif
