// SPDX-License-Identifier: Apache-2.0
// conv_attention_forward on the CPU, by the online softmax.
//   An item of work is (sequence, head, strip of rows, part of the keys), or where rows are few (a
//   decode step) all heads of a key head that fit a strip.  It slides over its keys:
//   s = k q' of the strip and the kernel_rows - 1 rows above it (rows in lanes), a = s convolved,
//   -inf where a row does not see a key, softmax, o = shrink o + a' v.  A part computes anew the
//   kernel_columns - 1 scores around its bounds.  Parts are combined in order by a second pass.
//   Which parts and strips there are depends on shapes and lengths alone, never on the threads.
//   Multi-Token Attention (2504.00927), FlashAttention-2 (2307.08691), FlashDecoding.
#include "core/fields.h"
#include "ops/conv_attention/tile_host.h"

namespace fovea {
namespace {

using namespace conv_host;

constexpr int64_t kFewRows = 4;    // that read v once as it lies
constexpr int64_t kPackRows = 16;  // up to here heads share a strip

struct ForwardPlan {
  ConvAttend c;
  LogitRoom logits;  // this and a, o, v: within a worker's bytes
  Slot<float> a, o, v;
  host::RowTiles strips;
  host::SplitRows split;
  host::WorkerScratch scratch;
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

class Forward {
 public:
  Forward(const ForwardPlan& plan, void* base)
      : plan_(plan), call_(plan.c), c_(call_.c), a_(call_.a), pack_(call_), base_(base) {}

  void run(Context& ctx) {
    const host::RowPlaces strips = plan_.strips.find(base_, [&](int64_t r) {
      return ceil_div(c_.rows_of(a_.sequences[r], r).count, pack_.rows);
    });
    const double cost =
        host::pairs_of(a_.sequences) * static_cast<double>(a_.h * (a_.d + a_.e + c_.taps()));
    host::Pool& pool = host::pool(ctx);
    const int64_t items = strips.count() * pack_.packs, parts = plan_.split.parts;
    // Strips that share keys follow each other, so that they find them in the cache.
    const auto at = [&](int64_t item, int64_t pack) {
      return place(strips.tile_first(item), pack);
    };
    pool.run(items * parts, cost / kFlopsPerNanosecond, [&](int64_t item, int32_t worker) {
      attend(at(item / (pack_.packs * parts), item % pack_.packs), item / pack_.packs % parts,
             worker);
    });
    if (parts > 1)
      pool.run(items,
               static_cast<double>(items * pack_.heads) *
                   static_cast<double>(pack_.rows * parts * a_.e) / 4,
               [&](int64_t item, int32_t) { combine(at(item / pack_.packs, item % pack_.packs)); });
  }

 private:
  struct Place {
    int64_t head, heads;
    Sequence q;
    ConvAttend::Rows out;
    int64_t first, count;  // rows of the sequence's output
    int64_t lanes() const { return heads * count; }
  };

  Place place(const host::RowPlaces::Place& strip, int64_t pack) const {
    Place at;
    at.head = strip.head * call_.group + pack * pack_.heads;
    at.heads = std::min(pack_.heads, call_.group - pack * pack_.heads);
    at.q = a_.sequences[strip.sequence];
    at.out = c_.rows_of(at.q, strip.sequence);
    at.first = strip.tile * pack_.rows;
    at.count = std::min(pack_.rows, at.out.count - at.first);
    return at;
  }

  int64_t row_index(const Place& at, int64_t lane) const {
    return (at.q.batch * c_.rows_out + at.out.begin + at.first + lane % at.count) * a_.h + at.head +
           lane / at.count;
  }

