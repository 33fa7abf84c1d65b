// SPDX-License-Identifier: Apache-2.0
// x_kv_append in the formats of levels, from the comments of experimental/kv.h: a token at a time.
// What is chosen by comparing is computed in f32, as the comments say.
#pragma once
#include <map>

#include "kv.h"

namespace oracle {

struct KvLevelsOut {
  Out k_code, v_code, v_bound, k_norm, v_norm, k_outlier, v_outlier, k_first, v_first, counter;
};

class KvAppendLevels {
 public:
  explicit KvAppendLevels(const fovea_x_kv_append_params& p)
      : at(p, p.k_new, p.v_new),
        k_new(p.k_new),
        v_new(p.v_new),
        counter(p.counter),
        table(p.page_table),
        k_code(load(p.k_code)),
        k_level(load(p.k_level)),
        v_level(load(p.v_level)),
        k_offset(load(p.k_offset)),
        k_range(load(p.k_range)),
        k_outliers(p.k_outlier.data ? p.k_outlier.shape[2] : 0),
        v_outliers(p.v_outlier.data ? p.v_outlier.shape[2] : 0) {
    const std::pair<Out*, const fovea_tensor*> outs[] = {
        {&out.k_code, &p.k_code},       {&out.v_code, &p.v_code},   {&out.v_bound, &p.v_bound},
        {&out.k_norm, &p.k_norm},       {&out.v_norm, &p.v_norm},   {&out.k_outlier, &p.k_outlier},
        {&out.v_outlier, &p.v_outlier}, {&out.k_first, &p.k_first}, {&out.v_first, &p.v_first},
        {&out.counter, &p.counter}};
    for (const auto& [to, of] : outs)
      if (of->data) *to = Out(*of, 0);
    const Layout layout = kv_layout(p, at, p.k_new.shape[0], p.k_new.shape[1]);
    for (int64_t r = 0; r < layout.sequences; ++r) {
      const Sequence q = sequence(layout, r);
      if (q.cache < 0) continue;
      auto length = static_cast<int64_t>(counter(q.cache, 0));
      for (int64_t i = 0; i < q.rows && length < at.capacity(); ++i) append(q, i, length++);
      for (int64_t n = 0; n < 3; ++n) out.counter.set(q.cache * 4 + n, static_cast<double>(length));
    }
  }

  const KvShape at;
  Tracked k_new, v_new, counter, table;
  KvLevelsOut out;

 private:
  // Of a token, over all heads.
  struct Coded {
    std::vector<int64_t> code;
    std::map<int64_t, double> outlier;  // by column
  };
  struct Bound {
    float offset, range;
  };

  void append(const Sequence& q, int64_t i, int64_t j) {
    std::vector<float> k, v;
    for (int64_t c = 0; c < at.g * at.d; ++c)
      k.push_back(static_cast<float>(k_new(q.batch, q.row + i, c / at.d, c % at.d)));
    for (int64_t c = 0; c < at.g * at.e; ++c)
      v.push_back(static_cast<float>(v_new(q.batch, q.row + i, c / at.e, c % at.e)));
    if (j < at.firsts) {
      const int64_t to = q.cache * at.firsts + j;
      for (size_t c = 0; c < k.size(); ++c)
        out.k_first.set(to * at.g * at.d + static_cast<int64_t>(c), k[c]);
      for (size_t c = 0; c < v.size(); ++c)
        out.v_first.set(to * at.g * at.e + static_cast<int64_t>(c), v[c]);
      return;
    }
    const auto id = static_cast<int64_t>(table(q.cache, j / at.page));
    if (id < 0 || id >= at.pool) return;
    const int64_t slot = id * at.page + j % at.page;
    std::vector<Bound> of_k, of_v;
    if (at.format == 2) {
      of_k = norms(k, at.d, out.k_norm, slot), of_v = norms(v, at.e, out.v_norm, slot);
    } else {
      for (int64_t c = 0; c < at.g * at.d; ++c)
        of_k.push_back(
            {static_cast<float>(k_offset.value[c]), static_cast<float>(k_range.value[c])});
      of_v.assign(v.size(), bound_of(v));
      if (!v.empty()) out.v_bound.set(2 * slot, of_v[0].offset);
      if (!v.empty()) out.v_bound.set(2 * slot + 1, of_v[0].range);
    }
    put_keys(coded(k, of_k, k_level, k_outliers, true), id, j % at.page);
    put_values(coded(v, of_v, v_level, v_outliers, false), slot);
    put_outliers(out.k_outlier, coded(k, of_k, k_level, k_outliers, true), slot, k_outliers);
    put_outliers(out.v_outlier, coded(v, of_v, v_level, v_outliers, false), slot, v_outliers);
  }

