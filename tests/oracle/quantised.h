// SPDX-License-Identifier: Apache-2.0
// x_quantised_forward from the comment of experimental/quantised.h: the oracles of quant_quantize
// and quant_forward, one after the other.  Codes are those of float32 in either mode.
#pragma once
#include "quant.h"
#include "quantize.h"

namespace oracle {

// A tensor of which only shape and dtype are read.
inline fovea_tensor shaped(int dtype, std::initializer_list<int64_t> shape) {
  static char some;
  fovea_tensor x{};
  x.data = &some, x.dtype = dtype, x.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), x.shape);
  return x;
}
inline Dense dense_of(const Out& out, const fovea_tensor& of) {
  Dense x;
  x.given = true, x.dtype = of.dtype, x.value = out.value;
  for (int i = 0; i < of.ndim; ++i) x.shape[i] = of.shape[i];
  return x;
}

class QuantisedOracle {
 public:
  using Params = fovea_x_quantised_forward_params;
  explicit QuantisedOracle(const Params& p) : p_(p) {}

  QuantForwardResult run(Mode mode) const {
    fovea_quant_forward_params call{};
    call.q = shaped(dtype(p_.code), {p_.q.shape[0], p_.q.shape[1], p_.q.shape[2], bytes(p_.q)});
    call.k = shaped(dtype(p_.code), {p_.k.shape[0], p_.k.shape[1], p_.k.shape[2], bytes(p_.k)});
    call.o = p_.o, call.lse = p_.lse, call.skipped = p_.skipped;
    call.p_format = p_.p_format, call.accumulate = p_.accumulate;
    QuantAttention a = places();
    const Coded k = quantise(p_.k, p_.key_start, {p_.k_group, p_.k_block, p_.k_smooth}, mode);
    const Coded q = quantise(p_.q, p_.query_start, {p_.q_group, p_.q_block, p_.q_smooth}, mode, &k);
    a.q = unpacked(q.code, format(p_.code)), a.k = unpacked(k.code, format(p_.code));
    a.q_scale = {q.scale, p_.q_group, p_.q_block, a.d, 0};
    a.k_scale = {k.scale, p_.k_group, p_.k_block, a.d, 0};
    a.k_mean = k.mean, a.delta = q.delta;
    if (a.k_mean && !p_.hadamard) a.q_plain = load(p_.q);
    if (p_.v_code == FOVEA_X_CODE_PLAIN)
      a.v = load(p_.v);
    else
      values(a, mode);
    return quant_forward(a, call, mode);
  }

 private:
  struct Coded {
    Dense code, scale, mean, delta;
  };
  struct Rule {
    int group;
    int64_t block;
    int smooth;
  };
  static int dtype(int code) {
    return code == FOVEA_X_CODE_E4M3 ? FOVEA_E4M3 : code == FOVEA_X_CODE_I8 ? FOVEA_I8 : FOVEA_U8;
  }
  static int format(int code) {
    return code == FOVEA_X_CODE_I4     ? FOVEA_CODE_FORMAT_I4
           : code == FOVEA_X_CODE_E2M1 ? FOVEA_CODE_FORMAT_E2M1
                                       : FOVEA_CODE_FORMAT_DTYPE;
  }
  static int scale_dtype(int group) {
    return group < FOVEA_SCALE_GROUP_MICRO16 ? FOVEA_F32 : group % 2 ? FOVEA_E4M3 : FOVEA_U8;
  }
  int64_t bytes(const fovea_tensor& x) const { return x.shape[3] / (format(p_.code) ? 2 : 1); }
  static int64_t blocks(const fovea_tensor& x, const fovea_tensor& start, int64_t block) {
    if (start.data) return (block ? x.shape[1] / block : 0) + start.shape[0] - 1;
    return block ? (x.shape[1] + block - 1) / block : 1;
  }
  static int64_t entries(const fovea_tensor& x, const fovea_tensor& start, int group,
                         int64_t block) {
    const int64_t d = x.shape[3], units = blocks(x, start, 128) * 128;
    switch (group) {
      case FOVEA_SCALE_GROUP_BLOCK:
        return blocks(x, start, block);
      case FOVEA_SCALE_GROUP_THREAD_Q:
        return 8 * blocks(x, start, block);
      case FOVEA_SCALE_GROUP_THREAD_K:
        return 4 * blocks(x, start, block);
      case FOVEA_SCALE_GROUP_TOKEN:
        return x.shape[1];
      case FOVEA_SCALE_GROUP_CHANNEL:
        return d * (start.data ? start.shape[0] - 1 : 1);
      case FOVEA_SCALE_GROUP_MICRO16:
        return x.shape[1] * ((d + 15) / 16);
      case FOVEA_SCALE_GROUP_MICRO32:
        return x.shape[1] * ((d + 31) / 32);
      default:
        return d * (units / (group == FOVEA_SCALE_GROUP_MICRO16_T ? 16 : 32));
    }
  }

