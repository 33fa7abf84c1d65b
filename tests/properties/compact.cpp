// SPDX-License-Identifier: Apache-2.0
// Compact attention through the library's own chains, under tables that turn by real angles: a
// prompt, its chunks and its steps give the same rows; absorbed and expanded latents and outer
// products give the paper's rows, formed here in float64 from what is stored; their gradients are
// its derivatives.
#include "properties/compact.h"

#include <array>
#include <numeric>

namespace {

using namespace properties::compact;
using properties::Values;

// ---- latents

class Latents {
 public:
  static constexpr int64_t kHeads = 5, kNope = 16, kRope = 8, kRank = 32, kWidth = 24;
  static constexpr int64_t kPage = 8, kPages = 5;
  static constexpr float kScale = 0.20412414523f;  // 1 / sqrt(16 + 8)

  explicit Latents(Room& room)
      : room_(room),
        turns_(room, kRope / 2),
        raw_(room.some({1, kTokens, 1, kRank + kRope})),
        norm_(room.some({kRank})),
        q_nope_(room.some({1, kTokens, kHeads, kNope})),
        q_rope_(room.some({1, kTokens, kHeads, kRope})),
        w_uk_(room.some({kHeads, kRank, kNope}, 0.2)),
        w_uv_(room.some({kHeads, kRank, kWidth}, 0.2)),
        cache_(room.empty({1, kTokens, 1, kRank + kRope})),
        pool_(room.empty({kPages, kPage, 1, kRank + kRope})) {
    Values places;
    for (int64_t n = 0; n < kPages; ++n) places.push_back(static_cast<double>(n * 3 % kPages));
    page_table_ = room.fill({1, kPages}, FOVEA_I32, places);
  }

