// SPDX-License-Identifier: Apache-2.0
// x to codes: one item is one head of a unit of 128 tokens.  Up to three passes over x: sums of
// units, which means of sequences are made of; largest magnitudes, where a scale serves more than a
// unit; codes.
#include <algorithm>

#include "core/dtype.h"
#include "host/device.h"
#include "host/simd.h"
#include "ops/quant/quantize.h"

namespace fovea {
namespace {

constexpr int kLevels = 8;  // of the tree of 128 tokens

// Scratch of a call.
struct Scratch {
  float *most, *partial, *factor;  // (units, h, 2); (units, h, d); (sequences, h, d)
};

// Scratch of a worker.
struct Item {
  CodeUnit unit;
  int64_t slot, head;
  float* y;        // (unit.tokens, d)
  float* factors;  // (d)
  float* levels;   // (kLevels + 1, d)
  uint8_t* codes;  // (128, d)
};

// to[c] = the largest |y[i][c]|, or a NaN if there is one.
void largest(const float* y, int64_t count, int64_t d, float* to) {
  std::fill_n(to, d, 0.0f);
  for (int64_t i = 0; i < count; ++i, y += d)
    for (int64_t c = 0; c < d; ++c)
      to[c] = float_of(std::max(bits_of(to[c]), bits_of(y[c]) & 0x7fffffffu));
}

// tree_sum() of each column of an item.  A level's row is the sum of 2^level tokens.
const float* tree_sums(const Quantize& a, const Item& item) {
  const int64_t d = a.d, count = item.unit.tokens;
  float* const sum = item.levels + kLevels * d;
  const auto add = [&](int level) {
    const float* from = item.levels + level * d;
    for (int64_t c = 0; c < d; ++c) sum[c] = from[c] + sum[c];
  };
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(item.y + i * d, d, sum);
    int bit = 0;
    for (; i >> bit & 1; ++bit) add(bit);
    std::copy_n(sum, d, item.levels + bit * d);
  }
  std::fill_n(sum, d, 0.0f);
  for (int bit = 0; count >> bit; ++bit)
    if (count >> bit & 1) add(bit);
  return sum;
}

void block_means(const Quantize& a, const Item& item) {
  if (item.unit.column >= a.padded) return;
  float* mean = mean_row(a, item.unit, item.head);
  const float* sum = tree_sums(a, item);
  for (int64_t c = 0; c < a.d; ++c)
    mean[c * a.mean.stride[3]] = mean_of(a, sum[c], item.unit.tokens);
}

// A row of x to floats.
template <class X>
void load_row(const X* x, int64_t count, int64_t stride, float* to) {
  if constexpr (std::is_same_v<X, float>) {
    if (stride == 1) return void(std::copy_n(x, count, to));
  } else if (stride == 1) {
    return host::simd().widen(count, x, std::is_same_v<X, F16> ? FOVEA_F16 : FOVEA_BF16, to);
  }
  for (int64_t c = 0; c < count; ++c) to[c] = to_float(x[c * stride]);
}

template <class X>
void load(const Quantize& a, const Item& item, bool centred) {
  const bool block = centred && a.smooth == FOVEA_SMOOTH_BLOCK;
  const float* mean = centred && a.smooth && item.unit.tokens && !block
                          ? mean_row(a, item.unit, item.head)
                          : nullptr;
  for (int64_t i = 0; i < item.unit.tokens; ++i) {
    if (a.run)
      load_token<X, 1>(a, item.unit, item.head, i, 0, item.y + i * a.d);
    else
      load_row(a.x.as<X>() + token_at(a.x, item.unit, item.head, i), a.d, a.x.stride[3],
               item.y + i * a.d);
  }
  if (block) {
    block_means(a, item);
    if (item.unit.tokens) mean = mean_row(a, item.unit, item.head);
  }
  if (!mean) return;
  for (int64_t c = 0; c < a.d; ++c) item.factors[c] = mean[c * a.mean.stride[3]];
  for (int64_t i = 0; i < item.unit.tokens; ++i)
    for (int64_t c = 0; c < a.d; ++c) item.y[i * a.d + c] -= item.factors[c];
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
  if (a.channel()) return largest(item.y, item.unit.tokens, a.d, scratch.partial + at * a.d);
  for (int64_t half = 0; half < 2; ++half) {
    const int64_t tokens = clamp_i64(item.unit.tokens - half * 64, 0, 64);
    scratch.most[2 * at + half] = host::simd().magnitude(tokens * a.d, item.y + half * 64 * a.d);
  }
}

// Codes of token i of an item, by a factor of each column or with step 0 of all.
void put_token(const Quantize& a, const Item& item, int64_t i, const float* factor, int64_t step) {
  uint8_t* const codes = item.codes + i * a.d;
  host::simd().encode(a.d, item.y + i * a.d, static_cast<int32_t>(a.kind), factor, step, codes);
  if (!a.code) return;
  uint8_t* const to = a.code.as<uint8_t>() + token_at(a.code, item.unit, item.head, i);
  const int64_t stride = a.code.stride[3];
  if (a.per_byte() == 2) {
    for (int64_t c = 0; c < a.d / 2; ++c)
      to[c * stride] = static_cast<uint8_t>(codes[2 * c] | codes[2 * c + 1] << 4);
  } else if (stride == 1) {
    std::copy_n(codes, a.d, to);
  } else {
    for (int64_t c = 0; c < a.d; ++c) to[c * stride] = codes[c];
  }
}
// The codes that put_token() left, transposed; 0 past the unit's tokens.
void put_columns(const Quantize& a, const Item& item) {
  if (!a.code_t || item.unit.column >= a.padded) return;
  std::fill(item.codes + item.unit.tokens * a.d, item.codes + kCodeRun * a.d, uint8_t{0});
  const int64_t* stride = a.code_t.stride;
  uint8_t* const to =
      a.code_t.as<uint8_t>() + column_at(a.code_t, item.unit, item.head, a.per_byte());
  int64_t from[kCodeRun];  // of each place
  for (int64_t i = 0; i < kCodeRun; ++i) from[a.permutes ? permuted(i) : i] = i * a.d;
  for (int64_t c = 0; c < a.d; ++c) {
    const uint8_t* codes = item.codes + c;
    uint8_t* row = to + c * stride[2];
    if (a.per_byte() == 1) {
      for (int64_t p = 0; p < kCodeRun; ++p) row[p * stride[3]] = codes[from[p]];
    } else {
      for (int64_t p = 0; p < kCodeRun; p += 2)
        row[p / 2 * stride[3]] = static_cast<uint8_t>(codes[from[p]] | codes[from[p + 1]] << 4);
    }
  }
}

void code_runs(const Quantize& a, const Item& item) {
  const int64_t micro = a.micro(), runs = (a.d + micro - 1) / micro;
  float* const factors = item.factors;
  float* const row = item.levels;  // largest magnitudes, or factors of columns
  if (a.transposed()) {
    if (item.unit.column >= a.padded) return;
    for (int64_t i = 0; i < kCodeRun; i += micro) {
      const int64_t tokens = clamp_i64(item.unit.tokens - i, 0, micro);
      largest(item.y + (tokens ? i * a.d : 0), tokens, a.d, row);
      for (int64_t c = 0; c < a.d; ++c) factors[c] = put_run(a, item.unit, item.head, c, i, row[c]);
      for (int64_t j = 0; j < tokens; ++j) put_token(a, item, i + j, factors, 1);
    }
    return put_columns(a, item);
  }
  for (int64_t i = 0; i < item.unit.tokens; ++i) {
    scale_runs<1>(a, item.unit, item.head, i, 0, item.y + i * a.d, factors);
    for (int64_t n = 0; n < runs; ++n)
      std::fill(row + n * micro, row + std::min(n * micro + micro, a.d), factors[n]);
    put_token(a, item, i, row, 1);
  }
  put_columns(a, item);
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
      of = greatest(of, host::simd().magnitude(a.d, item.y + i * a.d));
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
  for (int i = 0; i < item.unit.tokens; ++i)
    a.channel() ? put_token(a, item, i, channel, 1)
                : put_token(a, item, i, factor + part_of(a, i), 0);
  put_columns(a, item);
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
  float *const own = item.factors, *const less = item.levels, *const row = less + a.d;
  for (int64_t c = 0; c < a.d; ++c) {
    own[c] = mean[c * a.mean.stride[3]];
    less[c] = k_mean ? k_mean[c * a.k_mean.stride[3]] : 0;
  }
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    load_row(a.k.at<X>(batch, j, g), a.d, a.k.stride[3], row);
    for (int64_t c = 0; c < a.d; ++c) row[c] -= less[c];
    *a.delta.at(item.unit.batch, item.head, item.unit.column / kCodeRun, j) =
        host::simd().dot(a.d, own, row);
  }
}

