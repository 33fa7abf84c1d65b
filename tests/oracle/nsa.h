// SPDX-License-Identifier: Apache-2.0
// x_nsa_forward from the paper's definition (2502.11089, section 3.3), one row at a time: which
// compressed keys, blocks and keys it sees become bits, and each branch is attention's oracle over
// the keys whose bit is 1.
//   Lists follow from the float64 probabilities in either mode; `margin` is how close one was.
#pragma once
#include "attention.h"
#include "select_block.h"

namespace oracle {

struct NsaResult {
  Out o, branch[3], lse[3], index, index_count;
  double margin = HUGE_VAL;
};

class NsaOracle {
 public:
  using Params = fovea_x_nsa_forward_params;

  explicit NsaOracle(const Params& p)
      : p_(p),
        each_(p.compress_keys ? p.compress_keys : 32),
        step_(p.compress_step ? p.compress_step : 16),
        block_(p.block_keys ? p.block_keys : 64),
        count_(p.count ? p.count : 16),
        window_(p.window ? p.window : 512) {
    at_ = load_attention(attention(p.k, p.v)).at;
    b_ = p.q.shape[0], s_ = p.q.shape[1], h_ = p.q.shape[2], g_ = p.k.shape[2];
    u_ = p.k_compressed.data ? p.k_compressed.shape[1] : compressed(most_keys());
    bits_[0].resize(static_cast<size_t>(b_ * h_ * s_ * bytes(u_)));
    for (int n : {1, 2}) bits_[n].resize(static_cast<size_t>(b_ * h_ * s_ * bytes(at_.extent)));
  }

  const Layout& layout() const { return at_; }
  int64_t compressed(int64_t keys) const { return keys < each_ ? 0 : (keys - each_) / step_ + 1; }

  // The lists, and which keys each branch sees.
  NsaResult lists() {
    NsaResult result;
    result.index = Out(p_.index, 0), result.index_count = Out(p_.index_count, 0);
    const Dense q = load(p_.q), k = summary(p_.k_compressed, p_.k, true);
    for (int64_t r = 0; r < b_; ++r) {
      const Sequence seq = sequence(at_, r);
      for (int64_t i = 0; i < seq.rows; ++i)
        for (int64_t g = 0; g < g_; ++g) row(seq, i, g, q, k, result);
    }
    return result;
  }

  // The branches as attention over what lists() found.
  std::array<Attention, 3> branches(Mode mode) {
    const bool rounds = mode == Mode::rounded;
    fovea_attention_forward_params coarse = attention(p_.k, p_.v);
    coarse.page_table = {}, coarse.key_len = p_.compressed_len, coarse.key_max = 0;
    coarse.k = like(p_.k_compressed, p_.k, u_), coarse.v = like(p_.v_compressed, p_.v, u_);
    fovea_attention_forward_params local = attention(p_.k, p_.v);
    if (p_.k_window.data) local.k = p_.k_window, local.v = p_.v_window;
    std::array<Attention, 3> list = {load_attention(coarse), load_attention(attention(p_.k, p_.v)),
                                     load_attention(local)};
    list[0].k = summary(p_.k_compressed, p_.k, rounds);
    list[0].v = summary(p_.v_compressed, p_.v, rounds);
    for (size_t n = 0; n < 3; ++n)
      list[n].mask =
          load(whole(bits_[n].data(), FOVEA_U8, {b_, h_, s_, bytes(n ? at_.extent : u_)}));
    return list;
  }

  NsaResult run(Mode mode) {
    NsaResult result = lists();
    const std::array<Attention, 3> list = branches(mode);
    const fovea_tensor* o[] = {&p_.o_compressed, &p_.o_selected, &p_.o_window};
    const fovea_tensor* lse[] = {&p_.lse_compressed, &p_.lse_selected, &p_.lse_window};
    for (int n = 0; n < 3; ++n) {
      fovea_tensor branch = *o[n];
      if (!branch.data) branch = whole(nullptr, p_.q.dtype, {b_, s_, h_, p_.v.shape[3]});
      ForwardResult one = forward(list[static_cast<size_t>(n)], branch, *lse[n], mode);
      result.branch[n] = one.o, result.lse[n] = one.lse;
    }
    combine(mode, result);
    return result;
  }

