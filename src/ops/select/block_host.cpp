// SPDX-License-Identifier: Apache-2.0
// x_select_block on the CPU.  An item is a tile of list rows of one list head; its rows of one
// sequence are scored together, each in a lane.  With a scope wider than a row, final scores are
// kept: a second pass cuts each scope, a third writes the lists.
#include <algorithm>
#include <cmath>

#include "host/pick.h"
#include "host/sweep.h"
#include "ops/select/block.h"

namespace fovea {
namespace {

using host::kInf;
using host::kKeys;

constexpr int64_t kTile = 16;  // list rows of an item: whole vectors of every instruction set

struct Range {
  float low, high;
};

struct SelectRoom {
  Slot<float> rows, q, k, x, head, value, block;
};

struct SelectPlan {
  SelectBlock a;
  int64_t width;  // of a chain
  SelectRoom room;
  Slot<float> score;  // (b, x, n, y), wide scopes
  Slot<PickCut> cut;  // of each scope
  Slot<Range> range;  // (b, h, n), then of each query head's scope
  bool ranged;
  host::WorkerScratch scratch;
};

// Entries of a scope: list heads [head, heads), list rows of one sequence, key blocks.
struct Scope {
  int64_t head, heads;
  ListRow first;
  int64_t rows;
  int64_t entries() const { return (heads - head) * rows * first.blocks; }
};

class Run {
 public:
  Run(const SelectPlan& plan, void* base)
      : plan_(plan), a_(plan.a), base_(base), simd_(host::simd()) {}

  void run(Context& ctx) const {
    host::Pool& pool = host::pool(ctx);
    const int64_t tiles = host::ceil_div(a_.n, kTile), items = a_.b * tiles * a_.x;
    const double cost = static_cast<double>(a_.b * a_.n * a_.h) * static_cast<double>(a_.u) *
                        static_cast<double>(plan_.width + 16) / host::kFlopsPerNanosecond;
    const auto each = [&](auto visit) {
      pool.run(items, cost, [&](int64_t item, int32_t worker) {
        const int64_t list_head = item % a_.x, tile = item / a_.x % tiles;
        tile_rows(item / a_.x / tiles, tile * kTile, std::min(a_.n, (tile + 1) * kTile),
                  [&](const ListRow* rows, int64_t count) {
                    visit(Lane{*this, rows, count, list_head, plan_.scratch.at(base_, worker)});
                  });
      });
    };
    if (plan_.ranged) {
      each([](const Lane& lane) { lane.ranges(); });
      each_scope([&](const Scope& scope, int64_t number) { join_ranges(scope, number); });
    }
    each([](const Lane& lane) { lane.score(); });
    if (!a_.wide()) return;
    each_scope([&](const Scope& scope, int64_t number) {
      plan_.cut.at(base_)[number] = cut_scope(scope);
    });
    pool.run(a_.b * a_.x * a_.n, cost, [&](int64_t item, int32_t) { emit_wide(item); });
  }

 private:
  // f(rows, count) for the list rows of [begin, end) of each sequence.
  template <class F>
  void tile_rows(int64_t batch, int64_t begin, int64_t end, F f) const {
    ListRow rows[kTile];
    int64_t count = 0;
    for (int64_t row = begin; row < end; ++row) {
      if (!a_.list_row(batch, row, rows[count])) continue;
      if (count && rows[count].sequence != rows[0].sequence) {
        const ListRow next = rows[count];
        f(rows, count);
        rows[0] = next, count = 0;
      }
      ++count;
    }
    if (count) f(rows, count);
  }

