// SPDX-License-Identifier: Apache-2.0
// quant_forward on the CPU.
//   An item of work is (sequence, head, up to eight tiles of 64 rows).  It walks tiles of 128 keys
//   from the last to the first: x = k q' (rows in lanes) times scales + delta + row constant,
//   softmax, p rounded as p_format says, o = shrink o + p' v.
//   Where the CPU has tile registers (host/tiles.h), codes are multiplied as bf16, which has all of
//   them: sums of i8 are exact.  Scales are those of the products.  Else codes become f32 numbers,
//   times their scales.  Means of pages are added to these.
//   With lists an item is (sequence, head, tile of up to 64 rows of a list row).  It walks the
//   places of the list in order, an entry in tiles of 128 keys, with skip_margin of 64.
//   What an item does depends on shapes and lengths alone.  FlashAttention-3 (2407.08608),
//   SageAttention (2410.02367, 2411.10958, 2505.11594).
#include <atomic>
#include <cmath>

#include "core/convert.h"
#include "core/fields.h"
#include "host/sweep.h"
#include "host/tiles.h"
#include "ops/quant/kernels.h"

namespace fovea {
namespace {

using host::kInf;
using host::kRows;

constexpr int64_t kKeys = 128;
constexpr int64_t kItems = 32;     // that a call has before they grow
constexpr int64_t kChannels = 32;  // of v_t that are turned at a time
constexpr int64_t kRun = 64;       // keys of a sum that is apart
constexpr int64_t kShared = 8;     // tiles of rows that one tile of keys serves, at most

// A tile of rows and its softmax so far.
struct Rows : host::RowTile {
  explicit Rows(int64_t count = 0) : host::RowTile(count) {
    std::fill_n(top, kRows, -kInf), std::fill_n(sum, kRows, 0.0f);
    std::fill_n(scale, kRows, 0.0f), std::fill_n(shift, kRows, 0.0f);
  }
  int64_t first = 0;
  float top[kRows], sum[kRows];
  float scale[kRows], shift[kRows];  // of rows, where codes are multiplied; row constants
  float *q, *o;
};

struct ForwardPlan {
  QuantAttend a;
  const host::Tiles *scores, *values;  // nullptr: in f32
  bool apart;                          // with `values`: runs of keys have scales of their own
  int64_t d_row, e_row;                // columns of q and k, and of v and o, with padding
  int64_t shared;                      // tiles of rows of an item
  SparseList list;                     // without index: every key
  int64_t keys_bound;                  // keys that a row may meet
  float skip_margin;
  int64_t* skipped;
  host::RowTiles tiles;
  // Within a worker's bytes.  q and o: of `shared` tiles.
  struct {
    Slot<Rows> tiles;
    Slot<float> q, x, o, k, v, part, row, channels;
    Slot<uint16_t> staged, pairs, weights;
  } room;
  host::WorkerScratch scratch;
};

// Codes of a row to f32 numbers, times their scales and `factor`.
void load_codes(const host::Simd& simd, const CodeRow& from, int64_t count, const ScaleRow& scales,
                int64_t i, float factor, float* to) {
  const bool micro = scales.axis.micro();
  if (!micro) factor *= scales(i, 0);
  if (from.stride == 1 && !micro) {
    const int64_t bytes = from.at;  // as a packed row's offset is in bytes too
    simd.decode(count, static_cast<const char*>(from.base) + bytes, static_cast<int32_t>(from.kind),
                factor, to);
    return;
  }
  if (from.stride == 1) {
    const int64_t run = scales.axis.run();
    for (int64_t c = 0; c < count; c += run)
      simd.decode(
          std::min(run, count - c),
          static_cast<const char*>(from.base) + from.at + c / (is_packed(from.kind) ? 2 : 1),
          static_cast<int32_t>(from.kind), scales(i, c) * factor, to + c);
    return;
  }
  for (int64_t c = 0; c < count; ++c) to[c] = from[c] * factor * (micro ? scales(i, c) : 1);
}

// Keys of a tile.  Rows are f32 numbers times their scales, or with `scores` and `values` codes.
class KeyTile {
 public:
  KeyTile(const ForwardPlan& plan, void* room, const Sequence& q, int64_t r, int64_t g)
      : plan_(plan),
        room_(room),
        seq_(q),
        r_(r),
        g_(g),
        k_scales_(plan.a.k_scales(q, r, g)),
        v_scales_(plan.a.v_scales(q, r, g)) {}

