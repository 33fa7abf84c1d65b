// SPDX-License-Identifier: Apache-2.0
// Between the launcher of quant_forward over lists and its instances (listed.inc), which are
// compiled apart.
#pragma once
#include "cuda/loop/tile_lists.cuh"
#include "ops/quant/forward.cuh"

namespace fovea::cuda {

// A call of codes whose rows see the tiles of lists alone.
struct QuantTiled {
  QuantAttend codes;
  TileLists lists;
};
FOVEA_HD const Attend& attend_in(const QuantTiled& call) {
  return call.codes.attend;
}

struct ListGrid;  // loop/list_tile.cuh

struct QuantListInstance90 : ByteTiles90 {
  void (*launch)(Context&, const QuantTiled&, const QuantWork&, const CodeMaps&);
};

// Explicitly instantiated, one file for each width.
template <QuantConfig90 C>
QuantListInstance90 quant_list_sm90_instance();

// In f32 FMA: rows in tiles of 16 R.
template <int R>
void quant_list_simt(Context& ctx, const QuantListed& call, const ListGrid& grid);

}  // namespace fovea::cuda
