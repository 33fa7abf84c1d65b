// SPDX-License-Identifier: Apache-2.0
// x_kv_decode in the formats of levels on tensor cores: the choice, and cos and sin as the kernel
// wants them.
#include <algorithm>

#include "core/fields.h"
#include "core/reasons.h"
#include "ops/kv/decode_levels_sm80.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_kv_decode";
constexpr int kRowsMost = 16;
constexpr int kTurnThreads = 256;
constexpr uint32_t kNan = 0x7fff;

// cos and sin as the products' lanes want them: [tile][16 channels][cos, sin][2][lane][4], a word
// being two channels of a token.  Outside the tables they are NaN.  A thread has four words.
__global__ void __launch_bounds__(kTurnThreads)
    turns_kernel(const __grid_constant__ Rope rope, uint4* to, int64_t lanes) {
  pdl_wait();
  pdl_trigger();  // levels_kernel may start, and fill its table
  const int parts = static_cast<int>(rope.half / 16);
  for (int64_t n = blockIdx.x * int64_t{kTurnThreads} + threadIdx.x; n < lanes;
       n += int64_t{gridDim.x} * kTurnThreads) {
    const int lane = static_cast<int>(n % 32), block = static_cast<int>(n / 32 % 2) * 2;
    const int64_t part = n / 128, tile = part / parts;
    const int64_t token = tile * kTokens + lane / 8 * 8 + lane / 4 % 2 + 2 * block;
    const int64_t channel = part % parts * 16 + lane % 4 * 4;
    const View<2>& table = n / 64 % 2 ? rope.sin : rope.cos;
    const auto pair = [&](int next, int from) {
      const int64_t j = token + next, c = channel + from;
      return j < rope.positions
                 ? pack<FOVEA_F16>(*table.at<float>(j, c), *table.at<float>(j, c + 1))
                 : kNan | kNan << 16;
    };
    to[n] = uint4{pair(0, 0), pair(2, 0), pair(0, 2), pair(2, 2)};
  }
}

// ---- the choice

struct Instance {
  Room room;
  bool norms;
  void (*launch)(Context&, const LevelSplit&, int warps, int bytes);
};

}  // namespace

// Compiled in a file for each number of bits and format.
extern template void launch_levels<2, 64, false>(Context&, const LevelSplit&, int, int);
extern template void launch_levels<2, 128, false>(Context&, const LevelSplit&, int, int);
extern template void launch_levels<3, 64, false>(Context&, const LevelSplit&, int, int);
extern template void launch_levels<3, 128, false>(Context&, const LevelSplit&, int, int);
extern template void launch_levels<4, 64, false>(Context&, const LevelSplit&, int, int);
extern template void launch_levels<4, 128, false>(Context&, const LevelSplit&, int, int);
extern template void launch_levels<2, 64, true>(Context&, const LevelSplit&, int, int);
extern template void launch_levels<2, 128, true>(Context&, const LevelSplit&, int, int);
extern template void launch_levels<3, 64, true>(Context&, const LevelSplit&, int, int);
extern template void launch_levels<3, 128, true>(Context&, const LevelSplit&, int, int);
extern template void launch_levels<4, 64, true>(Context&, const LevelSplit&, int, int);
extern template void launch_levels<4, 128, true>(Context&, const LevelSplit&, int, int);

