// SPDX-License-Identifier: Apache-2.0
// trace_forward on the CPU.  An item is (batch, head, row block) and needs no other.
//   Where edges are wanted, items leave their slots in the workspace.  A prefix sum over the items
//   says where each one's records begin, and a second pass over the items writes them.
#include "ops/trace/item_host.h"

namespace fovea {
namespace {

using namespace trace_host;

// Records before each item; edge_count.
void scan(const HostPlan& p, void* base, int64_t items) {
  const Trace& a = p.a;
  int64_t* first = p.first.at(base);
  const int32_t* selected = p.selected.at(base);
  int64_t total = a.edge_begin();  // edge_count may be the same memory: written last
  for (int64_t item = 0; item < items; ++item) {
    first[item] = total;
    for (int64_t b = 0; b < a.keep; ++b) total += selected[item * a.keep + b] >= 0;
  }
  *a.edge_count.as<int64_t>() = total;
}

void write_edges(const HostPlan& p, void* base, int64_t item) {
  const Trace& a = p.a;
  int64_t row = p.first.at(base)[item];
  for (int64_t b = 0; b < a.keep && row < a.cap; ++b) {
    const int32_t key_block = p.selected.at(base)[item * a.keep + b];
    if (key_block < 0) continue;
    if (a.edge) {
      int32_t* to = a.edge.as<int32_t>() + row * a.edge.stride[0];
      const int64_t words[4] = {a.layer, item / a.n, item % a.n, key_block};
      for (int i = 0; i < 4; ++i) to[i * a.edge.stride[1]] = static_cast<int32_t>(words[i]);
    }
    if (a.edge_weight)
      a.edge_weight.as()[row * a.edge_weight.stride[0]] = p.weight.at(base)[item * a.keep + b];
    ++row;
  }
}

double cost_of(const Trace& a) {
  const double blocks = static_cast<double>(a.blocks_of(a.attend.sequences.key_max));
  double visits =
      static_cast<double>(a.keep) * (a.rounds(a.blocks_of(a.attend.sequences.key_max)) + 1);
  if (a.wants_rows()) visits += 3 * static_cast<double>(a.keep);
  if (a.lse_dense) visits += blocks;
  return static_cast<double>(a.attend.b * a.attend.h * a.n) * visits *
         static_cast<double>(a.block_keys * std::min(a.block_rows, a.attend.s) *
                             (a.attend.d + a.attend.e)) /
         host::kFlopsPerNanosecond;
}

struct Forward {
  const HostPlan& p;
  void* base;

  void run(Context& ctx) const {
    host::Pool& pool = host::pool(ctx);
    const int64_t n = p.a.n, items = p.items;
    // The last row block of a head first: under a causal mask it has most keys.
    pool.run(items, cost_of(p.a), [&](int64_t at, int32_t worker) {
      Item(p, base, at / n * n + n - 1 - at % n, worker).run();
    });
    if (!p.a.wants_edges()) return;
    scan(p, base, items);
    pool.run(p.a.cap ? items : 0, static_cast<double>(items * p.a.keep),
             [&](int64_t item, int32_t) { write_edges(p, base, item); });
  }
};

Text offer(const Context& ctx, const Trace& a, Plan& plan) {
  const Attend& call = a.attend;
  HostPlan p{};
  p.a = a, p.e_pad = host::padded(call.e);
  const int64_t tile = a.block_keys * kBlockMost, values = a.wants_values();
  Layout worker;
  p.room.rows = worker.add<float>(a.block_rows * call.d);
  p.room.q = worker.add<float>(kBlockMost * call.d);
  p.room.x = worker.add<float>(tile);
  p.room.still = worker.add<float>(a.wants_mass() ? tile : 0);
  p.room.o = worker.add<float>(call.o ? a.block_rows * p.e_pad : 0);
  p.room.k = worker.add<float>(a.block_keys * host::padded(call.d));
  p.room.v = worker.add<float>(values * a.block_keys * p.e_pad);
  p.room.value = worker.add<float>(a.edge_value ? a.keep * p.e_pad : 0);
  p.room.mass = worker.add<float>(a.wants_mass() ? a.keep : 0);
  p.room.branches = worker.add<Branch>(a.keep);
  p.room.halves = worker.add<Branch>(2 * a.keep);
  const int64_t items = p.items = a.items();
  const int64_t slots = a.wants_edges() ? product(items, a.keep) : 0;
  p.scratch = host::WorkerScratch(ctx, static_cast<double>(items), worker, plan.workspace);
  p.selected = plan.workspace.add<int32_t>(slots);
  p.weight = plan.workspace.add<float>(slots);
  p.first = plan.workspace.add<int64_t>(a.wants_edges() ? items : 0);
  host::host_plan<Forward>(plan, p, host::shape_name(call.dtype, call.d));
  return "";
}

}  // namespace

extern const Kernel<Trace> trace_forward_host = {"", offer};

}  // namespace fovea
