// SPDX-License-Identifier: Apache-2.0
// Low-bit caches from the comments of experimental/kv.h.  Append is its three steps, a token at a
// time.  Decode forms every key and value, and is attention.h's formulas over them.
//   Rounded mode rounds a scale times a number to f16, since kernels multiply q or p by scales
//   first, and rounds keys and values that were codes to the dtype of q.  Levels, ranges, cos and
//   sin are f16 there.
#pragma once
#include "attention.h"
#include "tracked.h"

namespace oracle {

// What both calls say of the cache.
struct KvShape {
  int64_t format, bits, v_bits, group, g, d, e, residual, page, pages, pool, rows, codes, v_codes;
  int64_t firsts;

  // d and e are the widths of `keys` and `values`.
  template <class P>
  KvShape(const P& p, const fovea_tensor& keys, const fovea_tensor& values)
      : format(p.format),
        bits(p.bits ? p.bits : 2),
        v_bits(p.v_bits ? p.v_bits : bits),
        group(p.group ? p.group : 32),
        g(p.k_code.shape[2]),
        d(keys.shape[3]),
        e(values.shape[3]),
        residual(p.k_tail.data ? p.k_tail.shape[1] : 0),
        page(p.v_code.shape[1]),
        pages(p.page_table.shape[1]),
        pool(p.v_code.shape[0]),
        rows(p.counter.shape[0]),
        codes(32 / bits),
        v_codes(32 / v_bits),
        firsts(p.k_first.data ? p.k_first.shape[1] : 0) {}
  int64_t capacity() const { return pages * page; }
  bool tiles() const { return format == 3; }
  // Channels of a value that share a scale; slot of token j in v_tail.
  int64_t v_group() const { return tiles() ? e : group; }
  int64_t value_slot(int64_t keys, int64_t j) const {
    return tiles() ? j - keys : j % (residual + 1);
  }
};

// A group on its way into a page.
struct KvQuantised {
  double scale, zero;
  std::vector<int64_t> code;

  KvQuantised(const std::vector<double>& x, int64_t bits) {
    float low = static_cast<float>(x[0]), high = low;
    bool broken = false;
    for (const double one : x) {
      const auto y = static_cast<float>(one);
      low = std::min(low, y), high = std::max(high, y), broken = broken || std::isnan(y);
    }
    if (broken) low = high = NAN;
    const int64_t largest = (int64_t{1} << bits) - 1;
    scale = nearest(FOVEA_F16, (high - low) / static_cast<float>(largest));
    zero = nearest(FOVEA_F16, low);
    for (const double one : x) {
      const float y =
          (static_cast<float>(one) - static_cast<float>(zero)) / static_cast<float>(scale);
      const bool none = scale == 0 || std::isnan(y);
      code.push_back(none ? 0
                          : static_cast<int64_t>(
                                std::nearbyint(std::clamp(y, 0.f, static_cast<float>(largest)))));
    }
  }
  // Word w of the codes, as a signed number.
  double word(int64_t w, int64_t bits) const {
    uint32_t to = 0;
    for (int64_t i = 0; i < 32 / bits; ++i)
      to |= static_cast<uint32_t>(code[w * (32 / bits) + i]) << (i * bits);
    return static_cast<int32_t>(to);
  }
};

// Rows of a call and the cache row of each sequence.
template <class P>
Layout kv_layout(const P& p, const KvShape& at, int64_t b, int64_t s) {
  Layout to;
  to.query_start = load(p.query_start), to.query_len = load(p.query_len);
  to.cache_row = load(p.cache_row);
  to.sequences = p.query_start.data ? p.query_start.shape[0] - 1 : b;
  to.s = s, to.query_max = p.query_max, to.extent = at.capacity(), to.caches = at.rows;
  return to;
}

struct KvAppended {
  Out k_code, k_scale, k_zero, v_code, v_scale, v_zero, k_tail, v_tail, counter;
};

class KvAppendOracle {
 public:
  explicit KvAppendOracle(const fovea_x_kv_append_params& p)
      : at(p, p.k_new, p.v_new),
        k_new(p.k_new),
        v_new(p.v_new),
        k_tail(p.k_tail),
        v_tail(p.v_tail),
        counter(p.counter),
        table(p.page_table) {
    out.k_code = Out(p.k_code, 0), out.k_scale = Out(p.k_scale, 0), out.k_zero = Out(p.k_zero, 0);
    out.v_code = Out(p.v_code, 0), out.v_scale = Out(p.v_scale, 0), out.v_zero = Out(p.v_zero, 0);
    out.k_tail = Out(p.k_tail, 0), out.v_tail = Out(p.v_tail, 0), out.counter = Out(p.counter, 0);
    const Layout layout = kv_layout(p, at, p.k_new.shape[0], p.k_new.shape[1]);
    for (int64_t r = 0; r < layout.sequences; ++r) {
      const Sequence q = sequence(layout, r);
      if (q.cache >= 0) append(q, p.flush != 0);
    }
  }

