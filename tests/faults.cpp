// SPDX-License-Identifier: Apache-2.0
// Every operation and every context under faults: the n-th allocation fails, or it and all after
// it; no thread can be started; the library is loaded and unloaded a thousand times; the process
// forks.  A call that is refused says OUT_OF_MEMORY and which operation it was, has changed no
// byte, and the same call succeeds next.  On CUDA, where the driver allocates in the same process,
// only `operator new` fails.
// A libfovea.so that holds the C++ runtime has an `operator new` of its own, known by where it
// calls malloc: those calls in libfovea.so that the making of a host context meets.
//   malloc and pthread_create of this program stand before the C library's.  That needs glibc.
#include <gtest/gtest.h>

#if !defined(__GLIBC__)

TEST(Faults, CannotBeInjectedHere) {
  GTEST_SKIP() << "malloc can be replaced in glibc alone";
}

#else

#include <dirent.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <new>
#include <thread>

#include "subject.h"

// ---- what fails

namespace fault {

enum Kind { none, memory, news, threads, learning };

std::atomic<int> kind{none};
std::atomic<long> left{0};     // calls that succeed before one fails
std::atomic<bool> once{true};  // one fails; else all from then on
std::atomic<long> refused{0};
std::atomic<long> live{0};     // blocks that malloc gave and free did not take
std::atomic<long> started{0};  // threads

// Where the library's `operator new` calls malloc.
std::array<std::atomic<void*>, 8> sites{};

void learn(void* site) {
  Dl_info there, library;
  if (!dladdr(site, &there) || !dladdr(reinterpret_cast<void*>(&fovea_status_name), &library) ||
      there.dli_fbase != library.dli_fbase)
    return;
  for (auto& known : sites) {
    void* none = nullptr;
    if (known == site || known.compare_exchange_strong(none, site)) return;
  }
}

bool refuses(Kind which) {
  if (kind.load(std::memory_order_relaxed) != which) return false;
  const long before = left.fetch_sub(1);
  if (before > 0 || (before < 0 && once)) return false;
  ++refused;
  return true;
}

// For its lifetime the n-th call of `which` fails, n = 0, 1, ...
class Injected {
 public:
  Injected(Kind which, long n, bool only_once) {
    refused = 0, left = n, once = only_once;
    kind = which;
  }
  ~Injected() { kind = none; }
  Injected(const Injected&) = delete;
};

bool refuses_at(void* site) {
  const Kind now = static_cast<Kind>(kind.load(std::memory_order_relaxed));
  if (now == learning) learn(site);
  if (now != news) return refuses(memory);
  return std::find(sites.begin(), sites.end(), site) != sites.end() && refuses(news);
}

void* counted(void* data) {
  if (data) ++live;
  return data;
}

using Start = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
const Start start_thread = reinterpret_cast<Start>(dlsym(RTLD_NEXT, "pthread_create"));

}  // namespace fault

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);

void* malloc(size_t bytes) {
  if (fault::refuses_at(__builtin_return_address(0))) return errno = ENOMEM, nullptr;
  return fault::counted(__libc_malloc(bytes));
}
void* calloc(size_t count, size_t bytes) {
  if (fault::refuses(fault::memory)) return errno = ENOMEM, nullptr;
  return fault::counted(__libc_calloc(count, bytes));
}
void* realloc(void* data, size_t bytes) {
  if (fault::refuses(fault::memory)) return errno = ENOMEM, nullptr;
  void* grown = __libc_realloc(data, bytes);
  if (!data) return fault::counted(grown);
  if (!grown && !bytes) --fault::live;
  return grown;
}
void* memalign(size_t align, size_t bytes) {
  if (fault::refuses(fault::memory)) return errno = ENOMEM, nullptr;
  return fault::counted(__libc_memalign(align, bytes));
}
void* aligned_alloc(size_t align, size_t bytes) {
  return memalign(align, bytes);
}
int posix_memalign(void** out, size_t align, size_t bytes) {
  *out = memalign(align, bytes);
  return *out ? 0 : ENOMEM;
}
void free(void* data) {
  if (data) --fault::live;
  __libc_free(data);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*entry)(void*),
                   void* argument) {
  if (fault::refuses(fault::threads)) return EAGAIN;
  ++fault::started;
  return fault::start_thread(thread, attributes, entry, argument);
}
}

