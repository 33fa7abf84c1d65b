// SPDX-License-Identifier: Apache-2.0
// trace_forward against the definition of trace.h where one case of a sweep cannot go: every small
// mask, what follows from the definition, a million keys, many decisions of exact = 0, many runs.
#include <gtest/gtest.h>

#include <set>

#include "harness/check.h"
#include "oracle/trace.h"

namespace {

using harness::Context;
using Values = std::vector<float>;

// One call: inputs on the host for the oracle, everything on the backend for the library.
class Tracing {
 public:
  Tracing(Context& ctx, int64_t b, int64_t s, int64_t t, int64_t h, int64_t g, int64_t d)
      : ctx_(ctx), b(b), s(s), t(t), h(h), g(g), d(d) {
    p.struct_size = sizeof p;
  }

  int64_t row_blocks() const { return (s + p.block_rows - 1) / p.block_rows; }
  int64_t key_blocks() const { return (t + p.block_keys - 1) / p.block_keys; }

  // q, k, bits: what the call reads; `bits` may be empty.
  void give(Values q, Values k, std::vector<uint8_t> bits = {}) {
    input(p.q, FOVEA_F32, {b, s, h, d}, q), input(p.k, FOVEA_F32, {b, t, g, d}, k);
    if (!bits.empty())
      input(p.block_mask, FOVEA_U8, {b, h, row_blocks(), (key_blocks() + 7) / 8}, bits);
  }

  // False where the backend has no kernel for it.
  bool run() {
    const int64_t slots = b * h * row_blocks() * p.keep;
    harness::Memory chosen(ctx_, slots * 4), scores(ctx_, slots * 4);
    fovea_trace_forward_params call = p;
    const int64_t shape[] = {b, h, row_blocks(), p.keep};
    call.selected = fovea_contiguous(chosen.data, FOVEA_I32, 4, shape);
    call.score = fovea_contiguous(scores.data, FOVEA_F32, 4, shape);
    for (const Input& x : inputs_)
      reinterpret_cast<fovea_tensor*>(reinterpret_cast<uint8_t*>(&call) + x.slot)->data =
          x.memory->data;
    const fovea_status status = fovea_trace_forward(ctx_, &call);
    if (status == FOVEA_UNSUPPORTED && ctx_.backend == FOVEA_CUDA) return false;
    EXPECT_EQ(status, FOVEA_OK) << fovea_last_error();
    selected = as<int32_t>(chosen.read()), score = as<float>(scores.read());
    return true;
  }

  // f(first slot of the block, the block) for every row block of every head.
  template <class F>
  void each_block(F f) const {
    const oracle::Trace a = oracle::load_trace(p);
    int64_t slot = 0;
    for (int64_t n = 0; n < b; ++n)
      for (int64_t head = 0; head < h; ++head)
        for (int64_t block = 0; block < row_blocks(); ++block, slot += p.keep)
          f(a, slot, oracle::row_block(a, n, head, block));
  }

  // The number of row blocks that are not what the definition says.
  int64_t wrong() const {
    int64_t count = 0;
    each_block([&](const oracle::Trace& a, int64_t slot, const oracle::RowBlock& at) {
      const std::vector<oracle::Candidate> want = oracle::trace_block(a, at);
      bool same = true;
      for (int64_t i = 0; i < p.keep; ++i)
        same = same && selected[slot + i] == want[i].representative &&
               !std::memcmp(&score[slot + i], &want[i].score, 4);
      count += !same;
    });
    return count;
  }

  fovea_trace_forward_params p = {};
  std::vector<int32_t> selected;
  Values score;

 private:
  struct Input {
    size_t slot;
    std::vector<uint8_t> bytes;
    std::unique_ptr<harness::Memory> memory;
  };

  template <class T>
  static std::vector<T> as(const std::vector<uint8_t>& bytes) {
    std::vector<T> out(bytes.size() / sizeof(T));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }

  template <class T>
  void input(fovea_tensor& slot, fovea_dtype dtype, const std::vector<int64_t>& shape,
             const std::vector<T>& values) {
    Input x;
    x.slot =
        static_cast<size_t>(reinterpret_cast<uint8_t*>(&slot) - reinterpret_cast<uint8_t*>(&p));
    x.bytes.resize(values.size() * sizeof(T));
    std::memcpy(x.bytes.data(), values.data(), x.bytes.size());
    x.memory = std::make_unique<harness::Memory>(ctx_, x.bytes.size());
    x.memory->write(x.bytes);
    slot =
        fovea_contiguous(x.bytes.data(), dtype, static_cast<int32_t>(shape.size()), shape.data());
    inputs_.push_back(std::move(x));
  }

