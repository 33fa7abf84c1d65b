// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4's layers through the library's own chain, from what the model's maps give to what its
// output map reads.  Pooling is gated, norm and rotation go into caches, the call is by name, and o
// turns back.  A prompt, its chunks and its steps give the report's rows.  The oracle's gradients
// are central differences of its forward, under lists that do not change.
#include <numeric>

#include "oracle/compressed_backward.h"
#include "properties/compact.h"

namespace {

using namespace properties::compact;
using properties::Values;

constexpr int64_t kHeads = 6, kWidth = 24, kRope = 8, kWindow = 5, kCount = 3;
constexpr int64_t kIndexHeads = 3, kIndexWidth = 16, kPage = 8, kPages = 5;

// What a compressor reads, and where its entries go.
struct Compressor {
  fovea_tensor raw, gate, bias, norm, pooled, entries;
};

class Layer {
 public:
  Layer(Room& room, bool sparse)
      : room_(room),
        sparse_(sparse),
        step_(sparse ? 4 : 8),
        turns_(room, kRope / 2),
        q_(room.some({1, kTokens, kHeads, kWidth})),
        raw_(room.some({1, kTokens, 1, kWidth})),
        norm_(room.some({kWidth})),
        keys_(room.empty({1, kTokens, 1, kWidth})),
        pool_(room.empty({kPages, kPage, 1, kWidth})),
        main_(compressor(kWidth)),
        index_(compressor(kIndexWidth)),
        index_q_(room.some({1, kTokens, kIndexHeads, kIndexWidth})),
        weight_(floats({1, kTokens, kIndexHeads})),
        sink_(floats({kHeads})),
        index(room.empty({1, kTokens, kCount}, FOVEA_I32)),
        index_count(room.empty({1, kTokens}, FOVEA_I32)) {
    Values places;
    for (int64_t n = 0; n < kPages; ++n) places.push_back(static_cast<double>(n * 3 % kPages));
    page_table_ = room.fill({1, kPages}, FOVEA_I32, places);
  }

  // o of tokens, in calls of so many.
  Values run(const std::vector<int64_t>& calls, bool paged = false) {
    const fovea_tensor o = room_.empty({1, kTokens, kHeads, kWidth});
    int64_t begin = 0;
    for (const int64_t s : calls) {
      append(part(raw_, 1, begin, s), paged ? pool_ : keys_, norm_, begin, 1,
             paged ? page_table_ : fovea_tensor{});
      compress(main_, begin, s);
      if (sparse_) compress(index_, begin, s);
      auto p = params<fovea_x_compressed_forward_params>();
      p.q = turned(part(q_, 1, begin, s), begin, false);
      p.k = p.v = paged ? pool_ : keys_;
      if (paged) p.page_table = page_table_;
      p.k_compressed = p.v_compressed = main_.entries;
      p.sink_logit = sink_, p.o = room_.empty({1, s, kHeads, kWidth});
      p.key_len = room_.lengths(begin + s);
      p.compressed_len = room_.lengths((begin + s) / step_);
      if (sparse_) {
        p.index_q = part(index_q_, 1, begin, s), p.index_k = index_.entries;
        p.weight = part(weight_, 1, begin, s), p.index = part(index, 1, begin, s);
        p.index_count = part(index_count, 1, begin, s);
      }
      const char* const name = sparse_ ? "csa" : "hca";
      harness::must(fovea_x_recipe_apply(name, "x_compressed_forward", &p), name);
      p.compress_step = step_, p.window = kWindow;
      if (sparse_) p.count = kCount;
      harness::must(fovea_x_compressed_forward(room_.ctx, &p), name);
      turned(p.o, begin, true, part(o, 1, begin, s));
      begin += s;
    }
    return room_.values(o).value;
  }

