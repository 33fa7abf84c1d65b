// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/tile_host.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "core/convert.h"

namespace fovea::attend_host {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// Rows so far apart that a tile of them falls into few cache sets are better copied together.
bool dense(int64_t row, int64_t width) {
  return row <= 2 * width;
}

void turn(const Rope& rope, int64_t position, float* k) {
  const bool known = position >= 0 && position < rope.positions;
  const float* cos = rope.cos.as() + (known ? position : 0) * rope.cos.stride[0];
  const float* sin = rope.sin.as() + (known ? position : 0) * rope.sin.stride[0];
  for (int64_t i = 0; i < rope.half; ++i) {
    float* x = k + rope.begin + (rope.interleaved ? 2 * i : i);
    float* y = x + (rope.interleaved ? 1 : rope.half);
    const float c = known ? cos[i * rope.cos.stride[1]] : std::numeric_limits<float>::quiet_NaN();
    const float s = known ? sin[i * rope.sin.stride[1]] : 0;
    const float first = *x * c - *y * s;
    *y = *x * s + *y * c;
    *x = first;
  }
}

template <class Element>
void add_bias(const Element* bias, int64_t stride, int count, int lanes, float* x) {
  for (int j = 0; j < count; ++j) {
    const float value = to_float(bias[j * stride]);
    // -inf masks whatever the score is, NaN included.
    x[j * lanes] = value == -kInf ? -kInf : x[j * lanes] + value;
  }
}

}  // namespace

Call::Call(const Attend& request) : a(request), simd(host::simd()), group(a.g ? a.h / a.g : 1) {
  d_pad = padded(a.d), e_pad = padded(a.e);
  elementwise =
      a.mask.query_position || a.mask.key_position || a.mask.bits || a.score.bias || a.score.alibi;
}

RowTile::RowTile(const Call& call, const Sequence& q, int64_t first_head, int64_t heads,
                 int64_t first, int64_t row_count)
    : key_head(first_head / call.group),
      count(static_cast<int>(row_count)),
      lanes(static_cast<int>(call.padded(row_count))) {
  const Mask& mask = call.a.mask;
  const bool by_index = !mask.query_position && !mask.key_position;
  for (int r = 0; r < count; ++r) {
    row[r] = (first + r) / heads, head[r] = first_head + (first + r) % heads;
    const Window w = window[r] = mask.of_head(head[r]);
    const int64_t p = position[r] = mask.query_at(q, head[r], row[r]);
    low[r] = first_low[r] = first_high[r] = 0, high[r] = q.keys;
    if (!by_index) continue;
    // Window::sees as intervals; differences, because a limit may be near INT64_MAX.
    if (w.right > 0 && w.right < q.keys - p) high[r] = std::max<int64_t>(p + w.right, 0);
    if (w.chunk > 0) {
      const int64_t chunk = w.floor_div(p);
      if (chunk < 0) {
        high[r] = 0;
      } else {
        low[r] = first_low[r] = chunk * w.chunk;
        if (w.chunk < high[r] - low[r]) high[r] = low[r] + w.chunk;
      }
    }
    if (w.left > 0) {
      first_high[r] = std::min(w.sink, high[r]);
      if (w.left <= p) low[r] = std::max(low[r], p - w.left + 1);
    }
  }
  begin = q.keys, end = 0;
  for (int r = 0; r < count; ++r) {
    if (low[r] < high[r]) begin = std::min(begin, low[r]), end = std::max(end, high[r]);
    if (first_low[r] < first_high[r]) {
      begin = std::min(begin, first_low[r]), end = std::max(end, first_high[r]);
    }
  }
  for (int r = count; r < lanes; ++r) low[r] = high[r] = first_low[r] = first_high[r] = 0;
}

Cover RowTile::cover(int64_t key_begin, int64_t key_end) const {
  bool some = false, all = true;
  for (int r = 0; r < count; ++r) {
    some |= std::max(low[r], key_begin) < std::min(high[r], key_end) ||
            std::max(first_low[r], key_begin) < std::min(first_high[r], key_end);
    all &= (low[r] <= key_begin && high[r] >= key_end) ||
           (first_low[r] <= key_begin && first_high[r] >= key_end);
  }
  return all ? Cover::full : some ? Cover::part : Cover::none;
}

