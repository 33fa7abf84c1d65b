// SPDX-License-Identifier: Apache-2.0
// Contexts are independent: any number of them work at once, each on a thread of its own.
#include <atomic>
#include <thread>

#include "cases/all.h"
#include "cases/attention_case.h"

namespace {

using harness::Context;

// The small cases of every operation, and some of the others that fit the backend.
std::vector<harness::Case> some_cases(fovea_backend backend) {
  std::vector<harness::Case> out;
  std::map<std::string, int> count;
  const int each = backend == FOVEA_HOST ? 27 : 9;  // TSan takes its time on the host
  for (harness::Case& c : cases::all()) {
    if (!harness::fits(backend, c)) continue;
    if ((c.name.find("small") != std::string::npos && count[c.op + " small"]++ % 3 == 0) ||
        (c.op.find("attention") == std::string::npos && count[c.op]++ % each == 0))
      out.push_back(std::move(c));
  }
  return out;
}

class Threads : public testing::TestWithParam<fovea_backend> {};
INSTANTIATE_TEST_SUITE_P(contexts, Threads, testing::ValuesIn(harness::backends()),
                         [](const auto& at) { return std::string(harness::name_of(at.param)); });

void run_threads(int threads, const std::function<void(int)>& body) {
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i)
    running.emplace_back([&body, i] {
      try {
        body(i);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "thread " << i << ": " << error.what();
      }
    });
  for (std::thread& thread : running) thread.join();
}

// Two contexts, two threads, every operation; on CUDA they have a stream each.
TEST_P(Threads, two_contexts_every_operation) {
  const std::vector<harness::Case> list = some_cases(GetParam());
  run_threads(2, [&](int me) {
    Context ctx(GetParam());
    for (size_t i = 0; i < list.size(); ++i) {
      // One goes forwards and one backwards, so that different operations meet.
      const harness::Case& c = list[me ? list.size() - 1 - i : i];
      SCOPED_TRACE(c.op + "/" + c.name + ", draw " + std::to_string(me));
      const harness::Call call = c.build(harness::seed_of(c.name) + me);
      if (harness::served(ctx, call)) harness::check(ctx, call, "", c.bits_may_differ);
    }
  });
}

// The same call on both at once: also the same bits.
TEST_P(Threads, same_call_same_bits) {
  cases::AttentionCase c;
  c.b = 2, c.s = 70, c.t = 130, c.h = 4, c.g = 2, c.d = c.e = 64, c.span = cases::Span::causal;
  const harness::Call call = cases::build_attention_backward(c, 1, 2);
  harness::Bytes results[4];
  run_threads(4, [&](int me) {
    Context ctx(GetParam());
    for (int i = 0; i < 5; ++i)
      results[me] = harness::run_way(ctx, call, {me % 2 == 0, me > 1, me});
  });
  for (int i = 1; i < 4; ++i)
    EXPECT_EQ(harness::first_difference(call, results[0], results[i]), "");
}

// Contexts come and go on several threads while others work; errors stay with their thread.
TEST_P(Threads, many_contexts) {
  const std::vector<harness::Case> list = some_cases(GetParam());
  std::atomic<int> next{0};
  run_threads(4, [&](int me) {
    std::vector<std::unique_ptr<Context>> idle;
    for (int n; (n = next++) < 40;) {
      idle.push_back(std::make_unique<Context>(GetParam()));
      if (idle.size() > 4) idle.erase(idle.begin());
      EXPECT_EQ(fovea_context_set_threads(*idle.back(), -1 - me), FOVEA_INVALID_ARGUMENT);
      EXPECT_NE(std::string(fovea_last_error()).find(std::to_string(-1 - me)), std::string::npos)
          << fovea_last_error();
      const harness::Case& c = list[static_cast<size_t>(n) % list.size()];
      SCOPED_TRACE(c.op + "/" + c.name);
      const harness::Call call = c.build(7);
      if (harness::served(*idle.back(), call))
        harness::run_way(*idle.back(), call, {true, false, 2});
    }
  });
}

// A context that waits for another sees what it had enqueued, with no wait of the host between.
TEST_P(Threads, wait_orders_two_contexts) {
  Context one(GetParam()), two(GetParam());
  cases::AttentionCase c;
  c.b = 2, c.s = 300, c.t = 500, c.h = 4, c.g = 2, c.d = c.e = 64;
  const harness::Call call = cases::build_attention_forward(c, 1, 2);
  harness::Bound bound(one, call);
  const harness::Field& o = call.fields[call.field("o")];
  const size_t size = o.exact.value.size() * sizeof(float);
  harness::Memory copied(two, size);
  for (int i = 0; i < 5; ++i) {
    bound.upload(call, true);
    harness::must(bound.run(call), "run");
    harness::must(fovea_context_wait(two, one), "wait");
    fovea_tensor on_device;
    std::memcpy(&on_device, static_cast<const uint8_t*>(bound.params()) + o.slot, sizeof on_device);
    harness::must(fovea_copy(two, copied.data, on_device.data, size), "copy");
    const std::vector<uint8_t> got = copied.read();
    std::vector<double> values;
    for (size_t n = 0; n < size; n += sizeof(float))
      values.push_back(oracle::decode(FOVEA_F32, got.data() + n));
    EXPECT_EQ(harness::compare(o.exact, o.rounded, values, false), "");
    harness::must(fovea_context_wait(one, two), "wait");
  }
}

}  // namespace
