// SPDX-License-Identifier: Apache-2.0
#include "ops/select/token.h"

#include <algorithm>

#include "core/fields.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_select_token";
constexpr int64_t kFar = int64_t{1} << 60;  // counts beyond it are as good as it

using Params = fovea_x_select_token_params;

void read_numbers(SelectToken& a, const Params& p) {
  const std::pair<const char*, int64_t> counts[] = {
      {"count", p.count},           {"first_keys", p.first_keys}, {"last_keys", p.last_keys},
      {"force_last", p.force_last}, {"pool_keys", p.pool_keys},   {"subset", p.subset},
      {"block_keys", p.block_keys}};
  for (const auto& [field, value] : counts) check_not_negative(kOp, field, value);
  a.count = p.count, a.pool = p.pool_keys ? std::min(p.pool_keys, kFar) : 1;
  a.first_keys = p.first_keys, a.last_keys = p.last_keys;
  a.force_last = std::min(p.force_last, kFar);
  a.block_keys = p.block_keys ? p.block_keys : 64;
  if (p.block_keys && !p.block_mask.data)
    refuse("%s: block_keys is %lld without block_mask, wanted 0", kOp, lld(p.block_keys));
  if (p.measure < 0 || p.measure > FOVEA_X_SELECT_SCORE_SUBSET)
    refuse("%s: measure is %d, wanted a fovea_x_select_score", kOp, p.measure);
  if (p.reduce < 0 || p.reduce > FOVEA_X_SELECT_REDUCE_MAX)
    refuse("%s: reduce is %d, wanted a fovea_x_select_reduce", kOp, p.reduce);
  a.measure = p.measure, a.reduce = p.reduce;
  check_number(kOp, "ratio", p.ratio, "count alone");
  check_number(kOp, "scale", p.scale, "the default");
  a.ratio = p.ratio;
  if (p.ratio > 1) refuse("%s: ratio is %g, wanted 0 .. 1", kOp, p.ratio);
  if (p.ratio > 0 && p.pool_keys)
    refuse("%s: ratio is %g with pool_keys, wanted count alone", kOp, p.ratio);
}

void read_tensors(SelectToken& a, const Params& p) {
  const bool hamming = a.hamming();
  check_together(kOp, p.q, "q", p.k, "k");
  check_together(kOp, p.code_q, "code_q", p.code, "code");
  check_needs(kOp, p.k_scale, "k_scale", p.k, "k");
  check_needs(kOp, p.kept_score, "kept_score", p.index, "index");
  check_needs(kOp, p.kept_mass, "kept_mass", p.index, "index");
  if (hamming != (p.code.data != nullptr))
    refuse("%s: code is %s with measure = %d, wanted it for hamming alone", kOp,
           p.code.data ? "given" : "absent", p.measure);
  if (hamming == (p.k.data != nullptr))
    refuse("%s: k is %s with measure = %d, wanted it for all but hamming", kOp,
           p.k.data ? "given" : "absent", p.measure);
  if (p.weight.data && p.measure != FOVEA_X_SELECT_SCORE_RELU_WEIGHTED)
    refuse("%s: weight is given with measure = %d, wanted it for relu_weighted alone", kOp,
           p.measure);
  if (!p.index.data && !p.index_count.data)
    refuse("%s: index and index_count are both absent, wanted one of them or both", kOp);
  if (p.kept_mass.data && (p.pool_keys || (p.measure != FOVEA_X_SELECT_SCORE_DOT &&
                                           p.measure != FOVEA_X_SELECT_SCORE_SUBSET)))
    refuse(
        "%s: kept_mass is given with measure = %d and pool_keys = %lld, wanted dot or subset "
        "without pool_keys",
        kOp, p.measure, lld(p.pool_keys));
  a.attend.q = view_of<4>(p.q), a.attend.k = view_of<4>(p.k);
  a.attend.k_scale = view_of<4>(p.k_scale);
  a.code_q = view_of<4>(p.code_q), a.code = view_of<4>(p.code), a.weight = view_of<3>(p.weight);
  a.block_mask = view_of<4>(p.block_mask), a.index = view_of<4>(p.index);
  a.kept_score = view_of<4>(p.kept_score), a.index_count = view_of<3>(p.index_count);
  a.kept_mass = view_of<3>(p.kept_mass);
}

