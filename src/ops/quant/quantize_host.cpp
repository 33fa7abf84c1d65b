// SPDX-License-Identifier: Apache-2.0
// x to codes: one item is one head of a unit of 128 tokens.  Up to three passes over x: sums of
// units, which means of sequences are made of; largest magnitudes, where a scale serves more than a
// unit; codes.
#include <algorithm>

#include "core/dtype.h"
#include "host/device.h"
#include "ops/quant/quantize.h"

namespace fovea {
namespace {

// Scratch of a call, and rows of one worker.
struct Scratch {
  float *most, *partial, *factor;  // (units, h, 2); (units, h, d); (sequences, h, d)
  float* rows;                     // (128 or s, d) and a row of factors
};

struct Item {
  CodeUnit unit;
  int64_t slot, head;
  float* y;        // (unit.tokens, d)
  float* factors;  // (d)
};

float largest(const float* y, int64_t count, int64_t stride = 1) {
  float most = 0;
  for (int64_t i = 0; i < count; ++i) most = greatest(most, std::abs(y[i * stride]));
  return most;
}

void block_means(const Quantize& a, const Item& item) {
  if (item.unit.column >= a.padded) return;
  float* mean = mean_row(a, item.unit, item.head);
  for (int64_t c = 0; c < a.d; ++c)
    mean[c * a.mean.stride[3]] =
        mean_of(a, tree_sum(item.unit.tokens, [&](int64_t i) { return item.y[i * a.d + c]; }),
                item.unit.tokens);
}

template <class X>
void load(const Quantize& a, const Item& item, bool centred) {
  const bool block = centred && a.smooth == FOVEA_SMOOTH_BLOCK;
  const float* mean = centred && a.smooth && item.unit.tokens && !block
                          ? mean_row(a, item.unit, item.head)
                          : nullptr;
  for (int64_t i = 0; i < item.unit.tokens; ++i)
    load_token<X, 1>(a, item.unit, item.head, i, 0, item.y + i * a.d, mean);
  if (!block) return;
  block_means(a, item);
  for (int64_t i = 0; i < item.unit.tokens; ++i)
    for (int64_t c = 0; c < a.d; ++c)
      item.y[i * a.d + c] -= mean_row(a, item.unit, item.head)[c * a.mean.stride[3]];
}

// Sums or largest magnitudes of a unit's columns, of all its sequence's.
void fold(const Quantize& a, const Scratch& scratch, int64_t r, int64_t head, bool sums) {
  const int64_t slot = a.start ? first_entry(a.start, a.s, r, kCodeRun) : r * a.units;
  const CodeUnit unit = unit_at(a, slot);
  const Interval units = units_of(a, unit, slot);
  for (int64_t c = 0; c < a.d; ++c) {
    const auto term = [&](int64_t i) {
      return scratch.partial[((units.begin + i) * a.h + head) * a.d + c];
    };
    if (sums) {
      mean_row(a, unit, head)[c * a.mean.stride[3]] =
          mean_of(a, tree_sum(units.end - units.begin, term), unit.length);
      continue;
    }
    float top = 0;
    for (int64_t i = 0; i < units.end - units.begin; ++i) top = greatest(top, term(i));
    const CodeScale scale(top, a.most);
    const int64_t first = a.start ? r * a.d : 0;
    *a.scale.at(unit.batch, head, first + c) = unit.length ? scale.scale : 0;
    scratch.factor[(r * a.h + head) * a.d + c] = scale.factor;
  }
}

void maxima(const Quantize& a, const Item& item, const Scratch& scratch) {
  const int64_t at = item.slot * a.h + item.head;
  if (a.channel()) {
    for (int64_t c = 0; c < a.d; ++c)
      scratch.partial[at * a.d + c] = largest(item.y + c, item.unit.tokens, a.d);
    return;
  }
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t tokens = clamp_i64(item.unit.tokens - half * 64, 0, 64);
    scratch.most[2 * at + half] = largest(item.y + half * 64 * a.d, tokens * a.d);
  }
}

void code_runs(const Quantize& a, const Item& item) {
  const int64_t micro = a.micro();
  for (int64_t i = 0; i < kCodeRun; i += 2) {
    const float* y = item.y + (i < item.unit.tokens ? i * a.d : 0);
    if (a.transposed()) {
      for (int64_t c = 0; i % micro == 0 && c < a.d && item.unit.column < a.padded; ++c)
        item.factors[c] = put_run(a, item.unit, item.head, c, i,
                                  largest(y + c, clamp_i64(item.unit.tokens - i, 0, micro), a.d));
      store_pair<1>(a, item.unit, item.head, i, 0, y,
                    [&](int, int64_t c) { return item.factors[c]; });
      continue;
    }
    const int64_t runs = (a.d + micro - 1) / micro;
    for (int64_t j = 0; j < 2 && i + j < item.unit.tokens; ++j)
      scale_runs<1>(a, item.unit, item.head, i + j, 0, y + j * a.d, item.factors + j * runs);
    store_pair<1>(a, item.unit, item.head, i, 0, y,
                  [&](int j, int64_t c) { return item.factors[j * runs + c / micro]; });
  }
}

// The factor of each part of a unit.
void scale_parts(const Quantize& a, const Item& item, const Scratch& scratch, float* factor) {
  float top[kCodeRun] = {};
  const int parts = part_count(a);
  if (a.wide()) {
    const Interval units = units_of(a, item.unit, item.slot);
    for (int64_t part = 0; part < 2; ++part) {
      const Interval halves = halves_of(a, units, 2 * item.slot + part);
      for (int64_t i = halves.begin; i < halves.end; ++i)
        top[part] = greatest(top[part], scratch.most[(i / 2 * a.h + item.head) * 2 + i % 2]);
    }
  } else {
    for (int i = 0; i < item.unit.tokens; ++i) {
      float& of = top[part_of(a, i)];
      of = greatest(of, largest(item.y + i * a.d, a.d));
    }
  }
  for (int part = 0; part < parts; ++part) {
    const CodeScale scale(top[part], a.most);
    put_part(a, item.unit, item.head, part, scale.scale);
    factor[part] = scale.factor;
  }
  clear_rest(a, item.unit, item.head, 0, 1);
}

void codes(const Quantize& a, const Item& item, const Scratch& scratch) {
  if (a.micro()) return code_runs(a, item);
  const float* channel = scratch.factor + (item.unit.sequence * a.h + item.head) * a.d;
  float factor[kCodeRun];
  if (!a.channel()) scale_parts(a, item, scratch, factor);
  for (int i = 0; i < kCodeRun; i += 2)
    store_pair<1>(
        a, item.unit, item.head, i, 0, item.y + (i < item.unit.tokens ? i * a.d : 0),
        [&](int j, int64_t c) { return a.channel() ? channel[c] : factor[part_of(a, i + j)]; });
}

// <mean of a block of 128 rows, k_j - k_mean>, of one block.
template <class X>
void deltas(const Quantize& a, const Item& item) {
  if (item.unit.tokens == 0) return;
  const int64_t r = item.unit.sequence, g = item.head / (a.h / a.g);
  const Interval keys = keys_of(a, r);
  const int64_t batch = a.key_start ? 0 : r;
  const float* mean = mean_row(a, item.unit, item.head);
  const float* k_mean = a.k_mean ? a.k_mean.at(batch, g, a.key_start ? r : 0) : nullptr;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    const X* k = a.k.at<X>(batch, j, g);
    float sum = 0;
    for (int64_t c = 0; c < a.d; ++c) {
      const float less = k_mean ? k_mean[c * a.k_mean.stride[3]] : 0;
      sum += mean[c * a.mean.stride[3]] * (to_float(k[c * a.k.stride[3]]) - less);
    }
    *a.delta.at(item.unit.batch, item.head, item.unit.column / kCodeRun, j) = sum;
  }
}

