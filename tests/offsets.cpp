// SPDX-License-Identifier: Apache-2.0
// Element offsets past 2^31 and 2^32 on every axis of every tensor of every operation.  One tensor
// of a small call at a time is spread over a huge buffer: on the host an address range of which
// only the touched pages exist, on CUDA real memory.
#include <sys/mman.h>

#include "cases/all.h"
#include "cases/attention_case.h"

namespace {

using harness::Call;
using harness::Context;
using harness::Field;

constexpr int64_t kHuge = ((1ll << 32) + (1 << 16)) * 4 + (16 << 20);  // bytes, of elements of 4
constexpr size_t kMostCopies = 2000;  // on CUDA, where each run of neighbours is a copy

class Huge {
 public:
  explicit Huge(Context& ctx) : ctx_(ctx) {
    if (ctx.backend == FOVEA_CUDA) {
      harness::must(fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, kHuge, &data), "alloc");
      return;
    }
    data = mmap(nullptr, kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                -1, 0);
    if (data == MAP_FAILED) throw std::runtime_error("cannot reserve 17 GiB of addresses");
  }
  ~Huge() {
    if (ctx_.backend == FOVEA_CUDA)
      fovea_free(ctx_, data);
    else
      munmap(data, kHuge);
  }
  void forget() {
    if (ctx_.backend == FOVEA_HOST) madvise(data, kHuge, MADV_DONTNEED);
  }
  void* data = nullptr;

 private:
  Context& ctx_;
};

// The strides of `x` with axis `axis` spread so that its last index lies `far` elements away.
fovea_tensor spread(const fovea_tensor& x, int axis, int64_t far) {
  fovea_tensor y = fovea_contiguous(nullptr, static_cast<fovea_dtype>(x.dtype), x.ndim, x.shape);
  y.stride[axis] = (far / (x.shape[axis] - 1) + 63) / 64 * 64;
  // The other axes stay dense among themselves, but for those that share an element.
  int64_t pitch = 1;
  for (int i = x.ndim - 1; i >= 0; --i) {
    if (i == axis) continue;
    y.stride[i] = x.stride[i] ? pitch : 0;
    if (x.stride[i]) pitch *= x.shape[i];
  }
  return y;
}

// Returns whether the call ran: a spread into too many runs is left to the host.
bool check_spread(Context& ctx, Huge& huge, const Call& call, size_t field, int axis, int64_t far) {
  const Field& f = call.fields[field];
  const int64_t size = oracle::bytes_of(f.tensor.dtype);
  fovea_tensor wide = spread(f.tensor, axis, far);
  wide.data = huge.data;
  // From the image to where it now lies, in runs of elements that are neighbours in both.
  struct Run {
    int64_t near, away, bytes;
  };
  std::vector<Run> runs;
  call.each(field, [&](const int64_t*, int64_t byte) { runs.push_back({byte, 0, size}); });
  size_t index = 0;
  oracle::each_element(wide, [&](int64_t byte) { runs[index++].away = byte; });
  size_t last = 0;
  for (size_t i = 1; i < runs.size(); ++i) {
    Run& run = runs[last];
    if (runs[i].near == run.near + run.bytes && runs[i].away == run.away + run.bytes)
      run.bytes += size;
    else
      runs[++last] = runs[i];
  }
  runs.resize(std::min(runs.size(), last + 1));
  const bool host = ctx.backend == FOVEA_HOST;
  if (!host && runs.size() > kMostCopies) return false;
  for (const Run& run : runs)
    if (run.away + run.bytes > kHuge) throw std::runtime_error("past the test's own memory");
  harness::Bound bound(ctx, call);
  bound.upload(call, true);
  std::vector<uint8_t> params(static_cast<const uint8_t*>(bound.params()),
                              static_cast<const uint8_t*>(bound.params()) + call.params.size());
  std::memcpy(params.data() + f.slot, &wide, sizeof wide);
  const std::vector<uint8_t> image = call.image(f.storage, true);
  auto* spread_out = static_cast<uint8_t*>(huge.data);
  auto copy = [&](void* to, const void* from, int64_t bytes) {
    if (host)
      std::memcpy(to, from, bytes);
    else
      harness::must(fovea_copy(ctx, to, from, bytes), "copy");
  };
  for (const Run& run : runs) copy(spread_out + run.away, image.data() + run.near, run.bytes);
  harness::must(call.op.run(ctx, params.data()), call.op.name);
  harness::must(fovea_context_synchronize(ctx), "synchronize");
  harness::Bytes after = bound.download();
  for (const Run& run : runs)
    copy(after[f.storage].data() + run.near, spread_out + run.away, run.bytes);
  harness::must(fovea_context_synchronize(ctx), "synchronize");
  harness::expect_outputs(call, after);
  huge.forget();
  return true;
}

