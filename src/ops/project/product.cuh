// SPDX-License-Identifier: Apache-2.0
// Instances of x_project's Hopper products (product.inc), which are compiled apart.
#pragma once
#include "cuda/device.h"
#include "cuda/tensor_map.h"

namespace fovea::cuda {

// Which operands of C = A B lie with their terms as rows: A [row][term] and B [term][column] have
// neither.  A gradient of weights has a, one of x has b.
enum class Turned { neither, a, b };

constexpr int kProductTerms = 64;  // of a step
constexpr int kProductRows = 64;   // of a warpgroup's product

// Quotients of numbers from 0 to 2^31 - 1 by a positive one, in three instructions.
struct Divisor {
  int by = 1;
  uint32_t factor = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(int by) : by(by) {
    while (int64_t{1} << shift < by) ++shift;
    factor = static_cast<uint32_t>(((int64_t{1} << shift) - by) * (int64_t{1} << 32) / by + 1);
  }
#ifdef __CUDACC__
  __device__ int quotient(int x) const {
    return static_cast<int>((__umulhi(x, factor) + x) >> shift);
  }
  // The quotient; x becomes the remainder.
  __device__ int split(int& x) const {
    const int whole = quotient(x);
    x -= whole * by;
    return whole;
  }
#endif
};

// Item i is the i-th of (part, section of products, row tile, product, column tile).  With terms as
// rows (Turned::a) A and B are tensors of rows.
struct ProductWork90 {
  int items;
  Divisor across, section, down, sections;  // column tiles, products, row tiles of all batches
  Divisor tiles;                            // row tiles of a batch, or of C where terms are rows
  int rows, columns;                        // of C: rows of a batch
  Divisor chunks, batches;                  // steps of a head, and of how many batches
  int steps, all;                           // steps of a part, and of all parts
  int heads;                                // of A and B in a product
  Divisor share_a, share_b;                 // products to a head of A and of B
  float* sums;                              // C in f32, or nullptr: by TMA
  int64_t c_part, c_batch, c_row, c_head;   // strides of it
};

struct ProductMaps90 {
  CUtensorMap a, b, c;  // c: boxes of 64 x 64
};

struct ProductInstance90 {
  int dtype, rows, columns;
  void (*launch)(Context&, const char* op, Turned, const ProductWork90&, const ProductMaps90&);
};

// Explicitly instantiated, one file for each dtype and number of rows.
template <int Dtype, int Rows, int Columns>
ProductInstance90 project_product_sm90_instance();

}  // namespace fovea::cuda
