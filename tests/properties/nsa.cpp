// SPDX-License-Identifier: Apache-2.0
// The oracle of x_nsa_backward: each gradient against central differences of the forward's, under
// lists that do not change.
#include "oracle/nsa_backward.h"
#include "properties/derivatives.h"

namespace {

using oracle::Mode;
using properties::Some;

struct Variant {
  bool compressed, window, plain;
  uint64_t seed;
};
constexpr Variant kVariants[] = {
    {false, false, false, 5}, {true, true, false, 6}, {true, false, true, 7}};

class Nsa {
 public:
  explicit Nsa(const Variant& v) : some_(v.seed) {
    p.q = some_({1, 3, 2, 3}), p.k = some_({1, 14, 1, 3}), p.v = some_({1, 14, 1, 2});
    p.compress_keys = 4, p.compress_step = 2, p.block_keys = 2, p.window = 5;
    if (v.compressed) p.k_compressed = some_({1, 6, 1, 3}), p.v_compressed = some_({1, 6, 1, 2});
    if (v.window) p.k_window = some_({1, 14, 1, 3}), p.v_window = some_({1, 14, 1, 2});
    p.gate_compressed = some_({1, 3, 2}), p.gate_selected = some_({1, 3, 2});
    p.gate_window = some_({1, 3, 2}), p.gate_plain = v.plain;
    index_.resize(12), p.index = of(index_, FOVEA_I32, {1, 1, 3, 4});
    p.o_compressed = some_({1, 3, 2, 2}), p.o_selected = some_({1, 3, 2, 2});
    p.o_window = some_({1, 3, 2, 2}), p.lse_compressed = some_({1, 2, 3});
    p.lse_selected = some_({1, 2, 3}), p.lse_window = some_({1, 2, 3});
    p.dout = some_({1, 3, 2, 2});
  }

  // The forward's o against dout; how close a list was.
  double loss(double* margin = nullptr) {
    oracle::NsaResult f = oracle::NsaBackward(p, kCount).forward();
    if (margin) *margin = f.margin;
    return properties::weighed(oracle::load(p.dout), f.o);
  }
  // Gives the backward what the forward found.
  oracle::NsaGradients gradients() {
    for (auto& [x, dx] : outputs()) *dx = *x;
    oracle::NsaBackward backward(p, kCount);
    const oracle::NsaResult f = backward.forward();
    put(p.o_compressed, f.branch[0]), put(p.o_selected, f.branch[1]);
    put(p.o_window, f.branch[2]), put(p.lse_compressed, f.lse[0]);
    put(p.lse_selected, f.lse[1]), put(p.lse_window, f.lse[2]);
    return backward.run(Mode::exact);
  }
  std::vector<std::pair<fovea_tensor*, fovea_tensor*>> outputs() {
    return {{&p.q, &p.dq},
            {&p.k, &p.dk},
            {&p.v, &p.dv},
            {&p.k_compressed, &p.dk_compressed},
            {&p.v_compressed, &p.dv_compressed},
            {&p.k_window, &p.dk_window},
            {&p.v_window, &p.dv_window},
            {&p.gate_compressed, &p.dgate_compressed},
            {&p.gate_selected, &p.dgate_selected},
            {&p.gate_window, &p.dgate_window}};
  }

  fovea_x_nsa_backward_params p = {};

 private:
  static constexpr int64_t kCount = 4;  // one block beside the forced ones

  static fovea_tensor of(std::vector<int32_t>& memory, fovea_dtype dtype,
                         const std::vector<int64_t>& shape) {
    return fovea_contiguous(memory.data(), dtype, static_cast<int32_t>(shape.size()), shape.data());
  }
  static void put(const fovea_tensor& x, const oracle::Out& value) {
    for (size_t i = 0; i < value.value.size(); ++i)
      static_cast<float*>(x.data)[i] = static_cast<float>(value.value[i]);
  }

  Some some_;
  std::vector<int32_t> index_;
};

TEST(oracle, nsa_gradient_is_the_derivative) {
  for (const Variant& v : kVariants) {
    SCOPED_TRACE(v.seed);
    Nsa nsa(v);
    double margin;
    nsa.loss(&margin);
    ASSERT_GT(margin, 0.01);
    oracle::NsaGradients g = nsa.gradients();
    const oracle::Out* found[] = {
        &g.dq,        &g.dk,        &g.dv,       &g.dk_compressed, &g.dv_compressed,
        &g.dk_window, &g.dv_window, &g.dgate[0], &g.dgate[1],      &g.dgate[2]};
    int n = 0;
    for (auto& [x, dx] : nsa.outputs()) {
      const oracle::Out& gradient = *found[n++];
      auto* const values = static_cast<float*>(x->data);
      if (!values) continue;
      for (size_t i = 0; i < gradient.value.size(); ++i) {
        const float at = values[i], step = 0x1p-10f;
        values[i] = at + step;
        const double above = nsa.loss(), high = values[i];
        values[i] = at - step;
        const double below = nsa.loss(), low = values[i];
        values[i] = at;
        EXPECT_NEAR(gradient.value[i], (above - below) / (high - low), 2e-5)
            << "tensor " << n << ", element " << i;
      }
    }
  }
}

}  // namespace
