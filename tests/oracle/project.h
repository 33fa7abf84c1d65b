// SPDX-License-Identifier: Apache-2.0
// Projections of heads from the comments of experimental/project.h, a row and a product at a time:
//   y = act(act(x weight + bias) weight2 + bias2) weight3 + bias3, then RMSNorm, then RoPE
// Rounded mode is float32 with outputs rounded.
#pragma once
#include <algorithm>

#include "attention.h"

namespace oracle {

template <class Real>
class Project {
 public:
  using Row = std::vector<Real>;

  // `rows`: a tensor (b, s, h, .) of the call.
  template <class P>
  Project(const P& p, const fovea_tensor& rows)
      : x(load(p.x)),
        norm_weight(load(p.norm_weight)),
        position(load(p.position)),
        cos(load(p.cos)),
        sin(load(p.sin)),
        act(p.act),
        rope_begin(p.rope_begin),
        interleaved(p.rope_interleaved),
        eps(p.norm_eps > 0 ? static_cast<Real>(p.norm_eps) : Real{1e-6f}) {
    const fovea_tensor* weights[] = {&p.weight, &p.weight2, &p.weight3};
    const fovea_tensor* biases[] = {&p.bias, &p.bias2, &p.bias3};
    width[0] = p.x.shape[3];
    for (; layers < 3 && weights[layers]->data; ++layers) {
      weight[layers] = load(*weights[layers]), bias[layers] = load(*biases[layers]);
      width[layers + 1] = weights[layers]->shape[2];
    }
    b = p.x.shape[0], s = p.x.shape[1], g = p.x.shape[2], h = rows.shape[2];
    maps = p.weight.shape[0], products = std::max(g, h);
  }

  Dense x, weight[3], bias[3], norm_weight, position, cos, sin;
  int32_t act;
  int64_t rope_begin;
  bool interleaved;
  Real eps;
  int layers = 0;
  int64_t b, s, g, h, maps, products, width[4] = {};

  int64_t f() const { return width[layers]; }
  int64_t map_of(int64_t product) const { return product / (products / maps); }
  int64_t x_head(int64_t product) const { return product / (products / g); }
  int64_t y_head(int64_t product) const { return product / (products / h); }

  // act(u), and its slope.
  Real active(Real u) const {
    if (act == FOVEA_X_PROJECT_ACT_NONE) return u;
    if (act == FOVEA_X_PROJECT_ACT_SILU) return u / (1 + std::exp(-u));
    return u * (1 + std::erf(u / std::sqrt(Real{2}))) / 2;
  }
  Real slope(Real u) const {
    if (act == FOVEA_X_PROJECT_ACT_NONE) return 1;
    if (act == FOVEA_X_PROJECT_ACT_SILU) {
      const Real on = 1 / (1 + std::exp(-u));
      return on + u * on * (1 - on);
    }
    return (1 + std::erf(u / std::sqrt(Real{2}))) / 2 +
           u * std::exp(-u * u / 2) /
               std::sqrt(Real{2} * static_cast<Real>(3.14159265358979323846));
  }
  // What layer l of a product reads, u of the layer before, and act of it; l = 0: x.
  Row input(int l, int64_t batch, int64_t i, int64_t product) const {
    Row in;
    for (int64_t c = 0; c < width[0]; ++c)
      in.push_back(static_cast<Real>(x(batch, i, x_head(product), c)));
    for (int k = 0; k < l; ++k) {
      Row out = sums(k, in, product, nullptr);
      for (Real& u : out) u = active(u);
      in = out;
    }
    return in;
  }
  // u of layer l; terms, if given: the sums of the magnitudes.
  Row sums(int l, const Row& in, int64_t product, std::vector<double>* terms) const {
    const int64_t map = map_of(product);
    Row out(width[l + 1]);
    if (terms) terms->assign(width[l + 1], 0);
    for (int64_t n = 0; n < width[l + 1]; ++n) {
      for (int64_t k = 0; k < width[l]; ++k) {
        const Real one = in[k] * static_cast<Real>(weight[l](map, k, n));
        out[n] += one;
        if (terms) (*terms)[n] += std::abs(static_cast<double>(one));
      }
      if (!bias[l]) continue;
      out[n] += static_cast<Real>(bias[l](map, n));
      if (terms) (*terms)[n] += std::abs(bias[l](map, n));
    }
    return out;
  }
  // The sum of a group's products, before norm and rotation.
  Row before(int64_t batch, int64_t i, int64_t head, std::vector<double>* terms) const {
    Row z(f());
    std::vector<double> one;
    terms->assign(f(), 0);
    for (int64_t product = 0; product < products; ++product) {
      if (y_head(product) != head) continue;
      const Row in = input(layers - 1, batch, i, product);
      const Row out = sums(layers - 1, in, product, &one);
      for (int64_t c = 0; c < f(); ++c) z[c] += out[c], (*terms)[c] += one[c];
    }
    return z;
  }
  Real size_of(const Row& z) const {
    Real squares = 0;
    for (const Real c : z) squares += c * c;
    return 1 / std::sqrt(squares / static_cast<Real>(f()) + eps);
  }
  void turn(Row& row, int64_t batch, int64_t i, bool inverse) const {
    if (!cos) return;
    std::vector<double> wide(row.begin(), row.end());
    rotate<Real>(wide.data(), cos, sin, position ? position.integer(batch, i) : i, rope_begin,
                 interleaved, inverse);
    for (size_t c = 0; c < row.size(); ++c) row[c] = static_cast<Real>(wide[c]);
  }

