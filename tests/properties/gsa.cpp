// SPDX-License-Identifier: Apache-2.0
// x_gsa: the oracle's gradient is the derivative.  Of the library's forward: cuts at multiples of
// 64 tokens are the whole, calls of fewer tokens are steps, packed sequences are separate ones, bit
// for bit; steps are the whole within rounding.
#include "oracle/gsa.h"

#include <gtest/gtest.h>

#include "harness/bound.h"
#include "properties/derivatives.h"

namespace {

using Forward = fovea_x_gsa_forward_params;
using Backward = fovea_x_gsa_backward_params;
using Bits = std::vector<uint8_t>;
using oracle::Mode;

// ---- the oracle

struct Variant {
  int64_t h, g, x;
  int32_t gate_map, map;
  float bound, tau;
};
constexpr Variant kVariants[] = {{2, 1, 2, FOVEA_X_GATE_MAP_LOG_SIGMOID, 0, 0, 8},
                                 {4, 2, 1, FOVEA_X_GATE_MAP_EXP, FOVEA_X_FEATURE_MAP_SILU, 0, 0},
                                 {1, 2, 2, FOVEA_X_GATE_MAP_BOUNDED, 0, 3, 0},
                                 {2, 2, 2, FOVEA_X_GATE_MAP_SOFTPLUS, 0, 0.7f, 0}};

TEST(gsa_oracle, gradients_are_derivatives) {
  for (const Variant& v : kVariants) {
    SCOPED_TRACE(v.gate_map);
    const int64_t b = 2, s = 4, d = 3, e = 2, m = 3;
    const int64_t heads = std::max(v.g, v.x), outputs = std::max(v.h, heads);
    properties::Some some(51);
    Forward p = {};
    p.q = some({b, s, v.h, d}), p.k = some({b, s, v.g, d}), p.v = some({b, s, v.x, e});
    p.gate = some({b, s, heads, m}), p.o = some({b, s, outputs, e});
    p.state_k_in = some({b, heads, d, m}), p.state_v_in = some({b, heads, m, e});
    p.state_k_out = some({b, heads, d, m}), p.state_v_out = some({b, heads, m, e});
    p.gate_map = v.gate_map, p.map_q = p.map_k = v.map, p.gate_bound = v.bound, p.gate_tau = v.tau;
    Backward q = {};
    q.q = q.dq = p.q, q.k = q.dk = p.k, q.v = q.dv = p.v, q.gate = q.dgate = p.gate;
    q.state_k_in = q.dstate_k_in = p.state_k_in, q.state_v_in = q.dstate_v_in = p.state_v_in;
    q.dout = p.o, q.dstate_k_out = p.state_k_out, q.dstate_v_out = p.state_v_out;
    q.gate_map = p.gate_map, q.map_q = q.map_k = p.map_q;
    q.gate_bound = p.gate_bound, q.gate_tau = p.gate_tau;
    const oracle::Dense dout = oracle::load(p.o);
    const oracle::Dense dk = oracle::load(p.state_k_out), dv = oracle::load(p.state_v_out);
    oracle::Gsa<double, Forward> forward(p);
    const auto exact = oracle::Gsa<double, Backward>(q).backward(Mode::exact);
    const auto loss = [&] {
      const auto out = forward.forward(Mode::exact);
      return properties::weighed(dout, out.o) + properties::weighed(dk, out.state_k_out) +
             properties::weighed(dv, out.state_v_out);
    };
    const auto expect = [&](const char* name, oracle::Tracked& x, const oracle::Out& gradient) {
      properties::expect_derivative(name, x.x, gradient.value, loss);
    };
    expect("q", forward.q, exact.dq), expect("k", forward.k, exact.dk);
    expect("v", forward.v, exact.dv), expect("gate", forward.gate, exact.dgate);
    expect("state_k_in", forward.state_k_in, exact.dstate_k_in);
    expect("state_v_in", forward.state_v_in, exact.dstate_v_in);
  }
}

// ---- the library

constexpr int64_t kTokens = 150, kKeys = 2, kHeads = 4, kRows = 8, kD = 24, kE = 20, kM = 17;

// Tensors of one layer in memory of a context; states of both memories in a pool.
class Layer {
 public:
  Layer(fovea_backend backend, int dtype)
      : ctx_(backend), dtype_(dtype), size_(oracle::bytes_of(dtype)) {
    q_ = floats(kTokens * kHeads * kD, false), k_ = floats(kTokens * kKeys * kD, false);
    v_ = floats(kTokens * kHeads * kE, false), gate_ = floats(kTokens * kHeads * kM, true);
    o_ = memory(size_ * kTokens * kHeads * kE);
    pool_k_ = memory(4 * kRows * kHeads * kD * kM), pool_v_ = memory(4 * kRows * kHeads * kM * kE);
  }