  const KvShape at;
  Tracked k_new, v_new, k_tail, v_tail, counter, table;
  KvAppended out;

 private:
  void append(const Sequence& q, bool flush) {
    row_ = q.cache;
    length_ = static_cast<int64_t>(counter(row_, 0));
    keys_ = static_cast<int64_t>(counter(row_, 1));
    values_ = static_cast<int64_t>(counter(row_, 2));
    for (int64_t i = 0; i < q.rows && length_ < at.capacity(); ++i) {
      if (length_ - keys_ == at.residual) flush_keys();
      if (length_ - values_ == at.residual + 1) flush_value();
      for (int64_t head = 0; head < at.g; ++head) {
        for (int64_t c = 0; c < at.d; ++c)
          put(out.k_tail, k_tail, {row_, (length_ - keys_) % at.residual, head, c},
              k_new(q.batch, q.row + i, head, c));
        for (int64_t c = 0; c < at.e; ++c)
          put(out.v_tail, v_tail, {row_, length_ % (at.residual + 1), head, c},
              v_new(q.batch, q.row + i, head, c));
      }
      ++length_;
    }
    if (flush) {
      if (length_ - keys_ == at.residual) flush_keys();
      while (length_ - values_ > at.residual) flush_value();
    }
    const int64_t numbers[] = {length_, keys_, values_};
    for (int64_t n = 0; n < 3; ++n) out.counter.set(row_ * 4 + n, static_cast<double>(numbers[n]));
  }

  // A tail's element as it is now.
  double now(const Out& to, const Tracked& from, std::array<int64_t, 4> i) const {
    const int64_t n = from.x.at_index(i[0], i[1], i[2], i[3]);
    return to.written[n] ? to.value[n] : from(i[0], i[1], i[2], i[3]);
  }
  void put(Out& to, const Tracked& like, std::array<int64_t, 4> i, double x) {
    to.set(like.x.at_index(i[0], i[1], i[2], i[3]), x);
  }

  void flush_keys() {
    for (int64_t first = keys_; first < keys_ + at.residual; first += at.group) {
      const auto id = static_cast<int64_t>(table(row_, first / at.page));
      if (id < 0 || id >= at.pool) continue;
      const int64_t block = first % at.page / at.group, blocks = at.page / at.group;
      for (int64_t head = 0; head < at.g; ++head)
        for (int64_t c = 0; c < at.d; ++c) {
          std::vector<double> x;
          for (int64_t n = 0; n < at.group; ++n)
            x.push_back(now(out.k_tail, k_tail, {row_, first + n - keys_, head, c}));
          const KvQuantised y(x, at.bits);
          const int64_t to = ((id * blocks + block) * at.g + head) * at.d + c;
          const int64_t words = at.group / at.codes;
          out.k_scale.set(to, y.scale), out.k_zero.set(to, y.zero);
          for (int64_t w = 0; w < words; ++w) out.k_code.set(to * words + w, y.word(w, at.bits));
        }
    }
    keys_ += at.residual;
  }
  void flush_value() {
    const int64_t j = values_++;
    const auto id = static_cast<int64_t>(table(row_, j / at.page));
    if (id < 0 || id >= at.pool) return;
    for (int64_t head = 0; head < at.g; ++head)
      for (int64_t n = 0; n < at.e / at.group; ++n) {
        std::vector<double> x;
        for (int64_t c = 0; c < at.group; ++c)
          x.push_back(
              now(out.v_tail, v_tail, {row_, j % (at.residual + 1), head, n * at.group + c}));
        const KvQuantised y(x, at.bits);
        const int64_t groups = at.e / at.group, words = at.group / at.codes;
        const int64_t to = ((id * at.page + j % at.page) * at.g + head) * groups + n;
        out.v_scale.set(to, y.scale), out.v_zero.set(to, y.zero);
        for (int64_t w = 0; w < words; ++w) out.v_code.set(to * words + w, y.word(w, at.bits));
      }
  }

  int64_t row_ = 0, length_ = 0, keys_ = 0, values_ = 0;
};

// What decode reads in the formats of levels.
struct KvLevels {
  Tracked k_level, v_level, k_offset, k_range, v_bound, k_norm, v_norm, k_outlier, v_outlier;
  Tracked k_first, v_first;

