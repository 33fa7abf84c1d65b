// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/plan.h"
#include "fovea/rope.h"
#include "ops/rope/kernels.h"

namespace fovea {
namespace {

constexpr char kOp[] = "rope_table_get";

double setting(const char* field, float value, double fallback) {
  if (!(value >= 0) || std::isinf(value))
    refuse("%s: %s is %g, wanted > 0, or 0 for %g", kOp, field, static_cast<double>(value),
           fallback);
  return value > 0 ? value : fallback;
}

void check_unused(const char* field, double value, int32_t scaling) {
  if (value != 0)
    refuse("%s: %s is %g, wanted 0: scaling %d does not read it", kOp, field, value, scaling);
}

RopeTable resolve(const fovea_rope_table_get_params& p) {
  if (p.scaling < FOVEA_SCALING_NONE || p.scaling > FOVEA_SCALING_YARN)
    refuse("%s: scaling is %d, wanted a fovea_scaling", kOp, p.scaling);
  const bool llama3 = p.scaling == FOVEA_SCALING_LLAMA3, yarn = p.scaling == FOVEA_SCALING_YARN;
  RopeTable a{};
  a.cos = view_of<2>(p.cos), a.sin = view_of<2>(p.sin), a.frequency = view_of<1>(p.frequency);
  a.positions = p.cos.shape[0], a.half = p.cos.shape[1];
  a.position_begin = p.position_begin;
  a.scaling = p.scaling;
  a.base = setting("base", p.base, 10000);
  a.factor = setting("factor", p.factor, 1);
  if (a.factor < 1) refuse("%s: factor is %g, wanted >= 1, or 0 for 1", kOp, a.factor);
  if (p.scaling == FOVEA_SCALING_NONE && a.factor != 1)
    refuse("%s: factor is %g with scaling none, wanted 1", kOp, a.factor);
  if (p.original_len < 0) refuse("%s: original_len is %lld, wanted >= 0", kOp, lld(p.original_len));
  if (!llama3 && !yarn) {
    check_unused("original_len", static_cast<double>(p.original_len), p.scaling);
    check_unused("low_factor", p.low_factor, p.scaling);
    check_unused("high_factor", p.high_factor, p.scaling);
    return a;
  }
  a.original_len = p.original_len ? static_cast<double>(p.original_len) : llama3 ? 8192 : 4096;
  a.low = setting("low_factor", p.low_factor, 1);
  a.high = setting("high_factor", p.high_factor, llama3 ? 4 : 32);
  if (a.high <= a.low)
    refuse("%s: high_factor is %g, wanted more than low_factor (%g)", kOp, a.high, a.low);
  if (yarn) {
    if (a.base <= 1) refuse("%s: base is %g, wanted > 1 for yarn", kOp, a.base);
    // As in the published models: the ramp runs over whole pair numbers, from the last pair that
    // turns at least high_factor times within original_len to the first that turns low_factor
    // times.
    const auto pair = [&](double turns) {
      return static_cast<double>(a.half) *
             std::log(a.original_len / (turns * 2 * std::numbers::pi)) / std::log(a.base);
    };
    const double first = std::max(std::floor(pair(a.high)), 0.0);
    const double last = std::min(std::ceil(pair(a.low)), static_cast<double>(2 * a.half - 1));
    a.low = first, a.high = std::max(last, first + 0.001);
  }
  return a;
}

}  // namespace

Plan plan(const Context& ctx, const fovea_rope_table_get_params& params) {
  return choose(kOp, ctx, resolve(params), rope_table_get_host,
                FOVEA_CUDA_KERNELS(rope_table_get_cuda));
}

}  // namespace fovea