  std::vector<Bound> norms(const std::vector<float>& x, int64_t width, Out& to,
                           int64_t slot) const {
    std::vector<Bound> all;
    for (int64_t head = 0; head < at.g; ++head) {
      float sum = 0;
      for (int64_t c = 0; c < width; ++c)
        sum = std::fma(x[head * width + c], x[head * width + c], sum);
      to.set(slot * at.g + head, std::sqrt(sum));
      for (int64_t c = 0; c < width; ++c) all.push_back({0, std::sqrt(sum)});
    }
    return all;
  }
  // Columns, the largest number first.
  static std::vector<int64_t> order(const std::vector<float>& x) {
    std::vector<int64_t> columns;
    for (size_t c = 0; c < x.size(); ++c) columns.push_back(static_cast<int64_t>(c));
    std::sort(columns.begin(), columns.end(), [&](int64_t a, int64_t b) {
      if (std::isnan(x[a]) || std::isnan(x[b]))
        return std::isnan(x[a]) && std::isnan(x[b]) ? a < b : std::isnan(x[a]);
      return x[a] != x[b] ? x[a] > x[b] : a < b;
    });
    return columns;
  }
  Bound bound_of(const std::vector<float>& v) const {
    if (v.empty()) return {};
    const std::vector<int64_t> by_size = order(v);
    const float high = v[by_size[v_outliers / 2]];
    const float low = v[by_size[v.size() - 1 - static_cast<size_t>(v_outliers / 2)]];
    const float range = (high - low) / 2;
    return {(high + low) / 2, range == 0 ? 1 : range};
  }

  Coded coded(const std::vector<float>& x, const std::vector<Bound>& bound, const Dense& level,
              int64_t outliers, bool outside) const {
    Coded to;
    std::vector<float> y;
    for (size_t c = 0; c < x.size(); ++c) {
      y.push_back((x[c] - bound[c].offset) / bound[c].range);
      int64_t code = 0;
      for (size_t i = 0; i + 1 < level.value.size(); ++i)
        code += (static_cast<float>(level.value[i]) + static_cast<float>(level.value[i + 1])) / 2 <
                y[c];
      to.code.push_back(code);
    }
    const std::vector<int64_t> by_size = order(outside ? y : x);
    for (size_t n = 0; n < by_size.size(); ++n) {
      const int64_t c = by_size[n], half = outliers / 2;
      const auto rank = static_cast<int64_t>(n), count = static_cast<int64_t>(by_size.size());
      if ((rank >= half && rank < count - half) || (outside && std::abs(y[c]) <= 1)) continue;
      const float back =
          std::fma(static_cast<float>(level.value[to.code[c]]), bound[c].range, bound[c].offset);
      to.outlier[c] = nearest(FOVEA_F16, x[c] - back);
    }
    return to;
  }

  static void set_bits(uint32_t* words, int64_t n, int64_t bits, int64_t code) {
    for (int64_t i = 0; i < bits; ++i) {
      const int64_t bit = n * bits + i;
      const uint32_t one = uint32_t{1} << (bit % 32);
      words[bit / 32] = code >> i & 1 ? words[bit / 32] | one : words[bit / 32] & ~one;
    }
  }
  void put_keys(const Coded& from, int64_t id, int64_t slot) {
    const int64_t words = at.group * at.bits / 32, blocks = at.page / at.group;
    for (int64_t c = 0; c < at.g * at.d; ++c) {
      const int64_t to = ((id * blocks + slot / at.group) * at.g * at.d + c) * words;
      std::vector<uint32_t> now;
      for (int64_t w = to; w < to + words; ++w)
        now.push_back(static_cast<uint32_t>(
            static_cast<int32_t>(out.k_code.written[w] ? out.k_code.value[w] : k_code.value[w])));
      set_bits(now.data(), slot % at.group, at.bits, from.code[c]);
      const int64_t bit = slot % at.group * at.bits;
      for (int64_t w = bit / 32; w <= (bit + at.bits - 1) / 32; ++w)
        out.k_code.set(to + w, static_cast<int32_t>(now[w]));
    }
  }
  void put_values(const Coded& from, int64_t slot) {
    const int64_t words = at.e * at.bits / 32;
    for (int64_t head = 0; head < at.g; ++head) {
      std::vector<uint32_t> now(words);
      for (int64_t c = 0; c < at.e; ++c)
        set_bits(now.data(), c, at.bits, from.code[head * at.e + c]);
      for (int64_t w = 0; w < words; ++w)
        out.v_code.set((slot * at.g + head) * words + w, static_cast<int32_t>(now[w]));
    }
  }
  static void put_outliers(Out& to, const Coded& from, int64_t slot, int64_t outliers) {
    int64_t n = 0;
    for (const auto& [column, lacks] : from.outlier) {
      uint8_t bytes[2];
      encode(FOVEA_F16, lacks, bytes);
      if (std::isnan(lacks)) bytes[0] = 0xff, bytes[1] = 0x7f;
      const uint32_t entry = static_cast<uint32_t>(column) | static_cast<uint32_t>(bytes[0]) << 16 |
                             static_cast<uint32_t>(bytes[1]) << 24;
      to.set(slot * outliers + n++, static_cast<int32_t>(entry));
    }
    while (n < outliers) to.set(slot * outliers + n++, 65535);
  }

  Dense k_code, k_level, v_level, k_offset, k_range;
  int64_t k_outliers, v_outliers;
};

}  // namespace oracle
