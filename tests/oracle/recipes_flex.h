// SPDX-License-Identifier: Apache-2.0
// FlexPrefill (2502.20766) by its definition, a head at a time in float64: every probability of the
// last rows, every pooled score, plain sorts; shares in fixed point.  Lists follow from float64.
#pragma once
#include "recipes_indexed.h"
#include "select_block.h"

namespace oracle::recipes {

// The method's numbers; budgets in keys, most 0: no bound.
struct Flex {
  int64_t block, least, most;
  float cover;
  double threshold;
};

// What a head of a sequence chose.
struct FlexHead {
  bool dense = false, sparse = false;
  std::vector<std::vector<int64_t>> lists;  // of each row block: in the order in which they are cut
};

class FlexChoice {
 public:
  FlexChoice(const Attention& a, const Flex& of, int64_t b, int64_t head)
      : a_(a), of_(of), head_(head), group_(a.key_head(head)), q_(sequence(a.at, b)) {
    blocks_ = up(q_.keys, of.block), rows_ = up(q_.rows, of.block);
    for (int64_t j = 0; j < q_.keys; ++j) places_.push_back(place(a.at, q_, q_.store + j));
  }

  FlexHead run(double& margin) {
    FlexHead out;
    out.dense = q_.keys <= std::max(2 * of_.block, of_.least);
    for (int64_t row = 0; row < rows_; ++row) {
      std::vector<int64_t> all;
      for (int64_t n = 0; n * of_.block <= last(row); ++n) all.push_back(n);
      out.lists.push_back(all);
    }
    if (out.dense) return out;
    probe();
    means();
    const double apart = divergence();
    out.sparse = apart < of_.threshold;
    if (of_.threshold > 0) margin = std::min(margin, std::abs(apart - of_.threshold));
    const Keys64 verticals = lines(column_, out.sparse, margin);
    const Keys64 slashes = lines(distance_, out.sparse, margin);
    for (int64_t row = 0; row < rows_; ++row) {
      std::erase_if(out.lists[row], [&](int64_t n) {
        const int64_t own = last(row) / of_.block;
        const bool holds = n >= std::max<int64_t>(position(row * of_.block), 0) / of_.block;
        return !holds && !verticals.count(n) && !slashes.count(own - n);
      });
    }
    if (out.sparse) add_pooled(out, margin);
    return out;
  }

 private:
  using Vector = std::vector<double>;
  static int64_t up(int64_t n, int64_t unit) { return n / unit + (n % unit != 0); }
  int64_t position(int64_t i) const { return i + q_.keys - q_.rows; }
  int64_t last(int64_t row) const { return position(std::min(q_.rows, (row + 1) * of_.block) - 1); }
  const double* q(int64_t i) const { return a_.q.row(q_.batch, q_.row + i, head_); }
  const double* k(int64_t j) const { return a_.k.row(places_[j].row, places_[j].slot, group_); }
  static void softmax(Vector& x) {
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (double& one : x) sum += one = std::exp(one - most);
    for (double& one : x) one /= sum;
  }

  // Probabilities of the last rows, summed over each key and each distance.
  void probe() {
    column_.assign(q_.keys, 0), distance_.assign(q_.keys, 0);
    for (int64_t i = std::max<int64_t>(0, q_.rows - of_.block); i < q_.rows; ++i) {
      Vector line;
      std::vector<int64_t> keys;
      for (int64_t j = 0; j <= position(i); ++j)
        if (places_[j].present)
          keys.push_back(j), line.push_back(a_.scale * dot<double>(q(i), k(j), a_.d));
      if (keys.empty()) continue;
      softmax(line);
      for (size_t m = 0; m < keys.size(); ++m) {
        column_[keys[m]] += line[m];
        distance_[position(i) - keys[m]] += line[m];
      }
    }
  }
  Vector sums(const Vector& x) const {
    Vector out(blocks_);
    for (size_t j = 0; j < x.size(); ++j) out[j / of_.block] += x[j];
    return out;
  }

  template <class Row>
  Vector mean(int64_t begin, int64_t end, Row row) const {
    Vector out(a_.d);
    double count = 0;
    for (int64_t i = begin; i < end; ++i) {
      const double* x = row(i);
      if (x) ++count;
      for (int64_t c = 0; x && c < a_.d; ++c) out[c] += x[c];
    }
    for (double& x : out) x /= std::max(count, 1.0);
    return out;
  }
  void means() {
    for (int64_t n = 0; n < blocks_; ++n)
      keys_.push_back(mean(n * of_.block, std::min(q_.keys, (n + 1) * of_.block),
                           [&](int64_t j) { return places_[j].present ? k(j) : nullptr; }));
  }
  Vector scores(const Vector& row, int64_t blocks) const {
    Vector out;
    for (int64_t n = 0; n < blocks; ++n)
      out.push_back(a_.scale * dot<double>(row.data(), keys_[n].data(), a_.d));
    return out;
  }

