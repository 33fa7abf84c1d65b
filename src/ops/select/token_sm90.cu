// SPDX-License-Identifier: Apache-2.0
// Which calls of x_select_token the Hopper kernels take, and their launches: for a chunk of rows
// the scores of all their keys (token_sm90.cuh), then their lists (cuda/loop/pick_rows.cuh).
// Chunks take turns in two halves of the workspace.  By PDL a chunk's scores begin where blocks of
// the lists before have ended.  Lists wait for memory and barriers: a chunk has rows for several
// blocks of theirs a multiprocessor, though its scores may then outgrow L2.
#include <algorithm>
#include <vector>

#include "core/plan.h"
#include "core/reasons.h"
#include "cuda/loop/hopper.h"
#include "cuda/loop/pick_rows.cuh"
#include "ops/select/token_lists.cuh"

namespace fovea {
namespace cuda {
namespace {

constexpr char kOp[] = "x_select_token";
constexpr int64_t kHalfBytes = int64_t{30} << 20, kHalfMost = int64_t{256} << 20;
constexpr int64_t kChunkRows = 8;     // of a multiprocessor
constexpr int64_t kUnitsMost = 4096;  // of a chunk: each block counts their tiles

// nullptr: no row of token.inc in this build.
const TokenInstance90* instance_of(const SelectToken& a) {
  static const std::vector<TokenInstance90> rows = {
#define FOVEA_INSTANCE(dtype, width, heads) select_token_sm90_instance<dtype, width, heads>(),
#include "instances/select_token_sm90.inc"
#undef FOVEA_INSTANCE
  };
  const TokenInstance90* best = nullptr;
  for (const TokenInstance90& row : rows)
    if (row.dtype == a.attend.dtype && a.attend.d <= row.width && a.group() <= row.heads &&
        (!best || row.width < best->width || (row.width == best->width && row.heads < best->heads)))
      best = &row;
  return best;
}

// "" or what of the call the kernels do not take, but for instances and maps.
Text refuses(const Context& ctx, const SelectToken& a) {
  const Attend& at = a.attend;
  if (Text why = token_refuses_sm90(ctx, a); !why.empty()) return why;
  if (a.measure != FOVEA_X_SELECT_SCORE_DOT && a.measure != FOVEA_X_SELECT_SCORE_RELU_WEIGHTED)
    return reason("measure", a.measure, "dot or relu_weighted");
  if (a.pool > 1) return reason("pool_keys", a.pool, "0");
  if (at.dtype != FOVEA_E4M3 && at.dtype != FOVEA_F16 && at.dtype != FOVEA_BF16)
    return Text("q.dtype is ") + dtype_name(at.dtype) + ", wanted f16, bf16 or e4m3";
  if (at.k_scale && at.groups != 1) return reason("k_scale.shape[3] (groups)", at.groups, "1");
  if (a.reduce == FOVEA_X_SELECT_REDUCE_MAX && a.group() > 1)
    return reason("reduce", a.reduce, "sum or mean");
  return "";
}

struct TokenSlots90 {
  TokenScores90 call{};
  Slot<uint32_t> key;
  int64_t groups, chunk, half;  // groups of the batch and of a chunk; keys of a half

