// SPDX-License-Identifier: Apache-2.0
// x_pool_forward and _backward on the CPU.  The forward's item is a block of a sequence, of all
// heads.  The backward first marks each block (where max and min are, the softmax of gated); then
// an item is a token, and adds what the blocks give that read it, heads and blocks in order.
#include <algorithm>

#include "host/sweep.h"
#include "ops/summary/pool.h"

namespace fovea {
namespace {

constexpr int64_t kPiece = 64;  // columns that are held at a time

constexpr double kElementCost = 2;  // nanoseconds

class Forward {
 public:
  Forward(const PoolCall& a, void*) : a_(a) {}

  void run(Context& ctx) const {
    const int64_t items = a_.sequences.count * a_.blocks_most;
    const double tokens =
        static_cast<double>(a_.sequences.count) * static_cast<double>(a_.sequences.key_max);
    host::pool(ctx).run(items, tokens * static_cast<double>(a_.h * a_.d) * kElementCost,
                        [&](int64_t item, int32_t) {
                          for (int64_t head = 0; head < a_.h; ++head)
                            block(item / a_.blocks_most, item % a_.blocks_most, head);
                        });
  }

 private:
  void block(int64_t r, int64_t c, int64_t head) const {
    const Sequence q = a_.sequences[r];
    const PoolBlock at = pool_block(a_, q, r, head, c);
    if (!at.there) return;
    const Interval tokens = pool_tokens(a_, at, r);
    if (a_.wants(FOVEA_X_SUMMARY_GATED)) {
      for (int64_t column = 0; column < a_.f; ++column)
        pool_store(a_, at, head, column, pool_gated(a_, q, at, at.begin, 1, head, column));
    } else if (a_.wants(FOVEA_X_SUMMARY_RANKED)) {
      ranked(q, r, at, head);
    } else {
      for (int64_t column = 0; column < a_.d; ++column)
        pool_store(a_, q, r, at, head, column,
                   pool_stripe(a_, q, tokens, 1, head, column, [](int64_t) { return true; }));
    }
    if (a_.similar || a_.dissimilar) similar(q, at, head);
  }

  // Columns of a piece of the row at a time: which tokens are chosen is found once for all.
  void ranked(const Sequence& q, int64_t r, const PoolBlock& at, int64_t head) const {
    for (int64_t first = 0; first < a_.d; first += kPiece) {
      PoolState state[kPiece];
      std::fill_n(state, kPiece, pool_empty());
      const int64_t count = std::min(kPiece, a_.d - first);
      for (int64_t i = at.begin; i < at.end; ++i) {
        if (!pool_there(a_, q, i) || !pool_chosen(a_, q, at, head, i)) continue;
        for (int64_t c = 0; c < count; ++c)
          pool_add(state[c], pool_x(a_, q, head, i, first + c).value, i);
      }
      for (int64_t c = 0; c < count; ++c) pool_store(a_, q, r, at, head, first + c, state[c]);
    }
  }

  void similar(const Sequence& q, const PoolBlock& at, int64_t head) const {
    double square = 0;
    for (int64_t first = 0; first < a_.d; first += kPiece) {
      float sum[kPiece] = {};
      const int64_t count = std::min(kPiece, a_.d - first);
      int64_t tokens = 0;
      for (int64_t i = at.begin; i < at.end; ++i) {
        if (!pool_there(a_, q, i)) continue;
        ++tokens;
        const float inverse = inverse_norm(q, head, i);
        for (int64_t c = 0; c < count; ++c)
          sum[c] += pool_x(a_, q, head, i, first + c).value * inverse;
      }
      for (int64_t c = 0; c < count && tokens; ++c) {
        const double mean = static_cast<double>(sum[c]) / static_cast<double>(tokens);
        square += mean * mean;
      }
    }
    pool_store_similar(a_, at, head, static_cast<float>(square));
  }
  float inverse_norm(const Sequence& q, int64_t head, int64_t i) const {
    float square = 0;
    for (int64_t c = 0; c < a_.d; ++c) {
      const float x = pool_x(a_, q, head, i, c).value;
      square += x * x;
    }
    return square == 0 ? 0 : 1 / std::sqrt(square);
  }

