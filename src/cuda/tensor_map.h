// SPDX-License-Identifier: Apache-2.0
// What TMA needs to know of a tensor, made at each launch by host arithmetic alone.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked
#include <cstdint>

#include "core/attend.h"

namespace fovea::cuda {

// All columns of a head in one box, eight rows of a panel of 64 columns at a time (interleaved
// tiles of tile/layout.cuh): coordinates (0, 0, panel, octet of rows, batch).  There are five, so
// heads must follow one another as panels or as octets do.
enum class Interleave { none, heads_as_panels, heads_as_octets };

// A (batch, row, head, column) tensor of f16, bf16 or bytes (e4m3) seen as boxes of `rows` rows x
// `heads` heads x `columns` columns, swizzled over a box row's 64 or 128 bytes; what lies outside
// reads as zero.  A box's heads follow one another within a row, and so do a map's coordinates:
// (column, head, row, batch) with more than one head, (column, row, head, batch) with one.
struct MapOf {
  View<4> tensor;
  int32_t dtype;
  int64_t batch, row, head, column;  // extents
  int rows, heads = 1, columns = 64;
  Interleave interleave = Interleave::none;
};

// How pages make tiles of keys: a tile is `boxes` copies of `rows` rows, one of a page each; or a
// page has `tiles` tiles, else 1.
struct PageCuts {
  int32_t rows, boxes, tiles;
  int32_t head_panels, head_octets;  // from one head to the next, of interleaved boxes
};

struct AttendMaps {
  CUtensorMap q, k, v;
  PageCuts pages;
};
struct BackwardMaps {
  CUtensorMap q, k, v, dout;
};

// Whether TMA can read it: "" or why not.
const char* map_refuses(const MapOf& of);

// False where the driver is too old to make one.
bool make_map(const MapOf& of, CUtensorMap& map);
// All that a forward sweep copies by; its tiles have `keys` keys, and rows of k are those of a page
// where keys come in pages.
bool make_maps(const MapOf& q, const MapOf& k, const MapOf& v, int keys, AttendMaps& maps);

}  // namespace fovea::cuda
