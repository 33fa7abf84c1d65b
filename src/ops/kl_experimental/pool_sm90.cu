// SPDX-License-Identifier: Apache-2.0
// Which calls of x_kl_pool_backward the Hopper kernel takes (pool_sm90.cuh), and its launch.
#include <algorithm>
#include <vector>

#include "cuda/loop/row_tile.cuh"
#include "cuda/tensor_map.h"
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

MapOf q_of(const KlPool& a, const KlSide& side) {
  return {side.q, side.dtype, a.kl.b, a.kl.s, a.kl.h, side.width, PoolDscores::rows};
}
MapOf k_of(const KlPool& a, const KlSide& side) {
  const bool student = &side == &a.kl.second;
  return {side.k,
          side.dtype,
          a.kl.sequences.caches,
          student ? a.u : a.kl.t,
          side.key_heads,
          side.width,
          student ? kStageTile : PoolDscores::rows};
}

}  // namespace

std::string pool_sm90_refuses(const Context& ctx, const KlPool& a) {
  const DeviceInfo& device = device_info(ctx);
  if (device.arch != 90) return "compute capability " + std::to_string(device.arch) + ", not 90";
  if (const std::string why = pool_mma_refuses(ctx, a); !why.empty()) return why;
  const Kl& kl = a.kl;
  if (a.block_keys != 64 && a.block_keys != 128) return "block_keys not in {64,128}";
  if (!attend_of(kl, kl.first, kl.first).plain()) return "sink_keys or head_window are given";
  if (!kl.h || !kl.sequences.count || !kl.t || !kl.s) return "nothing to do";
  if (!instance_of(a)) return "no instance for this dtype and these widths in this build";
  if (PoolDscores(a).items(a) > kIndexMax) return "more than 2^30 tiles of rows of all heads";
  for (const KlSide* side : {&kl.first, &kl.second})
    for (const MapOf& x : {q_of(a, *side), k_of(a, *side)})
      if (const char* why = map_refuses(x); *why) return std::string("a q or k has ") + why;
  CUtensorMap map;
  if (!make_map(q_of(a, kl.first), map)) return "the driver makes no tensor maps";
  return "";
}

void pool_sweep_sm90(Context& ctx, const KlPool& a, const PoolDscores& dscores) {
  PoolMaps90 maps{};
  const KlSide* const side[2] = {&a.kl.first, &a.kl.second};
  for (int s = 0; s < 2; ++s)
    if (!make_map(q_of(a, *side[s]), maps.q[s]) || !make_map(k_of(a, *side[s]), maps.k[s]))
      fail(FOVEA_DEVICE_ERROR, "%s: the driver makes no tensor map", kPoolBackward);
  instance_of(a)->run(ctx, {a, attend_of(a.kl, a.kl.first, a.kl.first), dscores}, maps);
}

}  // namespace fovea::cuda
