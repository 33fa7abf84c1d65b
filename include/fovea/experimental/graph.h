/* SPDX-License-Identifier: Apache-2.0 */
/** Retrieval of keys in host memory by a graph of each key head, for RetrievalAttention.
 *
 *  Experimental: names, fields and layout may change with any release, and the ABI promise does not
 *  cover them.  On a CUDA context every call is UNSUPPORTED: graph and keys lie in host memory.
 *
 *  The graph of a key head lies in buffers of the caller's:
 *    neighbour        (b, g, t, degree): the keys that a search goes on to from each key
 *    neighbour_count  (b, g, t): how many, cut to 0 .. degree; slots past it are -1
 *    entry            (b, g): the key that searches start from
 *  A neighbour that is no key of the graph is skipped.  An entry that is none counts as key 0.
 *
 *  Scores are inner products without a scale: chains of f32 fused multiply-adds over the columns
 *  from 0.  Their order is that of select.h: higher score first, then lower key; NaN counts as
 *  -inf.
 *
 *  Search of width w for q: the entry is scanned.  Then of the best w scanned the first that is
 *  not expanded yet is expanded, until all are.  Expanding a key scans those of its neighbours that
 *  no step has scanned.  The result is the best w.
 *  Pruning of candidates for key x to m: they are taken in the order of <x, y>, without x itself
 *  and scores of -inf.  y is passed over where a z taken before lies nearer to it than x does.
 *  That is where <z, z> - 2 <y, z> < <x, x> - 2 <x, y>.  With fewer than m taken, the first passed
 *  over fill up.
 *
 *  Extents of its own:
 *    degree = 4: slots for the neighbours of a key */
#ifndef FOVEA_EXPERIMENTAL_GRAPH_H
#define FOVEA_EXPERIMENTAL_GRAPH_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Builds the graph of each sequence and key head, or adds keys [old_len, key_len) to it.
 *
 *  With rows of q in use and old_len 0, from training queries, since attention's queries are not
 *  distributed as keys are.  Key head j learns from the query heads [j h / g, (j + 1) h / g):
 *    1. each query has its list: its `nearest` best keys, without scores of -inf
 *    2. key x has the queries whose best key it is; without any, those whose lists hold it
 *    3. neighbours of x: the lists of its queries, pruned to `kept`
 *    4. for each x a search of `width` over the graph of step 3, pruned to `added`; then in the
 *       order of keys x gets those found, as far as there are slots, and each of them gets x
 *  Its entry is the key of the best inner product with the sum of all keys.
 *
 *  Otherwise keys join one by one: a search of `width` over the earlier keys, pruned to `kept`;
 *  then each of those found gets x.  The first key is the entry.
 *  Where y gets x and has no slot left, its neighbours and x are pruned to kept + added.
 *
 *  Results are those of this sequential algorithm for any number of threads.  Lists of keys from
 *  key_len on are not written.  A sequence without keys has entry -1.
 *
 *  Limits: d is 1 .. 576.  Workspace: the lists of one key head's queries, and tiles of keys.
 *  A thread has 9 t + 512 nearest bytes more with q, else t / 8 + 8 width.
 *  Sources: RetrievalAttention (2409.10516); its graph: RoarGraph (2408.08933). */
typedef struct fovea_x_graph_append_params {
  size_t struct_size;           /**< sizeof(fovea_x_graph_append_params) */
  fovea_tensor k;               /**< [in] (b, t, g, d) f32 f16 bf16: the keys, old ones too */
  fovea_tensor q;               /**< [in, optional] (b, s, h, d) f32 f16 bf16: training queries of
                                     sequences whose old_len is 0; s h nearest entries are below
                                     2^31 g */
  fovea_tensor query_len;       /**< [in, optional] (b) i32: training rows in use; needs q */
  fovea_tensor key_len;         /**< [in, optional] (b) i32: keys in use; absent: t */
  fovea_tensor old_len;         /**< [in, optional] (b) i32: keys that the graph has; absent: 0 */
  fovea_tensor neighbour;       /**< [inout] (b, g, t, degree) i32: degree >= kept + added */
  fovea_tensor neighbour_count; /**< [inout] (b, g, t) i32 */
  fovea_tensor entry;           /**< [inout] (b, g) i32 */
  int64_t nearest;              /**< best keys of a training query; needs q; 0: 100 */
  int64_t kept;                 /**< neighbours that pruning leaves, at most 1024; 0: 16 */
  int64_t added;                /**< further slots, at most 1024; 0: 4 */
  int64_t width;                /**< width of searches; 0: 2 (kept + added) */
} fovea_x_graph_append_params;

FOVEA_API fovea_status fovea_x_graph_append_workspace(fovea_context* ctx,
                                                      const fovea_x_graph_append_params* params,
                                                      size_t* bytes);
