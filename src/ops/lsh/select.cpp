// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "ops/lsh/lsh.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_select_lsh";
using Params = fovea_x_select_lsh_params;

void check_outputs(const Params& p) {
  if (!p.index.data && !p.index_count.data)
    refuse("%s: index and index_count are both absent, wanted one of them or both", kOp);
  check_needs(kOp, p.index_bias, "index_bias", p.index, "index");
  check_needs(kOp, p.index_bias, "index_bias", p.q, "q");
  check_needs(kOp, p.index_bias, "index_bias", p.k, "k");
  check_needs(kOp, p.q, "q", p.index_bias, "index_bias");
  check_needs(kOp, p.k, "k", p.index_bias, "index_bias");
}

void read_numbers(SelectLsh& a, const Params& p) {
  const int64_t buckets = a.from.buckets;
  if (p.bits < 0 || p.bits > 31)
    refuse("%s: bits is %d, wanted 1 .. 31, or 0 for what buckets has", kOp, p.bits);
  if (buckets < 1 || !std::has_single_bit(static_cast<uint64_t>(buckets)))
    refuse("%s: bucket.shape[3] (buckets) is %lld, wanted a power of two: 2^bits", kOp,
           lld(buckets));
  a.bits = std::countr_zero(static_cast<uint64_t>(buckets));
  if (p.bits && p.bits != a.bits)
    refuse("%s: bucket.shape[3] (buckets) is %lld, wanted 2^%d: bits is %d", kOp, lld(buckets),
           p.bits, p.bits);
  a.min_match = p.min_match ? p.min_match : 2;
  if (a.min_match < 1 || a.min_match > a.from.tables)
    refuse("%s: min_match is %lld%s, wanted 1 .. code_q.shape[3] (tables) = %lld", kOp,
           lld(p.min_match), p.min_match ? "" : ", which is 2", lld(a.from.tables));
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  SelectLsh a{};
  check_outputs(p);
  a.from = LshTables(kOp, p.bucket, p.link);
  a.code = view_of<4>(p.code_q), a.q = view_of<4>(p.q), a.k = view_of<4>(p.k);
  a.index = view_of<4>(p.index), a.index_count = view_of<3>(p.index_count);
  a.index_bias = view_of<4>(p.index_bias);
  a.query_len = int_vector(p.query_len), a.key_len = int_vector(p.key_len);
  a.q_dtype = p.q.dtype, a.k_dtype = p.k.dtype;
  a.b = p.code_q.shape[0], a.s = p.code_q.shape[1], a.h = p.code_q.shape[2];
  a.g = p.bucket.shape[1], a.d = p.q.data ? p.q.shape[3] : 0;
  a.keep = p.index.data ? p.index.shape[3] : 0;
  if (a.h && (!a.g || a.h % a.g))
    refuse("%s: bucket.shape[1] (g) is %lld, wanted a divisor of the %lld heads of code_q", kOp,
           lld(a.g), lld(a.h));
  read_numbers(a, p);
  if (a.index_bias && a.d < 1) refuse("%s: q.shape[3] (d) is 0, wanted >= 1", kOp);
  check_host(kOp, ctx);
  return choose(kOp, ctx, a, x_select_lsh_host, {});
}

}  // namespace fovea
