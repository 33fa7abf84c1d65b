// SPDX-License-Identifier: Apache-2.0
// x_kv_append in the format of tiles, from the comments of experimental/kv.h: a token at a time.
// Factors are computed in f32, as the comments say: codes tell a last bit.
#pragma once
#include <array>

#include "kv.h"

namespace oracle {

struct KvTilesOut {
  Out k_code, k_scale, k_zero, v_code, v_scale, v_zero, k_tail, v_tail, k_factor, v_factor;
  Out k_first, v_first, counter;
};

class KvAppendTiles {
 public:
  explicit KvAppendTiles(const fovea_x_kv_append_params& p)
      : at(p, p.k_new, p.v_new),
        k_new(p.k_new),
        v_new(p.v_new),
        k_tail(p.k_tail),
        v_tail(p.v_tail),
        counter(p.counter),
        table(p.page_table) {
    const std::pair<Out*, const fovea_tensor*> outs[] = {
        {&out.k_code, &p.k_code},     {&out.k_scale, &p.k_scale}, {&out.k_zero, &p.k_zero},
        {&out.v_code, &p.v_code},     {&out.v_scale, &p.v_scale}, {&out.v_zero, &p.v_zero},
        {&out.k_tail, &p.k_tail},     {&out.v_tail, &p.v_tail},   {&out.k_factor, &p.k_factor},
        {&out.v_factor, &p.v_factor}, {&out.k_first, &p.k_first}, {&out.v_first, &p.v_first},
        {&out.counter, &p.counter}};
    for (const auto& [to, of] : outs)
      if (of->data) *to = Out(*of, 0);
    const Layout layout = kv_layout(p, at, p.k_new.shape[0], p.k_new.shape[1]);
    for (int64_t r = 0; r < layout.sequences; ++r) {
      const Sequence q = sequence(layout, r);
      if (q.cache >= 0) append(q, p.flush != 0);
    }
  }

  const KvShape at;
  Tracked k_new, v_new, k_tail, v_tail, counter, table;
  KvTilesOut out;

 private:
  using Lines = std::vector<std::vector<float>>;  // [line][column]

  void append(const Sequence& q, bool flush) {
    row_ = q.cache;
    length_ = static_cast<int64_t>(counter(row_, 0)),
    keys_ = static_cast<int64_t>(counter(row_, 1));
    for (int64_t i = 0; i < q.rows && length_ < at.capacity(); ++i) {
      if (length_ - keys_ == at.residual) flush_tails();
      for (int64_t head = 0; head < at.g; ++head) {
        for (int64_t c = 0; c < at.d; ++c)
          put(out.k_first, out.k_tail, at.d, head, c, k_new(q.batch, q.row + i, head, c));
        for (int64_t c = 0; c < at.e; ++c)
          put(out.v_first, out.v_tail, at.e, head, c, v_new(q.batch, q.row + i, head, c));
      }
      ++length_;
      if (length_ <= at.firsts) keys_ = length_;
    }
    if (flush && length_ - keys_ == at.residual) flush_tails();
    const int64_t numbers[] = {length_, keys_, keys_};
    for (int64_t n = 0; n < 3; ++n) out.counter.set(row_ * 4 + n, static_cast<double>(numbers[n]));
  }
  void put(Out& first, Out& tail, int64_t width, int64_t head, int64_t c, double x) const {
    if (length_ < at.firsts)
      first.set(((row_ * at.firsts + length_) * at.g + head) * width + c, x);
    else
      tail.set(((row_ * at.residual + length_ - keys_) * at.g + head) * width + c, x);
  }
  static float now(const Out& to, const Tracked& from, std::array<int64_t, 4> i) {
    const int64_t n = from.x.at_index(i[0], i[1], i[2], i[3]);
    return static_cast<float>(to.written[n] ? to.value[n] : from(i[0], i[1], i[2], i[3]));
  }

