// SPDX-License-Identifier: Apache-2.0
// What is here: the library, the machine, its GPUs.  The rows of `python -m fovea`, where a program
// can know them.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "fovea/core.h"

namespace info {

using Row = std::pair<std::string, std::string>;

// Of the machine.  Does not fail where something is missing.
std::vector<Row> report();
// "host, 2 threads, kernels avx512", or "cuda:0, NVIDIA H200, compute capability 9.0".
std::string device_text(fovea_context* ctx);
// One row a line, the names in a column.
void print(const std::vector<Row>& rows);

}  // namespace info
