// SPDX-License-Identifier: Apache-2.0
// What the host's forward and backward over lists share: the tiles of packed rows, the steps of
// keys that a tile visits, and its scores.
//   A tile has up to 64 lanes: rows of one block times the heads that share its list and keys.
//   A step has up to 96 keys (64 with skip_margin): a run of keys, or those of neighbouring places.
#pragma once
#include <atomic>

#include "core/sparse.h"
#include "host/sweep.h"

namespace fovea::sparse_host {

using host::kInf, host::kKeys, host::kRows;

// Constant over a call.
struct Call {
  explicit Call(const SparseAttend& request);
  SparseAttend s;
  const host::Simd& simd;
  int64_t heads;         // of a tile: packed rows
  int64_t units;         // h / heads
  int64_t d_pad, e_pad;  // widths in whole vectors
  int64_t limit;         // keys of a step
  const Attend& a() const { return s.attend; }
  const SparseList& list() const { return s.list; }
  int64_t list_head(int64_t unit) const { return list().head_of(unit * heads); }
  // Tiles of a unit of heads in a sequence; some are empty.
  int64_t slots(const Sequence& q) const { return list().slots(q, heads, kRows); }
};

struct RowTile : host::RowTile {
  RowTile(const Call& call, const Sequence& q, const SparseList::Tile& tile, int64_t first_head);
  ListRow list;
  int64_t score_head;  // whose q and keys make the scores; first_head's
  int64_t key_head, value_head;
  int64_t row[kRows];   // within the sequence
  int64_t head[kRows];  // query head
  int64_t position[kRows];
  int64_t first_position, last_position;
  Interval all;            // keys that every lane sees
  Interval last = {0, 0};  // that last_keys may name
};

struct KeyStep {
  enum Kind { always, listed, column } kind;
  KeyStep(Kind kind, int64_t place) : kind(kind), place(place) {}
  int count = 0;
  int64_t place;  // of the first key, in the list; -1: none
  int64_t key[kKeys];
  int32_t at[kKeys];  // place - `place` of each key
  bool run = true;    // keys follow each other
  void add(int64_t j, int64_t from) {
    run = run && (count == 0 || key[count - 1] + 1 == j);
    key[count] = j, at[count++] = static_cast<int32_t>(from - place);
  }
};

// The steps of a tile, in the order of sparse.h: what is always seen, the list, single keys.
class KeySteps {
 public:
  KeySteps(const Call& call, const Sequence& q, const RowTile& rows)
      : call_(call), q_(q), rows_(rows) {}
  template <class Visit>
  void each(Visit visit) const {
    const SparseList& list = call_.list();
    if (list.listed()) {
      const int64_t first = std::min(list.first_keys, q_.keys);
      span(KeyStep::always, -1, {0, first}, 0, visit);
      span(KeyStep::always, -1, {std::max(first, rows_.last.begin), rows_.last.end}, 0, visit);
      entries(visit);
      columns(visit);
    } else {
      span(KeyStep::listed, -1, {0, q_.keys}, call_.limit, visit);
    }
  }

 private:
  // Keys of a range that some lane sees, in steps; cut at multiples of `grid` from its begin on.
  template <class Visit>
  void span(KeyStep::Kind kind, int64_t place, Interval keys, int64_t grid, Visit& visit) const {
    int64_t j = std::max(keys.begin, rows_.begin);
    if (grid && j > keys.begin) j = keys.begin + (j - keys.begin) / grid * grid;
    for (const int64_t end = std::min(keys.end, rows_.end); j < end; j += call_.limit) {
      KeyStep step(kind, place);
      for (int64_t i = j, to = std::min(j + call_.limit, keys.end); i < to; ++i)
        put(step, i, place);
      if (step.count) visit(step);
    }
  }
  template <class Visit>
  void entries(Visit& visit) const {
    const SparseList& list = call_.list();
    const int64_t places = list.places(call_.limit), first = list.first_keys;
    for (int64_t m = 0, count = list.count(rows_.list); m < count; m += places) {
      if (places == 1) {
        const ListEntry entry = list(q_, rows_.list, m);
        if (!entry.none()) span(KeyStep::listed, m, entry.keys, call_.limit, visit);
        continue;
      }
      KeyStep step(KeyStep::listed, m);
      for (int64_t n = m; n < std::min(count, m + places); ++n) {
        const ListEntry entry = list(q_, rows_.list, n);
        for (int64_t j = std::max(first, entry.keys.begin); j < entry.keys.end; ++j)
          if (j >= rows_.begin && j < rows_.end) put(step, j, n);
      }
      if (step.count) visit(step);
    }
  }
  template <class Visit>
  void columns(Visit& visit) const {
    const SparseList& list = call_.list();
    KeyStep step(KeyStep::column, 0);
    for (int64_t m = 0, count = list.count_columns(rows_.list); m < count; ++m) {
      const int64_t j = list.column_at(q_, rows_.list, m);
      if (j < rows_.begin || j >= rows_.end || list.names(q_, rows_.list, j)) continue;
      put(step, j, 0);
      if (step.count == call_.limit) visit(step), step.count = 0, step.run = true;
    }
    if (step.count) visit(step);
  }
  // A key on an absent page is none.
  void put(KeyStep& step, int64_t j, int64_t place) const {
    const Attend& a = call_.a();
    if (!a.sequences.page || a.sequences.key_offset(q_, j, a.k.stride) >= 0) step.add(j, place);
  }

  const Call& call_;
  const Sequence& q_;
  const RowTile& rows_;
};

// Rooms of a worker that a score tile needs.
struct ScoreRoom {
  ScoreRoom() = default;
  ScoreRoom(const Call& call, Layout& worker);
  Slot<float> rows, q, q_value, x, k, v;
};

// Scores of a tile, x[key][lane], of the keys that load() has put into k and v.
class ScoreTile {
 public:
  ScoreTile(const Call& call, const Sequence& q, const RowTile& rows, const ScoreRoom& room,
            void* base);
  void load(const KeyStep& step, bool k_wide);
  // -inf where a lane does not see a key; false: nowhere.  slope, if given, receives
  // d score / d (scale <q, k>).
  bool score(const KeyStep& step, float* slope);

  float* x;
  const float* q;  // [lane][d_pad], times scale
  host::KeyRows k, v;

 private:
  bool sees(const KeyStep& step, const ListEntry& entry, int r, int64_t j) const;
  bool mask(const KeyStep& step);
  void side(const host::KeySide& side, int64_t head, const KeyStep& step, host::KeyUse use,
            float* room, host::KeyRows& rows) const;
  bool by_dots() const { return rows_.count <= kDotRows && !call_.a().q_value; }
  static constexpr int kDotRows = 4;  // up to here a tile's lanes would mostly be empty

  const Call& call_;
  const Sequence& q_;
  const RowTile& rows_;
  float *q_columns_, *q_value_, *k_room_, *v_room_;
};

}  // namespace fovea::sparse_host
