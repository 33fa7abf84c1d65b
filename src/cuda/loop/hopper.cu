// SPDX-License-Identifier: Apache-2.0
#include "cuda/loop/hopper.h"

#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/tile_policy.cuh"

namespace fovea::cuda {

Text hopper_refuses(const Context& ctx, const Sequences& sequences) {
  const int arch = device_info(ctx).arch;
  if (arch != 90) return reason_capability(arch, "9.0");
  if (sequences.key_max > kIndexMax || sequences.query_max > kIndexMax)
    return "more than 2^30 keys or rows in a sequence";
  return "";
}

Text hopper_refuses(const Context& ctx, int32_t dtype, const Sequences& sequences) {
  if (dtype != FOVEA_F16 && dtype != FOVEA_BF16) return reason_dtype(dtype);
  return hopper_refuses(ctx, sequences);
}

Text hopper_refuses(const Context& ctx, const Attend& a) {
  if (Text why = hopper_refuses(ctx, a.dtype, a.sequences); !why.empty()) return why;
  if (a.k_dtype != a.dtype) return reason_dtype("k.dtype", a.k_dtype, a.dtype, "q");
  if (a.v_dtype != a.dtype) return reason_dtype("v.dtype", a.v_dtype, a.dtype, "q");
  if (Text why = refuse_widths(a.d, a.e, 8); !why.empty()) return why;
  if (!a.h || !a.g) return "h is 0";
  return "";
}

bool v_in_k(const Attend& a) {
  const Sequences& q = a.sequences;
  const int64_t extent[3] = {q.page ? q.pool : q.caches, q.page ? q.page : a.t, a.g};
  for (int i = 0; i < 3; ++i)
    if (extent[i] > 1 && a.k.stride[i] != a.v.stride[i]) return false;
  return a.k.data == a.v.data && a.e <= a.d && a.k.stride[3] == a.v.stride[3];
}

Text spans_refuse(const Attend& a) {
  const KeyAxis& axis = a.mask.axis;
  if (a.spans() && (axis.at(0) < -kSpanMost || axis.at(a.sequences.key_max) > kSpanMost ||
                    axis.shift > kSpanMost || a.mask.window.chunk > kSpanMost / 2))
    return "positions of keys or chunks past 2^28";
  if (a.mask.head_window.stride[0] > INT_MAX || a.mask.head_window.stride[1] > kIndexMax)
    return "head_window has strides past 2^30";
  return "";
}

Text map_each(std::initializer_list<Copied> copied) {
  for (const Copied& x : copied) {
    if (const char* why = map_refuses(x.of); *why) return Text(x.name) + " has " + why;
    if (!make_map(x.of, x.map))
      return "the driver makes no tensor map of this call, wanted one of CUDA 12 or later";
  }
  return "";
}

Text map_sweep(const MapOf& q, const MapOf& k, const MapOf& v, int keys, AttendMaps& maps) {
  maps.pages = {
      k.rows, keys / k.rows, static_cast<int32_t>(ceil_div(k.row, keys)),
      static_cast<int32_t>(k.interleave == Interleave::heads_as_panels ? k.column / k.columns : 0),
      static_cast<int32_t>(k.interleave == Interleave::heads_as_octets ? k.row / 8 : 0)};
  return map_each({{"q", q, maps.q}, {"k", k, maps.k}, {"v", v, maps.v}});
}

}  // namespace fovea::cuda
