// SPDX-License-Identifier: Apache-2.0
// x_kv_decode on the CPU by the online softmax.  An item is a tile of rows of a key head, packed as
// (row, head), over a part of its tokens.  Tiles of whole groups become f32 numbers: keys as they
// are stored, [channel][token], and values as rows.
// Parts of the keys are combined in order.  Tiles and parts do not depend on the threads.
#include <algorithm>

#include "host/sweep.h"
#include "ops/kv/kernels.h"

namespace fovea {
namespace {

using host::kRows, host::kInf;

constexpr int kTokensMost = kKvHostGroup;  // of a tile
constexpr int64_t kWidthMost = 1024;
constexpr int64_t kWordsMost = kWidthMost / 8;

struct RowTile : host::RowTile {
  explicit RowTile(int64_t rows) : host::RowTile(rows) {}
  int64_t row[kRows], head[kRows];
};

struct Room {
  Slot<float> q, y, x, o, k, v;
};

struct DecodePlan {
  KvDecode x;
  int64_t packed, tokens;  // query heads of a key head; of a tile
  int64_t pitch;           // tokens, in whole vectors
  Room room;               // within a worker's bytes
  host::RowTiles tiles;
  host::SplitRows split;
  host::WorkerScratch scratch;
};

class Decode {
 public:
  Decode(const DecodePlan& plan, void* base)
      : plan_(plan),
        a_(plan.x.attend),
        c_(plan.x.cache),
        simd_(host::simd()),
        d_pad_(host::padded(a_.d)),
        e_pad_(host::padded(a_.e)),
        base_(base) {}

  void run(Context& ctx) const {
    const host::RowPlaces tiles = plan_.tiles.find(base_, [&](int64_t r) {
      return host::ceil_div(a_.sequences[r].rows * plan_.packed, kRows);
    });
    const auto numbers =
        static_cast<double>(a_.sequences.key_max) * static_cast<double>(a_.d + a_.e);
    const int64_t parts = plan_.split.parts;
    host::Pool& pool = host::pool(ctx);
    pool.run(tiles.count() * parts, static_cast<double>(tiles.count()) * numbers,
             [&](int64_t item, int32_t worker) {
               attend(tiles[item / parts], item % parts, plan_.scratch.at(base_, worker));
             });
    if (parts > 1)
      pool.run(tiles.count(), static_cast<double>(tiles.count() * kRows * parts * a_.e),
               [&](int64_t item, int32_t) { combine(tiles[item]); });
  }

 private:
  // Of an item.
  struct At {
    Sequence q;
    kv::State state;
    int64_t head;
  };
  struct State {
    float top[kRows], sum[kRows];
  };

  At item(const host::RowPlaces::Place& place) const {
    At at;
    at.q = plan_.x.sequence(place.sequence, at.state), at.head = place.head;
    return at;
  }
  RowTile row_tile(const At& at, int64_t tile) const {
    const int64_t begin = tile * kRows, packed = plan_.packed;
    RowTile rows(std::min<int64_t>(kRows, at.q.rows * packed - begin));
    for (int r = 0; r < rows.count; ++r) {
      rows.row[r] = (begin + r) / packed, rows.head[r] = at.head * packed + (begin + r) % packed;
      rows.seen[r] = a_.mask.window.range(a_.mask.query_at(at.q, 0, rows.row[r]), at.q.keys);
    }
    rows.bound();
    return rows;
  }
  int64_t row_index(const Sequence& q, const RowTile& rows, int r) const {
    return (q.batch * a_.s + q.row_begin + rows.row[r]) * a_.h + rows.head[r];
  }

  void attend(const host::RowPlaces::Place& place, int64_t part, void* room) const {
    const At at = item(place);
    const RowTile rows = row_tile(at, place.tile);
    float* o = plan_.room.o.at(room);
    State state;
    std::fill_n(state.top, kRows, -kInf);
    std::fill_n(state.sum, kRows, 0.0f);
    std::fill_n(o, rows.count * e_pad_, 0.0f);
    if (at.q.keys > 0) load_queries(at.q, rows, room);
    const int64_t each = host::part_keys(at.q.keys, plan_.split.parts, plan_.tokens);
    const int64_t end = std::min({at.q.keys, (part + 1) * each, rows.end});
    for (int64_t j = std::max(part * each, rows.begin) / plan_.tokens * plan_.tokens; j < end;
         j += plan_.tokens)
      visit(at, rows, j, std::min(plan_.tokens, at.q.keys - j), room, state);
    for (int r = 0; r < rows.count; ++r, o += e_pad_) {
      if (plan_.split.parts == 1)
        finish(at.q, rows, r, o, {state.top[r], state.sum[r]});
      else
        plan_.split.save(base_, part, row_index(at.q, rows, r), o, {state.top[r], state.sum[r]});
    }
  }