  void load(int64_t first, int64_t most) {
    const Attend& a = plan_.a.attend;
    this->first = first, count = std::min(most, seq_.keys - first);
    missing = plan_.a.paged() && host::find_absent(a.sequences, seq_, first, count, a.k, absent);
    load_keys();
    load_values();
    finite = plan_.values ? plan_.values->finite(count, a.e, values())
                          : simd_.finite(count, a.e, v_, plan_.e_row);
    for (int64_t n = 0; plan_.apart && n < count; n += kRun)
      finite = finite && std::isfinite(value_scale(n));
  }

  int64_t first = 0, count = 0;
  bool finite = true;  // of v
  bool missing = false;
  bool absent[kKeys];  // with `missing`: keys of absent pages, whose rows are 0
  float scale[kKeys];  // of keys, with `scores`
  const float* k() const { return k_; }
  const float* v() const { return v_; }
  float value(int64_t j, int64_t c) const {
    return plan_.values ? to_float(Bf16{values().x[j * plan_.e_row + c]}) : v_[j * plan_.e_row + c];
  }
  host::Bf16Rows keys() const { return {reinterpret_cast<const uint16_t*>(k_), plan_.d_row}; }
  host::Bf16Rows values() const { return {reinterpret_cast<const uint16_t*>(v_), plan_.e_row}; }
  // What weights of the run that begins with key n are to be multiplied with beside codes of v.
  float value_scale(int64_t n) const {
    if (is_absent(n)) return 1;
    const CodePlace at = place(n);
    return plan_.a.value_scale(v_scales(at), at.number, 0);
  }

 private:
  bool is_absent(int64_t j) const { return missing && absent[j]; }
  CodePlace place(int64_t j) const { return plan_.a.place(seq_, first + j); }
  ScaleRow k_scales(const CodePlace& at) const {
    return plan_.a.paged() ? plan_.a.k_scales(at, r_, g_) : k_scales_;
  }
  ScaleRow v_scales(const CodePlace& at) const {
    return plan_.a.paged() ? plan_.a.v_scales(at, r_, g_) : v_scales_;
  }
  void add_mean(const View<4>& mean, const CodePlace& at, int64_t columns, float* to) const {
    const float* from = mean.at(at.row, g_);
    for (int64_t c = 0; c < columns; ++c) to[c] += from[c * mean.stride[3]];
  }

  void load_keys() {
    const QuantAttend& a = plan_.a;
    const int64_t d = a.attend.d;
    const bool codes = plan_.scores;
    const ScaleRow none{k_scales_.axis, nullptr};
    for (int64_t j = 0; j < count; ++j) {
      if (is_absent(j)) {
        scale[j] = 1;
        std::fill_n(reinterpret_cast<char*>(k_) + j * plan_.d_row * (codes ? 2 : 4),
                    plan_.d_row * (codes ? 2 : 4), char{0});
        continue;
      }
      const CodePlace at = place(j);
      const CodeRow from = a.k_codes(seq_, at, g_);
      const ScaleRow scales = k_scales(at);
      if (!codes) {
        float* to = k_ + j * plan_.d_row;
        load_codes(simd_, from, d, scales, at.number, 1, to);
        if (a.k_mean_of_keys()) add_mean(a.k_mean, at, d, to);
        continue;
      }
      scale[j] = scales(at.number, 0);
      std::fill(row_ + d, row_ + plan_.d_row, 0.0f);
      load_codes(simd_, from, d, none, first + j, 1, row_);
      simd_.upper_halves(plan_.d_row, row_, reinterpret_cast<uint16_t*>(k_) + j * plan_.d_row);
    }
    // Whole tiles of keys are multiplied.
    if (codes && count % host::kTileTerms)
      std::fill_n(reinterpret_cast<uint16_t*>(k_) + count * plan_.d_row,
                  (host::tile_padded(count) - count) * plan_.d_row, uint16_t{0});
  }