  // f(scope, number), number by (sequence, list head) or by sequence.
  template <class F>
  void each_scope(F f) const {
    const bool all = a_.scope == FOVEA_X_SELECT_SCOPE_ALL;
    for (int64_t r = 0; r < a_.sequences.count; ++r) {
      Scope scope{};
      const int64_t first = a_.first_row(r);
      const int64_t batch = a_.sequences.query_start ? 0 : r;
      if (first >= a_.n || !a_.list_row(batch, first, scope.first)) continue;
      if (scope.first.sequence != r) continue;
      scope.rows = a_.rows_of(scope.first.seq, first);
      for (int64_t j = 0; j < (all ? 1 : a_.x); ++j) {
        scope.head = j, scope.heads = all ? a_.x : j + 1;
        f(scope, r * a_.x + j);
      }
    }
  }
  int64_t scope_of(const ListRow& at, int64_t list_head) const {
    return at.sequence * a_.x + (a_.scope == FOVEA_X_SELECT_SCOPE_ALL ? 0 : list_head);
  }
  float* kept(const ListRow& at, int64_t list_head) const {
    return plan_.score.at(base_) + ((at.seq.batch * a_.x + list_head) * a_.n + at.row) * a_.y;
  }
  Range* range(const ListRow& at, int64_t head) const {
    return plan_.range.at(base_) + (at.seq.batch * a_.h + head) * a_.n + at.row;
  }

  // Rows of one sequence under one list head.
  struct Lane {
    const Run& run;
    const ListRow* rows;
    int64_t count, list_head;
    void* room;

    const SelectBlock& a() const { return run.a_; }
    const SelectRoom& at() const { return run.plan_.room; }
    float* head_row(int64_t i) const { return at().head.at(room) + i * a().u; }
    float* value_row(int64_t i) const { return at().value.at(room) + i * a().u; }

    void score() const {
      combine(true);
      for (int64_t i = 0; i < count; ++i) finish(rows[i], value_row(i));
    }
    // The least and the largest score of each row, of each query head or of what they reduce to.
    void ranges() const {
      if (a().reduce_raw) {
        combine(false);
        for (int64_t i = 0; i < count; ++i)
          *run.range(rows[i], list_head * a().group()) = find_range(value_row(i));
        return;
      }
      each_head([&](int64_t head) {
        for (int64_t i = 0; i < count; ++i) *run.range(rows[i], head) = find_range(head_row(i));
      });
    }

   private:
    // f(query head) once its scores, -inf where a column is not eligible, are in head_row.
    template <class F>
    void each_head(F f) const {
      for (int64_t head = list_head * a().group(); head < (list_head + 1) * a().group(); ++head) {
        for (int64_t i = 0; i < count; ++i) std::fill_n(head_row(i), rows[0].columns, 0.0f);
        if (a().row) products(head);
        for (int64_t i = 0; i < count; ++i) {
          const BlockBits mask = a().bits(a().block_mask, rows[i], list_head);
          float* x = head_row(i);
          for (int64_t c = 0; c < rows[i].columns; ++c) {
            const float s =
                a().score ? *a().score.at(rows[i].seq.batch, head, rows[i].row, c) : x[c];
            x[c] = a().eligible(rows[i], mask, head, c) ? a().scored_as(s) : -kInf;
          }
        }
        f(head);
      }
    }
    void combine(bool normalised) const {
      const int64_t first = list_head * a().group();
      const auto normal = [&](int64_t i, int64_t head, float* x) {
        if (normalised) run.normalise(rows[i], head, rows[i].columns, x);
      };
      each_head([&](int64_t head) {
        for (int64_t i = 0; i < count; ++i) {
          float *x = head_row(i), *sum = value_row(i);
          if (!a().reduce_raw) normal(i, head, x);
          for (int64_t c = 0; c < rows[i].columns; ++c) {
            if (head == first)
              sum[c] = x[c];
            else
              sum[c] = a().reduce == FOVEA_X_SELECT_REDUCE_MAX ? std::max(sum[c], x[c])
                                                               : pick_score(sum[c] + x[c]);
          }
        }
      });
      for (int64_t i = 0; i < count; ++i) {
        float* sum = value_row(i);
        if (a().reduce == FOVEA_X_SELECT_REDUCE_MEAN)
          for (int64_t c = 0; c < rows[i].columns; ++c) sum[c] /= static_cast<float>(a().group());
        if (a().reduce_raw) normal(i, first, sum);
      }
    }
    Range find_range(const float* x) const {
      Range at{kInf, -kInf};
      for (int64_t c = 0; c < rows[0].columns; ++c)
        if (x[c] > -kInf) at.low = std::min(at.low, x[c]), at.high = std::max(at.high, x[c]);
      return at;
    }
    void products(int64_t head) const;
    // Key blocks from columns, then the list or, with a wide scope, the row for later.
    void finish(const ListRow& row, float* x) const {
      float* blocks = x;
      if (a().remap_step) {
        blocks = at().block.at(room);
        run.remap(row, x, blocks);
      }
      if (a().score_out)
        for (int64_t c = 0; c < a().y; ++c)
          *a().score_out.at(row.seq.batch, list_head, row.row, c) =
              c < row.blocks ? blocks[c] : -kInf;
      if (a().wide()) {
        std::copy_n(blocks, row.blocks, run.kept(row, list_head));
        return;
      }
      const Scope scope{list_head, list_head + 1, row, 1};
      const PickCut cut = run.cut(
          scope, [&](int64_t e) { return blocks[e]; },
          [&, forced = Forced(a(), row, list_head)](int64_t e) { return forced(e); });
      run.emit(row, list_head, blocks, cut, 0);
    }
  };

