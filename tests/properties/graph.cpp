// SPDX-License-Identifier: Apache-2.0
// The graphs of experimental/graph.h: the same bits for any number of threads and for keys that
// join in any number of calls; what the best keys of all are; how much of them a search finds, and
// how few keys it scans.  FOVEA_GRAPH_KEYS asks for another number of keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "harness/bound.h"
#include "harness/random.h"

namespace {

using Floats = std::vector<float>;
using Ints = std::vector<int32_t>;

template <class T>
fovea_tensor of(std::vector<T>& x, fovea_dtype dtype, std::initializer_list<int64_t> shape) {
  return fovea_contiguous(x.data(), dtype, static_cast<int32_t>(shape.size()), shape.begin());
}
fovea_tensor of(Floats& x, std::initializer_list<int64_t> shape) {
  return of(x, FOVEA_F32, shape);
}
fovea_tensor of(Ints& x, std::initializer_list<int64_t> shape) {
  return of(x, FOVEA_I32, shape);
}

// One sequence and one key head.
struct Graph {
  int64_t t, degree = 20;
  Ints neighbour = Ints(static_cast<size_t>(t * degree), -1);
  Ints count = Ints(static_cast<size_t>(t), 0), entry = Ints(1, -1);
  bool operator==(const Graph& x) const {
    return neighbour == x.neighbour && count == x.count && entry == x.entry;
  }
};

fovea_x_graph_append_params append_params(Graph& graph, Floats& k, int64_t d) {
  fovea_x_graph_append_params p = {};
  p.struct_size = sizeof p;
  p.k = of(k, {1, graph.t, 1, d});
  p.neighbour = of(graph.neighbour, {1, 1, graph.t, graph.degree});
  p.neighbour_count = of(graph.count, {1, 1, graph.t}), p.entry = of(graph.entry, {1, 1});
  return p;
}

// Keys of few degrees of freedom, as those of a trained model, and a little noise.  Queries are not
// distributed as keys are: they lie elsewhere and vary along other directions.
class Data {
 public:
  Data(int64_t d, int64_t freedom, uint64_t seed) : d_(d), freedom_(freedom), random_(seed) {
    for (int64_t i = 0; i < freedom * d; ++i) key_.push_back(normal()), query_.push_back(normal());
    for (int64_t c = 0; c < d; ++c) place_.push_back(normal());
  }
  Floats keys(int64_t n) { return drawn(n, key_, 0, 0); }
  Floats queries(int64_t n) { return drawn(n, key_, 0.3f, 2); }