  TokenSlots90(const SelectToken& a, int heads, int64_t multiprocessors) {
    const Sequences& q = a.attend.sequences;
    call.a = a, call.groups = TokenGroups(q, kTokenSums / heads);
    call.rows_each = static_cast<int32_t>(std::min(call.groups.rows, q.query_max));
    call.pitch = ceil_div(q.key_max, kTokenKeys) * kTokenKeys;
    call.group_units = static_cast<int32_t>(a.x);
    call.box_keys =
        static_cast<int32_t>(q.page ? std::min<int64_t>(q.page, kTokenKeys) : kTokenKeys);
    call.boxes = kTokenKeys / call.box_keys;
    groups = call.groups.count(q);
    const int64_t wanted = kChunkRows * multiprocessors * call.pitch * 4;
    const int64_t bytes = std::clamp(wanted, kHalfBytes, kHalfMost);
    chunk = std::min({groups, bytes / group_bytes(), kUnitsMost / a.x});
    half = chunk * group_bytes() / 4;
  }
  int64_t group_bytes() const { return call.a.x * call.rows_each * call.pitch * 4; }
};

void run(Context& ctx, const TokenSlots90& slots, const TokenInstance90& row,
         const TokenMaps90& maps, void* base) {
  TokenScores90 call = slots.call;
  const SelectToken& a = call.a;
  for (int64_t n = 0; call.first < slots.groups; call.first += slots.chunk, ++n) {
    const int64_t groups = std::min(slots.chunk, slots.groups - call.first);
    call.units = static_cast<int32_t>(groups * a.x);
    call.key = slots.key.at(base) + n % 2 * slots.half;
    row.run(ctx, call, maps, n > 0);
    const TokenLists<false> lists(call, 1);
    pick_rows(ctx, kOp, lists, int64_t{call.units} * call.rows_each, a.attend.sequences.key_max);
  }
}

Text offer(const Context& ctx, const SelectToken& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  const Attend& at = a.attend;
  const Sequences& q = at.sequences;
  const TokenInstance90* row = instance_of(a);
  if (!row) return no_instance(at.dtype, "d", at.d, "query heads of a list head", a.group());
  if (a.x > 1 && a.group() != row->heads)
    return reason("h / x", a.group(), "16, 32 or 64 where x is not 1");
  TokenSlots90 slots(a, row->heads, device_info(ctx).multiprocessors);
  if (slots.chunk < 1) return "a few rows have more than 256 MiB of scores";
  if (const PickShape shape(device_info(ctx), 1, q.key_max); !shape.fits(device_info(ctx)))
    return reason_shared(shape.shared_bytes, device_info(ctx).shared_block_bytes);
  const int box = at.dtype == FOVEA_E4M3 ? row->width : 64;
  TokenMaps90 maps;
  const MapOf rows{at.q,       at.dtype, at.b, at.s, at.h, at.d, kTokenSums / row->heads,
                   row->heads, box};
  const MapOf keys{at.k, at.dtype, q.page ? q.pool : q.caches, q.page ? q.page : at.t,
                   at.g, at.d,     slots.call.box_keys,        1,
                   box};
  if (Text why = map_each({{"q", rows, maps.q}, {"k", keys, maps.k}}); !why.empty()) return why;
  slots.key = plan.workspace.add<uint32_t>(slots.groups > slots.chunk ? 2 : 1, slots.half);
  plan.kernel += Text(".") + dtype_name(at.dtype) + ".d" + Text::number(row->width) + ".h" +
                 Text::number(row->heads);
  plan.launch = [=](Context& run_on, void* base) { run(run_on, slots, *row, maps, base); };
  return "";
}

}  // namespace

Text token_refuses_sm90(const Context& ctx, const SelectToken& a) {
  const Attend& at = a.attend;
  const Sequences& q = at.sequences;
  if (Text why = hopper_refuses(ctx, q); !why.empty()) return why;
  if (a.masses()) return reason_given("kept_mass");
  if (!at.h || !a.x || !q.count || !q.query_max) return "there are no rows or heads";
  if (!q.key_max || !q.capacity || !q.caches || (q.page && !q.pool)) return "there are no keys";
  if (at.k_dtype != at.dtype) return reason_dtype("k.dtype", at.k_dtype, at.dtype, "q");
  if (a.x < at.g) return reason("x", a.x, "list heads of one key head, at least g");
  if (q.page && (q.page < 8 || (q.page < kTokenKeys ? kTokenKeys % q.page : q.page % kTokenKeys)))
    return reason("k.shape[1] (page)", q.page, "8, 16, 32, 64 or a multiple of 128");
  return "";
}

}  // namespace cuda

extern const Kernel<SelectToken> x_select_token_sm90 = {"sm90", cuda::offer};

}  // namespace fovea
