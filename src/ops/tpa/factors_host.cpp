// SPDX-License-Identifier: Apache-2.0
// Heads from factors and back on the CPU: an item is a token.
#include <algorithm>

#include "host/sweep.h"
#include "ops/tpa/kernels.h"

namespace fovea {
namespace {

// Row `r` of token `at` of row n, as f32.
void load(const View<4>& x, const Factors& of, int64_t n, int64_t at, int64_t r, int64_t width,
          float* to) {
  const int64_t* s = x.stride;
  host::load_row(host::simd(), x.data, of.dtype, n * s[0] + at * s[1] + r * s[2], s[3], width, to);
}
void store(const View<4>& x, int32_t dtype, int64_t n, int64_t at, int64_t r, int64_t width,
           const float* from, float factor) {
  const int64_t* s = x.stride;
  host::store_row(x.data, dtype, n * s[0] + at * s[1] + r * s[2], s[3], width, from, factor);
}

// A worker's room: a of all ranks, b of all ranks, a row of a head, and sums of them.
struct Room {
  Slot<float> a, b, y, da, db;
  host::WorkerScratch scratch;

  Room() = default;
  Room(const Context& ctx, const Factors& of, bool sums, Layout& workspace) {
    Layout worker;
    a = worker.add<float>(of.ranks, of.heads), b = worker.add<float>(of.ranks, of.width);
    y = worker.add<float>(of.width);
    da = worker.add<float>(sums ? of.ranks : 0, of.heads);
    db = worker.add<float>(sums ? of.ranks : 0, of.width);
    scratch = host::WorkerScratch(ctx, static_cast<double>(of.n0) * static_cast<double>(of.n1),
                                  worker, workspace);
  }
  void load_factors(const Factors& of, int64_t n, int64_t at, void* base) const {
    for (int64_t r = 0; r < of.ranks; ++r) {
      load(of.a, of, n, at, r, of.heads, a.at(base) + r * of.heads);
      load(of.b, of, n, at, r, of.width, b.at(base) + r * of.width);
    }
  }
};

double cost_of(const Factors& of) {
  return static_cast<double>(of.n0 * of.n1) * static_cast<double>(of.ranks * of.heads * of.width);
}

struct ExpandPlan {
  TpaExpand x;
  Room room;
};

class Expand {
 public:
  Expand(const ExpandPlan& plan, void* base) : plan_(plan), x_(plan.x), base_(base) {}
  void run(Context& ctx) const {
    for (int64_t n = 0; x_.pages && n < x_.of.n0; ++n)
      *x_.table_out.at<int32_t>(n / x_.pages, n % x_.pages) =
          x_.page(n) < 0 ? -1 : static_cast<int32_t>(n);
    host::pool(ctx).run(x_.tokens(), cost_of(x_.of), [&](int64_t item, int32_t worker) {
      token(item / x_.of.n1, item % x_.of.n1, plan_.room.scratch.at(base_, worker));
    });
  }

 private:
  void token(int64_t n, int64_t at, void* room) const {
    const Factors& of = x_.of;
    const int64_t from = x_.row(n, at);
    if (from < 0) return;
    plan_.room.load_factors(of, from, at, room);
    const float *a = plan_.room.a.at(room), *b = plan_.room.b.at(room);
    float* y = plan_.room.y.at(room);
    for (int64_t i = 0; i < of.heads; ++i) {
      std::fill_n(y, of.width, 0.0f);
      for (int64_t r = 0; r < of.ranks; ++r)
        host::add_row(of.width, a[r * of.heads + i], b + r * of.width, y);
      store(x_.y, of.dtype, n, at, i, of.width, y, of.scale);
    }
  }

  const ExpandPlan& plan_;
  const TpaExpand& x_;
  void* base_;
};

struct ReducePlan {
  TpaReduce x;
  Room room;
};

class Reduce {
 public:
  Reduce(const ReducePlan& plan, void* base) : plan_(plan), x_(plan.x), base_(base) {}
  void run(Context& ctx) const {
    const int64_t items = x_.of.n0 * x_.of.n1;
    host::pool(ctx).run(items, 2 * cost_of(x_.of), [&](int64_t item, int32_t worker) {
      token(item / x_.of.n1, item % x_.of.n1, plan_.room.scratch.at(base_, worker));
    });
  }

 private:
  void token(int64_t n, int64_t at, void* room) const {
    const Factors& of = x_.of;
    plan_.room.load_factors(of, n, at, room);
    const float *a = plan_.room.a.at(room), *b = plan_.room.b.at(room);
    float *y = plan_.room.y.at(room), *da = plan_.room.da.at(room), *db = plan_.room.db.at(room);
    for (int64_t r = 0; r < of.ranks; ++r) sums(n, at, r, db + r * of.width);
    for (int64_t i = 0; i < of.heads; ++i) {
      load(x_.dy, of, n, at, i, of.width, y);
      for (int64_t r = 0; r < of.ranks; ++r) {
        const float* row = b + r * of.width;
        const float by = a[r * of.heads + i];
        float *to = db + r * of.width, inner = 0;
        for (int64_t c = 0; c < of.width; ++c) {
          if (y[c] == 0) continue;
          inner += y[c] * row[c], to[c] += by * y[c];
        }
        da[r * of.heads + i] = inner;
      }
    }
    for (int64_t r = 0; r < of.ranks; ++r) {
      if (x_.da) store(x_.da, of.dtype, n, at, r, of.heads, da + r * of.heads, of.scale);
      if (!x_.db) continue;
      if (x_.last)
        store(x_.db, of.dtype, n, at, r, of.width, db + r * of.width, of.scale);
      else
        store(x_.sum, FOVEA_F32, n, at, r, of.width, db + r * of.width, 1);
    }
  }
  // What the calls before have summed.
  void sums(int64_t n, int64_t at, int64_t r, float* to) const {
    if (x_.first || !x_.sum) {
      std::fill_n(to, x_.of.width, 0.0f);
    } else {
      const float* from = x_.sum.at(n, at, r);
      std::copy_n(from, x_.of.width, to);
    }
  }

  const ReducePlan& plan_;
  const TpaReduce& x_;
  void* base_;
};

}  // namespace

extern const Kernel<TpaExpand> tpa_expand_host = {
    "", [](const Context& ctx, const TpaExpand& x, Plan& plan) {
      const ExpandPlan p{x, Room(ctx, x.of, false, plan.workspace)};
      host::host_plan<Expand>(plan, p, Text());
      return Text();
    }};

extern const Kernel<TpaReduce> tpa_reduce_host = {
    "", [](const Context& ctx, const TpaReduce& x, Plan& plan) {
      const ReducePlan p{x, Room(ctx, x.of, true, plan.workspace)};
      host::host_plan<Reduce>(plan, p, Text());
      return Text();
    }};

}  // namespace fovea
