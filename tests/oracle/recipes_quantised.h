// SPDX-License-Identifier: Apache-2.0
// The methods of low-bit attention by name, as their papers define them: what q, k and v are after
// rounding, in the papers' own groups.  How weights are rounded is in the call (quant.h).
#pragma once
#include <map>

#include "quant.h"
#include "quantize.h"

namespace oracle::recipes {

enum class Bits { e4m3, i8, i4, fp4 };

// Which values of a head of a sequence share a scale.
using Shares = std::function<int64_t(int64_t token, int64_t column)>;

// What x is after rounding: scale * code, with scale = largest / most.
inline Dense rounded_to(Bits bits, const Dense& x, const Shares& shares, float most) {
  Dense out = x;
  for (int64_t b = 0; b < x.shape[0]; ++b)
    for (int64_t head = 0; head < x.shape[2]; ++head) {
      std::map<int64_t, float> top;
      for (int64_t i = 0; i < x.shape[1]; ++i)
        for (int64_t c = 0; c < x.shape[3]; ++c) {
          float& most_of = top[shares(i, c)];
          most_of = std::max(most_of, std::abs(static_cast<float>(x(b, i, head, c))));
        }
      for (int64_t i = 0; i < x.shape[1]; ++i)
        for (int64_t c = 0; c < x.shape[3]; ++c) {
          const float largest = top[shares(i, c)];
          const auto value = static_cast<float>(x(b, i, head, c));
          double& to = out.value[x.at_index(b, i, head, c)];
          if (bits == Bits::fp4) {  // NVFP4: the scale is an e4m3 number
            const auto scale = static_cast<float>(nearest(FOVEA_E4M3, largest / 6));
            static constexpr double step[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
            const int code = scale == 0 ? 0 : e2m1_code(value * (1 / scale));
            to = (code & 8 ? -1 : 1) * step[code & 7] * scale;
            continue;
          }
          const float a = std::max(largest, 1e-7f), by = value * (most / a);
          to = (bits == Bits::e4m3 ? nearest(FOVEA_E4M3, by) : std::nearbyint(by)) * (a / most);
        }
    }
  return out;
}

// x less the mean of its tokens, in runs of `run`; of 128 the means are numbers of bf16.
inline Dense centred(const Dense& x, int64_t run, Dense* means = nullptr) {
  Dense out = x;
  if (means) *means = x;
  for (int64_t b = 0; b < x.shape[0]; ++b)
    for (int64_t head = 0; head < x.shape[2]; ++head)
      for (int64_t c = 0; c < x.shape[3]; ++c)
        for (int64_t begin = 0; begin < x.shape[1]; begin += run) {
          const int64_t end = std::min(begin + run, x.shape[1]);
          std::vector<std::vector<float>> column;
          for (int64_t i = begin; i < end; ++i)
            column.push_back({static_cast<float>(x(b, i, head, c))});
          int64_t size = 1;
          while (size < end - begin) size *= 2;
          float mean = tree(column, 0, end - begin, 0, size) / static_cast<float>(end - begin);
          if (run == 128) mean = static_cast<float>(nearest(FOVEA_BF16, mean));
          for (int64_t i = begin; i < end; ++i) {
            double& to = out.value[x.at_index(b, i, head, c)];
            to = static_cast<float>(to) - mean;
            if (means) means->value[x.at_index(b, i, head, c)] = mean;
          }
        }
  return out;
}

// q and k - its mean, rounded; what rows lack is in delta, what all keys lack in k_mean.
struct Operands {
  Dense q, k, v;
};
inline Dense mean_row(const Dense& k, const Dense& less) {
  Dense mean;
  mean.given = true, mean.shape = {k.shape[0], k.shape[2], 1, k.shape[3], 1};
  for (int64_t b = 0; b < k.shape[0]; ++b)
    for (int64_t g = 0; g < k.shape[2]; ++g)
      for (int64_t c = 0; c < k.shape[3]; ++c)
        mean.value.push_back(k(b, 0, g, c) - less(b, 0, g, c));
  return mean;
}

// Where sequences are and what rows see; the papers' calls are batched and of full length.
template <class P>
QuantAttention full_places(const P& p) {
  QuantAttention a;
  a.b = p.q.shape[0], a.s = p.q.shape[1], a.h = p.q.shape[2], a.d = p.q.shape[3];
  a.g = p.k.shape[2], a.e = p.v.shape[3];
  a.at.s = a.s, a.at.extent = p.k.shape[1], a.at.sequences = a.b;
  a.right = p.causal ? 1 : 0;
  a.scale = 1 / std::sqrt(static_cast<double>(a.d));
  return a;
}

inline Shares whole() {
  return [](int64_t, int64_t) { return 0; };
}
inline Shares blocks_of(int64_t tokens) {
  return [=](int64_t i, int64_t) { return i / tokens; };
}
inline Shares channels() {
  return [](int64_t, int64_t c) { return c; };
}
// What one thread of a product holds: rows i, i + 8, ..; pairs of keys of eight.
inline Shares thread_rows(int64_t run) {
  return [=](int64_t i, int64_t) { return i / run * 8 + i % 8; };
}
inline Shares thread_keys(int64_t run) {
  return [=](int64_t i, int64_t) { return i / run * 4 + i % 8 / 2; };
}
inline Shares runs_of_columns(int64_t n) {
  return [=](int64_t i, int64_t c) { return i * 4096 + c / n; };
}

// FlashAttention-3, section 3.3, without its rotation.
inline QuantAttention fa3_fp8(QuantAttention a, const Operands& x) {
  a.q = rounded_to(Bits::e4m3, x.q, whole(), 448), a.k = rounded_to(Bits::e4m3, x.k, whole(), 448);
  a.v = rounded_to(Bits::e4m3, x.v, whole(), 448);
  return a;
}

// Keys less their mean, for every method from SageAttention on (section 4.2).
inline QuantAttention smoothed(QuantAttention a, const Operands& x, Dense& k) {
  k = centred(x.k, INT64_MAX / 2);
  a.k_mean = mean_row(x.k, k), a.q_plain = x.q;
  return a;
}

// SageAttention, algorithm 1.
inline QuantAttention sageattention(QuantAttention a, const Operands& x) {
  Dense k;
  a = smoothed(std::move(a), x, k);
  a.q = rounded_to(Bits::i8, x.q, blocks_of(128), 127);
  a.k = rounded_to(Bits::i8, k, blocks_of(64), 127);
  a.v = x.v;
  return a;
}

// SageAttention2, sections 3.2 and 3.3, with 8-bit q and k.
inline QuantAttention sageattention2(QuantAttention a, const Operands& x, float v_most = 448) {
  Dense k;
  a = smoothed(std::move(a), x, k);
  a.q = rounded_to(Bits::i8, x.q, thread_rows(16), 127);
  a.k = rounded_to(Bits::i8, k, thread_keys(128), 127);
  a.v = rounded_to(Bits::e4m3, x.v, channels(), v_most);
  return a;
}
inline QuantAttention sageattention2pp(QuantAttention a, const Operands& x) {
  return sageattention2(std::move(a), x, 2.25f);
}

// SpargeAttention in 8 bits, section 3.5: SageAttention2 by the blocks of its selection.
inline QuantAttention spargeattn_int8(QuantAttention a, const Operands& x, int64_t rows,
                                      int64_t keys) {
  Dense k;
  a = smoothed(std::move(a), x, k);
  a.q = rounded_to(Bits::i8, x.q, blocks_of(rows), 127);
  a.k = rounded_to(Bits::i8, k, blocks_of(keys), 127);
  a.v = rounded_to(Bits::e4m3, x.v, channels(), 448);
  return a;
}

// <mean of 128 rows, k - its mean>, which smoothing of q leaves to be added.
inline Dense block_scores(const Dense& means, const Dense& k) {
  Dense delta;
  const int64_t h = means.shape[2], blocks = (means.shape[1] + 127) / 128, t = k.shape[1];
  delta.given = true, delta.shape = {means.shape[0], h, blocks, t, 1};
  for (int64_t b = 0; b < means.shape[0]; ++b)
    for (int64_t head = 0; head < h; ++head)
      for (int64_t block = 0; block < blocks; ++block)
        for (int64_t j = 0; j < t; ++j) {
          double sum = 0;
          for (int64_t c = 0; c < k.shape[3]; ++c)
            sum += means(b, block * 128, head, c) * k(b, j, head / (h / k.shape[2]), c);
          delta.value.push_back(sum);
        }
  return delta;
}

// SageAttention2 with 4-bit q and k: q less the means of its blocks too.
inline QuantAttention sageattention2_int4(QuantAttention a, const Operands& x) {
  Dense k, means;
  a = smoothed(std::move(a), x, k);
  const Dense q = centred(x.q, 128, &means);
  a.delta = block_scores(means, k);
  a.q = rounded_to(Bits::i4, q, thread_rows(16), 7);
  a.k = rounded_to(Bits::i4, k, thread_keys(128), 7);
  a.v = rounded_to(Bits::e4m3, x.v, channels(), 448);
  return a;
}

// SageAttention3, sections 3.1 to 3.3: NVFP4 in runs of 16, v along tokens.
inline QuantAttention sageattention3(QuantAttention a, const Operands& x) {
  Dense k, means;
  a = smoothed(std::move(a), x, k);
  const Dense q = centred(x.q, 128, &means);
  a.delta = block_scores(means, k);
  a.q = rounded_to(Bits::fp4, q, runs_of_columns(16), 6);
  a.k = rounded_to(Bits::fp4, k, runs_of_columns(16), 6);
  a.v = rounded_to(
      Bits::fp4, x.v, [](int64_t i, int64_t c) { return i / 16 * 4096 + c; }, 6);
  return a;
}

// SageBwd's forward, section 4: blocks of 64 of q, k and v in 8 bits.
inline QuantAttention sagebwd(QuantAttention a, const Operands& x) {
  Dense k;
  a = smoothed(std::move(a), x, k);
  a.q = rounded_to(Bits::i8, x.q, blocks_of(64), 127);
  a.k = rounded_to(Bits::i8, k, blocks_of(64), 127);
  a.v = rounded_to(Bits::i8, x.v, blocks_of(64), 127);
  return a;
}

}  // namespace oracle::recipes
