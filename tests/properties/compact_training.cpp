// SPDX-License-Identifier: Apache-2.0
// Layers of compact attention from hidden rows to hidden rows; every map is x_project_forward's.
// Gradients go back through x_project_backward and attention's.  They are the derivatives of the
// papers' layers in float64.
#include <array>
#include <numeric>

#include "properties/compact.h"

namespace {

using namespace properties::compact;
using properties::Values;

constexpr int64_t kModel = 20, kLength = 17;

// ---- the papers' layers in float64

using Row = std::vector<Values>;  // heads, columns
using Rows = std::vector<Row>;    // tokens

Rows rows_of(const oracle::Dense& x) {
  Rows y(x.shape[1], Row(x.shape[2], Values(x.shape[3])));
  for (int64_t t = 0; t < x.shape[1]; ++t)
    for (int64_t i = 0; i < x.shape[2]; ++i)
      for (int64_t c = 0; c < x.shape[3]; ++c) y[t][i][c] = x(0, t, i, c);
  return y;
}

// Each head of y has a matrix of its own, or all have one.
Rows times(const Rows& x, const oracle::Dense& weight, int64_t heads) {
  Rows y(x.size(), Row(heads, Values(weight.shape[2])));
  for (size_t t = 0; t < x.size(); ++t)
    for (int64_t i = 0; i < heads; ++i)
      for (int64_t c = 0; c < weight.shape[2]; ++c)
        for (int64_t d = 0; d < weight.shape[1]; ++d)
          y[t][i][c] +=
              x[t][x[t].size() == 1 ? 0 : i][d] * weight(weight.shape[0] == 1 ? 0 : i, d, c);
  return y;
}

// The heads' products with their matrices, summed.
Rows summed(const Rows& x, const oracle::Dense& weight) {
  const Rows each = times(x, weight, static_cast<int64_t>(x[0].size()));
  Rows y(x.size(), Row(1, Values(weight.shape[2])));
  for (size_t t = 0; t < x.size(); ++t)
    for (const Values& head : each[t])
      for (size_t c = 0; c < head.size(); ++c) y[t][0][c] += head[c];
  return y;
}

Rows normed(Rows x, const oracle::Dense& weight) {
  for (Row& row : x)
    for (Values& head : row) {
      const double squares = std::inner_product(head.begin(), head.end(), head.begin(), 0.0);
      const double size = std::sqrt(squares / static_cast<double>(head.size()) + 1e-6);
      for (size_t c = 0; c < head.size(); ++c) head[c] *= weight(static_cast<int64_t>(c)) / size;
    }
  return x;
}

// Columns from `begin` on; pairs are neighbours, or halves of the columns.
Rows turned(Rows x, size_t begin, bool neighbours) {
  for (size_t t = 0; t < x.size(); ++t)
    for (Values& head : x[t]) {
      const size_t half = (head.size() - begin) / 2;
      for (size_t n = 0; n < half; ++n) {
        const double angle = static_cast<double>(t) *
                             std::pow(50, -static_cast<double>(n) / static_cast<double>(half));
        double& a = head[begin + (neighbours ? 2 * n : n)];
        double& b = head[begin + (neighbours ? 2 * n + 1 : n + half)];
        const double was = a;
        a = was * std::cos(angle) - b * std::sin(angle);
        b = b * std::cos(angle) + was * std::sin(angle);
      }
    }
  return x;
}

// Causal; one head of k and v serves all, or each has its own.
Rows attention(const Rows& q, const Rows& k, const Rows& v) {
  Rows o(q.size(), Row(q[0].size(), Values(v[0][0].size())));
  for (size_t t = 0; t < q.size(); ++t)
    for (size_t i = 0; i < q[t].size(); ++i) {
      const size_t g = k[0].size() == 1 ? 0 : i;
      double total = 0;
      for (size_t j = 0; j <= t; ++j) {
        const double score =
            std::inner_product(q[t][i].begin(), q[t][i].end(), k[j][g].begin(), 0.0);
        const double weight = std::exp(score / std::sqrt(static_cast<double>(q[t][i].size())));
        total += weight;
        for (size_t c = 0; c < v[j][g].size(); ++c) o[t][i][c] += weight * v[j][g][c];
      }
      for (double& y : o[t][i]) y /= total;
    }
  return o;
}

// Columns of a and of b, side by side.
Rows beside(Rows a, const Rows& b) {
  for (size_t t = 0; t < a.size(); ++t)
    for (size_t i = 0; i < a[t].size(); ++i)
      a[t][i].insert(a[t][i].end(), b[t][i].begin(), b[t][i].end());
  return a;
}

// 1 / rank times the sum over the ranks of the outer products.
Rows formed(const Rows& a, const Rows& b) {
  const size_t rank = b[0].size(), heads = a[0][0].size();
  Rows y(a.size(), Row(heads, Values(b[0][0].size())));
  for (size_t t = 0; t < a.size(); ++t)
    for (size_t r = 0; r < rank; ++r)
      for (size_t i = 0; i < heads; ++i)
        for (size_t c = 0; c < y[t][i].size(); ++c)
          y[t][i][c] += a[t][r][i] * b[t][r][c] / static_cast<double>(rank);
  return y;
}

// ---- the library's layers

// A map of the layer: columns from `turn` on are rotated where that is not negative.
struct Map {
  fovea_tensor x, weight, norm, y;
  int64_t turn = -1;
};

struct Gradient {
  fovea_tensor x, weight, norm;
};

class Layer {
 public:
  Layer(Room& room, bool neighbours) : neighbours_(neighbours), room_(room) {}
  virtual ~Layer() = default;

