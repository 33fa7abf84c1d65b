// SPDX-License-Identifier: Apache-2.0
// x_conv1d_forward: what a server may rely on bit for bit.  Chunks are the whole, decode in a pool
// is prefill, packed sequences are separate ones, a draft that was verified and committed is plain
// decode, a snapshot is the state of a shorter call.  The gradient of the oracle is the derivative.
#include "oracle/conv1d.h"

#include <gtest/gtest.h>

#include "harness/bound.h"
#include "properties/derivatives.h"

namespace {

constexpr int64_t kTokens = 90, kChannels = 64, kTaps = 4, kTail = 5, kRows = 100;
using Bits = std::vector<uint8_t>;

// bf16 tensors of one layer in memory of a context.
class Layer {
 public:
  explicit Layer(fovea_backend backend) : ctx_(backend) {
    Bits x(2 * kTokens * kChannels), weight(2 * kChannels * kTaps), bias(4 * kChannels);
    const harness::Random random(3);
    uint64_t n = 0;
    const auto fill = [&](Bits& to, int dtype, int64_t bytes) {
      for (size_t i = 0; i < to.size(); i += bytes)
        oracle::encode(dtype, random.normal(n++), to.data() + i);
    };
    fill(x, FOVEA_BF16, 2), fill(weight, FOVEA_BF16, 2), fill(bias, FOVEA_F32, 4);
    x_.write(x), weight_.write(weight), bias_.write(bias);
    pool_.write(Bits(pool_.bytes)), kept_.write(Bits(kept_.bytes)), y_.write(Bits(y_.bytes));
  }

  // Tokens [begin, begin + b s) as b sequences of s.
  fovea_x_conv1d_forward_params tokens(int64_t b, int64_t begin, int64_t s) {
    fovea_x_conv1d_forward_params p = {};
    p.struct_size = sizeof p;
    p.x = tensor(x_, 2 * begin * kChannels, {b, s, kChannels});
    p.y = tensor(y_, 2 * begin * kChannels, {b, s, kChannels});
    p.weight = tensor(weight_, 0, {kChannels, kTaps});
    const int64_t channels[] = {kChannels};
    p.bias = fovea_contiguous(bias_.data, FOVEA_F32, 1, channels);
    p.activation = FOVEA_X_CONV1D_ACTIVATION_SILU;
    return p;
  }
  fovea_tensor pool() { return tensor(pool_, 0, {kRows, kChannels, kTail}); }
  fovea_tensor kept() { return tensor(kept_, 0, {kRows, kChannels, kTail}); }
  fovea_tensor integers(const std::vector<int32_t>& x, const std::vector<int64_t>& shape) {
    integers_.push_back(std::make_unique<harness::Memory>(ctx_, 4 * x.size()));
    Bits bytes(4 * x.size());
    std::memcpy(bytes.data(), x.data(), bytes.size());
    integers_.back()->write(bytes);
    return fovea_contiguous(integers_.back()->data, FOVEA_I32, static_cast<int32_t>(shape.size()),
                            shape.data());
  }
  void run(const fovea_x_conv1d_forward_params& p) {
    harness::must(fovea_x_conv1d_forward(ctx_, &p), "x_conv1d_forward");
  }
  // y of the tokens, then nothing in its place.
  Bits taken(int64_t begin = 0, int64_t end = kTokens) {
    const Bits all = y_.read();
    y_.write(Bits(y_.bytes));
    return Bits(all.begin() + 2 * begin * kChannels, all.begin() + 2 * end * kChannels);
  }
  static Bits row_of(const harness::Memory& states, int64_t row) {
    const Bits all = states.read();
    const int64_t bytes = 2 * kChannels * kTail;
    return Bits(all.begin() + row * bytes, all.begin() + (row + 1) * bytes);
  }
  Bits pool_row(int64_t row) { return row_of(pool_, row); }
  Bits kept_row(int64_t row) { return row_of(kept_, row); }