FOVEA_API fovea_status fovea_x_graph_append(fovea_context* ctx,
                                            const fovea_x_graph_append_params* params);

/** The best `count` keys that a search of width ef finds for each query, or of all keys with
 *  ef = 0.
 *
 *  Lists are as in select.h: ascending, -1 past the count, cut to `keep` from the end of the order.
 *  Scores of -inf are not listed.  With ef = 0 the list is x_select_token's of scale 1 over all
 *  keys.  Rows past query_len are neither read nor written.
 *
 *  Limits: d is 1 .. 576.  Workspace, a thread: t / 8 + 8 ef bytes, with ef = 0 4 t h / g bytes.
 *  Source: RetrievalAttention (2409.10516). */
typedef struct fovea_x_select_graph_params {
  size_t struct_size;           /**< sizeof(fovea_x_select_graph_params) */
  fovea_tensor q;               /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;               /**< [in] (b, t, g, d) f32 f16 bf16: g divides h */
  fovea_tensor query_len;       /**< [in, optional] (b) i32: rows in use */
  fovea_tensor key_len;         /**< [in, optional] (b) i32: keys in use; absent: t */
  fovea_tensor neighbour;       /**< [in, optional] (b, g, t, degree) i32: with ef, as
                                     x_graph_append writes it */
  fovea_tensor neighbour_count; /**< [in, optional] (b, g, t) i32: with ef */
  fovea_tensor entry;           /**< [in, optional] (b, g) i32: with ef */
  fovea_tensor index;           /**< [out] (b, h, s, keep) i32: keys by their number in the
                                     sequence */
  fovea_tensor index_count;     /**< [out] (b, h, s) i32: keys wanted */
  fovea_tensor scanned;         /**< [out, optional] (b, h, s) i32: keys whose score was computed */
  int64_t count;                /**< keys to select */
  int64_t ef;                   /**< width of the search, at least count; 0: all keys */
} fovea_x_select_graph_params;

FOVEA_API fovea_status fovea_x_select_graph_workspace(fovea_context* ctx,
                                                      const fovea_x_select_graph_params* params,
                                                      size_t* bytes);
FOVEA_API fovea_status fovea_x_select_graph(fovea_context* ctx,
                                            const fovea_x_select_graph_params* params);

/** Attention over the keys that a graph finds: x_select_graph, then x_sparse_forward, in one call
 *  on one workspace.
 *
 *  o and lse are of the list alone.  merge_forward joins them with those of the keys that stay on
 *  the device.  A row that finds nothing has o = 0 and lse = -inf.
 *
 *  Errors name this operation, then the part that refuses, with that part's names of fields.
 *  Limits are those of the parts.  Workspace: theirs, and the lists that no output holds.
 *  Source: RetrievalAttention (2409.10516). */
typedef struct fovea_x_graph_forward_params {
  size_t struct_size;           /**< sizeof(fovea_x_graph_forward_params) */
  fovea_tensor q;               /**< [in] (b, s, h, d) f32 f16 bf16 */
  fovea_tensor k;               /**< [in] (b, t, g, d) as q: g divides h */
  fovea_tensor v;               /**< [in] (b, t, g, e) as q */
  fovea_tensor o;               /**< [out] (b, s, h, e) as q or f32 */
  fovea_tensor lse;             /**< [out, optional] (b, h, s) f32: of the sum over the list */
  fovea_tensor query_len;       /**< [in, optional] (b) i32: rows in use */
  fovea_tensor key_len;         /**< [in, optional] (b) i32: keys in use; absent: t */
  fovea_tensor neighbour;       /**< [in, optional] (b, g, t, degree) i32: with ef */
  fovea_tensor neighbour_count; /**< [in, optional] (b, g, t) i32: with ef */
  fovea_tensor entry;           /**< [in, optional] (b, g) i32: with ef */
  fovea_tensor index;           /**< [out, optional] (b, h, s, keep) i32: the lists, as
                                     x_select_graph writes them; keys past `keep` are cut */
  fovea_tensor index_count;     /**< [out, optional] (b, h, s) i32: keys wanted, with index */
  fovea_tensor scanned;         /**< [out, optional] (b, h, s) i32: keys whose score was computed */
  int64_t count;                /**< keys to attend to */
  int64_t ef;                   /**< width of the search, at least count; 0: all keys */
  float scale;                  /**< of attention's scores, > 0; 0: 1 / sqrt(d) */
  float softcap;                /**< of attention's scores; 0: none */
} fovea_x_graph_forward_params;

FOVEA_API fovea_status fovea_x_graph_forward_workspace(fovea_context* ctx,
                                                       const fovea_x_graph_forward_params* params,
                                                       size_t* bytes);
FOVEA_API fovea_status fovea_x_graph_forward(fovea_context* ctx,
                                             const fovea_x_graph_forward_params* params);

#ifdef __cplusplus
}
#endif

#endif