  // Rows of q, times the scale.
  void load_queries(const Sequence& q, const RowTile& rows, void* room) const {
    for (int r = 0; r < rows.count; ++r)
      host::load_query(simd_, a_.q, a_.dtype, host::row_offset(a_.q, q, rows.row[r], rows.head[r]),
                       a_.d, d_pad_, a_.score.scale, plan_.room.q.at(room) + r * d_pad_);
  }

  void visit(const At& at, const RowTile& rows, int64_t first, int64_t count, void* room,
             State& state) const {
    const host::Cover cover = rows.cover(first, first + count);
    if (cover == host::Cover::none) return;
    bool absent[kTokensMost], seen[kTokensMost * kRows];
    const bool holes = find_absent(at, first, count, absent);
    const int64_t lanes = rows.lanes;
    float *x = plan_.room.x.at(room), *k = plan_.room.k.at(room), shrink[kRows];
    float factor[kTokensMost];
    load_keys(at, first, count, absent, k, factor);
    // Tokens lie in vectors, which few rows fill as well as many.
    float* y = plan_.room.y.at(room);
    simd_.gemm({rows.count, plan_.pitch, a_.d, plan_.room.q.at(room), d_pad_, k, plan_.pitch, y,
                plan_.pitch, nullptr, false, false});
    for (int64_t r = 0; c_.by_tiles() && r < rows.count; ++r)
      for (int64_t n = 0; n < count; ++n) y[r * plan_.pitch + n] *= factor[n];
    simd_.transpose(rows.count, count, y, plan_.pitch, x, lanes);
    for (int64_t j = 0; rows.count < lanes && j < count; ++j)
      std::fill(x + j * lanes + rows.count, x + (j + 1) * lanes, 0.0f);
    if (cover == host::Cover::part) {
      const host::LocalSeen local(rows, first, count);
      simd_.mask(count, lanes, x, local.low, local.high, local.first_low, local.first_high);
    }
    for (int64_t j = 0; holes && j < count; ++j)
      if (absent[j]) std::fill_n(x + j * lanes, lanes, -kInf);
    const bool masked = cover == host::Cover::part || holes;
    for (int64_t i = 0; masked && i < count * lanes; ++i) seen[i] = x[i] != -kInf;
    simd_.softmax(count, lanes, x, state.top, state.sum, shrink);
    add(at, rows, first, count, room, absent, shrink, masked ? seen : nullptr);
  }

  // Tokens that are quantised into a page that is absent.
  bool find_absent(const At& at, int64_t first, int64_t count, bool* absent) const {
    bool any = false;
    for (int64_t n = 0; n < count; ++n) {
      const int64_t j = first + n;
      const bool again = n && j % c_.group;
      absent[n] = j < at.state.keys && (again ? absent[n - 1] : c_.page_of(at.q.key_batch, j) < 0);
      any = any || absent[n];
    }
    return any;
  }

  // Rows of codes whose words are `step` apart; simd.h has what is side by side.
  void unpack(host::Unpack rows, int64_t step) const {
    if (step == 1) return simd_.unpack(rows);
    uint32_t room[kWordsMost];
    const int64_t words = rows.count * rows.bits / 32, all = rows.rows;
    for (rows.rows = 1; rows.rows <= all; ++rows.rows) {
      const int64_t r = rows.rows - 1;
      for (int64_t w = 0; w < words; ++w) room[w] = rows.words[r * rows.word_row + w * step];
      simd_.unpack({1, rows.count, room, words, rows.bits, rows.scale + r * rows.scale_row,
                    rows.zero + r * rows.zero_row, 0, 0, rows.to + r * rows.to_row, rows.to_row});
    }
  }

