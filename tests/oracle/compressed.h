// SPDX-License-Identifier: Apache-2.0
// x_compressed_forward from the comment of experimental/compressed.h.  Window and compressed keys
// stand side by side, and bits say which of them a row sees.  One softmax of attention's oracle is
// over all of them.
//   Rounded, the two sets are parts of their own, whose o is rounded before they are merged.
//   Lists follow from the float64 scores in either mode; `margin` is how close one was.
#pragma once
#include "attention.h"
#include "select_block.h"

namespace oracle {

struct CompressedResult {
  Out o, lse, index, index_count;
  double margin = HUGE_VAL;
};

// Two parts of a row's keys, each as a kernel rounds it, merged in float32.
inline ForwardResult merged(const Attention& a, const Attention& b, const fovea_tensor& o,
                            const fovea_tensor& lse) {
  const int64_t shape[] = {a.b, a.h, a.s};
  float memory = 0;
  const fovea_tensor own = fovea_contiguous(&memory, FOVEA_F32, 3, shape);
  const ForwardResult part[] = {forward(a, o, own, Mode::rounded),
                                forward(b, o, own, Mode::rounded)};
  ForwardResult out{part[0].o, lse.data ? part[0].lse : Out()};
  out.o.condition = std::max(out.o.condition, part[1].o.condition);
  out.o.terms(part[0].o.largest + part[1].o.largest);
  const auto line = [&](int64_t batch, int64_t i, int64_t head) {
    const auto row = static_cast<size_t>((batch * a.h + head) * a.s + i);
    if (!part[0].lse.written[row]) return;
    float weight[2], top = -HUGE_VALF, sum = 0;
    for (int n : {0, 1}) {
      weight[n] = static_cast<float>(part[n].lse.value[row]);
      top = std::max(top, weight[n]);
    }
    for (float& w : weight) sum += w = top == -HUGE_VALF ? 0 : std::exp(w - top);
    const int64_t first = ((batch * a.s + i) * a.h + head) * a.e;
    for (int64_t at = first; at < first + a.e; ++at) {
      float y = 0;
      for (int n : {0, 1})
        y += weight[n] * static_cast<float>(part[n].o.value[static_cast<size_t>(at)]);
      out.o.set(at, round_to(o.dtype, sum > 0 ? y / sum : 0));
    }
    if (lse.data) out.lse.set(static_cast<int64_t>(row), sum > 0 ? top + std::log(sum) : top);
  };
  for (int64_t batch = 0; batch < a.b; ++batch)
    for (int64_t i = 0; i < a.s; ++i)
      for (int64_t head = 0; head < a.h; ++head) line(batch, i, head);
  return out;
}

class CompressedOracle {
 public:
  using Params = fovea_x_compressed_forward_params;

  // `listed`: index and index_count are what rows take, not what they are to give.
  explicit CompressedOracle(const Params& p, bool listed = false)
      : p_(p),
        listed_(listed),
        step_(p.compress_step ? p.compress_step : 4),
        count_(p.count ? p.count : 512),
        window_(p.window ? p.window : 128),
        index_q_(load(p.index_q)),
        index_k_(load(p.index_k)),
        weight_(load(p.weight)),
        compressed_len_(load(p.compressed_len)) {
    fovea_attention_forward_params a{};
    a.q = p.q, a.k = p.k, a.v = p.v, a.o = p.o, a.sink_logit = p.sink_logit, a.scale = p.scale;
    a.query_len = p.query_len, a.key_len = p.key_len, a.page_table = p.page_table;
    a.key_max = p.key_max;
    all_ = load_attention(a), at_ = all_.at;
    u_ = p.k_compressed.shape[1], bytes_ = (at_.extent + u_ + 7) / 8;
    for (auto& bits : bits_) bits.resize(static_cast<size_t>(all_.b * all_.h * all_.s * bytes_));
  }

  const Layout& layout() const { return at_; }
  // Compressed keys in use.
  int64_t compressed(int64_t r) const {
    const int64_t most = at_.key_max ? std::min(at_.key_max, at_.extent) : at_.extent;
    const int64_t all = std::min(most / step_, u_);
    return compressed_len_ ? std::min(all, compressed_len_.integer(r)) : all;
  }

  CompressedResult run(Mode mode) {
    CompressedResult result;
    if (!listed_) result.index = Out(p_.index, 0), result.index_count = Out(p_.index_count, 0);
    side_by_side();
    for (int64_t r = 0; r < all_.b; ++r) {
      const Sequence q = sequence(at_, r);
      for (int64_t i = 0; i < q.rows; ++i) row(q, i, result);
    }
    mode == Mode::exact ? one_softmax(result) : two_parts(result);
    return result;
  }

  // After run(): what rows see of all keys side by side, and of the window (0) or of the compressed
  // keys (1) alone.
  Attention whole() const {
    std::vector<uint8_t> bits = bits_[0];
    for (size_t n = 0; n < bits.size(); ++n) bits[n] |= bits_[1][n];
    return seeing(bits);
  }
  Attention part(int set) const {
    Attention a = seeing(bits_[set]);
    if (set == 1) a.sink_logit = {};
    return a;
  }