  // What a gate multiplies by; its slope.
  static double gate_of(const Dense& gate, bool plain, int64_t line, double* slope) {
    *slope = 1;
    if (!gate) return 1;
    const double x = gate.value[static_cast<size_t>(line)];
    if (plain) return x;
    const double on = 1 / (1 + std::exp(-x));
    *slope = on / (1 + std::exp(x));
    return on;
  }

 private:
  static int64_t bytes(int64_t columns) { return (columns + 7) / 8; }
  static fovea_tensor whole(void* data, int dtype, std::vector<int64_t> shape) {
    return fovea_contiguous(data, static_cast<fovea_dtype>(dtype),
                            static_cast<int32_t>(shape.size()), shape.data());
  }
  // Of the call's compressed keys, or with nothing in it and the shape that means of x have.
  fovea_tensor like(const fovea_tensor& given, const fovea_tensor& x, int64_t columns) const {
    if (given.data) return given;
    return whole(nullptr, x.dtype, {b_, columns, x.shape[2], x.shape[3]});
  }
  int64_t most_keys() const { return at_.key_max ? std::min(at_.key_max, at_.extent) : at_.extent; }
  fovea_attention_forward_params attention(const fovea_tensor& k, const fovea_tensor& v) const {
    fovea_attention_forward_params a{};
    a.q = p_.q, a.k = k, a.v = v, a.o = p_.o;
    a.query_len = p_.query_len, a.key_len = p_.key_len, a.page_table = p_.page_table;
    a.query_max = p_.query_max, a.key_max = p_.key_max, a.scale = p_.scale;
    return a;
  }
  void set(int n, const Sequence& q, int64_t i, int64_t head, int64_t column) {
    const int64_t line = (q.batch * h_ + head) * s_ + q.row + i;
    const int64_t each = bytes(n ? at_.extent : u_);
    bits_[n][static_cast<size_t>(line * each + column / 8)] |=
        static_cast<uint8_t>(1 << (column % 8));
  }

  // Compressed keys as given, or the means of the tokens that are there.
  Dense summary(const fovea_tensor& given, const fovea_tensor& x, bool rounds) const {
    if (given.data) return load(given);
    const Dense tokens = load(x);
    Dense y;
    y.given = true, y.dtype = x.dtype;
    y.shape = {b_, u_, x.shape[2], x.shape[3], 1};
    for (int64_t r = 0; r < b_; ++r)
      for (int64_t c = 0; c < u_; ++c)
        for (int64_t g = 0; g < x.shape[2]; ++g)
          for (int64_t d = 0; d < x.shape[3]; ++d) {
            double sum = 0, there = 0;
            for (int64_t j = c * step_; j < c * step_ + each_; ++j) {
              const Place at = place(at_, sequence(at_, r), j);
              if (at.present) sum += tokens(at.row, at.slot, g, d), ++there;
            }
            const double mean = there > 0 ? sum / there : 0;
            y.value.push_back(rounds ? round_to(x.dtype, mean) : mean);
          }
    return y;
  }

  // What row i sees by the heads of key head g.
  void row(const Sequence& q, int64_t i, int64_t g, const Dense& queries, const Dense& k,
           NsaResult& result) {
    const int64_t group = h_ / g_, t = i + q.keys - q.rows, columns = compressed(q.keys);
    const double scale = p_.scale > 0 ? static_cast<double>(p_.scale)
                                      : 1 / std::sqrt(static_cast<double>(queries.shape[3]));
    std::vector<double> slc(static_cast<size_t>(q.keys / block_ + 1));
    for (int64_t head = g * group; head < (g + 1) * group; ++head) {
      std::vector<double> p;
      double top = -HUGE_VAL, sum = 0;
      for (int64_t c = 0; c < columns && c * step_ + each_ - 1 <= t; ++c) {
        double x = 0;
        for (int64_t d = 0; d < queries.shape[3]; ++d)
          x += queries(q.batch, q.row + i, head, d) * k(q.batch, c, g, d);
        p.push_back(x * scale), top = std::max(top, x * scale);
        set(0, q, i, head, c);
      }
      for (double& x : p) sum += x = std::exp(x - top);
      // Equation 9: block j takes p_cmp[l'/d j + m - n], here of every m and n.
      for (int64_t j = 0; j < static_cast<int64_t>(slc.size()); ++j)
        for (int64_t m = 0; m < block_ / step_; ++m)
          for (int64_t n = 0; n < each_ / step_; ++n) {
            const int64_t c = block_ / step_ * j + m - n;
            if (c >= 0 && c < static_cast<int64_t>(p.size()))
              slc[static_cast<size_t>(j)] += p[static_cast<size_t>(c)] / sum;
          }
      for (int64_t j = std::max<int64_t>(0, t - window_ + 1); j <= t; ++j) set(2, q, i, head, j);
    }
    const Chosen chosen = blocks(t, slc, result.margin);
    put(q, i, g, chosen, result);
    for (int64_t j : chosen.list)
      for (int64_t key = j * block_; key < (j + 1) * block_ && key <= t; ++key)
        for (int64_t head = g * group; head < (g + 1) * group; ++head) set(1, q, i, head, key);
  }