  void load_values() {
    const QuantAttend& a = plan_.a;
    const View<4>& v = a.values();
    const int64_t e = a.attend.e, e_row = plan_.e_row, step = a.value_stride();
    // Rows of v_t are channels: they become rows of keys in the order of columns, where the tile
    // lies in one page.
    const int64_t page = a.attend.sequences.page;
    const bool channels = a.v_t && v.stride[3] == 1 && page % kKeys == 0 && !missing;
    const CodePlace begin = place(0);
    if (channels) load_channels(begin);
    for (int64_t j = 0; j < count; ++j) {
      float* to = plan_.values ? row_ : v_ + j * e_row;
      if (is_absent(j)) {
        std::fill_n(reinterpret_cast<char*>(v_) + j * e_row * (plan_.values ? 2 : 4),
                    e_row * (plan_.values ? 2 : 4), char{0});
        continue;
      }
      const float* value = to;
      const CodePlace key = place(j);
      const int64_t at = a.value_at(seq_, key, r_, g_);
      const char* from = static_cast<const char*>(v.data);
      if (channels)
        value = part_ + (a.column_of(key.number) - begin.number) * e_row;
      else if (step == 1 && a.v_kind <= ValueKind::i8)
        simd_.decode(e, from + at, static_cast<int32_t>(a.v_kind), 1, to);
      else if (step == 1 && !is_packed(a.v_kind))
        simd_.widen(e, from + 2 * at, a.v_kind == ValueKind::f16 ? FOVEA_F16 : FOVEA_BF16, to);
      else
        for (int64_t c = 0; c < e; ++c) to[c] = code_value(a.v_kind, v.data, at + c * step);
      if (plan_.values) {
        simd_.upper_halves(e_row, value, reinterpret_cast<uint16_t*>(v_) + j * e_row);
        continue;
      }
      if (value != to) std::copy_n(value, e, to);
      if (!channels || !a.v_axis.micro_t()) scale_values(v_scales(key), key.number, to);
      if (a.v_mean_of_keys()) add_mean(a.v_mean, key, e, to);
    }
    if (plan_.values)
      std::fill_n(reinterpret_cast<uint16_t*>(v_) + count * e_row,
                  (host::tile_padded(count) - count) * e_row, uint16_t{0});
  }
  void scale_values(const ScaleRow& scales, int64_t j, float* to) const {
    const QuantAttend& a = plan_.a;
    if (a.v_scale_last() || !scales.first) return;
    if (a.v_axis.group == FOVEA_SCALE_GROUP_BLOCK)
      return simd_.scale(a.attend.e, to, a.value_scale(scales, j, 0), to);
    for (int64_t c = 0; c < a.attend.e; ++c) to[c] *= a.value_scale(scales, j, c);
  }
  // part_[column - begin][channel] of v_t, times the scales of its runs if it has such.
  void load_channels(const CodePlace& begin) {
    const QuantAttend& a = plan_.a;
    const int64_t first = begin.number;
    const ScaleRow scales = v_scales(begin);
    int64_t columns = 0;
    for (int64_t j = 0; j < count; ++j)
      columns = std::max(columns, a.column_of(first + j) - first + 1);
    const bool micro = a.v_axis.micro_t();
    const int64_t run = micro ? a.v_axis.run() : columns;
    float* const channel = plan_.room.channels.at(room_);
    for (int64_t c = 0; c < a.attend.e; c += kChannels) {
      const int64_t n = std::min(kChannels, a.attend.e - c);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t m = 0; m < columns; m += run)
          decode_columns(begin.row, first + m, c + i, std::min(run, columns - m),
                         micro ? scales(first + m, c + i) : 1, channel + i * kKeys + m);
      simd_.transpose(n, columns, channel, kKeys, part_ + c, plan_.e_row);
    }
  }
  // Columns of a channel of v_t from an even one on.
  void decode_columns(int64_t row, int64_t column, int64_t c, int64_t count, float factor,
                      float* to) const {
    const QuantAttend& a = plan_.a;
    const View<4>& v = a.v_t;
    column = (column + a.v_column(r_)) / (is_packed(a.v_kind) ? 2 : 1);
    simd_.decode(count,
                 v.as<char>() + row * v.stride[0] + g_ * v.stride[1] + c * v.stride[2] + column,
                 static_cast<int32_t>(a.v_kind), factor, to);
  }

