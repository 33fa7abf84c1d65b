// SPDX-License-Identifier: Apache-2.0
// The resolved calls of the low-bit caches and the kernels plan() chooses from.
#pragma once
#include <algorithm>

#include "core/locate.h"
#include "core/plan.h"
#include "fovea/experimental/kv.h"
#include "ops/kv/cache.h"

namespace fovea {

// New tokens: numbers leave the tails for pages first, then the tails take what is new, then the
// counters change.  Each reads what the one before it left alone.
struct KvAppend {
  kv::Cache cache;
  View<4> k_new, v_new;
  Sequences sequences;  // of the new rows; caches: rows of the cache
  bool flush;

  // A sequence's way from one state to the next.
  struct Turn {
    Sequence sequence;
    int64_t row;    // of the cache; < 0: none
    int64_t fresh;  // tokens that find room
    kv::State from, to;
  };
  FOVEA_HD Turn turn(int64_t r) const {
    Turn t;
    t.sequence = sequences[r], t.row = t.sequence.key_batch;
    if (t.row < 0) return t;
    const kv::State from = cache.state(t.row);
    const int64_t room = cache.capacity() - from.length;
    t.fresh = t.sequence.rows < room ? t.sequence.rows : room;
    t.from = t.to = from;
    t.to.length += t.fresh;
    if (!cache.by_groups()) {
      t.to.keys = t.to.values = t.to.length;
      return t;
    }
    // First tokens are in no tail.
    const int64_t firsts = cache.firsts < t.to.length ? cache.firsts : t.to.length;
    if (cache.by_tiles() && t.from.keys < firsts) t.from.keys = t.to.keys = firsts;
    if (t.fresh == 0 && !flush) return t;
    // What the last token finds, or a flush.
    const int64_t seen = t.to.length - (flush ? 0 : 1), residual = cache.residual;
    if (seen > t.from.keys) t.to.keys += quotient(seen - t.from.keys, residual) * residual;
    if (seen - residual > from.values) t.to.values = seen - residual;
    if (cache.by_tiles()) t.to.values = t.to.keys;
    return t;
  }
  // Bounds of what leaves the tails in one call.
  FOVEA_HD int64_t blocks_most() const {
    return (sequences.query_max + cache.residual) / cache.group;
  }
  FOVEA_HD int64_t values_most() const { return sequences.query_max + 1; }
  // Groups of keys that new tokens may lie in, where each is quantised as it comes.
  FOVEA_HD int64_t level_items() const {
    return (quotient(sequences.query_max + cache.group - 1, cache.group) + 1) * cache.g * cache.d;
  }
  FOVEA_HD int64_t key_items() const { return blocks_most() * cache.g * cache.d; }
  FOVEA_HD int64_t value_items() const { return values_most() * cache.g * (cache.e / cache.group); }
  // Tiles of keys and of values.
  FOVEA_HD int64_t tile_items() const { return 2 * blocks_most() * cache.g; }
  // First tokens that a call may bring.
  FOVEA_HD int64_t firsts_most() const {
    return sequences.query_max < cache.firsts ? sequences.query_max : cache.firsts;
  }
};

// x' of every token in use, and where attention_forward finds them: in pages of `group` tokens.
struct KvExpand {
  kv::Cache cache;
  IntVector cache_row;
  int64_t count, tokens;  // sequences; tokens of each, a multiple of group
  View<4> k, v;           // (count, tokens, g, columns) of cache.dtype
  View<2> table;          // (count, tokens / group) i32
  View<1> length;         // (count) i32

  FOVEA_HD int64_t row_of(int64_t r) const {
    const int64_t row = cache_row ? cache_row[r] : r;
    return row < cache.rows ? row : -1;
  }
};

constexpr int64_t kKvHostGroup = 128;

// attend: k and v stay empty.
struct KvDecode {
  fovea_x_kv_decode_params params;
  Attend attend;
  kv::Cache cache;

  // Sequence r with the keys that its cache row has.
  Sequence sequence(int64_t r, kv::State& state) const {
    Sequence q = attend.sequences[r];
    state = q.key_batch < 0 ? kv::State{} : cache.state(q.key_batch);
    q.keys = q.context = std::min(state.length, attend.sequences.key_max);
    return q;
  }
};

extern const Kernel<KvAppend> kv_append_host, kv_append_levels_host, kv_append_tiles_host;
extern const Kernel<KvExpand> kv_expand_host;
extern const Kernel<KvDecode> kv_decode_host;  // of groups to kKvHostGroup

// CUDA builds only.
extern const Kernel<KvAppend> kv_append_simt, kv_append_levels_simt, kv_append_tiles_simt;
extern const Kernel<KvExpand> kv_expand_simt;
extern const Kernel<KvDecode> kv_decode_sm80, kv_decode_levels_sm80;
namespace cuda {
// Enqueues the counters' new states, which end an append.
void count_appended(Context& ctx, const KvAppend& a);
// Enqueues what ends an append: new tokens to the tails, the counters' new states.
void append_tails(Context& ctx, const KvAppend& a);
}  // namespace cuda

}  // namespace fovea
