// SPDX-License-Identifier: Apache-2.0
// Calls of x_lsh_append and x_select_lsh, resolved: tables as chains of keys, and the chance that
// tables agree.  The host alone has kernels.
#pragma once
#include <climits>
#include <cmath>

#include "core/fields.h"
#include "core/plan.h"
#include "fovea/experimental/lsh.h"

namespace fovea {

// Hash tables of sequences and key heads (experimental/lsh.h).
struct LshTables {
  View<4> bucket;  // (b, g, tables, buckets)
  View<4> link;    // (b, g, tables, t)
  int64_t tables, buckets, t;

  LshTables() = default;
  LshTables(const char* op, const fovea_tensor& of_buckets, const fovea_tensor& of_links)
      : bucket(view_of<4>(of_buckets)),
        link(view_of<4>(of_links)),
        tables(of_buckets.shape[2]),
        buckets(of_buckets.shape[3]),
        t(of_links.shape[3]) {
    if (t > INT_MAX) refuse("%s: link.shape[3] (t) is %lld, wanted below 2^31", op, lld(t));
    if (buckets > INT_MAX)
      refuse("%s: bucket.shape[3] (buckets) is %lld, wanted below 2^31", op, lld(buckets));
  }

  bool has(int64_t code) const { return code >= 0 && code < buckets; }
  int32_t& first(int64_t b, int64_t g, int64_t table, int64_t code) const {
    return *bucket.at<int32_t>(b, g, table, code);
  }
  int32_t& below(int64_t b, int64_t g, int64_t table, int64_t key) const {
    return *link.at<int32_t>(b, g, table, key);
  }
  // The keys of a bucket, descending.
  template <class Visit>
  void each(int64_t b, int64_t g, int64_t table, int64_t code, Visit visit) const {
    if (!has(code)) return;
    int64_t above = t;
    for (int64_t key = first(b, g, table, code); key >= 0 && key < above;
         key = below(b, g, table, key))
      visit(key), above = key;
  }
};

struct LshAppend {
  LshTables to;
  View<4> code;  // (b, s, g, tables)
  IntVector query_len, old_len;
  int64_t b, s, g;

  // Keys that the tables hold, at most all there is room for; below 0 counts as 0.
  int64_t held(int64_t batch) const { return old_len ? clamp_i64(old_len[batch], 0, to.t) : 0; }
  int64_t added(int64_t batch) const {
    const int64_t come = query_len ? clamp_i64(query_len[batch], 0, s) : s;
    return std::min(come, to.t - held(batch));
  }
};

struct SelectLsh {
  LshTables from;
  View<4> code;   // (b, s, h, tables)
  View<4> q, k;   // of index_bias
  View<4> index;  // (b, h, s, keep)
  View<3> index_count;
  View<4> index_bias;
  IntVector query_len, key_len;
  int32_t q_dtype, k_dtype;
  int64_t b, s, h, g, d, keep;
  int64_t min_match, bits;

  int64_t rows(int64_t batch) const { return query_len ? clamp_i64(query_len[batch], 0, s) : s; }
  int64_t keys(int64_t batch) const {
    return key_len ? clamp_i64(key_len[batch], 0, from.t) : from.t;
  }
};

// What both answer to a context that is not the host's; after all checks of the call.
inline void check_host(const char* op, const Context& ctx) {
  if (ctx.backend != FOVEA_HOST)
    fail(FOVEA_UNSUPPORTED, "%s on cuda: tables are in the host's memory, wanted a host context",
         op);
}

extern const Kernel<LshAppend> x_lsh_append_host;
extern const Kernel<SelectLsh> x_select_lsh_host;

}  // namespace fovea
