// SPDX-License-Identifier: Apache-2.0
// Lists of packed sequences: where those of a sequence stand.  Every operation that writes or reads
// lists asks here.
#pragma once
#include "core/attend.h"

namespace fovea {

// Rows and keys of a block that a list names.
constexpr int64_t kListRowsMost = 128, kListKeysMost = 65536;

// The first block of the sequence r, whose rows begin at row `begin` of the packed ones.  Blocks of
// one row are the rows.  Others begin anew in each sequence, so that each may need one more.
template <class Int>
FOVEA_HD Int first_list_row(const Int& begin, const Int& r, const Int& block_rows) {
  return block_rows == 1 ? begin : begin / block_rows + r;
}

}  // namespace fovea
