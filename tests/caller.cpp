// SPDX-License-Identifier: Apache-2.0
// What a caller may bring along: a floating-point state of its own, a small stack, extents beyond
// all memory where nothing is to be done, memory that is not the library's to free.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cfenv>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <set>

#include "subject.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using contract::Case;
using subject::Bytes;
using subject::Data;
using subject::Subject;

class Context {
 public:
  explicit Context(int32_t threads = 4, fovea_backend backend = FOVEA_HOST) {
    EXPECT_EQ(fovea_context_create(backend, 0, &ctx_), FOVEA_OK) << fovea_last_error();
    fovea_context_set_threads(ctx_, threads);
  }
  ~Context() { fovea_context_destroy(ctx_); }
  Context(const Context&) = delete;
  operator fovea_context*() const { return ctx_; }

 private:
  fovea_context* ctx_ = nullptr;
};

class Every : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Caller, Every, testing::ValuesIn(subject::all_cases()),
                         [](const auto& info) {
                           return std::string(info.param.op) + "_" + info.param.name;
                         });

// ---- floating-point state

#if defined(__GLIBC__)
int traps() {
  return fegetexcept();
}
void trap_all() {
  feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT);
}
#else
int traps() {
  return 0;
}
void trap_all() {}
#endif

struct FloatSetting {
  const char* name;
  std::function<void()> set;
};

std::vector<FloatSetting> float_settings() {
  std::vector<FloatSetting> all = {{"traps", trap_all},
                                   {"upward", [] { std::fesetround(FE_UPWARD); }},
                                   {"toward zero", [] { std::fesetround(FE_TOWARDZERO); }}};
#if defined(__x86_64__)
  all.push_back({"denormals are zero", [] { _mm_setcsr(_mm_getcsr() | 0x8040); }});
#endif
  return all;
}

// The control and flag bits that a thread computes with.
uint64_t float_state() {
  uint64_t state = static_cast<uint64_t>(std::fegetround()) << 32 |
                   static_cast<uint64_t>(std::fetestexcept(FE_ALL_EXCEPT)) << 48 |
                   static_cast<uint64_t>(traps()) << 56;
#if defined(__x86_64__)
  state |= _mm_getcsr();
#endif
  return state;
}

// Same bits, no trap, no trace: on the calling thread and on those the call starts.
TEST_P(Every, FloatStateIsTheCallersOwn) {
  for (const Data data : {Data::plain, Data::hard}) {
    Subject subject(GetParam(), data);
    Bytes expected;
    {
      const Context ctx;
      ASSERT_EQ(subject.run(ctx), FOVEA_OK) << fovea_last_error();
      expected = subject.bytes();
    }
    for (const FloatSetting& setting : float_settings()) {
      SCOPED_TRACE(setting.name);
      subject.reset();
      const Context ctx;
      std::fenv_t own;
      std::feholdexcept(&own);
      setting.set();
      const uint64_t before = float_state();
      const fovea_status status = subject.run(ctx);
      const uint64_t after = float_state();
      std::fesetenv(&own);
      EXPECT_EQ(status, FOVEA_OK) << fovea_last_error();
      EXPECT_EQ(before, after);
      EXPECT_EQ(subject.difference(expected, subject.bytes()), "");
    }
  }
}

// ---- stack

constexpr size_t kStackBytes = 64 * 1024;

