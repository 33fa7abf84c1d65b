// SPDX-License-Identifier: Apache-2.0
// x_graph_append on the CPU.  Steps 1 to 4 run over one key head at a time, their queries or keys
// in parallel: each step reads what the steps before have finished.  Links are made in the order of
// keys.  Keys that join one by one run in parallel over key heads alone.
#include <array>

#include "ops/graph/search_host.h"

namespace fovea {
namespace {

constexpr int64_t kQueries = 64;  // of a tile

// The lists of one key head's training queries, and which of them each key has.
struct TrainRoom {
  Slot<int32_t> list, count;         // of each query
  Slot<int32_t> best_first, best;    // queries whose best key it is, by key
  Slot<int32_t> holds_first, holds;  // queries whose lists hold it, by key
  Slot<int32_t> found, found_count;  // step 4
};

// A worker's, of step 1.
struct NearRoom {
  Slot<float> k, row, q, x;
  Slot<uint64_t> rank;
};

struct AppendPlan {
  GraphAppend a;
  TrainRoom train;
  NearRoom near;
  SearchRoom search;
  host::WorkerScratch scratch;
};

// Queries by key: each(visit) visits (key, query), twice the same.
template <class Each>
void by_key(int64_t keys, int32_t* first, int32_t* query, Each each) {
  std::fill_n(first, keys + 1, 0);
  each([&](int64_t key, int64_t) { ++first[key + 1]; });
  for (int64_t key = 0; key < keys; ++key) first[key + 1] += first[key];
  each([&](int64_t key, int64_t q) { query[first[key]++] = static_cast<int32_t>(q); });
  for (int64_t key = keys; key > 0; --key) first[key] = first[key - 1];
  first[0] = 0;
}

// One key head of one sequence.
class Head {
 public:
  Head(const AppendPlan& plan, void* base, int64_t batch, int64_t head)
      : plan_(plan),
        a_(plan.a),
        base_(base),
        batch_(batch),
        head_(head),
        keys_(a_.keys.keys(batch)),
        old_(a_.old(batch)),
        group_(a_.rows.q ? a_.rows.h / a_.keys.g : 0),
        queries_(a_.rows.rows(batch) * group_),
        list_(plan.train.list.at(base)),
        list_count_(plan.train.count.at(base)),
        best_first_(plan.train.best_first.at(base)),
        best_(plan.train.best.at(base)),
        holds_first_(plan.train.holds_first.at(base)),
        holds_(plan.train.holds.at(base)),
        found_(plan.train.found.at(base)),
        found_count_(plan.train.found_count.at(base)),
        graph_{&a_.graphs, batch, head} {}

  bool trains() const { return old_ == 0 && keys_ > 0 && queries_ > 0; }

  void build(host::Pool& pool) const {
    const auto n = static_cast<double>(keys_), d = static_cast<double>(a_.keys.d);
    pool.run((queries_ + kQueries - 1) / kQueries, n * d * static_cast<double>(queries_) / 16,
             [&](int64_t item, int32_t worker) { nearest(item * kQueries, worker); });
    sort_queries();
    pool.run(keys_, n * d * 100, [&](int64_t x, int32_t worker) { project(x, worker); });
    choose_entry();
    pool.run(keys_, n * d * 1000, [&](int64_t x, int32_t worker) { connect(x, worker); });
    link();
  }

  void join(int32_t worker) const {
    if (keys_ == 0) graph_.entry() = -1;
    if (old_ == keys_) return;
    if (old_ == 0) graph_.entry() = 0;
    Search search = search_of(worker);
    for (int64_t x = old_; x < keys_; ++x) {
      search.query_key(x);
      Beam beam(search.ranks(), a_.width);
      search.run(graph_, x, beam);
      write(search, x, beam.data(), beam.size());
      const int64_t count = graph_.count(x);
      for (int64_t n = 0; n < count; ++n) link(search, x + 1, graph_.slot(x, n), x);
    }
  }

 private:
  Search search_of(int32_t worker) const {
    return {plan_.search, plan_.scratch.at(base_, worker), {&a_.keys, batch_, head_}};
  }
  // The list of x is what pruning leaves.
  void write(Search& search, int64_t x, const uint64_t* rank, int64_t count) const {
    int64_t kept = 0;
    search.prune(rank, count, x, a_.kept,
                 [&](int64_t y) { graph_.slot(x, kept++) = static_cast<int32_t>(y); });
    graph_.set_count(x, kept);
    for (int64_t n = kept; n < a_.graphs.degree; ++n) graph_.slot(x, n) = -1;
  }