  // The root of Jensen and Shannon's divergence of the guess and what was probed.
  double divergence() const {
    Vector p = scores(mean(std::max<int64_t>(0, q_.rows - of_.block), q_.rows,
                           [&](int64_t i) { return q(i); }),
                      blocks_),
           c = sums(column_);
    softmax(p);
    double all = 0, sum = 0;
    for (double x : c) all += x;
    for (int64_t n = 0; n < blocks_; ++n) {
      const double x = all > 0 ? c[n] / all : 0, m = (x + p[n]) / 2;
      if (x > 0) sum += x * std::log(x / m) / 2;
      if (p[n] > 0) sum += p[n] * std::log(p[n] / m) / 2;
    }
    return std::sqrt(std::max(sum, 0.0));
  }

  // The blocks of x with the largest sums, the first among them, as many as its share asks for.
  Keys64 lines(const Vector& x, bool sparse, double& margin) const {
    const std::vector<char> none(x.size());
    const int64_t least = up(of_.least, of_.block);
    int64_t wanted = least;
    if (!sparse) {
      const RuleOf share{FOVEA_X_SELECT_RULE_TOP_P_GT, 0, of_.cover, 0, 0, false};
      wanted = static_cast<int64_t>(apply_rule(x, none, share, margin).size()) / of_.block + 1;
      wanted = std::max(wanted, least);
      if (of_.most) wanted = std::min(wanted, up(of_.most, of_.block));
    }
    Rated rated;
    const Vector block = sums(x);
    for (int64_t n = 1; n < blocks_; ++n) rated.push_back({block[n], n});
    Keys64 out = best(rated, wanted - 1, margin);
    out.insert(0);
    return out;
  }

  // The largest values of the row softmax over pooled rows and keys, under the share of all.
  void add_pooled(FlexHead& out, double& margin) const {
    Vector all(rows_ * blocks_, -HUGE_VAL);
    for (int64_t row = 0; row < rows_; ++row) {
      if (last(row) < 0) continue;
      Vector line = scores(mean(row * of_.block, std::min(q_.rows, (row + 1) * of_.block),
                                [&](int64_t i) { return q(i); }),
                           last(row) / of_.block + 1);
      softmax(line);
      std::copy(line.begin(), line.end(), all.begin() + row * blocks_);
    }
    const RuleOf under{FOVEA_X_SELECT_RULE_TOP_P_UNDER, 0, of_.cover, 0, 0, false};
    // They come in their order, so those of a row do too.
    for (int64_t at : apply_rule(all, std::vector<char>(all.size()), under, margin)) {
      std::vector<int64_t>& list = out.lists[at / blocks_];
      if (std::find(list.begin(), list.end(), at % blocks_) == list.end())
        list.push_back(at % blocks_);
    }
  }

  const Attention& a_;
  const Flex of_;
  const int64_t head_, group_;
  const Sequence q_;
  int64_t blocks_, rows_;
  std::vector<Place> places_;
  Vector column_, distance_;
  std::vector<Vector> keys_;
};

// Every head of every sequence: heads of sequence b from b * h on.
inline std::vector<FlexHead> flex_heads(const Attention& a, const Flex& of, double& margin) {
  std::vector<FlexHead> out;
  for (int64_t b = 0; b < a.b; ++b)
    for (int64_t head = 0; head < a.h; ++head)
      out.push_back(FlexChoice(a, of, b, head).run(margin));
  return out;
}
// Attention over their lists, the first `keep` entries of each.
inline Attention over_flex(const Attention& a, int64_t block, int64_t keep,
                           const std::vector<FlexHead>& heads) {
  return seen_by(a, [&](int64_t b, int64_t head, int64_t i, int64_t j) {
    const Sequence q = sequence(a.at, b);
    const auto& list = heads[b * a.h + head].lists[(i - q.keys + q.rows) / block];
    const auto end = list.begin() + std::min<int64_t>(keep, static_cast<int64_t>(list.size()));
    return j <= i && std::find(list.begin(), end, j / block) != end;
  });
}

inline Chosen flexprefill(const Attention& a, const Flex& of) {
  Chosen out;
  const std::vector<FlexHead> heads = flex_heads(a, of, out.margin);
  out.seen = over_flex(a, of.block, a.at.extent, heads);
  return out;
}

}  // namespace oracle::recipes