class Offsets : public testing::TestWithParam<fovea_backend> {
 protected:
  Offsets() : ctx(GetParam()), huge(ctx) {}
  Context ctx;
  Huge huge;
  std::map<std::string, int> ran;  // spreads of each operation

  void check(const Call& call) {
    if (!harness::served(ctx, call)) return;
    for (size_t i = 0; i < call.fields.size(); ++i) {
      const Field& f = call.fields[i];
      int users = 0;
      for (const Field& other : call.fields) users += other.storage == f.storage;
      if (users > 1) continue;  // it is another's memory
      for (int axis = 0; axis < f.tensor.ndim; ++axis) {
        if (f.tensor.shape[axis] < 2 || f.tensor.stride[axis] == 0) continue;
        for (int64_t far : {(1ll << 31) + 4096, (1ll << 32) + 4096}) {
          SCOPED_TRACE(std::string(call.op.name) + " " + f.name + " axis " + std::to_string(axis) +
                       " spread over " + std::to_string(far));
          ran[call.op.name] += check_spread(ctx, huge, call, i, axis, far);
          if (HasFailure()) return;
        }
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(past_2_32, Offsets, testing::ValuesIn(harness::backends()),
                         [](const auto& at) { return std::string(harness::name_of(at.param)); });

cases::AttentionCase attention(int dtype, cases::Where where) {
  cases::AttentionCase c;
  c.dtype = dtype, c.b = 2, c.s = 5, c.t = 20, c.h = 4, c.g = 2, c.d = c.e = 16;
  c.where = where, c.page = where == cases::Where::paged ? 4 : 0;
  return c;
}

TEST_P(Offsets, attention_forward) {
  for (int dtype : {FOVEA_F32, FOVEA_BF16}) {
    for (cases::Where where : {cases::Where::batched, cases::Where::varlen, cases::Where::key_first,
                               cases::Where::cache_row, cases::Where::paged})
      check(cases::build_attention_forward(attention(dtype, where), 5, 1));
    cases::AttentionCase c = attention(dtype, cases::Where::batched);
    c.span = cases::Span::head_window, c.sink_logit = c.alibi = c.mask = c.q_value = true;
    c.bias = cases::Bias::full, c.positions = cases::Positions::both, c.rope = cases::Rope::half;
    check(cases::build_attention_forward(c, 4, 1));
    c = attention(dtype, cases::Where::batched);
    c.d = c.e = 64, c.s = 33, c.span = cases::Span::causal, c.splits = 2;
    check(cases::build_attention_forward(c, 4, 1));
  }
}

TEST_P(Offsets, attention_backward) {
  for (int dtype : {FOVEA_F32, FOVEA_BF16})
    for (cases::Where where :
         {cases::Where::batched, cases::Where::varlen, cases::Where::key_first}) {
      cases::AttentionCase c = attention(dtype, where);
      c.d = c.e = 8, c.t = 9;
      c.span = cases::Span::causal, c.sink_logit = c.alibi = c.mask = c.dlse = true,
      c.bias = cases::Bias::full;
      check(cases::build_attention_backward(c, 4, 1));
    }
}

TEST_P(Offsets, conv_attention) {
  for (const harness::Case& c : cases::all())
    if (c.op.find("conv_attention") == 0 && c.name.find("small") != std::string::npos)
      check(c.build(harness::seed_of(c.name)));
}

// The golden ones of every operation that has no test above, and some of its others.
TEST_P(Offsets, others) {
  std::map<std::string, int> count;
  const int each = GetParam() == FOVEA_HOST ? 48 : 16;  // many spreads are the host's alone
  for (const harness::Case& c : cases::all()) {
    if (c.op.find("attention") == 0 || c.op.find("conv_attention") == 0) continue;
    if (!harness::fits(GetParam(), c)) continue;
    if (c.tiny || (c.name.find("_edge") == std::string::npos &&
                   c.name.find("_e128") == std::string::npos && ++count[c.op] % each == 5))
      check(c.build(harness::seed_of(c.name)));
  }
  for (const auto& [op, cases] : count) {
    const std::string row = std::string(harness::name_of(GetParam())) + " " + op + "/";
    if (harness::unsupported_is_allowed(row)) continue;
    EXPECT_GT(ran[op], 20) << op;
  }
}

}  // namespace