  // The rows that a model gives and its weights, in an order of the layer's own.
  std::vector<fovea_tensor> given;
  std::vector<const char*> names;
  // The hidden rows behind the layer, and the gradient of each of `given` of the sum of dy y.
  virtual fovea_tensor run() = 0;
  virtual std::vector<fovea_tensor> back(const fovea_tensor& dy) = 0;
  virtual Rows paper(const std::vector<oracle::Dense>& x) const = 0;

 protected:
  fovea_tensor take(const char* name, const std::vector<int64_t>& shape) {
    const double size = shape.size() == 3 ? 1 / std::sqrt(static_cast<double>(shape[1])) : 1;
    names.push_back(name), given.push_back(room_.some(shape, size));
    return given.back();
  }
  fovea_tensor rows(int64_t heads, int64_t width) {
    return room_.empty({1, kLength, heads, width});
  }
  fovea_tensor like(const fovea_tensor& x) {
    return room_.empty({x.shape[0], x.shape[1], x.shape[2], x.shape[3]});
  }
  // What both directions of a map have.
  template <class P>
  P params_of(const Map& m) {
    auto p = params<P>();
    p.x = m.x, p.weight = m.weight, p.norm_weight = m.norm;
    if (m.turn < 0) return p;
    const Turns& by = turns((m.weight.shape[2] - m.turn) / 2);
    p.cos = part(by.cos, 0, 0, kLength), p.sin = part(by.sin, 0, 0, kLength);
    p.rope_begin = static_cast<int32_t>(m.turn), p.rope_interleaved = neighbours_;
    return p;
  }
  fovea_tensor through(const Map& m) {
    auto p = params_of<fovea_x_project_forward_params>(m);
    p.y = m.y;
    harness::must(fovea_x_project_forward(room_.ctx, &p), "x_project_forward");
    return m.y;
  }
  Gradient back_through(const Map& m, const fovea_tensor& dy) {
    auto p = params_of<fovea_x_project_backward_params>(m);
    const int64_t* of = m.weight.shape;
    p.dy = dy, p.dx = like(m.x), p.dweight = room_.empty({of[0], of[1], of[2]}, FOVEA_F32);
    if (m.norm.data) p.dnorm_weight = room_.empty({m.norm.shape[0]}, FOVEA_F32);
    harness::must(fovea_x_project_backward(room_.ctx, &p), "x_project_backward");
    return {p.dx, p.dweight, p.dnorm_weight};
  }
  fovea_tensor sum(const std::vector<fovea_tensor>& parts) {
    auto p = params<fovea_x_combine_forward_params>();
    fovea_tensor* to[] = {&p.x, &p.x2, &p.x3, &p.x4};
    for (size_t n = 0; n < parts.size(); ++n) *to[n] = parts[n];
    p.y = like(parts[0]);
    harness::must(fovea_x_combine_forward(room_.ctx, &p), "x_combine_forward");
    return p.y;
  }
  // Attention by a method's name, and its gradients of q, k and v.
  void attend_by(const char* name, const fovea_tensor& q, const fovea_tensor& k,
                 const fovea_tensor& v) {
    auto& p = attention_ = params<fovea_attention_forward_params>();
    p.q = q, p.k = k, p.v = v, p.o = rows(q.shape[2], v.shape[3]);
    p.lse = room_.empty({1, q.shape[2], kLength}, FOVEA_F32);
    attend(room_, name, p);
  }
  std::array<fovea_tensor, 3> attend_back(const char* name, const fovea_tensor& dout) {
    const auto& of = attention_;
    auto p = params<fovea_attention_backward_params>();
    p.q = of.q, p.k = of.k, p.v = of.v, p.o = of.o, p.lse = of.lse, p.dout = dout;
    p.dq = like(p.q), p.dk = like(p.k), p.dv = like(p.v);
    harness::must(fovea_x_recipe_apply(name, "attention_backward", &p), name);
    harness::must(fovea_attention_backward(room_.ctx, &p), "attention_backward");
    return {p.dq, p.dk, p.dv};
  }