  // The report's rows over the entries that the lists name, and how far the worst list is from the
  // best one.
  Values paper(double* shortfall) const {
    const std::vector<Values> entry = entries(main_, kWidth), key = keys();
    const std::vector<Values> indexed = sparse_ ? entries(index_, kIndexWidth) : entry;
    const oracle::Dense q = room_.values(q_), sink = room_.values(sink_),
                        list = room_.values(index), count = room_.values(index_count);
    Values o;
    *shortfall = 0;
    for (int64_t i = 0; i < kTokens; ++i) {
      std::vector<const Values*> seen;
      for (int64_t j = std::max<int64_t>(0, i - kWindow + 1); j <= i; ++j) seen.push_back(&key[j]);
      const int64_t there = (i + 1) / step_;
      if (sparse_) {
        EXPECT_EQ(count.integer(0, i), std::min(there, kCount));
        *shortfall = std::max(*shortfall, missed(i, there, indexed, list));
        for (int64_t n = 0; n < count.integer(0, i); ++n)
          seen.push_back(&entry[list.integer(0, i, n)]);
      } else {
        for (int64_t c = 0; c < there; ++c) seen.push_back(&entry[c]);
      }
      for (int64_t head = 0; head < kHeads; ++head) {
        Values query(q.row(0, i, head), q.row(0, i, head) + kWidth), sum(kWidth);
        turn(query, i);
        double total = std::exp(sink(head));
        for (const Values* x : seen) {
          const double score = std::inner_product(query.begin(), query.end(), x->begin(), 0.0);
          const double weight = std::exp(score / std::sqrt(static_cast<double>(kWidth)));
          total += weight;
          for (int64_t c = 0; c < kWidth; ++c) sum[c] += weight * (*x)[c];
        }
        for (double& x : sum) x /= total;
        turn(sum, -i);
        o.insert(o.end(), sum.begin(), sum.end());
      }
    }
    return o;
  }

 private:
  fovea_tensor floats(const std::vector<int64_t>& shape) {
    const oracle::Dense x = room_.values(room_.some(shape));
    return room_.fill(shape, FOVEA_F32, x.value);
  }
  Compressor compressor(int64_t width) {
    const int64_t columns = sparse_ ? 2 * width : width, most = kTokens / step_;
    return {room_.some({1, kTokens, 1, columns}),
            room_.some({1, kTokens, 1, columns}),
            floats({step_, columns}),
            room_.some({width}),
            room_.empty({1, most, 1, width}),
            room_.empty({1, most, 1, width})};
  }
  // The last columns turn, in pairs of neighbours.
  fovea_tensor turned(const fovea_tensor& x, int64_t begin, bool inverse) {
    return turned(x, begin, inverse, room_.empty({1, x.shape[1], x.shape[2], x.shape[3]}));
  }
  fovea_tensor turned(const fovea_tensor& x, int64_t begin, bool inverse, const fovea_tensor& y) {
    auto p = params<fovea_rope_forward_params>();
    p.x = x, p.y = y, p.inverse = inverse, p.rope_interleaved = 1;
    p.rope_begin = kWidth - kRope;
    p.cos = part(turns_.cos, 0, begin, x.shape[1]), p.sin = part(turns_.sin, 0, begin, x.shape[1]);
    harness::must(fovea_rope_forward(room_.ctx, &p), "rope_forward");
    return y;
  }
  // Rows behind `before` others, norm and rotation by positions `apart` apart.
  void append(const fovea_tensor& x, const fovea_tensor& to, const fovea_tensor& norm,
              int64_t before, int64_t apart, const fovea_tensor& page_table) {
    auto p = params<fovea_cache_append_params>();
    p.k_new = x, p.k = to, p.key_len = room_.lengths(before), p.page_table = page_table;
    p.norm_weight = norm, p.cos = every(turns_.cos, apart), p.sin = every(turns_.sin, apart);
    p.rope_begin = static_cast<int32_t>(x.shape[3] - kRope), p.rope_interleaved = 1;
    harness::must(fovea_cache_append(room_.ctx, &p), "cache_append");
  }
  static fovea_tensor every(fovea_tensor x, int64_t apart) {
    x.shape[0] = (x.shape[0] + apart - 1) / apart, x.stride[0] *= apart;
    return x;
  }
  // The entries that tokens from `begin` on complete.
  void compress(const Compressor& of, int64_t begin, int64_t s) {
    const int64_t before = begin / step_, now = (begin + s) / step_;
    if (now == before) return;
    auto p = params<fovea_x_pool_forward_params>();
    p.x = of.raw, p.gate = of.gate, p.bias = of.bias, p.y = of.pooled;
    p.key_len = room_.lengths(begin + s), p.old_len = room_.lengths(begin);
    p.block = step_, p.complete = 1, p.overlap = sparse_, p.want = FOVEA_X_SUMMARY_GATED;
    harness::must(fovea_x_pool_forward(room_.ctx, &p), "x_pool_forward");
    append(part(of.pooled, 1, before, now - before), of.entries, of.norm, before, step_, {});
  }

