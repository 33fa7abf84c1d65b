// SPDX-License-Identifier: Apache-2.0
// The tensors that all operations of the kl family read.  Everything that a call does not count is
// marked so.
#pragma once
#include "cases/kl_case.h"
#include "oracle/kl.h"

namespace cases {

// What both directions read.
template <class P>
class KlBuild {
 public:
  KlBuild(Call& call, P& p, const KlCase& c, uint64_t seed)
      : call_(call), p_(p), c_(c), random_(seed) {}

  // x heads of q on one of k: the student has no scale.
  static constexpr bool kIndexer = !requires(P & x) { x.scale_student; };

  int64_t b = 0, s = 0, key_b = 0, t = 0;
  int64_t units = -1;  // blocks of keys that the student's k has, where it has blocks
  std::vector<char> rows, keys, blocks;  // of account

  void build() {
    places();
    if constexpr (requires { p_.causal; }) windows();
    if constexpr (requires { p_.block_keys; }) {
      p_.block_keys = c_.block, p_.pool = c_.pool_max;
      const int64_t size = c_.block ? c_.block : 64;
      units = p_.key_start.data ? t / size + p_.key_start.shape[0] - 1 : (t + size - 1) / size + 1;
    }
    sides();
    p_.scale_teacher = c_.scale;
    if constexpr (requires { p_.scale_student; }) p_.scale_student = c_.scale / 2;
    if constexpr (requires { p_.direction; }) totals();
  }

  void totals() {
    p_.direction = c_.reverse, p_.mean = c_.mean;
    if (c_.weights != KlWeights::none)
      row_numbers("row_weight", p_.row_weight, [&](const int64_t* i, double x) {
        const bool off = c_.weights == KlWeights::zeros || i[2] % 4 == 1;
        return off ? 0.0 : 0.25 + std::abs(x);
      });
  }

  // (b, h, s) f32.
  template <class Value>
  size_t row_numbers(const char* name, fovea_tensor& slot, Value value) {
    const size_t field = call_.add(name, slot, Role::in, FOVEA_F32, {b, c_.h, s}, c_.lay);
    call_.fill(field, [&](const int64_t* i) { return value(i, random_.normal(n_++)); });
    call_.account(field, [&](const int64_t* i) { return rows[i[0] * s + i[2]] != 0; });
    return field;
  }

 private:
  void places() {
    b = key_b = c_.b, s = c_.s, t = c_.t;
    std::vector<double> query_start{0}, key_start{0}, query_len, key_len;
    if (c_.where == Where::varlen || c_.where == Where::varlen_queries) {
      for (int64_t r = 0; r < c_.b + 2; ++r) {
        const int64_t n = r == 1 ? 0 : std::max<int64_t>(c_.s - 3 * r, 1);
        const int64_t m = r == 2 ? 0 : std::max<int64_t>(c_.t - 5 * r, 1);
        query_start.push_back(query_start.back() + static_cast<double>(n));
        key_start.push_back(key_start.back() + static_cast<double>(m));
        key_len.push_back(static_cast<double>(m));
      }
      ints("query_start", p_.query_start, query_start);
      b = 1, s = static_cast<int64_t>(query_start.back()) + 2;  // two rows of no sequence
      p_.query_max = c_.s;
      if (c_.where == Where::varlen) {
        ints("key_start", p_.key_start, key_start);
        key_b = 1, t = static_cast<int64_t>(key_start.back()) + 3;
        p_.key_max = c_.t;
      } else {
        key_b = c_.b + 2;
        ints("key_len", p_.key_len, key_len);
      }
    } else if (c_.where == Where::lengths) {
      for (int64_t r = 0; r < c_.b; ++r) {
        query_len.push_back(static_cast<double>(r == 0 ? s : r == 1 ? s / 2 : 0));
        key_len.push_back(static_cast<double>(r == 0 ? t : r == 1 ? t / 2 + 1 : t));
      }
      ints("query_len", p_.query_len, query_len);
      ints("key_len", p_.key_len, key_len);
    }
    rows.assign(b * s, 0);
  }
  void ints(const char* name, fovea_tensor& slot, const std::vector<double>& values) {
    call_.fill_list(
        call_.add(name, slot, Role::in, FOVEA_I32, {static_cast<int64_t>(values.size())}), values);
  }

  void windows() {
    const int64_t w = std::max<int64_t>(1, c_.t / 3);
    switch (c_.span) {
      case Span::causal:
        p_.causal = 1;
        break;
      case Span::left:
        p_.causal = 1, p_.window_left = w;
        break;
      case Span::left_sink:
        p_.causal = 1, p_.window_left = w, p_.sink_keys = 3;
        break;
      case Span::band:
        p_.window_left = w, p_.window_right = w / 2 + 2;
        break;
      case Span::head_window: {
        if constexpr (requires { p_.head_window; }) head_windows(w);
        break;
      }
      default:
        break;
    }
  }

