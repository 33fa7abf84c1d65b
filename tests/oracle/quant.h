// SPDX-License-Identifier: Apache-2.0
// quant_forward from the comments of quant.h, one row at a time.
//   exact: softmax attention of the numbers the codes stand for, in float64.  Rounded:
//   the recipe in float32, p rounded as p_format says under the maximum of the tiles seen so far,
//   sums of e4m3 as tensor cores make them: 32 at a time, each cut 13 bits below the largest's
//   power of two (measured on Hopper: 14 bits would err half as much)
#pragma once
#include <algorithm>

#include "sequence.h"

namespace oracle {

// Where a head's row of scales, or of units of 128 tokens, has the first entry of sequence r.
inline int64_t scale_base(const Dense& start, int64_t r, int64_t block) {
  if (!start) return 0;
  return block ? start.integer(r) / block + r : r;
}

inline int64_t value_column(const Dense& start, int64_t r, int64_t i, bool permuted) {
  static constexpr int place[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
  const int64_t token = permuted ? i / 16 * 16 + place[i % 16] : i;
  return (start ? (start.integer(r) / 128 + r) * 128 : 0) + token;
}

// What packed bytes stand for, two elements each along the last axis.
inline Dense unpacked(const Dense& bytes, int format) {
  static constexpr double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  if (!bytes || bytes.dtype != FOVEA_U8) return bytes;
  Dense out = bytes;
  out.shape[3] *= 2, out.value.clear();
  for (double byte : bytes.value)
    for (int half = 0; half < 2; ++half) {
      const int code = static_cast<int>(byte) >> 4 * half & 15;
      out.value.push_back(format == FOVEA_CODE_FORMAT_I4 ? (code < 8 ? code : code - 16)
                                                         : (code & 8 ? -1 : 1) * e2m1[code & 7]);
    }
  return out;
}

// A tensor of scales and which element has which (fovea_scale_group).
struct Scales {
  Dense value;
  int group = 0;
  int64_t block = 0, columns = 0, padded = 0;

  // tokens: packed starts; i: a token, for micro*_t the column of transposed codes.
  double operator()(const Dense& start, int64_t row, int64_t head, int64_t r, int64_t i,
                    int64_t c) const {
    if (!value) return 1;
    const int64_t first = start ? start.integer(r) : 0;
    int64_t at = 0;
    switch (group) {
      case FOVEA_SCALE_GROUP_BLOCK:
        at = scale_base(start, r, block) + (block ? i / block : 0);
        break;
      case FOVEA_SCALE_GROUP_THREAD_Q:
        at = (scale_base(start, r, block) + i / block) * 8 + i % 8;
        break;
      case FOVEA_SCALE_GROUP_THREAD_K:
        at = (scale_base(start, r, block) + i / block) * 4 + i % 8 / 2;
        break;
      case FOVEA_SCALE_GROUP_TOKEN:
        at = first + i;
        break;
      case FOVEA_SCALE_GROUP_CHANNEL:
        at = (start ? r * columns : 0) + c;
        break;
      case FOVEA_SCALE_GROUP_MICRO16:
        at = (first + i) * ((columns + 15) / 16) + c / 16;
        break;
      case FOVEA_SCALE_GROUP_MICRO32:
        at = (first + i) * ((columns + 31) / 32) + c / 32;
        break;
      case FOVEA_SCALE_GROUP_MICRO16_T:
        at = c * (padded / 16) + i / 16;
        break;
      default:
        at = c * (padded / 32) + i / 32;
    }
    const double x = value(row, head, at);
    return value.dtype == FOVEA_U8 ? (x == 255 ? NAN : std::ldexp(1.0, static_cast<int>(x) - 127))
                                   : x;
  }
};

// Lists of quant.h: which keys a row of a list head meets, in tiles of 64, in order.
struct QuantLists {
  struct Tile {
    int64_t begin, end;
  };
  Dense index, count;
  int64_t x = 1, block_rows = 0, block_keys = 0, entry_keys = 0;
  double margin = 0;

  // The row after the group of row i.
  int64_t group_end(int64_t i, int64_t rows) const {
    const int64_t first = i / block_rows * block_rows, within = (i - first) / 64 * 64 + 64;
    return std::min({first + within, first + block_rows, rows});
  }
  std::vector<Tile> tiles(const Dense& query_start, const Sequence& q, int64_t head,
                          int64_t i) const {
    int64_t row = i / block_rows;
    if (query_start) row += block_rows == 1 ? q.row : q.row / block_rows + q.r;
    const int64_t keep = index.shape[3];
    const int64_t used =
        count ? std::clamp<int64_t>(count.integer(q.batch, head, row), 0, keep) : keep;
    std::vector<Tile> to;
    for (int64_t m = 0; m < used; ++m) {
      const auto e = static_cast<int64_t>(index(q.batch, head, row, m));
      if (e < 0) continue;
      const int64_t first = e * entry_keys, end = std::min(first + block_keys, q.keys);
      for (int64_t j = first; j < end; j += 64) to.push_back({j, std::min(j + 64, end)});
    }
    return to;
  }
};

template <class P>
QuantLists load_quant_lists(const P& p) {
  QuantLists list;
  list.index = load(p.index), list.count = load(p.index_count);
  if (p.index.data) list.x = p.index.shape[1];
  list.block_rows = p.block_rows, list.block_keys = p.block_keys;
  list.entry_keys = p.entry_keys ? p.entry_keys : p.block_keys;
  list.margin = p.skip_margin;
  return list;
}

struct QuantAttention {
  Dense q, k, v, v_t, sink_logit, k_mean, q_plain, delta, v_mean;
  QuantLists list;
  Dense mask;  // (b, h, s, bytes): a bit for each key that a row sees
  Scales q_scale, k_scale, v_scale;
  Layout at;
  int64_t b = 0, s = 0, h = 0, g = 0, d = 0, e = 0;
  int64_t left = 0, right = 0;
  double scale = 0, softcap = 0;
  bool permuted = false;

  int64_t mean_of(int64_t r) const { return at.key_start ? r : 0; }
  // What is added to a score of row i: scale <q_i, k_mean>.
  double row_constant(const Sequence& q_at, int64_t head, int64_t i) const {
    if (!k_mean || at.page || !q_at.keys) return 0;
    double sum = 0;
    for (int64_t c = 0; c < d; ++c) {
      const double x = q_plain ? q_plain(q_at.batch, q_at.row + i, head, c)
                               : q(q_at.batch, q_at.row + i, head, c) *
                                     q_scale(at.query_start, q_at.batch, head, q_at.r, i, c);
      sum += x * k_mean(q_at.cache, head / (h / g), mean_of(q_at.r), c);
    }
    return sum * scale;
  }
};

// Extents, sequences, window and scale of a call that quantises q, k and v itself.
template <class Params>
void read_places(QuantAttention& a, const Params& p) {
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.g = p.k.shape[2], a.e = p.v.shape[3];
  a.at.query_start = load(p.query_start), a.at.key_start = load(p.key_start);
  a.at.s = a.s, a.at.extent = p.k.shape[1];
  a.at.query_max = p.query_max, a.at.key_max = p.key_max;
  a.at.sequences = p.query_start.data ? p.query_start.shape[0] - 1
                   : p.key_start.data ? p.key_start.shape[0] - 1
                                      : a.b;
  a.left = p.window_left, a.right = p.causal ? 1 : p.window_right;
  a.scale = p.scale > 0 ? p.scale : 1 / std::sqrt(static_cast<double>(a.d));
}

inline QuantAttention load_quant(const fovea_quant_forward_params& p) {
  QuantAttention a;
  a.q = unpacked(load(p.q), p.code_format), a.k = unpacked(load(p.k), p.code_format);
  a.v = load(p.v), a.v_t = unpacked(load(p.v_t), p.v_format);
  a.sink_logit = load(p.sink_logit);
  a.k_mean = load(p.k_mean), a.q_plain = load(p.q_plain);
  a.delta = load(p.delta), a.v_mean = load(p.v_mean);
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = a.q.shape[3];
  a.g = p.k.shape[2], a.e = p.o.shape[3];
  const int64_t padded = a.v_t.given ? a.v_t.shape[3] : 0;
  a.q_scale = {load(p.q_scale), p.q_group, p.q_block, a.d, 0};
  a.k_scale = {load(p.k_scale), p.k_group, p.k_block, a.d, 0};
  a.v_scale = {load(p.v_scale), p.v_group, p.v_block, a.e, padded};
  a.at.query_start = load(p.query_start), a.at.key_start = load(p.key_start);
  a.at.query_len = load(p.query_len), a.at.key_len = load(p.key_len);
  a.at.page_table = load(p.page_table), a.at.cache_row = load(p.cache_row);
  a.at.s = a.s, a.at.extent = p.k.shape[1], a.at.caches = p.k.shape[0];
  if (p.page_table.data) {
    a.at.page = p.k.shape[1];
    a.at.extent *= p.page_table.shape[1], a.at.caches = p.page_table.shape[0];
  }
  a.at.query_max = p.query_max, a.at.key_max = p.key_max;
  a.at.sequences = p.query_start.data ? p.query_start.shape[0] - 1
                   : p.key_start.data ? p.key_start.shape[0] - 1
                                      : a.b;
  a.left = p.window_left, a.right = p.causal ? 1 : p.window_right;
  a.scale = p.scale > 0 ? p.scale : 1 / std::sqrt(static_cast<double>(a.d));
  a.softcap = p.softcap;
  a.permuted = p.code_order == FOVEA_CODE_ORDER_V_PERM16;
  a.list = load_quant_lists(p);
  return a;
}

// Key j: its row of k, v, scales and means, and its number there, of the row's sequence.
inline Place key_place(const QuantAttention& a, const Sequence& q, int64_t j) {
  return a.at.page ? place(a.at, q, j) : Place{q.cache, j, true};
}
inline double key_at(const QuantAttention& a, const Sequence& q, int64_t g, int64_t j, int64_t c) {
  const Place at = key_place(a, q, j);
  if (!at.present) return 0;
  const double x =
      a.k(at.row, q.store + at.slot, g, c) * a.k_scale(a.at.key_start, at.row, g, q.r, at.slot, c);
  return a.at.page && a.k_mean ? x + a.k_mean(at.row, g, 0, c) : x;
}
inline double value_at(const QuantAttention& a, const Sequence& q, int64_t g, int64_t j,
                       int64_t c) {
  const Place at = key_place(a, q, j);
  if (!at.present) return 0;
  if (a.v) return a.v(at.row, q.store + at.slot, g, c);
  return a.v_t(at.row, g, c, value_column(a.at.key_start, q.r, at.slot, a.permuted));
}
inline double value_scale(const QuantAttention& a, const Sequence& q, int64_t g, int64_t j,
                          int64_t c) {
  const Place at = key_place(a, q, j);
  if (!at.present) return 0;
  const bool columns = a.v_scale.group >= FOVEA_SCALE_GROUP_MICRO16_T;
  return a.v_scale(a.at.key_start, at.row, g, q.r,
                   columns ? value_column(a.at.key_start, q.r, at.slot, a.permuted) : at.slot, c);
}
// What is added to v's codes and scales before they are summed.
inline double value_mean(const QuantAttention& a, const Sequence& q, int64_t g, int64_t j,
                         int64_t c) {
  if (!a.at.page || !a.v_mean || !key_place(a, q, j).present) return 0;
  return a.v_mean(key_place(a, q, j).row, g, 0, c);
}

// p_format, from the comments of fovea_p_format: weights [begin, end) of keys that share a run.
inline void round_weights(int format, std::vector<double>& p, int64_t begin, int64_t end) {
  static constexpr double e2m1[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const auto four_bits = [](double x) {
    int best = 0;
    for (int n = 1; n < 8; ++n) {
      const double old = std::abs(x - e2m1[best]), now = std::abs(x - e2m1[n]);
      if (now < old || (now == old && n % 2 == 0)) best = n;
    }
    return e2m1[best];
  };
  double most = 0;
  for (int64_t j = begin; j < end; ++j) most = std::max(most, p[j]);
  for (int64_t j = begin; j < end; ++j) {
    if (!(p[j] > 0)) continue;
    double scale = 0;
    switch (format) {
      case FOVEA_P_FORMAT_E4M3_256:
      case FOVEA_P_FORMAT_E4M3_448:
        scale = format == FOVEA_P_FORMAT_E4M3_256 ? 256 : 448;
        p[j] = round_to(FOVEA_E4M3, scale * p[j]) / scale;
        break;
      case FOVEA_P_FORMAT_HALF:
        p[j] = round_to(FOVEA_F16, p[j]);
        break;
      case FOVEA_P_FORMAT_I8:
        p[j] = std::nearbyint(p[j] / most * 127) * most / 127;
        break;
      case FOVEA_P_FORMAT_E2M1_TWO:
        scale = round_to(FOVEA_E4M3, 2688 * most / 6);
        p[j] = scale == 0 ? 0 : four_bits(2688 * p[j] / scale) * scale / 2688;
        break;
      default:
        scale = std::ldexp(1.0, std::ilogb(most) - 2);
        p[j] = scale < 0x1p-125 ? 0 : four_bits(p[j] / scale) * scale;
    }
  }
}

inline int64_t weight_run(int format) {
  switch (format) {
    case FOVEA_P_FORMAT_I8:
      return 64;
    case FOVEA_P_FORMAT_E2M1_TWO:
      return 16;
    case FOVEA_P_FORMAT_E2M1_ONE:
      return 32;
    default:
      return 1;
  }
}

// The largest relative error of a weight's rounding, of those near the largest.
inline double weight_unit(int format) {
  if (format == FOVEA_P_FORMAT_HALF) return unit_of(FOVEA_F16);
  if (format == FOVEA_P_FORMAT_I8) return 1.0 / 254;
  return format >= FOVEA_P_FORMAT_E2M1_TWO ? 0.25 : unit_of(FOVEA_E4M3);
}

// sum + x_0 y_0 + ..., 32 products at a time.
template <class X, class Y>
double cut_sum(double sum, int64_t n, X x, Y y) {
  for (int64_t begin = 0; begin < n; begin += 32) {
    double term[33] = {sum}, largest = std::abs(sum);
    int count = 1;
    for (int64_t i = begin; i < std::min(begin + 32, n); ++i) {
      term[count] = x(i) * y(i);
      largest = std::max(largest, std::abs(term[count++]));
    }
    int exponent = 0;
    std::frexp(largest, &exponent);
    const double step = std::ldexp(1.0, exponent - 13), inverse = std::ldexp(1.0, 13 - exponent);
    sum = 0;
    for (int i = 0; i < count; ++i) sum += std::trunc(term[i] * inverse) * step;
  }
  return sum;
}

struct QuantForwardResult {
  Out o, lse, skipped;
};

// Which tiles a group of rows skips: x[row][key], -inf where it sees none.  Adds their number.
inline std::vector<char> skipped_tiles(double margin, const std::vector<QuantLists::Tile>& tiles,
                                       const std::vector<std::vector<double>>& x, Out& number) {
  std::vector<char> gone(tiles.size());
  std::vector<double> top(x.size(), -HUGE_VAL);
  for (size_t n = 0; n < tiles.size() && margin > 0; ++n) {
    bool keep = false, seen = false;
    std::vector<double> most = top;
    for (size_t r = 0; r < x.size(); ++r)
      for (int64_t j = tiles[n].begin; j < tiles[n].end; ++j) {
        if (x[r][j] == -HUGE_VAL) continue;
        seen = true, keep = keep || !(x[r][j] < top[r] - margin);
        most[r] = std::max(most[r], x[r][j]);
      }
    gone[n] = !keep;
    if (keep) top = most;
    if (!keep && seen && !number.value.empty()) number.set(0, number.value[0] + 1);
  }
  return gone;
}

// p: formats, o and lse alone.
inline QuantForwardResult quant_forward(const QuantAttention& a,
                                        const fovea_quant_forward_params& p, Mode mode) {
  constexpr int64_t kTile = 128;
  const bool exact = mode == Mode::exact;
  QuantForwardResult out{Out(p.o, weight_unit(p.p_format)), Out(), Out()};
  if (p.lse.data) out.lse = Out(p.lse, 0);
  if (p.skipped.data) out.skipped = Out(p.skipped, 0), out.skipped.set(0, 0);
  const auto real = [&](double x) {
    return exact ? x : static_cast<double>(static_cast<float>(x));
  };
  const bool cut_scores = !exact && p.q.dtype == FOVEA_E4M3;
  const bool cut_values = !exact && p.p_format <= FOVEA_P_FORMAT_E4M3_448;
  const bool halves = !exact && p.accumulate == FOVEA_ACCUMULATE_HALF_64;
  const double lift = p.p_format == FOVEA_P_FORMAT_E4M3_448 ? 448 : 1;
  const bool last_scale =
      !a.at.page && (a.v_scale.group == FOVEA_SCALE_GROUP_CHANNEL ||
                     (a.v_scale.group == FOVEA_SCALE_GROUP_BLOCK && !a.v_scale.block));
  for (int64_t r = 0; r < a.at.sequences; ++r) {
    const Sequence q = sequence(a.at, r);
    for (int64_t head = 0; head < a.h; ++head) {
      const int64_t g = head / (a.h / a.g);
      const double sink = a.sink_logit ? a.sink_logit(head) : -HUGE_VAL;
      // v as the sums see it, and times all its scales.
      std::vector<double> v(q.keys * a.e), largest(q.keys), k(q.keys * a.d);
      for (int64_t j = 0; j < q.keys; ++j) {
        for (int64_t c = 0; c < a.d; ++c) k[j * a.d + c] = key_at(a, q, g, j, c);
        for (int64_t c = 0; c < a.e; ++c) {
          const double x = value_at(a, q, g, j, c), scale = value_scale(a, q, g, j, c);
          const double mean = value_mean(a, q, g, j, c);
          v[j * a.e + c] = last_scale ? x : real(real(x * scale) + mean);
          largest[j] = std::max(largest[j], std::abs(x * scale) + std::abs(mean));
        }
      }
      // exactly: without roundings, as what is skipped is decided.
      const auto scores = [&](int64_t i, bool exactly, double& condition) {
        const auto as = [&](double x) { return exactly ? x : real(x); };
        const int64_t row = q.row + i, position = i + q.keys - q.rows;
        const double constant = as(a.row_constant(q, head, i));
        std::vector<double> x(q.keys, -HUGE_VAL), query(a.d);
        for (int64_t c = 0; c < a.d; ++c)
          query[c] =
              a.q(q.batch, row, head, c) * a.q_scale(a.at.query_start, q.batch, head, r, i, c);
        for (int64_t j = 0; j < q.keys; ++j) {
          if ((a.right > 0 && j >= position + a.right) || (a.left > 0 && j <= position - a.left))
            continue;
          if (!key_place(a, q, j).present) continue;
          if (a.mask && !(static_cast<int64_t>(a.mask(q.batch, head, row, j / 8)) >> j % 8 & 1))
            continue;
          const double* key = k.data() + j * a.d;
          double dot = 0, q_norm = 0, k_norm = 0;
          for (int64_t c = 0; c < a.d; ++c)
            dot += query[c] * key[c], q_norm += query[c] * query[c], k_norm += key[c] * key[c];
          if (cut_scores && !exactly)
            dot = cut_sum(
                0, a.d, [&](int64_t c) { return query[c]; }, [&](int64_t c) { return key[c]; });
          double delta = 0;
          if (a.delta)
            delta =
                a.delta(q.batch, head, scale_base(a.at.query_start, r, 128) + i / 128, q.store + j);
          x[j] = as(as(as(dot) + delta) * a.scale);
          x[j] = as(x[j] + constant);
          if (a.softcap > 0) x[j] = as(a.softcap * std::tanh(x[j] / a.softcap));
          condition = std::max(condition, a.scale * (std::sqrt(q_norm * k_norm) + std::abs(delta)) +
                                              std::abs(constant));
        }
        return x;
      };
      int64_t group_end = 0;
      std::vector<QuantLists::Tile> tiles;
      std::vector<char> gone;
      for (int64_t end = (q.keys + kTile - 1) / kTile * kTile; end > 0 && !a.list.index;
           end -= kTile)
        tiles.push_back({end - kTile, std::min(end, q.keys)});
      for (int64_t i = 0; i < q.rows; ++i) {
        if (a.list.index && i == group_end) {
          group_end = a.list.group_end(i, q.rows);
          tiles = a.list.tiles(a.at.query_start, q, head / (a.h / a.list.x), i);
          std::vector<std::vector<double>> group;
          double any = 0;
          for (int64_t n = i; n < group_end && a.list.margin > 0; ++n)
            group.push_back(scores(n, true, any));
          gone = skipped_tiles(a.list.margin, tiles, group, out.skipped);
        }
        const int64_t row = q.row + i;
        double m = -HUGE_VAL, l = 0, condition = 0, terms = 0;
        std::vector<double> o(a.e);
        const std::vector<double> x = scores(i, false, condition);
        for (size_t tile = 0; tile < tiles.size(); ++tile) {
          const int64_t begin = tiles[tile].begin, keys = tiles[tile].end - begin;
          double top = m;
          for (int64_t j = begin; j < begin + keys; ++j)
            if (x[j] > top || std::isnan(x[j])) top = x[j];
          if (top == -HUGE_VAL || (!gone.empty() && gone[tile])) continue;
          const double shrink = real(std::exp(m - top));
          m = top, l = real(l * shrink), terms *= shrink;
          std::vector<double> p_of(keys);
          for (int64_t j = 0; j < keys; ++j) {
            p_of[j] = real(std::exp(x[begin + j] - m)), l = real(l + p_of[j]);
            if (p_of[j] != 0) terms += p_of[j] * largest[begin + j];
          }
          const int64_t run = weight_run(p.p_format);
          for (int64_t j = 0; !exact && j < keys; j += run)
            round_weights(p.p_format, p_of, j, std::min(j + run, keys));
          for (int64_t c = 0; c < a.e; ++c) {
            double joined = real(o[c] * shrink);
            for (int64_t n = 0; n < keys; n += 64) {
              const int64_t count = std::min<int64_t>(64, keys - n);
              const auto weight = [&](int64_t j) { return p_of[n + j]; };
              const auto value = [&](int64_t j) {
                return p_of[n + j] == 0 ? 0 : v[(begin + n + j) * a.e + c];
              };
              double sum = 0;
              if (cut_values)
                sum = cut_sum(0, count, weight, value);
              else
                for (int64_t j = 0; j < count; ++j) sum = real(sum + weight(j) * value(j));
              if (halves) sum = round_to(FOVEA_F16, sum * lift) / lift;
              joined = real(joined + sum);
            }
            o[c] = joined;
          }
        }
        const double high = std::max(m, sink);
        const double less = m == -HUGE_VAL ? 0 : std::exp(m - high);
        const double seen = l * less;
        l = high == -HUGE_VAL ? 0 : real(seen + std::exp(sink - high));
        if (std::isnan(m)) l = m;
        out.o.terms(l == 0 ? 0 : terms * less / l);
        out.o.condition = std::max(out.o.condition, condition);
        for (int64_t c = 0; c < a.e; ++c) {
          double y = 0;
          if (l != 0 && less != 0) {
            y = real(o[c] * less / l) *
                (last_scale ? a.v_scale(a.at.key_start, q.cache, g, r, 0, c) : 1);
            if (a.v_mean && !a.at.page) y += seen / l * a.v_mean(q.cache, g, a.mean_of(r), c);
            y = real(y);
          }
          out.o.set(((q.batch * a.s + row) * a.h + head) * a.e + c,
                    exact ? y : round_to(p.o.dtype, y));
        }
        if (!p.lse.data) continue;
        const double lse = l == 0 ? -HUGE_VAL : high + std::log(l);
        out.lse.set((q.batch * a.h + head) * a.s + row, real(lse));
        out.lse.terms(1 + std::abs(lse) + condition);
      }
    }
  }
  return out;
}

inline QuantForwardResult quant_forward(const fovea_quant_forward_params& p, Mode mode) {
  return quant_forward(load_quant(p), p, mode);
}

}  // namespace oracle