  void flush_tails() {
    for (int64_t first = keys_; first < keys_ + at.residual; first += at.group) {
      const auto id = static_cast<int64_t>(table(row_, first / at.page));
      if (id < 0 || id >= at.pool) continue;
      for (int64_t head = 0; head < at.g; ++head) {
        if (at.d) put_keys(id, first, head);
        if (at.e) put_values(id, first, head);
      }
    }
    keys_ += at.residual;
  }
  void put_keys(int64_t id, int64_t first, int64_t head) {
    Lines x(at.d, std::vector<float>(at.group));
    for (int64_t c = 0; c < at.d; ++c)
      for (int64_t n = 0; n < at.group; ++n)
        x[c][n] = now(out.k_tail, k_tail, {row_, first + n - keys_, head, c});
    const std::vector<float> factor = factors(x);
    const int64_t slot = first % at.page, block = id * (at.page / at.group) + slot / at.group;
    for (int64_t n = 0; n < at.group; ++n)
      out.k_factor.set((id * at.page + slot + n) * at.g + head, factor[n]);
    const int64_t words = at.group / at.codes;
    for (int64_t c = 0; c < at.d; ++c) {
      const KvQuantised y(over(x[c], factor), at.bits);
      const int64_t to = (block * at.g + head) * at.d + c;
      out.k_scale.set(to, y.scale), out.k_zero.set(to, y.zero);
      for (int64_t w = 0; w < words; ++w) out.k_code.set(to * words + w, y.word(w, at.bits));
    }
  }
  void put_values(int64_t id, int64_t first, int64_t head) {
    Lines x(at.group, std::vector<float>(at.e));
    for (int64_t n = 0; n < at.group; ++n)
      for (int64_t c = 0; c < at.e; ++c)
        x[n][c] = now(out.v_tail, v_tail, {row_, first + n - keys_, head, c});
    const std::vector<float> factor = factors(x);
    const int64_t slot = first % at.page, block = id * (at.page / at.group) + slot / at.group;
    for (int64_t c = 0; c < at.e; ++c)
      out.v_factor.set((block * at.g + head) * at.e + c, factor[c]);
    const int64_t words = at.e / at.v_codes;
    for (int64_t n = 0; n < at.group; ++n) {
      const KvQuantised y(over(x[n], factor), at.v_bits);
      const int64_t to = (id * at.page + slot + n) * at.g + head;
      out.v_scale.set(to, y.scale), out.v_zero.set(to, y.zero);
      for (int64_t w = 0; w < words; ++w) out.v_code.set(to * words + w, y.word(w, at.v_bits));
    }
  }
  static std::vector<double> over(const std::vector<float>& x, const std::vector<float>& factor) {
    std::vector<double> y;
    for (size_t n = 0; n < x.size(); ++n) y.push_back(x[n] / factor[n]);
    return y;
  }

  // ---- factors of columns

  static float deviation(const std::vector<float>& y) {
    float sum = 0, squares = 0;
    for (const float one : y) sum += one;
    const float mean = sum / static_cast<float>(y.size());
    for (const float one : y) squares += (one - mean) * (one - mean);
    return std::sqrt(squares / static_cast<float>(y.size() - 1));
  }
  static float next(float factor, float deviation) {
    const float by = std::clamp(deviation / factor, 0.001f, 1000.0f);
    return std::clamp(factor * by, 0.7408182f, 22026.465f);
  }
  static float spread(const std::vector<float>& deviation, const std::vector<float>& factor) {
    std::vector<float> y;
    for (size_t n = 0; n < factor.size(); ++n) y.push_back(deviation[n] / factor[n]);
    for (const float one : y)
      if (std::isnan(one)) return NAN;
    const auto [least, most] = std::minmax_element(y.begin(), y.end());
    return *most / std::max(*least, 1e-8f);
  }
  static std::vector<float> factors(const Lines& x) {
    const size_t lines = x.size(), columns = x[0].size();
    std::vector<float> column(columns, 1), line(lines, 1), best(columns, 1);
    const auto of_columns = [&] {
      std::vector<float> deviations;
      for (size_t m = 0; m < columns; ++m) {
        std::vector<float> y;
        for (size_t n = 0; n < lines; ++n) y.push_back(x[n][m] * (1 / line[n]));
        deviations.push_back(deviation(y));
      }
      return deviations;
    };
    const auto of_lines = [&] {
      std::vector<float> deviations;
      for (size_t n = 0; n < lines; ++n) {
        std::vector<float> y;
        for (size_t m = 0; m < columns; ++m) y.push_back(x[n][m] * (1 / column[m]));
        deviations.push_back(deviation(y));
      }
      return deviations;
    };
    std::vector<float> along_columns = of_columns(), along_lines = of_lines();
    float least = spread(along_columns, column) + spread(along_lines, line);
    if (std::isnan(least)) return best;
    for (int pass = 0; pass < 16; ++pass) {
      for (size_t m = 0; m < columns; ++m) column[m] = next(column[m], along_columns[m]);
      along_lines = of_lines();
      for (size_t n = 0; n < lines; ++n) line[n] = next(line[n], along_lines[n]);
      along_columns = of_columns();
      const float now = spread(along_columns, column) + spread(along_lines, line);
      if (now <= least) least = now, best = column;
    }
    for (float& factor : best) factor = static_cast<float>(nearest(FOVEA_F16, factor));
    return best;
  }

  int64_t row_ = 0, length_ = 0, keys_ = 0;
};

}  // namespace oracle
