// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of attention_forward, and their grids.
#include <string>
#include <vector>

#include "core/dtype.h"
#include "cuda/launch.h"
#include "ops/attention/forward.cuh"
#include "ops/attention/kernels.h"
#include "ops/attention/pieces.h"

namespace fovea {
namespace {

using namespace cuda;

// Every row of forward.inc in this build, narrow widths first.
const std::vector<ForwardInstance90>& instances() {
  static const std::vector<ForwardInstance90> rows = {
#define FOVEA_INSTANCE(dtype, d, e, groups, keys, stages) \
  forward_sm90_instance<dtype, d, e, groups, keys, stages>(),
#include "instances/attention_forward_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

const ForwardInstance90* find(const Attend& a) {
  for (const ForwardInstance90& row : instances())
    if (row.dtype == a.dtype && a.d <= row.d && a.e <= row.e) return &row;
  return nullptr;
}

AttendGrid grid_of(const Attend& a, const ForwardInstance90& instance) {
  return {ceil_div(a.sequences.query_max, instance.rows), a.h, 1, 1, a.mask.window.right > 0};
}

// q, k, v as boxes of a row tile and of a key tile.
struct Operands {
  MapOf q, k, v;
  Operands(const Attend& a, const ForwardInstance90& instance)
      : q{a.q, a.dtype, a.b, a.s, a.h, a.d, instance.rows},
        k{a.k, a.dtype, a.sequences.caches, a.t, a.g, a.d, instance.keys},
        v{a.v, a.dtype, a.sequences.caches, a.t, a.g, a.e, instance.keys} {}
};

std::string refuses(const Context& ctx, const Attend& a) {
  const DeviceInfo& device = device_info(ctx);
  if (device.arch != 90) return "compute capability " + std::to_string(device.arch) + ", not 90";
  if (a.dtype != FOVEA_F16 && a.dtype != FOVEA_BF16)
    return std::string(dtype_name(a.dtype)) + " not in {f16,bf16}";
  if (!a.plain()) return "a bias, mask, softcap, position, chunk or sink keys are given";
  if (a.sequences.page) return "pages";
  if (a.splits > 1) return "more than one split";
  if (a.d % 8 || a.e % 8) return "a width that is not a multiple of 8";
  if (!a.h || !a.g) return "no heads";
  const ForwardInstance90* instance = find(a);
  if (!instance) return "no instance for this dtype and width in this build";
  const Operands of(a, *instance);
  for (const MapOf* x : {&of.q, &of.k, &of.v})
    if (const char* why = map_refuses(*x); *why) return std::string("q, k or v has ") + why;
  const int64_t o_piece = a.o_dtype == FOVEA_F32 ? 4 : 8, extent[3] = {a.b, a.s, a.h};
  if (!in_pieces(a.o, extent, o_piece)) return "o has rows that are not contiguous and aligned";
  if (a.sequences.key_max > kIndexMax || a.sequences.query_max > kIndexMax)
    return "more than 2^30 keys or rows in a sequence";
  const AttendGrid grid = grid_of(a, *instance);
  const int64_t blocks = a.sequences.count * grid.heads * grid.row_tiles;
  if (a.sequences.query_max * (a.h / a.g) <= 64) return "at most 64 rows a key head";
  if (!a.splits && blocks * 10 < device.multiprocessors * 8)
    return std::to_string(blocks) + " blocks of work, which splitting the keys serves better";
  if (blocks > INT_MAX) return "more than 2^31 blocks of work";
  CUtensorMap map;
  if (!make_map(of.q, map)) return "the driver makes no tensor maps";
  return "";
}

void prepare(const Context& ctx, const Attend& a, Plan& plan) {
  const ForwardInstance90& instance = *find(a);
  plan.kernel = std::string("attention_forward.cuda.sm90.") + dtype_name(a.dtype) + ".d" +
                std::to_string(instance.d);
  const AttendGrid grid = grid_of(a, instance);
  // Heads whose k and v the cache holds together, as query heads.
  const int64_t head_bytes = a.sequences.key_max * (a.d + a.e) * 2;
  const int64_t section =
      clamp_i64(device_info(ctx).l2_bytes / 2 / (head_bytes + 1), 1, 64) * (a.h / a.g);
  plan.launch = [a, instance, grid, section](Context& ctx, void*) {
    const Operands of(a, instance);
    AttendMaps maps;
    if (!make_map(of.q, maps.q) || !make_map(of.k, maps.k) || !make_map(of.v, maps.v))
      fail(FOVEA_DEVICE_ERROR, "attention_forward: the driver makes no tensor map");
    instance.launch(ctx, a, grid, maps, section);
  };
}

}  // namespace

extern const Kernel<Attend> attention_forward_sm90;
const Kernel<Attend> attention_forward_sm90{"sm90", refuses, prepare};

}  // namespace fovea
