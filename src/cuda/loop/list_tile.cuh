// SPDX-License-Identifier: Apache-2.0
// Tiles of rows and keys of a call over lists, in shared memory: who stands in a tile, and what a
// pair of a row and a key is to the list that names it.
#pragma once
#include "core/sparse.h"
#include "cuda/loop/attend_simt.cuh"

namespace fovea::cuda {

// What names the keys of a pair: a place of a list, a single key, or what is always seen.
struct ListSide {
  Interval keys;
  int64_t first;       // the key that column 0 of its tile is
  int64_t rows_begin;  // of its block
  int64_t row, place;  // of the list: n, and its entry; -1: none
  int32_t tile;
  bool always;
};

__device__ inline ListSide side_of(const ListRow& list, int64_t place, const ListEntry& entry) {
  return {entry.keys, entry.first, list.begin, list.row, place, entry.tile, false};
}
__device__ inline ListSide side_of_keys(const ListRow& list, Interval keys, bool always) {
  return {keys, keys.begin, list.begin, list.row, -1, -1, always};
}

// -inf where the row does not see the key by this side; `x` is the capped product.  Out of line:
// most tiles need no element test.
inline __device__ __noinline__ float list_score(const SparseList& list, const Sequence& seq,
                                                const RowInfo& row, const KeyInfo& key,
                                                const ListSide& by, float x) {
  if (row.i < 0 || key.k < 0 || !row.window.sees(row.p, key.p)) return -INFINITY;
  if (!list.listed()) return x;
  if (list.always(row.p, key.j, key.p) != by.always) return -INFINITY;
  if (key.j < by.keys.begin || key.j >= by.keys.end) return -INFINITY;
  if (by.tile >= 0) {
    const int64_t c = key.j - by.first;
    const uint8_t bits = *list.tile_bits.at<uint8_t>(by.tile, row.i - by.rows_begin, c / 8);
    if (!(bits >> (c % 8) & 1)) return -INFINITY;
  }
  if (!list.index_bias || by.place < 0) return x;
  const float bias = *list.index_bias.at(seq.batch, row.h, by.row, by.place);
  return bias == -INFINITY ? bias : x + bias;  // masks whatever the score is, NaN included
}

// The steps of a tile: what is always seen, the list (or a window's tiles), single keys.
struct ListSteps {
  int64_t key_head, value_head;
  KeyTiles window;                         // without a list
  SeenKeys<int64_t> some;                  // keys that a row may see
  Interval last;                           // those that last_keys may name
  int64_t first, lasts, entries, columns;  // how many there are
  int64_t places;                          // of a step of entries