  Context& ctx_;
  std::vector<Input> inputs_;

 public:
  const int64_t b, s, t, h, g, d;
};

Values numbers(int64_t count, harness::Random& random, bool integers) {
  Values x(count);
  for (float& value : x)
    value = integers ? static_cast<float>(random.integer(-1, 1))
                     : static_cast<float>(random.normal(random.next++));
  return x;
}

class TraceTest : public testing::TestWithParam<fovea_backend> {
 protected:
  TraceTest() : ctx(GetParam()) {}
  Context ctx;
};
INSTANTIATE_TEST_SUITE_P(definition, TraceTest, testing::ValuesIn(harness::backends()),
                         [](const auto& at) { return std::string(harness::name_of(at.param)); });

// Up to 8 key blocks: every mask, every number kept.  Scores of -1, 0, 1 tie wherever they can.
TEST_P(TraceTest, every_mask) {
  harness::Random random(1);
  for (int64_t n = 1; n <= 8; ++n)
    for (int64_t keep = 1; keep <= n; ++keep) {
      Tracing x(ctx, 1, 16 << n, 16 * n - n % 3, 1, 1, 2);
      x.p.block_rows = x.p.block_keys = 16, x.p.keep = keep, x.p.exact = (n + keep) % 2 == 0;
      std::vector<uint8_t> bits(1 << n);
      for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint8_t>(i);
      x.give(numbers(x.s * 2, random, true), numbers(x.t * 2, random, true), bits);
      if (!x.run()) GTEST_SKIP() << fovea_last_error();
      EXPECT_EQ(x.wrong(), 0) << n << " key blocks, " << keep << " kept";
    }
}

// Up to 12 key blocks, every number kept: random masks, NaN, -0, ties, empty rows, both modes.
TEST_P(TraceTest, small_calls) {
  harness::Random random(2);
  for (int64_t n = 1; n <= 12; ++n)
    for (int64_t keep = 1; keep <= n; ++keep)
      for (int turn = 0; turn < 4; ++turn) {
        const bool integers = turn % 2;
        Tracing x(ctx, 2, turn < 2 ? 50 : 16 * n, 16 * n - turn * 4, 2, 1, 3);
        x.p.block_rows = x.p.block_keys = 16, x.p.keep = keep, x.p.exact = !integers;
        x.p.causal = turn >= 2;
        Values q = numbers(x.b * x.s * x.h * x.d, random, integers);
        Values k = numbers(x.b * x.t * x.g * x.d, random, integers);
        for (float& value : k) {
          if (random.integer(0, 40) == 0) value = NAN;
          if (random.integer(0, 9) == 0) value = -0.0f;
        }
        for (float& value : q)
          if (random.integer(0, 9) == 0) value = -0.0f;
        // Every product underflows: scores are zeros of either sign.
        for (Values* values : {&q, &k})
          for (float& value : *values) value *= turn == 2 ? 1e-25f : 1;
        std::vector<uint8_t> bits(x.b * x.h * x.row_blocks() * ((n + 7) / 8));
        for (uint8_t& byte : bits) byte = static_cast<uint8_t>(random.integer(0, 255));
        if (turn == 3) bits.clear();
        x.give(q, k, bits);
        if (!x.run()) GTEST_SKIP() << fovea_last_error();
        EXPECT_EQ(x.wrong(), 0) << n << " key blocks, " << keep << " kept, turn " << turn;
      }
}

// (a) of the specification: at most kq valid blocks are all found.  And no block twice, ever.
TEST_P(TraceTest, few_valid_blocks_are_all_found) {
  harness::Random random(3);
  for (int64_t n : {5, 16, 40, 100}) {
    Tracing x(ctx, 1, 16 * 40, 16 * n, 2, 1, 4);
    x.p.block_rows = x.p.block_keys = 16, x.p.keep = 6, x.p.exact = 1;
    std::vector<uint8_t> bits(x.h * x.row_blocks() * ((n + 7) / 8));
    std::vector<std::set<int32_t>> valid(x.h * x.row_blocks());
    for (size_t row = 0; row < valid.size(); ++row)
      for (int64_t count = random.integer(0, 6); count > 0; --count) {
        const int64_t u = random.integer(0, n - 1);
        bits[row * ((n + 7) / 8) + u / 8] |= static_cast<uint8_t>(1 << u % 8);
        valid[row].insert(static_cast<int32_t>(u));
      }
    x.give(numbers(x.s * x.h * x.d, random, false), numbers(x.t * x.d, random, false), bits);
    if (!x.run()) GTEST_SKIP() << fovea_last_error();
    for (size_t row = 0; row < valid.size(); ++row) {
      std::set<int32_t> got;
      for (int i = 0; i < 6; ++i) {
        const int32_t u = x.selected[row * 6 + i];
        if (u >= 0) {
          EXPECT_TRUE(got.insert(u).second) << "block " << u << " twice";
        }
      }
      EXPECT_EQ(got, valid[row]) << n << " key blocks, row " << row;
    }
  }
}

// One dimension tells the answer: the key blocks' scores are given, a peak is found at any place.
TEST_P(TraceTest, representatives_lead_to_the_peak) {
  for (int64_t n : {2, 3, 7, 12, 33}) {
    Tracing x(ctx, 1, 1, 16 * n, 1, 1, 1);
    x.p.block_rows = x.p.block_keys = 16, x.p.keep = 1, x.p.exact = 1;
    Values k(x.t);
    for (int64_t j = 0; j < x.t; ++j) k[j] = static_cast<float>(j / 16);  // rises to the end
    x.give({1}, k);
    if (!x.run()) GTEST_SKIP() << fovea_last_error();
    EXPECT_EQ(x.selected[0], n - 1);
    EXPECT_EQ(x.score[0], static_cast<float>(n - 1));
  }
}

// A million keys, few rows; and the workspace is no larger for them.
TEST_P(TraceTest, a_million_keys) {
  harness::Random random(4);
  const int64_t t = 1 << 20;
  const Values k = numbers(t * 16, random, false);
  size_t bytes[2] = {};
  for (const bool causal : {false, true}) {
    Tracing x(ctx, 1, 130, t, 1, 1, 16);
    x.p.block_rows = x.p.block_keys = 64, x.p.keep = 16, x.p.exact = 1, x.p.causal = causal;
    std::vector<uint8_t> bits(x.row_blocks() * x.key_blocks() / 8);
    for (uint8_t& byte : bits) byte = static_cast<uint8_t>(random.integer(0, 255));
    if (causal) bits.clear();
    x.give(numbers(x.s * x.d, random, false), k, bits);
    if (!x.run()) GTEST_SKIP() << fovea_last_error();
    EXPECT_EQ(x.wrong(), 0) << (causal ? "causal" : "masked");
    harness::must(fovea_trace_forward_workspace(ctx, &x.p, &bytes[0]), "workspace");
    x.p.k.shape[1] = 1 << 12;
    x.p.block_mask = {};
    harness::must(fovea_trace_forward_workspace(ctx, &x.p, &bytes[1]), "workspace");
    EXPECT_EQ(bytes[0], bytes[1]);
  }
}

// exact = 0 may part from the definition only where two scores are within the bound of each other:
// where every half that was kept beat those dropped by more, the blocks are the same and their
// order is, but for neighbours within the bound.
TEST_P(TraceTest, fast_decisions_are_within_their_bound) {
  harness::Random random(5);
  int64_t checked = 0, close = 0;
  for (int64_t d : {16, 40, 64, 128}) {
    Tracing x(ctx, 1, 16 * 24, 16 * 60 - 5, 4, 2, d);
    x.p.block_rows = x.p.block_keys = 16, x.p.keep = 7, x.p.causal = d == 64;
    const Values q = numbers(x.s * x.h * d, random, false),
                 k = numbers(x.t * x.g * d, random, false);
    double q_most = 0, k_most = 0;
    for (float value : q) q_most = std::max<double>(q_most, std::abs(value));
    for (float value : k) k_most = std::max<double>(k_most, std::abs(value));
    const double bound = 0x1p-20 * static_cast<double>(d) * q_most * k_most;
    x.give(q, k);
    if (!x.run()) GTEST_SKIP() << fovea_last_error();
    x.each_block([&](const oracle::Trace& a, int64_t slot, const oracle::RowBlock& at) {
      double gap = HUGE_VAL;
      const std::vector<oracle::Candidate> want = oracle::trace_block(a, at, &gap);
      ++checked;
      if (gap <= bound) {
        ++close;
        return;
      }
      std::map<int64_t, float> scores;
      for (const oracle::Candidate& c : want) scores[c.representative] = c.score;
      float before = HUGE_VALF;
      std::set<int64_t> got;
      for (int64_t i = 0; i < x.p.keep; ++i) {
        const int64_t u = x.selected[slot + i];
        ASSERT_TRUE(scores.count(u)) << "block " << u << " with a gap of " << gap;
        EXPECT_TRUE(u < 0 || got.insert(u).second);
        if (u < 0) continue;
        EXPECT_LE(scores[u], before + bound);
        EXPECT_NEAR(x.score[slot + i], scores[u], bound);
        before = scores[u];
      }
    });
  }
  EXPECT_GT(checked, 300);
  EXPECT_LT(close, checked / 10);
}

// The same bytes in a hundred runs, with any number of threads, alone and beside other batches.
TEST_P(TraceTest, a_hundred_runs) {
  harness::Random random(6);
  const int64_t s = 200, t = 900, h = 4, d = 24;
  const Values q = numbers(2 * s * h * d, random, false), k = numbers(2 * t * d, random, false);
  std::vector<int32_t> first;
  for (int i = 0; i < 100; ++i) {
    if (ctx.backend == FOVEA_HOST)
      harness::must(fovea_context_set_threads(ctx, 1 + i % 7), "threads");
    const bool alone = i % 3 == 2;
    Tracing x(ctx, alone ? 1 : 2, s, t, h, 1, d);
    x.p.block_rows = 32, x.p.block_keys = 16, x.p.keep = 9, x.p.causal = 1;
    if (alone)
      x.give(Values(q.begin() + s * h * d, q.end()), Values(k.begin() + t * d, k.end()));
    else
      x.give(q, k);
    if (!x.run()) GTEST_SKIP() << fovea_last_error();
    if (first.empty()) first = x.selected;
    const auto half = first.begin() + static_cast<int64_t>(first.size()) / 2;
    EXPECT_TRUE(std::equal(x.selected.begin(), x.selected.end(), alone ? half : first.begin()));
  }
}

// Three layers into one list: each continues where the last ended, and what does not fit is
// counted.
TEST_P(TraceTest, layers_make_one_list) {
  harness::Random random(7);
  const int64_t layers = 3, cap = 50, total = 3 * 2 * 4 * 5;
  harness::Memory records(ctx, cap * 20), counter(ctx, 8);
  counter.write(std::vector<uint8_t>(8));
  std::vector<int32_t> want;
  for (int64_t layer = 0; layer < layers; ++layer) {
    Tracing x(ctx, 1, 64, 160, 2, 2, 8);
    x.p.block_rows = x.p.block_keys = 16, x.p.keep = 5, x.p.layer = static_cast<int32_t>(layer);
    x.give(numbers(x.s * x.h * x.d, random, false), numbers(x.t * x.g * x.d, random, false));
    const int64_t edge[] = {cap, 4}, one[] = {1};
    x.p.edge = fovea_contiguous(records.data, FOVEA_I32, 2, edge);
    x.p.edge_weight =
        fovea_contiguous(static_cast<uint8_t*>(records.data) + 16, FOVEA_F32, 1, edge);
    x.p.edge.stride[0] = x.p.edge_weight.stride[0] = 5;
    x.p.edge_count = x.p.edge_offset = fovea_contiguous(counter.data, FOVEA_I64, 1, one);
    if (!x.run()) GTEST_SKIP() << fovea_last_error();
    for (size_t i = 0; i < x.selected.size(); ++i) {
      const auto block = static_cast<int32_t>(i) / 5;
      int32_t bits;
      std::memcpy(&bits, &x.score[i], 4);
      for (int32_t word : {static_cast<int32_t>(layer), block / 4, block % 4, x.selected[i], bits})
        want.push_back(word);
    }
  }
  int64_t count;
  std::memcpy(&count, counter.read().data(), 8);
  EXPECT_EQ(count, total);
  ASSERT_EQ(want.size(), static_cast<size_t>(total) * 5);
  EXPECT_EQ(std::memcmp(records.read().data(), want.data(), cap * 20), 0);
}

}  // namespace