  struct Chosen {
    std::vector<int64_t> list;  // ascending
    int64_t wanted = 0;
  };
  // The blocks of a row at position t: the first, the last two, the best of the others.
  Chosen blocks(int64_t t, const std::vector<double>& slc, double& margin) const {
    Chosen chosen;
    if (t < 0) return chosen;
    std::vector<int64_t>& list = chosen.list;
    const int64_t own = t / block_;
    std::vector<Ranked> others;
    for (int64_t j = 0; j <= own; ++j)
      if (j == 0 || j >= own - 1)
        list.push_back(j);
      else
        others.push_back({slc[static_cast<size_t>(j)], j});
    std::sort(others.begin(), others.end(), goes_before);
    const int64_t forced = static_cast<int64_t>(list.size());
    for (const Ranked& x : others) list.push_back(x.at);
    chosen.wanted = std::min(static_cast<int64_t>(list.size()), std::max(count_, forced));
    const int64_t kept = p_.index.data ? std::min(chosen.wanted, p_.index.shape[3]) : chosen.wanted;
    for (int64_t cut : {chosen.wanted, kept})
      if (cut > forced && cut < static_cast<int64_t>(list.size()))
        note_gap(others[static_cast<size_t>(cut - forced - 1)].score,
                 others[static_cast<size_t>(cut - forced)].score, margin);
    list.resize(static_cast<size_t>(kept));
    std::sort(list.begin(), list.end());
    return chosen;
  }
  void put(const Sequence& q, int64_t i, int64_t g, const Chosen& chosen, NsaResult& result) const {
    const int64_t line = (q.batch * g_ + g) * s_ + q.row + i, keep = p_.index.shape[3];
    for (int64_t m = 0; p_.index.data && m < keep; ++m)
      result.index.set(line * keep + m,
                       m < static_cast<int64_t>(chosen.list.size())
                           ? static_cast<double>(chosen.list[static_cast<size_t>(m)])
                           : -1);
    if (p_.index_count.data) result.index_count.set(line, static_cast<double>(chosen.wanted));
  }

  // The gated sum; branches are rounded to their own dtype before.
  void combine(Mode mode, NsaResult& result) const {
    const Dense gates[] = {load(p_.gate_compressed), load(p_.gate_selected), load(p_.gate_window)};
    const int64_t e = p_.v.shape[3];
    Out& o = result.o = Out(p_.o, unit_of(p_.q.dtype));
    for (const Out& x : result.branch) o.condition = std::max(o.condition, x.condition);
    for (int64_t line = 0; line < b_ * s_ * h_; ++line) {
      if (e && !result.branch[0].written[static_cast<size_t>(line * e)]) continue;
      double weight[3], terms = 0, slope;
      for (int n = 0; n < 3; ++n) {
        weight[n] = gate_of(gates[n], p_.gate_plain, line, &slope);
        if (mode == Mode::rounded) weight[n] = static_cast<float>(weight[n]);
        terms += std::abs(weight[n]) * result.branch[n].rms();
      }
      o.terms(terms);
      for (int64_t c = line * e; c < (line + 1) * e; ++c) {
        double y = 0;
        for (int n = 0; n < 3; ++n) y += weight[n] * result.branch[n].value[static_cast<size_t>(c)];
        o.set(c, mode == Mode::rounded ? round_to(p_.o.dtype, y) : y);
      }
    }
  }

  const Params& p_;
  const int64_t each_, step_, block_, count_, window_;
  Layout at_;
  int64_t b_, s_, h_, g_, u_;
  std::vector<uint8_t> bits_[3];  // of compressed, selected, window
};

}  // namespace oracle