  __device__ static int64_t of(int64_t keys) { return (keys + kStageTile - 1) / kStageTile; }
  __device__ int64_t count() const { return first + lasts + entries + columns; }
};

// The rows of one tile and the keys of one step, in shared memory.
template <int R, class Base = PackedTile<R>>
struct ListTile : Base {
  SparseList::Tile tile;
  ListSide side[kStageTile];      // of each key, or each row of a gradient of keys
  int64_t scales[2][kStageTile];  // of the keys' scales of k, of v
  uint32_t present[2];            // keys that are there, a bit each
  int entry_tiles;                // tiles of 64 keys that an entry may have
  ListSteps steps;
  float top[16 * R];  // with skip_margin: each row's largest score so far
};

// Work items (sequence, unit of heads, slot of a row tile, split), the last fastest.
struct ListGrid {
  int64_t slots, units, heads, splits, work;
  int64_t tiles;  // of full sequences: some slots are empty
  bool few;       // rows: tiles of kDecodeRows
  // tiny: tiles may be of kDecodeRows.
  explicit ListGrid(const SparseAttend& call, bool tiny = true)
      : heads(call.shared_heads()), splits(1) {
    const Attend& a = call.attend;
    const int64_t rows = call.list.block_rows
                             ? std::min(call.list.block_rows, a.sequences.query_max)
                             : a.sequences.query_max;
    few = tiny && rows * heads <= kDecodeRows;
    units = a.h / heads;
    slots = call.list.most_slots(a.sequences.query_max, heads, lanes());
    work = a.sequences.count * units * slots;
    tiles = a.sequences.count * units *
            (rows ? ceil_div(a.sequences.query_max, rows) * ceil_div(rows * heads, lanes()) : 0);
  }
  void split(int64_t n) { splits = n, work *= n; }
  // Rows of a tile.
  FOVEA_HD int64_t lanes() const { return few ? kDecodeRows : kStageRows; }
};

struct ListItem {
  int64_t r, unit, slot, split;
  __device__ ListItem(const ListGrid& grid, int64_t w) : split(w % grid.splits) {
    const int64_t rest = w / grid.splits;
    slot = rest % grid.slots, unit = rest / grid.slots % grid.units;
    r = rest / grid.slots / grid.units;
  }
};

// The rows of an item; false: it has none.  more(m, packed): what an operation adds to row m of the
// tile, which is `packed` of its sequence and unit of heads.
template <int R, class Base, class More>
__device__ __forceinline__ bool stage_list_rows(const SparseAttend& call, const ListGrid& grid,
                                                const ListItem& item, ListTile<R, Base>& s,
                                                const More& more) {
  const Attend& a = call.attend;
  const int64_t head = item.unit * grid.heads;
  __syncthreads();  // the last item is done with
  if (threadIdx.x == 0) {
    s.piece = {a.sequences[item.r], item.r, item.unit, grid.heads};
    s.tile =
        call.tile_at(s.piece.seq, item.r, call.list.head_of(head), grid.heads, 16 * R, item.slot);
    s.entry_tiles = static_cast<int>((call.list.block_keys + kStageTile - 1) / kStageTile);
  }
  __syncthreads();
  if (s.tile.begin >= s.tile.end || !call.computes(head)) return false;
  const int64_t m0 = s.tile.list.begin * grid.heads + s.tile.begin,
                count = s.tile.end - s.tile.begin;
  const int64_t scored = call.score_head(s.piece.seq, head);
  stage_rows(a, m0, s, [&](int m) {
    if (m >= count) s.rows[m].i = s.q[m] = -1;
    if (m < count && call.head_map)
      s.q[m] = row_offset(s.piece.seq, s.rows[m].i, scored, a.q.stride);
    more(m, m0 + m);
  });
  // Entries of key_begin have sizes of their own.
  if (call.list.key_begin) {
    const ListRow& list = s.tile.list;
    for (int64_t m = threadIdx.x, to = call.list.count(list); m < to; m += kStageThreads) {
      const Interval keys = call.list(s.piece.seq, list, m).keys;
      const int64_t tiles = (keys.end - keys.begin + kStageTile - 1) / kStageTile;
      if (tiles > 0) atomicMax(&s.entry_tiles, static_cast<int>(tiles));
    }
  }
  __syncthreads();
  return true;
}

inline __device__ __noinline__ void find_steps(const SparseAttend& call, const PackGqaRows& piece,
                                               const SparseList::Tile& tile, int64_t head,
                                               int entry_tiles, ListSteps& to) {
  const Attend& a = call.attend;
  const SparseList& list = call.list;
  const Sequence& q = piece.seq;
  const int64_t group = a.h / a.g;
  to = {};
  to.key_head = call.score_head(q, head) / group, to.value_head = head / group;
  const int64_t i0 = tile.list.begin + tile.begin / piece.group;
  const int64_t i1 = tile.list.begin + (tile.end - 1) / piece.group;
  const int64_t p0 = a.mask.query_at(q, head, i0), p1 = a.mask.query_at(q, head, i1);
  to.some = a.mask.window.seen(p0, p1, q.keys, a.mask.axis);
  to.places = list.places(kStageTile);
  if (!list.listed()) {
    to.window = key_tiles(a.mask, q, head, head + 1, i0, i1 + 1, kStageTile);
    to.entries = to.window.count();
    return;
  }
  const int64_t first = list.first_keys < q.keys ? list.first_keys : q.keys;
  to.first = ListSteps::of(first);
  if (list.last_keys) {
    to.last = {a.mask.axis.from(p0 - list.last_keys + 1), a.mask.axis.from(p1 + 1)};
    if (to.last.begin < first) to.last.begin = first;
    if (to.last.end > q.keys) to.last.end = q.keys;
    if (to.last.end > to.last.begin) to.lasts = ListSteps::of(to.last.end - to.last.begin);
  }
  to.entries = (list.count(tile.list) + to.places - 1) / to.places;
  if (to.places == 1) to.entries *= entry_tiles;
  to.columns = ListSteps::of(list.count_columns(tile.list));
}

// The thread's key of step n, and what names it; -1: none.
inline __device__ __noinline__ int64_t step_key(const SparseAttend& call, const Sequence& q,
                                                const ListRow& rows, const ListSteps& steps,
                                                int entry_tiles, int64_t n, ListSide& by) {
  const SparseList& list = call.list;
  const int t = threadIdx.x;
  if (n < steps.first) {
    by = side_of_keys(rows, {0, q.keys}, true);
    const int64_t j = n * kStageTile + t;
    return j < list.first_keys ? j : -1;
  }
  n -= steps.first;
  if (n < steps.lasts) {
    by = side_of_keys(rows, {0, q.keys}, true);
    const int64_t j = steps.last.begin + n * kStageTile + t;
    return j < steps.last.end ? j : -1;
  }
  n -= steps.lasts;
  if (n >= steps.entries) {
    const int64_t m = (n - steps.entries) * kStageTile + t;
    const int64_t j = m < list.count_columns(rows) ? list.column_at(q, rows, m) : -1;
    by = side_of_keys(rows, {j, j + 1}, false);
    return j >= list.first_keys && !list.names(q, rows, j) ? j : -1;
  }
  if (!list.listed()) {
    by = side_of_keys(rows, {0, q.keys}, false);
    return steps.window[n] * kStageTile + t;
  }
  int64_t m, at;
  if (steps.places > 1) {
    if (t / list.block_keys >= steps.places) return -1;
    m = n * steps.places + t / list.block_keys, at = t % list.block_keys;
  } else {
    m = n / entry_tiles, at = n % entry_tiles * kStageTile + t;
  }
  if (m >= list.count(rows)) return -1;
  const ListEntry entry = list(q, rows, m);
  by = side_of(rows, m, entry);
  const int64_t j = entry.keys.begin + at;
  return j < entry.keys.end && j >= list.first_keys ? j : -1;
}

// KeySource: the steps of a tile in the order of sparse.h, each of at most 64 keys.  place() leaves
// out keys that no row may see.
template <int R, class Base = PackedTile<R>>
struct ListKeys {
  const SparseAttend& call;
  ListTile<R, Base>& s;
  int64_t begin, end;