  // k[channel][token]; keys of tiles are that times `factor`, others are it.
  void load_keys(const At& at, int64_t first, int64_t count, const bool* absent, float* k,
                 float* factor) const {
    const int64_t row = at.q.key_batch, h = at.head;
    std::fill_n(factor, count, 1.0f);
    float late[kWidthMost];
    // 16-bit rows.
    const auto load_late = [&](const View<4>& from, int64_t slot, int64_t n) {
      host::load_row(simd_, from.data, c_.dtype,
                     from.at<uint16_t>(row, slot, h) - from.as<uint16_t>(), from.stride[3], a_.d,
                     late);
      for (int64_t c = 0; c < a_.d; ++c) k[c * plan_.pitch + n] = late[c];
    };
    for (int64_t n = 0; n < count; n += c_.group) {
      const int64_t j = first + n;
      if (j >= at.state.keys) break;
      if (absent[n]) {
        for (int64_t c = 0; c < a_.d; ++c) std::fill_n(k + c * plan_.pitch + n, c_.group, 0.0f);
        continue;
      }
      if (j < c_.firsts) {
        for (int64_t i = n; i < std::min(n + c_.group, count); ++i)
          load_late(c_.k_first, first + i, i);
        continue;
      }
      const int64_t id = c_.page_of(row, j), block = j % c_.page / c_.group;
      if (c_.by_tiles())
        for (int64_t i = n; i < std::min(n + c_.group, count); ++i)
          factor[i] = to_float(*c_.k_factor.at<F16>(id, (first + i) % c_.page, h));
      unpack({a_.d, c_.group, c_.k_code.at<uint32_t>(id, block, h), c_.k_code.stride[3], c_.bits,
              c_.k_scale.at<uint16_t>(id, block, h), c_.k_zero.at<uint16_t>(id, block, h),
              c_.k_scale.stride[3], c_.k_zero.stride[3], k + n, plan_.pitch},
             c_.k_code.stride[4]);
    }
    for (int64_t n = std::max<int64_t>(0, at.state.keys - first); n < count; ++n)
      load_late(c_.k_tail, first + n - at.state.keys, n);
  }

  // v[token][e_pad].
  void load_values(const At& at, int64_t first, int64_t count, const bool* absent, float* v) const {
    const int64_t run = c_.by_tiles() ? a_.e : c_.group, words = run * c_.v_bits / 32;
    const int64_t row = at.q.key_batch, h = at.head;
    const auto load_late = [&](const View<4>& from, int64_t slot, int64_t n) {
      host::load_row(simd_, from.data, c_.dtype,
                     from.at<uint16_t>(row, slot, h) - from.as<uint16_t>(), from.stride[3], a_.e,
                     v + n * e_pad_);
    };
    for (int64_t n = 0; n < count; ++n)
      std::fill(v + n * e_pad_ + (absent[n] ? 0 : a_.e), v + (n + 1) * e_pad_, 0.0f);
    // Groups of tokens share a page.
    for (int64_t n = 0; n < count; n += c_.group) {
      const int64_t j = first + n, codes = std::min<int64_t>(c_.group, at.state.values - j);
      if (absent[n]) continue;
      if (j < c_.firsts) {
        for (int64_t i = n; i < std::min(n + c_.group, count); ++i)
          load_late(c_.v_first, first + i, i);
        continue;
      }
      const int64_t id = codes > 0 ? c_.page_of(row, j) : 0, slot = j % c_.page;
      for (int64_t g = 0; codes > 0 && g < a_.e / run; ++g)
        unpack({codes, run, c_.v_code.at<uint32_t>(id, slot, h, g * words), c_.v_code.stride[1],
                c_.v_bits, c_.v_scale.at<uint16_t>(id, slot, h, g),
                c_.v_zero.at<uint16_t>(id, slot, h, g), c_.v_scale.stride[1], c_.v_zero.stride[1],
                v + n * e_pad_ + g * run, e_pad_},
               c_.v_code.stride[3]);
      if (codes > 0 && c_.by_tiles())
        times_factors(c_.v_factor, id, slot / c_.group, h, codes, v + n * e_pad_);
      for (int64_t i = n + std::max<int64_t>(codes, 0); i < std::min(n + c_.group, count); ++i)
        load_late(c_.v_tail, c_.value_slot(at.state.keys, first + i), i);
    }
  }
  // Values of a tile: what its columns were divided by.
  void times_factors(const View<4>& factors, int64_t id, int64_t block, int64_t head, int64_t count,
                     float* v) const {
    float factor[kWidthMost];
    host::load_row(simd_, factors.data, FOVEA_F16,
                   factors.at<uint16_t>(id, block, head) - factors.as<uint16_t>(),
                   factors.stride[3], a_.e, factor);
    for (int64_t n = 0; n < count; ++n)
      for (int64_t c = 0; c < a_.e; ++c) v[n * e_pad_ + c] *= factor[c];
  }

