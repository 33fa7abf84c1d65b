// SPDX-License-Identifier: Apache-2.0
// Products of bf16 matrices in the CPU's tile registers (AMX), summed in f32: 1024 multiply-adds a
// cycle, where a vector of f32 makes 32.  The second table beside host/simd.h; like that header it
// must stay free of inline functions.
//
// A tile is 16 rows of 64 bytes.  Of the operand on the right a row has two terms of 16 columns,
// side by side.  Subnormal operands and sums count as 0.
#pragma once
#include <stdint.h>

namespace fovea::host {

constexpr int kTileTerms = 32;    // rows of bf16 are padded with zeros to a multiple
constexpr int kTileColumns = 16;  // rows or columns of a tile of sums

// bf16 numbers, rows `row` apart.
struct Bf16Rows {
  const uint16_t* x;
  int64_t row;
};

// x[j][i] = scale <k_j, q_i> for j < keys, a multiple of 16, and i < lanes.  q as pack_queries
// leaves it.
struct TileScores {
  int64_t keys, lanes, d;  // d: padded
  Bf16Rows k;
  const uint16_t* q;
  float scale;
  float* x;  // (keys, lanes)
};

// o[i][c] = shrink[i] o[i][c] + sum_j bf16(x[j][i]) v_j[c] for i < lanes and c < e.  o is tiles of
// 16 lanes by 16 columns; those of 16 columns follow each other.
struct TileValues {
  int64_t keys, lanes, e;  // e: padded; rows of v from `keys` to a multiple of 32 are there and 0
  const float* x;          // (keys, lanes)
  Bf16Rows v;
  const float* shrink;
  float* o;         // (e / 16, lanes / 16, 16, 16)
  uint16_t* pairs;  // room of 32-multiple(keys) * 64
  uint16_t* p;      // room of 32-multiple(keys) * lanes
};

struct Tiles {
  const char* name;
  // Rows of d columns, padded, as right operands: lanes * d numbers.
  void (*pack_queries)(int64_t lanes, int64_t d, Bf16Rows q, uint16_t* to);
  void (*scores)(const TileScores& a);
  void (*values)(const TileValues& a);
  // Any NaN or infinity among rows of `columns` numbers?
  bool (*finite)(int64_t rows, int64_t columns, Bf16Rows x);
};

#if defined(FOVEA_AMX)
extern const Tiles tiles_amx;
#endif

// nullptr where the CPU has none, or the system does not let this process use them.
const Tiles* tiles();

}  // namespace fovea::host