  // Tokens [begin, begin + s) from and to a row of the pool; at `begin` 0 from zeros.
  void run(int64_t begin, int64_t s, int32_t row) {
    Forward p = tokens(begin, s);
    p.state_row = integers({row});
    if (begin == 0) p.state_k_in.data = p.state_v_in.data = nullptr;
    call(p);
  }
  // All tokens as sequences that begin at `start`, from zeros to rows 0, 1, ..
  void run_packed(const std::vector<int32_t>& start) {
    Forward p = tokens(0, kTokens);
    p.start = integers(start);
    std::vector<int32_t> rows;
    while (rows.size() + 1 < start.size()) rows.push_back(static_cast<int32_t>(rows.size()));
    p.state_row = integers(rows), p.state_k_in.data = p.state_v_in.data = nullptr;
    call(p);
  }
  // One sequence of them, to a row.
  void run_alone(int64_t begin, int64_t s, int32_t row) {
    Forward p = tokens(begin, s);
    p.state_row = integers({row}), p.state_k_in.data = p.state_v_in.data = nullptr;
    call(p);
  }
  // o, then nothing in its place.
  Bits taken() {
    const Bits all = o_->read();
    o_->write(Bits(o_->bytes));
    return all;
  }
  Bits row(int64_t at) const {
    Bits bits;
    for (const harness::Memory* x : {pool_k_.get(), pool_v_.get()}) {
      const Bits all = x->read();
      const auto bytes = static_cast<int64_t>(x->bytes) / kRows;
      bits.insert(bits.end(), all.begin() + at * bytes, all.begin() + (at + 1) * bytes);
    }
    return bits;
  }
  int dtype() const { return dtype_; }

 private:
  using Room = std::unique_ptr<harness::Memory>;

  Forward tokens(int64_t begin, int64_t s) const {
    Forward p = {};
    p.struct_size = sizeof p;
    p.q = of_tokens(*q_, begin, s, kHeads, kD), p.k = of_tokens(*k_, begin, s, kKeys, kD);
    p.v = of_tokens(*v_, begin, s, kHeads, kE), p.gate = of_tokens(*gate_, begin, s, kHeads, kM);
    p.o = of_tokens(*o_, begin, s, kHeads, kE);
    p.state_k_in = p.state_k_out = states(*pool_k_, kD, kM);
    p.state_v_in = p.state_v_out = states(*pool_v_, kM, kE);
    return p;
  }
  void call(const Forward& p) { harness::must(fovea_x_gsa_forward(ctx_, &p), "x_gsa_forward"); }
  fovea_tensor of_tokens(const harness::Memory& x, int64_t begin, int64_t s, int64_t heads,
                         int64_t width) const {
    const int64_t shape[] = {1, s, heads, width};
    return fovea_contiguous(static_cast<uint8_t*>(x.data) + begin * heads * width * size_,
                            static_cast<fovea_dtype>(dtype_), 4, shape);
  }
  static fovea_tensor states(const harness::Memory& x, int64_t rows, int64_t columns) {
    const int64_t shape[] = {kRows, kHeads, rows, columns};
    return fovea_contiguous(x.data, FOVEA_F32, 4, shape);
  }
  fovea_tensor integers(const std::vector<int32_t>& x) {
    integers_.push_back(memory(4 * static_cast<int64_t>(x.size())));
    Bits bytes(4 * x.size());
    std::memcpy(bytes.data(), x.data(), bytes.size());
    integers_.back()->write(bytes);
    const int64_t shape[] = {static_cast<int64_t>(x.size())};
    return fovea_contiguous(integers_.back()->data, FOVEA_I32, 1, shape);
  }
  Room memory(int64_t bytes) {
    Room room = std::make_unique<harness::Memory>(ctx_, static_cast<size_t>(bytes));
    room->write(Bits(room->bytes));
    return room;
  }
  // Normal numbers; gates: logs, some of them -inf.
  Room floats(int64_t count, bool gates) {
    Bits bytes(static_cast<size_t>(count * size_));
    for (int64_t i = 0; i < count; ++i) {
      const double x = random_.normal(n_++);
      const double gate = i % 397 == 11 ? -HUGE_VAL : -std::abs(x) / 4;
      oracle::encode(dtype_, gates ? gate : x, bytes.data() + i * size_);
    }
    Room room = memory(count * size_);
    room->write(bytes);
    return room;
  }