void read_extents(SelectToken& a, const Params& p) {
  const bool hamming = a.hamming();
  const fovea_tensor &q = hamming ? p.code_q : p.q, &k = hamming ? p.code : p.k;
  const fovea_tensor& list = p.index.data ? p.index : p.index_count;
  const char *q_name = hamming ? "code_q" : "q", *k_name = hamming ? "code" : "k";
  Attend& at = a.attend;
  at.dtype = p.q.dtype, at.k_dtype = p.k.dtype;
  at.b = q.shape[0], at.s = q.shape[1], at.h = q.shape[2];
  at.t = k.shape[1], at.g = k.shape[2], at.d = hamming ? 0 : q.shape[3];
  a.words = hamming ? q.shape[3] : 0;
  a.x = list.shape[1], a.keep = p.index.data ? p.index.shape[3] : 0;
  if (at.h && (!at.g || at.h % at.g))
    refuse("%s: %s.shape[2] (g) is %lld, wanted a divisor of the %lld heads of %s", kOp, k_name,
           lld(at.g), lld(at.h), q_name);
  const char* name = p.index.data ? "index" : "index_count";
  if (a.reduce ? at.h ? !a.x || at.h % a.x != 0 : a.x != 0 : a.x != at.h)
    refuse("%s: %s.shape[1] (x) is %lld, wanted %s %lld heads of %s", kOp, name, lld(a.x),
           a.reduce ? "a divisor of the" : "without reduce the", lld(at.h), q_name);
  if (a.x && at.g && a.x % at.g && at.g % a.x)
    refuse("%s: %s.shape[1] (x) is %lld, wanted a divisor or a multiple of the %lld heads of %s",
           kOp, name, lld(a.x), lld(at.g), k_name);
  if (!hamming && at.d < 1) refuse("%s: q.shape[3] (d) is 0, wanted >= 1", kOp);
  if (at.d > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: q.shape[3] (d) is %lld, wanted at most %lld", kOp, lld(at.d),
         lld(kWidthMax));
  if (a.words > kWidthMax)
    fail(FOVEA_UNSUPPORTED, "%s: code_q.shape[3] (words) is %lld, wanted at most %lld", kOp,
         lld(a.words), lld(kWidthMax));
  const bool subset = a.measure == FOVEA_X_SELECT_SCORE_SUBSET;
  if (subset ? p.subset < 1 || p.subset > at.d : p.subset != 0)
    refuse("%s: subset is %lld with measure = %d, wanted %s", kOp, lld(p.subset), p.measure,
           subset ? "1 .. d" : "0");
  a.subset = p.subset;
  if (p.k_scale.data) {
    if (p.k.dtype != FOVEA_E4M3 && p.k.dtype != FOVEA_E5M2 && p.k.dtype != FOVEA_I8)
      refuse("%s: k.dtype is %d with k_scale, wanted e4m3, e5m2 or i8", kOp, p.k.dtype);
    at.groups = p.k_scale.shape[3];
    if (at.groups < 1 || at.d % at.groups)
      refuse("%s: k_scale.shape[3] (groups) is %lld, wanted a divisor of the %lld columns of k",
             kOp, lld(at.groups), lld(at.d));
  }
  a.scale = p.scale > 0 ? p.scale
            : hamming   ? 1.0f
                        : read_scale(kOp, "scale", 0, at.d, "1 / sqrt(d)");
}

void read_places(SelectToken& a, const Params& p) {
  Attend& at = a.attend;
  read_sequences(at, kOp, p);
  place_keys(at.sequences, kOp, a.hamming() ? "code" : "k", a.hamming() ? p.code : p.k,
             p.page_table, p.key_max);
  at.sequences.cache_row = int_vector(p.cache_row);
  at.sequences.context_len = int_vector(p.context_len);
  if (p.key_start.data && (p.cache_row.data || p.page_table.data))
    refuse("%s: key_start is given with %s, wanted one of them", kOp,
           p.cache_row.data ? "cache_row" : "page_table");
  at.mask.window = read_window(kOp, p);
  read_sinks(at.mask.window, kOp, p);
  constexpr int64_t limit = int64_t{1} << 31;  // positions of tensors are i32
  if (p.key_step < 0 || p.key_step >= limit)
    refuse("%s: key_step is %lld, wanted 0 .. 2^31 - 1", kOp, lld(p.key_step));
  if (p.key_shift <= -limit || p.key_shift >= limit)
    refuse("%s: key_shift is %lld, wanted it within 2^31 of 0", kOp, lld(p.key_shift));
  at.mask.axis = {p.key_step ? p.key_step : 1, p.key_shift};
  if (a.units() > INT32_MAX)
    fail(FOVEA_UNSUPPORTED,
         "%s: there are %lld keys to select from, wanted at most %d: index is "
         "i32",
         kOp, lld(a.units()), INT32_MAX);
  const int64_t capacity = at.sequences.capacity;
  const int64_t blocks = capacity / a.block_keys + (capacity % a.block_keys != 0);
  const int64_t bytes = blocks / 8 + (blocks % 8 != 0);
  if (p.block_mask.data && p.block_mask.shape[3] != bytes)
    refuse(
        "%s: block_mask.shape[3] (mask_bytes) is %lld, wanted %lld: a bit for each of %lld "
        "blocks of %s",
        kOp, lld(p.block_mask.shape[3]), lld(bytes), lld(blocks),
        p.page_table.data ? "page_table"
        : a.hamming()     ? "code"
                          : "k");
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  SelectToken a{};
  read_numbers(a, p);
  read_tensors(a, p);
  read_extents(a, p);
  read_places(a, p);
  return choose(
      kOp, ctx, a, x_select_token_host,
      FOVEA_CUDA_KERNELS(x_select_token_sm90, x_select_token_blocks_sm90, x_select_token_simt));
}

}  // namespace fovea
