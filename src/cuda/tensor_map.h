// SPDX-License-Identifier: Apache-2.0
// TMA's tensor maps, encoded at each call by host arithmetic alone.
#pragma once
#include <cuda.h>  // CUtensorMap; nothing of libcuda is linked
#include <cstdint>

#include "core/attend.h"

namespace fovea::cuda {

// A box with all columns of a head, eight rows of a panel at a time (interleaved tiles of
// tile/layout.cuh).  Its coordinates are (0, 0, panel, octet of rows, batch).  TMA allows no sixth,
// so heads must follow one another as panels or as octets do.
// runs: a box is runs of 16 columns, all rows of a run side by side and not swizzled.  Its
// coordinates are (0, 0, run, head, batch).
enum class Interleave { none, heads_as_panels, heads_as_octets, runs };

// A (batch, row, head, column) tensor of f16, bf16 or bytes as boxes of `rows` rows x `heads` heads
// x `columns` columns, swizzled over a box row's 64 or 128 bytes.  Elements outside read as zero.
// Coordinates: (column, row, head, batch), with more than one head (column, head, row, batch).
struct MapOf {
  View<4> tensor;
  int32_t dtype;
  int64_t batch, row, head, column;  // extents
  int rows, heads = 1, columns = 64;
  Interleave interleave = Interleave::none;
};

// Pages and key tiles: a tile is `boxes` boxes of `rows` rows, each of another page.  Or a page has
// `tiles` tiles, else 1.
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

}  // namespace fovea::cuda