Text offer(const Context& ctx, const Quantize& a, Plan& plan) {
  const int64_t items = unit_count(a) * a.h, held = std::min(kCodeRun, a.s);
  const bool sums = a.smooth == FOVEA_SMOOTH_SEQUENCE;
  const Slot<float> most = plan.workspace.add<float>(a.wide() ? 2 * items : 0);
  const Slot<float> partial = plan.workspace.add<float>(sums || a.channel() ? items : 0, a.d);
  const Slot<float> factor = plan.workspace.add<float>(a.channel() ? a.sequences * a.h : 0, a.d);
  const int64_t workers = host::workers_for(ctx, static_cast<double>(items));
  // Without tokens, d may be larger than any memory, and scales of units are all that is written.
  const int64_t columns = a.s || a.mean || a.code_t ? a.d : 0;
  const Slot<float> rows = plan.workspace.add<float>(workers, held + kLevels + 2, columns);
  const Slot<uint8_t> bytes = plan.workspace.add<uint8_t>(workers, kCodeRun, columns);
  plan.kernel += Text(".") + dtype_name(a.x_dtype);
  plan.launch = [=](Context& ctx, void* base) {
    const Scratch scratch{most.at(base), partial.at(base), factor.at(base)};
    const double cost = 3.0 * static_cast<double>(items * kCodeRun * a.d);
    with_fp(a.x_dtype, [&](auto x) {
      using X = decltype(x);
      const auto walk = [&](bool centred, auto&& visit) {
        host::pool(ctx).run(items, cost, [&](int64_t number, int32_t worker) {
          Item item{unit_at(a, number / a.h), number / a.h, number % a.h};
          if (item.unit.sequence < 0) return;
          item.y = rows.at(base) + worker * (held + kLevels + 2) * columns;
          item.factors = item.y + held * columns, item.levels = item.factors + columns;
          item.codes = bytes.at(base) + worker * kCodeRun * columns;
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
          std::copy_n(tree_sums(a, item), a.d,
                      scratch.partial + (item.slot * a.h + item.head) * a.d);
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
