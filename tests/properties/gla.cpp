// SPDX-License-Identifier: Apache-2.0
// x_gla_forward: what a server may rely on bit for bit.  Cuts at multiples of 64 tokens are the
// whole, calls of fewer tokens are steps, packed sequences are separate ones, a draft that was
// verified and committed is plain decode, a snapshot is the state of a shorter call.  Steps are the
// whole within rounding.  Two forms of one gate agree, and a sum of many tokens does not drift.
#include <gtest/gtest.h>

#include "harness/bound.h"
#include "harness/random.h"

namespace {

using Forward = fovea_x_gla_forward_params;
using Bits = std::vector<uint8_t>;

constexpr int64_t kTokens = 150, kKeys = 2, kHeads = 4, kRows = 160;

// What a layer's calls have in common.
struct Kind {
  const char* name;
  int dtype;
  bool gate_head, gate_key, gate_value, before, normalise;
  int64_t d = 40, e = 24;
};
constexpr Kind kKinds[] = {{"no gate", FOVEA_BF16, false, false, false, false, false},
                           {"gate_head", FOVEA_BF16, true, false, false, false, false},
                           {"gate_key", FOVEA_BF16, false, true, false, false, false},
                           {"gate_key before", FOVEA_F16, false, true, false, true, false},
                           {"gate_value", FOVEA_F32, true, false, true, false, false},
                           {"normalise", FOVEA_BF16, true, false, false, false, true},
                           {"f32", FOVEA_F32, false, true, false, false, false},
                           {"gate_head 64", FOVEA_BF16, true, false, false, false, false, 64, 64},
                           {"gate_key 128", FOVEA_BF16, false, true, false, false, false, 128, 16}};

// Tensors of one layer in memory of a context.
class Layer {
 public:
  Layer(fovea_backend backend, const Kind& kind)
      : ctx_(backend), kind_(kind), size_(oracle::bytes_of(kind.dtype)) {
    q_ = floats(kTokens * kHeads * kind_.d, false), k_ = floats(kTokens * kKeys * kind_.d, false);
    v_ = floats(kTokens * kHeads * kind_.e, false), o_ = memory(size_ * kTokens * kHeads * kind_.e);
    head_ = floats(kTokens * kHeads, true), key_ = floats(kTokens * kHeads * kind_.d, true);
    value_ = floats(kTokens * kHeads * kind_.e, true);
    pool_ = memory(4 * kRows * state()), kept_ = memory(4 * kRows * state());
    z_pool_ = memory(4 * kRows * kHeads * kind_.d), z_kept_ = memory(4 * kRows * kHeads * kind_.d);
  }

