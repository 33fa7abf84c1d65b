// SPDX-License-Identifier: Apache-2.0
#include "ops/conv_attention/tile_host.h"

#include <algorithm>

namespace fovea::conv_host {
namespace {

constexpr int64_t kDotRows = 4;      // of one call of Simd::dots
constexpr int64_t kDotRowsMost = 8;  // above, lanes are full enough for a product

}  // namespace

Call::Call(const ConvAttend& request)
    : c(request), a(c.attend), simd(host::simd()), group(a.g ? a.h / a.g : 1) {
  d_pad = padded(a.d), e_pad = padded(a.e);
}

void hide(const ConvAttend& c, const Sequence& q, const Strip& strip, int64_t begin, int64_t count,
          const bool* absent, float value, float* x, int64_t x_row) {
  for (int64_t j = 0; j < count; ++j, x += x_row) {
    const int64_t blind = absent && absent[j] ? strip.count : strip.blind(c, q, begin + j);
    for (int64_t n = 0; n < strip.heads; ++n) std::fill_n(x + n * strip.count, blind, value);
    std::fill(x + strip.heads * strip.count, x + strip.lanes, value);
  }
}

const bool* absent_keys(const Call& call, const Sequence& q, int64_t begin, int64_t count,
                        bool* flags) {
  const Sequences& places = call.a.sequences;
  return places.page && host::find_absent(places, q, begin, count, call.a.k, flags) ? flags
                                                                                    : nullptr;
}

host::KeyRows load_keys(const Call& call, const Sequence& q, int64_t key_head, const View<4>& from,
                        int64_t width, int64_t begin, int64_t count, host::KeyUse use,
                        const bool* absent, float* room) {
  return host::load_keys({call.simd, call.a.sequences, from, call.a.dtype, width}, q, key_head,
                         begin, count, use, absent, room);
}

void add_values(const Call& call, const Sequence& q, const Strip& rows, int64_t begin,
                int64_t count, const bool* absent, const float* x, const host::KeyRows& v,
                const float* shrink, float* o) {
  const int64_t e = call.a.e, e_pad = call.e_pad, lanes = rows.lanes,
                used = rows.heads * rows.count;
  const bool masked = absent || rows.blind(call.c, q, begin + count - 1) > 0;
  if (!masked || call.simd.finite(count, e, v.x, v.row))
    return call.simd.gemm({used, e_pad, count, x, lanes, v.x, v.row, o, e_pad, shrink, true, true});
  host::add_values(
      call.simd, used, lanes, count, x, v, e, shrink, o, e_pad, [&](int64_t j, int64_t i) {
        return !(absent && absent[j]) && i % rows.count >= rows.blind(call.c, q, begin + j);
      });
}

LogitRoom::LogitRoom(const Call& call, Layout& layout) {
  rows = layout.add<float>(kLanes * call.d_pad);
  columns = layout.add<float>(kLanes * call.a.d);
  s = layout.add<float>(kSlideKeys * kLanes + kSlack);
  k = layout.add<float>(kKeys * call.d_pad);
  weight = layout.add<float>(kWeights);
}

Logits::Logits(const Call& call, const LogitRoom& room, void* base)
    : rows(room.rows.at(base)),
      weight(room.weight.at(base)),
      s(room.s.at(base)),
      call_(call),
      columns_(room.columns.at(base)),
      room_(room.k.at(base)) {}

void Logits::load(const Sequence& q, int64_t head, const Strip& strip) {
  const ConvAttend& c = call_.c;
  const Attend& a = call_.a;
  q_ = q, strip_ = strip, key_head_ = head / call_.group, end_ = strip.end(c, q);
  begin_ = filled_ = 0;
  for (int64_t n = 0; n < strip.heads; ++n) {
    for (int64_t u = 0; u < c.kernel_rows; ++u)
      load_row(call_.simd, c.weight.data, c.weight_dtype,
               (head + n) * c.weight.stride[0] + u * c.weight.stride[1], c.weight.stride[2],
               c.kernel_columns, weight + n * c.taps() + u * c.kernel_columns);
    for (int64_t r = 0; r < strip.count; ++r) {
      float* to = rows + (n * strip.count + r) * call_.d_pad;
      if (r < strip.low)
        std::fill_n(to, call_.d_pad, 0.0f);
      else
        host::load_query(call_.simd, a.q, a.dtype, row_offset(a.q, q, strip.first + r, head + n),
                         a.d, call_.d_pad, a.score.scale, to);
    }
  }
  count_ = strip.heads * strip.count;
  if (count_ > kDotRowsMost) transpose(rows, call_.d_pad, count_, a.d, strip.lanes, columns_);
}

void Logits::products(const host::KeyRows& keys, int64_t count, float* to) const {
  const int64_t lanes = strip_.lanes;
  if (count_ > kDotRowsMost)
    return call_.simd.gemm({count, lanes, call_.a.d, keys.x, keys.row, columns_, lanes, to, lanes,
                            nullptr, false, false});
  for (int64_t r = 0; r < count_; r += kDotRows)
    call_.simd.dots(count, std::min(kDotRows, count_ - r), call_.a.d, keys.x, keys.row,
                    rows + r * call_.d_pad, call_.d_pad, to + r, lanes);
}

// Scores of keys [begin, end).
void Logits::fill(int64_t begin, int64_t end, float* to) {
  const int64_t lanes = strip_.lanes;
  while (begin < end) {
    const bool inside = begin >= 0 && begin < end_;
    const int64_t stop = begin < 0 ? 0 : inside ? end_ : end;
    const int64_t count = std::min({kKeys, end - begin, stop - begin});
    if (inside) {
      bool flags[kKeys];
      const bool* absent = absent_keys(call_, q_, begin, count, flags);
      products(load_keys(call_, q_, key_head_, call_.a.k, call_.a.d, begin, count, {false}, absent,
                         room_),
               count, to);
      hide(call_.c, q_, strip_, begin, count, absent, 0, to, lanes);
    } else {
      std::fill_n(to, count * lanes, 0.0f);
    }
    begin += count, to += count * lanes;
  }
}

void Logits::slide(int64_t begin, int64_t count) {
  const int64_t lanes = strip_.lanes, from = begin - call_.c.left();
  const int64_t wanted = count + call_.c.kernel_columns - 1;
  const int64_t dropped = from - begin_;
  if (filled_ == 0 || dropped >= filled_) {
    filled_ = 0;
  } else if (dropped > 0) {
    filled_ -= dropped;
    std::copy(s + dropped * lanes, s + (dropped + filled_) * lanes, s);
  }
  begin_ = from;
  if (filled_ < wanted) fill(begin_ + filled_, begin_ + wanted, s + filled_ * lanes);
  filled_ = std::max(filled_, wanted);
}

void Logits::convolve(int64_t count, const Strip& out, float* a) const {
  const ConvAttend& c = call_.c;
  // Ascending heads: what one writes past its rows is the next one's to write.
  for (int64_t n = 0; n < out.heads; ++n)
    call_.simd.convolve({count, call_.padded(out.count), s + n * strip_.count, strip_.lanes,
                         weight + n * c.taps(), c.kernel_rows, c.kernel_columns, a + n * out.count,
                         out.lanes});
}

}  // namespace fovea::conv_host
