// SPDX-License-Identifier: Apache-2.0
// attention_forward on the CPU: o = softmax(scale q k' + ...) v by the online softmax.
//   An item of work is (sequence, key head, tile of packed rows, part of the keys).  It walks its
//   key tiles: x = k q' (rows in lanes, so the softmax runs down columns and needs no shuffles),
//   finish_scores, softmax, o = shrink o + x' v.  Parts are combined in order by a second pass.
//   Rows of bf16 are multiplied as they are where the CPU has tile registers, host/tiles.h: there
//   the probabilities are rounded to bf16, as on a GPU's tensor cores.
//   Which parts and tiles there are depends on shapes and lengths alone, never on the threads.
//   FlashAttention-2 (2307.08691), FlashDecoding.
#include "core/reasons.h"
#include "ops/attention/kernels.h"
#include "ops/attention/tile_host.h"

namespace fovea {
namespace {

using namespace attend_host;

constexpr int kDotRows = 4;           // up to here a tile's lanes would mostly be empty
constexpr int kAhead = 16;            // keys whose rows are asked for before they are read
constexpr int64_t kWidthMost = 1024;  // of v

struct Room {
  Slot<float> rows, q, q_value, x, o, k, v;
  Slot<uint16_t> pairs, weights;  // of tiles
};

struct ForwardPlan {
  Attend a;
  const host::Tiles* products;  // or nullptr: in f32
  Room room;                    // within a worker's bytes
  host::RowTiles tiles;
  host::SplitRows split;
  host::WorkerScratch scratch;
};

// Rows [begin, end) of f32: of few query rows, a sweep waits for memory, and the hardware's
// prefetch ends with each key's row.
void prefetch_rows(const float* from, int64_t row, int64_t begin, int64_t end, int64_t width) {
  constexpr int64_t line = 64 / sizeof(float);
  for (int64_t j = begin; j < end; ++j)
    for (int64_t c = 0; c < width; c += line) __builtin_prefetch(from + j * row + c);
}

// Unnormalised state of a tile: o rows of e_pad, top in units of log2.
struct RowState {
  float top[kRows], sum[kRows];
};

class Forward {
 public:
  Forward(const ForwardPlan& plan, void* base) : plan_(plan), call_(plan.a), base_(base) {}

  void run(Context& ctx) {
    const Attend& a = call_.a;
    const host::RowPlaces tiles = plan_.tiles.find(
        base_, [&](int64_t r) { return ceil_div(a.sequences[r].rows * call_.group, kRows); });
    const double cost = host::pairs_of(a.sequences) * static_cast<double>(a.h * (a.d + a.e));
    const int64_t parts = plan_.split.parts;
    host::Pool& pool = host::pool(ctx);
    // Row tiles that share a part of the keys follow each other.
    pool.run(tiles.count() * parts, cost / kFlopsPerNanosecond, [&](int64_t item, int32_t worker) {
      attend(tiles[item % tiles.count()], item / tiles.count(), worker);
    });
    if (parts > 1)
      pool.run(tiles.count(), static_cast<double>(tiles.tiles()) * a.h * parts * a.e,
               [&](int64_t item, int32_t) { combine(tiles[item]); });
  }

 private:
  RowTile row_tile(const Sequence& q, const host::RowPlaces::Place& at) const {
    const int64_t begin = at.tile * kRows;
    return RowTile(call_, q, at.head * call_.group, call_.group, begin,
                   std::min<int64_t>(kRows, q.rows * call_.group - begin));
  }

  int64_t row_index(const Sequence& q, const RowTile& rows, int r) const {
    return (q.batch * call_.a.s + q.row_begin + rows.row[r]) * call_.a.h + rows.head[r];
  }

