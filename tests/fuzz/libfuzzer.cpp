// SPDX-License-Identifier: Apache-2.0
// The same rounds led by libFuzzer (clang, -DFOVEA_FUZZ=ON): fuzz_lib [corpus folder]
#include "fuzz/body.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static harness::Context ctx(FOVEA_HOST);
  uint64_t seed = 1;
  if (size >= 2) seed = static_cast<uint64_t>(data[0] | data[1] << 8);
  fuzz::Round(ctx, data, size, seed).run();
  if (testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) __builtin_trap();
  return 0;
}
