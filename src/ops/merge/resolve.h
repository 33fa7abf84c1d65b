// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <climits>

#include "core/status.h"
#include "ops/merge/kernels.h"

namespace fovea {

// What forward and backward share.
template <class P>
Merge resolve_merge(const char* op, const P& p) {
  Merge a{};
  a.o_part = view_of<5>(p.o_part), a.lse_part = view_of<4>(p.lse_part), a.row = view_of<2>(p.row);
  a.o = view_of<4>(p.o), a.lse = view_of<3>(p.lse);
  a.part_dtype = p.o_part.dtype, a.o_dtype = p.o.dtype;
  a.n = p.o_part.shape[0], a.b = p.o_part.shape[1], a.u = p.o_part.shape[2];
  a.s = p.o.shape[1], a.h = p.o_part.shape[3], a.e = p.o_part.shape[4];
  if (!a.row && a.u != a.s)
    refuse("%s: o_part.shape[2] (u) is %lld without row, wanted s = %lld", op, lld(a.u), lld(a.s));
  if (a.row && (a.u > INT32_MAX || a.s > INT32_MAX))
    refuse("%s: u = %lld and s = %lld with row, wanted at most 2^31 - 1", op, lld(a.u), lld(a.s));
  if (!a.u) a.n = 0;  // parts without rows are none
  return a;
}

// The workspace map from rows of o to rows of a part, which both backends build before anything.
inline Slot<int32_t> add_source(const Merge& a, Plan& plan) {
  return plan.workspace.add<int32_t>(a.row ? a.n : 0, a.s);
}

}  // namespace fovea