  void attend(const host::RowPlaces::Place& at, int64_t part, int32_t worker) {
    const Sequence q = call_.a.sequences[at.sequence];
    const RowTile rows = row_tile(q, at);
    void* room = plan_.scratch.at(base_, worker);
    float* o = plan_.room.o.at(room);
    RowState state;
    std::fill_n(state.top, kRows, -kInf);
    std::fill_n(state.sum, kRows, 0.0f);

    const int64_t part_keys = host::part_keys(q.keys, plan_.split.parts, kKeys);
    const bool by_tiles = plan_.products && rows.count > kDotRows;
    std::fill_n(o, by_tiles ? rows.lanes * host::tile_padded(call_.a.e) : rows.count * call_.e_pad,
                0.0f);
    by_tiles ? pack_queries(q, rows, room) : load_queries(q, rows, room);
    KeyWalk::range(part * part_keys, std::min(q.keys, (part + 1) * part_keys))
        .each(rows, [&](const KeySpan& span) {
          by_tiles ? visit_by_tiles(at.sequence, q, rows, span, room, state)
                   : visit(at.sequence, q, rows, span, room, state);
        });

    for (int r = 0; r < rows.count; ++r) {
      const float* sums = o + r * call_.e_pad;
      if (by_tiles) sums = sums_of(rows, r, room);
      if (plan_.split.parts == 1)
        finish(q, rows, r, sums, {state.top[r], state.sum[r]});
      else
        plan_.split.save(base_, part, row_index(q, rows, r), sums, {state.top[r], state.sum[r]});
    }
  }

  void load_queries(const Sequence& q, const RowTile& rows, void* room) const {
    const Attend& a = call_.a;
    const auto load = [&](const View<4>& from, int64_t width, int64_t width_pad, float* columns) {
      float* staged = plan_.room.rows.at(room);
      for (int r = 0; r < rows.count; ++r)
        host::load_query(call_.simd, from, a.dtype, row_offset(from, q, rows.row[r], rows.head[r]),
                         width, width_pad, a.score.scale, staged + r * width_pad);
      if (columns) transpose(staged, width_pad, rows.count, width, rows.lanes, columns);
    };
    if (a.q_value) load(a.q_value, a.e, call_.e_pad, plan_.room.q_value.at(room));
    load(a.q, a.d, call_.d_pad, by_dots(rows) ? nullptr : plan_.room.q.at(room));
  }

  bool by_dots(const RowTile& rows) const { return rows.count <= kDotRows && !call_.a.q_value; }

  void visit(int64_t sequence, const Sequence& q, const RowTile& rows, const KeySpan& span,
             void* room, RowState& state) const {
    const Attend& a = call_.a;
    const int64_t lanes = rows.lanes, count = span.count;
    float* x = plan_.room.x.at(room);
    float* o = plan_.room.o.at(room);
    KeyTile keys;
    load_keys(call_, q, rows.key_head, span.begin, count, {false}, {true, rows.count <= kDotRows},
              {plan_.room.k.at(room), plan_.room.v.at(room)}, keys);
    if (by_dots(rows)) {
      const bool in_place = keys.k != plan_.room.k.at(room) && keys.v != plan_.room.v.at(room);
      std::fill_n(x, count * lanes, 0.0f);
      for (int64_t j = 0; j < count; j += kAhead) {
        const int64_t n = std::min<int64_t>(kAhead, count - j);
        if (in_place) {  // rows of the tile after this one too
          prefetch_rows(keys.k, keys.k_row, j + kAhead,
                        std::min<int64_t>(j + 2 * kAhead, q.keys - span.begin), a.d);
          prefetch_rows(keys.v, keys.v_row, j, j + n, a.e);
        }
        call_.simd.dots(n, rows.count, a.d, keys.k + j * keys.k_row, keys.k_row,
                        plan_.room.rows.at(room), call_.d_pad, x + j * lanes, lanes);
      }
    } else {
      call_.simd.gemm({count, lanes, a.d, keys.k, keys.k_row, plan_.room.q.at(room), lanes, x,
                       lanes, nullptr, false, false});
    }
    if (a.q_value)
      call_.simd.gemm({count, lanes, a.e, keys.v, keys.v_row, plan_.room.q_value.at(room), lanes, x,
                       lanes, nullptr, false, true});
    const bool masked = finish_scores(call_, sequence, q, rows, keys, span.cover, x, nullptr);

    float shrink[kRows];
    // 0 * NaN is NaN: a value no row may see has to stay out of the product.
    if (masked && !call_.simd.finite(count, a.e, keys.v, keys.v_row)) {
      bool seen[kKeys * kRows];
      for (int64_t i = 0; i < count * lanes; ++i) seen[i] = x[i] != -kInf;
      call_.simd.softmax(count, lanes, x, state.top, state.sum, shrink);
      return host::add_values(call_.simd, rows.count, lanes, count, x, {keys.v, keys.v_row}, a.e,
                              shrink, o, call_.e_pad,
                              [&](int64_t j, int64_t r) { return seen[j * lanes + r]; });
    }
    call_.simd.softmax(count, lanes, x, state.top, state.sum, shrink);
    call_.simd.gemm({rows.count, call_.e_pad, count, x, lanes, keys.v, keys.v_row, o, call_.e_pad,
                     shrink, true, true});
  }

