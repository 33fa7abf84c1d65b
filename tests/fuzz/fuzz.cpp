// SPDX-License-Identifier: Apache-2.0
// Descriptor fuzzing with a fixed order of seeds for a few seconds:
//   FOVEA_FUZZ_SECONDS=600 fuzz      longer
//   FOVEA_FUZZ_SEED=123 fuzz         one round, as a failure names it
#include <unistd.h>
#include <chrono>
#include <csignal>
#include <cstdio>

#include "fuzz/body.h"

namespace {

volatile uint64_t current_seed;

// A crash says which round it was.
void say_seed() {
  char text[64];
  const int n = std::snprintf(text, sizeof text, "\nFOVEA_FUZZ_SEED=%llu\n",
                              static_cast<unsigned long long>(current_seed));
  if (write(2, text, static_cast<size_t>(n)) != n) return;
}
void on_signal(int number) {
  say_seed();
  signal(number, SIG_DFL);
  raise(number);
}

int64_t environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoll(text) : otherwise;
}

TEST(fuzz, descriptors) {
  if (harness::watches_addresses()) __asan_set_death_callback(say_seed);
  for (int number : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL}) signal(number, on_signal);
  harness::Context ctx(FOVEA_HOST);
  harness::must(fovea_context_set_threads(ctx, 2), "set_threads");
  const int64_t one = environment("FOVEA_FUZZ_SEED", -1);
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::seconds(environment("FOVEA_FUZZ_SECONDS", 20));
  int64_t rounds = 0, ran = 0;
  for (uint64_t seed = one >= 0 ? static_cast<uint64_t>(one) : 1;
       std::chrono::steady_clock::now() < end; ++seed, ++rounds) {
    current_seed = seed;
    ran += fuzz::Round(ctx, nullptr, 0, seed).run();
    if (HasFailure()) FAIL() << "FOVEA_FUZZ_SEED=" << seed;
    if (one >= 0) return;
  }
  std::printf("%lld rounds, %lld of them ran\n", static_cast<long long>(rounds),
              static_cast<long long>(ran));
  // A fifth of many rounds runs.  The first ones build the calls that all start from: under a
  // sanitizer 20 seconds see a few dozen, whose share scatters.
  EXPECT_GT(ran, rounds / 20);
}

}  // namespace
