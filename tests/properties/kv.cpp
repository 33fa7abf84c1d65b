// SPDX-License-Identifier: Apache-2.0
// Low-bit caches: tokens one by one leave the bytes that one call leaves, at every length around
// the edges of the tails; and attention over codes is as near to that over 16 bits as 2 and 4 bits
// let it be.
#include "cases/all.h"
#include "harness/cases.h"

namespace {

using harness::Context;
using Append = fovea_x_kv_append_params;

class Kv : public testing::TestWithParam<fovea_backend> {};
INSTANTIATE_TEST_SUITE_P(kv, Kv, testing::ValuesIn(harness::backends()),
                         [](const auto& at) { return std::string(harness::name_of(at.param)); });

struct Shape {
  int64_t bits, group, residual, page, pages, g, d, e;
};

// The tensors of a cache of one sequence, zeros at first.
class Cache {
 public:
  static constexpr const char* kNames[] = {"k_code", "k_scale", "k_zero", "v_code", "v_scale",
                                           "v_zero", "k_tail",  "v_tail", "counter"};
  Cache(Context& ctx, const Shape& s) : ctx_(ctx), shape(s) {
    const int64_t blocks = s.page / s.group;
    add(FOVEA_I32, {s.pages, blocks, s.g, s.d, s.group * s.bits / 32});
    for (int i = 0; i < 2; ++i) add(FOVEA_F16, {s.pages, blocks, s.g, s.d});
    add(FOVEA_I32, {s.pages, s.page, s.g, s.e * s.bits / 32});
    for (int i = 0; i < 2; ++i) add(FOVEA_F16, {s.pages, s.page, s.g, s.e / s.group});
    add(FOVEA_F16, {1, s.residual, s.g, s.d});
    add(FOVEA_F16, {1, s.residual + 1, s.g, s.e});
    add(FOVEA_I32, {1, 4});
    add(FOVEA_I32, {1, s.pages});
    std::vector<int32_t> table;
    for (int64_t i = 0; i < s.pages; ++i) table.push_back(static_cast<int32_t>(s.pages - 1 - i));
    harness::must(fovea_copy(ctx_, tensors_[9].data, table.data(), table.size() * 4), "copy");
  }
  template <class P>
  void give(P& p) const {
    fovea_tensor* const to[] = {&p.k_code, &p.k_scale, &p.k_zero, &p.v_code,  &p.v_scale,
                                &p.v_zero, &p.k_tail,  &p.v_tail, &p.counter, &p.page_table};
    for (size_t i = 0; i < std::size(to); ++i) *to[i] = tensors_[i];
    p.bits = static_cast<int32_t>(shape.bits), p.group = static_cast<int32_t>(shape.group);
  }
  // Tokens [first, first + count) of k and v.
  void append(fovea_tensor k, fovea_tensor v, int64_t first, int64_t count, bool flush = false) {
    Append p{};
    p.struct_size = sizeof p;
    give(p);
    for (auto [to, from] : {std::pair{&p.k_new, &k}, {&p.v_new, &v}}) {
      *to = *from, to->shape[1] = count;
      to->data = static_cast<uint16_t*>(from->data) + first * from->stride[1];
    }
    p.flush = flush;
    harness::must(fovea_x_kv_append(ctx_, &p), "x_kv_append");
  }
  std::vector<std::vector<uint8_t>> bytes() const {
    std::vector<std::vector<uint8_t>> all;
    for (size_t i = 0; i < 9; ++i) {
      all.emplace_back(sizes_[i]);
      harness::must(fovea_copy(ctx_, all.back().data(), tensors_[i].data, sizes_[i]), "copy");
    }
    harness::must(fovea_context_synchronize(ctx_), "synchronize");
    return all;
  }
  void set(const std::vector<std::vector<uint8_t>>& all) {
    for (size_t i = 0; i < 9; ++i)
      harness::must(fovea_copy(ctx_, tensors_[i].data, all[i].data(), sizes_[i]), "copy");
    harness::must(fovea_context_synchronize(ctx_), "synchronize");
  }

 private:
  void add(fovea_dtype dtype, std::vector<int64_t> shape) {
    int64_t n = oracle::bytes_of(dtype);
    for (const int64_t extent : shape) n *= extent;
    sizes_.push_back(static_cast<size_t>(n));
    memory_.push_back(std::make_unique<harness::Memory>(ctx_, sizes_.back()));
    const std::vector<uint8_t> zeros(sizes_.back());
    memory_.back()->write(zeros);
    tensors_.push_back(fovea_contiguous(memory_.back()->data, dtype,
                                        static_cast<int32_t>(shape.size()), shape.data()));
  }

