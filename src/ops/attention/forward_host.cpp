// SPDX-License-Identifier: Apache-2.0
// attention_forward on the CPU: o = softmax(scale q k' + ...) v by the online softmax.
//   An item of work is (sequence, key head, tile of packed rows, part of the keys).  It walks its
//   key tiles: x = k q' (rows in lanes, so the softmax runs down columns and needs no shuffles),
//   finish_scores, softmax, o = shrink o + x' v.  Parts are combined in order by a second pass.
//   Which parts and tiles there are depends on shapes and lengths alone, never on the threads.
//   FlashAttention-2 (2307.08691), FlashDecoding.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "host/device.h"
#include "ops/attention/kernels.h"
#include "ops/attention/tile_host.h"

namespace fovea {
namespace {

using namespace attend_host;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kItemsWanted = 32;  // auto splits: items that keep a large machine busy
constexpr int64_t kSplitKeys = 512;   // and the least keys worth a part of their own
constexpr int kDotRows = 4;           // up to here a tile's lanes would mostly be empty

struct Room {
  Slot<float> rows, q, q_value, x, o, k, v;
};

struct ForwardPlan {
  Attend a;
  int64_t parts;
  size_t worker_bytes;
  Room room;  // within a worker's bytes
  Slot<int64_t> tile_begin;
  Slot<float> part_o, part_state;  // state: top, sum
  Slot<unsigned char> scratch;
};

// Unnormalised state of a tile: o rows of e_pad, top in units of log2.
struct RowState {
  float top[kRows], sum[kRows];
};

int64_t parts_of(const Attend& a) {
  const int64_t key_tiles = std::max<int64_t>(1, ceil_div(a.sequences.key_max, kKeys));
  if (a.splits) return std::min<int64_t>(a.splits, key_tiles);
  const int64_t group = a.g ? a.h / a.g : 1;
  const int64_t items = a.sequences.count * a.g * ceil_div(a.sequences.query_max * group, kRows);
  if (items == 0 || items >= kItemsWanted) return 1;
  return std::max<int64_t>(
      1, std::min(ceil_div(kItemsWanted, items), a.sequences.key_max / kSplitKeys));
}

class Forward {
 public:
  Forward(const ForwardPlan& plan, void* base) : plan_(plan), call_(plan.a), base_(base) {}

  void run(Context& ctx) {
    const Attend& a = call_.a;
    int64_t* tile_begin = plan_.tile_begin.at(base_);
    double cost = 0;
    tile_begin[0] = 0;
    for (int64_t r = 0; r < a.sequences.count; ++r) {
      const Sequence q = a.sequences[r];
      tile_begin[r + 1] = tile_begin[r] + ceil_div(q.rows * call_.group, kRows);
      cost += static_cast<double>(q.rows) * a.h * (q.keys + 16.0) * (a.d + a.e);
    }
    cost /= 25;  // flops a nanosecond, low enough for the slowest instruction set
    const int64_t tiles = tile_begin[a.sequences.count];
    host::Pool& pool = host::pool(ctx);
    pool.run(tiles * a.g * plan_.parts, cost, [&](int64_t item, int32_t worker) {
      attend(item / (a.g * plan_.parts), item % plan_.parts, item, worker);
    });
    if (plan_.parts > 1)
      pool.run(tiles * a.g, static_cast<double>(tiles) * a.h * plan_.parts * a.e,
               [&](int64_t item, int32_t) { combine(item / a.g, item); });
  }

 private:
  // The item's sequence is where its number falls; within it: key head, then tile, the last tile
  // first because causal rows at the end have most keys, then part.
  struct Place {
    int64_t r, key_head, tile;
  };
  Place place(int64_t at, int64_t tile_item) const {
    const int64_t* begin = plan_.tile_begin.at(base_);
    const int64_t* found = std::upper_bound(begin, begin + call_.a.sequences.count + 1, at) - 1;
    const int64_t tiles = found[1] - found[0];
    const int64_t within = tile_item - found[0] * call_.a.g;
    return {found - begin, within / tiles, tiles - 1 - within % tiles};
  }

  RowTile row_tile(const Sequence& q, const Place& at) const {
    const int64_t begin = at.tile * kRows;
    return RowTile(call_, q, at.key_head * call_.group, call_.group, begin,
                   std::min<int64_t>(kRows, q.rows * call_.group - begin));
  }

  int64_t row_index(const Sequence& q, const RowTile& rows, int r) const {
    return (q.batch * call_.a.s + q.row_begin + rows.row[r]) * call_.a.h + rows.head[r];
  }