  void normalise(const ListRow& at, int64_t head, int64_t columns, float* x) const {
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_NONE) return;
    if (a_.row_lse) {
      const float lse = *a_.row_lse.at(at.seq.batch, head, at.row);
      for (int64_t c = 0; c < columns; ++c)
        if (x[c] > -kInf) x[c] = SelectBlock::given_softmax(x[c], lse);
      return;
    }
    float low = kInf, high = -kInf;
    for (int64_t c = 0; c < columns; ++c)
      if (x[c] > -kInf) low = std::min(low, x[c]), high = std::max(high, x[c]);
    if (high == -kInf) return;
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_MINMAX) {
      if (plan_.ranged) low = range(at, head)->low, high = range(at, head)->high;
      const float width = high - low <= 1e-6f ? 1 : high - low;
      for (int64_t c = 0; c < columns; ++c)
        if (x[c] > -kInf) x[c] = pick_score((x[c] - low) / width);
      return;
    }
    if (a_.normalise == FOVEA_X_SELECT_NORMALISE_MAX) {
      for (int64_t c = 0; c < columns; ++c)
        if (high > 0 && x[c] > -kInf) x[c] = pick_score(x[c] / high);
      return;
    }
    float sum = 0;
    for (int64_t c = 0; c < columns; ++c) {
      if (!(x[c] > -kInf)) continue;
      x[c] = a_.weight(at, head, c) * (x[c] == high ? 1 : std::exp(x[c] - high));
      sum += x[c];
    }
    for (int64_t c = 0; c < columns; ++c)
      if (x[c] > -kInf) x[c] = sum > 0 ? pick_score(x[c] / sum) : 0;
  }

  void remap(const ListRow& at, const float* x, float* blocks) const {
    for (int64_t j = 0; j < at.blocks; ++j) {
      float sum = 0;
      for (int64_t m = 0; m < a_.remap_step; ++m)
        for (int64_t n = 0; n < a_.remap_span; ++n) {
          const int64_t c = a_.remap_step * j + m - n;
          if (c >= 0 && c < at.columns && x[c] > -kInf) sum += x[c];
        }
      blocks[j] = a_.block_visible(at, j) ? pick_score(sum) : -kInf;
    }
  }

  // What the rule takes of a scope: score(e) and forced(e) of entry e.
  template <class Score, class IsForced>
  PickCut cut(const Scope& scope, Score score, IsForced forced) const {
    const int64_t n = scope.entries();
    int64_t base = 0, total = 0, before = 0, total_mass = 0;
    float largest = 0;
    for (int64_t e = 0; e < n; ++e) largest = std::max(largest, score(e));
    const PickMass mass(largest, n);
    const auto key = [&](int64_t e) {
      const uint32_t at = pick_key(score(e));
      return at > kPickNone && !(a_.forced_count && forced(e)) ? at : 0u;
    };
    for (int64_t e = 0; e < n; ++e) {
      const bool apart = a_.forced_count && forced(e);
      base += apart, before += apart ? mass(score(e)) : 0;
      if (key(e)) ++total, total_mass += mass(score(e));
    }
    int64_t taken = 0;
    switch (a_.rule) {
      case PickRule::count:
        taken = a_.rule_none ? 0 : a_.wanted(scope.first, scope.head, n) - base;
        break;
      case PickRule::above:
      case PickRule::at_least:
        for (int64_t e = 0; e < n; ++e)
          taken += key(e) && (a_.rule == PickRule::above ? score(e) > a_.threshold
                                                         : score(e) >= a_.threshold);
        break;
      default:
        if (before + total_mass > 0)
          taken = host::count_by_mass(
              n, key, mass, a_.rule,
              pick_target(a_.rule, a_.cover_of(scope.head), before + total_mass), before, total,
              total_mass);
    }
    return host::cut_after(n, key, std::max(taken, a_.min_extra), total);
  }

