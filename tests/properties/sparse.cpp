// SPDX-License-Identifier: Apache-2.0
// x_sparse without a field of its own is attention: the same kernels, the same bits.
#include <gtest/gtest.h>

#include "harness/bound.h"
#include "harness/random.h"

namespace {

struct Shape {
  int64_t b, s, t, h, g, d;
  bool causal, paged;
};

class Tensors {
 public:
  explicit Tensors(harness::Context& ctx) : ctx_(ctx) {}
  // Normal numbers, or zeros.
  fovea_tensor make(fovea_dtype dtype, std::initializer_list<int64_t> shape, bool numbers) {
    int64_t count = 1;
    for (const int64_t n : shape) count *= n;
    std::vector<uint8_t> bytes(count * oracle::bytes_of(dtype));
    for (int64_t i = 0; numbers && i < count; ++i)
      oracle::encode(dtype, dtype == FOVEA_I32 ? static_cast<double>(i) : random_.normal(n_++),
                     bytes.data() + i * oracle::bytes_of(dtype));
    memory_.push_back(std::make_unique<harness::Memory>(ctx_, bytes.size()));
    memory_.back()->write(bytes);
    return fovea_contiguous(memory_.back()->data, dtype, static_cast<int32_t>(shape.size()),
                            shape.begin());
  }
  std::vector<uint8_t> read(const fovea_tensor& x) const {
    for (const auto& m : memory_)
      if (m->data == x.data) return m->read();
    return {};
  }

 private:
  harness::Context& ctx_;
  harness::Random random_{7};
  uint64_t n_ = 0;
  std::vector<std::unique_ptr<harness::Memory>> memory_;
};

constexpr Shape kShapes[] = {{2, 70, 70, 4, 2, 64, true, false},
                             {1, 1, 700, 8, 2, 128, false, false},
                             {2, 3, 96, 4, 1, 128, true, true},
                             {1, 40, 300, 2, 2, 40, false, false}};

template <class P>
P forward(const Shape& c, Tensors& t, fovea_dtype dtype) {
  P p = {};
  p.struct_size = sizeof p;
  p.q = t.make(dtype, {c.b, c.s, c.h, c.d}, true);
  p.k = t.make(dtype, {c.paged ? c.b * 6 : c.b, c.paged ? 16 : c.t, c.g, c.d}, true);
  p.v = t.make(dtype, {c.paged ? c.b * 6 : c.b, c.paged ? 16 : c.t, c.g, c.d}, true);
  if (c.paged) p.page_table = t.make(FOVEA_I32, {c.b, 6}, true);
  p.o = t.make(dtype, {c.b, c.s, c.h, c.d}, false);
  p.lse = t.make(FOVEA_F32, {c.b, c.h, c.s}, false);
  p.causal = c.causal, p.softcap = c.d == 40 ? 2 : 0;
  return p;
}

TEST(x_sparse_forward, without_a_list_is_attention) {
  for (fovea_backend backend : harness::backends())
    for (const Shape& c : kShapes)
      for (fovea_dtype dtype : {FOVEA_F32, FOVEA_BF16}) {
        harness::Context ctx(backend);
        Tensors dense(ctx), sparse(ctx);
        const auto p = forward<fovea_attention_forward_params>(c, dense, dtype);
        const auto q = forward<fovea_x_sparse_forward_params>(c, sparse, dtype);
        size_t wanted = 0, got = 1;
        ASSERT_EQ(fovea_attention_forward_workspace(ctx, &p, &wanted), FOVEA_OK);
        ASSERT_EQ(fovea_x_sparse_forward_workspace(ctx, &q, &got), FOVEA_OK);
        EXPECT_EQ(wanted, got);
        ASSERT_EQ(fovea_attention_forward(ctx, &p), FOVEA_OK) << fovea_last_error();
        const std::string kernel = fovea_context_last_kernel(ctx);
        ASSERT_EQ(fovea_x_sparse_forward(ctx, &q), FOVEA_OK) << fovea_last_error();
        EXPECT_EQ(kernel, fovea_context_last_kernel(ctx));
        ASSERT_EQ(fovea_context_synchronize(ctx), FOVEA_OK);
        EXPECT_EQ(dense.read(p.o), sparse.read(q.o));
        EXPECT_EQ(dense.read(p.lse), sparse.read(q.lse));
      }
}

template <class P>
P backward(const Shape& c, Tensors& t, const fovea_attention_forward_params& f) {
  P p = {};
  p.struct_size = sizeof p;
  p.q = f.q, p.k = f.k, p.v = f.v, p.o = f.o, p.lse = f.lse;
  const auto dtype = static_cast<fovea_dtype>(f.q.dtype);
  p.dout = t.make(dtype, {c.b, c.s, c.h, c.d}, true);
  p.dq = t.make(dtype, {c.b, c.s, c.h, c.d}, false);
  p.dk = t.make(dtype, {c.b, c.t, c.g, c.d}, false);
  p.dv = t.make(dtype, {c.b, c.t, c.g, c.d}, false);
  p.causal = c.causal, p.softcap = f.softcap;
  return p;
}

TEST(x_sparse_backward, without_a_list_is_attention) {
  for (fovea_backend backend : harness::backends())
    for (const Shape& c : kShapes) {
      if (c.paged) continue;
      harness::Context ctx(backend);
      Tensors inputs(ctx), dense(ctx), sparse(ctx);
      const auto f = forward<fovea_attention_forward_params>(c, inputs, FOVEA_BF16);
      ASSERT_EQ(fovea_attention_forward(ctx, &f), FOVEA_OK) << fovea_last_error();
      const auto p = backward<fovea_attention_backward_params>(c, dense, f);
      const auto q = backward<fovea_x_sparse_backward_params>(c, sparse, f);
      ASSERT_EQ(fovea_attention_backward(ctx, &p), FOVEA_OK) << fovea_last_error();
      const std::string kernel = fovea_context_last_kernel(ctx);
      ASSERT_EQ(fovea_x_sparse_backward(ctx, &q), FOVEA_OK) << fovea_last_error();
      EXPECT_EQ(kernel, fovea_context_last_kernel(ctx));
      ASSERT_EQ(fovea_context_synchronize(ctx), FOVEA_OK);
      EXPECT_EQ(dense.read(p.dq), sparse.read(q.dq));
      EXPECT_EQ(dense.read(p.dk), sparse.read(q.dk));
      EXPECT_EQ(dense.read(p.dv), sparse.read(q.dv));
    }
}

}  // namespace