  const bool neighbours_;
  Room& room_;
  fovea_attention_forward_params attention_ = {};

 private:
  const Turns& turns(int64_t half) {
    for (const Turns& one : turns_)
      if (one.half == half) return one;
    turns_.emplace_back(room_, half);
    return turns_.back();
  }
  std::vector<Turns> turns_;
};

// DeepSeek-V2's equations 9 to 19, at the widths of its models.
class Mla : public Layer {
 public:
  explicit Mla(Room& room) : Layer(room, true) {
    const fovea_tensor x = take("x", {1, kLength, 1, kModel});
    const fovea_tensor w_dkv = take("w_dkv", {1, kModel, kRank}), norm = take("norm", {kRank});
    const fovea_tensor w_kr = take("w_kr", {1, kModel, kRope});
    const fovea_tensor w_uk = take("w_uk", {kHeads, kRank, kNope});
    const fovea_tensor w_uv = take("w_uv", {kHeads, kRank, kWidth});
    const fovea_tensor w_dq = take("w_dq", {1, kModel, kRankQ});
    const fovea_tensor norm_q = take("norm_q", {kRankQ});
    const fovea_tensor w_uq = take("w_uq", {kHeads, kRankQ, kNope + kRope});
    const fovea_tensor w_o = take("w_o", {kHeads, kWidth, kModel});
    q_ = rows(kHeads, kNope + kRope), k_ = rows(kHeads, kNope + kRope), v_ = rows(kHeads, kWidth);
    latent_ = {x, w_dkv, norm, rows(1, kRank)}, low_ = {x, w_dq, norm_q, rows(1, kRankQ)};
    // One rotated part for all heads: one map, whose rows each head has.
    k_rope_ = {x, w_kr, {}, part(k_, 3, kNope, kRope), 0};
    k_nope_ = {latent_.y, w_uk, {}, part(k_, 3, 0, kNope)}, value_ = {latent_.y, w_uv, {}, v_};
    query_ = {low_.y, w_uq, {}, q_, kNope}, out_ = {{}, w_o, {}, rows(1, kModel)};
  }
  fovea_tensor run() override {
    for (const Map* m : {&latent_, &low_, &k_rope_, &k_nope_, &value_, &query_}) through(*m);
    attend_by("mla", q_, k_, v_);
    out_.x = attention_.o;
    return through(out_);
  }
  std::vector<fovea_tensor> back(const fovea_tensor& dy) override {
    const Gradient o = back_through(out_, dy);
    const auto [dq, dk, dv] = attend_back("mla", o.x);
    const Gradient query = back_through(query_, dq), value = back_through(value_, dv);
    const Gradient nope = back_through(k_nope_, part(dk, 3, 0, kNope));
    const Gradient rope = back_through(k_rope_, part(dk, 3, kNope, kRope));
    const Gradient latent = back_through(latent_, sum({nope.x, value.x}));
    const Gradient low = back_through(low_, query.x);
    return {sum({latent.x, rope.x, low.x}),
            latent.weight,
            latent.norm,
            rope.weight,
            nope.weight,
            value.weight,
            low.weight,
            low.norm,
            query.weight,
            o.weight};
  }
  Rows paper(const std::vector<oracle::Dense>& x) const override {
    const Rows hidden = rows_of(x[0]);
    const Rows c = normed(times(hidden, x[1], 1), x[2]);
    const Rows k = beside(times(c, x[4], kHeads), turned(times(hidden, x[3], kHeads), 0, true));
    const Rows low = normed(times(hidden, x[6], 1), x[7]);
    const Rows q = turned(times(low, x[8], kHeads), kNope, true);
    return summed(attention(q, k, times(c, x[5], kHeads)), x[9]);
  }

