// SPDX-License-Identifier: Apache-2.0
// What the host's forward and backward share: a tile of consecutive rows of one query head in
// vector lanes (host/sweep.h), and of each side the logit tile x[key][lane] against a tile of keys.
#pragma once
#include "host/sweep.h"
#include "ops/kl/kernels.h"

namespace fovea::kl_host {

using host::ceil_div, host::KeySpan, host::KeyWalk, host::kFlopsPerNanosecond, host::kInf,
    host::kKeys, host::kRows, host::LocalSeen, host::padded, host::row_slot, host::row_value,
    host::RowPlaces, host::RowTiles;

// Rows first .. first + count - 1 of a sequence, of one query head.
struct RowTile : host::RowTile {
  RowTile(const Kl& a, const Sequence& q, int64_t head, int64_t first);
  RowTile(const Kl& a, const Sequence& q, const RowPlaces::Place& at)
      : RowTile(a, q, at.head, at.tile * kRows) {}
  int64_t head, first;
};

// What the plan of every sweep has: where its row tiles are, and the workers' rooms.
struct SweepPlan {
  // rows_of: the call whose heads have row tiles of their own; items: of other sweeps in the same
  // rooms.
  void lay_out(const Context& ctx, const Kl& rows_of, double items, const Layout& worker,
               Plan& plan);
  RowPlaces find(const Sequences& sequences, void* base) const;
  host::RowTiles tiles;
  host::WorkerScratch scratch;
};

// Room of one side for a worker.
struct SideRoom {
  SideRoom(const KlSide& side, Layout& layout);
  Slot<float> rows, columns, x, k;
};

// One side of a row tile against a key tile.
class SideTile {
 public:
  SideTile(const Kl& a, const KlSide& side, const SideRoom& room, void* base);

  // q (scaled) of the rows, 0 of those that see nothing: a NaN there is of no account, and how the
  // others are added up may not depend on it.
  void load_rows(const Sequence& q, const RowTile& rows);
  // k, and x = its logits.  `wide`: k is read as vectors later on.
  void load_keys(const Sequence& q, int64_t query_head, int64_t begin, int64_t count, bool wide);
  void score(int64_t lanes);
  bool finite() const;  // of q and k of the tile

  const KlSide& side;
  const int64_t pad;  // width in whole vectors
  float *rows, *x;    // [lane][pad], [key][lane]
  const float* k;
  int64_t k_row, keys;

 private:
  const Kl& a_;
  const host::Simd& simd_;
  float *columns_, *k_room_;
  bool rows_finite_;
};

inline float weight_of(const Kl& a, const Sequence& q, int64_t head, int64_t row) {
  return a.row_weight ? row_value(a.row_weight, q, head, row) : 1.0f;
}

// Both online softmaxes of a row tile and their cross term.
struct DualRows {
  DualRows() {
    std::fill_n(top_x, kRows, -kInf), std::fill_n(top_y, kRows, -kInf);
    for (float* sum : {sum_x, sum_y, cross}) std::fill_n(sum, kRows, 0.0f);
  }
  host::DualSoftmax view() { return {top_x, top_y, sum_x, sum_y, cross}; }
  struct Row {
    double kl, lse_x, lse_y;
  };
  // Of a row; any: it saw a key.
  Row row(int r, bool any) const;
  float top_x[kRows], top_y[kRows], sum_x[kRows], sum_y[kRows], cross[kRows];
};

// dq, or dk, of one side: zeros for what no sequence reaches; rows or keys of f32 sums, `pad`
// apart.
void zero_gradients(host::Pool& pool, const Kl& a, const KlSide& side);
void store_dq(const KlSide& side, const Sequence& q, const RowTile& rows, const float* sums,
              int64_t pad);
void store_dk(const Kl& a, const KlSide& side, const Sequence& q, int64_t begin, int64_t end,
              int64_t key_head, const float* sums, int64_t pad);

// ".f16.d64.bf16.d32", of a kernel's name.
inline Text shape_name(const KlSide& x, const KlSide& y) {
  return host::shape_name(x.dtype, x.width) + host::shape_name(y.dtype, y.width);
}

// Sums over the rows of tiles, and theirs in a tree of fixed shape.
struct Totals {
  double value, weight;
};
Totals add_up(const Totals* tiles, int64_t count);

}  // namespace fovea::kl_host