  Context& ctx_;
  std::vector<std::unique_ptr<harness::Memory>> memory_;
  std::vector<size_t> sizes_;
  std::vector<fovea_tensor> tensors_;

 public:
  const Shape shape;
};

// (1, tokens, heads, width) normal numbers in f16.
struct Rows {
  harness::Memory memory;
  fovea_tensor x;
  Rows(Context& ctx, int64_t tokens, int64_t heads, int64_t width, uint64_t seed)
      : memory(ctx, static_cast<size_t>(tokens * heads * width * 2)) {
    const harness::Random random(seed);
    std::vector<uint8_t> bytes(memory.bytes);
    for (size_t i = 0; i < bytes.size() / 2; ++i)
      oracle::encode(FOVEA_F16, random.normal(i), bytes.data() + 2 * i);
    memory.write(bytes);
    const int64_t shape[] = {1, tokens, heads, width};
    x = fovea_contiguous(memory.data, FOVEA_F16, 4, shape);
  }
};

TEST_P(Kv, tokens_one_by_one) {
  Context ctx(GetParam());
  for (const Shape& s : {Shape{2, 16, 16, 32, 3, 2, 5, 32}, Shape{4, 8, 16, 8, 8, 1, 7, 16}}) {
    const int64_t most = 3 * s.residual + 5;
    const Rows k(ctx, most, s.g, s.d, 3), v(ctx, most, s.g, s.e, 4);
    Cache one(ctx, s), flushed(ctx, s);
    for (int64_t length = 0; length <= most; ++length) {
      SCOPED_TRACE("length " + std::to_string(length));
      Cache many(ctx, s);
      many.append(k.x, v.x, 0, length);
      const auto left = one.bytes(), right = many.bytes();
      for (size_t i = 0; i < left.size(); ++i) ASSERT_EQ(left[i], right[i]) << Cache::kNames[i];
      flushed.set(left);
      flushed.append(k.x, v.x, 0, 0, true);
      Cache at_once(ctx, s);
      at_once.append(k.x, v.x, 0, length, true);
      const auto a = flushed.bytes(), b = at_once.bytes();
      for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a[i], b[i]) << Cache::kNames[i];
      if (length < most) one.append(k.x, v.x, length, 1);
    }
  }
}

// Relative error of o over normal keys and values, 4096 of them.
double error_of(Context& ctx, int64_t bits) {
  const Shape s{bits, 32, 128, 64, 64, 2, 128, 128};
  const int64_t tokens = 4096, heads = 8;
  const Rows k(ctx, tokens, s.g, s.d, 5), v(ctx, tokens, s.g, s.e, 6), q(ctx, 1, heads, s.d, 7);
  Cache cache(ctx, s);
  cache.append(k.x, v.x, 0, tokens);
  const int64_t shape[] = {1, 1, heads, s.e};
  const size_t bytes = static_cast<size_t>(heads * s.e * 4);
  std::vector<float> o[2];
  for (int exact = 0; exact < 2; ++exact) {
    harness::Memory memory(ctx, bytes);
    const fovea_tensor to = fovea_contiguous(memory.data, FOVEA_F32, 4, shape);
    if (exact) {
      fovea_attention_forward_params p{};
      p.struct_size = sizeof p, p.q = q.x, p.k = k.x, p.v = v.x, p.o = to;
      harness::must(fovea_attention_forward(ctx, &p), "attention_forward");
    } else {
      fovea_x_kv_decode_params p{};
      p.struct_size = sizeof p, p.q = q.x, p.o = to;
      cache.give(p);
      harness::must(fovea_x_kv_decode(ctx, &p), "x_kv_decode");
    }
    o[exact].resize(bytes / 4);
    harness::must(fovea_copy(ctx, o[exact].data(), memory.data, bytes), "copy");
    harness::must(fovea_context_synchronize(ctx), "synchronize");
  }
  double error = 0, size = 0;
  for (size_t i = 0; i < o[0].size(); ++i)
    error += std::pow(o[0][i] - o[1][i], 2), size += std::pow(o[1][i], 2);
  return std::sqrt(error / size);
}

// A faithful emulation has 0.60 and 0.111: independent values average to little, so that the error
// of a value is most of what is left.
TEST_P(Kv, is_near_16_bits) {
  Context ctx(GetParam());
  const double two = error_of(ctx, 2), four = error_of(ctx, 4);
  EXPECT_LT(two, 0.72);
  EXPECT_GT(two, 0.3);
  EXPECT_LT(four, 0.14);
  EXPECT_GT(four, 0.05);
}

}  // namespace