  // ---- the same by tiles of bf16

  void pack_queries(const Sequence& q, const RowTile& rows, void* room) const {
    const Attend& a = call_.a;
    const int64_t d = host::tile_padded(a.d), stride = a.q.stride[3];
    uint16_t* staged = reinterpret_cast<uint16_t*>(plan_.room.rows.at(room));
    std::fill_n(staged, rows.lanes * d, uint16_t{0});
    for (int r = 0; r < rows.count; ++r) {
      const uint16_t* from = a.q.as<uint16_t>() + row_offset(a.q, q, rows.row[r], rows.head[r]);
      for (int64_t c = 0; c < a.d; ++c) staged[r * d + c] = from[c * stride];
    }
    plan_.products->pack_queries(rows.lanes, d, {staged, d},
                                 reinterpret_cast<uint16_t*>(plan_.room.q.at(room)));
  }

  void visit_by_tiles(int64_t sequence, const Sequence& q, const RowTile& rows, const KeySpan& span,
                      void* room, RowState& state) const {
    const Attend& a = call_.a;
    const host::Tiles& products = *plan_.products;
    const int64_t lanes = rows.lanes, count = span.count;
    float* x = plan_.room.x.at(room);
    KeyTile keys;
    place_keys(call_, q, rows.key_head, span.begin, count, keys);
    const auto load = [&](const host::KeySide& side, float* to) {
      return host::load_bf16_keys(side, q, rows.key_head, span.begin, count, keys.absences(),
                                  reinterpret_cast<uint16_t*>(to));
    };
    const host::Bf16Rows k = load(call_.key_side(), plan_.room.k.at(room));
    const host::Bf16Rows v = call_.values_of_keys && a.e == host::tile_padded(a.e)
                                 ? k
                                 : load(call_.value_side(), plan_.room.v.at(room));
    products.scores({host::tile_padded(count), lanes, host::tile_padded(a.d), k,
                     reinterpret_cast<uint16_t*>(plan_.room.q.at(room)), a.score.scale, x});
    const bool masked = finish_scores(call_, sequence, q, rows, keys, span.cover, x, nullptr);

    float shrink[kRows];
    if (masked && !products.finite(count, a.e, v)) return add_seen(rows, count, v, x, room, state);
    call_.simd.softmax(count, lanes, x, state.top, state.sum, shrink);
    products.values({count, lanes, host::tile_padded(a.e), x, v, shrink, plan_.room.o.at(room),
                     plan_.room.pairs.at(room), plan_.room.weights.at(room)});
  }

  // As visit(): a value no row may see stays out.
  void add_seen(const RowTile& rows, int64_t count, host::Bf16Rows v, float* x, void* room,
                RowState& state) const {
    const Attend& a = call_.a;
    float shrink[kRows];
    bool seen[kKeys * kRows];
    for (int64_t i = 0; i < count * rows.lanes; ++i) seen[i] = x[i] != -kInf;
    call_.simd.softmax(count, rows.lanes, x, state.top, state.sum, shrink);
    float* value = reinterpret_cast<float*>(plan_.room.pairs.at(room));
    for (int r = 0; r < rows.count; ++r) {
      float* o = sums_of(rows, r, room);
      call_.simd.scale(a.e, o, shrink[r], o);
      for (int64_t j = 0, at = r; j < count; ++j, at += rows.lanes) {
        if (!seen[at]) continue;
        call_.simd.widen(a.e, v.x + j * v.row, FOVEA_BF16, value);
        host::add_row(a.e, x[at], value, o);
      }
      each_tile(rows, r, room,
                [&](float* tile, int64_t c, int64_t n) { std::copy_n(o + c, n, tile); });
    }
  }