  // Step 1, of a tile of queries.
  void nearest(int64_t first, int32_t worker) const {
    void* base = plan_.scratch.at(base_, worker);
    const NearRoom& room = plan_.near;
    float *k = room.k.at(base), *row = room.row.at(base), *q = room.q.at(base),
          *x = room.x.at(base);
    const int64_t d = a_.keys.d, count = std::min(kQueries, queries_ - first);
    const View<4>& from = a_.rows.q;
    for (int64_t n = 0; n < count; ++n) {
      const int64_t token = (first + n) / group_, head = head_ * group_ + (first + n) % group_;
      host::load_row(host::simd(), from.data, a_.rows.dtype,
                     batch_ * from.stride[0] + token * from.stride[1] + head * from.stride[2],
                     from.stride[3], d, row + n * d);
    }
    host::transpose(row, d, count, d, kQueries, q);
    // Beams of the queries, one after the other.
    std::array<int64_t, kQueries> sizes{};
    uint64_t* ranks = room.rank.at(base);
    for (int64_t begin = 0; begin < keys_; begin += host::kKeys) {
      const int64_t tile = std::min<int64_t>(host::kKeys, keys_ - begin);
      const HeadKeys keys{&a_.keys, batch_, head_};
      for (int64_t j = 0; j < tile; ++j) keys.load(begin + j, k + j * d);
      host::simd().chains(
          {tile, kQueries, d, k, d, q, kQueries, x, kQueries, nullptr, false, false});
      for (int64_t n = 0; n < count; ++n) {
        Beam beam(ranks + n * a_.nearest, a_.nearest, sizes[static_cast<size_t>(n)]);
        for (int64_t j = 0; j < tile; ++j) beam.insert(rank_of(x[j * kQueries + n], begin + j));
        sizes[static_cast<size_t>(n)] = beam.size();
      }
    }
    for (int64_t n = 0; n < count; ++n) {
      const uint64_t* rank = ranks + n * a_.nearest;
      int64_t kept = 0;
      for (; kept < sizes[static_cast<size_t>(n)] && pick_key_of(rank[kept]) > kPickNone; ++kept)
        list_[(first + n) * a_.nearest + kept] = static_cast<int32_t>(key_of(rank[kept]));
      list_count_[first + n] = static_cast<int32_t>(kept);
    }
  }

  // Step 2.
  void sort_queries() const {
    by_key(keys_, best_first_, best_, [&](auto visit) {
      for (int64_t q = 0; q < queries_; ++q)
        if (list_count_[q]) visit(list_[q * a_.nearest], q);
    });
    by_key(keys_, holds_first_, holds_, [&](auto visit) {
      for (int64_t q = 0; q < queries_; ++q)
        for (int32_t n = 0; n < list_count_[q]; ++n) visit(list_[q * a_.nearest + n], q);
    });
  }

  // Step 3, of key x.
  void project(int64_t x, int32_t worker) const {
    Search search = search_of(worker);
    search.query_key(x), search.forget(keys_);
    const bool best = best_first_[x] < best_first_[x + 1];
    const int32_t *first = best ? best_first_ : holds_first_, *query = best ? best_ : holds_;
    uint64_t* ranks = search.ranks();
    int64_t count = 0;
    for (int32_t at = first[x]; at < first[x + 1]; ++at) {
      const int32_t* list = list_ + query[at] * a_.nearest;
      std::array<int32_t, host::kKeys> met;
      size_t fresh = 0;
      for (int32_t n = 0; n < list_count_[query[at]]; ++n) {
        if (!search.mark(list[n])) met[fresh++] = list[n];
        if (fresh < met.size() && n + 1 < list_count_[query[at]]) continue;
        search.score(met.data(), static_cast<int64_t>(fresh),
                     [&](uint64_t rank) { ranks[count++] = rank; });
        fresh = 0;
      }
    }
    std::sort(ranks, ranks + count);
    write(search, x, ranks, count);
  }

  void choose_entry() const {
    Search search = search_of(0);
    const int64_t d = a_.keys.d;
    std::array<double, kWidthMost> sum{};
    const HeadKeys keys{&a_.keys, batch_, head_};
    for (int64_t x = 0; x < keys_; ++x) {
      keys.load(x, search.row());
      for (int64_t c = 0; c < d; ++c)
        sum[static_cast<size_t>(c)] += static_cast<double>(search.row()[c]);
    }
    for (int64_t c = 0; c < d; ++c)
      search.row()[c] = static_cast<float>(sum[static_cast<size_t>(c)]);
    search.query(search.row());
    uint64_t best = UINT64_MAX;
    std::array<int32_t, host::kKeys> tile;
    for (int64_t begin = 0; begin < keys_; begin += host::kKeys) {
      const int64_t count = std::min<int64_t>(host::kKeys, keys_ - begin);
      for (int64_t j = 0; j < count; ++j)
        tile[static_cast<size_t>(j)] = static_cast<int32_t>(begin + j);
      search.score(tile.data(), count, [&](uint64_t rank) { best = std::min(best, rank); });
    }
    graph_.entry() = static_cast<int32_t>(key_of(best));
  }