 private:
  static constexpr int64_t kHeads = 2, kNope = 128, kRope = 64, kWidth = 128, kRank = 24,
                           kRankQ = 16;
  fovea_tensor q_, k_, v_;
  Map latent_, low_, k_rope_, k_nope_, value_, query_, out_;
};

// MFA, section 3: one key head, and query heads through a low rank.
class Mfa : public Layer {
 public:
  explicit Mfa(Room& room) : Layer(room, false) {
    const fovea_tensor x = take("x", {1, kLength, 1, kModel});
    const fovea_tensor w_down = take("w_down", {1, kModel, kRank}), norm = take("norm", {kRank});
    const fovea_tensor w_up = take("w_up", {kHeads, kRank, kWidth});
    const fovea_tensor w_k = take("w_k", {1, kModel, kWidth});
    const fovea_tensor w_v = take("w_v", {1, kModel, kWidth});
    const fovea_tensor w_o = take("w_o", {kHeads, kWidth, kModel});
    low_ = {x, w_down, norm, rows(1, kRank)}, query_ = {low_.y, w_up, {}, rows(kHeads, kWidth), 0};
    key_ = {x, w_k, {}, rows(1, kWidth), 0}, value_ = {x, w_v, {}, rows(1, kWidth)};
    out_ = {{}, w_o, {}, rows(1, kModel)};
  }
  fovea_tensor run() override {
    for (const Map* m : {&low_, &query_, &key_, &value_}) through(*m);
    attend_by("mfa", query_.y, key_.y, value_.y);
    out_.x = attention_.o;
    return through(out_);
  }
  std::vector<fovea_tensor> back(const fovea_tensor& dy) override {
    const Gradient o = back_through(out_, dy);
    const auto [dq, dk, dv] = attend_back("mfa", o.x);
    const Gradient query = back_through(query_, dq), key = back_through(key_, dk);
    const Gradient value = back_through(value_, dv), low = back_through(low_, query.x);
    return {sum({low.x, key.x, value.x}),
            low.weight,
            low.norm,
            query.weight,
            key.weight,
            value.weight,
            o.weight};
  }
  Rows paper(const std::vector<oracle::Dense>& x) const override {
    const Rows hidden = rows_of(x[0]), low = normed(times(hidden, x[1], 1), x[2]);
    const Rows q = turned(times(low, x[3], kHeads), 0, false);
    const Rows k = turned(times(hidden, x[4], 1), 0, false);
    return summed(attention(q, k, times(hidden, x[5], 1)), x[6]);
  }