  void attend(const Place& at, int64_t part, int32_t worker) {
    void* room = plan_.scratch.at(base_, worker);
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

    const int64_t part_keys = host::part_keys(at.q.keys, plan_.split.parts, kKeys);
    const int64_t last = std::min(rows.end(c_, at.q), (part + 1) * part_keys);
    Logits logits(call_, plan_.logits, room);
    logits.load(at.q, at.head, halo);
    for (int64_t j = part * part_keys; j < last; j += kKeys) {
      const int64_t count = std::min(kKeys, last - j);
      logits.slide(j, count);
      logits.convolve(count, rows, plan_.a.at(room));
      visit(at, rows, j, count, room, state);
    }

    for (int64_t i = 0; i < at.lanes(); ++i, o += call_.e_pad) {
      if (plan_.split.parts == 1)
        finish(at, i, o, {state.top[i], state.sum[i]});
      else
        plan_.split.save(base_, part, row_index(at, i), o, {state.top[i], state.sum[i]});
    }
  }

  void visit(const Place& at, const Strip& rows, int64_t begin, int64_t count, void* room,
             RowState& state) const {
    float *x = plan_.a.at(room), *o = plan_.o.at(room);
    bool flags[kKeys];
    const bool* absent = absent_keys(call_, at.q, begin, count, flags);
    const host::KeyRows values =
        load_keys(call_, at.q, at.head / call_.group, a_.v, a_.e, begin, count,
                  {true, at.lanes() <= kFewRows}, absent, plan_.v.at(room));
    hide(c_, at.q, rows, begin, count, absent, -kInf, x, rows.lanes);
    float shrink[kLanes];
    call_.simd.softmax(count, rows.lanes, x, state.top, state.sum, shrink);
    add_values(call_, at.q, rows, begin, count, absent, x, values, shrink, o);
  }

  void finish(const Place& at, int64_t lane, const float* o, host::SplitRows::State state) const {
    const int64_t head = at.head + lane / at.count;
    Sequence out = at.q;
    out.row_begin = at.out.begin;
    const int64_t row = at.first + lane % at.count;
    store_row(a_.o.data, a_.o_dtype, row_offset(a_.o, out, row, head), a_.o.stride[3], a_.e, o,
              state.sum == 0 ? 0.0f : static_cast<float>(1 / static_cast<double>(state.sum)));
    if (a_.lse) row_slot(a_.lse, out, head, row) = host::lse_of(state.top, state.sum);
  }

  void combine(const Place& at) const {
    float o[kWidthMax];
    for (int64_t i = 0; i < at.lanes(); ++i)
      finish(at, i, o, plan_.split.combine(base_, row_index(at, i), o));
  }

  const ForwardPlan& plan_;
  const Call call_;
  const ConvAttend& c_;
  const Attend& a_;
  const Packing pack_;
  void* base_;
};

Text offer(const Context& ctx, const ConvAttend& c, Plan& plan) {
  const Call call(c);
  const Attend& a = call.a;
  ForwardPlan p{};
  p.c = c;
  const Packing pack(call);

  Layout worker;
  p.logits = LogitRoom(call, worker);
  p.a = worker.add<float>(kKeys * kLanes);
  p.o = worker.add<float>(kLanes * call.e_pad);
  p.v = worker.add<float>(kKeys * call.e_pad);
  const int64_t strips = a.g * pack.packs * pack.most;
  p.strips = host::RowTiles(a.sequences.count, a.g, plan.workspace);
  p.split = host::SplitRows(
      host::forward_parts(a.splits, a.sequences.count * strips, a.sequences.key_max),
      a.b * c.rows_out * a.h, a.e, plan.workspace);
  const double items = static_cast<double>(a.sequences.count) * static_cast<double>(pack.most) *
                       static_cast<double>(a.g * pack.packs * p.split.parts);
  p.scratch = host::WorkerScratch(ctx, items, worker, plan.workspace);
  host::host_plan<Forward>(plan, p, host::shape_name(a.dtype, a.d));
  return "";
}

}  // namespace

extern const Kernel<ConvAttend> conv_attention_forward_host = {"", offer};

}  // namespace fovea
