// SPDX-License-Identifier: Apache-2.0
// Tiles of 16-bit elements in shared memory, in TMA's 128-byte swizzle.  A tile of R rows is cut
// into panels of 64 columns.  A panel's row is 128 bytes in eight chunks, permuted by the row:
//   byte(row, chunk) = chunk / 8 * R * 128 + row * 128 + ((chunk % 8) ^ (row % 8)) * 16
// Eight rows of one chunk (ldmatrix) and eight chunks of one row (a copy) touch all 32 banks once.
// Interleaved: eight rows of each panel follow one another, so one box has rows of all panels.
#pragma once
#include <cstdint>

namespace fovea::cuda {

constexpr int kChunk = 8;        // elements in 16 bytes
constexpr int kPanelChunks = 8;  // chunks in a panel's row
constexpr int kPanelRowBytes = 128;

template <int Rows, int Columns, bool Interleaved = false>
struct Swizzled {
  static constexpr bool interleaved = Interleaved;
  static constexpr int panels = (Columns + 63) / 64;
  static constexpr int octet_bytes = (Interleaved ? panels : 1) * 8 * kPanelRowBytes;
  static constexpr int panel_bytes = (Interleaved ? 8 : Rows) * kPanelRowBytes;
  static constexpr int bytes = Rows * panels * kPanelRowBytes;

  __device__ static uint32_t at(int row, int chunk) {
    return chunk / kPanelChunks * panel_bytes +
           (Interleaved ? row / 8 * octet_bytes + row % 8 * kPanelRowBytes : row * kPanelRowBytes) +
           ((chunk % kPanelChunks) ^ (row % kPanelChunks)) * 16;
  }
  // Address of chunk + 2 * pair, given that of `chunk` in {0, 1}: an xor, since the row stays.
  __device__ static uint32_t pair(uint32_t address, int pair) {
    return (address ^ (pair % 4 * 32)) + pair / 4 * panel_bytes;
  }
};

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace fovea::cuda
