// SPDX-License-Identifier: Apache-2.0
// x_tpa_forward on the CPU by the online softmax, in one of two forms:
//   factored  An item is a tile of rows of all heads, packed as (row, head).  Keys are the ranks of
//             b_k: x = sum_a a_k[a] (b_k[a] q'), o += sum_a (x a_v[a])' b_v[a].
//   formed    An item is a tile of rows of one head, and k and v of a key tile are formed for it.
// The first costs rank products a pair, the second one product and the forming.
// Parts of the keys are combined in order.  Tiles and parts do not depend on the threads.
#include <algorithm>

#include "host/sweep.h"
#include "ops/tpa/kernels.h"

namespace fovea {
namespace {

using host::kKeys, host::kRows, host::KeySpan, host::kInf;

constexpr int64_t kWidthMost = 1024;  // of v
constexpr int kVectorMost = 16;       // floats in a vector

struct RowTile : host::RowTile {
  explicit RowTile(int64_t rows) : host::RowTile(rows) {}
  int64_t row[kRows], head[kRows];
};

struct Room {
  Slot<float> rows, q, x, part, o, k, v, a, b;
};

struct ForwardPlan {
  Tpa x;
  bool factored;
  int64_t group;  // heads of an item
  Room room;      // within a worker's bytes
  host::RowTiles tiles;
  host::SplitRows split;
  host::WorkerScratch scratch;
};

struct RowState {
  float top[kRows], sum[kRows];
};

class Forward {
 public:
  Forward(const ForwardPlan& plan, void* base)
      : plan_(plan),
        x_(plan.x),
        a_(plan.x.attend),
        simd_(host::simd()),
        d_pad_(host::padded(a_.d)),
        e_pad_(host::padded(a_.e)),
        h_pad_(host::padded(a_.h)),
        base_(base) {}

  void run(Context& ctx) const {
    const host::RowPlaces tiles = plan_.tiles.find(base_, [&](int64_t r) {
      return host::ceil_div(a_.sequences[r].rows * plan_.group, kRows);
    });
    const auto ranks = static_cast<double>(x_.rank_k * a_.d + x_.rank_v * a_.e);
    const double cost = host::pairs_of(a_.sequences) * static_cast<double>(a_.h) * ranks;
    const int64_t parts = plan_.split.parts;
    host::Pool& pool = host::pool(ctx);
    pool.run(tiles.count() * parts, cost / host::kFlopsPerNanosecond,
             [&](int64_t item, int32_t worker) {
               attend(tiles[item / parts], item % parts, plan_.scratch.at(base_, worker));
             });
    if (parts > 1)
      pool.run(tiles.count(), static_cast<double>(tiles.tiles()) * a_.h * parts * a_.e,
               [&](int64_t item, int32_t) { combine(tiles[item]); });
  }

 private:
  RowTile row_tile(const Sequence& q, const host::RowPlaces::Place& at) const {
    const int64_t begin = at.tile * kRows, group = plan_.group;
    RowTile rows(std::min<int64_t>(kRows, q.rows * group - begin));
    for (int r = 0; r < rows.count; ++r) {
      rows.row[r] = (begin + r) / group, rows.head[r] = at.head * group + (begin + r) % group;
      rows.seen[r] =
          a_.mask.window.range(a_.mask.query_at(q, 0, rows.row[r]), q.keys, a_.mask.axis);
    }
    rows.bound();
    return rows;
  }
  int64_t row_index(const Sequence& q, const RowTile& rows, int r) const {
    return (q.batch * a_.s + q.row_begin + rows.row[r]) * a_.h + rows.head[r];
  }

  void attend(const host::RowPlaces::Place& at, int64_t part, void* room) const {
    const Sequence q = a_.sequences[at.sequence];
    const RowTile rows = row_tile(q, at);
    float* o = plan_.room.o.at(room);
    RowState state;
    std::fill_n(state.top, kRows, -kInf);
    std::fill_n(state.sum, kRows, 0.0f);
    std::fill_n(o, rows.count * e_pad_, 0.0f);
    if (q.keys > 0) load_queries(q, rows, room);
    const int64_t part_keys = host::part_keys(q.keys, plan_.split.parts, kKeys);
    host::KeyWalk::range(part * part_keys, std::min(q.keys, (part + 1) * part_keys))
        .each(rows, [&](const KeySpan& span) { visit(q, rows, span, room, state); });
    for (int r = 0; r < rows.count; ++r, o += e_pad_) {
      if (plan_.split.parts == 1)
        finish(q, rows, r, o, {state.top[r], state.sum[r]});
      else
        plan_.split.save(base_, part, row_index(q, rows, r), o, {state.top[r], state.sum[r]});
    }
  }

