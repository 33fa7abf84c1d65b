// SPDX-License-Identifier: Apache-2.0
// conv_attention_forward on the CPU, by the online softmax.
//   An item of work is (sequence, head, strip of rows, part of the keys), or where rows are few (a
//   decode step) all heads of a key head that fit a strip.  It slides over its keys:
//   s = k q' of the strip and the kernel_rows - 1 rows above it (rows in lanes), a = s convolved,
//   -inf where a row does not see a key, softmax, o = shrink o + a' v.  A part computes anew the
//   kernel_columns - 1 scores around its bounds.  Parts are combined in order by a second pass.
//   Which parts and strips there are depends on shapes and lengths alone, never on the threads.
//   Multi-Token Attention (2504.00927), FlashAttention-2 (2307.08691), FlashDecoding.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "core/fields.h"
#include "host/device.h"
#include "ops/conv_attention/tile_host.h"

namespace fovea {
namespace {

using namespace conv_host;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kItemsWanted = 32;  // auto splits: items that keep a large machine busy
constexpr int64_t kSplitKeys = 512;   // and the least keys worth a part of their own
constexpr int64_t kFewRows = 4;       // that read v once as it lies
constexpr int64_t kPackRows = 16;     // up to here heads share a strip

struct ForwardPlan {
  ConvAttend c;
  int64_t parts;
  size_t worker_bytes;
  LogitRoom logits;  // this and a, o, v: within a worker's bytes
  Slot<float> a, o, v;
  Slot<int64_t> strip_begin;
  Slot<float> part_o, part_state;  // state: top, sum
  Slot<unsigned char> scratch;
};

// Unnormalised state of a strip: top in units of log2.
struct RowState {
  float top[kLanes], sum[kLanes];
};

// How rows and heads become strips; by shapes alone.
struct Packing {
  int64_t rows;   // of a strip, of each head
  int64_t heads;  // of a strip, at most
  int64_t packs;  // strips for the heads of a key head
  int64_t most;   // strips for the rows of a sequence, at most

  explicit Packing(const Call& call) {
    const int64_t longest = std::max<int64_t>(call.a.sequences.query_max - call.c.history, 0);
    const int64_t above = call.c.above();
    rows = call.own_rows(above), heads = 1;
    if (longest > 0 && longest <= kPackRows) {
      rows = longest;
      // The last head has a vector of lanes in the tile of results.
      heads = std::min(kLanes / (rows + above), (kLanes - call.padded(rows)) / rows + 1);
      heads = clamp_i64(call.group, 1, heads);
    }
    packs = ceil_div(call.group, heads), most = ceil_div(longest, rows);
  }
};

int64_t parts_of(const Call& call, const Packing& pack) {
  const Sequences& q = call.a.sequences;
  const int64_t key_tiles = std::max<int64_t>(1, ceil_div(q.key_max, kKeys));
  if (call.a.splits) return std::min<int64_t>(call.a.splits, key_tiles);
  const int64_t items = q.count * call.a.g * pack.packs * pack.most;
  if (items == 0 || items >= kItemsWanted) return 1;
  return std::max<int64_t>(1, std::min(ceil_div(kItemsWanted, items), q.key_max / kSplitKeys));
}

class Forward {
 public:
  Forward(const ForwardPlan& plan, void* base)
      : plan_(plan), call_(plan.c), c_(call_.c), a_(call_.a), pack_(call_), base_(base) {}

  void run(Context& ctx) {
    int64_t* strip_begin = plan_.strip_begin.at(base_);
    double cost = 0;
    strip_begin[0] = 0;
    for (int64_t r = 0; r < a_.sequences.count; ++r) {
      const Sequence q = a_.sequences[r];
      const int64_t rows = c_.rows_of(q, r).count;
      strip_begin[r + 1] = strip_begin[r] + ceil_div(rows, pack_.rows);
      cost += static_cast<double>(rows) * a_.h * (q.keys + 16.0) *
              static_cast<double>(a_.d + a_.e + c_.taps());
    }
    cost /= 25;  // flops a nanosecond, low enough for the slowest instruction set
    const int64_t strips = strip_begin[a_.sequences.count];
    host::Pool& pool = host::pool(ctx);
    const int64_t items = strips * a_.g * pack_.packs;
    // Strips that share keys follow each other, so that they find them in the cache.
    pool.run(items * plan_.parts, cost, [&](int64_t item, int32_t worker) {
      const int64_t part = item / pack_.packs % plan_.parts;
      attend(place(item / (pack_.packs * plan_.parts), item % pack_.packs), part, worker);
    });
    if (plan_.parts > 1)
      pool.run(
          items,
          static_cast<double>(items * pack_.heads) *
              static_cast<double>(pack_.rows * plan_.parts * a_.e) / 4,
          [&](int64_t item, int32_t) { combine(place(item / pack_.packs, item % pack_.packs)); });
  }

