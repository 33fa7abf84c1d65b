// SPDX-License-Identifier: Apache-2.0
// Cases, their registration with GoogleTest under op/backend/name, and the list of what a backend
// may answer with UNSUPPORTED.
#pragma once
#include <cstdlib>
#include <map>
#include <set>

#include "harness/check.h"

namespace harness {

struct Case {
  std::string op, name;
  std::function<Call(uint64_t seed)> build;
  std::string cuda_kernel, host_kernel;  // see check()
  bool tiny = false;                     // written to tests/golden by --export
  bool bits_may_differ = false;          // nondeterministic = 1
  std::string recipe;                    // the method that gave the call its numbers
};

// The same builder, whose calls can have their roundings drawn again.
inline std::function<Call(uint64_t)> with_draws(std::function<Call(uint64_t)> build) {
  return [build](uint64_t seed) {
    Call call = build(seed);
    call.drawn = [build, seed](uint64_t draw) {
      const oracle::RoundingDraw drawing(draw);
      return build(seed);
    };
    return call;
  };
}

inline uint64_t seed_of(const std::string& name) {
  uint64_t x = 0;
  for (char c : name) x = hash(x ^ static_cast<uint8_t>(c));
  return x;
}

// Rows of tests/unsupported.txt: "backend op/name", an end of * matches any ending.
inline const std::vector<std::string>& unsupported_allowed() {
  static const std::vector<std::string> rows = {
#include "unsupported.txt"
  };
  return rows;
}

struct UnsupportedSeen {
  std::set<std::string> cases, rows;
};
inline UnsupportedSeen& unsupported_seen() {
  static UnsupportedSeen seen;
  return seen;
}

inline bool unsupported_is_allowed(const std::string& full) {
  for (const std::string& row : unsupported_allowed()) {
    const bool open = !row.empty() && row.back() == '*';
    if (open ? full.compare(0, row.size() - 1, row, 0, row.size() - 1) == 0 : full == row) {
      unsupported_seen().rows.insert(row);
      return true;
    }
  }
  return false;
}

class Conformance : public testing::Test {
 public:
  Conformance(fovea_backend backend, const Case& c) : backend_(backend), case_(c) {}
  void TestBody() override {
    // One context for all cases of a backend: its workspace grows and is reused, as a caller's is.
    static std::map<fovea_backend, std::unique_ptr<Context>> contexts;
    auto& ctx = contexts[backend_];
    if (!ctx) ctx = std::make_unique<Context>(backend_);
    const Call call = case_.build(seed_of(case_.name));
    size_t bytes = 0;
    const std::string full = std::string(name_of(backend_)) + " " + case_.op + "/" + case_.name;
    {
      Bound bound(*ctx, call);
      const fovea_status status = call.op.query(*ctx, bound.params(), &bytes);
      if (status == FOVEA_UNSUPPORTED) {
        unsupported_seen().cases.insert(full + ": " + fovea_last_error());
        if (!unsupported_is_allowed(full)) FAIL() << "unsupported: " << fovea_last_error();
        GTEST_SKIP() << fovea_last_error();
      }
      ASSERT_EQ(status, FOVEA_OK) << fovea_last_error();
    }
    check(*ctx, call, backend_ == FOVEA_CUDA ? case_.cuda_kernel : case_.host_kernel,
          case_.bits_may_differ);
    // Large workspaces of one case should not hide from the next that it asks for too little.
    must(fovea_context_set_workspace(*ctx, nullptr, 0), "set_workspace");
  }

 private:
  const fovea_backend backend_;
  const Case case_;
};

// A case of a CUDA kernel's tiles is large, and on the host nothing new.
inline bool fits(fovea_backend backend, const Case& c) {
  return backend != FOVEA_HOST || c.cuda_kernel.empty() || !c.host_kernel.empty();
}

// Rows of tests/heavy.txt: "op/name".
inline const std::set<std::string>& heavy() {
  static const std::set<std::string> rows = {
#include "heavy.txt"
  };
  return rows;
}

// Cases that do not fit would be four fifths of the host's time.  Of these one in 48 runs,
// always the same, and none under a sanitizer.  What is lost there is large shapes.
// Of an operation with `many` cases a sanitizer sees every second, always the same; random calls
// go on where these end.
inline bool registered(fovea_backend backend, const Case& c, bool many) {
  if (!sanitized()) return fits(backend, c) || seed_of(c.name) % 48 == 0;
  if (heavy().count(c.op + "/" + c.name) || (many && seed_of(c.name) % 2)) return false;
  return fits(backend, c);
}

// Enough to have run every kernel there: the cases called small, and of those that name a CUDA
// kernel the first for each.
inline std::vector<Case> one_a_kernel(const std::vector<Case>& cases) {
  std::vector<Case> few;
  std::set<std::string> kernels;
  for (const Case& c : cases)
    if (c.name.find("small") != std::string::npos ||
        (!c.cuda_kernel.empty() && kernels.insert(c.op + "." + c.cuda_kernel).second))
      few.push_back(c);
  return few;
}

// A row of tests/heavy.txt that names no case of an operation that is here.
inline std::string stale_row(const std::vector<Case>& cases) {
  std::set<std::string> names, ops;
  for (const Case& c : cases) names.insert(c.op + "/" + c.name), ops.insert(c.op);
  for (const std::string& row : heavy())
    if (ops.count(row.substr(0, row.find('/'))) && !names.count(row)) return row;
  return "";
}

inline void register_cases(const std::vector<Case>& cases) {
  std::set<std::string> names;
  std::map<std::string, int> count;
  for (const Case& c : cases) count[c.op] += fits(FOVEA_HOST, c);
  for (fovea_backend backend : backends())
    for (const Case& c : cases) {
      const std::string suite = c.op + "/" + name_of(backend);
      if (!names.insert(suite + "/" + c.name).second) {
        std::fprintf(stderr, "two cases are called %s/%s\n", suite.c_str(), c.name.c_str());
        std::exit(2);
      }
      if (!registered(backend, c, count[c.op] > 100)) continue;
      testing::RegisterTest(suite.c_str(), c.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                            [backend, c]() -> Conformance* { return new Conformance(backend, c); });
    }
}

}  // namespace harness