  struct Results {
    Out y, code;
  };
  Results forward(const fovea_x_project_forward_params& p, Mode mode) const {
    Results out;
    if (p.y.data) out.y = Out(p.y, 0);
    if (p.code.data) out.code = Out(p.code, 0);
    const int64_t words = p.code.data ? p.code.shape[3] : 0, each = p.bits ? p.bits : 32;
    int64_t at = 0;
    for (int64_t batch = 0; batch < b; ++batch)
      for (int64_t i = 0; i < s; ++i)
        for (int64_t head = 0; head < h; ++head, ++at) {
          std::vector<double> terms;
          Row row = before(batch, i, head, &terms);
          if (norm_weight) {
            const Real size = size_of(row);
            for (int64_t c = 0; c < f(); ++c) {
              row[c] *= size * static_cast<Real>(norm_weight(c));
              terms[c] *= std::abs(static_cast<double>(size) * norm_weight(c));
            }
          }
          turn(row, batch, i, false);
          for (int64_t c = 0; p.y.data && c < f(); ++c) {
            const double value = static_cast<double>(row[c]);
            out.y.set(at * f() + c, mode == Mode::rounded ? round_to(p.y.dtype, value) : value);
          }
          if (f()) out.y.terms(*std::max_element(terms.begin(), terms.end()));
          for (int64_t word = 0; word < words; ++word) {
            uint32_t bits = 0;
            for (int64_t c = 0; c < each; ++c)
              if (word * each + c < f() && row[word * each + c] > 0) bits |= uint32_t{1} << c;
            out.code.set(at * words + word, static_cast<double>(static_cast<int32_t>(bits)));
          }
        }
    return out;
  }

  // Sums of one gradient and of the magnitudes of their terms.
  struct Sum {
    std::vector<Real> value;
    std::vector<double> terms;
    void start(int64_t count) { value.assign(count, 0), terms.assign(count, 0); }
    void add(int64_t at, Real x) { value[at] += x, terms[at] += std::abs(static_cast<double>(x)); }
    Out out(const fovea_tensor& to, Mode mode) const {
      if (!to.data) return {};
      Out made(to, 0);
      for (size_t i = 0; i < value.size(); ++i) {
        const double x = static_cast<double>(value[i]);
        made.set(static_cast<int64_t>(i), mode == Mode::rounded ? round_to(to.dtype, x) : x);
        made.terms(terms[i]);
      }
      return made;
    }
  };
  struct Gradients {
    Sum dx, dweight[3], dbias[3], dnorm_weight;
  };
  Gradients backward(const fovea_tensor& dy_) const {
    const Dense dy = load(dy_);
    Gradients out;
    out.dx.start(b * s * g * width[0]), out.dnorm_weight.start(f());
    for (int l = 0; l < layers; ++l)
      out.dweight[l].start(maps * width[l] * width[l + 1]), out.dbias[l].start(maps * width[l + 1]);
    for (int64_t batch = 0; batch < b; ++batch)
      for (int64_t i = 0; i < s; ++i)
        for (int64_t head = 0; head < h; ++head) {
          Row dz(f());
          for (int64_t c = 0; c < f(); ++c) dz[c] = static_cast<Real>(dy(batch, i, head, c));
          turn(dz, batch, i, true);
          if (norm_weight) norm_backward(batch, i, head, dz, out.dnorm_weight);
          for (int64_t product = 0; product < products; ++product)
            if (y_head(product) == head) layers_backward(batch, i, product, dz, out);
        }
    return out;
  }

 private:
  void norm_backward(int64_t batch, int64_t i, int64_t head, Row& dz, Sum& dnorm) const {
    std::vector<double> terms;
    const Row z = before(batch, i, head, &terms);
    const Real size = size_of(z);
    Real mean = 0;
    for (int64_t c = 0; c < f(); ++c) {
      dnorm.add(c, dz[c] * z[c] * size);
      dz[c] *= static_cast<Real>(norm_weight(c));
      mean += dz[c] * z[c] * size;
    }
    mean /= static_cast<Real>(f());
    for (int64_t c = 0; c < f(); ++c) dz[c] = size * (dz[c] - z[c] * size * mean);
  }
  void layers_backward(int64_t batch, int64_t i, int64_t product, Row du, Gradients& out) const {
    const int64_t map = map_of(product);
    for (int l = layers - 1; l >= 0; --l) {
      const int64_t rows = width[l], columns = width[l + 1];
      const Row in = input(l, batch, i, product);
      Row below(rows);
      for (int64_t n = 0; n < columns; ++n) out.dbias[l].add(map * columns + n, du[n]);
      for (int64_t k = 0; k < rows; ++k)
        for (int64_t n = 0; n < columns; ++n) {
          out.dweight[l].add((map * rows + k) * columns + n, in[k] * du[n]);
          const Real one = du[n] * static_cast<Real>(weight[l](map, k, n));
          below[k] += one;
          if (l == 0) out.dx.add(x.at_index(batch, i, x_head(product), k), one);
        }
      if (l == 0) return;
      const Row u = sums(l - 1, input(l - 1, batch, i, product), product, nullptr);
      for (int64_t k = 0; k < rows; ++k) below[k] *= slope(u[k]);
      du = below;
    }
  }
};

}  // namespace oracle
