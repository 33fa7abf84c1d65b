// SPDX-License-Identifier: Apache-2.0
// What the dequantising kernels of the host and of devices share: a token's numbers of its codes.
#pragma once
#include "ops/quant/quantize.h"

namespace fovea {

// The scale of column c of token i of a unit.
FOVEA_HD float scale_of(const Codes& a, const CodeUnit& unit, int64_t head, int64_t i, int64_t c) {
  if (const int64_t micro = a.micro()) {
    const int64_t entry = a.transposed()
                              ? c * (a.padded / micro) + (unit.column + i) / micro
                              : (unit.token + i) * ((a.d + micro - 1) / micro) + c / micro;
    const uint8_t byte = *a.scale.at<uint8_t>(unit.batch, head, entry);
    if (micro == 16) return to_float(E4m3{byte});
    if (byte == 0xff) return quiet_nan();
    return float_of(byte ? static_cast<uint32_t>(byte) << 23 : 0x400000u);
  }
  const int64_t r = unit.sequence;
  const int64_t entry =
      a.channel() ? (a.start ? r * a.d : 0) + c
                  : a.group.first(a.start, a.s, r) + a.group.entry(unit.index * kCodeRun + i);
  return *a.scale.at(unit.batch, head, entry);
}

FOVEA_HD float number_of(const Codes& a, const CodeUnit& unit, int64_t head, int64_t i, int64_t c) {
  const int64_t per = a.per_byte();
  uint32_t byte, odd;
  if (a.code) {
    byte = a.code.as<uint8_t>()[token_at(a.code, unit, head, i) + c / per * a.code.stride[3]];
    odd = c & 1;
  } else {
    const int64_t place = unit.column + (a.permutes ? permuted(i) : i);
    byte = *a.code_t.at<uint8_t>(unit.batch, head, c, place / per);
    odd = place & 1;
  }
  if (per == 2) byte = byte >> 4 * odd & 15;
  return product_of(code_value(a.kind, byte), scale_of(a, unit, head, i, c));
}

// Token i of a unit, to y; `row` holds d floats, with a rotation.
template <class Y, int Lanes>
FOVEA_HD void restore_token(const Dequantize& a, const CodeUnit& unit, int64_t head, int64_t i,
                            int lane, float* row) {
  const float* mean = a.smooth ? mean_row(a, unit, head) : nullptr;
  Y* y = a.y.as<Y>() + token_at(a.y, unit, head, i);
  const auto put = [&](int64_t c, float x) {
    y[c * a.y.stride[3]] = from_float<Y>(x != x ? quiet_nan() : x);
  };
  for (int64_t c = lane; c < a.d; c += Lanes) {
    float x = number_of(a, unit, head, i, c);
    if (mean) x += mean[c * a.mean.stride[3]];
    if (a.run)
      row[c] = x;
    else
      put(c, x);
  }
  if (!a.run) return;
  rotate<Lanes>(a, lane, row);
  for (int64_t c = lane; c < a.d; c += Lanes) put(c, flips(a.seed, c) ? -row[c] : row[c]);
  sync_lanes<Lanes>();
}

}  // namespace fovea
