// SPDX-License-Identifier: Apache-2.0
// Calls of x_graph_append and x_select_graph, resolved, and the kernels.
#pragma once
#include "core/attend.h"
#include "core/plan.h"
#include "fovea/experimental/graph.h"

namespace fovea {

constexpr int64_t kNeighboursMost = 1024;  // of kept and of added

// The graphs of all sequences and key heads, in the caller's buffers.
struct Graphs {
  View<4> neighbour;
  View<3> count;
  View<2> entry;
  int64_t degree;
};

// The keys of all sequences.
struct GraphKeys {
  View<4> k;
  IntVector key_len;
  int32_t dtype;
  int64_t b, t, g, d;
  int64_t keys(int64_t batch) const { return key_len ? clamp_i64(key_len[batch], 0, t) : t; }
};

// Query rows: of training, or those that search.
struct GraphRows {
  View<4> q;
  IntVector query_len;
  int32_t dtype;
  int64_t s, h;
  int64_t rows(int64_t batch) const { return query_len ? clamp_i64(query_len[batch], 0, s) : s; }
};

struct GraphAppend {
  GraphKeys keys;
  GraphRows rows;  // q may be absent
  Graphs graphs;
  IntVector old_len;
  int64_t nearest, kept, added, width;
  int64_t old(int64_t batch) const {
    return old_len ? clamp_i64(old_len[batch], 0, keys.keys(batch)) : 0;
  }
};

struct SelectGraph {
  GraphKeys keys;
  GraphRows rows;
  Graphs graphs;
  View<4> index;
  View<3> index_count, scanned;
  int64_t keep, count, ef;
};

// Checks d and t, and reads them.
GraphKeys read_graph_keys(const char* op, const fovea_tensor& k, const fovea_tensor& key_len);

extern const Kernel<GraphAppend> x_graph_append_host;
extern const Kernel<SelectGraph> x_select_graph_host;

// What a CUDA context is told.
template <class Request>
constexpr Kernel<Request> kGraphOnHost = {"", [](const Context&, const Request&, Plan&) {
                                            return Text(
                                                "keys and graph lie in host memory, wanted a host "
                                                "context");
                                          }};

}  // namespace fovea