  // o and lse of tokens by the cache of latents, in calls of so many tokens.
  std::pair<Values, Values> absorbed(const std::vector<int64_t>& calls, bool paged = false) {
    const fovea_tensor o = room_.empty({1, kTokens, kHeads, kWidth});
    const fovea_tensor lse = room_.empty({1, kHeads, kTokens}, FOVEA_F32);
    int64_t begin = 0;
    for (const int64_t s : calls) {
      append(begin, s, paged);
      const fovea_tensor q = room_.empty({1, s, kHeads, kRank + kRope});
      const fovea_tensor latent = room_.empty({1, s, kHeads, kRank});
      project(room_, part(q_nope_, 1, begin, s), swapped(w_uk_, 1, 2), part(q, 3, 0, kRank));
      turns_.rotate(room_, part(q_rope_, 1, begin, s), part(q, 3, kRank, kRope), begin, 1);
      auto p = params<fovea_attention_forward_params>();
      p.q = q, p.k = paged ? pool_ : cache_, p.v = part(p.k, 3, 0, kRank), p.o = latent;
      if (paged) p.page_table = page_table_;
      p.lse = part(lse, 2, begin, s), p.key_len = room_.lengths(begin + s);
      attend(room_, "mla_absorbed", p, kScale);
      project(room_, latent, w_uv_, part(o, 1, begin, s));
      begin += s;
    }
    return {room_.values(o).value, room_.values(lse).value};
  }
  // The prompt by keys and values of each head.
  std::pair<Values, Values> expanded() {
    const auto p = prompt();
    return {room_.values(p.o).value, room_.values(p.lse).value};
  }
  fovea_attention_forward_params prompt() {
    append(0, kTokens, false);
    const fovea_tensor q = room_.empty({1, kTokens, kHeads, kNope + kRope}), k = like(q);
    const fovea_tensor v = room_.empty({1, kTokens, kHeads, kWidth}), o = like(v);
    const fovea_tensor latent = part(cache_, 3, 0, kRank);
    project(room_, latent, w_uk_, part(k, 3, 0, kNope));
    project(room_, latent, w_uv_, v);
    copy(for_heads(part(cache_, 3, kRank, kRope), kHeads), part(k, 3, kNope, kRope));
    copy(q_nope_, part(q, 3, 0, kNope));
    turns_.rotate(room_, q_rope_, part(q, 3, kNope, kRope), 0, 1);
    auto p = params<fovea_attention_forward_params>();
    p.q = q, p.k = k, p.v = v, p.o = o, p.lse = room_.empty({1, kHeads, kTokens}, FOVEA_F32);
    attend(room_, "mla", p);
    return p;
  }
  // The last rows of the prompt, over the expanded keys in parts: those before the rows without a
  // mask, then the rows' own.  The parts are merged.
  std::pair<Values, Values> expanded_in_parts(const std::vector<int64_t>& parts) {
    const auto whole = prompt();
    const int64_t s = parts.back(), n = static_cast<int64_t>(parts.size());
    const fovea_tensor o_part = room_.empty({n, 1, s, kHeads, kWidth}, FOVEA_F32);
    const fovea_tensor lse_part = room_.empty({n, 1, kHeads, s}, FOVEA_F32);
    int64_t begin = 0;
    for (int64_t i = 0; i < n; ++i) {
      auto p = params<fovea_attention_forward_params>();
      p.q = part(whole.q, 1, kTokens - s, s), p.k = part(whole.k, 1, begin, parts[i]);
      p.v = part(whole.v, 1, begin, parts[i]);
      p.o = entry(o_part, i), p.lse = entry(lse_part, i);
      if (i + 1 == n) {
        attend(room_, "mla", p);
      } else {
        harness::must(fovea_attention_forward(room_.ctx, &p), "attention_forward");
      }
      begin += parts[i];
    }
    auto p = params<fovea_merge_forward_params>();
    p.o_part = o_part, p.lse_part = lse_part, p.o = room_.empty({1, s, kHeads, kWidth});
    p.lse = room_.empty({1, kHeads, s}, FOVEA_F32);
    harness::must(fovea_merge_forward(room_.ctx, &p), "merge_forward");
    return {room_.values(p.o).value, room_.values(p.lse).value};
  }
  // Of the sum of dout o: by q_nope, w_uk and w_uv.
  struct Gradients {
    oracle::Dense q, w_uk, w_uv;
  };
  Gradients gradients(const fovea_tensor& dout) {
    const auto forward = prompt();
    auto p = params<fovea_attention_backward_params>();
    p.q = forward.q, p.k = forward.k, p.v = forward.v, p.o = forward.o, p.lse = forward.lse;
    p.dout = dout, p.dq = like(p.q), p.dk = like(p.k), p.dv = like(p.v);
    harness::must(fovea_x_recipe_apply("mla", "attention_backward", &p), "mla");
    harness::must(fovea_attention_backward(room_.ctx, &p), "attention_backward");
    const auto through = [&](const fovea_tensor& weight, const fovea_tensor& dy) {
      auto back = params<fovea_x_project_backward_params>();
      back.x = part(cache_, 3, 0, kRank), back.weight = weight, back.dy = dy;
      back.dweight = room_.empty({kHeads, kRank, weight.shape[2]}, FOVEA_F32);
      harness::must(fovea_x_project_backward(room_.ctx, &back), "x_project_backward");
      return room_.values(back.dweight);
    };
    return {room_.values(part(p.dq, 3, 0, kNope)), through(w_uk_, part(p.dk, 3, 0, kNope)),
            through(w_uv_, p.dv)};
  }
  // What the layers give.
  struct Given {
    oracle::Dense raw, norm, q_nope, q_rope, w_uk, w_uv;
  };
  Given given() const {
    return {room_.values(raw_),    room_.values(norm_), room_.values(q_nope_),
            room_.values(q_rope_), room_.values(w_uk_), room_.values(w_uv_)};
  }
  // DeepSeek-V2's equations 9 to 18 in float64.
  static std::pair<Values, Values> paper(const Given& x) {
    Values o, lse(kHeads * kTokens);
    for (int64_t i = 0; i < kTokens; ++i)
      for (int64_t head = 0; head < kHeads; ++head) {
        Values sum(kWidth);
        double total = 0;
        for (int64_t j = 0; j <= i; ++j) {
          double squares = 0, score = 0;
          for (int64_t r = 0; r < kRank; ++r) squares += x.raw(0, j, 0, r) * x.raw(0, j, 0, r);
          const double size = 1 / std::sqrt(squares / static_cast<double>(kRank) + 1e-6);
          const auto c = [&](int64_t r) { return x.raw(0, j, 0, r) * size * x.norm(r); };
          const auto through = [&](const oracle::Dense& weight, int64_t column) {
            double sum_of = 0;
            for (int64_t r = 0; r < kRank; ++r) sum_of += c(r) * weight(head, r, column);
            return sum_of;
          };
          for (int64_t n = 0; n < kNope; ++n) score += x.q_nope(0, i, head, n) * through(x.w_uk, n);
          // Rotations by i and j multiply to one by i - j.
          for (int64_t n = 0; n < kRope / 2; ++n) {
            const double angle =
                static_cast<double>(i - j) * std::pow(50, -static_cast<double>(n) / (kRope / 2));
            const double a = x.q_rope(0, i, head, 2 * n), b = x.q_rope(0, i, head, 2 * n + 1);
            const double u = x.raw(0, j, 0, kRank + 2 * n), w = x.raw(0, j, 0, kRank + 2 * n + 1);
            score += std::cos(angle) * (a * u + b * w) + std::sin(angle) * (a * w - b * u);
          }
          const double weight = std::exp(score / std::sqrt(static_cast<double>(kNope + kRope)));
          total += weight;
          for (int64_t n = 0; n < kWidth; ++n) sum[n] += weight * through(x.w_uv, n);
        }
        for (const double one : sum) o.push_back(one / total);
        lse[head * kTokens + i] = std::log(total);
      }
    return {o, lse};
  }

