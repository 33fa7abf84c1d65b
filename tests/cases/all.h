// SPDX-License-Identifier: Apache-2.0
// Every case of every operation.  A family of operations is one file of cases/, compiled once.
#pragma once
#include "harness/cases.h"

namespace cases {

// A family registers itself: its file defines one constant of this type, and no list names it.
class Family {
 public:
  Family(const char* name, std::vector<harness::Case> (*cases)());
};

// The families by name, each in its own order.
std::vector<harness::Case> all();

}  // namespace cases
