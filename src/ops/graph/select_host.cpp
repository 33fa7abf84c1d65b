// SPDX-License-Identifier: Apache-2.0
// x_select_graph on the CPU.  An item is a row of a query head; of all keys, of a key head, whose
// query heads are lanes of one product with a tile of keys.
#include "host/pick.h"
#include "ops/graph/search_host.h"

namespace fovea {
namespace {

struct AllRoom {
  Slot<float> row, q, k, x;
  Slot<uint32_t> key;
};

struct SelectPlan {
  SelectGraph a;
  SearchRoom search;
  AllRoom all;
  host::WorkerScratch scratch;
};

class Run {
 public:
  Run(const SelectPlan& plan, void* base) : plan_(plan), a_(plan.a), base_(base) {}

  void run(Context& ctx) const {
    if (!a_.rows.h) return;
    const int64_t heads = a_.ef ? a_.rows.h : a_.keys.g, rows = a_.rows.s;
    const auto items = static_cast<double>(a_.keys.b * rows * heads);
    const double keys = static_cast<double>(a_.ef ? std::min(a_.ef, a_.keys.t) * 8 : a_.keys.t);
    host::pool(ctx).run(a_.keys.b * rows * heads, items * keys * static_cast<double>(a_.keys.d),
                        [&](int64_t item, int32_t worker) {
                          const int64_t batch = item / (rows * heads), head = item % heads;
                          const int64_t row = item / heads % rows;
                          if (row >= a_.rows.rows(batch)) return;
                          void* room = plan_.scratch.at(base_, worker);
                          a_.ef ? search(room, batch, row, head) : all(room, batch, row, head);
                        });
  }

 private:
  int64_t group() const { return a_.rows.h / a_.keys.g; }
  void load(int64_t batch, int64_t row, int64_t head, float* to) const {
    const View<4>& q = a_.rows.q;
    host::load_row(host::simd(), q.data, a_.rows.dtype,
                   batch * q.stride[0] + row * q.stride[1] + head * q.stride[2], q.stride[3],
                   a_.keys.d, to);
  }
  int32_t& slot(int64_t batch, int64_t head, int64_t row, int64_t n) const {
    return *a_.index.at<int32_t>(batch, head, row, n);
  }
  // What follows the list's `count` keys, of `wanted`.
  void end(int64_t batch, int64_t head, int64_t row, int64_t count, int64_t wanted,
           int64_t scanned) const {
    for (int64_t n = count; n < a_.keep; ++n) slot(batch, head, row, n) = -1;
    *a_.index_count.at<int32_t>(batch, head, row) = static_cast<int32_t>(wanted);
    if (a_.scanned) *a_.scanned.at<int32_t>(batch, head, row) = static_cast<int32_t>(scanned);
  }

  void search(void* room, int64_t batch, int64_t row, int64_t head) const {
    const int64_t keys = a_.keys.keys(batch);
    if (!keys) return end(batch, head, row, 0, 0, 0);
    const int64_t key_head = head / group();
    Search search(plan_.search, room, {&a_.keys, batch, key_head});
    load(batch, row, head, search.row());
    search.query(search.row());
    Beam beam(search.ranks(), std::min(a_.ef, a_.keys.t));
    const int64_t scanned = search.run({&a_.graphs, batch, key_head}, keys, beam);
    int64_t wanted = std::min(a_.count, beam.size());
    while (wanted && pick_key_of(beam[wanted - 1]) <= kPickNone) --wanted;
    const int64_t count = std::min(wanted, a_.keep);
    std::sort(beam.data(), beam.data() + count,
              [](uint64_t x, uint64_t y) { return key_of(x) < key_of(y); });
    for (int64_t n = 0; n < count; ++n)
      slot(batch, head, row, n) = static_cast<int32_t>(key_of(beam[n]));
    end(batch, head, row, count, wanted, scanned);
  }

  void all(void* room, int64_t batch, int64_t row, int64_t key_head) const {
    const int64_t keys = a_.keys.keys(batch), d = a_.keys.d, lanes = host::padded(group());
    const AllRoom& in = plan_.all;
    float *rows = in.row.at(room), *q = in.q.at(room), *k = in.k.at(room), *x = in.x.at(room);
    uint32_t* key = in.key.at(room);
    for (int64_t n = 0; keys && n < group(); ++n)
      load(batch, row, key_head * group() + n, rows + n * d);
    if (keys) host::transpose(rows, d, group(), d, lanes, q);
    const HeadKeys from{&a_.keys, batch, key_head};
    for (int64_t begin = 0; begin < keys; begin += host::kKeys) {
      const int64_t tile = std::min<int64_t>(host::kKeys, keys - begin);
      for (int64_t j = 0; j < tile; ++j) from.load(begin + j, k + j * d);
      host::simd().chains({tile, lanes, d, k, d, q, lanes, x, lanes, nullptr, false, false});
      for (int64_t n = 0; n < group(); ++n)
        for (int64_t j = 0; j < tile; ++j) key[n * keys + begin + j] = pick_key(x[j * lanes + n]);
    }
    for (int64_t n = 0; n < group(); ++n)
      emit(batch, row, key_head * group() + n, key + n * keys, keys);
  }
  void emit(int64_t batch, int64_t row, int64_t head, const uint32_t* all, int64_t keys) const {
    const auto key = [&](int64_t j) { return all[j] > kPickNone ? all[j] : 0u; };
    int64_t total = 0, count = 0;
    for (int64_t j = 0; j < keys; ++j) total += key(j) != 0;
    const PickCut cut = host::cut_after(keys, key, a_.count, total);
    const PickKeep keep = host::each_kept(
        keys, PickLimits{0, 0, a_.keep}, key, [](int64_t) { return false; }, cut, 0,
        [&](int64_t j, int64_t place) {
          slot(batch, head, row, place) = static_cast<int32_t>(j), count = place + 1;
        });
    end(batch, head, row, count, keep.wanted, keys);
  }

  const SelectPlan& plan_;
  const SelectGraph& a_;
  void* base_;
};

}  // namespace

extern const Kernel<SelectGraph> x_select_graph_host = {
    "", [](const Context& ctx, const SelectGraph& a, Plan& plan) {
      SelectPlan p{};
      p.a = a;
      Layout worker;
      const int64_t t = a.keys.t, d = a.keys.d;
      if (a.rows.h && t && a.ef) {
        p.search = SearchRoom(a.keys, std::min(a.ef, t), 0, worker);
      } else if (a.rows.h && t) {
        const int64_t group = a.rows.h / a.keys.g, lanes = host::padded(group);
        p.all.row = worker.add<float>(group, d), p.all.q = worker.add<float>(d, lanes);
        p.all.k = worker.add<float>(host::kKeys, d);
        p.all.x = worker.add<float>(host::kKeys, lanes);
        p.all.key = worker.add<uint32_t>(group, t);
      }
      const double items = static_cast<double>(a.keys.b) * static_cast<double>(a.rows.s) *
                           static_cast<double>(a.rows.h);
      p.scratch = host::WorkerScratch(ctx, items, worker, plan.workspace);
      host::host_plan<Run>(
          plan, p, Text(a.ef ? ".graph" : ".all") + host::shape_name(a.keys.dtype, d).c_str());
      return Text();
    }};

}  // namespace fovea