  // Columns of q, times all scales of a score.
  void load_queries(const Sequence& q, const RowTile& rows, void* room) const {
    float *staged = plan_.room.rows.at(room), *b = plan_.room.b.at(room);
    const float scale = a_.score.scale * x_.scale_k;
    for (int r = 0; r < rows.count; ++r) {
      float* to = staged + r * d_pad_;
      if (x_.q) {
        host::load_query(simd_, x_.q, a_.dtype,
                         host::row_offset(x_.q, q, rows.row[r], rows.head[r]), a_.d, d_pad_, scale,
                         to);
        continue;
      }
      std::fill_n(to, d_pad_, 0.0f);
      for (int64_t n = 0; n < x_.rank_q; ++n) {
        const int64_t at = host::row_offset(x_.a_q, q, rows.row[r], n);
        float by;
        host::load_row(simd_, x_.a_q.data, a_.dtype, at + rows.head[r] * x_.a_q.stride[3], 1, 1,
                       &by);
        host::load_row(simd_, x_.b_q.data, a_.dtype, host::row_offset(x_.b_q, q, rows.row[r], n),
                       x_.b_q.stride[3], a_.d, b);
        host::add_row(a_.d, by * scale * x_.scale_q, b, to);
      }
    }
    host::transpose(staged, d_pad_, rows.count, a_.d, rows.lanes, plan_.room.q.at(room));
  }

  host::KeyRows load(const View<4>& from, int64_t rank, int64_t width, const Sequence& q,
                     const KeySpan& span, const bool* absent, float* room) const {
    return host::load_keys({simd_, a_.sequences, from, a_.dtype, width}, q, rank, span.begin,
                           span.count, {true, true}, absent, room);
  }

  void visit(const Sequence& q, const RowTile& rows, const KeySpan& span, void* room,
             RowState& state) const {
    bool absent[kKeys], seen[kKeys * kRows];
    const int64_t count = span.count, lanes = rows.lanes;
    const bool holes =
        a_.sequences.page && host::find_absent(a_.sequences, q, span.begin, count, x_.a_k, absent);
    float* x = plan_.room.x.at(room);
    score(q, rows, span, holes ? absent : nullptr, room);
    if (span.masked()) {
      const host::LocalSeen local(rows, span.begin, count);
      simd_.mask(count, lanes, x, local.low, local.high, local.first_low, local.first_high);
    }
    for (int64_t j = 0; holes && j < count; ++j)
      if (absent[j]) std::fill_n(x + j * lanes, lanes, -kInf);
    const bool masked = span.masked() || holes;
    for (int64_t i = 0; masked && i < count * lanes; ++i) seen[i] = x[i] != -kInf;
    float shrink[kRows];
    simd_.softmax(count, lanes, x, state.top, state.sum, shrink);
    add(q, rows, span, holes ? absent : nullptr, room, shrink, masked ? seen : nullptr);
  }

  void score(const Sequence& q, const RowTile& rows, const KeySpan& span, const bool* absent,
             void* room) const {
    const int64_t count = span.count, lanes = rows.lanes;
    float *x = plan_.room.x.at(room), *part = plan_.room.part.at(room);
    const float* columns = plan_.room.q.at(room);
    const auto product = [&](const host::KeyRows& k, float* to) {
      simd_.gemm(
          {count, lanes, a_.d, k.x, k.row, columns, lanes, to, lanes, nullptr, false, false});
    };
    if (!plan_.factored) {
      form(x_.a_k, x_.b_k, x_.rank_k, a_.d, rows.head[0], q, span, absent, room,
           plan_.room.k.at(room));
      return product({plan_.room.k.at(room), d_pad_}, x);
    }
    std::fill_n(x, count * lanes, 0.0f);
    for (int64_t n = 0; n < x_.rank_k; ++n) {
      product(load(x_.b_k, n, a_.d, q, span, absent, plan_.room.k.at(room)), part);
      const host::KeyRows by = load(x_.a_k, n, a_.h, q, span, absent, plan_.room.a.at(room));
      for (int64_t j = 0; j < count; ++j)
        for (int r = 0; r < rows.count; ++r)
          x[j * lanes + r] += by.x[j * by.row + rows.head[r]] * part[j * lanes + r];
    }
  }

  // Rows of one head: sums over the ranks of a[head] b.
  void form(const View<4>& a, const View<4>& b, int64_t ranks, int64_t width, int64_t head,
            const Sequence& q, const KeySpan& span, const bool* absent, void* room,
            float* to) const {
    const int64_t pad = host::padded(width);
    View<4> one = a;  // the head's column
    one.data = static_cast<unsigned char*>(a.data) +
               head * a.stride[3] * dtype_bytes(static_cast<fovea_dtype>(a_.dtype));
    std::fill_n(to, span.count * pad, 0.0f);
    float by[kKeys * kVectorMost];
    for (int64_t n = 0; n < ranks; ++n) {
      const host::KeyRows f = load(one, n, 1, q, span, absent, by);
      const host::KeyRows rows = load(b, n, width, q, span, absent, plan_.room.b.at(room));
      for (int64_t j = 0; j < span.count; ++j)
        host::add_row(width, f.x[j * f.row], rows.x + j * rows.row, to + j * pad);
    }
  }

