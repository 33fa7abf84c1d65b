// SPDX-License-Identifier: Apache-2.0
// The resolved calls of the cache operations and the kernels plan() chooses from.
#pragma once
#include "core/attend.h"
#include "core/plan.h"

namespace fovea {

// Keys or values of an append: new rows and the cache they go to.
struct AppendPart {
  View<4> fresh, cache;
  View<1> scale;      // (heads)
  View<4> scale_out;  // given: each row's scales are found, `groups` of them, and written
  int64_t groups;
  bool power_of_two;
  int32_t fresh_dtype, cache_dtype;
  int64_t heads, width;
  Rope rope;  // no cos: none
  View<1> norm_weight;
  int32_t norm_dtype;
  int64_t norm_width;
  float norm_eps;
  explicit FOVEA_HD operator bool() const { return fresh.data != nullptr; }
};

struct Append {
  AppendPart k, v;
  Sequences sequences;  // without key_len: its `keys` is the room, not the length; its query_max
                        // is at most key_max, since later rows have no room
  int64_t query_max;    // of the call
  int64_t slots;        // what the kernels walk: a token each
  bool by_row;          // slots are rows of a packed batch; else sequences.query_max a sequence
  IntVector key_len;
  View<1> key_len_out;
  View<2> position;
  FOVEA_HD int64_t length(int64_t r) const { return key_len && key_len[r] > 0 ? key_len[r] : 0; }
  // Tokens without a page count; a skipped sequence gets none.
  FOVEA_HD int64_t length_after(int64_t r) const {
    Sequences all = sequences;
    all.query_max = query_max;
    const Sequence q = all[r];
    return length(r) + (q.key_batch < 0 ? 0 : q.rows);
  }
};

struct CacheCopy {
  View<4> source, target;
  View<2> pair;
  int64_t pairs, source_pages, target_pages;
  int64_t shape[3];  // page, g, d; trailing axes that are one run in both pools are joined
  int32_t bytes;     // of an element
};

// The row axis of `sequences` is that of k_out, its keys are the cache.
struct CacheGet {
  View<4> k, k_out;
  View<1> scale;
  Sequences sequences;
  int32_t k_dtype, out_dtype;
  int64_t g, d;
};

extern const Kernel<Append> cache_append_host;
extern const Kernel<CacheCopy> cache_copy_host;
extern const Kernel<CacheGet> cache_get_host;

// CUDA builds only.
extern const Kernel<Append> cache_append_cuda;
extern const Kernel<CacheCopy> cache_copy_cuda;
extern const Kernel<CacheGet> cache_get_cuda;

}  // namespace fovea