  __device__ ListKeys(const SparseAttend& call, ListTile<R, Base>& s, const ListItem& item,
                      int64_t splits, int64_t head)
      : call(call), s(s) {
    if (threadIdx.x == 0) find_steps(call, s.piece, s.tile, head, s.entry_tiles, s.steps);
    __syncthreads();
    const SplitRange part = split_range(s.steps.count(), splits, item.split);
    begin = part.begin, end = part.end;
  }
  __device__ int64_t operator[](int64_t n) const { return n; }
  // A step of the list itself, which may be skipped.
  __device__ bool of_entries(int64_t n) const {
    const int64_t at = n - s.steps.first - s.steps.lasts;
    return at >= 0 && at < s.steps.entries;
  }
  // The keys of a step follow each other.
  __device__ bool run(int64_t n) const { return of_entries(n) && s.steps.places == 1; }
  __device__ bool any() const { return s.present[0] | s.present[1]; }
  __device__ int count(int64_t) const { return kStageTile; }

  // Every pair of the step that exists is seen, and nothing but scale and softcap makes its score.
  __device__ bool plain(int64_t n, bool missing) const {
    const SparseList& list = call.list;
    if (missing || !run(n) || list.tile || list.index_bias || list.last_keys) return false;
    const ListRow& rows = s.tile.list;
    const int64_t i0 = rows.begin + s.tile.begin / s.piece.group;
    const int64_t i1 = rows.begin + (s.tile.end - 1) / s.piece.group + 1;
    const int64_t j0 = s.keys[0].j, h = s.piece.head_begin();
    return tile_full(call.attend.mask, s.piece.seq, h, h + 1, i0, i1, j0, j0 + kStageTile);
  }

