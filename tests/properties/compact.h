// SPDX-License-Identifier: Apache-2.0
// What the layers of compact attention share: tensors of a context, views of them, rotations by
// real angles, and the library's calls.
#pragma once
#include <gtest/gtest.h>

#include <memory>

#include "harness/bound.h"
#include "oracle/dense.h"
#include "properties/derivatives.h"

namespace properties::compact {

constexpr int64_t kTokens = 37;
inline const std::vector<std::vector<int64_t>> kCuts = {
    {kTokens}, {16, 1, 1, 19}, std::vector<int64_t>(kTokens, 1)};

// Tensors in memory of a context, and views of them.
class Room {
 public:
  Room(fovea_backend backend, int dtype_) : ctx(backend), dtype(dtype_) {}

  fovea_tensor fill(const std::vector<int64_t>& shape, int type, const Values& values) {
    fovea_tensor x = fovea_contiguous(nullptr, static_cast<fovea_dtype>(type),
                                      static_cast<int32_t>(shape.size()), shape.data());
    const int64_t size = oracle::bytes_of(type);
    std::vector<uint8_t> bytes(values.size() * size);
    for (size_t i = 0; i < values.size(); ++i)
      oracle::encode(type, values[i], bytes.data() + i * size);
    memory_.push_back(std::make_unique<harness::Memory>(ctx, bytes.size()));
    memory_.back()->write(bytes);
    x.data = memory_.back()->data;
    return x;
  }
  fovea_tensor some(const std::vector<int64_t>& shape, double size = 1) {
    Values values(count(shape));
    for (double& x : values) x = size * random_.normal(n_++);
    return fill(shape, dtype, values);
  }
  fovea_tensor empty(const std::vector<int64_t>& shape, int type) {
    return fill(shape, type, Values(count(shape)));
  }
  fovea_tensor empty(const std::vector<int64_t>& shape) { return empty(shape, dtype); }
  fovea_tensor lengths(int64_t keys) { return fill({1}, FOVEA_I32, {static_cast<double>(keys)}); }

  // The values of a tensor or a view, in logical order.
  oracle::Dense values(fovea_tensor x) const {
    for (const auto& m : memory_) {
      const auto at = static_cast<uint8_t*>(x.data) - static_cast<uint8_t*>(m->data);
      if (at < 0 || at >= static_cast<int64_t>(m->bytes)) continue;
      std::vector<uint8_t> bytes = m->read();
      x.data = bytes.data() + at;
      return oracle::load(x);
    }
    throw std::runtime_error("a tensor of another room");
  }

  // One rounding of the dtype, and what sums add.
  double unit() const { return dtype == FOVEA_F32 ? 0x1p-18 : oracle::unit_of(dtype); }

  harness::Context ctx;
  const int dtype;

 private:
  static int64_t count(const std::vector<int64_t>& shape) {
    int64_t n = 1;
    for (const int64_t x : shape) n *= x;
    return n;
  }
  harness::Random random_{97};
  uint64_t n_ = 0;
  std::vector<std::unique_ptr<harness::Memory>> memory_;
};

inline fovea_tensor part(fovea_tensor x, int axis, int64_t begin, int64_t count) {
  x.data = static_cast<uint8_t*>(x.data) + begin * x.stride[axis] * oracle::bytes_of(x.dtype);
  x.shape[axis] = count;
  return x;
}

// Entry n of the first axis.
inline fovea_tensor entry(const fovea_tensor& x, int64_t n) {
  fovea_tensor y = part(x, 0, n, 1);
  --y.ndim;
  for (int axis = 0; axis < y.ndim; ++axis)
    y.shape[axis] = x.shape[axis + 1], y.stride[axis] = x.stride[axis + 1];
  return y;
}

inline fovea_tensor for_heads(fovea_tensor x, int64_t heads) {
  x.shape[2] = heads, x.stride[2] = 0;
  return x;
}

inline fovea_tensor swapped(fovea_tensor x, int a, int b) {
  std::swap(x.shape[a], x.shape[b]), std::swap(x.stride[a], x.stride[b]);
  return x;
}

template <class P>
P params() {
  P p = {};
  p.struct_size = sizeof p;
  return p;
}

inline void project(Room& room, const fovea_tensor& x, const fovea_tensor& weight,
                    const fovea_tensor& y) {
  auto p = params<fovea_x_project_forward_params>();
  p.x = x, p.weight = weight, p.y = y;
  harness::must(fovea_x_project_forward(room.ctx, &p), "x_project_forward");
}

struct Turns {
  Turns(Room& room, int64_t half_) : half(half_) {
    Values c, s;
    for (int64_t p = 0; p < kTokens; ++p)
      for (int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(p) *
                             std::pow(50, -static_cast<double>(i) / static_cast<double>(half));
        c.push_back(std::cos(angle)), s.push_back(std::sin(angle));
      }
    cos = room.fill({kTokens, half}, FOVEA_F32, c), sin = room.fill({kTokens, half}, FOVEA_F32, s);
  }
  // y = x rotated, whose first token is at position `begin`.
  void rotate(Room& room, const fovea_tensor& x, const fovea_tensor& y, int64_t begin,
              int32_t interleaved) const {
    auto p = params<fovea_rope_forward_params>();
    p.x = x, p.y = y, p.rope_interleaved = interleaved;
    p.cos = part(cos, 0, begin, x.shape[1]), p.sin = part(sin, 0, begin, x.shape[1]);
    harness::must(fovea_rope_forward(room.ctx, &p), "rope_forward");
  }
  const int64_t half;
  fovea_tensor cos, sin;
};

// A call by name; `scale` 0: the method's.
inline void attend(Room& room, const char* recipe, fovea_attention_forward_params& p,
                   float scale = 0) {
  harness::must(fovea_x_recipe_apply(recipe, "attention_forward", &p), recipe);
  if (scale > 0) p.scale = scale;
  harness::must(fovea_attention_forward(room.ctx, &p), recipe);
}

inline void expect_near(const char* what, const Values& got, const Values& wanted, double units) {
  SCOPED_TRACE(what);
  ASSERT_EQ(got.size(), wanted.size());
  double largest = 0;
  for (const double x : wanted) largest = std::max(largest, std::abs(x));
  ASSERT_GT(largest, 0.1);
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], wanted[i], units * largest) << "element " << i;
}

template <class Test>
void each_room(Test test) {
  for (const fovea_backend backend : harness::backends())
    for (const int dtype : {FOVEA_F32, FOVEA_F16, FOVEA_BF16}) {
      SCOPED_TRACE(std::string(harness::name_of(backend)) + ", dtype " + std::to_string(dtype));
      Room room(backend, dtype);
      test(room);
    }
}

}  // namespace properties::compact