 private:
  struct Place {
    int64_t head, heads;
    Sequence q;
    ConvAttend::Rows out;
    int64_t first, count;  // rows of the sequence's output
    int64_t lanes() const { return heads * count; }
  };

  // `item` counts strips and key heads.  The last strip comes first because causal rows at the end
  // have most keys.
  Place place(int64_t item, int64_t pack) const {
    const int64_t* begin = plan_.strip_begin.at(base_);
    const int64_t strip = item / a_.g;
    const int64_t* found = std::upper_bound(begin, begin + a_.sequences.count + 1, strip) - 1;
    const int64_t r = found - begin;
    Place at;
    at.head = item % a_.g * call_.group + pack * pack_.heads;
    at.heads = std::min(pack_.heads, call_.group - pack * pack_.heads);
    at.q = a_.sequences[r];
    at.out = c_.rows_of(at.q, r);
    at.first = (found[1] - 1 - strip) * pack_.rows;
    at.count = std::min(pack_.rows, at.out.count - at.first);
    return at;
  }

  int64_t row_count() const { return a_.b * c_.rows_out * a_.h; }
  int64_t row_index(const Place& at, int64_t lane) const {
    return (at.q.batch * c_.rows_out + at.out.begin + at.first + lane % at.count) * a_.h + at.head +
           lane / at.count;
  }

  void attend(const Place& at, int64_t part, int32_t worker) {
    void* room = plan_.scratch.at(base_) + static_cast<size_t>(worker) * plan_.worker_bytes;
    const int64_t first = c_.history + at.first, above = c_.above();
    const int64_t last_head = (at.heads - 1) * at.count;
    const Strip rows{first, 0, at.count, call_.padded(last_head + call_.padded(at.count)),
                     at.heads};
    const Strip halo{first - above, clamp_i64(above - first, 0, above), at.count + above,
                     call_.padded(at.heads * (at.count + above)), at.heads};
    float* o = plan_.o.at(room);
    RowState state;
    std::fill_n(state.top, kLanes, -kInf);
    std::fill_n(state.sum, kLanes, 0.0f);
    std::fill_n(o, at.lanes() * call_.e_pad, 0.0f);

    const int64_t part_keys = host::part_keys(at.q.keys, plan_.parts, kKeys);
    const int64_t last = std::min(rows.end(c_, at.q), (part + 1) * part_keys);
    Logits logits(call_, plan_.logits, room);
    logits.load(at.q, at.head, halo);
    for (int64_t j = part * part_keys; j < last; j += kKeys) {
      const int64_t count = std::min(kKeys, last - j);
      logits.slide(j, count);
      logits.convolve(count, rows, plan_.a.at(room));
      visit(at, rows, j, count, room, state);
    }

    for (int64_t i = 0; i < at.lanes(); ++i) {
      if (plan_.parts == 1) {
        finish(at, i, o + i * call_.e_pad, state.top[i], state.sum[i]);
      } else {
        const int64_t to = part * row_count() + row_index(at, i);
        float* saved = plan_.part_state.at(base_) + 2 * to;
        saved[0] = state.top[i], saved[1] = state.sum[i];
        if (state.sum[i] != 0)
          std::copy_n(o + i * call_.e_pad, a_.e, plan_.part_o.at(base_) + to * a_.e);
      }
    }
  }