 private:
  float normal() { return static_cast<float>(random_.normal(n_++)); }
  Floats drawn(int64_t n, const Floats& base, float turn, float away) {
    Floats all, z(static_cast<size_t>(freedom_));
    for (int64_t i = 0; i < n; ++i) {
      for (float& x : z) x = normal();
      for (int64_t c = 0; c < d_; ++c) {
        float x = 0.1f * normal() + away * place_[static_cast<size_t>(c)];
        for (int64_t f = 0; f < freedom_; ++f) {
          const auto at = static_cast<size_t>(f * d_ + c);
          x += z[static_cast<size_t>(f)] * (base[at] + turn * query_[at]);
        }
        all.push_back(x);
      }
    }
    return all;
  }
  const int64_t d_, freedom_;
  harness::Random random_;
  uint64_t n_ = 0;
  Floats key_, query_, place_;
};

struct Host {
  explicit Host(int32_t threads = 0) : ctx(FOVEA_HOST) {
    if (threads) {
      EXPECT_EQ(fovea_context_set_threads(ctx, threads), FOVEA_OK);
    }
  }
  harness::Context ctx;
};

TEST(x_graph_append, threads_and_calls_change_nothing) {
  constexpr int64_t t = 1500, d = 24, s = 150;
  Data data(d, 20, 3);
  Floats k = data.keys(t), q = data.queries(s * 2);
  for (const bool train : {false, true}) {
    Graph one{t};
    for (const int32_t threads : {1, 2, 5}) {
      Host host(threads);
      Graph graph{t};
      auto p = append_params(graph, k, d);
      if (train) p.q = of(q, {1, s, 2, d});
      ASSERT_EQ(fovea_x_graph_append(host.ctx, &p), FOVEA_OK) << fovea_last_error();
      if (threads == 1) one = graph;
      EXPECT_TRUE(graph == one) << threads << " threads";
    }
    Host host;
    Graph graph{t};
    auto p = append_params(graph, k, d);
    Ints old = {0}, now = {0};
    p.key_len = of(now, {1}), p.old_len = of(old, {1});
    if (train) continue;
    for (const int32_t to : {1, 2, 700, 701, static_cast<int>(t)}) {
      old = now, now = {to};
      ASSERT_EQ(fovea_x_graph_append(host.ctx, &p), FOVEA_OK) << fovea_last_error();
    }
    EXPECT_TRUE(graph == one);
  }
}

TEST(x_select_graph, of_all_keys_is_x_select_token) {
  constexpr int64_t t = 3001, d = 48, s = 5, h = 4, g = 2, keep = 130;
  Data data(d, 9, 4);
  Floats k = data.keys(t * g), q = data.queries(s * h);
  Ints list(h * s * keep), other(h * s * keep), count(h * s), other_count(h * s);
  Host host;
  fovea_x_select_graph_params p = {};
  p.struct_size = sizeof p;
  p.q = of(q, {1, s, h, d}), p.k = of(k, {1, t, g, d});
  p.index = of(list, {1, h, s, keep}), p.index_count = of(count, {1, h, s}), p.count = keep - 3;
  ASSERT_EQ(fovea_x_select_graph(host.ctx, &p), FOVEA_OK) << fovea_last_error();
  fovea_x_select_token_params token = {};
  token.struct_size = sizeof token;
  token.q = p.q, token.k = p.k, token.count = p.count, token.scale = 1;
  token.index = of(other, {1, h, s, keep}), token.index_count = of(other_count, {1, h, s});
  ASSERT_EQ(fovea_x_select_token(host.ctx, &token), FOVEA_OK) << fovea_last_error();
  EXPECT_EQ(list, other);
  EXPECT_EQ(count, other_count);
}

// The lists of 100 keys for `s` queries, of a graph or of all keys.
struct Found {
  Ints index, count, scanned;
};
Found find(Host& host, Floats& q, Floats& k, int64_t s, int64_t d, Graph* graph, int64_t t) {
  const auto rows = static_cast<size_t>(s);
  Found f{Ints(rows * 100), Ints(rows), Ints(rows)};
  fovea_x_select_graph_params p = {};
  p.struct_size = sizeof p;
  p.q = of(q, {1, s, 1, d}), p.k = of(k, {1, t, 1, d}), p.count = 100;
  p.index = of(f.index, {1, 1, s, 100}), p.index_count = of(f.count, {1, 1, s});
  p.scanned = of(f.scanned, {1, 1, s});
  if (graph) {
    const auto a = append_params(*graph, k, d);
    p.neighbour = a.neighbour, p.neighbour_count = a.neighbour_count, p.entry = a.entry;
    p.ef = 200;
  }
  EXPECT_EQ(fovea_x_select_graph(host.ctx, &p), FOVEA_OK) << fovea_last_error();
  return f;
}

// Keys of which a graph is built by queries, and those that join it later, a twentieth.
TEST(x_select_graph, finds_most_of_the_best_keys_in_few) {
  const char* asked = std::getenv("FOVEA_GRAPH_KEYS");
  const int64_t t = asked ? std::atoll(asked) : 49152, d = 64, s = 50, train = 8 * t / 100;
  Data data(d, 8, 5);
  Floats k = data.keys(t), q = data.queries(train), test = data.queries(s);
  Host host;
  Graph graph{t};
  auto p = append_params(graph, k, d);
  Ints len = {static_cast<int32_t>(t - t / 20)}, old = {0};
  p.key_len = of(len, {1}), p.q = of(q, {1, train, 1, d});
  ASSERT_EQ(fovea_x_graph_append(host.ctx, &p), FOVEA_OK) << fovea_last_error();
  old = len, len = {static_cast<int32_t>(t)}, p.old_len = of(old, {1});
  ASSERT_EQ(fovea_x_graph_append(host.ctx, &p), FOVEA_OK) << fovea_last_error();
  const Found best = find(host, test, k, s, d, nullptr, t);
  const Found found = find(host, test, k, s, d, &graph, t);
  int64_t shared = 0, scanned = 0;
  for (int64_t i = 0; i < s; ++i) {
    const auto *x = best.index.data() + i * 100, *y = found.index.data() + i * 100;
    Ints both;
    std::set_intersection(x, x + 100, y, y + 100, std::back_inserter(both));
    shared += static_cast<int64_t>(both.size()), scanned += found.scanned[static_cast<size_t>(i)];
  }
  const double recall = static_cast<double>(shared) / static_cast<double>(100 * s);
  const double part = static_cast<double>(scanned) / static_cast<double>(s * t);
  RecordProperty("recall", std::to_string(recall));
  RecordProperty("scanned", std::to_string(part));
  EXPECT_GE(recall, 0.95);
  EXPECT_LE(part, 0.03);
}

}  // namespace