  PickCut cut_scope(const Scope& scope) const {
    const int64_t blocks = scope.first.blocks, rows = scope.rows;
    const auto row_of = [&](int64_t e, int64_t& list_head) {
      list_head = scope.head + e / blocks / rows;
      return scope.first.row + e / blocks % rows;
    };
    return cut(
        scope,
        [&](int64_t e) {
          int64_t list_head;
          const int64_t row = row_of(e, list_head);
          return plan_.score.at(
              base_)[((scope.first.seq.batch * a_.x + list_head) * a_.n + row) * a_.y + e % blocks];
        },
        [&](int64_t e) {
          int64_t list_head;
          const int64_t row = row_of(e, list_head);
          ListRow at;
          a_.list_row(scope.first.seq.batch, row, at);
          return Forced(a_, at, list_head)(e % blocks);
        });
  }
  // The range of a scope to each of its rows.
  void join_ranges(const Scope& scope, int64_t) const {
    const bool all = a_.scope == FOVEA_X_SELECT_SCOPE_ALL;
    const int64_t group = a_.group(), step = a_.reduce_raw ? group : 1;
    const auto each = [&](int64_t from, int64_t to, auto f) {
      for (int64_t head = from; head < to; head += step)
        for (int64_t i = 0; i < scope.rows; ++i) {
          ListRow at = scope.first;
          at.row += i;
          f(*range(at, head));
        }
    };
    const auto join = [&](int64_t from, int64_t to) {
      Range whole{kInf, -kInf};
      each(from, to, [&](const Range& x) {
        whole = {std::min(whole.low, x.low), std::max(whole.high, x.high)};
      });
      each(from, to, [&](Range& x) { x = whole; });
    };
    if (all) return join(0, a_.h);
    for (int64_t head = scope.head * group; head < scope.heads * group; head += step)
      join(head, head + 1);
  }

  void emit_wide(int64_t item) const {
    const int64_t row = item % a_.n, list_head = item / a_.n % a_.x;
    ListRow at;
    if (!a_.list_row(item / a_.n / a_.x, row, at)) return;
    const int64_t rows = a_.rows_of(at.seq, a_.first_row(at.sequence));
    const int64_t heads = a_.scope == FOVEA_X_SELECT_SCOPE_ALL ? list_head : 0;
    emit(at, list_head, kept(at, list_head), plan_.cut.at(base_)[scope_of(at, list_head)],
         (heads * rows + at.rows_before) * at.blocks);
  }

  // The list of a row from the cut of its scope, in which its entries are numbered from `begin`.
  void emit(const ListRow& at, int64_t list_head, const float* score, PickCut cut,
            int64_t begin) const {
    const Forced forced(a_, at, list_head);
    const auto key = [&](int64_t c) {
      const uint32_t k = pick_key(score[c]);
      return k > kPickNone && !forced(c) ? k : 0u;
    };
    int64_t slot = 0;
    float mass = 0;
    const PickKeep keep = host::each_kept(
        at.blocks, a_.limits(), key, forced, cut, begin, [&](int64_t c, int64_t place) {
          if (a_.index) *a_.index.at<int32_t>(at.seq.batch, list_head, at.row, place) = int32_t(c);
          if (a_.kept_score) *a_.kept_score.at(at.seq.batch, list_head, at.row, place) = score[c];
          mass += score[c] > 0 ? score[c] : 0;
          slot = place + 1;
        });
    for (; slot < a_.keep; ++slot) {
      *a_.index.at<int32_t>(at.seq.batch, list_head, at.row, slot) = -1;
      if (a_.kept_score) *a_.kept_score.at(at.seq.batch, list_head, at.row, slot) = -kInf;
    }
    if (a_.index_count)
      *a_.index_count.at<int32_t>(at.seq.batch, list_head, at.row) = int32_t(keep.wanted);
    if (a_.kept_mass) *a_.kept_mass.at(at.seq.batch, list_head, at.row) = mass;
  }