void* operator new(size_t bytes) {
  if (fault::refuses(fault::news)) throw std::bad_alloc();
  if (void* data = fault::counted(__libc_malloc(bytes ? bytes : 1))) return data;
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, size_t) noexcept {
  std::free(data);
}

namespace {

using contract::Case;
using subject::Bytes;
using subject::Subject;

constexpr int32_t kThreads = 4;

struct Context {
  explicit Context(fovea_backend backend = FOVEA_HOST) {
    EXPECT_EQ(fovea_context_create(backend, 0, &ctx), FOVEA_OK) << fovea_last_error();
    EXPECT_EQ(fovea_context_set_threads(ctx, kThreads), FOVEA_OK);
  }
  ~Context() { fovea_context_destroy(ctx); }
  Context(const Context&) = delete;
  operator fovea_context*() const { return ctx; }
  fovea_context* ctx = nullptr;
};

bool cuda_is_here() {
  int32_t count = 0;
  return fovea_device_count(FOVEA_CUDA, &count) == FOVEA_OK && count > 0;
}

std::vector<fovea_backend> backends() {
  if (cuda_is_here()) return {FOVEA_HOST, FOVEA_CUDA};
  return {FOVEA_HOST};
}

fault::Kind allocations_of(fovea_backend backend) {
  static const bool learnt = [] {
    const fault::Injected learning(fault::learning, 0, false);
    const Context host;
    return true;
  }();
  EXPECT_TRUE(learnt);
  return backend == FOVEA_HOST ? fault::memory : fault::news;
}

// A subject's tensors where the backend can reach them.
class Placed {
 public:
  Placed(Subject& subject, fovea_backend backend)
      : backend_(backend), subject_(subject), params_(subject.call.params) {
    if (backend == FOVEA_HOST) return;
    keeper_ = std::make_unique<Context>(backend);
    for (const Subject::Span& span : subject.spans()) {
      void* data = nullptr;
      const size_t bytes = std::max<size_t>(span.bytes, 256);
      EXPECT_EQ(fovea_alloc(*keeper_, FOVEA_MEMORY_DEVICE, bytes, &data), FOVEA_OK)
          << fovea_last_error();
      params_[span.field->name].data = data;
      device_.push_back(data);
    }
    reset();
  }
  ~Placed() {
    for (void* data : device_) fovea_free(*keeper_, data);
  }
  Placed(const Placed&) = delete;

  fovea_status run(fovea_context* ctx) { return subject_.call.op->call(ctx, params_.data()); }
  void reset() {
    subject_.reset();
    for (size_t i = 0; i < device_.size(); ++i)
      copy(device_[i], subject_.spans()[i].data, subject_.spans()[i].bytes);
    if (keeper_) fovea_context_synchronize(*keeper_);
  }
  // Every tensor's bytes, after the work of `ctx`.
  Bytes bytes(fovea_context* ctx) {
    if (backend_ == FOVEA_CUDA) {
      EXPECT_EQ(fovea_context_synchronize(ctx), FOVEA_OK) << fovea_last_error();
    }
    for (size_t i = 0; i < device_.size(); ++i)
      copy(subject_.spans()[i].data, device_[i], subject_.spans()[i].bytes);
    if (keeper_) fovea_context_synchronize(*keeper_);
    return subject_.bytes();
  }

