// SPDX-License-Identifier: Apache-2.0
// x_probe_forward on the CPU, in two passes over tiles of 16 rows and 64 keys.  The first finds
// lse; its item is a row tile of a head.  The second adds probabilities; its item is a head of x of
// a sequence, whose rows and keys are met in order.
#include <algorithm>
#include <cmath>

#include "host/sweep.h"
#include "ops/summary/probe.h"

namespace fovea {
namespace {

using host::kInf;

constexpr int64_t kTileRows = 16, kTileKeys = 64;

struct ProbeRoom {
  Slot<float> q, k, logit;
};

struct ProbePlan {
  ProbeCall c;
  ProbeRoom room;
  Slot<float> lse;                    // (r, h, rows), where it is not given
  Slot<float> column;                 // (2, r, x, keys): a head's, its group's
  Slot<float> block;                  // (2, 2, r, x, n, u) likewise, of sum and max
  Slot<unsigned long long> diagonal;  // (r, h, columns)
  host::WorkerScratch scratch;
};

class Run {
 public:
  Run(const ProbePlan& plan, void* base)
      : plan_(plan), c_(plan.c), a_(plan.c.a), base_(base), simd_(host::simd()) {}

  void run(Context& ctx) const {
    host::Pool& pool = host::pool(ctx);
    const int64_t count = a_.sequences.count, tiles = host::ceil_div(c_.rows_most(), kTileRows);
    const double cost = host::pairs_of(a_.sequences) * static_cast<double>(a_.h * a_.d) / 8;
    if (!c_.lse_in)
      pool.run(count * a_.h * tiles, cost, [&](int64_t item, int32_t worker) {
        lse_tile(item / tiles / a_.h, item / tiles % a_.h, item % tiles * kTileRows, worker);
      });
    clear();
    if (!c_.column_sum && !c_.diagonal_sum && !c_.blocks()) return;
    pool.run(count * c_.x, cost, [&](int64_t item, int32_t worker) {
      Head(*this, item / c_.x, item % c_.x, worker).run();
    });
  }

 private:
  struct Tile {
    const float *q, *k;
    float* logit;
  };
  float* room(int32_t worker, const Slot<float>& slot) const {
    return slot.at(plan_.scratch.at(base_, worker));
  }
  void load(const View<4>& from, int64_t offset, float* to) const {
    if (offset < 0)
      std::fill_n(to, a_.d, 0.0f);
    else
      host::load_row(simd_, from.data, a_.dtype, offset, from.stride[3], a_.d, to);
  }
  void load_rows(const Sequence& q, int64_t h, int64_t i0, int64_t count, float* to) const {
    for (int64_t i = 0; i < count; ++i)
      for (int64_t r = 0; r < c_.stride; ++r)
        load(a_.q, c_.q_offset(q, h, i0 + i, r), to + (i * c_.stride + r) * a_.d);
  }
  // Logits of a tile whose rows are loaded; -inf: not seen.
  void logits(const Sequence& q, int64_t h, int64_t i0, int64_t rows, int64_t j0, int64_t keys,
              int32_t worker) const {
    float *own = room(worker, plan_.room.q), *other = room(worker, plan_.room.k);
    float* to = room(worker, plan_.room.logit);
    const int64_t width = c_.width();
    for (int64_t j = 0; j < keys; ++j)
      for (int64_t r = 0; r < c_.stride; ++r)
        load(a_.k, c_.k_offset(q, h, j0 + j, r), other + (j * c_.stride + r) * a_.d);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < keys; ++j)
        to[i * kTileKeys + j] =
            c_.sees(q, h, i0 + i, j0 + j)
                ? a_.score.scale *
                      static_cast<float>(simd_.dot(width, own + i * width, other + j * width))
                : -kInf;
  }
  // visit(j0, keys) for every tile of keys that the rows may see; its logits are in the room.
  template <class Visit>
  void each_tile(const Sequence& q, int64_t h, int64_t i0, int64_t rows, int32_t worker,
                 Visit visit) const {
    load_rows(q, h, i0, rows, room(worker, plan_.room.q));
    const int64_t all = c_.keys(q);
    for (int64_t j0 = 0; j0 < all; j0 += kTileKeys) {
      const int64_t keys = std::min(kTileKeys, all - j0);
      if (!c_.may_see(q, i0, i0 + rows, j0, j0 + keys)) continue;
      logits(q, h, i0, rows, j0, keys, worker);
      visit(j0, keys);
    }
  }

