// SPDX-License-Identifier: Apache-2.0
// Every operation on every backend found here against the float64 oracle, through the public C API:
//   conformance [--gtest_filter=attention_forward/cuda*causal*]
//   conformance --export <dir>     writes the golden vectors (tests/golden, format in
//   harness/golden.h)
#include "cases/attention_forward.h"
#include "cases/cache.h"
#include "cases/merge.h"
#include "cases/rope.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  harness::register_cases(cases::attention_forward_sweep());
  harness::register_cases(cases::merge_cases());
  harness::register_cases(cases::rope_cases());
  harness::register_cases(cases::cache_cases());
  return RUN_ALL_TESTS();
}
