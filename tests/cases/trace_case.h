// SPDX-License-Identifier: Apache-2.0
// What a call of trace_forward is.
#pragma once
#include "cases/attention_case.h"
#include "oracle/trace.h"

namespace cases {

// integers: every sum is exact and most scores are ties.  The others hold, beside normal numbers,
// what their name says in a few places.
enum class TraceData { normal, integers, nan, infinite, huge, zeros };

// How the list of edges leaves: not at all, counted, in two tensors, as records of 20 bytes behind
// those of an earlier layer, the same with one counter.
enum class EdgeList { none, counted, apart, records, in_place };

struct TraceCase {
  std::string note;
  int dtype = FOVEA_F32;
  int64_t b = 1, s = 40, t = 100, h = 2, g = 1, d = 8, e = 8;
  int64_t block_rows = 16, block_keys = 16, keep = 3;
  bool causal = false, exact = true, mask = false, keep_row = false, key_len = false;
  bool paged = false, cache_row = false, o_f32 = false;
  bool no_pages = false;                          // the pool is empty
  bool values = true, slots = true, rows = true;  // which outputs there are
  bool bare = false;  // o and edge_value without v, as where there is no key yet
  TraceData data = TraceData::normal;
  EdgeList edges = EdgeList::apart;
  int edge_kind = FOVEA_EDGE_KIND_SCORE;
  int64_t cap = 500, offset = 0;
  float scale = 0;
  Lay lay = Lay::contiguous;
};

Call build_trace(const TraceCase& c, uint64_t seed);

}  // namespace cases