void load_keys(const Call& call, const Sequence& q, int64_t key_head, int64_t begin, int64_t count,
               KeyUse use, const KeyRoom& room, KeyTile& tile) {
  const Attend& a = call.a;
  tile.begin = begin, tile.count = static_cast<int>(count);
  tile.any_absent = false;
  const bool f32 = a.dtype == FOVEA_F32 && !a.sequences.page;
  const bool k_here = f32 && !a.rope.cos && a.k.stride[3] == 1 &&
                      (!use.k_wide || (a.d == call.d_pad && dense(a.k.stride[1], a.d)));
  const bool v_here =
      f32 && a.v.stride[3] == 1 &&
      (!use.v_wide || (a.e == call.e_pad && (use.once || dense(a.v.stride[1], a.e))));
  if (k_here) {
    tile.k = a.k.as() + a.sequences.key_offset(q, begin, a.k.stride) + key_head * a.k.stride[2];
    tile.k_row = a.k.stride[1];
  } else {
    tile.k = room.k, tile.k_row = call.d_pad;
  }
  if (v_here) {
    tile.v = a.v.as() + a.sequences.key_offset(q, begin, a.v.stride) + key_head * a.v.stride[2];
    tile.v_row = a.v.stride[1];
  } else {
    tile.v = room.v, tile.v_row = call.e_pad;
  }
  const bool look = call.elementwise || a.sequences.page || a.rope.cos;
  if (!look && (k_here || !use.k) && (v_here || !use.v)) return;

  for (int64_t j = 0; j < count; ++j) {
    int64_t k_at = 0, v_at = 0;
    bool absent = false;
    if (look) {
      tile.position[j] = a.mask.key_at(q, key_head, begin + j);
      absent = a.mask.key_position && tile.position[j] < 0;
    }
    if (!absent) {
      k_at = a.sequences.key_offset(q, begin + j, a.k.stride);
      v_at = a.sequences.key_offset(q, begin + j, a.v.stride);
      absent = k_at < 0;
    }
    tile.absent[j] = absent;
    tile.any_absent |= absent;
    if (use.k && !k_here) {
      float* to = room.k + j * call.d_pad;
      if (absent) {
        std::fill_n(to, call.d_pad, 0.0f);
      } else {
        load_row(call, a.k.data, a.dtype, k_at + key_head * a.k.stride[2], a.k.stride[3], a.d, to);
        std::fill(to + a.d, to + call.d_pad, 0.0f);
        if (a.rope.cos) turn(a.rope, tile.position[j], to);
      }
    }
    if (use.v && !v_here) {
      float* to = room.v + j * call.e_pad;
      if (absent) {
        std::fill_n(to, call.e_pad, 0.0f);
      } else {
        load_row(call, a.v.data, a.dtype, v_at + key_head * a.v.stride[2], a.v.stride[3], a.e, to);
        std::fill(to + a.e, to + call.e_pad, 0.0f);
      }
    }
  }
}

bool finish_scores(const Call& call, int64_t sequence, const Sequence& q, const RowTile& rows,
                   const KeyTile& keys, Cover cover, float* x, float* slope) {
  const Attend& a = call.a;
  const int lanes = rows.lanes;
  if (a.score.softcap > 0)
    call.simd.softcap(static_cast<int64_t>(keys.count) * lanes, x, a.score.softcap, slope);
  if (call.elementwise) {
    const bool positions = a.mask.query_position || a.mask.key_position;
    for (int r = 0; r < rows.count; ++r) {
      const int64_t h = rows.head[r], p = rows.position[r];
      float* at = x + r;
      if (a.score.alibi) {
        const float alibi =
            a.score.alibi.as()[sequence * a.score.alibi.stride[0] + h * a.score.alibi.stride[1]];
        for (int j = 0; j < keys.count; ++j)
          at[j * lanes] -= alibi * static_cast<float>(std::abs(p - keys.position[j]));
      }
      if (const View<4>& bias = a.score.bias) {
        const int64_t from = q.batch * bias.stride[0] + h * bias.stride[1] +
                             (q.row_begin + rows.row[r]) * bias.stride[2] +
                             (q.key_first + keys.begin) * bias.stride[3];
        if (a.score.bias_dtype == FOVEA_F32)
          add_bias(bias.as() + from, bias.stride[3], keys.count, lanes, at);
        else if (a.score.bias_dtype == FOVEA_F16)
          add_bias(bias.as<F16>() + from, bias.stride[3], keys.count, lanes, at);
        else
          add_bias(bias.as<Bf16>() + from, bias.stride[3], keys.count, lanes, at);
      }
      if (a.mask.bits)
        for (int j = 0; j < keys.count; ++j)
          if (!a.mask.bit(q, h, rows.row[r], keys.begin + j)) at[j * lanes] = -kInf;
      if (positions)
        for (int j = 0; j < keys.count; ++j)
          if (!rows.window[r].sees(p, keys.position[j])) at[j * lanes] = -kInf;
    }
  }
  if (cover == Cover::part) {
    int32_t low[kRows], high[kRows], first_low[kRows], first_high[kRows];
    const auto local = [&](int64_t j) {
      return static_cast<int32_t>(clamp_i64(j - keys.begin, 0, keys.count));
    };
    for (int r = 0; r < lanes; ++r) {
      low[r] = local(rows.low[r]), high[r] = local(rows.high[r]);
      first_low[r] = local(rows.first_low[r]), first_high[r] = local(rows.first_high[r]);
    }
    call.simd.mask(keys.count, lanes, x, low, high, first_low, first_high);
  }
  if (keys.any_absent)
    for (int j = 0; j < keys.count; ++j)
      if (keys.absent[j]) std::fill_n(x + j * lanes, lanes, -kInf);
  return call.elementwise || cover == Cover::part || keys.any_absent;
}

}  // namespace fovea::attend_host