Text offer(const Context& ctx, const Quantize& a, Plan& plan) {
  const int64_t items = unit_count(a) * a.h, held = std::min(kCodeRun, a.s) + 1;
  const bool sums = a.smooth == FOVEA_SMOOTH_SEQUENCE;
  const Slot<float> most = plan.workspace.add<float>(a.wide() ? 2 * items : 0);
  const Slot<float> partial = plan.workspace.add<float>(sums || a.channel() ? items : 0, a.d);
  const Slot<float> factor = plan.workspace.add<float>(a.channel() ? a.sequences * a.h : 0, a.d);
  const Slot<float> rows =
      plan.workspace.add<float>(host::workers_for(ctx, static_cast<double>(items)), held, a.d);
  plan.kernel += Text(".") + dtype_name(a.x_dtype);
  plan.launch = [=](Context& ctx, void* base) {
    const Scratch scratch{most.at(base), partial.at(base), factor.at(base), rows.at(base)};
    const double cost = 3.0 * static_cast<double>(items * kCodeRun * a.d);
    with_fp(a.x_dtype, [&](auto x) {
      using X = decltype(x);
      const auto walk = [&](bool centred, auto&& visit) {
        host::pool(ctx).run(items, cost, [&](int64_t number, int32_t worker) {
          Item item{unit_at(a, number / a.h), number / a.h, number % a.h};
          if (item.unit.sequence < 0) return;
          item.y = scratch.rows + worker * held * a.d;
          item.factors = item.y + (held - 1) * a.d;
          load<X>(a, item, centred);
          visit(item);
        });
      };
      const auto folded = [&](bool sums) {
        const int64_t heads = a.sequences * a.h;
        host::pool(ctx).run(heads, static_cast<double>(items * a.d), [&](int64_t number, int32_t) {
          fold(a, scratch, number / a.h, number % a.h, sums);
        });
      };
      if (sums) {
        walk(false, [&](const Item& item) {
          for (int64_t c = 0; c < a.d; ++c)
            scratch.partial[(item.slot * a.h + item.head) * a.d + c] =
                tree_sum(item.unit.tokens, [&](int64_t i) { return item.y[i * a.d + c]; });
        });
        folded(true);
      }
      if (a.wide() || a.channel()) walk(true, [&](const Item& item) { maxima(a, item, scratch); });
      if (a.channel()) folded(false);
      walk(true, [&](const Item& item) {
        codes(a, item, scratch);
        if (a.delta) deltas<X>(a, item);
      });
    });
  };
  return "";
}

}  // namespace

extern const Kernel<Quantize> quant_quantize_host = {"", offer};

}  // namespace fovea