  // o = shrink o + p' v.  seen, where a row may not see a key: 0 * NaN is NaN.
  void add(const Sequence& q, const RowTile& rows, const KeySpan& span, const bool* absent,
           void* room, const float* shrink, const bool* seen) const {
    const int64_t count = span.count, lanes = rows.lanes;
    float *p = plan_.room.x.at(room), *part = plan_.room.part.at(room);
    const auto product = [&](const host::KeyRows& v, const float* by, const float* first) {
      float* o = plan_.room.o.at(room);
      if (seen && !simd_.finite(count, a_.e, v.x, v.row))
        return host::add_values(simd_, rows.count, lanes, count, by, v, a_.e, first, o, e_pad_,
                                [&](int64_t j, int64_t r) { return seen[j * lanes + r]; });
      simd_.gemm({rows.count, e_pad_, count, by, lanes, v.x, v.row, o, e_pad_, first, true, true});
    };
    if (!plan_.factored) {
      form(x_.a_v, x_.b_v, x_.rank_v, a_.e, rows.head[0], q, span, absent, room,
           plan_.room.v.at(room));
      return product({plan_.room.v.at(room), e_pad_}, p, shrink);
    }
    for (int64_t n = 0; n < x_.rank_v; ++n) {
      const host::KeyRows by = load(x_.a_v, n, a_.h, q, span, absent, plan_.room.a.at(room));
      for (int64_t j = 0; j < count; ++j) {
        const int64_t at = j * lanes;
        for (int r = 0; r < rows.count; ++r)
          part[at + r] = seen && !seen[at + r] ? 0 : p[at + r] * by.x[j * by.row + rows.head[r]];
        std::fill_n(part + at + rows.count, lanes - rows.count, 0.0f);
      }
      product(load(x_.b_v, n, a_.e, q, span, absent, plan_.room.v.at(room)), part,
              n ? nullptr : shrink);
    }
  }

  void finish(const Sequence& q, const RowTile& rows, int r, const float* o,
              host::SplitRows::State state) const {
    const host::RowEnd end(state, nullptr);
    const int64_t h = rows.head[r];
    host::store_row(a_.o.data, a_.o_dtype, host::row_offset(a_.o, q, rows.row[r], h),
                    a_.o.stride[3], a_.e, o, end.factor * x_.scale_v);
    if (a_.lse) host::row_slot(a_.lse, q, h, rows.row[r]) = end.lse;
  }

  void combine(const host::RowPlaces::Place& at) const {
    const Sequence q = a_.sequences[at.sequence];
    const RowTile rows = row_tile(q, at);
    float o[kWidthMost];
    for (int r = 0; r < rows.count; ++r)
      finish(q, rows, r, o, plan_.split.combine(base_, row_index(q, rows, r), o));
  }

  const ForwardPlan& plan_;
  const Tpa& x_;
  const Attend& a_;
  const host::Simd& simd_;
  const int64_t d_pad_, e_pad_, h_pad_;
  void* base_;
};

// Products of a pair, and those of forming a key for a tile of rows.
bool cheaper_factored(const Tpa& x) {
  const int64_t rows = std::min<int64_t>(x.attend.sequences.query_max, kRows);
  const int64_t width = x.attend.d + x.attend.e;
  const int64_t factored = x.rank_k * x.attend.d + x.rank_v * x.attend.e;
  return rows * factored <= rows * width + 2 * factored;
}

}  // namespace

extern const Kernel<Tpa> tpa_forward_host = {
    "", [](const Context& ctx, const Tpa& x, Plan& plan) {
      const Attend& a = x.attend;
      ForwardPlan p{};
      p.x = x, p.factored = cheaper_factored(x), p.group = p.factored ? a.h : 1;
      const int64_t d_pad = host::padded(a.d), e_pad = host::padded(a.e);
      Layout worker;
      p.room.rows = worker.add<float>(kRows * d_pad), p.room.q = worker.add<float>(kRows * a.d);
      p.room.x = worker.add<float>(kRows * kKeys), p.room.part = worker.add<float>(kRows * kKeys);
      p.room.o = worker.add<float>(kRows * e_pad);
      p.room.k = worker.add<float>(kKeys * d_pad), p.room.v = worker.add<float>(kKeys * e_pad);
      p.room.a = worker.add<float>(p.factored ? kKeys : 0, host::padded(a.h));
      p.room.b = worker.add<float>(kKeys * std::max(d_pad, e_pad));
      const int64_t items = a.h ? a.sequences.count * (a.h / p.group) : 0;
      const int64_t tiles = host::ceil_div(a.sequences.query_max * p.group, kRows);
      p.tiles = host::RowTiles(a.sequences.count, a.h ? a.h / p.group : 0, plan.workspace);
      p.split = host::SplitRows(host::forward_parts(a.splits, items * tiles, a.sequences.key_max),
                                a.b * a.s * a.h, a.e, plan.workspace);
      p.scratch = host::WorkerScratch(
          ctx, static_cast<double>(items) * static_cast<double>(tiles * p.split.parts), worker,
          plan.workspace);
      plan.kernel += p.factored ? ".factored" : ".formed";
      host::host_plan<Forward>(plan, p, host::shape_name(a.dtype, a.d));
      return Text();
    }};

}  // namespace fovea
