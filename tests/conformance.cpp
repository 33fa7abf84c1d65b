// SPDX-License-Identifier: Apache-2.0
// Every operation on every backend found here against the float64 oracle, through the public C API:
//   conformance [--gtest_filter=attention_forward/cuda*causal*]
//   conformance --one-a-kernel     of the cases only as many as run every CUDA kernel
//   conformance --export <dir>     writes the golden vectors (tests/golden, format in
//   harness/golden.h)
#include "cases/all.h"
#include "harness/golden.h"

namespace {

// Says what was unsupported, and fails on rows of the allow-list that nothing needed any more.
class UnsupportedList : public testing::Environment {
 public:
  void TearDown() override {
    const harness::UnsupportedSeen& seen = harness::unsupported_seen();
    for (const std::string& text : seen.cases) std::printf("unsupported: %s\n", text.c_str());
    std::printf("unsupported: %zu cases, %zu rows allow them\n", seen.cases.size(),
                seen.rows.size());
    const testing::UnitTest& run = *testing::UnitTest::GetInstance();
    if (run.test_to_run_count() != run.total_test_count()) return;  // a filter or a shard
    for (const std::string& row : harness::unsupported_allowed()) {
      bool mine = false;  // of a backend that is here
      for (fovea_backend backend : harness::backends())
        mine = mine || row.find(harness::name_of(backend)) == 0;
      EXPECT_TRUE(!mine || seen.rows.count(row))
          << "tests/unsupported.txt: no case needs the row " << row;
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<harness::Case> cases = cases::all();
  if (argc == 3 && std::string(argv[1]) == "--export") {
    std::printf("%d golden vectors\n", harness::export_golden(cases, argv[2]));
    return 0;
  }
  const std::string stale = harness::stale_row(cases);
  if (!stale.empty()) {
    std::fprintf(stderr, "tests/heavy.txt: no case is called %s\n", stale.c_str());
    return 2;
  }
  testing::InitGoogleTest(&argc, argv);
  const bool few = argc == 2 && std::string(argv[1]) == "--one-a-kernel";
  if (!few) testing::AddGlobalTestEnvironment(new UnsupportedList);
  harness::register_cases(few ? harness::one_a_kernel(cases) : cases);
  return RUN_ALL_TESTS();
}