  void visit(const Place& at, const Strip& rows, int64_t begin, int64_t count, void* room,
             RowState& state) const {
    const int64_t lanes = rows.lanes, e_pad = call_.e_pad;
    float *x = plan_.a.at(room), *o = plan_.o.at(room);
    KeyTile keys;
    load_keys(call_, at.q, at.head / call_.group, a_.v, a_.e, begin, count, true,
              at.lanes() <= kFewRows, plan_.v.at(room), keys);
    const unsigned char* absent = keys.any_absent ? keys.absent : nullptr;
    hide(c_, at.q, rows, begin, count, absent, -kInf, x, lanes);
    float shrink[kLanes];
    call_.simd.softmax(count, lanes, x, state.top, state.sum, shrink);
    const bool masked = absent || rows.blind(c_, at.q, begin + count - 1) > 0;
    // 0 * NaN is NaN: a value no row may see has to stay out of the product.
    if (!masked || call_.simd.finite(count, a_.e, keys.x, keys.row))
      return call_.simd.gemm(
          {at.lanes(), e_pad, count, x, lanes, keys.x, keys.row, o, e_pad, shrink, true, true});
    for (int64_t i = 0; i < at.lanes(); ++i) {
      call_.simd.scale(e_pad, o + i * e_pad, shrink[i], o + i * e_pad);
      for (int64_t j = 0; j < count; ++j)
        if (!(absent && absent[j]) && i % at.count >= rows.blind(c_, at.q, begin + j))
          for (int64_t n = 0; n < a_.e; ++n)
            o[i * e_pad + n] += x[j * lanes + i] * keys.x[j * keys.row + n];
    }
  }

  void finish(const Place& at, int64_t lane, const float* o, float top, float sum) const {
    const int64_t row = at.out.begin + at.first + lane % at.count, head = at.head + lane / at.count;
    const View<4>& to = a_.o;
    store_row(to.data, a_.o_dtype,
              at.q.batch * to.stride[0] + row * to.stride[1] + head * to.stride[2], to.stride[3],
              a_.e, o, sum == 0 ? 0.0f : static_cast<float>(1 / static_cast<double>(sum)));
    if (a_.lse)
      a_.lse
          .as()[at.q.batch * a_.lse.stride[0] + head * a_.lse.stride[1] + row * a_.lse.stride[2]] =
          sum == 0 ? -kInf
                   : static_cast<float>(static_cast<double>(top) * M_LN2 +
                                        std::log(static_cast<double>(sum)));
  }

  void combine(const Place& at) const {
    const float* state = plan_.part_state.at(base_);
    for (int64_t i = 0; i < at.lanes(); ++i) {
      const int64_t row = row_index(at, i);
      const auto saved = [&](int64_t part) { return state + 2 * (part * row_count() + row); };
      float top = -kInf, sum = 0;
      for (int64_t part = 0; part < plan_.parts; ++part) top = std::max(top, saved(part)[0]);
      float o[kWidthMax];
      std::fill_n(o, a_.e, 0.0f);
      for (int64_t part = 0; part < plan_.parts; ++part) {
        if (saved(part)[1] == 0) continue;
        const float weight = std::exp2(saved(part)[0] - top);
        const float* from = plan_.part_o.at(base_) + (part * row_count() + row) * a_.e;
        sum += weight * saved(part)[1];
        for (int64_t n = 0; n < a_.e; ++n) o[n] += weight * from[n];
      }
      finish(at, i, o, top, sum);
    }
  }

  const ForwardPlan& plan_;
  const Call call_;
  const ConvAttend& c_;
  const Attend& a_;
  const Packing pack_;
  void* base_;
};

std::string offer(const Context& ctx, const ConvAttend& c, Plan& plan) {
  const Call call(c);
  const Attend& a = call.a;
  ForwardPlan p{};
  p.c = c;
  const Packing pack(call);
  p.parts = parts_of(call, pack);

  Layout worker;
  p.logits = LogitRoom(call, worker);
  p.a = worker.add<float>(kKeys * kLanes);
  p.o = worker.add<float>(kLanes * call.e_pad);
  p.v = worker.add<float>(kKeys * call.e_pad);
  p.worker_bytes = worker.bytes();
  const double items = static_cast<double>(a.sequences.count) * static_cast<double>(pack.most) *
                       static_cast<double>(a.g * pack.packs * p.parts);
  const int64_t workers = host::workers_for(ctx, items);

  p.strip_begin = plan.workspace.add<int64_t>(a.sequences.count + 1);
  const int64_t saved = p.parts > 1 ? a.b * c.rows_out * a.h : 0;
  p.part_o = plan.workspace.add<float>(saved, p.parts, a.e);
  p.part_state = plan.workspace.add<float>(saved, p.parts, 2);
  p.scratch = plan.workspace.add_all(worker, workers);

  plan.kernel +=
      std::string(".") + call.simd.name + "." + dtype_name(a.dtype) + ".d" + std::to_string(a.d);
  plan.launch = [p](Context& context, void* base) { Forward(p, base).run(context); };
  return "";
}

}  // namespace

extern const Kernel<ConvAttend> conv_attention_forward_host = {"", offer};

}  // namespace fovea