  __device__ bool place(int64_t n) const {
    if (threadIdx.x >= kStageTile) return false;
    ListSide by{};
    const int64_t j = step_key(call, s.piece.seq, s.tile.list, s.steps, s.entry_tiles, n, by);
    return put(j, by);
  }

 private:
  __device__ bool put(int64_t j, const ListSide& by) const {
    const int t = threadIdx.x;
    const Attend& a = call.attend;
    const Sequence& q = s.piece.seq;
    const ListSteps& steps = s.steps;
    KeyInfo key{j, -1, -1, 0};
    if (j >= 0 && steps.some(j)) {
      key = key_info(a, q, steps.key_head, j);
      if (key.k >= 0) {
        key.v += (steps.value_head - steps.key_head) * a.v.stride[2];
        const KeyPlace at = key_place(a.sequences, q, j);
        s.scales[0][t] = at.offset(steps.key_head, a.k_scale.stride);
        s.scales[1][t] = at.offset(steps.value_head, a.v_scale.stride);
      }
    }
    s.keys[t] = key, s.side[t] = by;
    const uint32_t there = __ballot_sync(~0u, key.k >= 0);
    if (t % 32 == 0) s.present[t / 32] = there;
    return key.k < 0;
  }
};

// The logits of a step: scale, softcap, bias; -inf where unseen.
template <int R, class Base = PackedTile<R>>
struct ListLogits {
  const SparseAttend& call;
  const ListTile<R, Base>& s;
  bool plain;

  __device__ float operator()(int r, int c, float product) const {
    const float x = capped(call.attend.score, product);
    const int column = threadIdx.x % 16 + 16 * c;
    return plain ? x
                 : list_score(call.list, s.piece.seq, s.rows[threadIdx.x / 16 + 16 * r],
                              s.keys[column], s.side[column], x);
  }
};

// False: every score of step n lies below its row's top by more than the margin; score(r, c).
// skipped: counts such steps, nullptr: nobody asks.
template <int R, class Keys, class Score>
__device__ __noinline__ bool step_counts(const SparseAttend& call, const Keys& keys, int64_t n,
                                         int64_t* skipped, const Score& score) {
  float most[R];
  bool low = true, seen = false;
  // Scores lie in local memory here: one after the other is less to compile.
#pragma unroll 1
  for (int r = 0; r < R; ++r) {
    most[r] = -INFINITY;
    bool odd = false;
#pragma unroll 1
    for (int c = 0; c < 4; ++c) {
      const float y = score(r, c);
      most[r] = fmaxf(most[r], y), odd |= y != y;
    }
    most[r] = lanes_max<16>(most[r]);
    seen |= most[r] > -INFINITY;
    const float top = keys.s.top[threadIdx.x / 16 + 16 * r];
    low &= !odd && (most[r] == -INFINITY || most[r] < top - call.skip_margin);
  }
  if (keys.of_entries(n) && __syncthreads_and(low)) {
    const bool any = __syncthreads_or(seen);
    if (any && skipped && threadIdx.x == 0)
      atomicAdd(reinterpret_cast<unsigned long long*>(skipped), 1ull);
    return false;
  }
  __syncwarp();  // a row's top is its own half warp's
#pragma unroll
  for (int r = 0; r < R; ++r) {
    float& top = keys.s.top[threadIdx.x / 16 + 16 * r];
    if (threadIdx.x % 16 == 0) top = fmaxf(top, most[r]);
  }
  __syncwarp();
  return true;
}

}  // namespace fovea::cuda