  void attend(int64_t at, int64_t part, int64_t item, int32_t worker) {
    const Place where = place(at, item / plan_.parts);
    const Sequence q = call_.a.sequences[where.r];
    const RowTile rows = row_tile(q, where);
    void* room = plan_.scratch.at(base_) + static_cast<size_t>(worker) * plan_.worker_bytes;
    float* o = plan_.room.o.at(room);
    RowState state;
    std::fill_n(state.top, kRows, -kInf);
    std::fill_n(state.sum, kRows, 0.0f);
    std::fill_n(o, rows.count * call_.e_pad, 0.0f);

    const int64_t part_keys = host::part_keys(q.keys, plan_.parts, kKeys);
    const int64_t last = std::min(rows.end, (part + 1) * part_keys);
    load_queries(q, rows, room);
    for (int64_t j = std::max(rows.begin, part * part_keys); j < last; j += kKeys) {
      const int64_t count = std::min<int64_t>(kKeys, last - j);
      const Cover cover = rows.cover(j, j + count);
      if (cover != Cover::none) visit(where.r, q, rows, j, count, cover, room, state);
    }

    for (int r = 0; r < rows.count; ++r) {
      if (plan_.parts == 1) {
        finish(q, rows, r, o + r * call_.e_pad, state.top[r], state.sum[r]);
      } else {
        const int64_t to = part * row_count() + row_index(q, rows, r);
        float* saved = plan_.part_state.at(base_) + 2 * to;
        saved[0] = state.top[r], saved[1] = state.sum[r];
        if (state.sum[r] != 0)
          std::copy_n(o + r * call_.e_pad, call_.a.e, plan_.part_o.at(base_) + to * call_.a.e);
      }
    }
  }

  int64_t row_count() const { return call_.a.b * call_.a.s * call_.a.h; }

  void load_queries(const Sequence& q, const RowTile& rows, void* room) const {
    const Attend& a = call_.a;
    const auto load = [&](const View<4>& from, int64_t width, int64_t width_pad, float* columns) {
      float* staged = plan_.room.rows.at(room);
      for (int r = 0; r < rows.count; ++r) {
        float* to = staged + r * width_pad;
        load_row(call_.simd, from.data, a.dtype,
                 q.batch * from.stride[0] + (q.row_begin + rows.row[r]) * from.stride[1] +
                     rows.head[r] * from.stride[2],
                 from.stride[3], width, to);
        call_.simd.scale(width, to, a.score.scale, to);
      }
      if (columns) transpose(staged, width_pad, rows.count, width, rows.lanes, columns);
    };
    if (a.q_value) load(a.q_value, a.e, call_.e_pad, plan_.room.q_value.at(room));
    load(a.q, a.d, call_.d_pad, by_dots(rows) ? nullptr : plan_.room.q.at(room));
  }

  bool by_dots(const RowTile& rows) const { return rows.count <= kDotRows && !call_.a.q_value; }

  void visit(int64_t sequence, const Sequence& q, const RowTile& rows, int64_t begin, int64_t count,
             Cover cover, void* room, RowState& state) const {
    const Attend& a = call_.a;
    const int64_t lanes = rows.lanes, e_pad = call_.e_pad;
    float* x = plan_.room.x.at(room);
    float* o = plan_.room.o.at(room);
    KeyTile keys;
    load_keys(call_, q, rows.key_head, begin, count,
              {true, true, false, true, rows.count <= kDotRows},
              {plan_.room.k.at(room), plan_.room.v.at(room)}, keys);
    if (by_dots(rows)) {
      std::fill_n(x, count * lanes, 0.0f);
      call_.simd.dots(count, rows.count, a.d, keys.k, keys.k_row, plan_.room.rows.at(room),
                      call_.d_pad, x, lanes);
    } else {
      call_.simd.gemm({count, lanes, a.d, keys.k, keys.k_row, plan_.room.q.at(room), lanes, x,
                       lanes, nullptr, false, false});
    }
    if (a.q_value)
      call_.simd.gemm({count, lanes, a.e, keys.v, keys.v_row, plan_.room.q_value.at(room), lanes, x,
                       lanes, nullptr, false, true});
    const bool masked = finish_scores(call_, sequence, q, rows, keys, cover, x, nullptr);

    float shrink[kRows];
    // 0 * NaN is NaN: a value no row may see has to stay out of the product.
    if (masked && !call_.simd.finite(count, a.e, keys.v, keys.v_row)) {
      bool seen[kKeys * kRows];
      for (int64_t i = 0; i < count * lanes; ++i) seen[i] = x[i] != -kInf;
      call_.simd.softmax(count, lanes, x, state.top, state.sum, shrink);
      for (int r = 0; r < rows.count; ++r) {
        call_.simd.scale(e_pad, o + r * e_pad, shrink[r], o + r * e_pad);
        for (int64_t j = 0; j < count; ++j)
          if (seen[j * lanes + r])
            for (int64_t c = 0; c < a.e; ++c)
              o[r * e_pad + c] += x[j * lanes + r] * keys.v[j * keys.v_row + c];
      }
      return;
    }
    call_.simd.softmax(count, lanes, x, state.top, state.sum, shrink);
    call_.simd.gemm(
        {rows.count, e_pad, count, x, lanes, keys.v, keys.v_row, o, e_pad, shrink, true, true});
  }