 private:
  // Tokens into the cache: the norm of the latent, the rotation of the other part.
  void append(int64_t begin, int64_t s, bool paged) {
    auto p = params<fovea_cache_append_params>();
    p.k_new = part(raw_, 1, begin, s), p.key_len = room_.lengths(begin);
    p.k = paged ? pool_ : cache_;
    if (paged) p.page_table = page_table_;
    p.norm_weight = norm_, p.cos = turns_.cos, p.sin = turns_.sin;
    p.rope_begin = kRank, p.rope_interleaved = 1;
    harness::must(fovea_cache_append(room_.ctx, &p), "cache_append");
  }
  fovea_tensor like(const fovea_tensor& x) {
    return room_.empty({x.shape[0], x.shape[1], x.shape[2], x.shape[3]});
  }
  // Through a rotation by nothing.
  void copy(const fovea_tensor& x, const fovea_tensor& y) {
    auto p = params<fovea_rope_forward_params>();
    p.x = x, p.y = y;
    p.cos = part(turns_.cos, 1, 0, 0), p.sin = part(turns_.sin, 1, 0, 0);
    harness::must(fovea_rope_forward(room_.ctx, &p), "rope_forward");
  }

  Room& room_;
  const Turns turns_;
  const fovea_tensor raw_, norm_, q_nope_, q_rope_, w_uk_, w_uv_, cache_, pool_;
  fovea_tensor page_table_;
};

TEST(compact, absorbed_latents_are_expanded_ones_and_the_papers) {
  each_room([](Room& room) {
    Latents model(room);
    const auto [paper, paper_lse] = Latents::paper(model.given());
    const auto [one, one_lse] = model.expanded();
    const auto [two, two_lse] = model.absorbed({kTokens});
    const double unit = 8 * room.unit();
    expect_near("expanded", one, paper, unit), expect_near("lse", one_lse, paper_lse, unit);
    expect_near("absorbed", two, paper, unit), expect_near("lse", two_lse, paper_lse, unit);
    expect_near("both", two, one, unit);
  });
}

// A chunk of rows behind a long prefix, whose keys are expanded a part at a time.
TEST(compact, parts_of_expanded_latents_merge_to_the_prompt) {
  each_room([](Room& room) {
    Latents model(room);
    const auto [whole, lse] = model.expanded();
    const std::vector<int64_t> parts = {16, 12, kTokens - 28};
    const auto [o, own] = model.expanded_in_parts(parts);
    expect_near("o", o, Values(whole.end() - static_cast<int64_t>(o.size()), whole.end()),
                4 * room.unit());
    Values last;
    for (int64_t head = 0; head < Latents::kHeads; ++head)
      for (int64_t i = kTokens - parts.back(); i < kTokens; ++i)
        last.push_back(lse[head * kTokens + i]);
    expect_near("lse", own, last, 0x1p-15);
  });
}

TEST(compact, latents_in_chunks_and_steps_are_the_prompt) {
  each_room([](Room& room) {
    Latents model(room);
    const auto [whole, lse] = model.absorbed(kCuts[0]);
    for (const bool paged : {false, true})
      for (const auto& cuts : kCuts) {
        const auto [o, own] = model.absorbed(cuts, paged);
        expect_near("o", o, whole, 4 * room.unit());
        expect_near("lse", own, lse, 0x1p-15);
      }
  });
}

TEST(compact, gradients_of_expanded_latents_are_the_papers_derivatives) {
  for (const fovea_backend backend : harness::backends()) {
    SCOPED_TRACE(harness::name_of(backend));
    Room room(backend, FOVEA_F32);
    Latents model(room);
    const fovea_tensor to = room.some({1, kTokens, Latents::kHeads, Latents::kWidth});
    const oracle::Dense dout = room.values(to);
    const Latents::Gradients got = model.gradients(to);
    Latents::Given given = model.given();
    const auto loss = [&] {
      const Values o = Latents::paper(given).first;
      return std::inner_product(o.begin(), o.end(), dout.value.begin(), 0.0);
    };
    const auto expect = [&](const char* name, oracle::Dense& x, const oracle::Dense& gradient) {
      properties::expect_derivative(name, x, gradient.value, loss, 2e-5, 5);
    };
    expect("q_nope", given.q_nope, got.q), expect("w_uk", given.w_uk, got.w_uk);
    expect("w_uv", given.w_uv, got.w_uv);
  }
}

// ---- heads of keys and values

// A layer of a method: its cache is appended to in calls of so many tokens.
class Heads {
 public:
  static constexpr int64_t kHeads = 6, kWidth = 16, kRank = 24;