  void lse_tile(int64_t r, int64_t h, int64_t i0, int32_t worker) const {
    const Sequence q = a_.sequences[r];
    const int64_t rows = std::min(kTileRows, c_.rows(q) - i0);
    if (rows <= 0) return;
    float top[kTileRows], sum[kTileRows] = {};
    std::fill_n(top, kTileRows, -kInf);
    const float* logit = room(worker, plan_.room.logit);
    each_tile(q, h, i0, rows, worker, [&](int64_t, int64_t keys) {
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < keys; ++j) {
          const float x = logit[i * kTileKeys + j];
          if (x == -kInf) continue;
          if (x > top[i]) sum[i] *= std::exp(top[i] - x), top[i] = x;
          sum[i] += std::exp(x - top[i]);
        }
    });
    for (int64_t i = 0; i < rows; ++i) {
      const float lse = sum[i] == 0 ? -kInf : top[i] + std::log(sum[i]);
      plan_.lse.at(base_)[(r * a_.h + h) * c_.rows_most() + i0 + i] = lse;
      if (a_.lse) host::row_slot(a_.lse, q, h, i0 + i) = lse;
    }
  }
  float lse_of(const Sequence& q, int64_t r, int64_t h, int64_t i) const {
    return c_.lse_in ? host::row_value(c_.lse_in, q, h, i)
                     : plan_.lse.at(base_)[(r * a_.h + h) * c_.rows_most() + i];
  }

  // Keys of no sequence have a column as well.
  void clear() const {
    if (!c_.column_sum) return;
    const Sequences& q = a_.sequences;
    const int64_t batches = q.key_start ? 1 : q.count;
    for (int64_t b = 0; b < batches; ++b)
      for (int64_t x = 0; x < c_.x; ++x)
        for (int64_t j = 0; j < a_.columns; ++j) *c_.column_sum.at(b, x, j) = 0;
  }

  // One head of x of one sequence.
  class Head {
   public:
    Head(const Run& run, int64_t r, int64_t x, int32_t worker)
        : run_(run),
          c_(run.c_),
          a_(run.a_),
          q_(run.a_.sequences[r]),
          r_(r),
          x_(x),
          worker_(worker) {
      const ProbePlan& plan = run.plan_;
      const int64_t keys = a_.sequences.key_max, all = a_.sequences.count * c_.x;
      column_ = plan.column.at(run.base_), block_ = plan.block.at(run.base_);
      diagonal_ = plan.diagonal.at(run.base_);
      cells_ =
          c_.blocks() ? (q_.rows + c_.unit_rows * c_.stride - 1) / (c_.unit_rows * c_.stride) : 0;
      cells_ = std::min(cells_, std::max<int64_t>(0, c_.n - c_.first_block(q_, r))) * c_.u;
      if (column_) column_ += (r * c_.x + x) * keys, group_column_ = column_ + all * keys;
      const int64_t one = c_.n * c_.u;
      if (block_)
        block_ += (r * c_.x + x) * 4 * one, most_ = block_ + one, group_block_ = most_ + one,
                                            group_most_ = group_block_ + one;
      if (diagonal_) diagonal_ += (r * a_.h + x * c_.group()) * c_.columns;
    }

    void run() {
      clear(group_column_, group_block_, group_most_);
      if (c_.diagonal_sum) std::fill_n(diagonal_, c_.group() * c_.columns, 0ull);
      for (int64_t n = 0; n < c_.group(); ++n) head(x_ * c_.group() + n);
      store();
    }

