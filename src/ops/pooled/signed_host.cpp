// SPDX-License-Identifier: Apache-2.0
// Signed rows on the CPU: an item is a token and a key head.
#include <algorithm>
#include <cmath>

#include "core/pick.h"
#include "host/sweep.h"
#include "ops/pooled/signed.h"

namespace fovea {
namespace {

struct SignedPlan {
  SignedRows a;
  Slot<float> rows, sum, size;
  Slot<int32_t> column;
  host::WorkerScratch scratch;
};

class Run {
 public:
  Run(const SignedPlan& plan, void* base) : plan_(plan), a_(plan.a), base_(base) {}

  void run(Context& ctx) const {
    const int64_t items = token_slots(a_.sequences) * a_.g;
    const double cost = static_cast<double>(items) * static_cast<double>(a_.group() * a_.d);
    host::pool(ctx).run(items, cost, [&](int64_t item, int32_t worker) {
      const Token token = token_at(a_.sequences, item / a_.g);
      if (token.number >= 0) key_head(token, item % a_.g, plan_.scratch.at(base_, worker));
    });
  }

 private:
  void key_head(const Token& token, int64_t g, void* room) const {
    const int64_t d = a_.d, batch = token.sequence.batch, first = g * a_.group();
    const int64_t row = token.sequence.row_begin + token.index;
    float *rows = plan_.rows.at(room), *sum = plan_.sum.at(room), *size = plan_.size.at(room);
    int32_t* column = plan_.column.at(room);
    const View<4>& q = a_.q;
    for (int64_t n = 0; n < a_.group(); ++n)
      host::load_row(host::simd(), q.data, a_.dtype,
                     batch * q.stride[0] + row * q.stride[1] + (first + n) * q.stride[2],
                     q.stride[3], d, rows + n * d);
    for (int64_t c = 0; c < d; ++c) {
      sum[c] = size[c] = 0, column[c] = static_cast<int32_t>(c);
      for (int64_t n = 0; n < a_.group(); ++n)
        sum[c] += rows[n * d + c], size[c] += std::abs(rows[n * d + c]);
    }
    std::sort(column, column + d, [&](int32_t x, int32_t y) {
      const uint32_t first_key = pick_key(size[x]), second_key = pick_key(size[y]);
      return first_key != second_key ? first_key > second_key : x < y;
    });
    std::sort(column, column + a_.subset);
    for (int64_t n = 0; n < a_.group(); ++n) {
      const float* x = rows + n * d;
      float *y = a_.y.at(batch, row, first + n), all = 0, part = 0;
      for (int64_t c = 0; c < d; ++c) all += std::abs(x[c]);
      for (int64_t i = 0; i < a_.subset; ++i) part += std::abs(x[column[i]]);
      const float factor = part > 0 ? 1 / std::sqrt(part / all) : 0;
      std::fill_n(y, 2 * d, 0.0f);
      for (int64_t i = 0; i < a_.subset; ++i) {
        const int64_t c = column[i];
        y[sum[c] > 0 ? c : d + c] = x[c] * factor;
      }
    }
  }

  const SignedPlan& plan_;
  const SignedRows& a_;
  void* base_;
};

}  // namespace

extern const Kernel<SignedRows> signed_rows_host = {
    "", [](const Context& ctx, const SignedRows& a, Plan& plan) {
      SignedPlan p{};
      p.a = a;
      Layout worker;
      p.rows = worker.add<float>(a.group(), a.d), p.sum = worker.add<float>(a.d);
      p.size = worker.add<float>(a.d), p.column = worker.add<int32_t>(a.d);
      const double items = static_cast<double>(token_slots(a.sequences) * a.g);
      p.scratch = host::WorkerScratch(ctx, items, worker, plan.workspace);
      host::host_plan<Run>(plan, p, Text());
      return Text();
    }};

}  // namespace fovea
