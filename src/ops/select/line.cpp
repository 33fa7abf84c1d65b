// SPDX-License-Identifier: Apache-2.0
#include "ops/select/line.h"

#include <algorithm>
#include <iterator>

#include "core/fields.h"

namespace fovea {
namespace {

constexpr char kOp[] = "x_select_line";
using Params = fovea_x_select_line_params;

void check(const Params& p, bool lines) {
  for (const auto& [field, value] :
       {std::pair{"query_max", p.query_max}, std::pair{"key_max", p.key_max}})
    check_not_negative(kOp, field, value);
  for (const auto& [field, value] :
       {std::pair{"block_rows", p.block_rows}, std::pair{"block_keys", p.block_keys}})
    check_not_negative(kOp, field, value);
  check_flag(kOp, "aligned", p.aligned), check_flag(kOp, "in_blocks", p.in_blocks);
  check_flag(kOp, "causal", p.causal);
  check_needs(kOp, p.vertical_count, "vertical_count", p.vertical, "vertical");
  check_needs(kOp, p.slash_count, "slash_count", p.slash, "slash");
  if (lines == (p.bits.data != nullptr))
    refuse("%s: bits is %s %s vertical or slash, wanted bits or lines", kOp,
           lines ? "given" : "absent", lines ? "with" : "without");
  const auto only = [](bool wrong, const char* field, const char* where) {
    if (wrong) refuse("%s: %s is given, wanted it for %s alone", kOp, field, where);
  };
  only(p.aligned && (!lines || p.in_blocks), "aligned", "lines that are not in_blocks");
  only(p.in_blocks && !lines, "in_blocks", "lines");
  only(p.causal && lines, "causal", "bits");
  const char* keys = "lines that are not in_blocks";
  only(p.column.data && (!lines || p.in_blocks), "column", keys);
  only(p.column_count.data && (!lines || p.in_blocks), "column_count", keys);
  only(p.bits_out.data && !(lines && (p.aligned || p.in_blocks)), "bits_out",
       "lines that are aligned or in_blocks");
  if (!p.index.data && !p.index_count.data && !p.column.data && !p.column_count.data &&
      !p.bits_out.data)
    refuse(
        "%s: index, index_count, column, column_count and bits_out are all absent, wanted one "
        "of them at least",
        kOp);
}

// The extents of a list row, from whichever output there is.
void read_rows(SelectBlock& a, const Params& p) {
  const fovea_tensor* lists[] = {&p.index, &p.column, &p.bits_out, &p.index_count, &p.column_count};
  const fovea_tensor* list = *std::find_if(std::begin(lists), std::end(lists),
                                           [](const fovea_tensor* x) { return x->data; });
  a.b = list->shape[0], a.x = list->shape[1], a.n = list->shape[2];
  a.keep = p.index.data ? p.index.shape[3] : 0;
  a.block_rows = p.block_rows ? p.block_rows : 64;
  a.block_keys = p.block_keys ? p.block_keys : 64;
  a.step = a.span = a.block_keys, a.causal = p.causal, a.u = kFar;
  Sequences& q = a.sequences;
  q.query_start = int_vector(p.query_start), q.key_start = int_vector(p.key_start);
  q.query_len = int_vector(p.query_len), q.key_len = int_vector(p.key_len);
  q.s = far_product(a.n, a.block_rows);
  q.count = p.query_start.data ? p.query_start.shape[0] - 1 : a.b;
  q.query_max = p.query_max && p.query_max < q.s ? p.query_max : q.s;
  q.capacity = p.key_start.data ? kFar : p.key_max, q.key_max = p.key_max;
  if (q.key_max > INT32_MAX)
    fail(FOVEA_UNSUPPORTED, "%s: there are %lld keys, wanted at most %d: index is i32", kOp,
         lld(q.key_max), INT32_MAX);
}

}  // namespace

Plan plan(const Context& ctx, const Params& p) {
  const bool lines = p.vertical.data || p.slash.data;
  check(p, lines);
  SelectLine a{};
  read_rows(a.rows, p);
  if (lines && a.rows.block_rows != a.rows.block_keys)
    refuse("%s: block_keys is %lld with block_rows = %lld, wanted one number for lines", kOp,
           lld(a.rows.block_keys), lld(a.rows.block_rows));
  if (p.key_max < 1)
    refuse("%s: key_max is %lld, wanted the longest sequence of keys, >= 1", kOp, lld(p.key_max));
  a.bits = view_of<4>(p.bits), a.index = view_of<4>(p.index), a.column = view_of<4>(p.column);
  a.bits_out = view_of<4>(p.bits_out), a.vertical = view_of<3>(p.vertical);
  a.slash = view_of<3>(p.slash), a.index_count = view_of<3>(p.index_count);
  a.column_count = view_of<3>(p.column_count);
  a.vertical_count = view_of<2>(p.vertical_count), a.slash_count = view_of<2>(p.slash_count);
  a.verticals = p.vertical.data ? p.vertical.shape[2] : 0;
  a.slashes = p.slash.data ? p.slash.shape[2] : 0;
  a.columns = p.column.data ? p.column.shape[3] : 0;
  a.bytes = p.bits_out.data ? p.bits_out.shape[3] : p.bits.data ? p.bits.shape[3] : 0;
  a.aligned = p.aligned, a.in_blocks = p.in_blocks;
  const int64_t blocks = (p.key_max - 1) / a.rows.block_keys + 1;
  for (const auto& [x, field] : {std::pair{&p.bits, "bits"}, std::pair{&p.bits_out, "bits_out"}})
    if (x->data && x->shape[3] != (blocks + 7) / 8)
      refuse(
          "%s: %s.shape[3] (mask_bytes) is %lld, wanted %lld: a bit for each of %lld key blocks "
          "of "
          "key_max",
          kOp, field, lld(x->shape[3]), lld((blocks + 7) / 8), lld(blocks));
  return choose(kOp, ctx, a, x_select_line_host, FOVEA_CUDA_KERNELS(x_select_line_simt));
}

}  // namespace fovea
