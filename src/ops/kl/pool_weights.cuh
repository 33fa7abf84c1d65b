// SPDX-License-Identifier: Apache-2.0
// The teacher's probabilities of blocks of keys by a Hopper sweep of its heads
// (pool_heads_sm90.cuh) before the gradient of pooling, and how that reads them.
#pragma once
#include <algorithm>
#include <string>

#include "cuda/loop/row_tile.cuh"
#include "cuda/tensor_map.h"
#include "ops/kl/pool_heads.cuh"
#include "ops/kl/pool_tile.cuh"

namespace fovea::cuda {

// P of a thread's pairs where another kernel has left it; < 0: the row sees no key of the block.
template <class Pairs>
__device__ __forceinline__ void take_weights(const PoolCall& call, const PoolShared<Pairs>& s,
                                             int64_t sequence, int64_t h, int64_t i0, int64_t u0,
                                             float (&p)[Pairs::R][Pairs::C]) {
  constexpr int kRowTiles = kHeadsTile / Pairs::own;
  const int64_t first = i0 / kHeadsTile * kHeadsTile;
  const Sequence& seq = s.at.seq;
  const int64_t end = first + kHeadsTile < seq.rows ? first + kHeadsTile : seq.rows;
  const KeyTiles written = key_tiles(call.a.kl.mask, seq, h, h + 1, first, end, kHeadsTile);
  const int64_t number = (sequence * call.row_tiles + i0 / Pairs::own - call.first) / kRowTiles;
  const float* from =
      call.weights + ((number * call.a.kl.h + h) * kHeadsTile + i0 - first) * call.weight_pitch;
  each_pair<Pairs>([&](int r, int c) {
    const int64_t u = u0 + Pairs::other_of(c), n = u * call.a.block_keys / kHeadsTile;
    const bool there =
        u < s.units.keys && (n < written.sinks || (n >= written.first && n < written.last));
    p[r][c] = there ? from[Pairs::own_of(r) * call.weight_pitch + u] : -1;
  });
}

// On Hopper P comes from a sweep of the teacher's heads, for as many row tiles at a time as their
// room holds.
struct HopperWeights {
  KlPool a;
  HeadsWork work;
  PoolWeights90 weights;
  int32_t band;  // row tiles of a launch
  Slot<float> slot;

  HopperWeights(Layout& layout, const KlPool& a) : a(a), work{}, weights{} {
    const Kl& kl = a.kl;
    work.a = attend_of(kl, kl.first, kl.first);
    work.heads[0] = static_cast<int32_t>(kl.h);
    work.group[0] = static_cast<int32_t>(kl.h / kl.first.key_heads), work.group[1] = 1;
    work.row_tiles = static_cast<int32_t>(ceil_div(kl.sequences.query_max, kHeadsTile));
    work.count = static_cast<int32_t>(kl.sequences.count) * work.row_tiles;
    work.parts = 1, work.lead = work.heads[0];
    weights = {kl.first.lse, nullptr, pitch(a), static_cast<int32_t>(a.block_keys), a.max};
    band = static_cast<int32_t>(clamp_i64(kPairsMost / tile_floats(a), 1, work.count));
    slot = layout.add<float>(band * tile_floats(a));
  }
  // Blocks of whole tiles.
  static int64_t pitch(const KlPool& a) {
    return ceil_div(a.kl.sequences.key_max, kHeadsTile) * (kHeadsTile / a.block_keys);
  }
  static int64_t tile_floats(const KlPool& a) { return kHeadsTile * a.kl.h * pitch(a); }
  static MapOf q(const KlPool& a) {
    const Kl& kl = a.kl;
    return {kl.first.q, kl.first.dtype, kl.b, kl.s, kl.h, kl.first.width, kHeadsTile};
  }
  static MapOf k(const KlPool& a) {
    const Kl& kl = a.kl;
    return {kl.first.k,         kl.first.dtype, kl.sequences.caches, kl.t,
            kl.first.key_heads, kl.first.width, kHeadsTile};
  }
  // f() once P of the call's row tiles is there, for some after others.
  template <class F>
  void each_band(Context& ctx, PoolCall& call, void* base, const F& f) const {
    HeadsMaps maps{};
    if (!make_map(q(a), maps.q[0]) || !make_map(k(a), maps.k[0]))
      fail(FOVEA_DEVICE_ERROR, "x_kl_pool_backward: the driver makes no tensor map");
    PoolWeights90 now = weights;
    now.weights = slot.at(base);
    call.weights = now.weights, call.weight_pitch = now.pitch;
    constexpr int kRowTiles = kHeadsTile / kStageTile;
    call.row_tiles = int64_t{work.row_tiles} * kRowTiles;
    for (HeadsWork some = work; some.first < work.count; some.first += band) {
      some.count = std::min(band, work.count - some.first);
      heads_instance(a.kl.first.dtype, a.kl.first.width)->pool(ctx, some, maps, now);
      call.first = int64_t{some.first} * kRowTiles, call.tiles = int64_t{some.count} * kRowTiles;
      f();
    }
  }
};

inline std::string hopper_weights_refuse(const Context& ctx, const KlPool& a) {
  const DeviceInfo& device = device_info(ctx);
  if (device.arch != 90) return "compute capability " + std::to_string(device.arch) + ", not 90";
  if (const std::string why = pool_mma_refuses(ctx, a); !why.empty()) return why;
  const Kl& kl = a.kl;
  if (a.block_keys != 64 && a.block_keys != 128) return "block_keys not in {64,128}";
  if (!attend_of(kl, kl.first, kl.first).plain()) return "sink_keys or head_window are given";
  if (!kl.h || !kl.sequences.count || !kl.t || !kl.s) return "nothing to do";
  if (!heads_instance(kl.first.dtype, kl.first.width))
    return "no instance for this dtype and this width in this build";
  if (HopperWeights::tile_floats(a) > kPairsMost)
    return "more than 2^17 blocks of keys of all heads";
  const Sequences& q = kl.sequences;
  if (q.count * ceil_div(q.query_max, kHeadsTile) > kIndexMax / kl.h)
    return "more than 2^30 tiles of rows of all heads";
  CUtensorMap map;
  for (const MapOf& x : {HopperWeights::q(a), HopperWeights::k(a)})
    if (const char* why = map_refuses(x); *why) return std::string("a q or k has ") + why;
  if (!make_map(HopperWeights::q(a), map)) return "the driver makes no tensor maps";
  return "";
}

}  // namespace fovea::cuda
