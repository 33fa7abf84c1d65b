// SPDX-License-Identifier: Apache-2.0
#include "ops/graph/search_host.h"

namespace fovea {

SearchRoom::SearchRoom(const GraphKeys& keys, int64_t ranks, int64_t most, Layout& worker) {
  const int64_t width = host::simd().width;
  k = worker.add<float>(host::kKeys, keys.d), q = worker.add<float>(keys.d, width);
  x = worker.add<float>(host::kKeys, width), row = worker.add<float>(keys.d);
  column = worker.add<float>(keys.d, host::padded(most));
  product = worker.add<float>(host::padded(most)), norm = worker.add<float>(most);
  seen = worker.add<uint64_t>((keys.t + 63) / 64), rank = worker.add<uint64_t>(ranks);
  key = worker.add<int32_t>(host::kKeys), passed = worker.add<int32_t>(most);
}

Search::Search(const SearchRoom& room, void* base, const HeadKeys& keys)
    : keys_(keys),
      d_(keys.of->d),
      width_(host::simd().width),
      lanes_(static_cast<int64_t>(room.product.count)),
      k_(room.k.at(base)),
      q_(room.q.at(base)),
      x_(room.x.at(base)),
      column_(room.column.at(base)),
      product_(room.product.at(base)),
      norm_(room.norm.at(base)),
      row_(room.row.at(base)),
      seen_(room.seen.at(base)),
      ranks_(room.rank.at(base)),
      key_(room.key.at(base)),
      passed_(room.passed.at(base)) {
  std::fill_n(q_, d_ * width_, 0.0f);
  // Lanes past those kept are multiplied, but not read.
  std::fill_n(column_, room.column.count, 0.0f);
}

void Search::query(const float* row) {
  for (int64_t c = 0; c < d_; ++c) q_[c * width_] = row[c];
}

void Search::products(const int32_t* key, int64_t count) {
  for (int64_t i = 0; i < count; ++i) keys_.load(key[i], k_ + i * d_);
  host::simd().chains({count, width_, d_, k_, d_, q_, width_, x_, width_, nullptr, false, false});
}

float Search::norm(int64_t kept) {
  for (int64_t c = 0; c < d_; ++c) column_[c * lanes_ + kept] = k_[c];
  host::simd().chains({1, host::padded(kept + 1), d_, k_, d_, column_, lanes_, product_, lanes_,
                       nullptr, false, false});
  return product_[kept];
}

bool Search::occluded(int64_t y, float far, int64_t kept) {
  keys_.load(y, k_);
  norm_[kept] = norm(kept);
  for (int64_t n = 0; n < kept; ++n)
    if (norm_[n] - 2 * product_[n] < far) return true;
  return false;
}

int64_t Search::run(const HeadGraph& graph, int64_t keys, Beam& beam) {
  if (keys <= 0) return 0;
  forget(keys);
  const int64_t entry = graph.entry();
  int64_t scanned = 0, count = 0;
  const auto scan = [&] {
    score(key_, count, [&](uint64_t rank) { beam.insert(rank); });
    scanned += count, count = 0;
  };
  const auto meet = [&](int64_t key) {
    if (key < 0 || key >= keys || mark(key)) return;
    key_[count++] = static_cast<int32_t>(key);
    if (count == host::kKeys) scan();
  };
  meet(entry >= 0 && entry < keys ? entry : 0);
  scan();
  for (int64_t x = beam.expand(); x >= 0; x = beam.expand()) {
    const int64_t neighbours = graph.count(x);
    for (int64_t n = 0; n < neighbours; ++n) meet(graph.slot(x, n));
    scan();
  }
  return scanned;
}

void Search::link(const HeadGraph& graph, int64_t keys, int64_t y, int64_t x, int64_t most) {
  const int64_t count = graph.count(y), degree = graph.of->degree;
  for (int64_t n = 0; n < count; ++n)
    if (graph.slot(y, n) == x) return;
  if (count < degree) {
    graph.slot(y, count) = static_cast<int32_t>(x);
    graph.set_count(y, count + 1);
    return;
  }
  query_key(y);
  Beam beam(ranks_, degree + 1);
  int64_t listed = 0;
  for (int64_t n = 0; n <= count; ++n) {
    const int64_t key = n < count ? graph.slot(y, n) : x;
    if (key >= 0 && key < keys) key_[listed++] = static_cast<int32_t>(key);
    if (listed < host::kKeys && n < count) continue;
    score(key_, listed, [&](uint64_t rank) { beam.insert(rank); });
    listed = 0;
  }
  int64_t left = 0;
  prune(beam.data(), beam.size(), y, most,
        [&](int64_t z) { graph.slot(y, left++) = static_cast<int32_t>(z); });
  graph.set_count(y, left);
  for (int64_t n = left; n < degree; ++n) graph.slot(y, n) = -1;
}

}  // namespace fovea