  explicit KvLevels(const fovea_x_kv_decode_params& p)
      : k_level(p.k_level),
        v_level(p.v_level),
        k_offset(p.k_offset),
        k_range(p.k_range),
        v_bound(p.v_bound),
        k_norm(p.k_norm),
        v_norm(p.v_norm),
        k_outlier(p.k_outlier),
        v_outlier(p.v_outlier),
        k_first(p.k_first),
        v_first(p.v_first) {}

  // round: what a level, and then a range, is rounded by.
  template <class Round>
  double key(int64_t format, int64_t code, int64_t id, int64_t slot, int64_t head, int64_t c,
             const Round& round) const {
    const double level = round(k_level(code));
    return format == 2 ? level * round(k_norm(id, slot, head))
                       : level * round(k_range(head, c)) + k_offset(head, c);
  }
  template <class Round>
  double value(int64_t format, int64_t code, int64_t id, int64_t slot, int64_t head,
               const Round& round) const {
    const double level = round(v_level(code));
    return format == 2 ? level * round(v_norm(id, slot, head))
                       : level * round(v_bound(id, slot, 1)) + v_bound(id, slot, 0);
  }
  // What the entry of a column holds; 0: there is none.
  static double lacks(const Tracked& outlier, int64_t id, int64_t slot, int64_t column) {
    for (int64_t n = 0; outlier && n < outlier.x.shape[2]; ++n) {
      const auto entry = static_cast<uint32_t>(static_cast<int32_t>(outlier(id, slot, n)));
      uint8_t bytes[2] = {static_cast<uint8_t>(entry >> 16), static_cast<uint8_t>(entry >> 24)};
      if ((entry & 65535) == column) return decode(FOVEA_F16, bytes);
    }
    return 0;
  }
};

class KvDecodeOracle {
 public:
  KvDecodeOracle(const fovea_x_kv_decode_params& p, Mode mode)
      : at(p, p.q, p.o),
        k_code(p.k_code),
        k_scale(p.k_scale),
        k_zero(p.k_zero),
        v_code(p.v_code),
        v_scale(p.v_scale),
        v_zero(p.v_zero),
        k_tail(p.k_tail),
        v_tail(p.v_tail),
        k_factor(p.k_factor),
        v_factor(p.v_factor),
        counter(p.counter),
        table(p.page_table),
        levels(p) {
    a.cos = load(p.cos), a.sin = load(p.sin), a.rope_begin = p.rope_begin;
    a.rope_interleaved = p.rope_interleaved != 0;
    if (p.format && mode == Mode::rounded)
      for (Dense* table : {&a.cos, &a.sin})
        for (double& x : table->value) x = round_to(FOVEA_F16, x);
    a.q = load(p.q), a.sink_logit = load(p.sink_logit);
    a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = at.d, a.g = at.g, a.e = at.e;
    a.at = kv_layout(p, at, a.b, a.s);
    a.at.key_max = p.key_max, a.columns = a.at.extent;
    a.window_left = p.window_left, a.window_right = p.causal ? 1 : p.window_right;
    a.sink_keys = p.sink_keys;
    a.scale = p.scale > 0 ? p.scale : 1 / std::sqrt(static_cast<double>(a.d));
    form(mode);
  }

  const KvShape at;
  Tracked k_code, k_scale, k_zero, v_code, v_scale, v_zero, k_tail, v_tail, k_factor, v_factor;
  Tracked counter, table;
  KvLevels levels;
  Attention a;