  const PoolCall& a_;
};

struct BackwardPlan {
  PoolBackward b;
  Slot<PoolMark> mark;  // (b, u, h, d)
  Slot<PoolNorm> norm;  // (b, u, h, f)
  Slot<double> parts;   // (parts, places, d)
};

class Backward {
 public:
  Backward(const BackwardPlan& plan, void* base)
      : plan_(plan),
        b_(plan.b),
        a_(plan.b.call),
        mark_(b_.marks() ? plan.mark.at(base) : nullptr),
        norm_(b_.gated() ? plan.norm.at(base) : nullptr),
        parts_(plan.parts.at(base)) {}

  void run(Context& ctx) const {
    host::Pool& pool = host::pool(ctx);
    const Sequences& q = a_.sequences;
    const double cost = static_cast<double>(q.count) * static_cast<double>(q.key_max) *
                        static_cast<double>(a_.h * a_.d) * kElementCost;
    if (mark_ || norm_)
      pool.run(b_.windows(), cost, [&](int64_t item, int32_t) {
        for (int64_t head = 0; head < a_.h; ++head)
          mark(item / a_.blocks_most, item % a_.blocks_most, head);
      });
    if (b_.dx || b_.dgate) {
      // Tokens of no sequence as well.
      const int64_t rows = a_.b * q.s;
      pool.run(rows, cost, [&](int64_t row, int32_t) { token(row / q.s, row % q.s); });
    }
    if (b_.dbias) bias(pool, cost);
  }

 private:
  void mark(int64_t r, int64_t c, int64_t head) const {
    const Sequence q = a_.sequences[r];
    const PoolBlock at = pool_block(a_, q, r, head, c);
    if (!at.there) return;
    for (int64_t column = 0; column < (norm_ ? a_.f : a_.d); ++column) {
      const int64_t to = pool_mark_at(a_, at, head, column);
      if (norm_) {
        norm_[to] = pool_norm(pool_gated(a_, q, at, at.begin, 1, head, column));
        continue;
      }
      const PoolState s =
          pool_stripe(a_, q, {at.begin, at.end}, 1, head, column, [](int64_t) { return true; });
      mark_[to] = pool_mark(at, s);
    }
  }

  void token(int64_t batch, int64_t row) const {
    PoolToken at = pool_token(a_, batch, row);
    for (int64_t head = 0; b_.dgate && head < a_.h; ++head)
      for (int64_t c = 0; c < a_.d; ++c) pool_store_dgate(b_, norm_, at, batch, row, head, c);
    for (int64_t head = 0; b_.dx && head < a_.g; ++head)
      for (int64_t c = 0; c < a_.d; ++c) pool_store_dx(b_, mark_, norm_, at, batch, row, head, c);
  }

  void bias(host::Pool& pool, double cost) const {
    const int64_t parts = b_.parts(), windows = b_.windows();
    const int64_t each = host::ceil_div(windows, parts), columns = a_.block * a_.d;
    pool.run(parts * a_.block, cost, [&](int64_t item, int32_t) {
      const int64_t part = item / a_.block, place = item % a_.block;
      for (int64_t c = 0; c < a_.d; ++c)
        parts_[part * columns + place * a_.d + c] =
            pool_dbias(a_, norm_, part * each, std::min(windows, (part + 1) * each), place, c);
    });
    for (int64_t n = 0; n < columns; ++n) {
      double sum = 0;
      for (int64_t part = 0; part < parts; ++part) sum += parts_[part * columns + n];
      *b_.dbias.at(n / a_.d, n % a_.d) = static_cast<float>(sum);
    }
  }

  const BackwardPlan& plan_;
  const PoolBackward& b_;
  const PoolCall& a_;
  PoolMark* mark_;
  PoolNorm* norm_;
  double* parts_;
};

}  // namespace

extern const Kernel<PoolCall> pool_forward_host = {
    "", [](const Context&, const PoolCall& a, Plan& plan) {
      host::host_plan<Forward>(plan, a, host::shape_name(a.dtype, a.d));
      return Text();
    }};

extern const Kernel<PoolBackward> pool_backward_host = {
    "", [](const Context&, const PoolBackward& b, Plan& plan) {
      BackwardPlan p{b, {}, {}, {}};
      pool_lay_out(b, plan.workspace, p.mark, p.norm, p.parts);
      host::host_plan<Backward>(plan, p, host::shape_name(b.call.dtype, b.call.d));
      return Text();
    }};

}  // namespace fovea
