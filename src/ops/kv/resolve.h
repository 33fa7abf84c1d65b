// SPDX-License-Identifier: Apache-2.0
// The cache of a call, checked.
#pragma once
#include "core/fields.h"
#include "ops/kv/cache.h"

namespace fovea::kv {

inline void check_extent(const char* op, const char* field, int axis, const char* name, int64_t got,
                         int64_t wanted, const char* is) {
  if (got != wanted)
    refuse("%s: %s.shape[%d] (%s) is %lld, wanted %lld (%s)", op, field, axis, name, lld(got),
           lld(wanted), is);
}

inline void check_divides(const char* op, const char* what, int64_t n, int32_t group) {
  if (n % group) refuse("%s: %s is %lld, wanted a multiple of group = %d", op, what, lld(n), group);
}

template <class P>
Cache read_cache(const char* op, const P& p) {
  Cache c{};
  if (p.bits != 0 && p.bits != 2 && p.bits != 4)
    refuse("%s: bits is %d, wanted 2 or 4, or 0 for 2", op, p.bits);
  c.bits = p.bits ? p.bits : 2;
  const int32_t group = p.group, codes = 32 / c.bits;
  if (group < 0 || group % codes)
    refuse("%s: group is %d, wanted a multiple of %d, or 0 for 32", op, group, codes);
  c.group = group ? group : 32;
  c.dtype = p.k_tail.dtype;
  c.g = p.k_tail.shape[2], c.d = p.k_tail.shape[3], c.e = p.v_tail.shape[3];
  c.residual = p.k_tail.shape[1], c.rows = p.k_tail.shape[0];
  c.page = p.v_code.shape[1], c.pool = p.v_code.shape[0], c.pages = p.page_table.shape[1];
  if (c.residual < 1) refuse("%s: k_tail.shape[1] (residual) is 0, wanted >= 1", op);
  if (c.page < 1) refuse("%s: v_code.shape[1] (page) is 0, wanted >= 1", op);
  check_divides(op, "k_tail.shape[1] (residual)", c.residual, c.group);
  check_divides(op, "v_code.shape[1] (page)", c.page, c.group);
  check_divides(op, "v_tail.shape[3] (e)", c.e, c.group);
  check_extent(op, "k_code", 1, "page_groups", p.k_code.shape[1], c.page / c.group, "page / group");
  check_extent(op, "k_code", 4, "k_words", p.k_code.shape[4], c.group / codes, "group * bits / 32");
  check_extent(op, "v_code", 3, "v_words", p.v_code.shape[3], c.e / codes, "e * bits / 32");
  check_extent(op, "v_scale", 3, "v_groups", p.v_scale.shape[3], c.e / c.group, "e / group");
  check_extent(op, "v_tail", 1, "ring", p.v_tail.shape[1], c.ring(), "residual + 1");
  c.k_code = view_of<5>(p.k_code), c.v_code = view_of<4>(p.v_code);
  c.k_scale = view_of<4>(p.k_scale), c.k_zero = view_of<4>(p.k_zero);
  c.v_scale = view_of<4>(p.v_scale), c.v_zero = view_of<4>(p.v_zero);
  c.k_tail = view_of<4>(p.k_tail), c.v_tail = view_of<4>(p.v_tail);
  c.counter = view_of<2>(p.counter), c.page_table = view_of<2>(p.page_table);
  if (far_product(c.pages, c.page) > INT32_MAX)
    refuse(
        "%s: page_table.shape[1] (pages) is %lld with pages of %lld, wanted at most 2^31 - 1 "
        "tokens",
        op, lld(c.pages), lld(c.page));
  return c;
}

}  // namespace fovea::kv
