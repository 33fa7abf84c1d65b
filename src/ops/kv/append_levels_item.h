// SPDX-License-Identifier: Apache-2.0
// The parts of x_kv_append in the formats of levels, for host and device alike: first tokens, with
// bounds, outliers and values; then keys, whose words hold many tokens.
#pragma once
#include "ops/kv/append_item.h"
#include "ops/kv/levels.h"

namespace fovea::kv {

// Word w of a stream: code(n) is code n.
template <class Code>
FOVEA_HD uint32_t word_of(int64_t w, int32_t bits, const Code& code) {
  uint32_t word = 0;
  for (int64_t n = w * 32 / bits; n * bits < w * 32 + 32; ++n) {
    const auto low = static_cast<int32_t>(n * bits - w * 32);
    word |= low < 0 ? code(n) >> -low : code(n) << low;
  }
  return word;
}

// A token on its way in.
struct NewToken {
  int64_t sequence_row;  // of k_new
  int64_t batch, row, j, id, slot;
};

FOVEA_HD float new_number(const Cache& c, const View<4>& x, const NewToken& to, int64_t head,
                          int64_t column) {
  return to_number(c, *element(x, to.batch, to.sequence_row, head, column));
}
// Column of all heads.
FOVEA_HD float new_number(const Cache& c, const View<4>& x, const NewToken& to, int64_t width,
                          int64_t, int64_t column) {
  const int64_t head = quotient(column, width);
  return new_number(c, x, to, head, column - head * width);
}

template <class Team>
FOVEA_HD void keep_first(const KvAppend& a, const Team& team, const NewToken& to) {
  const Cache& c = a.cache;
  for (int64_t i = team.lane; i < c.g * c.d; i += team.lanes) {
    const int64_t head = quotient(i, c.d), column = i - head * c.d;
    *element(c.k_first, to.row, to.j, head, column) =
        *element(a.k_new, to.batch, to.sequence_row, head, column);
  }
  for (int64_t i = team.lane; i < c.g * c.e; i += team.lanes) {
    const int64_t head = quotient(i, c.e), column = i - head * c.e;
    *element(c.v_first, to.row, to.j, head, column) =
        *element(a.v_new, to.batch, to.sequence_row, head, column);
  }
}

FOVEA_HD float norm_of(const Cache& c, const View<4>& x, const NewToken& to, int64_t head,
                       int64_t width) {
  float sum = 0;
  for (int64_t i = 0; i < width; ++i) {
    const float y = new_number(c, x, to, head, i);
    sum = fused(y, y, sum);
  }
  return root_of(sum);
}

template <class Team>
FOVEA_HD void put_norms(const KvAppend& a, const Team& team, const NewToken& to) {
  const Cache& c = a.cache;
  for (int64_t i = team.lane; i < 2 * c.g; i += team.lanes) {
    const bool key = i < c.g;
    const int64_t head = key ? i : i - c.g;
    *(key ? c.k_norm : c.v_norm).template at<float>(to.id, to.slot, head) =
        canonical(key ? norm_of(c, a.k_new, to, head, c.d) : norm_of(c, a.v_new, to, head, c.e));
  }
}

// Bounds of a value, and its outliers.
template <class Team>
FOVEA_HD void put_value_bound(const KvAppend& a, const Team& team, const NewToken& to) {
  const Cache& c = a.cache;
  const int64_t columns = c.g * c.e;
  if (!columns) return;
  const auto number = [&](int64_t i) { return new_number(c, a.v_new, to, c.e, 0, i); };
  const Ends ends =
      find_ends(team, columns, c.v_outliers / 2, [&](int64_t i) { return ordered(number(i), i); });
  const float high = number(ends.largest), low = number(ends.smallest);
  const float range = (high - low) * 0.5f;
  const Bound bound{(high + low) * 0.5f, range == 0 ? 1.0f : range};
  if (team.lane == 0) {
    *c.v_bound.at<float>(to.id, to.slot, 0) = canonical(bound.offset);
    *c.v_bound.at<float>(to.id, to.slot, 1) = canonical(bound.range);
  }
  if (!c.v_outliers) return;
  put_outliers(
      team, columns, c.v_outliers,
      [&](int64_t i) {
        const float x = number(i);
        const uint64_t at = ordered(x, i);
        if (at < ends.high && at > ends.low) return kNoEntry;
        const uint32_t code = level_of(c.v_level, c.largest(), bound.in(x));
        return entry_of(i, x - bound.out(level(c.v_level, code)));
      },
      [&](int64_t n, uint32_t entry) { *c.v_outlier.at<uint32_t>(to.id, to.slot, n) = entry; });
}

template <class Team>
FOVEA_HD void put_key_outliers(const KvAppend& a, const Team& team, const NewToken& to) {
  const Cache& c = a.cache;
  const int64_t columns = c.g * c.d;
  const auto bound = [&](int64_t i) {
    const int64_t head = quotient(i, c.d);
    return key_bound(c, to.id, to.slot, head, i - head * c.d);
  };
  const auto number = [&](int64_t i) { return new_number(c, a.k_new, to, c.d, 0, i); };
  const Ends ends = find_ends(team, columns, c.k_outliers / 2,
                              [&](int64_t i) { return ordered(bound(i).in(number(i)), i); });
  put_outliers(
      team, columns, c.k_outliers,
      [&](int64_t i) {
        const Bound of = bound(i);
        const float x = number(i), y = of.in(x);
        const uint64_t at = ordered(y, i);
        if ((at < ends.high && at > ends.low) || (y >= -1 && y <= 1)) return kNoEntry;
        return entry_of(i, x - of.out(level(c.k_level, level_of(c.k_level, c.largest(), y))));
      },
      [&](int64_t n, uint32_t entry) { *c.k_outlier.at<uint32_t>(to.id, to.slot, n) = entry; });
}

// New token i of a sequence, but for the codes of its keys.
template <class Team>
FOVEA_HD void append_token(const KvAppend& a, const KvAppend::Turn& t, int64_t i,
                           const Team& team) {
  const Cache& c = a.cache;
  if (i >= t.fresh) return;
  NewToken to{t.sequence.row_begin + i, t.sequence.batch, t.row, t.from.length + i, -1, 0};
  if (to.j < c.firsts) return keep_first(a, team, to);
  to.id = c.page_of(t.row, to.j), to.slot = Cache::rest(to.j, c.page);
  if (to.id < 0) return;
  if (c.format == FOVEA_X_KV_FORMAT_NORMS)
    put_norms(a, team, to);
  else
    put_value_bound(a, team, to);
  if (c.k_outliers) put_key_outliers(a, team, to);
  team.meet();
  const int64_t words = c.e * c.bits / 32;
  for (int64_t n = team.lane; n < c.g * words; n += team.lanes) {
    const int64_t head = quotient(n, words), w = n - head * words;
    const Bound bound = value_bound(c, to.id, to.slot, head);
    *c.v_code.at<uint32_t>(to.id, to.slot, head, w) = word_of(w, c.bits, [&](int64_t code) {
      return level_of(c.v_level, c.largest(), bound.in(new_number(c, a.v_new, to, head, code)));
    });
  }
}

// Group (block, head, channel) of new keys: their bits alone change.
FOVEA_HD void append_keys(const KvAppend& a, const KvAppend::Turn& t, int64_t item) {
  const Cache& c = a.cache;
  const int64_t rest = quotient(item, c.d), channel = item - rest * c.d;
  const int64_t block = quotient(rest, c.g), head = rest - block * c.g;
  const int64_t first = (quotient(t.from.length, c.group) + block) * c.group;
  const int64_t begin = t.from.length > c.firsts ? t.from.length : c.firsts;
  if (first >= t.to.length || first + c.group <= begin) return;
  const int64_t id = c.page_of(t.row, first);
  if (id < 0) return;
  const int64_t slot = Cache::rest(first, c.page), at = quotient(slot, c.group);
  const auto fresh_code = [&](int64_t n) { return first + n >= begin && first + n < t.to.length; };
  for (int64_t w = 0; w < c.group * c.bits / 32; ++w) {
    const uint32_t mask = word_of(w, c.bits, [&](int64_t n) {
      return fresh_code(n) ? static_cast<uint32_t>(c.largest()) : 0;
    });
    if (!mask) continue;
    const uint32_t codes = word_of(w, c.bits, [&](int64_t n) -> uint32_t {
      if (!fresh_code(n)) return 0;
      const Bound bound = key_bound(c, id, slot + n, head, channel);
      return level_of(c.k_level, c.largest(),
                      bound.in(to_number(c, *fresh(a.k_new, t, first + n, head, channel))));
    });
    uint32_t* word = c.k_code.at<uint32_t>(id, at, head, channel, w);
    *word = (*word & ~mask) | codes;
  }
}

}  // namespace fovea::kv