 private:
  void copy(void* to, const void* from, size_t bytes) {
    EXPECT_EQ(fovea_copy(*keeper_, to, from, bytes), FOVEA_OK) << fovea_last_error();
  }
  const fovea_backend backend_;
  Subject& subject_;
  contract::Params params_;
  std::unique_ptr<Context> keeper_;
  std::vector<void*> device_;
};

void expect_refusal(fovea_status status, const std::string& op, const std::string& text) {
  EXPECT_EQ(status, FOVEA_OUT_OF_MEMORY) << text;
  EXPECT_EQ(text.rfind(op + ": ", 0), 0u) << text;
  EXPECT_GT(text.size(), op.size() + 10) << text;
}

class Every : public testing::TestWithParam<std::tuple<fovea_backend, Case> > {
 protected:
  fovea_backend backend() const { return std::get<0>(GetParam()); }
  const Case& given() const { return std::get<1>(GetParam()); }

  // What the call gives without a fault; false: this backend has no kernel for it.
  bool know(Placed& placed) {
    const Context ctx(backend());
    placed.reset();
    const fovea_status status = placed.run(ctx);
    if (status == FOVEA_UNSUPPORTED && backend() == FOVEA_CUDA) return false;
    EXPECT_EQ(status, FOVEA_OK) << fovea_last_error();
    expected = placed.bytes(ctx);
    return true;
  }

  // The call with a fault, and once more without.  False: the fault was not met.
  bool survive(Subject& subject, Placed& placed, fault::Kind kind, long n, bool once) {
    placed.reset();
    const Bytes before = subject.bytes();
    const uint64_t signals = subject::blocked_signals();
    const Context ctx(backend());
    fovea_status status;
    long refused;
    {
      const fault::Injected injected(kind, n, once);
      status = placed.run(ctx);
      refused = fault::refused;
    }
    const std::string text = fovea_last_error();
    EXPECT_EQ(subject::blocked_signals(), signals);
    if (status == FOVEA_OK) {
      EXPECT_EQ(text, "");
      EXPECT_EQ(subject.difference(expected, placed.bytes(ctx)), "");
    } else {
      EXPECT_GT(refused, 0) << text;
      expect_refusal(status, subject.op(), text);
      EXPECT_EQ(subject.difference(before, placed.bytes(ctx)), "") << "was changed by: " << text;
    }
    placed.reset();
    EXPECT_EQ(placed.run(ctx), FOVEA_OK) << fovea_last_error();
    EXPECT_EQ(subject.difference(expected, placed.bytes(ctx)), "");
    return refused > 0;
  }

  Bytes expected;
};

INSTANTIATE_TEST_SUITE_P(Faults, Every,
                         testing::Combine(testing::ValuesIn(backends()),
                                          testing::ValuesIn(subject::all_cases())),
                         [](const auto& info) {
                           const Case& c = std::get<1>(info.param);
                           return std::string(std::get<0>(info.param) == FOVEA_HOST ? "host_"
                                                                                    : "cuda_") +
                                  c.op + "_" + c.name;
                         });

TEST_P(Every, AllocationFails) {
  Subject subject(given());
  Placed placed(subject, backend());
  if (!know(placed)) GTEST_SKIP() << "no kernel";
  know(placed);  // the second time the C library has its thread-local rooms
  const fault::Kind kind = allocations_of(backend());
  long met = 0;
  for (const bool once : {true, false})
    for (long n = 0;; ++n) {
      SCOPED_TRACE((once ? "allocation " : "allocations from ") + std::to_string(n));
      const long live = fault::live;
      const bool was_met = survive(subject, placed, kind, n, once);
      if (backend() == FOVEA_HOST) {
        EXPECT_EQ(fault::live - live, 0);
      }
      if (!was_met) break;
      ++met;
      ASSERT_LT(n, 1000);
    }
  EXPECT_GT(met, 0);
}

TEST_P(Every, WorkspaceQueryFails) {
  const Subject subject(given());
  const Context ctx(backend());
  for (long n = 0;; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 1000);
    size_t bytes = 0, again = 0;
    fovea_status status;
    long refused;
    {
      const fault::Injected injected(allocations_of(backend()), n, true);
      status = subject.call.op->query(ctx, subject.call.params.data(), &bytes);
      refused = fault::refused;
    }
    if (status == FOVEA_UNSUPPORTED && backend() == FOVEA_CUDA) return;
    if (!refused) break;
    const std::string text = fovea_last_error();
    if (status != FOVEA_OK) {
      expect_refusal(status, subject.op(), text);
      EXPECT_EQ(bytes, 0u);
    }
    EXPECT_EQ(subject.call.op->query(ctx, subject.call.params.data(), &again), FOVEA_OK);
  }
}

