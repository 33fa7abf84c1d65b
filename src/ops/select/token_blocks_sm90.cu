// SPDX-License-Identifier: Apache-2.0
// Which calls of x_select_token with pool_keys the Hopper kernels take, and their launches: for a
// chunk of rows the scores of all their blocks (token_blocks_sm90.cuh), then their lists.  Chunks
// take turns as in token_sm90.cu.
#include <algorithm>
#include <vector>

#include "core/plan.h"
#include "core/reasons.h"
#include "cuda/loop/hopper.h"
#include "ops/select/pick_short.cuh"
#include "ops/select/token_blocks.cuh"
#include "ops/select/token_lists.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_select_token";
constexpr int64_t kHalfBytes = int64_t{30} << 20;
constexpr int64_t kUnitsMost = 4096;  // of a chunk: each block counts their tiles
constexpr int64_t kPoolMost = 1024;

// nullptr: no row of token_blocks.inc in this build.
const TokenBlocksInstance90* instance_of(const SelectToken& a) {
  static const std::vector<TokenBlocksInstance90> rows = {
#define FOVEA_INSTANCE(dtype, width) select_token_blocks_sm90_instance<dtype, width>(),
#include "instances/select_token_blocks_sm90.inc"
#undef FOVEA_INSTANCE
  };
  const TokenBlocksInstance90* best = nullptr;
  for (const TokenBlocksInstance90& row : rows)
    if (row.dtype == a.attend.dtype && a.attend.d <= row.width &&
        (!best || row.width < best->width))
      best = &row;
  return best;
}

bool pools(int64_t keys) {
  return keys == 16 || keys == 32 || keys == 64 ||
         (keys >= kTokenKeys && keys <= kPoolMost && keys % kTokenKeys == 0);
}

// "" or what of the call the kernels do not take, but for instances and maps.
Text refuses(const Context& ctx, const SelectToken& a) {
  if (Text why = token_refuses_sm90(ctx, a); !why.empty()) return why;
  if (a.measure != FOVEA_X_SELECT_SCORE_DOT) return reason("measure", a.measure, "dot");
  if (!pools(a.pool))
    return reason("pool_keys", a.pool, "16, 32, 64 or a multiple of 128 up to 1024");
  if (a.attend.dtype != FOVEA_F16 && a.attend.dtype != FOVEA_BF16)
    return reason_dtype(a.attend.dtype);
  if (a.block_mask) return reason_given("block_mask");
  if (const int64_t list = a.group(); list != 1 && list != 2 && list != 4 && list != 8)
    return reason("h / x", list, "1, 2, 4 or 8");
  return "";
}

struct TokenBlocksSlots90 {
  TokenBlocks90 call{};
  Slot<uint32_t> key;
  int64_t groups, chunk, half;  // groups of the batch and of a chunk; keys of a half

  explicit TokenBlocksSlots90(const SelectToken& a) {
    const Sequences& q = a.attend.sequences;
    call.a = a;
    while (heads() < a.key_group() && heads() < kTokenHeadsMost) ++call.log_heads;
    call.parts = static_cast<int32_t>(ceil_div(a.key_group(), heads()));
    call.list = static_cast<int32_t>(a.group());
    call.cells = static_cast<int32_t>(a.pool < kTokenKeys ? kTokenKeys / a.pool : 1);
    call.group_units = static_cast<int32_t>(a.attend.g * call.parts);
    call.groups = TokenGroups(q, kTokenSums / heads());
    call.rows_each = static_cast<int32_t>(std::min(call.groups.rows, q.query_max));
    call.pitch = ceil_div(q.key_max, kTokenKeys) * call.cells;
    call.box_keys =
        static_cast<int32_t>(q.page ? std::min<int64_t>(q.page, kTokenKeys) : kTokenKeys);
    call.boxes = kTokenKeys / call.box_keys;
    groups = call.groups.count(q);
    const int64_t group_bytes = a.x * call.rows_each * call.pitch * 4;
    chunk = std::min({groups, kHalfBytes / group_bytes, kUnitsMost / call.group_units});
    half = chunk * group_bytes / 4;
  }
  int heads() const { return 1 << call.log_heads; }
};

void run(Context& ctx, const TokenBlocksSlots90& slots, const TokenBlocksInstance90& row,
         const TokenMaps90& maps, void* base) {
  TokenBlocks90 call = slots.call;
  const SelectToken& a = call.a;
  for (int64_t n = 0; call.first < slots.groups; call.first += slots.chunk, ++n) {
    const int64_t groups = std::min(slots.chunk, slots.groups - call.first);
    call.units = static_cast<int32_t>(groups * call.group_units);
    call.key = slots.key.at(base) + n % 2 * slots.half;
    row.run(ctx, call, maps, n > 0);
    const TokenLists<true> lists(call, static_cast<int>(std::max(a.pool / kTokenKeys, int64_t{1})));
    const int64_t rows = groups * a.x * call.rows_each;
    a.units() <= kShortMost ? pick_short(ctx, kOp, lists, rows, a.units())
                            : pick_rows(ctx, kOp, lists, rows, a.units());
  }
}

Text offer(const Context& ctx, const SelectToken& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  const Attend& at = a.attend;
  const Sequences& q = at.sequences;
  const TokenBlocksInstance90* row = instance_of(a);
  if (!row) return no_instance(at.dtype, "d", at.d, "query heads of a list head", a.group());
  TokenBlocksSlots90 slots(a);
  if (slots.chunk < 1) return "a few rows have more than 30 MiB of scores";
  if (const PickShape shape(device_info(ctx), 1, a.units()); !shape.fits(device_info(ctx)))
    return reason_shared(shape.shared_bytes, device_info(ctx).shared_block_bytes);
  TokenMaps90 maps;
  const MapOf rows{at.q,         at.dtype, at.b, at.s, at.h, at.d, kTokenSums / slots.heads(),
                   slots.heads()};
  const MapOf keys{at.k, at.dtype, q.page ? q.pool : q.caches, q.page ? q.page : at.t,
                   at.g, at.d,     slots.call.box_keys};
  if (Text why = map_each({{"q", rows, maps.q}, {"k", keys, maps.k}}); !why.empty()) return why;
  slots.key = plan.workspace.add<uint32_t>(slots.groups > slots.chunk ? 2 : 1, slots.half);
  plan.kernel += Text(".") + dtype_name(at.dtype) + ".d" + Text::number(row->width);
  plan.launch = [=](Context& run_on, void* base) { run(run_on, slots, *row, maps, base); };
  return "";
}

}  // namespace
}  // namespace cuda

extern const Kernel<SelectToken> x_select_token_blocks_sm90 = {"sm90.blocks", cuda::offer};

}  // namespace fovea
