// SPDX-License-Identifier: Apache-2.0
// What the plans of quantised operations ask of blocks, groups, orders and rows of scales.
#pragma once
#include "core/fields.h"
#include "core/plan.h"
#include "ops/quant/kernels.h"

namespace fovea {

inline void check_order(const char* op, int32_t order) {
  if (order != FOVEA_CODE_ORDER_PLAIN && order != FOVEA_CODE_ORDER_V_PERM16)
    refuse("%s: code_order is %d, wanted a fovea_code_order", op, order);
}

inline void check_entries(const char* op, const char* field, int axis, const char* name,
                          int64_t got, int64_t wanted, const fovea_tensor& start,
                          const char* start_name) {
  if (got != wanted)
    refuse("%s: %s.shape[%d] (%s) is %lld, wanted %lld%s%s", op, field, axis, name, lld(got),
           lld(wanted), start.data ? " with " : "", start.data ? start_name : "");
}

}  // namespace fovea
