// SPDX-License-Identifier: Apache-2.0
// The choice among the instances of attention_forward for wide heads, and their splits.
#include <algorithm>
#include <vector>

#include "core/dtype.h"
#include "core/pieces.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/hopper.h"
#include "cuda/loop/wide_codes.h"
#include "ops/attention/kernels.h"
#include "ops/attention/wide.cuh"

namespace fovea {
namespace {

using namespace cuda;

constexpr int kRows = 64, kKeys = 64, kNarrow = 256, kValues = 512, kWidest = 576;
constexpr int kColumns = 64;  // of a box
constexpr int kPiece = 16;    // codes of a load
// Of smaller pages a box has too few bytes: their rows are copied one by one.
constexpr int64_t kLeastPage = 16;

// Every row of wide.inc in this build, narrow widths first.
const std::vector<WideInstance90>& instances() {
  static const std::vector<WideInstance90> rows = {
#define FOVEA_INSTANCE(...) wide_sm90_instance<WideConfig90 __VA_ARGS__>(),
#include "instances/attention_wide_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

// Extents of the first axes of k and v.
struct Stored {
  int64_t caches, tokens, heads;
  explicit Stored(const Attend& a)
      : caches(a.sequences.page ? a.sequences.pool : a.sequences.caches),
        tokens(a.sequences.page ? a.sequences.page : a.t),
        heads(a.g) {}
};

// With q_value, where K is (v, k), and of codes the widest.
const WideInstance90* find(const Attend& a) {
  const bool rich = a.spans() || a.score.softcap > 0, shared = v_in_k(a);
  for (const WideInstance90& row : instances()) {
    const WideConfig90& c = row.config;
    if (c.dtype != a.dtype || c.span != rich || c.codes != a.codes()) continue;
    if (a.q_value || a.codes()
            ? c.v_in_k && c.d == kWidest
            : a.d <= c.d && (!c.v_in_k || shared) && (c.v_in_k || !shared || a.d <= kNarrow))
      return &row;
  }
  return nullptr;
}

// Whether rows of keys are copied one by one: codes; pages of which a tile holds no whole number,
// nor they of it; or sequences that do not begin with a page.
bool gathers(const Attend& a) {
  const int64_t page = a.sequences.page;
  if (a.codes()) return true;
  return page && (page < kLeastPage || (page < kKeys ? kKeys % page : page % kKeys) ||
                  a.sequences.key_first);
}

// Of codes what a row sees is the keys of one window.
Text coded_refuse(const Attend& a) {
  if (Text why = codes_refuse(a); !why.empty()) return why;
  const char* field = uncoded(a).not_plain();
  return field ? reason_given(field) : Text();
}

Text refuses(const Context& ctx, const Attend& given) {
  const Attend a = given.q_value || given.codes() ? uncoded(given) : given;
  if (Text why = hopper_refuses(ctx, a); !why.empty()) return why;
  if (given.q_value) {
    if (Text why = joined_refuses(given); !why.empty()) return why;
  } else if (a.d <= kNarrow && a.e <= kNarrow) {
    return Text("d is ") + Text::number(a.d) + " and e is " + Text::number(a.e) +
           ", wanted one above " + Text::number(kNarrow) + ", or q_value";
  }
  if (given.codes())
    if (Text why = coded_refuse(given); !why.empty()) return why;
  if (a.d > kWidest) return reason("d", a.d, "at most " + Text::number(kWidest));
  if (a.e > kValues) return reason("e", a.e, "at most " + Text::number(kValues));
  if (const char* field = a.without_spans().not_plain()) return reason_given(field);
  if (Text why = spans_refuse(a); !why.empty()) return why;
  // TMA has no empty tensor: it would read one row.
  const Sequences& s = a.sequences;
  if (!s.capacity || !s.caches || (s.page && !s.pool)) return "there are no keys";
  if (s.query_max * (a.h / a.g) > kIndexMax) return "more than 2^30 rows of a key head";
  if (s.capacity > kIndexMax || s.pool > INT_MAX) return "more than 2^30 keys in a sequence";
  const int64_t rows[3] = {a.b, a.s, a.h};
  if (!in_pieces(a.q, rows, 8)) return reason_rows("q");
  if (!in_pieces(a.o, rows, a.o_dtype == FOVEA_F32 ? 4 : 8)) return reason_rows("o");
  if (gathers(given)) {
    const Stored stored(a);
    const int64_t keys[3] = {stored.caches, stored.tokens, stored.heads};
    if (!in_pieces(a.k, keys, given.k_dtype == a.dtype ? 8 : kPiece)) return reason_rows("k");
    if (!in_pieces(a.v, keys, given.v_dtype == a.dtype ? 8 : kPiece)) return reason_rows("v");
  }
  return "";
}

// The splits that end soonest, counted in key tiles.  A work item costs its own and kWorkTiles
// more. The merge costs kMergeTiles, and a tile for every kTileSums that splits write for it;
// `sums` are those of one.
int64_t best_splits(int64_t items, int64_t key_tiles, int64_t sums, int64_t multiprocessors) {
  constexpr int64_t kWorkTiles = 3, kMergeTiles = 3, kTileSums = 1 << 19, kMost = 128;
  const auto cost = [&](int64_t splits) {
    return ceil_div(items * splits, multiprocessors) * (ceil_div(key_tiles, splits) + kWorkTiles) +
           (splits > 1 ? kMergeTiles + ceil_div(splits * sums, kTileSums) : 0);
  };
  int64_t best = 1;
  for (int64_t s = 2; s <= std::min(key_tiles, kMost); ++s)
    if (cost(s) < cost(best)) best = s;
  return best;
}

// The row tiles of a key head, its heads packed, and the splits of each.
Text arrange(const Context& ctx, const Attend& a, WideWork90& work) {
  const DeviceInfo& device = device_info(ctx);
  const int64_t group = a.h / a.g, rows = a.sequences.query_max * group;
  const bool masked = a.mask.window.right > 0 || a.mask.head_window || a.mask.window.chunk;
  const int64_t row_tiles = ceil_div(rows, kRows), heads = a.sequences.count * a.g;
  const int64_t most = key_tiles_bound(a, ceil_div(kRows, group) + 1, kKeys);
  const int64_t sums = heads * rows * a.e;
  const int64_t wanted =
      a.splits ? a.splits : best_splits(heads * row_tiles, most, sums, device.multiprocessors);
  const int64_t splits = clamp_i64(wanted, 1, std::max<int64_t>(most, 1));
  if (heads * row_tiles * splits > INT_MAX) return "more than 2^31 work items";
  work.grid = {row_tiles, a.g, static_cast<int32_t>(splits), static_cast<int32_t>(group), masked};
  const int64_t values = !a.q_value && v_in_k(a) ? 0 : a.e * dtype_bytes(a.v_dtype),
                bytes = a.sequences.key_max * (a.d * dtype_bytes(a.k_dtype) + values);
  work.order = {static_cast<int32_t>(row_tiles),
                static_cast<int32_t>(heads),
                static_cast<int32_t>(splits),
                section_of(heads, 1, bytes, device.l2_bytes, masked),
                static_cast<int32_t>(masked ? row_tiles / 4 : 0),
                masked};
  work.schedule.items = static_cast<int32_t>(work.order.items());
  return "";
}

// K and V as boxes of a key tile.
Text map_keys(const Attend& a, WideMaps& maps) {
  maps.gather = gathers(a);
  maps.pages = {kKeys, 1, 1, 0, 0};
  if (maps.gather) return "";
  const Stored stored(a);
  const int64_t page = a.sequences.page;
  if (page)
    maps.pages = {static_cast<int32_t>(std::min<int64_t>(page, kKeys)),
                  static_cast<int32_t>(page < kKeys ? kKeys / page : 1),
                  static_cast<int32_t>(ceil_div(page, kKeys)), 0, 0};
  const auto map = [&](const View<4>& x, int64_t width) {
    return MapOf{x, a.dtype, stored.caches, stored.tokens, stored.heads, width, maps.pages.rows,
                 1, kColumns};
  };
  return map_each({{"k", map(a.k, a.d), maps.k}, {"v", map(a.v, a.e), maps.v}});
}

Text offer(const Context& ctx, const Attend& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  const WideInstance90* instance = find(a);
  if (!instance) return no_instance(a.dtype, "d", a.d, "e", a.e);
  WideWork90 work{};
  if (Text why = arrange(ctx, a, work); !why.empty()) return why;
  if (Text why = map_keys(a, work.maps); !why.empty()) return why;
  work.columns = {code_shift(a)};
  const WideConfig90& config = instance->config;
  plan.kernel += Text(".") + dtype_name(a.dtype) + ".d" + Text::number(config.d) +
                 (a.q_value       ? ".q_value"
                  : config.v_in_k ? ".v_in_k"
                                  : "") +
                 (config.codes ? Text(".") + dtype_name(a.v_dtype) : Text()) +
                 (config.span ? ".span" : "") +
                 (work.maps.gather && !config.codes ? ".gather" : "");
  PartialSlots slots;
  if (work.order.splits > 1) slots = PartialSlots(plan.workspace, a, work.order.splits);
  plan.launch = [a, work, slots, instance](Context& ctx, void* workspace) {
    WideWork90 now = work;
    const int items = now.schedule.items, splits = now.order.splits;
    if (items > device_info(ctx).multiprocessors) now.schedule.counters = counters(ctx);
    if (splits > 1) now.parts = slots.at(workspace, a, splits);
    instance->launch(ctx, a, now);
    if (splits > 1) combine(ctx, "attention_forward", a, now.parts);
  };
  return "";
}

}  // namespace

extern const Kernel<Attend> attention_forward_wide_sm90 = {"sm90_wide", offer};

}  // namespace fovea