  static void turn(Values& x, int64_t position) {
    double* const last = x.data() + x.size() - kRope;
    for (int64_t n = 0; n < kRope / 2; ++n) {
      const double angle =
          static_cast<double>(position) * std::pow(50, -static_cast<double>(n) / (kRope / 2));
      const double a = last[2 * n], b = last[2 * n + 1];
      last[2 * n] = a * std::cos(angle) - b * std::sin(angle);
      last[2 * n + 1] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  void norm_and_turn(Values& x, const fovea_tensor& norm, int64_t position) const {
    const oracle::Dense weight = room_.values(norm);
    const double squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    const double size = std::sqrt(squares / static_cast<double>(x.size()) + 1e-6);
    for (size_t c = 0; c < x.size(); ++c) x[c] *= weight(static_cast<int64_t>(c)) / size;
    turn(x, position);
  }
  std::vector<Values> keys() const {
    const oracle::Dense raw = room_.values(raw_);
    std::vector<Values> all;
    for (int64_t j = 0; j < kTokens; ++j) {
      all.emplace_back(raw.row(0, j, 0), raw.row(0, j, 0) + kWidth);
      norm_and_turn(all.back(), norm_, j);
    }
    return all;
  }
  // Equations 9 to 12 with two series of tokens, and 20 to 23 with one.
  std::vector<Values> entries(const Compressor& of, int64_t width) const {
    const oracle::Dense raw = room_.values(of.raw), gate = room_.values(of.gate),
                        bias = room_.values(of.bias);
    std::vector<Values> all;
    for (int64_t entry = 0; (entry + 1) * step_ <= kTokens; ++entry) {
      Values x(width);
      for (int64_t c = 0; c < width; ++c) {
        double total = 0;
        const auto take = [&](int64_t token, int64_t column) {
          const double weight = std::exp(gate(0, token, 0, column) + bias(token % step_, column));
          total += weight, x[c] += weight * raw(0, token, 0, column);
        };
        for (int64_t token = entry * step_; token < (entry + 1) * step_; ++token) {
          if (sparse_ && entry) take(token - step_, c);
          take(token, sparse_ ? width + c : c);
        }
        x[c] /= total;
      }
      norm_and_turn(x, of.norm, entry * step_);
      all.push_back(x);
    }
    return all;
  }
  // How much better the best entry that the list of row i lacks is than its worst one.
  double missed(int64_t i, int64_t there, const std::vector<Values>& entry,
                const oracle::Dense& list) const {
    const oracle::Dense q = room_.values(index_q_), weight = room_.values(weight_);
    double worst = HUGE_VAL, best = -HUGE_VAL;
    for (int64_t c = 0; c < there; ++c) {
      double score = 0;
      for (int64_t head = 0; head < kIndexHeads; ++head)
        score +=
            weight(0, i, head) * std::max(0.0, std::inner_product(entry[c].begin(), entry[c].end(),
                                                                  q.row(0, i, head), 0.0));
      bool listed = false;
      for (int64_t n = 0; n < kCount; ++n) listed = listed || list.integer(0, i, n) == c;
      if (listed) worst = std::min(worst, score);
      if (!listed) best = std::max(best, score);
    }
    return std::max(0.0, best - worst);
  }

  Room& room_;
  const bool sparse_;
  const int64_t step_;
  const Turns turns_;
  const fovea_tensor q_, raw_, norm_, keys_, pool_;
  const Compressor main_, index_;
  const fovea_tensor index_q_, weight_, sink_;
  fovea_tensor page_table_;

 public:
  const fovea_tensor index, index_count;  // of the last run
};

void expect_report(bool sparse) {
  each_room([=](Room& room) {
    Layer layer(room, sparse);
    const Values whole = layer.run(kCuts[0]);
    const Values list = room.values(layer.index).value;
    double shortfall;
    const Values paper = layer.paper(&shortfall);
    expect_near("prompt", whole, paper, 8 * room.unit());
    EXPECT_LE(shortfall, 64 * room.unit());
    for (const bool paged : {false, true})
      for (const auto& cuts : kCuts) {
        expect_near("cuts", layer.run(cuts, paged), whole, 4 * room.unit());
        EXPECT_EQ(room.values(layer.index).value, list);
      }
  });
}

TEST(compressed, csa_in_chunks_and_steps_is_the_prompt_and_the_reports) {
  expect_report(true);
}
TEST(compressed, hca_in_chunks_and_steps_is_the_prompt_and_the_reports) {
  expect_report(false);
}

// One sequence with lists or without them.
class Small {
 public:
  explicit Small(bool sparse) : some_(sparse ? 31 : 32) {
    p.q = some_({1, 4, 2, 3}), p.k = some_({1, 11, 1, 3}), p.v = some_({1, 11, 1, 2});
    p.k_compressed = some_({1, 5, 1, 3}), p.v_compressed = some_({1, 5, 1, 2});
    p.sink_logit = some_({2}), p.compress_step = 2, p.window = 3;
    p.o = some_({1, 4, 2, 2}), p.lse = some_({1, 2, 4}), p.dout = some_({1, 4, 2, 2});
    // The rows are at positions 7 to 10.
    list_ = {0, 3, 2, 1, 0, 4, 3, 4};
    const int64_t shape[] = {1, 4, 2};
    if (sparse) p.index = fovea_contiguous(list_.data(), FOVEA_I32, 3, shape);
    p.dq = p.q, p.dk = p.k, p.dv = p.v, p.dk_compressed = p.k_compressed;
    p.dv_compressed = p.v_compressed, p.dsink_logit = p.sink_logit;
  }
  double loss() const {
    return properties::weighed(oracle::load(p.dout), oracle::CompressedBackward(p).forward().o);
  }
  // Gives the backward what the forward found.
  oracle::CompressedGradients gradients() {
    oracle::CompressedBackward backward(p);
    const oracle::CompressedResult f = backward.forward();
    put(p.o, f.o), put(p.lse, f.lse);
    return backward.run(oracle::Mode::exact);
  }

  fovea_x_compressed_backward_params p = {};

 private:
  static void put(const fovea_tensor& x, const oracle::Out& value) {
    for (size_t i = 0; i < value.value.size(); ++i)
      static_cast<float*>(x.data)[i] = static_cast<float>(value.value[i]);
  }
  properties::Some some_;
  std::vector<int32_t> list_;
};

TEST(oracle, compressed_gradient_is_the_derivative) {
  for (const bool sparse : {false, true}) {
    Small small(sparse);
    const oracle::CompressedGradients g = small.gradients();
    const std::pair<const fovea_tensor*, const oracle::Out*> found[] = {
        {&small.p.q, &g.dq},
        {&small.p.k, &g.dk},
        {&small.p.v, &g.dv},
        {&small.p.k_compressed, &g.dk_compressed},
        {&small.p.v_compressed, &g.dv_compressed},
        {&small.p.sink_logit, &g.dsink_logit}};
    for (const auto& [x, gradient] : found) {
      auto* const values = static_cast<float*>(x->data);
      double largest = 0;
      for (size_t i = 0; i < gradient->value.size(); ++i) {
        const float at = values[i], step = 0x1p-10f;
        values[i] = at + step;
        const double above = small.loss(), high = values[i];
        values[i] = at - step;
        const double below = small.loss(), low = values[i];
        values[i] = at;
        EXPECT_NEAR(gradient->value[i], (above - below) / (high - low), 2e-5)
            << "tensor " << x - &small.p.q << ", element " << i;
        largest = std::max(largest, std::abs(gradient->value[i]));
      }
      EXPECT_GT(largest, 0.01);
    }
  }
}

}  // namespace