  // Tokens [begin, begin + b s) as b sequences of s.
  Forward tokens(int64_t b, int64_t begin, int64_t s) {
    Forward p = {};
    p.struct_size = sizeof p;
    p.q = of_tokens(*q_, begin, {b, s, kHeads, kind_.d}),
    p.k = of_tokens(*k_, begin, {b, s, kKeys, kind_.d});
    p.v = of_tokens(*v_, begin, {b, s, kHeads, kind_.e}),
    p.o = of_tokens(*o_, begin, {b, s, kHeads, kind_.e});
    if (kind_.gate_head) p.gate_head = of_tokens(*head_, begin, {b, s, kHeads});
    if (kind_.gate_key) p.gate_key = of_tokens(*key_, begin, {b, s, kHeads, kind_.d});
    if (kind_.gate_value) p.gate_value = of_tokens(*value_, begin, {b, s, kHeads, kind_.e});
    p.read_before = kind_.before, p.normalise = kind_.normalise;
    if (kind_.normalise) p.map_q = p.map_k = FOVEA_X_FEATURE_MAP_ELU_PLUS_ONE;
    return p;
  }
  void from_pool(Forward& p) {
    p.state_in = states(*pool_);
    if (kind_.normalise) p.z_in = z_states(*z_pool_);
  }
  void from_kept(Forward& p) {
    p.state_in = states(*kept_);
    if (kind_.normalise) p.z_in = z_states(*z_kept_);
  }
  void to_pool(Forward& p) {
    p.state_out = states(*pool_);
    if (kind_.normalise) p.z_out = z_states(*z_pool_);
  }
  void to_kept(Forward& p) {
    p.state_out = states(*kept_);
    if (kind_.normalise) p.z_out = z_states(*z_kept_);
  }
  void snapshots_to_kept(Forward& p) {
    p.snapshot = states(*kept_);
    if (kind_.normalise) p.z_snapshot = z_states(*z_kept_);
  }
  fovea_tensor integers(const std::vector<int32_t>& x, const std::vector<int64_t>& shape) {
    integers_.push_back(memory(4 * static_cast<int64_t>(x.size())));
    Bits bytes(4 * x.size());
    std::memcpy(bytes.data(), x.data(), bytes.size());
    integers_.back()->write(bytes);
    return fovea_contiguous(integers_.back()->data, FOVEA_I32, static_cast<int32_t>(shape.size()),
                            shape.data());
  }
  void run(const Forward& p) { harness::must(fovea_x_gla_forward(ctx_, &p), "x_gla_forward"); }
  // o of the tokens, then nothing in its place.
  Bits taken(int64_t begin = 0, int64_t end = kTokens) {
    const Bits all = o_->read();
    o_->write(Bits(o_->bytes));
    return of_rows(all, begin, end);
  }
  Bits of_rows(const Bits& all, int64_t begin, int64_t end) const {
    const int64_t bytes = size_ * kHeads * kind_.e;
    return Bits(all.begin() + begin * bytes, all.begin() + end * bytes);
  }
  int dtype() const { return kind_.dtype; }
  // The last call ran on Hopper's tensor cores: they round operands, and the tail of a sequence is
  // a chunk there too, however short.
  bool on_tensor_cores() const {
    return std::string(fovea_context_last_kernel(ctx_)).find(".sm90") != std::string::npos;
  }
  Bits pool_row(int64_t row) { return both(*pool_, *z_pool_, row); }
  Bits kept_row(int64_t row) { return both(*kept_, *z_kept_, row); }

 private:
  int64_t state() const { return kHeads * kind_.d * kind_.e; }
  using Room = std::unique_ptr<harness::Memory>;

  Room memory(int64_t bytes) {
    Room room = std::make_unique<harness::Memory>(ctx_, static_cast<size_t>(bytes));
    room->write(Bits(room->bytes));
    return room;
  }
  // Normal numbers; gates: some of them -inf.
  Room floats(int64_t count, bool gates) {
    Bits bytes(static_cast<size_t>(count * size_));
    for (int64_t i = 0; i < count; ++i) {
      const double x = random_.normal(n_++);
      oracle::encode(kind_.dtype,
                     !gates          ? x
                     : i % 397 == 11 ? -HUGE_VAL
                                     : -std::abs(x) / 4,
                     bytes.data() + i * size_);
    }
    Room room = memory(count * size_);
    room->write(bytes);
    return room;
  }
  fovea_tensor of_tokens(const harness::Memory& x, int64_t begin,
                         const std::vector<int64_t>& shape) const {
    int64_t row = size_;
    for (size_t i = 2; i < shape.size(); ++i) row *= shape[i];
    return fovea_contiguous(static_cast<uint8_t*>(x.data) + begin * row,
                            static_cast<fovea_dtype>(kind_.dtype),
                            static_cast<int32_t>(shape.size()), shape.data());
  }
  fovea_tensor states(const harness::Memory& x) const {
    const int64_t shape[] = {kRows, kHeads, kind_.d, kind_.e};
    return fovea_contiguous(x.data, FOVEA_F32, 4, shape);
  }
  fovea_tensor z_states(const harness::Memory& x) const {
    const int64_t shape[] = {kRows, kHeads, kind_.d};
    return fovea_contiguous(x.data, FOVEA_F32, 3, shape);
  }
  static Bits both(const harness::Memory& h, const harness::Memory& z, int64_t row) {
    Bits bits;
    for (const harness::Memory* x : {&h, &z}) {
      const Bits all = x->read();
      const auto bytes = static_cast<int64_t>(x->bytes) / kRows;
      bits.insert(bits.end(), all.begin() + row * bytes, all.begin() + (row + 1) * bytes);
    }
    return bits;
  }

