// SPDX-License-Identifier: Apache-2.0
// x_select_block's lists from the scores of a chunk, where a count alone cuts them and forced key
// blocks are part of it (Quest, MoBA, NSA): a source of ops/select/pick_short.cuh.  These lists
// come by the million, or each is waited for: what no such call asks for is not in their code.
#include <type_traits>

#include "ops/select/block_sm80.cuh"
#include "ops/select/pick_short.cuh"

namespace fovea::cuda {
namespace {

constexpr char kOp[] = "x_select_block";

// Remapped: columns 4 j - 1 .. 4 j + 3 make the score of key block j (remap_step 4, remap_span 2).
template <bool Remapped>
struct CountedLists {
  struct Row {
    const float* score;
    int32_t *index, *count;
    int64_t wanted;
    // Entries; eligible ones and columns.  Key blocks before `first`, from `last` on, and in
    // [near, own) are forced where positions let the row see them, and [own, own_end).
    int n, seen_blocks, seen, first, last, near, own, own_end;
  };
  SelectBlock a;
  const float* score;
  int64_t keep;
  int32_t b0, n0, rows, pitch;

  CountedLists(const SelectProduct& x, const SelectChunk& chunk)
      : a(x.a),
        score(x.score),
        keep(x.a.keep),
        b0(static_cast<int32_t>(chunk.b0)),
        n0(static_cast<int32_t>(chunk.n0)),
        rows(static_cast<int32_t>(chunk.rows)),
        pitch(x.pitch) {}

  __device__ __forceinline__ bool open(int64_t w, Row& row) const {
    const auto line = static_cast<uint32_t>(w), heads = static_cast<uint32_t>(a.x);
    const uint32_t at = line / heads, head = line - at * heads;
    const uint32_t batch = at / static_cast<uint32_t>(rows), i = at - batch * rows;
    RowSpan span;
    if (!find_row(a, b0 + int64_t{batch}, n0 + int64_t{i}, span)) return false;
    row.score = score + w * pitch;
    row.index = a.index.at<int32_t>(b0 + int64_t{batch}, head, n0 + int64_t{i});
    row.count = nullptr;
    if (a.index_count)
      row.count = a.index_count.at<int32_t>(b0 + int64_t{batch}, head, n0 + int64_t{i});
    ListRow list;
    list.seq.batch = b0 + int64_t{batch};
    row.wanted = a.wanted(list, head, span.blocks);
    row.n = max(span.seen_blocks, span.own_end), row.seen_blocks = span.seen_blocks;
    row.seen = span.seen;
    const auto cut = [](int64_t x) { return static_cast<int>(x < kSelectMost ? x : kSelectMost); };
    row.first = cut(a.force_first), row.last = span.blocks - cut(a.force_last);
    row.near = span.own_begin - cut(a.force_previous);
    row.own = span.own_begin, row.own_end = a.force_own ? span.own_end : 0;
    return true;
  }
  // A score, or the columns 4 i - 1 and 4 i .. 4 i + 3.
  struct Columns {
    float before;
    float4 own;
  };
  using Raw = std::conditional_t<Remapped, Columns, float>;
  __device__ __forceinline__ Raw load(const Row& row, int i) const {
    if constexpr (Remapped) {
      const int c = 4 * i;
      Columns raw{};
      if (c <= row.seen && i) raw.before = row.score[c - 1];
      raw.own = load_seen(row.score + c, row.seen - c);
      return raw;
    } else {
      return i < row.seen ? row.score[i] : -INFINITY;
    }
  }
  __device__ __forceinline__ float score_of(const Row& row, int i, const Raw& raw) const {
    if constexpr (Remapped) {
      if (i >= row.seen_blocks) return -INFINITY;
      const int seen = row.seen - 4 * i;
      const auto part = [&](float s, int k) { return (k < seen) & (s > -INFINITY) ? s : 0.f; };
      const float p0 = part(raw.own.x, 0), p1 = part(raw.own.y, 1), p2 = part(raw.own.z, 2);
      // RowList's order: a column of each step, then the one before it.
      float sum = __fadd_rn(p0, part(raw.before, -1));
      sum = __fadd_rn(__fadd_rn(sum, p1), p0);
      sum = __fadd_rn(__fadd_rn(sum, p2), p1);
      return __fadd_rn(__fadd_rn(sum, part(raw.own.w, 3)), p2);
    } else {
      return raw;
    }
  }
  __device__ __forceinline__ uint32_t key(const Row& row, int i, const Raw& raw) const {
    const bool named = (i < row.first) | (i >= row.last) | ((i >= row.near) & (i < row.own));
    const bool forced = (named & (i < row.seen_blocks)) | ((i >= row.own) & (i < row.own_end));
    return forced ? kPickForced : pick_key(score_of(row, i, raw));
  }
  __device__ __forceinline__ void put(const Row& row, int64_t place, int i) const {
    row.index[place * a.index.stride[3]] = i;
  }
  __device__ __forceinline__ void pad(const Row& row, int64_t place) const {
    row.index[place * a.index.stride[3]] = -1;
  }
  __device__ __forceinline__ void count(const Row& row, int64_t wanted) const {
    if (row.count) *row.count = static_cast<int32_t>(wanted);
  }
};

bool four_and_two(const SelectBlock& a) {
  return a.remap_step == 4 && a.remap_span == 2;
}

template <bool Remapped>
void run(Context& ctx, const SelectProduct& x, const SelectChunk& chunk) {
  const CountedLists<Remapped> lists(x, chunk);
  const int64_t rows = chunk.batches * chunk.rows * x.a.x, blocks = list_blocks(x.a);
  blocks <= kShortMost ? pick_short(ctx, kOp, lists, rows, blocks)
                       : pick_short_block(ctx, kOp, lists, rows, blocks);
}

}  // namespace

bool counted_lists(const SelectProduct& x) {
  const SelectBlock& a = x.a;
  const bool forces = a.force_own || a.force_first || a.force_previous || a.force_last;
  const bool bounds = a.min_keep || a.max_keep || a.min_extra;
  const bool named = a.forced || a.row_forced || a.column_forced;
  const bool more = a.score_out || a.kept_score || a.kept_mass || !a.index;
  return x.lines == a.x && !a.score && a.rule == PickRule::count && !a.rule_none && !bounds &&
         !named && !more && (a.forced_count || !forces) && (!a.remap_step || four_and_two(a)) &&
         list_blocks(a) <= kShortBlockMost;
}

void run_counted_lists(Context& ctx, const SelectProduct& x, const SelectChunk& chunk) {
  x.a.remap_step ? run<true>(ctx, x, chunk) : run<false>(ctx, x, chunk);
}

}  // namespace fovea::cuda