  // visit(sums of row r, first column, columns)
  template <class Visit>
  void each_tile(const RowTile& rows, int r, void* room, Visit visit) const {
    constexpr int64_t n = host::kTileColumns;
    float* o = plan_.room.o.at(room) + (r / n * n + r % n) * n;
    for (int64_t c = 0; c < call_.a.e; c += n, o += rows.lanes * n)
      visit(o, c, std::min(n, call_.a.e - c));
  }
  // A copy of a row's sums.
  float* sums_of(const RowTile& rows, int r, void* room) const {
    float* to = plan_.room.rows.at(room);
    each_tile(rows, r, room,
              [&](const float* tile, int64_t c, int64_t n) { std::copy_n(tile, n, to + c); });
    return to;
  }

  // The sink logit enters here, once; o / (sum of exp), and ln of it.
  void finish(const Sequence& q, const RowTile& rows, int r, const float* o,
              host::SplitRows::State state) const {
    const Attend& a = call_.a;
    const int64_t h = rows.head[r];
    const host::RowEnd end(state, a.score.sink_logit ? a.score.sink_logit.at(h) : nullptr);
    store_row(a.o.data, a.o_dtype, row_offset(a.o, q, rows.row[r], h), a.o.stride[3], a.e, o,
              end.factor);
    if (a.lse) host::row_slot(a.lse, q, h, rows.row[r]) = end.lse;
  }

  void combine(const host::RowPlaces::Place& at) const {
    const Sequence q = call_.a.sequences[at.sequence];
    const RowTile rows = row_tile(q, at);
    float o[kWidthMost];
    for (int r = 0; r < rows.count; ++r)
      finish(q, rows, r, o, plan_.split.combine(base_, row_index(q, rows, r), o));
  }

  const ForwardPlan& plan_;
  const Call call_;
  void* base_;
};

// Tiles take bf16 keys and values as they are.
const host::Tiles* products_of(const Attend& a) {
  const bool as_they_are = a.dtype == FOVEA_BF16 && a.k_dtype == FOVEA_BF16 &&
                           a.v_dtype == FOVEA_BF16 && !a.rope.cos && !a.q_value;
  return as_they_are ? host::tiles() : nullptr;
}

Text refuses(const Context&, const Attend& a) {
  if (a.e > kWidthMost) return reason("e", a.e, "at most " + Text::number(kWidthMost));
  return "";
}

Text offer(const Context& ctx, const Attend& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  const Call call(a);
  ForwardPlan p{};
  p.a = a, p.products = products_of(a);
  const int64_t d_tiles = p.products ? host::tile_padded(a.d) : 0;
  const int64_t e_tiles = p.products ? host::tile_padded(a.e) : 0;

  Layout worker;
  p.room.rows = worker.add<float>(kRows * std::max(call.d_pad, a.q_value ? call.e_pad : 0));
  p.room.q = worker.add<float>(kRows * std::max(a.d, d_tiles));
  p.room.q_value = worker.add<float>(a.q_value ? kRows * a.e : 0);
  p.room.x = worker.add<float>(kRows * kKeys);
  p.room.o = worker.add<float>(kRows * std::max(call.e_pad, e_tiles));
  p.room.k = worker.add<float>(kKeys * call.d_pad);
  p.room.v = worker.add<float>(kKeys * call.e_pad);
  p.room.pairs = worker.add<uint16_t>(p.products ? kKeys : 0, 2 * host::kTileTerms);
  p.room.weights = worker.add<uint16_t>(p.products ? kKeys : 0, kRows);
  const int64_t tiles = ceil_div(a.sequences.query_max * call.group, kRows);
  p.tiles = host::RowTiles(a.sequences.count, a.g, plan.workspace);
  p.split = host::SplitRows(
      host::forward_parts(a.splits, a.sequences.count * a.g * tiles, a.sequences.key_max),
      a.b * a.s * a.h, a.e, plan.workspace);
  const double items = static_cast<double>(a.sequences.count) * static_cast<double>(tiles) *
                       static_cast<double>(a.g * p.split.parts);
  p.scratch = host::WorkerScratch(ctx, items, worker, plan.workspace);
  const Text unit = p.products ? Text(".") + p.products->name : Text();
  host::host_plan<Forward>(plan, p, unit + host::shape_name(a.dtype, a.d));
  return "";
}

}  // namespace

extern const Kernel<Attend> attention_forward_host = {"", offer};

}  // namespace fovea
