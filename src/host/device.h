// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "core/context.h"
#include "host/parallel.h"

namespace fovea::host {

// The pool of a FOVEA_HOST context.
Pool& pool(Context& ctx);

// Workers that need room of their own: no more than there are items, which may be beyond int64_t.
inline int64_t workers_for(const Context& ctx, double items) {
  return items < 1 ? 1 : static_cast<int64_t>(items < ctx.threads ? items : ctx.threads);
}

}  // namespace fovea::host
