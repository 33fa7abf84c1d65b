// SPDX-License-Identifier: Apache-2.0
// x_kv_append in the format of tiles on the CPU: an item is a tile on its way into a page, then a
// first token, then a token of the tails.  A tile lies twice in a worker's room, by lines and by
// columns: deviations of either go along rows of the other.
#include <algorithm>

#include "host/sweep.h"
#include "ops/kv/append_tiles_item.h"

namespace fovea {
namespace {

struct AppendTiles {
  KvAppend a;
  Slot<float> by_token, by_channel;                // of a worker
  Slot<float> column, line, column_dev, line_dev;  // factors and deviations
  Slot<float> mean, factor;
  host::WorkerScratch scratch;
};

// dev[m] of y[n][m] = x[n][m] / by[n], n < count.
void deviations(const float* x, int64_t count, int64_t width, const float* by, float* mean,
                float* dev) {
  std::fill_n(mean, width, 0.0f);
  std::fill_n(dev, width, 0.0f);
  for (int64_t n = 0; n < count; ++n) {
    const float weight = 1.0f / by[n];
    for (int64_t m = 0; m < width; ++m) mean[m] += x[n * width + m] * weight;
  }
  for (int64_t m = 0; m < width; ++m) mean[m] /= static_cast<float>(count);
  for (int64_t n = 0; n < count; ++n) {
    const float weight = 1.0f / by[n];
    for (int64_t m = 0; m < width; ++m) {
      const float off = x[n * width + m] * weight - mean[m];
      dev[m] += off * off;
    }
  }
  for (int64_t m = 0; m < width; ++m) dev[m] = std::sqrt(dev[m] / static_cast<float>(count - 1));
}

float spread(const float* dev, const float* factor, int64_t count) {
  kv::Spread all(dev[0] / factor[0]);
  for (int64_t m = 1; m < count; ++m) all.add(dev[m] / factor[m]);
  return all.ratio();
}

class Append {
 public:
  Append(const AppendTiles& plan, void* base)
      : plan_(plan), a_(plan.a), c_(plan.a.cache), base_(base) {}

  void run(Context& ctx) const {
    host::Pool& pool = host::pool(ctx);
    const int64_t count = a_.sequences.count;
    const auto each = [&](int64_t items, double cost, const auto& part) {
      pool.run(count * items, static_cast<double>(count * items) * cost, [&](int64_t n, int32_t w) {
        const KvAppend::Turn t = a_.turn(n / items);
        if (t.row >= 0) part(t, n % items, w);
      });
    };
    const auto columns = static_cast<double>(c_.d + c_.e);
    if (const int64_t tiles = a_.tile_items())
      each(tiles, static_cast<double>(c_.group) * columns * 4 * kv::kTilePasses,
           [&](const auto& t, int64_t n, int32_t worker) {
             kv::Tile tile;
             if (kv::find_tile(a_, t, n, tile)) quantise(t, tile, plan_.scratch.at(base_, worker));
           });
    const auto tokens = [&](int64_t most, const auto& put) {
      if (most && c_.g)
        each(most * c_.g, 2 * columns, [&](const auto& t, int64_t n, int32_t) {
          for (int64_t column = 0; column < std::max(c_.d, c_.e); ++column)
            put(a_, t, n / c_.g, n % c_.g, column);
        });
    };
    tokens(a_.firsts_most(), kv::to_firsts);
    tokens(std::min(a_.sequences.query_max, c_.ring()), kv::to_tails);
    for (int64_t r = 0; r < count; ++r)
      if (const KvAppend::Turn t = a_.turn(r); t.row >= 0) kv::count(a_, t);
  }

 private:
  void quantise(const KvAppend::Turn& t, const kv::Tile& tile, void* room) const {
    float *by_token = plan_.by_token.at(room), *by_channel = plan_.by_channel.at(room);
    const int64_t width = tile.width(c_);
    for (int64_t n = 0; n < c_.group; ++n)
      for (int64_t c = 0; c < width; ++c)
        by_token[n * width + c] = by_channel[c * c_.group + n] =
            kv::to_number(c_, *kv::tile_element(a_, t, tile, n, c));
    float* line = tile.keys ? by_channel : by_token;  // [line][column]
    balance(tile, line, tile.keys ? by_token : by_channel, room);
    const int64_t columns = tile.columns(c_);
    float* factor = plan_.factor.at(room);
    for (int64_t m = 0; m < columns; ++m) {
      F16* to = tile.factor(c_, m);
      *to = from_float<F16>(factor[m]), factor[m] = to_float(*to);
    }
    for (int64_t n = 0; n < tile.lines(c_); ++n) {
      for (int64_t m = 0; m < columns; ++m) line[n * columns + m] /= factor[m];
      kv::put_line(c_, tile, n, [&](int32_t m) { return line[n * columns + m]; });
    }
  }

  // The columns' factors.
  void balance(const kv::Tile& tile, const float* by_line, const float* by_column,
               void* room) const {
    const int64_t columns = tile.columns(c_), lines = tile.lines(c_);
    float *column = plan_.column.at(room), *line = plan_.line.at(room);
    float *column_dev = plan_.column_dev.at(room), *line_dev = plan_.line_dev.at(room);
    float *mean = plan_.mean.at(room), *best = plan_.factor.at(room);
    std::fill_n(column, columns, 1.0f), std::fill_n(line, lines, 1.0f);
    std::fill_n(best, columns, 1.0f);
    deviations(by_line, lines, columns, line, mean, column_dev);
    deviations(by_column, columns, lines, column, mean, line_dev);
    float least = spread(column_dev, column, columns) + spread(line_dev, line, lines);
    for (int pass = 0; pass < kv::kTilePasses && least == least; ++pass) {
      for (int64_t m = 0; m < columns; ++m) column[m] = kv::next_factor(column[m], column_dev[m]);
      deviations(by_column, columns, lines, column, mean, line_dev);
      for (int64_t n = 0; n < lines; ++n) line[n] = kv::next_factor(line[n], line_dev[n]);
      deviations(by_line, lines, columns, line, mean, column_dev);
      const float now = spread(column_dev, column, columns) + spread(line_dev, line, lines);
      if (!(now <= least)) continue;
      least = now;
      std::copy_n(column, columns, best);
    }
  }

  const AppendTiles& plan_;
  const KvAppend& a_;
  const kv::Cache& c_;
  void* base_;
};

}  // namespace

extern const Kernel<KvAppend> kv_append_tiles_host = {
    "", [](const Context& ctx, const KvAppend& a, Plan& plan) {
      const kv::Cache& c = a.cache;
      const int64_t width = c.g ? std::max(c.d, c.e) : 0;
      const int64_t most = std::max<int64_t>(width, c.group);
      AppendTiles p{};
      p.a = a;
      Layout worker;
      p.by_token = worker.add<float>(c.group, width);
      p.by_channel = worker.add<float>(c.group, width);
      for (Slot<float>* slot : {&p.column, &p.line, &p.column_dev, &p.line_dev, &p.mean, &p.factor})
        *slot = worker.add<float>(most);
      p.scratch = host::WorkerScratch(
          ctx, static_cast<double>(a.sequences.count) * static_cast<double>(a.tile_items()), worker,
          plan.workspace);
      plan.launch = [p](Context& ctx, void* base) { Append(p, base).run(ctx); };
      return Text();
    }};

}  // namespace fovea