  Heads(Room& room, const char* recipe, int64_t groups)
      : room_(room),
        recipe_(recipe),
        reuses_(std::string(recipe) == "mfa_kr"),
        turns_(room, kWidth / 2),
        low_(room.some({1, kTokens, 1, kRank})),
        w_up_(room.some({kHeads, kRank, kWidth}, 0.2)),
        k_new_(room.some({1, kTokens, groups, kWidth})),
        v_new_(room.some({1, kTokens, groups, kWidth})),
        m_(room.some({1, kWidth, kWidth}, 0.3)),
        k_(room.empty({1, kTokens, groups, kWidth})),
        v_(room.empty({1, kTokens, groups, kWidth})) {}

  Values run(const std::vector<int64_t>& calls) {
    const fovea_tensor o = room_.empty({1, kTokens, kHeads, kWidth});
    int64_t begin = 0;
    for (const int64_t s : calls) {
      auto add = params<fovea_cache_append_params>();
      add.k_new = part(k_new_, 1, begin, s), add.k = k_, add.key_len = room_.lengths(begin);
      if (!reuses_) {
        add.v_new = part(v_new_, 1, begin, s), add.v = v_;
        add.cos = turns_.cos, add.sin = turns_.sin;
      }
      harness::must(fovea_cache_append(room_.ctx, &add), "cache_append");
      auto p = params<fovea_attention_forward_params>();
      p.q = queries(begin, s), p.k = k_, p.v = reuses_ ? k_ : v_, p.o = part(o, 1, begin, s);
      p.key_len = room_.lengths(begin + s);
      if (reuses_) p.cos = turns_.cos, p.sin = turns_.sin;
      attend(room_, recipe_, p);
      begin += s;
    }
    if (!reuses_) return room_.values(o).value;
    const fovea_tensor y = room_.empty({1, kTokens, kHeads, kWidth});
    project(room_, o, m_, y);
    return room_.values(y).value;
  }
  // The prompt with rotated keys and values that are stored, each head its own.
  Values repeated() {
    const int64_t groups = k_new_.shape[2];
    const fovea_tensor k = room_.empty({1, kTokens, kHeads, kWidth});
    const fovea_tensor v = room_.empty({1, kTokens, kHeads, kWidth});
    const int64_t each = kHeads / groups;
    for (int64_t g = 0; g < groups; ++g) {
      const fovea_tensor to = part(k, 2, g * each, each), values = part(v, 2, g * each, each);
      turns_.rotate(room_, for_heads(part(k_new_, 2, g, 1), each), to, 0, 0);
      if (reuses_)
        project(room_, part(k_new_, 2, g, 1), m_, part(values, 2, 0, 1));
      else
        project(room_, part(v_new_, 2, g, 1), identity(), part(values, 2, 0, 1));
      for (int64_t n = 1; n < each; ++n)
        project(room_, part(values, 2, 0, 1), identity(), part(values, 2, n, 1));
    }
    auto p = params<fovea_attention_forward_params>();
    p.q = queries(0, kTokens), p.k = k, p.v = v;
    p.o = room_.empty({1, kTokens, kHeads, kWidth});
    attend(room_, "mha", p);
    return room_.values(p.o).value;
  }

 private:
  // Up-projections of the low-rank query, rotated.
  fovea_tensor queries(int64_t begin, int64_t s) {
    auto p = params<fovea_x_project_forward_params>();
    p.x = part(low_, 1, begin, s), p.weight = w_up_;
    p.y = room_.empty({1, s, kHeads, kWidth});
    p.cos = part(turns_.cos, 0, begin, s), p.sin = part(turns_.sin, 0, begin, s);
    harness::must(fovea_x_project_forward(room_.ctx, &p), "x_project_forward");
    return p.y;
  }
  fovea_tensor identity() {
    Values x(kWidth * kWidth);
    for (int64_t n = 0; n < kWidth; ++n) x[n * kWidth + n] = 1;
    return room_.fill({1, kWidth, kWidth}, room_.dtype, x);
  }