TEST_P(Every, ThreadsCannotBeHad) {
  if (backend() != FOVEA_HOST) GTEST_SKIP() << "of the host";
  Subject subject(given());
  Placed placed(subject, backend());
  const long before = fault::started;
  ASSERT_TRUE(know(placed));
  // The large calls are there to start threads: one that does not tests nothing.
  if (given().name == std::string("large")) {
    ASSERT_GT(fault::started, before);
  }
  for (const bool once : {true, false})
    for (long n = 0; survive(subject, placed, fault::threads, n, once); ++n) ASSERT_LT(n, 10);
}

// ---- contexts and memory

class Contexts : public testing::TestWithParam<fovea_backend> {};
INSTANTIATE_TEST_SUITE_P(Faults, Contexts, testing::ValuesIn(backends()), [](const auto& info) {
  return std::string(info.param == FOVEA_HOST ? "host" : "cuda");
});

TEST_P(Contexts, CreationFails) {
  { const Context warm(GetParam()); }
  long met = 0;
  for (const bool once : {true, false})
    for (long n = 0;; ++n) {
      SCOPED_TRACE(n);
      ASSERT_LT(n, 1000);
      const long live = fault::live;
      fovea_context* ctx = reinterpret_cast<fovea_context*>(&met);
      fovea_status status;
      long refused;
      {
        const fault::Injected injected(allocations_of(GetParam()), n, once);
        status = fovea_context_create(GetParam(), 0, &ctx);
        refused = fault::refused;
      }
      if (status == FOVEA_OK) {
        fovea_context_destroy(ctx);
      } else {
        expect_refusal(status, "context_create", fovea_last_error());
        EXPECT_EQ(ctx, nullptr);
      }
      if (GetParam() == FOVEA_HOST) {
        EXPECT_EQ(fault::live - live, 0);
      }
      if (!refused) break;
      ++met;
    }
  EXPECT_GT(met, 0);
}

TEST_P(Contexts, AllocFails) {
  int ctx_was = 0;
  const Context ctx(GetParam());
  for (long n = 0;; ++n) {
    SCOPED_TRACE(n);
    ASSERT_LT(n, 1000);
    const long live = fault::live;
    void* data = &ctx_was;
    fovea_status status;
    long refused;
    {
      const fault::Injected injected(allocations_of(GetParam()), n, true);
      status = fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, 1 << 16, &data);
      refused = fault::refused;
    }
    if (status == FOVEA_OK) {
      EXPECT_EQ(fovea_free(ctx, data), FOVEA_OK);
    } else {
      expect_refusal(status, "alloc", fovea_last_error());
      EXPECT_EQ(data, nullptr);
    }
    if (GetParam() == FOVEA_HOST) {
      EXPECT_EQ(fault::live - live, 0);
    }
    if (!refused) break;
  }
  void* data = &data;
  const size_t much = size_t{1} << 60;
  const fovea_status status = fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, much, &data);
  expect_refusal(status, "alloc", fovea_last_error());
  EXPECT_NE(std::string(fovea_last_error()).find(std::to_string(much)), std::string::npos);
  EXPECT_EQ(data, nullptr);
}