  const ForwardPlan& plan_;
  void* const room_;
  const Sequence seq_;
  const int64_t r_, g_;
  const host::Simd& simd_ = host::simd();
  const ScaleRow k_scales_, v_scales_;
  float *const k_ = plan_.room.k.at(room_), *const v_ = plan_.room.v.at(room_);
  float *const row_ = plan_.room.row.at(room_), *const part_ = plan_.room.part.at(room_);
};

class Item {
 public:
  Item(const ForwardPlan& plan, void* room, const Sequence& q, int64_t r, int64_t head)
      : plan_(plan),
        room_(room),
        seq_(q),
        r_(r),
        head_(head),
        keys_(plan, room, q, r, key_head()),
        shifts_(plan.a.shifts()) {}

  void run(int64_t first) {
    int64_t begin = seq_.keys, end = 0;
    Rows* const tiles = plan_.room.tiles.at(room_);
    int64_t used = 0;
    for (; used < plan_.shared && first < seq_.rows; ++used, first += kRows) {
      open(first, seq_.rows, used, tiles[used]);
      begin = std::min(begin, tiles[used].begin), end = std::max(end, tiles[used].end);
    }
    for (int64_t n = (end + kKeys - 1) / kKeys - 1; n >= begin / kKeys; --n) {
      keys_.load(n * kKeys, kKeys);
      for (int64_t i = 0; i < used; ++i)
        if (tiles[i].begin < (n + 1) * kKeys && tiles[i].end > n * kKeys) visit(tiles[i]);
    }
    for (int64_t n = 0; n < used; ++n)
      for (int64_t i = 0; i < tiles[n].count; ++i) finish(tiles[n], i);
  }

  // The rows of a tile meet the keys that their list names.  Returns how many tiles were skipped.
  int64_t run(const SparseList::Tile& tile) {
    Rows& rows = *plan_.room.tiles.at(room_);
    open(tile.list.begin + tile.begin, tile.list.begin + tile.end, 0, rows);
    const int64_t step = plan_.skip_margin > 0 ? kListTile : kKeys;
    int64_t skipped = 0;
    for (int64_t m = 0, count = plan_.list.count(tile.list); m < count; ++m) {
      const Interval keys = plan_.list(seq_, tile.list, m).keys;
      for (int64_t j = keys.begin; j < keys.end; j += step) {
        const int64_t to = std::min(j + step, keys.end);
        if (rows.begin >= to || rows.end <= j) continue;
        keys_.load(j, to - j);
        skipped += visit(rows);
      }
    }
    for (int64_t i = 0; i < rows.count; ++i) finish(rows, i);
    return skipped;
  }

 private:
  int64_t key_head() const { return head_ / (a_.h / a_.g); }

  void open(int64_t first, int64_t end, int64_t place, Rows& rows) const {
    rows = Rows(std::min<int64_t>(kRows, end - first));
    rows.first = first;
    rows.q = plan_.room.q.at(room_) + place * kRows * plan_.d_row;
    rows.o = plan_.room.o.at(room_) + place * kRows * plan_.e_row;
    for (int64_t i = 0; i < rows.count; ++i)
      rows.seen[i] = a_.mask.window.range(a_.mask.query_at(seq_, head_, first + i), seq_.keys);
    rows.bound();
    std::fill_n(rows.o, kRows * plan_.e_row, 0.0f);
    plan_.scores ? load_codes_of(rows) : load_numbers_of(rows);
    for (int64_t i = 0; shifts_ && seq_.keys && i < rows.count; ++i)
      rows.shift[i] = a_.score.scale * plan_.a.mean_dot(seq_, r_, head_, first + i);
  }
  CodeRow codes_at(const Rows& rows, int64_t i) const {
    return plan_.a.q_codes(seq_, seq_.row_begin + rows.first + i, head_);
  }
  void load_codes_of(Rows& rows) const {
    const ScaleRow scales = plan_.a.q_scales(seq_, r_, head_), none{scales.axis, nullptr};
    float* row = plan_.room.row.at(room_);
    uint16_t* staged = plan_.room.staged.at(room_);
    std::fill_n(staged, rows.lanes * plan_.d_row, uint16_t{0});
    std::fill_n(row, plan_.d_row, 0.0f);
    for (int64_t i = 0; i < rows.count; ++i) {
      rows.scale[i] = a_.score.scale * scales(rows.first + i, 0);
      load_codes(simd_, codes_at(rows, i), a_.d, none, 0, 1, row);
      simd_.upper_halves(plan_.d_row, row, staged + i * plan_.d_row);
    }
    plan_.scores->pack_queries(rows.lanes, plan_.d_row, {staged, plan_.d_row},
                               reinterpret_cast<uint16_t*>(rows.q));
  }
  // q[column][lane].
  void load_numbers_of(Rows& rows) const {
    const ScaleRow scales = plan_.a.q_scales(seq_, r_, head_);
    float* staged = plan_.room.x.at(room_);
    std::fill_n(rows.q, a_.d * rows.lanes, 0.0f);
    for (int64_t i = 0; i < rows.count; ++i)
      load_codes(simd_, codes_at(rows, i), a_.d, scales, rows.first + i, a_.score.scale,
                 staged + i * a_.d);
    simd_.transpose(rows.count, a_.d, staged, a_.d, rows.q, rows.lanes);
  }

