// SPDX-License-Identifier: Apache-2.0
// x_select_lsh on the CPU.  An item is a row of a query head: it counts in how many tables each key
// is in the query's bucket, then reads the counts in the order of keys.
#include <algorithm>
#include <numbers>

#include "host/sweep.h"
#include "ops/lsh/lsh.h"

namespace fovea {
namespace {

struct SelectPlan {
  SelectLsh a;
  Slot<double> choose;  // ln of tables over i, i < min_match
  Slot<int32_t> count;  // of a worker: t
  Slot<float> q, k;     // d
  host::WorkerScratch scratch;
};

// Of <q, k> and |k|^2, four sums each: the order is the same everywhere.
struct Products {
  double product = 0, square = 0;
  Products(const float* q, const float* k, int64_t d) {
    constexpr int lanes = 4;
    double products[lanes] = {}, squares[lanes] = {};
    const auto add = [&](int64_t c, int n) {
      const double x = k[c];
      products[n] += static_cast<double>(q[c]) * x, squares[n] += x * x;
    };
    int64_t c = 0;
    for (; c + lanes <= d; c += lanes)
      for (int n = 0; n < lanes; ++n) add(c + n, n);
    for (int n = 0; c < d; ++c, ++n) add(c, n);
    product = (products[0] + products[1]) + (products[2] + products[3]);
    square = (squares[0] + squares[1]) + (squares[2] + squares[3]);
  }
};

class Select {
 public:
  Select(const SelectPlan& plan, void* base)
      : plan_(plan), a_(plan.a), base_(base), choose_(plan.choose.at(base)) {}

  void run(Context& ctx) const {
    const auto tables = static_cast<double>(a_.from.tables);
    double log = 0;
    for (int64_t i = 0; choose_ && i < a_.min_match; ++i) {
      choose_[i] = log;
      log += std::log((tables - static_cast<double>(i)) / static_cast<double>(i + 1));
    }
    const int64_t rows = a_.b * a_.s;
    const double cost = static_cast<double>(rows) * static_cast<double>(a_.h) *
                        (static_cast<double>(a_.from.t) + 100 * tables);
    host::pool(ctx).run(rows * a_.h, cost, [&](int64_t item, int32_t worker) {
      const int64_t row = item / a_.h;
      head(row / a_.s, row % a_.s, item % a_.h, plan_.scratch.at(base_, worker));
    });
  }

 private:
  void head(int64_t b, int64_t i, int64_t h, void* room) const {
    if (i >= a_.rows(b)) return;
    const int64_t g = h / (a_.h / a_.g), keys = a_.keys(b);
    int32_t* const count = plan_.count.at(room);
    std::fill_n(count, keys, 0);
    for (int64_t l = 0; keys && l < a_.from.tables; ++l)
      a_.from.each(b, g, l, *a_.code.at<int32_t>(b, i, h, l), [&](int64_t key) {
        if (key < keys) ++count[key];
      });
    emit(b, i, h, keys, room);
  }
  void emit(int64_t b, int64_t i, int64_t h, int64_t keys, void* room) const {
    const int32_t* const count = plan_.count.at(room);
    float* const q = plan_.q.at(room);
    double own = 0;
    if (keys && a_.index_bias) {
      load(a_.q, a_.q_dtype, b, i, h, q);
      own = Products(q, q, a_.d).square;
    }
    int64_t found = 0;
    for (int64_t key = 0; key < keys; ++key) {
      if (count[key] < a_.min_match) continue;
      if (found < a_.keep) {
        *a_.index.at<int32_t>(b, h, i, found) = static_cast<int32_t>(key);
        if (a_.index_bias)
          *a_.index_bias.at(b, h, i, found) = bias(q, own, b, key, h, plan_.k.at(room));
      }
      ++found;
    }
    for (int64_t n = found; n < a_.keep; ++n) {
      *a_.index.at<int32_t>(b, h, i, n) = -1;
      if (a_.index_bias) *a_.index_bias.at(b, h, i, n) = 0;
    }
    if (a_.index_count) *a_.index_count.at<int32_t>(b, h, i) = static_cast<int32_t>(found);
  }

  void load(const View<4>& x, int32_t dtype, int64_t b, int64_t row, int64_t head,
            float* to) const {
    const int64_t offset = b * x.stride[0] + row * x.stride[1] + head * x.stride[2];
    host::load_row(host::simd(), x.data, dtype, offset, x.stride[3], a_.d, to);
  }
  float bias(const float* q, double own, int64_t b, int64_t key, int64_t h, float* k) const {
    load(a_.k, a_.k_dtype, b, key, h / (a_.h / a_.g), k);
    const Products with(q, k, a_.d);
    const double cosine = with.product / std::sqrt(own * with.square);
    return static_cast<float>(-std::log(chance(cosine) + 1e-4));
  }
  // That min_match tables or more have a query and a key in one bucket.  A cosine that is no number
  // counts as 0.
  double chance(double cosine) const {
    const double angle = std::acos(cosine == cosine ? std::clamp(cosine, -1.0, 1.0) : 0.0);
    const double p = std::pow(1 - angle / std::numbers::pi, static_cast<double>(a_.bits));
    if (p >= 1) return 1;
    if (!(p > 0)) return 0;
    const double hit = std::log(p), miss = std::log1p(-p);
    double fewer = 0;
    for (int64_t i = 0; i < a_.min_match; ++i)
      fewer += std::exp(choose_[i] + static_cast<double>(i) * hit +
                        static_cast<double>(a_.from.tables - i) * miss);
    return std::max(0.0, 1 - fewer);
  }

  const SelectPlan& plan_;
  const SelectLsh& a_;
  void* base_;
  double* choose_;
};

}  // namespace

extern const Kernel<SelectLsh> x_select_lsh_host = {
    "", [](const Context& ctx, const SelectLsh& a, Plan& plan) {
      SelectPlan p{};
      p.a = a;
      const int64_t there = a.b && a.s && a.h && a.from.t && a.index_bias ? 1 : 0;
      p.choose = plan.workspace.add<double>(there, a.min_match);
      Layout worker;
      p.count = worker.add<int32_t>(a.b && a.s && a.h ? a.from.t : 0);
      p.q = worker.add<float>(there, a.d), p.k = worker.add<float>(there, a.d);
      const double items =
          static_cast<double>(a.b) * static_cast<double>(a.s) * static_cast<double>(a.h);
      p.scratch = host::WorkerScratch(ctx, items, worker, plan.workspace);
      host::host_plan<Select>(plan, p, a.d ? host::shape_name(a.q_dtype, a.d) : Text(".codes"));
      return Text();
    }};

}  // namespace fovea