namespace {

template <int Bits, int Width, bool Norms>
constexpr Instance instance() {
  return {{Bits, Width}, Norms, launch_levels<Bits, Width, Norms>};
}
constexpr Instance kInstances[] = {
    instance<2, 64, false>(),  instance<3, 64, false>(),  instance<4, 64, false>(),
    instance<2, 128, false>(), instance<3, 128, false>(), instance<4, 128, false>(),
    instance<2, 64, true>(),   instance<3, 64, true>(),   instance<4, 64, true>(),
    instance<2, 128, true>(),  instance<3, 128, true>(),  instance<4, 128, true>()};

Text refuses(const Context& ctx, const KvDecode& x) {
  const Attend& a = x.attend;
  const kv::Cache& c = x.cache;
  if (device_info(ctx).arch < 80) return reason_capability(device_info(ctx).arch, "8.0 or more");
  if (a.sequences.query_max > kRowsMost)
    return reason("rows of a sequence", a.sequences.query_max,
                  "at most " + Text::number(kRowsMost));
  if (c.by_groups()) return reason("format", c.format, "1 or 2");
  if (c.group != kTokens) return reason("group", c.group, "32");
  if (a.d != 64 && a.d != 128) return reason("d", a.d, "64 or 128");
  if (a.e != a.d) return reason("e", a.e, Text::number(a.d) + " as in d");
  if (a.mask.window.sink) return reason_given("sink_keys");
  if (a.rope.cos && a.rope.half * 2 != a.d)
    return reason("cos.shape[1] (half)", a.rope.half, Text::number(a.d / 2));
  if (a.rope.interleaved) return reason("rope_interleaved", 1, "0");
  if (c.k_code.stride[4] != 1 || c.k_code.stride[3] != c.bits || !aligned(c.k_code, 16, 4, 3))
    return "k_code has channels that are not one run, aligned to 16 bytes";
  const int chunk = Room{c.bits, static_cast<int>(a.d)}.row() % 16 ? 8 : 16;
  if (c.v_code.stride[3] != 1 || !aligned(c.v_code, chunk, 4, 3))
    return Text("v_code has rows that are not contiguous and aligned to ") + Text::number(chunk) +
           " bytes";
  for (const auto& [part, name] :
       {std::pair{&c.k_outlier, "k_outlier"}, {&c.v_outlier, "v_outlier"}})
    if (*part && part->stride[2] != 1) return Text(name) + " has entries that are not contiguous";
  if (a.q.stride[3] != 1 || !aligned(a.q, 8, 2, 3))
    return "q has rows that are not contiguous and aligned to 8 bytes";
  if (a.sequences.capacity >= 1 << 30) return "more than 2^30 keys";
  if (!steps_fit(c.k_code, 4) || !steps_fit(c.v_code, 4 * kTokens))
    return "pages or groups more than 2^31 bytes apart";
  for (const View<3>* part : {&c.v_bound, &c.k_norm, &c.v_norm, &c.k_outlier, &c.v_outlier})
    if (!steps_fit(*part, 4 * kTokens)) return "pages or groups more than 2^31 bytes apart";
  return "";
}

void set_steps(LevelSplit& f) {
  const kv::Cache& c = f.cache;
  f.k_code = step_of(c.k_code, 4, 1), f.v_code = step_of(c.v_code, 4, kTokens);
  f.k_norm = step_of(c.k_norm, 4, kTokens), f.v_norm = step_of(c.v_norm, 4, kTokens);
  f.v_bound = step_of(c.v_bound, 4, kTokens);
  f.k_outlier = step_of(c.k_outlier, 4, kTokens), f.v_outlier = step_of(c.v_outlier, 4, kTokens);
}

// Warps of a block and shared memory for them; no warps: it does not fit.
struct Block {
  int warps, team;
  int64_t bytes;
};
// The most warps, and then the largest team.
Block block_of(const Room& room, const LevelSplit& f, int most, int64_t limit) {
  const auto bytes = [&](int warps, int team) {
    return room.table() + int64_t{warps} * f.warp_bytes +
           warps / team * (2 * int64_t{f.team_bytes} + Room::kGates);
  };
  for (int warps = most; warps; --warps)
    for (int team = f.team_bytes ? warps : 1; team; --team)
      if (warps % team == 0 && f.a.g % team == 0 && bytes(warps, team) <= limit)
        return {warps, team, bytes(warps, team)};
  return {0, 1, bytes(1, 1)};
}
void set_bytes(const Room& room, LevelSplit& f) {
  const kv::Cache& c = f.cache;
  const auto slots = [](int64_t entries) {  // more do not fit anyway
    return Room::slots(static_cast<int>(std::min<int64_t>(entries, 65536)));
  };
  // Where one has outliers the other has a list too.
  const int64_t least = c.k_outliers || c.v_outliers ? 1 : 0;
  f.k_slots = slots(std::max<int64_t>(c.k_outliers, least));
  f.v_slots = slots(std::max<int64_t>(c.v_outliers, least));
  f.warp_bytes = room.keys() + room.values() + room.bounds() + (f.k_slots ? room.spots() : 0);
  f.team_bytes = (f.a.rope.cos ? room.turns() : 0) + Room::list(f.k_slots) + Room::list(f.v_slots);
}

Text offer(const Context& ctx, const KvDecode& x, Plan& plan) {
  if (Text why = refuses(ctx, x); !why.empty()) return why;
  const Attend& a = x.attend;
  const DeviceInfo& device = device_info(ctx);
  LevelSplit f{};
  f.a = a, f.cache = x.cache;
  f.packed = static_cast<int>(a.g ? a.h / a.g : 1);
  f.pool = static_cast<int>(std::min<int64_t>(x.cache.pool, INT_MAX));
  set_pages(x.cache, kTokens, f.page_tiles, f.page_shift), set_steps(f);
  f.row_tiles = static_cast<int>(
      std::max<int64_t>(ceil_div(a.sequences.query_max * f.packed, int64_t{kRows}), 1));
  const bool norms = x.cache.format == FOVEA_X_KV_FORMAT_NORMS;
  const Instance* found = nullptr;
  for (const Instance& one : kInstances)
    if (one.room.bits == x.cache.bits && one.room.width == a.d && one.norms == norms) found = &one;
  set_bytes(found->room, f);
  const Block most = block_of(found->room, f, warps_most(norms), device.shared_block_bytes);
  if (!most.warps) return reason_shared(most.bytes, device.shared_block_bytes);
  const int64_t rows = a.sequences.count * a.g * f.row_tiles;
  const int64_t tiles = std::max<int64_t>(ceil_div(a.sequences.key_max, int64_t{kTokens}), 1);
  const int64_t slots = int64_t{device.multiprocessors} * most.warps;
  const int64_t splits = a.splits ? a.splits : splits_of(rows, tiles, slots);
  f.splits = static_cast<int>(clamp_i64(splits, 1, std::min<int64_t>(tiles, 1023)));
  if (far_product(rows, f.splits) > INT_MAX) return "more than 2^31 warps of work";
  f.items = rows * f.splits;
  // Few warps lie on many multiprocessors, whole teams or parts of one.
  const int64_t each = ceil_div(f.items, static_cast<int64_t>(device.multiprocessors));
  int warps = static_cast<int>(clamp_i64(each, 1, most.warps));
  while (most.team % warps && warps % most.team) ++warps;
  const Block block = block_of(found->room, f, warps, device.shared_block_bytes);
  f.team = block.team;
  const PartialSlots partials(plan.workspace, a, f.splits);
  const int64_t words = a.rope.cos ? tiles * 2 * (a.d / 32) * 256 : 0;
  const Slot<uint4> turns = plan.workspace.add<uint4>(words / 4);
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".b" + Text::number(x.cache.bits) + ".d" +
                 Text::number(a.d);
  plan.launch = [f, found, block, words, turns, partials](Context& ctx, void* base) mutable {
    if (!f.items || !f.a.h || !f.a.sequences.query_max) return;
    f.out = partials.at(base, f.a, f.splits);
    uint4* to = turns.at(base);
    f.turns = to;
    launch_pdl<turns_kernel>(ctx, kOp, ceil_div(words / 4, int64_t{kTurnThreads}), kTurnThreads, 0,
                             f.a.rope, to, words / 4);
    found->launch(ctx, f, block.warps, static_cast<int>(block.bytes));
    combine(ctx, kOp, f.a, f.out);
  };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<KvDecode> kv_decode_levels_sm80 = {"levels_sm80", cuda::offer};

}  // namespace fovea