  // The sink logit enters here, once; o / (sum of exp), and ln of it.
  void finish(const Sequence& q, const RowTile& rows, int r, const float* o, float top,
              float sum) const {
    const Attend& a = call_.a;
    const int64_t h = rows.head[r], row = q.row_begin + rows.row[r];
    double factor = 0, lse = -kInf;
    const double m = static_cast<double>(top) * M_LN2;
    if (a.score.sink_logit) {
      const double sink = a.score.sink_logit.as()[h * a.score.sink_logit.stride[0]];
      if (sum == 0) {
        lse = sink;
      } else {
        const double high = sink > m ? sink : m;
        const double total = sum * std::exp(m - high) + std::exp(sink - high);
        lse = high + std::log(total);
        factor = std::exp(m - high) / total;
      }
    } else if (sum != 0) {
      lse = m + std::log(static_cast<double>(sum));
      factor = 1 / static_cast<double>(sum);
    }
    store_row(a.o.data, a.o_dtype,
              q.batch * a.o.stride[0] + row * a.o.stride[1] + h * a.o.stride[2], a.o.stride[3], a.e,
              o, static_cast<float>(factor));
    if (a.lse)
      a.lse.as()[q.batch * a.lse.stride[0] + h * a.lse.stride[1] + row * a.lse.stride[2]] =
          static_cast<float>(lse);
  }

  void combine(int64_t at, int64_t item) const {
    const Place where = place(at, item);
    const Sequence q = call_.a.sequences[where.r];
    const RowTile rows = row_tile(q, where);
    const int64_t e = call_.a.e;
    const float* state = plan_.part_state.at(base_);
    for (int r = 0; r < rows.count; ++r) {
      const int64_t row = row_index(q, rows, r);
      const auto saved = [&](int64_t part) { return state + 2 * (part * row_count() + row); };
      float top = -kInf, sum = 0;
      for (int64_t part = 0; part < plan_.parts; ++part) top = std::max(top, saved(part)[0]);
      float o[kWidthMost];
      std::fill_n(o, e, 0.0f);
      for (int64_t part = 0; part < plan_.parts; ++part) {
        if (saved(part)[1] == 0) continue;
        const float weight = std::exp2(saved(part)[0] - top);
        const float* from = plan_.part_o.at(base_) + (part * row_count() + row) * e;
        sum += weight * saved(part)[1];
        for (int64_t c = 0; c < e; ++c) o[c] += weight * from[c];
      }
      finish(q, rows, r, o, top, sum);
    }
  }

  static constexpr int64_t kWidthMost = 1024;

  const ForwardPlan& plan_;
  const Call call_;
  void* base_;
};

std::string refuses(const Context&, const Attend& a) {
  if (a.e > 1024) return "e = " + std::to_string(a.e) + " is above 1024";
  return "";
}

std::string offer(const Context& ctx, const Attend& a, Plan& plan) {
  if (std::string why = refuses(ctx, a); !why.empty()) return why;
  const Call call(a);
  ForwardPlan p{};
  p.a = a;
  p.parts = parts_of(a);

  Layout worker;
  p.room.rows = worker.add<float>(kRows * std::max(call.d_pad, a.q_value ? call.e_pad : 0));
  p.room.q = worker.add<float>(kRows * a.d);
  p.room.q_value = worker.add<float>(a.q_value ? kRows * a.e : 0);
  p.room.x = worker.add<float>(kRows * kKeys);
  p.room.o = worker.add<float>(kRows * call.e_pad);
  p.room.k = worker.add<float>(kKeys * call.d_pad);
  p.room.v = worker.add<float>(kKeys * call.e_pad);
  p.worker_bytes = worker.bytes();
  const double tiles_most =
      static_cast<double>(a.sequences.count) *
      static_cast<double>(ceil_div(a.sequences.query_max * call.group, kRows)) *
      static_cast<double>(a.g * p.parts);
  const int64_t workers = host::workers_for(ctx, tiles_most);

  p.tile_begin = plan.workspace.add<int64_t>(a.sequences.count + 1);
  const int64_t saved = p.parts > 1 ? a.b * a.s * a.h : 0;
  p.part_o = plan.workspace.add<float>(saved, p.parts, a.e);
  p.part_state = plan.workspace.add<float>(saved, p.parts, 2);
  p.scratch = plan.workspace.add_all(worker, workers);

  plan.kernel +=
      std::string(".") + call.simd.name + "." + dtype_name(a.dtype) + ".d" + std::to_string(a.d);
  plan.launch = [p](Context& context, void* base) { Forward(p, base).run(context); };
  return "";
}

}  // namespace

extern const Kernel<Attend> attention_forward_host = {"", offer};

}  // namespace fovea
