// SPDX-License-Identifier: Apache-2.0
#include "cases/all.h"

namespace cases {
namespace {

// Made at the first use, since families register before main() in the order of their linking.
std::map<std::string, std::vector<harness::Case> (*)()>& families() {
  static std::map<std::string, std::vector<harness::Case> (*)()> known;
  return known;
}

}  // namespace

Family::Family(const char* name, std::vector<harness::Case> (*cases)()) {
  if (families().emplace(name, cases).second) return;
  std::fprintf(stderr, "two families of cases are called %s\n", name);
  std::abort();
}

std::vector<harness::Case> all() {
  std::vector<harness::Case> out;
  for (const auto& [name, cases] : families())
    for (harness::Case& c : cases()) {
      c.build = harness::with_draws(std::move(c.build));
      out.push_back(std::move(c));
    }
  return out;
}

}  // namespace cases
