// SPDX-License-Identifier: Apache-2.0
// Which calls of quant_forward take the kernel of SageBwd (forward_integer_sm80.cuh).
#include "core/chunk.h"
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "ops/quant/forward.cuh"

namespace fovea {
namespace {

using namespace cuda;

// nullptr: no row of forward_integer.inc in this build.
const QuantInstance80* find(const Attend& a) {
  static const QuantInstance80 rows[] = {
#define FOVEA_INSTANCE(...) quant_sm80_instance<QuantConfig80 __VA_ARGS__>(),
#include "instances/quant_forward_integer_sm80.inc"
#undef FOVEA_INSTANCE
    {}
  };
  for (const QuantInstance80& row : rows)
    if (row.launch && a.d <= row.width && a.e <= row.width) return &row;
  return nullptr;
}

// One scale for every 64 tokens of a tile.
bool of_tiles(const ScaleAxis& axis) {
  return axis.scale && axis.group == FOVEA_SCALE_GROUP_BLOCK && axis.block % kTileKeys == 0;
}

Text refuses(const Context& ctx, const QuantAttend& call) {
  const Attend& a = call.attend;
  const Sequences& q = a.sequences;
  if (call.kind != ValueKind::i8) return "q and k are not i8";
  if (call.v_kind != ValueKind::i8 || !call.v_t || !call.permuted)
    return "v_t of i8 and code_order FOVEA_CODE_ORDER_V_PERM16 is not given";
  if (!of_tiles(call.q_axis)) return "q_scale is not one of blocks of 64 rows or more";
  if (!of_tiles(call.k_axis) || !of_tiles(call.v_axis))
    return "k_scale or v_scale is not one of blocks of 64 keys or more";
  if (call.paged()) return reason_given("page_table");
  if (q.cache_row) return reason_given("cache_row");
  if (a.score.softcap > 0) return reason_given("softcap");
  if (call.delta) return reason_given("delta");
  if (call.v_mean) return reason_given("v_mean");
  if (!a.h || !q.count || !a.t || !a.s) return "there are no rows, keys or heads";
  if (Text why = refuse_width("d", a.d, 16); !why.empty()) return why;
  if (Text why = refuse_width("e", a.e, 8); !why.empty()) return why;
  const QuantInstance80* row = find(a);
  if (!row) return no_instance(FOVEA_I8, "d", a.d, "e", a.e);
  if (!chunked(a.q, 1, 16)) return reason_rows("q");
  if (!chunked(a.k, 1, 16)) return reason_rows("k");
  if (!chunked(call.v_t, 1, 16)) return reason_rows("v_t");
  const size_t o_bytes = static_cast<size_t>(dtype_bytes(a.o_dtype));
  if (!chunked(a.o, o_bytes, static_cast<int>(16 / o_bytes))) return reason_rows("o");
  if (q.key_max > kIndexMax || q.query_max > kIndexMax)
    return "more than 2^30 keys or rows in a sequence";
  if (q.count * a.h * ceil_div(q.query_max, row->rows) > INT_MAX)
    return "more than 2^31 blocks of work";
  if (row->shared_bytes > device_info(ctx).shared_block_bytes)
    return reason_shared(row->shared_bytes, device_info(ctx).shared_block_bytes);
  return "";
}

Text offer(const Context& ctx, const QuantAttend& call, Plan& plan) {
  if (Text why = refuses(ctx, call); !why.empty()) return why;
  const QuantInstance80* row = find(call.attend);
  plan.kernel += ".d" + Text::number(row->width);
  plan.launch = [call, row](Context& ctx, void*) { row->launch(ctx, call); };
  return "";
}

}  // namespace

extern const Kernel<QuantAttend> quant_forward_sm80_i8 = {"sm80_i8", offer};

}  // namespace fovea