   private:
    void clear(float* column, float* block, float* most) const {
      if (column) std::fill_n(column, q_.keys, 0.0f);
      if (block) std::fill_n(block, cells_, 0.0f), std::fill_n(most, cells_, 0.0f);
    }
    void head(int64_t h) {
      clear(column_, block_, most_);
      for (int64_t i0 = 0; i0 < c_.rows(q_); i0 += kTileRows) {
        const int64_t rows = std::min(kTileRows, c_.rows(q_) - i0);
        const float* logit = run_.room(worker_, run_.plan_.room.logit);
        run_.each_tile(q_, h, i0, rows, worker_, [&](int64_t j0, int64_t keys) {
          for (int64_t i = 0; i < rows; ++i) {
            const float lse = run_.lse_of(q_, r_, h, i0 + i);
            for (int64_t j = 0; j < keys; ++j)
              add(h, i0 + i, j0 + j, probe_p(logit[i * kTileKeys + j], lse));
          }
        });
      }
      if (column_)
        for (int64_t j = 0; j < q_.keys; ++j)
          group_column_[j] = probe_join(c_, group_column_[j], column_[j]);
      for (int64_t n = 0; n < cells_; ++n) {
        group_block_[n] = probe_join(c_, group_block_[n], block_[n]);
        group_most_[n] = probe_join(c_, group_most_[n], most_[n]);
      }
    }
    void add(int64_t h, int64_t i, int64_t j, float p) {
      if (column_) column_[j] += p;
      if (diagonal_) {
        const int64_t away = a_.mask.query_at(q_, h, i) - j;
        if (away >= 0 && away < c_.columns)
          diagonal_[h % c_.group() * c_.columns + away] += probe_fixed(p);
      }
      const int64_t block = j / c_.unit_keys, n = i / c_.unit_rows * c_.u + block;
      if (!block_ || block >= c_.u || n >= cells_) return;
      block_[n] += p;
      if (p > most_[n] || p != p) most_[n] = p;
    }
    void store() const {
      if (column_)
        for (int64_t j = 0; j < q_.keys; ++j)
          *c_.column_sum.at(q_.key_b, x_, q_.key_begin + j) = probe_end(c_, group_column_[j]);
      if (diagonal_)
        for (int64_t o = 0; o < c_.columns; ++o)
          *c_.diagonal_sum.at(r_, x_, o) = probe_diagonal(c_, diagonal_, o);
      for (int64_t n = 0; n < cells_; ++n) {
        const int64_t row = c_.first_block(q_, r_) + n / c_.u;
        if (c_.block_sum)
          *c_.block_sum.at(q_.batch, x_, row, n % c_.u) = probe_end(c_, group_block_[n]);
        if (c_.block_max)
          *c_.block_max.at(q_.batch, x_, row, n % c_.u) = probe_end(c_, group_most_[n]);
      }
    }

    const Run& run_;
    const ProbeCall& c_;
    const Attend& a_;
    const Sequence q_;
    int64_t r_, x_, cells_ = 0;
    int32_t worker_;
    float *column_, *block_, *group_column_ = nullptr, *most_ = nullptr, *group_block_ = nullptr,
                             *group_most_ = nullptr;
    unsigned long long* diagonal_;
  };

  const ProbePlan& plan_;
  const ProbeCall& c_;
  const Attend& a_;
  void* base_;
  const host::Simd& simd_;
};

}  // namespace

extern const Kernel<ProbeCall> probe_forward_host = {
    "", [](const Context& ctx, const ProbeCall& c, Plan& plan) {
      ProbePlan p{};
      p.c = c;
      Layout worker;
      p.room.q = worker.add<float>(kTileRows, c.width());
      p.room.k = worker.add<float>(kTileKeys, c.width());
      p.room.logit = worker.add<float>(kTileRows, kTileKeys);
      const int64_t count = c.a.sequences.count, heads = count * c.x;
      p.lse = plan.workspace.add<float>(c.lse_in ? 0 : count, c.a.h, c.rows_most());
      p.column = plan.workspace.add<float>(c.column_sum ? 2 : 0, heads, c.a.sequences.key_max);
      p.block = plan.workspace.add<float>(c.blocks() ? 4 : 0, heads, c.n, c.u);
      p.diagonal =
          plan.workspace.add<unsigned long long>(c.diagonal_sum ? count : 0, c.a.h, c.columns);
      p.scratch = host::WorkerScratch(ctx, ctx.threads, worker, plan.workspace);
      host::host_plan<Run>(plan, p, host::shape_name(c.a.dtype, c.a.d));
      return Text();
    }};

}  // namespace fovea