  const SelectPlan& plan_;
  const SelectBlock& a_;
  void* base_;
  const host::Simd& simd_;
};

// head_row[i][c] = the chain of row i and column c.
void Run::Lane::products(int64_t head) const {
  const int64_t d = a().d, width = run.plan_.width;
  const SelectRoom& slot = at();
  float *q_rows = slot.rows.at(room), *q = slot.q.at(room), *k = slot.k.at(room),
        *x = slot.x.at(room);
  for (int64_t i = 0; i < count; ++i) {
    float* to = q_rows + i * width;
    host::load_row(run.simd_, a().row.data, a().row_dtype,
                   rows[i].seq.batch * a().row.stride[0] + rows[i].row * a().row.stride[1] +
                       head * a().row.stride[2],
                   a().row.stride[3], d, to);
    for (int64_t c = 0; a().box && c < d; ++c) {
      to[d + c] = to[c] < 0 ? to[c] : 0;
      to[c] = to[c] < 0 ? 0 : to[c];
    }
  }
  host::transpose(q_rows, width, count, width, kTile, q);
  const auto load = [&](const View<4>& from, int64_t column, float* to) {
    host::load_row(run.simd_, from.data, a().column_dtype,
                   rows[0].seq.key_b * from.stride[0] +
                       (rows[0].first_column + column) * from.stride[1] +
                       a().column_head(head) * from.stride[2],
                   from.stride[3], d, to);
  };
  for (int64_t begin = 0; begin < rows[0].columns; begin += kKeys) {
    const int64_t columns = std::min<int64_t>(kKeys, rows[0].columns - begin);
    for (int64_t c = 0; c < columns; ++c) {
      load(a().column, begin + c, k + c * width);
      if (a().box) load(a().column_low, begin + c, k + c * width + d);
    }
    run.simd_.chains({columns, kTile, width, k, width, q, kTile, x, kTile, nullptr, false, false});
    for (int64_t i = 0; i < count; ++i)
      for (int64_t c = 0; c < columns; ++c) head_row(i)[begin + c] = x[c * kTile + i];
  }
}

}  // namespace

extern const Kernel<SelectBlock> x_select_block_host = {
    "", [](const Context& ctx, const SelectBlock& a, Plan& plan) {
      SelectPlan p{};
      p.a = a, p.width = a.box ? 2 * a.d : a.d;
      Layout worker;
      SelectRoom& room = p.room;
      room.head = worker.add<float>(kTile, a.u), room.value = worker.add<float>(kTile, a.u);
      if (a.row) {
        room.rows = worker.add<float>(kTile, p.width), room.q = worker.add<float>(kTile, p.width);
        room.k = worker.add<float>(kKeys, p.width), room.x = worker.add<float>(kKeys, kTile);
      }
      if (a.remap_step) room.block = worker.add<float>(a.y);
      p.ranged = a.wide() && a.normalise == FOVEA_X_SELECT_NORMALISE_MINMAX;
      if (a.wide()) {
        p.score = plan.workspace.add<float>(a.b, a.x, a.n, a.y);
        p.cut = plan.workspace.add<PickCut>(a.sequences.count, a.x);
      }
      if (p.ranged) p.range = plan.workspace.add<Range>(a.b, a.h, a.n);
      const double items = static_cast<double>(a.b) * static_cast<double>(a.x) *
                           static_cast<double>(host::ceil_div(a.n, kTile));
      p.scratch = host::WorkerScratch(ctx, items, worker, plan.workspace);
      host::host_plan<Run>(plan, p, a.row ? host::shape_name(a.row_dtype, a.d) : Text(".given"));
      return Text();
    }};

}  // namespace fovea