  harness::Context ctx_;
  const Kind kind_;
  const int64_t size_;
  harness::Random random_{41};
  uint64_t n_ = 0;
  Room q_, k_, v_, o_, head_, key_, value_, pool_, kept_, z_pool_, z_kept_;
  std::vector<Room> integers_;
};

// Test(layer) of every kind on every backend.
template <class Test>
void each_layer(Test test) {
  for (fovea_backend backend : harness::backends())
    for (const Kind& kind : kKinds) {
      SCOPED_TRACE(std::string(harness::name_of(backend)) + ", " + kind.name);
      Layer layer(backend, kind);
      test(layer);
    }
}

// The whole sequence at once, its last state in row 0 of `kept`.
Bits whole(Layer& layer) {
  Forward p = layer.tokens(1, 0, kTokens);
  layer.to_kept(p), p.state_row = layer.integers({0}, {1});
  layer.run(p);
  return layer.taken();
}

// Tokens [begin, end) one by one, the state after each in its row of `kept`.
Bits steps(Layer& layer, int32_t begin, int32_t end) {
  for (int32_t t = begin; t < end; ++t) {
    Forward p = layer.tokens(1, t, 1);
    layer.from_kept(p), layer.to_kept(p);
    p.state_row = layer.integers({t - 1}, {1}), p.state_out_row = layer.integers({t}, {1});
    layer.run(p);
  }
  return layer.taken(begin, end);
}

// Numbers that differ by one rounding of their type and by that of f32 sums.
void expect_near(int dtype, const Bits& got, const Bits& want, bool rounded_operands = false) {
  const size_t bytes = static_cast<size_t>(oracle::bytes_of(dtype));
  const double unit = dtype == FOVEA_BF16 ? 0x1p-7 : dtype == FOVEA_F16 ? 0x1p-10 : 0;
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (size_t i = 0; i < want.size(); i += bytes)
    largest = std::max(largest, std::abs(oracle::decode(dtype, want.data() + i)));
  for (size_t i = 0; i < want.size(); i += bytes) {
    const double x = oracle::decode(dtype, want.data() + i);
    ASSERT_NEAR(oracle::decode(dtype, got.data() + i), x,
                unit * std::abs(x) + (rounded_operands ? 0x1p-6 : 1e-5) * largest)
        << i / bytes;
  }
}

void place(Layer& layer, Forward& p, const std::vector<int32_t>& rows) {
  layer.from_pool(p), layer.to_pool(p);
  p.state_row = layer.integers(rows, {static_cast<int64_t>(rows.size())});
}
void from_zeros(Forward& p) {
  p.state_in.data = p.z_in.data = nullptr;
}

TEST(gla, calls_of_fewer_than_64_tokens_are_steps) {
  each_layer([](Layer& layer) {
    const Bits o = steps(layer, 0, kTokens);
    int64_t begin = 0;
    for (const int64_t s : {1, 2, 1, 9, 40, 1, 1, 63, 1, 31}) {
      Forward p = layer.tokens(1, begin, s);
      place(layer, p, {7});
      if (begin == 0) from_zeros(p);
      layer.run(p);
      begin += s;
      EXPECT_EQ(layer.pool_row(7), layer.kept_row(begin - 1)) << begin;
    }
    ASSERT_EQ(begin, kTokens);
    EXPECT_EQ(layer.taken(), o);
  });
}

TEST(gla, cuts_at_64_tokens_are_the_whole) {
  each_layer([](Layer& layer) {
    const Bits o = whole(layer);
    const bool short_chunks = layer.on_tensor_cores();
    for (const std::vector<int64_t>& cuts :
         {std::vector<int64_t>{64}, std::vector<int64_t>{128}, std::vector<int64_t>{64, 128}}) {
      if (short_chunks && kTokens - cuts.back() < 64) continue;  // would go token by token
      int64_t begin = 0;
      for (size_t i = 0; i <= cuts.size(); ++i) {
        const int64_t end = i < cuts.size() ? cuts[i] : kTokens;
        Forward p = layer.tokens(1, begin, end - begin);
        place(layer, p, {3});
        if (begin == 0) from_zeros(p);
        layer.run(p);
        begin = end;
      }
      EXPECT_EQ(layer.taken(), o) << cuts[0];
      EXPECT_EQ(layer.pool_row(3), layer.kept_row(0)) << cuts[0];
    }
  });
}

TEST(gla, steps_are_near_the_whole) {
  each_layer([](Layer& layer) {
    const Bits o = whole(layer), state = layer.kept_row(0);
    const bool rounded = layer.on_tensor_cores();
    expect_near(layer.dtype(), steps(layer, 0, kTokens), o, rounded);
    expect_near(FOVEA_F32, layer.kept_row(kTokens - 1), state, rounded);
  });
}

TEST(gla, a_snapshot_is_the_state_of_a_shorter_call) {
  each_layer([](Layer& layer) {
    struct Way {
      int64_t tokens, every;
    };
    for (const Way& way : {Way{kTokens, 64}, Way{63, 20}}) {
      std::vector<int32_t> rows = {5, 2, 8};
      rows.resize(way.tokens / way.every);
      Forward p = layer.tokens(1, 0, way.tokens);
      layer.snapshots_to_kept(p), p.snapshot_every = way.every;
      p.snapshot_row = layer.integers(rows, {1, static_cast<int64_t>(rows.size())});
      layer.run(p);
      for (size_t n = 0; n < rows.size(); ++n) {
        Forward shorter = layer.tokens(1, 0, way.every * static_cast<int64_t>(n + 1));
        place(layer, shorter, {1}), from_zeros(shorter);
        shorter.o.data = nullptr;
        layer.run(shorter);
        EXPECT_EQ(layer.kept_row(rows[n]), layer.pool_row(1)) << way.every << ' ' << n;
      }
    }
  });
}

TEST(gla, packed_is_separate) {
  each_layer([](Layer& layer) {
    // Sequences of at least 64 tokens, where shorter ones alone would go token by token.
    whole(layer);
    const std::vector<int32_t> start =
        layer.on_tensor_cores() ? std::vector<int32_t>{0, 0, 65, 65, 65, kTokens, kTokens}
                                : std::vector<int32_t>{0, 1, 1, 3, 70, 71, kTokens};
    for (size_t i = 0; i + 1 < start.size(); ++i) {
      Forward p = layer.tokens(1, start[i], start[i + 1] - start[i]);
      layer.to_kept(p), p.state_row = layer.integers({static_cast<int32_t>(i)}, {1});
      layer.run(p);
    }
    const Bits o = layer.taken();
    Forward p = layer.tokens(1, 0, kTokens);
    place(layer, p, {10, 9, 8, 7, 6, 5});
    p.start = layer.integers(start, {7});
    layer.run(p);
    EXPECT_EQ(layer.taken(), o);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(layer.pool_row(10 - i), layer.kept_row(i)) << i;
  });
}

// Of several sequences at once each is as alone.
TEST(gla, neighbours_do_not_matter) {
  each_layer([](Layer& layer) {
    for (const int64_t s : {30, 75}) {
      std::vector<int32_t> rows = {9, 3, 12, 4, 0};
      rows.resize(kTokens / s);
      const auto b = static_cast<int64_t>(rows.size());
      for (int64_t i = 0; i < b; ++i) {
        Forward p = layer.tokens(1, s * i, s);
        layer.to_kept(p), p.state_row = layer.integers({static_cast<int32_t>(i)}, {1});
        layer.run(p);
      }
      const Bits o = layer.taken();
      Forward p = layer.tokens(b, 0, s);
      place(layer, p, rows), from_zeros(p);
      layer.run(p);
      EXPECT_EQ(layer.taken(), o) << s;
      for (int64_t i = 0; i < b; ++i) EXPECT_EQ(layer.pool_row(rows[i]), layer.kept_row(i)) << i;
    }
  });
}

TEST(gla, a_committed_draft_is_plain_decode) {
  each_layer([](Layer& layer) {
    const int64_t draft = 128;  // tokens 128 .. 132 behind a prefix of 128
    Forward prefix = layer.tokens(1, 0, draft);
    layer.to_kept(prefix), prefix.o.data = nullptr;
    prefix.state_row = layer.integers({static_cast<int32_t>(draft - 1)}, {1});
    layer.run(prefix);
    place(layer, prefix, {4}), from_zeros(prefix);
    layer.run(prefix);
    const Bits before = layer.pool_row(4);
    EXPECT_EQ(before, layer.kept_row(draft - 1));
    const Bits o = steps(layer, draft, draft + 5);
    Forward verify = layer.tokens(1, draft, 5);
    place(layer, verify, {4});
    verify.state_out.data = verify.z_out.data = nullptr;
    layer.run(verify);
    EXPECT_EQ(layer.taken(draft, draft + 5), o);
    EXPECT_EQ(layer.pool_row(4), before);
    Forward commit = layer.tokens(1, draft, 5);
    place(layer, commit, {4});
    commit.o.data = nullptr, commit.len = layer.integers({3}, {1});
    layer.run(commit);
    EXPECT_EQ(layer.pool_row(4), layer.kept_row(draft + 2));
    // Tokens that were kept for later are played again: their rows are not written.
    Forward replay = layer.tokens(1, 0, draft + 1);
    replay.output_from = layer.integers({static_cast<int32_t>(draft)}, {1});
    layer.run(replay);
    const Bits all = layer.taken();
    if (!layer.on_tensor_cores()) {
      EXPECT_EQ(layer.of_rows(all, draft, draft + 1), layer.of_rows(o, 0, 1));
    }
    EXPECT_EQ(layer.of_rows(all, 0, draft), Bits(layer.of_rows(all, 0, draft).size()));
    // A row padded for a graph touches no state.
    Forward padded = layer.tokens(2, draft, 1);
    place(layer, padded, {-1, -1});
    padded.len = layer.integers({0, 0}, {2}), layer.to_kept(padded);
    const Bits kept = layer.kept_row(0);
    layer.run(padded);
    EXPECT_EQ(layer.kept_row(0), kept);
  });
}

// The state after each token of a draft has a row of its own: decoding goes on from any of them.
TEST(gla, a_draft_is_rolled_back_to_any_of_its_tokens) {
  each_layer([](Layer& layer) {
    const Bits o = steps(layer, 0, 12);
    Forward prefix = layer.tokens(1, 0, 6);
    place(layer, prefix, {4}), from_zeros(prefix);
    layer.run(prefix);
    Forward draft = layer.tokens(1, 6, 5);
    layer.from_pool(draft), layer.to_pool(draft);
    draft.snapshot = draft.state_out, draft.z_snapshot = draft.z_out;
    draft.state_out.data = draft.z_out.data = nullptr;
    draft.state_row = layer.integers({4}, {1}), draft.snapshot_every = 1;
    draft.snapshot_row = layer.integers({20, 3, 21, 9, 22}, {1, 5});
    layer.run(draft);
    EXPECT_EQ(layer.taken(6, 11), layer.of_rows(o, 6, 11));
    int64_t accepted = 0;
    for (const int32_t row : {20, 3, 21, 9, 22}) {
      ++accepted;
      EXPECT_EQ(layer.pool_row(row), layer.kept_row(5 + accepted)) << accepted;
      Forward next = layer.tokens(1, 6 + accepted, 1);
      place(layer, next, {row});
      layer.run(next);
      EXPECT_EQ(layer.taken(6 + accepted, 7 + accepted),
                layer.of_rows(o, 6 + accepted, 7 + accepted));
    }
  });
}

// ---- numbers of f32 calls

class Numbers {
 public:
  explicit Numbers(fovea_backend backend) : ctx(backend) {}
  fovea_tensor operator()(const std::vector<float>& x, const std::vector<int64_t>& shape) {
    memory_.push_back(std::make_unique<harness::Memory>(ctx, 4 * x.size()));
    Bits bytes(4 * x.size());
    std::memcpy(bytes.data(), x.data(), bytes.size());
    memory_.back()->write(bytes);
    return fovea_contiguous(memory_.back()->data, FOVEA_F32, static_cast<int32_t>(shape.size()),
                            shape.data());
  }
  std::vector<float> read(const fovea_tensor& x) const {
    std::vector<float> out;
    for (const auto& m : memory_) {
      if (m->data != x.data) continue;
      const Bits bytes = m->read();
      out.resize(bytes.size() / 4);
      std::memcpy(out.data(), bytes.data(), bytes.size());
    }
    return out;
  }
  harness::Context ctx;

