// SPDX-License-Identifier: Apache-2.0
// Which calls of x_kl_pool_backward the Hopper kernel takes (pool_sm90.cuh), and its launch.
#include <vector>

#include "core/reasons.h"
#include "cuda/loop/row_tile.cuh"
#include "ops/kl/maps.cuh"
#include "ops/kl_experimental/pool_sweep.cuh"

namespace fovea::cuda {
namespace {

// Every row of pool.inc in this build.
const PoolInstance90* instance_of(const KlPool& a) {
  static const std::vector<PoolInstance90> rows = {
#define FOVEA_INSTANCE(dtype, width) kl_pool_sm90_instance<dtype, width>(),
#include "instances/kl_experimental_pool_sm90.inc"
#undef FOVEA_INSTANCE
  };
  for (const PoolInstance90& row : rows)
    if (row.dtype == a.kl.first.dtype && pool_width(a) <= row.width) return &row;
  return nullptr;
}

}  // namespace

Text pool_sm90_refuses(const Context& ctx, const PoolCall& call, PoolMaps90& maps) {
  const KlPool& a = call.a;
  const Kl& kl = a.kl;
  if (Text why = hopper_refuses(ctx, kl.first.dtype, kl.sequences); !why.empty()) return why;
  if (Text why = pool_mma_refuses(ctx, a); !why.empty()) return why;
  if (a.block_keys != 64 && a.block_keys != 128)
    return reason("block_keys", a.block_keys, "64 or 128");
  if (const char* field = attend_of(kl, kl.first, kl.first).not_plain()) return reason_given(field);
  if (!kl.h || !kl.sequences.count || !kl.t || !kl.s) return "there are no rows, keys or heads";
  if (!instance_of(a))
    return no_instance(kl.first.dtype, "d", kl.first.width, "f", kl.second.width);
  if (Dscores(kl.sequences, kl.h, call.keys()).items(kl.sequences) > kIndexMax)
    return "more than 2^30 tiles of rows of all heads";
  const KlSide &x = kl.first, &y = kl.second;
  return map_each({{"q_teacher", rows_of(kl, x, kl.h, Dscores::rows), maps.q[0]},
                   {"k_teacher", keys_of(kl, x, kl.t, Dscores::rows), maps.k[0]},
                   {"q_student", rows_of(kl, y, kl.h, Dscores::rows), maps.q[1]},
                   {"k_student", keys_of(kl, y, a.u, kStageTile), maps.k[1]}});
}

void pool_sweep_sm90(Context& ctx, const KlPool& a, const PoolMaps90& maps,
                     const Dscores& dscores) {
  instance_of(a)->run(ctx, {a, attend_of(a.kl, a.kl.first, a.kl.first), dscores}, maps);
}

}  // namespace fovea::cuda
