// SPDX-License-Identifier: Apache-2.0
// Where a row of scales, means or transposed codes keeps what (fovea/quant.h): entries of blocks
// and groups of tokens, and how many a row has.
#pragma once
#include "core/attend.h"
#include "core/locate.h"
#include "fovea/quant.h"

namespace fovea {

constexpr int64_t kCodeRun = 128;  // tokens in a unit of transposed codes

// The block of token i >= 0: blocks are of 16, 32 or a multiple of 64 tokens.  On the device the
// division of two int64 is a call and takes its registers; 2^38 tokens fit no device.
FOVEA_HD int64_t block_of(int64_t i, int64_t block) {
  if (block == kCodeRun) return i >> 7;
  if (block <= 64) return i >> (block == 64 ? 6 : block == 32 ? 5 : 4);
#ifdef __CUDA_ARCH__
  return static_cast<uint32_t>(i >> 6) / static_cast<uint32_t>(block >> 6);
#else
  return i / block;
#endif
}

// Entries of sequence r in a row of scales, or of units of codes: where the first is.
FOVEA_HD int64_t first_entry(const IntVector& start, int64_t s, int64_t r, int64_t block) {
  if (!start) return 0;
  return block ? block_of(clamp_i64(start[r], 0, s), block) + r : r;
}
// How many entries a row has.
inline int64_t entries(const IntVector& start, int64_t s, int64_t sequences, int64_t block) {
  if (start) return (block ? s / block : 0) + sequences;
  return block ? (s + block - 1) / block : 1;
}

// The tokens that share a scale, of the groups that every column of a token is in: BLOCK, THREAD_Q,
// THREAD_K and TOKEN.
struct ScaleGroup {
  int32_t kind;   // fovea_scale_group
  int64_t block;  // of BLOCK and THREAD: 0 is one a sequence

  // Scales of a block.
  FOVEA_HD int64_t parts() const {
    return kind == FOVEA_SCALE_GROUP_THREAD_Q ? 8 : kind == FOVEA_SCALE_GROUP_THREAD_K ? 4 : 1;
  }
  // The entry of token i >= 0 of a sequence, counted from the sequence's first.
  FOVEA_HD int64_t entry(int64_t i) const {
    if (kind == FOVEA_SCALE_GROUP_TOKEN) return i;
    const int64_t first = block ? block_of(i, block) : 0;
    if (kind == FOVEA_SCALE_GROUP_THREAD_Q) return first * 8 + i % 8;
    if (kind == FOVEA_SCALE_GROUP_THREAD_K) return first * 4 + i % 8 / 2;
    return first;
  }
  // Where sequence r has its first entry in a row.
  FOVEA_HD int64_t first(const IntVector& start, int64_t s, int64_t r) const {
    if (kind == FOVEA_SCALE_GROUP_TOKEN) return start ? clamp_i64(start[r], 0, s) : 0;
    return first_entry(start, s, r, block) * parts();
  }
};

// How many entries a row of scales of tokens has.
inline int64_t entries(const IntVector& start, int64_t s, int64_t sequences,
                       const ScaleGroup& group) {
  if (group.kind == FOVEA_SCALE_GROUP_TOKEN) return s;
  return entries(start, s, sequences, group.block) * group.parts();
}

// Columns of transposed codes for that many units; no tensor has the most there can be.
inline int64_t code_columns(int64_t units) {
  int64_t columns;
  return __builtin_mul_overflow(units, kCodeRun, &columns) ? INT64_MAX : columns;
}

// Rows over `s` tokens of d columns: how many entries they have.  No tensor has the most there can
// be.
struct CodeRows {
  IntVector start;
  int64_t s, sequences, d;

  int64_t padded() const { return code_columns(entries(start, s, sequences, kCodeRun)); }
  int64_t means(int32_t smooth) const {
    return entries(start, s, sequences, smooth == FOVEA_SMOOTH_BLOCK ? kCodeRun : 0);
  }
  int64_t scales(const ScaleGroup& group) const {
    switch (group.kind) {
      case FOVEA_SCALE_GROUP_CHANNEL:
        return product(d, start ? sequences : 1);
      case FOVEA_SCALE_GROUP_MICRO16:
        return product(s, (d + 15) / 16);
      case FOVEA_SCALE_GROUP_MICRO32:
        return product(s, (d + 31) / 32);
      case FOVEA_SCALE_GROUP_MICRO16_T:
        return product(d, padded() / 16);
      case FOVEA_SCALE_GROUP_MICRO32_T:
        return product(d, padded() / 32);
      default:
        return entries(start, s, sequences, group);
    }
  }

 private:
  static int64_t product(int64_t x, int64_t y) {
    int64_t both;
    return __builtin_mul_overflow(x, y, &both) ? INT64_MAX : both;
  }
};

}  // namespace fovea