  // o = shrink o + p' v.  seen, where a row may not see a key: 0 * NaN is NaN.
  void add(const At& at, const RowTile& rows, int64_t first, int64_t count, void* room,
           const bool* absent, const float* shrink, const bool* seen) const {
    float *p = plan_.room.x.at(room), *o = plan_.room.o.at(room), *v = plan_.room.v.at(room);
    load_values(at, first, count, absent, v);
    const int64_t lanes = rows.lanes;
    if (seen && !simd_.finite(count, a_.e, v, e_pad_))
      return host::add_values(simd_, rows.count, lanes, count, p, {v, e_pad_}, a_.e, shrink, o,
                              e_pad_, [&](int64_t j, int64_t r) { return seen[j * lanes + r]; });
    simd_.gemm({rows.count, e_pad_, count, p, lanes, v, e_pad_, o, e_pad_, shrink, true, true});
  }

  void finish(const Sequence& q, const RowTile& rows, int r, const float* o,
              host::SplitRows::State state) const {
    const int64_t h = rows.head[r];
    const float* sink = a_.score.sink_logit ? a_.score.sink_logit.at<float>(h) : nullptr;
    const host::RowEnd end(state, sink);
    host::store_row(a_.o.data, a_.o_dtype, host::row_offset(a_.o, q, rows.row[r], h),
                    a_.o.stride[3], a_.e, o, end.factor);
    if (a_.lse) host::row_slot(a_.lse, q, h, rows.row[r]) = end.lse;
  }

  void combine(const host::RowPlaces::Place& place) const {
    const At at = item(place);
    const RowTile rows = row_tile(at, place.tile);
    float o[kWidthMost];
    for (int r = 0; r < rows.count; ++r)
      finish(at.q, rows, r, o, plan_.split.combine(base_, row_index(at.q, rows, r), o));
  }

  const DecodePlan& plan_;
  const Attend& a_;
  const kv::Cache& c_;
  const host::Simd& simd_;
  const int64_t d_pad_, e_pad_;
  void* base_;
};

}  // namespace

extern const Kernel<KvDecode> kv_decode_host = {
    "", [](const Context& ctx, const KvDecode& x, Plan& plan) {
      const Attend& a = x.attend;
      const int64_t group = x.cache.group;
      DecodePlan p{};
      p.x = x, p.packed = a.h ? a.h / a.g : 1, p.tokens = group >= 64 ? group : 64 / group * group;
      const int64_t d_pad = host::padded(a.d), e_pad = host::padded(a.e);
      Layout worker;
      p.pitch = host::padded(p.tokens);
      p.room.q = worker.add<float>(kRows * d_pad), p.room.y = worker.add<float>(kRows * p.pitch);
      p.room.x = worker.add<float>(kRows * p.tokens), p.room.o = worker.add<float>(kRows * e_pad);
      p.room.k = worker.add<float>(p.pitch * a.d), p.room.v = worker.add<float>(p.tokens * e_pad);
      const int64_t heads = a.h ? a.g : 0, items = a.sequences.count * heads;
      const int64_t tiles = host::ceil_div(a.sequences.query_max * p.packed, kRows);
      p.tiles = host::RowTiles(a.sequences.count, heads, plan.workspace);
      p.split = host::SplitRows(host::forward_parts(a.splits, items * tiles, a.sequences.key_max),
                                a.b * a.s * a.h, a.e, plan.workspace);
      p.scratch = host::WorkerScratch(
          ctx, static_cast<double>(items) * static_cast<double>(tiles * p.split.parts), worker,
          plan.workspace);
      host::host_plan<Decode>(plan, p, host::shape_name(a.dtype, a.d));
      return Text();
    }};

}  // namespace fovea