 private:
  std::vector<std::unique_ptr<harness::Memory>> memory_;
};

std::vector<float> normals(uint64_t seed, int64_t count) {
  const harness::Random random(seed);
  std::vector<float> x;
  for (int64_t i = 0; i < count; ++i)
    x.push_back(static_cast<float>(random.normal(static_cast<uint64_t>(i))));
  return x;
}

// One decay for a head, and the same decay of each of its channels.
TEST(gla, a_head_gate_is_a_key_gate_of_equal_channels) {
  const int64_t s = 140, h = 2, d = 20, e = 12;
  std::vector<float> head = normals(4, s * h), key;
  for (int64_t i = 0; i < s * h; ++i) {
    head[i] = i % 29 == 3 || i == 0 ? -HUGE_VALF
              : i % 17 == 5         ? -88.f
              : i == s * h - 90     ? .5f  // the state may grow
                                    : -std::abs(head[i]) / 4;
    key.insert(key.end(), d, head[i]);
  }
  for (fovea_backend backend : harness::backends()) {
    SCOPED_TRACE(harness::name_of(backend));
    std::vector<float> o[2], state[2];
    for (const bool of_key : {false, true}) {
      Numbers make(backend);
      Forward p = {};
      p.struct_size = sizeof p;
      p.q = make(normals(1, s * h * d), {1, s, h, d}),
      p.k = make(normals(2, s * h * d), {1, s, h, d});
      p.v = make(normals(3, s * h * e), {1, s, h, e});
      p.state_in = make(normals(5, h * d * e), {1, h, d, e});
      p.o = make(std::vector<float>(s * h * e), {1, s, h, e});
      p.state_out = make(std::vector<float>(h * d * e), {1, h, d, e});
      (of_key ? p.gate_key : p.gate_head) =
          of_key ? make(key, {1, s, h, d}) : make(head, {1, s, h});
      harness::must(fovea_x_gla_forward(make.ctx, &p), "x_gla_forward");
      o[of_key] = make.read(p.o), state[of_key] = make.read(p.state_out);
    }
    // Sums of about ten terms of size 1.
    for (size_t i = 0; i < o[0].size(); ++i) ASSERT_NEAR(o[0][i], o[1][i], 1e-5) << i;
    for (size_t i = 0; i < state[0].size(); ++i) ASSERT_NEAR(state[0][i], state[1][i], 1e-5) << i;
  }
}

// 65,536 tokens of one sign without a gate.  Roundings to nearest of unequal terms part about
// sqrt(n) 2^-25 from the sum; ones that lean to one side, n 2^-25.
TEST(gla, a_long_sum_does_not_drift) {
  const int64_t s = 1 << 16, d = 4, e = 4;
  std::vector<float> k = normals(6, s * d), v = normals(7, s * e), ones(s * d, 1);
  for (float& x : k) x = std::abs(x);
  for (float& x : v) x = std::abs(x);
  for (fovea_backend backend : harness::backends()) {
    SCOPED_TRACE(harness::name_of(backend));
    Numbers make(backend);
    Forward p = {};
    p.struct_size = sizeof p;
    p.q = make(ones, {1, s, 1, d}), p.k = make(k, {1, s, 1, d}), p.v = make(v, {1, s, 1, e});
    p.o = make(std::vector<float>(s * e), {1, s, 1, e}), p.scale = 1;
    p.state_out = make(std::vector<float>(d * e), {1, 1, d, e});
    harness::must(fovea_x_gla_forward(make.ctx, &p), "x_gla_forward");
    const std::vector<float> o = make.read(p.o), state = make.read(p.state_out);
    std::vector<double> sum(d * e);
    for (int64_t t = 0; t < s; ++t)
      for (int64_t j = 0; j < e; ++j) {
        double want = 0;
        for (int64_t c = 0; c < d; ++c)
          want += sum[c * e + j] += static_cast<double>(k[t * d + c]) * v[t * e + j];
        ASSERT_NEAR(o[t * e + j] / want, 1, 1e-5) << "token " << t << ", column " << j;
      }
    for (int64_t i = 0; i < d * e; ++i) EXPECT_NEAR(state[i] / sum[i], 1, 1e-5) << i;
  }
}

}  // namespace