// Runs body on a thread with a small stack; how many bytes of it were used, the C library's own
// among them.
size_t stack_used(const std::function<void()>& body) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // The page below is no one's: to run over is a fault, not someone else's memory.
  void* const base =
      mmap(nullptr, kStackBytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* const stack = static_cast<unsigned char*>(base) + page;
  mprotect(stack, kStackBytes, PROT_READ | PROT_WRITE);
  std::memset(stack, 0xa5, kStackBytes);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  EXPECT_EQ(pthread_attr_setstack(&attributes, stack, kStackBytes), 0);
  pthread_t thread;
  const auto entry = [](void* f) -> void* {
    (*static_cast<const std::function<void()>*>(f))();
    return nullptr;
  };
  EXPECT_EQ(pthread_create(&thread, &attributes, entry,
                           const_cast<void*>(static_cast<const void*>(&body))),
            0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  size_t untouched = 0;
  while (untouched < kStackBytes && stack[untouched] == 0xa5) ++untouched;
  munmap(base, kStackBytes + page);
  return kStackBytes - untouched;
}

// core.h promises 32 KiB.
TEST_P(Every, SmallStack) {
  const Subject subject(GetParam());
  const Context ctx(1);
  const size_t nothing = stack_used([] {});
  fovea_status status = FOVEA_INTERNAL_ERROR;
  const size_t used = stack_used([&] { status = subject.run(ctx); });
  EXPECT_EQ(status, FOVEA_OK) << fovea_last_error();
  EXPECT_LE(used - nothing, 32u * 1024);
  if (std::getenv("FOVEA_TEST_SHOW"))
    std::printf("%s %zu\n", GetParam().op.c_str(), used - nothing);
}

TEST(Stack, RefusalsNeedLittle) {
  for (const Case& c : contract::large_cases()) {
    Subject subject(c);
    const Context ctx(1);
    subject.call.params.set_size(8);
    fovea_status status = FOVEA_OK;
    const size_t nothing = stack_used([] {});
    const size_t used = stack_used([&] { status = subject.run(ctx); });
    EXPECT_EQ(status, FOVEA_INVALID_ARGUMENT);
    EXPECT_LE(used - nothing, 32u * 1024) << c.op;
  }
}

// ---- nothing to do

// A hang is a failure that says which call it was.
char t_now[512];
void alarmed(int) {
  const char text[] = "\nthis call does not come back: ";
  if (write(2, text, sizeof text - 1) < 0 || write(2, t_now, std::strlen(t_now)) < 0) _exit(3);
  _exit(2);
}

// Extents that the case's tensors have, but for those that follow from others.
std::vector<std::string> extent_names(const Case& c) {
  const contract::Call call(c);
  std::set<std::string> names;
  for (const contract::Field* f : call.tensors())
    for (std::string dim : call.dims(*f)) {
      if (isdigit(dim[0]) || dim == "key_b" || dim == "keys" || dim == "bytes") continue;
      dim = dim.substr(0, dim.find('+'));
      if (dim == "rows" && !call.has("cache_row")) continue;
      names.insert(dim == "r" && !call.has("query_start") && !call.has("key_start") &&
                           !call.has("start")
                       ? "b"
                       : dim);
    }
  return {names.begin(), names.end()};
}

// Without one of these no row meets a key, whatever the outputs are.
const std::set<std::string> kOfPairs = {"b", "r", "s", "t", "h", "g", "n", "pages"};

// Rows see no keys then, but each has its outputs, or a weight in their sum.
const std::set<std::string> kOfKeys = {"t", "n", "pages"};

// Inputs become one element each that is read again and again.  False: an output has more elements
// than there is memory for, or is to be computed although `none` is 0.
bool make_small(contract::Call& call, const std::string& none, const std::string& wild) {
  for (const contract::Field* f : call.tensors()) {
    fovea_tensor& x = call.params[f->name];
    double count = 1;
    for (int i = 0; i < x.ndim; ++i) count *= static_cast<double>(x.shape[i]);
    if (!f->output) {
      // Starts ascend: their stride stays where they are few.
      if (f->dims[0] == "r+1" && x.shape[0] < 1000) continue;
      contract::repeat(x);
    } else if (count > 1 << 16) {
      if (f->required) return false;
      x = {};
    } else if (count > 0) {
      const std::string op = call.op->name;
      if (op.rfind("cache_", 0) == 0 || op.rfind("merge_", 0) == 0) return false;
      // Heads are formed of rows, and gradients of rows are summed, without pairs too.
      if (op == "x_tpa_backward") return false;
      // Lists are found by heads of the index, without heads of q too.
      if (op == "x_compressed_forward" && none == "h") return false;
      if (!kOfPairs.count(none) || (kOfKeys.count(none) && (wild == "s" || wild == "b")))
        return false;
      // Row blocks of x_probe are of two outputs; the others meet every key without them.
      if (op.rfind("x_probe_", 0) == 0 && none == "n") return false;
      if (wild == "r") return false;  // each sequence's start is read
      // Each sequence's state goes on, without tokens too.
      if (call.op->find("state_row") && wild == "b") return false;
      // Each sequence's tokens are counted, without heads too.
      if (op == "x_kv_append" && wild == "b") return false;
      // States are of rows and of keys: each reads them, and adds to their gradient, alone.
      if (op.rfind("x_gla_", 0) == 0 && call.has("key_len") && (none == "s" || none == "t"))
        return false;
      // Each head's row counts in the sum, or has its place among the edges.
      if (kOfKeys.count(none) && wild == "h" && (call.has("total") || call.has("edge_count")))
        return false;
    }
  }
  return true;
}

// One extent 0 and another beyond all memory: at once, and from no workspace to speak of.
TEST_P(Every, NothingToDo) {
  signal(SIGALRM, alarmed);
  const std::vector<std::string> names = extent_names(GetParam());
  const Context ctx(2);
  int calls = 0;
  for (const std::string& none : names)
    for (const std::string& wild : names) {
      if (none == wild) continue;
      for (const char* size : {"1099511627776", "1152921504606846976"}) {
        std::string settings = GetParam().settings;
        settings.append(" ").append(none).append("=0 ").append(wild).append("=").append(size);
        std::snprintf(t_now, sizeof t_now, "%s_%s: %s\n", GetParam().op.c_str(),
                      GetParam().name.c_str(), settings.c_str());
        SCOPED_TRACE(t_now);
        if (std::getenv("FOVEA_TEST_SHOW")) std::fprintf(stderr, "%s", t_now);
        const Case c{GetParam().op, GetParam().name, GetParam().given, settings.c_str()};
        contract::Call call(c);
        if (!make_small(call, none, wild)) continue;
        size_t bytes = 0;
        if (call.op->query(ctx, call.params.data(), &bytes) != FOVEA_OK) {
          EXPECT_EQ(std::string(fovea_last_error()).rfind(std::string(c.op) + ": ", 0), 0u)
              << fovea_last_error();
          EXPECT_EQ(std::string(fovea_last_error()).find("workspace"), std::string::npos)
              << fovea_last_error();
          continue;
        }
        ++calls;
        EXPECT_LE(bytes, size_t{1} << 24);
        alarm(20);
        const auto begin = std::chrono::steady_clock::now();
        if (bytes <= size_t{1} << 24) {
          EXPECT_EQ(call.op->call(ctx, call.params.data()), FOVEA_OK) << fovea_last_error();
        }
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
        alarm(0);
        EXPECT_LT(took.count(), 2);
      }
    }
  // Every operation has some pair of extents that leaves it nothing to do.
  if (GetParam().name == std::string("plain")) {
    EXPECT_GT(calls, 0);
  }
}

// Codes of no tokens: the scales are written, and d asks for no memory.
TEST(NothingToDo, CodesOfNoTokens) {
  const Context ctx(2);
  float none = 0, scales[8];
  std::fill_n(scales, 8, 7.0f);
  fovea_quant_quantize_params p{};
  p.struct_size = sizeof p;
  const int64_t rows[] = {2, 0, 4, int64_t{1} << 33}, of_scales[] = {2, 4, 1};
  p.x = fovea_contiguous(&none, FOVEA_F32, 4, rows);
  p.code = fovea_contiguous(&none, FOVEA_I8, 4, rows);
  p.scale = fovea_contiguous(scales, FOVEA_F32, 3, of_scales);
  size_t bytes = 0;
  ASSERT_EQ(fovea_quant_quantize_workspace(ctx, &p, &bytes), FOVEA_OK) << fovea_last_error();
  EXPECT_LE(bytes, size_t{1} << 24);
  ASSERT_EQ(fovea_quant_quantize(ctx, &p), FOVEA_OK) << fovea_last_error();
  for (const float scale : scales) EXPECT_EQ(scale, 0);
}

// Rows past the room of the cache are dropped, however many there are: their columns are none, but
// each has scales.
TEST(NothingToDo, RowsWithoutRoom) {
  signal(SIGALRM, alarmed);
  std::snprintf(t_now, sizeof t_now, "cache_append of rows without room\n");
  constexpr int32_t many = INT32_MAX;
  constexpr int room = 3, sequences = 2;
  const Context ctx(2);
  for (const bool packed : {false, true}) {
    const int32_t starts[sequences + 1] = {0, 1, many};
    int32_t lengths[sequences];
    float scales[sequences][room];
    float none = 0;
    std::fill_n(*scales, sequences * room, 7.0f);
    fovea_cache_append_params p{};
    p.struct_size = sizeof p;
    const int64_t rows[] = {packed ? 1 : sequences, many, 1, 0};
    const int64_t cache[] = {sequences, room, 1, 0}, of_scales[] = {sequences, room, 1, 1};
    const int64_t count[] = {sequences}, bounds[] = {sequences + 1};
    int32_t own_rows[] = {0, 1};
    p.k_new = fovea_contiguous(&none, FOVEA_F32, 4, rows);
    p.k = fovea_contiguous(&none, FOVEA_I8, 4, cache);
    p.k_scale_out = fovea_contiguous(scales, FOVEA_F32, 4, of_scales);
    p.key_len_out = fovea_contiguous(lengths, FOVEA_I32, 1, count);
    if (packed) {
      p.query_start = fovea_contiguous(const_cast<int32_t*>(starts), FOVEA_I32, 1, bounds);
      p.cache_row = fovea_contiguous(own_rows, FOVEA_I32, 1, count);
    }
    alarm(20);
    EXPECT_EQ(fovea_cache_append(ctx, &p), FOVEA_OK) << fovea_last_error();
    alarm(0);
    for (int r = 0; r < sequences; ++r)
      for (int i = 0; i < room; ++i)
        EXPECT_EQ(scales[r][i], packed && r == 0 && i > 0 ? 7.0f : 1.0f) << packed << r << i;
    EXPECT_EQ(lengths[0], packed ? 1 : many) << packed;
    EXPECT_EQ(lengths[1], packed ? many - 1 : many) << packed;
  }
}

// ---- memory that is not to be freed

class Free : public testing::TestWithParam<fovea_backend> {};

std::vector<fovea_backend> backends() {
  int32_t count = 0;
  fovea_device_count(FOVEA_CUDA, &count);
  if (count > 0) return {FOVEA_HOST, FOVEA_CUDA};
  return {FOVEA_HOST};
}
INSTANTIATE_TEST_SUITE_P(Caller, Free, testing::ValuesIn(backends()), [](const auto& info) {
  return std::string(info.param == FOVEA_HOST ? "host" : "cuda");
});

void refuses_to_free(fovea_context* ctx, void* data) {
  EXPECT_EQ(fovea_free(ctx, data), FOVEA_INVALID_ARGUMENT);
  char wanted[160];
  std::snprintf(wanted, sizeof wanted,
                "free: data is %p, which fovea_alloc did not give or which was freed", data);
  EXPECT_EQ(std::string(fovea_last_error()), wanted);
}

TEST_P(Free, OnlyWhatAllocGave) {
  const Context ctx(1, GetParam()), other(1, GetParam());
  std::unique_ptr<char[]> foreign(new char[4096]);
  int local = 0;
  for (const fovea_memory memory : {FOVEA_MEMORY_DEVICE, FOVEA_MEMORY_HOST}) {
    void* data = nullptr;
    ASSERT_EQ(fovea_alloc(ctx, memory, 1000, &data), FOVEA_OK) << fovea_last_error();
    refuses_to_free(ctx, foreign.get());
    refuses_to_free(ctx, &local);
    refuses_to_free(ctx, reinterpret_cast<void*>(16));
    refuses_to_free(ctx, static_cast<char*>(data) + 256);
    EXPECT_EQ(fovea_free(other, data), FOVEA_OK) << fovea_last_error();  // any of the device
    refuses_to_free(ctx, data);
    refuses_to_free(other, data);
  }
  EXPECT_EQ(fovea_free(ctx, nullptr), FOVEA_OK);
}

TEST_P(Free, AfterTheContextThatGave) {
  void* data = nullptr;
  {
    const Context gone(1, GetParam());
    ASSERT_EQ(fovea_alloc(gone, FOVEA_MEMORY_DEVICE, 1 << 20, &data), FOVEA_OK);
  }
  const Context ctx(1, GetParam());
  EXPECT_EQ(fovea_free(ctx, data), FOVEA_OK) << fovea_last_error();
  refuses_to_free(ctx, data);
}

TEST_P(Free, ManyFromManyThreads) {
  std::vector<pthread_t> threads(4);
  fovea_backend backend = GetParam();
  const auto entry = [](void* of) -> void* {
    const Context ctx(1, *static_cast<fovea_backend*>(of));
    std::vector<void*> held;
    for (int i = 0; i < 300; ++i) {
      void* data = nullptr;
      EXPECT_EQ(fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, 64 + i, &data), FOVEA_OK);
      held.push_back(data);
      if (i % 3) continue;
      EXPECT_EQ(fovea_free(ctx, held.front()), FOVEA_OK) << fovea_last_error();
      held.erase(held.begin());
    }
    for (void* data : held) EXPECT_EQ(fovea_free(ctx, data), FOVEA_OK) << fovea_last_error();
    return nullptr;
  };
  for (pthread_t& thread : threads) ASSERT_EQ(pthread_create(&thread, nullptr, entry, &backend), 0);
  for (pthread_t thread : threads) pthread_join(thread, nullptr);
}

TEST(FreeOfAnother, Backend) {
  if (backends().size() < 2) GTEST_SKIP() << "no CUDA device here";
  const Context host(1), cuda(1, FOVEA_CUDA);
  void* data = nullptr;
  ASSERT_EQ(fovea_alloc(cuda, FOVEA_MEMORY_HOST, 4096, &data), FOVEA_OK);
  EXPECT_EQ(fovea_free(host, data), FOVEA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(fovea_last_error()).find("FOVEA_CUDA device 0"), std::string::npos)
      << fovea_last_error();
  EXPECT_EQ(fovea_free(cuda, data), FOVEA_OK) << fovea_last_error();
}

}  // namespace