  Room& room_;
  const char* const recipe_;
  const bool reuses_;
  const Turns turns_;
  const fovea_tensor low_, w_up_, k_new_, v_new_, m_, k_, v_;
};

TEST(compact, heads_in_chunks_and_steps_are_the_prompt_and_repeated_heads) {
  const std::pair<const char*, int64_t> methods[] = {{"mha", 6}, {"mqa", 1}, {"gqa", 2},
                                                     {"gqa", 3}, {"mfa", 1}, {"mfa_kr", 1}};
  for (const auto& [recipe, groups] : methods) {
    SCOPED_TRACE(recipe);
    each_room([recipe = recipe, groups = groups](Room& room) {
      Heads model(room, recipe, groups);
      const Values whole = model.run(kCuts[0]);
      for (const auto& cuts : kCuts) expect_near("cuts", model.run(cuts), whole, 4 * room.unit());
      expect_near("repeated", whole, model.repeated(), 8 * room.unit());
    });
  }
}

// ---- latents that an index chooses

// DSA over latents: one head of 40 columns, whose first 32 are the values.  The indexer's scores
// are integers, so that every cut chooses the same keys.
class Chosen {
 public:
  static constexpr int64_t kHeads = 5, kRank = 32, kWidth = 40, kIndexHeads = 4, kIndexWidth = 16;
  static constexpr int64_t kCount = 6, kPage = 8, kPages = 5;

  explicit Chosen(Room& room)
      : room_(room),
        q_(room.some({1, kTokens, kHeads, kWidth})),
        k_new_(room.some({1, kTokens, 1, kWidth})),
        index_q_(whole({1, kTokens, kIndexHeads, kIndexWidth}, room.dtype)),
        index_new_(whole({1, kTokens, 1, kIndexWidth}, room.dtype)),
        weight_(whole({1, kTokens, kIndexHeads}, FOVEA_F32)),
        index(room.empty({1, 1, kTokens, kCount}, FOVEA_I32)) {
    Values places;
    for (int64_t n = 0; n < kPages; ++n) places.push_back(static_cast<double>(n * 3 % kPages));
    page_table_ = room.fill({1, kPages}, FOVEA_I32, places);
  }

  // o and lse of tokens, in calls of so many.
  std::pair<Values, Values> run(const std::vector<int64_t>& calls, bool paged) {
    const auto cache = [&](int64_t width) {
      return paged ? room_.empty({kPages, kPage, 1, width}) : room_.empty({1, kTokens, 1, width});
    };
    const fovea_tensor k = cache(kWidth), index_k = cache(kIndexWidth);
    const fovea_tensor o = room_.empty({1, kTokens, kHeads, kRank});
    const fovea_tensor lse = room_.empty({1, kHeads, kTokens}, FOVEA_F32);
    int64_t begin = 0;
    for (const int64_t s : calls) {
      auto add = params<fovea_cache_append_params>();
      add.k_new = part(k_new_, 1, begin, s), add.v_new = part(index_new_, 1, begin, s);
      add.k = k, add.v = index_k, add.key_len = room_.lengths(begin);
      if (paged) add.page_table = page_table_;
      harness::must(fovea_cache_append(room_.ctx, &add), "cache_append");
      auto p = params<fovea_x_indexed_forward_params>();
      p.q = part(q_, 1, begin, s), p.k = k, p.v = part(k, 3, 0, kRank);
      p.o = part(o, 1, begin, s), p.lse = part(lse, 2, begin, s);
      p.index_q = part(index_q_, 1, begin, s), p.index_k = index_k;
      p.weight = part(weight_, 1, begin, s), p.index = part(index, 2, begin, s);
      p.key_len = room_.lengths(begin + s);
      if (paged) p.page_table = page_table_;
      harness::must(fovea_x_recipe_apply("dsa", "x_indexed_forward", &p), "dsa");
      p.count = kCount;
      harness::must(fovea_x_indexed_forward(room_.ctx, &p), "x_indexed_forward");
      begin += s;
    }
    return {room_.values(o).value, room_.values(lse).value};
  }

  // DSA's equations 1 and 2 in float64.
  std::pair<Values, Values> paper() const {
    const oracle::Dense q = room_.values(q_), k = room_.values(k_new_),
                        weight = room_.values(weight_), ask = room_.values(index_q_),
                        key = room_.values(index_new_);
    Values o, lse(kHeads * kTokens);
    for (int64_t i = 0; i < kTokens; ++i) {
      std::vector<std::pair<double, int64_t>> rated;
      for (int64_t j = 0; j <= i; ++j) {
        double score = 0;
        for (int64_t n = 0; n < kIndexHeads; ++n)
          score +=
              weight(0, i, n) *
              std::max(0.0, std::inner_product(ask.row(0, i, n), ask.row(0, i, n) + kIndexWidth,
                                               key.row(0, j, 0), 0.0));
        rated.emplace_back(-score, j);
      }
      std::sort(rated.begin(), rated.end());
      rated.resize(std::min<size_t>(rated.size(), kCount));
      for (int64_t head = 0; head < kHeads; ++head) {
        Values sum(kRank);
        double total = 0;
        for (const auto& [score, j] : rated) {
          const double x = std::inner_product(q.row(0, i, head), q.row(0, i, head) + kWidth,
                                              k.row(0, j, 0), 0.0);
          const double p = std::exp(x / std::sqrt(static_cast<double>(kWidth)));
          total += p;
          for (int64_t c = 0; c < kRank; ++c) sum[c] += p * k(0, j, 0, c);
        }
        for (const double one : sum) o.push_back(one / total);
        lse[head * kTokens + i] = std::log(total);
      }
    }
    return {o, lse};
  }