// What frees may need is had before: freeing and destroying cannot fail.
TEST_P(Contexts, FreeingNeedsNothing) {
  void* data = nullptr;
  Subject subject(contract::large_cases()[0]);
  Placed placed(subject, GetParam());
  auto ctx = std::make_unique<Context>(GetParam());
  ASSERT_EQ(fovea_alloc(*ctx, FOVEA_MEMORY_DEVICE, 1 << 16, &data), FOVEA_OK);
  ASSERT_EQ(placed.run(*ctx), FOVEA_OK) << fovea_last_error();
  ASSERT_EQ(fovea_context_synchronize(*ctx), FOVEA_OK);
  fovea_context* const raw = ctx->ctx;
  ctx->ctx = nullptr;
  fovea_status freed;
  {
    const fault::Injected injected(allocations_of(GetParam()), 0, false);
    freed = fovea_free(raw, data);
    fovea_context_destroy(raw);
  }
  EXPECT_EQ(freed, FOVEA_OK);
}

// A workspace beyond the address space: a valid call that cannot be had.  Its tensors are never
// read.
TEST_P(Contexts, WorkspaceIsTooLarge) {
  std::vector<std::string> refused;
  const Context ctx(GetParam());
  for (const Case& c : contract::large_cases())
    for (const char* wild : {"n", "s", "t", "b", "h", "x"}) {
      if (!refused.empty() && refused.back() == c.op) break;
      const std::string settings =
          std::string(c.settings) + " " + wild + "=17592186044416 u=17592186044416";
      const contract::Call call({c.op, c.name, c.given, settings.c_str()});
      size_t bytes = 0;
      contract::Params params = call.params;
      for (const contract::Field* f : call.tensors())
        if (!f->output) contract::repeat(params[f->name]);
      if (call.op->query(ctx, params.data(), &bytes) != FOVEA_OK || bytes < size_t{1} << 48)
        continue;
      refused.push_back(c.op);
      const fovea_status status = call.op->call(ctx, params.data());
      expect_refusal(status, c.op, fovea_last_error());
      EXPECT_NE(std::string(fovea_last_error()).find(": workspace: "), std::string::npos)
          << fovea_last_error();
    }
  if (GetParam() == FOVEA_HOST) {
    EXPECT_GT(refused.size(), 3u);
  }
  // The context is as well as before.
  Subject subject(contract::large_cases()[0]);
  Placed placed(subject, GetParam());
  EXPECT_EQ(placed.run(ctx), FOVEA_OK) << fovea_last_error();
}

// ---- forks

// In a child: 0 where body says so, in time.
int in_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

bool gives(Subject& subject, fovea_context* ctx, const Bytes& expected) {
  subject.reset();
  return subject.run(ctx) == FOVEA_OK && subject.difference(expected, subject.bytes()).empty();
}

TEST(Fork, ParentAndChildGoOn) {
  for (const Case& c : contract::large_cases()) {
    SCOPED_TRACE(c.op);
    Subject subject(c);
    Bytes expected;
    {
      const Context ctx;
      ASSERT_EQ(subject.run(ctx), FOVEA_OK) << fovea_last_error();
      expected = subject.bytes();
    }
    auto ctx = std::make_unique<Context>();
    // Before there are threads, and then with them; the child of a child too.
    for (int pass = 0; pass < 2; ++pass) {
      EXPECT_EQ(in_child([&] {
                  return gives(subject, *ctx, expected) &&
                         in_child([&] { return gives(subject, *ctx, expected); }) == 0 &&
                         gives(subject, *ctx, expected) && (ctx.reset(), true);
                }),
                0);
      EXPECT_TRUE(gives(subject, *ctx, expected));
    }
    // A child that only destroys.
    EXPECT_EQ(in_child([&] { return ctx.reset(), true; }), 0);
    EXPECT_TRUE(gives(subject, *ctx, expected));
  }
}

// Other threads allocate and free all the while: the child must not find what they held locked.
TEST(Fork, WhileOthersAllocate) {
  std::atomic<bool> done{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      const Context ctx;
      while (!done) {
        void* data = nullptr;
        EXPECT_EQ(fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, 100, &data), FOVEA_OK);
        EXPECT_EQ(fovea_free(ctx, data), FOVEA_OK);
      }
    });
  const Context ctx;
  for (int i = 0; i < 50; ++i)
    EXPECT_EQ(in_child([&] {
                void* data = nullptr;
                return fovea_alloc(ctx, FOVEA_MEMORY_DEVICE, 100, &data) == FOVEA_OK &&
                       fovea_free(ctx, data) == FOVEA_OK;
              }),
              0);
  done = true;
  for (std::thread& other : others) other.join();
}

