// SPDX-License-Identifier: Apache-2.0
#include "ops/attention/tile_host.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "core/convert.h"

namespace fovea::attend_host {
namespace {

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
  d_pad = host::padded(a.d), e_pad = host::padded(a.e);
  elementwise = a.mask.key_position || a.mask.bits || a.score.bias || a.score.alibi;
  values_of_keys = a.k.data == a.v.data && a.k_dtype == a.v_dtype && !a.k_scale && !a.v_scale &&
                   a.e <= a.d && a.e == e_pad && std::equal(a.k.stride, a.k.stride + 4, a.v.stride);
}

RowTile::RowTile(const Call& call, const Sequence& q, int64_t first_head, int64_t heads,
                 int64_t first, int64_t row_count)
    : host::RowTile(row_count), key_head(first_head / call.group) {
  const Mask& mask = call.a.mask;
  const bool intervals = !mask.key_position;
  for (int r = 0; r < count; ++r) {
    row[r] = (first + r) / heads, head[r] = first_head + (first + r) % heads;
    window[r] = mask.of_head(head[r]), position[r] = mask.query_at(q, head[r], row[r]);
    seen[r] =
        intervals ? window[r].range(position[r], q.keys, mask.axis) : KeyRange{0, q.keys, 0, 0};
  }
  bound();
}

void place_keys(const Call& call, const Sequence& q, int64_t key_head, int64_t begin, int64_t count,
                KeyTile& tile) {
  const Attend& a = call.a;
  tile.begin = begin, tile.count = static_cast<int>(count);
  tile.any_absent =
      a.sequences.page && host::find_absent(a.sequences, q, begin, count, a.k, tile.absent);
  if (a.mask.key_position && !a.sequences.page) std::fill_n(tile.absent, count, false);
  if (call.elementwise || a.rope.cos)
    for (int64_t j = 0; j < count; ++j) {
      tile.position[j] = a.mask.key_at(q, key_head, begin + j);
      if (a.mask.key_position && tile.position[j] < 0) tile.any_absent = tile.absent[j] = true;
    }
}

void load_keys(const Call& call, const Sequence& q, int64_t key_head, int64_t begin, int64_t count,
               host::KeyUse k, host::KeyUse v, const KeyRoom& room, KeyTile& tile) {
  const Attend& a = call.a;
  place_keys(call, q, key_head, begin, count, tile);
  k.copy = a.rope.cos.data != nullptr;
  const host::KeyRows keys =
      host::load_keys(call.key_side(), q, key_head, begin, count, k, tile.absences(), room.k);
  const host::KeyRows values = call.values_of_keys && !k.copy
                                   ? keys
                                   : host::load_keys(call.value_side(), q, key_head, begin, count,
                                                     v, tile.absences(), room.v);
  tile.k = keys.x, tile.k_row = keys.row, tile.v = values.x, tile.v_row = values.row;
  const bool* absent = tile.absences();
  for (int64_t j = 0; a.rope.cos && j < count; ++j)
    if (!(absent && absent[j])) turn(a.rope, tile.position[j], room.k + j * call.d_pad);
}

bool finish_scores(const Call& call, int64_t sequence, const Sequence& q, const RowTile& rows,
                   const KeyTile& keys, Cover cover, float* x, float* slope) {
  const Attend& a = call.a;
  const int lanes = rows.lanes;
  if (a.score.softcap > 0)
    call.simd.softcap(static_cast<int64_t>(keys.count) * lanes, x, a.score.softcap, slope);
  if (call.elementwise) {
    const bool positions = bool{a.mask.key_position};
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
    const host::LocalSeen seen(rows, keys.begin, keys.count);
    call.simd.mask(keys.count, lanes, x, seen.low, seen.high, seen.first_low, seen.first_high);
  }
  if (keys.any_absent)
    for (int j = 0; j < keys.count; ++j)
      if (keys.absent[j]) std::fill_n(x + j * lanes, lanes, -kInf);
  return call.elementwise || cover == Cover::part || keys.any_absent;
}

}  // namespace fovea::attend_host