 private:
  // Integers of at most 2.
  fovea_tensor whole(const std::vector<int64_t>& shape, int type) {
    Values x = room_.values(room_.some(shape, 1.2)).value;
    for (double& one : x) one = std::clamp(std::round(one), -2.0, 2.0);
    return room_.fill(shape, type, x);
  }

  Room& room_;
  const fovea_tensor q_, k_new_, index_q_, index_new_, weight_;
  fovea_tensor page_table_;

 public:
  const fovea_tensor index;  // of the last run
};

TEST(compact, chosen_latents_in_chunks_and_steps_are_the_prompt_and_the_papers) {
  each_room([](Room& room) {
    Chosen model(room);
    const auto [whole, lse] = model.run(kCuts[0], false);
    const Values list = room.values(model.index).value;
    const auto [paper, paper_lse] = model.paper();
    expect_near("prompt", whole, paper, 8 * room.unit());
    expect_near("lse", lse, paper_lse, 8 * room.unit());
    for (const bool paged : {false, true})
      for (const auto& cuts : kCuts) {
        const auto [o, own] = model.run(cuts, paged);
        expect_near("o", o, whole, 4 * room.unit());
        expect_near("lse", own, lse, 0x1p-15);
        EXPECT_EQ(room.values(model.index).value, list);
      }
  });
}

// ---- outer products

class Products {
 public:
  static constexpr int64_t kHeads = 6, kWidth = 16, kValues = 24, kPage = 8, kPages = 5;
  static constexpr int64_t kRankQ = 3, kRankK = 2, kRankV = 2;

  explicit Products(Room& room)
      : room_(room),
        turns_(room, kWidth / 2),
        a_q_(room.some({1, kTokens, kRankQ, kHeads})),
        b_q_(room.some({1, kTokens, kRankQ, kWidth})),
        a_k_(room.some({1, kTokens, kRankK, kHeads})),
        b_k_(room.some({1, kTokens, kRankK, kWidth})),
        a_v_(room.some({1, kTokens, kRankV, kHeads})),
        b_v_(room.some({1, kTokens, kRankV, kValues})) {
    Values places;
    for (int64_t n = 0; n < kPages; ++n) places.push_back(static_cast<double>(n * 3 % kPages));
    page_table_ = room.fill({1, kPages}, FOVEA_I32, places);
  }

  // o and lse of tokens, whose factors are appended in calls of so many.
  std::pair<Values, Values> run(const std::vector<int64_t>& calls, bool paged = false) {
    const auto cache = [&](int64_t rank, int64_t width) {
      return paged ? room_.empty({kPages, kPage, rank, width})
                   : room_.empty({1, kTokens, rank, width});
    };
    const fovea_tensor a_k = cache(kRankK, kHeads), b_k = cache(kRankK, kWidth);
    const fovea_tensor a_v = cache(kRankV, kHeads), b_v = cache(kRankV, kValues);
    const fovea_tensor o = room_.empty({1, kTokens, kHeads, kValues});
    const fovea_tensor lse = room_.empty({1, kHeads, kTokens}, FOVEA_F32);
    int64_t begin = 0;
    for (const int64_t s : calls) {
      append(begin, s, paged, {a_k_, a_v_}, {a_k, a_v}, false);
      append(begin, s, paged, {b_k_, b_v_}, {b_k, b_v}, true);
      auto p = params<fovea_x_tpa_forward_params>();
      p.a_k = a_k, p.b_k = b_k, p.a_v = a_v, p.b_v = b_v;
      p.a_q = part(a_q_, 1, begin, s), p.b_q = turned(part(b_q_, 1, begin, s), begin);
      p.o = part(o, 1, begin, s), p.lse = part(lse, 2, begin, s);
      p.key_len = room_.lengths(begin + s);
      if (paged) p.page_table = page_table_;
      harness::must(fovea_x_recipe_apply("tpa", "x_tpa_forward", &p), "tpa");
      harness::must(fovea_x_tpa_forward(room_.ctx, &p), "x_tpa_forward");
      begin += s;
    }
    return {room_.values(o).value, room_.values(lse).value};
  }