  QuantAttention places() const {
    QuantAttention a;
    a.sink_logit = load(p_.sink_logit);
    read_places(a, p_);
    a.softcap = p_.softcap, a.permuted = true;
    a.list = load_quant_lists(p_);
    return a;
  }

  Coded quantise(const fovea_tensor& x, const fovea_tensor& start, const Rule& rule, Mode mode,
                 const Coded* keys = nullptr) const {
    const int64_t b = x.shape[0], s = x.shape[1], h = x.shape[2];
    fovea_quant_quantize_params part{};
    part.x = x, part.start = start, part.block = rule.block, part.group = rule.group;
    part.smooth = rule.smooth, part.code_format = format(p_.code);
    part.hadamard = p_.hadamard, part.seed = p_.seed;
    part.code = shaped(dtype(p_.code), {b, s, h, bytes(x)});
    part.scale = shaped(scale_dtype(rule.group), {b, h, entries(x, start, rule.group, rule.block)});
    const int64_t means = blocks(x, start, rule.smooth == FOVEA_SMOOTH_BLOCK ? 128 : 0);
    if (rule.smooth) part.mean = shaped(FOVEA_F32, {b, h, means, x.shape[3]});
    // The mean of k is no memory: delta is made here.
    const QuantizeResult made = quantize(part, mode);
    Coded to{dense_of(made.code, part.code), dense_of(made.scale, part.scale), {}, {}};
    if (rule.smooth) to.mean = dense_of(made.mean, part.mean);
    if (keys && rule.smooth) to.delta = delta_of(to.mean, *keys, means, mode);
    return rule.smooth == FOVEA_SMOOTH_BLOCK ? Coded{to.code, to.scale, {}, to.delta} : to;
  }

  // <mean of a block of rows, k - its mean>.
  Dense delta_of(const Dense& mean, const Coded& keys, int64_t deltas, Mode mode) const {
    const Dense k = load(p_.k), rows = load(p_.query_start), columns = load(p_.key_start);
    const int64_t b = p_.q.shape[0], h = p_.q.shape[2], t = p_.k.shape[1], d = p_.q.shape[3];
    Dense to;
    to.given = true, to.dtype = FOVEA_F32, to.shape = {b, h, deltas, t, 1};
    to.value.assign(static_cast<size_t>(b * h * deltas * t), 0);
    const auto real = [&](double x) {
      return mode == Mode::exact ? x : static_cast<double>(static_cast<float>(x));
    };
    const int64_t sequences = rows ? p_.query_start.shape[0] - 1 : b;
    for (int64_t r = 0; r < sequences; ++r) {
      const int64_t begin = rows ? rows.integer(r) : 0,
                    end = rows ? rows.integer(r + 1) : p_.q.shape[1];
      const int64_t first = columns ? columns.integer(r) : 0,
                    last = columns ? columns.integer(r + 1) : t;
      const int64_t batch = rows ? 0 : r, cache = columns ? 0 : std::min(r, p_.k.shape[0] - 1);
      for (int64_t head = 0; head < h; ++head)
        for (int64_t block = 0; block * 128 < end - begin; ++block)
          for (int64_t j = first; j < last; ++j) {
            const int64_t entry = scale_base(rows, r, 128) + block, g = head / (h / p_.k.shape[2]);
            double sum = 0;
            for (int64_t c = 0; c < d; ++c) {
              const double less = keys.mean ? keys.mean(cache, g, columns ? r : 0, c) : 0;
              sum = real(sum + real(mean(batch, head, entry, c) * real(k(cache, j, g, c) - less)));
            }
            to.value[to.at_index(batch, head, entry, j)] = sum;
          }
    }
    return to;
  }

  void values(QuantAttention& a, Mode mode) const {
    const fovea_tensor& x = p_.v;
    const int64_t padded = blocks(x, p_.key_start, 128) * 128, pairs = format(p_.v_code) ? 2 : 1;
    fovea_quant_quantize_params part{};
    part.x = x, part.start = p_.key_start, part.block = p_.v_block, part.group = p_.v_group;
    part.code_format = format(p_.v_code), part.scale_max = p_.v_scale_max, part.code_order = 1;
    part.code_t = shaped(dtype(p_.v_code), {x.shape[0], x.shape[2], x.shape[3], padded / pairs});
    part.scale = shaped(scale_dtype(p_.v_group),
                        {x.shape[0], x.shape[2], entries(x, p_.key_start, p_.v_group, p_.v_block)});
    const QuantizeResult made = quantize(part, mode);
    a.v_t = unpacked(dense_of(made.code_t, part.code_t), format(p_.v_code));
    a.v_scale = {dense_of(made.scale, part.scale), p_.v_group, p_.v_block, a.e, padded};
  }

  const Params& p_;
};

}  // namespace oracle