  // Returns whether the tile was skipped that some row sees.
  bool visit(Rows& rows) const {
    const int64_t keys = keys_.count, lanes = rows.lanes;
    float* x = x_;
    if (plan_.scores)
      plan_.scores->scores({host::tile_padded(keys), lanes, plan_.d_row, keys_.keys(),
                            reinterpret_cast<const uint16_t*>(rows.q), 1.0f, x});
    else
      simd_.gemm({keys, lanes, a_.d, keys_.k(), plan_.d_row, rows.q, lanes, x, lanes, nullptr,
                  false, false});
    const bool delta = plan_.a.delta && alike(rows), apart_delta = plan_.a.delta && !delta;
    if (plan_.scores || delta || shifts_)
      simd_.scale_scores({keys, lanes, x, keys_.scale, plan_.scores ? rows.scale : nullptr,
                          a_.score.scale, delta ? delta_of(rows) : nullptr, plan_.a.delta.stride[3],
                          shifts_ ? rows.shift : nullptr});
    if (apart_delta) add_delta(rows);
    if (a_.score.softcap > 0) simd_.softcap(keys * lanes, x, a_.score.softcap, nullptr);
    const host::LocalSeen local(rows, keys_.first, keys);
    const bool masked = rows.cover(keys_.first, keys_.first + keys) != host::Cover::full;
    if (masked)
      simd_.mask(keys, lanes, x, local.low, local.high, local.first_low, local.first_high);
    for (int64_t j = 0; keys_.missing && j < keys; ++j)
      if (keys_.absent[j]) std::fill_n(x + j * lanes, lanes, -kInf);
    bool seen = false;
    if (plan_.skip_margin > 0 && host::skips(rows, keys, x, rows.top, plan_.skip_margin, seen))
      return seen;
    float shrink[kRows], scale[kKeys / kRun * kRows];
    simd_.softmax(keys, lanes, x, rows.top, rows.sum, shrink);
    const int32_t format = plan_.a.p_format;
    const bool integers = plan_.values && format == FOVEA_P_FORMAT_I8;
    if (plan_.apart) std::fill_n(scale, std::size(scale), 1.0f);
    simd_.round_weights({format, keys, lanes, x, weight_lift(format), weight_run(format),
                         integers ? scale : nullptr});
    add_values(rows, plan_.apart ? scale : nullptr, shrink,
               masked && !keys_.finite ? &local : nullptr);
    return false;
  }
  // Rows of a tile share an entry of 128 rows, but for some tiles of lists.
  static bool alike(const Rows& rows) {
    return rows.first / kCodeRun == (rows.first + rows.count - 1) / kCodeRun;
  }
  const float* delta_of(const Rows& rows, int64_t i = 0) const {
    return plan_.a.delta_of(seq_, r_, head_, rows.first + i) +
           keys_.first * plan_.a.delta.stride[3];
  }
  void add_delta(const Rows& rows) const {
    for (int64_t i = 0; i < rows.count; ++i) {
      const float* delta = delta_of(rows, i);
      for (int64_t j = 0; j < keys_.count; ++j)
        x_[j * rows.lanes + i] += a_.score.scale * delta[j * plan_.a.delta.stride[3]];
    }
  }