  // What the layers give, and the gradients of the sum of dout o: factors in that order.
  struct Factors {
    oracle::Dense a_q, b_q, a_k, b_k, a_v, b_v;
  };
  Factors given() const {
    return {room_.values(a_q_), room_.values(b_q_), room_.values(a_k_),
            room_.values(b_k_), room_.values(a_v_), room_.values(b_v_)};
  }
  Factors gradients(const fovea_tensor& dout) {
    auto p = params<fovea_x_tpa_forward_params>();
    p.a_q = a_q_, p.b_q = turned(b_q_, 0), p.a_k = a_k_, p.b_k = turned(b_k_, 0);
    p.a_v = a_v_, p.b_v = b_v_;
    p.o = room_.empty({1, kTokens, kHeads, kValues});
    p.lse = room_.empty({1, kHeads, kTokens}, FOVEA_F32);
    harness::must(fovea_x_recipe_apply("tpa", "x_tpa_forward", &p), "tpa");
    harness::must(fovea_x_tpa_forward(room_.ctx, &p), "x_tpa_forward");
    auto back = params<fovea_x_tpa_backward_params>();
    back.a_q = p.a_q, back.b_q = p.b_q, back.a_k = p.a_k, back.b_k = p.b_k;
    back.a_v = p.a_v, back.b_v = p.b_v, back.o = p.o, back.lse = p.lse, back.dout = dout;
    back.da_q = like(a_q_), back.db_q = like(b_q_), back.da_k = like(a_k_);
    back.db_k = like(b_k_), back.da_v = like(a_v_), back.db_v = like(b_v_);
    harness::must(fovea_x_recipe_apply("tpa", "x_tpa_backward", &back), "tpa");
    harness::must(fovea_x_tpa_backward(room_.ctx, &back), "x_tpa_backward");
    return {room_.values(back.da_q), room_.values(turned(back.db_q, 0, true)),
            room_.values(back.da_k), room_.values(turned(back.db_k, 0, true)),
            room_.values(back.da_v), room_.values(back.db_v)};
  }

  // The paper's rows: heads are formed, then turned.
  static std::pair<Values, Values> paper(const Factors& x) {
    Values o, lse(kHeads * kTokens);
    for (int64_t i = 0; i < kTokens; ++i)
      for (int64_t head = 0; head < kHeads; ++head) {
        Values sum(kValues);
        double total = 0;
        const Values q = row(x.a_q, x.b_q, i, head);
        for (int64_t j = 0; j <= i; ++j) {
          const Values k = row(x.a_k, x.b_k, j, head), v = row(x.a_v, x.b_v, j, head);
          double score = 0;
          // Rotations by i and j multiply to one by i - j.
          for (int64_t n = 0; n < kWidth / 2; ++n) {
            const double angle =
                static_cast<double>(i - j) * std::pow(50, -static_cast<double>(n) / (kWidth / 2));
            const double a = q[n], b = q[n + kWidth / 2], u = k[n], w = k[n + kWidth / 2];
            score += std::cos(angle) * (a * u + b * w) + std::sin(angle) * (a * w - b * u);
          }
          const double weight = std::exp(score / std::sqrt(static_cast<double>(kWidth)));
          total += weight;
          for (int64_t n = 0; n < kValues; ++n) sum[n] += weight * v[n];
        }
        for (const double one : sum) o.push_back(one / total);
        lse[head * kTokens + i] = std::log(total);
      }
    return {o, lse};
  }

 private:
  static Values row(const oracle::Dense& a, const oracle::Dense& b, int64_t i, int64_t head) {
    Values y(b.shape[3]);
    for (int64_t r = 0; r < a.shape[2]; ++r)
      for (int64_t c = 0; c < b.shape[3]; ++c)
        y[c] += a(0, i, r, head) * b(0, i, r, c) / static_cast<double>(a.shape[2]);
    return y;
  }
  // A factor with a rank in place of a key head, as cache_append has it.
  void append(int64_t begin, int64_t s, bool paged, const std::array<fovea_tensor, 2>& from,
              const std::array<fovea_tensor, 2>& to, bool turns) {
    auto p = params<fovea_cache_append_params>();
    p.k_new = part(from[0], 1, begin, s), p.v_new = part(from[1], 1, begin, s);
    p.k = to[0], p.v = to[1], p.key_len = room_.lengths(begin);
    if (paged) p.page_table = page_table_;
    if (turns) p.cos = turns_.cos, p.sin = turns_.sin;
    harness::must(fovea_cache_append(room_.ctx, &p), "cache_append");
  }
  fovea_tensor turned(const fovea_tensor& x, int64_t begin, bool inverse = false) {
    const fovea_tensor y = like(x);
    auto p = params<fovea_rope_forward_params>();
    p.x = x, p.y = y, p.inverse = inverse;
    p.cos = part(turns_.cos, 0, begin, x.shape[1]), p.sin = part(turns_.sin, 0, begin, x.shape[1]);
    harness::must(fovea_rope_forward(room_.ctx, &p), "rope_forward");
    return y;
  }
  fovea_tensor like(const fovea_tensor& x) {
    return room_.empty({x.shape[0], x.shape[1], x.shape[2], x.shape[3]});
  }