  harness::Context ctx_;
  const int dtype_;
  const int64_t size_;
  harness::Random random_{43};
  uint64_t n_ = 0;
  Room q_, k_, v_, gate_, o_, pool_k_, pool_v_;
  std::vector<Room> integers_;
};

template <class Test>
void each_layer(Test test) {
  for (fovea_backend backend : harness::backends())
    for (const int dtype : {FOVEA_F32, FOVEA_F16, FOVEA_BF16}) {
      SCOPED_TRACE(std::string(harness::name_of(backend)) + ", dtype " + std::to_string(dtype));
      Layer layer(backend, dtype);
      test(layer);
    }
}

// Calls of so many tokens each, one after the other.
Bits in_calls(Layer& layer, const std::vector<int64_t>& tokens, int32_t row) {
  int64_t begin = 0;
  for (const int64_t s : tokens) layer.run(begin, s, row), begin += s;
  EXPECT_EQ(begin, kTokens);
  return layer.taken();
}

TEST(gsa, calls_of_fewer_than_64_tokens_are_steps) {
  each_layer([](Layer& layer) {
    const Bits o = in_calls(layer, std::vector<int64_t>(kTokens, 1), 1);
    EXPECT_EQ(in_calls(layer, {1, 2, 1, 9, 40, 1, 1, 63, 1, 31}, 2), o);
    EXPECT_EQ(layer.row(1), layer.row(2));
  });
}

TEST(gsa, cuts_at_64_tokens_are_the_whole) {
  each_layer([](Layer& layer) {
    const Bits o = in_calls(layer, {kTokens}, 1);
    EXPECT_EQ(in_calls(layer, {64, kTokens - 64}, 2), o);
    EXPECT_EQ(layer.row(1), layer.row(2));
  });
}

TEST(gsa, packed_is_separate) {
  each_layer([](Layer& layer) {
    const std::vector<int32_t> start = {0, 66, 66, kTokens};
    for (size_t i = 0; i + 1 < start.size(); ++i)
      layer.run_alone(start[i], start[i + 1] - start[i], static_cast<int32_t>(i + 4));
    const Bits o = layer.taken();
    layer.run_packed(start);
    EXPECT_EQ(layer.taken(), o);
    for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(layer.row(i), layer.row(i + 4)) << i;
  });
}

TEST(gsa, steps_are_near_the_whole) {
  each_layer([](Layer& layer) {
    const Bits whole = in_calls(layer, {kTokens}, 1);
    const Bits steps = in_calls(layer, std::vector<int64_t>(kTokens, 1), 2);
    const double unit = layer.dtype() == FOVEA_BF16  ? 0x1p-7
                        : layer.dtype() == FOVEA_F16 ? 0x1p-10
                                                     : 0x1p-16;
    const int64_t bytes = oracle::bytes_of(layer.dtype());
    double largest = 0;
    for (size_t i = 0; i < whole.size(); i += bytes)
      largest = std::max(largest, std::abs(oracle::decode(layer.dtype(), whole.data() + i)));
    ASSERT_GT(largest, 0.1);
    for (size_t i = 0; i < whole.size(); i += bytes)
      ASSERT_NEAR(oracle::decode(layer.dtype(), steps.data() + i),
                  oracle::decode(layer.dtype(), whole.data() + i), unit * largest)
          << i / bytes;
  });
}

}  // namespace
