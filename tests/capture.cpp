// SPDX-License-Identifier: Apache-2.0
// Every operation inside a CUDA graph: captured once, replayed on two sets of inputs (lengths, page
// tables and positions among them), each judged by the oracle.
#include <cuda_runtime_api.h>

#include "cases/all.h"
#include "cases/attention_case.h"

namespace {

using harness::Bytes;
using harness::Call;
using harness::Context;

void must(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

struct Stream {
  cudaStream_t stream = nullptr;
  Stream() { must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream); }
};

cudaGraphExec_t capture(Context& ctx, cudaStream_t stream, const Call& call,
                        harness::Bound& bound) {
  must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  const fovea_status status = call.op.run(ctx, bound.params());
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  EXPECT_EQ(status, FOVEA_OK) << fovea_last_error();
  must(ended);
  cudaGraphExec_t exec = nullptr;
  must(cudaGraphInstantiate(&exec, graph, 0));
  must(cudaGraphDestroy(graph));
  return exec;
}

class Capture : public testing::Test {
 public:
  explicit Capture(const harness::Case& c) : case_(c) {}
  void TestBody() override {
    Context ctx(FOVEA_CUDA);
    const uint64_t seed = harness::seed_of(case_.name);
    const Call one = case_.build(seed), two = case_.build(seed + 1);
    if (!harness::served(ctx, one)) GTEST_SKIP() << "no kernel";
    Stream stream;
    harness::must(fovea_context_set_stream(ctx, stream.stream), "set_stream");
    harness::Bound bound(ctx, one);
    size_t bytes = 0;
    ASSERT_EQ(one.op.query(ctx, bound.params(), &bytes), FOVEA_OK) << fovea_last_error();
    harness::Memory workspace(ctx, bytes + harness::kGuard);
    harness::must(fovea_context_set_workspace(ctx, workspace.data, bytes), "set_workspace");
    bound.upload(one, true);
    harness::must(fovea_context_synchronize(ctx), "synchronize");
    cudaGraphExec_t exec = capture(ctx, stream.stream, one, bound);
    Bytes first;
    for (const Call* call : {&one, &two, &one}) {
      const Bytes before = bound.upload(*call, true);
      workspace.write(std::vector<uint8_t>(workspace.bytes, 0xff));
      must(cudaGraphLaunch(exec, stream.stream));
      must(cudaStreamSynchronize(stream.stream));
      const Bytes after = bound.download();
      EXPECT_EQ(harness::find_damage(*call, before, after), "");
      harness::expect_outputs(*call, after);
      if (first.empty()) first = after;
      if (call == &one && !case_.bits_may_differ) {
        EXPECT_EQ(harness::first_difference(one, first, after), "");
      }
    }
    must(cudaGraphExecDestroy(exec));
    harness::must(fovea_context_set_workspace(ctx, nullptr, 0), "set_workspace");
    harness::must(fovea_context_set_stream(ctx, nullptr), "set_stream");
  }

 private:
  const harness::Case case_;
};

// The context's own workspace may not grow while a graph is recorded: the op says how much to give.
TEST(capture, workspace_does_not_grow) {
  cases::AttentionCase c;
  c.b = 1, c.s = 1, c.t = 4096, c.h = 8, c.g = 1, c.d = c.e = 128, c.dtype = FOVEA_BF16,
  c.splits = 8;
  const Call call = cases::build_attention_forward(c, 1, 1);
  Context ctx(FOVEA_CUDA);
  Stream stream;
  harness::must(fovea_context_set_stream(ctx, stream.stream), "set_stream");
  harness::Bound bound(ctx, call);
  bound.upload(call, false);
  size_t bytes = 0;
  harness::must(call.op.query(ctx, bound.params(), &bytes), "query");
  ASSERT_GT(bytes, 0u);
  must(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal));
  const fovea_status status = call.op.run(ctx, bound.params());
  const std::string text = fovea_last_error();
  cudaGraph_t graph = nullptr;
  must(cudaStreamEndCapture(stream.stream, &graph));
  cudaGraphDestroy(graph);
  EXPECT_EQ(status, FOVEA_OUT_OF_MEMORY) << text;
  EXPECT_NE(text.find(std::to_string(bytes)), std::string::npos) << text;
  // A run outside grows it; the capture after that is served.
  harness::must(call.op.run(ctx, bound.params()), "run");
  must(cudaGraphExecDestroy(capture(ctx, stream.stream, call, bound)));
  harness::must(fovea_context_set_stream(ctx, nullptr), "set_stream");
}

