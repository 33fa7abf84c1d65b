// SPDX-License-Identifier: Apache-2.0
// A trace, resolved, and its arithmetic of blocks, branches and edges: one text for host and
// device.
#pragma once
#include "core/attend.h"
#include "core/plan.h"
#include "fovea/trace.h"

namespace fovea {

constexpr int64_t kKeepMost = 256;
constexpr int64_t kOffsetMost = int64_t{1} << 62;

// Of extents that no one tensor has: it may not fit.
inline int64_t product(int64_t x, int64_t y) {
  int64_t z;
  if (__builtin_mul_overflow(x, y, &z))
    refuse("trace_forward: q.shape and keep make more slots than int64_t counts");
  return z;
}

// Key blocks [begin, end) and the first valid one among them; -1: none, the branch is empty.
struct Branch {
  int32_t begin, end, representative;
  float score;
};

// The total order of the header.  Representatives of two branches differ, so nothing else decides.
FOVEA_HD bool before(const Branch& a, const Branch& b) {
  if (a.representative < 0 || b.representative < 0) return a.representative > b.representative;
  if (a.score != b.score) return a.score > b.score;
  return a.representative < b.representative;
}

struct Trace {
  Attend attend;  // q k v o lse, where keys lie, causal, the scale of x
  IntVector keep_row;
  View<4> block_mask, selected, score, edge_score, edge_max, edge_mass;
  View<5> edge_value;
  View<3> lse_dense;
  View<2> edge;
  View<1> edge_weight, edge_count, edge_offset;
  int64_t n, keep, cap;
  int64_t block_rows, block_keys;
  float score_scale;  // of score and edge_score; 1 where scale is not given
  int32_t layer, edge_kind;
  bool exact;

  // (batch, head, row block), row block fastest.
  int64_t items() const { return product(product(attend.b, attend.h), n); }
  // The first record of the call in its list of edges.
  FOVEA_HD int64_t edge_begin() const {
    return edge_offset ? clamp_i64(*edge_offset.as<int64_t>(), 0, kOffsetMost) : 0;
  }
  // Rows of the call have no lengths of their own: s of each sequence.
  FOVEA_HD int64_t rows_of(int64_t block) const {
    const int64_t left = attend.s - block * block_rows;
    return left < block_rows ? left : block_rows;
  }
  // Keys [0, seen) that row i sees, as far as positions decide.
  FOVEA_HD int64_t seen(const Sequence& q, int64_t i) const {
    if (!attend.mask.window.right) return q.keys;
    return clamp_i64(i + q.keys - q.rows + attend.mask.window.right, 0, q.keys);
  }
  FOVEA_HD int64_t blocks_of(int64_t keys) const { return (keys + block_keys - 1) / block_keys; }
  // Key blocks [0, reach) hold every pair of the row block that positions allow.
  FOVEA_HD int64_t reach(const Sequence& q, int64_t block) const {
    return blocks_of(seen(q, block * block_rows + rows_of(block) - 1));
  }
  // ceil(log2(n_k)).
  FOVEA_HD static int rounds(int64_t key_blocks) {
    int n = 0;
    while (int64_t{1} << n < key_blocks) ++n;
    return n;
  }
  FOVEA_HD int64_t keep_of(int64_t block) const {
    return keep_row ? clamp_i64(keep_row[block], 0, keep) : keep;
  }
  FOVEA_HD bool here(const Sequence& q, int64_t key_block) const {
    return !attend.sequences.page ||
           attend.sequences.key_offset(q, key_block * block_keys, attend.k.stride) >= 0;
  }
  // The first valid block of [begin, end), end <= reach(); -1: none.
  FOVEA_HD int64_t first_valid(const Sequence& q, int64_t head, int64_t block, int64_t begin,
                               int64_t end) const {
    const uint8_t* row = nullptr;
    if (block_mask)
      row = block_mask.as<uint8_t>() + q.batch * block_mask.stride[0] +
            head * block_mask.stride[1] + block * block_mask.stride[2];
    for (int64_t at = begin; at < end;) {
      const int64_t shift = at % 8;
      const uint32_t bits = row ? row[at / 8 * block_mask.stride[3]] >> shift : 0xffu >> shift;
      if (!bits) {
        at += 8 - shift;
        continue;
      }
      if ((bits & 1) && here(q, at)) return at;
      ++at;
    }
    return -1;
  }
  FOVEA_HD bool wants_edges() const { return static_cast<bool>(edge_count); }
  FOVEA_HD bool wants_values() const { return attend.o || edge_value; }
  FOVEA_HD bool wants_mass() const {
    return edge_mass || edge_value || (edge_weight && edge_kind == FOVEA_EDGE_KIND_MASS);
  }
  FOVEA_HD bool wants_rows() const { return attend.o || attend.lse || wants_mass(); }
};

// CUDA builds: sm90 for the stages that wgmma can serve, simt takes anything.
extern const Kernel<Trace> trace_forward_host, trace_forward_sm90, trace_forward_simt;

}  // namespace fovea
