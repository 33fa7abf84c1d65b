// SPDX-License-Identifier: Apache-2.0
// The forward launcher and its tuned instances (forward.inc), which are compiled apart.
#pragma once
#include <algorithm>

#include "cuda/block/schedule.cuh"
#include "cuda/loop/combine.cuh"
#include "cuda/loop/row_tile.cuh"
#include "cuda/loop/split_epilogue.cuh"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

enum class ForwardKind {
  whole,
  paged,
  split,
  rich,
  capped,
  span,
  span_paged,
  span_split,
  codes,
  rich_codes,
  keyed
};
inline const char* name_of(ForwardKind kind) {
  static constexpr const char* names[] = {"whole",  "paged",      "split",      "rich",
                                          "capped", "span",       "span_paged", "span_split",
                                          "codes",  "rich_codes", "keyed"};
  return names[static_cast<int>(kind)];
}

// A kernel's arguments beside the call; `parts` is read when the grid has splits.
struct ForwardWork {
  AttendGrid grid;
  int64_t blocks;
  Partials parts;
  int32_t* arrived;  // MergingEpilogue's
};

struct ForwardInstance {
  int32_t dtype, d, e;
  ForwardKind kind;
  int32_t rows;    // of a block
  int32_t blocks;  // a multiprocessor should hold
  int32_t shared_bytes;
  void (*launch)(Context&, const Attend&, const ForwardWork&);
};

// The same of a Hopper kernel.
struct ForwardWork90 {
  AttendGrid grid;
  TileOrder order;
  DynamicSchedule schedule;
  AttendMaps maps;
  CUtensorMap o;  // with o_given, boxes of 64 rows
  bool o_given;
  Partials parts;
  int32_t* arrived;  // MergingEpilogue's
};

struct ForwardInstance90 {
  int32_t dtype, d, e;
  ForwardKind kind;
  int32_t rows, keys;  // of a row tile, of a key tile
  bool paged;          // keys may come in pages
  bool interleaved;    // or in pages whose maps are (cuda/tensor_map.h)
  void (*launch)(Context&, const Attend&, const ForwardWork90&);
};

// A bound of the key tiles of `width` that a tile of `queries` rows sees, from shapes alone.
inline int64_t key_tiles_bound(const Attend& a, int64_t queries, int64_t width) {
  const Window& w = a.mask.window;
  int64_t keys = a.sequences.key_max;
  if (!a.mask.query_position && !a.mask.key_position && !a.mask.head_window &&
      a.mask.axis.by_index() && w.left > 0 && w.right > 0)
    keys = std::min(keys, clamp_i64(w.left, 0, keys) + clamp_i64(w.right, 0, keys) + queries +
                              clamp_i64(w.sink, 0, keys));
  return ceil_div(keys, width);
}

// Pack GQA: how many heads of a group share a row tile.  All of them where that fills it better; at
// decode the whole group then reads its keys once.
inline int64_t pack_gqa_heads(const Attend& a, int64_t rows) {
  const int64_t group = a.h / a.g, queries = a.sequences.query_max;
  const auto filled = [&](int64_t n) {
    return static_cast<double>(n) / static_cast<double>(ceil_div(n, rows) * rows);
  };
  return group > 1 && filled(queries) < 0.9 * filled(queries * group) ? group : 1;
}

// A row of forward.inc.
struct ForwardConfig80 {
  int dtype, d, e;
  ForwardKind kind;
  int rows, warps;  // of a block
  int stages;       // of K and V tiles
  int blocks;       // a multiprocessor should hold
};
struct ForwardConfig90 {
  int dtype, d, e;
  ForwardKind kind;
  int groups;  // consumer warpgroups, each of 64 rows
  int keys;    // of a tile
  int stages;  // of K and V tiles
};

// Explicitly instantiated, one file for each dtype and width.
template <ForwardConfig90 C>
ForwardInstance90 forward_sm90_instance();
template <ForwardConfig80 C>
ForwardInstance forward_sm80_instance();

// In f32 FMA: tiles of 16 R rows, o of at most 64 Chunks columns.
struct PackedGrid;
template <int R, int Chunks>
void forward_simt(Context& ctx, const Attend& a, const PackedGrid& grid, const Partials& parts);

}  // namespace fovea::cuda