// A graph of a decode step, whose rows become others' and padding between replays: rows that -1
// took the place of keep their bits, and the one that is left moves as it does alone.
template <class Params>
void rows_become_padding(fovea_status (*run)(fovea_context*, const Params*)) {
  constexpr int64_t kSequences = 3, kSlots = 5, d = 8, e = 4;
  using Bits = std::vector<uint8_t>;
  Context ctx(FOVEA_CUDA);
  Stream stream;
  harness::must(fovea_context_set_stream(ctx, stream.stream), "set_stream");
  const harness::Random random(17);
  uint64_t n = 0;
  const auto normals = [&](harness::Memory& x) {
    std::vector<float> numbers(x.bytes / 4);
    for (float& y : numbers) y = static_cast<float>(random.normal(n++));
    Bits bytes(x.bytes);
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
    x.write(bytes);
    return bytes;
  };
  const auto integers = [](harness::Memory& x, const std::vector<int32_t>& values) {
    Bits bytes(x.bytes);
    std::memcpy(bytes.data(), values.data(), bytes.size());
    x.write(bytes);
  };
  const auto tensor = [](const harness::Memory& x, int type, const std::vector<int64_t>& shape) {
    return fovea_contiguous(x.data, static_cast<fovea_dtype>(type),
                            static_cast<int32_t>(shape.size()), shape.data());
  };
  harness::Memory q(ctx, 4 * kSequences * d), k(ctx, 4 * kSequences * d);
  harness::Memory v(ctx, 4 * kSequences * e), o(ctx, 4 * kSequences * e);
  harness::Memory pool(ctx, 4 * kSlots * d * e), row(ctx, 4 * kSequences);
  harness::Memory len(ctx, 4 * kSequences);
  normals(q), normals(k), normals(v);
  const Bits before = normals(pool);
  Params p = {};
  p.struct_size = sizeof p;
  p.q = tensor(q, FOVEA_F32, {kSequences, 1, 1, d}),
  p.k = tensor(k, FOVEA_F32, {kSequences, 1, 1, d});
  p.v = tensor(v, FOVEA_F32, {kSequences, 1, 1, e}),
  p.o = tensor(o, FOVEA_F32, {kSequences, 1, 1, e});
  p.state_in = p.state_out = tensor(pool, FOVEA_F32, {kSlots, 1, d, e});
  p.state_row = tensor(row, FOVEA_I32, {kSequences}), p.len = tensor(len, FOVEA_I32, {kSequences});
  const auto state = [&](const Bits& bytes, int64_t slot) {
    const int64_t size = 4 * d * e;
    return Bits(bytes.begin() + slot * size, bytes.begin() + (slot + 1) * size);
  };
  integers(row, {0, 4, 2}), integers(len, {1, 1, 1});
  harness::must(run(ctx, &p), "run");  // the context's workspace, if any, grows here
  const Bits alone = pool.read();
  for (const int64_t slot : {0, 4, 2}) EXPECT_NE(state(alone, slot), state(before, slot)) << slot;
  must(cudaStreamBeginCapture(stream.stream, cudaStreamCaptureModeThreadLocal));
  const fovea_status status = run(ctx, &p);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream.stream, &graph);
  ASSERT_EQ(status, FOVEA_OK) << fovea_last_error();
  must(ended);
  cudaGraphExec_t exec = nullptr;
  must(cudaGraphInstantiate(&exec, graph, 0));
  must(cudaGraphDestroy(graph));
  for (const bool padded : {false, true, false}) {
    pool.write(before);
    integers(row, padded ? std::vector<int32_t>{-1, 4, -1} : std::vector<int32_t>{0, 4, 2});
    integers(len, padded ? std::vector<int32_t>{0, 1, 0} : std::vector<int32_t>{1, 1, 1});
    harness::must(fovea_context_synchronize(ctx), "synchronize");
    must(cudaGraphLaunch(exec, stream.stream));
    must(cudaStreamSynchronize(stream.stream));
    const Bits after = pool.read();
    for (int64_t slot = 0; slot < kSlots; ++slot) {
      const bool moves = slot == 4 || (!padded && (slot == 0 || slot == 2));
      EXPECT_EQ(state(after, slot), state(moves ? alone : before, slot)) << padded << ' ' << slot;
    }
  }
  must(cudaGraphExecDestroy(exec));
  harness::must(fovea_context_set_stream(ctx, nullptr), "set_stream");
}
TEST(capture, rows_of_x_gla_become_padding) {
  rows_become_padding<fovea_x_gla_forward_params>(fovea_x_gla_forward);
}
TEST(capture, rows_of_x_delta_become_padding) {
  rows_become_padding<fovea_x_delta_forward_params>(fovea_x_delta_forward);
}

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int32_t devices = 0;
  harness::must(fovea_device_count(FOVEA_CUDA, &devices), "device_count");
  if (!devices) {
    std::printf("capture: no CUDA device here\n");
    return 77;  // ctest's SKIP_RETURN_CODE
  }
  // The small cases of every operation, and every eighth of all others.
  std::map<std::string, int> count;
  for (const harness::Case& c : cases::all()) {
    if (c.name.find("_t131072_") != std::string::npos ||
        c.name.find("_t4224_") != std::string::npos)
      continue;
    if (c.name.find("small") == std::string::npos && count[c.op]++ % 8) continue;
    testing::RegisterTest(("capture/" + c.op).c_str(), c.name.c_str(), nullptr, nullptr, __FILE__,
                          __LINE__, [c]() -> Capture* { return new Capture(c); });
  }
  return RUN_ALL_TESTS();
}