 private:
  static constexpr int64_t kHeads = 4, kWidth = 256, kRank = 24;
  Map low_, query_, key_, value_, out_;
};

// TPA, section 3: factors of every token are maps of it, and rows of b_q and b_k are rotated.
class Tpa : public Layer {
 public:
  explicit Tpa(Room& room) : Layer(room, false) {
    const fovea_tensor x = take("x", {1, kLength, 1, kModel});
    const char* const weights[] = {"w_aq", "w_bq", "w_ak", "w_bk", "w_av", "w_bv"};
    for (size_t n = 0; n < 6; ++n) {
      const int64_t rank = n < 2 ? kRankQ : kRank, width = n % 2 ? kWidth : kHeads;
      const fovea_tensor weight = take(weights[n], {rank, kModel, width});
      factor_[n] = {x, weight, {}, rows(rank, width), n == 1 || n == 3 ? 0 : -1};
    }
    out_ = {rows(kHeads, kWidth), take("w_o", {kHeads, kWidth, kModel}), {}, rows(1, kModel)};
    lse_ = room_.empty({1, kHeads, kLength}, FOVEA_F32);
  }
  fovea_tensor run() override {
    for (const Map& m : factor_) through(m);
    auto p = factors<fovea_x_tpa_forward_params>();
    p.o = out_.x, p.lse = lse_;
    harness::must(fovea_x_recipe_apply("tpa", "x_tpa_forward", &p), "tpa");
    harness::must(fovea_x_tpa_forward(room_.ctx, &p), "x_tpa_forward");
    return through(out_);
  }
  std::vector<fovea_tensor> back(const fovea_tensor& dy) override {
    const Gradient o = back_through(out_, dy);
    auto p = factors<fovea_x_tpa_backward_params>();
    p.o = out_.x, p.lse = lse_, p.dout = o.x;
    fovea_tensor* const to[] = {&p.da_q, &p.db_q, &p.da_k, &p.db_k, &p.da_v, &p.db_v};
    for (size_t n = 0; n < 6; ++n) *to[n] = like(factor_[n].y);
    harness::must(fovea_x_recipe_apply("tpa", "x_tpa_backward", &p), "tpa");
    harness::must(fovea_x_tpa_backward(room_.ctx, &p), "x_tpa_backward");
    std::vector<fovea_tensor> hidden, all(1);
    for (size_t n = 0; n < 6; ++n) {
      const Gradient one = back_through(factor_[n], *to[n]);
      hidden.push_back(one.x), all.push_back(one.weight);
    }
    all[0] = sum({sum({hidden[0], hidden[1], hidden[2]}), hidden[3], hidden[4], hidden[5]});
    all.push_back(o.weight);
    return all;
  }
  Rows paper(const std::vector<oracle::Dense>& x) const override {
    const Rows hidden = rows_of(x[0]);
    const auto heads = [&](size_t n, int64_t rank, bool turn) {
      const Rows b = times(hidden, x[n + 1], rank);
      return formed(times(hidden, x[n], rank), turn ? turned(b, 0, false) : b);
    };
    return summed(attention(heads(1, kRankQ, true), heads(3, kRank, true), heads(5, kRank, false)),
                  x[7]);
  }

 private:
  static constexpr int64_t kHeads = 5, kWidth = 32, kRankQ = 3, kRank = 2;
  template <class P>
  P factors() const {
    auto p = params<P>();
    p.a_q = factor_[0].y, p.b_q = factor_[1].y, p.a_k = factor_[2].y;
    p.b_k = factor_[3].y, p.a_v = factor_[4].y, p.b_v = factor_[5].y;
    return p;
  }
  std::array<Map, 6> factor_;
  Map out_;
  fovea_tensor lse_;
};

template <class Of>
void expect_trains() {
  each_room([](Room& room) {
    Of layer(room);
    std::vector<oracle::Dense> given;
    for (const fovea_tensor& x : layer.given) given.push_back(room.values(x));
    const oracle::Dense y = room.values(layer.run());
    Values wanted;
    for (const Row& row : layer.paper(given))
      wanted.insert(wanted.end(), row[0].begin(), row[0].end());
    expect_near("y", y.value, wanted, 16 * room.unit());
    const fovea_tensor dy = room.some({1, kLength, 1, kModel});
    const Values weight = room.values(dy).value;
    const auto loss = [&] {
      double sum = 0;
      size_t n = 0;
      for (const Row& row : layer.paper(given))
        for (const double one : row[0]) sum += one * weight[n++];
      return sum;
    };
    const std::vector<fovea_tensor> gradients = layer.back(dy);
    ASSERT_EQ(gradients.size(), given.size());
    for (size_t n = 0; n < given.size(); ++n) {
      const Values gradient = room.values(gradients[n]).value;
      double largest = 0;
      for (const double one : gradient) largest = std::max(largest, std::abs(one));
      ASSERT_GT(largest, 0.1) << layer.names[n];
      properties::expect_derivative(layer.names[n], given[n], gradient, loss,
                                    16 * room.unit() * largest, 7);
    }
  });
}

TEST(compact_training, latents) {
  expect_trains<Mla>();
}
TEST(compact_training, one_head_of_many) {
  expect_trains<Mfa>();
}
TEST(compact_training, outer_products) {
  expect_trains<Tpa>();
}

}  // namespace