  // o = shrink o + p v.  scale: what weights of runs of 64 keys are to be multiplied with.  With
  // such scales, and where they are rounded to f16, sums of 64 keys each are apart.
  // seen: 0 times what is not finite would be NaN.
  void add_values(Rows& rows, const float* scale, const float* shrink,
                  const host::LocalSeen* seen) const {
    const bool half = plan_.a.accumulate == FOVEA_ACCUMULATE_HALF_64;
    const int64_t keys = keys_.count;
    if (!half && !scale) return add_products(rows, 0, keys, shrink, rows.o, seen);
    float ones[kRows], own[kRows];
    std::fill_n(ones, kRows, 1.0f);
    for (int64_t n = (keys - 1) / kRun * kRun; n >= 0; n -= kRun) {
      std::fill_n(part_, kRows * plan_.e_row, 0.0f);
      add_products(rows, n, std::min(keys - n, kRun), ones, part_, seen);
      if (half) simd_.round_half(kRows * plan_.e_row, part_);
      const float values = scale ? keys_.value_scale(n) : 1;
      for (int64_t i = 0; scale && i < rows.lanes; ++i) {
        const bool none = seen && !sees_some(*seen, i, n, std::min(keys, n + kRun));
        own[i] = none ? 0 : scale[n / kRun * rows.lanes + i] * values;
      }
      add_part(rows, scale ? own : nullptr, n + kRun >= keys ? shrink : nullptr);
    }
  }
  static bool sees_some(const host::LocalSeen& seen, int64_t i, int64_t begin, int64_t end) {
    while (begin < end && !seen.sees(static_cast<int>(i), begin)) ++begin;
    return begin < end;
  }
  // o = shrink o + scale part, of each row.
  void add_part(const Rows& rows, const float* scale, const float* shrink) const {
    constexpr int64_t n = host::kTileColumns;
    const int64_t e_row = plan_.e_row;
    if (!plan_.values)
      return simd_.add_scaled(rows.count, e_row, e_row, part_, scale, shrink, rows.o);
    for (int64_t at = 0; at < e_row * rows.lanes; at += n * rows.lanes)
      simd_.add_scaled(rows.count, n, n, part_ + at, scale, shrink, rows.o + at);
  }
  void add_products(const Rows& rows, int64_t first, int64_t keys, const float* shrink, float* o,
                    const host::LocalSeen* seen) const {
    const int64_t lanes = rows.lanes, e_row = plan_.e_row;
    const float* p = x_ + first * lanes;
    if (seen) return add_seen(rows, first, keys, shrink, o, *seen);
    if (!plan_.values)
      return simd_.gemm({rows.count, e_row, keys, p, lanes, keys_.v() + first * e_row, e_row, o,
                         e_row, shrink, true, true});
    const host::Bf16Rows v = keys_.values();
    plan_.values->values({keys,
                          lanes,
                          e_row,
                          p,
                          {v.x + first * v.row, v.row},
                          shrink,
                          o,
                          plan_.room.pairs.at(room_),
                          plan_.room.weights.at(room_)});
  }
  void add_seen(const Rows& rows, int64_t first, int64_t keys, const float* shrink, float* o,
                const host::LocalSeen& seen) const {
    each_row(rows, [&](int64_t i, int64_t at, int64_t column, int64_t count) {
      for (int64_t c = 0; c < count; ++c) o[at + c] *= shrink[i];
      for (int64_t j = first; j < first + keys; ++j)
        for (int64_t c = 0; c < count && seen.sees(static_cast<int>(i), j); ++c)
          o[at + c] += x_[j * rows.lanes + i] * keys_.value(j, column + c);
    });
  }
  // visit(row, where its numbers are from, column, how many)
  template <class Visit>
  void each_row(const Rows& rows, Visit visit) const {
    if (!plan_.values) {
      for (int64_t i = 0; i < rows.count; ++i) visit(i, i * plan_.e_row, 0, plan_.e_row);
      return;
    }
    constexpr int64_t n = host::kTileColumns;
    for (int64_t c = 0; c < plan_.e_row; c += n)
      for (int64_t i = 0; i < rows.count; ++i) visit(i, c * rows.lanes + i * n, c, n);
  }

