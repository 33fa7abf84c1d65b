// SPDX-License-Identifier: Apache-2.0
// The choice among the Hopper instances of quant_forward, their grids and tensor maps.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/chunk.h"
#include "core/dtype.h"
#include "core/reasons.h"
#include "cuda/launch.h"
#include "cuda/loop/feed_sm90.cuh"
#include "cuda/loop/hopper.h"
#include "ops/quant/forward.cuh"
#include "ops/quant/listed.cuh"

namespace fovea {
namespace {

using namespace cuda;

// Every row of paged.inc and of page_runs.inc in this build, narrow widths first.
struct PagedInstances {
  std::vector<QuantInstance90> floats, mixed, runs;

  template <QuantConfig90 C>
  void add() {
    (C.dtype == FOVEA_I8 ? mixed : floats).push_back(quant_paged_sm90_instance<C>());
  }
  PagedInstances() {
#define FOVEA_INSTANCE(...) add<QuantConfig90 __VA_ARGS__>();
#include "instances/quant_paged_sm90.inc"
#undef FOVEA_INSTANCE
#define FOVEA_INSTANCE(...) runs.push_back(quant_runs_sm90_instance<QuantConfig90 __VA_ARGS__>());
#include "instances/quant_page_runs_sm90.inc"
#undef FOVEA_INSTANCE
  }
};
const PagedInstances& paged_rows() {
  static const PagedInstances rows;
  return rows;
}
// Keys of a tile's part of 64 may lie in several pages.
bool in_runs(const QuantAttend& a) {
  return a.attend.sequences.page % kTileKeys;
}

// Every row in this build that is for the keys of a call, narrow widths first: e4m3; i8 with v of
// e4m3, with delta or without; i8 alone; i8 with v of 16 bits.
const std::vector<QuantInstance90>& float_rows(const QuantAttend& a) {
  static const std::vector<QuantInstance90> rows = {
#define FOVEA_INSTANCE(...) quant_sm90_instance<QuantConfig90 __VA_ARGS__>(),
#include "instances/quant_forward_sm90.inc"
  };
  if (!a.paged()) return rows;
  return in_runs(a) ? paged_rows().runs : paged_rows().floats;
}
const std::vector<QuantInstance90>& mixed_rows(const QuantAttend& a) {
  static const std::vector<QuantInstance90> rows = {
#include "instances/quant_forward_i8_sm90.inc"
#undef FOVEA_INSTANCE
  };
  static const std::vector<QuantInstance90> deltas = {
#define FOVEA_INSTANCE(...) quant_delta_sm90_instance<QuantConfig90 __VA_ARGS__>(),
#include "instances/quant_forward_delta_sm90.inc"
#undef FOVEA_INSTANCE
  };
  if (a.delta) return deltas;
  return a.paged() ? paged_rows().mixed : rows;
}
const std::vector<QuantInstance90>& integer_rows(const QuantAttend&) {
  static const std::vector<QuantInstance90> rows = {
#define FOVEA_INSTANCE(...) quant_integer_sm90_instance<IntegerConfig90 __VA_ARGS__>(),
#include "instances/quant_forward_integer_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}
// Of forward_half.inc: those of v's dtype.
struct HalfInstances {
  std::vector<QuantInstance90> f16, bf16;

  template <HalfConfig90 C>
  void add() {
    (C.dtype == FOVEA_F16 ? f16 : bf16).push_back(quant_half_sm90_instance<C>());
  }
  HalfInstances() {
#define FOVEA_INSTANCE(...) add<HalfConfig90 __VA_ARGS__>();
#include "instances/quant_forward_half_sm90.inc"
#undef FOVEA_INSTANCE
  }
};
const std::vector<QuantInstance90>& half_rows(const QuantAttend& a) {
  static const HalfInstances rows;
  return a.v_kind == ValueKind::f16 ? rows.f16 : rows.bf16;
}

// Every row of listed.inc in this build, narrow widths first.
const std::vector<QuantListInstance90>& list_instances() {
  static const std::vector<QuantListInstance90> rows = {
#define FOVEA_INSTANCE(...) quant_list_sm90_instance<QuantConfig90 __VA_ARGS__>(),
#include "instances/quant_listed_sm90.inc"
#undef FOVEA_INSTANCE
  };
  return rows;
}

template <class Instance>
const Instance* find(const Attend& a, const std::vector<Instance>& rows) {
  for (const Instance& row : rows)
    if (a.d <= row.width && a.e <= row.width) return &row;
  return nullptr;
}

// "" or why TMA cannot read an operand.
Text map_codes(const QuantAttend& a, const ByteTiles90& row, CodeMaps& maps) {
  const Attend& call = a.attend;
  const int64_t caches = a.paged() ? call.sequences.pool : call.sequences.caches;
  const bool runs = in_runs(a);
  const int run = run_box(call.sequences.page), keys = runs ? run : row.keys;
  // (b, g, e, padded) as rows of one head: (b, e, g, padded).
  const int64_t* v = a.v_t.stride;
  const View<4> v_rows{a.v_t.data, {v[0], v[2], v[1], v[3]}};
  const int32_t half = a.v_kind == ValueKind::f16 ? FOVEA_F16 : FOVEA_BF16;
  const MapOf columns{v_rows,
                      FOVEA_E4M3,
                      caches,
                      call.e,
                      call.g,
                      a.padded,
                      row.width,
                      1,
                      runs ? run : row.v_panel,
                      runs ? Interleave::runs : Interleave::none};
  const MapOf values{call.v, half, caches, call.t, call.g, call.e, keys, 1, row.v_panel};
  return map_each(
      {{"q",
        {call.q, FOVEA_E4M3, call.b, call.s, call.h, call.d, row.rows, 1, row.q_panel},
        maps.q},
       {"k", {call.k, FOVEA_E4M3, caches, call.t, call.g, call.d, keys, 1, row.q_panel}, maps.k},
       {a.v_t ? "v_t" : "v", a.v_t ? columns : values, maps.v}});
}

QuantWork work_of(const Context& ctx, const QuantAttend& a, const ByteTiles90& row) {
  const Attend& call = a.attend;
  const DeviceInfo& device = device_info(ctx);
  const int64_t row_tiles = ceil_div(call.sequences.query_max, row.rows);
  const int64_t heads = call.sequences.count * call.h;
  const bool causal = call.mask.window.right > 0;
  const int64_t key_bytes = call.d + call.e * (a.v_t ? 1 : 2);
  const int32_t section = section_of(heads, call.h / call.g, call.sequences.key_max * key_bytes,
                                     device.l2_bytes, causal);
  const TileOrder order{static_cast<int32_t>(row_tiles),
                        static_cast<int32_t>(heads),
                        1,
                        section,
                        static_cast<int32_t>(causal ? row_tiles / 4 : 0),
                        causal};
  return {{row_tiles, call.h, 1, 1, causal}, order, {static_cast<int32_t>(order.items()), nullptr}};
}

// "" or a distance that offsets of 32 bits do not hold.
Text blocks_refuse(const char* name, const ScaleAxis& axis) {
  if (axis.each() * axis.scale.stride[2] <= kIndexMax / 4) return "";
  return Text("blocks of ") + name + " lie 2^30 bytes apart or more";
}

// "" or what TMA and the sweep do not read of pages.
Text pages_refuse(const QuantAttend& a) {
  const int64_t page = a.attend.sequences.page;
  if (!page) return "";
  const int64_t least = a.kind == ValueKind::i8 ? kTileKeys : 16;
  if (page % least) return reason("page", page, "a multiple of " + Text::number(least));
  if (page % kTileKeys && a.k_axis.scale && !a.one_scale(a.k_axis))
    return "k_scale is not one of all keys, page is " + Text::number(page) +
           ", wanted a multiple of " + Text::number(kTileKeys);
  if (a.v_axis.scale && !a.shared_by_pages(a.v_axis.scale.stride[0]))
    return "v_scale is not one of all keys";
  if (!a.attend.sequences.pool) return "there are no pages";
  return blocks_refuse("k_scale", a.k_axis);
}

// "" or what v is not.
Text permuted_refuses(const QuantAttend& a, ValueKind kind, const char* words) {
  if (!a.v_t || !a.permuted)
    return "v_t of code_order FOVEA_CODE_ORDER_V_PERM16 is not given, wanted in place of v";
  return a.v_kind == kind ? "" : words;
}

// "" or what is not e4m3 with one scale for all keys, in a row or in pages.
Text values_refuse(const QuantAttend& a) {
  if (Text why = permuted_refuses(a, ValueKind::e4m3, "v_t is not e4m3"); !why.empty()) return why;
  if (a.v_axis.block || a.v_axis.micro_t()) return "v_scale is not one of all keys";
  return pages_refuse(a);
}

// "" or what is not FlashAttention-3's.
Text float_refuses(const QuantAttend& a) {
  if (Text why = values_refuse(a); !why.empty()) return why;
  if (a.kind != ValueKind::e4m3) return "q and k are not e4m3";
  if (a.p_format != FOVEA_P_FORMAT_E4M3_256) return "p_format is not FOVEA_P_FORMAT_E4M3_256";
  if (a.delta) return reason_given("delta");
  if (a.k_mean) return reason_given("k_mean");
  const auto blocks = [](const ScaleAxis& axis) {
    return axis.group == FOVEA_SCALE_GROUP_BLOCK &&
           (axis.block == 0 || axis.block == 64 || axis.block == kCodeRun);
  };
  if (!blocks(a.q_axis) || !blocks(a.k_axis)) return "scales are not of blocks of 0, 64 or 128";
  if (a.v_axis.group != FOVEA_SCALE_GROUP_BLOCK) return "v_group is not block";
  return "";
}

// Blocks of all tokens, or of a power of two from `least` on.
bool shifts(const ScaleAxis& axis, int64_t least) {
  return !axis.block || (axis.block >= least && !(axis.block & (axis.block - 1)));
}

// "" or what is not i8 q and k with scales of theirs.
Text codes_refuse(const QuantAttend& a) {
  if (a.kind != ValueKind::i8) return "q and k are not i8";
  const auto grouped = [](const ScaleAxis& axis) {
    return axis.group <= FOVEA_SCALE_GROUP_THREAD_K;
  };
  if (!grouped(a.q_axis) || !shifts(a.q_axis, 16))
    return "q_group is neither block nor thread_q of 0 or a power of two";
  if (!grouped(a.k_axis) || !shifts(a.k_axis, 64))
    return "k_group is neither block nor thread_k of 0 or a power of two from 64 on";
  if (!a.q_axis.scale || !a.k_axis.scale) return "q_scale or k_scale is not given";
  if (Text why = blocks_refuse("k_scale", a.k_axis); !why.empty()) return why;
  if (a.paged() && a.k_mean && !a.shared_by_pages(a.k_mean.stride[0]))
    return "k_mean is not one of all pages";
  if (!a.k_mean || !a.shows_constants()) return "";
  if (!chunked(a.k_mean, 4, 4)) return reason_rows("k_mean");
  const size_t bytes = a.q_plain_dtype == FOVEA_F32 ? 4 : 2;
  if (a.q_plain && !chunked(a.q_plain, bytes, static_cast<int>(16 / bytes)))
    return reason_rows("q_plain");
  return "";
}

// "" or what is not SageAttention2's.
Text mixed_refuses(const QuantAttend& a) {
  if (Text why = values_refuse(a); !why.empty()) return why;
  if (a.p_format != FOVEA_P_FORMAT_E4M3_448) return "p_format is not FOVEA_P_FORMAT_E4M3_448";
  if (a.delta && a.delta.stride[3] > kIndexMax) return "keys of delta lie 2^32 bytes apart or more";
  return codes_refuse(a);
}

// "" or what is not SageBwd's.
Text integer_refuses(const QuantAttend& a) {
  if (Text why = permuted_refuses(a, ValueKind::i8, "v_t is not i8"); !why.empty()) return why;
  if (a.delta) return reason_given("delta");
  if (a.paged()) return reason_given("page_table");
  if (Text why = codes_refuse(a); !why.empty()) return why;
  if (a.k_axis.group != FOVEA_SCALE_GROUP_BLOCK) return "k_group is not block";
  if (!a.v_axis.scale) return "v_scale is not given";
  if (a.v_axis.group != FOVEA_SCALE_GROUP_BLOCK || !shifts(a.v_axis, kTileKeys))
    return "v_group is not block of 0 or a power of two from 64 on";
  return blocks_refuse("v_scale", a.v_axis);
}

// "" or what is not SageAttention's: v in 16 bits, as rows.  So p_format is half.
Text half_refuses(const QuantAttend& a) {
  if (a.v_t) return reason_given("v_t");
  if (a.v_kind != ValueKind::f16 && a.v_kind != ValueKind::bf16) return "v is not f16 or bf16";
  if (a.delta) return reason_given("delta");
  if (a.paged()) return reason_given("page_table");
  if (a.v_axis.block) return "v_scale is not one of all keys";
  return codes_refuse(a);
}

// "" or why no instance can serve the call.
Text refuses(const Context& ctx, const QuantAttend& a) {
  const Attend& call = a.attend;
  if (Text why = hopper_refuses(ctx, call.sequences); !why.empty()) return why;
  if (call.score.softcap > 0) return reason_given("softcap");
  if (a.v_mean) return reason_given("v_mean");
  if (!call.h || !call.sequences.count || !call.sequences.caches || !call.t || !call.s)
    return "there are no rows, keys or heads";
  if (Text why = refuse_width("d", call.d, 16); !why.empty()) return why;
  return refuse_width("e", call.e, 8);
}

// The work and the maps of an instance: "" or why it cannot serve the call.
Text prepare(const Context& ctx, const QuantAttend& a, const ByteTiles90* row, QuantWork& work,
             CodeMaps& maps) {
  const Attend& call = a.attend;
  if (!row)
    return no_instance(a.kind == ValueKind::i8 ? FOVEA_I8 : FOVEA_E4M3, "d", call.d, "e", call.e);
  const size_t o_bytes = static_cast<size_t>(dtype_bytes(call.o_dtype));
  if (!chunked(call.o, o_bytes, static_cast<int>(16 / o_bytes))) return reason_rows("o");
  if (call.sequences.count * call.h * ceil_div(call.sequences.query_max, row->rows) > kIndexMax)
    return "more than 2^30 blocks of work";
  work = work_of(ctx, a, *row);
  return map_codes(a, *row, maps);
}

// Rows of codes side by side, from `data` on.
View<4> dense(void* data, int64_t rows, int64_t heads, int64_t columns) {
  return {data, {rows * heads * columns, heads * columns, columns, 1}};
}
// A call of i4 as one of i8, whose codes are at `q` and `k`.
QuantAttend unpacked(QuantAttend a, void* q, void* k) {
  Attend& call = a.attend;
  call.q = dense(q, call.s, call.h, call.d), call.k = dense(k, call.t, call.g, call.d);
  a.kind = ValueKind::i8;
  return a;
}
// "" or which packed rows cannot be read by pieces of 8 bytes.
Text unpacking_refuses(const QuantAttend& a) {
  for (const auto& [x, name] : {std::pair{&a.attend.q, "q"}, std::pair{&a.attend.k, "k"}})
    if (!chunked(*x, 1, 8))
      return Text(name) + " has rows that are not contiguous and 8-byte aligned";
  if (reinterpret_cast<uintptr_t>(a.v_t.data) % 16) return reason_rows("v_t");
  return "";
}

// With the counters that many work items need.
QuantWork scheduled(Context& ctx, QuantWork work) {
  if (work.schedule.items > device_info(ctx).multiprocessors)
    work.schedule.counters = counters(ctx);
  return work;
}

// What the name of a call's kernel ends with.
Text ending(const QuantAttend& a, int width) {
  const char* const kind = a.delta      ? ".delta.d"
                           : !a.paged() ? ".d"
                           : in_runs(a) ? ".runs.d"
                                        : ".pages.d";
  return kind + Text::number(width);
}

template <Text (*Refuses)(const QuantAttend&),
          const std::vector<QuantInstance90>& (*Rows)(const QuantAttend&)>
Text offer(const Context& ctx, const QuantAttend& a, Plan& plan) {
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  if (Text why = Refuses(a); !why.empty()) return why;
  const QuantInstance90* row = find(a.attend, Rows(a));
  QuantWork work;
  CodeMaps maps;
  if (Text why = prepare(ctx, a, row, work, maps); !why.empty()) return why;
  plan.kernel += ending(a, row->width);
  plan.launch = [a, row, maps, work](Context& ctx, void*) {
    row->launch(ctx, a, scheduled(ctx, work), maps);
  };
  return "";
}

// Codes of 4 bits as i8 in the workspace.
Text offer_packed(const Context& ctx, const QuantAttend& a, Plan& plan) {
  if (a.kind != ValueKind::i4) return "q and k are not i4";
  if (a.paged()) return reason_given("page_table");
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  if (Text why = unpacking_refuses(a); !why.empty()) return why;
  // Planning has no workspace: any aligned address stands for it.
  const QuantAttend codes = unpacked(a, a.v_t.data, a.v_t.data);
  if (Text why = mixed_refuses(codes); !why.empty()) return why;
  const QuantInstance90* row = find(a.attend, mixed_rows(codes));
  QuantWork work;
  CodeMaps maps;
  if (Text why = prepare(ctx, codes, row, work, maps); !why.empty()) return why;
  plan.kernel += ending(a, row->width);
  const Attend& call = a.attend;
  const auto q = plan.workspace.add<int8_t>(call.b, call.s, call.h, call.d);
  const auto k = plan.workspace.add<int8_t>(call.sequences.caches, call.t, call.g, call.d);
  plan.launch = [a, row, work, q, k](Context& ctx, void* base) {
    const QuantAttend codes = unpacked(a, q.at(base), k.at(base));
    CodeMaps maps;
    if (const Text why = map_codes(codes, *row, maps); !why.empty())
      fail(FOVEA_UNSUPPORTED, "quant_forward: %s", why.c_str());
    quant_unpack(ctx, a, q.at(base), k.at(base));
    row->launch(ctx, codes, scheduled(ctx, work), maps);
  };
  return "";
}

// "" or what is no list of whole row tiles.
Text list_refuses(const QuantListed& call, int rows) {
  const SparseList& list = call.list;
  if (call.skip_margin > 0) return reason_given("skip_margin");
  if (list.block_rows != rows) return reason("block_rows", list.block_rows, Text::number(rows));
  if (list.entry_keys != list.block_keys)
    return reason("entry_keys", list.entry_keys, "block_keys");
  if (list.keep > kIndexMax / list.block_keys) return "more than 2^30 keys of a list";
  return "";
}

Text offer_listed(const Context& ctx, const QuantListed& call, Plan& plan) {
  const QuantAttend& a = call.codes;
  if (Text why = refuses(ctx, a); !why.empty()) return why;
  if (Text why = mixed_refuses(a); !why.empty()) return why;
  if (a.delta) return reason_given("delta");
  const QuantListInstance90* row = find(a.attend, list_instances());
  QuantWork work;
  CodeMaps maps;
  if (Text why = prepare(ctx, a, row, work, maps); !why.empty()) return why;
  if (Text why = list_refuses(call, row->rows); !why.empty()) return why;
  plan.kernel += ".d" + Text::number(row->width);
  const SparseAttend lists = call.lists();
  const TileListSlots slots(plan.workspace, lists, kTileKeys, 1, row->rows, 1);
  plan.launch = [call, lists, slots, row, maps, work](Context& ctx, void* base) {
    if (call.skipped)
      check(cudaMemsetAsync(call.skipped, 0, sizeof(int64_t), stream(ctx)), "quant_forward");
    const QuantTiled tiled{call.codes, slots.make(ctx, "quant_forward", lists, base)};
    row->launch(ctx, tiled, scheduled(ctx, work), maps);
  };
  return "";
}

}  // namespace

extern const Kernel<QuantAttend> quant_forward_sm90 = {"sm90", offer<float_refuses, float_rows>};
extern const Kernel<QuantAttend> quant_forward_sm90_i8 = {"sm90_i8",
                                                          offer<mixed_refuses, mixed_rows>};
extern const Kernel<QuantAttend> quant_forward_sm90_i4 = {"sm90_i4", offer_packed};
extern const Kernel<QuantAttend> quant_forward_sm90_integer = {
    "sm90_integer", offer<integer_refuses, integer_rows>};
extern const Kernel<QuantAttend> quant_forward_sm90_half = {"sm90_half",
                                                            offer<half_refuses, half_rows>};
extern const Kernel<QuantListed> quant_listed_sm90_i8 = {"sm90_i8.lists", offer_listed};

}  // namespace fovea
