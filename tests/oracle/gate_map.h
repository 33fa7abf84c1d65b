// SPDX-License-Identifier: Apache-2.0
// The maps of experimental/linear.h that make the log of a decay, or the strength of a correction,
// from a raw number; each with its slopes.
#pragma once
#include <algorithm>
#include <cmath>

#include "fovea/experimental/linear.h"

namespace oracle {

// A value, its slope in the raw number, and its slope in the rate of the head.
template <class Real>
struct Mapped {
  Real value, slope, by_rate;
};

// ln(1 + e^x)
template <class Real>
Real log_one_plus_exp(Real x) {
  return std::max(x, Real{0}) + std::log1p(std::exp(-std::abs(x)));
}
template <class Real>
Real sigmoid_of(Real x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

struct GateMap {
  int32_t map = 0;
  double bound = 0, tau = 1;

  template <class P>
  static GateMap of(const P& p) {
    return {p.gate_map, p.gate_bound, p.gate_tau > 0 ? p.gate_tau : 1};
  }

  // `raw`: with its bias.  Where the bound holds and where nothing is left, slopes are 0.
  template <class Real>
  Mapped<Real> operator()(Real raw, Real rate) const {
    const Real most = static_cast<Real>(bound);
    Mapped<Real> g = unbounded(raw, rate);
    if (map != FOVEA_X_GATE_MAP_BOUNDED && bound > 0 && g.value < -most) return {-most, 0, 0};
    if (std::isinf(g.value)) g.slope = g.by_rate = 0;
    return g;
  }

 private:
  template <class Real>
  Mapped<Real> unbounded(Real x, Real rate) const {
    switch (map) {
      case FOVEA_X_GATE_MAP_SOFTPLUS: {
        const Real value = -std::exp(rate) * log_one_plus_exp(x);
        return {value, -std::exp(rate) * sigmoid_of(x), value};
      }
      case FOVEA_X_GATE_MAP_BOUNDED: {
        const Real factor = std::exp(rate), most = static_cast<Real>(bound);
        const Real part = sigmoid_of(factor * x), slope = -most * part * sigmoid_of(-factor * x);
        return {-most * part, slope * factor, slope == 0 ? 0 : slope * factor * x};
      }
      case FOVEA_X_GATE_MAP_LOG_SIGMOID: {
        const Real part = static_cast<Real>(tau);
        return {-log_one_plus_exp(-x) / part, sigmoid_of(-x) / part, 0};
      }
      case FOVEA_X_GATE_MAP_EXP:
        return {-std::exp(x), -std::exp(x), 0};
      default:
        return {x, 1, 0};
    }
  }
};

template <class Real>
Mapped<Real> beta_map_of(int32_t map, Real x) {
  if (map == FOVEA_X_BETA_MAP_NONE) return {x, 1, 0};
  const Real factor = map == FOVEA_X_BETA_MAP_TWO_SIGMOID ? 2 : 1, part = sigmoid_of(x);
  return {factor * part, factor * part * sigmoid_of(-x), 0};
}

}  // namespace oracle