  void head_windows(int64_t w) {
    const size_t field = call_.add("head_window", p_.head_window, Role::in, FOVEA_I32, {c_.h, 3},
                                   c_.lay == Lay::wide ? Lay::wide : Lay::contiguous);
    const int64_t table[4][3] = {{w, 1, 2}, {0, 0, 0}, {0, 1, 0}, {1, w, 0}};
    call_.fill(field, [&](const int64_t* i) { return static_cast<double>(table[i[0] % 4][i[1]]); });
  }

  // Logits of a side are normal numbers times `size`, whatever its width and dtype.
  void sides() {
    const double size = c_.data == KlData::large ? 30 : c_.data == KlData::far ? 300 : 1;
    const size_t fields[4] = {
        side("q_teacher", p_.q_teacher, c_.teacher, {b, s, c_.h, c_.d}, size),
        side("k_teacher", p_.k_teacher, c_.teacher, {key_b, t, c_.g, c_.d}, 1),
        side("q_student", p_.q_student, c_.student, {b, s, kIndexer ? c_.x : c_.h, c_.f}, size),
        side("k_student", p_.k_student, c_.student,
             {key_b, units < 0 ? t : units, kIndexer ? 1 : c_.x, c_.f}, 1)};
    if (c_.data == KlData::same || c_.data == KlData::near)
      for (int i : {0, 1}) {
        const oracle::Dense from = oracle::load(call_.fields[fields[i]].tensor);
        size_t n = 0;
        const double noise = c_.data == KlData::near ? 0.01 : 0;
        call_.fill(fields[2 + i], [&](const int64_t*) {
          return from.value[n++] * (1 + noise * random_.normal(n_++));
        });
      }
    spoil();
    const oracle::KlCall a = oracle::load_kl(p_);
    keys.assign(key_b * t, 0), blocks.assign(key_b * std::max<int64_t>(units, 0), 0);
    for (int64_t r = 0; r < a.at.sequences; ++r) {
      const oracle::Sequence q = oracle::sequence(a.at, r);
      for (int64_t i = 0; i < q.rows; ++i) rows[q.batch * s + q.row + i] = 1;
      for (int64_t j = 0; j < q.keys; ++j) keys[q.cache * t + q.store + j] = 1;
      if (units < 0) continue;
      const oracle::Sequence in_blocks = oracle::kl_units(a, q);
      for (int64_t u = 0; u < in_blocks.keys; ++u)
        blocks[q.cache * units + in_blocks.store + u] = 1;
    }
    for (int i = 0; i < 4; ++i)
      call_.account(fields[i], [&](const int64_t* at) {
        if (i == 3 && units >= 0) return blocks[at[0] * units + at[1]] != 0;
        return (i % 2 ? keys[at[0] * t + at[1]] : rows[at[0] * s + at[1]]) != 0;
      });
  }
  size_t side(const char* name, fovea_tensor& slot, int dtype, const Shape& shape, double size) {
    const size_t field = call_.add(name, slot, Role::in, dtype, shape, c_.lay);
    call_.fill(field, [&](const int64_t*) { return size * random_.normal(n_++); });
    return field;
  }
  // One element: row 1 of a q, or key 1 of the student's k, of the first sequence.
  void spoil() {
    if (c_.data < KlData::nan_q) return;
    const bool inf_q = c_.data == KlData::inf_q;
    const char* name = c_.data == KlData::nan_q ? "q_teacher" : inf_q ? "q_student" : "k_student";
    const double value = inf_q                      ? -HUGE_VAL
                         : c_.data == KlData::inf_k ? HUGE_VAL
                                                    : static_cast<double>(NAN);
    change(name, [&](const int64_t* i, double x) {
      return i[0] == 0 && i[1] == 1 && i[2] == 0 && i[3] == 0 ? value : x;
    });
    if (inf_q)
      change("k_student", [](const int64_t* i, double x) { return i[3] ? x : 1 + std::abs(x); });
  }
  template <class Value>
  void change(const char* name, Value value) {
    const size_t field = call_.field(name);
    const int dtype = call_.fields[field].tensor.dtype;
    uint8_t* const image = call_.storages[call_.fields[field].storage].image.data();
    call_.each(field, [&](const int64_t* i, int64_t byte) {
      oracle::encode(dtype, value(i, oracle::decode(dtype, image + byte)), image + byte);
    });
  }

  Call& call_;
  P& p_;
  const KlCase& c_;
  harness::Random random_;
  uint64_t n_ = 0;
};

}  // namespace cases