  // The sink logit enters here, once.
  void finish(const Rows& rows, int64_t i) const {
    double sum = rows.sum[i], top = static_cast<double>(rows.top[i]) * M_LN2, factor = 1;
    if (a_.score.sink_logit) {
      const double sink = a_.score.sink_logit.as()[head_ * a_.score.sink_logit.stride[0]];
      const double high = sum == 0 || sink > top ? sink : top;
      factor = sum == 0 ? 0 : std::exp(top - high);
      if (high != -kInf) sum = sum * factor + std::exp(sink - high);
      top = high;
    }
    const double lift = weight_lift(plan_.a.p_format);
    const bool none = sum == 0 || factor == 0;
    const ScaleRow scales = plan_.a.v_scales(seq_, r_, key_head());
    const double share = none ? 0 : factor * rows.sum[i] / sum;  // of l that keys have
    const float* mean =
        plan_.a.v_mean_last() && share > 0 ? plan_.a.v_mean_of(seq_, r_, key_head()) : nullptr;
    factor = none ? 0 : factor / (lift * sum);
    const int64_t to = host::row_offset(a_.o, seq_, rows.first + i, head_);
    const bool last = plan_.a.v_scale_last();
    with_fp(a_.o_dtype, [&](auto o) {
      using O = decltype(o);
      for (int64_t c = 0; c < a_.e; ++c) {
        double y = none ? 0 : rows.o[place(rows, i, c)] * factor * (last ? scales(0, c) : 1);
        if (mean) y += share * mean[c * plan_.a.v_mean.stride[3]];
        a_.o.as<O>()[to + c * a_.o.stride[3]] = from_float<O>(static_cast<float>(y));
      }
    });
    if (a_.lse)
      host::row_slot(a_.lse, seq_, head_, rows.first + i) =
          sum == 0 ? -kInf : static_cast<float>(top + std::log(sum));
  }
  // Where a sum lies: in tiles of 16 rows and columns, or in rows.
  int64_t place(const Rows& rows, int64_t i, int64_t c) const {
    constexpr int64_t n = host::kTileColumns;
    return plan_.values ? c / n * n * rows.lanes + i * n + c % n : i * plan_.e_row + c;
  }

  const ForwardPlan& plan_;
  void* const room_;
  const Sequence seq_;
  const int64_t r_, head_;
  const host::Simd& simd_ = host::simd();
  const Attend& a_ = plan_.a.attend;
  float *const x_ = plan_.room.x.at(room_), *const part_ = plan_.room.part.at(room_);
  KeyTile keys_;
  const bool shifts_;
};

struct Forward {
  const ForwardPlan& plan;
  void* base;

  void run(Context& ctx) const {
    if (plan.skipped) *plan.skipped = 0;
    const Attend& a = plan.a.attend;
    const bool listed = plan.list.listed();
    const host::RowPlaces tiles = plan.tiles.find(base, [&](int64_t r) {
      const Sequence q = a.sequences[r];
      return listed ? plan.list.slots(q, 1, kRows) : host::ceil_div(q.rows, plan.shared * kRows);
    });
    const double cost = static_cast<double>(tiles.count() * plan.shared * kRows) *
                        static_cast<double>(plan.keys_bound * (a.d + a.e)) / 10;
    host::pool(ctx).run(tiles.count(), cost, [&](int64_t item, int32_t worker) {
      const host::RowPlaces::Place at = tiles[item];
      if (listed) return run_list(at, worker);
      Item(plan, plan.scratch.at(base, worker), a.sequences[at.sequence], at.sequence, at.head)
          .run(at.tile * plan.shared * kRows);
    });
  }