// ---- loading and unloading

struct Held {
  long mappings = 0, threads = 0, files = 0, pages = 0;
};

long entries_of(const char* folder) {
  DIR* dir = opendir(folder);
  long count = 0;
  while (readdir(dir)) ++count;
  closedir(dir);
  return count;
}

Held held() {
  Held now;
  std::ifstream maps("/proc/self/maps"), memory("/proc/self/statm");
  for (std::string line; std::getline(maps, line);) ++now.mappings;
  long all;
  memory >> all >> now.pages;
  now.threads = entries_of("/proc/self/task"), now.files = entries_of("/proc/self/fd");
  return now;
}

// A second copy of the library: this program holds the first for good.
class Copy {
 public:
  Copy() : path("/tmp/fovea_faults_" + std::to_string(getpid()) + ".so") {
    Dl_info own{};
    EXPECT_NE(dladdr(reinterpret_cast<void*>(&fovea_version), &own), 0);
    std::ifstream from(own.dli_fname, std::ios::binary);
    std::ofstream to(path, std::ios::binary);
    to << from.rdbuf();
  }
  ~Copy() { unlink(path.c_str()); }
  const std::string path;
};

template <class F>
F* symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  EXPECT_NE(found, nullptr) << name;
  return reinterpret_cast<F*>(found);
}

void load_and_use(const std::string& path, Subject& subject, const Bytes& expected) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  fovea_context* ctx = nullptr;
  void* data = nullptr;
  const std::string op = std::string("fovea_") + subject.op();
  ASSERT_EQ(
      symbol<decltype(fovea_context_create)>(library, "fovea_context_create")(FOVEA_HOST, 0, &ctx),
      FOVEA_OK);
  symbol<decltype(fovea_context_set_threads)>(library, "fovea_context_set_threads")(ctx, 2);
  subject.reset();
  EXPECT_EQ(symbol<fovea_status(fovea_context*, const void*)>(library, op.c_str())(
                ctx, subject.call.params.data()),
            FOVEA_OK);
  EXPECT_EQ(subject.difference(expected, subject.bytes()), "");
  EXPECT_EQ(
      symbol<decltype(fovea_alloc)>(library, "fovea_alloc")(ctx, FOVEA_MEMORY_DEVICE, 4096, &data),
      FOVEA_OK);
  EXPECT_EQ(symbol<decltype(fovea_free)>(library, "fovea_free")(ctx, data), FOVEA_OK);
  symbol<decltype(fovea_context_destroy)>(library, "fovea_context_destroy")(ctx);
  EXPECT_EQ(dlclose(library), 0);
}

TEST(Library, IsLoadedAThousandTimes) {
  const Copy copy;
  Subject subject(contract::large_cases()[0]);
  Bytes expected;
  {
    const Context ctx;
    ASSERT_EQ(subject.run(ctx), FOVEA_OK);
    expected = subject.bytes();
  }
  for (int i = 0; i < 50; ++i) ASSERT_NO_FATAL_FAILURE(load_and_use(copy.path, subject, expected));
  const Held before = held();
  const long live = fault::live;
  for (int i = 0; i < 950; ++i) ASSERT_NO_FATAL_FAILURE(load_and_use(copy.path, subject, expected));
  const long leaked = fault::live - live;
  const Held after = held();
  EXPECT_LE(leaked, 20);
  EXPECT_LE(after.mappings, before.mappings + 4);
  EXPECT_LE(after.threads, before.threads);
  EXPECT_LE(after.files, before.files);
  EXPECT_LE(after.pages, before.pages + 256);  // a MiB
}

}  // namespace

#endif