 private:
  static fovea_tensor tensor(const harness::Memory& x, int64_t byte,
                             const std::vector<int64_t>& shape) {
    return fovea_contiguous(static_cast<uint8_t*>(x.data) + byte, FOVEA_BF16,
                            static_cast<int32_t>(shape.size()), shape.data());
  }
  harness::Context ctx_;
  harness::Memory x_{ctx_, 2 * kTokens*kChannels}, y_{ctx_, 2 * kTokens*kChannels};
  harness::Memory weight_{ctx_, 2 * kChannels*kTaps}, bias_{ctx_, 4 * kChannels};
  harness::Memory pool_{ctx_, 2 * kRows* kChannels* kTail};
  harness::Memory kept_{ctx_, 2 * kRows* kChannels* kTail};
  std::vector<std::unique_ptr<harness::Memory>> integers_;
};

// The whole sequence at once, with the state after each token in a row of `kept`.
Bits whole(Layer& layer) {
  auto p = layer.tokens(1, 0, kTokens);
  std::vector<int32_t> rows(kTokens);
  for (int i = 0; i < kTokens; ++i) rows[i] = i;
  p.snapshot = layer.kept(), p.snapshot_every = 1;
  p.snapshot_row = layer.integers(rows, {1, kTokens});
  layer.run(p);
  return layer.taken();
}

void place(Layer& layer, fovea_x_conv1d_forward_params& p, const std::vector<int32_t>& rows) {
  p.state_in = p.state_out = layer.pool();
  p.state_row = layer.integers(rows, {static_cast<int64_t>(rows.size())});
}

TEST(conv1d, chunks_and_steps_are_the_whole) {
  for (fovea_backend backend : harness::backends()) {
    SCOPED_TRACE(harness::name_of(backend));
    Layer layer(backend);
    const Bits y = whole(layer);
    int64_t begin = 0;
    for (const int64_t s : {1, 2, 1, 9, 40, 1, 1, 1, 3, 31}) {
      auto p = layer.tokens(1, begin, s);
      place(layer, p, {7});
      if (begin == 0) p.state_in.data = nullptr;
      layer.run(p);
      begin += s;
      EXPECT_EQ(layer.pool_row(7), layer.kept_row(begin - 1)) << begin;
    }
    ASSERT_EQ(begin, kTokens);
    EXPECT_EQ(layer.taken(), y);
  }
}

TEST(conv1d, packed_is_separate) {
  for (fovea_backend backend : harness::backends()) {
    SCOPED_TRACE(harness::name_of(backend));
    Layer layer(backend);
    const std::vector<int32_t> start = {0, 1, 1, 3, 40, 41, kTokens};
    for (size_t i = 0; i + 1 < start.size(); ++i) {
      auto p = layer.tokens(1, start[i], start[i + 1] - start[i]);
      p.state_out = layer.kept(), p.state_row = layer.integers({static_cast<int32_t>(i)}, {1});
      layer.run(p);
    }
    const Bits y = layer.taken();
    auto p = layer.tokens(1, 0, kTokens);
    place(layer, p, {10, 9, 8, 7, 6, 5});
    p.start = layer.integers(start, {7});
    layer.run(p);
    EXPECT_EQ(layer.taken(), y);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(layer.pool_row(10 - i), layer.kept_row(i)) << i;
  }
}

TEST(conv1d, a_committed_draft_is_plain_decode) {
  for (fovea_backend backend : harness::backends()) {
    SCOPED_TRACE(harness::name_of(backend));
    Layer layer(backend);
    const Bits y = whole(layer);
    const int64_t draft = 30;  // tokens 30 .. 34 behind a prefix of 30
    auto prefix = layer.tokens(1, 0, draft);
    place(layer, prefix, {4});
    prefix.state_in.data = nullptr, prefix.y.data = nullptr;
    layer.run(prefix);
    const Bits before = layer.pool_row(4);
    auto verify = layer.tokens(1, draft, 5);
    place(layer, verify, {4});
    verify.state_out.data = nullptr;
    layer.run(verify);
    EXPECT_EQ(layer.taken(draft, draft + 5),
              Bits(y.begin() + 2 * draft * kChannels, y.begin() + 2 * (draft + 5) * kChannels));
    EXPECT_EQ(layer.pool_row(4), before);
    auto commit = layer.tokens(1, draft, 5);
    place(layer, commit, {4});
    commit.y.data = nullptr, commit.len = layer.integers({3}, {1});
    layer.run(commit);
    EXPECT_EQ(layer.pool_row(4), layer.kept_row(draft + 2));
    // A row padded for a graph touches no state.
    auto padded = layer.tokens(2, draft, 1);
    place(layer, padded, {-1, -1});
    padded.len = layer.integers({0, 0}, {2}), padded.state_out = layer.kept();
    const Bits kept = layer.kept_row(0);
    layer.run(padded);
    EXPECT_EQ(layer.kept_row(0), kept);
  }
}

TEST(oracle, conv1d_gradient_is_the_derivative) {
  using oracle::Mode;
  properties::Some some(17);
  for (const int64_t s : {1, 2, 7}) {
    fovea_x_conv1d_forward_params p = {};
    p.x = some({2, s, 3}), p.weight = some({3, 4}), p.bias = some({3}), p.y = some({2, s, 3});
    p.state_in = some({2, 3, 3}), p.state_out = some({2, 3, 3}), p.activation = 1;
    fovea_x_conv1d_backward_params q = {};
    q.x = p.x, q.weight = p.weight, q.bias = p.bias, q.state_in = p.state_in, q.activation = 1;
    q.dy = p.y, q.dstate_out = p.state_out, q.dx = some({2, s, 3}), q.dweight = some({3, 4});
    q.dbias = some({3}), q.dstate_in = some({2, 3, 3});
    const oracle::Dense dy = oracle::load(q.dy), dstate = oracle::load(q.dstate_out);
    oracle::Conv1d<double, fovea_x_conv1d_forward_params> forward(p);
    const auto exact =
        oracle::Conv1d<double, fovea_x_conv1d_backward_params>(q).backward(Mode::exact);
    const auto loss = [&] {
      const auto out = forward.forward(Mode::exact);
      return properties::weighed(dy, out.y) + properties::weighed(dstate, out.state_out);
    };
    properties::expect_derivative("x", forward.x, exact.dx.value, loss);
    properties::expect_derivative("weight", forward.weight, exact.dweight.value, loss);
    properties::expect_derivative("bias", forward.bias, exact.dbias.value, loss);
    properties::expect_derivative("state_in", forward.state, exact.dstate_in.value, loss);
  }
}

}  // namespace
