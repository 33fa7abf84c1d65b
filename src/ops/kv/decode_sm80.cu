// SPDX-License-Identifier: Apache-2.0
// The choice among the instances of x_kv_decode that read groups of codes (decode_sm80.cuh).
#include <algorithm>

#include "core/fields.h"
#include "core/reasons.h"
#include "ops/kv/decode_sm80.cuh"

namespace fovea {
namespace cuda::kv_groups {

extern template void launch_split<FOVEA_F16, 2, 64, 1>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_F16, 2, 64, 2>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_F16, 2, 128, 1>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_F16, 2, 128, 2>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_BF16, 2, 64, 1>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_BF16, 2, 64, 2>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_BF16, 2, 128, 1>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_BF16, 2, 128, 2>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_F16, 4, 64, 1>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_F16, 4, 64, 2>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_F16, 4, 128, 1>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_F16, 4, 128, 2>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_BF16, 4, 64, 1>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_BF16, 4, 64, 2>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_BF16, 4, 128, 1>(Context&, const KvSplit&, int64_t);
extern template void launch_split<FOVEA_BF16, 4, 128, 2>(Context&, const KvSplit&, int64_t);

namespace {

struct Instance {
  int32_t dtype;
  int bits, width, columns, bytes;
  void (*launch)(Context&, const KvSplit&, int64_t items);
};

#define FOVEA_KV(dtype, bits, width, columns)  \
  {dtype,                                      \
   bits,                                       \
   width,                                      \
   columns,                                    \
   Block<dtype, bits, width, columns>::kBytes, \
   launch_split<dtype, bits, width, columns>},
#define FOVEA_KV_WIDTHS(dtype, bits) \
  FOVEA_KV(dtype, bits, 64, 1)       \
  FOVEA_KV(dtype, bits, 64, 2) FOVEA_KV(dtype, bits, 128, 1) FOVEA_KV(dtype, bits, 128, 2)
constexpr Instance kInstances[] = {FOVEA_KV_WIDTHS(FOVEA_F16, 2) FOVEA_KV_WIDTHS(
    FOVEA_F16, 4) FOVEA_KV_WIDTHS(FOVEA_BF16, 2) FOVEA_KV_WIDTHS(FOVEA_BF16, 4)};
#undef FOVEA_KV_WIDTHS
#undef FOVEA_KV

Text refuses(const Context& ctx, const KvDecode& x) {
  const Attend& a = x.attend;
  const kv::Cache& c = x.cache;
  if (device_info(ctx).arch < 80) return reason_capability(device_info(ctx).arch, "8.0 or more");
  if (a.sequences.query_max > kRowsMost)
    return reason("rows of a sequence", a.sequences.query_max,
                  "at most " + Text::number(kRowsMost));
  if (c.format != FOVEA_X_KV_FORMAT_GROUPS) return reason("format", c.format, "0");
  if (a.rope.cos) return reason_given("cos");
  if (c.group != kTokens) return reason("group", c.group, "32");
  if (a.d != 64 && a.d != 128) return reason("d", a.d, "64 or 128");
  if (a.e != a.d) return reason("e", a.e, Text::number(a.d) + " as in d");
  if (a.mask.window.sink) return reason_given("sink_keys");
  const bool words =
      c.k_code.stride[4] == 1 && c.k_code.stride[3] == c.bits && aligned(c.k_code, 16, 4, 3);
  if (!words) return "k_code has channels that are not one run of 16-byte pieces";
  if (c.v_code.stride[3] != 1 || !aligned(c.v_code, 16, 4, 3)) return reason_rows("v_code");
  for (const auto& [part, name] : {std::pair{&c.k_scale, "k_scale"}, {&c.k_zero, "k_zero"}})
    if (part->stride[3] != 1 || !aligned(*part, 16, 2, 3)) return reason_rows(name);
  const int pieces = static_cast<int>(a.e) / kTokens * 2;
  for (const auto& [part, name] : {std::pair{&c.v_scale, "v_scale"}, {&c.v_zero, "v_zero"}})
    if (part->stride[3] != 1 || !aligned(*part, pieces, 2, 3))
      return Text(name) + " has rows that are not contiguous and aligned to their size";
  for (const auto& [part, name] :
       {std::pair{&c.k_tail, "k_tail"}, {&c.v_tail, "v_tail"}, {&a.q, "q"}})
    if (part->stride[3] != 1 || !aligned(*part, 16, 2, 3)) return reason_rows(name);
  if (a.sequences.capacity >= 1 << 30) return "more than 2^30 keys";
  const int64_t page =
      std::max({c.k_code.stride[0] * 4, c.v_code.stride[0] * 4, c.k_scale.stride[0] * 2,
                c.k_zero.stride[0] * 2, c.v_scale.stride[0] * 2, c.v_zero.stride[0] * 2});
  const int64_t tile =
      std::max({c.k_code.stride[1] * 4, c.k_scale.stride[1] * 2, c.k_zero.stride[1] * 2,
                c.v_code.stride[1] * 4 * kTokens, c.v_scale.stride[1] * 2 * kTokens,
                c.v_zero.stride[1] * 2 * kTokens});
  if (std::max(page, tile) > INT_MAX) return "pages or groups more than 2^31 bytes apart";
  return "";
}

void set_steps(KvSplit& f) {
  const kv::Cache& c = f.cache;
  f.k_code = step_of(c.k_code, 4, 1), f.v_code = step_of(c.v_code, 4, kTokens);
  f.k_scale = step_of(c.k_scale, 2, 1), f.k_zero = step_of(c.k_zero, 2, 1);
  f.v_scale = step_of(c.v_scale, 2, kTokens), f.v_zero = step_of(c.v_zero, 2, kTokens);
  f.v_code_row = f.v_code.tile / kTokens;
  f.pool = static_cast<int>(std::min<int64_t>(c.pool, INT_MAX));
  set_pages(c, kTokens, f.page_tiles, f.page_shift);
}

Text offer(const Context& ctx, const KvDecode& x, Plan& plan) {
  if (Text why = refuses(ctx, x); !why.empty()) return why;
  const Attend& a = x.attend;
  const DeviceInfo& device = device_info(ctx);
  KvSplit f{};
  f.a = a, f.cache = x.cache;
  f.packed = static_cast<int>(a.g ? a.h / a.g : 1);
  set_steps(f);
  const int64_t rows = a.sequences.query_max * f.packed;
  const int columns = rows > 8 ? 2 : 1;
  f.row_tiles = static_cast<int>(std::max<int64_t>(ceil_div(rows, int64_t{8} * columns), 1));
  const Instance* found = nullptr;
  for (const Instance& one : kInstances)
    if (one.dtype == a.dtype && one.bits == x.cache.bits && one.width == a.d &&
        one.columns == columns)
      found = &one;
  if (found->bytes > device.shared_block_bytes)
    return reason_shared(found->bytes, device.shared_block_bytes);
  const int64_t items = a.sequences.count * a.g * f.row_tiles;
  const int64_t tiles =
      std::max<int64_t>(ceil_div(a.sequences.key_max, int64_t{kTokens * kWarps}), 1);
  DeviceInfo slots = device;
  slots.multiprocessors *= std::max(1, device.shared_sm_bytes / (found->bytes + 1024));
  const int64_t splits =
      a.splits ? a.splits : auto_splits(items, tiles, 0, a.mask.window.left > 0, slots);
  f.splits = static_cast<int>(clamp_i64(splits, 1, std::min<int64_t>(tiles, 1023)));
  // A tile of later tokens for each warp where blocks are few, else one block.
  const int64_t late = ceil_div(x.cache.residual + kLate, int64_t{kLate * kWarps});
  const int64_t room = slots.multiprocessors / std::max<int64_t>(2 * items, 1);
  f.late = static_cast<int>(clamp_i64(late, 1, clamp_i64(room, 1, 4)));
  const int parts = f.splits + f.late;
  if (far_product(items, parts) > INT_MAX) return "more than 2^31 blocks of work";
  const PartialSlots partials(plan.workspace, a, parts);
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".b" + Text::number(x.cache.bits) + ".d" +
                 Text::number(a.d) + ".rows" + Text::number(8 * columns);
  plan.launch = [f, found, partials, items, parts](Context& ctx, void* base) mutable {
    if (!items || !f.a.h || !f.a.sequences.query_max) return;
    f.out = partials.at(base, f.a, parts);
    found->launch(ctx, f, items);
    combine(ctx, kOp, f.a, f.out);
  };
  return "";
}

}  // namespace
}  // namespace cuda::kv_groups

extern const Kernel<KvDecode> kv_decode_sm80 = {"sm80", cuda::kv_groups::offer};

}  // namespace fovea
