// SPDX-License-Identifier: Apache-2.0
#include "host/sweep.h"

#include <cmath>

namespace fovea::host {
namespace {

// Rows so far apart that a tile of them falls into few cache sets are better copied together.
bool dense(int64_t row, int64_t width) {
  return row <= 2 * width;
}

// Of `count` keys from key j on, those that lie one behind the other: to the end of its page.
int64_t run_of(const Sequences& sequences, const Sequence& q, int64_t j, int64_t count) {
  if (!sequences.page) return count;
  return std::min(count, sequences.page - (q.key_begin + j) % sequences.page);
}

// Codes of key j, in f32, times their scales.
void scale_key(const KeySide& side, const Sequence& q, int64_t key_head, int64_t j, float* row) {
  const int64_t* stride = side.scale.stride;
  const float* scale =
      side.scale.as() + side.sequences.key_offset(q, j, stride) + key_head * stride[2];
  const int64_t columns = side.width / side.groups;
  for (int64_t n = 0; n < side.groups; ++n, row += columns)
    for (int64_t c = 0; c < columns; ++c) row[c] *= scale[n * stride[3]];
}

}  // namespace

void RowTile::bound() {
  begin = INT64_MAX, end = 0;
  for (int r = 0; r < count; ++r) {
    const KeyRange& x = seen[r];
    if (x.low < x.high) begin = std::min(begin, x.low), end = std::max(end, x.high);
    if (x.first_low < x.first_high)
      begin = std::min(begin, x.first_low), end = std::max(end, x.first_high);
  }
  begin = std::min(begin, end);
}

Cover RowTile::cover(int64_t key_begin, int64_t key_end) const {
  bool some = false, all = true;
  for (int r = 0; r < count; ++r) {
    const KeyRange& x = seen[r];
    some |= std::max(x.low, key_begin) < std::min(x.high, key_end) ||
            std::max(x.first_low, key_begin) < std::min(x.first_high, key_end);
    all &= (x.low <= key_begin && x.high >= key_end) ||
           (x.first_low <= key_begin && x.first_high >= key_end);
  }
  return all ? Cover::full : some ? Cover::part : Cover::none;
}

LocalSeen::LocalSeen(const RowTile& rows, int64_t begin, int64_t count) {
  const auto local = [&](int64_t j) {
    return static_cast<int32_t>(clamp_i64(j - begin, 0, count));
  };
  for (int r = 0; r < rows.lanes; ++r) {
    const KeyRange& x = rows.seen[r];
    low[r] = local(x.low), high[r] = local(x.high);
    first_low[r] = local(x.first_low), first_high[r] = local(x.first_high);
  }
}

int64_t RowPlaces::find(int64_t tile) const {
  return std::upper_bound(first_, first_ + sequences_ + 1, tile) - 1 - first_;
}

RowPlaces::Place RowPlaces::operator[](int64_t item) const {
  const int64_t r = find(item / heads_);
  const int64_t tiles = first_[r + 1] - first_[r], within = item - first_[r] * heads_;
  return {r, within / tiles, tiles - 1 - within % tiles};
}

RowPlaces::Place RowPlaces::tile_first(int64_t item) const {
  const int64_t tile = item / heads_, r = find(tile);
  return {r, item % heads_, first_[r + 1] - 1 - tile};
}

// Packed rows belong to one sequence each, where starts ascend as they have to.
int64_t RowTiles::most(const Sequences& q, int64_t heads) {
  __int128 tiles = static_cast<__int128>(q.count) * ceil_div(q.query_max, kRows);
  if (q.query_start) tiles = std::min<__int128>(tiles, q.s / kRows + q.count);
  return static_cast<int64_t>(std::min<__int128>(tiles * heads, INT64_MAX));
}

KeyRows load_keys(const KeySide& side, const Sequence& q, int64_t key_head, int64_t begin,
                  int64_t count, KeyUse use, const bool* absent, float* room) {
  const View<4>& from = side.data;
  const Sequences& places = side.sequences;
  const int64_t pad = padded(side.width), head = key_head * from.stride[2];
  if (side.dtype == FOVEA_F32 && from.stride[3] == 1 && !use.copy && (!places.page || use.whole) &&
      (!use.wide || (side.width == pad && (use.once || dense(from.stride[1], side.width)))))
    return {from.as() + places.key_offset(q, begin, from.stride) + head, from.stride[1]};
  for (int64_t j = 0; j < count;) {
    int64_t at = places.key_offset(q, begin + j, from.stride) + head;
    for (const int64_t end = j + run_of(places, q, begin + j, count - j); j < end;
         ++j, at += from.stride[1]) {
      float* to = room + j * pad;
      if (absent && absent[j]) {
        std::fill_n(to, pad, 0.0f);
        continue;
      }
      load_row(side.simd, from.data, side.dtype, at, from.stride[3], side.width, to);
      if (side.scale) scale_key(side, q, key_head, begin + j, to);
      std::fill(to + side.width, to + pad, 0.0f);
    }
  }
  return {room, pad};
}

Bf16Rows load_bf16_keys(const KeySide& side, const Sequence& q, int64_t key_head, int64_t begin,
                        int64_t count, const bool* absent, uint16_t* room) {
  const View<4>& from = side.data;
  const uint16_t* x = from.as<uint16_t>() + key_head * from.stride[2];
  const int64_t pad = tile_padded(side.width), all = tile_padded(count);
  if (from.stride[3] == 1 && !side.sequences.page && side.width == pad && count == all &&
      dense(from.stride[1], side.width))
    return {x + side.sequences.key_offset(q, begin, from.stride), from.stride[1]};
  for (int64_t j = 0; j < count;) {
    int64_t at = side.sequences.key_offset(q, begin + j, from.stride);
    for (const int64_t end = j + run_of(side.sequences, q, begin + j, count - j); j < end;
         ++j, at += from.stride[1]) {
      uint16_t* to = room + j * pad;
      if (absent && absent[j]) {
        std::fill_n(to, pad, uint16_t{0});
        continue;
      }
      if (from.stride[3] == 1)
        std::copy_n(x + at, side.width, to);
      else
        for (int64_t c = 0; c < side.width; ++c) to[c] = x[at + c * from.stride[3]];
      std::fill(to + side.width, to + pad, uint16_t{0});
    }
  }
  std::fill(room + count * pad, room + all * pad, uint16_t{0});
  return {room, pad};
}

bool find_absent(const Sequences& sequences, const Sequence& q, int64_t begin, int64_t count,
                 const View<4>& k, bool* absent) {
  bool any = false;
  for (int64_t j = 0; j < count;) {
    const int64_t run = run_of(sequences, q, begin + j, count - j);
    const bool none = sequences.page && sequences.key_offset(q, begin + j, k.stride) < 0;
    std::fill_n(absent + j, run, none);
    any |= none, j += run;
  }
  return any;
}

bool skips(const RowTile& rows, int64_t keys, const float* x, const float* top, float margin,
           bool& seen) {
  constexpr float log2_e = 1.44269504088896341f;
  for (int64_t j = 0; j < keys; ++j)
    for (int r = 0; r < rows.count; ++r) {
      const float score = x[j * rows.lanes + r];
      if (score == -kInf) continue;
      if (!(score * log2_e < top[r] - margin * log2_e)) return false;
      seen = true;
    }
  return true;
}

float lse_of(float top, float sum) {
  return sum == 0 ? -kInf
                  : static_cast<float>(static_cast<double>(top) * M_LN2 +
                                       std::log(static_cast<double>(sum)));
}

int64_t forward_parts(int32_t splits, int64_t items, int64_t key_max) {
  constexpr int64_t items_wanted = 32;  // items that keep a large machine busy
  constexpr int64_t least_keys = 512;   // the least keys worth a part of their own
  if (splits) return std::min<int64_t>(splits, std::max<int64_t>(1, ceil_div(key_max, kKeys)));
  if (items == 0 || items >= items_wanted) return 1;
  return std::max<int64_t>(1, std::min(ceil_div(items_wanted, items), key_max / least_keys));
}

SplitRows::SplitRows(int64_t part_count, int64_t row_count, int64_t row_width, Layout& workspace)
    : parts(part_count), rows(row_count), width(row_width) {
  const int64_t saved = parts > 1 ? rows : 0;
  o = workspace.add<float>(saved, parts, width);
  state = workspace.add<float>(saved, parts, 2);
}

void SplitRows::save(void* base, int64_t part, int64_t row, const float* from, State of) const {
  const int64_t to = part * rows + row;
  float* saved = state.at(base) + 2 * to;
  saved[0] = of.top, saved[1] = of.sum;
  if (of.sum != 0) std::copy_n(from, width, o.at(base) + to * width);
}

SplitRows::State SplitRows::combine(void* base, int64_t row, float* to) const {
  const auto saved = [&](int64_t part) { return state.at(base) + 2 * (part * rows + row); };
  float top = -kInf, sum = 0;
  for (int64_t part = 0; part < parts; ++part) top = std::max(top, saved(part)[0]);
  std::fill_n(to, width, 0.0f);
  for (int64_t part = 0; part < parts; ++part) {
    if (saved(part)[1] == 0) continue;
    const float weight = std::exp2(saved(part)[0] - top);
    sum += weight * saved(part)[1];
    add_row(width, weight, o.at(base) + (part * rows + row) * width, to);
  }
  return {top, sum};
}

RowEnd::RowEnd(SplitRows::State state, const float* sink_logit) {
  double of_o = 0, ln = -kInf;
  const double m = static_cast<double>(state.top) * M_LN2, sum = state.sum;
  if (sink_logit) {
    const double sink = *sink_logit;
    if (state.sum == 0) {
      ln = sink;
    } else {
      const double high = sink > m ? sink : m;
      const double total = sum * std::exp(m - high) + std::exp(sink - high);
      ln = high + std::log(total);
      of_o = std::exp(m - high) / total;
    }
  } else if (state.sum != 0) {
    ln = m + std::log(sum);
    of_o = 1 / sum;
  }
  factor = static_cast<float>(of_o), lse = static_cast<float>(ln);
}

float delta_of(const Simd& simd, const AttendBackward& call, const Sequence& q, int64_t row,
               int64_t head, float* o, float* dout) {
  const Attend& a = call.forward;
  const auto load = [&](const View<4>& from, float* to) {
    load_row(simd, from.data, a.o_dtype, row_offset(from, q, row, head), from.stride[3], a.e, to);
  };
  load(call.dout, dout), load(a.o, o);
  const float delta = simd.dot(a.e, dout, o);
  return call.dlse ? delta - row_value(call.dlse, q, head, row) : delta;
}

double sink_sum(const Simd& simd, const AttendBackward& call, const Sequence& q, int64_t head,
                float* o, float* dout) {
  const Attend& a = call.forward;
  const double logit = *a.score.sink_logit.at(head);
  double sum = 0;
  for (int64_t i = 0; i < q.rows; ++i) {
    const double lse = row_value(a.lse, q, head, i);
    if (lse == -static_cast<double>(kInf)) continue;
    sum += std::exp(logit - lse) * delta_of(simd, call, q, i, head, o, dout);
  }
  return sum;
}

PartRows::PartRows(const Attend& a, const GradientView& dq, int64_t parts, Layout& workspace)
    : dq_(dq),
      parts_(parts),
      sums_(workspace.add<float>(parts > 1 && dq ? parts : 0, a.b, a.s, a.h, a.d)) {}

float* PartRows::at(void* base, const Attend& a, const Sequence& q, int64_t row, int64_t head,
                    int64_t part) const {
  return sums_.at(base) + (((part * a.b + q.batch) * a.s + q.row_begin + row) * a.h + head) * a.d;
}

void PartRows::store(const Attend& a, const Sequence& q, int64_t row, int64_t head,
                     const float* from) const {
  store_row(dq_.data, dq_.dtype, row_offset(dq_, q, row, head), dq_.stride[3], a.d, from,
            a.score.scale);
}

void PartRows::save(void* base, const Attend& a, const Sequence& q, int64_t row, int64_t head,
                    int64_t part, const float* from) const {
  if (parts_ > 1)
    std::copy_n(from, a.d, at(base, a, q, row, head, part));
  else
    store(a, q, row, head, from);
}

void PartRows::combine(Pool& pool, void* base, const Attend& a) const {
  if (parts_ == 1 || !dq_) return;
  const int64_t rows = a.sequences.query_max;
  pool.run(a.sequences.count * rows, static_cast<double>(rows) * a.h * a.d,
           [&](int64_t item, int32_t) {
             const Sequence q = a.sequences[item / rows];
             const int64_t row = item % rows;
             for (int64_t head = 0; row < q.rows && head < a.h; ++head) {
               float* sum = at(base, a, q, row, head, 0);
               for (int64_t part = 1; part < parts_; ++part)
                 add_row(a.d, 1, at(base, a, q, row, head, part), sum);
               store(a, q, row, head, sum);
             }
           });
}

double pairs_of(const Sequences& sequences) {
  double pairs = 0;
  for (int64_t r = 0; r < sequences.count; ++r) {
    const Sequence q = sequences[r];
    pairs += static_cast<double>(q.rows) * (static_cast<double>(q.keys) + 16);
  }
  return pairs;
}

}  // namespace fovea::host