  Room& room_;
  const Turns turns_;
  const fovea_tensor a_q_, b_q_, a_k_, b_k_, a_v_, b_v_;
  fovea_tensor page_table_;
};

TEST(compact, outer_products_in_chunks_and_steps_are_the_prompt_and_the_papers) {
  each_room([](Room& room) {
    Products model(room);
    const auto [paper, paper_lse] = Products::paper(model.given());
    const auto [whole, lse] = model.run(kCuts[0]);
    expect_near("prompt", whole, paper, 8 * room.unit());
    expect_near("lse", lse, paper_lse, 8 * room.unit());
    for (const bool paged : {false, true})
      for (const auto& cuts : kCuts) {
        const auto [o, own] = model.run(cuts, paged);
        expect_near("o", o, whole, 6 * room.unit());
        expect_near("lse", own, lse, 6 * room.unit());
      }
  });
}

TEST(compact, gradients_of_outer_products_are_the_papers_derivatives) {
  for (const fovea_backend backend : harness::backends()) {
    SCOPED_TRACE(harness::name_of(backend));
    Room room(backend, FOVEA_F32);
    Products model(room);
    const fovea_tensor to = room.some({1, kTokens, Products::kHeads, Products::kValues});
    const oracle::Dense dout = room.values(to);
    const Products::Factors got = model.gradients(to);
    Products::Factors given = model.given();
    const auto loss = [&] {
      const Values o = Products::paper(given).first;
      return std::inner_product(o.begin(), o.end(), dout.value.begin(), 0.0);
    };
    const auto expect = [&](const char* name, oracle::Dense& x, const oracle::Dense& gradient) {
      properties::expect_derivative(name, x, gradient.value, loss, 2e-5, 5);
    };
    expect("a_q", given.a_q, got.a_q), expect("b_q", given.b_q, got.b_q);
    expect("a_k", given.a_k, got.a_k), expect("b_k", given.b_k, got.b_k);
    expect("a_v", given.a_v, got.a_v), expect("b_v", given.b_v, got.b_v);
  }
}

// Constant a, 1 for the heads of a group, with scales of 1: ranks are the key heads of GQA.
TEST(compact, outer_products_of_groups_are_their_heads) {
  each_room([](Room& room) {
    constexpr int64_t heads = 6, groups = 3, width = 16;
    Values ones;
    for (int64_t n = 0; n < kTokens * groups * heads; ++n)
      ones.push_back(n % heads / (heads / groups) == n / heads % groups ? 1 : 0);
    const fovea_tensor a = room.fill({1, kTokens, groups, heads}, room.dtype, ones);
    const fovea_tensor q = room.some({1, kTokens, heads, width});
    const fovea_tensor k = room.some({1, kTokens, groups, width});
    const fovea_tensor v = room.some({1, kTokens, groups, width});
    const auto shared = [&] {
      auto p = params<fovea_attention_forward_params>();
      p.q = q, p.k = k, p.v = v, p.o = room.empty({1, kTokens, heads, width});
      attend(room, "gqa", p);
      return room.values(p.o).value;
    };
    for (const int64_t rows : {kTokens, int64_t{5}}) {
      auto p = params<fovea_x_tpa_forward_params>();
      p.a_k = p.a_v = a, p.b_k = k, p.b_v = v, p.scale_k = p.scale_v = 1, p.causal = 1;
      p.q = part(q, 1, kTokens - rows, rows);
      const fovea_tensor o = room.empty({1, kTokens, heads, width});
      p.o = part(o, 1, kTokens - rows, rows);
      harness::must(fovea_x_tpa_forward(room.ctx, &p), "x_tpa_forward");
      Values got = room.values(p.o).value, all = shared();
      all.erase(all.begin(), all.end() - static_cast<int64_t>(got.size()));
      expect_near("heads", got, all, 4 * room.unit());
    }
  });
}

}  // namespace