  // Step 4, of key x: what it is to be linked with.
  void connect(int64_t x, int32_t worker) const {
    Search search = search_of(worker);
    search.query_key(x);
    Beam beam(search.ranks(), a_.width);
    search.run(graph_, keys_, beam);
    int32_t count = 0;
    search.prune(beam.data(), beam.size(), x, a_.added,
                 [&](int64_t y) { found_[x * a_.added + count++] = static_cast<int32_t>(y); });
    found_count_[x] = count;
  }
  void link(Search& search, int64_t keys, int64_t y, int64_t x) const {
    search.link(graph_, keys, y, x, a_.kept + a_.added);
  }
  void link() const {
    Search search = search_of(0);
    for (int64_t x = 0; x < keys_; ++x)
      for (int32_t n = 0; n < found_count_[x]; ++n) {
        const int32_t y = found_[x * a_.added + n];
        if (graph_.count(x) < a_.graphs.degree) link(search, keys_, x, y);
        link(search, keys_, y, x);
      }
  }

  static constexpr size_t kWidthMost = 576;
  const AppendPlan& plan_;
  const GraphAppend& a_;
  void* base_;
  const int64_t batch_, head_, keys_, old_, group_, queries_;
  int32_t *list_, *list_count_, *best_first_, *best_, *holds_first_, *holds_, *found_,
      *found_count_;
  const HeadGraph graph_;
};

class Run {
 public:
  Run(const AppendPlan& plan, void* base) : plan_(plan), base_(base) {}

  void run(Context& ctx) const {
    const GraphKeys& keys = plan_.a.keys;
    host::Pool& pool = host::pool(ctx);
    const int64_t heads = keys.b * keys.g;
    for (int64_t n = 0; n < heads; ++n)
      if (const Head head = at(n); head.trains()) head.build(pool);
    double joining = 0;
    for (int64_t batch = 0; batch < keys.b; ++batch)
      joining += static_cast<double>(keys.keys(batch) - plan_.a.old(batch));
    const double cost = joining * static_cast<double>(keys.g * keys.d * plan_.a.width);
    pool.run(heads, cost, [&](int64_t n, int32_t worker) {
      if (const Head head = at(n); !head.trains()) head.join(worker);
    });
  }

 private:
  Head at(int64_t n) const { return {plan_, base_, n / plan_.a.keys.g, n % plan_.a.keys.g}; }
  const AppendPlan& plan_;
  void* base_;
};

}  // namespace

extern const Kernel<GraphAppend> x_graph_append_host = {
    "", [](const Context& ctx, const GraphAppend& a, Plan& plan) {
      AppendPlan p{};
      p.a = a;
      const int64_t t = a.keys.t, d = a.keys.d;
      Layout worker;
      if (a.keys.b && t && a.keys.g) {
        const bool trains = a.rows.q && a.rows.s && a.rows.h;
        const int64_t ranks = std::max({trains ? t : 0, a.width, a.graphs.degree + 1});
        p.search = SearchRoom(a.keys, ranks, a.kept + a.added, worker);
        if (trains) {
          const int64_t queries = a.rows.s * (a.rows.h / a.keys.g);
          TrainRoom& train = p.train;
          train.list = plan.workspace.add<int32_t>(queries, a.nearest);
          train.holds = plan.workspace.add<int32_t>(queries, a.nearest);
          train.count = plan.workspace.add<int32_t>(queries);
          train.best = plan.workspace.add<int32_t>(queries);
          train.best_first = plan.workspace.add<int32_t>(t + 1);
          train.holds_first = plan.workspace.add<int32_t>(t + 1);
          train.found = plan.workspace.add<int32_t>(t, a.added);
          train.found_count = plan.workspace.add<int32_t>(t);
          NearRoom& near = p.near;
          near.k = worker.add<float>(host::kKeys, d), near.row = worker.add<float>(kQueries, d);
          near.q = worker.add<float>(d, kQueries);
          near.x = worker.add<float>(host::kKeys, kQueries);
          near.rank = worker.add<uint64_t>(kQueries, a.nearest);
        }
      }
      p.scratch =
          host::WorkerScratch(ctx, static_cast<double>(ctx.threads), worker, plan.workspace);
      host::host_plan<Run>(plan, p, host::shape_name(a.keys.dtype, d));
      return Text();
    }};

}  // namespace fovea