 private:
  // Keys and values of the window where tokens are, then the compressed ones.
  void side_by_side() {
    const Dense k = all_.k, v = all_.v, coarse_k = load(p_.k_compressed),
                coarse_v = load(p_.v_compressed);
    Attention& a = all_;
    for (Dense* x : {&a.k, &a.v}) {
      x->shape[0] = a.b, x->shape[1] = at_.extent + u_;
      x->value.assign(static_cast<size_t>(a.b * x->shape[1] * a.g * x->shape[3]), 0);
    }
    const auto put = [](Dense& to, int64_t r, int64_t at, int64_t g, const double* row) {
      std::copy_n(row, to.shape[3], to.value.begin() + to.at_index(r, at, g));
    };
    for (int64_t r = 0; r < a.b; ++r) {
      const Sequence q = sequence(at_, r);
      for (int64_t g = 0; g < a.g; ++g) {
        for (int64_t j = 0; j < q.keys; ++j) {
          const Place at = place(at_, q, j);
          if (!at.present) continue;
          put(a.k, r, j, g, k.row(at.row, at.slot, g)),
              put(a.v, r, j, g, v.row(at.row, at.slot, g));
        }
        for (int64_t c = 0; c < compressed(r); ++c)
          put(a.k, r, at_.extent + c, g, coarse_k.row(r, c, g)),
              put(a.v, r, at_.extent + c, g, coarse_v.row(r, c, g));
      }
    }
    a.at = {}, a.at.query_len = at_.query_len, a.at.s = at_.s, a.at.sequences = a.b;
    a.at.extent = a.columns = at_.extent + u_;
  }

  void see(int set, const Sequence& q, int64_t i, int64_t column) {
    for (int64_t head = 0; head < all_.h; ++head) {
      const int64_t line = (q.batch * all_.h + head) * all_.s + q.row + i;
      bits_[set][static_cast<size_t>(line * bytes_ + column / 8)] |=
          static_cast<uint8_t>(1 << (column % 8));
    }
  }

  // What row i sees.
  void row(const Sequence& q, int64_t i, CompressedResult& result) {
    const int64_t p = i + q.keys - q.rows;
    for (int64_t j = std::max<int64_t>(0, p - window_ + 1); j <= p; ++j)
      if (place(at_, q, j).present) see(0, q, i, j);
    std::vector<int64_t> seen;
    for (int64_t c = 0; c < compressed(q.r) && (c + 1) * step_ - 1 <= p; ++c) seen.push_back(c);
    if (listed_ && p_.index.data) take(q, i, seen);
    if (index_q_) choose(q, i, seen, result);
    for (const int64_t c : seen) see(1, q, i, at_.extent + c);
  }

  // Those of `seen` that the row's list names.
  void take(const Sequence& q, int64_t i, std::vector<int64_t>& seen) const {
    const Dense index = load(p_.index), count = load(p_.index_count);
    const int64_t row = q.row + i, keep = index.shape[2];
    const int64_t used = count ? std::clamp<int64_t>(count.integer(q.batch, row), 0, keep) : keep;
    std::vector<int64_t> named;
    for (int64_t n = 0; n < used; ++n) named.push_back(index.integer(q.batch, row, n));
    std::erase_if(
        seen, [&](int64_t c) { return std::find(named.begin(), named.end(), c) == named.end(); });
  }

  // The best of `seen`, ascending.
  void choose(const Sequence& q, int64_t i, std::vector<int64_t>& seen,
              CompressedResult& result) const {
    const int64_t heads = index_q_.shape[2], width = index_q_.shape[3], row = q.row + i;
    const double scale = p_.index_scale > 0 ? static_cast<double>(p_.index_scale)
                                            : 1 / std::sqrt(static_cast<double>(width));
    std::vector<Ranked> rated;
    for (const int64_t c : seen) {
      double sum = 0;
      for (int64_t n = 0; n < heads; ++n) {
        const double x = dot<double>(index_q_.row(q.batch, row, n),
                                     index_k_.row(q.r, c, n / (heads / index_k_.shape[2])), width);
        sum += (weight_ ? weight_(q.batch, row, n) : 1) * std::max(0.0, scale * x);
      }
      rated.push_back({sum, c});
    }
    std::sort(rated.begin(), rated.end(), goes_before);
    const auto all = static_cast<int64_t>(rated.size()), wanted = std::min(all, count_);
    const int64_t keep = p_.index.shape[2], kept = p_.index.data ? std::min(wanted, keep) : wanted;
    for (const int64_t cut : {wanted, kept})
      if (cut > 0 && cut < all)
        note_gap(rated[static_cast<size_t>(cut - 1)].score, rated[static_cast<size_t>(cut)].score,
                 result.margin);
    seen.clear();
    for (int64_t n = 0; n < kept; ++n) seen.push_back(rated[static_cast<size_t>(n)].at);
    std::sort(seen.begin(), seen.end());
    const int64_t line = q.batch * all_.s + row;
    for (int64_t n = 0; p_.index.data && n < keep; ++n)
      result.index.set(line * keep + n,
                       n < kept ? static_cast<double>(seen[static_cast<size_t>(n)]) : -1);
    if (p_.index_count.data) result.index_count.set(line, static_cast<double>(wanted));
  }

  Attention seeing(const std::vector<uint8_t>& bits) const {
    Attention a = all_;
    a.mask = Dense{true, FOVEA_U8, {a.b, a.h, a.s, bytes_, 1}, {}};
    a.mask.value.assign(bits.begin(), bits.end());
    return a;
  }

  void one_softmax(CompressedResult& result) const {
    ForwardResult one = forward(whole(), p_.o, p_.lse, Mode::exact);
    result.o = one.o, result.lse = one.lse;
  }
  void two_parts(CompressedResult& result) const {
    const ForwardResult one = merged(part(0), part(1), p_.o, p_.lse);
    result.o = one.o, result.lse = one.lse;
  }

  const Params& p_;
  const bool listed_;
  const int64_t step_, count_, window_;
  const Dense index_q_, index_k_, weight_, compressed_len_;
  Attention all_;
  Layout at_;
  int64_t u_, bytes_;
  std::vector<uint8_t> bits_[2];  // of the window, of the compressed keys
};

}  // namespace oracle