 private:
  // Groups of tokens are pages, so that a group in an absent page is one too.
  void form(Mode mode) {
    const int64_t blocks = at.capacity() / at.group;
    a.k = {true, a.q.dtype, {at.rows * blocks, at.group, at.g, at.d, 1}, {}};
    a.v = {true, a.q.dtype, {at.rows * blocks, at.group, at.g, at.e, 1}, {}};
    a.k.value.resize(at.rows * at.capacity() * at.g * at.d);
    a.v.value.resize(at.rows * at.capacity() * at.g * at.e);
    a.at.page = at.group;
    a.at.page_table = {true, FOVEA_I32, {at.rows, blocks, 1, 1, 1}, {}};
    for (int64_t n = 0; n < at.rows * blocks; ++n)
      a.at.page_table.value.push_back(static_cast<double>(n));
    a.at.key_len = {true, FOVEA_I32, {a.at.sequences, 1, 1, 1, 1}, {}};
    for (int64_t r = 0; r < a.at.sequences; ++r) {
      const int64_t row = a.at.cache_row ? a.at.cache_row.integer(r) : r;
      const bool none = row < 0 || row >= at.rows;
      a.at.key_len.value.push_back(none ? 0 : counter(row, 0));
      if (!none) at.residual ? form_row(row, mode) : form_levels(row, mode);
    }
  }
  void form_row(int64_t row, Mode mode) {
    const auto length = static_cast<int64_t>(counter(row, 0));
    const auto keys = static_cast<int64_t>(counter(row, 1));
    const int64_t values = at.tiles() ? keys : static_cast<int64_t>(counter(row, 2));
    const auto formed = [&](double code, double scale, double zero, double factor) {
      if (mode == Mode::exact) return (code * scale + zero) * factor;
      constexpr double with = 1.37;  // any number that f16 does not have
      const double product = round_to(FOVEA_F16, scale * with) / with;
      return round_to(a.q.dtype, static_cast<float>((code * product + zero) * factor));
    };
    for (int64_t j = 0; j < length; ++j) {
      const auto id = j < keys ? static_cast<int64_t>(table(row, j / at.page)) : -1;
      const int64_t block = row * (at.capacity() / at.group) + j / at.group, slot = j % at.page;
      if (j < keys && (id < 0 || id >= at.pool)) {
        a.at.page_table.value[block] = -1;
        continue;
      }
      for (int64_t head = 0; head < at.g; ++head) {
        for (int64_t c = 0; c < at.d; ++c) {
          double& to = a.k.value[a.k.at_index(block, j % at.group, head, c)];
          const int64_t of = slot / at.group, n = slot % at.group;
          to = j < at.firsts ? levels.k_first(row, j, head, c)
               : j < keys    ? formed(code(k_code(id, of, head, c, n / at.codes), n, at.bits),
                                      k_scale(id, of, head, c), k_zero(id, of, head, c),
                                   at.tiles() ? k_factor(id, slot, head) : 1)
                             : k_tail(row, j - keys, head, c);
        }
        for (int64_t c = 0; c < at.e; ++c) {
          double& to = a.v.value[a.v.at_index(block, j % at.group, head, c)];
          const int64_t n = c / at.v_group();
          to = j < at.firsts ? levels.v_first(row, j, head, c)
               : j < values  ? formed(code(v_code(id, slot, head, c / at.v_codes), c, at.v_bits),
                                      v_scale(id, slot, head, n), v_zero(id, slot, head, n),
                                     at.tiles() ? v_factor(id, slot / at.group, head, c) : 1)
                             : v_tail(row, at.value_slot(keys, j), head, c);
        }
      }
    }
  }
  void form_levels(int64_t row, Mode mode) {
    const auto rounded = [&](double x) {
      return mode == Mode::exact ? x : round_to(a.q.dtype, static_cast<float>(x));
    };
    const auto as_f16 = [&](double x) { return mode == Mode::exact ? x : round_to(FOVEA_F16, x); };
    for (int64_t j = 0; j < static_cast<int64_t>(counter(row, 0)); ++j) {
      const auto id = static_cast<int64_t>(table(row, j / at.page));
      const int64_t block = row * (at.capacity() / at.group) + j / at.group, slot = j % at.page;
      if (id < 0 || id >= at.pool) {
        a.at.page_table.value[block] = -1;
        continue;
      }
      for (int64_t head = 0; head < at.g; ++head) {
        for (int64_t c = 0; c < at.d; ++c) {
          double& to = a.k.value[a.k.at_index(block, j % at.group, head, c)];
          const auto word = [&](int64_t w) { return k_code(id, slot / at.group, head, c, w); };
          to = j < at.firsts
                   ? levels.k_first(row, j, head, c)
                   : rounded(levels.key(at.format, stream(word, slot % at.group), id, slot, head, c,
                                        as_f16) +
                             KvLevels::lacks(levels.k_outlier, id, slot, head * at.d + c));
        }
        for (int64_t c = 0; c < at.e; ++c) {
          double& to = a.v.value[a.v.at_index(block, j % at.group, head, c)];
          const auto word = [&](int64_t w) { return v_code(id, slot, head, w); };
          to = j < at.firsts
                   ? levels.v_first(row, j, head, c)
                   : rounded(levels.value(at.format, stream(word, c), id, slot, head, as_f16) +
                             KvLevels::lacks(levels.v_outlier, id, slot, head * at.e + c));
        }
      }
    }
  }
  // Code n, a bit at a time.
  template <class Word>
  int64_t stream(const Word& word, int64_t n) const {
    int64_t code = 0;
    for (int64_t i = 0; i < at.bits; ++i) {
      const int64_t bit = n * at.bits + i;
      code |= (static_cast<int64_t>(static_cast<uint32_t>(static_cast<int32_t>(word(bit / 32)))) >>
                   (bit % 32) &
               1)
              << i;
    }
    return code;
  }
  static double code(double word, int64_t n, int64_t bits) {
    const auto all = static_cast<uint32_t>(static_cast<int32_t>(word));
    return all >> (n % (32 / bits) * bits) & ((uint32_t{1} << bits) - 1);
  }
};

}  // namespace oracle