 private:
  void run_list(const host::RowPlaces::Place& at, int32_t worker) const {
    const Sequences& sequences = plan.a.attend.sequences;
    const Sequence q = sequences[at.sequence];
    const bool packed = static_cast<bool>(sequences.query_start);
    const SparseList::Tile tile =
        plan.list.tile_at(q, at.sequence, packed, plan.list.head_of(at.head), 1, kRows, at.tile);
    if (tile.begin >= tile.end) return;
    const int64_t skipped =
        Item(plan, plan.scratch.at(base, worker), q, at.sequence, at.head).run(tile);
    if (plan.skipped && skipped)
      std::atomic_ref<int64_t>(*plan.skipped).fetch_add(skipped, std::memory_order_relaxed);
  }
};

// bf16 has all codes.  Scales must be those of whole products: not of parts of a row.
const host::Tiles* score_tiles(const QuantAttend& a) {
  return a.q_axis.micro() || a.k_axis.micro() || a.k_mean_of_keys() ? nullptr : host::tiles();
}
// Runs of keys have one scale each.
bool scales_runs(const QuantAttend& a) {
  return a.v_axis.group == FOVEA_SCALE_GROUP_BLOCK && a.v_axis.block % kRun == 0 &&
         a.attend.sequences.page % kRun == 0;
}
const host::Tiles* value_tiles(const QuantAttend& a) {
  const bool i8 = a.p_format == FOVEA_P_FORMAT_I8;
  const bool last = a.v_scale_last() || !a.v_axis.scale;
  if (a.v_kind > ValueKind::i8 || a.v_mean_of_keys()) return nullptr;
  if (!last && !((i8 || a.paged()) && scales_runs(a))) return nullptr;
  return i8 || a.p_format <= FOVEA_P_FORMAT_E4M3_448 ? host::tiles() : nullptr;
}

// A call without an index has the list of no row.
Text offer_listed(const Context& ctx, const QuantListed& listed, Plan& plan) {
  const QuantAttend& a = listed.codes;
  const Attend& call = a.attend;
  ForwardPlan p{};
  p.list = listed.list, p.skipped = listed.skipped, p.skip_margin = listed.skip_margin;
  p.keys_bound = listed.lists().keys_bound();
  p.a = a, p.scores = score_tiles(a), p.values = value_tiles(a);
  p.apart = p.values && (a.p_format == FOVEA_P_FORMAT_I8 || (a.paged() && a.v_axis.scale));
  p.d_row = p.scores ? host::tile_padded(call.d) : call.d;
  p.e_row = p.values ? host::tile_padded(call.e) : host::padded(call.e);
  // Few tiles are left apart: there are threads for them.
  int64_t items = host::RowTiles::most(call.sequences, call.h);
  p.shared = std::clamp<int64_t>(items / kItems, 1, kShared);
  if (p.list.listed()) {
    items = far_product(call.sequences.count * call.h,
                        p.list.most_slots(call.sequences.query_max, 1, kRows));
    p.shared = 1;
  }
  Layout worker;
  auto& room = p.room;
  room.q = worker.add<float>(p.shared * kRows * p.d_row);
  room.o = worker.add<float>(p.shared * kRows * p.e_row);
  room.k = worker.add<float>(kKeys * p.d_row), room.v = worker.add<float>(kKeys * p.e_row);
  room.x = worker.add<float>(kRows * std::max(kKeys, call.d));
  room.part = worker.add<float>(kKeys * p.e_row);
  room.row = worker.add<float>(std::max(p.d_row, p.e_row));
  room.tiles = worker.add<Rows>(p.shared);
  room.channels = worker.add<float>(a.v_t ? kChannels * kKeys : 0);
  room.staged = worker.add<uint16_t>(p.scores ? kRows * p.d_row : 0);
  room.pairs = worker.add<uint16_t>(p.values ? kKeys * 2 * host::kTileTerms : 0);
  room.weights = worker.add<uint16_t>(p.values ? kKeys * kRows : 0);
  p.tiles = host::RowTiles(items ? call.sequences.count : 0, call.h, plan.workspace);
  p.scratch = host::WorkerScratch(ctx, static_cast<double>(items), worker, plan.workspace);
  const host::Tiles* const tiles = p.scores ? p.scores : p.values;
  host::host_plan<Forward>(
      plan, p, (tiles ? Text(".") + tiles->name : Text()) + ".d" + Text::number(call.d));
  return "";
}

Text offer(const Context& ctx, const QuantAttend& a, Plan& plan) {
  QuantListed call{};
  call.codes = a;
  return offer_listed(ctx, call, plan);
}

}  // namespace

extern const Kernel<QuantAttend> quant_forward_host = {"", offer};
extern const Kernel<QuantListed> quant_listed_host = {"", offer_listed};

}  // namespace fovea
